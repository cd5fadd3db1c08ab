"""`trtdx check`: the arguments, and nothing of the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trtdx.cli.groups import OptionGroup, refuse_pair
from trtdx.cli.options import FindingOptions, ReportOptions, emit_report
from trtdx.host import RealHost

if TYPE_CHECKING:
    from trtdx.check.collect import CheckQuestion
    from trtdx.check.nouns import EnvironmentRecord
    from trtdx.check.run import MendingWishes
    from trtdx.model import Report


@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions(OptionGroup):
    """Which environment is looked at, and how."""

    python: Annotated[
        str,
        typer.Option(
            "--python",
            metavar="INTERPRETER",
            help="The interpreter, or its environment's folder; by default the active environment's, else python3.",
            show_default=False,
        ),
    ] = ""
    container: Annotated[
        str,
        typer.Option(
            "--container",
            metavar="ROOTFS",
            help="An unpacked root file system; it is read, nothing in it is run.",
            show_default=False,
        ),
    ] = ""
    recorded: Annotated[
        str,
        typer.Option("--from", metavar="FILE", help="Judge what an earlier check saved.", show_default=False),
    ] = ""
    expect_gpu: Annotated[bool, typer.Option("--expect-gpu", help="A machine without a GPU is an error.")] = False
    import_timeout: Annotated[
        float, typer.Option("--import-timeout", metavar="SECONDS", min=0.1, help="How long one import may take.")
    ] = 20.0
    imports: Annotated[
        bool,
        typer.Option("--imports/--no-imports", help="Whether packages are imported, each in a process of its own."),
    ] = True

    def __post_init__(self) -> None:
        """Refuse what would have no effect together."""
        if self.recorded and (self.python or self.container):
            refuse_pair("--from", "--python or --container", "a recorded check says what it is of")

    def build_question(self) -> CheckQuestion:
        from trtdx.check.collect import CheckQuestion

        return CheckQuestion(
            python=self.python,
            container=self.container,
            import_timeout_s=self.import_timeout,
            tries_imports=self.imports,
            expects_gpu=self.expect_gpu,
        )


@dataclass(frozen=True, kw_only=True)
class MendOptions(OptionGroup):
    """What is done with the answer."""

    resolve: Annotated[
        bool, typer.Option("--resolve/--no-resolve", help="Whether a resolver proves the plan against your index.")
    ] = True
    write_lock: Annotated[
        str, typer.Option("--write-lock", metavar="FILE", help="Write the pinned set, once proven.", show_default=False)
    ] = ""
    write_container: Annotated[
        str,
        typer.Option(
            "--write-container", metavar="FILE", help="Write a Dockerfile on the release's image.", show_default=False
        ),
    ] = ""
    fix: Annotated[
        bool, typer.Option("--fix", help="Apply the plan in a new virtual environment and check that one.")
    ] = False
    into: Annotated[
        str,
        typer.Option("--into", metavar="DIR", help="With --fix: where the new environment goes.", show_default=False),
    ] = ""
    in_place: Annotated[bool, typer.Option("--in-place", help="With --fix: change the environment itself.")] = False
    since: Annotated[bool, typer.Option("--since", help="Also show what has changed since the last good check.")] = (
        False
    )

    def __post_init__(self) -> None:
        """Refuse what would have no effect together."""
        if (self.into or self.in_place) and not self.fix:
            raise typer.BadParameter("--into and --in-place go with --fix")
        if self.into and self.in_place:
            refuse_pair("--into", "--in-place", "the environment is either mended or made anew")

    def build_wishes(self) -> MendingWishes:
        from trtdx.check.run import MendingWishes

        return MendingWishes(
            resolves=self.resolve,
            lock=self.write_lock,
            container=self.write_container,
            fixes=self.fix,
            into=self.into,
            in_place=self.in_place,
            since=self.since,
        )


def check_machine(
    environment: EnvironmentOptions,
    mend: MendOptions,
    findings: FindingOptions,
    output: ReportOptions,
    save: Annotated[
        str,
        typer.Option(
            "--save",
            metavar="[FILE]",
            help="Keep the report in the store of cases, or the facts as JSON in a file for --from elsewhere.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Say what is wrong with this machine and this Python environment, and what mends it."""
    import msgspec

    from trtdx.check.collect import read_record
    from trtdx.check.mend.lock import render_dockerfile
    from trtdx.check.run import check_environment, judge_record
    from trtdx.check.view import EnvironmentView
    from trtdx.cli.saving import TO_STORE

    host = RealHost()
    book = findings.load_rules(host)
    if environment.recorded:
        if mend.fix or mend.write_lock or mend.since or save not in ("", TO_STORE):
            refuse_pair(
                "--from", "--fix, --write-lock, --since or --save FILE", "a recorded environment may not be at hand"
            )
        record = read_record(host, environment.recorded)
        if environment.expect_gpu:
            record = msgspec.structs.replace(record, expects_gpu=True)
        if mend.write_container:
            host.write(mend.write_container, render_dockerfile(EnvironmentView(record)).encode())
        _finish_check(host, judge_record(record, book), record, save, findings, output)
    report, record = check_environment(host, environment.build_question(), book, mend.build_wishes())
    _finish_check(host, report, record, save, findings, output)


def _finish_check(
    host: RealHost,
    report: Report,
    record: EnvironmentRecord,
    save: str,
    findings: FindingOptions,
    output: ReportOptions,
) -> NoReturn:
    """Keep what was asked for, print the report and end."""
    import msgspec

    from trtdx.cli.saving import TO_STORE, store_report

    facts = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    if save == TO_STORE:
        store_report(host, "check", report, [("environment.json", facts)])
    elif save:
        host.write(save, facts)
    emit_report(report, output, findings)
