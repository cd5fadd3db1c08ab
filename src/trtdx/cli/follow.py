"""`trtdx diagnose --follow`: tell each cause as its line arrives, and the whole report at the end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from trtdx.cli.output import Color, wants_color, write_output
from trtdx.diagnose.logs.follow import Follower
from trtdx.errors import InputError
from trtdx.memory.logs.diagnose_hook import with_memory_figures
from trtdx.redact import make_redactor
from trtdx.render.text import render_finding

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trtdx.host import Host
    from trtdx.model import Finding, Report
    from trtdx.rule import RuleBook


def follow_until_interrupted(
    host: Host,
    paths: Sequence[str],
    book: RuleBook,
    *,
    redact_hosts: bool,
    json: bool,
    color: Color,
    ignored: Collection[str] = (),
) -> Report:
    """Return the last report once standard input has ended or the user has pressed Ctrl-C."""
    for path in paths:
        if path != "-" and host.kind(path) != "file":
            raise InputError(
                f"{path} is not a file that can be followed", fix="name a log file, or - for standard input"
            )
    is_colored = wants_color(color)

    def print_finding(finding: Finding) -> None:
        if finding.code.lower() in ignored or finding.slug.lower() in ignored:
            return
        if json:  # a stream is JSON lines: one finding each, the report last
            write_output(msgspec.json.encode(finding).decode() + "\n")
        else:
            write_output(render_finding(finding, color=is_colored) + "\n\n")

    follower = Follower(host, paths, book, make_redactor(hide_hosts=redact_hosts), with_memory_figures)
    with contextlib.suppress(KeyboardInterrupt):
        while not follower.ended:
            for finding in follower.poll():
                print_finding(finding)
    return follower.report()
