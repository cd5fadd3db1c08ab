"""Fixes for the release that runs: one page has the commands of 0.12 and of 1.2, a reader needs those of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.model import Finding, Fix


def fixes_for_release(fixes: Iterable[Fix], first: str = "", last: str = "") -> tuple[Fix, ...]:
    """Return the fixes that may hold for a release between two, all where that is not known or none would be left.

    A fix that holds for every release between them needs no words about releases any more.
    """
    from trtdx.knowledge.holds_for import holds_throughout, may_hold  # most findings have no fix that needs it

    fixes = tuple(fixes)
    chosen = [fix for fix in fixes if may_hold(fix.holds_for, first, last or first)] or fixes
    return tuple(
        msgspec.structs.replace(fix, holds_for="") if holds_throughout(fix.holds_for, first, last or first) else fix
        for fix in chosen
    )


def choose_fixes(finding: Finding, first: str = "", last: str = "") -> Finding:
    """Return a finding with the fixes for the release that runs."""
    if not any(fix.holds_for for fix in finding.fixes):
        return finding
    return msgspec.structs.replace(finding, fixes=fixes_for_release(finding.fixes, first, last))
