"""The inputs and profiles of an engine, derived from its build settings as TensorRT-LLM derives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.make_engine import make_engine
from support.make_settings import PADDED, engine
from support.make_trace_log import glm_profile, glm_tensors
from trtdx.host import RealHost
from trtdx.inspect.profiles.engine_profiles import engine_profiles, engine_tensors, why_not_derived
from trtdx.inspect.readers.engine.engine_folder import READER

if TYPE_CHECKING:
    from trtdx.inspect.facts.artifact import Artifact


def bounds(artifact: Artifact, tensor: str, profile: int = 0, pp_rank: int = 0):
    span = engine_profiles(artifact, pp_rank)[profile].range_of(tensor)
    return span and (span.min, span.opt, span.max)


def names(artifact: Artifact, pp_rank: int = 0) -> set[str]:
    return {span.tensor for profile in engine_profiles(artifact, pp_rank) for span in profile.ranges}


def test_a_packed_engine_has_the_profile_that_tensorrt_llm_itself_prints():
    """The table in TensorRT-LLM's troubleshooting guide: ChatGLM3, 8 requests, 8192 tokens in a step."""
    chatglm = engine(
        version="0.14.0", num_layers=28, num_heads=32, num_kv_heads=2, vocab_size=65024, max_batch_size=8,
        max_seq_len=2048, opt_num_tokens=8, tokens_per_block=64,
    )  # fmt: skip
    (profile,) = engine_profiles(chatglm)
    expected = glm_profile()
    assert {span.tensor: (span.min, span.opt, span.max) for span in profile.ranges} == {
        tensor.name: expected[tensor.name] for tensor in glm_tensors() if tensor.mode == "I"
    }
    assert [tensor.name for tensor in engine_tensors(chatglm)] == [tensor.name for tensor in glm_tensors()]


def test_dynamic_dimensions_have_tensorrt_llms_names():
    shapes = {tensor.name: tensor.shape for tensor in engine_tensors(engine())}
    assert shapes["input_ids"] == ("num_tokens",)
    assert shapes["cache_indirection"] == ("batch_size_cache", 1, "max_seq_len")
    assert shapes["logits"] == ("batch_size_last_token_ids", 128256)


def test_a_padded_engine_without_gemm_plugin_has_a_profile_for_prompts_and_one_for_answers():
    padded = engine(**PADDED, max_beam_width=4, plugin__gemm_plugin=False)
    assert bounds(padded, "input_ids", 0) == ((1, 1), (32, 512), (64, 1024))
    assert bounds(padded, "input_ids", 1) == ((1, 1), (128, 1), (256, 1))
    assert bounds(padded, "past_key_value_0", 0) == (
        (1, 2, 8, 1, 128),
        (32, 2, 8, 2064, 128),
        (64, 2, 8, 4128, 128),
    )


def test_a_padded_engine_with_both_plugins_has_one_profile():
    (profile,) = engine_profiles(engine(**PADDED))
    span = profile.range_of("input_ids")
    assert (span.min, span.opt, span.max) == ((1, 1), (32, 1), (64, 1024))


def test_without_attention_plugin_there_is_a_mask_and_the_prompts_find_an_empty_cache():
    bare = engine(**PADDED, plugin__gpt_attention_plugin=False)
    assert "sequence_length" not in names(bare)
    assert bounds(bare, "attention_mask", 0)[2] == (64, 1024)
    assert bounds(bare, "attention_mask", 1)[2] == (64, 4096)
    assert bounds(bare, "past_key_value_0", 0)[2] == (64, 2, 8, 0, 128)
    assert bounds(bare, "past_key_value_0", 1)[2] == (64, 2, 8, 4095, 128)


def test_without_cache_there_is_neither_cache_nor_indirection():
    tensor_names = names(engine(kv_cache_type="disabled"))
    assert not {"kv_cache_block_offsets", "cache_indirection", "sequence_length"} & tensor_names
    assert "context_lengths" in tensor_names


