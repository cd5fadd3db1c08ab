"""What the agents have written so far, read back: journals, rings, stacks. Any of it may be half written."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from trtdx.agent import ring as ring_format
from trtdx.run.nouns import AgentRecord, Call, RaisedException

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

MOST_EVENTS = 20_000
MOST_TEXT = 200_000


def read_agents(live: Path) -> list[AgentRecord]:
    """Return the records of all Python processes the agent has entered, in the order they started."""
    folders = [folder for folder in live.iterdir() if (folder / "events.jsonl").is_file()] if live.is_dir() else []
    records = [read_agent(folder) for folder in folders]
    return sorted((record for record in records if record.pid), key=lambda record: record.started)


def read_agent(folder: Path) -> AgentRecord:
    record = AgentRecord(folder=str(folder), pid=0)
    for event in _read_events(folder / "events.jsonl"):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            _add_event(record, event)
    record.stacks = _read_text(folder / "stacks.txt")
    record.crash = _read_text(folder / "crash.txt")
    _read_ring(folder / "ring", record)
    return record


def _read_events(path: Path) -> list[dict[str, Any]]:
    events = []
    for line in _read_text(path, 8 << 20).splitlines()[:MOST_EVENTS]:
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and "kind" in event:
                events.append(event)
    return events


def _add_event(record: AgentRecord, event: dict[str, Any]) -> None:
    kind, when = event["kind"], float(event.get("time", 0.0))
    record.events.append(event)
    if kind == "start":
        record.pid, record.ppid, record.host = int(event["pid"]), int(event["ppid"]), str(event["host"])
        record.argv, record.started = tuple(event["argv"]), when
        record.stack_fd = int(event.get("stack_fd", -1))
    elif kind == "exception":
        record.exceptions.append(_exception_from(event, when))
    elif kind == "world":
        record.worlds.append(event)
    elif kind == "group":
        record.groups[str(event["group"])] = [int(member) for member in event["members"]]
    else:
        _add_ending(record, kind, event, when)
    if event.get("variables"):
        record.variables = {str(name): str(value) for name, value in event["variables"].items()}


def _add_ending(record: AgentRecord, kind: str, event: dict[str, Any], when: float) -> None:
    if kind == "exit-called":
        record.exit_called = event
    elif kind == "exit-asked":
        record.exit_asked = event
    elif kind == "abort":
        record.abort = event
    elif kind == "leaving":
        record.left = when
    elif kind == "agent-failed":
        record.problems.append(f"{event.get('part')}: {' '.join(str(event.get('text', '')).strip().splitlines()[-1:])}")


def _exception_from(event: dict[str, Any], when: float) -> RaisedException:
    return RaisedException(
        time=when,
        type=str(event["type"]),
        text=str(event["text"]),
        where=str(event.get("where", "")),
        traceback=str(event.get("traceback", "")),
        causes=tuple(map(str, event.get("causes", ()))),
        tensors=tuple(map(str, event.get("tensors", ()))),
        thrown_in=str(event.get("thrown_in", "main")),
        thread=str(event.get("thread", "")),
    )


def _read_text(path: Path, most: int = MOST_TEXT) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


def ring_mark(folder: Path) -> tuple[int, int]:
    """Return how many records and steps a ring has counted, which tells whether a process moves."""
    try:
        with (folder / "ring").open("rb") as file:
            head = ring_format.HEAD.unpack(file.read(ring_format.HEAD.size))
        return int(head[3]), int(head[6])
    except Exception:
        return 0, 0


def is_in_call(folder: Path) -> bool:
    """Return whether a process is inside a collective or a message just now: its last record begins one."""
    try:
        with (folder / "ring").open("rb") as file:
            count = int(ring_format.HEAD.unpack(file.read(ring_format.HEAD.size))[3])
            file.seek(ring_format.HEAD_BYTES + (count - 1) % ring_format.SLOTS * ring_format.SLOT_BYTES)
            return count > 0 and ring_format.SLOT.unpack(file.read(ring_format.SLOT.size))[3] == ring_format.BEGIN
    except Exception:
        return False


def is_all_in_one_call(live: Path, pids: Collection[int]) -> bool:
    """Return whether all processes that call collectives are in the same one: nobody is missing, it is under way."""
    last = [agent.calls[-1] for agent in read_agents(live) if agent.calls and agent.pid in pids]
    places = {(call.group, call.number) for call in last}
    return len(last) > 1 and len(places) == 1 and all(call.is_open and not call.is_message for call in last)


def _read_ring(path: Path, record: AgentRecord) -> None:
    try:
        data = path.read_bytes()
        head = ring_format.HEAD.unpack_from(data)
    except Exception:
        return
    if head[0] != ring_format.MAGIC:
        return
    _, _, slots, count, record.ring_rank, record.ring_world, record.steps, record.state, _ = head
    entries = []
    for place in range(
        min(int(slots), ring_format.SLOTS, (len(data) - ring_format.HEAD_BYTES) // ring_format.SLOT_BYTES)
    ):
        offset = ring_format.HEAD_BYTES + place * ring_format.SLOT_BYTES
        number, when, kind, phase, length, begun = ring_format.SLOT.unpack_from(data, offset)
        if number and length <= ring_format.TEXT_BYTES:
            start = offset + ring_format.SLOT.size
            entries.append((number, when, kind, phase, data[start : start + length].decode("utf-8", "replace"), begun))
    record.calls_lost = max(0, count - len(entries))
    record.calls = _calls_from(sorted(entries))


def _calls_from(entries: list[tuple[int, float, int, int, str, int]]) -> list[Call]:
    ends = {
        begun: (when, phase)
        for _, when, _, phase, _, begun in entries
        if phase in (ring_format.END, ring_format.FAILED)
    }
    calls = []
    for number, when, kind, phase, text, _ in entries:
        parts = text.split(ring_format.SEPARATOR)
        if phase not in (ring_format.BEGIN, ring_format.ISSUED) or len(parts) < 5 or not parts[2].isdigit():
            continue
        ended, end_phase = ends.get(number, (None, 0))
        calls.append(
            Call(
                name=parts[0],
                group=parts[1],
                number=int(parts[2]),
                place=int(parts[3]) if parts[3].isdigit() else 0,
                data=dict(word.split("=", 1) for word in parts[4].split() if "=" in word),
                where=parts[5] if len(parts) > 5 else "",
                began=when,
                ended=ended,
                is_message=kind == ring_format.MESSAGE,
                is_async=phase == ring_format.ISSUED,
                has_failed=end_phase == ring_format.FAILED,
            )
        )
    return calls
