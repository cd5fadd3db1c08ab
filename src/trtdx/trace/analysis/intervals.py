"""Stretches of time that lie over each other: whichever comes first in rank keeps the instant."""

from __future__ import annotations

import numpy as np

from trtdx.trace.nouns import Segments

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
    begin, until = np.maximum(segments.start, start), np.minimum(segments.end, end)
    kept = until > begin
    return Segments(begin[kept], until[kept], segments.context[kept])


def lay_under(upper: Segments, lower: Segments) -> Segments:
    """Return the upper segments, and what of the lower ones shows in the gaps between them."""
    if not len(upper.start):
        return lower
    if not len(lower.start):
        return upper
    shown = intersect_windows(
        lower, np.concatenate(([-np.inf], upper.end)), np.concatenate((upper.start, [np.inf]))
    )
    merged = Segments(
        np.concatenate((upper.start, shown.start)),
        np.concatenate((upper.end, shown.end)),
        np.concatenate((upper.context, shown.context)),
    )
    order = np.argsort(merged.start, kind="stable")
    return Segments(merged.start[order], merged.end[order], merged.context[order])


def intersect_windows(segments: Segments, window_start: np.ndarray, window_end: np.ndarray) -> Segments:
    """Return what of some segments lies within windows, which are in order and do not overlap."""
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
    whole = Segments(np.array([start]), np.array([end]), np.array([context], dtype=np.int32))
    return lay_under(clip_segments(segments, start, end), whole)
