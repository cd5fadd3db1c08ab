"""Laws that hold for any input."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtdx.diagnose.rule_examples import RuleExamples
from trtdx.diagnose.run import diagnose_sources, source_from_text
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book
from trtdx.render import render_json, render_markdown, render_text
from trtdx.render.json import report_from_json

BOOK = load_book(RealHost())
EXAMPLES = [example for rule in BOOK for example in rule.fires_on]
GARNISH = [
    "\x1b[31m",
    "\r",
    "\0",
    "\ufeff",
    "[1,3]<stderr>:",
    "3: ",
    "[TRT-LLM] [E] ",
    "\u202e",
    "é",
    "\t",
    "\n",
    "{",
    "%s",
    "[rank2]:",
]


@pytest.mark.heavy
@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=3000))
def test_no_bytes_make_it_raise(data):
    report = diagnose_sources([source_from_text(data)], BOOK)
    assert report_from_json(render_json(report)) == report
    assert render_text(report)
    assert render_markdown(report)


@pytest.mark.heavy
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(EXAMPLES), st.sampled_from(GARNISH), st.text(max_size=20)), max_size=6).map(
        "".join
    )
)
def test_no_mixture_of_real_lines_and_rubbish_makes_it_raise(text):
    report = diagnose_sources([source_from_text(text)], BOOK)
    assert all(0 <= finding.confidence <= 1 for finding in report.findings)
    assert report_from_json(render_json(report)) == report


@pytest.mark.heavy
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(EXAMPLES), min_size=2, max_size=4, unique=True),
    st.randoms(use_true_random=False),
)
def test_the_order_of_files_does_not_change_the_report(texts, rng):
    sources = [source_from_text(text, f"log{number}") for number, text in enumerate(texts)]
    shuffled = sources[:]
    rng.shuffle(shuffled)
    assert diagnose_sources(sources, BOOK) == diagnose_sources(shuffled, BOOK)


@pytest.mark.heavy
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(EXAMPLES), st.integers(1, 64))
def test_the_size_of_blocks_does_not_change_the_findings(text, size):
    from trtdx.diagnose.logs.sources import LogSource

    data = text.encode()
    cut = LogSource("log", lambda: (data[at : at + size] for at in range(0, len(data), size)))
    assert diagnose_sources([cut], BOOK).findings == diagnose_sources([source_from_text(text)], BOOK).findings


@pytest.mark.heavy
def test_a_bounded_fuzz_run_over_mutated_logs():
    rng = random.Random(11)
    promises = RuleExamples(BOOK)
    for _ in range(2000):
        data = bytearray(rng.choice(EXAMPLES).encode())
        for _ in range(rng.randrange(1, 9)):
            at = rng.randrange(len(data) + 1)
            data[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(6))
        report = promises.diagnose_text(data.decode("utf-8", "replace"))
        assert report.summary.inputs == 1


@pytest.mark.heavy
def test_a_secret_in_any_line_never_leaves_in_any_form():
    secret = "hf_" + "Qw3rTyUiOpAsDfGhJkLz"
    for example in EXAMPLES[::7]:
        spiced = "\n".join(f"{line} {secret}" for line in example.splitlines()) + f"\npassword={secret[::-1]}\n"
        report = diagnose_sources([source_from_text(spiced)], BOOK)
        for out in (render_json(report), render_text(report, details=True), render_markdown(report)):
            assert secret not in out
            assert secret[::-1] not in out


@pytest.mark.heavy
def test_memory_stays_bounded_as_logs_and_lines_grow(tmp_path):
    block = b"".join(
        b"[TensorRT-LLM][INFO] iteration %d of request %d took %d us\n" % (n, n * 7, n * 13 % 997)
        for n in range(200_000)
    )
    peaks = []
    for name, parts in (("small", 1), ("large", 30)):
        log = tmp_path / name
        with log.open("wb") as file:
            for _ in range(parts):
                file.write(block)
            file.write(
                b"x" * (parts << 20) + b"\n[TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (2 != 4)\n"
            )
        code = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        done = subprocess.run(
            [sys.executable, "-c", code, sys.executable, "-m", "trtdx", "diagnose", str(log)],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(done.stdout) / 1024)
    assert peaks[1] < 300
    assert peaks[1] < peaks[0] * 1.3
