"""Tensors of several ranks are made one: side by side, added, or compared with each other; stages and pages too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.captures import Text, agree, compared, vectors, write, write_ranks
from trtdx.compare.align.align import align_sides
from trtdx.compare.align.mapping import parse_mapping
from trtdx.compare.align.pair_rows import row_tokens

HF, LLM = "model.layers.0.", "transformer.layers.0."
Q, K, V = (f"{HF}self_attn.{part}_proj:out" for part in "qkv")
OUT, DOWN = f"{HF}self_attn.o_proj:out", f"{HF}mlp.down_proj:out"


@pytest.fixture
def folders(tmp_path_factory):
    return lambda: tmp_path_factory.mktemp("shards")


def ranks_of(step, count, **how):
    """Return a step on several ranks: each tensor as "columns" tells, cut, added or copied."""
    found = []
    for rank in range(count):
        here = dict(step)
        for name, way in how.get("ways", {}).items():
            array = step[name]
            if way == "cut":
                here[name] = np.ascontiguousarray(np.split(array, count, -1)[rank])
            elif way == "sum":
                parts = np.random.default_rng(5).standard_normal((count, *array.shape)).astype(np.float32)
                parts[-1] = array - parts[:-1].sum(0)
                here[name] = parts[rank]
        found.append([here])
    return found


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.sampled_from([1, 2, 4]),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    width=st.integers(1, 3),
    packed=st.booleans(),
)
def test_shards_are_merged_as_their_layer_demands(folders, count, lengths, width, packed):
    text, folder = Text(*lengths), folders()
    widths = {Q: 4 * width, OUT: 4 * width, DOWN: 4 * width, "lm_head:out": 8, "model.norm:out": 4}
    ways = {Q: "cut", OUT: "sum", DOWN: "copy", "lm_head:out": "cut"}
    step = (text.packed if packed else text.padded)(widths)
    ours = write(folder / "a", [text.padded(widths)])
    theirs = write_ranks(folder / "b", ranks_of(step, count, ways=ways))
    found = align_sides(ours, theirs)
    pairs = agree(found, ours, theirs, widths)
    joins = {name: pairs[name].candidate.join for name in widths}
    some = {"": "", "cut": "concatenate -1", "sum": "sum"} if count > 1 else {}
    assert joins == {name: some.get(ways.get(name, ""), "") for name in widths}
    assert not found.notes


def test_shards_in_the_wrong_order_are_told_and_not_put_right(tmp_path):
    step = Text(5).padded({Q: 8, K: 8})
    ours = write(tmp_path / "a", [step])
    ranks = ranks_of(step, 2, ways={Q: "cut", K: "cut"})
    ranks[0][0][Q], ranks[1][0][Q] = ranks[1][0][Q], ranks[0][0][Q]
    theirs = write_ranks(tmp_path / "b", ranks)
    found = align_sides(ours, theirs)
    pair = next(pair for pair in found.pairs if pair.name == Q)
    assert [record.rank for record in pair.candidate.records] == [0, 1]
    assert "the values fit ranks in the order 1 0 instead of 0 1 only" in pair.note
    first, second = compared(pair, ours, theirs)
    assert np.abs(first - second).max() > 0.5
    agree(found, ours, theirs, [K])


def test_a_rank_whose_copy_differs_is_told(tmp_path):
    step = Text(4).padded({"model.norm:out": 6})
    ours = write(tmp_path / "a", [step])
    ranks = [[dict(step)] for _ in range(4)]
    ranks[0][0]["model.norm:out"] = step["model.norm:out"] + 1
    theirs = write_ranks(tmp_path / "b", ranks)
    found = align_sides(ours, theirs)
    good, odd = (pair for pair in found.pairs if pair.name == "model.norm:out")
    assert (good.candidate.first.rank, odd.candidate.first.rank) == (1, 0)
    assert odd.note == "rank 0 holds other values than rank 1"
    agree(found._replace(pairs=[good]), ours, theirs)
    assert any("rank 0 holds other values" in note for note in found.notes)


@pytest.mark.parametrize("fault", ["a rank is missing", "bias on every rank"])
def test_partial_sums_that_do_not_add_up_stay_wrong(tmp_path, fault):
    step = Text(5).padded({OUT: 8})
    ours = write(tmp_path / "a", [step])
    ranks = ranks_of(step, 2, ways={OUT: "sum"})
    if fault == "a rank is missing":
        ranks[1][0][OUT] = np.zeros_like(ranks[1][0][OUT])
    else:
        ranks = [[{**rank[0], OUT: rank[0][OUT] + 1}] for rank in ranks]
    theirs = write_ranks(tmp_path / "b", ranks)
    pair = next(pair for pair in align_sides(ours, theirs).pairs if pair.name == OUT)
    assert pair.candidate.join == "sum"
    first, second = compared(pair, ours, theirs)
    assert np.abs(first - second).max() > 0.5


@pytest.mark.parametrize("seen", ["around", "elsewhere"])
def test_sums_without_an_exchange_are_wrong_where_copies_should_be(tmp_path, seen):
    """What is around the module, or the same module of another layer, tells whether ranks exchange what it gives."""
    other = f"{HF}self_attn:out" if seen == "around" else OUT.replace(".0.", ".1.")
    step = Text(5).padded({OUT: 8})
    step[other] = step[OUT]
    ours = write(tmp_path / "a", [step])
    ways = {OUT: "sum", other: "sum"} if seen == "around" else {OUT: "sum"}
    theirs = write_ranks(tmp_path / "b", ranks_of(step, 2, ways=ways))
    wrong = [pair for pair in align_sides(ours, theirs).pairs if pair.name == OUT]
    assert [(pair.candidate.join, pair.candidate.first.rank) for pair in wrong] == [("", 0), ("", 1)]
    assert all(np.abs(np.subtract(*compared(pair, ours, theirs))).max() > 0.5 for pair in wrong)


def test_sums_that_are_exchanged_later_are_added(tmp_path):
    around = f"{HF}self_attn:out"
    step = Text(5).padded({OUT: 8})
    step[around] = step[OUT]
    ours = write(tmp_path / "a", [step])
    theirs = write_ranks(tmp_path / "b", ranks_of(step, 2, ways={OUT: "sum"}))
    assert agree(align_sides(ours, theirs), ours, theirs, [OUT, around])[OUT].candidate.join == "sum"


@pytest.mark.parametrize("order", ["blocks", "groups"])
def test_fused_tensors_in_shards(tmp_path, order):
    text = Text(5, 3)
    packed, bare = text.packed({Q: 16, K: 8, V: 8}), text.packed({})
    name = f"{LLM}attention.qkv:out" if order == "blocks" else "decoder.layers.0.self_attention.linear_qkv:out"
    step = text.padded({Q: 16, K: 8, V: 8})
    step["present.0.key:new"] = np.ascontiguousarray(step[K].reshape(2, 5, 4, 2).transpose(0, 2, 1, 3))
    ranks = []
    for rank in range(2):
        parts = [np.split(packed[part], 2, 1)[rank] for part in (Q, K, V)]
        if order == "groups":
            parts = [np.concatenate([part.reshape(8, 2, -1) for part in parts], 2).reshape(8, -1)]
        ranks.append([{**bare, name: np.concatenate(parts, 1)}])
    ours, theirs = write(tmp_path / "a", [step]), write_ranks(tmp_path / "b", ranks)
    found = align_sides(ours, theirs)
    agree(found, ours, theirs, [Q, K, V])
    assert not found.notes


def test_two_fused_tensors_of_which_one_is_in_shards(tmp_path):
    text, name = Text(4), f"{HF}mlp.gate_up_proj:out"
    step = text.padded({name: 16})
    gate, up = np.split(step[name], 2, -1)
    ranks = [
        [{**step, name: np.concatenate([np.split(part, 2, -1)[rank] for part in (gate, up)], -1)}] for rank in (0, 1)
    ]
    ours, theirs = write(tmp_path / "a", [step]), write_ranks(tmp_path / "b", ranks)
    agree(align_sides(ours, theirs), ours, theirs, [name])


def test_key_heads_that_several_ranks_hold(tmp_path):
    step = Text(4).padded({K: 8})
    ours = write(tmp_path / "a", [step])
    theirs = write_ranks(
        tmp_path / "b", [[{**step, K: step[K][..., rank // 2 * 4 :][..., :4].copy()}] for rank in range(4)]
    )
    pair = agree(align_sides(ours, theirs), ours, theirs, [K])[K]
    assert [record.rank for record in pair.candidate.records] == [0, 2]


def test_shards_on_both_sides(tmp_path):
    step = Text(4).padded({Q: 8, OUT: 8, "model.norm:out": 4})
    ways = {Q: "cut", OUT: "sum"}
    ours = write_ranks(tmp_path / "a", ranks_of(step, 2, ways=ways))
    theirs = write_ranks(tmp_path / "b", ranks_of(step, 4, ways=ways))
    agree(align_sides(ours, theirs), ours, theirs, [Q, OUT, "model.norm:out"])


def test_shards_of_a_padded_vocabulary(tmp_path):
    step = Text(3, 2).padded({"lm_head:out": 10})
    padded = {**step, "lm_head:out": np.pad(step["lm_head:out"], ((0, 0), (0, 0), (0, 6)))}
    ours = write(tmp_path / "a", [step])
    theirs = write_ranks(tmp_path / "b", ranks_of(padded, 4, ways={"lm_head:out": "cut"}))
    agree(align_sides(ours, theirs), ours, theirs, ["lm_head:out"])


def test_shards_of_weights(tmp_path):
    weight = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    name = f"{HF}mlp.up_proj.weight"
    ours = write(tmp_path / "a", [{name: weight}])
    for axis in (0, 1):
        parts = np.split(weight, 2, axis)
        theirs = write_ranks(tmp_path / f"b{axis}", [[{name: np.ascontiguousarray(part)}] for part in parts])
        pair = agree(align_sides(ours, theirs), ours, theirs, [name])[name]
        assert pair.candidate.join == f"concatenate {axis}"


@pytest.mark.parametrize("local", [False, True])
def test_stages_of_a_pipeline(tmp_path, local):
    """Layers are on other ranks, which may count them from 0."""
    text = Text(4)
    names = [f"model.layers.{layer}.mlp:out" for layer in range(4)]
    ours = write(tmp_path / "a", [text.padded(dict.fromkeys(names, 6))])
    whole = text.padded(dict.fromkeys(names, 6))
    bare = {name: array for name, array in whole.items() if ":" not in name}
    ranks = []
    for rank in range(2):
        mine = {
            f"model.layers.{layer - 2 * rank * local}.mlp:out": whole[names[layer]]
            for layer in (2 * rank, 2 * rank + 1)
        }
        ranks.append([{**bare, **mine}])
    theirs = write_ranks(tmp_path / "b", ranks)
    found = align_sides(ours, theirs)
    pairs = agree(found, ours, theirs, names)
    assert [pairs[name].candidate.first.rank for name in names] == [0, 0, 1, 1]
    assert bool(found.notes) == local


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("named", [True, False])
def test_a_cache_in_pages(tmp_path, heads_first, count, named):
    text, cache, slots, heads, size = Text(7, 3), "present.0.key:new", 4, 2, 3
    spans = [(0, 3), (3, 7)]
    ours, theirs = [], [[] for _ in range(count)]
    table = np.array([[5, 2], [1, 0]], np.int32)
    pages = np.full((6, slots, heads, size), 9.0, np.float32)
    for begin, end in spans:
        step = text.padded({cache: heads * size}, begin=begin, end=end, rows=None if begin == 0 else [0])
        rows = 2 if begin == 0 else 1
        array = step[cache].reshape(rows, -1, heads, size)
        step[cache] = np.ascontiguousarray(array.transpose(0, 2, 1, 3))
        ours.append(step)
        for row in range(rows):
            for at in range(begin, min(end, len(text.ids[row]))):
                pages[table[row, at // slots], at % slots] = vectors(cache, row, [at], heads * size).reshape(
                    heads, size
                )
        for rank in range(count):
            mine = np.split(pages, count, 2)[rank]
            mine = mine.transpose(0, 2, 1, 3) if heads_first else mine
            bare = {name: value for name, value in step.items() if name != cache}
            told = {"block_table" if named else "my_table": table, "key_pages.0": mine.copy()}
            theirs[rank].append({**bare, **told})
    reference, candidate = write(tmp_path / "a", ours), write_ranks(tmp_path / "b", theirs)
    mapping = None if named else parse_mapping(f"'{cache}': key_pages.0 | pages my_table")
    found = align_sides(reference, candidate, mapping=mapping)
    agree(found, reference, candidate, [cache])
    pairs = [pair for pair in found.pairs if pair.name == cache]
    assert [len(row_tokens(pair)) for pair in pairs] == [6, 4]


@pytest.mark.parametrize("packed", [True, False])
def test_ranks_that_hold_some_of_the_tokens_each(tmp_path, packed):
    text, name = Text(6, 6), "model.norm:out"
    step = (text.packed if packed else text.padded)({name: 4})
    ranks = [[{**step, name: np.ascontiguousarray(part)}] for part in np.split(step[name], [4], 0 if packed else 1)]
    ours, theirs = write(tmp_path / "a", [text.padded({name: 4})]), write_ranks(tmp_path / "b", ranks)
    pair = agree(align_sides(ours, theirs), ours, theirs, [name])[name]
    assert len(pair.tokens) == 12
    assert pair.candidate.join == "tokens"


@pytest.mark.parametrize("packed", [True, False])
def test_a_mapping_of_shards_and_parts_goes_round(tmp_path, packed):
    text, gate_up = Text(5, 3), f"{HF}mlp.gate_up_proj:out"
    widths = {Q: 8, K: 4, V: 4, OUT: 8, "lm_head:out": 10, gate_up: 8}
    step = text.padded(widths)
    real = step["attention_mask"] != 0
    fused = f"{HF}self_attn.qkv_proj:out"
    ranks = []
    for rank in range(2):
        cut = {name: np.split(step[name], 2, -1)[rank] for name in (Q, K, V)}
        halves = [np.split(part, 2, -1)[rank] for part in np.split(step[gate_up], 2, -1)]
        vocabulary = np.split(np.pad(step["lm_head:out"], ((0, 0), (0, 0), (0, 6))), 2, -1)[rank]
        here = {fused: np.concatenate(list(cut.values()), -1), gate_up: np.concatenate(halves, -1), OUT: step[OUT] / 2 + rank - 0.5,
                "lm_head:out": vocabulary}  # fmt: skip
        bare = {name: array for name, array in step.items() if ":" not in name}
        ranks.append([{**bare, **{name: array[real] if packed else array.copy() for name, array in here.items()}}])
    ours, theirs = write(tmp_path / "a", [step]), write_ranks(tmp_path / "b", ranks)
    first = align_sides(ours, theirs)
    agree(first, ours, theirs, widths)
    mapping = parse_mapping(first.mapping.text)
    assert mapping == first.mapping
    again = align_sides(ours, theirs, mapping=mapping)
    agree(again, ours, theirs, widths)
    assert all(pair.matched_by == "map" for pair in again.pairs)
    assert again.mapping == mapping


def test_tokens_inside_experts_are_compared_only_in_the_same_order(tmp_path):
    inner, router = f"{HF}mlp.experts.act_fn:out", f"{HF}mlp.gate:out[2]"
    step = Text(4).padded({f"{HF}mlp.experts:out": 6})
    step = {**step, router: np.array([[0, 1], [1, 2], [0, 2], [2, 1]]), inner: np.arange(24.0).reshape(8, 3)}
    ours = write(tmp_path / "a", [step], engine="torch")
    same = write(tmp_path / "b", [step], engine="torch")
    assert inner in agree(align_sides(ours, same), ours, same)
    for name, other, engine in (
        ("c", {**step, router: step[router][::-1]}, "torch"),
        ("d", step, "onnxruntime"),
    ):
        theirs = write(tmp_path / name, [other], engine=engine)
        reasons = {each.name: each.reason for each in align_sides(ours, theirs).unmatched}
        assert "in the order of their experts" in reasons[inner]
