"""Faults of torch models in norms, mlps, weights, ends, the residual stream and precision."""

from __future__ import annotations

from typing import Any

import torch

from . import torch_faults as wrong
from .bed import (
    Bed,
    after_attention,
    after_mlp,
    embedded,
    last_norm,
    leaves,
    of_activation,
    of_head,
    of_norm,
    part,
)
from .models import layer_of
from .nouns import Sides


def plant(bed: Bed) -> None:
    for each in (norms, mlps, weights, biases, ends, streams, precision, others):
        each(bed)


def norms(bed: Bed) -> None:
    pick, at = bed.pick, bed.layer
    bed.config(
        "norm-epsilon",
        "llama",
        "fp32",
        0,
        of_norm("llama", 0, "before_attention"),
        {"rms_norm_eps": pick(1e-2, 1e-3)},
        every=True,
    )
    n = at("deepseek", "middle")
    path = f"{part('deepseek', n, 'attention')}.kv_a_layernorm"
    bed.capture(
        "norm-epsilon",
        "deepseek",
        "bf16",
        n,
        leaves(path),
        lambda layer: wrong.epsilon(layer.self_attn.kv_a_layernorm, pick(0.2, 0.5)),
    )
    n = at("gpt2", "first")
    bed.capture(
        "norm-epsilon",
        "gpt2",
        "fp16",
        n,
        of_norm("gpt2", n, "before_mlp"),
        lambda layer: wrong.epsilon(layer.ln_2, pick(0.1, 0.05)),
    )
    bed.folder(
        "norm-weight-missing",
        "gemma2",
        "bf16",
        None,
        last_norm("gemma2"),
        wrong.weights_at("model.norm", wrong.zeros),
    )
    n = at("mixtral", "last")
    role = pick("before_attention", "before_mlp")
    bed.folder(
        "norm-weight-missing",
        "mixtral",
        "fp32",
        n,
        of_norm("mixtral", n, role),
        wrong.weights_at(part("mixtral", n, role), wrong.ones),
    )
    n = at("gpt2", "middle")
    role = pick("before_mlp", "before_attention")
    bed.folder(
        "norm-bias-missing",
        "gpt2",
        "fp16",
        n,
        of_norm("gpt2", n, role),
        lambda model: wrong.bias(model.get_submodule(part("gpt2", n, role)), 0),
    )
    g = at("gemma2", "middle")
    bed.folder(
        "norm-plus-one",
        "gemma2",
        "fp32",
        g,
        of_norm("gemma2", g, "before_attention"),
        wrong.weights_at(part("gemma2", g, "before_attention"), lambda w: w - 1),
    )
    m = at("llama", "last")
    bed.folder(
        "norm-plus-one",
        "llama",
        "fp16",
        m,
        of_norm("llama", m, "before_mlp"),
        wrong.weights_at(part("llama", m, "before_mlp"), lambda w: w + 1),
    )
    m = at("llama", "first")
    bed.capture(
        "norm-kind",
        "llama",
        "bf16",
        m,
        of_norm("llama", m, "before_mlp"),
        lambda layer: wrong.as_layer_norm(layer.post_attention_layernorm),
    )
    m = at("gpt2", "last")
    bed.capture(
        "norm-kind",
        "gpt2",
        "fp32",
        m,
        of_norm("gpt2", m, "before_attention"),
        lambda layer: wrong.as_rms_norm(layer.ln_1),
    )
    g = at("gemma2", "first")
    bed.capture(
        "norm-kind",
        "gemma2",
        "fp16",
        g,
        of_norm("gemma2", g, "before_attention"),
        lambda layer: wrong.as_layer_norm(layer.input_layernorm),
    )


