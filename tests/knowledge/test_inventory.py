"""The questions asked about flags, options, variables and paths of each release."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from trtdx.knowledge import inventory, inventory_checks


def test_a_flag_has_the_values_of_its_release():
    (flag,) = inventory.find_flag("trtllm-build", "--gemm_plugin")
    assert "nvfp4" not in inventory.era_of_release(flag, "0.16.0").values
    assert "nvfp4" in inventory.era_of_release(flag, "0.17.0").values
    assert inventory.era_of_release(flag, "1.3.0rc22") is None
    assert inventory.describe_releases(flag) == "0.8.0 to 1.3.0rc13"


@pytest.mark.parametrize(
    ("program", "flag", "release", "subcommand", "words"),
    [
        ("trtllm-build", "--max_batch_size", "1.2.1", None, ""),
        ("trtllm-build", "--max_output_len", "0.12.0", None, "not in 0.12.0"),
        ("trtllm-build", "--max_batchsize", "1.2.1", None, "nearest: --max_batch_size"),
        ("trtllm-build", "--gemm_plugin=nvfp4", "0.16.0", None, "takes one of"),
        ("trtllm-build", "--gemm_plugin=nvfp4", "0.17.0", None, ""),
        ("trtllm-serve", "--tp_size", "1.2.1", "serve", ""),
        (
            "trtllm-bench",
            "--streaming",
            "1.2.1",
            "latency",
            "a flag of trtllm-bench throughput, not of latency",
        ),
        ("examples/llama/convert_checkpoint.py", "--use_fp8_rowwise", "0.12.0", None, ""),
        ("convert_checkpoint.py", "--dtype", "0.12.0", None, ""),
        ("trtexec", "--fp16", "11.0", None, "not in 11.0"),
        ("trtexec", "--fp16", "10.13.0", None, ""),
        ("mpiexec", "--allow-run-as-root", "5.0.6", None, ""),
        ("docker", "--gpus", "", "run", ""),
        ("some-program", "--anything", "", None, ""),
    ],
)
def test_a_flag_that_a_release_lacks_is_answered_with_what_there_is(program, flag, release, subcommand, words):
    verdict = inventory_checks.check_flag(program, flag, release, subcommand)
    assert verdict == "" if words == "" else words in verdict


@pytest.mark.parametrize(
    ("path", "release", "words"),
    [
        ("kv_cache_config.free_gpu_memory_fraction", "1.2.1", ""),
        ("free_gpu_memory_fraction", "1.2.1", "nearest: kv_cache_config.free_gpu_memory_fraction"),
        ("use_cuda_graph", "1.2.1", "0.21.0rc0 to 1.0.0rc1, not in 1.2.1"),
        ("kv_cache_config.free_gpu_memory_fraction", "0.17.0", ""),  # its sources do not list the keys
        ("model_kwargs.anything", "1.3.0rc22", ""),
        ("enable_chunked_prefil", "1.2.1", "nearest: enable_chunked_prefill"),
    ],
)
def test_an_option_that_a_release_lacks_is_answered_with_what_there_is(path, release, words):
    verdict = inventory_checks.check_option(path, release)
    assert verdict == "" if words == "" else words in verdict


def test_variables_and_paths_are_answered_the_same_way():
    assert inventory_checks.check_variable("TLLM_LOG_LEVEL", "1.2.1") == ""
    assert inventory_checks.check_variable("NCCL_P2P_DISABLE", "1.2.1") == ""
    assert "nearest: TLLM_LOG_LEVEL" in inventory_checks.check_variable("TLLM_LOG_LEVL")
    assert "not in 1.2.1" in inventory_checks.check_variable("TLLM_HLAPI_BUILD_CACHE", "1.2.1")
    assert inventory_checks.check_path("examples/gemma/convert_checkpoint.py", "0.19.0") == ""
    moved = inventory_checks.check_path("examples/gemma/convert_checkpoint.py", "1.0.0")
    assert moved.endswith("it is examples/models/core/gemma/convert_checkpoint.py there")
    assert "no release has this file" in inventory_checks.check_path("examples/gema/convert_checkpoint.py")


def test_fields_and_requirements():
    assert inventory.find_field("QuantAlgo", "NVFP4").eras[0].since == "0.17.0"
    batch = inventory.find_field("BuildConfig", "max_batch_size")
    assert inventory.era_of_release(batch, "1.2.1").default == 2048
    tensorrt = inventory.find_requirement("tensorrt")
    assert inventory.era_of_release(tensorrt, "1.2.1").wants == "~=10.14.1"
    assert inventory.era_of_release(inventory.find_requirement("python"), "1.2.1").wants == ">=3.10,<4"


def test_a_release_between_two_is_spoken_for_by_the_one_before():
    assert inventory.nearest_release("1.3.0rc17") == "1.3.0rc13"
    assert inventory.nearest_release("0.1.0") == ""
    assert inventory.nearest_release("1.2.1") == "1.2.1"


@pytest.mark.parametrize("product", ["TensorRT-LLM", "NCCL", "TensorRT", "Open MPI", "Triton", "huggingface_hub"])
def test_releases_are_in_order(product):
    releases = inventory.product_releases(product)
    assert list(releases) == sorted(releases, key=Version)


def all_entries() -> list[inventory.InventoryEntry]:
    flags = [flag for tool in inventory.list_tools() for flag in inventory.list_tool_flags(tool)]
    variables = [entry for name in inventory.list_variables() for entry in inventory.find_variable(name)]
    paths = [inventory.find_path(path) for path in inventory.list_paths()]
    return [*flags, *inventory.options_by_path().values(), *variables, *paths]


@pytest.mark.heavy
def test_eras_are_of_known_releases_in_order_and_apart():
    for entry in all_entries():
        releases = inventory.product_releases(entry.product)
        having = inventory.releases_with(entry)
        assert len(set(having)) == len(having)
        if releases:
            assert list(having) == sorted(having, key=Version)
            assert {name for name in (era.until for era in entry.eras) if name} <= set(releases)
            assert {era.since for era in entry.eras} <= set(releases)


@pytest.mark.heavy
@given(st.text(), st.text())
def test_no_question_breaks_it(name, release):
    for verdict in (
        inventory_checks.check_option(name, release),
        inventory_checks.check_variable(name, release),
        inventory_checks.check_path(name, release),
        inventory_checks.check_flag(name, name, release),
    ):
        assert isinstance(verdict, str)


def test_nothing_is_read_at_import():
    program = "import trtdx.knowledge.inventory as i; print(i._read_entries.cache_info().currsize)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
