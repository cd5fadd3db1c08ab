"""Reads a capture, whole or cut off, wherever it came from.

Nothing in it is believed before it is checked: lengths against the files, numbers against what was told, shapes
against bytes. Values are mapped, not read. What is missing is told in `Capture.partial`.
"""

from __future__ import annotations

import mmap
import os
import re
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.capture.store import format as disk
from trtdx.capture.store.format import (
    CaptureError,
    CaptureHeader,
    EndFrame,
    Frame,
    StepNoteFrame,
    TensorLayout,
    parse_frames,
)
from trtdx.errors import UnknownNameError
from trtdx.tensors.dtypes import numpy_dtype
from trtdx.tensors.statistics import STATISTICS_STRUCT as STATISTICS
from trtdx.tensors.statistics import Statistics, content_hash, view_memory
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    import numpy as np
    from typing_extensions import Self

    from trtdx.capture.store.query import QueryTable
    from trtdx.tensors.taps import Place

MAX_RANKS = 65_536
MIN_FORGOTTEN_BYTES = 1 << 12  # bytes from which on it is worth a call to let go of pages


class DamagedValuesError(CaptureError):
    """Values are not those that were captured."""


class TensorRecord(NamedTuple):
    """One tensor at one step on one rank."""

    step: int
    rank: int
    place: Place
    layout: TensorLayout
    statistics: Statistics
    offset: int  # of the values in the rank's log; -1: not kept
    left_out: bool  # values were asked for, but the budget was spent

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def kept(self) -> bool:
        return self.offset >= 0


