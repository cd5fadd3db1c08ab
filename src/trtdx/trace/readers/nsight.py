"""Nsight Systems' SQLite exports (`nsys export --type sqlite`): kernels, copies, calls of the runtime, NVTX ranges.

Tables are there only where there is data for them. One file may hold several processes; each becomes a rank.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from trtdx.errors import InputError
from trtdx.trace.names import COMMUNICATION, SYNC_CALLS, name_from_text
from trtdx.trace.nouns import SpanKind, SpanName, SpanTable
from trtdx.trace.readers.figures import count_from, number_from, time_from

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROCESS_BITS = 24  # of globalTid and globalPid, what lies below is the thread
LEAST_ROW_BYTES = 4  # of the file
_COPY_KINDS = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}


def read_nsight_tables(path: str, size: int) -> list[SpanTable]:
    """Return the spans of each process in an export of so many bytes.

    Raises:
        InputError: it is no such export, or it is damaged.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as database:
            tables = _NsightReader(database, path, size).read()
    except (sqlite3.Error, OverflowError) as err:
        raise InputError(f"{path} is not a readable export of Nsight Systems: {err}") from err
    if not any(map(len, tables)):
        raise InputError(f"{path} has no kernels, calls or ranges", fix="nsys profile -t cuda,nvtx ...")
    return tables


class _NsightReader:
    """Reads plain tables only: views and virtual tables are programs, which a stranger may have written."""

    def __init__(self, database: sqlite3.Connection, path: str, size: int) -> None:
        self._database, self._path = database, path
        self._rows_left = size // LEAST_ROW_BYTES  # pages that claim to be in many places would give rows for ever
        database.text_factory = lambda text: text.decode("utf-8", "replace")
        database.execute("PRAGMA trusted_schema = OFF")
        rows = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        self._present = {name for name, sql in rows if not re.match(r"(?i)\s*create\s+virtual", str(sql))}
        self._texts: dict[int, str] = {number: str(text) for number, text in self._rows("StringIds", "id", "value")}
        self._by_process: dict[int, SpanTable] = {}

    def read(self) -> list[SpanTable]:
        self._read_kernels()
        self._read_copies()
        self._read_calls()
        self._read_ranges()
        return [self._by_process[process] for process in sorted(self._by_process)]

    def _rows(self, table: str, *named: str) -> Iterator[tuple[Any, ...]]:
        """Yield some columns of a table; those it does not have, or that are computed, are None."""
        if table not in self._present:
            return
        columns = {row[1] for row in self._database.execute(f"PRAGMA table_info({table})")}
        chosen = ", ".join(column if column in columns else f"NULL AS {column}" for column in named)
        for row in self._database.execute(f"SELECT {chosen} FROM {table}"):  # noqa: S608  (names of ours)
            self._rows_left -= 1
            if self._rows_left < 0:
                raise sqlite3.DatabaseError("it claims more rows than its size has room for")
            yield row

    def _add_span(
        self, table: SpanTable, name: int, track: int, start: object, end: object, *, link: object = 0, size: object = 0
    ) -> None:
        """Add a span; one whose times are none is counted."""
        begin, until = time_from(start), time_from(end)
        if begin is None or until is None:
            table.skipped += 1
            return
        table.add_span(
            name,
            track,
            begin / 1e3,
            max(until - begin, 0.0) / 1e3,
            link=count_from(link or 0),
            amount=number_from(size or 0),
        )

    def _table(self, process: object) -> SpanTable:
        key = count_from(process or 0) >> _PROCESS_BITS
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
            track = table.add_track(f"GPU {device or 0}", count_from(stream or 0))
            name_id = table.add_name(SpanName(text, kind, operator=text))
            self._add_span(table, name_id, track, start, end, link=link)

    def _read_copies(self) -> None:
        columns = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId", "bytes", "copyKind")
        for kind in ("MEMCPY", "MEMSET"):
            for start, end, process, device, stream, link, size, copy in self._rows(
                f"CUPTI_ACTIVITY_KIND_{kind}", *columns
            ):
                table = self._table(process)
                text = _COPY_KINDS.get(copy, kind.capitalize()) if kind == "MEMCPY" else "Memset"
                name = table.add_name(SpanName(text, SpanKind.COPY, operator=text))
                track = table.add_track(f"GPU {device or 0}", count_from(stream or 0))
                self._add_span(table, name, track, start, end, link=link, size=size)

    def _read_calls(self) -> None:
        rows = self._rows("CUPTI_ACTIVITY_KIND_RUNTIME", "start", "end", "globalTid", "correlationId", "nameId")
        for start, end, thread, link, name in rows:
            text = self._texts.get(name, "cudaCall").partition("_v")[0]
            kind = SpanKind.SYNC if SYNC_CALLS.search(text) else SpanKind.LAUNCH
            table = self._table(thread)
            name_id = table.add_name(name_from_text(text, kind))
            self._add_span(table, name_id, table.add_track("host", count_from(thread or 0)), start, end, link=link)

    def _read_ranges(self) -> None:
        for start, end, thread, text, text_id in self._rows(
            "NVTX_EVENTS", "start", "end", "globalTid", "text", "textId"
        ):
            words = str(text or self._texts.get(text_id, ""))
            if end is None or not words:
                continue
            table = self._table(thread)
            name = table.add_name(name_from_text(words, SpanKind.HOST))
            self._add_span(table, name, table.add_track("host", count_from(thread or 0)), start, end)
