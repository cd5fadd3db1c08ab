"""Options and commands against release, model and engine: each mistake gives its rule, correct ones none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.make_triton import make_llm_args
from trtdx.host import RealHost
from trtdx.inspect.agreements import agreement_table
from trtdx.inspect.agreements.agreement import judge_findings
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.facts.page_examples import deployment_from_example
from trtdx.inspect.readers.server.llm_args import command_from_text, read_llm_args
from trtdx.knowledge.load import load_book
from trtdx.model import Severity

if TYPE_CHECKING:
    from pathlib import Path

    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.model import Finding

HOST = RealHost()
BOOK = load_book(HOST)
ENGINE = """
[engine]
architecture = "LlamaForCausalLM"
max_batch_size = 8
max_beam_width = 1
max_seq_len = 2048
max_num_tokens = 4096
tp_size = 1
pp_size = 1
kv_cache_type = "paged"
plugin.use_paged_context_fmha = true
"""
MODEL = '[hf]\narchitecture = "LlamaForCausalLM"\nmax_positions = 4096\ndtype = "bfloat16"\n'


def example(text: str) -> tuple[Artifact, ...]:
    return deployment_from_example(text).artifacts


def options(tmp_path: Path, version: str = "", **given: Any) -> Artifact:
    return read_llm_args(HOST, str(make_llm_args(tmp_path / "extra.yaml", **given)), version)


def command(text: str, version: str = "") -> Artifact:
    return command_from_text(HOST, text, "--command", version=version)


def found(*artifacts: Artifact) -> list[Finding]:
    return judge_findings(agreement_table(), Deployment(artifacts), BOOK)


def codes(*artifacts: Artifact) -> set[str]:
    return {finding.code for finding in found(*artifacts)}


@pytest.mark.parametrize("version", ["", "1.0.0", "1.1.0", "1.2.1", "1.3.0rc23"])
def test_correct_options_give_nothing_in_any_release(tmp_path: Path, version: str) -> None:
    assert codes(options(tmp_path, version), *example(MODEL)) == set()


def test_correct_options_with_their_engine_give_nothing(tmp_path: Path) -> None:
    assert codes(options(tmp_path, backend="tensorrt"), *example(ENGINE)) == set()


@pytest.mark.parametrize(
    "text",
    [
        "trtllm-serve org/name --tp_size 8 --max_batch_size 64 --max_num_tokens 8192",
        "mpirun -n 8 trtllm-llmapi-launch trtllm-serve org/name --tp_size 4 --pp_size 2",
        "mpirun -n 1 --allow-run-as-root trtllm-serve org/name --tp_size 4",
        "trtllm-bench --model org/name throughput --tp 2 --max_num_tokens 8192 --max_seq_len 32768",
        "trtllm-build --checkpoint_dir c --output_dir e --max_batch_size 2048 --max_num_tokens 1024",
        "trtllm-eval --model org/name mmlu --anything 3",
        "trtllm-serve disaggregated -c disagg.yaml",
    ],
)
def test_correct_commands_give_nothing(text: str) -> None:
    assert codes(command(text)) == set()


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"use_cuda_graph": True}, "DX246"),
        ({"kv_cache_confg": {"dtype": "fp8"}}, "DX246"),
        ({"max_batch_size": "many"}, "DX249"),
        ({"cuda_graph_config": {"max_batch_size": 64, "batch_sizes": [1, 8]}}, "DX249"),
        ({"kv_cache_config": {"free_gpu_memory_fraction": 90}}, "DX355"),
        ({"kv_cache_config": {"tokens_per_block": 48}}, "DX873"),
        ({"max_batch_size": 8192}, "DX878"),
        ({"max_input_len": 8192, "enable_chunked_prefill": False}, "DX879"),
    ],
)
def test_each_mistake_in_options_gives_its_rule(tmp_path: Path, given: dict[str, Any], code: str) -> None:
    assert codes(options(tmp_path, **given)) == {code}


@pytest.mark.parametrize(
    ("given", "facts", "code"),
    [
        ({"max_batch_size": 64}, ENGINE, "DX212"),
        ({"max_beam_width": 4}, ENGINE, "DX212"),
        ({"max_num_tokens": 8192}, ENGINE, "DX870"),
        ({"tensor_parallel_size": 2}, ENGINE, "DX210"),
        ({"kv_cache_config": {"max_attention_window": [4096]}}, ENGINE, "DX872"),
        ({"enable_chunked_prefill": True}, ENGINE.replace("fmha = true", "fmha = false"), "DX216"),
        ({"max_seq_len": 16384}, MODEL, "DX871"),
        ({"dtype": "float32"}, MODEL, "DX877"),
    ],
)
def test_each_disagreement_with_engine_or_model_gives_its_rule(
    tmp_path: Path, given: dict[str, Any], facts: str, code: str
) -> None:
    assert codes(options(tmp_path, **given), *example(facts)) == {code}


def test_a_budget_tuned_for_short_prompts_is_fine(tmp_path: Path) -> None:
    tuned = options(tmp_path, max_seq_len=9416, max_num_tokens=3136, enable_chunked_prefill=False)
    assert codes(tuned) == set()


def test_the_pytorch_backend_has_no_engine_to_disagree_with(tmp_path: Path) -> None:
    assert codes(options(tmp_path, max_batch_size=64, backend="pytorch"), *example(ENGINE)) == set()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("mpirun -n 4 trtllm-llmapi-launch trtllm-serve m --tp_size 8", "DX210"),
        ("mpirun -n 4 trtllm-serve m --tp_size 4", "DX449"),
        ("trtllm-serve m --tp-size 4", "DX246"),
        ("trtllm-serve m --config nowhere.yaml", "DX880"),
        ("trtllm-build --checkpoint_dir c --use_gpt_attention_plugin float16", "DX154"),
    ],
)
def test_each_mistake_in_a_command_gives_its_rule(text: str, code: str) -> None:
    assert codes(command(text)) == {code}


@pytest.mark.parametrize(
    ("version", "severity"),
    [("", Severity.WARNING), ("1.2.1", Severity.ERROR), ("1.3.0rc30", Severity.WARNING)],
)
def test_an_old_name_is_as_grave_as_the_release_makes_it(tmp_path: Path, version: str, severity: Severity) -> None:
    [finding] = found(options(tmp_path, version, use_cuda_graph=True))
    assert finding.severity is severity
    assert "cuda_graph_config" in finding.message
    assert finding.where.endswith("use_cuda_graph")


def test_an_old_name_in_its_own_release_gives_nothing(tmp_path: Path) -> None:
    path = tmp_path / "extra.yaml"
    path.write_text("use_cuda_graph: true\nkv_cache_dtype: fp8\n")
    assert codes(read_llm_args(HOST, str(path), "0.21.0")) == set()


def test_two_places_that_differ_are_told_with_the_one_that_wins(tmp_path: Path) -> None:
    path = make_llm_args(tmp_path / "extra.yaml", max_batch_size=64)
    text = f"trtllm-serve m --max_batch_size 128 --config {path}"
    for version, winner in (("1.2.1", "the file wins"), ("1.3.0rc23", "the command line wins")):
        [finding] = found(command(text, version))
        assert finding.code == "DX262"
        assert winner in finding.message


def test_a_file_that_is_named_by_a_command_is_not_judged_twice(tmp_path: Path) -> None:
    path = make_llm_args(tmp_path / "extra.yaml", use_cuda_graph=True)
    both = (command(f"trtllm-serve m --config {path}"), read_llm_args(HOST, str(path)))
    assert [finding.code for finding in found(*both)] == ["DX246"]


def test_keys_written_twice_give_their_rule(tmp_path: Path) -> None:
    path = tmp_path / "extra.yaml"
    path.write_text("max_batch_size: 8\nmax_batch_size: 16\n")
    assert codes(read_llm_args(HOST, str(path))) == {"DX876"}


def test_a_model_with_python_of_its_own_needs_leave(tmp_path: Path) -> None:
    model = example("[hf]\nremote_code = true\n")
    assert codes(command("trtllm-serve hf"), *model) == {"DX084"}
    assert codes(command("trtllm-serve hf --trust_remote_code"), *model) == set()


def test_an_engine_directory_for_the_pytorch_backend_gives_its_rule() -> None:
    engine = example(ENGINE)  # its path is "engine"
    assert codes(command("trtllm-serve engine", "1.2.1"), *engine) == {"DX248"}
    assert codes(command("trtllm-serve engine --backend tensorrt", "1.2.1"), *engine) == set()


def test_the_engine_backend_is_gone_in_1_3(tmp_path: Path) -> None:
    assert codes(options(tmp_path, "1.3.0rc23", backend="tensorrt")) == {"DX247"}
    assert codes(options(tmp_path, "1.2.1", backend="tensorrt")) == set()


def test_a_rotary_scaling_lengthens_the_model(tmp_path: Path) -> None:
    long = MODEL + 'rope_scaling = { type = "yarn", factor = 4.0 }\n'
    assert codes(options(tmp_path, max_seq_len=16384), *example(long)) == set()
