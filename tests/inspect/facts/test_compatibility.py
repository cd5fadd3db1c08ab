"""Looking up releases and GPUs by what people call them."""

from __future__ import annotations

import pytest

from trtdx.knowledge import versions


@pytest.mark.parametrize(
    ("name", "sm"),
    [
        ("L40S", 89), ("l40s", 89), ("NVIDIA L40S", 89), ("NVIDIA L4", 89), ("NVIDIA H100 80GB HBM3", 90),
        ("A100-SXM4-80GB", 80), ("NVIDIA GeForce RTX 4090", 89), ("rtx4090", 89), ("NVIDIA A10G", 86), ("A10", 86),
        ("Tesla V100-SXM2-16GB", 70), ("GH200 480GB", 90), ("NVIDIA B200", 100), ("NVIDIA GB10", 121),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 120), ("NVIDIA RTX 6000 Ada Generation", 89),
        ("8.9", 89), ("89", 89), ("sm_89", 89), ("sm90a", 90), ("10.3", 103), ("120", 120),
        ("Voodoo 2", None), ("", None), ("4.2", None),
    ],
)  # fmt: skip
def test_the_compute_capability_of_a_gpu(name, sm):
    assert versions.sm_of_gpu(name) == sm


@pytest.mark.parametrize(
    ("version", "tensorrt"),
    [
        ("1.2.1", "10.14.1.48"), ("v1.2.1", "10.14.1.48"), ("1.2.0rc0", "10.13.2.6"), ("1.2.0rc2", "10.13.3.9"),
        ("0.18.2", "10.9.0.34"), ("0.17.0.post1", "10.8.0.43"), ("1.3.0rc22", ""), ("0.13.0.dev2024081300", ""),
        ("1.2.1+ngcpytorch2602", "10.14.1.48"), ("main", ""),
    ],
)  # fmt: skip
def test_the_tensorrt_of_a_release(version, tensorrt):
    assert versions.tensorrt_of(version) == tensorrt


@pytest.mark.parametrize(
    ("version", "near"),
    [("1.2.1", "1.2.1"), ("1.2.0rc5", "1.2.0"), ("0.13.0.dev2024081300", "0.13.0"), ("0.18.2", "0.18.0"),
     ("1.3.0rc20", "1.3.0rc13"), ("0.1", None), ("x", None)],
)  # fmt: skip
def test_the_nearest_release(version, near):
    row = versions.nearest_release(version)
    assert (row.version if row else None) == near


@pytest.mark.parametrize(
    ("version", "runs"),
    [("0.8.0", True), ("1.2.1", True), ("1.3.0rc13", True), ("1.3.0rc20", True), ("1.3.0rc21", False), ("1.4.0", False), ("?", None)],
)  # fmt: skip
def test_which_releases_run_engines(version, runs):
    assert versions.has_engine_flow(version) is runs


@pytest.mark.parametrize(
    ("version", "sm", "served"),
    [
        ("0.12.0", 70, True), ("0.12.0", 75, True), ("0.16.0", 70, False), ("1.2.1", 75, False), ("0.16.0", 100, False),
        ("0.17.0", 100, True), ("1.2.1", 87, True), ("1.2.1", 103, True), ("1.2.1", 121, True), ("0.19.0", 121, False),
        ("1.2.1", 110, False), ("1.2.1", 61, False),
    ],
)  # fmt: skip
def test_which_gpus_a_release_has_kernels_for(version, sm, served):
    assert versions.kernels_of(version).serve(sm) is served


def test_the_tables_agree_with_each_other():
    rows = {row.version for row in versions.version_table().release}
    assert not rows & set(versions.version_table().tensorrt)
    assert [versions.parse_release(row.since) for row in versions.version_table().kernels] == sorted(
        versions.parse_release(row.since) for row in versions.version_table().kernels
    )
    assert all(versions.sm_of_gpu(name) == sm for name, sm in versions.version_table().gpu.items())
    assert all(
        versions.sm_of_gpu(name) == int(sm) for sm, names in versions.version_table().sm.items() for name in names
    )
