"""Option groups that several commands share: one wording, one default, one meaning."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trtdx.cli.groups import OptionGroup, refuse_pair
from trtdx.cli.output import Color, FailOn, OutputFormat, reaches_severity, render_report, write_html, write_output
from trtdx.cli.project import load_project_defaults
from trtdx.host import RealHost

if TYPE_CHECKING:
    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.model import Report
    from trtdx.rule import RuleBook

AllOption = Annotated[bool, typer.Option("--all", help="Show every row.")]


@dataclass(frozen=True, kw_only=True)
class OutputOptions(OptionGroup):
    """In which format an answer is printed."""

    format: Annotated[
        OutputFormat | None,
        typer.Option("--format", help="What to print; by default text.", show_default=False),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Short for --format markdown: pastes well into a GitHub issue."),
    ] = False
    color: Annotated[Color, typer.Option("--color", help="When to use colour.")] = Color.AUTO

    def __post_init__(self) -> None:
        """Refuse two formats at once."""
        formats = {"--json": self.json, "--markdown": self.markdown, "--format": self.format is not None}
        named = [flag for flag, is_given in formats.items() if is_given]
        if len(named) > 1:
            refuse_pair(named[0], named[1], "a report is printed in one format")

    @property
    def chosen_format(self) -> OutputFormat:
        """The format to print."""
        short = OutputFormat.JSON if self.json else OutputFormat.MARKDOWN if self.markdown else OutputFormat.TEXT
        return self.format or short

    @property
    def is_json(self) -> bool:
        """Whether another program reads the answer as data, which is then given whole."""
        return self.chosen_format is OutputFormat.JSON


@dataclass(frozen=True, kw_only=True)
class ReportOptions(OutputOptions):
    """In which format a report is printed, and how much of it."""

    details: Annotated[bool, typer.Option("--details", "-v", help="Also show all evidence, and cells in full.")] = False
    html: Annotated[
        str,
        typer.Option(
            "--html", metavar="FILE", help="Also write the answer as one page to open in a browser.", show_default=False
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class FindingOptions(OptionGroup):
    """Which rules are in force, which findings are ignored, and which fail the run."""

    rules: Annotated[
        list[str] | None,
        typer.Option("--rules", metavar="DIR", help="Also use the rule pages in this folder. May be repeated."),
    ] = None
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="CODE[=REASON]",
            help="Count findings with this code, but do not show them or fail because of them. May be repeated.",
        ),
    ] = None
    fail_on: Annotated[
        FailOn | None,
        typer.Option(
            "--fail-on",
            help="Exit with 1 when a finding is at least this severe; by default error.",
            show_default=False,
        ),
    ] = None

    def load_rules(self, host: Host) -> RuleBook:
        """Return the rules in force.

        Raises:
            UnknownNameError: a code to be ignored is no rule's.
        """
        from trtdx.knowledge.load import load_book

        book = load_book(host, [*load_project_defaults(host).rules, *(self.rules or ())])
        for code in self.ignored_codes(host):
            book.get(code)
        return book

    def ignored_codes(self, host: Host) -> dict[str, str]:
        """Return the codes or slugs to be ignored, in lower case, each with its reason."""
        reasons = dict(load_project_defaults(host).ignore)
        for item in self.ignore or ():
            code, _, reason = item.partition("=")
            reasons[code] = reason or "--ignore on the command line"
        return {code.strip().lower(): reason for code, reason in reasons.items()}

    def chosen_severity(self, host: Host) -> FailOn:
        """Return from which severity on findings fail the run."""
        return self.fail_on or load_project_defaults(host).fail_on

    def set_aside_ignored(self, report: Report, host: Host) -> Report:
        """Return a report whose ignored findings are counted in its summary, with the reason."""
        import msgspec

        from trtdx.model import IgnoredFinding, headline_from_findings

        reasons = self.ignored_codes(host)
        kept, ignored = [], []
        for finding in report.findings:
            reason = reasons.get(finding.code.lower()) or reasons.get(finding.slug.lower())
            if reason is None:
                kept.append(finding)
                continue
            ignored.append(
                IgnoredFinding(
                    finding.code, finding.slug, finding.severity, finding.message, str(finding.where), reason
                )
            )
        if not ignored:
            return report
        summary = msgspec.structs.replace(report.summary, ignored=(*report.summary.ignored, *ignored))
        if summary.text == headline_from_findings(report.findings):
            summary = msgspec.structs.replace(
                summary, text=headline_from_findings(kept) if kept else "no problem found that is not ignored"
            )
        return msgspec.structs.replace(report, summary=summary, findings=tuple(kept))


@dataclass(frozen=True, kw_only=True)
class MachineOptions(OptionGroup):
    """What the artifacts are to run on."""

    runtime: Annotated[
        str,
        typer.Option(
            "--runtime",
            metavar="VERSION",
            help="The TensorRT-LLM release that will run it.",
            show_default=False,
        ),
    ] = ""
    gpu: Annotated[
        str,
        typer.Option("--gpu", metavar="NAME", help="The GPU, such as L40S, or its SM.", show_default=False),
    ] = ""
    gpus: Annotated[
        int, typer.Option("--gpus", metavar="N", min=0, help="How many GPUs there are.", show_default=False)
    ] = 0

    def build_machine(self, host: Host) -> Artifact | None:
        """Return the machine that the options or the project's defaults name."""
        from trtdx.inspect.facts.machine import machine_from_flags

        defaults = load_project_defaults(host)
        count = re.fullmatch(r"(\d+)\s*x\s*(.+)", defaults.gpu)  # as `trtdx memory` takes it
        usual_gpu, usual_count = (count[2], int(count[1])) if count else (defaults.gpu, 0)
        return machine_from_flags(
            runtime=self.runtime or defaults.runtime,
            gpu=self.gpu or usual_gpu,
            gpus=self.gpus or (0 if self.gpu else usual_count),
        )


def emit_report(
    report: Report,
    output: OutputOptions,
    findings: FindingOptions,
    *,
    details: bool = False,
    one_line: bool = False,
    status: int | None = None,
) -> NoReturn:
    """Print a report to standard output and end with its status, or with the one given.

    Raises:
        typer.Exit: always.
    """
    host = RealHost()
    report = findings.set_aside_ignored(report, host)
    fail_on = findings.chosen_severity(host)
    shows_details = details or (isinstance(output, ReportOptions) and output.details)
    text = render_report(
        report,
        output.chosen_format,
        color=output.color,
        details=shows_details,
        fail_on=fail_on,
        one_line=one_line,
    )
    if isinstance(output, ReportOptions) and output.html:
        write_html(report, output.html)
    write_output(text)
    raise typer.Exit(status if status is not None else 1 if reaches_severity(report, fail_on) else 0)
