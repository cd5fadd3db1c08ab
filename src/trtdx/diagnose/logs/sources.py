"""What the user named, as streams of blocks: files, directories, compressed files, standard input, cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.case import is_case, open_case
from trtdx.errors import InputError, TrtdxError
from trtdx.formats.streams import read_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtdx.host import Host

_NON_LOG_SUFFIXES = (
    ".safetensors", ".engine", ".plan", ".onnx", ".bin", ".pt", ".pth", ".so", ".npy", ".npz", ".pyc", ".whl",
    ".png", ".cache",
)  # fmt: skip


class LogSource(NamedTuple):
    """One stream of log text and the name evidence gives it."""

    name: str
    blocks: Callable[[], Iterator[bytes]]


class SkippedInput(NamedTuple):
    """Something named that was not read, and why."""

    name: str
    reason: str
    is_unreadable: bool = False  # it was named by the user, and nothing of it could be read


def open_sources(host: Host, paths: Sequence[str]) -> tuple[list[LogSource], list[SkippedInput]]:
    """Return the streams behind the paths in a fixed order, and what was passed over.

    One path that cannot be read does not keep the others from being read; it is an error where there are no others.
    """
    sources_by_name: dict[str, LogSource] = {}
    skipped: list[SkippedInput] = []
    errors: list[TrtdxError] = []
    for path in paths:
        try:
            streams, passed = _sources_at_path(host, path)
        except TrtdxError as err:
            errors.append(err)
            skipped.append(SkippedInput(path, err.message, is_unreadable=True))
            continue
        sources_by_name |= streams
        skipped += passed
    if errors and not sources_by_name:
        raise (
            errors[0] if len(errors) == 1 else InputError("; ".join(err.message for err in errors), fix=errors[0].fix)
        )
    return [sources_by_name[name] for name in sorted(sources_by_name)], skipped


def _sources_at_path(host: Host, path: str) -> tuple[dict[str, LogSource], list[SkippedInput]]:
    kind = "file" if path == "-" else host.kind(path)
    if kind == "absent":
        raise InputError(
            f"there is no file or directory {path}",
            fix="give a log file, a directory of logs, a case, or - for standard input",
        )
    if is_case(host, path):
        case = open_case(host, path)
        return {name: _file_source(case.host, name) for name in case.text_paths()}, []
    if kind != "directory":
        return {path: _file_source(host, path)}, []
    skipped = [SkippedInput(name, "this folder cannot be listed") for name in host.closed_folders(path)]
    names = list(host.files(path))
    skipped += [
        SkippedInput(name, "not a log by its name") for name in names if name.lower().endswith(_NON_LOG_SUFFIXES)
    ]
    return {name: _file_source(host, name) for name in names if not name.lower().endswith(_NON_LOG_SUFFIXES)}, skipped


def _file_source(host: Host, path: str) -> LogSource:
    return LogSource("stdin" if path == "-" else path, lambda: read_blocks(host, path))
