"""Verbose build logs of TensorRT, TensorRT-RTX and TensorRT-LLM: kernels, tensors, profiles and memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from trtdx.errors import InputError
from trtdx.formats.tensorrt.build_log import LINE_MARKS, BuildLogParser
from trtdx.formats.tensorrt.kernels import assign_kernel_profiles
from trtdx.inspect.facts.artifact import Artifact, FactCollector
from trtdx.inspect.readers import ArtifactReader, PathProbe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Fact

BLOCK_BYTES = 4 << 20
MAX_LINE_BYTES = 1 << 20
# How TensorRT's lines begin under TensorRT-LLM, trtexec, Polygraphy and TensorRT 7, and lines only a build has.
BUILD_LINE = re.compile(
    rb"""\[TRT(?:-LLM)?\]\ \[[A-Z]\]|\[[VIWE]\]\ \[TRT\]|^\[[VI]\]\ |^\[TensorRT\]\ (?:VERBOSE|INFO):"""
    rb"""|Engine\ Layer\ Information:|Static\ check\ for\ parsing\ node|,\ LayerType:\ |Total\ Activation\ Memory""",
    re.MULTILINE | re.VERBOSE,
)


def is_build_log(_: Host, probe: PathProbe) -> bool:
    """Return whether a text file has lines of TensorRT's builder."""
    return not probe.is_directory and b"\0" not in probe.start and bool(BUILD_LINE.search(probe.start))


def read_build_log(host: Host, path: str) -> Artifact:
    """Return what the log tells; it is read once, in blocks, and only the lines that matter are looked at."""
    build_log = BuildLogParser(path)
    unread: list[str] = []
    try:
        with host.open(path) as stream:
            for line in iterate_lines_with(stream, LINE_MARKS):
                build_log.parse_line(line)
    except (InputError, OSError) as err:
        unread.append(f"not read to its end: {err}")
    if build_log.omitted_kernels:
        unread.append(f"{build_log.omitted_kernels} kernels were left out")
    return Artifact(
        "build-log",
        path,
        _facts_from_log(build_log, path),
        tensors=build_log.tensors(),
        profiles=build_log.profiles(),
        kernels=tuple(assign_kernel_profiles(build_log.kernels)),
        refers_to=_model_paths(host, build_log.model, path),
        unread=tuple(unread),
    )


def _facts_from_log(build_log: BuildLogParser, path: str) -> dict[str, Fact]:
    facts = FactCollector()
    for name, value in build_log.facts.items():
        facts.put(name, value, path)
    facts.put("log.layers", len(build_log.kernels) + build_log.omitted_kernels or None, f"{path}: Layers")
    facts.put("log.errors", build_log.errors() or None, path)
    return facts.to_dict()


def _model_paths(host: Host, model: str, path: str) -> tuple[str, ...]:
    """Return the ONNX file a log names, where it lies beside the log or where it was then."""
    paths = (str(Path(path).parent / Path(model).name), model) if model else ()
    return tuple(candidate for candidate in paths if host.kind(candidate) == "file")[:1]


def iterate_lines_with(stream: BinaryIO, needles: tuple[bytes, ...]) -> Iterator[str]:
    """Yield the lines that hold one of the texts, in order; a line of a megabyte or more is cut."""
    rest = b""
    while True:
        block = stream.read(BLOCK_BYTES)
        data = rest + (block or b"")
        end = len(data) if not block else data.rfind(b"\n") + 1
        for start in sorted({start for needle in needles for start in _line_starts(data, needle, end)}):
            stop = data.find(b"\n", start, start + MAX_LINE_BYTES)
            yield data[start : stop if stop >= 0 else start + MAX_LINE_BYTES].decode("utf-8", "replace")
        if not block:
            return
        rest = data[end:] if len(data) - end < MAX_LINE_BYTES else data[-MAX_LINE_BYTES:]


def _line_starts(data: bytes, needle: bytes, end: int) -> Iterator[int]:
    """Yield where the lines start that hold a text."""
    at = data.find(needle, 0, end)
    while at >= 0:
        yield data.rfind(b"\n", 0, at) + 1
        after = data.find(b"\n", at, end)
        at = data.find(needle, after, end) if after >= 0 else -1


READER = ArtifactReader("build-log", "a verbose build log of TensorRT or TensorRT-LLM", is_build_log, read_build_log)
