"""LoRA adapters as PEFT writes them: adapter_config.json and the header of adapter_model.safetensors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trtdx.formats.documents import LFS_MARK
from trtdx.formats.safetensors import read_header
from trtdx.inspect.facts.artifact import Artifact
from trtdx.inspect.facts.config_keys import CONFIG_KEYS
from trtdx.inspect.readers import Found, Reader
from trtdx.inspect.readers.folder import Folder
from trtdx.inspect.readers.hf.tokenizer import VOCABULARIES, read_tokenizer
from trtdx.inspect.readers.hf.weights import FACT_OF_FAULT, dtype_word

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.formats.safetensors import Header, TensorEntry
    from trtdx.host import Host

WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
PAIR = re.compile(r"(?:^|\.)(\w+)\.lora_(A|B|embedding_A|embedding_B)(?:\.\w+)?(?:\.weight)?$")
READS_HIDDEN = {
    "q_proj", "k_proj", "v_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj", "query_key_value",
}  # fmt: skip
HEADS = ("lm_head", "embed_out", "output_layer")
EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings", "embed_in")
WHOLE_TABLE = re.compile(
    rf"(?:^|\.)(?:{'|'.join((*HEADS, *EMBEDDINGS))})(?:\.modules_to_save)?(?:\.\w+)?\.weight$"
)


def recognise(host: Host, found: Found) -> bool:
    """Return whether a directory is an adapter; a merged model beside adapter files is a model."""
    merged = any(name.startswith("model") and name.endswith(".safetensors") for name in found.names)
    return found.is_directory and not merged and bool({"adapter_config.json", *WEIGHTS} & found.names)


def read(host: Host, path: str) -> Artifact:
    """Return what an adapter says of itself and what its tensors show."""
    folder = Folder(host, path)
    config = folder.document("adapter_config.json")
    if config is not None:
        _put_config(folder, config)
    _put_weights(folder)
    missing = [name for name in ("adapter_config.json",) if name not in folder.names]
    if not any(name in folder.names for name in WEIGHTS):
        missing.append(WEIGHTS[0])
    if folder.names and missing:
        folder.facts.put("absent", missing, folder.path)
    if any(name in folder.names for name in VOCABULARIES):  # tokens may have been added with the adapter
        read_tokenizer(folder)
    return Artifact("lora", path, folder.facts.done(), refers_to=_base(config), unread=tuple(folder.unread))


def _base(config: Document | None) -> tuple[str, ...]:
    base = config.at("base_model_name_or_path") if config else None
    return (base,) if isinstance(base, str) and base.startswith("/") else ()


def _put_config(folder: Folder, config: Document) -> None:
    for key, name in CONFIG_KEYS.adapter_config.items():
        folder.facts.put(name, config.at(key), config.where(key))
    folder.facts.put("lora.rank", _highest_rank(config), config.where("r"))
    modules = config.at("target_modules")
    if isinstance(modules, list):
        folder.facts.put("lora.modules", sorted(map(str, modules)), config.where("target_modules"))


def _highest_rank(config: Document) -> Any:
    """Return the rank memory must be kept for: the highest of all modules'."""
    rank = config.at("r")
    pattern = config.at("rank_pattern")
    others = pattern.values() if isinstance(pattern, dict) else ()
    if type(rank) is not int:
        return rank
    return max([rank, *(other_rank for other_rank in others if type(other_rank) is int)])


def _put_weights(folder: Folder) -> None:
    name = next((candidate for candidate in WEIGHTS if candidate in folder.names), None)
    if name is None:
        return
    where = folder.at(name)
    folder.facts.put("weights.files", 1, where)
    folder.facts.put("weights.format", name.rpartition(".")[2], where)
    if name.endswith(".bin"):
        folder.facts.put("weights.bytes", folder.size(name), where)
        if folder.start(name).startswith(LFS_MARK):
            folder.facts.put("weights.lfs_pointers", [name], where)
        return
    header = read_header(folder.host, where)
    folder.facts.put("weights.bytes", header.file_bytes, where)
    _put_fault(folder, name, header)
    _put_tensors(folder, header, where)


def _put_fault(folder: Folder, name: str, header: Header) -> None:
    fact = FACT_OF_FAULT.get(header.fault)
    if fact is not None:
        fault_text = name if fact == "weights.lfs_pointers" else f"{name}: {header.problem}"
        folder.facts.put(fact, [fault_text], folder.at(name))
    elif header.fault:
        folder.unread.append(f"{name}: {header.problem}")


def _put_tensors(folder: Folder, header: Header, where: str) -> None:
    """Put the type, and the sizes of the model the tensors fit."""
    pairs = [
        (lora_name[1], lora_name[2], entry)
        for name, entry in header.tensors.items()
        if (lora_name := PAIR.search(name))
    ]
    if header.tensors:
        folder.facts.put(
            "lora.dtype",
            _main_dtype([entry for _, _, entry in pairs] or list(header.tensors.values())),
            where,
        )
    if not folder.facts.has("lora.modules") and pairs:
        folder.facts.put("lora.modules", sorted({module for module, _, _ in pairs}), where)
    ranks = [
        entry.shape[0] for _, side, entry in pairs if side in ("A", "embedding_A") and len(entry.shape) == 2
    ]
    if not folder.facts.has("lora.rank") and ranks:
        folder.facts.put("lora.rank", max(ranks), where)
    _put_sizes(folder, header, pairs, where)


def _main_dtype(entries: list[TensorEntry]) -> str:
    sizes: dict[str, int] = {}
    for entry in entries:
        sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.bytes
    return dtype_word(max(sizes, key=lambda dtype: sizes[dtype]))


def _put_sizes(folder: Folder, header: Header, pairs: list[tuple[str, str, TensorEntry]], where: str) -> None:
    flat = [(module, side, entry.shape) for module, side, entry in pairs if len(entry.shape) == 2]
    hidden = {shape[1] for module, side, shape in flat if side == "A" and module in READS_HIDDEN}
    if len(hidden) == 1:
        folder.facts.put("lora.hidden_size", hidden.pop(), where)
    tables = {shape[0] for module, side, shape in flat if side == "B" and module in HEADS}
    tables |= {shape[1] for _, side, shape in flat if side == "embedding_A"}
    tables |= {
        entry.shape[0]
        for name, entry in header.tensors.items()
        if WHOLE_TABLE.search(name) and len(entry.shape) == 2
    }
    if len(tables) == 1:
        folder.facts.put("lora.vocab_size", tables.pop(), where)


READER = Reader(
    "lora", "a LoRA adapter directory (adapter_config.json and adapter_model.safetensors)", recognise, read
)
