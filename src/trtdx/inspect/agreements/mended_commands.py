"""Commands of fixes as the user's own with the change in them, so that pasting one loses no flag."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from trtdx.inspect.facts.options import table
from trtdx.inspect.readers.server.commands import command_lines

if TYPE_CHECKING:
    from trtdx.inspect.facts.artifact import Artifact, Deployment
    from trtdx.inspect.readers.server.commands import CommandLine
    from trtdx.model import Finding, Fix

CHANGED = "   # with that change"


def with_own_commands(finding: Finding, deployment: Deployment) -> Finding:
    """Return a finding whose fixes keep all that the user's command says, and whose check runs the first of them."""
    fixes = tuple(_mended(fix, finding, deployment) for fix in finding.fixes)
    finding = msgspec.structs.replace(finding, fixes=fixes)
    for server in deployment.of("command"):
        old = f" --command {shlex.quote(server.spelled)}{CHANGED}"
        mended = next((fix.command for fix in fixes if fix.command and _is_same(fix.command, server)), None)
        if server.spelled and mended and old in finding.verify:
            verify = finding.verify.replace(old, f" --command {shlex.quote(mended)}")
            return msgspec.structs.replace(finding, verify=verify)
    return finding


def _mended(fix: Fix, finding: Finding, deployment: Deployment) -> Fix:
    server = _meant(fix, finding, deployment)
    if server is None:
        return fix
    [change], user_line = command_lines(fix.command or "")[0], command_lines(server.spelled)[0][0]
    if {flag.name for flag in user_line.given} <= {flag.name for flag in change.given}:
        return fix  # nothing is lost
    in_file = [flag.name for flag in change.given if f"option.{_option(change, flag.name)}" in server.facts]
    if in_file:  # a flag beside the file's own word for it would be one of two values
        text = f"{fix.text} (in the file of options, which states {', '.join(map(_bare, in_file))})"
        return msgspec.structs.replace(fix, text=text, command=None)
    return msgspec.structs.replace(fix, command=_merged(user_line, change))


def _meant(fix: Fix, finding: Finding, deployment: Deployment) -> Artifact | None:
    """Return the command that a fix writes anew; of several the one that is among the evidence."""
    alike = [server for server in deployment.of("command") if fix.command and _is_same(fix.command, server)]
    in_evidence = [server for server in alike if _is_evidence(server, finding)]
    return next(iter([*in_evidence, *alike]), None)


def _is_evidence(server: Artifact, finding: Finding) -> bool:
    place = server.facts["runtime.command"].where if "runtime.command" in server.facts else server.path
    return any(evidence.where.startswith(f"{place}:") for evidence in finding.evidence)


def _is_same(command: str, server: Artifact) -> bool:
    """Return whether a command is one line that starts the same program on the same arguments."""
    lines, _ = command_lines(command)
    return (
        len(lines) == 1
        and bool(server.spelled)
        and _starts(lines) == _starts(command_lines(server.spelled)[0])
    )


def _starts(lines: list[CommandLine]) -> tuple[str, ...]:
    return (lines[0].program, *(word.text for word in lines[0].arguments)) if lines else ()


def _merged(own: CommandLine, change: CommandLine) -> str:
    from trtdx.inspect.readers.server.command_text import CommandText

    text = CommandText.of(own)
    for flag in change.given:
        option = _option(change, flag.name)
        same = {
            name
            for name in (user_flag.name for user_flag in own.given)
            if option and _option(own, name) == option
        }
        text.put(flag.name, flag.value, same.__contains__)
    return str(text)


def _option(line: CommandLine, flag: str) -> str:
    """Return the option of the LLM API that a flag sets."""
    flag_entry = table().flag.get(line.program, {}).get(flag)
    return flag_entry.option if flag_entry is not None else ""


def _bare(flag: str) -> str:
    return flag.lstrip("-")


def started_once(spelled: str, ranks: int) -> tuple[str, str]:
    """Return a command without its launcher, and with trtllm-llmapi-launch between the two."""
    lines, _ = command_lines(spelled)
    if not lines:
        return (
            f"trtllm-serve MODEL --tp_size {ranks}",
            f"mpirun -n {ranks} trtllm-llmapi-launch trtllm-serve MODEL",
        )
    line = lines[0]
    words = [line.called, *(word.text for word in line.after)]
    if not line.first("tensor_parallel_size"):
        words += ["--tp_size", str(ranks)]
    return shlex.join(words), shlex.join(
        [*(word.text for word in line.before), "trtllm-llmapi-launch", *words]
    )
