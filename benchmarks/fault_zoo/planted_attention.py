"""Faults of torch models in positions, attention, caches, chance and ranks: mostly captures of patched modules."""

from __future__ import annotations

from typing import Any

import torch

from . import attention_faults as attention
from . import ranks
from . import torch_faults as wrong
from .bed import (
    Bed,
    core,
    leaves,
    of_mask,
    of_rotary,
    part,
)
from .nouns import Question


def plant(bed: Bed) -> None:
    for each in (positions, attentions, caches, chance, parallel):
        each(bed)


def positions(bed: Bed) -> None:
    pick, at = bed.pick, bed.layer
    theta = pick(5e5, 1e5)
    bed.config(
        "rope-base",
        "llama",
        "fp32",
        None,
        of_rotary("llama"),
        {"rope_parameters": {"rope_type": "default", "rope_theta": theta}},
        every=True,
    )
    bed.config(
        "rope-base",
        "qwen2",
        "bf16",
        None,
        of_rotary("qwen2"),
        {"rope_parameters": {"rope_type": "default", "rope_theta": pick(1e4, 5e5)}},
        every=True,
    )
    linear = {"rope_type": "linear", "rope_theta": 1e4, "factor": pick(2.0, 4.0)}
    bed.config("rope-scaling", "llama", "bf16", None, of_rotary("llama"), {"rope_parameters": linear}, every=True)
    bed.config(
        "rope-interleaved",
        "deepseek",
        pick("fp32", "bf16"),
        0,
        core("deepseek", 0, cached=True),
        {"rope_interleave": False},
        every=True,
    )
    n = at("llama", "middle")
    q, k = part("llama", n, "query"), part("llama", n, "key")

    def woven(model: Any) -> None:
        wrong.weight(model.get_submodule(q), wrong.permuted_for_interleaved(4))
        wrong.weight(model.get_submodule(k), wrong.permuted_for_interleaved(2))

    truth = leaves(q)._replace(right=(f"{q}:out", f"{k}:out"))
    bed.folder(
        "rope-interleaved",
        "llama",
        "bf16",
        n,
        truth,
        woven,
        told="rows of q_proj and k_proj as Meta has them",
    )
    n = at("qwen2", "last")
    bed.capture(
        "rope-interleaved",
        "qwen2",
        "bf16",
        n,
        core("qwen2", n, cached=True),
        lambda layer: attention.rotated([layer], attention.interleaved),
    )
    n = at("mixtral", "first")
    bed.capture(
        "rope-interleaved",
        "mixtral",
        "fp16",
        n,
        core("mixtral", n, cached=True),
        lambda layer: attention.rotated([layer], attention.interleaved),
    )
    bed.folder("position-off-by-one", "gpt2", "fp32", None, leaves("transformer.wpe", "transformer.drop:in"),
               wrong.weights_at("transformer.wpe", wrong.rows_rolled(pick(1, -1))))  # fmt: skip
    bed.capture("position-off-by-one", "llama", "bf16", None, of_rotary("llama", 1),
                lambda model: wrong.moved_positions(model.model.rotary_emb, pick(1, -1), decode_only=True), told="at decode steps")  # fmt: skip
    n = at("qwen2", "middle")
    bed.capture(
        "position-off-by-one",
        "qwen2",
        "fp32",
        n,
        core("qwen2", n),
        lambda layer: attention.rotated([layer], attention.query_one_on),
        told="of queries",
    )


def attentions(bed: Bed) -> None:
    pick, at = bed.pick, bed.layer
    bed.config(
        "attention-scale",
        "gemma2",
        "fp32",
        0,
        core("gemma2", 0),
        {"query_pre_attn_scalar": pick(64, 32)},
        every=True,
    )
    bed.config(
        "sliding-window",
        "gemma2",
        "fp32",
        0,
        of_mask("gemma2", 0),
        {"sliding_window": pick(6, 9)},
        every=True,
        question=bed.question._replace(steps=1),
    )
    padded = Question((16, 11), 2, pick(1, 2))
    swap = pick([1, 0, 2, 3], [3, 1, 2, 0])
    rows: list[tuple[str | tuple[str, ...], str, str, str, Any, Question | None]] = [
        # Who sees the next token sees later tokens: the word for a missing mask is as right there.
        ("attention-scale", "qwen2", "bf16", "middle", lambda layer: attention.scaled([layer], pick(4.0, 0.25)), None),
        ("attention-scale", "deepseek", "fp32", "last", lambda layer: attention.scaled([layer], pick(1.2247, 0.9)), None),
        ("mask-missing", "llama", "bf16", "first", lambda layer: attention.masked([layer], attention.no_mask), None),
        ("mask-missing", "deepseek", "fp16", "middle", lambda layer: attention.masked([layer], attention.no_mask), None),
        (("mask-wrong", "mask-missing"), "mixtral", "fp32", "last", lambda layer: attention.masked([layer], attention.sees_next), None),
        ("mask-padding", "gpt2", "bf16", "first", lambda layer: attention.masked([layer], attention.padding_seen), padded),
        ("mask-wrong", "qwen2", "fp16", "middle", lambda layer: attention.masked([layer], attention.blind_to_itself), None),
        ("sliding-window", "llama", "fp32", "middle", lambda layer: attention.masked([layer], attention.windowed(pick(6, 10))), None),
        ("sliding-window", "mixtral", "bf16", "first", lambda layer: attention.masked([layer], attention.windowed(pick(8, 5))), None),
        ("kv-head-mapping", "llama", "bf16", "last", lambda layer: attention.kv_heads_tiled([layer]), None),
        ("kv-head-mapping", "qwen2", "fp32", "first", lambda layer: attention.kv_heads_tiled([layer]), None),
        ("heads-permuted", "gpt2", "fp32", "middle", lambda layer: attention.heads_permuted([layer], swap), None),
        ("heads-permuted", "gemma2", "bf16", "last", lambda layer: attention.heads_permuted([layer], swap[::-1]), padded),
        ("softmax-precision", "llama", "fp32", "first", lambda layer: attention.softmax_in([layer], torch.bfloat16), None),
        ("softmax-precision", "deepseek", "fp32", "middle", lambda layer: attention.softmax_in([layer], torch.float16), None),
        ("mask-wrong", "llama", "fp32", "middle", lambda layer: attention.masked([layer], attention.too_weak), None),
        ("mask-wrong", "gpt2", "fp32", "first", lambda layer: attention.masked([layer], attention.other_side), padded),
        ("rope-share", "llama", "fp32", "last", lambda layer: attention.rotated([layer], attention.keys_alone), None),
        ("rope-share", "qwen2", "bf16", "first", lambda layer: attention.rotated([layer], attention.half_of_head), None),
    ]  # fmt: skip
    for cause, architecture, dtype, depth, patch, question in rows:
        n = at(architecture, depth)
        truth = core(architecture, n, cached=cause == "rope-share")
        bed.capture(cause, architecture, dtype, n, truth, patch, question=question)
    caps = {"attn_logit_softcapping": pick(None, 5.0)}
    bed.config("softcap", "gemma2", "fp32", 0, core("gemma2", 0), caps, every=True)
    bed.capture("position-counts-padding", "qwen2", "fp32", None, of_rotary("qwen2"),
                lambda model: wrong.positions_from_padding(model.model.rotary_emb), question=padded)  # fmt: skip


