"""The pages of some cases, each made when it is asked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from trtdx.errors import CaseError
from trtdx.redact import redact_secrets
from trtdx.render.html import PageLink, page_environment, render_html, trusted_assets
from trtdx.render.text import printable_text
from trtdx.ui.log_text import PAGE_LINES, excerpt_log, window_log
from trtdx.ui.memory_page import plan_values, planned_setup
from trtdx.ui.shelves import PAGE_CASES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtdx.host import Host
    from trtdx.rule import RuleBook
    from trtdx.ui.nouns import CaseView
    from trtdx.ui.shelves import CaseShelf

    Query = Mapping[str, str]

HOME = PageLink("/", "all cases")


class CasePages:
    """The pages of the cases on a shelf."""

    def __init__(self, host: Host, shelf: CaseShelf) -> None:
        self._host, self._shelf = host, shelf

    @cached_property
    def _book(self) -> RuleBook:
        from trtdx.knowledge.load import load_book

        return load_book(self._host)

    def show_index(self, query: Query) -> str:
        """Return a hundred of the cases that fit what was searched for, with the ways to the others."""
        words = query.get("q", "")
        number = max(1, read_number(query, "page", 1))
        skip = (number - 1) * PAGE_CASES
        listed = self._shelf.list_cases(words, skip=skip)
        last = max(1, -(-listed.total // PAGE_CASES))
        turns = [
            ("first", 1),
            ("newer" if not words else "better", number - 1),
            ("older" if not words else "further", number + 1),
            ("last", last),
        ]
        return render_page_template(
            "index.html",
            rows=listed.rows,
            total=listed.total,
            first=skip + 1,
            query=words,
            turns=[PageLink(_list_address(words, at), name) for name, at in turns if 1 <= at <= last and at != number],
        )

    def show_case(self, query: Query, key: str) -> str:
        """Return a case's page, each log with a way to all of it."""
        from markupsafe import Markup

        view, case = self._shelf.read(key)
        logs = []
        for at, log in enumerate(view.logs):
            link = '<p><a href="{}/log/{}?line={}">{}: the whole log</a></p>'
            first = max(1, log.first_line - PAGE_LINES // 4)
            logs += [excerpt_log(case, log), Markup(link).format(key, at, first, printable_text(log.name))]  # noqa: S704
        return render_html(view.report, subject=_subject(view), logs=logs, links=_page_links(view, key))

    def show_log(self, query: Query, key: str, at: int) -> str:
        """Return some hundred lines of a log."""
        view, case = self._shelf.read(key)
        log = view.logs[at]
        first = read_number(query, "line", 1)
        lines, has_more = window_log(case, log, first)
        return render_page_template(
            "log.html",
            name=printable_text(redact_secrets(log.name)),
            number=key,
            first=first,
            last=first + PAGE_LINES - 1,
            step=PAGE_LINES,
            lines=lines,
            has_more=has_more,
            marks=sorted(log.causes | log.symptoms)[:20],
        )

    def show_memory(self, query: Query, key: str) -> str:
        """Return a memory plan with sliders, or only the plan where the sliders have moved."""
        view, _ = self._shelf.read(key)
        setup = planned_setup(view.report)
        if setup is None:
            raise CaseError("this case holds no memory plan")
        values = plan_values(self._host, self._book, setup, query)
        if query.get("part") == "plan":
            return page_environment().get_template("plan.html").render(**values)
        links = (HOME, PageLink(f"/case/{key}", "the case"))
        return render_page_template("what_if.html", subject=_subject(view), links=links, **values)


def _list_address(words: str, number: int) -> str:
    return "?" + urlencode({"q": words, "page": number} if words else {"page": number})


def _subject(view: CaseView) -> str:
    return printable_text(view.command or view.name)


def _page_links(view: CaseView, key: str) -> list[PageLink]:
    """Return the ways from a case's page to what is shown of it besides."""
    links = [HOME]
    if planned_setup(view.report) is not None:
        links.append(PageLink(f"{key}/memory", "change batch, length, tokens, TP"))
    return links


def render_page_template(template: str, **values: Any) -> str:
    """Return a served page from its template."""
    return page_environment().get_template(template).render(**trusted_assets(), **values)


def read_number(query: Query, name: str, default: int) -> int:
    """Return a number from an address; what is none counts as not said."""
    text = query.get(name, "")
    return max(0, int(text)) if text.isascii() and text.isdigit() and len(text) < 12 else default
