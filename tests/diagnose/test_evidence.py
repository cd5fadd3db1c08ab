"""Causes that no single line shows, and bugs that only some releases have."""

from __future__ import annotations

import re

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from trtdx.diagnose.evidence import ReportText, releases_named
from trtdx.diagnose.rule_examples import RuleExamples
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book
from trtdx.knowledge.symptom_words import SYMPTOM_WORDS
from trtdx.model import Severity

BOOK = load_book(RealHost())
EAGLE_ON_BLACKWELL = (
    "{release} on an RTX PRO 6000: with decoding_type: Eagle the answers are gibberish, without it they are right"
)


@pytest.fixture(scope="module")
def examples():
    return RuleExamples(BOOK)


def codes(examples, text):
    return [finding.code for finding in examples.diagnose_text(text).findings]


def test_a_bug_is_named_for_the_releases_that_have_it_and_no_other(examples):
    assert codes(examples, EAGLE_ON_BLACKWELL.format(release="TensorRT-LLM 1.2.0rc4"))[0] == "DX1060"
    assert "DX1060" not in codes(examples, EAGLE_ON_BLACKWELL.format(release="TensorRT-LLM 1.2.1"))


def test_a_bug_is_less_sure_where_no_release_is_known(examples):
    known = examples.diagnose_text(EAGLE_ON_BLACKWELL.format(release="TensorRT-LLM 1.1.0")).findings[0]
    unknown = examples.diagnose_text(EAGLE_ON_BLACKWELL.format(release="TensorRT-LLM")).findings[0]
    assert known.code == unknown.code == "DX1060"
    assert unknown.confidence < known.confidence


def test_a_bug_says_the_release_that_mends_it_and_how_to_get_it(examples):
    bug = examples.diagnose_text(EAGLE_ON_BLACKWELL.format(release="TensorRT-LLM 1.1.0")).findings[0]
    assert "fixed in 1.2.0" in bug.message
    assert "tensorrt_llm==1.2.0" in (bug.fixes[0].command or "")


def test_what_only_sees_the_symptom_becomes_a_note_below_the_cause(examples):
    log = (
        "instance_group [ { count: 2 kind: KIND_GPU } ]\n"
        "[TensorRT-LLM][ERROR] 1: [defaultAllocator.cpp::allocate::20] Error Code 1: Cuda Runtime (out of memory)\n"
        "[TensorRT-LLM][WARNING] Requested amount of GPU memory (9000000000 bytes) could not be allocated. "
        "There may not be enough free memory for allocation to succeed.\n"
    )
    first, *rest = examples.diagnose_text(log).findings
    assert first.code == "DX372"
    assert all(finding.severity is Severity.NOTE for finding in rest)


def test_settings_that_a_healthy_server_prints_are_no_evidence(examples):
    log = (
        "[TRT-LLM] [I] LLM Args:\nmodel='/m' speculative_config=None guided_decoding_backend=None lora_config=None\n"
        "tensor_parallel_size=8 pipeline_parallel_size=1 enable_chunked_prefill=False kv_cache_config=KvCacheConfig("
        "enable_block_reuse=True, host_cache_size=None)\n[TRT-LLM] [I] Application startup complete.\n"
    )
    assert codes(examples, log) == []


def test_a_traceback_announced_at_info_level_raises_no_alarm(examples):
    log = (
        "[TRT-LLM] [RANK 0] [I] Fallback to regular model init: Traceback (most recent call last):\n"
        '  File "/x/model_loader.py", line 12, in load\n    model = make(config)\n'
        "NotImplementedError: aten.sqrt.default\n[TRT-LLM] [RANK 0] [I] Use 61.2 GB for model weights.\n"
    )
    assert codes(examples, log) == []
    assert codes(examples, log.replace("[I] Fallback", "[E] Fallback")) != []


def test_a_remark_long_before_a_log_that_goes_on_in_peace_raises_no_alarm(examples):
    remark = "widget table not found, using the slow one\n"
    peace = "".join(f"[TRT-LLM] [I] iter = {step}, num_scheduled_requests: 1\n" for step in range(12))
    assert codes(examples, remark + peace) == []
    assert codes(examples, remark) != []


@pytest.mark.parametrize(
    ("words", "releases"),
    [
        ("TRTLLM version: 1.2.0rc8", ("1.2.0rc8",)),
        ("TRT-LLM v1.2.0.rc6.post2, dynamo", ("1.2.0rc6.post2",)),
        ("image nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc13", ("1.3.0rc13",)),
        ("tritonserver:24.08-trtllm-python-py3", ("0.12.0",)),
        ("with TensorRT-LLM (0.9.0.dev) it differs", ("0.9.0.dev0",)),
        ("nvidia-modelopt 0.11.2, flashinfer==0.6.1, transformers 4.31.0, python 3.10", ()),
        ("kv_cache_free_gpu_mem_fraction 0.9", ()),
    ],
)
def test_releases_are_read_from_words_and_not_from_other_numbers(words, releases):
    assert releases_named(words) == releases


def test_a_symptom_counts_only_where_somebody_or_an_error_says_it():
    report = ReportText(
        "[TRT-LLM] [I] retry after failed probe\n[TRT-LLM] [E] request failed\nMy server crashes when I send two requests\n"
    )
    assert report.complaints.split("\n") == [
        "",
        "[TRT-LLM] [E] request failed",
        "My server crashes when I send two requests",
        "",
    ]


def test_the_release_with_the_fix_does_not_have_the_bug():
    bugs = [(rule.code, bug) for rule in BOOK for bug in rule.front.evidence if bug.fixed]
    assert len(bugs) > 100
    for code, bug in bugs:
        assert Version(bug.fixed) not in SpecifierSet(bug.releases, prereleases=True), (code, bug.message)
        assert all("#" in source or "@" in source for source in bug.source), (code, bug.message)


def test_every_page_that_evidence_outdoes_exists():
    for rule in BOOK:
        for pattern in rule.front.evidence:
            assert all(BOOK.has_rule(code) for code in pattern.over), rule.code


def test_every_set_of_symptom_words_is_a_regular_expression():
    for words in SYMPTOM_WORDS.values():
        assert re.compile(words)
