"""What trtllm-build sets by itself, and which settings somebody chose."""

from __future__ import annotations

import pytest

from support.make_engine import make_engine
from trtdx.host import RealHost
from trtdx.inspect.facts import build_defaults
from trtdx.inspect.facts.build_defaults import (
    UNKNOWN_DEFAULT,
    default_of_setting,
    defaults_of_release,
    settings_section,
)
from trtdx.inspect.readers.engine.engine_folder import READER

RELEASES = [
    "0.11.0",
    "0.12.0",
    "0.13.0",
    "0.14.0",
    "0.15.0",
    "0.16.0",
    "0.17.0",
    "0.19.0",
    "0.21.0",
    "1.0.0",
    "1.1.0",
    "1.2.1",
]


def section_of(path, version="1.2.1", **overrides):
    return settings_section(READER.read(RealHost(), str(make_engine(path, version, **overrides))))


def chosen(section):
    return {row[0]: row[1] for row in section.rows if row[3] == "yes"}


@pytest.mark.parametrize(
    ("version", "setting", "default"),
    [
        ("0.8.0", "max_batch_size", 1),
        ("0.10.0", "max_batch_size", 1),
        ("0.11.0", "max_batch_size", 256),
        ("0.13.0", "max_batch_size", 256),
        ("0.14.0", "max_batch_size", 2048),
        ("1.2.1", "max_batch_size", 2048),
        ("0.10.0", "max_output_len", 1024),
        ("0.11.0", "max_output_len", UNKNOWN_DEFAULT),
        ("0.11.0", "max_seq_len", None),
        ("0.8.0", "tokens_per_block", 128),
        ("0.10.0", "tokens_per_block", 64),
        ("0.19.0", "tokens_per_block", 32),
        ("0.18.2", "use_paged_context_fmha", False),
        ("0.19.0", "use_paged_context_fmha", True),
        ("0.10.0", "gpt_attention_plugin", "float16"),
        ("0.11.0", "gpt_attention_plugin", "auto"),
        ("0.12.0", "plugin.use_custom_all_reduce", UNKNOWN_DEFAULT),
        ("0.11.0", "plugin.use_custom_all_reduce", True),
        ("0.10.0", "strongly_typed", False),
        ("0.11.0", "strongly_typed", True),
        ("1.2.0rc5", "gemm_plugin", False),
        ("0.13.0.dev2024081300", "kv_cache_type", "paged"),
        ("0.7.1", "max_batch_size", UNKNOWN_DEFAULT),
        ("not a version", "max_batch_size", UNKNOWN_DEFAULT),
        ("1.2.1", "no_such_setting", UNKNOWN_DEFAULT),
    ],
)
def test_the_default_is_that_of_the_release(version, setting, default):
    assert default_of_setting(version, setting) == default


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("ranks", [1, 4])
def test_an_engine_nobody_touched_differs_in_nothing(tmp_path, version, ranks):
    section = section_of(tmp_path, version, tp_size=ranks)
    assert chosen(section) == {}
    assert {row[3] for row in section.rows} == {"no"}
    assert len(section.rows) == len(
        [name for name, value in defaults_of_release(version).items() if value is not None]
    ) + len([name for name in ("build.max_seq_len", "build.opt_num_tokens") if name in defaults_of_release(version)])


def test_what_somebody_chose_comes_first_and_is_marked(tmp_path):
    section = section_of(
        tmp_path, max_batch_size=64, gemm_plugin="bfloat16", remove_input_padding=False, max_seq_len=8192
    )
    assert chosen(section) == {
        "max_batch_size": "64",
        "gemm_plugin": "bfloat16",
        "remove_input_padding": "off",
        "max_seq_len": "8192",
    }
    assert [row[3] for row in section.rows[:5]] == ["yes", "yes", "yes", "yes", "no"]
    assert section.columns == ("setting", "value", "default", "differs", "what it does")
    assert section.key == "settings"
    row = next(row for row in section.rows if row[0] == "max_seq_len")
    assert row[2] == "deduced"


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        {"quant_algo": "FP8"},
        {"quant_algo": "W4A16_AWQ"},
        {"kv_cache_quant_algo": "INT8"},
    ],
)
def test_what_the_builder_follows_from_the_quantisation_is_not_a_choice(tmp_path, quantization):
    plugins = {}
    if quantization.get("quant_algo") == "W4A16_AWQ":
        plugins["weight_only_groupwise_quant_matmul_plugin"] = "bfloat16"
    if quantization.get("kv_cache_quant_algo") == "INT8":
        plugins["use_paged_context_fmha"] = False
    assert chosen(section_of(tmp_path, quantization=quantization, **plugins)) == {}


def test_a_plugin_of_the_models_type_is_what_auto_means(tmp_path):
    assert chosen(section_of(tmp_path, gpt_attention_plugin="bfloat16")) == {}
    assert chosen(section_of(tmp_path, gpt_attention_plugin=False)) == {"gpt_attention_plugin": "off"}


def test_a_sequence_stretched_by_rotary_scaling_is_deduced(tmp_path):
    scaled = {"max_position_embeddings": 4096, "rotary_scaling": {"type": "linear", "factor": 2.0}}
    assert chosen(section_of(tmp_path, max_seq_len=8192, **scaled)) == {}
    assert chosen(section_of(tmp_path, max_seq_len=16384, **scaled)) == {"max_seq_len": "16384"}


def test_before_0_8_there_are_no_defaults_to_compare_with(tmp_path):
    section = section_of(tmp_path, "0.7.1")
    assert {row[3] for row in section.rows} == {""}
    assert "build script" in section.note


def test_every_setting_is_explained():
    known = {
        name
        for release in ("0.8.0", "0.10.0", "0.12.0", "0.16.0", "1.1.0", "1.2.1")
        for name in defaults_of_release(release)
    }
    assert known == set(build_defaults.build_notes().about)


def test_notes_name_settings_and_releases_of_the_inventory():
    from trtdx.knowledge import inventory

    notes = build_defaults.build_notes()
    releases = inventory.product_releases()
    for note in notes.note:
        assert note.since in releases
        assert note.until in (*releases, "")
        assert set(note.default) | set(note.unset) <= set(notes.about)


def test_a_note_holds_up_to_its_last_release():
    assert default_of_setting("0.14.0", "opt_batch_size") is None
    assert default_of_setting("0.15.0", "opt_batch_size") == 8
    assert default_of_setting("1.3.0rc22", "max_batch_size") == 2048
