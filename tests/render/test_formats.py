"""The formats that other tools read: GitHub annotations, SARIF, JUnit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtdx.model import (
    Evidence,
    Finding,
    Fix,
    IgnoredFinding,
    Report,
    Severity,
    Stage,
    Summary,
    Where,
)
from trtdx.render import render_github, render_junit, render_sarif
from trtdx.render.places import FilePlace, parse_place

FINDING = Finding(
    "DX210",
    "world-size-mismatch",
    Severity.ERROR,
    "built for 4 ranks, 100% of them, but 2 were started",
    "shards are cut at build time",
    (Fix(Stage.LAUNCH, "start 4 ranks", "mpirun -n 4 ..."),),
    "trtdx diagnose new.log",
    0.95,
    "logs/rank 0.log:3",
    (
        Evidence("logs/rank 0.log:3", "mpiSize == tp * pp\n::error::not a command \x1b[31m"),
        Evidence("config.json: mapping.tp_size", "4"),
    ),
)
TENSOR = msgspec.structs.replace(
    FINDING, code="DX946", severity=Severity.WARNING, where=Where(step=0, tensor="layers.3:out"), evidence=()
)
IGNORED = IgnoredFinding("DX415", "old-driver", Severity.ERROR, "driver 470", "smi.txt:1", "until March")
REPORT = Report(
    Summary("1 error, 1 warning", inputs=1, partial=("rank1.log: cut",), ignored=(IGNORED,)),
    (FINDING, TENSOR),
)
HEALTHY = Report(Summary("no problem found", inputs=1))


@pytest.mark.parametrize(
    ("where", "place"),
    [
        ("rank0.log:3", FilePlace("rank0.log", 3)),
        ("logs/rank 0.log:12: text", FilePlace("logs/rank 0.log", 12)),
        ("engine/config.json: pretrained_config.mapping", FilePlace("engine/config.json")),
        ("engine/config.json", FilePlace("engine/config.json")),
        ("-:3", None),
        ("this machine", None),
        ("--gpu L40S", None),
        ("rank 0: weights", None),
        (Where(step=0, tensor="layers.3:out"), None),
    ],
)
def test_a_place_is_a_file_and_line_where_it_names_one(where, place):
    assert parse_place(where) == place


def test_github_gets_one_annotation_a_finding_that_no_log_line_can_forge():
    error, warning, notice, not_read, summary = render_github(REPORT).splitlines()
    assert error.startswith(
        "::error file=logs/rank 0.log,line=3,title=DX210 world-size-mismatch::built for 4 ranks, 100%25 of"
    )
    assert "%0A" in error
    assert "mpirun -n 4" in error
    assert warning.startswith("::warning title=DX946 world-size-mismatch::")
    assert notice.startswith("::notice file=smi.txt,line=1,title=DX415 ignored::driver 470%0Aignored: until March")
    assert not_read == "::warning title=not read::rank1.log: cut"
    assert summary == "trtdx: 1 error, 1 warning"
    assert "\x1b" not in error


def test_sarif_follows_its_schema_with_places_evidence_fixes_and_suppressions():
    document = json.loads(render_sarif(REPORT))
    check_sarif(document)
    check_sarif(json.loads(render_sarif(HEALTHY)))
    [run] = document["runs"]
    first, second, ignored = run["results"]
    assert first["locations"] == [
        {"physicalLocation": {"artifactLocation": {"uri": "logs/rank%200.log"}, "region": {"startLine": 3}}}
    ]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["DX210", "DX946", "DX415"]
    assert (first["ruleIndex"], first["level"], first["rank"]) == (0, "error", 95.0)
    assert first["properties"]["fixes"][0]["command"] == "mpirun -n 4 ..."
    assert len(first["relatedLocations"]) == 2
    assert second["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "step 0, layers.3:out"
    assert ignored["suppressions"] == [{"kind": "external", "justification": "until March"}]
    assert run["invocations"][0]["toolExecutionNotifications"][1]["message"]["text"] == "not read: rank1.log: cut"


def check_sarif(document):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(__file__).parent / "sarif.schema.json").read_text())
    jsonschema.Draft7Validator(schema).validate(document)


def test_junit_has_a_case_a_finding_with_evidence_and_fixes_inside():
    suite = ElementTree.fromstring(render_junit(REPORT).encode()).find("testsuite")
    assert suite.attrib == {"name": "trtdx", "tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
    error, warning, ignored = suite.findall("testcase")
    assert (error.get("classname"), error.get("file"), error.get("line")) == ("DX210", "logs/rank 0.log", "3")
    failure = error.find("failure")
    assert failure.get("type") == "error"
    assert "mpirun -n 4" in failure.text
    assert "config.json: mapping.tp_size: 4" in failure.text
    assert warning.find("failure") is None
    assert "start 4 ranks" in warning.find("system-out").text
    assert ignored.find("skipped").get("message") == "until March"
    assert suite.find("system-err").text == "not read: rank1.log: cut"


def test_junit_fails_from_the_severity_that_fails_the_run():
    for least, failures in ((Severity.WARNING, "2"), (None, "0")):
        suite = ElementTree.fromstring(render_junit(REPORT, fails_from=least).encode()).find("testsuite")
        assert suite.get("failures") == failures


def test_health_is_one_case_that_passes():
    suite = ElementTree.fromstring(render_junit(HEALTHY).encode()).find("testsuite")
    assert [case.get("name") for case in suite] == ["no problem found"]


@given(st.text())
def test_whatever_a_log_says_the_formats_stay_readable(text):
    finding = msgspec.structs.replace(FINDING, message=text, why=text, where=text, evidence=(Evidence(text, text),))
    report = Report(Summary(text, partial=(text,)), (finding,))
    suite = ElementTree.fromstring(render_junit(report).encode())[0]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", suite.find("testcase").get("name").replace("\n", ""))
    json.loads(render_sarif(report))
    commands = render_github(report).strip("\n").split("\n")
    assert len(commands) == 3
    assert commands[0].startswith("::error ")