def test_multiple_profiles_are_cut_by_tokens():
    cut = engine(multiple_profiles=True, max_num_tokens=600)
    assert [bounds(cut, "input_ids", n) for n in range(4)] == [
        ((1,), (64,), (64,)),
        ((64,), (128,), (128,)),
        ((128,), (256,), (256,)),
        ((256,), (512,), (512,)),
    ]
    assert bounds(cut, "input_ids", 4) == ((512,), (600,), (600,))


def test_multiple_profiles_of_few_tokens_have_the_builders_gap():
    cut = engine(multiple_profiles=True, max_num_tokens=64)
    assert [bounds(cut, "input_ids", n)[2] for n in range(3)] == [(1,), (64,), (64,)]


def test_the_number_of_profiles_can_be_forced_down():
    assert len(engine_profiles(engine(multiple_profiles=True, build__force_num_profiles=2))) == 2
    assert len(engine_profiles(engine(multiple_profiles=True, build__force_num_profiles="2"))) == 6


def test_each_pipeline_rank_has_its_own_inputs():
    cut = engine(pp_size=2, num_layers=33)
    assert "input_ids" in names(cut, 0)
    assert "last_token_ids" not in names(cut, 0)
    assert bounds(cut, "hidden_states_input", pp_rank=1)[2] == (8192, 4096)
    assert bounds(cut, "host_max_attention_window_sizes", pp_rank=0)[2] == (17,)
    assert bounds(cut, "host_max_attention_window_sizes", pp_rank=1)[2] == (16,)


def test_heads_are_cut_by_tensor_parallelism():
    assert bounds(engine(**PADDED, tp_size=16), "past_key_value_0")[2][2] == 1


@pytest.mark.parametrize(
    ("changes", "tensor", "largest"),
    [
        ({"max_prompt_table": 1000}, "prompt_embedding_table", (1000, 4096)),
        ({"max_prompt_table": 1000}, "tasks", (8192,)),
        ({"plugin.lora_plugin": "auto", "lora.target_modules": ["attn_q"]}, "attn_q_lora_ranks_31", (64,)),
        ({"plugin.lora_plugin": "auto", "lora.target_modules": ["attn_q"]}, "attn_q_lora_weights_pointers_0", (64, 3)),
        ({"max_draft_len": 63, "speculative_mode": "MEDUSA"}, "spec_decoding_packed_mask", (4096, 2)),
        ({"max_draft_len": 4, "speculative_mode": "DRAFT_TOKENS_EXTERNAL"}, "last_token_ids", (320,)),
        (
            {"architecture": "Qwen2VLForConditionalGeneration", "max_positions": 32768, "rotary_dim": 128},
            "mrope_rotary_cos_sin",
            (64, 4194304),
        ),
    ],
)  # fmt: skip
def test_settings_add_inputs(changes, tensor, largest):
    usual = engine(**{"gather_context_logits": True})
    assert tensor not in names(usual)
    changed = engine(**{name.replace(".", "__"): value for name, value in changes.items()})
    assert bounds(changed, tensor)[2] == largest


@pytest.mark.parametrize(
    ("version", "tensor", "largest"),
    [
        ("0.9.0", "kv_cache_block_pointers", (32, 64, 2, 128)),
        ("0.10.0", "kv_cache_block_offsets", (64, 2, 128)),
        ("0.14.0", "kv_cache_block_offsets", (1, 64, 2, 128)),
        ("0.20.0", "kv_cache_block_offsets", (32, 64, 2, 128)),
        ("0.14.0", "host_kv_cache_pool_mapping", (32,)),
        ("0.19.0", "host_kv_cache_pool_mapping", (32, 2)),
        ("0.11.0", "host_runtime_perf_knobs", None),
        ("0.12.0", "host_runtime_perf_knobs", (16,)),
        ("0.14.0", "host_context_progress", None),
        ("0.15.0", "host_context_progress", (1,)),
    ],
)
def test_releases_differ(version, tensor, largest):
    span = bounds(engine(version=version), tensor)
    assert (span and span[2]) == largest


