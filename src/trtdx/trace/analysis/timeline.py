"""A file's spans as the timeline of one rank: every instant belongs to one context.

Layers, the uppermost first: what computes, communication, copies, code of the host, nothing. With a device in the
trace kernels compute and the host's operators only launch; without one, operators compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.trace.analysis.host_stack import ContextTable, HostSweep, order_spans
from trtdx.trace.analysis.intervals import (
    EMPTY,
    fill_gaps,
    flatten_spans,
    intersect_windows,
    lay_under,
    select_segments,
)
from trtdx.trace.analysis.steps import find_steps
from trtdx.trace.nouns import IDLE, Category, CollectiveCall, Context, RankTimeline, Segments, SpanKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.trace.nouns import LoopStep, SpanTable

_DEVICE_LAYERS = (
    (SpanKind.KERNEL, Category.COMPUTE),
    (SpanKind.COMMUNICATION, Category.COMMUNICATION),
    (SpanKind.COPY, Category.COPY),
)
_HOST_KINDS = (SpanKind.OPERATOR, SpanKind.HOST, SpanKind.LAUNCH, SpanKind.SYNC, SpanKind.COMMUNICATION)


def build_timeline(table: SpanTable, rank: int) -> RankTimeline:
    """Return the timeline of a file's spans."""
    return _TimelineBuilder(table, rank).build()


