"""How often the first finding names the known cause, on the sample problems; and whether healthy logs stay quiet.

    python benchmarks/diagnose_accuracy.py --samples DIR [--json] [--misses]

A finding is right when for every inner list of `must_mention` one keyword is in its message, why or fixes.
Beside it, in the same run, what a user does without the tool: `grep -i -m1 error` and read that line; its answer
is right when the line itself holds the keywords. Exits with 1 below the goals: top-1 90 %, top-3 97 %, no false alarm.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.diagnose.rule_examples import RuleExamples
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book

if TYPE_CHECKING:
    from trtdx.model import Finding


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def mentions(text: str, groups: list[list[str]]) -> bool:
    lower = text.lower()
    return all(any(keyword.lower() in lower for keyword in group) for group in groups)


def said(finding: Finding) -> str:
    return " ".join([finding.message, finding.why, *(f"{fix.text} {fix.command or ''}" for fix in finding.fixes)])


def first_error(log: str) -> str:
    return next((line for line in log.splitlines() if re.search("error|fail", line, re.IGNORECASE)), "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--misses", action="store_true", help="show what was answered wrongly")
    asked = parser.parse_args()
    promises = RuleExamples(load_book(RealHost()))
    cases = read(asked.samples / "diagnose_cases.jsonl")
    top1 = top3 = grep = 0
    brier = 0.0
    by_category: defaultdict[str, list[bool]] = defaultdict(list)
    by_confidence: defaultdict[float, list[bool]] = defaultdict(list)
    for case in cases:
        findings = promises.diagnose_text(case["log"]).findings
        # DX000 says that nothing is sure: its list of guesses may hold the keywords, and is no answer.
        right = [finding.code != "DX000" and mentions(said(finding), case["must_mention"]) for finding in findings[:3]]
        first = right[:1] == [True]
        top1, top3 = top1 + first, top3 + any(right)
        grep += mentions(first_error(case["log"]), case["must_mention"])
        by_category[case["category"]].append(first)
        if findings:
            by_confidence[round(findings[0].confidence, 1)].append(first)
            brier += (findings[0].confidence - first) ** 2
        if asked.misses and not first:
            print(case["id"], [finding.code for finding in findings[:3]], case["cause"], sep=" | ")
    alarms = []
    for case in read(asked.samples / "clean_logs.jsonl"):
        errors = [
            finding.code
            for finding in promises.diagnose_text(case["log"]).findings
            if finding.severity.value == "error"
        ]
        alarms += [(case["id"], errors)] if errors else []
    count = len(cases)
    result = {
        "cases": count,
        "top1": top1 / count,
        "top3": top3 / count,
        "grep_first_error": grep / count,
        "ratio_to_grep": top1 / max(1, grep),
        "brier_top1": brier / count,
        "false_alarms": alarms,
        "by_category": {name: f"{sum(each)}/{len(each)}" for name, each in sorted(by_category.items())},
        "right_by_confidence": {level: f"{sum(each)}/{len(each)}" for level, each in sorted(by_confidence.items())},
    }
    print(
        json.dumps(result, indent=2) if asked.json else "\n".join(f"{key:<20}{value}" for key, value in result.items())
    )
    return 0 if top1 / count >= 0.9 and top3 / count >= 0.97 and not alarms else 1


if __name__ == "__main__":
    sys.exit(main())
