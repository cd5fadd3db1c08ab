"""Which option of how a model is run makes it wrong: the fewest that have to be changed to mend it.

    found = bisect([Option("level", ("all", "extended", "basic", "none")), Option("threads", ("0", "1"))], run)

As it is given the candidate is wrong. Every option has other values it could have. All of them are changed at once,
and if that mends it, halves and quarters of them are put back (delta debugging) until no option less mends it; of an
option with several values the one nearest to what was given is then looked for. Runs are counted, bounded, never
made twice, and kept in a file where one is named, so that a search goes on where it was stopped.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from trtdx.errors import InputError
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtdx.host import Host

    Run = Callable[[dict[str, str]], "RunOutcome"]

MOST_RUNS = 48
Item = TypeVar("Item")


class BisectOption(NamedTuple):
    """An option to try: the value with which it fails, then others, each further from the first."""

    name: str
    values: tuple[str, ...]


class RunOutcome(msgspec.Struct, frozen=True):
    """How a run was judged: wrong or not, None where it could not be run or judged; and in words why."""

    wrong: bool | None
    note: str = ""


class TriedRun(msgspec.Struct, frozen=True):
    """A run that was made."""

    options: dict[str, str]
    outcome: RunOutcome


class BisectResult(NamedTuple):
    """What a search found."""

    flips: dict[str, str]  # the fewest options to change, and to what, for another verdict; none where nothing helps
    failing_values: dict[str, str]  # the values with which it fails
    runs: int  # made now; those of an earlier search are not among them
    tried: tuple[TriedRun, ...]  # all runs, those of an earlier search too
    sure: bool = True  # every one of `flips` was seen to be needed; else the runs were used up before
    problem: str = ""  # why nothing was found, if so


class RunLimitError(Exception):
    """No more runs may be made."""


class RunLog:
    """Runs that were made, by their options; in a file too where one is named."""

    def __init__(
        self, run: Run, *, host: Host | None = None, file: str = "", about: str = "", most: int = MOST_RUNS
    ) -> None:
        """Start with what a file has.

        Runs of another question, as `about` says, are not taken.
        """
        self._run, self._host, self._file, self._about, self._most = run, host, file, about, most
        self.tried: dict[str, TriedRun] = {}
        self.runs = 0
        if host is not None and file and host.kind(file) == "file":
            self._load()

    def outcome(self, options: Mapping[str, str]) -> RunOutcome:
        """Return how a set of options does, from a run that was made or a new one."""
        key = json.dumps(dict(options), sort_keys=True)
        if key not in self.tried:
            if self.runs >= self._most:
                raise RunLimitError
            self.runs += 1
            self.tried[key] = TriedRun(dict(options), self._run(dict(options)))
            self._save()
        return self.tried[key].outcome

    def _load(self) -> None:
        assert self._host is not None
        with self._host.open(self._file) as stream:
            data = stream.read()
        try:
            run_file = msgspec.json.decode(data, type=_RunFile)
        except msgspec.MsgspecError as err:
            raise InputError(f"{self._file} holds no runs: {err}", fix="name another file") from err
        if run_file.about != self._about:
            raise InputError(
                f"{self._file} has the runs of another question: {run_file.about}", fix="name another file"
            )
        self.tried = {json.dumps(run.options, sort_keys=True): run for run in run_file.tried}

    def _save(self) -> None:
        if self._host is not None and self._file:
            run_file = _RunFile(self._about, tuple(self.tried.values()))
            self._host.write(self._file, msgspec.json.format(msgspec.json.encode(run_file)))


class _RunFile(msgspec.Struct, frozen=True):
    about: str
    tried: tuple[TriedRun, ...]


def bisect_options(options: Sequence[BisectOption], log: RunLog) -> BisectResult:
    """Return the fewest options that have to be changed for another verdict than "wrong"."""
    failing_values = {option.name: option.values[0] for option in options}
    search = _OptionSearch(options, failing_values, log)
    try:
        problem = search.find()
    except RunLimitError:
        search.sure = False
        problem = "" if search.mending else f"{format_count(log.runs, 'run')} were not enough"
    changed = {} if problem else search.changes()
    return BisectResult(changed, failing_values, log.runs, tuple(log.tried.values()), search.sure, problem)


class _OptionSearch:
    """One search: `mended` are the options, by number, of which it is known that changing them helps."""

    def __init__(self, options: Sequence[BisectOption], failing_values: dict[str, str], log: RunLog) -> None:
        self.options, self.failing_values, self.log = options, failing_values, log
        self.farthest = {at: len(option.values) - 1 for at, option in enumerate(options)}
        self.mending: list[int] = []
        self.sure = True

    def changes(self) -> dict[str, str]:
        return {self.options[at].name: self.options[at].values[self.farthest[at]] for at in self.mending}

    def mends(self, some: Sequence[int], steps_away: Mapping[int, int] | None = None) -> bool:
        """Whether the run is right with some options changed."""
        distances = steps_away or self.farthest
        changed = {self.options[at].name: self.options[at].values[distances[at]] for at in some}
        return self.log.outcome(self.failing_values | changed).wrong is False

    def find(self) -> str:
        """Look for the options; return why there are none."""
        first = self.log.outcome(self.failing_values)
        if not first.wrong:
            return first.note if first.wrong is None else "it is not wrong with the options that were given"
        everything = [at for at, option in enumerate(self.options) if len(option.values) > 1]
        if not everything:
            return "there is no option to change"
        self.mending = everything if self.mends(everything) else self._single_option(everything)
        if not self.mending:
            return "none of the options changes the verdict: the mistake is in the model or in what all settings share"
        self.mending = minimal_subset(self.mending, self._improves)
        for at in list(self.mending):
            self._nearest_value(at)
        return ""

    def _improves(self, some: Sequence[int]) -> bool:
        """Whether fewer options mend it too; then they are the best known."""
        if not self.mends(some):
            return False
        self.mending = list(some)
        return True

    def _single_option(self, everything: Sequence[int]) -> list[int]:
        """Return one option that mends it by itself: all at once may fail for a reason of another."""
        return next(([at] for at in everything if self.mends([at])), [])

    def _nearest_value(self, option: int) -> None:
        """Look for the value nearest to what was given that still mends it."""
        low, high = 1, self.farthest[option]
        while low < high:
            middle = (low + high) // 2
            if self.mends(self.mending, {**self.farthest, option: middle}):
                high = self.farthest[option] = middle
            else:
                low = middle + 1


def minimal_subset(items: Sequence[Item], works: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """Return a part of some items that works and of which no item can be left out (ddmin)."""
    remaining, parts = list(items), 2
    while len(remaining) > 1:
        size = math.ceil(len(remaining) / parts)
        chunks = [remaining[first : first + size] for first in range(0, len(remaining), size)]
        smaller = next((chunk for chunk in chunks if works(chunk)), None)
        if smaller is not None:
            remaining, parts = smaller, 2
            continue
        rests = [[at for at in remaining if at not in chunk] for chunk in chunks] if len(chunks) > 2 else []
        smaller = next((rest for rest in rests if works(rest)), None)
        if smaller is not None:
            remaining, parts = smaller, max(parts - 1, 2)
        elif size == 1:
            break
        else:
            parts = min(len(remaining), 2 * parts)
    return remaining
