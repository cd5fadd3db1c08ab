"""What a check of a trace yields: a code, its share of the time, and the spans that show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trtdx.model import Evidence
from trtdx.trace.analysis.ranks import NO_WAITS
from trtdx.trace.nouns import Category

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtdx.model import Severity
    from trtdx.trace.analysis.ledger import TimeLedger
    from trtdx.trace.analysis.ranks import RankWaits
    from trtdx.trace.nouns import Context, RankTimeline, Recordings, Segments

LEAST_SHARE = 0.05  # below this a cause is not worth a change
MOST_EVIDENCE = 3


class TimeCause(NamedTuple):
    """One cause of lost time."""

    code: str
    share: float  # of the wall time that would not be spent without it
    evidence: tuple[Evidence, ...]
    values: Mapping[str, object] = {}
    ranks: tuple[int, ...] = ()
    confidence: float = 0.8
    severity: Severity | None = None


class TraceAnalysis(NamedTuple):
    """Everything that checks look at."""

    timelines: Sequence[RankTimeline]
    ledger: TimeLedger
    recordings: Recordings
    waits: RankWaits = NO_WAITS
    undisturbed: float = 1.0  # the share of the time in which other work on the machine did not stop the loop

    @property
    def has_device(self) -> bool:
        return any(timeline.has_device for timeline in self.timelines)

    def is_large(self, share: float, least: float) -> bool:
        """Whether a share of the wall time would be large enough on a machine that has nothing else to do."""
        return share >= least * self.undisturbed

    @property
    def rank_count(self) -> int:
        return max(len(self.timelines), 1)


def segments_where(timeline: RankTimeline, holds: Callable[[Context], bool]) -> Segments:
    """Return the segments of a rank whose context fulfils a condition."""
    chosen = np.array([holds(context) for context in timeline.contexts], dtype=bool)
    kept = chosen[timeline.segments.context] if len(chosen) else np.zeros(0, bool)
    segments = timeline.segments
    return type(segments)(segments.start[kept], segments.end[kept], segments.context[kept])


def longest_spans(timeline: RankTimeline, holds: Callable[[Context], bool]) -> tuple[Evidence, ...]:
    """Return the longest stretches for which a condition holds, as anyone can find them again in a viewer."""
    segments = segments_where(timeline, holds)
    longest = np.argsort(-segments.duration)[:MOST_EVIDENCE]
    return tuple(
        Evidence(
            place_of(timeline, float(segments.start[at])),
            f"{render_us(float(segments.duration[at]))} in {describe_context(timeline.contexts[segments.context[at]])}",
        )
        for at in longest.tolist()
    )


def place_of(timeline: RankTimeline, at: float) -> str:
    """Return where a moment is: file, rank, and the time that the file itself has for it."""
    rank = f" rank {timeline.rank}" if timeline.rank else ""
    return f"{timeline.path}{rank} at ts {at - timeline.clock_shift:.3f}"


def describe_context(context: Context) -> str:
    name = context.name or context.operator or context.category.words
    module = f" of {context.module}" if context.module else ""
    phase = f", {context.phase}" if context.phase else ""
    return f"{name}{module}{phase} ({context.category.words})"


def render_us(time: float) -> str:
    """Return microseconds in the unit that reads best."""
    if time >= 1e6:
        return f"{time / 1e6:.2f} s"
    return f"{time / 1e3:.2f} ms" if time >= 1e3 else f"{time:.0f} us"


def render_share(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.0995 else f"{share * 100:.1f} %"


def steps_of(analysis: TraceAnalysis) -> int:
    return max((len(timeline.steps) for timeline in analysis.timelines), default=0)


def is_host(context: Context) -> bool:
    return context.category is Category.HOST
