"""Rewrites the commands in findings of `trtdx inspect` as the user's own commands with the change in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from trtdx.inspect.readers.server.commands import command_lines
from trtdx.memory.advice.change import with_part
from trtdx.memory.advice.commands import advised
from trtdx.memory.advice.recipe import SERVER
from trtdx.memory.question.scripts import KNOWN, own_facts
from trtdx.memory.question.setup_facts import FIELD_OF_FACT

if TYPE_CHECKING:
    from trtdx.memory.advice.commands import Question
    from trtdx.memory.nouns import Setup
    from trtdx.model import Finding, Fix

# What a page's command may change.
PAGE_FACTS = ("tp_size", "pp_size", "moe_ep_size", "max_batch_size", "max_num_tokens", "max_seq_len")


def with_own_commands(question: Question, finding: Finding) -> Finding:
    """Return a finding whose fixes are the user's own commands with the change, read back; others go without one.

    A page knows neither the flags in force nor how the release spells them.
    """
    fixes = tuple(_own(question, fix) for fix in finding.fixes)
    return replace(finding, fixes=fixes)


def _own(question: Question, fix: Fix) -> Fix:
    lines, _ = command_lines(fix.command or "", KNOWN)
    if not lines:
        return fix
    after = question.answer.setup
    for line in lines:
        after = _changed(after, {name: fact.value for name, fact in own_facts(line).items()})
    is_served = all(line.program == SERVER for line in lines)
    rewritten = advised(question, after) if is_served and after != question.answer.setup else None
    does = rewritten is not None and rewritten.ledger.fits is not False
    text = "\n".join(line.text for line in rewritten.commands) if rewritten and does else None
    return replace(fix, command=text)


def _changed(setup: Setup, facts: dict[str, object]) -> Setup:
    for name in PAGE_FACTS:
        value, (part, _, field) = facts.get(name), FIELD_OF_FACT[name].partition(".")
        if isinstance(value, int) and getattr(getattr(setup, part), field) != value:
            setup = with_part(part, **{field: value})(setup)
    return setup