def mlps(bed: Bed) -> None:
    pick, at = bed.pick, bed.layer
    bed.config(
        "activation-function",
        "qwen2",
        "fp32",
        0,
        of_activation("qwen2", 0),
        {"hidden_act": pick("gelu", "quick_gelu")},
        every=True,
    )
    bed.config("activation-function", "gemma2", "bf16", 0, of_activation("gemma2", 0),
               {"hidden_activation": pick("silu", "relu"), "hidden_act": pick("silu", "relu")}, every=True)  # fmt: skip
    n = at("llama", "last")
    bed.capture("activation-function", "llama", "bf16", n, of_activation("llama", n),
                lambda layer: wrong.activation(layer.mlp.act_fn, pick(wrong.gelu, wrong.quick_gelu)))  # fmt: skip
    g = at("gpt2", "first")
    bed.capture("activation-function", "gpt2", "fp32", g, of_activation("gpt2", g), lambda layer: wrong.activation(layer.mlp.act, wrong.gelu),
                told="gelu by erf where it is by tanh")  # fmt: skip
    x = at("mixtral", "middle")
    bed.capture(
        "activation-function",
        "mixtral",
        "bf16",
        x,
        of_activation("mixtral", x),
        lambda layer: wrong.activation(layer.mlp.experts.act_fn, wrong.gelu),
    )
    for architecture, dtype, depth in (("llama", "bf16", "middle"), ("deepseek", "fp16", "last")):
        m = at(architecture, depth)
        gate, up = part(architecture, m, "gate"), part(architecture, m, "up")
        truth = leaves(gate)._replace(right=(f"{gate}:out", f"{up}:out"))
        bed.folder("gate-up-swapped", architecture, dtype, m, truth,
                   lambda model, one=gate, other=up: wrong.swapped(model.get_submodule(one), model.get_submodule(other)))  # fmt: skip
    m = at("mixtral", "first")
    path = part("mixtral", m, "up")
    bed.folder(
        "gate-up-swapped",
        "mixtral",
        "fp32",
        m,
        leaves(path, f"{part('mixtral', m, 'mlp')}:out", f"{path}.*"),
        lambda model: wrong.experts_swapped(model.get_submodule(path)),
    )


def weights(bed: Bed) -> None:
    at, pick = bed.layer, bed.pick
    rows = [  # cause, architecture, type, depth, role, change
        ("weight-transposed", "llama", "fp32", "first", pick("output", "query"), wrong.transposed),
        ("weight-transposed", "qwen2", "bf16", "last", pick("query", "output"), wrong.transposed),
        ("weight-transposed", "gpt2", "fp16", "middle", "output", wrong.transposed),
        ("shard-order", "qwen2", "fp16", "first", "output", wrong.halves_swapped(1)),
        ("shard-order", "llama", "bf16", "last", pick("gate", "value"), wrong.halves_swapped(0)),
        ("shard-order", "deepseek", "fp32", "middle", pick("down", "output"), wrong.halves_swapped(1)),
        ("shard-missing", "llama", "bf16", "middle", "down", wrong.part_missing(1, pick(1, 0), pick(2, 4))),
        ("shard-missing", "gemma2", "fp32", "last", "output", wrong.part_missing(1, 0, pick(4, 2))),
        ("heads-permuted", "deepseek", "bf16", "first", "query", wrong.heads_of_rows(4, pick([1, 0, 2, 3], [0, 2, 3, 1]))),
    ]  # fmt: skip
    for cause, architecture, dtype, depth, role, change in rows:
        n = at(architecture, depth)
        path = part(architecture, n, role)
        # Halves of a module of two heads exchanged are two heads exchanged: either word is right.
        two_heads = cause == "shard-order" and role == "value"
        causes = (
            (cause, "shard-order") if cause == "heads-permuted" else (cause, "heads-permuted") if two_heads else cause
        )
        bed.folder(causes, architecture, dtype, n, leaves(path), wrong.weights_at(path, change), told=role)


