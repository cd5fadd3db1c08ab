"""Which options a release has, what they are called now, and who wins when two places set one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtdx.inspect.facts.option_table import option_table
from trtdx.inspect.facts.options import (
    are_sections_merged,
    judge_flags,
    judge_options,
    nearest_option,
    winning_side,
    wrong_value_reason,
)


def verdicts(*keys: str, version: str | None = None, backend: str = "") -> dict[str, tuple[str, str]]:
    return {verdict.key: (verdict.problem, verdict.instead) for verdict in judge_options(keys, version, backend)}


@pytest.mark.parametrize(
    ("key", "version", "expected"),
    [
        ("kv_cache_config.dtype", "1.2.1", None),
        ("kv_cache_config.free_gpu_memory_fraction", "0.20.0", None),
        ("use_cuda_graph", "0.21.0", None),
        ("use_cuda_graph", "1.2.1", ("renamed", "cuda_graph_config")),
        ("cuda_graph_config.padding_enabled", "1.0.0", ("renamed", "cuda_graph_config.enable_padding")),
        (
            "pytorch_backend_config.enable_overlap_scheduler",
            "0.20.0",
            ("renamed", "pytorch_backend_config.disable_overlap_scheduler"),
        ),
        ("enable_overlap_scheduler", "1.2.1", ("renamed", "disable_overlap_scheduler")),
        ("pytorch_backend_config.use_cuda_graph", "0.20.0", None),
        ("pytorch_backend_config.use_cuda_graph", "0.21.0", ("renamed", "use_cuda_graph")),
        ("pytorch_backend_config.use_cuda_graph", "1.1.0", ("renamed", "cuda_graph_config")),
        ("kv_cache_dtype", "1.0.0", ("renamed", "kv_cache_config.dtype")),
        ("autotuner_enabled", "1.2.1", ("renamed", "enable_autotuner")),
        ("mixed_sampler", "1.2.1", ("renamed", "sampler_type")),
        ("kv_cache_config.dtype", "0.21.0", ("newer", "kv_cache_dtype")),
        (
            "speculative_config.speculative_model",
            "1.1.0",
            ("renamed", "speculative_config.speculative_model_dir"),
        ),
        ("speculative_config.speculative_model", "1.2.1", None),
        ("kv_cache_config.onboard_blocks", "1.3.0rc23", ("removed", "")),
        ("num_serve_frontends", "1.2.1", ("newer", "")),
        ("tp_size", "1.2.1", ("unknown", "tensor_parallel_size")),
        ("free_gpu_memory_fraction", "1.2.1", ("unknown", "kv_cache_config.free_gpu_memory_fraction")),
        ("kv_cache_config.max_atention_window", "1.2.1", ("unknown", "kv_cache_config.max_attention_window")),
        ("flash_mode", "1.2.1", ("unknown", "")),
        ("model_kwargs.anything.at.all", "1.3.0rc23", None),
        ("quant_config.quant_algo", "1.2.1", ("engine-only", "")),
    ],
)
def test_a_key_is_judged_by_the_release_that_reads_it(key: str, version: str, expected: tuple[str, str] | None) -> None:
    by_key = verdicts(key, version=version)
    assert list(by_key.values()) == ([expected] if expected else [])


def test_the_words_say_where_a_key_was_known() -> None:
    [verdict] = judge_options(["use_cuda_graph"], "1.2.1")
    assert verdict.words.startswith("use_cuda_graph: known up to 0.21.0, not in 1.2.1; now cuda_graph_config")


def test_between_two_releases_of_the_table_either_may_speak() -> None:
    assert verdicts("use_cuda_graph", "cuda_graph_config", version="1.0.0rc3") == {}


def test_without_a_version_what_the_last_stable_or_the_newest_release_has_is_fine() -> None:
    assert verdicts("enable_sleep", "num_serve_frontends", "cuda_graph_config") == {}
    assert verdicts("use_cuda_graph") == {"use_cuda_graph": ("renamed", "cuda_graph_config")}


def test_a_section_that_is_unknown_is_told_once() -> None:
    assert set(verdicts("kv_cache_confg.dtype", "kv_cache_confg.max_tokens")) == {"kv_cache_confg"}


def test_the_engine_backend_keeps_its_own_options() -> None:
    assert verdicts("quant_config.quant_algo", version="1.2.1", backend="tensorrt") == {}


def test_every_new_name_and_every_meant_name_is_an_option() -> None:
    options = option_table()
    assert [new.to for new in options.renamed.values() if new.to not in options.option] == []
    assert [name for name in options.meant.values() if name not in options.option] == []
    assert [name for name in options.meant if name in options.option] == []


def test_every_flag_that_sets_an_option_sets_one_that_exists() -> None:
    options = option_table()
    named = {flag.option for flags in options.flag.values() for flag in flags.values()} - {"", "config"}
    assert sorted(named - set(options.option)) == []


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("max_batch_size", 8, ""),
        ("max_batch_size", "8", ""),  # pydantic makes a number of it
        ("max_batch_size", "many", "takes a whole number"),
        ("max_batch_size", 8.5, "takes a whole number"),
        ("max_batch_size", float("nan"), "takes a whole number"),
        ("kv_cache_config", 0.9, "takes a section with keys of its own"),
        ("kv_cache_config", None, ""),
        ("kv_cache_config.max_attention_window", 4096, "takes a list"),
        ("kv_cache_config.free_gpu_memory_fraction", "0.9", ""),
        ("trust_remote_code", "yes", ""),
        ("trust_remote_code", "maybe", "takes true or false"),
        ("dtype", 16, "takes a text"),
        ("moe_config.backend", "CUTLASS", ""),
        ("nobody.knows", object(), ""),
    ],
)
def test_values_are_refused_as_pydantic_refuses_them(key: str, value: object, reason: str) -> None:
    assert wrong_value_reason(key, value) == reason


def test_choices_are_case_sensitive_and_listed() -> None:
    assert "CUTLASS" in wrong_value_reason("moe_config.backend", "cutlass")


def test_a_flag_with_hyphens_is_not_the_flag_with_underscores() -> None:
    [verdict] = judge_flags("trtllm-serve", ["--tp-size", "--tp_size"])
    assert (verdict.key, verdict.instead) == ("--tp-size", "--tp_size")


def test_flags_come_and_go_with_releases() -> None:
    assert [verdict.problem for verdict in judge_flags("trtllm-serve", ["--kv_cache_dtype"], "1.2.1")] == ["newer"]
    assert [verdict.problem for verdict in judge_flags("trtllm-build", ["--max_output_len"], "1.2.1")] == ["removed"]
    assert list(judge_flags("trtllm-build", ["--max_output_len"], "0.10.0")) == []
    assert list(judge_flags("trtllm-build", ["--max_beam"], "1.2.1")) == []  # argparse takes beginnings
    assert list(judge_flags("trtllm-serve", ["--anything"], "0.15.0")) == []  # no table that far back


@pytest.mark.parametrize(
    ("key", "version", "expected"),
    [
        ("max_batch_size", "1.2.1", "yaml"),
        ("max_batch_size", "1.1.0", "yaml"),
        ("max_batch_size", "1.0.0", "flag"),  # through build_config
        ("dtype", "1.0.0", "yaml"),
        ("max_batch_size", "1.3.0rc13", "yaml"),
        ("max_batch_size", "1.3.0rc18", ""),
        ("max_batch_size", "1.3.0rc23", "flag"),
        ("max_batch_size", "1.3.0", "flag"),
        ("max_batch_size", None, ""),
        ("max_batch_size", "no version", ""),
    ],
)
def test_who_wins_depends_on_the_release(key: str, version: str | None, expected: str) -> None:
    assert winning_side(key, version) == expected


def test_a_section_in_the_file_replaced_the_flags_of_it_before_1_2() -> None:
    assert are_sections_merged("1.1.0") is False
    assert are_sections_merged("1.2.1") is True
    assert are_sections_merged("") is None


@pytest.mark.heavy
@given(
    key=st.text(max_size=30),
    version=st.none() | st.text(max_size=8) | st.sampled_from(option_table().releases),
)
def test_any_key_and_any_version_are_judged_without_an_error(key: str, version: str | None) -> None:
    assert all(verdict.words for verdict in judge_options([key], version))
    nearest_option(key)
