"""LoRA adapters as PEFT writes them: adapter_config.json and the header of adapter_model.safetensors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trtdx.formats.documents import GIT_LFS_MAGIC
from trtdx.formats.safetensors import read_safetensors_header
from trtdx.inspect.facts.artifact import Artifact
from trtdx.inspect.facts.config_keys import CONFIG_KEYS
from trtdx.inspect.readers import ArtifactReader, PathProbe
from trtdx.inspect.readers.folder import ArtifactFolder
from trtdx.inspect.readers.hf.tokenizer import VOCABULARY_FILES, read_tokenizer
from trtdx.inspect.readers.hf.weights import FACT_BY_WEIGHT_FAULT, dtype_word

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.formats.safetensors import SafetensorsHeader, TensorEntry
    from trtdx.host import Host

WEIGHT_FILES = ("adapter_model.safetensors", "adapter_model.bin")
LORA_TENSOR = re.compile(r"(?:^|\.)(\w+)\.lora_(A|B|embedding_A|embedding_B)(?:\.\w+)?(?:\.weight)?$")
HIDDEN_INPUT_MODULES = {
    "q_proj", "k_proj", "v_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj", "query_key_value",
}  # fmt: skip
HEAD_MODULES = ("lm_head", "embed_out", "output_layer")
EMBEDDING_MODULES = ("embed_tokens", "wte", "word_embeddings", "embed_in")
VOCABULARY_TABLE = re.compile(
    rf"(?:^|\.)(?:{'|'.join((*HEAD_MODULES, *EMBEDDING_MODULES))})(?:\.modules_to_save)?(?:\.\w+)?\.weight$"
)


def is_lora_folder(host: Host, probe: PathProbe) -> bool:
    """Return whether a directory is an adapter; a merged model beside adapter files is a model."""
    merged = any(name.startswith("model") and name.endswith(".safetensors") for name in probe.names)
    return probe.is_directory and not merged and bool({"adapter_config.json", *WEIGHT_FILES} & probe.names)


def read_lora_adapter(host: Host, path: str) -> Artifact:
    """Return what an adapter says of itself and what its tensors show."""
    folder = ArtifactFolder(host, path)
    config = folder.read_json_object("adapter_config.json")
    if config is not None:
        _put_adapter_config(folder, config)
    _put_adapter_weights(folder)
    missing = [name for name in ("adapter_config.json",) if name not in folder.names]
    if not any(name in folder.names for name in WEIGHT_FILES):
        missing.append(WEIGHT_FILES[0])
    if folder.names and missing:
        folder.facts.put("absent", missing, folder.path)
    if any(name in folder.names for name in VOCABULARY_FILES):  # tokens may have been added with the adapter
        read_tokenizer(folder)
    return Artifact(
        "lora", path, folder.facts.to_dict(), refers_to=_base_model_path(config), unread=tuple(folder.unread)
    )


def _base_model_path(config: Document | None) -> tuple[str, ...]:
    base = config.value_at("base_model_name_or_path") if config else None
    return (base,) if isinstance(base, str) and base.startswith("/") else ()


def _put_adapter_config(folder: ArtifactFolder, config: Document) -> None:
    for key, name in CONFIG_KEYS.adapter_config.items():
        folder.facts.put(name, config.value_at(key), config.place_of(key))
    folder.facts.put("lora.rank", _highest_rank(config), config.place_of("r"))
    modules = config.value_at("target_modules")
    if isinstance(modules, list):
        folder.facts.put("lora.modules", sorted(map(str, modules)), config.place_of("target_modules"))


def _highest_rank(config: Document) -> Any:
    """Return the rank memory must be kept for: the highest of all modules'."""
    rank = config.value_at("r")
    pattern = config.value_at("rank_pattern")
    others = pattern.values() if isinstance(pattern, dict) else ()
    if type(rank) is not int:
        return rank
    return max([rank, *(other_rank for other_rank in others if type(other_rank) is int)])


def _put_adapter_weights(folder: ArtifactFolder) -> None:
    name = next((candidate for candidate in WEIGHT_FILES if candidate in folder.names), None)
    if name is None:
        return
    where = folder.path_of(name)
    folder.facts.put("weights.files", 1, where)
    folder.facts.put("weights.format", name.rpartition(".")[2], where)
    if name.endswith(".bin"):
        folder.facts.put("weights.bytes", folder.file_size(name), where)
        if folder.first_bytes(name).startswith(GIT_LFS_MAGIC):
            folder.facts.put("weights.lfs_pointers", [name], where)
        return
    header = read_safetensors_header(folder.host, where)
    folder.facts.put("weights.bytes", header.file_bytes, where)
    _put_header_fault(folder, name, header)
    _put_tensor_facts(folder, header, where)


def _put_header_fault(folder: ArtifactFolder, name: str, header: SafetensorsHeader) -> None:
    fact = FACT_BY_WEIGHT_FAULT.get(header.fault)
    if fact is not None:
        fault_text = name if fact == "weights.lfs_pointers" else f"{name}: {header.problem}"
        folder.facts.put(fact, [fault_text], folder.path_of(name))
    elif header.fault:
        folder.unread.append(f"{name}: {header.problem}")


def _put_tensor_facts(folder: ArtifactFolder, header: SafetensorsHeader, where: str) -> None:
    """Put the type, and the sizes of the model the tensors fit."""
    pairs = [
        (lora_name[1], lora_name[2], entry)
        for name, entry in header.tensors.items()
        if (lora_name := LORA_TENSOR.search(name))
    ]
    if header.tensors:
        folder.facts.put(
            "lora.dtype",
            _main_dtype([entry for _, _, entry in pairs] or list(header.tensors.values())),
            where,
        )
    if not folder.facts.has("lora.modules") and pairs:
        folder.facts.put("lora.modules", sorted({module for module, _, _ in pairs}), where)
    ranks = [entry.shape[0] for _, side, entry in pairs if side in ("A", "embedding_A") and len(entry.shape) == 2]
    if not folder.facts.has("lora.rank") and ranks:
        folder.facts.put("lora.rank", max(ranks), where)
    _put_model_sizes(folder, header, pairs, where)


def _main_dtype(entries: list[TensorEntry]) -> str:
    sizes: dict[str, int] = {}
    for entry in entries:
        sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.data_bytes
    return dtype_word(max(sizes, key=lambda dtype: sizes[dtype]))


def _put_model_sizes(
    folder: ArtifactFolder, header: SafetensorsHeader, pairs: list[tuple[str, str, TensorEntry]], where: str
) -> None:
    flat = [(module, side, entry.shape) for module, side, entry in pairs if len(entry.shape) == 2]
    hidden = {shape[1] for module, side, shape in flat if side == "A" and module in HIDDEN_INPUT_MODULES}
    if len(hidden) == 1:
        folder.facts.put("lora.hidden_size", hidden.pop(), where)
    tables = {shape[0] for module, side, shape in flat if side == "B" and module in HEAD_MODULES}
    tables |= {shape[1] for _, side, shape in flat if side == "embedding_A"}
    tables |= {
        entry.shape[0]
        for name, entry in header.tensors.items()
        if VOCABULARY_TABLE.search(name) and len(entry.shape) == 2
    }
    if len(tables) == 1:
        folder.facts.put("lora.vocab_size", tables.pop(), where)


READER = ArtifactReader(
    "lora",
    "a LoRA adapter directory (adapter_config.json and adapter_model.safetensors)",
    is_lora_folder,
    read_lora_adapter,
)