def biases(bed: Bed) -> None:
    at, pick = bed.layer, bed.pick
    rows = [
        ("bias-missing", "qwen2", "bf16", "first", pick("key", "query"), 0.0),
        ("bias-missing", "qwen2", "fp32", "last", "value", 0.0),
        ("bias-missing", "gpt2", "fp32", "middle", pick("up", "query"), 0.0),
        ("bias-per-rank", "gpt2", "fp32", "first", pick("down", "output"), float(pick(2, 4))),
    ]
    for cause, architecture, dtype, depth, role, factor in rows:
        n = at(architecture, depth)
        path = part(architecture, n, role)
        truth = leaves(path, f"{path.rpartition('.')[0]}.dropout:*", f"{path.rpartition('.')[0]}.resid_dropout:*")
        bed.folder(
            cause,
            architecture,
            dtype,
            n,
            truth,
            lambda model, at=path, by=factor: wrong.bias(model.get_submodule(at), by),
            told=role,
        )


def ends(bed: Bed) -> None:
    """Embedding and head."""
    pick = bed.pick
    bed.folder(
        "embedding-scale",
        "llama",
        "bf16",
        None,
        embedded("llama"),
        wrong.weights_at("model.embed_tokens", lambda w: w * pick(8, 0.125)),
        told="times 8 or 1/8",
    )
    bed.capture(
        "embedding-scale",
        "gemma2",
        "bf16",
        None,
        embedded("gemma2"),
        lambda model: wrong.embedding_scaled(model.model.embed_tokens, pick(0.125, 1 / 64)),
    )

    def untied(model: Any) -> None:
        model.config.tie_word_embeddings = False
        generator = torch.Generator().manual_seed(3)
        old = model.lm_head.weight.data
        model.lm_head.weight = torch.nn.Parameter(torch.randn(old.shape, generator=generator) * old.std())

    for architecture, dtype in (("qwen2", "fp32"), ("gpt2", "bf16")):
        bed.folder("head-not-tied", architecture, dtype, None, of_head(), untied)
    bed.folder(
        "vocabulary-offset",
        "llama",
        "fp16",
        None,
        embedded("llama"),
        wrong.weights_at("model.embed_tokens", wrong.rows_rolled(pick(1, -1))),
    )
    bed.folder(
        "vocabulary-offset",
        "deepseek",
        "bf16",
        None,
        of_head(),
        wrong.weights_at("lm_head", wrong.rows_rolled(pick(-1, 3))),
    )


def streams(bed: Bed) -> None:
    rows = [
        ("residual-skipped", "llama", "bf16", "middle", {"attention": 0.0}),
        ("residual-skipped", "gemma2", "fp32", "first", {"mlp": 0.0}),
        ("residual-doubled", "qwen2", "bf16", "last", {"mlp": 2.0}),
        ("residual-doubled", "mixtral", "fp16", "middle", {"attention": 2.0}),
        ("residual-doubled", "deepseek", "fp32", "first", {"mlp": 2.0}),
    ]
    for cause, architecture, dtype, depth, how in rows:
        n = bed.layer(architecture, depth)
        truth = (after_attention if "attention" in how else after_mlp)(architecture, n)
        bed.capture(
            cause,
            architecture,
            dtype,
            n,
            truth,
            lambda layer, how=how: wrong.residual(layer, **how),
            told=str(how),
        )


def precision(bed: Bed) -> None:
    pick, at = bed.pick, bed.layer
    n = at("llama", "middle")
    down = part("llama", n, "down")
    inside = leaves(down)._replace(
        right=(f"{down}:in",),
        also=(f"{down}:out", f"{part('llama', n, 'mlp')}:out", f"{part('llama', n, 'up')}:out"),
    )
    bed.same_folder(
        "fp16-overflow",
        "llama",
        "fp16",
        n,
        inside,
        lambda model: wrong.huge_inside(layer_of(model, n), pick(4e4, 1e5)),
    )
    m = at("gemma2", "last")
    tiny = part("gemma2", m, "down")
    truth = leaves(tiny)._replace(right=(f"{tiny}:in",), also=(f"{tiny}:out", f"{part('gemma2', m, 'mlp')}:out"))
    bed.same_folder(
        "underflow",
        "gemma2",
        "fp16",
        m,
        truth,
        lambda model: wrong.tiny_inside(layer_of(model, m), pick(5e-4, 7e-4)),
    )
    for architecture, dtype, depth, limit in (
        ("llama", "bf16", "last", pick(1.0, 1.5)),
        ("gemma2", "fp16", "middle", pick(1.0, 0.7)),
    ):
        k = at(architecture, depth)
        bed.capture("saturation", architecture, dtype, k, leaves(part(architecture, k, "down")),
                    lambda layer, limit=limit: wrong.clipped(layer.mlp.down_proj, limit), told=f"cut off at {limit}")  # fmt: skip
    for architecture, dtype, depth, small, block in (
        ("qwen2", "fp32", "middle", torch.bfloat16, 16), ("llama", "bf16", "first", torch.bfloat16, pick(2, 1)), ("deepseek", "fp16", "last", torch.float16, 1),
    ):  # fmt: skip
        k = at(architecture, depth)
        bed.capture("low-precision-accumulation", architecture, dtype, k, leaves(part(architecture, k, "down")),
                    lambda layer, small=small, block=block: wrong.accumulated(layer.mlp.down_proj, small, block))  # fmt: skip
    _backend(bed)


