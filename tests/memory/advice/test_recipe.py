"""The commands of a change: the user's own with it, whole, spelled as the backend and the release take them."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from trtdx.host import RecordedHost
from trtdx.inspect.facts.option_table import option_table
from trtdx.inspect.facts.options import is_known_in
from trtdx.inspect.readers.server.command_text import fold_command
from trtdx.knowledge.versions import parse_release
from trtdx.memory.advice.changes import list_changes
from trtdx.memory.advice.commands import MemoryQuestion, write_commands
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.question.flags import artifact_from_flags
from trtdx.memory.question.setup import MemoryRequest, resolve_setup
from trtdx.model import Section
from trtdx.render.table import table_lines

LLAMA = "Llama-3.1-8B"


def texts(words: str, *asked: str, model: str = LLAMA, version: str = "1.2.1", gpu: str = "B200", **more):
    """Return the commands of the change that is called so."""
    return [
        f"{line.stage.value}: {line.text}"
        for line in commands(words, *asked, model=model, version=version, gpu=gpu, **more).commands
    ]


def commands(words: str, *asked: str, model: str, version: str, gpu: str, files=None, **more):
    host = RecordedHost(files or {})
    question = MemoryRequest(model=model, gpu=gpu, version=version, flags=artifact_from_flags({}, asked), **more)
    answer = resolve_setup(host, question)
    change = next(each for each in list_changes(answer.setup) if each.words.startswith(words))
    return write_commands(MemoryQuestion(host, question, answer, plan_memory), change.apply(answer.setup))


def test_a_server_keeps_the_flags_in_force():
    assert texts("95%", "--max_batch_size", "64", gpu="8xH100") == [
        f"launch: trtllm-serve {LLAMA} --tp_size 8 --max_batch_size 64 --kv_cache_free_gpu_memory_fraction 0.95"
    ]


def test_the_users_command_is_kept_and_only_what_changes_is_changed():
    line = "CUDA_VISIBLE_DEVICES=0 trtllm-serve $MODEL --port 9000 --max_batch_size=512 --max_num_tokens 4096"
    [text] = texts("max_batch_size 64", commands=(line,))
    assert text == (
        f"launch: CUDA_VISIBLE_DEVICES=0 trtllm-serve {LLAMA} --port 9000 --max_batch_size 64 --max_num_tokens 4096"
    )


def test_a_file_of_options_is_kept_and_the_change_is_added():
    yaml = b"kv_cache_config:\n  enable_block_reuse: false\n"
    line = f"trtllm-serve {LLAMA} --config own.yaml"
    [kept] = texts("95%", commands=(line,), files={"own.yaml": yaml})
    assert kept == f"launch: trtllm-serve {LLAMA} --kv_cache_free_gpu_memory_fraction 0.95 --config own.yaml"
    [text] = texts("KV cache in FP8", commands=(line,), files={"own.yaml": yaml})
    assert text == (
        'launch: echo "{kv_cache_config: {enable_block_reuse: false, dtype: fp8}}" > trtdx.yaml && '
        f"trtllm-serve {LLAMA} --config trtdx.yaml"
    )


def test_a_build_keeps_batch_length_and_plugins():
    line = "trtllm-build --checkpoint_dir ck --output_dir e --max_batch_size 64 --max_seq_len 4096 --gemm_plugin auto"
    assert texts("max_num_tokens 2048", commands=(line,)) == [
        "build: trtllm-build --checkpoint_dir ck --output_dir e.new --max_batch_size 64 --max_seq_len 4096 "
        "--gemm_plugin auto --max_num_tokens 2048",
        f"launch: trtllm-serve e.new --tokenizer {LLAMA} --backend tensorrt --max_num_tokens 2048 --enable_chunked_prefill",
    ]


def test_another_format_is_converted_built_and_served():
    found = commands(
        "weights in FP8", "--max_batch_size", "8", "--tp", "2", model=LLAMA, version="0.16.0", gpu="2xH100"
    )
    assert [line.text for line in found.commands] == [
        f"python3 quantize.py --model_dir {LLAMA} --output_dir CKPT --qformat fp8 --tp_size 2",
        "trtllm-build --checkpoint_dir CKPT --output_dir ENGINE --max_batch_size 8",
    ]


def test_the_pytorch_backend_gets_a_checkpoint_whose_cache_is_as_it_was():
    """hf_ptq.py makes an FP8 cache by itself, which nobody asked for."""
    assert texts("weights in FP8") == [
        f"convert: python3 hf_ptq.py --pyt_ckpt_path {LLAMA} --qformat fp8 --kv_cache_qformat none --export_path {LLAMA}-FP8",
        f"launch: trtllm-serve {LLAMA}-FP8",
    ]


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("0.20.0", 'echo "{pytorch_backend_config: {kv_cache_dtype: fp8}}" > trtdx.yaml && '
         f"trtllm-serve {LLAMA} --backend pytorch --extra_llm_api_options trtdx.yaml"),
        ("1.1.0", 'echo "{kv_cache_config: {dtype: fp8}}" > trtdx.yaml && '
         f"trtllm-serve {LLAMA} --extra_llm_api_options trtdx.yaml"),
        ("1.3.0rc21", f"trtllm-serve {LLAMA} --kv_cache_dtype fp8"),
    ],
)  # fmt: skip
def test_each_release_is_told_in_its_own_words(version, text):
    flags = ("--backend", "pytorch") if version.startswith("0") else ()
    assert texts("KV cache in FP8", *flags, version=version) == [f"launch: {text}"]


def test_before_0_11_prompt_and_answer_had_a_limit_each():
    [text] = texts(
        "max_batch_size 8",
        "--max_batch_size",
        "16",
        "--max_input_len",
        "512",
        "--max_output_len",
        "256",
        version="0.9.0",
        gpu="A100",
    )
    assert text.endswith("--max_batch_size 8 --max_input_len 512 --max_output_len 256")


def test_before_trtllm_build_there_was_build_py():
    [text] = texts("turn on the GEMM plugin", "--gemm_plugin", "disable", version="0.7.1", gpu="A100")
    assert text == f"build: python3 build.py --model_dir {LLAMA} --output_dir ENGINE --use_gemm_plugin bfloat16"


def test_before_trtllm_serve_triton_was_told():
    found = texts("95%", version="0.12.0", gpu="2xA100")
    assert found == [
        "launch: python3 tools/fill_template.py -i MODEL_REPOSITORY/tensorrt_llm/config.pbtxt "
        "kv_cache_free_gpu_mem_fraction:0.95",
        "launch: python3 scripts/launch_triton_server.py --world_size 2 --model_repo MODEL_REPOSITORY",
    ]


def test_a_shorter_length_leaves_room_for_the_prompt_that_was_asked_for():
    host = RecordedHost()
    asked = MemoryRequest(
        model=LLAMA,
        gpu="A100",
        flags=artifact_from_flags({}, ("--max_input_len", "4096", "--gemm_plugin", "auto")),
    )
    lengths = [each.words for each in list_changes(resolve_setup(host, asked).setup) if each.group == "seq"]
    assert lengths
    assert all(int(words.split()[1]) > 4096 for words in lengths)


@pytest.mark.heavy
@pytest.mark.parametrize("release", option_table().build_releases)
def test_builders_are_told_of_flags_their_release_has(release):
    off = ("--context_fmha", "--remove_input_padding", "--gemm_plugin", "--paged_kv_cache")
    asked = ["--backend", "tensorrt", *(word for name in off for word in (name, "disable"))]
    host = RecordedHost()
    question = MemoryRequest(model=LLAMA, gpu="H100", version=release, flags=artifact_from_flags({}, asked))
    answer = resolve_setup(host, question)
    for change in list_changes(answer.setup):
        found = write_commands(MemoryQuestion(host, question, answer, plan_memory), change.apply(answer.setup))
        for line in found.commands if found else ():
            if line.text.startswith("trtllm-build"):
                names = [word for word in shlex.split(line.text) if word.startswith("--")]
                flags = [option_table().flag["trtllm-build"][name] for name in names]
                assert all(
                    is_known_in(flag, parse_release(release), option_table().build_releases) for flag in flags
                ), line.text


def test_what_no_release_can_say_is_not_advised():
    """quantize.py knows no experts, so a model that is cut by experts is not quantised with it."""
    host = RecordedHost()
    asked = MemoryRequest(
        model="Mixtral-8x7B", gpu="8xH100", version="0.16.0", flags=artifact_from_flags({}, ("--ep", "8"))
    )
    answer = resolve_setup(host, asked)
    change = next(each for each in list_changes(answer.setup) if each.words == "weights in FP8")
    assert write_commands(MemoryQuestion(host, asked, answer, plan_memory), change.apply(answer.setup)) is None


def test_the_command_that_verifies_is_whole():
    found = commands("weights in FP8", model=LLAMA, version="1.2.1", gpu="2xH100")
    words = shlex.split(found.verify)
    assert words[:5] == ["trtdx", "memory", LLAMA, "--gpu", "2xH100"]
    assert words[-2] == "--command"
    assert words[-1] == found.script


def test_long_commands_are_broken_where_a_shell_lets_them_be():
    text = "trtllm-serve MODEL " + " ".join(f"--flag_number_{at} value" for at in range(12))
    lines = fold_command(text)
    assert len(lines) > 2
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(text)


def test_a_command_that_writes_a_long_file_of_options_can_be_pasted_from_the_screen():
    windows = [1024, 1024, 1024, 1024, 1024, 131072]
    text = f'echo "{{kv_cache_config: {{max_attention_window: {windows}}}}}" > trtdx.yaml && trtllm-serve MODEL --tp_size 2'
    rows = tuple(("", f"  {part}") for part in fold_command(text))
    shown = "\n".join(table_lines(Section("advice", "", ("", ""), rows)))
    assert shlex.split(shown.replace("\\\n", "")) == shlex.split(text)
    assert subprocess.run(["bash", "-n", "-c", shown], check=False).returncode == 0
    assert all(line.endswith(" \\") for line in shown.splitlines()[:-1])


def test_the_name_of_a_quantised_copy_says_its_format():
    """A launch that is pasted without the conversion before it is of the copy that the conversion made."""
    asked = MemoryRequest(model=LLAMA, gpu="H100", commands=(f"trtllm-serve {LLAMA}-FP8 --tp_size 2",))
    assert resolve_setup(RecordedHost(), asked).setup.formats.weights == "FP8"
    other = MemoryRequest(model=LLAMA, gpu="H100", commands=("trtllm-serve Qwen2.5-7B-AWQ",))
    assert not resolve_setup(RecordedHost(), other).setup.formats.weights


def test_build_py_takes_weight_only_formats_by_its_own_words_and_the_whole_world():
    old = {"version": "0.7.1", "gpu": "L4", "model": "Llama-2-13B"}
    [text] = texts("weights in W8A16", **old)
    assert text.endswith("--output_dir ENGINE --use_weight_only --weight_only_precision int8")
    [text] = texts("tensor parallelism over 2", **old)
    assert text.endswith("--output_dir ENGINE --world_size 2 --tp_size 2")


def test_what_build_py_cannot_be_told_is_not_advised():
    """AWQ needs a file that another script makes."""
    assert commands("weights in W4A16_AWQ", model=LLAMA, version="0.7.1", gpu="A100") is None


def test_commands_that_leave_out_what_was_asked_are_not_advised():
    asked = ("--quantization", "int4_awq")
    assert commands("turn on the GEMM plugin", *asked, model=LLAMA, version="0.7.1", gpu="A100") is None


def test_fused_attention_is_a_part_of_the_attention_plugin():
    answer = resolve_setup(RecordedHost(), MemoryRequest(model="Llama-2-7B", gpu="A100", version="0.7.1"))
    words = [each.words for each in list_changes(answer.setup)]
    assert "turn on the attention plugin" in words
    assert "turn on fused attention for prompts" not in words


def test_a_format_that_the_model_has_already_is_not_made_again():
    [text] = texts("95%", "--quantization", "fp8", model="Llama-3.1-8B-FP8")
    assert text == "launch: trtllm-serve Llama-3.1-8B-FP8 --kv_cache_free_gpu_memory_fraction 0.95"


def test_a_model_in_another_format_is_not_written_over():
    found = texts("95%", "--quantization", "int4_awq", model="gpt-oss-20b", gpu="H100")
    assert found[-1].startswith("launch: trtllm-serve gpt-oss-20b-AWQ ")


def test_a_build_of_a_checkpoint_that_is_yet_to_be_made_comes_with_its_conversion():
    convert, build = texts(
        "turn on packed",
        "--kv_cache_dtype",
        "int8",
        "--remove_input_padding",
        "disable",
        version="0.10.0",
        gpu="A100",
        model="Llama-2-7B",
    )
    assert "--int8_kv_cache" in convert
    assert build.startswith("build: trtllm-build --checkpoint_dir CKPT")


def test_a_quantised_model_is_quantised_again_from_its_twin_in_sixteen_bits():
    convert, launch = texts("weights in NVFP4", model="moonshotai/Kimi-K2-Instruct", gpu="8xB200")
    assert "--pyt_ckpt_path Kimi-K2-Instruct-BF16 " in convert
    assert launch == "launch: trtllm-serve Kimi-K2-Instruct-NVFP4 --tp_size 8"
