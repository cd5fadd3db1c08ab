"""What torch allocates while the PyTorch backend computes its largest step: the "dynamic" memory of its profile.

The profile runs prompts of `max_num_tokens` together. A module's inputs live until it returns, so the residual, the
normed input, all that the MLP or the experts make, and their output are alive together.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from trtdx.memory.ledger.decoder_layers import is_last_stage
from trtdx.memory.ledger.engine_activation import attention_widths, quantised_activation_bytes
from trtdx.memory.ledger.weight_storage import ceil_div, dtype_bytes
from trtdx.memory.ledger.weights import resolve_moe_backend
from trtdx.memory.nouns import MIB, Component, Figure
from trtdx.words import group_digits

if TYPE_CHECKING:
    from trtdx.memory.nouns import Dims, ParallelLayout, Setup

MOST_TILE = 256  # rows that the TRTLLM backend's kernels take at a time for one expert
LEAST_TILE = 8
# Tensors of the hidden size alive beside the experts: residual, input, its copies, the shared expert's and the sum's.
HIDDEN_WITH_EXPERTS = 6
HIDDEN_WITH_GRAPHS = 2  # of them, where piecewise graphs hold the others in their own pool
HIDDEN_WITH_MLP = 3
HIDDEN_WITH_ATTENTION = 3
PROFILED_LENGTH = 8192  # of a prompt in the profile, which are few; a full batch of logits is not profiled
LOGITS_BYTES = 6  # 16 bit, and a copy in 32 bit


class TorchWidths(NamedTuple):
    """Bytes of one token on a rank; what depends on the model and its layout only."""

    hidden: int
    quantised: int  # the input of a projection, once more
    attention: int
    inner: int  # all of a dense MLP
    shared: int  # all of the shared experts
    expert_input: int  # of one row of one expert, each
    expert_factors: int
    expert_product: int
    logits: int


def torch_activation(setup: Setup, rank: int) -> Component:
    """Return what torch allocates during the largest step."""
    widths = _torch_widths(setup)
    tokens = max(setup.limits.max_num_tokens, 1)
    last = is_last_stage(setup.layout, rank)
    phases = {"attention": tokens * (HIDDEN_WITH_ATTENTION * widths.hidden + widths.quantised + widths.attention)}
    if widths.inner:
        phases["mlp"] = tokens * (HIDDEN_WITH_MLP * widths.hidden + widths.quantised + widths.inner)
    if widths.expert_factors:
        graphs = setup.running.piecewise_graphs
        hidden = (HIDDEN_WITH_GRAPHS if graphs else HIDDEN_WITH_EXPERTS) * widths.hidden
        phases["experts"] = _expert_activation_bytes(setup, widths, tokens) + tokens * (
            hidden + widths.quantised + widths.shared
        )
    if last:
        rows = min(ceil_div(tokens, PROFILED_LENGTH), setup.limits.max_batch_size)
        phases["logits"] = tokens * 2 * widths.hidden + rows * widths.logits
    phase = max(phases, key=phases.__getitem__)
    figure = Figure.with_tolerance(phases[phase], _torch_tolerance(setup, phase), extra=64 * MIB)
    if setup.running.piecewise_graphs:
        # What the captured pieces make is in the graphs' own pool (see graphs.py), as far as a step is captured.
        figure = replace(figure, low=min(figure.low, phases["attention"] // 2))
    return Component("activation", figure, f"{group_digits(tokens)} tokens, most in {phase}", {phase: figure.value})


def _torch_widths(setup: Setup) -> TorchWidths:
    formats = setup.formats
    return _torch_model_widths(setup.dims, setup.layout, formats.dtype, formats.weights, formats.kv)


@lru_cache(maxsize=1024)
def _torch_model_widths(dims: Dims, layout: ParallelLayout, dtype: str, weights: str, kv: str) -> TorchWidths:
    width = dtype_bytes(dtype)
    small = quantised_activation_bytes(weights)
    cut = 1 if layout.attention_dp else layout.tp
    inner = ceil_div(dims.intermediate_size, cut)
    expert_inner = ceil_div(dims.moe_intermediate_size or dims.intermediate_size, _expert_cut(layout))
    shared = ceil_div(dims.shared_intermediate_size or dims.shared_experts * dims.moe_intermediate_size, cut)
    factors = 1 + dims.gated
    dense = not dims.num_experts or dims.dense_layers or dims.moe_every > 1
    return TorchWidths(
        hidden=dims.hidden_size * width,
        quantised=int(dims.hidden_size * small),
        attention=_attention_token_bytes(dims, cut, width, small, kv),
        inner=int(inner * (factors * width + (small or width))) if dense else 0,
        shared=int(shared * (factors * width + (small or width))),
        expert_input=int(dims.hidden_size * (small or width)),
        expert_factors=factors * expert_inner * width if dims.num_experts else 0,
        expert_product=int(expert_inner * (small or width)),
        logits=dims.vocab_size * LOGITS_BYTES,
    )


def _expert_cut(layout: ParallelLayout) -> int:
    return layout.moe_tp or max(layout.tp // max(layout.ep, 1), 1)


def _attention_token_bytes(dims: Dims, cut: int, width: int, small: float, kv: str) -> int:
    mixed, attended = attention_widths(dims, cut)
    if not dims.mla:
        copies = mixed if kv == "fp8" else attended
        return int(mixed * width + copies * (1 if kv == "fp8" else width) + attended * (width + small))
    heads = ceil_div(dims.num_heads, cut)
    keys = dims.qk_nope_head_dim + dims.qk_rope_head_dim
    unpacked = heads * (keys + dims.qk_nope_head_dim + dims.v_head_dim)  # from the latent of all tokens
    return int((mixed + unpacked) * width + attended * (width + small))


def _expert_activation_bytes(setup: Setup, widths: TorchWidths, tokens: int) -> int:
    """Return what the experts' kernels need. Every row may come to this rank, wherever its expert is."""
    dims, layout = setup.dims, setup.layout
    gathered = 0
    if layout.attention_dp:
        # All ranks' tokens come together here, unless they are taken in chunks (moe_max_num_tokens is
        # max_num_tokens x dp_size where nobody sets it: _torch/model_config.py@v1.2.1); what came and what goes back
        # has room of its own.
        tokens *= layout.tp
        gathered = tokens * (widths.expert_input + widths.hidden)
        tokens = min(tokens, setup.running.moe_max_tokens or tokens)
    rows = tokens * max(dims.experts_per_token, 1)
    return gathered + _expert_row_bytes(setup, widths, rows)


