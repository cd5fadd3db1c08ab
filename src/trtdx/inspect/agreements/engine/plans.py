"""An engine directory in itself: are the plans whole, of one build, and as many as ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.lineage import quoted_path
from trtdx.inspect.facts.compatibility import capability_text, gpu_words, plan_writer, version_numbers
from trtdx.inspect.rebuild.build_command import build_command
from trtdx.knowledge import versions
from trtdx.knowledge.violation import Violation
from trtdx.model import Evidence, Severity
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment


@make_agreement("DX203", "engine", "plan")
def plans_are_plans(deployment: Deployment) -> Iterator[Violation]:
    """A file that is named like a plan is one."""
    for artifact in deployment.of_kinds("engine", "plan"):
        foreign = artifact.items("plan.foreign")
        if foreign:
            yield Violation(
                artifact.evidence("plan.foreign"),
                {"plans": abbreviate_list(foreign, 3), "folder": quoted_path(artifact)},
            )


@make_agreement("DX204", "engine", "plan")
def whole_plans(deployment: Deployment) -> Iterator[Violation]:
    """A plan is as long as its header says."""
    for artifact in deployment.of_kinds("engine", "plan"):
        for name in ("plan.truncated", "plan.overlong"):
            broken = artifact.items(name)
            if broken:
                values = {"plans": abbreviate_list(broken, 3), "folder": quoted_path(artifact)}
                values["rebuild"] = build_command(artifact) if artifact.kind == "engine" else REBUILD_PLAN_COMMAND
                yield Violation(artifact.evidence(name), values)


REBUILD_PLAN_COMMAND = "trtexec --onnx=MODEL.onnx --saveEngine=MODEL.plan.new"


@make_agreement("DX903", "engine")
def single_tensorrt_version(deployment: Deployment) -> Iterator[Violation]:
    """The plans of all ranks were written by one TensorRT."""
    for engine in deployment.of_kinds("engine"):
        plan_versions = engine.items("plan.versions")
        if len(plan_versions) > 1:
            values = {"versions": abbreviate_list(plan_versions, 3), "folder": quoted_path(engine)}
            yield Violation(engine.evidence("plan.versions"), {**values, "rebuild": build_command(engine)})


@make_agreement("DX909", "engine")
def single_compute_capability(deployment: Deployment) -> Iterator[Violation]:
    """The plans of all ranks were built on GPUs of one compute capability."""
    for engine in deployment.of_kinds("engine"):
        sms = engine.items("plan.sms")
        if len(sms) < 2 or "RTX" in engine.text("plan.product"):
            continue  # one plan of TensorRT-RTX is for several by itself
        values = {"sms": " and ".join(map(capability_text, sms)), "gpus": gpu_words(tuple(sms))}
        which = abbreviate_list([" ".join(plan_words) for plan_words in _plans_by_gpu(engine)], 4)
        values |= {"folder": quoted_path(engine), "rebuild": build_command(engine)}
        values["which"] = f": {which}" if which else ""
        evidence = [Evidence(f"{engine.path.rstrip('/')}/{name}", text) for name, text in _plans_by_gpu(engine)]
        yield Violation(tuple(evidence[:4]) or engine.evidence("plan.sms"), values)


def _plans_by_gpu(engine: Artifact) -> list[tuple[str, str]]:
    """Return which plan is for which compute capability; empty if it was not told."""
    files = engine.table("plan.sms_of_files")
    return [(name, f"for {' and '.join(map(capability_text, sms))}") for name, sms in files.items()]


@make_agreement("DX904", "engine")
def no_rtx_plans(deployment: Deployment) -> Iterator[Violation]:
    """The plans of an engine directory are TensorRT's, not TensorRT-RTX's."""
    for engine in deployment.of_kinds("engine"):
        if "RTX" in engine.text("plan.product"):
            values = {"folder": quoted_path(engine), "rebuild": build_command(engine)}
            yield Violation(engine.evidence("plan.product"), values)


@make_agreement("DX205", "engine")
def plan_for_each_rank(deployment: Deployment) -> Iterator[Violation]:
    """An engine directory has a plan for each of its ranks."""
    for engine in deployment.of_kinds("engine"):
        missing = engine.items("weights.missing")
        if missing:
            ranks = engine.integer("world_size")
            values = {
                "plans": abbreviate_list(missing, 3),
                "are": "is" if len(missing) == 1 else "are",
                "engine": f"an engine for {format_count(ranks, 'rank')}" if ranks else "an engine",
                "folder": quoted_path(engine),
                "rebuild": build_command(engine),
            }
            first = Evidence(engine.facts["weights.missing"].where, f"not there: {abbreviate_list(missing, 8)}")
            yield Violation((first, *engine.evidence("world_size")), values)


@make_agreement("DX905", "engine")
def no_leftover_plans(deployment: Deployment) -> Iterator[Violation]:
    """An engine directory has no plans beyond its ranks, left over from a build for more of them."""
    for engine in deployment.of_kinds("engine"):
        world_size = engine.integer("world_size")
        beyond = [rank for rank in engine.items("weights.ranks") if world_size and rank >= world_size]
        if beyond:
            names = [f"rank{rank}.engine" for rank in beyond]
            values = {
                "plans": abbreviate_list(names, 3),
                "world_size": world_size,
                "folder": quoted_path(engine),
            }
            yield Violation(engine.evidence("weights.ranks", "world_size"), values)


@make_agreement("DX906", "engine")
def plans_of_this_build(deployment: Deployment) -> Iterator[Violation]:
    """The plans were written by the TensorRT of the release that config.json names."""
    for engine in deployment.of_kinds("engine"):
        plan_versions = engine.items("plan.versions")
        expected = versions.tensorrt_of(engine.text("version"))
        if len(plan_versions) != 1 or not expected or engine.text("plan.product") not in ("", "TensorRT"):
            continue
        if any(_is_unreadable_plan(engine, machine) for machine in deployment.of_kinds("machine")):
            continue  # the machine cannot read the plans, which says it better
        if version_numbers(str(plan_versions[0]))[:2] != version_numbers(expected)[:2]:
            values = {"found": plan_versions[0], "expected": expected, "version": engine.text("version")}
            values["rebuild"] = build_command(engine)
            yield Violation(engine.evidence("plan.versions", "version"), values, confidence=0.8)


def _is_unreadable_plan(engine: Artifact, machine: Artifact) -> bool:
    writer = plan_writer(engine, machine)
    return writer is not None and not writer.is_same


@make_agreement("DX390", "engine")
def no_debug_outputs(deployment: Deployment) -> Iterator[Violation]:
    """An engine that serves has no intermediate tensors among its outputs."""
    for engine in deployment.of_kinds("engine"):
        if engine.get("debug_outputs") is True:
            values = {"folder": quoted_path(engine), "rebuild": build_command(engine)}
            yield Violation(engine.evidence("debug_outputs"), values, Severity.NOTE)


# Generation has kernels for these head sizes in every release (MMHA_SUPPORTED_HEAD_SIZES); 72 only with fused ones.
HEAD_SIZES = (32, 48, 64, 80, 96, 104, 112, 128, 144, 160, 192, 224, 256)
# Fused attention for prompts, by release (fmhaRunner.cpp); with other sizes it falls back to the unfused kernels.
FUSED_SIZES = {
    "0.8": (32, 64, 128, 256),  # on Hopper; other GPUs had more
    "0.9": (32, 40, 64, 80, 96, 104, 128, 160, 256),
    "0.10": (32, 40, 64, 80, 96, 104, 128, 160, 192, 256),
    "0.11": (32, 40, 64, 80, 96, 104, 128, 160, 192, 256),
}
HOPPER_SM = 90
LATENT_SIZES = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}  # the only sizes compressed attention has kernels for


@make_agreement("DX322", "checkpoint", "engine")
def head_size(deployment: Deployment) -> Iterator[Violation]:
    """The attention of a model has heads of a size there are kernels for."""
    checked_sizes: set[int] = set()
    for artifact in deployment.of_kinds("checkpoint", "engine"):
        size = artifact.integer("head_size")
        if (
            size is None
            or size in checked_sizes
            or not _uses_attention_plugin(artifact)
            or artifact.has("kv_lora_rank")
        ):
            continue
        checked_sizes.add(size)
        if size not in (*HEAD_SIZES, 72):
            near = min(HEAD_SIZES, key=lambda known_size: abs(known_size - size))
            values = {"size": size, "sizes": abbreviate_list(HEAD_SIZES, 20), "near": near}
            yield Violation(artifact.evidence("head_size"), values)


def _uses_attention_plugin(artifact: Artifact) -> bool:
    """Return whether the attention plugin answers for the model: encoders have one of their own."""
    encoder = any(word in artifact.text("architecture") for word in ("Encoder", "Bert", "Mamba", "DiT"))
    return not encoder and artifact.get("plugin.gpt_attention_plugin") is not False


@make_agreement("DX907", "checkpoint", "engine")
def latent_sizes(deployment: Deployment) -> Iterator[Violation]:
    """Compressed attention (MLA) has the sizes there are kernels for."""
    for artifact in deployment.of_kinds("checkpoint", "engine"):
        names = [name for name, size in LATENT_SIZES.items() if artifact.get(name, size) != size]
        if names and artifact.has(*LATENT_SIZES):
            values = {name: artifact.get(name) for name in LATENT_SIZES}
            yield Violation(artifact.evidence(*LATENT_SIZES), values)
            return


@make_agreement("DX156", "engine")
def fused_attention(deployment: Deployment) -> Iterator[Violation]:
    """Fused attention for prompts, where it is asked for, has kernels for the model's head size."""
    for engine in deployment.of_kinds("engine"):
        size, release = engine.integer("head_size"), versions.parse_release(engine.text("version"))
        if size not in HEAD_SIZES or release is None or engine.get("plugin.context_fmha") is not True:
            continue
        fused = FUSED_SIZES.get(f"{release.major}.{release.minor}")
        if fused is FUSED_SIZES["0.8"] and engine.items("plan.sms") != [HOPPER_SM]:
            continue
        if fused and size not in fused:
            values = {"size": size, "sizes": abbreviate_list(fused, 20), "version": release}
            yield Violation(
                engine.evidence("head_size", "plugin.context_fmha", "version"), values, Severity.WARNING, 0.85
            )
