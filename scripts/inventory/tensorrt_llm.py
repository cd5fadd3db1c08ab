"""What TensorRT-LLM's own sources tell of one release."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from inventory import other_sources, variables
from inventory.python_classes import (
    collect_fields,
    collect_options,
    collect_parameters,
    merge_options,
)
from inventory.python_flags import FlagKey, collect_click_flags, collect_script_flags
from inventory.python_source import COMPUTED, Sources

if TYPE_CHECKING:
    from inventory.mirrors import Tree
    from inventory.python_classes import FieldFacts

Facts = dict[str, Any]
PLUGINS = "tensorrt_llm/plugin/plugin.py"
ARGPARSE_TOOLS = {"trtllm-build": "build", "trtllm-refit": "refit", "trtllm-prune": "prune"}
CLICK_TOOLS = {
    "trtllm-serve": ("tensorrt_llm/commands/serve.py",),
    "trtllm-bench": ("tensorrt_llm/commands/bench.py", "tensorrt_llm/bench/*.py"),
    "trtllm-eval": ("tensorrt_llm/commands/eval.py", "tensorrt_llm/evaluate/*.py"),
}
SCRIPTS = (
    "examples/*convert_checkpoint.py", "examples/*/build.py", "examples/*quantize.py", "examples/run.py",
    "examples/*/run.py", "examples/*summarize.py", "examples/mmlu.py", "examples/*lora_convert.py", "examples/*/hf_*_convert.py",
    "examples/*build_visual_engine.py", "examples/*build_multimodal_engine.py", "examples/*prune_checkpoint.py",
    "examples/eval_long_context.py", "examples/*generate_checkpoint_config.py", "examples/*generate_xgrammar_tokenizer_info.py",
    "benchmarks/python/benchmark.py", "benchmarks/cpp/prepare_dataset.py", "benchmarks/prepare_dataset.py",
    "scripts/build_wheel.py", "triton_backend/tools/fill_template.py", "triton_backend/scripts/launch_triton_server.py",
    "examples/llm-api/quickstart_advanced.py", "examples/llm-api/quickstart_multimodal.py", "examples/pytorch/quickstart_advanced.py",
)  # fmt: skip
VARIABLE_FILES = (
    "tensorrt_llm/*.py", "cpp/tensorrt_llm/*.cpp", "cpp/tensorrt_llm/*.h", "cpp/tensorrt_llm/*.cu", "cpp/tensorrt_llm/*.cuh",
    "cpp/include/*.h", "cpp/kernels/*.cpp", "cpp/kernels/*.h", "examples/*.py", "benchmarks/*.py", "benchmarks/*.cpp",
    "triton_backend/*.py", "triton_backend/*.cc", "triton_backend/*.cpp", "triton_backend/*.h", "setup.py", "scripts/*.py",
    "jenkins/scripts/none",
)  # fmt: skip
VARIABLE_SKIP = re.compile(r"cubin|/tests?/|unittest|3rdparty|third_party|_test\.|instantiations/")
PATHS = re.compile(
    r"^(?:examples|benchmarks|scripts|triton_backend)/.*(?:\.(?:py|sh|slurm|sbatch)|requirements[\w-]*\.txt)$|^docker/(?:Makefile|Dockerfile\.\w+)$"
    r"|^tensorrt_llm/(?:commands/\w+\.py|llmapi/trtllm-\w+-launch|hlapi/trtllm-\w+-launch)$|^setup\.py$|^requirements[\w-]*\.txt$"
)
PATHS_SKIP = re.compile(r"/tests?/|unittest|__init__\.py$|jenkins")


def collect_flags(tree: Tree) -> dict[FlagKey, Facts]:
    """Return all flags of a release's programs and example scripts."""
    sources = Sources(tree)
    flags: dict[FlagKey, Facts] = {}
    installed = tree.read_text("setup.py")
    for tool, stem in ARGPARSE_TOOLS.items():
        path = f"tensorrt_llm/commands/{stem}.py"
        if path in tree.blobs and f"{tool}=" in installed:
            flags |= collect_script_flags(sources, path, tool)
    if any(key.tool == "trtllm-build" for key in flags):
        flags |= collect_plugin_flags(sources)
    for tool, patterns in CLICK_TOOLS.items():
        flags |= collect_click_flags(sources, tree.find_paths(*patterns), tool)
    for path in tree.find_paths(*SCRIPTS):
        flags |= collect_script_flags(sources, path, name_script(path))
    for path in tree.find_paths("benchmarks/cpp/*Benchmark.cpp"):
        tool = path.rpartition("/")[2].removesuffix(".cpp")
        program_flags = other_sources.read_cxxopts_flags(tree.read_text(path))
        flags |= {FlagKey(tool, "", name): facts for name, facts in program_flags.items()}
    return flags


