"""Nsight Systems' SQLite exports (`nsys export --type sqlite`): kernels, copies, calls of the runtime, NVTX ranges.

Tables are there only where there is data for them. One file may hold several processes; each becomes a rank.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING
from urllib.parse import quote

from trtdx.errors import InputError
from trtdx.trace.names import COMMUNICATION, SYNC_CALLS, name_from_text
from trtdx.trace.nouns import SpanKind, SpanName, SpanTable

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROCESS_BITS = 24  # of globalTid and globalPid, what lies below is the thread
_COPY_KINDS = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}


def read_nsight_tables(path: str) -> list[SpanTable]:
    """Return the spans of each process in an export.

    Raises:
        InputError: it is no such export, or it is damaged.
    """
    try:
        with sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True) as database:
            tables = _NsightReader(database, path).read()
    except sqlite3.Error as err:
        raise InputError(f"{path} is not a readable export of Nsight Systems: {err}") from err
    if not any(map(len, tables)):
        raise InputError(f"{path} has no kernels, calls or ranges", fix="nsys profile -t cuda,nvtx ...")
    return tables


class _NsightReader:
    def __init__(self, database: sqlite3.Connection, path: str) -> None:
        self._database, self._path = database, path
        rows = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self._present = {str(name) for (name,) in rows}
        self._texts: dict[int, str] = dict(self._rows("StringIds", "id", "value"))
        self._by_process: dict[int, SpanTable] = {}

    def read(self) -> list[SpanTable]:
        self._read_kernels()
        self._read_copies()
        self._read_calls()
        self._read_ranges()
        return [self._by_process[process] for process in sorted(self._by_process)]

    def _rows(self, table: str, *named: str) -> Iterator[tuple]:  # type: ignore[type-arg]
        """Yield some columns of a table; those it does not have are None."""
        if table not in self._present:
            return
        columns = {row[1] for row in self._database.execute(f"PRAGMA table_info({table})")}
        chosen = ", ".join(column if column in columns else f"NULL AS {column}" for column in named)
        yield from self._database.execute(f"SELECT {chosen} FROM {table}")  # noqa: S608  (names of ours)

    def _table(self, process: int | None) -> SpanTable:
        key = (process or 0) >> _PROCESS_BITS
        if key not in self._by_process:
            self._by_process[key] = SpanTable(self._path, "nsight")
        return self._by_process[key]

    def _read_kernels(self) -> None:
        columns = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId", "demangledName", "shortName")
        for start, end, process, device, stream, link, name, short in self._rows(
            "CUPTI_ACTIVITY_KIND_KERNEL", *columns
        ):
            text = self._texts.get(name) or self._texts.get(short) or "kernel"
            kind = SpanKind.COMMUNICATION if COMMUNICATION.search(text) else SpanKind.KERNEL
            table = self._table(process)
            track = table.add_track(f"GPU {device or 0}", stream or 0)
            name_id = table.add_name(SpanName(text, kind, operator=text))
            table.add_span(name_id, track, start / 1e3, (end - start) / 1e3, link=link or 0)

    def _read_copies(self) -> None:
        columns = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId", "bytes", "copyKind")
        for kind in ("MEMCPY", "MEMSET"):
            for start, end, process, device, stream, link, size, copy in self._rows(
                f"CUPTI_ACTIVITY_KIND_{kind}", *columns
            ):
                table = self._table(process)
                text = _COPY_KINDS.get(copy, kind.capitalize()) if kind == "MEMCPY" else "Memset"
                name = table.add_name(SpanName(text, SpanKind.COPY, operator=text))
                track = table.add_track(f"GPU {device or 0}", stream or 0)
                table.add_span(name, track, start / 1e3, (end - start) / 1e3, link=link or 0, amount=size or 0)

    def _read_calls(self) -> None:
        rows = self._rows("CUPTI_ACTIVITY_KIND_RUNTIME", "start", "end", "globalTid", "correlationId", "nameId")
        for start, end, thread, link, name in rows:
            text = self._texts.get(name, "cudaCall").partition("_v")[0]
            kind = SpanKind.SYNC if SYNC_CALLS.search(text) else SpanKind.LAUNCH
            table = self._table(thread)
            name_id = table.add_name(name_from_text(text, kind))
            table.add_span(
                name_id, table.add_track("host", thread or 0), start / 1e3, (end - start) / 1e3, link=link or 0
            )

    def _read_ranges(self) -> None:
        for start, end, thread, text, text_id in self._rows(
            "NVTX_EVENTS", "start", "end", "globalTid", "text", "textId"
        ):
            words = text or self._texts.get(text_id)
            if end is None or not words:
                continue
            table = self._table(thread)
            name = table.add_name(name_from_text(words, SpanKind.HOST))
            table.add_span(name, table.add_track("host", thread or 0), start / 1e3, (end - start) / 1e3)
