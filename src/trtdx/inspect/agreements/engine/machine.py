"""What the machine must offer: a release and a TensorRT that read the engine, and GPUs that compute it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import agreement
from trtdx.inspect.agreements.lineage import quoted
from trtdx.inspect.agreements.serving import ranks_of
from trtdx.inspect.facts.compatibility import (
    FIRST_BF16,
    FP8,
    builders_of,
    capability,
    gpus_of,
    is_old,
    kernels_lack,
    lack_of,
    runs_no_engine,
    same_release,
    writer_of,
)
from trtdx.inspect.facts.runtime_keys import demands
from trtdx.inspect.rebuild.command import build_command
from trtdx.knowledge import versions
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import counted, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

MODELS = ("engine", "checkpoint", "hf")  # the more finished first: one finding for one model
STARTED = ("engine", "checkpoint", "llm-args", "command")


def pairs(deployment: Deployment, *kinds: str) -> Iterator[tuple[Artifact, Artifact]]:
    """Yield artifacts and the machines they are to run on; a release without engines is told once, elsewhere."""
    for machine in deployment.of("machine"):
        for artifact in deployment.of(*kinds):
            if artifact.kind not in ("engine", "checkpoint", "plan") or not runs_no_engine(machine):
                yield artifact, machine


def gpu_of(machine: Artifact) -> str:
    """Return words for the machine's GPU."""
    words = f"compute capability {capability(machine.integer('gpu.sm') or 0)}"
    return f"{machine.text('gpu.name')} ({words})" if machine.has("gpu.name") else f"a GPU of {words}"


@agreement("DX247", "engine", "machine")
def engines_run(deployment: Deployment) -> Iterator[Violation]:
    """An engine is given to a release that still runs engines."""
    for machine in deployment.of("machine"):
        for engine in deployment.of("engine"):
            if runs_no_engine(machine):
                values = {
                    "runtime": machine.text("gpu.runtime"),
                    "version": engine.text("version") or "1.2.1",
                }
                yield Violation(engine.evidence("version") + machine.evidence("gpu.runtime"), values)


@agreement("DX200", "engine", "plan", "machine")
def tensorrt_release(deployment: Deployment) -> Iterator[Violation]:
    """A plan is read by the TensorRT release that wrote it."""
    for artifact, machine in pairs(deployment, "engine", "plan"):
        writer = writer_of(artifact, machine)
        if writer is None or writer.same:
            continue
        name = "plan.versions" if writer.seen else "version"
        runtime = machine.text("gpu.runtime")
        values = {"wrote": writer.wrote, "reads": writer.reads, "runtime": runtime or "it"}
        release_words = "" if writer.seen else f"by its release, {artifact.text('version')}, "
        values |= {"who": f"{release_words}TensorRT {writer.wrote}", "plan": _a_plan(artifact)}
        values["rebuild"] = _remade(artifact, runtime)
        evidence = artifact.evidence(name) + machine.evidence(_stated(machine, "gpu.tensorrt", "gpu.runtime"))
        sure = artifact.kind == "engine" and not writer.near  # plain plans may be version-compatible
        severity, confidence = (None, 0.97 if writer.seen else 0.85) if sure else (Severity.WARNING, 0.7)
        yield Violation(evidence, values, severity, confidence)


def _a_plan(artifact: Artifact) -> str:
    return quoted(artifact) if artifact.kind == "plan" else f"{quoted(artifact)}/rank0.engine"


def _remade(artifact: Artifact, release: str) -> str:
    """Return the command that makes plans again; a plain plan is made from its ONNX model."""
    if artifact.kind == "plan":
        return f"trtexec --onnx=MODEL.onnx --saveEngine={quoted(artifact)}.new"
    return build_command(artifact, release)


def _stated(artifact: Artifact, *names: str) -> str:
    return next((name for name in names if artifact.has(name)), names[0])


@agreement("DX207", "engine", "machine")
def release(deployment: Deployment) -> Iterator[Violation]:
    """An engine is read by the release that built it; where TensorRT differs too, that is the finding."""
    for engine, machine in pairs(deployment, "engine"):
        builders, runtime = builders_of(engine), machine.text("gpu.runtime")
        if not builders or not runtime or runtime in builders or _read_otherwise(engine, machine):
            continue
        keys = _demanded(engine, runtime)
        if is_old(engine) and not keys and any(same_release(builder, runtime) for builder in builders):
            continue  # which patch built it is not known
        values = _release_values(engine, runtime, keys)
        names = ["era" if is_old(engine) else "version", *(["build.missing_keys"] if keys else [])]
        severity, confidence = _gravity(builders[0], runtime, bool(keys))
        yield Violation(
            engine.evidence(*names) + machine.evidence("gpu.runtime"), values, severity, confidence
        )


