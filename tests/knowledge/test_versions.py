from __future__ import annotations

import re

from trtdx.knowledge import versions


def test_releases_are_in_order_and_whole():
    rows = versions.version_table().release
    assert [row.date for row in rows] == sorted(row.date for row in rows)
    assert {"0.5.0", "0.8.0", "0.16.0", "1.0.0", "1.2.1"} <= {row.version for row in rows}
    assert all(re.fullmatch(r"\d\d\.\d\d", row.ngc) for row in rows)
    assert versions.find_release("1.2.1").tensorrt == "10.14.1.48"
    assert versions.find_release("1.3.0rc22").tensorrt == ""


def test_which_release_belongs_to_a_tensorrt():
    assert versions.trtllm_with_tensorrt("9.3.0.1") == "TensorRT-LLM 0.9.0"
    assert versions.trtllm_with_tensorrt("10.4") == "TensorRT-LLM 0.13.0, 0.14.0"
    assert versions.trtllm_with_tensorrt("7.1") == "a TensorRT-LLM release made with TensorRT 7.1"
    assert "TensorRT x" in versions.trtllm_with_tensorrt("x")


def test_gpus_of_a_compute_capability():
    assert "L40S" in versions.gpus_with_sm("8.9")
    assert versions.gpus_with_sm("8.9") == versions.gpus_with_sm("89")
    assert versions.gpus_with_sm("3.0") == "GPUs of compute capability 3.0"
