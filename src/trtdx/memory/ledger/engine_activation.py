"""The activation memory of an engine: the tensors of a decoder at its largest shapes, put into blocks.

Two layers stand for all: TensorRT gives the next ones the same blocks. With the GEMM plugin the network is plugins and
single kernels, and each tensor between them is seen by the block assignment. Without it everything between two
attentions is one region, whose inner tensors are scratch memory of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trtdx.memory.ledger.block_assignment import NetworkOp, SharingNetwork
from trtdx.memory.ledger.decoder_layers import is_last_stage
from trtdx.memory.ledger.weight_storage import ceil_div, dtype_bytes, pad_to_multiple
from trtdx.memory.model.families import is_since_release
from trtdx.memory.nouns import MIB, Component, Figure
from trtdx.words import format_large_count

if TYPE_CHECKING:
    from trtdx.memory.nouns import Dims, Setup

CUBLAS_WORKSPACE = 32 * MIB  # workspace of the GEMM and attention plugins
COMPILED_WORKSPACE = 8_192_000  # of matrix multiplications that TensorRT compiles itself
INNER_HIDDEN = 3  # tensors of the hidden size inside a compiled region: a residual, a norm, an output
FUSED_MLP_SINCE = "0.13.0"
PAGED_CONTEXT_SINCE = "0.17.0"  # prompts are read from the cache, queries are copied
PROCESSORS = {80: 108, 86: 84, 89: 142, 90: 132, 100: 148, 103: 148, 120: 170}
SHARED_MEMORY = {80: 163, 90: 227, 100: 227, 103: 227}  # KiB of a block; others have 99
SCORE_BYTES = 6  # of one past token, in the shared memory of the generation kernel
TYPICAL_TOKENS = (512, 8192, 131_072)
SMALL_TENSORS_BYTES = 10_240  # shape tensors and alignment
EIGHT_BITS = ("FP8", "W8A8", "MXFP8", "W4A8")


class EngineWidths(NamedTuple):
    """The bytes that each kind of tensor has for one token on one rank; what depends on the model only."""

    hidden: int
    mixed: int  # queries, keys and values
    attended: int
    queries: int  # as the paged attention copies them
    inner: int  # one projection of the MLP; 0 with experts only
    expert: int  # all that a token takes inside the experts' plugin
    logits: int
    local_logits: int
    quantised: float  # how wide a quantised activation is, as a share of a plain one; 0: none
    heads: int
    gated: bool
    weight_only: bool


class StepShape(NamedTuple):
    """What a build's limits make of a build."""

    tokens: int
    rows: int  # of logits
    attention: int  # its scratch memory
    gemm: int  # that of a matrix multiplication


class EngineBuild(NamedTuple):
    """What is built: all that decides which steps there are."""

    widths: EngineWidths
    compiles: str  # "", or what TensorRT compiles itself: "regions" between attentions, or "all"
    last: bool  # with the output head
    spread: bool  # over ranks
    fused: bool  # gate and up projections are one
    all_rows: bool  # logits of every token
    paged: bool  # prompts are read from the cache, and their queries copied


def engine_activation(setup: Setup, rank: int) -> Component:
    """Return the activation memory of an engine on a rank."""
    build = _engine_build(setup, rank)
    shape = _step_shape(setup, build.widths)
    parts: dict[str, int] = {}
    if build.compiles == "all":
        parts = {"region": _compiled_activation_bytes(build, shape), "scores": shape.attention}
    else:
        parts["other"] = SMALL_TENSORS_BYTES
        for block in _cached_network(build).blocks(shape):
            name = block.name.partition(".")[2] if block.name[0].isdigit() else block.name
            parts[name] = parts.get(name, 0) + block.size
    if setup.dims.encoder_layers:
        parts["encoder"] = sum(parts.values())  # an engine of its own, about as large
    figure = Figure.with_tolerance(
        sum(parts.values()), _engine_tolerance(setup, build.widths), extra=_absolute_tolerance(build)
    )
    words = f"{format_large_count(shape.tokens, 'token')}, {format_large_count(shape.rows, 'row')} of logits"
    return Component("activation", figure, words, parts)


def _engine_build(setup: Setup, rank: int) -> EngineBuild:
    running, widths = setup.running, _setup_widths(setup)
    compiles = "" if running.gemm_plugin or widths.weight_only else "regions"
    if not running.attention_plugin:
        compiles = "all"
    return EngineBuild(
        widths=widths,
        compiles=compiles,
        last=is_last_stage(setup.layout, rank),
        spread=setup.layout.tp > 1,
        fused=widths.gated and not widths.weight_only and is_since_release(running.version, FUSED_MLP_SINCE),
        all_rows=running.gather_context_logits,
        paged=is_since_release(running.version, PAGED_CONTEXT_SINCE),
    )


