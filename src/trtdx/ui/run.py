"""The door of the pages: a case in, one self-contained page out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.case import open_case
from trtdx.render.html import render_html
from trtdx.ui.log_text import excerpt_log
from trtdx.ui.read_case import read_case

if TYPE_CHECKING:
    from trtdx.host import Host


def page_from_case(host: Host, path: str) -> str:
    """Return a case as one page: verdict, findings, pictures, tables, and the logs around what findings point at.

    Raises:
        CaseError: it is no case, or damaged.
    """
    view, case = read_case(open_case(host, path))
    logs = [markup for log in view.logs if (markup := excerpt_log(case, log))]
    return render_html(view.report, subject=view.command or view.name, logs=logs)
