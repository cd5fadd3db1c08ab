"""When nothing fits, that is what is said."""

from __future__ import annotations

import pytest

from trtdx.model import Severity


@pytest.mark.heavy
def test_an_unknown_error_is_quoted_with_what_to_collect_next(ask):
    report = ask("[TensorRT-LLM][INFO] fine\n[TensorRT-LLM][ERROR] quux widget 7 declined the NCCL flux handover\n")
    finding = report.findings[0]
    assert finding.code == "DX000"
    assert "quux widget 7" in finding.message
    assert finding.where == "log0:2"
    assert "NCCL_DEBUG=INFO" in (finding.fixes[0].command or "")
    assert finding.confidence < 0.3


def test_nearest_causes_are_marked_as_guesses(ask):
    finding = ask(
        "[TensorRT-LLM][ERROR] the zorbax peer to peer shared memory segment of rank 3 misbehaved\n"
    ).findings[0]
    assert finding.code == "DX000"
    assert "guesses" in finding.why
    assert "DX" in finding.why


def test_a_healthy_log_gives_no_finding_and_says_how_much_was_read(ask):
    report = ask(
        "[TensorRT-LLM][INFO] MPI size: 4, MPI local size: 4, rank: 0\n[TensorRT-LLM][WARNING] enable_chunked_context is not specified, will be set to false.\n"
    )
    assert report.findings == ()
    assert report.summary.lines_read == 2
    assert report.summary.harmless


@pytest.mark.heavy
def test_the_packaged_healthy_lines_are_healthy(ask):
    from importlib import resources

    text = resources.files("trtdx").joinpath("data/healthy.txt").read_text()
    report = ask(text)
    assert [finding for finding in report.findings if finding.severity is Severity.ERROR] == []
    for line in text.splitlines():
        assert [finding.code for finding in ask(line).findings if finding.severity is Severity.ERROR] == [], line


def test_empty_input_is_no_problem(ask):
    assert ask("").findings == ()
    assert ask("\n\n\n").findings == ()


def test_a_description_in_words_is_answered_with_modest_confidence(ask):
    finding = ask("the words of streamed responses run together, all spaces between words are missing").findings[0]
    assert finding.slug == "streamed-spaces-lost"
    assert finding.confidence <= 0.85


def test_an_unknown_error_apart_from_a_sure_cause_is_mentioned(ask):
    sure = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    strange = "[TensorRT-LLM][ERROR] quux widget 7 declined the flux handover\n"
    assert [finding.code for finding in ask(sure + "filler\n" * 4 + strange).findings] == ["DX340", "DX000"]
    found = ask(strange + "filler\n" * 40 + sure)
    assert [finding.code for finding in found.findings] == ["DX340", "DX000"]
    assert found.findings[1].severity is Severity.NOTE
    assert "flux handover" in found.findings[1].message
    assert not found.findings[1].fixes
    assert [finding.code for finding in ask(sure, strange).findings] == ["DX340", "DX000"]
    assert [finding.code for finding in ask(sure + strange).findings] == ["DX340"]
    services = ask(f"llm-1 | {sure}db-1 | {strange}")
    assert [finding.code for finding in services.findings] == ["DX340", "DX000"]


def test_without_a_cause_only_evidence_is_asked_for(ask):
    (finding,) = ask("[TensorRT-LLM][ERROR] the NCCL quux declined the CUDA handover\n").findings
    assert finding.code == "DX000"
    assert finding.fixes
    assert not [fix for fix in finding.fixes if "if it is DX" in fix.text]


def test_an_error_by_its_level_alone_is_noticed_wherever_it_stands(ask):
    fine = "[11/15/2026-10:00:00] [TRT-LLM] [RANK 0] [I] iter = 7, all as it should be\n" * 2000
    odd = "[11/15/2026-10:00:01] [TRT-LLM] [RANK 5] [E] quux widget 7 declined the handover\n"
    assert [finding.code for finding in ask(fine + odd + fine).findings] == ["DX000"]
    for line in (
        "E1115 10:00:00.123456 1 quux.cc:12] the widget declined\n",
        "2026-11-15 10:00:00 CRITICAL the widget declined\n",
    ):
        assert ask("plain\n" + line).findings[0].severity is Severity.ERROR


def test_a_program_that_says_i_am_process_0_is_no_person_with_a_complaint(ask):
    report = ask(
        "srun: Job 71 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
        "srun: Step created for StepId=71.2\nHello, World! I am process 0 of 2 on n1.\nHello, World! I am process 1 of 2 on n1.\n"
    )
    assert report.findings == ()