def _release_values(engine: Artifact, runtime: str, keys: list[str]) -> dict[str, object]:
    builders = builders_of(engine)
    maker = f"TensorRT-LLM {builders[0]}"
    if is_old(engine):
        maker = f"a TensorRT-LLM before 0.8 ({' or '.join(builders)} by its keys and plans)"
    return {
        "maker": maker,
        "version": " or ".join(builders),
        "one": builders[-1],
        "runtime": runtime,
        "folder": quoted(engine),
        "lacking": f", and its config.json lacks {listed(keys, 5)}" if keys else "",
        "rebuild": build_command(engine, runtime),
    }


def _gravity(made_by: str, runtime: str, keys: bool) -> tuple[Severity | None, float]:
    """Return how bad another release is, as the verdict on a rebuild says: only a patch release seldom matters."""
    if keys:
        return None, 0.95
    return (Severity.NOTE, 0.7) if same_release(made_by, runtime) else (None, 0.8)


@agreement("DX908", "engine")
def demanded_keys(deployment: Deployment) -> Iterator[Violation]:
    """An engine's config.json has the keys that the runtime of its own release demands."""
    for engine in deployment.of("engine"):
        builders = builders_of(engine)
        missing = _demanded(engine, builders[0]) if builders else []
        if missing:
            values = {
                "keys": listed(missing, 5),
                "version": " or ".join(builders),
                "folder": quoted(engine),
                "rebuild": build_command(engine),
            }
            yield Violation(engine.evidence("build.missing_keys"), values)


def _demanded(engine: Artifact, runtime: str) -> list[str]:
    return [key for key in map(str, engine.items("build.missing_keys")) if demands(runtime, key)]


def _read_otherwise(engine: Artifact, machine: Artifact) -> bool:
    """Return whether the engine cannot be read for a reason that goes before its keys."""
    writer = writer_of(engine, machine)
    return runs_no_engine(machine) or (writer is not None and not writer.same)


@agreement("DX201", "engine", "plan", "machine")
def compute_capability(deployment: Deployment) -> Iterator[Violation]:
    """A plan runs on the compute capability it was built for."""
    for artifact, machine in pairs(deployment, "engine", "plan"):
        sm, built = machine.integer("gpu.sm"), artifact.items("plan.sms")
        if sm is None or len(built) != 1 or sm in built or "RTX" in artifact.text("plan.product"):
            continue  # plans of several GPUs are another finding
        if lack_of(artifact, machine) or kernels_lack(machine):
            continue  # a rebuild would not help
        values = {"built": capability(built[0]), "run": capability(sm), "built_gpus": gpus_of(tuple(built))}
        values["gpu"] = machine.text("gpu.name") or "the GPU that is to run them"
        values["rebuild"] = _remade(artifact, machine.text("gpu.runtime"))
        sure = artifact.kind == "engine"  # plain plans may be hardware-compatible; TensorRT-LLM's never are
        severity, confidence = (None, 0.9) if sure else (Severity.WARNING, 0.7)
        evidence = artifact.evidence("plan.sms") + machine.evidence("gpu.sm")
        yield Violation(evidence, values, severity, confidence)


