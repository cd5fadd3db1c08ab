"""What a page mentions is there in the releases it speaks of."""

from __future__ import annotations

import pytest

from trtdx.inspect.mentions.page_claims import check_claims
from trtdx.knowledge.page_check import NEW_PAGE
from trtdx.rule import parse_rule

PAGE = NEW_PAGE.replace("CODE", "ACME001").replace("SLUG", "bad-thing")


def problems(page):
    return [(one.line, one.message) for one in check_claims([parse_rule(page, "p.md")], {"p.md": page})]


def with_command(command, lang="sh", holds_for=""):
    keys = f"command = '''{command}'''\nlang = \"{lang}\"\nholds_for = \"{holds_for}\""
    return problems(PAGE.replace('command = "the command to paste"', keys))


def test_a_new_page_claims_nothing_wrong():
    assert problems(PAGE) == []


@pytest.mark.parametrize(
    ("command", "lang", "words"),
    [
        ("trtllm-serve M --kv_cache_free_gpu_memory_fracton 0.8", "sh", "nearest: --kv_cache_free_gpu_memory_fraction"),
        ("trtllm-build --checkpoint_dir C", "sh", "trtllm-build: 0.7.0 to 1.3.0rc13 (not in "),
        ("python3 examples/llama/convert_checkpoint.py", "sh", "it is examples/models/core/llama/convert_checkpoint.py"),
        ("export NCCL_P2P_DISABEL=1", "sh", "nearest: NCCL_P2P_DISABLE"),
        ("trtexec --onnx=m.onnx --fp16", "sh", "--fp16: up to 10.16 (not in 11.1)"),
        ("huggingface-cli download M", "sh", "huggingface-cli: 0.20.0 to 0.36.2 (not in "),
        ("trtllm-serve M --backend tensorrt", "sh", "takes one of"),
        ("kv_cache_config: {free_gpu_mem_fraction: 0.8}", "yaml", "nearest: kv_cache_config.free_gpu_memory_fraction"),
        ("from tensorrt_llm import LLM\nllm = LLM('M', tensor_paralel_size=2)", "python", "nearest: tensor_parallel_size"),
        ("cat > x.yaml <<E\nmoe_config:\n  bakend: CUTLASS\nE", "sh", "nearest: moe_config.backend"),
        ("python3 -c 'print(torch.__version__)'", "sh", "defines torch nowhere"),
        ("python3 -c 'import torch; print(torch.'", "sh", "does not parse"),
    ],
)  # fmt: skip
def test_what_no_release_or_only_another_has_is_told_with_what_there_is(command, lang, words):
    messages = [message for _, message in with_command(command, lang)]
    assert [message for message in messages if words in message] != [], messages


@pytest.mark.parametrize(
    ("command", "holds_for"),
    [
        ("trtllm-build --checkpoint_dir C", ">=0.8,<1.3.0rc21"),
        ("python3 examples/llama/convert_checkpoint.py --model_dir M", ">=0.8,<0.20"),
        ("trtexec --onnx=m.onnx --fp16", "TensorRT <11"),
        ("huggingface-cli download M", "huggingface_hub <1"),
        ("NCCL_DEBUG=INFO trtllm-serve M --tp_size 2 --config x.yaml", ">=1.2"),
        ("unknown-program --nope", ""),
        ("apt-get install -y libopenmpi-dev", ""),
    ],
)
def test_what_all_the_stated_releases_have_is_right(command, holds_for):
    assert with_command(command, holds_for=holds_for) == []


def test_a_stated_span_is_held_against_each_of_its_releases():
    [(_, message)] = with_command("trtllm-build --kv_cache_type paged", holds_for=">=0.8,<1.0")
    assert "--kv_cache_type: 0.13.0 to 1.3.0rc13 (not in " in message


def test_a_sentence_about_the_past_says_so():
    said = "One to three sentences that say the cause plainly"
    undated = PAGE.replace(said, "Pass `--use_custom_all_reduce disable` then")
    dated = PAGE.replace(said, "Pass `--use_custom_all_reduce disable`, which 0.12 removed")
    assert [line for line, message in problems(undated) if "--use_custom_all_reduce" in message] == [25]
    assert problems(dated) == []


def test_a_name_that_no_release_has_is_wrong_in_any_sentence():
    page = PAGE.replace("One to three", "Since 1.0 `kv_cache_config.fraction` exists; one to three")
    assert ["no release has this key" in message for _, message in problems(page)] == [True]
