"""One selector means the same place whatever engine names it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtdx.errors import InputError
from trtdx.tensors.taps import Place, parse_selector


def places(prefix):
    found = [Place(f"{prefix}embed", op="Embedding", dtype="float32")]
    for layer in range(12):
        at = f"{prefix}layers.{layer}"
        found += [
            Place(f"{at}.attn.q_proj", "in", op="Linear", dtype="bfloat16"),
            Place(f"{at}.attn.q_proj", op="Linear", dtype="bfloat16"),
            Place(f"{at}.mlp", "in", argument="hidden_states", op="MLP", dtype="bfloat16"),
            Place(f"{at}.mlp", op="MLP", dtype="bfloat16"),
            Place(f"{at}.mlp", "out", 1, op="MLP", dtype="int64"),
            Place(at, op="Layer", dtype="bfloat16"),
        ]
    return [*found, Place("", op="MatMul", tensor="logits", dtype="float32")]


def chosen(selector, prefix="model."):
    return [place.name.removeprefix(prefix) for place in parse_selector(selector).select(places(prefix))]


@pytest.mark.parametrize("prefix", ["model.", "m.model.", "transformer.", ""])
def test_a_path_is_the_same_place_under_every_prefix(prefix):
    assert chosen("layers.3.mlp", prefix) == ["layers.3.mlp:out", "layers.3.mlp:out[1]"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("embed", ["embed:out"]),
        ("layers[0,-1].mlp:out[0]", ["layers.0.mlp:out", "layers.11.mlp:out"]),
        ("layers[9:].mlp:in", ["layers.9.mlp:in.hidden_states", "layers.10.mlp:in.hidden_states", "layers.11.mlp:in.hidden_states"]),
        ("layers[3,1]", ["layers.1:out", "layers.3:out"]),
        ("layers.1*.*.q_*:in", ["layers.1.attn.q_proj:in", "layers.10.attn.q_proj:in", "layers.11.attn.q_proj:in"]),
        ("tensor:log*", ["logits"]),
        ("op:matmul", ["logits"]),
        ("op:Embedding, tensor:logits", ["embed:out", "logits"]),
        ("layers.0.** & dtype:bf16, !**.q_proj, !layers.0", ["layers.0.mlp:out"]),
        ("layers.0.**:* & op:Linear", ["layers.0.attn.q_proj:in", "layers.0.attn.q_proj:out"]),
        ("layers.2.mlp:in.hidden*", ["layers.2.mlp:in.hidden_states"]),
        ("dtype:i64 & layers[-1].**", ["layers.11.mlp:out[1]"]),
    ],
)  # fmt: skip
def test_selectors(selector, expected):
    assert chosen(selector) == expected


def test_two_stars_are_everything_that_comes_out():
    assert len(chosen("**")) == 1 + 12 * 4 + 1
    assert len(chosen("**:*")) == len(places(""))


def test_a_leading_dot_begins_at_the_root():
    assert chosen(".model.embed") == ["embed:out"]
    assert chosen(".embed") == []


def test_exclusions_alone_take_away_from_everything():
    assert "embed:out" not in chosen("!embed")
    assert len(chosen("!embed")) == len(places("")) - 1


def test_nothing_selected_names_what_is_near():
    with pytest.raises(InputError) as caught:
        parse_selector("layers.*.mpl:out").select_or_raise(places("model."))
    assert "mlp" in caught.value.fix


@pytest.mark.parametrize("text", ["", " , ", "a & ", "layers[x]", "layers[0", "layers.0:sideways"])
def test_a_mistake_is_an_error_that_shows_it(text):
    with pytest.raises(InputError):
        parse_selector(text)


@given(st.text(alphabet="abl*.[]0,-1:!& ", max_size=24))
def test_any_text_selects_or_is_refused(text):
    try:
        selector = parse_selector(text)
    except InputError:
        return
    assert set(selector.select(places(""))) <= set(places(""))


def test_a_misspelt_part_of_a_union_is_an_error():
    places = [Place("model.layers.0.mlp"), Place("model.layers.0.self_attn")]
    with pytest.raises(InputError, match=r"nothing is selected by 'layers\.\*\.mlpp'"):
        parse_selector("layers.*.self_attn, layers.*.mlpp").select_or_raise(places)
    assert parse_selector("layers.*.self_attn, !nothing").select_or_raise(places)  # an exclusion may hit nothing