@agreement("DX060", "machine")
def kernels(deployment: Deployment) -> Iterator[Violation]:
    """The release has kernels for the GPU."""
    for machine in deployment.of("machine"):
        lack, sm = kernels_lack(machine), machine.integer("gpu.sm") or 0
        if lack is None:
            continue
        values = {"gpu": gpu_of(machine), "sm": capability(sm), "runtime": machine.text("gpu.runtime")}
        values |= {"releases": _releases(sm), "listed": ", ".join(map(capability, lack.sm))}
        near = any(supported_sm // 10 == sm // 10 for supported_sm in lack.sm)
        severity, confidence = (Severity.WARNING, 0.6) if near else (None, 0.9)
        yield Violation(machine.evidence("gpu.sm", "gpu.runtime"), values, severity, confidence)


def _releases(sm: int) -> str:
    """Return the releases that have kernels for a compute capability, in words."""
    rows = versions.table().kernels
    serving = [at for at, row in enumerate(rows) if row.serve(sm)]
    if not serving:
        return "no release has"
    first, after = rows[serving[0]].since, rows[serving[-1] + 1 :]
    return f"releases from {first} on{f' and before {after[0].since}' if after else ''} have"


@agreement("DX102", "engine", "checkpoint", "hf", "machine")
def fp8(deployment: Deployment) -> Iterator[Violation]:
    """A model in FP8 runs on a GPU that computes FP8."""
    yield from _precision(deployment, lambda algo: algo in FP8)


@agreement("DX325", "engine", "checkpoint", "hf", "machine")
def quantisation(deployment: Deployment) -> Iterator[Violation]:
    """A quantised model runs on a GPU there are kernels for its quantisation on."""
    yield from _precision(deployment, lambda algo: algo not in FP8)


def _precision(deployment: Deployment, ours: Callable[[str], bool]) -> Iterator[Violation]:
    reported: set[tuple[str, str]] = set()
    for kind in MODELS:
        for artifact, machine in pairs(deployment, kind):
            lack = lack_of(artifact, machine)
            if (
                lack is None
                or kernels_lack(machine)
                or not ours(lack.algo)
                or (lack.algo, machine.path) in reported
            ):
                continue
            reported.add((lack.algo, machine.path))
            values = {"gpu": gpu_of(machine), "algo": lack.algo, "works_on": gpus_of(lack.works_on)}
            values["verb"] = "cannot compute" if lack.certain else "is not listed for"
            severity = None if lack.certain else Severity.WARNING
            evidence = artifact.evidence("quant.algo") + machine.evidence("gpu.sm")
            yield Violation(evidence, values, severity, 0.95 if lack.certain else 0.7)


@agreement("DX158", "engine", "checkpoint", "hf", "machine")
def bfloat16(deployment: Deployment) -> Iterator[Violation]:
    """A model in bfloat16 runs on a GPU that computes bfloat16."""
    for kind in MODELS:
        for artifact, machine in pairs(deployment, kind):
            sm = machine.integer("gpu.sm")
            old = sm is not None and sm < FIRST_BF16 and kernels_lack(machine) is None
            if old and artifact.get("dtype") == "bfloat16" and lack_of(artifact, machine) is None:
                yield Violation(
                    artifact.evidence("dtype") + machine.evidence("gpu.sm"), {"gpu": gpu_of(machine)}
                )
                return


@agreement("DX467", *STARTED, "machine", needs=("|".join(STARTED), "machine"))
def gpus_for_ranks(deployment: Deployment) -> Iterator[Violation]:
    """A machine has a GPU for each rank it is to run."""
    for kind in ("engine", "checkpoint", "command", "llm-args"):
        for artifact, machine in pairs(deployment, kind):
            ranks, count = _ranks_here(artifact), machine.integer("gpu.count")
            if count is not None and ranks > count:
                values = {
                    "ranks": counted(ranks, "rank"),
                    "are": "is" if ranks == 1 else "are",
                    "count": counted(count, "GPU"),
                    "number": count,
                    "sizes": _sizes(artifact),
                }
                values["remedy"] = _more_gpus(machine, ranks)
                names = ("world_size", "tp_size", "pp_size", "cp_size", "runtime.world_size")
                evidence = artifact.evidence(*(name for name in names if artifact.has(name)))
                yield Violation(evidence + machine.evidence("gpu.count"), values)
                return


def _more_gpus(machine: Artifact, ranks: int) -> str:
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


def _ranks_here(artifact: Artifact) -> int:
    """Return the ranks one machine runs: all of them, or as many as a machine is said to have GPUs."""
    # each rank that a launcher starts takes a GPU
    ranks = max(ranks_of(artifact) or 1, artifact.integer("runtime.world_size") or 1)
    return min(ranks, artifact.integer("gpus_per_node") or ranks)


def _sizes(artifact: Artifact) -> str:
    named = (("tensor", "tp_size"), ("pipeline", "pp_size"), ("context", "cp_size"))
    return " x ".join(f"{word} {artifact.get(name)}" for word, name in named if artifact.has(name)) or (
        "as started" if artifact.has("runtime.world_size") else "one by default"
    )
