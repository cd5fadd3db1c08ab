"""How much of a source is looked at closely: everything, until hits come in floods.

The ten-thousandth copy of an error teaches nothing and costs as much as the first. So a source has a budget of
work, a part of one where there are very many sources. Once it is spent, texts that were met before are passed over, except for a few lines of every mebibyte and
the end of the source; a text that is new to the source is always looked at.
"""

from __future__ import annotations

FIRST_WORK = 12_000_000  # characters times patterns: some tenths of a second
WORK_PER_BYTE = 0.1  # what reading on adds to the budget
LAST_WORK = 4_000_000  # the end of a source tells the most
ALWAYS_ACCEPTED_HITS = 4  # hits of one text that are looked at whatever the budget
FLOOD_SEGMENT_CYCLE = 8  # in a flood a text is listened to in every eighth segment
_LINE_WORK, _LINE_PATTERNS = (
    200,
    12,
)  # what any line costs beside: redaction and peeling are like a dozen patterns
_SKIPPED_WORK = 1200  # what a line costs whose shape is known
_SLOW_WORK = 1_000_000  # what a pattern costs that had to be stopped


class WorkBudget:
    """The work that one source may still cost."""

    def __init__(self, share: float = 1.0) -> None:
        self._max_work = self._work_left = int(FIRST_WORK * share)
        self._share, self.is_flooded = share, False

    def spend_on_line(self, characters: int, patterns: int) -> None:
        self._spend((characters + _LINE_WORK) * (patterns + _LINE_PATTERNS))

    def spend_on_known_shape(self) -> None:
        self._spend(_SKIPPED_WORK)

    def spend_on_slow_pattern(self) -> None:
        self._spend(_SLOW_WORK)

    def _spend(self, work: int) -> None:
        self._work_left -= work
        if self._work_left < 0:
            self._work_left, self.is_flooded = 0, True

    def earn(self, work: float) -> None:
        self._work_left = min(self._max_work, self._work_left + int(work))

    def earn_last(self) -> None:
        self.earn(LAST_WORK * self._share)

    @property
    def is_spent(self) -> bool:
        return self._work_left <= 0


class HitRation:
    """Which hits of an index's texts are worth a look in one source."""

    def __init__(self, texts: int, budget: WorkBudget) -> None:
        self.muted = bytearray(texts)  # texts that the scanner need not report
        self.hits = [0] * texts
        self.passed_over = False
        self._budget = budget
        self._frequent_texts: set[int] = set()
        self._segment_number = 0

    def next_segment(self) -> None:
        """Choose the texts that are listened to in the next segment."""
        self._segment_number += 1
        for text in self._frequent_texts if self._budget.is_flooded else ():
            self.muted[text] = text % FLOOD_SEGMENT_CYCLE != self._segment_number % FLOOD_SEGMENT_CYCLE
            self.passed_over = True

    def unmute_all(self) -> None:
        """Listen to every text again."""
        for text in self._frequent_texts:
            self.muted[text] = 0

    def accepts_hit(self, text: int) -> bool:
        """Whether a hit of this text is to be looked at."""
        if self.muted[text]:
            return False
        self.hits[text] += 1
        if self.hits[text] <= ALWAYS_ACCEPTED_HITS:
            return True
        self._frequent_texts.add(text)
        if self._budget.is_spent:
            self.muted[text] = 1
            self.passed_over = True
        return not self.muted[text]

    def mute(self, text: int) -> None:
        """Never ask for this text again."""
        self.muted[text] = 1
        self._frequent_texts.discard(text)
