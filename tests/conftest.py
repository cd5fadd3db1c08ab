from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings

from trtdx.cli.main import main
from trtdx.diagnose.run import diagnose_sources, source_from_text
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book
from trtdx.memory.logs.diagnose_hook import with_memory_figures
from trtdx.rule import RuleBook, parse_rule

# Speed is measured in benchmarks/, never asserted: a loaded machine is no fault.
settings.register_profile("trtdx", deadline=None)
settings.load_profile("trtdx")

# The cores belong to the other workers. Read by torch and OpenBLAS when they are first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts anew, to be reviewed")


@pytest.fixture(scope="session", autouse=True)
def own_store(tmp_path_factory):
    """Keep the cases of tests out of the store of whoever runs them."""
    os.environ["TRTDX_STORE"] = str(tmp_path_factory.mktemp("store") / "cases.sqlite")
    os.environ.pop("TRTDX_CASE_FILES", None)


@pytest.fixture(autouse=True)
def unblocked_signals():
    """Fail the test that leaves signals blocked: what later tests start would ignore SIGTERM and never end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    after = signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert after == before


@pytest.fixture(scope="session")
def book() -> RuleBook:
    return load_book(RealHost())


@pytest.fixture(scope="session")
def ask(book):
    """Ask for the report on a text with the packaged rules."""
    return lambda *texts: diagnose_sources(
        [source_from_text(text, f"log{number}") for number, text in enumerate(texts)],
        book,
        refine=with_memory_figures,
    )


@pytest.fixture(scope="session")
def llama_onnx(tmp_path_factory):
    """Return the path of a small Llama as ONNX; exported once for all workers, as that takes long."""
    for package in ("torch", "transformers", "onnxscript"):
        pytest.importorskip(package)
    from support.onnx_models import export_llama

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "llama-onnx"
    with (shared / "llama-onnx.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = tmp_path_factory.mktemp("export")
            export_llama(part)
            part.rename(folder)
    return folder / "llama.onnx"


@pytest.fixture
def trtdx(tmp_path):
    """Run the real command line in a subprocess."""

    def run(
        *args: str, stdin: bytes = b"", env: dict[str, str] | None = None, cwd: Path = tmp_path
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "trtdx", *map(str, args)],
            input=stdin,
            capture_output=True,
            timeout=120,
            check=False,
            cwd=cwd,
            env=os.environ | {"NO_COLOR": "1", "COLUMNS": "100"} | (env or {}),
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def trtdx_here(tmp_path, monkeypatch, capfd):
    """Run the command line in this process: a process for each would be most of the time such tests take."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["trtdx", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capfd.readouterr()
        return subprocess.CompletedProcess(args, ended.value.code or 0, said.out, said.err)

    return run


PAGE = """+++
code = "{code}"
slug = "{slug}"
severity = "{severity}"
stage = "serve"
area = "runtime"
kind = "{kind}"
since = "0.1"
message = "default message of {slug}"
verify = "true"
follows = {follows}
[[fix]]
stage = "serve"
text = "default fix"
[[log]]
pattern = '''{pattern}'''
{extra}
+++
# {slug}
## Why it happens
Because of {slug}.
## What to do
Mend it.
## How to verify
Look.
## Fires on
    {slug}
## Stays silent on
    nothing
"""


@pytest.fixture
def rule():
    """Make a small rule for one test."""

    def make(code, pattern, *, slug="", kind="cause", severity="error", follows=(), extra=""):
        text = PAGE.format(
            code=code,
            slug=slug or code.lower(),
            kind=kind,
            severity=severity,
            pattern=pattern,
            follows=list(follows),
            extra=extra,
        )
        return parse_rule(text, f"{code}.md")

    return make


@pytest.fixture
def golden(request):
    """Compare with a stored text, or store it with --update-golden."""

    def check(name: str, text: str) -> None:
        path = ROOT / "tests" / "golden" / name
        if request.config.getoption("--update-golden"):
            path.write_text(text)
        assert text == path.read_text()

    return check


class Done(NamedTuple):
    """How the command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def memory(monkeypatch, capsys, tmp_path):
    """Run the command line in this process: what a start costs is paid once."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))  # what somebody calibrated is not ours
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["trtdx", "memory", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Done(int(ended.value.code or 0), printed.out, printed.err)

    return run
