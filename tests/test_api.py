"""`import trtdx`: light, and all that docs/api.md promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import trtdx
from trtdx.model import Report

ROOT = Path(__file__).parent.parent
PACKAGES = ("capture", "check", "compare", "diagnose", "inspect", "memory")


def test_importing_trtdx_imports_nothing_heavy():
    code = "import sys, trtdx; dir(trtdx); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"numpy", "rich", "typer", "torch", "msgspec"} & set(done.stdout.split()) == set()


def test_everything_listed_is_there_and_documented():
    page = (ROOT / "docs" / "api.md").read_text()
    for name in trtdx.__all__:
        assert getattr(trtdx, name) is not None
        assert name == "__version__" or f"`{name}`" in page or f"trtdx.{name}(" in page, name
    with pytest.raises(AttributeError, match="no attribute 'diagnoze'"):
        trtdx.diagnoze  # noqa: B018


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_is_callable_whichever_module_of_it_was_imported_first(name):
    code = f"import trtdx.{name}.run, trtdx; assert callable(trtdx.{name}); import trtdx.{name}; from trtdx.{name} import run"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.heavy
def test_questions_have_reports_for_answers(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("[TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (2 != 4)\n")
    for report in (trtdx.diagnose(log), trtdx.diagnose(text=log.read_text())):
        assert isinstance(report, Report)
        assert report.findings[0].slug == "world-size-mismatch"
        assert report.worst_severity() is trtdx.Severity.ERROR
    plan = trtdx.memory("Llama-3.1-8B", gpu="2xL4", tp=2, max_batch_size=8, frontier=True)
    assert plan.memory["setup"]["layout"]["tp"] == 2
    assert plan.frontier
    engine = trtdx.inspect(ROOT / "examples" / "deployment" / "engine", show=["settings"])
    assert "settings" in {section.key for section in engine.sections}


def test_what_cannot_be_answered_raises_with_a_way_out():
    with pytest.raises(trtdx.TrtdxError) as raised:
        trtdx.diagnose()
    assert raised.value.fix
    with pytest.raises(trtdx.TrtdxError, match="no-such-model"):
        trtdx.memory("no-such-model", gpu="H100")


@pytest.mark.heavy
def test_a_capture_can_be_opened_and_compared(tmp_path):
    pytest.importorskip("onnxruntime")
    model = ROOT / "examples" / "tiny" / "model.onnx"
    run = trtdx.capture(model, tokens=[5, 17, 42], new_tokens=2, values="**", out=tmp_path / "run")
    with run.open() as capture:
        assert capture.ranks
    assert run.report.summary.text
    again = trtdx.capture(model, tokens=[[5, 17, 42]], new_tokens=2, values="**", out=tmp_path / "again")
    assert trtdx.compare(run.folder, again.folder).healthy
