"""What the user named, as streams of blocks: files, directories, compressed files, standard input, cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.case import is_case, open_case
from trtdx.errors import InputError
from trtdx.streams import read_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtdx.host import Host

_NOT_LOGS = (
    ".safetensors",
    ".engine",
    ".plan",
    ".onnx",
    ".bin",
    ".pt",
    ".pth",
    ".so",
    ".npy",
    ".npz",
    ".pyc",
    ".whl",
    ".png",
    ".cache",
)


class Source(NamedTuple):
    """One stream of log text and the name evidence gives it."""

    name: str
    blocks: Callable[[], Iterator[bytes]]


class Skipped(NamedTuple):
    """Something named that was not read, and why."""

    name: str
    reason: str


def sources(host: Host, paths: Sequence[str]) -> tuple[list[Source], list[Skipped]]:
    """Return the streams behind the paths in a fixed order, and what was passed over."""
    found: dict[str, Source] = {}
    skipped: list[Skipped] = []
    for path in paths:
        kind = "file" if path == "-" else host.kind(path)
        if kind == "absent":
            raise InputError(
                f"there is no file or directory {path}",
                fix="give a log file, a directory of logs, a case, or - for standard input",
            )
        if is_case(host, path):
            case = open_case(host, path)
            for name in case.texts():
                found[name] = Source(name, lambda case=case, name=name: read_blocks(case.host, name))  # type: ignore[misc]
            continue
        if kind != "directory":
            found[path] = Source("stdin" if path == "-" else path, lambda path=path: read_blocks(host, path))  # type: ignore[misc]
            continue
        skipped += [Skipped(name, "this folder cannot be listed") for name in host.closed_folders(path)]
        for name in host.files(path):
            if name.lower().endswith(_NOT_LOGS):
                skipped.append(Skipped(name, "not a log by its name"))
            else:
                found[name] = Source(name, lambda name=name: read_blocks(host, name))  # type: ignore[misc]
    return [found[name] for name in sorted(found)], skipped
