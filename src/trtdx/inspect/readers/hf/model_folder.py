"""Hugging Face model directories: configuration, generation defaults, quantisation, tokenizer and weights."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from trtdx.formats.documents import UnreadableError, parse_json, read_range
from trtdx.inspect.facts.artifact import Artifact
from trtdx.inspect.facts.config_keys import CONFIG_KEYS
from trtdx.inspect.readers import ArtifactReader, PathProbe
from trtdx.inspect.readers.folder import ArtifactFolder
from trtdx.inspect.readers.hf.model_config import put_model_config
from trtdx.inspect.readers.hf.quantization import put_quantization_facts
from trtdx.inspect.readers.hf.tokenizer import VOCABULARY_FILES, read_tokenizer
from trtdx.inspect.readers.hf.weights import put_survey_facts, read_weights, survey_files

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import FactCollector

MAX_CONFIG_BYTES = 4 << 20
MODEL_CONFIG_KEYS = {
    "model_type", "architectures", "num_hidden_layers", "n_layer", "hidden_size", "text_config", "vocab_size",
    "auto_map",
}  # fmt: skip
WEIGHT_FILE = re.compile(
    r"(?:model|pytorch_model|consolidated)[\w.-]*\.(?:safetensors|bin|pth|pt|gguf)"
    r"|.*\.gguf|.*\.safetensors\.index\.json"
)
HUB_FOLDERS = {"blobs", "snapshots"}  # of models--org--name in the hub cache
RANK_FILE = re.compile(r"rank\d+\.safetensors")


def is_model_folder(host: Host, probe: PathProbe) -> bool:
    """Return whether a path is a model: a config.json of one, or files of weights."""
    if not probe.is_directory:
        return probe.path.endswith((".safetensors", ".gguf"))
    if probe.names >= HUB_FOLDERS or any(WEIGHT_FILE.fullmatch(name) for name in probe.names):
        return True
    return "config.json" in probe.names and _is_model_config(host, f"{probe.path.rstrip('/')}/config.json", probe)


def _is_model_config(host: Host, path: str, probe: PathProbe) -> bool:
    """Return whether a config.json is a model's; a broken one counts where nothing says otherwise."""
    if host.kind(path) != "file":
        return False
    try:
        data = parse_json(read_range(host, path, 0, MAX_CONFIG_BYTES))
    except UnreadableError:
        return not any(name.endswith(".engine") or RANK_FILE.fullmatch(name) for name in probe.names)
    return bool(MODEL_CONFIG_KEYS & data.keys())


def read_model_folder(host: Host, path: str) -> Artifact:
    """Return everything a model directory says of itself, or what one file of weights says."""
    if host.kind(path) == "file":
        return _read_weight_file(host, path)
    folder = ArtifactFolder(host, path)
    if folder.names >= HUB_FOLDERS and "config.json" not in folder.names:
        return _read_hub_repository(folder)
    config = folder.read_json_object("config.json")
    if config is not None:
        put_model_config(folder.facts, config)
        _put_remote_code(folder.facts, config)
    elif folder.names and not {"config.json", "params.json"} & folder.names:  # the latter is Mistral's own
        folder.facts.put("absent", ["config.json"], folder.path)
    put_quantization_facts(folder, config)
    put_generation_config(folder, config)
    read_tokenizer(folder)
    read_weights(folder)
    return Artifact("hf", path, folder.facts.to_dict(), unread=tuple(folder.unread))


def _read_hub_repository(folder: ArtifactFolder) -> Artifact:
    """Return the snapshot that a repository of the hub cache names as main, or the only one there is."""
    snapshots = sorted(ArtifactFolder(folder.host, folder.path_of("snapshots")).names)
    main = (ArtifactFolder(folder.host, folder.path_of("refs")).read_text("main", 256) or "").strip()
    chosen = main if main in snapshots else snapshots[0] if len(snapshots) == 1 else ""
    if chosen:
        return read_model_folder(folder.host, folder.path_of(f"snapshots/{chosen}"))
    note = f"it is a repository of the hub cache with {len(snapshots)} snapshots: give snapshots/<hash>"
    return Artifact("hf", folder.path, folder.facts.to_dict(), unread=(note,))


