"""Two occurrences of one error have one fingerprint; two errors have two."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtdx.cases.deployment_words import named_gpus, named_models, stated_release
from trtdx.cases.facts import facts_from_report, group_number
from trtdx.cases.fingerprints import error_fingerprints, line_fingerprint, normalize_line, stack_frames

SAME = [
    (
        "gpu7:2203:2312 [2] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-k2Xv8a to 9637892 bytes",
        "dgx-03:99:41 [7] misc/shmutils.cc:80 NCCL WARN Error: failed to extend /dev/shm/nccl-Zz81aa to 33554432 bytes",
    ),
    (
        "[TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (2 != 4) (/src/cpp/worldConfig.cpp:88)",
        "[1,3]<stderr>: [TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (1 != 8) (/b/cpp/worldConfig.cpp:91)",
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.10 GiB",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 3 has a total capacity of 44.39 GiB",
    ),
    (
        "2026-11-02 10:00:01 ERROR connect to 10.0.0.3:29500 from node dgx-17 failed at 0x7f1200ab",
        "2026-01-30 23:11:59 ERROR connect to 192.168.7.21:29511 from node hgx4 failed at 0x55aa01",
    ),
    (
        "RuntimeError: cannot load /models/Llama-3.1-8B/config.json",
        "RuntimeError: cannot load /data/nfs/v2/weights/config.json",
    ),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_changes_from_run_to_run_is_not_in_a_fingerprint(one, other):
    assert line_fingerprint(one) == line_fingerprint(other)
    assert line_fingerprint(one)


def test_different_errors_stay_different():
    fingerprints = {line_fingerprint(one) for one, _ in SAME}
    assert len(fingerprints) == len(SAME)
    assert normalize_line("cannot open /a/b/model.onnx") != normalize_line("cannot open /a/b/model.engine")


@given(st.text(max_size=400))
def test_a_fingerprint_is_a_fixed_point_and_never_fails(text):
    once = normalize_line(text)
    assert len(once) <= 240
    error_fingerprints([text])
    stack_frames([text])


def test_complaints_are_kept_and_talk_is_not():
    lines = ["[TensorRT-LLM][INFO] no error so far", "[TensorRT-LLM][ERROR] it failed 3 times"] * 50
    assert error_fingerprints(lines) == ["it failed # times"]


def test_stacks_of_python_and_of_libraries():
    lines = [
        '  File "/usr/lib/python3/llm.py", line 3, in generate',
        '  File "C:/x/executor.py", line 33, in submit',
        "1       0x7f12ab34cd tensorrt_llm::common::throwRuntimeError(char const*, int) + 100",
    ]
    assert stack_frames(lines) == ["tensorrt_llm::common::throwRuntimeError", "executor.py:submit", "llm.py:generate"]


@pytest.mark.parametrize(
    ("text", "models"),
    [
        ("/models/meta-llama/Llama-3.1-8B-Instruct", ("llama-3.1-8b", "llama")),
        ("Qwen2.5-72B-Instruct", ("qwen-2.5-72b", "qwen")),
        ("Mixtral-8x7B-v0.1", ("mixtral-8x7b", "mixtral")),
        ("DeepSeek-V3", ("deepseek-3", "deepseek")),
        ("microsoft/phi-3-mini", ("phi-3", "phi")),
        ("the options of this build", ()),
    ],
)
def test_models_are_known_by_their_names(text, models):
    assert named_models(text) == models


def test_gpus_and_releases_are_known_by_their_names():
    assert named_gpus("NVIDIA H100 80GB HBM3 and an L40S, not H1000") == ("H100", "L40S")
    assert stated_release("[TensorRT-LLM] TensorRT-LLM version: 1.2.1") == "1.2.1"
    assert stated_release("tensorrt_llm==0.20.0rc3") == "0.20.0rc3"
    assert stated_release("torch==2.7.1") == ""


def test_a_re_occurrence_belongs_to_the_same_group(ask):
    facts = [facts_from_report(ask(text), [text]) for pair in SAME[:2] for text in pair]
    groups = [group_number(fact) for fact in facts]
    assert groups[0] == groups[1]
    assert groups[2] == groups[3]
    assert groups[0] != groups[2]
