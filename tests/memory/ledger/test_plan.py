"""A plan is the sum of its parts, grows with what is asked for, and says at which part it ends."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.make_setups import B200, DEEPSEEK, GPT_OSS_120B, LLAMA_7B, LLAMA_8B, make_setup
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.nouns import GIB, Device

MODELS = st.sampled_from((LLAMA_7B, LLAMA_8B, DEEPSEEK, GPT_OSS_120B))
SETUPS = st.fixed_dictionaries(
    {
        "dims": MODELS,
        "backend": st.sampled_from(("pytorch", "tensorrt")),
        "weights": st.sampled_from(("", "FP8", "NVFP4", "W4A16_AWQ")),
        "kv": st.sampled_from(("", "fp8")),
    }
)
LAYOUTS = st.fixed_dictionaries(
    {"tp": st.sampled_from((1, 2, 4, 8)), "pp": st.sampled_from((1, 2, 3)), "attention_dp": st.booleans()}
)
LIMITS = st.fixed_dictionaries(
    {
        "max_batch_size": st.integers(1, 4096),
        "max_num_tokens": st.integers(1, 65536),
        "max_seq_len": st.integers(32, 131072),
        "max_beam_width": st.integers(1, 4),
    }
)


def without_cache(ledger):
    return sum(each.bytes.value for each in ledger.components if each.name not in ("kv_pool", "logits"))


@given(made=SETUPS, layout=LAYOUTS, limits=LIMITS)
def test_parts_sum_to_the_whole_on_every_rank(made, layout, limits):
    ledger = plan_memory(make_setup(**made, layout=layout, limits=limits, device=B200))
    assert [each.rank for each in ledger.ranks] == list(range(layout["tp"] * layout["pp"]))
    for rank in ledger.ranks:
        for part in ("value", "low", "high"):
            whole = getattr(rank.total_bytes, part)
            assert whole == sum(getattr(each.bytes, part) for each in rank.components)
        for each in rank.components:
            assert 0 <= each.bytes.low <= each.bytes.value <= each.bytes.high
        assert rank.fits is (rank.short_bytes == 0)
        assert bool(rank.why_not) is not rank.fits
    assert len({rank.kv_tokens.value for rank in ledger.ranks}) == 1


@given(made=SETUPS, limits=LIMITS, which=st.sampled_from(("max_batch_size", "max_num_tokens", "max_beam_width")))
def test_more_is_never_less(made, limits, which):
    small, large = (
        plan_memory(make_setup(**made, limits=limits | {which: limits[which] * factor}, device=B200)).ranks[0]
        for factor in (1, 2)
    )
    assert without_cache(small) <= without_cache(large)
    assert small.kv_tokens.value >= large.kv_tokens.value


@given(made=SETUPS, limits=LIMITS)
def test_a_layer_more_is_never_less(made, limits):
    more = msgspec.structs.replace(made["dims"], num_layers=made["dims"].num_layers + 1)
    small, large = (
        plan_memory(make_setup(**made | {"dims": dims}, limits=limits)).ranks[0] for dims in (made["dims"], more)
    )
    assert without_cache(small) <= without_cache(large)
    assert small.kv_bytes_per_token.value <= large.kv_bytes_per_token.value


@given(made=SETUPS, tp=st.sampled_from((1, 2, 4)))
def test_more_gpus_hold_no_more_weights_each(made, tp):
    one, two = (plan_memory(make_setup(**made, layout={"tp": many})).ranks[0] for many in (tp, 2 * tp))
    assert two.component_bytes("weights") <= one.component_bytes("weights")


@pytest.mark.parametrize("partition", [(10, 22), (22, 10)])
def test_the_stage_that_is_shown_is_the_one_whose_memory_is_full(partition):
    layout = {"pp": 2, "pp_partition": partition}
    ledger = plan_memory(make_setup(LLAMA_8B, backend="pytorch", layout=layout, device=B200))
    assert len({each.kv_tokens.value for each in ledger.ranks}) == 1
    assert ledger.tightest_rank.rank == partition.index(22)


def test_the_tightest_stage_decides_for_all():
    ledger = plan_memory(make_setup(DEEPSEEK, weights="NVFP4", layout={"tp": 2, "pp": 2}, device=B200))
    alone = plan_memory(make_setup(DEEPSEEK, weights="NVFP4", layout={"tp": 2, "pp": 1}, device=B200))
    assert ledger.kv_tokens.value == ledger.tightest_rank.kv_tokens.value > alone.kv_tokens.value
    assert {rank.component_bytes("kv_pool") // rank.kv_bytes_per_token.value for rank in ledger.ranks} == {
        ledger.kv_tokens.value
    }


@pytest.mark.parametrize(
    ("gib", "ends"), [(12, "weights: "), (16, "activations and workspace: "), (17.9, "KV cache: ")]
)
def test_what_does_not_fit_is_told_by_the_part_at_which_it_ends(gib, ends):
    card = Device(name="small", total_bytes=round(gib * GIB), sm=90)
    setup = make_setup(device=card, backend="tensorrt", limits={"max_num_tokens": 16384})
    rank = plan_memory(msgspec.structs.replace(setup, said={"max_seq_len": "--max_seq_len"})).tightest_rank
    assert rank.fits is False
    assert rank.why_not.startswith(ends), rank.why_not
    assert rank.short_bytes > 0


def test_a_length_that_nobody_asked_for_is_shortened_to_what_there_is():
    setup = make_setup(limits={"max_seq_len": 10**7})
    assert plan_memory(setup).fits
    said = msgspec.structs.replace(setup, said={"max_seq_len": "--max_seq_len"})
    assert not plan_memory(said).fits


def test_logits_of_prompts_come_after_the_cache_from_what_it_leaves():
    asked = {"max_batch_size": 64, "max_num_tokens": 128000, "max_seq_len": 131072}
    setup = make_setup(backend="tensorrt", limits=asked, gather_context_logits=True, free_fraction=0.9)
    ledger = plan_memory(setup)
    assert ledger.tightest_rank.components[-1].name == "logits"
    assert ledger.fits is False
    assert ledger.tightest_rank.why_not.startswith("logits: ")
