"""Logs of deployments that work: nothing is alarmed about, whatever alarming words stand in them.

Each file in `healthy/` holds logs of one theme, each under a line `=== name`; "(warns)" marks those in which
something is worth a warning although all goes well. Lines are those that the real programs print here, or written
to the formats in their sources.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trtdx.diagnose.rule_examples import RuleExamples
from trtdx.model import Severity

LOGS = [
    pytest.param(name, text, id=f"{path.stem}: {name}")
    for path in sorted(Path(__file__).with_name("healthy").glob("*.txt"))
    for name, _, text in (part.partition("\n") for part in re.split(r"(?m)^=== ", path.read_text())[1:])
]


@pytest.fixture(scope="module")
def promises(book):
    return RuleExamples(book)


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "text"), LOGS)
def test_a_healthy_log_raises_no_alarm(name, text, promises):
    tolerated = (Severity.NOTE, Severity.WARNING) if name.endswith("(warns)") else (Severity.NOTE,)
    alarms = [
        (each.code, each.severity.value, each.evidence[:1])
        for each in promises.diagnose_text(text).findings
        if each.severity not in tolerated
    ]
    assert alarms == []
