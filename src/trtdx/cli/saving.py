"""What `--save` does: keep the logs as they are read, redacted, and the report, as a case."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.case import CASE_SUFFIX, CaseWriter
from trtdx.diagnose.lines import clean_blocks
from trtdx.errors import CaseError, TrtdxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.diagnose.sources import LogSource
    from trtdx.host import Host
    from trtdx.model import Report


class CaseKeeper:
    """Keeps what passes by, where a case was asked for."""

    def __init__(self, case: CaseWriter | None) -> None:
        self._case = case
        if case:
            case.record("command", {"argv": sys.argv})

    def keep_blocks(self, source: LogSource) -> Iterator[bytes]:
        """Yield the source's blocks; what is kept is cleaned first, so that nothing hides a secret from redaction."""
        return self._case.copy_log(source.name, clean_blocks(source.blocks())) if self._case else source.blocks()

    def add_report(self, report: Report) -> None:
        if self._case:
            self._case.add_report(report)


@contextlib.contextmanager
def open_case(host: Host, path: str, redact: Callable[[str], str]) -> Iterator[CaseKeeper]:
    """Give what keeps logs and report: in a folder as they come, or packed into one file at the end.

    What cannot be kept is said on standard error; the answer and its exit status stay what they are.
    """
    if not path:
        yield CaseKeeper(None)
    elif not path.endswith(CASE_SUFFIX):
        case = CaseWriter(host, path, redact)
        yield CaseKeeper(case)
        _say_incomplete(path, case.problem)
    else:
        if host.kind(path) != "absent":
            raise CaseError(f"{path} already exists", fix="name a new file")
        with tempfile.TemporaryDirectory(prefix="trtdx-") as folder:
            case = CaseWriter(host, str(Path(folder) / "case"), redact)
            yield CaseKeeper(case)
            _say_incomplete(path, case.problem or _pack_problem(case, path))


def _pack_problem(case: CaseWriter, path: str) -> str:
    try:
        case.pack(path)
    except TrtdxError as err:
        return err.message
    return ""


def _say_incomplete(path: str, problem: str) -> None:
    if problem:
        print(f"warning: the case {path} is not whole: {problem}", file=sys.stderr)  # noqa: T201
