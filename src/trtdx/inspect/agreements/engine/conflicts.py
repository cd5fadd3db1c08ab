"""Settings of one engine that cannot hold together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.lineage import quoted_path
from trtdx.inspect.facts.compatibility import capability_text
from trtdx.inspect.rebuild.build_command import build_command
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

RECURRENT_ARCHITECTURES = ("Mamba", "RecurrentGemma")  # their cache is said by paged_state
FP8_WORKFLOW = ("FP8", "W4A8_AWQ", "NVFP4", "MIXED_PRECISION", "FP8_PER_CHANNEL_PER_TOKEN", "W4A8_NVFP4_FP8")
FIRST_FP8 = 89


@make_agreement("DX910", "engine")
def medusa_drafts(deployment: Deployment) -> Iterator[Violation]:
    """A Medusa engine is built with room for the draft tokens its heads propose."""
    for engine in deployment.of_kinds("engine"):
        medusa = engine.text("architecture").startswith("Medusa")
        if medusa and engine.integer("max_draft_len") == 0:
            changed = {"speculative_decoding_mode": "medusa"}
            yield Violation(
                engine.evidence("architecture", "max_draft_len"),
                {"folder": quoted_path(engine), "rebuild": build_command(engine, changed=changed)},
            )


@make_agreement("DX911", "engine")
def fp8_attention(deployment: Deployment) -> Iterator[Violation]:
    """FP8 attention for prompts is used with FP8 quantisation, on a GPU that computes FP8."""
    for engine in deployment.of_kinds("engine"):
        lacks = _missing_fp8(engine) if engine.get("plugin.use_fp8_context_fmha") is True else None
        if lacks is None:
            continue
        because, fact = lacks
        changed = {"use_fp8_context_fmha": "disable"}
        yield Violation(
            engine.evidence("plugin.use_fp8_context_fmha", fact),
            {
                "because": because,
                "folder": quoted_path(engine),
                "rebuild": build_command(engine, changed=changed),
            },
        )


def _missing_fp8(engine: Artifact) -> tuple[str, str] | None:
    """Return why FP8 attention cannot be, and the fact that tells."""
    sms = [sm for sm in engine.items("plan.sms") if isinstance(sm, int)]
    if sms and min(sms) < FIRST_FP8:
        return (
            f"the plans are for compute capability {capability_text(min(sms))}, which has no FP8",
            "plan.sms",
        )
    algo = engine.text("quant.algo")
    if algo not in FP8_WORKFLOW and not engine.table("quant.per_layer"):
        return f"the model is {f'quantised to {algo}' if algo else 'not quantised'}, not to FP8", "quant.algo"
    return None


@make_agreement("DX912", "engine")
def one_cache(deployment: Deployment) -> Iterator[Violation]:
    """kv_cache_type and the plugin setting paged_kv_cache say the same."""
    for engine in deployment.of_kinds("engine"):
        kind, paged = engine.text("kv_cache_type"), engine.get("plugin.paged_kv_cache")
        if engine.text("architecture").startswith(RECURRENT_ARCHITECTURES) or kind not in (
            "paged",
            "continuous",
        ):
            continue
        if isinstance(paged, bool) and paged != (kind == "paged"):
            yield Violation(
                engine.evidence("kv_cache_type", "plugin.paged_kv_cache"),
                {
                    "kind": kind,
                    "paged": "true" if paged else "false",
                    "folder": quoted_path(engine),
                    "rebuild": build_command(engine, changed={"kv_cache_type": "paged"}),
                },
                Severity.WARNING,
                0.9,
            )
