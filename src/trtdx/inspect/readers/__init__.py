"""One reader for each kind of artifact, and the one place that decides which kind a path is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Artifact


class PathProbe(NamedTuple):
    """What lies at a path, as far as telling kinds apart needs it."""

    path: str
    is_directory: bool
    names: frozenset[str]  # of a directory: its entries
    start: bytes  # of a file: its first bytes


class ArtifactReader(NamedTuple):
    """How one kind of artifact is recognised and read."""

    kind: str
    description: str  # in words, for the error that lists what was looked for
    recognise: Callable[[Host, PathProbe], bool]
    read: Callable[..., Artifact]  # (host, path), or (host, path, version) for a reader `by_version`
    takes_version: bool = False  # the same file means different things to different releases


def artifact_readers() -> tuple[ArtifactReader, ...]:
    """Return every reader, the most particular first."""
    from trtdx.inspect.readers.engine import build_log, checkpoint, plan
    from trtdx.inspect.readers.engine import engine_folder as engine
    from trtdx.inspect.readers.hf import lora_adapter
    from trtdx.inspect.readers.hf import model_folder as hf
    from trtdx.inspect.readers.onnx import onnx_file as onnx
    from trtdx.inspect.readers.onnx import profile_file
    from trtdx.inspect.readers.server import llm_args, triton_repository
    from trtdx.inspect.readers.workload import dockerfile
    from trtdx.inspect.readers.workload import manifest as workload

    return (
        engine.READER,
        checkpoint.READER,
        lora_adapter.READER,
        hf.READER,
        hf.TOKENIZER_READER,
        triton_repository.READER,
        plan.READER,
        onnx.READER,
        profile_file.READER,
        workload.READER,
        dockerfile.READER,
        llm_args.COMMAND_READER,
        llm_args.READER,
        build_log.READER,
    )


START_BYTES = 64 << 10


def probe_path(host: Host, path: str) -> PathProbe:
    """Return what lies at a path, or raise when nothing does or it cannot be opened."""
    kind = host.kind(path) if path else "absent"
    if kind == "absent":
        raise InputError(f"there is nothing at {path or 'an empty path'}")
    if kind == "other":
        raise InputError(f"{path} is neither a file nor a directory")
    if kind == "directory":
        return PathProbe(path, True, frozenset(host.entries(path)), b"")
    try:
        with host.open(path) as stream:
            return PathProbe(path, False, frozenset(), stream.read(START_BYTES) or b"")
    except OSError as err:  # opened, and then not to be read: a device, a broken disk
        raise InputError(f"cannot read {path}: {err.strerror or err}") from err


def read_artifact(host: Host, path: str, *, version: str = "") -> Artifact:
    """Return the artifact at a path, as the release `version` reads it where that matters.

    An unrecognised path gets the list of what was looked for.
    """
    here = probe_path(host, path)
    for reader in artifact_readers():
        if reader.recognise(host, here):
            return reader.read(host, path, version) if reader.takes_version else reader.read(host, path)
    descriptions = "\n".join(f"  - {reader.description}" for reader in artifact_readers())
    raise InputError(f"{path} is nothing that trtdx knows\nIt was looked for:\n{descriptions}")
