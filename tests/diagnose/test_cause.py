"""The first cause first, its consequences under it."""

from __future__ import annotations

from trtdx.diagnose import diagnose, text_source
from trtdx.knowledge import packaged_folder
from trtdx.model import Severity
from trtdx.rule import RuleBook, parse_rule


def unknown_page():
    path = packaged_folder() / "DX000-not-enough-evidence.md"
    return parse_rule(path.read_text(), str(path))


def report(rules, *texts, names=None):
    names = names or [f"log{number}" for number in range(len(texts))]
    return diagnose(
        [text_source(text, name) for text, name in zip(texts, names, strict=True)],
        RuleBook([unknown_page(), *rules]),
    )


def codes(found):
    return [finding.code for finding in found.findings]


def test_the_earlier_of_two_causes_comes_first_and_both_are_told(rule):
    rules = [rule("TST001", "quokka overflow"), rule("TST002", "wombat underflow")]
    found = report(rules, "[TensorRT-LLM][ERROR] wombat underflow\n[TensorRT-LLM][ERROR] quokka overflow\n")
    assert codes(found) == ["TST002", "TST001"]


def test_a_symptom_is_folded_under_the_cause_even_when_it_comes_first(rule):
    rules = [rule("TST001", "quokka overflow"), rule("TST002", "wombat aborted", kind="symptom")]
    found = report(rules, "wombat aborted\nquokka overflow\n")
    assert codes(found) == ["TST001"]
    assert [symptom.code for symptom in found.findings[0].symptoms] == ["TST002"]


def test_a_symptom_alone_is_told(rule):
    found = report([rule("TST002", "wombat aborted", kind="symptom")], "wombat aborted\n")
    assert codes(found)[0] == "TST002"


def test_what_follows_from_a_cause_is_folded_under_it(rule):
    rules = [rule("TST001", "quokka overflow"), rule("TST002", "wombat underflow", follows=["TST001"])]
    assert codes(report(rules, "wombat underflow\nquokka overflow\n")) == ["TST001"]
    assert codes(report(rules, "wombat underflow\n")) == ["TST002"]


def test_a_ring_of_rules_that_follow_each_other_does_not_vanish(rule):
    words = ["quokka overflow", "wombat underflow", "numbat sideflow"]
    ring = [rule(f"TST00{n}", words[n], follows=[f"TST00{(n + 1) % 3}"]) for n in range(3)]
    assert len(report(ring, "\n".join(words)).findings) == 1


def test_a_line_without_a_date_keeps_its_place_among_lines_with_one(rule):
    rules = [rule("TST001", "quokka overflow"), rule("TST002", "wombat underflow")]
    text = "[TensorRT-LLM][ERROR] quokka overflow\n[11/15/2026-10:00:09] [TRT-LLM] [E] wombat underflow\n"
    assert codes(report(rules, text)) == ["TST001", "TST002"]


def test_two_rules_that_follow_each_other_do_not_vanish(rule):
    rules = [
        rule("TST001", "quokka overflow", follows=["TST002"]),
        rule("TST002", "wombat underflow", follows=["TST001"]),
    ]
    assert len(codes(report(rules, "wombat underflow\nquokka overflow\n"))) >= 1


def test_a_line_at_info_level_is_no_cause(rule):
    rules = [rule("TST001", "quokka overflow")]
    assert codes(report(rules, "[TensorRT-LLM][INFO] quokka overflow\n")) == []
    assert codes(report(rules, "[TensorRT-LLM][ERROR] quokka overflow\n")) == ["TST001"]


def test_a_warning_gives_a_warning_unless_the_rule_knows_better(rule):
    line = "[TensorRT-LLM][WARNING] quokka overflow\n"
    assert report([rule("TST001", "quokka overflow")], line).findings[0].severity is Severity.WARNING
    sure = rule("TST001", "quokka overflow", extra='level = ["warning"]')
    assert report([sure], line).findings[0].severity is Severity.ERROR


def test_a_wording_may_be_less_grave_than_its_page(rule):
    mild = rule("TST001", "quokka overflow", extra='severity = "note"')
    assert report([mild], "quokka overflow\n").findings[0].severity is Severity.NOTE


def test_a_service_that_came_up_afterwards_makes_it_a_warning(rule):
    rules = [parse_rule(rule_page(rule), "x.md")]
    before = report(rules, "quokka overflow\n")
    after = report(rules, "quokka overflow\nINFO:     Application startup complete.\n")
    assert before.findings[0].severity is Severity.ERROR
    assert after.findings[0].severity is Severity.WARNING
    assert after.findings[0].confidence < before.findings[0].confidence


