"""The frontier, targets and sizes: what fits together, and what stands in the way."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.make_setups import DEEPSEEK, H100, LLAMA_8B, make_setup
from trtdx.errors import TrtdxError
from trtdx.memory.advice.memory_change import cost_of_changes
from trtdx.memory.advice.target import TargetLoad, parse_target, reach_target, setup_for_target
from trtdx.memory.ledger.capacity import (
    cache_tokens_needed,
    count_requests,
    holds_load,
    limiting_component,
    with_limits,
)
from trtdx.memory.ledger.frontier import compute_frontier, frontier_lengths
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.nouns import COMPONENTS, GIB, Device

SMALL_GPU = Device(name="L4", total_bytes=22 * GIB, sm=89)


def at(setup, point, batch):
    limits = {
        "max_seq_len": point.max_seq_len,
        "max_num_tokens": point.max_num_tokens,
        "max_batch_size": batch,
    }
    return plan_memory(with_limits(setup, **limits))


@pytest.mark.parametrize("backend", ["pytorch", "tensorrt"])
def test_each_point_fits_and_one_more_request_does_not(backend):
    setup = make_setup(LLAMA_8B, backend=backend)
    for point in compute_frontier(setup):
        batch, length = point.max_batch_size, point.max_seq_len
        if batch:
            assert holds_load(at(setup, point, batch), batch, length)
        if point.binding != "max_num_tokens":
            assert not holds_load(at(setup, point, batch + 1), batch + 1, length)


def test_longer_sequences_and_larger_steps_never_allow_more_requests_unless_the_step_was_in_the_way():
    points = compute_frontier(make_setup(LLAMA_8B))
    by_place = {(each.max_seq_len, each.max_num_tokens): each for each in points}
    for (length, step), point in by_place.items():
        for (other, wider), later in by_place.items():
            if other >= length and wider == step:
                assert later.max_batch_size <= point.max_batch_size
            if other == length and wider >= step and point.binding != "max_num_tokens":
                assert later.max_batch_size <= point.max_batch_size


def test_what_stands_in_the_way_is_a_component_or_the_step():
    bindings = {each.binding for each in compute_frontier(make_setup(LLAMA_8B))}
    assert bindings <= {*COMPONENTS.values(), "max_num_tokens"}


def test_a_model_that_does_not_fit_at_all_has_its_weights_in_the_way():
    points = compute_frontier(make_setup(DEEPSEEK, weights="FP8_BLOCK_SCALES"))
    assert {each.max_batch_size for each in points} == {0}
    assert {each.binding for each in points} == {"weights"}


def test_a_step_too_large_for_the_gpu_has_activations_in_the_way():
    tight = Device(name="tight", total_bytes=round(18.5 * GIB), sm=89)
    [point] = compute_frontier(make_setup(LLAMA_8B, device=tight), lengths=[1024], steps=[131072])
    assert (point.max_batch_size, point.binding) == (0, COMPONENTS["activation"])


def test_small_steps_hold_no_more_requests_than_tokens():
    [point] = compute_frontier(make_setup(LLAMA_8B), lengths=[512], steps=[64])
    assert (point.max_batch_size, point.binding) == (64, "max_num_tokens")


def test_lengths_go_up_to_what_the_model_was_made_for():
    assert frontier_lengths(make_setup(LLAMA_8B)) == [512, 1024, 2048, 4096, 8192]


@settings(max_examples=40, deadline=None)
@given(batch=st.integers(1, 512), length=st.integers(1, 8192), gib=st.floats(17, 200))
def test_more_memory_never_holds_fewer_requests(batch, length, gib):
    small = make_setup(LLAMA_8B, device=Device(name="some", total_bytes=round(gib * GIB), sm=90))
    large = msgspec.structs.replace(small, device=Device(name="more", total_bytes=round((gib + 1) * GIB), sm=90))
    assert count_requests(plan_memory(large), length) >= count_requests(plan_memory(small), length)
    if holds_load(plan_memory(small), batch, length):
        assert holds_load(plan_memory(large), batch, length)


def test_requests_are_counted_in_whole_blocks_and_beams():
    setup = make_setup(LLAMA_8B, limits={"max_beam_width": 2})
    assert cache_tokens_needed(setup, 3, 33) == 3 * 64 * 2


def test_weights_are_in_the_way_where_they_alone_are_too_large():
    assert limiting_component(plan_memory(make_setup(DEEPSEEK)).tightest_rank) == "weights"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch=64, seq=8192", TargetLoad(64, 8192)),
        ("batch=64,seq=8k", TargetLoad(64, 8192)),
        ("max_batch_size=8; max_seq_len=4096; max_num_tokens=2048", TargetLoad(8, 4096, 2048)),
        ("batch=4, input=1000, output=24", TargetLoad(4, 1024)),
        ("seq=4096", TargetLoad(64, 4096)),
        ("batch=4, seq=100, beam=4", TargetLoad(4, 100, 0, 4)),
    ],
)
def test_a_target_is_written_in_words_people_use(text, expected):
    assert parse_target(text, make_setup(LLAMA_8B)) == expected


@pytest.mark.parametrize(
    "text", ["batch", "batch=x", "bath=4", "batch=0", "batch=10000000000000", "batch=64, tokens=8"]
)
def test_a_target_that_is_none_is_refused(text):
    with pytest.raises(TrtdxError):
        parse_target(text, make_setup(LLAMA_8B))


def test_a_target_that_fits_needs_no_change():
    found = reach_target(make_setup(LLAMA_8B), TargetLoad(8, 4096))
    assert found.fits
    assert found.changes == ()


def test_the_changes_for_a_target_are_planned_and_do():
    setup = make_setup(LLAMA_8B)
    found = reach_target(setup, TargetLoad(100, 8192))
    assert found.fits
    assert found.changes
    assert holds_load(plan_memory(found.setup), 100, 8192)
    assert found.setup.limits.max_batch_size == 100
    assert not holds_load(plan_memory(setup_for_target(setup, found.target)), 100, 8192)


def test_no_cheaper_single_change_would_have_done():
    found = reach_target(make_setup(LLAMA_8B), TargetLoad(100, 8192))
    paid = sum(cost_of_changes((each,), found.setup) for each in found.changes)
    assert all(cost_of_changes((each,), found.setup) >= paid for each in found.dearer)


def test_what_does_not_do_alone_says_what_it_lacks():
    found = reach_target(make_setup(LLAMA_8B, device=SMALL_GPU), TargetLoad(64, 8192))
    assert found.failed_changes
    assert all("short by" in why for _, why in found.failed_changes)


def test_a_target_beyond_everything_is_said_to_be_so():
    found = reach_target(make_setup(LLAMA_8B, device=H100), TargetLoad(10**6, 8192, 10**6))
    assert not found.fits
    assert found.changes == ()
