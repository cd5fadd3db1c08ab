"""Lists every change that could be made to a set-up, with its cost.

Only what the backend, the release, the GPU and the model have is offered; whether it helps is for others to find out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trtdx.knowledge.versions import at_least
from trtdx.memory.advice.costs import CHANGE_HARMS
from trtdx.memory.advice.gpu_changes import device_changes, parallel_changes
from trtdx.memory.advice.memory_change import MemoryChange, replace_part
from trtdx.memory.model.format_names import KV_BITS, KV_LEAST_SM, WEIGHT_FORMATS
from trtdx.memory.question.gpu_support import lacks_fused_attention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.memory.advice.costs import ChangeHarm
    from trtdx.memory.nouns import Device, Setup

SMALLEST_STEP = 1024  # of max_num_tokens
SHORTEST_SEQUENCE = 1024  # of max_seq_len


def list_changes(setup: Setup, devices: tuple[Device, ...] = ()) -> list[MemoryChange]:
    """Return every change there is, in no particular order."""
    makers = (_switch_changes, _token_changes, _batch_size_changes, _length_changes, _kv_format_changes, _weight_format_changes, _fraction_changes, _graph_changes, _beam_changes, parallel_changes)  # fmt: skip
    changes = [change for make in makers for change in make(setup)]
    return [*changes, *device_changes(setup, devices)]


def _switch_changes(setup: Setup) -> Iterator[MemoryChange]:
    """Yield switches of an engine that cost memory for nothing."""
    running = setup.running
    if setup.is_engine:
        for name in ("context_fmha", "packed", "gemm_plugin", "attention_plugin"):
            if name == "context_fmha" and not (
                running.attention_plugin and not lacks_fused_attention(setup.device, running.version)
            ):
                continue  # it is a part of the plugin
            if not getattr(running, name):
                step = replace_part("running", **{name: True})
                yield MemoryChange(name, f"turn on {_SWITCH_WORDS[name]}", step, CHANGE_HARMS[name], "activation")
        if not running.paged_kv:
            on = replace_part("running", paged_kv=True)
            yield MemoryChange("paged_kv", "turn on the paged cache", on, CHANGE_HARMS["paged_kv"], "kv_pool")
        if running.multiple_profiles:
            off = replace_part("running", multiple_profiles=False)
            yield MemoryChange("profiles", "one optimization profile", off, CHANGE_HARMS["profiles"], "activation")
        if setup.layout.tp > 1 and setup.layout.parallel_embedding is False:
            cut = replace_part("layout", parallel_embedding=True)
            yield MemoryChange(
                "embedding", "cut the embedding over the GPUs", cut, CHANGE_HARMS["embedding"], "weights"
            )
        if running.gather_context_logits:
            off = replace_part("running", gather_context_logits=False)
            yield MemoryChange("logits", "do not return the prompt's logits", off, CHANGE_HARMS["logits"], "logits")


_SWITCH_WORDS = {
    "context_fmha": "fused attention for prompts",
    "packed": "packed input",
    "gemm_plugin": "the GEMM plugin",
    "attention_plugin": "the attention plugin",
}


def _token_changes(setup: Setup) -> Iterator[MemoryChange]:
    """Yield smaller steps: with chunks where prompts may be longer."""
    now = setup.limits.max_num_tokens
    for tokens in (16384, 8192, 4096, 2048, SMALLEST_STEP):
        if tokens >= now or tokens < setup.limits.max_batch_size * (1 + setup.limits.max_draft_len):
            continue
        if can_chunk(setup):
            step = _chain_steps(replace_part("limits", max_num_tokens=tokens), replace_part("running", chunked=True))
            words = f"max_num_tokens {tokens} with chunked prompts"
            harm = _harm_of_halvings(CHANGE_HARMS["chunked"], setup, "max_num_tokens", tokens)
            yield MemoryChange("tokens", words, step, harm, "activation")
        elif setup.limits.max_seq_len <= tokens:
            yield _lower_limit(setup, "tokens", "max_num_tokens", tokens, "activation")


def _batch_size_changes(setup: Setup) -> Iterator[MemoryChange]:
    for batch in (1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1):
        if batch < setup.limits.max_batch_size:
            yield _lower_limit(setup, "batch", "max_batch_size", batch, "decoder_buffers")


def _length_changes(setup: Setup) -> Iterator[MemoryChange]:
    """Yield shorter sequences; prompts that somebody asked for still fit into them."""
    prompt = 0 if setup.is_assumed("max_input_len") else setup.limits.max_input_len
    length = 1 << (setup.limits.max_seq_len - 1).bit_length() - 1
    while length >= max(SHORTEST_SEQUENCE, prompt + 1):
        yield _lower_limit(setup, "seq", "max_seq_len", length, "kv_pool")
        length //= 2


def _lower_limit(setup: Setup, group: str, name: str, value: int, saves: str) -> MemoryChange:
    harm = _harm_of_halvings(CHANGE_HARMS[group], setup, name, value)
    return MemoryChange(group, f"{name} {value}", replace_part("limits", **{name: value}), harm, saves)


def _harm_of_halvings(harm: ChangeHarm, setup: Setup, name: str, value: int) -> ChangeHarm:
    """Return the harm of a lower limit: that of one halving for each of them; less where nobody asked for the limit."""
    halvings = math.log2(getattr(setup.limits, name) / value)
    share = halvings * (0.3 if setup.said.get(name, "").startswith("default") else 1.0)
    return harm._replace(
        throughput=harm.throughput * share, latency=harm.latency * share, function=harm.function * share
    )


def _chain_steps(*steps: Callable[[Setup], Setup]) -> Callable[[Setup], Setup]:
    def changed(setup: Setup) -> Setup:
        for step in steps:
            setup = step(setup)
        return setup

    return changed


def can_chunk(setup: Setup) -> bool:
    """Whether prompts may be cut: engines need paged context attention, and no release cuts an encoder's."""
    if setup.dims.encoder_layers or setup.running.chunked:
        return bool(setup.running.chunked)
    if not setup.is_engine:
        return True
    return at_least(setup.release, "0.9.0") and setup.running.context_fmha and setup.running.packed


