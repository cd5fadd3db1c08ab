"""`trtdx report`: a case as one page."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.browser import open_browser

ERROR_LINE = (
    "gpu7:2203:2312 [2] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-k2Xv8a to 9637892 bytes"
)


def run_trtdx(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "trtdx", *words], capture_output=True, text=True, check=False, cwd=cwd, timeout=120
    )


@pytest.fixture
def case(tmp_path):
    lines = [f"[TensorRT-LLM][INFO] step {number}" for number in range(300)]
    lines[100] = ERROR_LINE
    lines[101] = "<script>alert(1)</script> token=hf_" + "a" * 34
    (tmp_path / "rank2.log").write_text("\n".join(lines) + "\n")
    done = run_trtdx("diagnose", "rank2.log", "--save", "case", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    return tmp_path / "case"


@pytest.mark.heavy
def test_the_page_shows_the_log_around_the_cause_and_folds_the_rest(case, tmp_path):
    done = run_trtdx("report", "case", "-o", "page.html", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "page.html").read_text()
    assert "hf_aaaa" not in page
    assert "<script>alert" not in page
    with open_browser() as watched:
        watched.open((tmp_path / "page.html").as_uri())
        log = watched.page.locator("main section pre")
        assert "failed to extend" in log.locator(".cause").first.inner_text()
        assert "step 95" in log.inner_text()
        assert "step 50" not in log.inner_text()
        assert "lines ..." in log.inner_text()
    assert watched.problems == []
    assert len(watched.requests) == 1


@pytest.mark.heavy
def test_nothing_is_overwritten_unasked(case, tmp_path):
    (tmp_path / "page.html").write_text("mine")
    done = run_trtdx("report", "case", "-o", "page.html", cwd=tmp_path)
    assert done.returncode == 2
    assert "already exists" in done.stderr
    assert (tmp_path / "page.html").read_text() == "mine"
    assert run_trtdx("report", "case", "-o", "page.html", "--force", cwd=tmp_path).returncode == 0


@pytest.mark.heavy
def test_what_is_no_case_is_refused(tmp_path):
    (tmp_path / "x.trtdx").write_bytes(b"PK\x03\x04 nothing")
    for name in ("x.trtdx", "absent"):
        done = run_trtdx("report", name, "-o", "page.html", cwd=tmp_path)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
