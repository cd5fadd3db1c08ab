"""What must agree for a model to know where a token stands: rotary settings, positions, attention windows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.lineage import (
    LineageStep,
    is_same_model,
    lineage_chains,
    lineage_pairs,
    lineage_steps,
    loading_servers,
    quoted_path,
    source_artifact,
)
from trtdx.inspect.agreements.serving import SERVER_KINDS, served_engine, served_model
from trtdx.inspect.facts.gaps import MODEL_PAIR
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import join_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

# Kinds that are the same for a reader of the text: HF says "rope" where TensorRT-LLM says which layout of it.
POSITION_KINDS = {
    "rope": "rotary", "rotary": "rotary", "rope_gpt_neox": "rotary", "rope_gptj": "rotary",
    "long_rope": "rotary", "yarn": "rotary", "mrope": "rotary", "chatglm": "rotary", "alibi": "alibi",
    "alibi_with_scale": "alibi", "learned_absolute": "learned", "learned": "learned", "absolute": "learned",
    "relative": "relative",
}  # fmt: skip
ROTARY_LAYOUTS = ("rope_gpt_neox", "rope_gptj")
# The position limit already counts the scaling for these types (`_init_max_seq_len` of the builder, 1.2.1).
PRESCALED_TYPES = ("su", "longrope", "llama3", "mrope")
# Keys of a scaling that change the numbers; others ("rope_type", "attn_factor") repeat or refine.
SCALING_KEYS = (
    "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "beta_fast",
    "beta_slow", "mscale",
)  # fmt: skip


@make_agreement("DX471", "hf", "checkpoint", "engine", needs=MODEL_PAIR)
def rotary_settings(deployment: Deployment) -> Iterator[Violation]:
    """The rotary scaling, base and dimension of a model reach the checkpoint and the engine."""
    for step in lineage_pairs(deployment):
        if not is_same_model(*step) or step.source.get("encoder_decoder"):
            continue
        lost = [
            *_scaling_differences(step),
            *_number_difference(step, "rotary_base"),
            *_rotary_dim_difference(step),
        ]
        if lost:
            names = [name for name, _ in lost]
            yield Violation(
                step.evidence(*names),
                step.words() | {"differences": join_words(words for _, words in lost)},
                Severity.ERROR,
            )


def _scaling_differences(step: LineageStep) -> Iterator[tuple[str, str]]:
    """Yield how the scaling differs; an artifact that says nothing about positions cannot have lost it."""
    here, there = _rotary_scaling(step.source), _rotary_scaling(step.target)
    if here and not there and _carries_rotary(step.target, here):
        yield "rope_scaling", f"no rotary scaling instead of {_render_scaling(here)}"
    elif there and not here and step.source.has("rotary_base"):
        yield "rope_scaling", f"the rotary scaling {_render_scaling(there)} instead of none"
    elif here and there and not _same_scaling(here, there):
        yield (
            "rope_scaling",
            f"the rotary scaling {_render_scaling(there)} instead of {_render_scaling(here)}",
        )


def _rotary_scaling(artifact: Artifact) -> dict[str, Any]:
    """Return the scaling, or nothing for the sections of multimodal positions, which scale nothing."""
    scaling = artifact.table("rope_scaling")
    return {} if scaling.get("type") in ("mrope", "default") else scaling


def _carries_rotary(target: Artifact, scaling: dict[str, Any]) -> bool:
    # Phi-3 (1.2.1, models/phi3/config.py) keeps longrope factors under keys of their own, with this kind.
    if scaling.get("type") in ("su", "longrope") and target.text("position_embedding") == "long_rope":
        return False
    return target.has("rotary_base") or POSITION_KINDS.get(target.text("position_embedding")) == "rotary"


def _same_scaling(here: dict[str, Any], there: dict[str, Any]) -> bool:
    if _scaling_type(here) != _scaling_type(there):
        return False
    return all(_is_close(here[key], there[key]) for key in SCALING_KEYS if key in here and key in there)


def _scaling_type(scaling: dict[str, Any]) -> str:
    named = str(scaling.get("type", ""))
    return "longrope" if named == "su" else named


def _render_scaling(scaling: dict[str, Any]) -> str:
    factor = scaling.get("factor")
    return f"{_scaling_type(scaling)} with factor {factor}" if factor is not None else _scaling_type(scaling)


def _rotary_dim_difference(step: LineageStep) -> Iterator[tuple[str, str]]:
    # With compressed attention (MLA) the rotated part is a dimension of its own: DX812.
    if not step.source.has("kv_lora_rank"):
        yield from _number_difference(step, "rotary_dim")


def _number_difference(step: LineageStep, name: str) -> Iterator[tuple[str, str]]:
    here, there = step.source.get(name), step.target.get(name)
    if here is not None and there is not None and not _is_close(here, there):
        yield name, f"{name} {_format_number(there)} instead of {_format_number(here)}"


def _format_number(number: float) -> str:
    """Return a number without an exponent where it is whole."""
    return str(int(number)) if float(number).is_integer() else f"{number:g}"


def _is_close(one: object, other: object) -> bool:
    if not isinstance(one, (int, float)) or not isinstance(other, (int, float)):
        return one == other
    return math.isclose(one, other, rel_tol=1e-5)


# Scalings that transformers' rope_utils refuses without a factor; TensorRT-LLM takes 1.0 instead.
FACTOR_SCALINGS = ("linear", "dynamic", "yarn", "llama3")


@make_agreement("DX815", "hf")
def scaling_complete(deployment: Deployment) -> Iterator[Violation]:
    """A rotary scaling states the factor that its kind needs."""
    for model in deployment.of_kinds("hf"):
        scaling = model.table("rope_scaling")
        if _scaling_type(scaling) in FACTOR_SCALINGS and "factor" not in scaling and not model.get("remote_code"):
            yield Violation(
                model.evidence("rope_scaling", "max_positions"),
                {"type": _scaling_type(scaling), "path": quoted_path(model)},
            )


# Llama 3.1 to 3.3 as Meta published them: 131072 positions are reached by scaling 8192 only.
LLAMA3_VOCABULARY = range(128256, 128512)


@make_agreement("DX816", "hf")
def rotary_as_published(deployment: Deployment) -> Iterator[Violation]:
    """A model that was trained with a rotary scaling has it, with the base it was trained with."""
    for model in deployment.of_kinds("hf"):
        what, family, remedy = _published_difference(model)
        if what:
            yield Violation(
                model.evidence("rotary_base", "rope_scaling", "max_positions"),
                {"what": what, "family": family, "remedy": remedy, "path": quoted_path(model)},
                confidence=0.8,
            )


def _published_difference(model: Artifact) -> tuple[str, str, str]:
    """Return in what a model differs from all of its family, and how it is mended; empty if it does not."""
    base, scaling, positions = (
        model.get("rotary_base"),
        _scaling_type(_rotary_scaling(model)),
        model.integer("max_positions"),
    )
    kind = model.text("model_type")
    if kind in SCALED_LENGTHS and positions == SCALED_LENGTHS[kind] and not scaling:
        return f"has {positions} positions, but no rope_scaling", f"{kind} of that length", RESTORE_SCALING
    if kind != "llama" or model.integer("vocab_size") not in LLAMA3_VOCABULARY or positions != 131072:
        return "", "", ""
    family = "Llama 3.1, 3.2 or 3.3"
    if base == 500000 and not scaling:
        return (
            "has 131072 positions and a rotary base of 500000, but no rope_scaling",
            family,
            RESTORE_LLAMA_SCALING,
        )
    if base in (10000, None) and scaling == "llama3":
        default = "10000" if base else "10000, for want of rope_theta,"
        return (
            f"has the scaling of Llama 3.1 with a rotary base of {default} instead of 500000",
            family,
            RESTORE_LLAMA_SCALING,
        )
    return "", "", ""


# Lengths that models of these types were only ever published with a scaling (yarn).
SCALED_LENGTHS = {"deepseek_v2": 163840, "deepseek_v3": 163840, "gpt_oss": 131072}
RESTORE_SCALING = "restore rope_scaling from the original model's config.json"
RESTORE_LLAMA_SCALING = (
    'restore rope_theta and rope_scaling from the original model: 500000.0 and {"rope_type": "llama3", "factor": 8.0, '
    '"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192} (factor 32.0 for '
    "Llama 3.2); where it descends from Llama 3.0, set max_position_embeddings to 8192"
)


@make_agreement("DX800", "hf", "checkpoint", "engine", needs=MODEL_PAIR)
def position_kind(deployment: Deployment) -> Iterator[Violation]:
    """Positions are encoded in the same way in the model, the checkpoint and the engine."""
    for step in lineage_steps(deployment, "position_embedding"):
        here, there = (artifact.text("position_embedding") for artifact in step)
        if POSITION_KINDS.get(here) is None or POSITION_KINDS.get(there) is None:
            continue
        other_layout = here != there and here in ROTARY_LAYOUTS and there in ROTARY_LAYOUTS
        if POSITION_KINDS[here] != POSITION_KINDS[there] or other_layout:
            yield Violation(step.evidence("position_embedding"), step.words() | {"expected": here, "actual": there})


@make_agreement("DX809", "engine", "checkpoint", "hf", needs=("engine",))
def positions_in_reach(deployment: Deployment) -> Iterator[Violation]:
    """An engine takes no longer sequences than the model has positions for."""
    for chain in lineage_chains(deployment):
        engine = chain[-1]
        stating = next((artifact for artifact in reversed(chain) if artifact.has("max_positions")), None)
        limit = position_limit(stating) if stating else None
        longest = engine.integer("max_seq_len")
        if stating is None or limit is None or longest is None or has_unbounded_positions(engine):
            continue
        # Speculative decoding adds its draft tokens to the limit by itself (builder.py, 1.2.1).
        if longest > limit + (engine.integer("max_draft_len") or 0) + _draft_margin(engine):
            yield Violation(
                engine.evidence("max_seq_len") + stating.evidence("max_positions"),
                {"max_seq_len": longest, "limit": limit},
                confidence=0.9,
            )


def _draft_margin(engine: Artifact) -> int:
    return 64 if engine.integer("max_draft_len") else 0


def position_limit(artifact: Artifact) -> int | None:
    """Return how many positions there are, with the scaling where the file states the number before it."""
    positions = artifact.integer("max_positions")
    scaling = artifact.table("rope_scaling")
    factor = scaling.get("factor", 1)
    if positions is None or not isinstance(factor, (int, float)) or _scaling_type(scaling) in PRESCALED_TYPES:
        return positions
    return math.ceil(positions * max(factor, 1))


def has_unbounded_positions(engine: Artifact) -> bool:
    """Return whether positions have no end: ALiBi and relative positions, StreamingLLM."""
    kind = POSITION_KINDS.get(engine.text("position_embedding"))
    return kind in ("alibi", "relative") or engine.get("plugin.streamingllm") is True


@make_agreement("DX485", "hf", "engine", *SERVER_KINDS, needs=("hf", "engine", "triton|llm-args|command"))
def window_lost(deployment: Deployment) -> Iterator[Violation]:
    """A model's sliding window is asked for at run time where its engine does not carry it."""
    serving = [*deployment.of_kinds("triton"), *loading_servers(deployment)]
    if not serving or any(server.has("runtime.attention_window") for server in serving):
        return
    for model, *built in lineage_chains(deployment):
        engine = built[-1] if built else model
        window, longest = model.integer("sliding_window"), engine.integer("max_seq_len")
        if model.kind != "hf" or window is None or longest is None:
            continue
        if window < longest and not engine.has("sliding_window"):
            yield Violation(
                model.evidence("sliding_window") + engine.evidence("max_seq_len"),
                {
                    "what": f"the model attends to windows of {window} tokens, the engine takes sequences "
                    f"of {longest}, and no attention window is set where it is served",
                    "window": window,
                    "server": quoted_path(serving[0]),
                },
                Severity.ERROR,
                0.8,
            )


