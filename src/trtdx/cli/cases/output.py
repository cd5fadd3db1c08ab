"""How answers about cases leave: as a report for people, as plain data for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from trtdx.cli.output import FailOn, OutputFormat, render_report, write_output
from trtdx.redact import redact_value
from trtdx.render.json import render_data

if TYPE_CHECKING:
    from trtdx.cases.nouns import StoredCase
    from trtdx.cli.options import OutputOptions
    from trtdx.model import Report

CaseArgument = Annotated[str, typer.Argument(metavar="ID", help="The case's id, or how it begins.")]


def emit_cases(report: Report, data: Any, output: OutputOptions, *, details: bool = False) -> None:
    """Print an answer: its data where JSON is asked for, else the report. Past findings fail nothing."""
    if output.chosen_format is OutputFormat.JSON:
        write_output(render_data(redact_value(msgspec.to_builtins(data))))
        return
    write_output(render_report(report, output.chosen_format, color=output.color, details=details, fail_on=FailOn.NEVER))


def data_from_case(case: StoredCase) -> dict[str, Any]:
    """Return a case as programs read it."""
    facts = case.facts
    return {
        "id": case.id,
        "created": case.created,
        "tool": case.tool,
        "title": case.title,
        "severity": case.severity,
        "status": case.status,
        "codes": facts.codes,
        "release": facts.release,
        "gpus": facts.gpus,
        "models": facts.models,
        "resolution": case.resolution,
    }
