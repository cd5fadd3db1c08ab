"""How a target is reached, as sections of a report and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.memory.report import written
from trtdx.memory.words import short_count
from trtdx.model import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.memory.target import Reached

MOST_OTHERS = 8


def target_section(reached: Reached) -> Iterator[Section]:
    """Yield what to change, and what alone does not do."""
    if reached.changes:
        rows: list[tuple[str, str]] = [
            (f"{number}.", f"{each.words}; {each.harm.words}")
            for number, each in enumerate(reached.changes, 1)
        ]
        rows += [("", line) for line in written(reached.changes, reached.setup)]
        tokens = short_count(reached.ledger.kv_tokens.value)
        yield Section(
            "target",
            f"the cheapest way to {reached.target}",
            ("", ""),
            tuple(rows),
            note=f"then the cache holds {tokens} tokens",
        )
    if reached.dearer:
        rows = [("", f"{each.words}; {each.harm.words}") for each in reached.dearer]
        yield Section("dearer", "what does it too, and costs more", ("", ""), tuple(rows))
    if reached.others:
        others = tuple((change.words, why) for change, why in reached.others[:MOST_OTHERS])
        yield Section("others", "what does not do alone", ("change", "why not"), others)


def target_json(reached: Reached) -> dict[str, Any]:
    return {
        **reached.target._asdict(),
        "fits": reached.fits,
        "fits_now": reached.fits and not reached.changes,
        "changes": [
            {
                "change": each.words,
                "flags": [
                    {"stage": line.stage.value, "text": line.text} for line in each.written(reached.setup)
                ],
            }
            for each in reached.changes
        ],
        "kv_tokens": reached.ledger.kv_tokens.value,
        "dearer": [each.words for each in reached.dearer],
        "others": [{"change": each.words, "why_not": why} for each, why in reached.others],
    }
