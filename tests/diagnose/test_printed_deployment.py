"""Causes that stand in no error: in the command line, the release and the GPU that a log prints."""

from __future__ import annotations

import pytest

from trtdx.diagnose.run import diagnose_sources, source_from_text
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book

BOOK = load_book(RealHost())
RELEASE = "[TensorRT-LLM] TensorRT-LLM version: 1.2.1"
A100 = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-x)"
ODD = "[TRT-LLM] [E] something odd happened in a worker"
WRONG = "+ trtllm-serve /models/llama --tp_size 2 --max_batchsize 4"


def diagnose(*lines):
    return diagnose_sources([source_from_text("\n".join(lines) + "\n")], BOOK)


def codes(*lines):
    return [finding.code for finding in diagnose(*lines).findings]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        ((RELEASE, WRONG, ODD), "DX246", "did you mean --max_batch_size?"),
        ((RELEASE, "root@box:/w# trtllm-build --checkpoint_dir C \\", "  --max_output_len 9", ODD), "DX154", "--max_output_len"),
        ((A100, "[TRT-LLM] [I] quant_algo: NVFP4", ODD), "DX325", "NVFP4"),
        ((A100, "[TRT-LLM] [I] quant_algo=<QuantAlgo.FP8: 'FP8'>", ODD), "DX102", "FP8"),
        (("GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-x)", RELEASE, ODD), "DX060", "1.2.1 has no kernels"),
    ],
)  # fmt: skip
def test_what_the_release_or_the_gpu_cannot_do_is_the_cause(lines, code, words):
    finding = diagnose(*lines).findings[0]
    assert finding.code == code
    assert words in finding.message
    assert finding.evidence[0].where.startswith("log:")


@pytest.mark.heavy
@pytest.mark.parametrize(
    "lines",
    [
        (RELEASE, "+ trtllm-serve /models/llama --tp_size 2 --max_batch_size 4", ODD),
        (WRONG, ODD),  # whichever release that is
        (RELEASE, "see trtllm-serve --max_batchsize for more", ODD),
        (A100, "[TRT-LLM] [I] quant_algo: W4A16_AWQ", ODD),
        (A100, "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-y)", "[TRT-LLM] [I] quant_algo: FP8", ODD),  # which one runs it?
        ("NVFP4 needs an NVIDIA B200, not an NVIDIA A100", "quant_algo: NVFP4", ODD),
    ],
)  # fmt: skip
def test_what_fits_or_is_in_doubt_is_no_cause(lines):
    assert not {"DX246", "DX154", "DX060", "DX102", "DX325"} & set(codes(*lines))


def test_a_log_that_went_well_is_not_asked():
    assert codes(RELEASE, WRONG, "INFO:     Application startup complete.") == []


def test_beside_a_sure_cause_it_is_a_remark_at_the_end():
    sure = "trtllm-serve: error: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use"
    report = diagnose(RELEASE, WRONG, sure)
    assert report.findings[0].code == "DX227"
    assert [(one.code, one.severity.value) for one in report.findings[1:]] == [("DX246", "note")]