def name_script(path: str) -> str:
    """Return what a script is called in the inventory: its folder and name, because folders move."""
    return "/".join(path.split("/")[-2:])


def collect_plugin_flags(sources: Sources) -> dict[FlagKey, Facts]:
    """Return the flags that trtllm-build makes of PluginConfig's fields."""
    module = sources.open_module(PLUGINS)
    hit = sources.find_class(module, "PluginConfig")
    listed = sources.evaluate(module, module.names.get("cli_plugin_args"))
    if hit is None or listed is COMPUTED:
        return {}
    fields = collect_fields(sources, *hit)
    flags = {}
    for name in listed:
        field = fields.get(name) or fields.get(f"_{name}")
        if field is not None:
            flags[FlagKey("trtllm-build", "", f"--{name}")] = _plugin_flag(sources, name, field.facts)
    return flags


def _plugin_flag(sources: Sources, name: str, field: Facts) -> Facts:
    if field["type"] == "bool":
        return {
            "type": "str",
            "default": "enable" if field.get("default") else "disable",
            "values": ["enable", "disable"],
        }
    if field["type"] != "str":
        return {key: value for key, value in field.items() if key in ("type", "default")}
    facts: Facts = {"type": "str"}
    values = field.get("values") or _dtype_values(sources, name)
    default = field.get("default")
    modern = "disable" not in values
    if default is not None or (modern and name != "gemm_plugin"):
        facts["default"] = default or "disable"
    if values:
        facts["values"] = [*values, "disable"] if modern else values
    return facts


def _dtype_values(sources: Sources, name: str) -> list[str]:
    module = sources.open_module(PLUGINS)
    constants = {
        key: sources.evaluate(module, node)
        for key, node in module.names.items()
        if key.isupper() or key == "plugin_options"
    }
    special = constants.get("PLUGIN_DTYPE_OPTIONS_MAP")
    usual = constants.get("DEFAULT_PLUGIN_DTYPE_OPTIONS", constants.get("plugin_options"))
    values = special[name] if isinstance(special, dict) and name in special else usual
    return [value for value in values if value is not None] if isinstance(values, list) else []


# LLM API

LLM_ARGS = (
    "tensorrt_llm/llmapi/llm_args.py",
    "tensorrt_llm/llmapi/llm_utils.py",
    "tensorrt_llm/hlapi/llm_utils.py",
    "tensorrt_llm/hlapi/llm.py",
)
BACKEND_CLASSES = {"pytorch": "TorchLlmArgs", "tensorrt": "TrtLlmArgs"}
AUTODEPLOY = ("tensorrt_llm/_torch/auto_deploy/llm_args.py", ("LlmArgs", "AutoDeployConfig"))
PYTORCH_CONFIG = ("tensorrt_llm/_torch/pyexecutor/config.py", "PyTorchConfig")


def collect_llm_options(tree: Tree) -> dict[str, Facts]:
    """Return the keys of the LLM API; `backends` where not every backend of the release takes a key."""
    sources = Sources(tree)
    by_backend = {name: options for name, options in _options_by_backend(sources).items() if options}
    merged: dict[str, Facts] = {}
    for name in ("pytorch", "tensorrt", "all", "_autodeploy"):
        merged = (
            {**by_backend.get(name, {}), **merged}
            if name == "_autodeploy"
            else merge_options(merged, by_backend.get(name, {}))
        )
    main = [name for name in by_backend if name != "_autodeploy"]
    for key, facts in merged.items():
        having = [name for name in main if key in by_backend[name]]
        if having != main:
            facts["backends"] = having or ["_autodeploy"]
    return merged


def _options_by_backend(sources: Sources) -> dict[str, dict[str, Facts]]:
    path = next((path for path in LLM_ARGS if _defines(sources, path)), "")
    if not path:
        return {}
    module = sources.open_module(path)
    options: dict[str, dict[str, Facts]] = {}
    for backend, name in BACKEND_CLASSES.items():
        hit = sources.find_class(module, name)
        if hit:
            options[backend] = collect_options(sources, *hit)
    if not options:
        hit = sources.find_class(module, "LlmArgs") or sources.find_class(module, "ModelConfig")
        if hit:
            options["all"] = collect_options(sources, *hit)
    below = _pytorch_config_options(sources)
    if not any("attn_backend" in known for known in options.values()):  # 0.21 moved these keys up
        options = {backend: {**known, **below} for backend, known in options.items()}
    options["_autodeploy"] = _autodeploy_options(sources)
    return options


def _defines(sources: Sources, path: str) -> bool:
    names = sources.open_module(path).names
    return any(name in names for name in ("LlmArgs", "BaseLlmArgs", "TorchLlmArgs", "ModelConfig"))


