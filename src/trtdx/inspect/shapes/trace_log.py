"""The shapes of engine inputs at run time, from TensorRT-LLM's own tables in a log at level TRACE.

`TllmRuntime::printEngineInfo` (0.15 and later) prints inputs, outputs and optimization profiles when an engine
is loaded, `printContextInfo` (0.19 and later) the shapes before each execution. The tables are the same in
both layouts of the log: `[TensorRT-LLM][TRACE] ...` until 1.3.0rc12, `[TRT-LLM] [V] [runtime][RANK 0] ...` since.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trtdx.case import is_case, open_case
from trtdx.errors import InputError
from trtdx.formats.streams import read_line_blocks
from trtdx.formats.tensorrt.nouns import OptimizationProfile, ShapeRange, TensorSpec
from trtdx.inspect.facts.artifact import Artifact
from trtdx.inspect.shapes.distribution import LoggedEngine, TensorShape
from trtdx.inspect.shapes.tables import shape_tables
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host

__all__ = ["ShapeLog", "artifact_from_log", "read_shape_log", "shape_tables"]

MAX_LINE_BYTES = 64 << 10
MAX_ROWS = 20_000  # of one table: an engine with LoRA inputs for every layer has thousands
MAX_ENGINES = 64
MAX_RANKS = 4096
MAX_REMEMBERED = 20_000  # rows and shapes that are remembered, since most repeat
NO_TABLES = (
    "no table of shapes was found in it (looked for: 'Information of engine input / output', 'Optimization Profile', "
    "'Information of context input / output')"
)
HOW_TO_GET_TABLES = (
    "run the engine with TLLM_LOG_LEVEL=TRACE and give that log; TensorRT-LLM writes the tables for engines "
    "(0.15 to 1.3.0rc21), not in the PyTorch backend"
)
DTYPE_BY_NAME = {
    "INT64": "int64", "INT32": "int32", "FP32": "float32", "BF16": "bfloat16", "FP16": "float16",
    "BOOL": "bool", "UINT8": "uint8", "INT8": "int8", "FP8": "fp8", "INT4": "int4", "FP4": "fp4",
}  # fmt: skip

_USUAL_PREFIX = b"[TensorRT-LLM][TRACE] "  # most lines start so, and need no pattern
_PREFIX = re.compile(
    rb"\[TensorRT-LLM\]\[TRACE\](?:\[(?P<old>\d{1,6})\])? ?"
    rb"|\[TRT-LLM\] ?(?:\[RANK (?P<middle>\d{1,6})\] )?\[[VD]\] ?"
    rb"(?:\[(?!RANK)[\w. -]{0,24}\] ?)?(?:\[RANK (?P<new>\d{1,6})\] ?)?"
)
# What launchers put before a line: mpirun --tag-output, srun -l, torchrun, Open MPI 5.
_LAUNCHER = re.compile(rb"\[[\w.@-]*,(\d{1,6})\](?:<\w+>)?:|^ {0,3}(\d{1,4}): |\[rank ?(\d{1,6})\]:?")
_PROFILE = re.compile(rb"(?:Using )?Optimization Profile:? (\d{1,4})")
_SHAPE = re.compile(rb"\((?:-?\d{1,18}(?:, ?-?\d{1,18})*,?)?\)")
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,6})", re.IGNORECASE)


class ShapeLog(NamedTuple):
    """What a log tells of the shapes of its engines."""

    path: str
    engines: tuple[LoggedEngine, ...]
    notes: tuple[str, ...]

    @property
    def executions(self) -> int:
        return sum(engine.executions for engine in self.engines)


def read_shape_log(host: Host, path: str) -> ShapeLog:
    """Return what the tables of a log, a folder of logs or a case tell, in memory bounded whatever its length."""
    reader = _TraceReader()
    problems: list[str] = []
    for inner, name in _log_sources(host, path):
        reader.start_file(name)
        for block in read_line_blocks(inner, name, MAX_LINE_BYTES, problems):
            for number, line in enumerate(block.lines, block.first_number):
                if b"|" in line or b"===" in line or b"rofile" in line or b"nformation of" in line:
                    reader.take_line(line, number)
        reader.end_file()
    if not reader.has_tables:
        raise InputError("; ".join((f"{path}: {NO_TABLES}", *problems)), fix=HOW_TO_GET_TABLES)
    return ShapeLog(path, reader.engines(), (*problems, *reader.notes()))


def _log_sources(host: Host, path: str) -> Iterator[tuple[Host, str]]:
    if path != "-" and host.kind(path) == "absent":
        raise InputError(f"there is no log {path}", fix="give a log that was written with TLLM_LOG_LEVEL=TRACE")
    if is_case(host, path):
        case = open_case(host, path)
        yield from ((case.host, name) for name in case.text_paths())
    elif path != "-" and host.kind(path) == "directory":
        yield from ((host, name) for name in host.files(path) if _is_log_file(name))
    else:
        yield host, path


def _is_log_file(name: str) -> bool:
    last = name.rpartition("/")[2].lower()
    return "." not in last or last.endswith((".log", ".txt", ".out", ".err", ".gz", ".xz", ".bz2"))


def artifact_from_log(log: ShapeLog) -> Artifact:
    """Return the inputs, outputs and profiles a log tells of as an artifact."""
    described = next((engine for engine in log.engines if engine.profiles), None) or next(iter(log.engines), None)
    if described is None:
        return Artifact("profiles", log.path, unread=log.notes)
    return Artifact("profiles", log.path, tensors=described.tensors, profiles=described.profiles, unread=log.notes)


@lru_cache(MAX_REMEMBERED)
def _launcher_rank(before: bytes) -> int | None:
    """Return the rank that a launcher put before a line."""
    launcher = _LAUNCHER.search(before)
    return int(next(filter(None, launcher.groups()))) if launcher else None


@lru_cache(MAX_REMEMBERED)
def _row_parts(text: bytes) -> tuple[str, tuple[bytes, ...]] | None:
    """Return a row's name and its other cells."""
    name, *cells = (cell.strip() for cell in text.split(b"|")[:-1])
    is_row = bool(name) and name != b"Name" and len(cells) in (2, 3, 4)
    return (name.decode("utf-8", "replace"), tuple(cells)) if is_row else None


