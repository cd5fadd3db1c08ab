"""Profiles as text, what is asked of them, and how large outputs can get in them."""

from __future__ import annotations

import pytest

from trtdx.engines.tensorrt.build.nouns import Binding, BuildMessage
from trtdx.engines.tensorrt.build.output_bounds import dim_bounds_from_messages, evaluate_size, largest_dims
from trtdx.engines.tensorrt.network.profiles import check_profiles, parse_profile, profile_from_argument
from trtdx.errors import InputError

INPUTS = (Binding("ids", "INT64", ("batch", "seq")), Binding("scale", "FLOAT", (4,)))


def test_a_profile_as_text():
    assert parse_profile("ids:1x1,2x32,4x128 mask:1,2,3") == {
        "ids": ((1, 1), (2, 32), (4, 128)),
        "mask": ((1,), (2,), (3,)),
    }


def test_one_shape_stands_for_all():
    assert parse_profile("a:2x3") == {"a": ((2, 3),) * 3}


def test_names_may_hold_colons():
    assert list(parse_profile("scope:ids:0:1,2,3")) == ["scope:ids:0"]


def test_a_scalar_has_no_sizes():
    assert parse_profile("flag:,,") == {"flag": ((), (), ())}


@pytest.mark.parametrize(
    "text",
    ["", "ids", "ids:1x1,2x32", "ids:1x1,2x32,4xb", "ids:1x1,2x2,3x3 ids:1", "ids:-1,2,3", "ids:1x,2x,3x"],
)
def test_what_is_no_profile(text):
    with pytest.raises(InputError):
        parse_profile(text)


@pytest.mark.parametrize("shapes", [((1,), (2,)), 5, ((1,), (2,), ("a",))])
def test_what_is_no_range(shapes):
    with pytest.raises(InputError, match="ids"):
        profile_from_argument({"ids": shapes})


def test_a_dynamic_input_without_shapes_is_named_with_the_remedy():
    with pytest.raises(InputError, match=r"the dynamic inputs ids \(batch, seq\)") as caught:
        check_profiles([], INPUTS)
    assert caught.value.fix == "add ids:MINxMIN,OPTxOPT,MAXxMAX"


def test_an_unknown_input_gets_its_nearest():
    with pytest.raises(InputError, match="profile 1 gives shapes for idss") as caught:
        check_profiles([{"ids": ((1,),) * 3}, {"idss": ((1,),) * 3}], INPUTS)
    assert "did you mean ids?" in caught.value.fix


def test_fixed_inputs_need_nothing():
    check_profiles([], INPUTS[1:])


def test_sums_are_those_of_one_profile():
    sizes = largest_dims(INPUTS, {"ids": ((1, 1), (2, 2), (4, 128))})
    assert sizes == {"batch": 4, "seq": 128, "ids#0": 4, "ids#1": 128}
    assert evaluate_size("(+ seq 3)", sizes) == 131
    assert evaluate_size("(* (# 0 (SHAPE ids)) (+ 1 1))", sizes) == 8


@pytest.mark.parametrize("text", ["", "(", ")", "(+ seq what)", "(/ seq 2)", "seq seq", "(+", "()" * 500])
def test_what_is_not_understood_is_unknown(text):
    assert evaluate_size(text, {"seq": 5}) is None


def test_the_last_attempt_counts():
    lines = [
        "GRAPH NODES",
        "SHUFFLE a b",
        "    Input 0",
        "        9\t9",
        "    Output 0",
        "        [1,4]\tseq",
    ]
    lines += ["Graph construction completed in 0 s", "    Output 0", "        7\t7"]
    assert dim_bounds_from_messages([BuildMessage(0, "VERBOSE", line) for line in lines]) == {("a b", 0): [(4, "seq")]}
