"""The command line: the one place that prints answers, errors and exit codes."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Annotated

import typer

from trtdx.cli import (
    capture,
    cases,
    check,
    compare,
    diagnose,
    explain,
    inspect,
    mcp,
    memory,
    ranks,
    rules,
    run,
    trace,
    view,
)
from trtdx.cli.build import commands as build
from trtdx.cli.groups import expand_groups
from trtdx.cli.saving import LogSavingCommand, SavingCommand
from trtdx.errors import InputError, TrtdxError
from trtdx.host import open_closed_streams
from trtdx.optional import explain_missing_extras
from trtdx.version import __version__

app = typer.Typer(
    name="trtdx",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Finds out why a TensorRT-LLM deployment does not install, build, run, fit, scale or answer correctly, and says what to do.",
    epilog="Example: trtdx diagnose server.log",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("check", cls=SavingCommand, epilog="Example: trtdx check --python .venv/bin/python")(
    expand_groups(check.check_machine)
)
app.command("diagnose", cls=LogSavingCommand, epilog="Example: mpirun -n 4 ... 2>&1 | trtdx diagnose -")(
    expand_groups(diagnose.diagnose_logs)
)
app.command("inspect", epilog="Example: trtdx inspect ./engine ./model --runtime 1.2.1 --gpu L40S")(
    expand_groups(inspect.inspect_artifacts)
)
app.add_typer(build.app, name="build")
app.add_typer(memory.app, name="memory")
app.add_typer(ranks.app, name="ranks")
app.add_typer(capture.app, name="capture")
app.add_typer(compare.app, name="compare")
app.add_typer(run.app, name="run")
app.command("view", epilog="Example: trtdx view ./cases")(view.view_cases)
app.command("report", epilog="Example: trtdx report ./case -o case.html")(view.write_report)
app.add_typer(cases.app, name="cases")
app.command("mcp", epilog="Example: trtdx mcp --root ~/deployments")(mcp.serve_assistant)
app.add_typer(trace.app, name="trace")
app.command("explain", epilog="Example: trtdx explain DX012")(explain.explain_rule)
app.add_typer(rules.app, name="rules")


_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)


def _print_version(is_given: bool) -> None:
    if is_given:
        print(f"trtdx {__version__}")
        raise typer.Exit


@app.callback()
def show_root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """See the subcommands."""


def main() -> None:
    """Run the command line; an error the user can act on is printed without a traceback and ends with 2."""
    open_closed_streams()
    try:
        with explain_missing_extras(f"run trtdx {' '.join(sys.argv[1:2])}"):
            status = app(prog_name="trtdx", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except TrtdxError as err:
        _print_error(err)
        sys.exit(2)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (KeyboardInterrupt, typer.Abort):  # click makes the one of the other
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as err:
        sys.exit(_explain_failure(err))


def _explain_failure(err: Exception) -> int:
    """Print what went wrong, and return the exit status: 2, because 1 says that something is wrong with the model."""
    if hasattr(err, "format_message") and hasattr(err, "show"):  # a wrong option, from whichever click typer has
        from trtdx.redact import redact_secrets

        err.message = redact_secrets(str(getattr(err, "message", "")))  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            err.show()
    elif isinstance(err, OSError) and err.errno in _DISK_ERRORS:
        _print_error(InputError(f"cannot write: {err.strerror}", fix="free some space, or send the output elsewhere"))
    else:
        with contextlib.suppress(OSError):
            _print_bug()
    return 2


def _print_error(err: TrtdxError) -> None:
    """Print what the user can act on; what it quotes of arguments and files is cleaned, as everything that leaves."""
    from trtdx.redact import redact_secrets
    from trtdx.render.text import printable_text

    with contextlib.suppress(OSError):  # a full disk takes the words, never the status
        print(f"error: {printable_text(redact_secrets(err.message), lines=True)}", file=sys.stderr)
        if err.fix:
            print(f"  = fix: {printable_text(redact_secrets(err.fix), lines=True)}", file=sys.stderr)


def _print_bug() -> None:
    """Print the traceback of a mistake of ours, without the secrets that messages in it may quote."""
    import traceback

    from trtdx.redact import redact_secrets

    print(redact_secrets(traceback.format_exc()), file=sys.stderr)
    print(f"error: this is a bug in trtdx {__version__}, not in what it looked at", file=sys.stderr)
    print(
        "  = fix: report it with the lines above and the command; what trtdx printed before holds",
        file=sys.stderr,
    )
