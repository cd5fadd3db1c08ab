"""Hugging Face model directories: configuration, generation defaults, quantisation, tokenizer and weights."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from trtdx.formats.documents import UnreadableError, parse_json, read_at
from trtdx.inspect.facts.artifact import Artifact
from trtdx.inspect.facts.config_keys import CONFIG_KEYS
from trtdx.inspect.readers import Found, Reader
from trtdx.inspect.readers.folder import Folder
from trtdx.inspect.readers.hf.config import put_config
from trtdx.inspect.readers.hf.quantization import put_quantization
from trtdx.inspect.readers.hf.tokenizer import VOCABULARIES, read_tokenizer
from trtdx.inspect.readers.hf.weights import put_survey, read_weights, survey_files

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Facts

CONFIG_BYTES = 4 << 20
OF_A_MODEL = {
    "model_type", "architectures", "num_hidden_layers", "n_layer", "hidden_size", "text_config", "vocab_size",
    "auto_map",
}  # fmt: skip
WEIGHTS = re.compile(
    r"(?:model|pytorch_model|consolidated)[\w.-]*\.(?:safetensors|bin|pth|pt|gguf)"
    r"|.*\.gguf|.*\.safetensors\.index\.json"
)
HUB_FOLDERS = {"blobs", "snapshots"}  # of models--org--name in the hub cache
RANK_FILE = re.compile(r"rank\d+\.safetensors")


def recognise(host: Host, found: Found) -> bool:
    """Return whether a path is a model: a config.json of one, or files of weights."""
    if not found.is_directory:
        return found.path.endswith((".safetensors", ".gguf"))
    if found.names >= HUB_FOLDERS or any(WEIGHTS.fullmatch(name) for name in found.names):
        return True
    return "config.json" in found.names and _is_model(host, f"{found.path.rstrip('/')}/config.json", found)


def _is_model(host: Host, path: str, found: Found) -> bool:
    """Return whether a config.json is a model's; a broken one counts where nothing says otherwise."""
    if host.kind(path) != "file":
        return False
    try:
        data = parse_json(read_at(host, path, 0, CONFIG_BYTES))
    except UnreadableError:
        return not any(name.endswith(".engine") or RANK_FILE.fullmatch(name) for name in found.names)
    return bool(OF_A_MODEL & data.keys())


def read(host: Host, path: str) -> Artifact:
    """Return everything a model directory says of itself, or what one file of weights says."""
    if host.kind(path) == "file":
        return _read_file(host, path)
    folder = Folder(host, path)
    if folder.names >= HUB_FOLDERS and "config.json" not in folder.names:
        return _read_repository(folder)
    config = folder.document("config.json")
    if config is not None:
        put_config(folder.facts, config)
        _put_remote_code(folder.facts, config)
    elif folder.names and not {"config.json", "params.json"} & folder.names:  # the latter is Mistral's own
        folder.facts.put("absent", ["config.json"], folder.path)
    put_quantization(folder, config)
    put_generation(folder, config)
    read_tokenizer(folder)
    read_weights(folder)
    return Artifact("hf", path, folder.facts.done(), unread=tuple(folder.unread))


def _read_repository(folder: Folder) -> Artifact:
    """Return the snapshot that a repository of the hub cache names as main, or the only one there is."""
    snapshots = sorted(Folder(folder.host, folder.at("snapshots")).names)
    main = (Folder(folder.host, folder.at("refs")).text("main", 256) or "").strip()
    chosen = main if main in snapshots else snapshots[0] if len(snapshots) == 1 else ""
    if chosen:
        return read(folder.host, folder.at(f"snapshots/{chosen}"))
    note = f"it is a repository of the hub cache with {len(snapshots)} snapshots: give snapshots/<hash>"
    return Artifact("hf", folder.path, folder.facts.done(), unread=(note,))


def _put_remote_code(facts: Facts, config: Document) -> None:
    """Put whether code from the model's own directory is run; transformers prefers its own where it has it."""
    if isinstance(config.at("auto_map"), dict) and "AutoConfig" in config.at("auto_map"):
        is_remote = str(config.at("model_type")) not in known_model_types()
        facts.put("remote_code", is_remote, config.where("auto_map"))


@cache
def known_model_types() -> frozenset[str]:
    text = resources.files("trtdx").joinpath("data/model_types.txt").read_text("utf-8")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def _read_file(host: Host, path: str) -> Artifact:
    parent, _, name = path.rpartition("/")
    folder = Folder(host, parent or ".")
    kind = name.rpartition(".")[2]
    folder.facts.put("weights.format", kind, path)
    if kind == "safetensors":
        survey, _ = survey_files(folder, [name])
        put_survey(folder, survey, path)
    else:
        folder.facts.put("weights.files", 1, path)
        folder.facts.put("weights.bytes", folder.size(name), path)
    return Artifact("hf", path, folder.facts.done(), unread=tuple(folder.unread))


def put_generation(folder: Folder, config: Document | None) -> None:
    """Put generation_config.json, and what config.json says of the same tokens."""
    document = folder.document("generation_config.json")
    if document is not None:
        _put_ids(folder.facts, document, "eos_token_id", "generation.eos_ids")
        _put_id(folder.facts, document, "bos_token_id", "generation.bos_id")
        _put_id(folder.facts, document, "pad_token_id", "generation.pad_id")
        for key, name in CONFIG_KEYS.generation_config.items():
            folder.facts.put(name, document.at(key), document.where(key))
    if config is not None:
        for prefix in ("text_config.", ""):
            _put_ids(folder.facts, config, f"{prefix}eos_token_id", "generation.config_eos_ids")
            _put_id(folder.facts, config, f"{prefix}bos_token_id", "generation.config_bos_id")


def _put_ids(facts: Facts, document: Document, key: str, name: str) -> None:
    value: Any = document.at(key)
    facts.put(name, [value] if type(value) is int else value, document.where(key))


def _put_id(facts: Facts, document: Document, key: str, name: str) -> None:
    """Put one id; a list of them says that any will do, and the first is taken as transformers does."""
    value: Any = document.at(key)
    facts.put(name, value[0] if isinstance(value, list) and value else value, document.where(key))


def recognise_tokenizer(host: Host, found: Found) -> bool:
    """Return whether a directory holds a tokenizer and no model."""
    named = any(name in found.names for name in (*VOCABULARIES, "tokenizer_config.json"))
    return found.is_directory and named and "config.json" not in found.names


def read_tokenizer_directory(host: Host, path: str) -> Artifact:
    folder = Folder(host, path)
    read_tokenizer(folder)
    put_generation(folder, None)
    return Artifact("tokenizer", path, folder.facts.done(), unread=tuple(folder.unread))


READER = Reader(
    "hf",
    "a Hugging Face model directory (config.json of a model, *.safetensors, *.bin or *.gguf), or one file of weights",
    recognise,
    read,
)
TOKENIZER_READER = Reader(
    "tokenizer",
    "a tokenizer directory (tokenizer.json, tokenizer.model, vocab.json or tokenizer_config.json)",
    recognise_tokenizer,
    read_tokenizer_directory,
)