def others(bed: Bed) -> None:
    """Weights of the wrong place, and experts."""
    pick, at = bed.pick, bed.layer
    n = at("mixtral", "middle")
    mlp, experts = part("mixtral", n, "mlp"), part("mixtral", n, "up")
    order = pick([1, 0, 2, 3], [3, 1, 2, 0])
    bed.folder("expert-order", "mixtral", "fp32", n, leaves(experts, f"{mlp}:out", f"{experts}.*"),
               lambda model: wrong.experts_moved(model.get_submodule(experts), order))  # fmt: skip
    first = part("mixtral", 0, "mlp")
    routed = leaves(first)._replace(also=(f"{first}.gate:out*", f"{first}.experts:*", f"{first}:out"))
    bed.config("expert-routing", "mixtral", "fp32", 0, routed, {"num_experts_per_tok": pick(1, 3)}, every=True)
    for architecture, dtype, depth, role in (
        ("qwen2", "bf16", "last", "up"),
        ("llama", "fp32", "first", "value"),
    ):
        k = at(architecture, depth)
        path, other = part(architecture, k, role), part(architecture, 1 if k != 1 else 2, role)
        bed.folder("weights-of-another", architecture, dtype, k, leaves(path),
                   lambda model, path=path, other=other: wrong.weights_of(model.get_submodule(path), model.get_submodule(other)))  # fmt: skip
    q = at("qwen2", "middle")
    key, value = part("qwen2", q, "key"), part("qwen2", q, "value")
    bed.folder("bias-of-another", "qwen2", "fp32", q, leaves(key),
               lambda model: wrong.bias_of(model.get_submodule(key), model.get_submodule(value)))  # fmt: skip
    m = at("llama", "middle")
    down = part("llama", m, "down")
    bed.folder(
        "other-checkpoint",
        "llama",
        "fp32",
        m,
        leaves(down),
        wrong.weights_at(down, wrong.noisy_weight(pick(0.2, 0.1))),
    )


def _backend(bed: Bed) -> None:
    """Int8 as x86 without VNNI computes it, against int8 as it should be; both are captures, as no such machine is at hand."""
    n = bed.layer("llama", "middle")
    paths = [part("llama", number, role) for number in range(6) for role in ("gate", "up", "down")]
    path = part("llama", n, bed.pick("up", "gate"))

    def model(shop: Any, *, saturate: bool) -> Any:
        loaded = shop.loaded(shop.healthy("llama"))
        for each in paths:
            wrong.saturating_int8(loaded.get_submodule(each), saturate=saturate and each == path)
        return loaded

    def make(shop: Any, name: str) -> Any:
        forced = shop.tokens(shop.healthy("llama"), bed.question)
        good = shop.captured(f"{bed.variant}-int8-exact", lambda: model(shop, saturate=False), bed.question, forced)
        return Sides(str(good), str(shop.captured(name, lambda: model(shop, saturate=True), bed.question, forced)))

    bed.add(
        "int8-backend-saturation",
        "llama",
        "int8",
        "torch",
        "capture",
        n,
        leaves(path),
        make,
        told="emulated: pairs of products cut off at 16 bits",
    )
