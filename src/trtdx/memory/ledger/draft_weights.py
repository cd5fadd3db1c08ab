"""The weights of a draft model: one of its own, or an EAGLE3 head that leans on the model it drafts for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.memory.ledger.decoder_layers import (
    ATTENTION,
    DENSE,
    DecoderLayer,
    attention_matrices,
    pipeline_stage,
)
from trtdx.memory.ledger.weight_storage import ceil_div, dtype_bytes
from trtdx.memory.ledger.weights import WeightModel, backend_flow, stage_weights, weight_shards
from trtdx.memory.model.families import family_of
from trtdx.memory.nouns import MIB, Component, Figure, Formats, ParallelLayout

if TYPE_CHECKING:
    from trtdx.memory.nouns import Dims, Setup

EAGLE3_STATES = 3  # of the model's layers, which an EAGLE3 head joins


def draft_weights(setup: Setup, rank: int) -> Component | None:
    """Return what a draft model of its own takes; it is cut like the model it drafts for."""
    if setup.draft is None:
        return None
    plain = Formats(dtype=setup.formats.dtype)
    last = setup.layout.pp - 1
    model = WeightModel(setup.draft, setup.layout, plain, backend_flow(setup), family_of(setup.draft.model_type))
    if is_on_last_stage(setup.draft, setup.layout):
        if pipeline_stage(setup.layout, rank) != last:
            return None
        flat = ParallelLayout(tp=setup.layout.tp, cp=setup.layout.cp, attention_dp=setup.layout.attention_dp)
        model, last = model._replace(layout=flat), 0
    share = stage_weights(model, min(pipeline_stage(setup.layout, rank), model.layout.pp - 1))
    if not setup.draft.draft_vocab:
        return Component("draft_weights", share.bytes, share.why, share.parts)
    parts = _eagle3_parts(model, share.parts, setup.dims.hidden_size)
    figure = Figure.with_tolerance(sum(parts.values()), 0.02, extra=16 * MIB)
    return Component("draft_weights", figure, f"{share.why}; the embedding is the model's own", parts)


def _eagle3_parts(model: WeightModel, parts: dict[str, int], target: int) -> dict[str, int]:
    """Return what an EAGLE3 head holds (Eagle3DraftModel, _torch/models/modeling_speculative.py@v1.2.1).

    It joins three hidden states of the model, reads its embedding beside them, and has an output of its own.
    """
    dims, cut, width = model.dims, weight_shards(model), dtype_bytes(model.formats.dtype)
    layer = DecoderLayer(ATTENTION, DENSE, dims.num_kv_heads)
    wide = ("q_a_proj", "kv_a_proj_with_mqa") if dims.mla else ("q_proj", "k_proj", "v_proj")
    joined = sum(
        weight.rows * weight.columns
        for weight in attention_matrices(dims, cut, layer, model.family)
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


def is_on_last_stage(draft: Dims, layout: ParallelLayout) -> bool:
    """A head of a few layers (EAGLE) is not spread over the pipeline."""
    return draft.num_layers < max(layout.pp, 5)
