"""How a target is reached, as sections of a report and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trtdx.knowledge.violation import Violation, finding_from
from trtdx.memory.report.figures import on_what
from trtdx.memory.report.plan import cache_in_words, command_rows, commands_json, fix_with_commands
from trtdx.model import Evidence, Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.memory.advice.target import Nearest, Reached
    from trtdx.model import Finding, Fix
    from trtdx.rule import RuleBook

MOST_OTHERS = 8


def target_section(reached: Reached) -> Iterator[Section]:
    """Yield what to change, and what alone does not do."""
    if reached.changes:
        rows: list[tuple[str, str]] = [
            (f"{number}.", f"{change.words}; {change.harm.words}")
            for number, change in enumerate(reached.changes, 1)
        ]
        rows += command_rows(reached.advised)
        yield Section(
            "target",
            f"the cheapest way to {reached.target}",
            ("", ""),
            tuple(rows),
            note=f"then the cache holds {cache_in_words(reached.ledger)}",
        )
    elif reached.fits and reached.advised and reached.advised.commands:
        rows = command_rows(reached.advised)
        yield Section("target", f"the limits of {reached.target}, written out", ("", ""), tuple(rows))
    if reached.dearer:
        rows = [("", f"{change.words}; {change.harm.words}") for change in reached.dearer]
        yield Section("dearer", "what does it too, and costs more", ("", ""), tuple(rows))
    if reached.others:
        others = tuple((change.words, why) for change, why in reached.others[:MOST_OTHERS])
        yield Section("others", "what does not do alone", ("change", "why not"), others)


def target_json(reached: Reached) -> dict[str, Any]:
    return {
        **reached.target._asdict(),
        "fits": reached.fits,
        "fits_now": reached.fits and not reached.changes,
        "changes": [{"change": change.words} for change in reached.changes],
        **commands_json(reached.advised),
        "nearest": [
            {
                **nearest.target._asdict(),
                "changes": [change.words for change in nearest.changes],
                **commands_json(nearest.advised),
            }
            for nearest in reached.nearest
        ],
        "kv_tokens": reached.ledger.kv_tokens.value,
        "dearer": [change.words for change in reached.dearer],
        "others": [{"change": change.words, "why_not": why} for change, why in reached.others],
    }


OUT_OF_REACH = "DX647"


def out_of_reach(reached: Reached, book: RuleBook, again: str) -> Finding:
    """Return the finding of a load that nothing reaches, with the nearest ones as ways out."""
    words = "; ".join(str(nearest.target) for nearest in reached.nearest)
    evidence = tuple(Evidence(change.words, why) for change, why in reached.others[:4])
    values = {
        "load": str(reached.target),
        "where": on_what(reached.setup),
        "lacking": reached.lacking,
        "nearest": words or "none",
        "again": reached.nearest[0].advised.verify
        if reached.nearest and reached.nearest[0].advised
        else again,
    }
    finding = finding_from(book.get(OUT_OF_REACH), Violation(evidence, values, confidence=0.9))
    fixes = tuple(_fix(nearest) for nearest in reached.nearest)
    # The page's own command is of another model; without a nearer load its words are all there is to say.
    plain = tuple(replace(fix, command=None) for fix in finding.fixes)
    return replace(finding, fixes=fixes or plain)


def _fix(nearest: Nearest) -> Fix:
    words = " and ".join(change.words for change in nearest.changes) or "as it is"
    return fix_with_commands(f"settle for {nearest.target}: {words}", nearest.advised)
