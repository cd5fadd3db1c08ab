"""The report on a command that the system refused to start."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.knowledge.violation import Violation, finding_from
from trtdx.model import Evidence, Report, Summary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtdx.rule import RuleBook
    from trtdx.run.job.supervise import CommandStartError


def report_of_start(
    command: Sequence[str], err: CommandStartError, environment: Mapping[str, str], book: RuleBook
) -> Report:
    """Return why a command could not be started: it is not there, may not be run, or its interpreter is missing."""
    program = command[0]
    evidence = (Evidence(program, err.reason), *_program_evidence(program, environment.get("PATH", "")))
    values = {"program": program, "reason": _reason(evidence, err.reason)}
    finding = finding_from(book.get("DX1266"), Violation(evidence, values))
    return Report(Summary(text=f"{program} could not be started: {err.reason} (status {err.status})"), (finding,))


def _reason(evidence: Sequence[Evidence], reason: str) -> str:
    interpreter = next((item.text for item in evidence if item.text.startswith("#!")), "")
    return f"{reason} (it is a script, and asks for {interpreter})" if interpreter else reason


def _program_evidence(program: str, path: str) -> list[Evidence]:
    """Return what can be seen of the program: where it was looked for, its rights, and who is to interpret it."""
    place = shutil.which(program, mode=os.F_OK, path=path)
    if place is None:
        return [] if "/" in program else [Evidence("PATH", path or "not set")]
    evidence = []
    with contextlib.suppress(OSError):
        evidence.append(Evidence(place, stat.filemode(Path(place).stat().st_mode)))
        with Path(place).open("rb") as file:
            first = file.readline(200)
        if first.startswith(b"#!"):
            evidence.append(Evidence(f"{place}:1", first.decode("utf-8", "replace").rstrip("\n")))
    return evidence
