"""A report as one page that needs no other file and no network.

Log text is untrusted: everything is escaped by the template engine, no element can run anything but the page's own
script, and the page's policy lets nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.render.markdown import is_command
from trtdx.render.svg import draw_picture
from trtdx.render.table import cell_text, number_columns
from trtdx.render.text import confidence_words, printable_text, ranks_in_words, read_in_words, unjudged_in_words
from trtdx.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    import jinja2
    from markupsafe import Markup

    from trtdx.model import Report, Section

TEMPLATES = Path(__file__).parent / "templates"
MOST_ROWS = 2000  # of a table; whoever wants more asks for JSON
MOST_CELL = 4000


class PageLink(NamedTuple):
    """A way from one served page to another."""

    address: str
    text: str


def render_html(
    report: Report, *, subject: str = "", logs: Sequence[Markup] = (), links: Sequence[PageLink] = ()
) -> str:
    """Return a report as a whole page.

    Args:
        report: what is shown, without secrets already.
        subject: what it is about, for the head of the page: a case, a command.
        logs: parts of logs to show below the findings, as markup.
        links: the other pages of a served case; none for a page that stands alone.
    """
    read = ", ".join(read_in_words(report.summary)) if report.summary.inputs else ""
    return page_environment().get_template("report.html").render(
        title=printable_text(f"{subject or 'trtdx'}: {report.summary.text}")[:160],
        subject=printable_text(subject),
        version=__version__,
        read=read,
        unjudged=[words for words, _ in unjudged_in_words(report.summary, all_codes=False)],
        links=links,
        **body_values(report, logs),
        **trusted_assets(),
    )  # fmt: skip


def body_values(report: Report, logs: Sequence[Markup] = ()) -> dict[str, Any]:
    """Return what `report_body.html` needs: findings, pictures, and the tables that no picture replaces."""
    pictures = report.pictures()
    drawn = {picture.replaces for picture in pictures}
    worst = report.worst_severity()
    return {
        "report": report,
        "worst": worst.value if worst else "",
        "sections": [_shorten_section(section) for section in report.sections if section.key not in drawn],
        "pictures": [draw_picture(picture) for picture in pictures],
        "logs": logs,
    }


@cache
def page_environment() -> jinja2.Environment:
    """Return the template engine, which escapes whatever is not markup of ours."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "cell": lambda value: cell_text(value)[:MOST_CELL],
        "command": is_command,
        "confidence": confidence_words,
        "lines": lambda text: printable_text(text, lines=True),
        "number_columns": number_columns,
        "printable": printable_text,
        "ranks": ranks_in_words,
    }
    return environment


def read_asset(name: str) -> str:
    return (TEMPLATES / name).read_text("utf-8")


def trusted_assets() -> dict[str, Any]:
    """Return the pages' own style and script as they are, each with the hash that their policy allows."""
    from markupsafe import Markup

    style, script = (read_asset(name) for name in ("style.css", "page.js"))
    return {
        "style": Markup(style),  # noqa: S704  our own file
        "script": Markup(script),  # noqa: S704  our own file
        "style_hash": policy_hash(style),
        "script_hash": policy_hash(script),
    }


def policy_hash(text: str) -> str:
    """Return what a Content-Security-Policy calls an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _shorten_section(section: Section) -> Section:
    import msgspec

    if len(section.rows) <= MOST_ROWS:
        return section
    note = f"{section.note} {len(section.rows) - MOST_ROWS} more rows are not shown here; --json has them.".strip()
    return msgspec.structs.replace(section, rows=section.rows[:MOST_ROWS], note=note)