def test_one_ready_model_proves_nothing_beside_one_that_is_not(rule):
    rules = [parse_rule(rule_page(rule), "x.md")]
    table = "quokka overflow\n| preprocessing | 1 | READY |\n"
    assert report(rules, table).findings[0].severity is Severity.WARNING
    assert (
        report(rules, table + "| tensorrt_llm | 1 | UNAVAILABLE: Internal |\n").findings[0].severity
        is Severity.ERROR
    )


def rule_page(rule):
    from tests.conftest import PAGE

    return PAGE.format(
        code="TST001",
        slug="tst",
        kind="cause",
        severity="error",
        pattern="quokka overflow",
        follows=[],
        extra="",
    ).replace('stage = "serve"\narea', 'stage = "launch"\narea')


def test_conditions_look_at_the_whole_input(rule):
    needs = rule("TST001", "quokka overflow", extra="requires = ['''wombat present''']")
    forbids = rule("TST002", "quokka overflow", slug="other", extra="unless = ['''wombat present''']")
    assert codes(report([needs, forbids], "quokka overflow\n", "wombat present\n")) == ["TST001"]
    assert codes(report([needs, forbids], "quokka overflow\n", "nothing\n")) == ["TST002"]


def test_values_of_the_log_stand_in_message_and_fix(rule):
    extra = 'message = "asked {asked:thousands} of {limit}"\nfix = [{ stage = "build", text = "rebuild for {asked}", command = "build --max {asked}" }]'
    found = report(
        [rule("TST001", r"quokka length (?P<asked>\d+) over (?P<limit>\d+)", extra=extra)],
        "quokka length 9000 over 8192\n",
    )
    finding = found.findings[0]
    assert finding.message == "asked 9 000 of 8192"
    assert finding.fixes[0].command == "build --max 9000"
    assert [fix.text for fix in finding.fixes] == ["rebuild for 9000", "default fix"]


def test_a_missing_value_falls_back_to_the_default_message(rule):
    found = report(
        [rule("TST001", r"quokka overflow(?: by (?P<much>\d+))?", extra='message = "by {much}"')],
        "quokka overflow\n",
    )
    assert found.findings[0].message == "default message of tst001"


def test_first_failing_rank_is_named_across_files(rule):
    rules = [rule("TST001", "quokka overflow"), rule("TST002", "peer wombat lost", kind="symptom")]
    ranks = {f"rank{n}.log": f"[TRT-LLM] [RANK {n}] [E] peer wombat lost\n" for n in (0, 1, 3)}
    ranks["rank2.log"] = "[TRT-LLM] [RANK 2] [E] quokka overflow\n"
    found = report(rules, *ranks.values(), names=list(ranks))
    assert found.findings[0].where == "rank2.log:1 (rank 2)"
    assert found.summary.ranks == (0, 1, 2, 3)


def test_time_orders_events_of_different_files(rule):
    rules = [rule("TST001", "quokka overflow"), rule("TST002", "wombat underflow")]
    late = "filler\n" * 3 + "2026-11-15 10:00:01 ERROR wombat underflow\n"
    later = "2026-11-15 10:00:09 ERROR quokka overflow\n"
    assert codes(report(rules, late, later)) == ["TST002", "TST001"]


def test_the_same_line_in_many_places_is_one_finding_with_bounded_evidence(rule):
    found = report([rule("TST001", "quokka overflow")], "quokka overflow\n" * 10_000)
    assert codes(found) == ["TST001"]
    assert 1 <= len(found.findings[0].evidence) <= 5


def test_a_cause_told_over_several_lines(rule):
    many = rule("TST001", r"quokka begins\s*\n.{0,40}then wombat (?P<n>\d+)", extra='message = "wombat {n}"')
    found = report([many], "0: quokka begins\n0: and then wombat 7\n")
    assert found.findings[0].message == "wombat 7"


def test_harmless_lines_are_counted_and_never_findings(rule):
    found = report(
        [rule("TST001", "quokka notice", kind="harmless", severity="note")],
        "[TensorRT-LLM][WARNING] quokka notice\n" * 3,
    )
    assert codes(found) == []
    assert (found.summary.harmless[0].code, found.summary.harmless[0].count) == ("TST001", 3)
