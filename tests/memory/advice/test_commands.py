"""Every command that is advised, pasted back, reaches what the advice promised, in words its release has."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import sys

import pytest

from trtdx.formats.yaml_documents import parse_yaml
from trtdx.inspect.facts.options import judge_flags, judge_options
from trtdx.inspect.readers.server.commands import command_lines
from trtdx.knowledge import versions
from trtdx.memory.question.scripts import CHECKPOINT_PROGRAMS, KNOWN_PROGRAMS

MODELS = (
    "Llama-3.1-8B", "Llama-3.1-70B", "Llama-3.1-405B", "Llama-2-7B", "Mistral-7B", "Mixtral-8x7B", "Qwen2.5-7B",
    "Qwen3-235B-A22B", "DeepSeek-R1", "gpt-oss-120b", "Qwen2.5-7B-AWQ", "Llama-3.1-8B-FP8",
)  # fmt: skip
GPUS = (
    "T4", "A10", "L4", "L40S", "A100", "A100-40GB", "2xA100", "H100", "4xH100", "8xH100", "H200", "8xH200", "B200",
    "8xB200", "GB200", "RTX 4090", "RTX 5090", "DGX Spark",
)  # fmt: skip
ENGINES = ("0.9.0", "0.10.0", "0.12.0", "0.14.0", "0.16.0", "0.18.0", "0.21.0", "1.0.0", "1.1.0", "1.2.1")
SERVERS = ("0.20.0", "1.0.0", "1.1.0", "1.2.0", "1.2.1", "1.3.0rc13", "1.3.0rc21")
LIMITS = {
    "--max_batch_size": (1, 8, 64, 256, 2048),
    "--max_num_tokens": (2048, 8192, 16384),
    "--max_seq_len": (2048, 8192, 32768),
    "--max_beam_width": (1, 4),
    "--kv_cache_free_gpu_memory_fraction": (0.5, 0.8, 0.9),
}
OF_ENGINES = {
    "--max_input_len": (1024, 4096),
    "--gemm_plugin": ("auto", "disable"),
    "--remove_input_padding": ("enable", "disable"),
    "--context_fmha": ("enable", "disable"),
    "--paged_kv_cache": ("enable", "disable"),
}
OF_SERVERS = {"--cuda_graph": ("off",), "--enable_chunked_prefill": ("",), "--kv_cache_dtype": ("fp8",)}


def question(seed: int) -> list[str]:
    chance = random.Random(seed)
    engine = chance.random() < 0.5
    release = chance.choice(ENGINES if engine else SERVERS)
    words = [chance.choice(MODELS), "--gpu", chance.choice(GPUS), "--trtllm-version", release]
    words += ["--backend", "tensorrt" if engine else "pytorch"]
    if "T4" in words:
        words += ["--dtype", "float16"]
    choices = LIMITS | (OF_ENGINES if engine else OF_SERVERS)
    flags = {name: chance.choice(choices[name]) for name in chance.sample(sorted(choices), chance.randrange(5))}
    if engine and not versions.at_least(release, "0.11.0"):
        flags.pop("--max_seq_len", None)
    given = [word for name, value in flags.items() for word in (name, str(value)) if word]
    if engine or chance.random() < 0.6:
        words += given
    else:  # the same as a command
        own = {name: value for name, value in flags.items() if name in LIMITS}
        line = ["trtllm-serve", words.pop(0), "--port", "9000", "--backend", "pytorch"]
        line += [word for name, value in own.items() for word in (name, str(value))]
        if words[1].startswith(("2x", "4x", "8x")):
            line += ["--tp_size", words[1][0]]
        words += ["--command", shlex.join(line)]
    if chance.random() < 0.25:
        words += ["--target", f"batch={chance.choice((4, 64))}, seq={chance.choice((2048, 16384))}"]
    return words


def told_commands(report: dict) -> list[dict]:
    """Return every change that has commands: advice, fixes of a finding, a target and its nearest."""
    target = report.get("target") or {}
    found = [*report.get("advice", ()), *target.get("nearest", ())]
    return [each for each in (*found, target) if each.get("command")]


def demand_known(text: str, release: str, backend: str) -> None:
    lines, script = command_lines(text, KNOWN_PROGRAMS)
    assert not script.unclosed_quote, text
    for line in lines:
        if line.program in (*CHECKPOINT_PROGRAMS, "fill_template.py", "launch_triton_server.py"):
            continue
        names = [given.name for given in line.flags]
        wrong = [each.words for each in judge_flags(line.program, names, release, line.subcommand)]
        assert not wrong, (text, wrong)
        assert len(names) == len(set(names)), text
    for content, _ in script.files.values():
        keys = leaves(parse_yaml(content.encode(), "trtdx.yaml").data)
        wrong = [each.words for each in judge_options(keys, release, backend)]
        assert not wrong, (text, wrong)


def leaves(data: dict, prefix: str = "") -> list[str]:
    found = []
    for name, value in data.items():
        inner = isinstance(value, dict) and value
        found += leaves(value, f"{prefix}{name}.") if inner else [f"{prefix}{name}"]
    return found


def demand_sense(setup: dict) -> None:
    """Limits that are built or served together do not contradict each other."""
    limits = setup["limits"]
    assert limits["max_input_len"] <= limits["max_seq_len"]
    assert limits["max_num_tokens"] >= limits["max_batch_size"] or setup["running"]["backend"] == "tensorrt"


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(6))
def test_what_is_advised_does_what_it_promises_when_it_is_pasted(memory, part):
    for seed in range(part * 8, part * 8 + 8):
        words = question(seed)
        done = memory(*words, "--json")
        assert done.returncode in (0, 1, 2), (words, done.stderr)
        if done.returncode == 2:
            continue  # what cannot be asked: engines of a release without them
        report = json.loads(done.stdout)
        release, backend = words[words.index("--trtllm-version") + 1], words[words.index("--backend") + 1]
        for each in told_commands(report):
            demand_known(each["command"], release, backend)
            again = memory(*shlex.split(each["verify"])[2:], "--json")
            assert again.returncode in (0, 1), (words, each["verify"], again.stderr)
            plan = json.loads(again.stdout)["memory"]
            assert plan["fits"] == each.get("fits", True), (words, each["verify"])
            if "kv_tokens" in each:
                assert plan["kv_tokens"]["value"] == each["kv_tokens"], (words, each["verify"])
            demand_sense(plan["setup"])


@pytest.mark.heavy
def test_every_advised_command_is_shell(memory):
    for seed in range(0, 48, 5):
        done = memory(*question(seed), "--json")
        for each in told_commands(json.loads(done.stdout)) if done.returncode < 2 else ():
            for text in (each["verify"], *(flag["text"] for flag in each["flags"])):
                assert subprocess.run(["bash", "-n", "-c", text], check=False).returncode == 0, text
    assert sys.executable


@pytest.mark.heavy
@pytest.mark.parametrize(
    "words",
    [
        ("DeepSeek-V3.2", "--gpu", "L4"),
        ("Llama-3.1-405B", "--gpu", "A10", "--trtllm-version", "0.16.0", "--backend", "tensorrt"),
        ("Nemotron-H-56B", "--gpu", "DGX Spark"),
        ("gpt-oss-120b", "--gpu", "RTX 4090", "--quantization", "int4_awq"),
        ("Llama-4-Scout-17B-16E", "--gpu", "RTX 5090"),
    ],
)
def test_every_fix_makes_it_fit(memory, words):
    report = json.loads(memory(*words, "--json").stdout)
    assert report["advice"]
    assert all(each["fits"] for each in report["advice"])
    for each in report["advice"]:
        again = memory(*shlex.split(each["verify"])[2:], "--json")
        assert again.returncode == 0, (words, each["verify"], again.stdout[:300])


def test_a_finding_of_inspect_keeps_the_flags_in_force(memory):
    words = ("Llama-3.1-8B", "--gpu", "L4", "--max_num_tokens", "1024", "--max_seq_len", "4096")
    [found] = json.loads(memory(*words, "--json").stdout)["findings"]
    assert found["code"] == "DX878"
    assert found["fixes"][0]["command"] == "trtllm-serve Llama-3.1-8B --max_num_tokens 8192 --max_seq_len 4096"


@pytest.mark.parametrize(
    "words",
    [
        ("DeepSeek-R1", "--gpu", "8xA100"),
        ("Mistral-7B", "--gpu", "T4"),
        (
            "gemma-3-27b-it",
            "--gpu",
            "RTX 5090",
            "--trtllm-version",
            "1.2.1",
            "--target",
            "batch=300, seq=131072",
        ),
    ],
)
def test_no_command_is_of_another_model(memory, words):
    for found in json.loads(memory(*words, "--json").stdout)["findings"]:
        for fix in found["fixes"]:
            assert "MODEL" not in (fix["command"] or ""), fix