def _kv_format_changes(setup: Setup) -> Iterator[MemoryChange]:
    """Yield narrower caches that this GPU, backend and release have."""
    now = KV_BITS[setup.formats.kv or setup.formats.dtype]
    engine, sm = setup.is_engine, setup.sm
    kinds = ("fp8", "int8") if engine else ("fp8", "nvfp4")
    for kind in kinds:
        if KV_BITS[kind] >= now or (sm and sm < KV_LEAST_SM[kind]) or not _has_kv_format(setup, kind):
            continue
        harm = CHANGE_HARMS[f"kv_{kind}"]
        words = f"KV cache in {kind.upper()}"
        yield MemoryChange("kv", words, replace_part("formats", kv=kind), harm, "kv_bytes_per_token")


def _has_kv_format(setup: Setup, kind: str) -> bool:
    release = setup.release
    if kind == "nvfp4":  # there are no 4-bit kernels for latent attention
        return at_least(release, "1.1.0") and not setup.dims.mla
    return at_least(release, "0.8.0") if setup.is_engine else at_least(release, "0.19.0")


WEIGHT_HARMS = {
    "FP8": "weights_8", "NVFP4": "weights_fp4", "W4A16_AWQ": "weights_4", "W8A16": "weights_8_only",
}  # fmt: skip


def _weight_format_changes(setup: Setup) -> Iterator[MemoryChange]:
    """Yield narrower weights that this GPU and backend have, of models that come unquantised or in eight bits."""
    now = (
        WEIGHT_FORMATS[setup.formats.weights].bits
        if setup.formats.weights in WEIGHT_FORMATS
        else _unquantised_bits(setup)
    )
    sm = setup.sm
    for algo, harm in WEIGHT_HARMS.items():
        form = WEIGHT_FORMATS[algo]
        if form.bits > 0.8 * now or setup.running.backend not in form.backends or (sm and sm < form.least_sm):
            continue
        if algo == "W4A16_AWQ" and (sm >= 100 or setup.dims.num_experts):  # NVFP4 is there; experts have no AWQ kernels
            continue
        step = replace_part(
            "formats", weights=algo, group_size=16 if algo == "NVFP4" else 128, excluded=(), by_module=()
        )
        yield MemoryChange("weights", f"weights in {algo}", step, CHANGE_HARMS[harm], "weights")


def _unquantised_bits(setup: Setup) -> int:
    return 32 if setup.formats.dtype == "float32" else 16


def _fraction_changes(setup: Setup) -> Iterator[MemoryChange]:
    is_shared = setup.device is not None and setup.device.unified  # the rest is all that the host has
    for share in (0.9,) if is_shared else (0.9, 0.95):
        if setup.running.free_fraction < share - 0.01:
            step = replace_part("running", free_fraction=share)
            words = f"{share:.0%} of free memory for the cache"
            yield MemoryChange("fraction", words, step, CHANGE_HARMS["fraction"], "kv_pool")
    if setup.running.max_tokens:
        step = replace_part("running", max_tokens=0)
        yield MemoryChange("max_tokens", "no limit on the cache's tokens", step, CHANGE_HARMS["fraction"], "kv_pool")


def _graph_changes(setup: Setup) -> Iterator[MemoryChange]:
    running = setup.running
    if setup.is_engine:
        return
    if running.piecewise_graphs:
        step = replace_part("running", piecewise_graphs=False)
        yield MemoryChange("piecewise", "no piecewise CUDA graphs", step, CHANGE_HARMS["piecewise"], "cuda_graphs")
    if running.cuda_graphs:
        off = replace_part("running", cuda_graphs=False)
        yield MemoryChange("graphs", "no CUDA graphs", off, CHANGE_HARMS["graphs"], "cuda_graphs")


def _beam_changes(setup: Setup) -> Iterator[MemoryChange]:
    beams = setup.limits.max_beam_width
    for fewer in {beams // 2, 1} - {0, beams}:
        step = replace_part("limits", max_beam_width=fewer)
        yield MemoryChange("beam", f"max_beam_width {fewer}", step, CHANGE_HARMS["beam"], "kv_pool")
