"""scripts/make_inventory.py on small repositories with tags, written here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "make_inventory.py"
DATA = ROOT / "src" / "trtdx" / "data" / "inventory"

SETUP = "entry_points={'console_scripts': ['trtllm-build=tensorrt_llm.commands.build:main']}\npython_requires='>=3.10, <4'\n"
BUILD = """
import argparse
from tensorrt_llm.plugin.plugin import add_plugin_argument
from tensorrt_llm.builder import BuildConfig
LEVELS = {"info": 1, "debug": 2}

def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint_dir", type=str, default=None, required=True)
    parser.add_argument("--max_batch_size", type=int, default=BuildConfig.max_batch_size)
    parser.add_argument("--log_level", choices=LEVELS.keys(), default="info")
    parser.add_argument("--weight_streaming", action="store_true", help="Deprecated.")
    add_plugin_argument(parser)
"""
PLUGIN = """
from dataclasses import dataclass
from typing import Optional

DEFAULT_PLUGIN_DTYPE_OPTIONS = ["auto", "float16", None]
cli_plugin_args = ["gemm_plugin", "context_fmha"]

@dataclass
class PluginConfig:
    _gemm_plugin: Optional[str] = None
    _context_fmha: bool = True
    _hidden_plugin: Optional[str] = "auto"

def add_plugin_argument(parser):
    for name in cli_plugin_args:
        parser.add_argument("--" + name)
"""
BUILDER = "class BuildConfig:\n    max_batch_size: int = %d\n"
SERVE = """
import click
@click.command("serve")
@click.argument("model")
@click.option("--tp_size", type=int, default=1)
@click.option("--backend", type=click.Choice(["pytorch", "tensorrt"]))
@click.option("--telemetry/--no-telemetry", default=True)
def serve(model): pass

@click.group()
@click.option("--verbose", is_flag=True)
def main(): pass
"""
LLM_ARGS = """
from enum import Enum
from typing import Literal, Optional, Union
from pydantic import BaseModel, Field, AliasChoices
import os

class Policy(str, Enum):
    FIRST = "first"
    LAST = "last"

class KvCacheConfig(BaseModel):
    free_gpu_memory_fraction: Optional[float] = Field(default=0.9, ge=0)
    dtype: Literal["auto", "fp8"] = "auto"
    policy: Policy = Policy.FIRST

class BaseLlmArgs(BaseModel):
    model: str
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    directory: Optional[str] = Field(default=None, validation_alias=AliasChoices("directory", "dir"))

class TrtLlmArgs(BaseLlmArgs):
    fast_build: bool = False

class TorchLlmArgs(BaseLlmArgs):
    attn_backend: str = "TRTLLM"

