"""The page of a memory plan that can be asked again: sliders, and the plan they make, computed by `memory` itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.errors import CaseError, InputError
from trtdx.redact import redact_report
from trtdx.render.html import body_values
from trtdx.render.text import printable_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtdx.host import Host
    from trtdx.memory.nouns import Setup
    from trtdx.model import Report
    from trtdx.rule import RuleBook

WORDS = {
    "max_batch_size": "requests in a step",
    "max_seq_len": "longest sequence, in tokens",
    "max_num_tokens": "tokens in a step",
    "tp": "GPUs a layer is cut over",
}


class SliderSetting(NamedTuple):
    """One slider: what it sets, what it offers, and where it stands."""

    name: str
    words: str
    value: int
    choices: list[int]
    largest: int

    @property
    def place(self) -> int:
        """The choice that comes nearest."""
        return min(range(len(self.choices)), key=lambda at: abs(self.choices[at] - self.value))


def planned_setup(report: Report) -> Setup | None:
    """Return the set-up that the sliders move; None where a report holds none."""
    from trtdx.memory.report.plan import MemoryReport
    from trtdx.memory.what_if import setup_from_report

    return setup_from_report(report) if isinstance(report, MemoryReport) else None


def plan_values(host: Host, book: RuleBook, setup: Setup, query: Mapping[str, str]) -> dict[str, Any]:
    """Return what the templates of the page need for the settings that an address names.

    Raises:
        CaseError: the address names something that is no setting.
    """
    from trtdx.memory.ledger.calibration import load_constants
    from trtdx.memory.what_if import LARGEST, change_setup, list_choices, plan_setup, read_settings

    own = read_settings(setup)
    settings = own | _parse_settings(query, LARGEST)
    choices = list_choices(setup)
    try:
        constants = load_constants(host)
    except InputError:  # a broken file of constants is for `trtdx memory` to complain about
        constants = None
    report = redact_report(plan_setup(change_setup(setup, settings), book, constants))
    changed = [f"{name} {own[name]} → {value}" for name, value in settings.items() if value != own[name]]
    return body_values(report) | {
        "settings": [
            SliderSetting(name, WORDS[name], value, choices[name], LARGEST[name]) for name, value in settings.items()
        ],
        "changed": ", ".join(changed),
        "calibrated": bool(constants and constants.entries),
        "flags": printable_text(" ".join(f"--{name} {value}" for name, value in settings.items())),
    }


def _parse_settings(query: Mapping[str, str], largest: Mapping[str, int]) -> dict[str, int]:
    settings = {}
    for name, most in largest.items():
        text = query.get(name, "").strip()
        if not text:
            continue
        if not (text.isascii() and text.isdigit() and len(text) < 9 and 0 < int(text) <= most):
            raise CaseError(f"{name} is a whole number from 1 to {most}")
        settings[name] = int(text)
    return settings
