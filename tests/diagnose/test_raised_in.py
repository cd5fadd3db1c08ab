from __future__ import annotations

import msgspec
import pytest

from trtdx.diagnose.run import diagnose_sources, source_from_text
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book
from trtdx.model import Report
from trtdx.render import render_text
from trtdx.render.json import render_json

# Messages of 0.8.0 to 0.10.0 only, printed to the format in their source.
OLD_BUILD = """\
[04/22/2024-16:40:34] [TRT-LLM] [W] remove_input_padding is enabled, while max_num_tokens is not set, setting to max_batch_size*max_input_len. 
It may not be optimal to set max_num_tokens=max_batch_size*max_input_len when remove_input_padding is enabled, because the number of packed input tokens are very likely to be smaller, we strongly recommend to set max_num_tokens according to your workloads.
[04/22/2024-16:40:36] [TRT-LLM] [E] Engine building failed, please check the error log.
"""  # fmt: skip # noqa: W291
UNKNOWN_CHECK = (
    "[TensorRT-LLM][ERROR] Assertion failed: !(params.block_size % 4 != 0 && sizeof(T) == 2) "
    "(/w/cpp/tensorrt_llm/kernels/lruKernel.cu:40)\n"
)


@pytest.fixture(scope="module")
def book():
    return load_book(RealHost())


def diagnose(text, book, **others):
    sources = [source_from_text(content, name) for name, content in {"log": text, **others}.items()]
    return diagnose_sources(sources, book)


def test_evidence_says_where_a_line_was_raised(book):
    report = diagnose(OLD_BUILD, book)
    places = {place.path for finding in report.findings for line in finding.evidence for place in line.raised_in}
    assert "tensorrt_llm/builder.py" in places
    assert "raised in tensorrt_llm/builder.py, function Builder.build_engine" in render_text(report, details=True)
    assert "      raised in" not in render_text(report)
    again = msgspec.json.decode(render_json(report), type=Report)
    assert again == report


@pytest.mark.heavy
def test_the_release_is_inferred_or_stated(book):
    release = diagnose(OLD_BUILD, book).summary.release
    assert (release.first, release.last, release.is_stated) == ("0.8.0", "0.10.0", False)
    assert "looks like TensorRT-LLM 0.8.0 to 0.10.0" in render_text(diagnose(OLD_BUILD, book))
    stated = diagnose("[TensorRT-LLM] TensorRT-LLM version: 0.9.0\n" + OLD_BUILD, book).summary.release
    assert (stated.first, stated.last, stated.where) == ("0.9.0", "0.9.0", "log:1")


def test_what_no_rule_knows_is_explained_by_its_source(book):
    finding = next(each for each in diagnose(UNKNOWN_CHECK, book).findings if each.code == "DX000")
    assert "raised in cpp/tensorrt_llm/kernels/lruKernel.cu" in finding.why
    assert "Its condition is about" in finding.why
    assert "block_size" in finding.why


def test_ranks_of_different_releases(book):
    ranks = {
        f"rank{rank}.log": f"[TensorRT-LLM] TensorRT-LLM version: 1.{rank}.0\nMPI_ABORT was invoked on rank {rank}\n"
        for rank in (0, 1)
    }
    findings = diagnose_sources([source_from_text(text, name) for name, text in ranks.items()], book).findings
    mismatch = next(finding for finding in findings if finding.code == "DX1000")
    assert mismatch.message == "programs of one job run TensorRT-LLM 1.0.0 and 1.1.0"
    assert [line.where for line in mismatch.evidence] == ["rank0.log:1", "rank1.log:1"]
    upgraded = "\n".join(ranks.values())  # one program, started again
    assert "DX1000" not in [finding.code for finding in diagnose(upgraded, book).findings]
    apart = {"monday.log": ranks["rank0.log"], "tuesday.log": ranks["rank1.log"]}
    findings = diagnose_sources([source_from_text(text, name) for name, text in apart.items()], book).findings
    assert "DX1000" not in [finding.code for finding in findings]


def test_a_healthy_log_asks_nothing(book):
    report = diagnose("[TensorRT-LLM][INFO] MPI size: 1, MPI local size: 1, rank: 0\n", book)
    assert report.findings == ()
    assert report.summary.release is None