class RankFiles:
    """One rank's index and tensor log, checked."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.header = CaptureHeader()
        self.end: EndFrame | None = None
        self.places: list[Place] = []
        self.layouts: list[TensorLayout] = []
        self.notes: list[StepNoteFrame] = []
        self.damaged, self.problem = False, ""
        self.records, self.left_out, self.lost = 0, 0, 0
        self._row_frames: list[Frame] = []
        self._path = folder / disk.index_name(rank)
        self._index = _map_file(self._path)
        self.whole_bytes = min(len(disk.INDEX_MAGIC), len(self._index))
        self._values = _map_file(folder / disk.values_name(rank), missing_ok=True)
        self._read_index()

    def _read_index(self) -> None:
        magic = bytes(self._index[: len(disk.INDEX_MAGIC)])
        if magic != disk.INDEX_MAGIC[: len(magic)]:
            raise CaptureError(f"{self._path} is not the index of a capture, or of a newer trtdx")
        for frame in parse_frames(self._index, len(disk.INDEX_MAGIC)):
            try:
                self._take_frame(frame)
            except (ValueError, RecursionError, msgspec.MsgspecError) as err:
                self.damaged, self.problem = True, f"is damaged at byte {frame.offset}: {err}"
                return
            self.whole_bytes = frame.offset + frame.size
        if self.whole_bytes < len(self._index):
            self.problem = (
                f"is cut off: its last {format_count(len(self._index) - self.whole_bytes, 'byte')} are no frame"
            )

    def _take_frame(self, frame: Frame) -> None:
        content = self._index[frame.offset : frame.offset + frame.size]
        take = self._frame_handlers().get(frame.kind)
        if take is not None:
            take(content, frame)

    def _frame_handlers(self) -> dict[int, Callable[[memoryview, Frame], None]]:
        return {
            disk.HEADER: self._take_header,
            disk.PLACES: lambda content, _: self._define(self.places, disk.parse_places(content)),
            disk.LAYOUTS: lambda content, _: self._define(self.layouts, disk.parse_layouts(content)),
            disk.ROWS: self._take_rows,
            disk.NOTE: lambda content, _: self.notes.append(msgspec.json.decode(content, type=StepNoteFrame)),
            disk.END: self._take_end,
        }

    def _take_header(self, content: memoryview, _: Frame) -> None:
        self.header = msgspec.json.decode(content, type=CaptureHeader)
        self.end = None  # a capture that goes on after it was closed
        if self.header.schema_version > disk.CAPTURE_VERSION:
            raise CaptureError(
                f"{self._path} has version {self.header.schema_version} of the format; "
                f"version {disk.CAPTURE_VERSION} is known here",
                fix="update trtdx",
            )

    def _take_end(self, content: memoryview, _: Frame) -> None:
        self.end = msgspec.json.decode(content, type=EndFrame)

    def _define(self, known: list[Any], more: list[Any]) -> None:
        if len(known) + len(more) > disk.MAX_DEFINED:
            raise ValueError("it tells of too many places or layouts")
        known += more

    def _take_rows(self, content: memoryview, frame: Frame) -> None:
        import numpy as np

        if frame.size % disk.ROW_BYTES:
            raise ValueError("its rows are not whole")
        rows = self._frame_rows(frame)
        numbers, which = np.unique(rows["layout"], return_inverse=True)
        if (rows["place"] >= len(self.places)).any() or (numbers >= len(self.layouts)).any():
            raise ValueError("a row refers to what was never told")
        layouts = [self.layouts[number] for number in numbers]
        sizes = np.array([(layout.bytes, layout.elements) for layout in layouts], "u8").reshape(-1, 2)[which]
        if (rows["bytes"] != sizes[:, 0]).any() or (rows["elements"] != sizes[:, 1]).any():
            raise ValueError("a row's size is not its shape's")
        self.records += len(rows)
        self.left_out += int((rows["flags"] & disk.LEFT_OUT).sum())
        self.lost += int(((rows["offset"] >= 0) & ~self.rows_with_values(rows)).sum())
        self._row_frames.append(frame)

    def _frame_rows(self, frame: Frame) -> np.ndarray[Any, Any]:
        import numpy as np

        return np.frombuffer(self._index[frame.offset : frame.offset + frame.size], disk.row_dtype())

    @property
    def value_bytes(self) -> int:
        """How long the tensor log is."""
        return len(self._values)

    def rows_with_values(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return which rows' values are in the log."""
        begins, sizes = rows["offset"], rows["bytes"]  # below 2**63 and 2**62: the sum fits
        ends = begins.astype("u8") + sizes
        inside = (begins >= len(disk.VALUES_MAGIC)) & (ends <= len(self._values))
        with_values: np.ndarray[Any, Any] = inside & (begins % disk.ALIGNMENT == 0)
        return with_values

    def rows(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the rows as arrays, a batch at a time."""
        return map(self._frame_rows, self._row_frames)

    def iter_records(self, step: int | None = None, name: str | None = None) -> Iterator[TensorRecord]:
        """Yield the records, of one step or name if asked, each made when it is its turn."""
        import numpy as np

        named = [number for number, place in enumerate(self.places) if name in (None, place.name)]
        for frame in self._row_frames:
            rows = self._frame_rows(frame)
            selected = np.ones(len(rows), bool) if step is None else rows["step"] == step
            if name is not None:
                selected &= np.isin(rows["place"], named)
            for number in np.flatnonzero(selected).tolist():
                yield self._unpack_record(frame.offset + number * disk.ROW_BYTES)

    def _unpack_record(self, offset_in_index: int) -> TensorRecord:
        step, place, layout, offset, _, digest, flags = disk.ROW_HEAD.unpack_from(self._index, offset_in_index)
        numbers = STATISTICS.unpack_from(self._index, offset_in_index + disk.ROW_HEAD.size)
        statistics = Statistics._make((*numbers, digest.hex()))
        left_out = bool(flags & disk.LEFT_OUT)
        return TensorRecord(step, self.rank, self.places[place], self.layouts[layout], statistics, offset, left_out)

    def values(self, record: TensorRecord) -> np.ndarray[Any, Any]:
        """Return a record's values as a read-only array on the mapped log."""
        import numpy as np

        begin, end = record.offset, record.offset + record.layout.bytes
        if not len(disk.VALUES_MAGIC) <= begin <= end <= len(self._values):
            raise CaptureError(
                f"the values of {record.name} at step {record.step} are not in {disk.values_name(self.rank)}, "
                f"which is missing or cut off"
            )
        raw = self._values[begin:end]
        return np.frombuffer(raw, numpy_dtype(record.layout.dtype)).reshape(record.layout.shape)

    def forget(self, record: TensorRecord) -> None:
        """Let go of the pages that a record's values were read into; they are read again when they are needed."""
        mapped = self._values.obj if record.offset >= 0 else None
        if isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise") and record.layout.bytes >= MIN_FORGOTTEN_BYTES:
            begin = record.offset - record.offset % mmap.PAGESIZE
            mapped.madvise(mmap.MADV_DONTNEED, begin, record.offset + record.layout.bytes - begin)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._index, self._values = memoryview(b""), memoryview(b"")  # unmapped once no array needs them


class Capture:
    """A capture opened for reading."""

    def __init__(self, folder: str | Path) -> None:
        """Open a capture; one that was cut off is opened as far as it goes.

        Raises:
            CaptureError: it is no capture, or of a newer version.
        """
        self.folder = Path(folder)
        self._ranks = {rank: RankFiles(self.folder, rank) for rank in _list_ranks(self.folder)}
        self.header = next((files.header for files in self._ranks.values()), CaptureHeader())
        self._verified: set[tuple[int, int, str]] = (
            set()
        )  # rank, offset and hash of values that were read and are right

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self._ranks)

    @property
    def partial(self) -> tuple[str, ...]:
        """What is missing, in words; empty if every rank's capture was closed."""
        problems = []
        for rank, files in self._ranks.items():
            name = disk.index_name(rank)
            if files.problem:
                problems.append(
                    f"{name} {files.problem}; {format_count(files.records, 'record')} before that can be read"
                )
            elif files.end is None:
                problems.append(f"{name} was not closed: the run ended early or is still going on")
            elif files.end.problem:
                problems.append(files.end.problem)
            if files.lost:
                problems.append(f"{disk.values_name(rank)} is missing or cut off: {files.lost} values are not in it")
        return tuple(problems)

    @property
    def left_out(self) -> int:
        """How many tensors' values did not fit the budget."""
        return sum(files.left_out for files in self._ranks.values())

    def __len__(self) -> int:
        return sum(files.records for files in self._ranks.values())

    def records(
        self, *, step: int | None = None, name: str | None = None, rank: int | None = None
    ) -> Iterator[TensorRecord]:
        """Yield records in the order they were captured, rank by rank, each made when it is asked for."""
        for number, files in self._ranks.items():
            if rank in (None, number):
                yield from files.iter_records(step, name)

    def record(self, name: str, *, step: int = 0, rank: int = 0) -> TensorRecord:
        """Return the record of a name at a step, one with values if there is, or raise with the nearest names."""
        without_values = None
        for record in self.records(step=step, name=name, rank=rank):
            if record.kept:
                return record
            without_values = without_values or record
        if without_values is None:
            raise UnknownNameError(f"tensor of step {step} on rank {rank}", name, self.names())
        return without_values

    def names(self) -> list[str]:
        """Return the names captured, in the order they were first met."""
        return list(dict.fromkeys(place.name for files in self._ranks.values() for place in files.places))

    def files(self, rank: int) -> RankFiles:
        """Return one rank's files."""
        return self._ranks[rank]

    def notes(self, *, rank: int = 0) -> list[StepNoteFrame]:
        """Return what was said about steps."""
        return list(self._ranks[rank].notes) if rank in self._ranks else []

    def values(self, record: TensorRecord) -> np.ndarray[Any, Any]:
        """Return a record's values, read-only and mapped from the log; when first read they are checked against their hash.

        Raises:
            CaptureError: they were not kept, or are not what was captured.
        """
        if not record.kept:
            why = "the value budget was spent" if record.left_out else "only statistics were asked for"
            raise CaptureError(f"the values of {record.name} at step {record.step} were not kept: {why}")
        array = self._ranks[record.rank].values(record)
        content = (record.rank, record.offset, record.statistics.hash)
        if content not in self._verified:
            digest = content_hash(view_memory(array.__array_interface__["data"][0], array.nbytes)).hex()
            if digest != record.statistics.hash:
                raise DamagedValuesError(
                    f"the values of {record.name} at step {record.step} on rank {record.rank} of {self.folder} are not "
                    "those captured: the file was damaged or changed since",
                    fix=f"see what else is damaged: trtdx capture verify {shlex.quote(str(self.folder))}",
                )
            self._verified.add(content)
        return array

    def damaged_records(self) -> Iterator[TensorRecord]:
        """Yield the records whose values are not what was captured, or are missing, having read all of them."""
        for record in self.records():
            if record.kept:
                try:
                    self.values(record)
                except CaptureError:
                    yield record
                self.forget(record)

    def forget(self, record: TensorRecord) -> None:
        """Let go of the memory that reading a record's values took."""
        self._ranks[record.rank].forget(record)

    def query(self, sql: str) -> QueryTable:
        """Return what an SQL query over the table `tensors` answers; see query.py."""
        from trtdx.capture.store.query import query_tensors

        return query_tensors(list(self._ranks.values()), sql)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for files in self._ranks.values():
            files.__exit__(None, None, None)


def is_capture(folder: str | Path) -> bool:
    """Whether a folder holds a capture."""
    try:
        return bool(_list_ranks(Path(folder)))
    except CaptureError:
        return False


def _list_ranks(folder: Path) -> list[int]:
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError as err:
        raise CaptureError(f"cannot read {folder}: {err.strerror or err}") from err
    matches = [re.fullmatch(r"rank(0|[1-9]\d{0,4})\.index", name) for name in names]
    ranks = sorted(int(match[1]) for match in matches if match)
    if not ranks:
        raise CaptureError(f"{folder} holds no capture", fix="name a folder with a rank0.index in it")
    return ranks


def _map_file(path: Path, *, missing_ok: bool = False) -> memoryview:
    """Return a file's bytes, mapped; links, devices and pipes are refused, as strangers may send them."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as err:
        if missing_ok:
            return memoryview(b"")
        raise CaptureError(f"{path} is not there") from err
    except OSError as err:
        raise CaptureError(f"cannot read {path}: {err.strerror or err}") from err
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise CaptureError(f"{path} is not a plain file")
        if not status.st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file, status.st_size, access=mmap.ACCESS_READ))
    finally:
        os.close(file)
