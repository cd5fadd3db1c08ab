"""Attention, rotary embedding, KV cache and experts, built with TensorRT's API, against torch."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

trt = pytest.importorskip("tensorrt_rtx", reason="networks are defined with TensorRT's own bindings")
torch = pytest.importorskip("torch", reason="heavy layers are computed with torch")

SOFTMAX, NONE = trt.AttentionNormalizationOp.SOFTMAX, trt.AttentionNormalizationOp.NONE
KINDS = {"float32": trt.float32, "float16": trt.float16}


def heads(rng, *shape, dtype="float32"):
    return rng.standard_normal(shape).astype(dtype)


def attention(net, query, key, value, **options):
    """Add an attention over network inputs q, k and v."""
    kind = KINDS[str(query.dtype)]
    q, k, v = (net.input(name, each.shape, kind) for name, each in zip("qkv", (query, key, value), strict=True))
    normalization = options.pop("normalization", SOFTMAX)
    if "causal_kind" in options:
        layer = net.add_attention_v2(q, k, v, normalization, options.pop("causal_kind"))
    else:
        layer = net.add_attention(q, k, v, normalization, options.pop("causal", False))
    for name, given in options.items():
        setattr(layer, name, given)
    net.out(layer.get_output(0))
    return layer


def by_torch(query, key, value, **options):
    q, k, v = (torch.from_numpy(each.astype(np.float32)) for each in (query, key, value))
    k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0, **options).numpy()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_attention_without_scale_and_with_shared_heads(net, rng, dtype, kv_heads):
    query = heads(rng, 2, 8, 5, 16, dtype=dtype)
    key, value = (heads(rng, 2, kv_heads, 7, 16, dtype=dtype) for _ in range(2))
    attention(net, query, key, value)
    found = net.run(q=query, k=key, v=value)["y"]
    assert found.dtype == dtype
    np.testing.assert_allclose(found, by_torch(query, key, value), atol=1e-6 if dtype == "float32" else 2e-3)


@pytest.mark.parametrize("kind", ["UPPER_LEFT", "LOWER_RIGHT"])
def test_causal_masks_are_anchored_at_either_corner(net, rng, kind):
    query, key, value = heads(rng, 1, 2, 3, 4), heads(rng, 1, 2, 6, 4), heads(rng, 1, 2, 6, 4)
    attention(net, query, key, value, causal_kind=getattr(trt.CausalMaskKind, kind))
    shift = 0 if kind == "UPPER_LEFT" else 3
    mask = torch.from_numpy(np.tril(np.ones((3, 6), bool), shift))
    expected = by_torch(query, key, value, attn_mask=mask)
    np.testing.assert_allclose(net.run(q=query, k=key, v=value)["y"], expected, atol=1e-6)


def test_the_older_way_to_ask_for_a_causal_mask(net, rng):
    query = heads(rng, 1, 2, 4, 4)
    attention(net, query, query, query, causal=True)
    found = net.run(q=query, k=query, v=query)["y"]
    np.testing.assert_allclose(found, by_torch(query, query, query, is_causal=True), atol=1e-6)


def test_a_mask_of_truths_allows_and_one_of_numbers_is_added(make_net, rng):
    query, key, value = heads(rng, 2, 2, 3, 4), heads(rng, 2, 2, 5, 4), heads(rng, 2, 2, 5, 4)
    allowed = rng.random((2, 1, 3, 5)) > 0.3
    allowed[..., 0] = True
    added = rng.standard_normal((1, 2, 3, 5)).astype(np.float32)
    for mask, kind in ((allowed, trt.bool), (added, trt.float32)):
        net = make_net()
        attention(net, query, key, value, mask=net.input("mask", mask.shape, kind), decomposable=True)
        expected = by_torch(query, key, value, attn_mask=torch.from_numpy(mask))
        np.testing.assert_allclose(net.run(q=query, k=key, v=value, mask=mask)["y"], expected, atol=1e-6)


def test_a_query_that_may_see_nothing_gets_zeros(net, rng):
    query = heads(rng, 1, 1, 2, 4)
    mask = np.array([[[[True, False], [False, False]]]])
    attention(net, query, query, query, mask=net.input("mask", mask.shape, trt.bool))
    found = net.run(q=query, k=query, v=query, mask=mask)["y"]
    np.testing.assert_allclose(found[0, 0], [query[0, 0, 0], np.zeros(4)], atol=1e-6)


def test_attention_without_normalisation(net, rng):
    query, key, value = (heads(rng, 1, 2, 3, 4) for _ in range(3))
    attention(net, query, key, value, normalization=NONE)
    found = net.run(q=query, k=key, v=value)["y"]
    np.testing.assert_allclose(found, query @ key.swapaxes(-1, -2) @ value, rtol=1e-5)


def test_attention_weights_can_be_quantised(net, rng):
    query, key, value = (heads(rng, 1, 2, 3, 16, dtype="float16") for _ in range(3))
    layer = attention(net, query, key, value)
    layer.normalization_quantize_scale = net.constant(np.float32(1 / 127))
    layer.normalization_quantize_to_type = trt.int8
    found = net.run(q=query, k=key, v=value)["y"].astype(np.float32)
    q, k, v = (torch.from_numpy(each.astype(np.float32)) for each in (query, key, value))
    weights = torch.round(torch.softmax(q @ k.mT, -1) * 127).clamp(-128, 127) / 127
    np.testing.assert_allclose(found, (weights @ v).numpy(), atol=2e-3)


def test_padded_keys_are_left_out_by_their_lengths(net, rng):
    query, key, value = heads(rng, 2, 2, 1, 4), heads(rng, 2, 2, 6, 4), heads(rng, 2, 2, 6, 4)
    lengths = np.array([6, 3], np.int32)
    attention(net, query, key, value, key_value_lengths=net.input("lengths", (2,), trt.int32))
    found = net.run(q=query, k=key, v=value, lengths=lengths)["y"]
    for each, length in enumerate(lengths):
        expected = by_torch(
            query[each : each + 1], key[each : each + 1, :, :length], value[each : each + 1, :, :length]
        )
        np.testing.assert_allclose(found[each : each + 1], expected, atol=1e-6)


def test_sequences_laid_end_to_end(net, rng):
    starts = np.array([0, 3, 4, 9], np.int32)
    query, key, value = (heads(rng, 9, 2, 4, dtype="float16") for _ in range(3))
    form = trt.AttentionIOForm.PACKED_NHD
    cumulative = net.input("starts", (4,), trt.int32)
    attention(
        net,
        query,
        key,
        value,
        query_form=form,
        key_value_form=form,
        query_lengths=cumulative,
        key_value_lengths=cumulative,
        causal_kind=trt.CausalMaskKind.LOWER_RIGHT,
    )
    found = net.run(q=query, k=key, v=value, starts=starts)["y"]
    for begin, end in itertools.pairwise(starts):
        one = [each[begin:end].swapaxes(0, 1)[None] for each in (query, key, value)]
        expected = by_torch(*one, is_causal=True)[0].swapaxes(0, 1)
        np.testing.assert_allclose(found[begin:end], expected, atol=2e-3)


def rotated(value, cosine, sine, interleaved):
    """Turn pairs as complex numbers."""
    first, second = (value[..., ::2], value[..., 1::2]) if interleaved else np.split(value, 2, -1)
    turned = (first + 1j * second) * (cosine + 1j * sine)
    if interleaved:
        return np.stack([turned.real, turned.imag], -1).reshape(value.shape)
    return np.concatenate([turned.real, turned.imag], -1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("by_position", [False, True])
def test_rotary_embedding(net, rng, interleaved, width, by_position):
    value = heads(rng, 2, 3, 5, 8)
    half = (width or 8) // 2
    positions = rng.integers(0, 16, (2, 5))
    table = rng.standard_normal((2, 16, half)).astype(np.float32)
    given = table if by_position else table[:, positions]
    cosine, sine = (net.input(name, given.shape[1:]) for name in ("cosine", "sine"))
    layer = net.add_rotary_embedding(net.input("x", value.shape), cosine, sine, interleaved, width)
    inputs = {"x": value, "cosine": given[0], "sine": given[1]}
    if by_position:
        layer.set_input(3, net.input("positions", (2, 5), trt.int64))
        inputs["positions"] = positions
    net.out(layer)
    turned = value[..., : width or 8]
    expected = rotated(turned, table[0][positions][:, None], table[1][positions][:, None], interleaved)
    expected = np.concatenate([expected, value[..., turned.shape[-1] :]], -1)
    np.testing.assert_allclose(net.run(**inputs)["y"], expected, rtol=1e-5, atol=1e-6)


def test_a_kv_cache_is_updated_where_told_and_the_callers_is_left_alone(net, rng):
    cache, update = heads(rng, 3, 2, 8, 4), heads(rng, 3, 2, 2, 4)
    where = np.array([0, 5, 7], np.int32)  # the last does not fit and is ignored, as TensorRT does
    layer = net.add_kv_cache_update(
        net.input("cache", cache.shape),
        net.input("update", update.shape),
        net.input("where", (3,), trt.int32),
        trt.KVCacheMode.LINEAR,
    )
    net.out(layer)
    before = cache.copy()
    expected = cache.copy()
    expected[0, :, 0:2], expected[1, :, 5:7] = update[0], update[1]
    np.testing.assert_array_equal(net.run(cache=cache, update=update, where=where)["y"], expected)
    np.testing.assert_array_equal(cache, before)


def test_a_decoder_layer_with_cache_against_torch(net, rng):
    """Rotary embedding, KV cache and attention together, a prefill and four decode steps."""
    batch, count, width, longest = 1, 2, 8, 16
    names = ("q", "k", "v")
    new = {name: net.input(name, (batch, count, -1, width)) for name in names}
    cosine, sine = (net.input(name, (longest, width // 2)) for name in ("cosine", "sine"))
    positions = net.input("positions", (batch, -1), trt.int64)
    where = net.input("where", (batch,), trt.int32)
    lengths = net.input("lengths", (batch,), trt.int32)
    turned = {}
    for name in ("q", "k"):
        layer = net.add_rotary_embedding(new[name], cosine, sine, False, 0)
        layer.set_input(3, positions)
        turned[name] = layer.get_output(0)
    caches = {}
    for name, update in (("k", turned["k"]), ("v", new["v"])):
        cache = net.input(f"cache_{name}", (batch, count, longest, width))
        caches[name] = net.add_kv_cache_update(cache, update, where, trt.KVCacheMode.LINEAR).get_output(0)
        net.out(caches[name], f"new_{name}")
    corner = trt.CausalMaskKind.LOWER_RIGHT  # of the part of the cache that is filled
    layer = net.add_attention_v2(turned["q"], caches["k"], caches["v"], SOFTMAX, corner)
    layer.key_value_lengths = lengths
    net.out(layer.get_output(0))
    ready = net.prepare()

    angle = np.outer(np.arange(longest), 0.5 ** np.arange(width // 2))
    table = {"cosine": np.cos(angle).astype(np.float32), "sine": np.sin(angle).astype(np.float32)}
    held = {f"cache_{name}": np.zeros((batch, count, longest, width), np.float32) for name in "kv"}
    past = {name: np.zeros((batch, count, 0, width), np.float32) for name in "kv"}
    done = 0
    for length in (3, 1, 1, 1, 1):
        given = {name: heads(rng, batch, count, length, width) for name in names}
        place = np.arange(done, done + length)[None]
        done += length
        sizes = {"where": np.array([done - length], np.int32), "lengths": np.array([done], np.int32)}
        found = ready({**given, **table, **held, **sizes, "positions": place})
        held = {f"cache_{name}": found[f"new_{name}"] for name in "kv"}
        q, k = (
            rotated(given[name], table["cosine"][place][:, None], table["sine"][place][:, None], False) for name in "qk"
        )
        past = {"k": np.concatenate([past["k"], k], 2), "v": np.concatenate([past["v"], given["v"]], 2)}
        mask = torch.from_numpy(np.tril(np.ones((length, done), bool), done - length))
        expected = by_torch(q, past["k"], past["v"], attn_mask=mask)
        np.testing.assert_allclose(found["y"], expected, atol=1e-5)


def experts(rng, count=4, hidden=8, inner=6):
    weights = [rng.standard_normal(shape).astype(np.float32) for shape in ((count, hidden, inner),) * 2]
    return [*weights, rng.standard_normal((count, inner, hidden)).astype(np.float32)]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("parameters", [None, (1.0, 1.7, 0.5)])
def test_a_mixture_of_experts(net, rng, biased, parameters):
    gate, up, down = experts(rng)
    hidden = rng.standard_normal((2, 3, 8)).astype(np.float32)
    chosen = rng.permuted(np.tile(np.arange(4), (2, 3, 1)), axis=-1)[..., :2].astype(np.int32)
    scores = rng.random((2, 3, 2)).astype(np.float32)
    layer = net.add_moe(
        net.input("x", hidden.shape),
        net.input("chosen", chosen.shape, trt.int32),
        net.input("scores", scores.shape),
    )
    layer.set_gated_weights(*(net.constant(each) for each in (gate, up, down)), trt.MoEActType.SILU)
    biases = [np.zeros((4, 6)), np.zeros((4, 6)), np.zeros((4, 8))]
    if biased:
        biases = [rng.standard_normal(each.shape).astype(np.float32) for each in biases]
        layer.set_gated_biases(*(net.constant(each) for each in biases))
    limit, alpha, beta = parameters or (np.inf, 1.0, 0.0)
    if parameters:
        layer.set_swiglu_params(limit, alpha, beta)
    net.out(layer)
    expected = np.zeros_like(hidden)
    for place in np.ndindex(2, 3):
        for expert, score in zip(chosen[place], scores[place], strict=True):
            left = np.minimum(hidden[place] @ gate[expert] + biases[0][expert], limit)
            right = np.clip(hidden[place] @ up[expert] + biases[1][expert], -limit, limit)
            inner = left / (1 + np.exp(-alpha * left)) * (right + beta)
            expected[place] += score * (inner @ down[expert] + biases[2][expert])
    found = net.run(x=hidden, chosen=chosen, scores=scores)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_experts_with_a_quantised_middle(net, rng):
    gate, up, down = experts(rng)
    hidden = rng.standard_normal((1, 2, 8)).astype(np.float32)
    chosen, scores = np.zeros((1, 2, 1), np.int32), np.ones((1, 2, 1), np.float32)
    layer = net.add_moe(
        net.input("x", hidden.shape),
        net.input("chosen", chosen.shape, trt.int32),
        net.input("scores", scores.shape),
    )
    layer.set_gated_weights(*(net.constant(each) for each in (gate, up, down)), trt.MoEActType.SILU)
    layer.set_quantization_static(net.constant(np.full(4, 0.05, np.float32)), trt.fp8)
    net.out(layer)
    left, right = hidden @ gate[0], hidden @ up[0]
    inner = (left / (1 + np.exp(-left)) * right / np.float32(0.05)).clip(-448, 448)
    inner = inner.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(0.05)
    found = net.run(x=hidden, chosen=chosen, scores=scores)["y"]
    np.testing.assert_allclose(found, inner @ down[0], rtol=1e-4, atol=1e-5)