def caches(bed: Bed) -> None:
    pick, at = bed.pick, bed.layer
    long, two = bed.question._replace(steps=4), Question((16, 16), 4, pick(1, 2))
    rows: list[tuple[str, str, str, str, Any, Question]] = [
        ("kv-cache-dtype", "llama", "bf16", "middle", attention.in_float8, long),
        ("kv-cache-dtype", "qwen2", "fp32", "first", pick(attention.in_int8, attention.in_float8), long),
        ("kv-stale", "gemma2", "bf16", "last", attention.stale_last, long),
        ("kv-stale", "gpt2", "fp32", "middle", pick(attention.stale_new, attention.stale_last), long),
        ("kv-wrong-page", "mixtral", "bf16", "first", attention.page_twice(4, pick(0, 2), 1), long),
        ("kv-wrong-page", "llama", "fp32", "last", attention.page_of_other_row(4, pick(1, 2)), two),
    ]
    for cause, architecture, dtype, depth, change, question in rows:
        n = at(architecture, depth)
        bed.capture(cause, architecture, dtype, n, core(architecture, n, 1, cached=True),
                    lambda layer, change=change: attention.cache_read([layer], change), question=question)  # fmt: skip


def chance(bed: Bed) -> None:
    pick, at = bed.pick, bed.layer
    n = at("gpt2", "last")
    path = f"{part('gpt2', n, 'attention')}.resid_dropout"
    bed.capture(
        "dropout-on",
        "gpt2",
        "bf16",
        n,
        leaves(path, f"{part('gpt2', n, 'attention')}:out"),
        lambda layer: wrong.dropping(layer.attn.resid_dropout, pick(0.1, 0.2)),
    )
    m = at("llama", "first")
    bed.capture(
        "dropout-on",
        "llama",
        "fp32",
        m,
        core("llama", m),
        lambda layer: attention.dropout_left_on([layer], pick(0.1, 0.05)),
    )
    x = at("mixtral", "middle")
    mlp = part("mixtral", x, "mlp")
    truth = leaves(mlp)._replace(
        right=(f"{mlp}.gate:in", f"{mlp}.experts:in"),
        also=(f"{mlp}.gate:*", f"{mlp}.experts:*", f"{mlp}:out"),
    )
    bed.capture("rng", "mixtral", "fp32", x, truth, lambda layer: wrong.jittered(layer.mlp, pick(0.1, 0.03)))


def parallel(bed: Bed) -> None:
    pick, at = bed.pick, bed.layer
    rows: list[tuple[str, str, str, str, str, Any]] = [
        ("partial-sum", "llama", "bf16", "middle", pick("output", "down"), ranks.not_summed),
        ("partial-sum", "gpt2", "fp32", "first", "down", ranks.not_summed),
        ("reduced-twice", "qwen2", "fp32", "last", "output", ranks.summed_twice),
        ("reduced-twice", "llama", "bf16", "first", pick("down", "output"), ranks.summed_twice),
        ("bias-per-rank", "gpt2", "bf16", "middle", pick("output", "down"), ranks.bias_on_each),
        ("shard-missing", "mixtral", "fp32", "first", "down", ranks.second_missing),
        ("shard-missing", "qwen2", "bf16", "middle", "output", ranks.second_missing),
        ("shard-order", "llama", "fp32", "last", pick("output", "down"), None),
        ("shard-order", "deepseek", "bf16", "middle", "output", None),
    ]
    for cause, architecture, dtype, depth, role, mistake in rows:
        n = at(architecture, depth)
        bed.ranks(cause, architecture, dtype, n, part(architecture, n, role), mistake=mistake)
