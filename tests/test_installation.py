"""trtdx in environments that have only some of its packages: what works, what is asked for, and with which command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from trtdx import installation

ROOT = Path(__file__).parent.parent
TINY = ROOT / "examples" / "tiny"


def distributions_of(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> set[str]:
    """Return all distributions that one needs with these extras, as they are installed here."""
    if (name, extras) in seen:
        return set()
    seen.add((name, extras))
    names = {name}
    for line in metadata.requires(name) or ():
        requirement = Requirement(line)
        chosen = [{"extra": extra} for extra in extras] or [{"extra": ""}]
        if requirement.marker is None or any(requirement.marker.evaluate(extra) for extra in chosen):
            names |= distributions_of(requirement.name, frozenset(requirement.extras), seen)
    return names


def make_environment(folder: Path, extras: frozenset[str]) -> Path:
    """Return the interpreter of a virtual environment that has trtdx with these extras, and nothing more."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    tops = {}
    for name in distributions_of("trtdx", extras, set()) - {"trtdx"}:
        distribution = metadata.distribution(name)
        tops |= {file.parts[0]: distribution.locate_file(file.parts[0]) for file in distribution.files or ()}
    for top in tops.keys() - {"..", "__pycache__"}:
        (packages / top).symlink_to(tops[top])
    (packages / "trtdx.pth").write_text(f"{ROOT / 'src'}\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    return make_environment(tmp_path_factory.mktemp("core") / "venv", frozenset())


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory):
    return make_environment(tmp_path_factory.mktemp("all") / "venv", frozenset({"all"}))


def run_trtdx(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    argv = [str(python), "-m", "trtdx", *words]
    return subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=300, check=False)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("words", "extras"),
    [
        (("compare", f"hf:{TINY}/model", f"onnx:{TINY}/model.onnx", "--tokens", "1 2"), "capture,onnx,torch"),
        (("compare", f"{TINY}/model.onnx", f"{TINY}/rotary-mistake.onnx"), "capture,onnx"),
        (("compare", "--baseline", "run"), "capture"),
        (("compare", f"onnx:{TINY}/model.onnx", "--precision-search", "out.onnx"), "capture,onnx"),
        (("compare", f"trt:{TINY}/model.onnx", f"onnx:{TINY}/model.onnx"), "capture,onnx,torch,trt"),
        (("capture", "build", f"{TINY}/model.onnx"), "trt"),
        (("capture", "build", f"{TINY}/model.onnx", "--tap", "**"), "onnx,trt"),
        (("memory", f"{TINY}/model", "--gpu", "H100", "--compile"), "trt"),
        (("capture", f"{TINY}/model.onnx", "--tokens", "1,2"), "capture,onnx"),
        (("capture", f"{TINY}/model", "--tokens", "1,2"), "capture,torch"),
        (("capture", f"{TINY}/model.onnx", "--engine", "tensorrt"), "capture,onnx,torch,trt"),
        (("memory", f"{TINY}/model", "--gpu", "H100", "--plot", "frontier.png"), "plot"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_a_core_install_asks_for_the_extra_and_never_says_that_the_model_is_wrong(core, words, extras):
    done = run_trtdx(core, *words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert f"[{extras}]" in done.stderr


@pytest.mark.heavy
@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("rules", "list"),
        ("inspect", f"{TINY}/model"),
        ("memory", f"{TINY}/model", "--gpu", "H100"),
    ],
)
def test_a_core_install_does_what_needs_no_extra(core, words):
    done = run_trtdx(core, *words)
    assert done.returncode == 0, done.stderr


def test_arguments_come_before_packages(core):
    done = run_trtdx(core, "compare", "reference-only")
    assert "name a candidate" in done.stderr


def test_a_script_is_told_the_command_too(core):
    done = subprocess.run(
        [core, "-c", "import trtdx; trtdx.compare('onnx:a.onnx', 'hf:b')"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "MissingExtraError" in done.stderr
    assert "[capture,onnx,torch]" in done.stderr


@pytest.mark.heavy
def test_without_torch_the_place_is_found_and_torch_is_offered_to_find_the_cause(without_torch):
    sides = (f"onnx:{TINY}/model.onnx", f"onnx:{TINY}/rotary-mistake.onnx")
    done = run_trtdx(without_torch, "compare", *sides, "--tokens", "5 17 42 9 8 7", "--json")
    assert done.returncode == 1, done.stderr
    finding = json.loads(done.stdout)["findings"][0]
    assert finding["code"] == "DX925"
    assert "model.layers.0.self_attn" in finding["message"]
    assert "torch is not installed" in finding["message"]
    assert "[torch]" in finding["fixes"][0]["command"]


def test_a_bug_of_ours_never_has_the_status_that_means_findings(core, tmp_path):
    broken = "import trtdx.cli.main as m; m.app = lambda **_: 1 / 0; m.main()"
    done = subprocess.run([core, "-c", broken], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "ZeroDivisionError" in done.stderr
    assert "bug in trtdx" in done.stderr


class _Distribution:
    def __init__(self, record: object) -> None:
        self.record = record

    def read_text(self, name: str) -> str | None:
        return None if self.record is None else json.dumps(self.record)


@pytest.mark.parametrize(
    ("record", "marker", "command"),
    [
        (None, "", "{python} -m pip install 'trtdx[onnx]'"),
        ({"url": "file:///a%20b", "dir_info": {}}, "", "{python} -m pip install '/a b[onnx]'"),
        (
            {"url": "file:///src", "dir_info": {"editable": True}},
            "",
            "{python} -m pip install -e '/src[onnx]'",
        ),
        (
            {"url": "https://example.org/t.git", "vcs_info": {"vcs": "git", "requested_revision": "v1"}},
            "",
            "{python} -m pip install 'trtdx[onnx] @ git+https://example.org/t.git@v1'",
        ),
        (None, "uv-receipt.toml", "uv tool install --force 'trtdx[onnx]'"),
        ({"url": "file:///src", "dir_info": {}}, "pipx_metadata.json", "pipx install --force '/src[onnx]'"),
    ],
)
def test_the_install_command_fits_how_trtdx_was_installed(monkeypatch, tmp_path, record, marker, command):
    monkeypatch.setattr(metadata, "distribution", lambda name: _Distribution(record))
    monkeypatch.setattr(metadata, "requires", lambda name: [])
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    if marker:
        (tmp_path / marker).touch()
    assert installation.install_extras("onnx") == command.format(python=sys.executable)


def test_every_package_that_is_asked_for_belongs_to_an_extra():
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    extras = set(metadata.metadata("trtdx").get_all("Provides-Extra") or [])
    assert set(re.findall(r'extra="(\w+)"', sources)) <= extras
