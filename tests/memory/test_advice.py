"""Advice helps, is possible, and is written the way its backend and release take it."""

from __future__ import annotations

import msgspec
import pytest
from make_setups import B200, DEEPSEEK, H100, LLAMA_8B, make_setup

from trtdx import versions
from trtdx.inspect.options import known_in, table
from trtdx.memory.advice import advise
from trtdx.memory.changes import changes_for
from trtdx.memory.devices import all_devices
from trtdx.memory.gpu_changes import valid_tps
from trtdx.memory.harm import HARMS
from trtdx.memory.ledger import plan
from trtdx.memory.nouns import GIB, Device
from trtdx.memory.report import written
from trtdx.memory.sizes import used
from trtdx.model import Stage

A100 = Device(name="A100 40GB", total_bytes=round(39.4 * GIB), sm=80)
LITTLE = Device(name="RTX 4070", total_bytes=12 * GIB, sm=89)


def advice(setup, **more):
    return advise(setup, plan(setup), all_devices(), **more)


def words_of(setup):
    return {each.words for each in changes_for(setup, all_devices())}


def stages_of(setup, group):
    return [
        (line.stage, line.text)
        for each in changes_for(setup)
        if each.group == group
        for line in each.written(setup)
    ]


@pytest.mark.parametrize("backend", ["pytorch", "tensorrt"])
@pytest.mark.parametrize("device", [H100, A100, LITTLE], ids=lambda device: device.name)
def test_what_is_advised_helps(backend, device):
    setup = make_setup(LLAMA_8B, backend=backend, device=device, gemm_plugin=False)
    now = plan(setup)
    for each in advice(setup):
        after = plan(each.setup)
        assert after == each.ledger
        assert after.kv_tokens.value > now.kv_tokens.value or after.worst.short_bytes < now.worst.short_bytes
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
    assert not any(
        change.harm.money for each in advice(make_setup(LLAMA_8B), most=10) for change in each.changes
    )


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
    assert valid_tps(make_setup(LLAMA_8B)) == [1, 2, 4, 8, 16]
    assert 3 not in valid_tps(make_setup(DEEPSEEK))


def test_limits_are_built_into_engines_and_given_to_servers():
    server = make_setup(LLAMA_8B, limits={"max_batch_size": 2048})
    assert (Stage.LAUNCH, "trtllm-serve --max_batch_size 64") in stages_of(server, "batch")
    engine = make_setup(LLAMA_8B, backend="tensorrt", limits={"max_batch_size": 2048})
    assert (Stage.BUILD, "trtllm-build --max_batch_size 64") in stages_of(engine, "batch")


def test_a_cache_type_is_converted_for_engines_and_an_option_of_servers():
    assert stages_of(make_setup(LLAMA_8B, version="1.2.1"), "kv") == [
        (Stage.LAUNCH, "in --config: kv_cache_config: {dtype: fp8}")
    ]
    assert (Stage.LAUNCH, "trtllm-serve --kv_cache_dtype fp8") in stages_of(
        make_setup(LLAMA_8B, version="1.3.0rc23"), "kv"
    )
    assert stages_of(make_setup(LLAMA_8B, backend="tensorrt"), "kv")[0] == (
        Stage.CONVERT,
        "quantize.py --model_dir MODEL --output_dir CKPT --qformat full_prec --kv_cache_dtype fp8",
    )


def test_an_older_release_gets_the_name_it_has():
    [(_, text)] = stages_of(make_setup(LLAMA_8B, version="0.20.0"), "kv")
    assert text == "in --extra_llm_api_options: pytorch_backend_config: {kv_cache_dtype: fp8}"


SERVERS = table().releases
BUILDERS = table().build_releases


def flags_in(text):
    return [word for word in text.split() if word.startswith("--")]


@pytest.mark.parametrize("release", SERVERS)
def test_servers_are_told_of_flags_and_keys_their_release_has(release):
    setup = make_setup(
        LLAMA_8B,
        device=B200,
        version=release,
        limits={"max_batch_size": 2048},
        piecewise_graphs=release != "0.19.0",
    )
    for change in changes_for(setup):
        for line in change.written(setup):
            here = versions.parsed(release)
            if line.text.startswith("trtllm-serve --"):
                for name in flags_in(line.text):
                    assert known_in(table().flag["trtllm-serve"][name], here, table().releases), line.text
            elif line.text.startswith("in --config: "):
                section, _, inner = line.text.removeprefix("in --config: ").partition(": ")
                key = f"{section}.{inner[1:].partition(':')[0]}" if inner.startswith("{") else section
                assert known_in(table().option[key], here, table().releases), line.text