def test_the_source_says_which_release_and_what_is_not_sure():
    assert engine_profiles(engine())[0].source == "derived from build settings of 1.2.1"
    assert "not verified" in engine_profiles(engine(version="0.8.0"))[0].source
    assert "not verified" in engine_profiles(engine(version="0.11.0.dev2024060400"))[0].source
    assert "an unstated release" in engine_profiles(engine(version=None))[0].source
    assert "Eagle adds" in engine_profiles(engine(architecture="EagleForCausalLM"))[0].source


def test_inputs_before_0_8_are_not_derived():
    old = engine(version=None, era="before 0.8", max_seq_len=2560)
    assert engine_profiles(old) == ()
    assert engine_tensors(old) == ()
    assert "before 0.8" in why_not_derived(old)


def test_inputs_whose_sizes_are_not_stated_are_left_out_and_named():
    (profile,) = engine_profiles(engine(num_layers=None))
    assert profile.range_of("host_max_attention_window_sizes") is None
    assert "host_max_attention_window_sizes" in profile.source


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_batch_size": None}, "max_batch_size"),
        ({"max_seq_len": None, "max_input_len": None}, "max_seq_len"),
        ({"architecture": "MambaForCausalLM"}, "inputs of its own"),
        ({"architecture": "DecoderModel", "version": "0.10.0"}, "0.12"),
    ],
)
def test_what_cannot_be_derived_says_why(changes, reason):
    unknown = engine(**changes)
    assert (engine_profiles(unknown), engine_tensors(unknown)) == ((), ())
    assert reason in why_not_derived(unknown)


def test_a_decoder_of_an_encoder_also_takes_the_encoders_output():
    decoder = engine(architecture="DecoderModel", max_input_len=1, max_encoder_input_len=1024, max_seq_len=200)
    assert bounds(decoder, "encoder_output") == ((0, 4096), (32768, 4096), (65536, 4096))
    assert bounds(decoder, "cross_kv_cache_block_offsets")[2] == (1, 64, 2, 32)
    assert bounds(decoder, "cache_indirection")[2] == (64, 1, 201)


def test_an_encoder_takes_the_text_alone():
    assert names(engine(architecture="EncoderModel")) == {"input_ids", "input_lengths", "max_input_length"}


@pytest.mark.parametrize("version", ["0.9.0", "0.12.0", "0.16.0", "0.20.0", "1.2.1"])
def test_engines_of_every_release_have_profiles(tmp_path, version):
    artifact = READER.read(RealHost(), str(make_engine(tmp_path, version)))
    profiles = engine_profiles(artifact)
    assert profiles
    assert "left out" not in profiles[0].source
    assert {"input_ids", "cache_indirection"} <= names(artifact)


@given(
    st.fixed_dictionaries(
        {
            "version": st.sampled_from(["0.9.0", "0.10.0", "0.12.0", "0.16.0", "0.20.0", "1.2.1"]),
            "max_batch_size": st.integers(1, 4096),
            "max_beam_width": st.integers(1, 8),
            "max_input_len": st.integers(1, 100_000),
            "max_seq_len": st.integers(100_000, 200_000),
            "max_num_tokens": st.integers(65, 100_000),
            "opt_num_tokens": st.just(None),
            "max_draft_len": st.integers(0, 64),
            "kv_cache_type": st.sampled_from(["paged", "continuous", "disabled"]),
            "multiple_profiles": st.booleans(),
            "plugin.remove_input_padding": st.booleans(),
            "plugin.gpt_attention_plugin": st.sampled_from([False, "auto"]),
            "plugin.gemm_plugin": st.sampled_from([False, "auto"]),
        }
    )
)
def test_every_range_is_one_that_tensorrt_takes(changes):
    changed_engine = engine(**{name.replace(".", "__"): value for name, value in changes.items()})
    tensors = {tensor.name: tensor for tensor in engine_tensors(changed_engine)}
    for profile in engine_profiles(changed_engine):
        for span in profile.ranges:
            assert all(low <= best <= high for low, best, high in zip(span.min, span.opt, span.max, strict=True))
            sizes = zip(tensors[span.tensor].shape, span.max, strict=True)
            assert all(isinstance(size, str) or size == high for size, high in sizes)
