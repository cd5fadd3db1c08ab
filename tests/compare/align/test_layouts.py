"""Layouts that differ are recovered and the values agree afterwards; a mistake in a layout is never aligned away."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.captures import Text, agree, compared, vectors, write
from trtdx.compare.align.align import align_sides
from trtdx.compare.align.layouts import changed_shape, parse_change
from trtdx.compare.align.pair_rows import TokenPosition, row_tokens
from trtdx.errors import InputError

HF, LLM = "model.layers.0.", "transformer.layers.0."
Q, K, V = (f"{HF}self_attn.{part}_proj:out" for part in "qkv")
GATE, UP = (f"{HF}mlp.{part}_proj:out" for part in ("gate", "up"))
lengths = st.lists(st.integers(1, 6), min_size=1, max_size=4)


def two(ours, theirs, architectures=("", "")):
    """Return both sides; the folder goes away, what is mapped of it stays."""
    with tempfile.TemporaryDirectory(prefix="align") as folder:
        return tuple(
            write(Path(folder) / name, steps, architecture=architecture)
            for name, steps, architecture in zip("ab", (ours, theirs), architectures, strict=True)
        )


def layout(step, name, form, heads):
    """Return a step with one tensor [.., heads * size] in another layout."""
    array = step[name]
    split = array.reshape(*array.shape[:-1], heads, -1)
    turned = {
        "whole": array,
        "tokens first": split,
        "heads first": np.moveaxis(split, -2, -3),
        "flat": array.reshape(-1, array.shape[-1]),
    }[form]
    return {**step, name: np.ascontiguousarray(turned)}


@pytest.mark.heavy
@settings(max_examples=40)
@given(
    lengths=lengths,
    heads=st.integers(1, 5),
    size=st.integers(1, 4),
    ours=st.sampled_from(["whole", "tokens first", "heads first", "flat"]),
    theirs=st.sampled_from(["whole", "tokens first", "heads first"]),
    packed=st.booleans(),
    side=st.sampled_from(["left", "right"]),
)
def test_any_layout_of_the_same_tokens_is_recovered(lengths, heads, size, ours, theirs, packed, side):
    name, text = f"{HF}self_attn.o_proj:in", Text(*lengths)
    one = layout(text.padded({name: heads * size}), name, ours, heads)
    other = text.packed({name: heads * size}) if packed else text.padded({name: heads * size}, side=side)
    other = layout(other, name, theirs, heads)
    # A second step of other lengths, so that as many heads as tokens in one step leave no doubt.
    more = Text(*(length + 7 for length in lengths), seed=1)
    reference, candidate = two(
        [one, layout(more.padded({name: heads * size}), name, ours, heads)],
        [other, layout((more.packed if packed else more.padded)({name: heads * size}), name, theirs, heads)],
    )
    # Both texts begin anew, so tokens are told apart by step only: compare the first.
    found = align_sides(reference, candidate)
    pair = next(pair for pair in found.pairs if pair.name == name and pair.step == 0)
    first, second = compared(pair, reference, candidate)
    wanted = np.concatenate([vectors(name, row, range(length), heads * size) for row, length in enumerate(lengths)])
    assert (first == second).all()
    assert len(first) == sum(lengths)
    for token, row in zip(row_tokens(pair), first, strict=True):
        at = sum(lengths[: token.sequence]) + token.position
        assert (row == wanted[at]).all()


@settings(max_examples=30)
@given(lengths=lengths, told=st.booleans(), turned=st.booleans())
def test_packed_tokens_are_padded_ones(lengths, told, turned):
    text, name = Text(*lengths), "model.norm:out"
    packed = text.packed({name: 5}, lengths=told)
    if not told:
        packed["position_ids"] = np.concatenate([np.arange(length) for length in lengths])
    steps = [[text.padded({name: 5}, garbage=np.nan)], [packed]]
    reference, candidate = two(*(steps[::-1] if turned else steps))
    pair = agree(align_sides(reference, candidate), reference, candidate, [name])[name]
    assert len(pair.tokens) == sum(lengths)


def test_padding_that_was_taken_out_although_the_ids_have_it():
    text, name = Text(5, 2), "model.norm:out"
    step = text.padded({name: 4})
    real = {**step, name: step[name][step["attention_mask"] != 0]}
    reference, candidate = two([step], [real])
    pair = agree(align_sides(reference, candidate), reference, candidate, [name])[name]
    assert len(pair.tokens) == 7


def fused_step(text, heads, groups, size, order, name):
    """Return a step with queries, keys and values in one tensor, in an order that frameworks use."""
    q, k, v = (text.packed({each: count * size})[each] for each, count in ((Q, heads), (K, groups), (V, groups)))
    if order == "blocks":
        fused = np.concatenate([q, k, v], 1)
    else:
        parts = (each.reshape(len(q), groups, -1) for each in (q, k, v))
        fused = np.concatenate(list(parts), 2).reshape(len(q), -1)
    return {**text.packed({}), name: fused}


def apart_step(text, heads, groups, size, cache=True):
    step = text.padded({Q: heads * size, K: groups * size, V: groups * size})
    if cache:
        keys = step[K].reshape(*step[K].shape[:2], groups, size)
        step["present.0.key:new"] = np.ascontiguousarray(keys.transpose(0, 2, 1, 3))
    return step


FUSED = [
    ("blocks", f"{LLM}attention.qkv:out", ""),
    ("blocks", "model.layers.0.self_attn.qkv_proj:out", "Phi3ForCausalLM"),
    ("blocks", "transformer.h.0.attn.c_attn:out", "GPT2LMHeadModel"),
    ("blocks", "transformer.encoder.layers.0.self_attention.query_key_value:out", "ChatGLMModel"),
    ("groups", "gpt_neox.layers.0.attention.query_key_value:out", "GPTNeoXForCausalLM"),
    ("groups", "transformer.h.0.self_attention.query_key_value:out", "FalconForCausalLM"),
    ("groups", "decoder.layers.0.self_attention.linear_qkv:out", ""),
]


@settings(max_examples=40)
@given(
    lengths=lengths,
    kind=st.sampled_from(FUSED),
    groups=st.integers(1, 3),
    each=st.integers(1, 3),
    size=st.integers(2, 4),
    turned=st.booleans(),
)
def test_fused_queries_keys_and_values(lengths, kind, groups, each, size, turned):
    order, name, architecture = kind
    text, heads = Text(*lengths), groups * each
    steps = [[apart_step(text, heads, groups, size)], [fused_step(text, heads, groups, size, order, name)]]
    way = -1 if turned else 1
    reference, candidate = two(*steps[::way], ("", architecture)[::way])
    found = align_sides(reference, candidate)
    names = [f"{name} ({part})" for part in "qkv"] if turned else [Q, K, V]
    agree(found, reference, candidate, names)
    assert not found.notes


def test_a_fused_tensor_in_the_wrong_order_is_not_aligned_away():
    text, name = Text(6, 4), f"{LLM}attention.qkv:out"
    step = fused_step(text, 2, 2, 4, "blocks", name)
    step[name] = np.concatenate([step[name][:, 8:16], step[name][:, :8], step[name][:, 16:]], 1)  # k | q | v
    reference, candidate = two([apart_step(text, 2, 2, 4)], [step])
    found = align_sides(reference, candidate)
    pairs = {pair.name: pair for pair in found.pairs}
    assert pairs[Q].candidate.changes[0].text == "part q of q:8 k:8 v:8"
    first, second = compared(pairs[Q], reference, candidate)
    assert np.abs(first - second).max() > 1
    assert "the values fit “part q of k:8 q:8 v:8” only" in pairs[Q].note
    assert any(Q in note for note in found.notes)
    agree(found, reference, candidate, [V])


def test_the_size_of_a_head_is_needed_for_an_order_by_heads():
    text, name = Text(5), "gpt_neox.layers.0.attention.query_key_value:out"
    step = fused_step(text, 2, 2, 4, "groups", name)
    reference, candidate = two([apart_step(text, 2, 2, 4, cache=False)], [step])
    reasons = {each.name: each.reason for each in align_sides(reference, candidate).unmatched}
    assert "the size of a head is not known" in reasons[Q]


@pytest.mark.parametrize(
    ("name", "parts"), [(f"{HF}mlp.gate_up_proj:out", (GATE, UP)), (f"{LLM}mlp.fused_fc:out", (UP, GATE))]
)
def test_gate_and_up_together(name, parts):
    text = Text(3, 5)
    packed = text.packed({GATE: 6, UP: 6})
    bare = {key: array for key, array in packed.items() if ":" not in key}
    right = {**bare, name: np.concatenate([packed[part] for part in parts], 1)}
    reference, candidate = two([text.padded({GATE: 6, UP: 6})], [right])
    agree(align_sides(reference, candidate), reference, candidate, [GATE, UP])

    swapped = {**bare, name: np.concatenate([packed[part] for part in parts[::-1]], 1)}
    reference, candidate = two([text.padded({GATE: 6, UP: 6})], [swapped])
    found = align_sides(reference, candidate)
    pair = next(pair for pair in found.pairs if pair.name == GATE)
    first, second = compared(pair, reference, candidate)
    assert np.abs(first - second).max() > 1
    assert "what names declare" in pair.note


@pytest.mark.parametrize("wrong", ["heads", "columns", "rows"])
def test_tensors_of_the_same_name_and_shape_are_compared_as_they_are(wrong):
    """Whatever is permuted in them is the mistake to be found."""
    text = Text(4, 4)
    ours = text.padded({Q: 8, K: 8})
    theirs = dict(ours)
    theirs[Q] = {
        "heads": ours[Q].reshape(2, 4, 2, 4)[:, :, ::-1].reshape(2, 4, 8),
        "columns": ours[Q][..., ::-1],
        "rows": ours[Q][::-1],
    }[wrong]
    reference, candidate = two([ours], [theirs])
    found = align_sides(reference, candidate)
    pair = next(pair for pair in found.pairs if pair.name == Q)
    assert not pair.candidate.changes
    first, second = compared(pair, reference, candidate)
    assert np.abs(first - second).max() > 0.1
    agree(found, reference, candidate, [K])


def test_gate_and_up_swapped_under_their_own_names_stay_swapped():
    text = Text(4)
    ours = text.padded({GATE: 6, UP: 6})
    reference, candidate = two([ours], [{**ours, GATE: ours[UP], UP: ours[GATE]}])
    assert {pair.name: pair.candidate.first.name for pair in align_sides(reference, candidate).pairs if ":" in pair.name} == {
        GATE: GATE, UP: UP,
    }  # fmt: skip


@pytest.mark.parametrize("turned", [False, True])
def test_a_padded_vocabulary(turned):
    text = Text(4, 2)
    step = text.padded({"lm_head:out": 10})
    padded = {
        **step,
        "lm_head:out": np.pad(step["lm_head:out"], ((0, 0), (0, 0), (0, 6)), constant_values=-1e9),
    }
    reference, candidate = two(*([[padded], [step]] if turned else [[step], [padded]]))
    pair = agree(align_sides(reference, candidate), reference, candidate, ["lm_head:out"])["lm_head:out"]
    assert (pair.reference if turned else pair.candidate).joined_changes[0].text == "columns 0:10"


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_logits_of_the_last_token_only(side, flat, turned):
    text = Text(4, 2, 3)
    step = text.padded({"lm_head:out": 10}, side=side)
    last = np.concatenate([vectors("lm_head:out", row, [length - 1], 10) for row, length in enumerate((4, 2, 3))])
    less = {**step, "lm_head:out": last if flat else last[:, None]}
    reference, candidate = two(*([[less], [step]] if turned else [[step], [less]]))
    pair = agree(align_sides(reference, candidate), reference, candidate, ["lm_head:out"])["lm_head:out"]
    assert row_tokens(pair) == [TokenPosition(0, 3), TokenPosition(1, 1), TokenPosition(2, 2)]


def test_transposed_weights_and_ones_in_shapes():
    rng = np.random.default_rng(0)
    weight, table = rng.standard_normal((6, 4)), rng.standard_normal((1, 8, 3))
    reference, candidate = two(
        [{"model.layers.0.mlp.up_proj.weight": weight, "x.table:out": table, "y.square.weight": weight[:4]}],
        [
            {
                "model.layers.0.mlp.up_proj.weight": weight.T,
                "x.table:out": table[0],
                "y.square.weight": weight[:4].T,
            }
        ],
    )
    found = align_sides(reference, candidate)
    agree(found, reference, candidate, ["model.layers.0.mlp.up_proj.weight", "x.table:out"])
    square = next(pair for pair in found.pairs if pair.name == "y.square.weight")
    assert not square.candidate.changes  # its shape tells nothing, so it is compared as it is


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("transpose 0 2 1 3", (2, 3, 4, 5), (2, 4, 3, 5)),
        ("unsqueeze 1", (2, 3), (2, 1, 3)),
        ("reshape 6 -1", (2, 3, 4), (6, 4)),
        ("expand 0 3", (1, 4), (3, 4)),
        ("columns 2:5", (2, 8), (2, 3)),
        ("part k of q:4 k:2 v:2", (3, 8), (3, 2)),
        ("part q of 2 x q:4 k:2 v:2", (3, 16), (3, 2, 4)),
        ("regroup 2 x q:4 k:2 v:2", (3, 16), (3, 16)),
        ("mask", (2, 3), (2, 3)),
    ],
)
def test_changes_are_texts(text, before, after):
    change = parse_change(text)
    assert change.text == text
    assert changed_shape(before, [change]) == after


@pytest.mark.parametrize("text", ["transpose 0 0", "turn 1", "part x of q:4", "columns 5:2", "reshape", "part q of q"])
def test_mistaken_changes_are_told(text):
    with pytest.raises(InputError):
        parse_change(text)


def test_a_change_that_cannot_be_done_is_told():
    with pytest.raises(InputError, match="cannot be done with a tensor of shape"):
        changed_shape((2, 3), [parse_change("transpose 0 2 1")])
