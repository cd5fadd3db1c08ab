"""Flags, variables and paths of the programs around TensorRT-LLM."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from inventory import other_sources, variables
from inventory.python_flags import FlagKey, collect_script_flags
from inventory.python_source import Sources
from inventory.tensorrt_llm import name_script
from inventory.typer_flags import collect_typer_flags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from inventory.mirrors import Tree

Facts = dict[str, Any]
HUB_COMMANDS = (
    "auth",
    "cache",
    "delete_cache",
    "download",
    "scan_cache",
    "system",
    "upload",
    "upload_large_folder",
    "user",
)
NO_SKIP = re.compile(r"/tests?/|/ext-|3rd-party|/contrib/")


def _keyed(tool: str, flags: dict[str, Facts]) -> dict[FlagKey, Facts]:
    return {FlagKey(tool, "", name): facts for name, facts in flags.items()}


def _script_flags(tree: Tree, patterns: Iterable[str]) -> dict[FlagKey, Facts]:
    sources = Sources(tree)
    flags: dict[FlagKey, Facts] = {}
    for path in tree.find_paths(*patterns):
        flags |= collect_script_flags(sources, path, name_script(path))
    return flags


def collect_tensorrt_flags(tree: Tree) -> dict[FlagKey, Facts]:
    """Return the flags of trtexec, and of polygraphy without regard to its subcommands."""
    source = tree.read_text("samples/common/sampleOptions.cpp")
    header = tree.read_text("samples/common/sampleOptions.h")
    flags = _keyed("trtexec", other_sources.read_trtexec_flags(source, header))
    sources = Sources(tree)
    for path in tree.find_paths("tools/Polygraphy/polygraphy/tools/*.py"):
        flags |= collect_script_flags(sources, path, "polygraphy")
    return flags


def collect_triton_flags(tree: Tree) -> dict[FlagKey, Facts]:
    paths = ("src/command_line_parser.cc", "src/main.cc")
    text = next((text for text in map(tree.read_text, paths) if "OPTION_MODEL_REPOSITORY" in text), "")
    return _keyed("tritonserver", other_sources.read_triton_flags(text))


def collect_mpi_flags(tree: Tree) -> dict[FlagKey, Facts]:
    """Return mpirun's flags: from the tables of version 4, from the manual of version 5."""
    manual = tree.read_text("docs/man-openmpi/man1/mpirun.1.rst")
    if manual:
        return _keyed("mpirun", other_sources.read_manual_flags(manual))
    tables = (
        "orte/mca/schizo/ompi/schizo_ompi.c",
        "orte/tools/orterun/orterun.c",
        "orte/orted/orted_submit.c",
    )
    return _keyed("mpirun", other_sources.read_orte_flags("".join(map(tree.read_text, tables))))


def collect_hub_flags(tree: Tree) -> dict[FlagKey, Facts]:
    """Return the flags of huggingface-cli (argparse, up to 0.x) and hf (argparse in 0.34 to 0.36, typer since 1.0)."""
    sources = Sources(tree)
    flags: dict[FlagKey, Facts] = {}
    for folder, tool in (("commands", "huggingface-cli"), ("cli", "hf")):
        for path in tree.find_paths(*(f"src/huggingface_hub/{folder}/{stem}.py" for stem in HUB_COMMANDS)):
            flags |= collect_script_flags(sources, path, tool)
            flags |= collect_typer_flags(sources, path, tool)
    return flags


def collect_modelopt_flags(tree: Tree) -> dict[FlagKey, Facts]:
    return _script_flags(tree, ("examples/llm_ptq/hf_ptq.py", "llm_ptq/hf_ptq.py", "examples/*/hf_ptq.py"))


def collect_backend_flags(tree: Tree) -> dict[FlagKey, Facts]:
    return _script_flags(
        tree,
        ("tools/fill_template.py", "scripts/launch_triton_server.py", "inflight_batcher_llm/client/*.py"),
    )


def collect_backend_paths(tree: Tree) -> dict[str, Facts]:
    kept = re.compile(r"^(?:tools|scripts|all_models|inflight_batcher_llm/client)/.*\.(?:py|sh|pbtxt)$")
    return {path: {} for path in tree.blobs if kept.search(path) and "/tests/" not in path}


def collect_nccl_variables(tree: Tree) -> dict[str, Facts]:
    readings: dict[str, Facts] = {}
    for path in tree.find_paths("src/*.cc", "src/*.h", "src/*.cu"):
        rows = tree.mirror.extract_once(tree.blobs[path], "NCCL variables", variables.read_nccl_variables)
        for name, facts in rows:
            known = readings.setdefault(name, {"places": []})
            known["places"].append(path)
            variables.merge_reading(known, facts)
    return readings


def collect_hub_variables(tree: Tree) -> dict[str, Facts]:
    return variables.collect_variables(tree, ("src/huggingface_hub/*.py",), NO_SKIP)


def collect_triton_variables(tree: Tree) -> dict[str, Facts]:
    readings = variables.collect_variables(tree, ("src/*.cc", "src/*.h"), NO_SKIP)
    return {name: facts for name, facts in readings.items() if name.startswith(("TRITON", "AIP_", "SAGEMAKER"))}


FLAGS: dict[str, Callable[[Tree], dict[FlagKey, Facts]]] = {
    "TensorRT": collect_tensorrt_flags,
    "Triton": collect_triton_flags,
    "Open MPI": collect_mpi_flags,
    "huggingface_hub": collect_hub_flags,
    "ModelOpt": collect_modelopt_flags,
    "tensorrtllm_backend": collect_backend_flags,
}
VARIABLES: dict[str, Callable[[Tree], dict[str, Facts]]] = {
    "NCCL": collect_nccl_variables,
    "huggingface_hub": collect_hub_variables,
    "Triton": collect_triton_variables,
}
