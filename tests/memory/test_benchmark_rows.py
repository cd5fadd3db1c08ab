"""The rows of the accuracy benchmark become the flags that their builds had."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from memory_rows import algo_of, argv_of

ROW: dict[str, Any] = {"backend": "tensorrt", "trtllm_version": None, "weight_dtype": "float16", "kv_dtype": None, "notes": "", "model": "llama-2-7b", "gpu": None}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "algo"),
    [
        ("mxfp4", "W4A16_MXFP4"),
        ("nvfp4", "NVFP4"),
        ("FP4", "NVFP4"),
        ("fp8 block-scale", "FP8_BLOCK_SCALES"),
        ("FP8", "FP8"),
        ("bfloat16", ""),
        ("int4_awq", "W4A16_AWQ"),
        ("W4A16", "W4A16"),
        ("W8A16", "W8A16"),
        ("w4a16_awq", "W4A16_AWQ"),
        ("int4 GPTQ per-group", "W4A16_GPTQ"),
    ],
)
def test_a_format_is_the_one_that_is_named(words: str, algo: str) -> None:
    assert algo_of(words) == algo


def flags_of(tmp_path: Path, **row: Any) -> dict[str, str]:
    argv = argv_of(ROW | row, tmp_path)[1:]
    return dict(zip(argv[::2], argv[1::2], strict=False))


def test_settings_in_fields_of_their_own_are_not_lost(tmp_path: Path) -> None:
    flags = flags_of(tmp_path, gemm_plugin="disable", context_fmha=False, remove_input_padding=True)

    assert flags["--gemm_plugin"] == "disable"
    assert flags["--context_fmha"] == "disable"
    assert flags["--remove_input_padding"] == "enable"


def test_what_a_note_quotes_is_given_on(tmp_path: Path) -> None:
    notes = "build.py --use_gemm_plugin float16 --remove_input_padding --max_output_len 4096"
    flags = flags_of(tmp_path, notes=notes)

    assert flags["--trtllm-version"] == "0.7.1"
    assert flags["--gemm_plugin"] == "float16"
    assert flags["--remove_input_padding"] == "enable"
    assert flags["--max_output_len"] == "4096"
