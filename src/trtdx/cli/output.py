"""How a report leaves: in which format, with colour or not, and with which exit status."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from enum import Enum
from typing import TYPE_CHECKING

from trtdx.errors import InputError
from trtdx.host import RealHost
from trtdx.model import Severity
from trtdx.redact import redact_report, redact_secrets
from trtdx.render import (
    render_github,
    render_json,
    render_junit,
    render_markdown,
    render_sarif,
    render_text,
)
from trtdx.render.text import WIDTH

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.model import Report

LEAST_WIDTH = 60


class Color(str, Enum):
    """When to use colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class FailOn(str, Enum):
    """From which severity on findings give exit status 1."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    NEVER = "never"


class OutputFormat(str, Enum):
    """What a report is written as."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    GITHUB = "github"
    SARIF = "sarif"
    JUNIT = "junit"


def wants_color(color: Color) -> bool:
    """Whether to colour what goes to standard output."""
    if color is not Color.AUTO:
        return color is Color.ALWAYS
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width() -> int | None:
    """Return how wide lines may be on a terminal; None in a pipe or file, where nothing is cut."""
    if not sys.stdout.isatty():
        return None
    return max(LEAST_WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


def render_report(
    report: Report,
    form: OutputFormat,
    *,
    color: Color,
    details: bool,
    fail_on: FailOn,
    one_line: bool = False,
) -> str:
    """Return a report in the format asked for, without secrets, whatever they were read from."""
    report = redact_report(report)
    renderers: dict[OutputFormat, Callable[[], str]] = {
        OutputFormat.TEXT: lambda: render_text(
            report, color=wants_color(color), details=details, width=terminal_width()
        ),
        OutputFormat.JSON: lambda: render_json(report, one_line=one_line),
        OutputFormat.MARKDOWN: lambda: render_markdown(report),
        OutputFormat.GITHUB: lambda: render_github(report),
        OutputFormat.SARIF: lambda: render_sarif(report),
        OutputFormat.JUNIT: lambda: render_junit(report, fails_from=least_severity(fail_on)),
    }
    return renderers[form]()


def least_severity(fail_on: FailOn) -> Severity | None:
    """Return the mildest severity that fails a run; None where nothing does."""
    return None if fail_on is FailOn.NEVER else Severity(fail_on.value)


def reaches_severity(report: Report, fail_on: FailOn) -> bool:
    """Whether a report has a finding that gives exit status 1."""
    worst, least = report.worst_severity(), least_severity(fail_on)
    return worst is not None and least is not None and worst.badness >= least.badness


def write_html(report: Report, path: str) -> None:
    """Write a report as a page, without secrets; a page that cannot be written costs neither answer nor status."""
    from trtdx.render.html import render_html

    page = render_html(redact_report(report), subject=redact_secrets(shlex.join(["trtdx", *sys.argv[1:]])))
    try:
        RealHost().write(path, page.encode())
    except InputError as err:
        print(f"warning: the page {path} was not written: {err.message}", file=sys.stderr)  # noqa: T201


def write_output(text: str) -> None:
    """Print text whatever the terminal's encoding can show."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        raise
    except OSError as err:
        raise InputError(
            f"cannot write the answer to standard output: {err.strerror or err}",
            fix="free some space, or send the output elsewhere",
        ) from err
