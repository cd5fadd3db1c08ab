"""Mistakes that an examiner planted in command lines and option files: each gives its rule, near misses give none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from trtdx.errors import InputError
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
LLAMA = '[hf]\nmodel_type = "llama"\nvocab_size = 128256\n'


def command(text: str, version: str = "1.2.0") -> Artifact:
    return command_from_text(HOST, text, "--command", version=version)


def options(tmp_path: Path, text: str, version: str = "1.2.0") -> Artifact:
    path = tmp_path / "extra.yaml"
    path.write_text(text)
    return read_llm_args(HOST, str(path), version)


def example(text: str) -> tuple[Artifact, ...]:
    return deployment_from_example(text).artifacts


def found(*artifacts: Artifact) -> list[Finding]:
    return judge_findings(agreement_table(), Deployment(artifacts), BOOK)


def codes(*artifacts: Artifact) -> set[str]:
    return {finding.code for finding in found(*artifacts)}


def test_a_model_path_that_is_not_there_is_an_error_where_its_folder_is(tmp_path: Path) -> None:
    [finding] = found(command(f"trtllm-serve {tmp_path}/llama-instruct --tp_size 2"))
    assert (finding.code, finding.severity) == ("DX880", Severity.ERROR)
    assert f"{tmp_path}/llama-instruct" in finding.message
    assert str(tmp_path) in (finding.fixes[0].command or "")


@pytest.mark.parametrize(
    "model", ["org/name", "/models/llama", "./nowhere/llama", "llama", "/tmp/llama-of-tomorrow", "$MODEL"]
)
def test_a_path_of_another_machine_or_a_name_on_the_hub_is_not_called_missing(model: str) -> None:
    assert codes(command(f"trtllm-serve {model}")) == set()


def test_a_script_that_fetches_the_model_makes_its_path(tmp_path: Path) -> None:
    text = f"hf download org/name --local-dir {tmp_path}/m\ntrtllm-serve {tmp_path}/m"
    assert codes(command(text)) == set()


def test_other_paths_of_a_command_are_missing_where_its_model_is_here(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    model = f"trtllm-serve {tmp_path}/m"
    assert codes(command(f"{model} --tokenizer /elsewhere/tokenizer")) == {"DX880"}
    assert codes(command(f"{model} --config /elsewhere/extra.yaml")) == {"DX880"}
    assert codes(command(f"{model} --tokenizer org/name")) == set()


def test_a_path_that_one_command_names_twice_is_not_made_by_it(tmp_path: Path) -> None:
    model = f"{tmp_path}/m"
    assert codes(command(f"trtllm-serve {model} --tokenizer {model} --config {model}/e.yaml")) == {"DX880"}


def test_an_options_file_that_is_not_there_has_words_of_its_own(tmp_path: Path) -> None:
    [sure] = found(command(f"trtllm-serve org/name --config {tmp_path}/extra.yml"))
    [unsure] = found(command("trtllm-serve org/name --config extra.yml"))
    assert (sure.code, sure.severity) == ("DX880", Severity.ERROR)
    assert (unsure.code, unsure.severity) == ("DX880", Severity.NOTE)
    assert "is not there" in sure.message
    assert not any("yaml.safe_load" in (fix.command or "") for fix in sure.fixes)


def test_a_draft_model_that_is_not_there_is_told(tmp_path: Path) -> None:
    text = f"speculative_config:\n  decoding_type: Eagle\n  speculative_model_dir: {tmp_path}/eagle\n"
    assert codes(options(tmp_path, text)) == {"DX880"}
    elsewhere = text.replace(str(tmp_path), "/models")
    assert codes(options(tmp_path, elsewhere)) == set()
    assert any("/models/eagle" in note for note in options(tmp_path, elsewhere).unread)


def draft(tmp_path: Path, vocabulary: int, decoding: str = "DraftTarget") -> Artifact:
    (tmp_path / "draft").mkdir(exist_ok=True)
    (tmp_path / "draft/config.json").write_text(json.dumps({"vocab_size": vocabulary}))
    text = f"speculative_config:\n  decoding_type: {decoding}\n  speculative_model_dir: {tmp_path}/draft\n"
    return options(tmp_path, text + "  max_draft_len: 3\n")


def test_a_draft_model_has_the_vocabulary_of_its_target(tmp_path: Path) -> None:
    [finding] = found(draft(tmp_path, 151936), *example(LLAMA))
    assert finding.code == "DX319"
    assert "151936" in finding.message
    assert "128256" in finding.message
    assert codes(draft(tmp_path, 128256), *example(LLAMA)) == set()
    assert codes(draft(tmp_path, 128264), *example(LLAMA)) == set()  # padded otherwise
    assert codes(draft(tmp_path, 32000, "Eagle"), *example(LLAMA)) == set()  # may have a map of its own


def test_predicting_layers_are_asked_of_a_model_that_has_them(tmp_path: Path) -> None:
    asked = "speculative_config:\n  decoding_type: MTP\n  num_nextn_predict_layers: 1\n"
    assert codes(options(tmp_path, asked), *example(LLAMA)) == {"DX874"}
    assert codes(options(tmp_path, asked), *example(LLAMA.replace("llama", "deepseek_v3"))) == set()
    assert codes(options(tmp_path, asked), *example(LLAMA.replace("llama", "something_new"))) == set()


@pytest.mark.parametrize(("sm", "expected"), [(90, {"DX875"}), (89, {"DX875"}), (100, set()), (103, set())])
def test_a_cache_in_nvfp4_needs_a_gpu_that_computes_it(tmp_path: Path, sm: int, expected: set[str]) -> None:
    machine = example(f'[machine]\ngpu.sm = {sm}\ngpu.runtime = "1.2.0"\n')
    assert codes(options(tmp_path, "kv_cache_config:\n  dtype: nvfp4\n"), *machine) == expected
    assert codes(options(tmp_path, "kv_cache_config:\n  dtype: fp8\n"), *machine) == set()


def test_an_adapter_is_no_model() -> None:
    adapter = example('[lora]\nlora.rank = 8\nlora.base_model = "org/base"\n')
    [finding] = found(command("trtllm-serve lora"), *adapter)
    assert finding.code == "DX881"
    assert "org/base" in (finding.fixes[0].command or "")


TOKENIZERS = """
[hf]
vocab_size = 128256
tokenizer.size = 128256
tokenizer.eos_id = 128009
[hf.other]
vocab_size = 151936
tokenizer.size = 151669
tokenizer.eos_id = 151645
"""


def test_a_tokenizer_that_is_named_is_the_models() -> None:
    [finding] = found(command("trtllm-serve hf --tokenizer hf.other"), *example(TOKENIZERS))
    assert finding.code == "DX509"
    assert "hf.other" in (finding.fixes[0].command or "")
    assert codes(command("trtllm-serve hf --tokenizer hf"), *example(TOKENIZERS)) == set()
    alike = TOKENIZERS.replace("151669", "128256").replace("151645", "128009").replace("151936", "128256")
    assert codes(command("trtllm-serve hf --tokenizer hf.other"), *example(alike)) == set()


@pytest.mark.parametrize(
    ("text", "version", "words"),
    [
        ("--reasoning_parser qwen-3", "1.2.0", "did you mean qwen3?"),
        ("--reasoning_parser qwen3", "1.1.0", "takes one of deepseek-r1"),
        ("--tool_parser hermes", "1.2.0", "takes one of"),
        ("--max_batch_size -1", "1.2.0", "at least 1"),
        ("--tp_size 0", "1.2.0", "at least 1"),
        ("--extra_llm_api_options", "1.2.0", "needs a value"),
        ("--extra_llm_api_options --tp_size 2", "1.2.0", "needs a value"),
        ("--backend torch", "1.2.0", "takes one of"),
    ],
)
def test_a_value_that_a_flag_does_not_take_is_told(text: str, version: str, words: str) -> None:
    [finding] = found(command(f"trtllm-serve org/name {text}", version))
    assert finding.code == "DX249"
    assert words in finding.message


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("--reasoning_parser qwen3", "1.2.0"),
        ("--reasoning_parser kimi_k2", "1.3.0rc10"),  # between two releases that were looked at
        ("--reasoning_parser auto --tool_parser auto", "1.3.0rc23"),
        ("--reasoning_parser anything", "1.4.0"),
        ("--backend trt", "1.0.0"),
        ("--ep_size -1", "1.2.0"),
    ],
)
def test_values_of_a_release_are_taken(text: str, version: str) -> None:
    assert codes(command(f"trtllm-serve org/name {text}", version)) == set()


@pytest.mark.parametrize(
    ("text", "version", "expected"),
    [
        ("kv_cache_config:\n  dtype: fp8_e5m2\n", "1.2.0", {"DX249"}),
        ("kv_cache_config:\n  dtype: nvfp4\n", "1.0.0", {"DX249"}),
        ("kv_cache_config:\n  dtype: FP8\n", "1.3.0rc23", set()),
        ("backend: _autodeploy\nkv_cache_config:\n  dtype: float16\n", "1.2.0", set()),
        ("moe_config:\n  backend: TRITON\n", "1.0.0", {"DX249"}),
        ("moe_config:\n  backend: TRITON\n", "1.1.0", set()),
        ("moe_config:\n  backend: DENSEGEMM\n", "1.2.1", {"DX249"}),
        ("moe_config:\n  backend: MARLIN\n", "", set()),
        ("tensor_parallel_size: 0\n", "1.2.0", {"DX249"}),
    ],
)
def test_a_value_is_judged_by_the_release(tmp_path: Path, text: str, version: str, expected: set[str]) -> None:
    assert codes(options(tmp_path, text, version)) == expected


def test_subcommands_have_flags_of_their_own() -> None:
    bench = "trtllm-bench --model org/name"
    [finding] = found(command(f"{bench} throughput --dataset d.txt --tp_size 2"))
    assert finding.code == "DX246"
    assert "did you mean --tp?" in finding.message
    assert codes(command(f"{bench} build --dataset d.txt --tp_size 2")) == set()
    assert codes(command(f"{bench} latency --dataset d.txt --tp 2 --medusa_choices c")) == set()


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--gpu-memory-utilization 0.9", "--kv_cache_free_gpu_memory_fraction"),
        ("--tensor-parallel-size 2", "--tensor_parallel_size"),
        ("--max-model-len 8192", "--max_seq_len"),
        ("--max-num-seqs 8", "--max_batch_size"),
        ("--max-num-batched-tokens 8192", "--max_num_tokens"),
        ("--trust-remote-code", "--trust_remote_code"),
        ("--dtype float16", "dtype in the --config file"),
        ("--enable-prefix-caching", "kv_cache_config.enable_block_reuse in the --config file"),
        ("--quantization fp8", "leave it out"),
        ("--model org/name", "without a flag"),
    ],
)
def test_a_flag_of_another_server_is_told_with_the_name_it_has_here(flag: str, meant: str) -> None:
    [finding] = found(command(f"trtllm-serve org/name {flag}"))
    assert finding.code == "DX246"
    assert meant in finding.message
    assert "pydantic" not in finding.why
    assert finding.fixes[0].command == "trtllm-serve serve --help"


def test_before_the_long_names_the_short_one_is_named() -> None:
    [finding] = found(command("trtllm-serve org/name --tensor-parallel-size 2", "1.0.0"))
    assert "--tp_size" in finding.message


def test_a_flag_is_refused_by_old_releases_too() -> None:
    [finding] = found(command("trtllm-serve org/name --foo_bar 1", "0.20.0"))
    assert finding.severity is Severity.ERROR
    assert "without a word" not in finding.message


def test_an_unknown_key_says_how_far_was_looked(tmp_path: Path) -> None:
    [finding] = found(options(tmp_path, "flash_mode: 1\n"))
    assert "no release up to 1.3.0rc23 has it" in finding.message


def test_two_places_are_told_with_the_lines_to_choose_from(tmp_path: Path) -> None:
    (tmp_path / "extra.yaml").write_text("max_batch_size: 8\ntensor_parallel_size: 8\n")
    [finding] = found(command(f"trtllm-serve org/name --tp_size 4 --config {tmp_path}/extra.yaml"))
    assert finding.code == "DX262"
    assert f"{tmp_path}/extra.yaml:2" in finding.fixes[0].text
    assert "--tp_size" in finding.fixes[0].text


@pytest.mark.parametrize("text", ["vllm serve org/name", "ls", "", "trtllm-serve org/name --chat_template 'x"])
def test_a_command_that_starts_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError) as refused:
        command(text)
    assert "trtllm-serve" in refused.value.fix or "quote" in refused.value.message


def test_an_answer_that_has_no_room_is_not_to_be_shortened() -> None:
    long = example("[command]\nmax_seq_len = 2048\n[request]\nrequest.input_len = 3000\nrequest.output_len = 8\n")
    [finding] = found(*long)
    assert finding.code == "DX920"
    assert not any("0 are left" in fix.text for fix in finding.fixes)
