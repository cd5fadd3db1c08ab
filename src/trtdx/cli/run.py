"""`trtdx run`: the arguments, and nothing of the work."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtdx.cli.groups import make_command_group
from trtdx.cli.output import Color, write_output
from trtdx.cli.saving import store_folder
from trtdx.host import RealHost

if TYPE_CHECKING:
    from trtdx.model import Report
    from trtdx.run.nouns import RunRequest

app = make_command_group("Run a command under supervision, or look at what such a run has left.")


def run_supervised(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="The command, as you would type it.")],
    case: Annotated[
        str, typer.Option("--case", metavar="DIR", help="The new folder for the case.", show_default=False)
    ] = "",
    report: Annotated[
        str,
        typer.Option("--report", metavar="FILE.json", help="Write the report here as JSON.", show_default=False),
    ] = "",
    quiet_for: Annotated[
        float, typer.Option("--quiet-for", metavar="SECONDS", help="How long without progress counts as a hang.")
    ] = 300.0,
    on_hang: Annotated[str, typer.Option("--on-hang", metavar="report|kill", help="What happens then.")] = "report",
    sync: Annotated[
        bool, typer.Option("--sync", help="Launch kernels synchronously, so that errors stay put.")
    ] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Most talkative logs, into files per rank.")] = False,
    tap: Annotated[
        str,
        typer.Option("--tap", metavar="SELECTOR", help="Capture these tensors in every process.", show_default=False),
    ] = "",
    watch: Annotated[
        str, typer.Option("--watch", metavar="nan", help="Say which module first gives NaN.", show_default=False)
    ] = "",
    shapes: Annotated[bool, typer.Option("--shapes", help="List the shapes that each module gets and gives.")] = False,
    on_failure: Annotated[
        str,
        typer.Option(
            "--on-failure", metavar="rerun", help="Run again with --sync --trace and compare.", show_default=False
        ),
    ] = "",
    save: Annotated[
        bool, typer.Option("--save/--no-save", help="Whether the run is kept in the store of cases (trtdx cases).")
    ] = True,
    color: Annotated[Color, typer.Option("--color", help="When to colour.")] = Color.AUTO,
) -> None:
    """Run a command as it is, watch every process of it, and say which rank failed first and why."""
    from trtdx.run.nouns import RunRequest

    for option, value, allowed in (
        ("--on-hang", on_hang, ("report", "kill")),
        ("--watch", watch, ("", "nan")),
        ("--on-failure", on_failure, ("", "rerun")),
    ):
        if value not in allowed:
            raise typer.BadParameter(f"{option} {value}: it takes {' or '.join(word for word in allowed if word)}")
    if quiet_for <= 0:
        raise typer.BadParameter("--quiet-for takes a number of seconds above 0")
    request = RunRequest(
        command=tuple(command),
        case=case or new_case(),
        report_file=report,
        quiet_for_s=quiet_for,
        on_hang="kill" if on_hang == "kill" else "report",
        sync=sync,
        trace=trace,
        tap=tap,
        watch_nan=watch == "nan",
        shapes=shapes,
    )
    raise typer.Exit(_supervise(request, color, rerun=on_failure == "rerun", save=save))


app.command(
    "run",
    epilog="Example: trtdx run --quiet-for 120 -- mpirun -n 4 python3 serve.py",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)(run_supervised)


@app.command("stacks", epilog="Example: trtdx run stacks 4711")
def show_stacks(
    target: Annotated[str, typer.Argument(metavar="CASE|PID", help="The case of a run, or a process id.")],
) -> None:
    """Show where every process is just now, those at the same place together."""
    from trtdx.run.ask_stacks import stacks_of_case, stacks_of_process

    lines = stacks_of_process(RealHost(), int(target)) if target.isdigit() else stacks_of_case(target)
    for line in lines:
        write_output(line + "\n")


@app.command("logs", epilog="Example: trtdx run logs CASE --merge")
def show_logs(
    case: Annotated[str, typer.Argument(metavar="CASE", help="The case of a run.")],
    merge: Annotated[bool, typer.Option("--merge", help="All ranks in the order of time.")] = False,
) -> None:
    """Show what every rank has printed, each apart or all merged."""
    from trtdx.run.logs import read_logs

    for line in read_logs(case, merge=merge):
        write_output(line + "\n")


def new_case() -> str:
    """Return a folder for the case that is not there yet, below the user's state."""
    from trtdx.run.case_files import state_folder

    return str(state_folder(RealHost()) / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")


def _supervise(request: RunRequest, color: Color, *, rerun: bool, save: bool) -> int:
    from trtdx.knowledge.load import load_book
    from trtdx.run.rerun import run_again
    from trtdx.run.run import run_command

    host = RealHost()
    result = run_command(
        host, request, lambda: load_book(host), lambda report: show_report(report, request.case, color)
    )
    report = result.report
    if rerun and result.status and result.record.launcher_pid:
        report = run_again(host, request, result, lambda: load_book(host), Path(request.case, "live"))
    show_report(report, request.case, color)
    if save:
        store_folder(host, "run", request.case)
    return result.status


def show_report(report: Report, case: str, color: Color) -> None:
    """Print the report to standard error: standard output is the command's."""
    from trtdx.redact import redact_report
    from trtdx.render import render_text

    if sys.stderr is None:  # it was closed from the start
        return
    report = redact_report(report)
    text = f"trtdx: {report.summary.text}\n"
    if report.findings or report.sections:
        is_coloured = color is Color.ALWAYS or (
            color is Color.AUTO and sys.stderr.isatty() and "NO_COLOR" not in os.environ
        )
        text = "\n" + render_text(report, color=is_coloured)
    try:
        sys.stderr.write(f"{text}trtdx: the case is {case}\n")
        sys.stderr.flush()
    except OSError:
        pass  # nobody listens any more, and the command's status still counts
