"""GPUs by any usual spelling of their names."""

from __future__ import annotations

import pytest

from trtdx.knowledge.versions import sm_of_gpu
from trtdx.memory.nouns import GIB
from trtdx.memory.question.gpus import UnknownGpuError, all_devices, device_from_name

SPELT = {
    "h100": "H100 80GB",
    "NVIDIA H100 80GB HBM3": "H100 80GB",
    "NVIDIA H100 PCIe": "H100 80GB",
    "NVIDIA H100 NVL": "H100 NVL",
    "a100-40gb": "A100 40GB",
    "NVIDIA A100-SXM4-80GB": "A100 80GB",
    "A100-PCIE-40GB": "A100 40GB",
    "A100": "A100 80GB",
    "NVIDIA H200 141GB": "H200",
    "B200": "B200",
    "GB200": "GB200",
    "NVIDIA GH200 480GB": "GH200 96GB",
    "RTX 4090": "RTX 4090",
    "rtx4090": "RTX 4090",
    "4090": "RTX 4090",
    "NVIDIA GeForce RTX 4070 Ti SUPER": "RTX 4070 Ti SUPER",
    "GeForce RTX 3050 6GB": "RTX 3050 6GB",
    "RTX 3080 12 GB": "RTX 3080 Ti",
    "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000",
    "rtxa6000": "RTX A6000",
    "L40S": "L40S",
    "L4": "L4",
    "Tesla T4": "T4",
    "Tesla V100-SXM2-32GB": "V100 32GB",
    "4x NVIDIA A10G 24GB": "A10G",
    "Jetson AGX Orin": "Jetson AGX Orin 64GB",
    "jetson-agx-orin": "Jetson AGX Orin 64GB",
    "Orin Nano": "Jetson Orin Nano 8GB",
    "GB10": "DGX Spark",
}

# What TensorRT-LLM and PyTorch printed as the device's total, in GiB.
TOTALS = {
    "H100": 79.10, "H200": 140.06, "B200": 178.35, "A10G": 22.19, "A40": 44.35, "RTX 3050 6GB": 5.67, "H100 NVL": 93.0,
    "RTX PRO 6000": 94.97, "RTX 5090": 31.37, "L40": 44.40, "RTX 4090": 23.64,
}  # fmt: skip


@pytest.mark.parametrize("text", SPELT)
def test_a_gpu_is_known_by_its_usual_names(text: str) -> None:
    assert device_from_name(text).name == SPELT[text]


@pytest.mark.parametrize("name", TOTALS)
def test_the_total_is_what_programs_print(name: str) -> None:
    assert device_from_name(name).total_bytes / GIB == pytest.approx(TOTALS[name], abs=0.006)


def test_a_partition_has_about_the_size_it_is_named_after() -> None:
    found = device_from_name("H100-3g.40gb")

    assert found.total_bytes / GIB == pytest.approx(39.25, abs=0.5)
    assert found.sm == 90
    assert "3g.40gb" in found.name


@pytest.mark.parametrize(("text", "near"), [("RTX 4095", "RTX 4090"), ("h1000", "H100 80GB"), ("l40z", "L40S")])
def test_an_unknown_gpu_is_refused_with_the_nearest(text: str, near: str) -> None:
    with pytest.raises(UnknownGpuError) as refused:
        device_from_name(text)

    assert near in refused.value.fix
    assert "--gpu-memory" in refused.value.fix


def test_a_size_no_such_gpu_has_is_refused() -> None:
    with pytest.raises(UnknownGpuError):
        device_from_name("H100 64GB")


def test_the_table_agrees_with_the_versions_on_compute_capabilities() -> None:
    for device in all_devices():
        assert sm_of_gpu(device.name) == device.sm, device.name
        assert 4 * GIB < device.total_bytes < 300 * GIB
