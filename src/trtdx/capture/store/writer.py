"""Writes a capture: tensors are measured, hashed and, where asked, kept, in bounded memory.

    with CaptureWriter(folder, Header(run="pytest", engine="torch")) as writer:
        writer.add_all(0, [(Place("model.layers.0.mlp"), source_from_torch(tensor), True)])

Format and guarantees are in format.py, reading is in reader.py. A writer is used from one thread; several ranks
are several writers in one folder.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.capture.store import format as disk
from trtdx.capture.store.appender import Appender, Batch
from trtdx.capture.store.format import (
    ALIGNMENT,
    CaptureError,
    CaptureHeader,
    EndFrame,
    StepNoteFrame,
    TensorLayout,
    encode_frame,
)
from trtdx.errors import MissingExtraError, TrtdxError
from trtdx.redact import redact_secrets
from trtdx.tensors.dtypes import DTYPES
from trtdx.tensors.statistics import content_hash, kernel_in_use, measure_into, view_memory
from trtdx.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from typing_extensions import Self

    from trtdx.tensors.statistics import TensorSource
    from trtdx.tensors.taps import Place

QUEUE_BYTES = 64 << 20
FLUSH_BYTES = 8 << 20  # of values waiting in a batch
FLUSH_ROWS = 4096
LARGE_BYTES = 8 << 20  # from here on values are written from where they lie instead of being copied
MAX_REMEMBERED = 1 << 14  # contents known to be in the log; bounded, so that memory stays flat
_PADDING = bytes(ALIGNMENT)


class _KnownLayout(NamedTuple):
    """A layout the index tells: its number there, its bytes, and its type's number in the kernel."""

    number: int
    bytes: int
    code: int


