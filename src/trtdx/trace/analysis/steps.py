"""The steps of a loop: where each begins and ends, and what it works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.trace.nouns import LoopStep, StepWords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.trace.nouns import SpanTable

GRAPH_LAUNCH = "cudaGraphLaunch"


def find_steps(table: SpanTable, main: int | None) -> list[LoopStep]:
    """Return the steps that names tell of, else those that launches of CUDA graphs tell of, else none."""
    marks = sorted(
        (table.start[span], table.duration[span], words)
        for span, words in _marked_spans(table)
        if main is None or table.track[span] == main
    )
    whole = [mark for mark in marks if mark[2].context_requests < 0]
    forward = [mark for mark in marks if mark[2].context_requests >= 0]
    if whole:
        return _whole_steps(whole, forward)
    if forward:
        return _steps_between(forward)
    return _steps_between(
        [
            (start, duration, StepWords(index, 0, -1, 1))
            for index, (start, duration) in enumerate(_graph_launches(table))
        ]
    )


def _marked_spans(table: SpanTable) -> list[tuple[int, StepWords]]:
    words = [name.step for name in table.names]
    if not any(words):
        return []
    return [(span, step) for span, name in enumerate(table.name) if (step := words[name]) is not None]


def _graph_launches(table: SpanTable) -> list[tuple[float, float]]:
    numbers = {number for number, name in enumerate(table.names) if name.text.startswith(GRAPH_LAUNCH)}
    return sorted((table.start[span], table.duration[span]) for span, name in enumerate(table.name) if name in numbers)


def _whole_steps(
    whole: Sequence[tuple[float, float, StepWords]], forward: Sequence[tuple[float, float, StepWords]]
) -> list[LoopStep]:
    """Return steps that are spans of their own, with the phase of the forward pass inside."""
    steps, at = [], 0
    for index, (start, duration, words) in enumerate(whole):
        while at < len(forward) and forward[at][0] < start:
            at += 1
        inside = forward[at][2] if at < len(forward) and forward[at][0] < start + duration else words
        number = words.number if words.number >= 0 else index
        steps.append(_step(number, start, start + duration, inside))
    return steps


def _steps_between(marks: Sequence[tuple[float, float, StepWords]]) -> list[LoopStep]:
    """Return steps that last from one mark to the next; the last one ends with its mark."""
    ends = [start for start, _, _ in marks[1:]] + [start + duration for start, duration, _ in marks[-1:]]
    return [_step(words.number, start, end, words) for (start, _, words), end in zip(marks, ends, strict=True)]


def _step(number: int, start: float, end: float, words: StepWords) -> LoopStep:
    return LoopStep(
        number, start, end, words.phase, words.context_requests, words.context_tokens, words.generation_requests
    )
