"""Which reader a file needs: told from its first bytes, never from its name."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import InputError
from trtdx.formats.streams import read_blocks
from trtdx.trace.nouns import Recordings
from trtdx.trace.readers.benchmarks import figures_from
from trtdx.trace.readers.chrome import read_chrome_trace
from trtdx.trace.readers.iteration_log import ITERATION_MARK, read_iteration_log
from trtdx.trace.readers.nsight import read_nsight_tables
from trtdx.trace.readers.records import iterations_from, requests_from
from trtdx.trace.readers.tensorrt_profiles import table_from_layers, table_from_times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.host import Host

SQLITE_MAGIC = b"SQLite format 3\x00"
MOST_DOCUMENT_BYTES = 512 << 20  # of records and reports, which are read whole
_SNIFFED_BLOCKS = 2
_EVENTS = re.compile(rb'"traceEvents"|"ph"\s*:\s*"')
KNOWN = (
    "a trace of torch's profiler or ONNX Runtime, an SQLite export of Nsight Systems, --exportTimes or --exportProfile of "
    "trtexec, a log with print_iter_log, an answer of /metrics or /perf_metrics, or a benchmark's report"
)


def read_recordings(host: Host, paths: Sequence[str]) -> Recordings:
    """Return everything that some files and folders hold.

    Raises:
        InputError: a file that was named holds nothing that can be used.
    """
    recordings = Recordings()
    for path in paths:
        if host.kind(path) == "directory":
            files = [name for name in host.files(path) if re.search(r"\.(?:json|json\.gz|sqlite|log|jsonl)$", name)]
            if not files:
                raise InputError(f"{path} has no traces in it", fix=f"give {KNOWN}")
            for file in files:
                _read_file(host, file, recordings)
        else:
            _read_file(host, path, recordings)
    return recordings


def _read_file(host: Host, path: str, recordings: Recordings) -> None:
    recordings.files += 1
    if _starts_with(host, path, SQLITE_MAGIC):
        size = host.size(path)
        _add_tables(recordings, read_nsight_tables(path, size))
        recordings.bytes_read += size
        return
    head = b"".join(islice(read_blocks(host, path), _SNIFFED_BLOCKS))
    if ITERATION_MARK.search(head):  # such a line may begin with a bracket, as JSON does
        _read_log(host, path, recordings)
    elif head.lstrip()[:1] in (b"{", b"[") and _EVENTS.search(head):
        table = read_chrome_trace(host, path)
        recordings.bytes_read += table.bytes_read
        _add_tables(recordings, [table])
    elif head.lstrip()[:1] in (b"{", b"["):
        _read_document(host, path, recordings)
    else:
        _read_log(host, path, recordings)


def _starts_with(host: Host, path: str, magic: bytes) -> bool:
    if path == "-":
        return False
    with host.open(path) as stream:
        return stream.read(len(magic)) == magic


def _add_tables(recordings: Recordings, tables: Sequence[Any]) -> None:
    """Add tables, each with a rank of its own: as told, else the next free one."""
    for table in tables:
        taken = {other.rank for other in recordings.tables}
        if table.rank is None or table.rank in taken:
            table.rank = next(rank for rank in range(len(taken) + 1) if rank not in taken)
        recordings.tables.append(table)
        recordings.problems += table.problems
        if table.skipped:
            recordings.problems.append(f"{table.path}: {table.skipped} damaged events were left out")


def _read_log(host: Host, path: str, recordings: Recordings) -> None:
    before = len(recordings.iterations)
    recordings.iterations += read_iteration_log(host, path, recordings.problems)
    if len(recordings.iterations) == before:
        raise InputError(f"{path} has no times in it", fix=f"give {KNOWN}")


def _read_document(host: Host, path: str, recordings: Recordings) -> None:
    data = _read_whole(host, path)
    recordings.bytes_read += len(data)
    documents = _decode_documents(data)
    records = documents[0] if len(documents) == 1 and isinstance(documents[0], list) else documents
    records = [record for record in records if isinstance(record, dict)]
    if not _add_records(records, path, recordings):
        raise InputError(f"{path} is JSON, but nothing that has times in it", fix=f"give {KNOWN}")


def _read_whole(host: Host, path: str) -> bytes:
    parts, total = [], 0
    for block in read_blocks(host, path):
        total += len(block)
        if total > MOST_DOCUMENT_BYTES:
            raise InputError(f"{path} is larger than {MOST_DOCUMENT_BYTES >> 20} MiB, as no report is")
        parts.append(block)
    return b"".join(parts)


def _decode_documents(data: bytes) -> list[Any]:
    """Return one document, or those of each line."""
    try:
        return [msgspec.json.decode(data)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return [msgspec.json.decode(data.decode("utf-8", "replace"))]
    except (msgspec.DecodeError, RecursionError):
        pass
    return [document for line in data.splitlines() if (document := _decode_line(line)) is not None]


def _decode_line(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _add_records(records: list[dict[str, Any]], path: str, recordings: Recordings) -> bool:
    if any("computeMs" in record and "startEnqMs" in record for record in records):
        _add_tables(recordings, [table_from_times([record for record in records if "startEnqMs" in record], path)])
        return True
    if any("averageMs" in record for record in records):
        _add_tables(recordings, [table_from_layers(records, path)])
        return True
    before = len(recordings.iterations) + len(recordings.requests) + len(recordings.benchmarks)
    recordings.iterations += iterations_from(records, path)
    recordings.requests += requests_from(records, path)
    figures = (figures_from(record, path) for record in records[:1])
    recordings.benchmarks += [figure for figure in figures if figure is not None]
    return len(recordings.iterations) + len(recordings.requests) + len(recordings.benchmarks) > before
