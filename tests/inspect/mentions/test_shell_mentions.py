"""The names that a shell text uses."""

from __future__ import annotations

import pytest

from trtdx.inspect.mentions.shell_mentions import mentions_in_shell


def names(text):
    return [(one.kind, one.name) for one in mentions_in_shell(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trtllm-build --gemm_plugin auto", [("program", "trtllm-build"), ("flag", "--gemm_plugin")]),
        ("grep -n -- --gemm_plugin trtllm-build.log", []),
        ("echo trtllm-build --nope", []),
        ("NCCL_DEBUG=INFO ./mine --nope", [("variable", "NCCL_DEBUG")]),
        ("MY_OWN=1 ./mine", []),
        ("CUDA_VISIBLE_DEVICES=0 ./mine", []),
        ("mpirun -n 2 -x TLLM_LOG_LEVEL=debug ./mine --nope", [("program", "mpirun"), ("variable", "TLLM_LOG_LEVEL")]),
        ("uv pip install --prerelease=allow x", []),
        ("docker exec -it box bash", []),
        ("bash -lc 'trtexec --fp16'", [("program", "trtexec"), ("flag", "--fp16")]),
        ("python3 -m tensorrt_llm.commands.build --workers 2", [("program", "trtllm-build"), ("flag", "--workers")]),
        ("ls examples/models/core/FAMILY/convert_checkpoint.py", []),
        ("ls examples/llama", [("folder", "examples/llama")]),
    ],
)
def test_programs_flags_variables_and_scripts_are_seen_where_they_are_used(text, expected):
    assert names(text) == expected


def test_a_launched_program_and_its_launcher_have_flags_of_their_own():
    text = "mpirun --oversubscribe -n 2 python3 /app/tensorrt_llm/examples/run.py --engine_dir E"
    assert names(text) == [
        ("program", "mpirun"), ("flag", "--oversubscribe"),
        ("flag", "--engine_dir"), ("path", "examples/run.py"),
    ]  # fmt: skip


def test_a_flag_belongs_to_its_subcommand_and_to_that_of_a_subcommand():
    text = "trtllm-bench --model M prepare-dataset --output O token-norm-dist --num-requests 9"
    mentions = {one.name: one.subcommand for one in mentions_in_shell(text) if one.kind == "flag"}
    assert mentions == {
        "--model": "prepare-dataset",
        "--output": "prepare-dataset",
        "--num-requests": "token-norm-dist",
    }
