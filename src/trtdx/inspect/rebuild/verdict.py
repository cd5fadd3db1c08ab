"""Do I have to rebuild? Yes or no for an engine and the machine it is to run on, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.inspect.facts.compatibility import (
    capability_text,
    is_legacy_engine,
    is_same_release,
    kernels_not_serving,
    lacks_engine_flow,
    plan_writer,
    possible_builders,
    unsupported_algo,
)
from trtdx.inspect.facts.runtime_keys import release_demands
from trtdx.knowledge import versions
from trtdx.model import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.inspect.facts.compatibility import PlanWriter

REBUILD, NO_REBUILD, NOT_KNOWN = "yes", "no", "is not known"
BROKEN_PLAN_FACTS = (
    "plan.truncated",
    "plan.overlong",
    "plan.foreign",
    "weights.missing",
    "weights.lfs_pointers",
)


class RebuildReason(NamedTuple):
    """What one thing that decides says."""

    about: str
    verdict: str  # YES: it must be rebuilt for this
    reason: str


def rebuild_section(engine: Artifact, machine: Artifact) -> Section:
    """Return the verdict and everything it rests on."""
    answers = list(_rebuild_reasons(engine, machine))
    return Section(
        "rebuild",
        f"do I have to rebuild? {engine.path}",
        ("", "rebuild", "reason"),
        tuple(tuple(answer) for answer in (overall_verdict(answers), *answers)),
        note="a rebuild starts from the checkpoint; for another release the model is converted again first",
    )


def overall_verdict(answers: list[RebuildReason]) -> RebuildReason:
    """Return the answer in one row: one yes decides, and what is not known is named."""
    decided = next((answer for answer in answers if answer.verdict == REBUILD), None)
    if decided is not None:
        return RebuildReason("verdict", REBUILD, decided.reason)
    open_ones = [answer for answer in answers if answer.verdict == NOT_KNOWN]
    if open_ones:
        return RebuildReason("verdict", NOT_KNOWN, "; ".join(answer.reason for answer in open_ones))
    same = ", ".join(answer.about for answer in answers)
    return RebuildReason("verdict", NO_REBUILD, f"nothing that decides is against it ({same})")


def _rebuild_reasons(engine: Artifact, machine: Artifact) -> Iterator[RebuildReason]:
    if lacks_engine_flow(machine):
        runtime = machine.text("gpu.runtime")
        yield RebuildReason(
            "release",
            REBUILD,
            f"TensorRT-LLM {runtime} runs no engines: serve the Hugging Face model with its PyTorch backend, "
            "or stay on 1.2.1",
        )
        return
    yield from _precision_reasons(engine, machine)
    yield _plan_reason(engine)
    yield _tensorrt_reason(engine, machine)
    yield _release_reason(engine, machine)
    yield _gpu_reason(engine, machine)


def _plan_reason(engine: Artifact) -> RebuildReason:
    broken = [str(item) for name in BROKEN_PLAN_FACTS for item in engine.items(name)]
    if broken:
        return RebuildReason("plans", REBUILD, f"the engine is not whole: {broken[0]}")
    if not engine.has("plan.versions"):
        return RebuildReason("plans", NOT_KNOWN, "no plan was read")
    return RebuildReason("plans", NO_REBUILD, "every plan is there and as long as it says")


def _release_reason(engine: Artifact, machine: Artifact) -> RebuildReason:
    made_by, runtime = engine.text("version"), machine.text("gpu.runtime")
    if not runtime:
        return RebuildReason("release", NOT_KNOWN, "the release that is to run it is not named: --runtime 1.2.1")
    lacking = [key for key in map(str, engine.items("build.missing_keys")) if release_demands(runtime, key)]
    if lacking:
        writer = f"which {made_by} did not write" if made_by else "which is not there"
        return RebuildReason("release", REBUILD, f"{runtime} demands {lacking[0]} in config.json, {writer}")
    if is_legacy_engine(engine):
        return RebuildReason("release", *_legacy_release_reason(engine, runtime))
    if not made_by:
        return RebuildReason("release", NOT_KNOWN, "config.json states no release")
    if made_by == runtime:
        return RebuildReason("release", NO_REBUILD, f"{made_by} built it and runs it")
    if is_same_release(made_by, runtime):
        return RebuildReason("release", NO_REBUILD, f"{made_by} built it, and {runtime} is a patch of the same release")
    return RebuildReason(
        "release",
        REBUILD,
        f"{made_by} built it and {runtime} is to run it: what plugins store in a plan and which inputs it has "
        "changes between releases, and nothing checks it",
    )


def _legacy_release_reason(engine: Artifact, runtime: str) -> tuple[str, str]:
    """Return the verdict for an engine before 0.8, whose plans and keys tell what can have built it."""
    builders = possible_builders(engine)
    if versions.at_least(runtime, "0.8.0"):
        return REBUILD, f"it was built before 0.8, and what plugins store in a plan is another for {runtime}"
    if any(is_same_release(builder, runtime) for builder in builders):
        return NO_REBUILD, f"config.json states no release, and its keys and plans are those of {runtime}"
    if builders:
        return REBUILD, f"by its keys and plans {' or '.join(builders)} built it, and {runtime} is to run it"
    return NOT_KNOWN, "config.json states no release, as before 0.8, and its keys and plans tell none"


def _tensorrt_reason(engine: Artifact, machine: Artifact) -> RebuildReason:
    writer = plan_writer(engine, machine)
    if writer is None:
        return RebuildReason("TensorRT", *_unknown_tensorrt_reason(engine, machine))
    if not writer.is_observed:
        return RebuildReason(
            "TensorRT", REBUILD if not writer.is_same else NO_REBUILD, _reason_by_release(engine, writer)
        )
    if writer.is_same:
        return RebuildReason("TensorRT", NO_REBUILD, f"TensorRT {writer.writer_version} wrote the plans and reads them")
    return RebuildReason(
        "TensorRT",
        REBUILD,
        f"TensorRT {writer.writer_version} wrote the plans and {writer.reader_version} is to read them",
    )


def _reason_by_release(engine: Artifact, writer: PlanWriter) -> str:
    """Return the reason where no plan could be asked."""
    has = f"no plan was read, but {engine.text('version')} has TensorRT {writer.writer_version}"
    return f"{has}, as the machine" if writer.is_same else f"{has}, and {writer.reader_version} is to read its plans"


def _unknown_tensorrt_reason(engine: Artifact, machine: Artifact) -> tuple[str, str]:
    plan_versions = [str(version) for version in engine.items("plan.versions")]
    if "RTX" in engine.text("plan.product"):
        return REBUILD, "the plans are TensorRT-RTX's, which TensorRT-LLM cannot read"
    if len(plan_versions) > 1:
        return REBUILD, f"the plans were written by different TensorRT releases ({', '.join(plan_versions)})"
    runtime = machine.text("gpu.runtime")
    if not runtime:
        return NOT_KNOWN, "the TensorRT that is to read it is not known without --runtime"
    near = versions.nearest_release(runtime)
    hint = f" ({near.version} has {near.tensorrt})" if near and near.tensorrt else ""
    return NOT_KNOWN, f"which TensorRT {runtime} has is not known{hint}"


def _gpu_reason(engine: Artifact, machine: Artifact) -> RebuildReason:
    sm, built = (
        machine.integer("gpu.sm"),
        [sm_built for sm_built in engine.items("plan.sms") if isinstance(sm_built, int)],
    )
    if sm is None:
        return RebuildReason("GPU", NOT_KNOWN, "the GPU that is to run it is not named: --gpu L40S")
    if not built:
        reason = f"the plan does not tell its GPU; it must have been built on compute capability {capability_text(sm)}"
        return RebuildReason("GPU", NOT_KNOWN, f"{reason} ({versions.gpus_with_sm(str(sm))})")
    if built == [sm] or (sm in built and "RTX" in engine.text("plan.product")):
        return RebuildReason(
            "GPU", NO_REBUILD, f"it was built on compute capability {capability_text(sm)}, as this GPU has"
        )
    words = " and ".join(map(capability_text, built))
    return RebuildReason(
        "GPU", REBUILD, f"it was built on compute capability {words}, and this GPU has {capability_text(sm)}"
    )


def _precision_reasons(engine: Artifact, machine: Artifact) -> Iterator[RebuildReason]:
    """Yield what a rebuild alone does not mend."""
    lack, kernels = unsupported_algo(engine, machine), kernels_not_serving(machine)
    if lack is not None and lack.is_certain:
        yield RebuildReason(
            "precision",
            REBUILD,
            f"this GPU cannot compute {lack.algo}: quantise the model otherwise, then build",
        )
    if kernels is not None:
        runtime = machine.text("gpu.runtime")
        yield RebuildReason(
            "kernels",
            REBUILD,
            f"{runtime} has no kernels for this GPU: no rebuild helps, use another release or GPU",
        )