class CaptureWriter:
    """One rank's half of a capture while it is made."""

    def __init__(
        self,
        folder: str | Path,
        header: CaptureHeader,
        *,
        value_budget_bytes: int | None = None,
        queue_bytes: int = QUEUE_BYTES,
        parquet: bool = True,
        resume: bool = False,
        whole_steps: bool = False,
    ) -> None:
        """Start a capture, or go on with one.

        Args:
            folder: where it lies; made if need be. One rank's files are never overwritten.
            header: what is run; its rank names the files.
            value_budget_bytes: how many bytes of values to keep at most; afterwards only statistics are.
            queue_bytes: how much may wait to be written before `add` waits for the disk.
            parquet: write the statistics as a Parquet file too when closed, where DuckDB is installed.
            resume: go on with a capture that was cut off or closed.
            whole_steps: when going on, forget what came after the last note: a step that was cut off is done again.
        """
        self.folder, self.header = Path(folder), _complete_header(header)
        self.left_out, self.records, self.parquet_problem = 0, 0, ""
        self._stopped = ""  # what ended the run before its time
        self._budget = value_budget_bytes
        self._parquet, self._closed = parquet, False
        self._places: dict[Place, int] = {}
        self._layouts: dict[tuple[Any, ...], _KnownLayout] = {}  # by type, shape and device
        self._layouts_written = 0
        self._new_places: list[Place] = []
        self._new_layouts: list[TensorLayout] = []
        self._offsets_by_hash: dict[bytes, int] = {}  # content -> where it is in the log, least recently met first
        self._rows, self._row = bytearray(), bytearray(disk.ROW_BYTES)  # those that wait, the one being made
        self._large: list[memoryview | bytes] = []  # values after these, written from where they lie
        self._notes: list[bytes] = []
        self._kept_bytes, self._budgeted_bytes, self._step = 0, 0, -1
        rank = self.header.rank
        _make_folder(self.folder)
        self._files = Appender(
            self.folder / disk.index_name(rank),
            self.folder / disk.values_name(rank),
            queue_bytes=queue_bytes,
            fresh=not resume,
        )
        self._end = self._files.values_end
        self._values, self._filled = self._files.buffer(), 0  # values that wait, and how many bytes they are
        if resume:
            self._resume_files(whole_steps)
        self._write_start()

    def _write_start(self) -> None:
        """Write what both files begin with, as far as a killed process has not.

        A log that goes on is filled up to the next aligned place.
        """
        values = disk.VALUES_MAGIC[self._end :] or bytes(-self._end % ALIGNMENT)
        header = encode_frame(disk.HEADER, msgspec.json.encode(self.header))
        frames = disk.INDEX_MAGIC[self._files.index_end :] + header
        self._files.put(Batch(frames, bytearray(values), len(values)))
        self._end += len(values)
        _write_header(self.folder / disk.HEADER_FILE, self.header)

    def _resume_files(self, whole_steps: bool) -> None:
        """Take over what was told before, and cut off what a kill left half-written."""
        from trtdx.capture.store.reader import RankFiles

        end = _end_of_last_note(self.folder / disk.index_name(self.header.rank)) if whole_steps else None
        if end is not None:
            self._files.cut(end)
        with RankFiles(self.folder, self.header.rank) as before:
            if before.damaged:
                self._files.close()
                raise CaptureError(f"{disk.index_name(self.header.rank)} {before.problem}", fix="name a new folder")
            self._places = {place: number for number, place in enumerate(before.places)}
            self._layouts = {
                (layout.dtype, layout.shape, layout.device): _KnownLayout(
                    number, layout.bytes, DTYPES[layout.dtype].code
                )
                for number, layout in enumerate(before.layouts)
            }
            self._layouts_written = len(before.layouts)
            self.records, whole_bytes = before.records, before.whole_bytes
        self._files.cut(whole_bytes)

    def add(self, step: int, place: Place, tensor: TensorSource, *, values: bool = False, budgeted: bool = True) -> int:
        """Capture one tensor.

        Args:
            step: which step of the run; a new one sends the step before to the disk.
            place: where it was seen.
            tensor: where its elements lie; they are read before this returns.
            values: whether to keep them too.
            budgeted: whether values count against the budget; what a run needs to go on does not.

        Returns:
            How many of its elements are NaN or infinite.
        """
        if step != self._step:
            self.flush()
            self._step = step
        number = self._places.get(place)
        if number is None:
            number = self._new_place(place)
        layout = self._layouts.get(tensor[2:5]) or self._new_layout(tensor)
        size, row = layout.bytes, self._row
        special = measure_into(row, disk.ROW_HEAD.size, tensor.address, tensor.elements, layout.code)
        content = view_memory(tensor.address, size)
        digest = content_hash(content)
        offset, left_out = self._keep_values(content, digest, budgeted) if values else (-1, 0)
        disk.ROW_HEAD.pack_into(row, 0, step, number, layout.number, offset, size, digest, left_out)
        self._rows += row
        self.records += 1
        self._flush_if_full(values and size >= LARGE_BYTES)
        return special

    def add_again(self, place: Place) -> None:
        """Capture the tensor that was added last at another place too: what leaves a module is what its last part gave."""
        number = self._places.get(place)
        disk.ROW_PLACE.pack_into(self._row, disk.ROW_PLACE_AT, self._new_place(place) if number is None else number)
        self._rows += self._row
        self.records += 1

    def add_all(self, step: int, tensors: Iterable[tuple[Place, TensorSource, bool]]) -> int:
        """Capture tensors of one step, each with whether to keep its values."""
        return sum(self.add(step, place, tensor, values=values) for place, tensor, values in tensors)

    def _flush_if_full(self, large: bool) -> None:
        if large or self._filled >= FLUSH_BYTES or len(self._rows) >= FLUSH_ROWS * disk.ROW_BYTES:
            self.flush()
        if large:  # written from where they lie, so they have to stay until then
            self._files.drain()

    def _new_place(self, place: Place) -> int:
        number = self._places[place] = len(self._places)
        self._new_places.append(place)
        return number

    def _new_layout(self, tensor: TensorSource) -> _KnownLayout:
        if len(self._layouts) >= MAX_REMEMBERED:  # shapes that grow with every step; told again if met again
            self._layouts.clear()
        layout = _KnownLayout(self._layouts_written, tensor.bytes, DTYPES[tensor.dtype].code)
        self._layouts[tensor[2:5]] = layout
        self._layouts_written += 1
        self._new_layouts.append(TensorLayout(tensor.dtype, tensor.shape, tensor.device))
        return layout

    def _keep_values(self, content: memoryview, digest: bytes, budgeted: bool) -> tuple[int, int]:
        """Return where the values are or will be in the log, and the flag that says why not."""
        size, offset = len(content), self._offsets_by_hash.pop(digest, None)
        if offset is None:
            if budgeted and self._budget is not None and self._budgeted_bytes + size > self._budget:
                self.left_out += 1
                return -1, disk.LEFT_OUT
            offset = self._end
            padding = -size % ALIGNMENT
            if size >= LARGE_BYTES:
                self._large += (content, _PADDING[:padding])
            else:
                self._buffer_values(content)
                self._buffer_values(_PADDING[:padding])
            self._end += size + padding
            self._kept_bytes += size
            self._budgeted_bytes += size if budgeted else 0
            if len(self._offsets_by_hash) >= MAX_REMEMBERED:
                del self._offsets_by_hash[next(iter(self._offsets_by_hash))]
        self._offsets_by_hash[digest] = offset
        return offset, 0

    def _buffer_values(self, content: memoryview | bytes) -> None:
        """Copy values to the others that wait; the buffer grows where it has to and is never made smaller."""
        end = self._filled + len(content)
        self._values[self._filled : end] = content
        self._filled = end

    def note(self, step: int, data: dict[str, Any]) -> None:
        """Say something about a step: its tokens, its positions; at most a mebibyte of JSON."""
        content = msgspec.json.encode(StepNoteFrame(step, data))
        if len(content) > 1 << 20:
            raise CaptureError(f"a note on step {step} has {len(content)} bytes of JSON; 1 MiB is the most")
        self._notes.append(encode_frame(disk.NOTE, content))

    def flush(self) -> None:
        """Send what was captured so far on its way to the disk; raises if the disk refused what came before."""
        if not (self._rows or self._notes):
            return
        frames = [disk.encode_places(self._new_places)] if self._new_places else []
        frames += [disk.encode_layouts(self._new_layouts)] if self._new_layouts else []
        rows, most = memoryview(self._rows), disk.MAX_ROWS * disk.ROW_BYTES
        frames += [encode_frame(disk.ROWS, rows[at : at + most]) for at in range(0, len(rows), most)]
        batch = Batch(b"".join(frames + self._notes), self._values, self._filled, self._large)
        rows.release()
        self._new_places, self._new_layouts, self._notes = [], [], []
        self._rows, self._large = bytearray(), []
        self._values, self._filled = self._files.buffer(), 0
        self._files.put(batch)

    def close(self) -> None:
        """Write what waits and say that the capture is whole; raises if the disk refused something."""
        if self._closed:
            return
        self._closed = True
        problem: TrtdxError | None = None
        try:
            self.flush()
        except CaptureError as err:
            problem = err
        end = EndFrame(self.records, self._kept_bytes, self.left_out, self._files.problem or self._stopped)
        self._files.close(encode_frame(disk.END, msgspec.json.encode(end)))
        if problem:
            raise problem
        if self._parquet:
            self._write_parquet()

    def _write_parquet(self) -> None:
        from trtdx.capture.store.query import write_parquet

        try:
            write_parquet(self.folder, self.header.rank)
        except MissingExtraError:
            pass  # the index has all of it
        except TrtdxError as err:
            self.parquet_problem = err.message

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        if isinstance(error, KeyboardInterrupt):
            self._stopped = "the run was interrupted, so its end is missing"
        with contextlib.suppress(CaptureError):  # what made the run stop is what the user has to see
            self.close()


def _end_of_last_note(path: Path) -> int | None:
    """Return where the last note in an index ends."""
    index = path.read_bytes()
    frames = disk.parse_frames(memoryview(index), len(disk.INDEX_MAGIC))
    ends = [note.offset + note.size for note in frames if note.kind == disk.NOTE]
    return ends[-1] if ends else None


def _complete_header(header: CaptureHeader) -> CaptureHeader:
    return msgspec.structs.replace(
        header,
        run=redact_secrets(header.run),
        kernel=header.kernel or kernel_in_use(),
        made_by=header.made_by or f"trtdx {__version__}",
        created=header.created or time.time(),
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise CaptureError(f"cannot make {folder}: {err.strerror or err}") from err


def _write_header(path: Path, header: CaptureHeader) -> None:
    """Write the folder's own header, whole or not at all; the first rank's stands."""
    part = path.with_name(f"{path.name}.{os.getpid()}.{header.rank}.part")
    try:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(header), indent=2) + b"\n")
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
    except OSError:
        pass  # every index holds it too
    with contextlib.suppress(OSError):
        part.unlink()