def _step_shape(setup: Setup, widths: EngineWidths) -> StepShape:
    tokens = largest_step_tokens(setup)
    gemm = min(CUBLAS_WORKSPACE, widths.hidden * tokens) if widths.weight_only else CUBLAS_WORKSPACE
    if setup.running.attention_plugin:
        attention = _attention_scratch_bytes(setup, widths, tokens)
    else:
        attention = 0 if setup.running.context_fmha else _unfused_attention_bytes(setup, widths)
    return StepShape(tokens, logits_rows(setup), attention, gemm)


@lru_cache(maxsize=1024)
def _cached_network(build: EngineBuild) -> SharingNetwork:
    """Return the network with the ways in which its tensors share memory at some usual shapes."""
    widths, usual = build.widths, []
    for tokens in TYPICAL_TOKENS:
        gemm = min(CUBLAS_WORKSPACE, widths.hidden * tokens) if widths.weight_only else CUBLAS_WORKSPACE
        attention = CUBLAS_WORKSPACE + (8 + widths.queries * build.paged) * tokens
        usual += [
            StepShape(tokens, rows, attention, gemm) for rows in ((tokens,) if build.all_rows else (1, tokens // 4))
        ]
    steps = _region_ops if build.compiles else _plugin_ops
    return SharingNetwork(lambda shape: steps(build, StepShape(*shape)), usual)


def largest_step_tokens(setup: Setup) -> int:
    """Return the most tokens of one step: of the packed batch, or of the padded one."""
    limits = setup.limits
    sequences = limits.max_batch_size * limits.max_beam_width
    if setup.running.packed:
        return max(limits.max_num_tokens, 1)
    return max(limits.max_batch_size * _input_length(setup), sequences, 1)


def logits_rows(setup: Setup) -> int:
    """Return for how many tokens of a step there are logits."""
    limits = setup.limits
    if setup.running.gather_context_logits:
        return largest_step_tokens(setup)
    return max(limits.max_batch_size * limits.max_beam_width * (1 + limits.max_draft_len), 1)


def _input_length(setup: Setup) -> int:
    limits = setup.limits
    return max(min(limits.max_input_len or limits.max_seq_len, limits.max_seq_len), 1)


def _setup_widths(setup: Setup) -> EngineWidths:
    return _engine_model_widths(setup.dims, setup.layout.tp, setup.formats.dtype, setup.formats.weights)


@lru_cache(maxsize=1024)
def _engine_model_widths(dims: Dims, tp: int, dtype: str, weights: str) -> EngineWidths:
    width = dtype_bytes(dtype)
    heads = ceil_div(dims.num_heads, tp)
    mixed, attended = attention_widths(dims, tp)
    inner = ceil_div(dims.intermediate_size, tp)
    expert = 0
    if dims.num_experts:
        expert_inner = ceil_div(dims.moe_intermediate_size or dims.intermediate_size, tp)
        expert = dims.experts_per_token * (2 * dims.hidden_size + (2 + dims.gated) * expert_inner) * width
        shared = dims.shared_intermediate_size or dims.shared_experts * dims.moe_intermediate_size
        inner = max(inner if dims.dense_layers or dims.moe_every > 1 else 0, ceil_div(shared, tp))
    vocabulary = pad_to_multiple(dims.vocab_size, tp)
    return EngineWidths(
        hidden=dims.hidden_size * width,
        mixed=mixed * width,
        attended=attended * width,
        queries=heads * dims.head_dim * width if not dims.mla else attended * width,
        inner=inner * width,
        expert=expert,
        logits=vocabulary * width,
        local_logits=vocabulary // tp * width if tp > 1 else 0,
        quantised=quantised_activation_bytes(weights) / width,
        heads=heads,
        gated=dims.gated,
        weight_only=weights.startswith(("W4A16", "W8A16")),
    )


def attention_widths(dims: Dims, tp: int) -> tuple[int, int]:
    """Return how wide queries, keys and values are together on a rank, and what attention makes of them."""
    heads = ceil_div(dims.num_heads, tp)
    if dims.mla:
        latent = dims.kv_lora_rank + dims.qk_rope_head_dim + dims.q_lora_rank
        return heads * (dims.qk_nope_head_dim + dims.qk_rope_head_dim) + latent, heads * dims.v_head_dim
    kv_heads = max(ceil_div(max(dims.kv_heads_per_layer, default=dims.num_kv_heads), tp), 1)
    return (heads + 2 * kv_heads) * dims.head_dim, heads * dims.head_dim


def quantised_activation_bytes(weights: str) -> float:
    """Return the bytes of a quantised activation; 0 where activations stay plain."""
    if weights.startswith("NVFP4"):
        return 0.5625
    return 1.0 if weights.startswith(EIGHT_BITS) else 0.0


def _plugin_ops(build: EngineBuild, shape: StepShape) -> list[NetworkOp]:
    widths, tokens = build.widths, shape.tokens
    hidden = widths.hidden * tokens
    ops = [NetworkOp("embedding", hidden)]
    residual = "embedding"
    for layer in ("0", "1"):
        normed = f"{layer}.norm"
        ops.append(NetworkOp(normed, hidden, (residual,)))
        read = _add_quantised(ops, widths, normed, hidden)
        ops.append(NetworkOp(f"{layer}.qkv", widths.mixed * tokens, (read,), shape.gemm))
        ops.append(NetworkOp(f"{layer}.attention", widths.attended * tokens, (f"{layer}.qkv",), shape.attention))
        read = _add_quantised(ops, widths, f"{layer}.attention", widths.attended * tokens)
        residual = _add_projection(ops, build, shape, f"{layer}.dense", (read,), residual)
        residual = _add_mlp(ops, build, shape, layer, residual)
    _add_head(ops, build, shape, residual, CUBLAS_WORKSPACE)
    return ops


def _add_quantised(ops: list[NetworkOp], widths: EngineWidths, name: str, size: int) -> str:
    """Add the quantised form of a tensor, if there is one; returns what the next step reads."""
    if not widths.quantised:
        return name
    ops.append(NetworkOp(f"{name}_quantised", int(size * widths.quantised), (name,)))
    return f"{name}_quantised"


def _add_projection(
    ops: list[NetworkOp],
    build: EngineBuild,
    shape: StepShape,
    name: str,
    reads: tuple[str, ...],
    residual: str,
) -> str:
    """Add a projection back to the hidden size, summed over ranks, and the residual; returns the sum's name."""
    size = build.widths.hidden * shape.tokens
    ops.append(NetworkOp(name, size, reads, shape.gemm))
    if build.spread:
        ops.append(NetworkOp(f"{name}_reduced", size, (name,)))
        name = f"{name}_reduced"
    ops.append(NetworkOp(f"{name}_sum", size, (residual, name)))
    return f"{name}_sum"


def _add_mlp(ops: list[NetworkOp], build: EngineBuild, shape: StepShape, layer: str, residual: str) -> str:
    widths, tokens = build.widths, shape.tokens
    hidden, inner = widths.hidden * tokens, widths.inner * tokens
    normed = f"{layer}.norm_mlp"
    ops.append(NetworkOp(normed, hidden, (residual,)))
    reads: tuple[str, ...] = ()
    if widths.inner:
        read = _add_quantised(ops, widths, normed, hidden)
        factors = _add_mlp_projections(ops, build, shape, layer, read)
        # What multiplies the two also quantises the product.
        product = int(inner * widths.quantised) if widths.quantised else inner
        ops.append(NetworkOp(f"{layer}.product", product, factors))
        reads = (f"{layer}.product",)
    if widths.expert:
        ops.append(NetworkOp(f"{layer}.experts", hidden, (normed,), widths.expert * tokens))
        reads += (f"{layer}.experts",)
    return _add_projection(ops, build, shape, f"{layer}.down", reads, residual)


def _add_mlp_projections(
    ops: list[NetworkOp], build: EngineBuild, shape: StepShape, layer: str, read: str
) -> tuple[str, ...]:
    inner = build.widths.inner * shape.tokens
    if build.fused:
        ops.append(NetworkOp(f"{layer}.gate_up", 2 * inner, (read,), shape.gemm))
        return (f"{layer}.gate_up",)
    names = (f"{layer}.gate", f"{layer}.up") if build.widths.gated else (f"{layer}.up",)
    ops += [NetworkOp(name, inner, (read,), shape.gemm) for name in names]
    return names


def _add_head(ops: list[NetworkOp], build: EngineBuild, shape: StepShape, residual: str, scratch: int) -> None:
    """Add the last norm, the rows that logits are wanted of, and the logits, which are cast to an output."""
    if not build.last:
        return
    widths = build.widths
    ops.append(NetworkOp("last_norm", widths.hidden * shape.tokens, (residual,)))
    read = "last_norm"
    if not build.all_rows:
        ops.append(NetworkOp("last_rows", widths.hidden * shape.rows, (read,)))
        read = "last_rows"
    if widths.local_logits:
        ops.append(NetworkOp("local_logits", widths.local_logits * shape.rows, (read,), scratch))
        read, scratch = "local_logits", 0
    ops.append(NetworkOp("logits", widths.logits * shape.rows, (read,), scratch))
    ops.append(NetworkOp("cast", 0, ("logits",)))


def _region_ops(build: EngineBuild, shape: StepShape) -> list[NetworkOp]:
    """Return the network where TensorRT compiles what is between attentions."""
    widths, tokens = build.widths, shape.tokens
    hidden = widths.hidden * tokens
    inside = (widths.inner * (2 + widths.gated) + INNER_HIDDEN * widths.hidden + widths.expert) * tokens
    ops = [
        NetworkOp("embedding", hidden),
        NetworkOp("0.qkv", widths.mixed * tokens, ("embedding",), COMPILED_WORKSPACE),
    ]
    residual = "embedding"
    for layer, following in (("0", "1"), ("1", "2")):
        attended = f"{layer}.attention"
        ops.append(NetworkOp(attended, widths.attended * tokens, (f"{layer}.qkv",), shape.attention))
        ops.append(NetworkOp(f"{layer}.sum", hidden, (residual, attended)))
        reads = (residual, attended, f"{layer}.sum")
        ops.append(NetworkOp(f"{following}.qkv", widths.mixed * tokens, reads, inside))
        residual = f"{layer}.sum"
    _add_head(ops, build, shape, residual, COMPILED_WORKSPACE)
    return ops


def _compiled_activation_bytes(build: EngineBuild, shape: StepShape) -> int:
    """Return what is alive at the peak where TensorRT compiles attention too. Logits are an output."""
    head = build.widths.hidden * (shape.tokens + shape.rows) * build.last
    return max(compiled_peak_bytes(build.widths, shape.tokens), head)


def compiled_peak_bytes(widths: EngineWidths, tokens: int) -> int:
    """Return what TensorRT's compiler needs for the layers of a decoder, attention included.

    Found by compiling (benchmarks/memory_compile.py): the product of the MLP beside its two factors, or the two
    factors with the workspace of a matrix multiplication, or attention with copies of queries, keys and values.
    """
    hidden, inner = widths.hidden * tokens, max(widths.inner, widths.expert) * tokens
    factors = 1 + widths.gated
    copies = hidden + 2 * widths.mixed * tokens
    keys = (widths.mixed - widths.attended) // 2 * tokens
    product = (factors + 1) * inner + 2 * hidden
    # Where the factors are smaller than the workspace, the product does not find its place in it.
    share = min(1.0, COMPILED_WORKSPACE / max(factors * inner, 1))
    small = int(max(product, copies) * share) + COMPILED_WORKSPACE
    large = max(
        product + keys,
        factors * inner + 2 * hidden + COMPILED_WORKSPACE,
        copies + min(COMPILED_WORKSPACE, hidden),
    )
    return max(small, large if share < 1 else 0)


def _attention_scratch_bytes(setup: Setup, widths: EngineWidths, tokens: int) -> int:
    limits, running = setup.limits, setup.running
    sequences = limits.max_batch_size * limits.max_beam_width
    sm = setup.sm
    tiles = max(
        ceil_div(PROCESSORS.get(sm, 132), widths.heads),
        ceil_div(limits.max_seq_len * SCORE_BYTES, SHARED_MEMORY.get(sm, 99 if sm else 227) * 1024),
    )
    generation = sequences * tiles * (widths.attended + 8 * widths.heads)
    context = CUBLAS_WORKSPACE + 8 * tokens
    if not running.context_fmha:
        context += _unfused_attention_bytes(setup, widths)
    elif is_since_release(running.version, PAGED_CONTEXT_SINCE):
        context += widths.queries * tokens
    return max(context, generation)


def _unfused_attention_bytes(setup: Setup, widths: EngineWidths) -> int:
    """Return what attention without the fused kernel keeps: masks, copies, and all scores in two types."""
    length = min(_input_length(setup), largest_step_tokens(setup)) if setup.running.packed else _input_length(setup)
    sequences = setup.limits.max_batch_size
    padded_tokens = sequences * length
    masks = 2 * padded_tokens * length
    copies = (widths.mixed + widths.attended) * padded_tokens
    return masks + copies + (2 + 4) * widths.heads * sequences * length * length


def _absolute_tolerance(build: EngineBuild) -> int:
    """Return by how many bytes the figure may be off whatever its size: what kernels with small weights ask for varies."""
    return (16 if build.widths.weight_only else 1) * MIB


def _engine_tolerance(setup: Setup, widths: EngineWidths) -> float:
    """Return by what share the figure may be off: little where build logs confirm it."""
    doubt = 0.06
    if widths.quantised:
        doubt = 0.3
    elif widths.weight_only:
        doubt = 0.1
    elif not setup.running.gemm_plugin:
        doubt = 0.15
    if not setup.running.attention_plugin or not setup.running.context_fmha:
        doubt = max(doubt, 0.25)
    if setup.layout.tp > 1:
        doubt = max(doubt, 0.12)
    if widths.expert or setup.dims.mla or setup.dims.state_layers or setup.dims.encoder_layers:
        doubt = max(doubt, 0.35)
    return doubt
