"""Do I have to rebuild? Yes or no for an engine and the machine it is to run on, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.inspect.agreements.agreement import findings_from
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.facts.compatibility import (
    builders_of,
    capability,
    is_old,
    kernels_lack,
    lack_of,
    runs_no_engine,
    same_release,
    writer_of,
)
from trtdx.inspect.facts.runtime_keys import demands
from trtdx.knowledge import versions
from trtdx.model import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.inspect.facts.compatibility import Writer
    from trtdx.model import Finding
    from trtdx.rule import RuleBook

YES, NO, UNKNOWN = "yes", "no", "is not known"
BROKEN = ("plan.truncated", "plan.overlong", "plan.foreign", "weights.missing", "weights.lfs_pointers")


class Answer(NamedTuple):
    """What one thing that decides says."""

    about: str
    verdict: str  # YES: it must be rebuilt for this
    reason: str


def rebuild_section(engine: Artifact, machine: Artifact) -> Section:
    """Return the verdict and everything it rests on."""
    answers = list(_answers(engine, machine))
    return Section(
        "rebuild",
        f"do I have to rebuild? {engine.path}",
        ("", "rebuild", "reason"),
        tuple(tuple(each) for each in (verdict(answers), *answers)),
        note="a rebuild starts from the checkpoint; for another release the model is converted again first",
    )


def rebuild_answer(engine: Artifact, machine: Artifact, book: RuleBook) -> tuple[Section, list[Finding]]:
    """Return the verdict, and the findings of everything that keeps the engine from running there."""
    from trtdx.inspect.agreements import table

    return rebuild_section(engine, machine), findings_from(table(), Deployment((engine, machine)), book)


def verdict(answers: list[Answer]) -> Answer:
    """Return the answer in one row: one yes decides, and what is not known is named."""
    decided = next((each for each in answers if each.verdict == YES), None)
    if decided is not None:
        return Answer("verdict", YES, decided.reason)
    open_ones = [each for each in answers if each.verdict == UNKNOWN]
    if open_ones:
        return Answer("verdict", UNKNOWN, "; ".join(each.reason for each in open_ones))
    same = ", ".join(each.about for each in answers)
    return Answer("verdict", NO, f"nothing that decides is against it ({same})")


def _answers(engine: Artifact, machine: Artifact) -> Iterator[Answer]:
    if runs_no_engine(machine):
        runtime = machine.text("gpu.runtime")
        yield Answer(
            "release",
            YES,
            f"TensorRT-LLM {runtime} runs no engines: serve the Hugging Face model with its PyTorch backend, "
            "or stay on 1.2.1",
        )
        return
    yield from _precision(engine, machine)
    yield _plans(engine)
    yield _tensorrt(engine, machine)
    yield _release(engine, machine)
    yield _gpu(engine, machine)


def _plans(engine: Artifact) -> Answer:
    broken = [str(item) for name in BROKEN for item in engine.items(name)]
    if broken:
        return Answer("plans", YES, f"the engine is not whole: {broken[0]}")
    if not engine.has("plan.versions"):
        return Answer("plans", UNKNOWN, "no plan was read")
    return Answer("plans", NO, "every plan is there and as long as it says")


def _release(engine: Artifact, machine: Artifact) -> Answer:
    made_by, runtime = engine.text("version"), machine.text("gpu.runtime")
    if not runtime:
        return Answer("release", UNKNOWN, "the release that is to run it is not named: --runtime 1.2.1")
    lacking = [key for key in map(str, engine.items("build.missing_keys")) if demands(runtime, key)]
    if lacking:
        writer = f"which {made_by} did not write" if made_by else "which is not there"
        return Answer("release", YES, f"{runtime} demands {lacking[0]} in config.json, {writer}")
    if is_old(engine):
        return Answer("release", *_old_release(engine, runtime))
    if not made_by:
        return Answer("release", UNKNOWN, "config.json states no release")
    if made_by == runtime:
        return Answer("release", NO, f"{made_by} built it and runs it")
    if same_release(made_by, runtime):
        return Answer("release", NO, f"{made_by} built it, and {runtime} is a patch of the same release")
    return Answer(
        "release",
        YES,
        f"{made_by} built it and {runtime} is to run it: what plugins store in a plan and which inputs it has "
        "changes between releases, and nothing checks it",
    )


def _old_release(engine: Artifact, runtime: str) -> tuple[str, str]:
    """Return the verdict for an engine before 0.8, whose plans and keys tell what can have built it."""
    builders = builders_of(engine)
    if versions.at_least(runtime, "0.8.0"):
        return YES, f"it was built before 0.8, and what plugins store in a plan is another for {runtime}"
    if any(same_release(each, runtime) for each in builders):
        return NO, f"config.json states no release, and its keys and plans are those of {runtime}"
    if builders:
        return YES, f"by its keys and plans {' or '.join(builders)} built it, and {runtime} is to run it"
    return UNKNOWN, "config.json states no release, as before 0.8, and its keys and plans tell none"


def _tensorrt(engine: Artifact, machine: Artifact) -> Answer:
    writer = writer_of(engine, machine)
    if writer is None:
        return Answer("TensorRT", *_unknown_tensorrt(engine, machine))
    if not writer.seen:
        return Answer("TensorRT", YES if not writer.same else NO, _by_release(engine, writer))
    if writer.same:
        return Answer("TensorRT", NO, f"TensorRT {writer.wrote} wrote the plans and reads them")
    return Answer(
        "TensorRT", YES, f"TensorRT {writer.wrote} wrote the plans and {writer.reads} is to read them"
    )


def _by_release(engine: Artifact, writer: Writer) -> str:
    """Return the reason where no plan could be asked."""
    has = f"no plan was read, but {engine.text('version')} has TensorRT {writer.wrote}"
    return f"{has}, as the machine" if writer.same else f"{has}, and {writer.reads} is to read its plans"


def _unknown_tensorrt(engine: Artifact, machine: Artifact) -> tuple[str, str]:
    found = [str(each) for each in engine.items("plan.versions")]
    if "RTX" in engine.text("plan.product"):
        return YES, "the plans are TensorRT-RTX's, which TensorRT-LLM cannot read"
    if len(found) > 1:
        return YES, f"the plans were written by different TensorRT releases ({', '.join(found)})"
    runtime = machine.text("gpu.runtime")
    if not runtime:
        return UNKNOWN, "the TensorRT that is to read it is not known without --runtime"
    near = versions.nearest(runtime)
    hint = f" ({near.version} has {near.tensorrt})" if near and near.tensorrt else ""
    return UNKNOWN, f"which TensorRT {runtime} has is not known{hint}"


def _gpu(engine: Artifact, machine: Artifact) -> Answer:
    sm, built = (
        machine.integer("gpu.sm"),
        [each for each in engine.items("plan.sms") if isinstance(each, int)],
    )
    if sm is None:
        return Answer("GPU", UNKNOWN, "the GPU that is to run it is not named: --gpu L40S")
    if not built:
        reason = (
            f"the plan does not tell its GPU; it must have been built on compute capability {capability(sm)}"
        )
        return Answer("GPU", UNKNOWN, f"{reason} ({versions.gpus_with_sm(str(sm))})")
    if built == [sm] or (sm in built and "RTX" in engine.text("plan.product")):
        return Answer("GPU", NO, f"it was built on compute capability {capability(sm)}, as this GPU has")
    words = " and ".join(map(capability, built))
    return Answer(
        "GPU", YES, f"it was built on compute capability {words}, and this GPU has {capability(sm)}"
    )


def _precision(engine: Artifact, machine: Artifact) -> Iterator[Answer]:
    """Yield what a rebuild alone does not mend."""
    lack, kernels = lack_of(engine, machine), kernels_lack(machine)
    if lack is not None and lack.certain:
        yield Answer(
            "precision", YES, f"this GPU cannot compute {lack.algo}: quantise the model otherwise, then build"
        )
    if kernels is not None:
        runtime = machine.text("gpu.runtime")
        yield Answer(
            "kernels",
            YES,
            f"{runtime} has no kernels for this GPU: no rebuild helps, use another release or GPU",
        )
