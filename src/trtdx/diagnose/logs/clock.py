"""When lines were written, on one clock where the sources have one."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.diagnose.nouns import LogEvent, RuleMatch

_AMERICAN = re.compile(r"(\d\d)/(\d\d)/(\d{4})-(.*)")
_ZONE = re.compile(r"(?:Z|(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d))$")


def event_time(event: LogEvent) -> tuple[str, int, str]:
    """Return what orders events: the time on the common clock where there is one, then how far into its source it is."""
    return event.peeled.time, event.line, event.source


def align_clocks(matches: Sequence[RuleMatch]) -> list[RuleMatch]:
    """Return the matches with times that can be compared, or without any where a source tells none.

    Loggers with and without dates write into one file; a line without takes the date of the nearest one before it
    that has one, else of the first after it. Times with a zone and times without one cannot be compared.
    """
    dates: defaultdict[str, dict[int, str]] = defaultdict(dict)
    zones: set[bool] = set()
    for match in matches:
        date, zoned = _sortable_date(match.event.peeled.time)
        dates[match.event.source].update({match.event.line: date} if date else {})
        zones |= {zoned} if date else set()
    if len(zones) != 1 or not all(dates[match.event.source] for match in matches):
        return [_with_time(match, "") for match in matches]
    lines = {source: sorted(line_dates) for source, line_dates in dates.items()}
    return [
        _with_time(match, _nearest_date(dates[match.event.source], lines[match.event.source], match.event.line))
        for match in matches
    ]


def _nearest_date(dates: dict[int, str], lines: Sequence[int], line: int) -> str:
    return dates[lines[max(0, bisect_right(lines, line) - 1)]]


def _with_time(match: RuleMatch, time: str) -> RuleMatch:
    return match._replace(event=match.event._replace(peeled=match.event.peeled._replace(time=time)))


def _sortable_date(time: str) -> tuple[str, bool]:
    """Return a time with a full date in a form that sorts, in UTC where it tells its zone, and whether it does."""
    american = _AMERICAN.match(time)
    if american:
        return f"{american[3]}-{american[1]}-{american[2]} {american[4]}", False
    if not re.match(r"\d{4}[-/]", time):
        return "", False
    plain = time[:10].replace("/", "-") + " " + time[10:].lstrip("T _:-").replace(",", ".")
    zone = _ZONE.search(plain)
    return (_utc_from_local(plain[: zone.start()], zone), True) if zone else (plain, False)


def _utc_from_local(plain: str, zone: re.Match[str]) -> str:
    if not zone["sign"]:
        return plain
    ahead = timedelta(hours=int(zone["hours"]), minutes=int(zone["minutes"]))
    try:
        seconds = datetime.strptime(plain[:19], "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return plain
    try:
        return str(seconds - ahead if zone["sign"] == "+" else seconds + ahead) + plain[19:]
    except OverflowError:
        return plain