@make_agreement("DX485", "hf", "engine", *SERVER_KINDS, needs=("hf", "triton|llm-args|command"))
def window_cut(deployment: Deployment) -> Iterator[Violation]:
    """A model that attends to the whole text is not served with a smaller attention window."""
    for server in (*deployment.of_kinds("triton"), *loading_servers(deployment)):
        windows = [window for window in server.items("runtime.attention_window") if isinstance(window, int)]
        holder, fact = _length_source(deployment, server)
        longest = holder.integer(fact) if holder else None
        if holder is None or longest is None or not windows or _has_window(deployment):
            continue
        if max(windows) < longest:
            yield Violation(
                server.evidence("runtime.attention_window") + holder.evidence(fact),
                {
                    "what": f"it is served with an attention window of {max(windows)} tokens, but the model "
                    f"has no sliding window and sequences may have {longest}",
                    "window": longest,
                    "server": quoted_path(server),
                },
            )


def _length_source(deployment: Deployment, server: Artifact) -> tuple[Artifact | None, str]:
    """Return what says how long the sequences of a server may be, if the model is at hand: it, its engine, or itself."""
    engine = served_engine(deployment, server)
    model = source_artifact(deployment, engine, "hf") if engine else served_model(deployment, server)
    if model is None or not model.has("max_positions"):
        return None, ""
    if engine is not None:
        return engine, "max_seq_len"
    return (server, "max_seq_len") if server.has("max_seq_len") else (model, "max_positions")


def _has_window(deployment: Deployment) -> bool:
    return any(artifact.has("sliding_window") for artifact in deployment.of_kinds("hf", "checkpoint", "engine"))
