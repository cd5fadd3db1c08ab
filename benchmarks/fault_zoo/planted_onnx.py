"""Faults in exported graphs, on ONNX Runtime and as TensorRT's network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import onnx_faults as wrong
from . import quantised
from .bed import (
    Bed,
    after_attention,
    after_mlp,
    core,
    embedded,
    layer_path,
    leaves,
    of_activation,
    of_head,
    of_norm,
    of_rotary,
    part,
)  # fmt: skip  # isort: skip
from .nouns import SATURATES

if TYPE_CHECKING:
    from collections.abc import Callable

ORT, TRT = "onnxruntime", "tensorrt"


def plant(bed: Bed) -> None:
    for each in (attentions, positions, norms, mlps, weights, ends, streams, chance, quantisation):
        each(bed)


def attentions(bed: Bed) -> None:
    pick, at = bed.pick, bed.layer
    rows: list[tuple[str, str, str, str, str, Callable[[Any, str], None]]] = [
        ("rope-interleaved", "llama", "fp32", ORT, "middle", lambda m, s: wrong.rotary_interleaved(m, s, 16)),
        ("rope-interleaved", "qwen2", "fp32", TRT, "last", lambda m, s: wrong.rotary_interleaved(m, s, 16)),
        ("attention-scale", "gpt2", "fp16", ORT, "first", lambda m, s: wrong.attention_scale(m, s, pick(4.0, 0.5))),
        ("attention-scale", "llama", "bf16", TRT, "middle", lambda m, s: wrong.attention_scale(m, s, pick(0.25, 4.0))),
        ("mask-missing", "qwen2", "fp32", TRT, "first", wrong.no_mask),
        ("mask-missing", "gemma2", "fp32", ORT, "middle", wrong.no_mask),
        ("kv-head-mapping", "llama", "fp16", ORT, "first", lambda m, s: wrong.kv_heads_tiled(m, s, 4, 2)),
        ("kv-head-mapping", "mixtral", "fp32", TRT, "last", lambda m, s: wrong.kv_heads_tiled(m, s, 4, 2)),
        ("heads-permuted", "gpt2", "fp32", TRT, "last", lambda m, s: wrong.heads_permuted(m, s, pick([2, 1, 0, 3], [0, 1, 3, 2]))),
        ("heads-permuted", "mixtral", "fp32", ORT, "middle", lambda m, s: wrong.heads_permuted(m, s, pick([1, 2, 3, 0], [1, 0, 2, 3]))),
        ("softmax-precision", "gpt2", "fp32", TRT, "middle", wrong.softmax_in_half),
        ("softmax-precision", "llama", "fp32", TRT, "last", wrong.softmax_in_half),
    ]  # fmt: skip
    for cause, architecture, dtype, engine, depth, change in rows:
        n = at(architecture, depth)
        scope = part(architecture, n, "attention")
        truth = core(architecture, n, cached=cause.startswith("rope"))
        bed.onnx(
            cause,
            architecture,
            dtype,
            engine,
            n,
            truth,
            lambda model, change=change, scope=scope: change(model, scope),
        )


def positions(bed: Bed) -> None:
    pick = bed.pick
    base = pick(5e5, 1e3)
    exponents = np.arange(0, 16, 2) / 16

    def rebased(old: Any) -> Any:
        return (base**-exponents).reshape(old.shape)

    bed.onnx(
        "rope-base",
        "llama",
        "fp32",
        TRT,
        None,
        of_rotary("llama"),
        lambda m: wrong.rotary_frequencies(m, "model.rotary_emb", rebased),
        every=True,
    )
    bed.onnx("rope-scaling", "qwen2", "fp16", ORT, None, of_rotary("qwen2"),
             lambda m: wrong.rotary_frequencies(m, "model.rotary_emb", lambda old: old / pick(2.0, 4.0)), every=True)  # fmt: skip
    bed.onnx("rope-scaling", "mixtral", "fp32", ORT, None, of_rotary("mixtral"),
             lambda m: wrong.rotary_frequencies(m, "model.rotary_emb", lambda old: old / pick(4.0, 8.0)), every=True)  # fmt: skip
    wpe = leaves("transformer.wpe", "transformer.drop:in", "transformer.wpe:in", "position_ids*")
    bed.onnx(
        "position-off-by-one",
        "gpt2",
        "fp16",
        ORT,
        None,
        wpe,
        lambda m: wrong.positions_moved(m, "position_ids", 1),
    )


def norms(bed: Bed) -> None:
    pick, at = bed.pick, bed.layer
    rows: list[tuple[str, str, str, str, str, str, Callable[[Any, str], None]]] = [
        ("norm-epsilon", "gpt2", "fp32", ORT, "middle", "before_attention", lambda m, s: wrong.epsilon(m, s, pick(1e-2, 1e-3))),
        ("norm-epsilon", "qwen2", "fp32", TRT, "first", "before_mlp", lambda m, s: wrong.epsilon(m, s, pick(1e-3, 1e-2))),
        ("norm-weight-missing", "deepseek", "fp32", ORT, "middle", "before_mlp", lambda m, s: wrong.norm_weight(m, s, np.ones_like)),
        ("norm-weight-missing", "llama", "fp16", ORT, "last", "before_attention", lambda m, s: wrong.norm_weight(m, s, np.ones_like)),
        ("norm-bias-missing", "gpt2", "fp32", TRT, "last", "before_mlp", wrong.norm_bias),
        ("norm-kind", "gpt2", "fp32", ORT, "first", "before_mlp", wrong.no_mean_taken),
        ("norm-kind", "llama", "fp32", TRT, "middle", "before_attention", wrong.mean_taken),
        ("norm-plus-one", "gemma2", "fp32", ORT, "last", "before_mlp", lambda m, s: wrong.norm_weight(m, s, lambda w: w - 1)),
        ("norm-plus-one", "mixtral", "fp32", TRT, "first", "before_attention", lambda m, s: wrong.norm_weight(m, s, lambda w: w + 1)),
    ]  # fmt: skip
    for cause, architecture, dtype, engine, depth, role, change in rows:
        n = at(architecture, depth)
        scope = part(architecture, n, role)
        bed.onnx(
            cause,
            architecture,
            dtype,
            engine,
            n,
            of_norm(architecture, n, role),
            lambda model, change=change, scope=scope: change(model, scope),
        )


def mlps(bed: Bed) -> None:
    pick, at = bed.pick, bed.layer
    rows: list[tuple[str, str, str, str, Callable[[Any, str], None]]] = [
        ("gpt2", "fp32", ORT, "last", lambda m, s: wrong.other_activation(m, s, "Gelu")),
        ("llama", "bf16", TRT, "first", wrong.quick_gelu),
        ("deepseek", "fp32", ORT, "middle", lambda m, s: wrong.other_activation(m, s, pick("Relu", "Gelu"))),
        ("gemma2", "fp32", TRT, "last", lambda m, s: wrong.other_activation(m, s, "Relu")),
    ]
    for architecture, dtype, engine, depth, change in rows:
        n = at(architecture, depth)
        truth = of_activation(architecture, n)
        bed.onnx(
            "activation-function",
            architecture,
            dtype,
            engine,
            n,
            truth,
            lambda model, change=change, scope=truth.module: change(model, scope),
        )
    for architecture, dtype, engine, depth in (
        ("qwen2", "fp16", ORT, "middle"),
        ("gemma2", "fp32", TRT, "first"),
    ):
        n = at(architecture, depth)
        gate, up = part(architecture, n, "gate"), part(architecture, n, "up")
        truth = leaves(gate)._replace(right=(f"{gate}:out", f"{up}:out"))
        bed.onnx(
            "gate-up-swapped",
            architecture,
            dtype,
            engine,
            n,
            truth,
            lambda model, one=gate, two=up: wrong.swapped(model, one, two),
        )


def _rolled(axis: int) -> Callable[[Any], Any]:
    return lambda weight: np.roll(weight, weight.shape[axis] // 2, axis)


def _without(axis: int, part_: int, parts: int) -> Callable[[Any], Any]:
    def change(weight: Any) -> Any:
        size = weight.shape[axis] // parts
        index: list[Any] = [slice(None)] * weight.ndim
        index[axis] = slice(part_ * size, (part_ + 1) * size)
        weight[tuple(index)] = 0
        return weight

    return change


def weights(bed: Bed) -> None:
    pick, at = bed.pick, bed.layer
    rows: list[tuple[str, str, str, str, str, str, Callable[[Any], Any]]] = [
        ("weight-transposed", "gpt2", "fp32", TRT, "first", "output", np.transpose),
        ("weight-transposed", "llama", "fp16", ORT, "last", pick("query", "output"), np.transpose),
        ("shard-order", "gemma2", "fp32", ORT, "middle", pick("up", "value"), _rolled(0)),
        ("shard-order", "qwen2", "fp32", TRT, "first", pick("down", "output"), _rolled(1)),
        ("shard-missing", "deepseek", "fp32", TRT, "last", "output", _without(1, pick(1, 3), 4)),
        ("shard-missing", "gpt2", "fp16", ORT, "first", "down", _without(1, pick(0, 1), 2)),
    ]  # fmt: skip
    for cause, architecture, dtype, engine, depth, role, change in rows:
        n = at(architecture, depth)
        path = part(architecture, n, role)
        two_heads = cause == "shard-order" and role == "value"  # of which there are two: either word is right
        bed.onnx(
            (cause, "heads-permuted") if two_heads else cause,
            architecture,
            dtype,
            engine,
            n,
            leaves(path),
            lambda model, path=path, change=change: wrong.linear(model, path, change),
            told=role,
        )
    for cause, architecture, dtype, engine, depth, role, factor in (
        ("bias-missing", "qwen2", "fp16", ORT, "last", pick("query", "key"), 0.0),
        ("bias-missing", "gpt2", "fp32", TRT, "middle", "down", 0.0),
        ("bias-per-rank", "gpt2", "fp32", ORT, "last", "output", 2.0),
    ):
        n = at(architecture, depth)
        path = part(architecture, n, role)
        truth = leaves(path, f"{path.rpartition('.')[0]}.dropout:*", f"{path.rpartition('.')[0]}.resid_dropout:*")
        bed.onnx(
            cause,
            architecture,
            dtype,
            engine,
            n,
            truth,
            lambda model, path=path, by=factor: wrong.linear_bias(model, path, by),
            told=role,
        )


def ends(bed: Bed) -> None:
    pick = bed.pick
    bed.onnx(
        "embedding-scale",
        "gemma2",
        "fp32",
        ORT,
        None,
        embedded("gemma2"),
        lambda m: wrong.embedding_scaled(m, "model.embed_tokens", pick(0.125, 8.0)),
    )
    bed.onnx(
        "vocabulary-offset",
        "gpt2",
        "fp32",
        ORT,
        None,
        of_head(),
        lambda m: wrong.linear(m, "lm_head", lambda w: np.roll(w, pick(1, -2), 0)),
    )
    bed.onnx(
        "vocabulary-offset",
        "llama",
        "fp32",
        TRT,
        None,
        embedded("llama"),
        lambda m: wrong.linear_rows(m, "model.embed_tokens", pick(1, 2)),
    )
    noise = np.random.default_rng(bed.variant)
    bed.onnx(
        "head-not-tied",
        "qwen2",
        "fp32",
        TRT,
        None,
        of_head(),
        lambda m: wrong.linear(m, "lm_head", lambda w: noise.standard_normal(w.shape) * w.std()),
    )


def streams(bed: Bed) -> None:
    rows = [
        ("residual-skipped", "gpt2", "fp32", ORT, "middle", 0, False),
        ("residual-skipped", "mixtral", "fp32", TRT, "last", 1, False),
        ("residual-doubled", "llama", "fp16", ORT, "first", 1, True),
        ("residual-doubled", "deepseek", "fp32", ORT, "last", 0, True),
        ("residual-doubled", "gemma2", "fp32", TRT, "middle", 0, True),
    ]
    for cause, architecture, dtype, engine, depth, which, doubled in rows:
        n = bed.layer(architecture, depth)
        truth = (after_attention, after_mlp)[which](architecture, n)
        layer = layer_path(architecture, n)
        bed.onnx(cause, architecture, dtype, engine, n, truth,
                 lambda model, layer=layer, which=which, doubled=doubled: wrong.residual(model, layer, which, doubled=doubled))  # fmt: skip


def chance(bed: Bed) -> None:
    pick, at = bed.pick, bed.layer
    n = at("gpt2", "middle")
    path = part("gpt2", n, "down")
    bed.onnx("dropout-on", "gpt2", "fp32", ORT, n, leaves(path, f"{part('gpt2', n, 'mlp')}:out", f"{part('gpt2', n, 'mlp')}.dropout:*"),
             lambda m: wrong.dropping(m, path, pick(0.1, 0.3)))  # fmt: skip
    k = at("llama", "last")
    up = part("llama", k, "up")
    bed.onnx(
        "rng",
        "llama",
        "fp32",
        ORT,
        k,
        leaves(up, f"{part('llama', k, 'down')}:in"),
        lambda m: wrong.noisy(m, up, pick(0.05, 0.02)),
    )
    k2 = at("qwen2", "first")
    down = part("qwen2", k2, "down")
    bed.onnx(
        "saturation",
        "qwen2",
        "fp32",
        ORT,
        k2,
        leaves(down, f"{down}:in"),
        lambda m: wrong.clipped(m, down, pick(1.0, 0.6)),
    )


RANGE = 16.0  # what activations are quantised for: beyond the largest there is


def quantisation(bed: Bed) -> None:
    pick, at = bed.pick, bed.layer

    def whole(shop: Any, architecture: str) -> str:
        path = shop.operated(f"{architecture}-int8", shop.onnx(architecture), quantised.weights_in_int8)
        return f"onnx:{path}"

    n = at("llama", "middle")
    up = part("llama", n, pick("up", "value"))
    bed.onnx(
        "quant-scale",
        "llama",
        "int8",
        ORT,
        n,
        leaves(up),
        lambda m: quantised.weights_in_int8(m, scale={up: pick(1.25, 0.5)}),
    )
    g = at("gpt2", "last")
    fc = part("gpt2", g, "up")
    bed.onnx("quant-scale", "gpt2", "int8", TRT, g, leaves(fc), lambda m: quantised.weights_in_int8(m, scale={fc: pick(2.0, 0.8)}),
             reference=lambda shop: whole(shop, "gpt2"))  # fmt: skip
    q = at("qwen2", "first")
    qup, qdown = part("qwen2", q, "up"), part("qwen2", q, "down")

    def outlier(shop: Any) -> Any:
        return shop.operated(
            f"{bed.variant}-qwen2-outlier",
            shop.onnx("qwen2"),
            lambda m: quantised.one_channel_large(m, qup, qdown, 7, pick(20.0, 30.0)),
        )

    def int8_outlier(shop: Any) -> str:
        name = f"{bed.variant}-qwen2-outlier-int8"
        return f"onnx:{shop.operated(name, outlier(shop), quantised.weights_in_int8)}"

    bed.onnx("quant-granularity", "qwen2", "int8", ORT, q, leaves(qup), lambda m: quantised.weights_in_int8(m, per_tensor=(qup,)),
             base=outlier, reference=pick(lambda shop: f"onnx:{outlier(shop)}", int8_outlier))  # fmt: skip
    e = at("gemma2", "middle")
    down = part("gemma2", e, pick("down", "gate"))
    bed.onnx(
        "quant-zero-point",
        "gemma2",
        "int8",
        ORT,
        e,
        leaves(down),
        lambda m: quantised.weights_in_int8(m, zero_point={down: pick(8, -5)}),
    )
    d = at("deepseek", "last")
    out = part("deepseek", d, "output")
    bed.onnx(
        "quant-zero-point",
        "deepseek",
        "int8",
        ORT,
        d,
        leaves(out),
        lambda m: quantised.weights_in_int8(m, zero_point={out: pick(-4, 6)}),
    )
    k = at("gpt2", "first")
    c_fc = part("gpt2", k, "up")
    paths = [part("gpt2", number, "up") for number in range(4)]

    def clipped(m: Any) -> None:
        quantised.weights_in_int8(m)
        quantised.activations_in_int8(m, dict.fromkeys(paths, RANGE), scale={c_fc: pick(0.1, 0.06)})

    bed.onnx(
        ("saturation", "quant-scale"),
        "gpt2",
        "int8",
        ORT,
        k,
        leaves(c_fc, f"{c_fc}:in"),
        clipped,
        told="range of an activation too small",
    )
    o = at("llama", "last")
    whole_path = part("llama", o, pick("down", "up"))
    bed.onnx(
        "int8-backend-saturation", "llama", "int8", ORT, o, leaves(whole_path),
        lambda m: quantised.computed_in_int8(m, whole_path), needs=SATURATES, told="by this processor",
    )  # fmt: skip
