"""Structured values are judged by the names they stand under; whole reports come out clean."""

from __future__ import annotations

from trtdx.model import Evidence, Finding, Report, Section, Severity, Summary
from trtdx.redact import MARK, redact_report, redact_value


def test_values_go_by_the_name_they_stand_under():
    data = {"apiKey": "abc1", "nested": [{"db_password": "x9y8"}], "max_tokens": "4096", "port": 8000}
    assert redact_value(data) == {"apiKey": MARK, "nested": [{"db_password": MARK}], "max_tokens": "4096", "port": 8000}


def test_the_word_after_a_secrets_option_goes():
    assert redact_value(["serve", "--api_key", "abc1", "--port", "80"]) == ["serve", "--api_key", MARK, "--port", "80"]


def test_no_part_of_a_report_keeps_a_secret():
    secret = "hf_" + "aB3d" * 8
    finding = Finding("DX001", "x", Severity.ERROR, f"m {secret}", "", (), f"v {secret}", 0.9, f"{secret}.log:1")
    report = Report(
        Summary("ok"),
        (finding, Finding("DX002", "y", Severity.NOTE, "m", "", (), "", 0.5, "w", (Evidence("e", secret),))),
        (Section("s", "t", ("setting", "value"), (("api_key", "abc1"), ("port", 8000), ("model", secret))),),
    )
    clean = redact_report(report)
    assert secret not in repr(clean)
    assert clean.sections[0].rows == (("api_key", MARK), ("port", 8000), ("model", MARK))
    assert redact_report(clean) is clean
