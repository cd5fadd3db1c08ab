"""What the machine must offer: a release and a TensorRT that read the engine, and GPUs that compute it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.lineage import quoted_path
from trtdx.inspect.agreements.serving import rank_count
from trtdx.inspect.facts.compatibility import (
    FIRST_BF16,
    FP8_ALGOS,
    capability_text,
    gpu_words,
    is_legacy_engine,
    is_same_release,
    kernels_not_serving,
    lacks_engine_flow,
    plan_writer,
    possible_builders,
    unsupported_algo,
)
from trtdx.inspect.facts.runtime_keys import release_demands
from trtdx.inspect.rebuild.build_command import build_command
from trtdx.knowledge import versions
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

MODEL_KINDS = ("engine", "checkpoint", "hf")  # the more finished first: one finding for one model
STARTED = ("engine", "checkpoint", "llm-args", "command")


def artifact_machine_pairs(deployment: Deployment, *kinds: str) -> Iterator[tuple[Artifact, Artifact]]:
    """Yield artifacts and the machines they are to run on; a release without engines is told once, elsewhere."""
    for machine in deployment.of_kinds("machine"):
        for artifact in deployment.of_kinds(*kinds):
            if artifact.kind not in ("engine", "checkpoint", "plan") or not lacks_engine_flow(machine):
                yield artifact, machine


def machine_gpu_words(machine: Artifact) -> str:
    """Return words for the machine's GPU."""
    words = f"compute capability {capability_text(machine.integer('gpu.sm') or 0)}"
    return f"{machine.text('gpu.name')} ({words})" if machine.has("gpu.name") else f"a GPU of {words}"


@make_agreement("DX247", "engine", "machine")
def release_runs_engines(deployment: Deployment) -> Iterator[Violation]:
    """An engine is given to a release that still runs engines."""
    for machine in deployment.of_kinds("machine"):
        for engine in deployment.of_kinds("engine"):
            if lacks_engine_flow(machine):
                values = {
                    "runtime": machine.text("gpu.runtime"),
                    "version": engine.text("version") or "1.2.1",
                }
                yield Violation(engine.evidence("version") + machine.evidence("gpu.runtime"), values)


@make_agreement("DX200", "engine", "plan", "machine")
def tensorrt_release(deployment: Deployment) -> Iterator[Violation]:
    """A plan is read by the TensorRT release that wrote it."""
    for artifact, machine in artifact_machine_pairs(deployment, "engine", "plan"):
        writer = plan_writer(artifact, machine)
        if writer is None or writer.is_same:
            continue
        name = "plan.versions" if writer.is_observed else "version"
        runtime = machine.text("gpu.runtime")
        values = {"wrote": writer.writer_version, "reads": writer.reader_version, "runtime": runtime or "it"}
        release_words = "" if writer.is_observed else f"by its release, {artifact.text('version')}, "
        values |= {"who": f"{release_words}TensorRT {writer.writer_version}", "plan": _first_plan(artifact)}
        values["rebuild"] = _rebuild_command(artifact, runtime)
        evidence = artifact.evidence(name) + machine.evidence(_first_stated(machine, "gpu.tensorrt", "gpu.runtime"))
        sure = artifact.kind == "engine" and not writer.differs_in_patch  # plain plans may be version-compatible
        severity, confidence = (None, 0.97 if writer.is_observed else 0.85) if sure else (Severity.WARNING, 0.7)
        yield Violation(evidence, values, severity, confidence)


def _first_plan(artifact: Artifact) -> str:
    return quoted_path(artifact) if artifact.kind == "plan" else f"{quoted_path(artifact)}/rank0.engine"


def _rebuild_command(artifact: Artifact, release: str) -> str:
    """Return the command that makes plans again; a plain plan is made from its ONNX model."""
    if artifact.kind == "plan":
        return f"trtexec --onnx=MODEL.onnx --saveEngine={quoted_path(artifact)}.new"
    return build_command(artifact, release)


def _first_stated(artifact: Artifact, *names: str) -> str:
    return next((name for name in names if artifact.has(name)), names[0])


@make_agreement("DX207", "engine", "machine")
def engine_release(deployment: Deployment) -> Iterator[Violation]:
    """An engine is read by the release that built it; where TensorRT differs too, that is the finding."""
    for engine, machine in artifact_machine_pairs(deployment, "engine"):
        builders, runtime = possible_builders(engine), machine.text("gpu.runtime")
        if not builders or not runtime or runtime in builders or _is_unreadable(engine, machine):
            continue
        keys = _missing_keys(engine, runtime)
        if is_legacy_engine(engine) and not keys and any(is_same_release(builder, runtime) for builder in builders):
            continue  # which patch built it is not known
        values = _release_values(engine, runtime, keys)
        names = ["era" if is_legacy_engine(engine) else "version", *(["build.missing_keys"] if keys else [])]
        severity, confidence = _release_severity(builders[0], runtime, bool(keys))
        yield Violation(engine.evidence(*names) + machine.evidence("gpu.runtime"), values, severity, confidence)