def _expert_row_bytes(setup: Setup, widths: TorchWidths, rows: int) -> int:
    """Return what the experts' kernels need for so many rows."""
    dims, backend, hidden = setup.dims, resolve_moe_backend(setup), widths.hidden
    if backend == "TRTLLM":
        rows += dims.num_experts * (_expert_tile_rows(rows, dims.num_experts) - 1)
        factor_bytes = _kept_factor_bytes(setup, widths)
        return rows * (factor_bytes + widths.expert_product + hidden)
    if backend == "DEEPGEMM":  # its buffers are kept from the first step on, and are counted with the weights
        return rows * hidden // 2
    # What goes into the two multiplications shares memory, and so does what comes out of them.
    into, out = (max(widths.expert_input, widths.expert_product), max(widths.expert_factors, hidden))
    return rows * (into + out)


def _kept_factor_bytes(setup: Setup, widths: TorchWidths) -> int:
    """Return the product's factors of one row, in the type the kernels keep them in; FP4 never writes them."""
    weights = setup.formats.weights
    if weights == "FP8_BLOCK_SCALES":
        return widths.expert_factors // dtype_bytes(setup.formats.dtype)
    return 0 if quantised_activation_bytes(weights) else widths.expert_factors


def _expert_tile_rows(rows: int, experts: int) -> int:
    mean = max(rows // max(experts, 1), 1)
    return min(max(1 << (mean - 1).bit_length(), LEAST_TILE), MOST_TILE)


def _torch_tolerance(setup: Setup, phase: str) -> float:
    if phase == "experts":
        doubt = {"TRTLLM": 0.15, "CUTLASS": 0.25}.get(resolve_moe_backend(setup), 0.4)
        return max(doubt, 0.4) if setup.layout.attention_dp else doubt
    return 0.35 if setup.dims.mla or setup.dims.state_layers or setup.dims.encoder_params else 0.3
