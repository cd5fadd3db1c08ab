"""What `--save` does: keep logs, redacted, and the report, as a case of the store or as one of its own."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from trtdx.case import CASE_SUFFIX, CaseWriter, is_case
from trtdx.errors import CaseError, TrtdxError
from trtdx.host import RealHost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trtdx.diagnose.logs.sources import LogSource
    from trtdx.host import Host
    from trtdx.model import Report

TO_STORE = "@store"
MAX_ATTACHED = 16 << 20
SaveFlag = Annotated[bool, typer.Option("--save", help="Keep the report in the store of cases (trtdx cases).")]


class SavingCommand(TyperCommand):
    """A command whose `--save` may stand alone; what follows is its value only if it can be one."""

    takes_existing = True  # whether a file that is there is written anew

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        for place in [place for place, word in enumerate(args[:end]) if word == "--save"]:
            value = args[place + 1] if place + 1 < end else ""
            if not value or value.startswith("-") or (not self.takes_existing and _is_input(value)):
                args = [*args[:place], f"--save={TO_STORE}", *args[place + 1 :]]
        return super().parse_args(ctx, args)


class LogSavingCommand(SavingCommand):
    """The same for a command that takes files: `--save server.log` keeps the run on that log in the store."""

    takes_existing = False


def _is_input(word: str) -> bool:
    """Whether a word names something to read, and not the case to be written."""
    host = RealHost()
    kind = host.kind(word)
    if word.endswith(CASE_SUFFIX) or kind == "absent":
        return False
    return kind != "directory" or (bool(host.files(word)) and not is_case(host, word))


class CaseKeeper:
    """Keeps what passes by, where a case was asked for."""

    def __init__(self, case: CaseWriter | None) -> None:
        self._case = case
        if case:
            case.record("command", {"argv": sys.argv})

    def keep_blocks(self, source: LogSource) -> Iterator[bytes]:
        """Yield the source's blocks; what is kept is cleaned first, so that nothing hides a secret from redaction."""
        from trtdx.diagnose.logs.lines import clean_blocks

        return self._case.copy_log(source.name, clean_blocks(source.blocks())) if self._case else source.blocks()

    def add_report(self, report: Report) -> None:
        if self._case:
            self._case.add_report(report)


@contextlib.contextmanager
def open_case(host: Host, path: str, redact: Callable[[str], str]) -> Iterator[CaseKeeper]:
    """Give what keeps logs and report: in the store, in a folder as they come, or packed into one file at the end.

    What cannot be kept is said on standard error; the answer and its exit status stay what they are.
    """
    if not path:
        yield CaseKeeper(None)
    elif path != TO_STORE and not path.endswith(CASE_SUFFIX):
        case = CaseWriter(host, path, redact)
        yield CaseKeeper(case)
        _say_incomplete(path, case.problem)
    else:
        if path != TO_STORE and host.kind(path) != "absent":
            raise CaseError(f"{path} already exists", fix="name a new file")
        with tempfile.TemporaryDirectory(prefix="trtdx-") as folder:
            case = CaseWriter(host, str(Path(folder) / "case"), redact)
            yield CaseKeeper(case)
            if path != TO_STORE:
                _say_incomplete(path, case.problem or _pack_problem(case, path))
            elif case.problem:
                say_not_kept(case.problem)
            else:
                store_folder(host, "diagnose", str(Path(folder) / "case"))


def store_folder(host: Host, tool: str, folder: str) -> None:
    """Keep a case folder in the store and say under which id; what goes wrong is said and stops nothing."""
    from trtdx.cases.keep import keep_folder
    from trtdx.cases.store import opened_store

    try:
        with opened_store(host, writes=True) as store:
            say_kept(keep_folder(host, store, tool, folder))
    except TrtdxError as err:
        say_not_kept(err.message, err.fix)


def store_report(host: Host, tool: str, report: Report, attachments: Iterable[tuple[str, bytes]] = ()) -> None:
    """Keep a report in the store and say under which id; what goes wrong is said and stops nothing."""
    from trtdx.cases.keep import keep_report
    from trtdx.cases.store import opened_store

    try:
        with opened_store(host, writes=True) as store:
            say_kept(keep_report(host, store, tool, report, argv=sys.argv, attachments=attachments))
    except TrtdxError as err:
        say_not_kept(err.message, err.fix)


def read_attachments(host: Host, paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the logs behind paths by name, each as far as a case keeps it."""
    from trtdx.diagnose.logs.lines import clean_blocks
    from trtdx.diagnose.logs.sources import open_sources

    for source in open_sources(host, [path for path in paths if path != "-"])[0] if paths else ():
        kept = bytearray()
        for block in clean_blocks(source.blocks()):
            kept += block
            if len(kept) >= MAX_ATTACHED:
                break
        yield source.name, bytes(kept[:MAX_ATTACHED])


def say_kept(case_id: str) -> None:
    _say(f"trtdx: kept as case {case_id} (trtdx cases show {case_id})")


def say_not_kept(problem: str, fix: str = "") -> None:
    _say(f"trtdx: warning: this run was not kept: {problem}" + (f"\n  = fix: {fix}" if fix else ""))


def _pack_problem(case: CaseWriter, path: str) -> str:
    try:
        case.pack(path)
    except TrtdxError as err:
        return err.message
    return ""


def _say_incomplete(path: str, problem: str) -> None:
    if problem:
        _say(f"warning: the case {path} is not whole: {problem}")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
