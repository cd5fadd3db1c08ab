"""The first cause first, its consequences under it."""

from __future__ import annotations

import pytest

from trtdx.diagnose.run import diagnose_sources, source_from_text
from trtdx.knowledge.load import packaged_folder
from trtdx.model import Severity
from trtdx.rule import RuleBook, parse_rule


def unknown_page():
    path = packaged_folder() / "runtime" / "DX000-not-enough-evidence.md"
    return parse_rule(path.read_text(), str(path))


def report(rules, *texts, names=None):
    names = names or [f"log{number}" for number in range(len(texts))]
    return diagnose_sources(
        [source_from_text(text, name) for text, name in zip(texts, names, strict=True)],
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
        report(rules, table + "| tensorrt_llm | 1 | UNAVAILABLE: Internal |\n").findings[0].severity is Severity.ERROR
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


def test_conditions_look_at_one_job_and_not_at_other_logs(rule):
    needs = rule("TST001", "quokka overflow", extra="requires = ['''wombat present''']")
    forbids = rule("TST002", "quokka overflow", slug="other", extra="unless = ['''wombat present''']")
    texts = "quokka overflow\n", "wombat present\n"
    assert codes(report([needs, forbids], "".join(texts))) == ["TST001"]
    assert codes(report([needs, forbids], *texts, names=["logs/rank0.log", "logs/rank1.log"])) == ["TST001"]
    assert codes(report([needs, forbids], *texts, names=["server.log", "pip.log"])) == ["TST002"]


def symptoms(found):
    return {finding.code: [each.code for each in finding.symptoms] for finding in found.findings}


def test_a_symptom_is_not_folded_under_a_cause_in_an_unrelated_log(rule):
    rules = [rule("TST001", "quokka overflow"), rule("TST002", "wombat aborted", kind="symptom")]
    apart = report(rules, "quokka overflow\n", "wombat aborted\n", names=["serve.log", "build.log"])
    assert symptoms(apart) == {"TST001": [], "TST002": []}
    ranks = report(rules, "quokka overflow\n", "wombat aborted\n", names=["run/rank0.log", "run/rank1.log"])
    assert symptoms(ranks) == {"TST001": ["TST002"]}


def test_a_symptom_belongs_to_the_cause_right_above_it(rule):
    rules = [
        rule("TST001", "quokka overflow"),
        rule("TST002", "numbat sideflow"),
        rule("TST003", "wombat aborted", kind="symptom"),
    ]
    text = "quokka overflow\n" + "filler\n" * 50 + "numbat sideflow\nwombat aborted\n"
    assert symptoms(report(rules, text)) == {"TST001": [], "TST002": ["TST003"]}


def test_one_symptom_after_each_of_two_causes_is_told_under_both(rule):
    rules = [
        rule("TST001", "quokka overflow"),
        rule("TST002", "numbat sideflow"),
        rule("TST003", "wombat aborted", kind="symptom"),
    ]
    text = "quokka overflow\nwombat aborted\n" + "filler\n" * 50 + "numbat sideflow\nwombat aborted\n"
    found = report(rules, text)
    assert symptoms(found) == {"TST001": ["TST003"], "TST002": ["TST003"]}
    assert [finding.symptoms[0].where for finding in found.findings] == ["log0:2", "log0:54"]


def test_a_symptom_long_before_a_cause_is_not_its_consequence(rule):
    rules = [rule("TST001", "quokka overflow"), rule("TST002", "wombat aborted", kind="symptom")]
    text = "wombat aborted\n" + "filler\n" * 1000 + "quokka overflow\n"
    assert symptoms(report(rules, text)) == {"TST001": [], "TST002": []}


UP = "INFO:     Application startup complete.\n"
SERVED = 'INFO:     10.0.0.9:41234 - "POST /v1/completions HTTP/1.1" 200 OK\n'


def test_what_a_service_survived_is_not_why_it_fails_later(rule):
    rules = [rule("TST001", "quokka overflow"), rule("TST002", "wombat aborted", kind="symptom")]
    later = report(rules, "quokka overflow\n" + UP + SERVED * 200 + "wombat aborted\n")
    assert symptoms(later) == {"TST001": [], "TST002": []}
    at_once = report(rules, "quokka overflow\n" + UP + SERVED * 3 + "wombat aborted\n")
    assert symptoms(at_once) == {"TST001": ["TST002"]}
    other = f"other-1  | {UP}" + f"other-1  | {SERVED}" * 200
    beside = report(rules, f"trtllm-1  | quokka overflow\n{other}trtllm-1  | wombat aborted\n")
    assert symptoms(beside) == {"TST001": ["TST002"]}


CRASH = "Segmentation fault (core dumped)\n"
PASSING = {
    "DX126": "ValueError: Cannot use chat template functions because tokenizer.chat_template is not set and no template argument was passed!\n",
    "DX270": "[TensorRT-LLM][ERROR] Prompt length (5000) exceeds maximum input length (4096).\n",
    "DX052": "-- Could NOT find TensorRT (missing: TensorRT_INCLUDE_DIR)\n",
}


@pytest.mark.heavy
@pytest.mark.parametrize("code", PASSING)
def test_a_refused_request_or_a_failed_build_is_not_why_a_process_crashes_long_after(ask, code):
    assert symptoms(ask(PASSING[code] + SERVED * 3 + CRASH))[code] == ["DX539"]
    assert symptoms(ask(PASSING[code] + SERVED * 100 + CRASH)) == {code: [], "DX539": []}


def test_an_error_comes_before_a_warning_that_is_not_its_cause(rule):
    rules = [parse_rule(rule_page(rule), "x.md"), rule("TST002", "wombat aborted", kind="symptom")]
    found = report(rules, "quokka overflow\n" + UP + SERVED * 100 + "wombat aborted\n")
    assert codes(found)[:2] == ["TST002", "TST001"]


def test_what_makes_a_model_slow_does_not_make_it_crash(rule):
    slow = parse_rule(rule_page(rule).replace('area = "runtime"', 'area = "performance"'), "x.md")
    found = report([slow, rule("TST002", "wombat aborted", kind="symptom")], "quokka overflow\nwombat aborted\n")
    assert symptoms(found) == {"TST001": [], "TST002": []}


def test_the_time_that_nccl_prints_before_its_lines_counts(rule):
    rules = [rule("TST001", "quokka overflow"), rule("TST002", "wombat aborted", kind="symptom")]
    early = "[2026-11-15 10:00:05] gpu1:81:99 [0] misc/socket.cc:49 NCCL WARN wombat aborted\n"
    late = "2026-11-15 12:00:05 ERROR quokka overflow\n"
    found = report(rules, early, late, names=["run/rank0.log", "run/rank1.log"])
    assert symptoms(found) == {"TST001": [], "TST002": []}


def test_services_and_pods_that_write_into_one_log_are_kept_apart(rule):
    rules = [rule("TST001", "quokka overflow"), rule("TST002", "wombat aborted", kind="symptom")]
    for first, second in (
        ("trtllm-1  | ", "gateway-1  | "),
        ("[pod/a-0/main] ", "[pod/b-0/main] "),
        ("2m Warning BackOff pod/a-0 ", "3m Warning BackOff pod/b-0 "),
    ):
        assert symptoms(report(rules, f"{first}quokka overflow\n{second}wombat aborted\n")) == {
            "TST001": [],
            "TST002": [],
        }
        assert symptoms(report(rules, f"{first}quokka overflow\n{first}wombat aborted\n")) == {"TST001": ["TST002"]}


def test_what_kept_a_package_from_being_built_is_no_consequence_of_a_full_gpu(ask):
    found = ask("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n  error: subprocess-exited-with-error\n")
    assert symptoms(found)["DX340"] == []


BROKEN_LINK = (
    "n12:8812:9021 [3] transport/net_ib.cc:1832 NCCL WARN NET/IB: Got completion from peer 10.1.4.7<47133> with "
    "status=12 opcode=0 len=0 vendor err 129 (Send)\n"
)
TIMEOUT = (
    "[rank3]:[E ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, "
    "OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600014 milliseconds before timing out.\n"
)
KILLED = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=88231.0. Some of the step tasks have been OOM Killed.\n"
)
PMIX = (
    "slurmstepd: error:  mpi/pmix_v4: _errhandler: n7 [0]: pmixp_client_v2.c:211: Error handler invoked: status = -25, "
    "source = [slurm.pmix.88231.0:4]\n"
)


