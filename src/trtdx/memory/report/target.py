"""How a target is reached, as sections of a report and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trtdx.knowledge.violation import Violation, finding_from
from trtdx.memory.report.figures import render_gpus
from trtdx.memory.report.plan import command_rows, commands_json, fix_with_commands, render_cache
from trtdx.model import Evidence, Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.memory.advice.target import NearestLoad, TargetResult
    from trtdx.model import Finding, Fix
    from trtdx.rule import RuleBook

MOST_FAILED_CHANGES = 8


def target_section(reached: TargetResult) -> Iterator[Section]:
    """Yield what to change, and what alone does not do."""
    if reached.changes:
        rows: list[tuple[str, str]] = [
            (f"{number}.", f"{change.words}; {change.harm.words}") for number, change in enumerate(reached.changes, 1)
        ]
        rows += command_rows(reached.commands)
        yield Section(
            "target",
            f"the cheapest way to {reached.target}",
            ("", ""),
            tuple(rows),
            note=f"then the cache holds {render_cache(reached.ledger)}",
        )
    elif reached.fits and reached.commands and reached.commands.commands:
        rows = command_rows(reached.commands)
        yield Section("target", f"the limits of {reached.target}, written out", ("", ""), tuple(rows))
    if reached.dearer:
        rows = [("", f"{change.words}; {change.harm.words}") for change in reached.dearer]
        yield Section("dearer", "what does it too, and costs more", ("", ""), tuple(rows))
    if reached.failed_changes:
        others = tuple((change.words, why) for change, why in reached.failed_changes[:MOST_FAILED_CHANGES])
        yield Section("others", "what does not do alone", ("change", "why not"), others)


def target_json(reached: TargetResult) -> dict[str, Any]:
    return {
        **reached.target._asdict(),
        "fits": reached.fits,
        "fits_now": reached.fits and not reached.changes,
        "changes": [{"change": change.words} for change in reached.changes],
        **commands_json(reached.commands),
        "nearest": [
            {
                **nearest.target._asdict(),
                "changes": [change.words for change in nearest.changes],
                **commands_json(nearest.commands),
            }
            for nearest in reached.nearest
        ],
        "kv_tokens": reached.ledger.kv_tokens.value,
        "dearer": [change.words for change in reached.dearer],
        "others": [{"change": change.words, "why_not": why} for change, why in reached.failed_changes],
    }


OUT_OF_REACH = "DX647"


def out_of_reach_finding(reached: TargetResult, book: RuleBook, again: str) -> Finding:
    """Return the finding of a load that nothing reaches, with the nearest ones as ways out."""
    words = "; ".join(str(nearest.target) for nearest in reached.nearest)
    evidence = tuple(Evidence(change.words, why) for change, why in reached.failed_changes[:4])
    values = {
        "load": str(reached.target),
        "where": render_gpus(reached.setup),
        "lacking": reached.shortage,
        "nearest": words or "none",
        "again": reached.nearest[0].commands.verify if reached.nearest and reached.nearest[0].commands else again,
    }
    finding = finding_from(book.get(OUT_OF_REACH), Violation(evidence, values, confidence=0.9))
    fixes = tuple(_fix_from_nearest(nearest) for nearest in reached.nearest)
    # The page's own command is of another model; without a nearer load its words are all there is to say.
    plain = tuple(replace(fix, command=None) for fix in finding.fixes)
    return replace(finding, fixes=fixes or plain)


def _fix_from_nearest(nearest: NearestLoad) -> Fix:
    words = " and ".join(change.words for change in nearest.changes) or "as it is"
    return fix_with_commands(f"settle for {nearest.target}: {words}", nearest.commands)