class _TimelineBuilder:
    def __init__(self, table: SpanTable, rank: int) -> None:
        self.table, self.rank = table, rank
        self.contexts = ContextTable()
        self.kind = np.array([name.kind for name in table.names], dtype=np.int8)[np.frombuffer(table.name, np.int32)]
        self.start, self.duration = np.frombuffer(table.start), np.frombuffer(table.duration)
        self.track = np.frombuffer(table.track, np.int32)
        self.has_device = bool(np.isin(self.kind, (SpanKind.KERNEL, SpanKind.COPY)).any())

    def build(self) -> RankTimeline:
        sweep = HostSweep(self.table, self.contexts, on_device=self.has_device)
        main = self._main_track()
        host = EMPTY
        if main is not None:
            on_main = np.flatnonzero((self.track == main) & np.isin(self.kind, _HOST_KINDS))
            host = sweep.sweep(order_spans(self.table, on_main))
        steps = find_steps(self.table, main)
        window = self._window(host, steps)
        upper = self._device_layers(sweep) if self.has_device else EMPTY
        del sweep
        facts = self._facts(main)
        segments = lay_under(upper, host) if self.has_device else self._host_layers(host, main)
        del host, upper  # of a large trace these are as much as the spans
        return RankTimeline(
            rank=self.rank,
            path=self.table.path,
            source=self.table.source,
            segments=fill_gaps(segments, *window, self.contexts.number(IDLE)),
            contexts=tuple(self.contexts.contexts),
            steps=tuple(steps),
            **facts,
        )

    def _facts(self, main: int | None) -> dict[str, Any]:
        """Return what checks want to know beside the segments."""
        return {
            "collectives": tuple(self._collectives(main)),
            "launches": len(self._calls(SpanKind.LAUNCH, "Launch")),
            "kernels": int((self.kind == SpanKind.KERNEL).sum()),
            "graph_launches": tuple(self.start[self._calls(SpanKind.LAUNCH, "GraphLaunch")].tolist()),
            "sync_ends": tuple((self.start + self.duration)[self._calls(SpanKind.SYNC, "")].tolist()),
            "has_device": self.has_device,
            "is_synthetic_clock": self.table.is_synthetic_clock,
        }

    def _main_track(self) -> int | None:
        """Return the thread of the loop: the one with steps, else the one whose spans last the longest."""
        on_host = np.isin(self.kind, (SpanKind.OPERATOR, SpanKind.HOST, SpanKind.LAUNCH, SpanKind.SYNC))
        if not on_host.any():
            return None
        names = np.frombuffer(self.table.name, np.int32)
        is_step = np.array([name.step is not None for name in self.table.names])[names] & on_host
        weights = np.where(is_step if is_step.any() else on_host, self.duration, 0)
        return int(np.argmax(np.bincount(self.track, weights=weights)))

    def _window(self, host: Segments, steps: Sequence[LoopStep]) -> tuple[float, float]:
        """Return the wall time: all steps where there are any, else all that the loop and the device did."""
        if len(steps) > 1 or (steps and not self.has_device):
            return steps[0].start, steps[-1].end
        on_device = np.isin(self.kind, (SpanKind.KERNEL, SpanKind.COPY))
        starts = np.concatenate((host.start[:1], self.start[on_device]))
        ends = np.concatenate((host.end[-1:], (self.start + self.duration)[on_device]))
        return float(starts.min()), float(ends.max())

    def _device_layers(self, sweep: HostSweep) -> Segments:
        layers = EMPTY
        for kind, category in _DEVICE_LAYERS:
            layers = lay_under(layers, self._device_layer(kind, category, sweep))
        return layers

    def _host_layers(self, host: Segments, main: int | None) -> Segments:
        category = np.array([context.category for context in self.contexts.contexts], dtype=np.int8)
        is_busy = category[host.context] != Category.HOST if len(host.start) else np.zeros(0, bool)
        busy, code = select_segments(host, is_busy), select_segments(host, ~is_busy)
        # What another thread transfers counts where the loop does nothing but wait for it.
        return lay_under(lay_under(busy, self._communication_beside(code, main)), code)

    def _device_layer(self, kind: SpanKind, category: Category, sweep: HostSweep) -> Segments:
        chosen = np.flatnonzero(self.kind == kind)
        if not len(chosen):
            return EMPTY
        names = np.frombuffer(self.table.name, np.int32)[chosen]
        launched_by = self._launch_contexts(chosen, sweep)
        start = self.start[chosen]
        numbers = self._pair_contexts(category, names, launched_by)
        return flatten_spans(start, start + self.duration[chosen], numbers)

    def _pair_contexts(self, category: Category, names: np.ndarray, hosts: np.ndarray) -> np.ndarray:
        """Return the contexts of what has a name of its own and the surroundings of a piece of host code."""
        pairs, inverse = np.unique(names.astype(np.int64) << 32 | (hosts + 1), return_inverse=True)
        numbers = [self._device_context(category, pair >> 32, (pair & 0xFFFFFFFF) - 1) for pair in pairs.tolist()]
        return np.array(numbers, dtype=np.int32)[inverse]

    def _launch_contexts(self, chosen: np.ndarray, sweep: HostSweep) -> np.ndarray:
        """Return, for each span of a device, the context of the call that launched it; -1 where none is known."""
        link = np.frombuffer(self.table.link, np.int64)
        calls = np.flatnonzero(np.isin(self.kind, (SpanKind.LAUNCH, SpanKind.SYNC)) & (link != 0))
        if not len(calls):
            return np.full(len(chosen), -1)
        order = calls[np.argsort(link[calls], kind="stable")].astype(np.int32)
        own_link = link[chosen]
        order = order[np.minimum(np.searchsorted(link[order], own_link), len(order) - 1)]
        matches = (link[order] == own_link) & (own_link != 0)
        return np.where(matches, np.frombuffer(sweep.of_span, np.int32)[order], -1)

    def _device_context(self, category: Category, name: int, host: int) -> int:
        own = self.table.names[name]
        around = self.contexts.contexts[host] if host >= 0 else Context(category)
        operator = own.operator if own.operator != own.text else around.operator
        return self.contexts.number(
            Context(category, own.text, own.module or around.module, around.phase, "", operator=operator)
        )

    def _communication_beside(self, code: Segments, main: int | None) -> Segments:
        """Return the time that other threads spend in collectives while the loop's code has nothing else to do."""
        chosen = np.flatnonzero((self.kind == SpanKind.COMMUNICATION) & (self.track != main))
        names = np.frombuffer(self.table.name, np.int32)[chosen]
        start = self.start[chosen]
        calls = flatten_spans(start, start + self.duration[chosen], names)
        if not len(calls.start) or not len(code.start):
            return EMPTY
        beside = intersect_windows(code, calls.start, calls.end)
        call = calls.context[np.searchsorted(calls.start, beside.start, side="right") - 1]
        return Segments(beside.start, beside.end, self._pair_contexts(Category.COMMUNICATION, call, beside.context))

    def _collectives(self, main: int | None) -> list[CollectiveCall]:
        """Return the calls of collectives in order: on the device, else where they were carried out."""
        chosen = np.flatnonzero(self.kind == SpanKind.COMMUNICATION)
        if not self.has_device:
            carried = chosen[self.track[chosen] != main]
            chosen = carried if len(carried) else chosen
        chosen = chosen[np.argsort(self.start[chosen], kind="stable")]
        amount = np.frombuffer(self.table.amount, np.float32)
        return [
            CollectiveCall(
                self.table.names[self.table.name[span]].text,
                float(self.start[span]),
                float(self.start[span] + self.duration[span]),
                float(amount[span]),
            )
            for span in chosen.tolist()
        ]

    def _calls(self, kind: SpanKind, part: str) -> np.ndarray:
        """Return the numbers of calls of the runtime by a part of their names."""
        is_call = np.array([part in name.text and name.kind is kind for name in self.table.names], dtype=bool)
        return np.flatnonzero(is_call[np.frombuffer(self.table.name, np.int32)])