def _pytorch_config_options(sources: Sources) -> dict[str, Facts]:
    """Return the keys of pytorch_backend_config (0.17 to 0.20), which stood beside the declared arguments."""
    key = "pytorch_backend_config"
    read = any(key in sources.tree.read_text(path) for path in ("tensorrt_llm/llmapi/llm.py", LLM_ARGS[0]))
    path, name = PYTORCH_CONFIG
    hit = sources.find_class(sources.open_module(path), name)
    if not read or not hit:
        return {}
    return {key: {"type": "table"}, **collect_options(sources, *hit, prefix=f"{key}.")}


def _autodeploy_options(sources: Sources) -> dict[str, Facts]:
    path, names = AUTODEPLOY
    for name in names:
        hit = sources.find_class(sources.open_module(path), name)
        if hit:
            return collect_options(sources, *hit)
    return {}


# Classes whose fields stand in config.json and in Python programs

FIELD_CLASSES = {
    "BuildConfig": ("tensorrt_llm/builder.py", "tensorrt_llm/llmapi/llm_args.py"),
    "PluginConfig": (PLUGINS,),
    "PretrainedConfig": ("tensorrt_llm/models/modeling_utils.py",),
    "QuantConfig": ("tensorrt_llm/models/modeling_utils.py",),
    "LayerQuantConfig": ("tensorrt_llm/models/modeling_utils.py",),
    "LoraConfig": ("tensorrt_llm/lora_helper.py", "tensorrt_llm/lora_manager.py"),
    "Mapping": ("tensorrt_llm/mapping.py",),
    "MappingBase": ("tensorrt_llm/mapping.py",),
    "SamplingParams": (
        "tensorrt_llm/sampling_params.py",
        "tensorrt_llm/llmapi/utils.py",
        "tensorrt_llm/hlapi/utils.py",
    ),
    "SamplingConfig": ("tensorrt_llm/runtime/generation.py",),
    "ModelConfig": ("tensorrt_llm/runtime/generation.py",),
}
BY_PARAMETERS = ("PretrainedConfig", "Mapping", "MappingBase")
ENUMERATIONS = {
    "QuantAlgo": "tensorrt_llm/quantization/mode.py",
    "SpeculativeDecodingMode": "tensorrt_llm/models/modeling_utils.py",
    "KVCacheType": "tensorrt_llm/llmapi/kv_cache_type.py",
}


def collect_config_fields(tree: Tree) -> dict[tuple[str, str], Facts]:
    """Return (class, field) of the configuration classes, and (enumeration, member) with its value."""
    sources = Sources(tree)
    facts: dict[tuple[str, str], Facts] = {}
    for name, paths in FIELD_CLASSES.items():
        fields = _class_fields(sources, name, paths)
        for field in fields.values():
            plain = {key: value for key, value in field.facts.items() if key != "internal"}
            facts[name, field.names[0].lstrip("_")] = plain
    for name, path in ENUMERATIONS.items():
        members = sources.list_members(sources.open_module(path), name)
        facts |= {(name, member): {"type": "value", "default": value} for member, value in members.items()}
    return facts


def _class_fields(sources: Sources, name: str, paths: tuple[str, ...]) -> dict[str, FieldFacts]:
    for path in paths:
        hit = sources.find_class(sources.open_module(path), name)
        if hit:
            fields = collect_fields(sources, *hit)
            return collect_parameters(sources, *hit) if name in BY_PARAMETERS and len(fields) < 4 else fields
    return {}


def collect_variables(tree: Tree) -> dict[str, Facts]:
    return variables.collect_variables(tree, VARIABLE_FILES, VARIABLE_SKIP)


def collect_paths(tree: Tree) -> dict[str, Facts]:
    return {path: {} for path in tree.blobs if PATHS.search(path) and not PATHS_SKIP.search(path)}


# Requirements

REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)(?P<extras>\[[^\]]*\])?\s*(?P<rest>[^#]*)")


def collect_requirements(tree: Tree) -> dict[tuple[str, str], Facts]:
    """Return (file, package) with its version specifier, and ("setup.py", "python")."""
    facts: dict[tuple[str, str], Facts] = {}
    for path in tree.find_paths("requirements.txt", "requirements-windows.txt"):
        if "/" in path:
            continue
        for line in tree.read_text(path).splitlines():
            match = None if line.strip().startswith(("#", "-")) else REQUIREMENT.match(line.strip())
            if match:  # a package may be asked for once for each platform
                key = (path, match["name"].lower().replace("_", "-"))
                stated = [facts[key]["wants"]] if key in facts else []
                facts[key] = {"wants": " | ".join([*stated, match["rest"].strip()])}
    python = re.search(r'python_requires\s*=\s*["\']([^"\']+)', tree.read_text("setup.py"))
    if python:
        facts["setup.py", "python"] = {"wants": python[1].replace(" ", "")}
    return facts
