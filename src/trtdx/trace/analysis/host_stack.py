"""What one thread of the host does at each instant: the innermost span, with what the spans around it tell."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from trtdx.trace.names import COPY_OPERATORS, WHOLE_OPERATORS
from trtdx.trace.nouns import Category, Context, Segments, SpanKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.trace.nouns import SpanName, SpanTable

BLOCK = 1 << 16
_NOWHERE = Context(Category.HOST)
_CATEGORY = {
    SpanKind.HOST: Category.HOST,
    SpanKind.LAUNCH: Category.HOST,
    SpanKind.SYNC: Category.HOST,
    SpanKind.COMMUNICATION: Category.COMMUNICATION,
    SpanKind.COPY: Category.COPY,
    SpanKind.KERNEL: Category.COMPUTE,
}


class ContextTable:
    """Contexts by number, each once."""

    def __init__(self) -> None:
        self.contexts: list[Context] = []
        self._numbers: dict[Context, int] = {}

    def number(self, context: Context) -> int:
        if context not in self._numbers:
            self._numbers[context] = len(self.contexts)
            self.contexts.append(context)
        return self._numbers[context]


class HostSweep:
    """One pass over the spans of a thread, which lie within each other."""

    def __init__(self, table: SpanTable, contexts: ContextTable, *, on_device: bool) -> None:
        self._table, self._contexts, self._on_device = table, contexts, on_device
        self._below: dict[tuple[int, int], int] = {}
        self.of_span = array("i", [0]) * len(table)  # the context that each span opens

    def sweep(self, order: np.ndarray) -> Segments:
        """Return the segments of the spans with these numbers, which are sorted by start, outer ones first."""
        table, below, of_span = self._table, self._below, self.of_span
        starts, durations, names = table.start, table.duration, table.name
        begin, end, context = array("d"), array("d"), array("i")
        outside = self._contexts.number(_NOWHERE)
        ends: list[float] = []
        opened: list[int] = []
        at = 0.0
        for span in _each_number(order):
            start = starts[span]
            while ends and ends[-1] <= start:
                until = ends.pop()
                if until > at:
                    begin.append(at)
                    end.append(until)
                    context.append(opened[-1])
                    at = until
                opened.pop()
            if ends and start > at:
                begin.append(at)
                end.append(start)
                context.append(opened[-1])
                at = start
            until = start + durations[span]
            # The function that opens an annotation ends before it: what is begun last goes on.
            while ends and until > ends[-1] and ends[-1] - start < durations[span] / 2:
                ends.pop()
                opened.pop()
            around = opened[-1] if opened else outside
            key = (around, names[span])
            number = below.get(key)
            if number is None:
                number = below[key] = self._context_below(around, table.names[names[span]])
            of_span[span] = number
            # A child that is cut a little late by the profiler's clock ends with its parent.
            ends.append(min(until, ends[-1]) if ends else until)
            opened.append(number)
            at = max(at, start)
        while ends:
            until = ends.pop()
            if until > at:
                begin.append(at)
                end.append(until)
                context.append(opened[-1])
                at = until
            opened.pop()
        return Segments(np.frombuffer(begin), np.frombuffer(end), np.frombuffer(context, np.int32))

    def _context_below(self, around: int, name: SpanName) -> int:
        parent = self._contexts.contexts[around]
        cause = name.cause
        if parent.cause and (not cause or (not name.is_specific and _is_specific(parent.cause))):
            cause = parent.cause
        return self._contexts.number(
            Context(
                self._category(name, parent),
                _name_of(name, parent),
                _module_below(name, parent.module),
                name.phase or parent.phase,
                cause,
                _operator_below(name, parent),
                name.provider or parent.provider,
            )
        )

    def _category(self, name: SpanName, parent: Context) -> Category:
        if name.kind is SpanKind.OPERATOR:
            if self._on_device:
                return Category.HOST
            is_copy = (name.operator or name.text) in COPY_OPERATORS and parent.operator not in WHOLE_OPERATORS
            return Category.COPY if is_copy or parent.category is Category.COPY else Category.COMPUTE
        if name.kind is SpanKind.HOST and parent.category in (Category.COMPUTE, Category.COPY) and not name.cause:
            return parent.category  # a Python function that an operator calls
        return _CATEGORY[name.kind]


def _each_number(numbers: np.ndarray) -> Iterator[int]:
    """Yield numbers as Python's own, some at a time: a list of all would need more memory than the spans."""
    for at in range(0, len(numbers), BLOCK):
        yield from numbers[at : at + BLOCK].tolist()


def _operator_below(name: SpanName, parent: Context) -> str:
    """Return the operator that says why: of copies the outermost (aten::to, aten::clone, aten::item)."""
    if parent.category is Category.COPY or parent.operator in WHOLE_OPERATORS:
        return parent.operator
    return name.operator or parent.operator


def _name_of(name: SpanName, parent: Context) -> str:
    """Return the name to show: one for all steps, and what is around a module for the module's own time."""
    if name.step:
        return "_forward_step" if name.step.context_requests >= 0 else "the loop"
    return parent.name if name.module and name.kind is SpanKind.HOST else name.text


def _is_specific(code: str) -> bool:
    from trtdx.trace.names import CAUSE_PATTERNS

    return any(pattern.code == code and pattern.is_specific for pattern in CAUSE_PATTERNS)


def _module_below(name: SpanName, around: str) -> str:
    if not name.module:
        return around
    if not name.is_nested_module:
        return name.module
    # Annotations with whole paths say more than classes do.
    if around and not _is_class_path(around):
        return around
    return f"{around}.{name.module}".lstrip(".")


def _is_class_path(path: str) -> bool:
    last = path.rpartition(".")[2]
    return last.rpartition("_")[2].isdigit() and last[:1].isupper()


def order_spans(table: SpanTable, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return spans by start, the longer of two that start together first."""
    chosen = np.asarray(numbers, dtype=np.int32)
    shorter = -np.frombuffer(table.duration)[chosen].astype(np.float32)
    return chosen[np.lexsort((shorter, np.frombuffer(table.start)[chosen]))]
