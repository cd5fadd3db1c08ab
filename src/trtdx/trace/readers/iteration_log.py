"""The executor's own lines about its iterations, in the wording of every release that has had one.

PyTorch backend with `print_iter_log`: `iter = 198, global_rank = 0, ... elapsed_time = 0.005s` (0.20),
`host_step_time = 6.1ms, prev_device_step_time = 5.9ms` (1.2), `kv_cache_util = 0.123` (1.3).
Triton's backend: a JSON object with "Iteration Counter" behind the prefix of the line.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.formats.streams import read_line_blocks
from trtdx.trace.nouns import Iteration
from trtdx.trace.readers.figures import count_from, number_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host

MAX_LINE_BYTES = 1 << 16
ITERATION_MARK = re.compile(rb'\biter = \d+, global_rank = |"Iteration Counter"')
_LINE = re.compile(r"\biter = (\d+), global_rank = (\d+)")
_HOST = re.compile(r"\bhost_step_time = ([\d.]+)ms|\belapsed_time = ([\d.]+)s")
_DEVICE = re.compile(r"\bprev_device_step_time = ([\d.]+)ms")
_SCHEDULED = re.compile(r"\bnum_scheduled_requests(?::| =) (\d+)")
_KV = re.compile(r"\bkv_cache_util = ([\d.]+)")
_STATES = re.compile(r"\bstates = (\{[^}]*\})")
_TRITON = re.compile(r"\{.*\"Iteration Counter\".*\}")
KV_SCALE = 1000  # of a utilisation that is told as a share


def read_iteration_log(host: Host, path: str, problems: list[str]) -> Iterator[Iteration]:
    """Yield the iterations that a log tells of."""
    for block in read_line_blocks(host, path, MAX_LINE_BYTES, problems):
        for offset, line in enumerate(block.lines):
            if not ITERATION_MARK.search(line):
                continue
            text = line.decode("utf-8", "replace")
            iteration = parse_iteration_line(text, f"{path}:{block.first_number + offset}")
            if iteration is not None:
                yield iteration


def parse_iteration_line(text: str, where: str) -> Iteration | None:
    """Return the iteration that a line is about, or None for other lines."""
    if match := _TRITON.search(text):
        return _triton_iteration(match[0], where)
    line = _LINE.search(text)
    if line is None:
        return None
    states = _parse_states(text)
    used = _first_number(_KV, text)
    return Iteration(
        index=_count_from_digits(line[1]),
        rank=_count_from_digits(line[2]),
        host_ms=_host_ms(text),
        device_ms=_first_number(_DEVICE, text),
        scheduled=int(_first_number(_SCHEDULED, text)),
        context_requests=count_from(states.get("num_ctx_requests")),
        context_tokens=count_from(states.get("num_ctx_tokens")),
        generation_tokens=count_from(states.get("num_generation_tokens")),
        kv_used=round(used * KV_SCALE) if used >= 0 else -1,
        kv_max=KV_SCALE if used >= 0 else -1,
        where=where,
    )


def _host_ms(text: str) -> float:
    match = _HOST.search(text)
    if match is None:
        return -1
    return _number_from_text(match[1]) if match[1] else _number_from_text(match[2]) * 1000


def _first_number(pattern: re.Pattern[str], text: str) -> float:
    match = pattern.search(text)
    return _number_from_text(match[1]) if match else -1


def _number_from_text(text: str) -> float:
    try:
        return number_from(float(text))
    except ValueError:  # 1.2.3
        return -1


def _count_from_digits(text: str) -> int:
    return int(_number_from_text(text))


def _parse_states(text: str) -> dict[str, Any]:
    match = _STATES.search(text)
    try:
        states = ast.literal_eval(match[1]) if match else {}
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    return states if isinstance(states, dict) else {}


def _triton_iteration(text: str, where: str) -> Iteration | None:
    try:
        record = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return Iteration(
        index=count_from(record.get("Iteration Counter")),
        scheduled=count_from(record.get("Scheduled Requests")),
        context_requests=count_from(record.get("Context Requests")),
        context_tokens=count_from(record.get("Total Context Tokens")),
        generation_requests=count_from(record.get("Generation Requests")),
        paused=max(count_from(record.get("Paused Requests")), 0),
        queued=count_from(record.get("Waiting Requests")),
        active=count_from(record.get("Active Request Count")),
        max_active=count_from(record.get("Max Request Count")),
        kv_used=count_from(record.get("Used KV cache blocks")),
        kv_max=count_from(record.get("Max KV cache blocks")),
        where=where,
    )