@pytest.mark.parametrize("release", BUILDERS)
def test_builders_are_told_of_flags_their_release_has(release):
    setup = make_setup(
        LLAMA_8B,
        backend="tensorrt",
        version=release,
        limits={"max_batch_size": 2048},
        context_fmha=False,
        packed=False,
        gemm_plugin=False,
        paged_kv=False,
        multiple_profiles=versions.at_least(release, "0.9.0"),
    )
    flags = table().flag["trtllm-build"]
    for change in changes_for(setup):
        for line in change.written(setup):
            for name in flags_in(line.text) if line.text.startswith("trtllm-build") else ():
                assert known_in(flags[name], versions.parsed(release), BUILDERS), line.text


def test_flags_of_one_program_stand_in_one_line():
    setup = make_setup(LLAMA_8B)
    chunks = next(each for each in changes_for(setup) if each.group == "tokens")
    assert written([chunks], setup) == [
        "launch: trtllm-serve MODEL --max_num_tokens 4096 --enable_chunked_prefill"
    ]


def test_engines_are_told_of_switches_that_cost_memory_for_nothing():
    setup = make_setup(LLAMA_8B, backend="tensorrt", context_fmha=False, packed=False, gemm_plugin=False)
    texts = {
        text for group in ("context_fmha", "packed", "gemm_plugin") for _, text in stages_of(setup, group)
    }
    assert texts == {
        "trtllm-build --context_fmha enable",
        "trtllm-build --remove_input_padding enable",
        "trtllm-build --gemm_plugin auto",
    }


def test_every_harm_says_what_it_does_to_speed():
    assert all(harm.words and harm.points > 0 for harm in HARMS.values())


def test_a_conversion_costs_more_than_a_restart():
    setup = make_setup(LLAMA_8B)
    cost = {each.words: each.cost(setup) for each in changes_for(setup)}
    assert cost["weights in FP8"] > cost["KV cache in FP8"]
    assert cost["tensor parallelism over 2 GPUs"] > cost["weights in FP8"]


def test_what_only_helps_in_part_is_told_where_nothing_is_enough():
    found = advice(make_setup(LLAMA_8B, device=LITTLE))
    assert all(each.ledger.fits for each in found)


def test_what_leaves_room_comes_before_what_hardly_fits():
    """Recurrent states fill the GPU: fewer of them is the way, though smaller steps are just enough too."""
    hybrid = msgspec.structs.replace(
        LLAMA_8B, attention_layers=4, state_layers=28, state_params_per_layer=10**6
    )
    limits = {"max_batch_size": 512, "max_seq_len": 1024}
    without = used(plan(make_setup(hybrid, device=H100, limits=limits)).worst)
    state = (H100.total_bytes - without + GIB // 10) // 512
    hybrid = msgspec.structs.replace(hybrid, state_bytes_per_sequence=state)
    found = advice(make_setup(hybrid, device=H100, limits=limits))

    assert [each.changes[0].group for each in found[:2]] == ["batch", "tokens"]
    assert found[1].cost < found[0].cost


def test_before_trtllm_build_there_was_build_py():
    old = make_setup(LLAMA_8B, backend="tensorrt", version="0.7.1", gemm_plugin=False, paged_kv=False)
    texts = {text for each in changes_for(old) for text in (line.text for line in each.written(old))}
    assert "build.py --use_gemm_plugin bfloat16" in texts
    assert "build.py --paged_kv_cache" in texts
    assert "build.py --use_weight_only --weight_only_precision int8" in texts
    assert not any("trtllm-" in text or "convert_checkpoint" in text for text in texts)


def test_plugins_are_named_by_their_type_before_auto_was_a_word():
    for version, word in (("0.9.0", "bfloat16"), ("1.2.1", "auto")):
        engine = make_setup(LLAMA_8B, backend="tensorrt", version=version, gemm_plugin=False)
        assert stages_of(engine, "gemm_plugin") == [(Stage.BUILD, f"trtllm-build --gemm_plugin {word}")]


def test_what_quantises_a_model_converts_it_too():
    engine = make_setup(LLAMA_8B, backend="tensorrt")
    gpus = next(each for each in changes_for(engine) if each.group == "gpus")
    cache = next(each for each in changes_for(engine) if each.words == "KV cache in FP8")
    lines = written((gpus, cache), engine)
    assert sum("convert:" in line for line in lines) == 1
    assert lines[0].startswith("convert: quantize.py --model_dir MODEL --output_dir CKPT --")
    assert lines[0].count("--model_dir") == 1
    assert "_size" in lines[0]
