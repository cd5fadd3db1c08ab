"""From a page's belief to the share of such answers that proved right.

Authors state beliefs on a short scale (0.95 the line can mean only this, 0.8 usually, 0.6 the commonest cause), and
they state them carefully. On 423 problems from public threads that no page had been written for (three sets, each
scored before anybody looked at it; 2026-11) the first finding was right in 11 of 21 cases at belief 0.5, 43 of 55
at 0.6, 28 of 32 at 0.7, 67 of 72 at 0.8 and 193 of 196 from 0.9 on. The table leans a little to the careful side.
A fourth set of 74, scored with the table in place: 47 of 50 right at 0.9 and more, 8 of 11 from 0.7 on, 2 of 4 below.
"""

from __future__ import annotations

from itertools import pairwise

MEASURED_ACCURACY = (
    (0.0, 0.0), (0.3, 0.3), (0.5, 0.5), (0.6, 0.74), (0.7, 0.85), (0.8, 0.91), (0.95, 0.97), (1.0, 0.98),
)  # fmt: skip


def calibrated_confidence(belief: float) -> float:
    """Return how often a finding of this belief is right, between the measured points on a straight line."""
    for (left, low), (right, high) in pairwise(MEASURED_ACCURACY):
        if belief <= right:
            return round(low + (high - low) * (belief - left) / (right - left), 2)
    return MEASURED_ACCURACY[-1][1]