LEVEL = os.environ.get("TLLM_SAMPLE_MODE", "0") == "1"
COUNT = int(os.getenv("TLLM_SAMPLE_COUNT", "4"))
os.environ["TLLM_ONLY_WRITTEN"] = "1"
"""
CPP = 'bool a = getBoolEnv("TRTLLM_SAMPLE_SWITCH"); auto b = std::getenv("TRTLLM_SAMPLE_PATH");'
CONVERT = "parser.add_argument('--dtype', choices=['float16', 'auto'], default='auto')\n"


def commit(repository: Path, tag: str, files: dict[str, str | None]) -> None:
    for name, text in files.items():
        path = repository / name
        if text is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    run(repository, "add", "-A")
    run(repository, "commit", "-qm", tag)
    run(repository, "tag", tag)


def run(repository: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(repository), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def mirrors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mirrors")
    ours = folder / "deepinfra+TensorRT-LLM" / "repo"
    ours.mkdir(parents=True)
    run(ours, "init", "-q")
    common = {
        "setup.py": SETUP,
        "tensorrt_llm/plugin/plugin.py": PLUGIN,
        "tensorrt_llm/commands/build.py": BUILD,
        "requirements.txt": "torch>=2.1 # why\nnumpy<2\n",
    }
    commit(
        ours,
        "v0.9.0",
        {**common, "tensorrt_llm/builder.py": BUILDER % 8, "examples/llama/convert_checkpoint.py": CONVERT},
    )
    serving = {
        "tensorrt_llm/commands/serve.py": SERVE,
        "tensorrt_llm/llmapi/llm_args.py": LLM_ARGS,
        "cpp/tensorrt_llm/common/env.cpp": CPP,
    }
    commit(ours, "v1.0.0rc1", {**serving, "tensorrt_llm/builder.py": BUILDER % 2048})
    moved = {
        "examples/llama/convert_checkpoint.py": None,
        "examples/models/core/llama/convert_checkpoint.py": CONVERT,
    }
    commit(ours, "v1.0.0", {**moved, "requirements.txt": "torch>=2.7\n"})
    run(ours, "tag", "v1.0.0-private")
    nccl = folder / "NVIDIA+nccl" / "repo"
    nccl.mkdir(parents=True)
    run(nccl, "init", "-q")
    source = 'NCCL_PARAM(CrossNic, "CROSS_NIC", 2);\nncclGetLevel(&l, "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL");'
    commit(nccl, "v2.27.3-1", {"src/init.cc": source})
    return folder


@pytest.fixture(scope="module")
def inventory(mirrors: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    target = tmp_path_factory.mktemp("inventory")
    write_inventory(mirrors, target)
    return {path.stem: json.loads(path.read_text()) for path in target.glob("*.json")}


def write_inventory(mirrors: Path, target: Path) -> None:
    argv = [sys.executable, str(SCRIPT), "--to", str(target)]
    subprocess.run(argv, check=True, env={**os.environ, "TRTDX_MIRRORS": str(mirrors)}, capture_output=True)


def eras(rows: list[dict], **names: str) -> list[dict]:
    (row,) = [row for row in rows if all(row.get(name) == value for name, value in names.items())]
    return row["eras"]


def test_releases_are_ordered_and_private_tags_left_out(inventory):
    releases = {row["product"]: row["releases"] for row in inventory["releases"]}
    assert releases["TensorRT-LLM"] == ["0.9.0", "1.0.0rc1", "1.0.0"]
    assert releases["NCCL"] == ["2.27.3"]


def test_argparse_flags_have_types_defaults_and_values_by_release(inventory):
    flags = inventory["flags"]
    assert eras(flags, tool="trtllm-build", flag="--max_batch_size") == [
        {"since": "0.9.0", "until": "0.9.0", "type": "int", "default": 8},
        {"since": "1.0.0rc1", "type": "int", "default": 2048},
    ]
    assert eras(flags, tool="trtllm-build", flag="--log_level")[0]["values"] == ["info", "debug"]
    assert eras(flags, tool="trtllm-build", flag="--checkpoint_dir")[0]["required"] is True
    assert eras(flags, tool="trtllm-build", flag="--weight_streaming") == [
        {"since": "0.9.0", "type": "flag", "deprecated": True}
    ]


def test_plugin_fields_become_flags_where_the_command_lists_them(inventory):
    flags = inventory["flags"]
    assert eras(flags, flag="--gemm_plugin")[0]["values"] == ["auto", "float16", "disable"]
    assert eras(flags, flag="--context_fmha") == [
        {"since": "0.9.0", "type": "str", "default": "enable", "values": ["enable", "disable"]}
    ]
    assert not [row for row in flags if row["flag"] == "--hidden_plugin"]
    assert eras(inventory["fields"], owner="PluginConfig", field="hidden_plugin")[0]["default"] == "auto"


def test_click_options_know_their_subcommand(inventory):
    flags = inventory["flags"]
    assert eras(flags, tool="trtllm-serve", subcommand="serve", flag="--backend")[0]["values"] == [
        "pytorch",
        "tensorrt",
    ]
    assert eras(flags, tool="trtllm-serve", subcommand="serve", flag="--no-telemetry")[0]["type"] == "flag"
    (verbose,) = [row for row in flags if row["flag"] == "--verbose" and row["tool"] == "trtllm-serve"]
    assert "subcommand" not in verbose


def test_a_script_keeps_its_name_when_its_folder_moves(inventory):
    assert eras(inventory["flags"], tool="llama/convert_checkpoint.py", flag="--dtype") == [
        {"since": "0.9.0", "type": "str", "default": "auto", "values": ["float16", "auto"]}
    ]
    assert eras(inventory["paths"], path="examples/llama/convert_checkpoint.py") == [
        {"since": "0.9.0", "until": "1.0.0rc1"}
    ]
    assert eras(inventory["paths"], path="examples/models/core/llama/convert_checkpoint.py") == [{"since": "1.0.0"}]


def test_options_are_nested_with_values_aliases_and_backends(inventory):
    options = inventory["options"]
    (fraction,) = eras(options, option="kv_cache_config.free_gpu_memory_fraction")
    assert fraction == {"since": "1.0.0rc1", "type": "float", "default": 0.9, "least": 0}
    assert eras(options, option="kv_cache_config.dtype")[0]["values"] == ["auto", "fp8"]
    assert eras(options, option="kv_cache_config.policy")[0] == {
        "since": "1.0.0rc1",
        "type": "str",
        "default": "first",
        "values": ["first", "last"],
    }
    assert eras(options, option="dir")[0]["alias_of"] == "directory"
    assert eras(options, option="attn_backend")[0]["backends"] == ["pytorch"]
    assert eras(options, option="fast_build")[0]["backends"] == ["tensorrt"]


def test_variables_are_those_that_are_read(inventory):
    variables = inventory["variables"]
    assert eras(variables, variable="TLLM_SAMPLE_MODE")[0] == {
        "since": "1.0.0rc1",
        "default": "0",
        "values": ["1"],
    }
    assert eras(variables, variable="TLLM_SAMPLE_COUNT")[0]["type"] == "int"
    assert eras(variables, variable="TRTLLM_SAMPLE_SWITCH")[0] == {
        "since": "1.0.0rc1",
        "type": "bool",
        "values": ["1"],
    }
    assert eras(variables, variable="NCCL_CROSS_NIC") == [{"since": "2.27.3", "type": "int", "default": "2"}]
    names = {row["variable"] for row in variables}
    assert {"TRTLLM_SAMPLE_PATH", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"} <= names
    assert "TLLM_ONLY_WRITTEN" not in names


def test_requirements_follow_their_file(inventory):
    requirements = inventory["requirements"]
    assert [era["wants"] for era in eras(requirements, package="torch")] == [">=2.1", ">=2.7"]
    assert eras(requirements, package="numpy") == [{"since": "0.9.0", "until": "1.0.0rc1", "wants": "<2"}]
    assert eras(requirements, package="python")[0]["wants"] == ">=3.10,<4"


def test_the_same_mirrors_give_the_same_bytes(mirrors, tmp_path):
    for name in ("one", "two"):
        write_inventory(mirrors, tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


@pytest.mark.heavy
@pytest.mark.skipif("TRTDX_MIRRORS" not in os.environ, reason="TRTDX_MIRRORS names no folder of mirrors")
def test_the_committed_inventory_is_what_the_mirrors_give(tmp_path):
    write_inventory(Path(os.environ["TRTDX_MIRRORS"]), tmp_path)
    changed = [path.name for path in tmp_path.iterdir() if path.read_bytes() != (DATA / path.name).read_bytes()]
    assert changed == []