@lru_cache(MAX_REMEMBERED)
def _parse_shape(cell: bytes) -> TensorShape | None:
    if not _SHAPE.fullmatch(cell):
        return None
    return tuple(int(part) for part in cell.strip(b"()").split(b",") if part.strip())


class _LogTable:
    """A table that is being read on one rank."""

    def __init__(self, kind: str, line: int, index: int = 0) -> None:
        self.kind, self.line, self.index = kind, line, index
        self.rows: dict[str, tuple[bytes, ...]] = {}


class _TraceReader:
    """Puts the lines of tables together, rank by rank, since ranks write into each other's tables."""

    def __init__(self) -> None:
        self._engines: dict[tuple[str, ...], LoggedEngine] = {}
        self._open: dict[int | None, _LogTable] = {}
        self._tensors: dict[int | None, tuple[TensorSpec, ...]] = {}  # of the engine whose profiles follow
        self._name = ""
        self._rank_of_file: int | None = None
        self._mixed = self._cut = self._unsized = self._left_out = 0

    def start_file(self, name: str) -> None:
        self._name = name
        rank = _RANK_IN_NAME.search(name.rpartition("/")[2])
        self._rank_of_file = int(rank[1]) if rank else None

    def end_file(self) -> None:
        """Forget tables that a file's end has cut."""
        self._cut += sum(table.kind == "context" and bool(table.rows) for table in self._open.values())
        self._open.clear()

    def take_line(self, line: bytes, number: int) -> None:
        """Take a line that may belong to a table."""
        if line.startswith(_USUAL_PREFIX):
            text, rank = line[len(_USUAL_PREFIX) :], self._rank_of_file
        else:
            prefix = _PREFIX.search(line)
            if prefix is None:
                return
            text, rank = line[prefix.end() :], self._rank_of_line(line[: prefix.start()], prefix)
        table = self._open.get(rank)
        if table and text.endswith(b"|"):
            self._take_row(table, rank, text)
        elif table and text.startswith(b"==="):
            if table.rows:
                del self._open[rank]
                self._finish_table(table, rank)
        else:
            self._take_heading(text, rank, number)

    def _rank_of_line(self, before: bytes, prefix: re.Match[bytes]) -> int | None:
        stated = prefix["old"] or prefix["new"] or prefix["middle"]
        if stated:
            return int(stated)
        rank = _launcher_rank(before) if before else None
        return self._rank_of_file if rank is None else rank

    def _take_heading(self, text: bytes, rank: int | None, number: int) -> None:
        if text.startswith(b"Information of context input"):
            self._start_table(_LogTable("context", number), rank)
        elif text.startswith(b"Information of engine input"):
            self._start_table(_LogTable("engine", number), rank)
        elif text.startswith((b"Optimization Profile ", b"Using Optimization Profile")):
            profile = _PROFILE.match(text)
            if profile and text.startswith(b"U") and rank in self._open:
                self._open[rank].index = int(profile[1])
            elif profile and text.startswith(b"O"):
                self._start_table(_LogTable("profile", number, int(profile[1])), rank)

    def _start_table(self, table: _LogTable, rank: int | None) -> None:
        before = self._open.get(rank)
        self._cut += bool(before and before.kind == "context" and before.rows)
        if rank in self._open or len(self._open) < MAX_RANKS:
            self._open[rank] = table

    def _take_row(self, table: _LogTable, rank: int | None, text: bytes) -> None:
        parts = _row_parts(text)
        if parts is None or len(table.rows) >= MAX_ROWS:
            return
        name, cells = parts
        if name in table.rows:  # two ranks write into one stream and nothing tells them apart
            self._mixed += 1
            del self._open[rank]
            return
        table.rows[name] = cells

    def _finish_table(self, table: _LogTable, rank: int | None) -> None:
        if table.kind == "context":
            self._add_execution(table, rank)
        elif table.kind == "engine":
            self._tensors[rank] = tuple(self._tensor_specs(table))
        else:
            self._add_profile(table, rank)

    def _tensor_specs(self, table: _LogTable) -> Iterator[TensorSpec]:
        for name, cells in table.rows.items():
            shape = _parse_shape(cells[-1]) if len(cells) == 4 else None
            if shape is not None:
                kind = DTYPE_BY_NAME.get(cells[2].decode("ascii", "replace"), "unknown")
                mode = "in" if cells[0] == b"I" else "out"
                yield TensorSpec(name, mode, kind, tuple("?" if size < 0 else size for size in shape))

    def _add_profile(self, table: _LogTable, rank: int | None) -> None:
        engine = self._engine_with_names(tuple(table.rows))
        if engine is None or any(profile.index == table.index for profile in engine.profiles):
            return  # another rank's, or loaded again
        inputs = {tensor.name for tensor in self._tensors.get(rank, ()) if tensor.mode == "in"}
        ranges = tuple(self._profile_ranges(table, inputs))
        engine.tensors = engine.tensors or self._tensors.get(rank, ())
        source = f"read from {self._name}:{table.line}"
        engine.profiles = (*engine.profiles, OptimizationProfile(table.index, ranges, source))

    def _profile_ranges(self, table: _LogTable, inputs: set[str]) -> Iterator[ShapeRange]:
        for name, cells in table.rows.items():
            shapes = [_parse_shape(cell) for cell in cells]
            if len(shapes) == 3 and (name in inputs or not inputs):
                low, best, high = shapes
                if low is not None and best is not None and high is not None and len(low) == len(high):
                    yield ShapeRange(name, low, best, high)

    def _add_execution(self, table: _LogTable, rank: int | None) -> None:
        engine = self._engine_with_names(tuple(table.rows))
        shapes = tuple(_parse_shape(cells[-1]) for cells in table.rows.values())
        if engine is None or None in shapes:
            self._left_out += 1
            return
        sizes = tuple(shape for shape in shapes if shape is not None)
        if any(size < 0 for shape in sizes for size in shape):
            self._unsized += 1
            return
        engine.add_execution(f"{self._name}:{table.line}", rank, table.index, sizes)

    def _engine_with_names(self, names: tuple[str, ...]) -> LoggedEngine | None:
        """Return the engine with these inputs and outputs; ranks that cut the same layers share one."""
        if names not in self._engines:
            if len(self._engines) >= MAX_ENGINES:
                return None
            self._engines[names] = LoggedEngine(names)
        return self._engines[names]

    @property
    def has_tables(self) -> bool:
        """Whether there was any table at all, usable or not."""
        return bool(self._engines or self._tensors or self._mixed or self._cut or self._left_out)

    def engines(self) -> tuple[LoggedEngine, ...]:
        return tuple(self._engines.values())

    def notes(self) -> Iterator[str]:
        if self._mixed:
            yield (
                f"{format_count(self._mixed, 'table')} of several ranks are mixed and left out; start with "
                "mpirun --tag-output (srun -l), or give each rank a log of its own"
            )
        if self._cut:
            yield f"{format_count(self._cut, 'table')} cut off and left out"
        if self._left_out:
            yield f"{format_count(self._left_out, 'table')} with cells that are no shapes left out"
        if self._unsized:
            yield (
                f"{format_count(self._unsized, 'execution')} of the Python session, which prints -1 for dynamic sizes; "
                "run the C++ session for the sizes"
            )
