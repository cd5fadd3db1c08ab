"""Commands of fixes as the user's own with the change in them, so that pasting one loses no flag."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from trtdx.inspect.facts.option_table import option_table
from trtdx.inspect.readers.server.commands import command_lines

if TYPE_CHECKING:
    from trtdx.inspect.facts.artifact import Artifact, Deployment
    from trtdx.inspect.readers.server.commands import CommandLine
    from trtdx.model import Finding, Fix

WITH_CHANGE = "   # with that change"


def with_user_commands(finding: Finding, deployment: Deployment) -> Finding:
    """Return a finding whose fixes keep all that the user's command says, and whose check runs the first of them."""
    fixes = tuple(_mend_fix(fix, finding, deployment) for fix in finding.fixes)
    finding = msgspec.structs.replace(finding, fixes=fixes)
    for server in deployment.of_kinds("command"):
        old = f" --command {shlex.quote(server.command_text)}{WITH_CHANGE}"
        mended = next((fix.command for fix in fixes if fix.command and _is_same_program(fix.command, server)), None)
        if server.command_text and mended and old in finding.verify:
            verify = finding.verify.replace(old, f" --command {shlex.quote(mended)}")
            return msgspec.structs.replace(finding, verify=verify)
    return finding


def _mend_fix(fix: Fix, finding: Finding, deployment: Deployment) -> Fix:
    server = _fixed_command(fix, finding, deployment)
    if server is None:
        return fix
    [change], user_line = command_lines(fix.command or "")[0], command_lines(server.command_text)[0][0]
    if {flag.name for flag in user_line.flags} <= {flag.name for flag in change.flags}:
        return fix  # nothing is lost
    in_file = [flag.name for flag in change.flags if f"option.{_option_of_flag(change, flag.name)}" in server.facts]
    if in_file:  # a flag beside the file's own word for it would be one of two values
        text = f"{fix.text} (in the file of options, which states {', '.join(map(_without_dashes, in_file))})"
        return msgspec.structs.replace(fix, text=text, command=None)
    return msgspec.structs.replace(fix, command=_merge_commands(user_line, change))


def _fixed_command(fix: Fix, finding: Finding, deployment: Deployment) -> Artifact | None:
    """Return the command that a fix writes anew; of several the one that is among the evidence."""
    alike = [
        server for server in deployment.of_kinds("command") if fix.command and _is_same_program(fix.command, server)
    ]
    in_evidence = [server for server in alike if _is_evidence(server, finding)]
    return next(iter([*in_evidence, *alike]), None)


def _is_evidence(server: Artifact, finding: Finding) -> bool:
    place = server.facts["runtime.command"].where if "runtime.command" in server.facts else server.path
    return any(evidence.where.startswith(f"{place}:") for evidence in finding.evidence)


def _is_same_program(command: str, server: Artifact) -> bool:
    """Return whether a command is one line that starts the same program on the same arguments."""
    lines, _ = command_lines(command)
    return (
        len(lines) == 1
        and bool(server.command_text)
        and _program_and_arguments(lines) == _program_and_arguments(command_lines(server.command_text)[0])
    )


def _program_and_arguments(lines: list[CommandLine]) -> tuple[str, ...]:
    return (lines[0].program, *(word.text for word in lines[0].arguments)) if lines else ()


def _merge_commands(user_line: CommandLine, change: CommandLine) -> str:
    from trtdx.inspect.readers.server.command_text import CommandEditor

    text = CommandEditor.from_line(user_line)
    for flag in change.flags:
        option = _option_of_flag(change, flag.name)
        same = {
            name
            for name in (user_flag.name for user_flag in user_line.flags)
            if option and _option_of_flag(user_line, name) == option
        }
        text.set_flag(flag.name, flag.value, same.__contains__)
    return str(text)


def _option_of_flag(line: CommandLine, flag: str) -> str:
    """Return the option of the LLM API that a flag sets."""
    flag_entry = option_table().flag.get(line.program, {}).get(flag)
    return flag_entry.option if flag_entry is not None else ""


def _without_dashes(flag: str) -> str:
    return flag.lstrip("-")


def single_start_commands(spelled: str, ranks: int) -> tuple[str, str]:
    """Return a command without its launcher, and with trtllm-llmapi-launch between the two."""
    lines, _ = command_lines(spelled)
    if not lines:
        return (
            f"trtllm-serve MODEL --tp_size {ranks}",
            f"mpirun -n {ranks} trtllm-llmapi-launch trtllm-serve MODEL",
        )
    line = lines[0]
    words = [line.program_word, *(word.text for word in line.after)]
    if not line.flag_for_option("tensor_parallel_size"):
        words += ["--tp_size", str(ranks)]
    return shlex.join(words), shlex.join([*(word.text for word in line.before), "trtllm-llmapi-launch", *words])
