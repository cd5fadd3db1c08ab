"""Output that real programs print here and now, not lines written to look like it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from trtdx.diagnose.logs.prefixes import peel_line


def output(*command, cwd=None, env=None):
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False, cwd=cwd, env=env
    )
    return done.stdout.decode("utf-8", "replace")


def codes(report):
    return [finding.code for finding in report.findings]


def test_a_chain_of_python_exceptions_leads_with_the_first(ask):
    text = output(
        sys.executable,
        "-c",
        "try:\n    import quokka_not_there\nexcept ImportError as e:\n    raise RuntimeError('Executor worker returned error') from e",
    )
    report = ask(text)
    assert report.findings[0].slug == "python-module-missing"
    assert "quokka_not_there" in report.findings[0].message


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups exist since Python 3.11")
def test_an_exception_inside_a_group_is_found(ask):
    text = output(
        sys.executable,
        "-c",
        "raise ExceptionGroup('workers', [ModuleNotFoundError(\"No module named 'quokkapkg'\"), ValueError('b')])",
    )
    assert "  | " in text
    assert "quokkapkg" in ask(text).findings[0].message


@pytest.mark.heavy
def test_pip_finding_no_version(ask, tmp_path):
    text = output(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-index",
        "--disable-pip-version-check",
        "tensorrt_llm==0.6.0",
        cwd=tmp_path,
    )
    finding = ask(text).findings[0]
    assert finding.severity.value == "error"
    assert "tensorrt_llm" in finding.message.lower() or "tensorrt-llm" in finding.message.lower()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc on this machine")
def test_gcc_missing_a_header_and_ld_missing_a_library(ask, tmp_path):
    (tmp_path / "a.cpp").write_text("#include <NvInfer.h>\nint main() { return 0; }\n")
    header = ask(output("gcc", "-c", "a.cpp", cwd=tmp_path)).findings[0]
    assert "NvInfer.h" in header.message + header.evidence[0].text
    assert header.code != "DX000"
    (tmp_path / "b.c").write_text("int main(void) { return 0; }\n")
    library = ask(output("gcc", "b.c", "-lnvinfer_not_here", cwd=tmp_path)).findings
    assert library


def test_a_missing_shared_library_from_the_real_loader(ask):
    text = output(sys.executable, "-c", "import ctypes; ctypes.CDLL('libnvinfer.so.99')")
    assert ask(text).findings[0].code != "DX000"


needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="mpirun is not installed: apt-get install openmpi-bin"
)
ROOT = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@needs_mpirun
def test_ranks_of_a_real_mpirun_with_tagged_output(ask):
    script = "import os, sys; r = os.environ['OMPI_COMM_WORLD_RANK']; print('hello', flush=True); r == '1' and sys.stderr.write('[TensorRT-LLM][ERROR] quux flux\\n')"
    text = output("mpirun", "--oversubscribe", "--tag-output", "-n", "2", sys.executable, "-c", script, env=ROOT)
    tagged = [peel_line(line) for line in text.splitlines() if "hello" in line or "quux" in line]
    assert {each.rank for each in tagged} == {0, 1}
    failed = next(each for each in tagged if "quux" in each.message)
    assert (failed.rank, failed.level, failed.message) == (1, "error", "quux flux")


@needs_mpirun
def test_a_real_mpirun_without_enough_slots(ask):
    report = ask(output("mpirun", "-n", "512", "hostname", env=ROOT))
    assert "slots" in report.findings[0].message
    assert any("oversubscribe" in (fix.command or "") + fix.text for fix in report.findings[0].fixes)


@needs_mpirun
@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
def test_a_real_mpirun_refusing_root(ask):
    env = {key: value for key, value in os.environ.items() if not key.startswith("OMPI_")}
    assert "root" in ask(output("mpirun", "-n", "1", "hostname", env=env)).findings[0].message


@pytest.mark.heavy
@needs_mpirun
def test_a_rank_killed_by_a_real_signal(ask):
    text = output(
        "mpirun",
        "--oversubscribe",
        "-n",
        "2",
        sys.executable,
        "-c",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        env=ROOT,
    )
    finding = ask(text).findings[0]
    assert finding.code != "DX000"
    if "signal 9" in text:  # mpirun does not always come to say it
        assert "signal 9" in finding.message or "killed" in finding.message
