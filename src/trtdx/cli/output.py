"""How a report leaves: which form, with colour or not, and with which exit status."""

from __future__ import annotations

import os
import shutil
import sys
from enum import Enum
from typing import TYPE_CHECKING

import typer

from trtdx.errors import InputError
from trtdx.model import Severity
from trtdx.render import render_json, render_markdown, render_text
from trtdx.render.text import WIDTH

if TYPE_CHECKING:
    from trtdx.model import Report

LEAST_WIDTH = 60


class Color(str, Enum):
    """When to colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class FailOn(str, Enum):
    """From which severity on findings give exit status 1."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    NEVER = "never"


def wants_color(color: Color) -> bool:
    if color is not Color.AUTO:
        return color is Color.ALWAYS
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width() -> int | None:
    """Return how wide lines may be: as the terminal; in a pipe or file nothing is cut, whoever looks on."""
    if not sys.stdout.isatty():
        return None
    return max(LEAST_WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


def emit(
    report: Report,
    *,
    json: bool,
    markdown: bool,
    color: Color,
    details: bool,
    fail_on: FailOn,
    one_line: bool = False,
    status: int | None = None,
) -> None:
    """Print the report to standard output and end with its status, or with the one that is told."""
    if json:
        write(render_json(report, one_line=one_line))
    elif markdown:
        write(render_markdown(report))
    else:
        write(render_text(report, color=wants_color(color), details=details, width=terminal_width()))
    raise typer.Exit(status if status is not None else 1 if fails(report, fail_on) else 0)


def fails(report: Report, fail_on: FailOn) -> bool:
    worst = report.worst_severity()
    return (
        fail_on is not FailOn.NEVER and worst is not None and worst.badness >= Severity(fail_on.value).badness
    )


def write(text: str) -> None:
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
