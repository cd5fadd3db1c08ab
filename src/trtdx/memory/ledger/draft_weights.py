"""The weights of a draft model: one of its own, or an EAGLE3 head that leans on the model it drafts for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.memory.ledger.decoder_layers import ATTENTION, DENSE, Layer, attention_weights, stage_of
from trtdx.memory.ledger.weight_storage import ceil_div, width_of
from trtdx.memory.ledger.weights import Model, cut_for, flow_of, share_of
from trtdx.memory.model.families import family_of
from trtdx.memory.nouns import MIB, Component, Figure, Formats, Layout

if TYPE_CHECKING:
    from trtdx.memory.nouns import Dims, Setup

EAGLE3_STATES = 3  # of the model's layers, which an EAGLE3 head joins


def draft_weights_of(setup: Setup, rank: int) -> Component | None:
    """Return what a draft model of its own takes; it is cut like the model it drafts for."""
    if setup.draft is None:
        return None
    plain = Formats(dtype=setup.formats.dtype)
    last = setup.layout.pp - 1
    model = Model(setup.draft, setup.layout, plain, flow_of(setup), family_of(setup.draft.model_type))
    if _sits_on_last_stage(setup.draft, setup.layout):
        if stage_of(setup.layout, rank) != last:
            return None
        flat = Layout(tp=setup.layout.tp, cp=setup.layout.cp, attention_dp=setup.layout.attention_dp)
        model, last = model._replace(layout=flat), 0
    share = share_of(model, min(stage_of(setup.layout, rank), model.layout.pp - 1))
    if not setup.draft.draft_vocab:
        return Component("draft_weights", share.bytes, share.why, share.parts)
    parts = _eagle3_parts(model, share.parts, setup.dims.hidden_size)
    figure = Figure.within(sum(parts.values()), 0.02, extra=16 * MIB)
    return Component("draft_weights", figure, f"{share.why}; the embedding is the model's own", parts)


def _eagle3_parts(model: Model, parts: dict[str, int], target: int) -> dict[str, int]:
    """Return what an EAGLE3 head holds (Eagle3DraftModel, _torch/models/modeling_speculative.py@v1.2.1).

    It joins three hidden states of the model, reads its embedding beside them, and has an output of its own.
    """
    dims, cut, width = model.dims, cut_for(model), width_of(model.formats.dtype)
    layer = Layer(ATTENTION, DENSE, dims.num_kv_heads)
    wide = ("q_a_proj", "kv_a_proj_with_mqa") if dims.mla else ("q_proj", "k_proj", "v_proj")
    joined = sum(
        weight.rows * weight.columns
        for weight in attention_weights(dims, cut, layer, model.family)
        if weight.name.rpartition(".")[2] in wide
    )
    eagle_parts = dict(parts)
    eagle_parts["attention"] = eagle_parts.get("attention", 0) + joined * width
    eagle_parts["joined_states"] = EAGLE3_STATES * target * dims.hidden_size * width
    eagle_parts["lm_head"] = ceil_div(dims.draft_vocab, cut.head) * dims.hidden_size * width
    eagle_parts["norms"] = eagle_parts.get("norms", 0) + dims.hidden_size * width  # of the embedding
    if dims.draft_vocab != dims.vocab_size:
        eagle_parts["lm_head"] += 4 * dims.draft_vocab  # which word of the model each is
    if dims.hidden_size == target:
        del eagle_parts["embedding"]
    return eagle_parts


def _sits_on_last_stage(draft: Dims, layout: Layout) -> bool:
    """A head of a few layers (EAGLE) is not spread over the pipeline."""
    return draft.num_layers < max(layout.pp, 5)
