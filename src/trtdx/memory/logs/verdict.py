"""The verdict on a failed run: one cause, its evidence and its fixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.diagnose.memory_lines import OUT_OF_MEMORY_CODES
from trtdx.memory.logs.failed_allocation import FailedAllocation
from trtdx.model import Evidence, Fix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.memory.logs.statements import LogStatement

__all__ = ["OUT_OF_MEMORY_CODES", "MemoryVerdict", "evidence_from_statements"]


class MemoryVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One conclusion."""

    code: str
    message: str  # in the style of a finding: lower case, no full stop
    numbers: str = ""  # the numbers alone, to put behind another page's words
    why: str = ""
    evidence: tuple[Evidence, ...] = ()
    fixes: tuple[Fix, ...] = ()
    next_step: Fix | None = None  # what to collect where the log does not tell enough
    confidence: float = 0.9
    related_codes: frozenset[str] = frozenset()  # other pages whose finding this explains
    is_false_oom: bool = False  # the memory would have sufficed
    failure: FailedAllocation | None = None
    replaced_codes: frozenset[str] = frozenset()  # pages whose message this one is more exact than
    is_plain: bool = False  # no more than the log's own words say: a page they lead to knows better


def evidence_from_statements(statements: Iterable[LogStatement]) -> tuple[Evidence, ...]:
    """Return the lines as evidence, each once, in the order given."""
    return tuple(dict.fromkeys(Evidence(statement.where, statement.text.strip()[:600]) for statement in statements))
