"""All that a rank holds beside weights, activations and cache."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from trtdx.memory.ledger.communication import communication_buffers
from trtdx.memory.ledger.cuda_graphs import cuda_graph_memory
from trtdx.memory.ledger.decoder_buffers import decoder_buffers, runtime_buffers
from trtdx.memory.ledger.decoder_layers import is_last_stage, rank_layer_range
from trtdx.memory.ledger.engine_activation import CUBLAS_WORKSPACE, logits_rows
from trtdx.memory.ledger.kv_cache import kv_bytes_per_token, recurrent_state
from trtdx.memory.ledger.weight_storage import ceil_div, dtype_bytes, pad_to_multiple
from trtdx.memory.nouns import GIB, Component, Figure
from trtdx.words import format_large_count, group_digits

if TYPE_CHECKING:
    from trtdx.memory.nouns import Dims, Setup

# The context, the kernels that are loaded and the libraries' own memory; newer GPUs have larger contexts.
ENGINE_CONTEXT = {75: GIB // 4, 86: int(0.3 * GIB), 89: int(0.35 * GIB), 120: GIB // 2}
OTHER_ENGINE_CONTEXT = int(0.77 * GIB)
PROFILE_CONTEXT = GIB // 50  # of each further optimization profile: they share their activation memory
PROFILE_COUNT = 6
TORCH_CONTEXT = {100: int(3.9 * GIB), 103: int(3.9 * GIB), 90: int(1.9 * GIB)}
OTHER_TORCH_CONTEXT = int(1.5 * GIB)
LORA_SHARE = 0.02  # of the device's memory, where nobody says how many adapters
TRANSFER_COPIES = 2  # one to send, one to receive
SLOT_BYTES = 64 * 1024  # of a sequence in torch's sampler and input buffers
TRTLLM_SAMPLER_WORD = 17  # of a word for a sequence, where the C++ decoder samples (beam search)


def rank_buffers(setup: Setup, rank: int) -> tuple[Component, ...]:
    """Return every component beside weights, activation and cache; those that are not there are left out.

    Logits that are made outside of the plan are not among them: see `late_logits`.
    """
    engine = setup.is_engine
    components = [
        _cuda_context(setup),
        communication_buffers(setup),
        runtime_buffers(setup, rank) if engine else _torch_runtime_buffers(setup),
        decoder_buffers(setup, rank) if engine else _torch_sampler_buffers(setup, rank),
        cuda_graph_memory(setup, rank),
    ]
    running, dims = setup.running, setup.dims
    if running.lora:
        components.append(_lora_cache(setup, rank))
    components += filter(None, [recurrent_state(setup, rank)])
    if dims.encoder_params:
        components.append(_encoder_cache(setup))
    if running.disaggregated_tokens:
        components.append(_kv_transfer(setup, rank))
    if running.other_process_bytes:
        figure = Figure.exact(running.other_process_bytes, "given")
        components.append(Component("other_process", figure, "in use by others"))
    return tuple(component for component in components if component.bytes.high)


def late_logits(setup: Setup, rank: int) -> Component:
    """Return the logits that are allocated when requests run, from what the cache has left.

    The PyTorch backend's profile runs few prompts, so it does not see the logits of a full batch. An engine that
    gathers the logits of prompts allocates them for each step.
    """
    dims, limits, formats = setup.dims, setup.limits, setup.formats
    if not is_last_stage(setup.layout, rank):
        return Component("logits", Figure.exact(0), "on the last stage only")
    if setup.is_engine:
        if not setup.running.gather_context_logits:
            return Component("logits", Figure.exact(0), "among the runtime buffers")
        rows, word = logits_rows(setup), dtype_bytes(formats.logits_dtype)
    else:
        rows = limits.max_batch_size * limits.max_beam_width * (1 + limits.max_draft_len)
        word = dtype_bytes(formats.dtype) + 4  # and a copy in 32 bit
    size = rows * pad_to_multiple(dims.vocab_size, setup.layout.tp) * word
    return Component(
        "logits",
        Figure(size, 0, size, "formula"),
        f"{group_digits(rows)} rows x {group_digits(dims.vocab_size)} words",
    )


def _cuda_context(setup: Setup) -> Component:
    sm = setup.sm
    if setup.is_engine:
        profiles = PROFILE_COUNT - 1 if setup.running.multiple_profiles else 0
        size = ENGINE_CONTEXT.get(sm, OTHER_ENGINE_CONTEXT) + profiles * PROFILE_CONTEXT
        return Component("cuda_context", Figure.with_tolerance(size, 0.5), "context, kernels, cuBLAS")
    size = TORCH_CONTEXT.get(sm, OTHER_TORCH_CONTEXT)
    return Component("cuda_context", Figure.with_tolerance(size, 0.4), "context, kernels, libraries outside of torch")


def _torch_runtime_buffers(setup: Setup) -> Component:
    """Return what the PyTorch backend keeps from its first step on: the attention's workspace, input buffers."""
    tokens, layout = setup.limits.max_num_tokens, setup.layout
    cut = 1 if layout.attention_dp else layout.tp
    eight = setup.formats.kv in ("fp8", "nvfp4")
    token = _workspace_bytes(setup.dims, cut, 1 if eight else dtype_bytes(setup.formats.dtype))
    parts = {
        "attention_workspace": CUBLAS_WORKSPACE + tokens * (token + 8),
        "inputs": tokens * 16 + setup.limits.max_batch_size * ceil_div(setup.limits.max_seq_len, 32) * 8,
    }
    figure = Figure.with_tolerance(sum(parts.values()), 0.2, extra=GIB // 4)
    return Component("runtime_buffers", figure, f"attention's workspace for {group_digits(tokens)} tokens", parts)


@lru_cache(maxsize=1024)
def _workspace_bytes(dims: Dims, cut: int, width: int) -> int:
    """Return the attention's workspace for one token: queries, and with latents all that is unpacked from them."""
    heads = ceil_div(dims.num_heads, cut)
    if not dims.mla:
        return heads * dims.head_dim * width
    latent = dims.kv_lora_rank + dims.qk_rope_head_dim
    keys = dims.qk_nope_head_dim + dims.qk_rope_head_dim
    return heads * (2 * latent + 2 * keys + dims.v_head_dim)


def _torch_sampler_buffers(setup: Setup, rank: int) -> Component:
    limits = setup.limits
    if not is_last_stage(setup.layout, rank):
        return Component("decoder_buffers", Figure.exact(0), "sampling is on the last stage")
    sequences = limits.max_batch_size * limits.max_beam_width
    parts = {"slots": sequences * SLOT_BYTES}
    if limits.max_beam_width > 1:  # the C++ decoder searches
        parts["words"] = sequences * setup.dims.vocab_size * TRTLLM_SAMPLER_WORD
        parts["positions"] = sequences * limits.max_seq_len * 32
    figure = Figure.with_tolerance(sum(parts.values()), 0.8)
    return Component("decoder_buffers", figure, format_large_count(sequences, "sequence"), parts)


def _lora_cache(setup: Setup, rank: int) -> Component:
    running, dims, layout = setup.running, setup.dims, setup.layout
    if not running.max_loras or not running.max_lora_rank:
        total = setup.device.total_bytes if setup.device else 80 * GIB
        figure = Figure(round(total * LORA_SHARE), 0, round(total * LORA_SHARE), "formula")
        return Component("lora", figure, f"{LORA_SHARE:.0%} of the GPU, where adapters are not counted")
    layers = len(rank_layer_range(dims, layout, rank))
    wide = dims.num_heads * dims.head_dim + 2 * dims.num_kv_heads * dims.head_dim
    ends = 3 * dims.hidden_size + wide  # in and out of queries, keys and values
    ends += dims.hidden_size + dims.num_heads * dims.head_dim
    ends += (2 + dims.gated - 1) * (dims.hidden_size + dims.intermediate_size) + dims.intermediate_size
    size = running.max_loras * running.max_lora_rank * layers * ends * dtype_bytes(setup.formats.dtype)
    figure = Figure.with_tolerance(ceil_div(size, layout.tp), 0.5)
    return Component("lora", figure, f"{running.max_loras} adapters of rank {running.max_lora_rank}")


def _encoder_cache(setup: Setup) -> Component:
    size = setup.limits.max_num_tokens * setup.dims.hidden_size * dtype_bytes(setup.formats.dtype)
    return Component("encoder_cache", Figure(size, 0, 4 * size, "formula"), "one step's tokens of images")


def _kv_transfer(setup: Setup, rank: int) -> Component:
    tokens = setup.running.disaggregated_tokens + setup.limits.tokens_per_block
    size = TRANSFER_COPIES * tokens * kv_bytes_per_token(setup, rank).value
    return Component(
        "kv_transfer", Figure.with_tolerance(size, 0.05), f"{TRANSFER_COPIES} x {group_digits(tokens)} tokens"
    )
