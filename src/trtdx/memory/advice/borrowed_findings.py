"""Rewrites the commands in findings of `trtdx inspect` as the user's own commands with the change in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from trtdx.inspect.readers.server.commands import command_lines
from trtdx.memory.advice.commands import write_commands
from trtdx.memory.advice.memory_change import replace_part
from trtdx.memory.advice.recipe import SERVE_PROGRAM
from trtdx.memory.question.scripts import KNOWN_PROGRAMS, facts_from_command
from trtdx.memory.question.setup_facts import FIELD_OF_FACT

if TYPE_CHECKING:
    from trtdx.memory.advice.commands import MemoryQuestion
    from trtdx.memory.nouns import Setup
    from trtdx.model import Finding, Fix

# What a page's command may change.
PAGE_FACTS = ("tp_size", "pp_size", "moe_ep_size", "max_batch_size", "max_num_tokens", "max_seq_len")


def rewrite_finding_commands(question: MemoryQuestion, finding: Finding) -> Finding:
    """Return a finding whose fixes are the user's own commands with the change, read back; others go without one.

    A page knows neither the flags in force nor how the release spells them.
    """
    fixes = tuple(_rewrite_fix_command(question, fix) for fix in finding.fixes)
    return replace(finding, fixes=fixes)


def _rewrite_fix_command(question: MemoryQuestion, fix: Fix) -> Fix:
    lines, _ = command_lines(fix.command or "", KNOWN_PROGRAMS)
    if not lines:
        return fix
    after = question.resolved.setup
    for line in lines:
        after = _apply_facts(after, {name: fact.value for name, fact in facts_from_command(line).items()})
    is_served = all(line.program == SERVE_PROGRAM for line in lines)
    rewritten = write_commands(question, after) if is_served and after != question.resolved.setup else None
    does = rewritten is not None and rewritten.ledger.fits is not False
    text = "\n".join(line.text for line in rewritten.commands) if rewritten and does else None
    return replace(fix, command=text)


def _apply_facts(setup: Setup, facts: dict[str, object]) -> Setup:
    for name in PAGE_FACTS:
        value, (part, _, field) = facts.get(name), FIELD_OF_FACT[name].partition(".")
        if isinstance(value, int) and getattr(getattr(setup, part), field) != value:
            setup = replace_part(part, **{field: value})(setup)
    return setup