def _release_values(engine: Artifact, runtime: str, keys: list[str]) -> dict[str, object]:
    builders = possible_builders(engine)
    maker = f"TensorRT-LLM {builders[0]}"
    if is_legacy_engine(engine):
        maker = f"a TensorRT-LLM before 0.8 ({' or '.join(builders)} by its keys and plans)"
    return {
        "maker": maker,
        "version": " or ".join(builders),
        "one": builders[-1],
        "runtime": runtime,
        "folder": quoted_path(engine),
        "lacking": f", and its config.json lacks {abbreviate_list(keys, 5)}" if keys else "",
        "rebuild": build_command(engine, runtime),
    }


def _release_severity(made_by: str, runtime: str, keys: bool) -> tuple[Severity | None, float]:
    """Return how bad another release is, as the verdict on a rebuild says: only a patch release seldom matters."""
    if keys:
        return None, 0.95
    return (Severity.NOTE, 0.7) if is_same_release(made_by, runtime) else (None, 0.8)


@make_agreement("DX908", "engine")
def demanded_keys(deployment: Deployment) -> Iterator[Violation]:
    """An engine's config.json has the keys that the runtime of its own release demands."""
    for engine in deployment.of_kinds("engine"):
        builders = possible_builders(engine)
        missing = _missing_keys(engine, builders[0]) if builders else []
        if missing:
            values = {
                "keys": abbreviate_list(missing, 5),
                "version": " or ".join(builders),
                "folder": quoted_path(engine),
                "rebuild": build_command(engine),
            }
            yield Violation(engine.evidence("build.missing_keys"), values)


def _missing_keys(engine: Artifact, runtime: str) -> list[str]:
    return [key for key in map(str, engine.items("build.missing_keys")) if release_demands(runtime, key)]


def _is_unreadable(engine: Artifact, machine: Artifact) -> bool:
    """Return whether the engine cannot be read for a reason that goes before its keys."""
    writer = plan_writer(engine, machine)
    return lacks_engine_flow(machine) or (writer is not None and not writer.is_same)


@make_agreement("DX201", "engine", "plan", "machine")
def compute_capability(deployment: Deployment) -> Iterator[Violation]:
    """A plan runs on the compute capability it was built for."""
    for artifact, machine in artifact_machine_pairs(deployment, "engine", "plan"):
        sm, built = machine.integer("gpu.sm"), artifact.items("plan.sms")
        if sm is None or len(built) != 1 or sm in built or "RTX" in artifact.text("plan.product"):
            continue  # plans of several GPUs are another finding
        if unsupported_algo(artifact, machine) or kernels_not_serving(machine):
            continue  # a rebuild would not help
        values = {
            "built": capability_text(built[0]),
            "run": capability_text(sm),
            "built_gpus": gpu_words(tuple(built)),
        }
        values["gpu"] = machine.text("gpu.name") or "the GPU that is to run them"
        values["rebuild"] = _rebuild_command(artifact, machine.text("gpu.runtime"))
        sure = artifact.kind == "engine"  # plain plans may be hardware-compatible; TensorRT-LLM's never are
        severity, confidence = (None, 0.9) if sure else (Severity.WARNING, 0.7)
        evidence = artifact.evidence("plan.sms") + machine.evidence("gpu.sm")
        yield Violation(evidence, values, severity, confidence)


