"""Stretches of time that lie over each other: whichever comes first in rank keeps the instant."""

from __future__ import annotations

import numpy as np

from trtdx.trace.nouns import Segments

BLOCK = 1 << 18  # of segments, so that what is computed on the way stays small
EMPTY = Segments(np.empty(0), np.empty(0), np.empty(0, dtype=np.int32))


def flatten_spans(start: np.ndarray, end: np.ndarray, context: np.ndarray) -> Segments:
    """Return spans of several streams as segments: where two overlap, the one that began first has the time."""
    order = np.argsort(start, kind="stable")
    start, end, context = start[order], end[order], context[order]
    if not len(start):
        return EMPTY
    covered = np.concatenate(([-np.inf], np.maximum.accumulate(end)[:-1]))
    start = np.maximum(start, covered)
    kept = end > start
    return Segments(start[kept], end[kept], context[kept].astype(np.int32))


def select_segments(segments: Segments, kept: np.ndarray) -> Segments:
    """Return the segments for which `kept` holds."""
    return Segments(segments.start[kept], segments.end[kept], segments.context[kept])


def clip_segments(segments: Segments, start: float, end: float) -> Segments:
    """Return what lies within a window."""
    if len(segments.start) and segments.start[0] >= start and segments.end.max() <= end:
        return segments
    begin, until = np.maximum(segments.start, start), np.minimum(segments.end, end)
    kept = until > begin
    return Segments(begin[kept], until[kept], segments.context[kept])


def lay_under(upper: Segments, lower: Segments) -> Segments:
    """Return the upper segments, and what of the lower ones shows in the gaps between them."""
    if not len(upper.start):
        return lower
    if not len(lower.start):
        return upper
    shown = intersect_windows(lower, np.concatenate(([-np.inf], upper.end)), np.concatenate((upper.start, [np.inf])))
    order = np.argsort(np.concatenate((upper.start, shown.start)), kind="stable")
    return Segments(*(np.concatenate(columns)[order] for columns in zip(upper, shown, strict=True)))


def intersect_windows(segments: Segments, window_start: np.ndarray, window_end: np.ndarray) -> Segments:
    """Return what of some segments lies within windows, which are in order and do not overlap."""
    blocks = [
        _intersect_block(Segments(*(column[at : at + BLOCK] for column in segments)), window_start, window_end)
        for at in range(0, len(segments.start), BLOCK)
    ]
    return Segments(*map(np.concatenate, zip(*blocks, strict=True))) if blocks else EMPTY


def _intersect_block(segments: Segments, window_start: np.ndarray, window_end: np.ndarray) -> Segments:
    first = np.searchsorted(window_end, segments.start, side="right")
    last = np.searchsorted(window_start, segments.end, side="left")
    count = np.maximum(last - first, 0)
    segment = np.repeat(np.arange(len(count)), count)
    offset = np.arange(len(segment)) - np.repeat(np.cumsum(count) - count, count)
    window = first[segment] + offset
    start = np.maximum(segments.start[segment], window_start[window])
    end = np.minimum(segments.end[segment], window_end[window])
    kept = end > start
    return Segments(start[kept], end[kept], segments.context[segment][kept])


def fill_gaps(segments: Segments, start: float, end: float, context: int) -> Segments:
    """Return segments that cover a window without a gap; what was empty has this context."""
    segments = clip_segments(segments, start, end)
    begin = np.concatenate(([start], segments.end))
    until = np.concatenate((segments.start, [end]))
    gaps = np.flatnonzero(until > begin)
    return Segments(
        np.insert(segments.start, gaps, begin[gaps]),
        np.insert(segments.end, gaps, until[gaps]),
        np.insert(segments.context, gaps, context),
    )
