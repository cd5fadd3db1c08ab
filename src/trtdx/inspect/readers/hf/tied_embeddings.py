"""Whether an output layer that is stored beside the embedding is the embedding: a few bytes of both are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.formats.documents import UnreadableError, read_range
from trtdx.formats.safetensors import read_safetensors_header

if TYPE_CHECKING:
    from trtdx.formats.safetensors import TensorEntry
    from trtdx.inspect.readers.folder import ArtifactFolder

SAMPLE_BYTES = 4096  # bytes
SAMPLE_PLACES = (0.0, 0.5, 0.75)  # of a tensor; the last rows are often padding


def put_own_head_fact(folder: ArtifactFolder, embedding: tuple[str, str], head: tuple[str, str]) -> None:
    """Put whether the two tensors (file, name) differ, where config.json says that they are one."""
    if folder.facts.get("tie_embeddings") is not True:
        return
    try:
        embedding_sample, head_sample = _sample_tensor(folder, *embedding), _sample_tensor(folder, *head)
    except (UnreadableError, OSError, KeyError):  # damaged files are told elsewhere
        return
    if embedding_sample is not None and head_sample is not None and len(embedding_sample) == len(head_sample):
        folder.facts.put("weights.own_head", embedding_sample != head_sample, folder.path_of(f"{head[0]}: {head[1]}"))


def _sample_tensor(folder: ArtifactFolder, file: str, name: str) -> bytes | None:
    """Return a tensor's type and bytes from a few places; None where the file does not hold it whole."""
    path = folder.path_of(file)
    header = read_safetensors_header(folder.host, path)
    entry: TensorEntry | None = header.tensors.get(name)
    if entry is None or header.fault:
        return None
    start = 8 + int.from_bytes(read_range(folder.host, path, 0, 8), "little") + entry.begin
    length = min(SAMPLE_BYTES, entry.data_bytes)
    places = [start + int((entry.data_bytes - length) * place) for place in SAMPLE_PLACES]
    return entry.dtype.encode() + b"".join(read_range(folder.host, path, at, length) for at in places)
