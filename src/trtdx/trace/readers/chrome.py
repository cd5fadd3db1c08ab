"""Traces in Chrome's format: torch's profiler (Kineto), and ONNX Runtime's profiles, which are a bare list."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import InputError
from trtdx.formats.streams import read_blocks
from trtdx.trace.names import COMMUNICATION, SYNC_CALLS, module_from_node, name_from_text
from trtdx.trace.nouns import SpanKind, SpanName, SpanTable, StepWords
from trtdx.trace.readers.chrome_events import EventStream
from trtdx.trace.readers.figures import MOST, count_from, mapping_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host
    from trtdx.trace.readers.chrome_events import ChromeEvent

_HOST_CATEGORIES = {"user_annotation", "python_function", "Session", "nvtx", ""}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "privateuse1_runtime"}
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"}
_IGNORED = {"Trace", "overhead", "gpu_user_annotation", "ac2g", "fwdbwd"}
_LINKED = _LAUNCHES | _DEVICE
_RANK_IN_NAME = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
_WORLD = re.compile(rb'"distributedInfo"\s*:\s*')


class _LinkArguments(msgspec.Struct, gc=False):
    """What joins a launch and its kernel, and how much is copied or reduced."""

    correlation: int = 0
    size: float = msgspec.field(name="bytes", default=0.0)
    elements: float = msgspec.field(name="In msg nelems", default=0.0)


_LINKS = msgspec.json.Decoder(_LinkArguments)


def read_chrome_trace(host: Host, path: str) -> SpanTable:
    """Return the spans of a trace; what could not be read is among its problems.

    Raises:
        InputError: nothing of it could be read.
    """
    table = SpanTable(path, "kineto")
    stream = EventStream(_blocks_until_damage(host, path, table.problems))
    _Loader(table).load_events(stream)
    table.bytes_read = stream.bytes_read
    table.rank, table.world_size = _rank_from(stream.head + stream.tail, path)
    if stream.is_cut_off:
        table.problems.append(f"{path} is cut off; the {len(table)} spans before the end were read")
    table.skipped += stream.skipped
    if not len(table):
        raise InputError(f"{path} has no spans", fix="give a trace that covers some steps")
    return table


def _blocks_until_damage(host: Host, path: str, problems: list[str]) -> Iterator[bytes]:
    try:
        yield from read_blocks(host, path)
    except InputError as err:
        problems.append(err.message)


def _rank_from(around: bytes, path: str) -> tuple[int | None, int]:
    """Return the rank and the number of ranks that a trace tells, or its file's name."""
    if match := _WORLD.search(around):
        try:
            info, _ = json.JSONDecoder().raw_decode(around[match.end() :].decode("utf-8", "replace"))
            return count_from(info["rank"]), max(count_from(info.get("world_size")), 0)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
    named = _RANK_IN_NAME.findall(path.rpartition("/")[2])
    return (int(named[-1]) if named else None), 0


class _Loader:
    """Fills a table; names and tracks are looked at once each, events only in columns."""

    def __init__(self, table: SpanTable) -> None:
        self._table = table
        self._ids: dict[str, dict[str, int]] = {}
        self._tracks: dict[tuple[int | str, int | str], int] = {}

    def load_events(self, stream: EventStream) -> None:
        for events in stream:
            self._load_metadata(events)
            spans = [event for event in events if event.ph == "X" and event.cat not in _IGNORED]
            sound = [event for event in spans if -MOST < event.ts < MOST and event.dur < MOST]  # NaN is not
            self._table.skipped += len(spans) - len(sound)
            self._load_spans(sound)

    def _load_metadata(self, events: list[ChromeEvent]) -> None:
        for event in events:
            if event.ph == "M" and event.name == "thread_name":
                table = self._table
                name = _decode_arguments(event).get("name", "")
                table.track_names[table.tracks[table.add_track(event.pid, event.tid)]] = str(name)

    def _load_spans(self, events: list[ChromeEvent]) -> None:
        table = self._table
        table.start.extend([event.ts for event in events])
        table.duration.extend([event.dur if event.dur > 0 else 0.0 for event in events])
        table.name.extend([self._name_id(event) for event in events])
        table.track.extend([self._track_id(event) for event in events])
        links = [_link_from(event) if event.cat in _LINKED else None for event in events]
        table.link.extend([link.correlation if link else 0 for link in links])
        table.amount.extend([(link.size or link.elements) if link else 0.0 for link in links])

    def _name_id(self, event: ChromeEvent) -> int:
        try:
            return self._ids[event.cat][event.name]
        except KeyError:
            name = _describe_event(event)
            if event.cat == "Node":
                self._table.source = "onnxruntime"
            return self._ids.setdefault(event.cat, {}).setdefault(event.name, self._table.add_name(name))

    def _track_id(self, event: ChromeEvent) -> int:
        try:
            return self._tracks[event.pid, event.tid]
        except KeyError:
            number = self._table.add_track(event.pid, event.tid)
            return self._tracks.setdefault((event.pid, event.tid), number)


def _link_from(event: ChromeEvent) -> _LinkArguments | None:
    try:
        link = _LINKS.decode(event.args)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return link if abs(link.correlation) < MOST and max(link.size, link.elements) < MOST else None


def _decode_arguments(event: ChromeEvent) -> dict[str, Any]:
    try:
        return mapping_from(msgspec.json.decode(event.args))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _describe_event(event: ChromeEvent) -> SpanName:
    if event.cat == "Node":
        return _describe_node(event)
    if event.cat == "Session" and event.name == "model_run":
        return SpanName(event.name, SpanKind.HOST, step=StepWords())
    return name_from_text(event.name, _kind_of(event.cat, event.name))


def _kind_of(category: str, name: str) -> SpanKind:
    if category == "kernel":
        return SpanKind.COMMUNICATION if COMMUNICATION.search(name) else SpanKind.KERNEL
    if category in ("gpu_memcpy", "gpu_memset"):
        return SpanKind.COPY
    if category in _LAUNCHES or category == "cuda_sync":
        return SpanKind.SYNC if SYNC_CALLS.search(name) or category == "cuda_sync" else SpanKind.LAUNCH
    if COMMUNICATION.match(name) and category in ("user_annotation", "cpu_op"):
        return SpanKind.COMMUNICATION
    if category == "cpu_op" and ("::" in name and not name.startswith("c10d::")):
        return SpanKind.OPERATOR
    return SpanKind.COMMUNICATION if name.startswith(("c10d::", "c10d_functional::")) else SpanKind.HOST


def _describe_node(event: ChromeEvent) -> SpanName:
    """Return what a node of ONNX Runtime tells; only its kernel time is computing."""
    arguments = _decode_arguments(event)
    node = event.name.removesuffix("_kernel_time")
    kind = SpanKind.OPERATOR if event.name.endswith("_kernel_time") else SpanKind.HOST
    return SpanName(
        node,
        kind,
        module=module_from_node(node),
        operator=str(arguments.get("op_name", "")),
        provider=str(arguments.get("provider", "")),
    )