def test_a_collective_that_waits_for_a_broken_link_or_a_killed_rank_is_its_consequence(ask):
    assert codes(ask(BROKEN_LINK + TIMEOUT)) == ["DX403"]
    assert codes(ask(KILLED + TIMEOUT)) == ["DX455"]
    assert codes(ask(TIMEOUT)) == ["DX416"]


def test_pmix_that_tells_of_a_lost_task_is_no_broken_pmix(ask):
    assert codes(ask(KILLED + PMIX)) == ["DX455"]
    assert codes(ask(PMIX)) == ["DX458"]


def test_an_exchange_of_tokens_that_the_experts_do_not_have_is_no_broken_deepep(ask):
    line = "NotImplementedError: DeepEP and DeepEPLowLatency are not supported for CutlassFusedMoE yet\n"
    assert codes(ask(line)) == ["DX314"]


def test_times_of_different_zones_are_compared_as_times(rule):
    rules = [rule("TST001", "quokka overflow"), rule("TST002", "wombat underflow")]
    berlin = "2026-11-15T10:00:05+02:00 ERROR wombat underflow\n"
    utc = "2026-11-15T08:00:09Z ERROR quokka overflow\n"
    assert codes(report(rules, utc, berlin)) == ["TST002", "TST001"]


def test_evidence_shows_the_proof_however_far_into_the_line_it_stands(rule):
    from trtdx.render import render_text

    found = report(
        [rule("TST001", "quokka overflow")],
        "[TRT-LLM] [E] " + "some words " * 90 + "quokka overflow at last\n",
    )
    assert "quokka overflow" in found.findings[0].evidence[0].text[:160]
    assert "quokka overflow at last" in render_text(found)


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


def test_a_warning_keeps_its_line_though_a_graver_symptom_reads_it_too(ask):
    line = (
        "[TRT] [E] INetworkDefinition::addInput: Error Code 3: API Usage Error (Parameter check failed, "
        "condition: inName != knownInput->getName().  In addInput at optimizer/api/network.cpp:2397)"
    )
    first = ask(line).findings[0]
    assert (first.code, first.severity) == ("DX177", Severity.WARNING)
    assert first.symptoms == ()  # it would only say again what the cause says