def _put_remote_code(facts: FactCollector, config: Document) -> None:
    """Put whether code from the model's own directory is run; transformers prefers its own where it has it."""
    if isinstance(config.value_at("auto_map"), dict) and "AutoConfig" in config.value_at("auto_map"):
        is_remote = str(config.value_at("model_type")) not in known_model_types()
        facts.put("remote_code", is_remote, config.place_of("auto_map"))


@cache
def known_model_types() -> frozenset[str]:
    text = resources.files("trtdx").joinpath("data/model_types.txt").read_text("utf-8")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def _read_weight_file(host: Host, path: str) -> Artifact:
    parent, _, name = path.rpartition("/")
    folder = ArtifactFolder(host, parent or ".")
    kind = name.rpartition(".")[2]
    folder.facts.put("weights.format", kind, path)
    if kind == "safetensors":
        survey, _ = survey_files(folder, [name])
        put_survey_facts(folder, survey, path)
    else:
        folder.facts.put("weights.files", 1, path)
        folder.facts.put("weights.bytes", folder.file_size(name), path)
    return Artifact("hf", path, folder.facts.to_dict(), unread=tuple(folder.unread))


def put_generation_config(folder: ArtifactFolder, config: Document | None) -> None:
    """Put generation_config.json, and what config.json says of the same tokens."""
    document = folder.read_json_object("generation_config.json")
    if document is not None:
        _put_token_ids(folder.facts, document, "eos_token_id", "generation.eos_ids")
        _put_token_id(folder.facts, document, "bos_token_id", "generation.bos_id")
        _put_token_id(folder.facts, document, "pad_token_id", "generation.pad_id")
        for key, name in CONFIG_KEYS.generation_config.items():
            folder.facts.put(name, document.value_at(key), document.place_of(key))
    if config is not None:
        for prefix in ("text_config.", ""):
            _put_token_ids(folder.facts, config, f"{prefix}eos_token_id", "generation.config_eos_ids")
            _put_token_id(folder.facts, config, f"{prefix}bos_token_id", "generation.config_bos_id")


def _put_token_ids(facts: FactCollector, document: Document, key: str, name: str) -> None:
    value: Any = document.value_at(key)
    facts.put(name, [value] if type(value) is int else value, document.place_of(key))


def _put_token_id(facts: FactCollector, document: Document, key: str, name: str) -> None:
    """Put one id; a list of them says that any will do, and the first is taken as transformers does."""
    value: Any = document.value_at(key)
    facts.put(name, value[0] if isinstance(value, list) and value else value, document.place_of(key))


def is_tokenizer_folder(host: Host, probe: PathProbe) -> bool:
    """Return whether a directory holds a tokenizer and no model."""
    named = any(name in probe.names for name in (*VOCABULARY_FILES, "tokenizer_config.json"))
    return probe.is_directory and named and "config.json" not in probe.names


def read_tokenizer_folder(host: Host, path: str) -> Artifact:
    folder = ArtifactFolder(host, path)
    read_tokenizer(folder)
    put_generation_config(folder, None)
    return Artifact("tokenizer", path, folder.facts.to_dict(), unread=tuple(folder.unread))


READER = ArtifactReader(
    "hf",
    "a Hugging Face model directory (config.json of a model, *.safetensors, *.bin or *.gguf), or one file of weights",
    is_model_folder,
    read_model_folder,
)
TOKENIZER_READER = ArtifactReader(
    "tokenizer",
    "a tokenizer directory (tokenizer.json, tokenizer.model, vocab.json or tokenizer_config.json)",
    is_tokenizer_folder,
    read_tokenizer_folder,
)
