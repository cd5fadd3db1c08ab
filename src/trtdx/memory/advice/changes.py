"""Lists every change that could be made to a set-up, with its cost.

Only what the backend, the release, the GPU and the model have is offered; whether it helps is for others to find out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trtdx.knowledge.versions import at_least
from trtdx.memory.advice.change import Change, with_part
from trtdx.memory.advice.costs import HARMS
from trtdx.memory.advice.gpu_changes import device_changes, parallel_changes
from trtdx.memory.model.format_names import FORMATS, KV_BITS, KV_LEAST_SM
from trtdx.memory.question.gpu_support import lacks_fused_attention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.memory.advice.costs import Harm
    from trtdx.memory.nouns import Device, Setup

SMALLEST_STEP = 1024  # of max_num_tokens
SHORTEST = 1024  # of max_seq_len


def changes_for(setup: Setup, devices: tuple[Device, ...] = ()) -> list[Change]:
    """Return every change there is, in no particular order."""
    makers = (_switches, _tokens, _batches, _lengths, _cache, _weights, _fraction, _graphs, _beams, parallel_changes)  # fmt: skip
    changes = [change for make in makers for change in make(setup)]
    return [*changes, *device_changes(setup, devices)]


def _switches(setup: Setup) -> Iterator[Change]:
    """Yield switches of an engine that cost memory for nothing."""
    running = setup.running
    if setup.is_engine:
        for name in ("context_fmha", "packed", "gemm_plugin", "attention_plugin"):
            if name == "context_fmha" and not (
                running.attention_plugin and not lacks_fused_attention(setup.device, running.version)
            ):
                continue  # it is a part of the plugin
            if not getattr(running, name):
                step = with_part("running", **{name: True})
                yield Change(name, f"turn on {_NAMES[name]}", step, HARMS[name], "activation")
        if not running.paged_kv:
            on = with_part("running", paged_kv=True)
            yield Change("paged_kv", "turn on the paged cache", on, HARMS["paged_kv"], "kv_pool")
        if running.multiple_profiles:
            off = with_part("running", multiple_profiles=False)
            yield Change("profiles", "one optimization profile", off, HARMS["profiles"], "activation")
        if setup.layout.tp > 1 and setup.layout.parallel_embedding is False:
            cut = with_part("layout", parallel_embedding=True)
            yield Change("embedding", "cut the embedding over the GPUs", cut, HARMS["embedding"], "weights")
        if running.gather_context_logits:
            off = with_part("running", gather_context_logits=False)
            yield Change("logits", "do not return the prompt's logits", off, HARMS["logits"], "logits")


_NAMES = {
    "context_fmha": "fused attention for prompts",
    "packed": "packed input",
    "gemm_plugin": "the GEMM plugin",
    "attention_plugin": "the attention plugin",
}


def _tokens(setup: Setup) -> Iterator[Change]:
    """Yield smaller steps: with chunks where prompts may be longer."""
    now = setup.limits.max_num_tokens
    for tokens in (16384, 8192, 4096, 2048, SMALLEST_STEP):
        if tokens >= now or tokens < setup.limits.max_batch_size * (1 + setup.limits.max_draft_len):
            continue
        if can_chunk(setup):
            step = _both(with_part("limits", max_num_tokens=tokens), with_part("running", chunked=True))
            words = f"max_num_tokens {tokens} with chunked prompts"
            harm = _halved(HARMS["chunked"], setup, "max_num_tokens", tokens)
            yield Change("tokens", words, step, harm, "activation")
        elif setup.limits.max_seq_len <= tokens:
            yield _lower(setup, "tokens", "max_num_tokens", tokens, "activation")


def _batches(setup: Setup) -> Iterator[Change]:
    for batch in (1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1):
        if batch < setup.limits.max_batch_size:
            yield _lower(setup, "batch", "max_batch_size", batch, "decoder_buffers")


def _lengths(setup: Setup) -> Iterator[Change]:
    """Yield shorter sequences; prompts that somebody asked for still fit into them."""
    prompt = 0 if setup.is_assumed("max_input_len") else setup.limits.max_input_len
    length = 1 << (setup.limits.max_seq_len - 1).bit_length() - 1
    while length >= max(SHORTEST, prompt + 1):
        yield _lower(setup, "seq", "max_seq_len", length, "kv_pool")
        length //= 2


def _lower(setup: Setup, group: str, name: str, value: int, saves: str) -> Change:
    harm = _halved(HARMS[group], setup, name, value)
    return Change(group, f"{name} {value}", with_part("limits", **{name: value}), harm, saves)


def _halved(harm: Harm, setup: Setup, name: str, value: int) -> Harm:
    """Return the harm of a lower limit: that of one halving for each of them; less where nobody asked for the limit."""
    halvings = math.log2(getattr(setup.limits, name) / value)
    share = halvings * (0.3 if setup.said.get(name, "").startswith("default") else 1.0)
    return harm._replace(
        throughput=harm.throughput * share, latency=harm.latency * share, function=harm.function * share
    )


def _both(*steps: Callable[[Setup], Setup]) -> Callable[[Setup], Setup]:
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


def _cache(setup: Setup) -> Iterator[Change]:
    """Yield narrower caches that this GPU, backend and release have."""
    now = KV_BITS[setup.formats.kv or setup.formats.dtype]
    engine, sm = setup.is_engine, setup.sm
    kinds = ("fp8", "int8") if engine else ("fp8", "nvfp4")
    for kind in kinds:
        if KV_BITS[kind] >= now or (sm and sm < KV_LEAST_SM[kind]) or not _cache_is_known(setup, kind):
            continue
        harm = HARMS[f"kv_{kind}"]
        words = f"KV cache in {kind.upper()}"
        yield Change("kv", words, with_part("formats", kv=kind), harm, "kv_bytes_per_token")


def _cache_is_known(setup: Setup, kind: str) -> bool:
    release = setup.release
    if kind == "nvfp4":  # there are no 4-bit kernels for latent attention
        return at_least(release, "1.1.0") and not setup.dims.mla
    return at_least(release, "0.8.0") if setup.is_engine else at_least(release, "0.19.0")


WEIGHT_HARMS = {
    "FP8": "weights_8", "NVFP4": "weights_fp4", "W4A16_AWQ": "weights_4", "W8A16": "weights_8_only",
}  # fmt: skip


def _weights(setup: Setup) -> Iterator[Change]:
    """Yield narrower weights that this GPU and backend have, of models that come unquantised or in eight bits."""
    now = FORMATS[setup.formats.weights].bits if setup.formats.weights in FORMATS else _plain_bits(setup)
    sm = setup.sm
    for algo, harm in WEIGHT_HARMS.items():
        form = FORMATS[algo]
        if form.bits > 0.8 * now or setup.running.backend not in form.backends or (sm and sm < form.least_sm):
            continue
        if algo == "W4A16_AWQ" and (
            sm >= 100 or setup.dims.num_experts
        ):  # NVFP4 is there; experts have no AWQ kernels
            continue
        step = with_part(
            "formats", weights=algo, group_size=16 if algo == "NVFP4" else 128, excluded=(), by_module=()
        )
        yield Change("weights", f"weights in {algo}", step, HARMS[harm], "weights")


def _plain_bits(setup: Setup) -> int:
    return 32 if setup.formats.dtype == "float32" else 16


def _fraction(setup: Setup) -> Iterator[Change]:
    is_shared = setup.device is not None and setup.device.unified  # the rest is all that the host has
    for share in (0.9,) if is_shared else (0.9, 0.95):
        if setup.running.free_fraction < share - 0.01:
            step = with_part("running", free_fraction=share)
            words = f"{share:.0%} of free memory for the cache"
            yield Change("fraction", words, step, HARMS["fraction"], "kv_pool")
    if setup.running.max_tokens:
        step = with_part("running", max_tokens=0)
        yield Change("max_tokens", "no limit on the cache's tokens", step, HARMS["fraction"], "kv_pool")


def _graphs(setup: Setup) -> Iterator[Change]:
    running = setup.running
    if setup.is_engine:
        return
    if running.piecewise_graphs:
        step = with_part("running", piecewise_graphs=False)
        yield Change("piecewise", "no piecewise CUDA graphs", step, HARMS["piecewise"], "cuda_graphs")
    if running.cuda_graphs:
        off = with_part("running", cuda_graphs=False)
        yield Change("graphs", "no CUDA graphs", off, HARMS["graphs"], "cuda_graphs")


def _beams(setup: Setup) -> Iterator[Change]:
    beams = setup.limits.max_beam_width
    for fewer in {beams // 2, 1} - {0, beams}:
        step = with_part("limits", max_beam_width=fewer)
        yield Change("beam", f"max_beam_width {fewer}", step, HARMS["beam"], "kv_pool")
