"""TensorRT-LLM engine directories of every era: config.json, a plan for each rank, and what lies beside them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trtdx.formats.safetensors import LFS_POINTER
from trtdx.formats.safetensors import read_safetensors_header as read_weights_header
from trtdx.formats.tensorrt.plan_header import UNREADABLE, read_plan_header
from trtdx.inspect.facts.artifact import Artifact
from trtdx.inspect.facts.config_keys import CONFIG_KEYS
from trtdx.inspect.facts.runtime_keys import missing_runtime_keys
from trtdx.inspect.readers import ArtifactReader, PathProbe
from trtdx.inspect.readers.engine.builder_config import put_builder_config
from trtdx.inspect.readers.engine.checkpoint import MAX_RANKS, read_config_data
from trtdx.inspect.readers.engine.plan import put_plan_facts
from trtdx.inspect.readers.engine.pretrained_config import put_pretrained_config, put_quant_cfg
from trtdx.inspect.readers.folder import ArtifactFolder
from trtdx.inspect.readers.hf.weights import FACT_BY_WEIGHT_FAULT
from trtdx.knowledge import versions

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import FactCollector

PLAN_FILE = re.compile(r"(?:.*_)?rank(\d{1,6})\.engine")  # old names: llama_float16_tp2_pp2_rank3.engine
MAX_PLANS = 1024
# The parts of a model that is built as several engines: the one that answers first, then those before it.
ENGINE_PARTS = (("decoder", "encoder"), ("llm", "vision"), ("llm", "visual_encoder"))

KEYS_PUT_SEPARATELY = ("plugin_config", "kv_cache_type", "speculative_decoding_mode")  # put in their own way
SPECULATIVE_MODES = (
    "NONE", "DRAFT_TOKENS_EXTERNAL", "MEDUSA", "LOOKAHEAD_DECODING", "EXPLICIT_DRAFT_TOKENS", "EAGLE",
    "NGRAM", "USER_PROVIDED", "SAVE_HIDDEN_STATES", "AUTO",
)  # fmt: skip


def _is_engine_folder(host: Host, probe: PathProbe) -> bool:
    if not probe.is_directory:
        return False
    if _engine_parts(host, probe.path, probe.names):
        return True
    config = read_config_data(host, probe)
    if "pretrained_config" in config or ("builder_config" in config and "architectures" not in config):
        return True
    return not config and any(map(PLAN_FILE.fullmatch, probe.names))


def _engine_parts(host: Host, path: str, names: frozenset[str]) -> tuple[str, ...]:
    """Return the subfolders that are engines of one model, the one that answers first."""
    if "config.json" in names:
        return ()
    for main, *others in ENGINE_PARTS:
        if main in names and host.kind(f"{path.rstrip('/')}/{main}/config.json") == "file":
            return (main, *(name for name in others if name in names))
    return ()


def _read_engine_folder(host: Host, path: str) -> Artifact:
    """Return the engine in a directory; one in several parts has the facts of the part that answers."""
    folder = ArtifactFolder(host, path)
    parts = _engine_parts(host, path, folder.names)
    main = ArtifactFolder(host, folder.path_of(parts[0])) if parts else folder
    config = main.read_json_object("config.json")
    if config is not None:
        _put_engine_config(main, config)
    layers = main.read_json_object("quant_cfg.json")
    if layers is not None:
        put_quant_cfg(main.facts, layers)
    _put_plan_files(main, [main, *(ArtifactFolder(host, folder.path_of(name)) for name in parts[1:])])
    _put_managed_weights(main)
    if parts:
        _put_engine_parts(main, folder, parts)
    return Artifact(
        "engine",
        path,
        main.facts.to_dict(),
        refers_to=_copied_adapters(main, config),
        unread=tuple(main.unread),
    )


def _put_engine_parts(main: ArtifactFolder, folder: ArtifactFolder, parts: tuple[str, ...]) -> None:
    if parts[0] == "decoder":
        main.facts.put("encoder_decoder", True, folder.path)
    for name in parts[1:]:
        main.unread.append(
            f"of the engine in {name}/ only the plans were looked at: trtdx inspect {folder.path_of(name)}"
        )


def _put_engine_config(folder: ArtifactFolder, config: Document) -> None:
    facts = folder.facts
    old = not config.has_value("pretrained_config")
    facts.put("version", config.value_at("version"), config.place_of("version"))
    facts.put("era", config_era(config), config.path)
    if old:
        put_builder_config(facts, config)
    else:
        put_pretrained_config(facts, config, "pretrained_config.")
        _put_build_config(facts, config)
    _put_sequence_length(facts, config, "builder_config" if old else "build_config")
    put_plugin_facts(facts, config, "plugin_config" if old else "build_config.plugin_config")
    missing = missing_runtime_keys(config, old)
    facts.put("build.missing_keys", missing or None, config.path)


def config_era(config: Document) -> str:
    """Return the layout of a configuration by its version, or by its keys where none is stated."""
    version = config.value_at("version")
    if isinstance(version, str) and versions.parse_release(version) and config.has_value("pretrained_config"):
        return next(name for since, name in CONFIG_ERAS if versions.at_least(version, since))
    if not config.has_value("pretrained_config"):
        return "before 0.8"
    if config.has_value("build_config.max_output_len") or not config.has_value("build_config.max_seq_len"):
        return "0.8 to 0.10"
    if not config.has_value("build_config.kv_cache_type"):
        return "0.11 and 0.12"
    return "0.13 to 1.1" if config.has_value("build_config.auto_parallel_config") else "1.2 and later"


CONFIG_ERAS = (
    ("1.2.0", "1.2 and later"),
    ("0.13.0", "0.13 to 1.1"),
    ("0.11.0", "0.11 and 0.12"),
    ("0.8.0", "0.8 to 0.10"),
    ("0", "before 0.8"),
)


def _put_build_config(facts: FactCollector, config: Document) -> None:
    build = config.value_at("build_config")
    if not isinstance(build, dict):
        return
    for key, value in build.items():
        if key not in KEYS_PUT_SEPARATELY:
            facts.put(
                CONFIG_KEYS.build_config.get(key, f"build.{key}"),
                value,
                config.place_of(f"build_config.{key}"),
            )
    _put_speculative_mode(facts, config)
    _put_cache_type(facts, config)
    _put_lora_settings(facts, config)


def _put_sequence_length(facts: FactCollector, config: Document, section: str) -> None:
    """Put the longest sequence where only its parts are stated, as the runtime sums them up (before 0.11)."""
    prompt, answer = facts.get("max_input_len"), facts.get("max_output_len")
    if prompt is not None and answer is not None and not facts.has("max_seq_len"):
        facts.put("max_seq_len", prompt + answer, config.place_of(f"{section}.max_input_len + max_output_len"))


def _put_speculative_mode(facts: FactCollector, config: Document) -> None:
    """Put the kind of speculative decoding, which is stored as a bit (0.10 and later)."""
    key = "build_config.speculative_decoding_mode"
    value = config.value_at(key)
    if isinstance(value, int) and not isinstance(value, bool):
        bit = value.bit_length() - 1
        value = SPECULATIVE_MODES[bit] if 0 <= bit < len(SPECULATIVE_MODES) and value == 1 << bit else str(value)
    facts.put("speculative_mode", value.upper() if isinstance(value, str) else value, config.place_of(key))


def _put_cache_type(facts: FactCollector, config: Document) -> None:
    """Put the kind of cache; before 0.13 a plugin setting said it."""
    key, paged = "build_config.kv_cache_type", "build_config.plugin_config.paged_kv_cache"
    value = config.value_at(key)
    if isinstance(value, str):
        facts.put("kv_cache_type", value.rpartition(".")[2].lower(), config.place_of(key))
    elif value is not None:
        facts.put("kv_cache_type", value, config.place_of(key))
    elif isinstance(config.value_at(paged), bool):
        facts.put("kv_cache_type", "paged" if config.value_at(paged) else "continuous", config.place_of(paged))


def _put_lora_settings(facts: FactCollector, config: Document) -> None:
    """Put what adapters the engine takes; its other settings stay with build.lora_config."""
    lora = "build_config.lora_config"
    plugin = "build_config.plugin_config.lora_plugin"
    table = config.value_at("build_config.plugin_config")
    if isinstance(table, dict) and "lora_plugin" in table:
        facts.put("lora.enabled", bool(table["lora_plugin"]), config.place_of(plugin))
    if facts.get("lora.enabled"):  # a rank of 64 stands there in every engine
        for name, key in (("max_rank", "max_lora_rank"), ("target_modules", "lora_target_modules")):
            facts.put(f"lora.{name}", config.value_at(f"{lora}.{key}"), config.place_of(f"{lora}.{key}"))


def put_plugin_facts(facts: FactCollector, config: Document, section: str) -> None:
    """Put plugin settings under their own names; null, which turns a plugin off, becomes false."""
    plugins = config.value_at(section)
    if not isinstance(plugins, dict):
        return
    for key, value in plugins.items():
        facts.put(f"plugin.{key}", False if value is None else value, config.place_of(f"{section}.{key}"))
    if plugins.get("tokens_per_block"):
        facts.put("tokens_per_block", plugins["tokens_per_block"], config.place_of(f"{section}.tokens_per_block"))
    facts.put("multiple_profiles", plugins.get("multiple_profiles"), config.place_of(f"{section}.multiple_profiles"))


def _put_plan_files(main: ArtifactFolder, folders: list[ArtifactFolder]) -> None:
    """Put what the plans say, and which ranks have one."""
    paths = [folder.path_of(name) for folder in folders for name in sorted(folder.names) if name.endswith(".engine")]
    headers = {path: read_plan_header(main.host, path) for path in paths[:MAX_PLANS]}
    put_plan_facts(main.facts, headers)
    main.unread += [f"{path}: {header.problem}" for path, header in headers.items() if header.fault == UNREADABLE]
    unread = {
        path.rpartition("/")[2]: header.problem
        for path, header in headers.items()
        if header.fault == UNREADABLE and path == main.path_of(path.rpartition("/")[2])
    }
    plan_files = (PLAN_FILE.fullmatch(name) for name in main.names if name not in unread)
    ranks = sorted(int(plan_file[1]) for plan_file in plan_files if plan_file)
    where = main.path_of("config.json")
    if paths:
        main.facts.put("weights.format", "engine", paths[0])
        main.facts.put("weights.files", len(paths), main.path)
        main.facts.put("weights.bytes", sum(header.bytes for header in headers.values()), main.path)
        sizes = {path.rpartition("/")[2]: header.bytes for path, header in headers.items()}
        main.facts.put("weights.sizes", sizes, main.path)
    main.facts.put("weights.ranks", ranks or None, main.path)
    missing = (f"rank{rank}.engine" for rank in _missing_ranks(main, ranks))
    main.put_list_fact("weights.missing", (_plan_with_reason(name, unread) for name in missing), where)


def _plan_with_reason(plan: str, unread: dict[str, str]) -> str:
    """Return a missing plan; one of that name that cannot be read says why."""
    return f"{plan} ({unread[plan].removeprefix('is ')})" if plan in unread else plan


def _missing_ranks(main: ArtifactFolder, ranks: list[int]) -> list[int]:
    world_size = main.facts.get("world_size")
    if not isinstance(world_size, int) or not 0 < world_size <= MAX_RANKS or main.facts.get("build.model_name"):
        return []
    return sorted(set(range(world_size)) - set(ranks))


def _put_managed_weights(folder: ArtifactFolder) -> None:
    """Put what is wrong with the weights that `manage_weights` keeps beside the plans."""
    if folder.facts.get("plugin.manage_weights") is not True:
        return
    for rank in (folder.facts.get("weights.ranks") or [])[:MAX_PLANS]:
        name = f"rank{rank}_managed_weights.safetensors"
        header = read_weights_header(folder.host, folder.path_of(name)) if name in folder.names else None
        if header is None:
            folder.facts.add("weights.missing", name, folder.path_of("config.json"))
        elif header.fault in FACT_BY_WEIGHT_FAULT:
            fault_text = name if header.fault == LFS_POINTER else f"{name}: {header.problem}"
            folder.facts.add(FACT_BY_WEIGHT_FAULT[header.fault], fault_text, folder.path_of(name))


def _copied_adapters(folder: ArtifactFolder, config: Document | None) -> tuple[str, ...]:
    """Return the adapters that were copied into the engine (lora/0, lora/1, ...)."""
    named: Any = config.value_at("build_config.lora_config.lora_dir") if config else None
    if not isinstance(named, list):
        return ()
    return tuple(folder.path_of(name) for name in named[:64] if isinstance(name, str) and name.startswith("lora/"))


READER = ArtifactReader(
    "engine",
    "a TensorRT-LLM engine directory (config.json with `pretrained_config` or `builder_config`, and rank*.engine)",
    _is_engine_folder,
    _read_engine_folder,
)
