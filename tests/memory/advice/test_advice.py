"""Advice helps, and is possible."""

from __future__ import annotations

import msgspec
import pytest

from support.make_setups import B200, DEEPSEEK, H100, LLAMA_8B, make_setup
from trtdx.memory.advice.advice import advise_changes
from trtdx.memory.advice.changes import list_changes
from trtdx.memory.advice.costs import CHANGE_HARMS
from trtdx.memory.advice.gpu_changes import valid_tp_sizes
from trtdx.memory.advice.memory_change import cost_of_changes
from trtdx.memory.ledger.capacity import bytes_beside_cache
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.nouns import GIB, Device
from trtdx.memory.question.gpus import all_devices

A100 = Device(name="A100 40GB", total_bytes=round(39.4 * GIB), sm=80)
LITTLE = Device(name="RTX 4070", total_bytes=12 * GIB, sm=89)


def advice(setup, **more):
    return advise_changes(setup, plan_memory(setup), all_devices(), **more)


def words_of(setup):
    return {each.words for each in list_changes(setup, all_devices())}


@pytest.mark.parametrize("backend", ["pytorch", "tensorrt"])
@pytest.mark.parametrize("device", [H100, A100, LITTLE], ids=lambda device: device.name)
def test_what_is_advised_helps(backend, device):
    setup = make_setup(LLAMA_8B, backend=backend, device=device, gemm_plugin=False)
    now = plan_memory(setup)
    for each in advice(setup):
        after = plan_memory(each.setup)
        assert after == each.ledger
        assert (
            after.kv_tokens.value > now.kv_tokens.value
            or after.tightest_rank.short_bytes < now.tightest_rank.short_bytes
        )
        assert each.gain_bytes > 0


def test_where_it_does_not_fit_what_makes_it_fit_comes_first():
    found = advice(make_setup(LLAMA_8B, device=LITTLE))
    assert found[0].ledger.fits
    fits = [each.ledger.fits for each in found]
    assert fits == sorted(fits, reverse=True)


def test_several_changes_are_put_together_where_none_alone_is_enough():
    tiny = Device(name="RTX 3080", total_bytes=round(8.6 * GIB), sm=86)
    found = advice(make_setup(LLAMA_8B, device=tiny, limits={"max_batch_size": 2048}), most=4)
    together = [each for each in found if len(each.changes) > 1]
    assert together
    assert all(each.ledger.fits for each in together)


def test_of_each_kind_of_change_there_is_one():
    found = advice(make_setup(LLAMA_8B, limits={"max_batch_size": 2048}), most=10)
    groups = [each.changes[0].group for each in found]
    assert len(groups) == len(set(groups))


def test_money_is_not_spent_on_what_fits():
    assert not any(change.harm.money for each in advice(make_setup(LLAMA_8B), most=10) for change in each.changes)


def test_formats_are_those_the_gpu_has():
    assert "weights in NVFP4" in words_of(make_setup(LLAMA_8B, device=B200))
    assert "weights in NVFP4" not in words_of(make_setup(LLAMA_8B, device=H100))
    on_ampere = words_of(make_setup(LLAMA_8B, device=A100))
    assert not any("FP8" in words for words in on_ampere)
    assert "weights in W4A16_AWQ" in on_ampere


def test_formats_are_those_the_backend_has():
    assert "KV cache in INT8" not in words_of(make_setup(LLAMA_8B))
    assert "KV cache in INT8" in words_of(make_setup(LLAMA_8B, device=A100, backend="tensorrt"))
    assert "KV cache in NVFP4" not in words_of(make_setup(LLAMA_8B, device=B200, backend="tensorrt"))


def test_formats_are_those_the_release_has():
    assert "KV cache in NVFP4" not in words_of(make_setup(LLAMA_8B, device=B200, version="1.0.0"))
    assert "KV cache in NVFP4" in words_of(make_setup(LLAMA_8B, device=B200, version="1.1.0"))


def test_what_is_narrow_already_is_not_made_so_again():
    setup = make_setup(LLAMA_8B, weights="FP8", kv="fp8")
    assert not any("FP8" in words for words in words_of(setup))


def test_latent_attention_has_no_four_bit_cache():
    setup = make_setup(DEEPSEEK, weights="FP8_BLOCK_SCALES", device=B200, layout={"tp": 8}, version="1.2.1")
    assert not any("cache in NVFP4" in words for words in words_of(setup))


def test_parallelism_is_what_the_model_can_be_cut_by():
    assert valid_tp_sizes(make_setup(LLAMA_8B)) == [1, 2, 4, 8, 16]
    assert 3 not in valid_tp_sizes(make_setup(DEEPSEEK))


def test_every_harm_says_what_it_does_to_speed():
    assert all(harm.words and harm.points > 0 for harm in CHANGE_HARMS.values())


def test_a_conversion_costs_more_than_a_restart():
    setup = make_setup(LLAMA_8B)
    cost = {each.words: cost_of_changes((each,), setup) for each in list_changes(setup)}
    assert cost["weights in FP8"] > cost["KV cache in FP8"]
    assert cost["tensor parallelism over 2 GPUs"] > cost["weights in FP8"]


def test_what_only_helps_in_part_is_told_where_nothing_is_enough():
    found = advice(make_setup(LLAMA_8B, device=LITTLE))
    assert all(each.ledger.fits for each in found)


def test_what_leaves_room_comes_before_what_hardly_fits():
    """Recurrent states fill the GPU: fewer of them is the way, though smaller steps are just enough too."""
    hybrid = msgspec.structs.replace(LLAMA_8B, attention_layers=4, state_layers=28, state_params_per_layer=10**6)
    limits = {"max_batch_size": 512, "max_seq_len": 1024}
    without = bytes_beside_cache(plan_memory(make_setup(hybrid, device=H100, limits=limits)).tightest_rank)
    state = (H100.total_bytes - without + GIB // 10) // 512
    hybrid = msgspec.structs.replace(hybrid, state_bytes_per_sequence=state)
    found = advice(make_setup(hybrid, device=H100, limits=limits))

    assert [each.changes[0].group for each in found[:2]] == ["batch", "tokens"]
    assert found[1].cost < found[0].cost
