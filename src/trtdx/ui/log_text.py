"""A log as markup: the lines around what findings point at, causes and symptoms marked, the rest folded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.render.text import printable_text
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from markupsafe import Markup

    from trtdx.case import Case
    from trtdx.ui.nouns import LogFile

AROUND = 8
LONGEST_LINE = 2000
MOST_EXCERPT_LINES = 400
PAGE_LINES = 500
LINE_REMARKS = {"cause": " ← cause", "hit": " ← follows from it", "line": ""}


def read_lines(case: Case, log: LogFile) -> Iterator[str]:
    """Yield the lines of a log, cut where they are longer than anybody reads."""
    with case.host.open(log.path) as stream:
        while True:
            raw = stream.readline(LONGEST_LINE * 4)
            if not raw:
                return
            is_whole = raw.endswith(b"\n")
            text = raw.decode("utf-8", "replace").rstrip("\r\n")
            while not is_whole and (rest := stream.readline(1 << 16)):  # the rest of a line without end
                is_whole = rest.endswith(b"\n")
                text = text[:LONGEST_LINE] + " ... (cut)"
            yield text[: LONGEST_LINE + 20]


def excerpt_log(case: Case, log: LogFile) -> Markup:
    """Return the parts of a log that findings point at, with their surroundings."""
    from markupsafe import Markup

    shown = {line + offset for line in log.causes | log.symptoms for offset in range(-AROUND, AROUND + 1)}
    if not shown:
        return Markup("")
    rows: list[tuple[int, str]] = []
    last = max(shown)
    for number, text in enumerate(read_lines(case, log), 1):
        if number > last or len(rows) >= MOST_EXCERPT_LINES:
            break
        if number in shown:
            rows.append((number, text))
    body = Markup("").join(_with_gaps(rows, log))
    return Markup("<section><h3>{}</h3><pre>{}</pre></section>").format(printable_text(log.name), body)


def window_log(case: Case, log: LogFile, first: int, count: int = PAGE_LINES) -> tuple[Markup, bool]:
    """Return some lines of a log from a line on as markup, and whether there are more."""
    from markupsafe import Markup

    rows, has_more = window_lines(case, log, first, count)
    return Markup("").join(_mark_lines(rows, log)), has_more


def window_lines(case: Case, log: LogFile, first: int, count: int = PAGE_LINES) -> tuple[list[tuple[int, str]], bool]:
    """Return some lines of a log from a line on with their numbers, and whether there are more."""
    rows: list[tuple[int, str]] = []
    for number, text in enumerate(read_lines(case, log), 1):
        if number >= first + count:
            return rows, True
        if number >= first:
            rows.append((number, text))
    return rows, False


def _with_gaps(rows: Sequence[tuple[int, str]], log: LogFile) -> Iterator[Markup]:
    from markupsafe import Markup

    before = 0
    for number, text in rows:
        if number > before + 1:
            skipped = format_count(number - before - 1, "line")
            yield Markup('<span class="place">... {} ...</span>').format(skipped)
        yield from _mark_lines([(number, text)], log)
        before = number


def _mark_lines(rows: Iterable[tuple[int, str]], log: LogFile) -> Iterator[Markup]:
    from markupsafe import Markup

    for number, text in rows:
        kind = "cause" if number in log.causes else "hit" if number in log.symptoms else "line"
        line = '<span class="{}" id="L{}"><span class="number">{:>6}</span> {}<b>{}</b>\n</span>'
        yield Markup(line).format(kind, number, number, printable_text(text), LINE_REMARKS[kind])  # noqa: S704  a constant
