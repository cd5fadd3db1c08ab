"""Cutting a model over ranks: what divides, what is duplicated or padded, and which sizes would work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtdx.host import RealHost
from trtdx.inspect.agreements import agreements_in
from trtdx.inspect.agreements.engine import parallel
from trtdx.inspect.agreements.model import weights
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.facts.page_examples import deployment_from_example
from trtdx.inspect.readers.server.llm_args import command_from_text

ROWS = (*agreements_in(parallel), weights.rank_files, weights.no_more_rank_files)


def found(text):
    deployment = deployment_from_example(text)
    return [(row.code, violation) for row in ROWS for violation in row.check(deployment)]


def codes(text):
    return [code for code, _ in found(text)]


# (heads, key/value heads, inner size) as published, and the tensor parallel sizes that work for each.
MODELS = {
    "Llama-3.1-8B": ((32, 8, 14336), {1, 2, 4, 8, 16, 32}),
    "Llama-3.1-70B": ((64, 8, 28672), {1, 2, 4, 8, 16, 32, 64}),
    "Qwen2.5-7B": ((28, 4, 18944), {1, 2, 4}),
    "Qwen2.5-0.5B": ((14, 2, 4864), {1, 2}),
    "Qwen2.5-14B": ((40, 8, 13824), {1, 2, 4, 8}),
    "falcon-7b": ((71, 1, 18176), {1}),
    "Llama-2-13b": ((40, 40, 13824), {1, 2, 4, 8}),
}


@pytest.mark.parametrize("name", MODELS)
def test_tensor_parallel_sizes_of_published_models(name):
    (heads, kv_heads, inner), works = MODELS[name]
    model = f"[hf]\nnum_heads = {heads}\nnum_kv_heads = {kv_heads}\nintermediate_size = {inner}\n"
    accepted = {size for size in parallel.PARALLEL_SIZES if not codes(f"{model}[command]\ntp_size = {size}\n")}
    assert accepted == works


def test_the_sizes_that_would_work_are_named():
    text = "[hf]\nnum_heads = 28\nnum_kv_heads = 4\nintermediate_size = 18944\n[command]\ntp_size = 8\n"
    [(code, violation)] = found(text)
    assert code == "DX096"
    assert violation.values["what"] == "num_heads 28"
    assert violation.values["works"] == "1, 2 or 4"
    assert (violation.values["best"], violation.values["rest"]) == (4, 2)


@given(st.integers(1, 128), st.integers(1, 128), st.sampled_from(parallel.PARALLEL_SIZES))
def test_what_is_named_to_work_works(heads, kv_heads, tp_size):
    text = f"[hf]\nnum_heads = {heads}\nnum_kv_heads = {kv_heads}\n[command]\ntp_size = "
    for code, violation in found(f"{text}{tp_size}\n"):
        assert code == "DX096"
        for size in violation.values["works"].replace(" or ", ", ").split(", "):
            assert codes(f"{text}{size}\n") == []


def test_a_checkpoint_and_its_engine_are_one_finding():
    sizes = "num_heads = 28\nnum_kv_heads = 4\ntp_size = 8\npp_size = 1\n"
    assert codes(f"[checkpoint]\n{sizes}[engine]\n{sizes}") == ["DX096"]


def test_a_model_is_not_judged_by_a_command_that_only_builds():
    text = '[hf]\nnum_heads = 28\n[command]\nruntime.command = "trtllm-build"\ntp_size = 8\n'
    assert codes(text) == []


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.12.0", ["DX851"]), ("0.18.2", ["DX851"]), ("0.19.0", []), ("1.2.1", []), ("", [])],
)
def test_layers_are_lost_between_stages_before_0_19_only(version, expected):
    text = f'[engine]\nversion = "{version}"\nnum_layers = 30\nnum_heads = 32\ntp_size = 1\npp_size = 4\n'
    assert codes(text) == expected


def test_the_number_of_lost_layers_is_told():
    text = '[engine]\nversion = "0.16.0"\nnum_layers = 62\nnum_heads = 32\npp_size = 4\n'
    [(_, violation)] = found(text)
    assert (violation.values["lost"], violation.values["works"]) == (2, "1 or 2")


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ("tp_size = 8", []),
        ("tp_size = 8\nmoe_ep_size = 8", []),
        ("tp_size = 8\nmoe_ep_size = 2", []),
        ("tp_size = 8\nmoe_tp_size = 2\nmoe_ep_size = 4", []),
        ("tp_size = 8\nmoe_tp_size = 2\nmoe_ep_size = 2", ["DX465"]),
        ("tp_size = 8\nmoe_ep_size = 3", ["DX465"]),
        ("tp_size = 4\ncp_size = 2\nmoe_ep_size = 8", []),  # helix counts them together
    ],
)
def test_experts_are_cut_and_dealt_out_over_all_ranks(sizes, expected):
    assert codes(f"[llm-args]\n{sizes}\n") == expected


def test_ranks_of_context_parallelism_share_a_file():
    text = "[checkpoint]\ntp_size = 2\npp_size = 1\ncp_size = 2\nworld_size = 4\nweights.ranks = [0, 1]\n"
    assert codes(text) == []
    assert codes(text.replace("[0, 1]", "[0]")) == ["DX131"]
    assert codes(text.replace("[0, 1]", "[0, 1, 2]")) == ["DX855"]


def test_attention_data_parallelism_cuts_no_heads():
    text = "[hf]\nnum_heads = 28\nnum_kv_heads = 4\nintermediate_size = 18944\n[llm-args]\ntp_size = 8\n"
    assert codes(text + "attention_dp = true\n") == []


def test_flags_of_a_command_line_are_understood(tmp_path):
    command = command_from_text(RealHost(), "trtllm-serve /model --tp_size 8 --ep_size 8", "--command")
    model = deployment_from_example("[hf]\nnum_heads = 32\nnum_kv_heads = 8\nnum_experts = 60\n")
    deployment = Deployment((*model.artifacts, command))
    [violation] = parallel.expert_parallel.check(deployment)
    assert violation.values["works"] == "1, 2, 3, 4, 5, 6 or 12"