@make_agreement("DX060", "machine")
def gpu_kernels(deployment: Deployment) -> Iterator[Violation]:
    """The release has kernels for the GPU."""
    for machine in deployment.of_kinds("machine"):
        lack, sm = kernels_not_serving(machine), machine.integer("gpu.sm") or 0
        if lack is None:
            continue
        values = {
            "gpu": machine_gpu_words(machine),
            "sm": capability_text(sm),
            "runtime": machine.text("gpu.runtime"),
        }
        values |= {"releases": _releases_with_kernels(sm), "listed": ", ".join(map(capability_text, lack.sm))}
        near = any(supported_sm // 10 == sm // 10 for supported_sm in lack.sm)
        severity, confidence = (Severity.WARNING, 0.6) if near else (None, 0.9)
        yield Violation(machine.evidence("gpu.sm", "gpu.runtime"), values, severity, confidence)


def _releases_with_kernels(sm: int) -> str:
    """Return the releases that have kernels for a compute capability, in words."""
    rows = versions.version_table().kernels
    serving = [at for at, row in enumerate(rows) if row.serve(sm)]
    if not serving:
        return "no release has"
    first, after = rows[serving[0]].since, rows[serving[-1] + 1 :]
    return f"releases from {first} on{f' and before {after[0].since}' if after else ''} have"


@make_agreement("DX102", "engine", "checkpoint", "hf", "machine")
def fp8_on_gpu(deployment: Deployment) -> Iterator[Violation]:
    """A model in FP8 runs on a GPU that computes FP8."""
    yield from _unsupported_quantization(deployment, lambda algo: algo in FP8_ALGOS)


@make_agreement("DX325", "engine", "checkpoint", "hf", "machine")
def quantization_on_gpu(deployment: Deployment) -> Iterator[Violation]:
    """A quantised model runs on a GPU there are kernels for its quantisation on."""
    yield from _unsupported_quantization(deployment, lambda algo: algo not in FP8_ALGOS)


def _unsupported_quantization(deployment: Deployment, is_judged_here: Callable[[str], bool]) -> Iterator[Violation]:
    reported: set[tuple[str, str]] = set()
    for kind in MODEL_KINDS:
        for artifact, machine in artifact_machine_pairs(deployment, kind):
            lack = unsupported_algo(artifact, machine)
            if (
                lack is None
                or kernels_not_serving(machine)
                or not is_judged_here(lack.algo)
                or (lack.algo, machine.path) in reported
            ):
                continue
            reported.add((lack.algo, machine.path))
            values = {
                "gpu": machine_gpu_words(machine),
                "algo": lack.algo,
                "works_on": gpu_words(lack.works_on),
            }
            values["verb"] = "cannot compute" if lack.is_certain else "is not listed for"
            severity = None if lack.is_certain else Severity.WARNING
            evidence = artifact.evidence("quant.algo") + machine.evidence("gpu.sm")
            yield Violation(evidence, values, severity, 0.95 if lack.is_certain else 0.7)


@make_agreement("DX158", "engine", "checkpoint", "hf", "machine")
def bfloat16_on_gpu(deployment: Deployment) -> Iterator[Violation]:
    """A model in bfloat16 runs on a GPU that computes bfloat16."""
    for kind in MODEL_KINDS:
        for artifact, machine in artifact_machine_pairs(deployment, kind):
            sm = machine.integer("gpu.sm")
            old = sm is not None and sm < FIRST_BF16 and kernels_not_serving(machine) is None
            if old and artifact.get("dtype") == "bfloat16" and unsupported_algo(artifact, machine) is None:
                yield Violation(
                    artifact.evidence("dtype") + machine.evidence("gpu.sm"),
                    {"gpu": machine_gpu_words(machine)},
                )
                return


@make_agreement("DX467", *STARTED, "machine", needs=("|".join(STARTED), "machine"))
def gpus_for_ranks(deployment: Deployment) -> Iterator[Violation]:
    """A machine has a GPU for each rank it is to run."""
    for kind in ("engine", "checkpoint", "command", "llm-args"):
        for artifact, machine in artifact_machine_pairs(deployment, kind):
            ranks, count = _ranks_per_machine(artifact), machine.integer("gpu.count")
            if count is not None and ranks > count:
                values = {
                    "ranks": format_count(ranks, "rank"),
                    "are": "is" if ranks == 1 else "are",
                    "count": format_count(count, "GPU"),
                    "number": count,
                    "sizes": _parallel_size_words(artifact),
                }
                values["remedy"] = _more_gpus_remedy(machine, ranks)
                names = ("world_size", "tp_size", "pp_size", "cp_size", "runtime.world_size")
                evidence = artifact.evidence(*(name for name in names if artifact.has(name)))
                yield Violation(evidence + machine.evidence("gpu.count"), values)
                return


def _more_gpus_remedy(machine: Artifact, ranks: int) -> str:
    """Return how more GPUs are asked for where this machine is described."""
    where = machine.facts["gpu.count"].where
    if "CUDA_VISIBLE_DEVICES" in where or machine.path == "command line":
        return f"name {ranks} GPUs in CUDA_VISIBLE_DEVICES, or do not set it"
    if machine.path.startswith("Kubernetes"):
        return f"ask for {ranks} GPUs (nvidia.com/gpu under resources.limits), or spread the ranks over several pods"
    if machine.path == "compose":
        return f"reserve {ranks} GPUs (count or device_ids under deploy.resources.reservations.devices)"
    if machine.path == "Slurm":
        return f"ask Slurm for {ranks} GPUs in all (--gpus-per-node times --nodes)"
    return f"make {ranks} GPUs visible (docker run --gpus all), or start the ranks on several machines"


def _ranks_per_machine(artifact: Artifact) -> int:
    """Return the ranks one machine runs: all of them, or as many as a machine is said to have GPUs."""
    # each rank that a launcher starts takes a GPU
    ranks = max(rank_count(artifact) or 1, artifact.integer("runtime.world_size") or 1)
    return min(ranks, artifact.integer("gpus_per_node") or ranks)


def _parallel_size_words(artifact: Artifact) -> str:
    named = (("tensor", "tp_size"), ("pipeline", "pp_size"), ("context", "cp_size"))
    return " x ".join(f"{word} {artifact.get(name)}" for word, name in named if artifact.has(name)) or (
        "as started" if artifact.has("runtime.world_size") else "one by default"
    )
