"""Whether an output layer that is stored beside the embedding is the embedding: a few bytes of both are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.formats.documents import UnreadableError, read_at
from trtdx.formats.safetensors import read_header

if TYPE_CHECKING:
    from trtdx.formats.safetensors import TensorEntry
    from trtdx.inspect.readers.folder import Folder

SAMPLE = 4096  # bytes
PLACES = (0.0, 0.5, 0.75)  # of a tensor; the last rows are often padding


def put_own_head(folder: Folder, embedding: tuple[str, str], head: tuple[str, str]) -> None:
    """Put whether the two tensors (file, name) differ, where config.json says that they are one."""
    if folder.facts.get("tie_embeddings") is not True:
        return
    try:
        embedding_sample, head_sample = _samples(folder, *embedding), _samples(folder, *head)
    except (UnreadableError, OSError, KeyError):  # damaged files are told elsewhere
        return
    if embedding_sample is not None and head_sample is not None and len(embedding_sample) == len(head_sample):
        folder.facts.put(
            "weights.own_head", embedding_sample != head_sample, folder.at(f"{head[0]}: {head[1]}")
        )


def _samples(folder: Folder, file: str, name: str) -> bytes | None:
    """Return a tensor's type and bytes from a few places; None where the file does not hold it whole."""
    path = folder.at(file)
    header = read_header(folder.host, path)
    entry: TensorEntry | None = header.tensors.get(name)
    if entry is None or header.fault:
        return None
    start = 8 + int.from_bytes(read_at(folder.host, path, 0, 8), "little") + entry.begin
    length = min(SAMPLE, entry.bytes)
    places = [start + int((entry.bytes - length) * place) for place in PLACES]
    return entry.dtype.encode() + b"".join(read_at(folder.host, path, at, length) for at in places)
