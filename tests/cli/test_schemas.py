"""What each command prints as JSON follows the schema in docs/."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LOG = ROOT / "examples" / "logs" / "serve-out-of-memory.log"
TINY = ROOT / "examples" / "tiny"
COMMANDS = {
    "report": [
        ("diagnose", LOG),
        ("diagnose", LOG, "--ignore", "DX012=known"),
        ("inspect", ROOT / "examples" / "deployment" / "engine"),
        ("capture", TINY / "model.onnx", "--list", "**"),
    ],
    "memory": [
        ("memory", "Llama-3.1-70B", "--gpu", "4xH100", "--pp", "2"),
        ("memory", "Llama-3.1-70B"),
        ("memory", "Mixtral-8x7B", "--gpu", "A100-40GB"),
        ("memory", "Llama-3.1-8B", "--gpu", "L4", "--target", "batch=64,seq=8192"),
        ("memory", "frontier", "Llama-3.1-8B", "--gpu", "L4"),
        ("memory", "log", LOG),
        ("memory", "calibrate", LOG, "--model", "Llama-3.1-8B", "--gpu", "L4"),
    ],
    "compare": [
        ("compare", "a.npz", "b.npz"),
        ("compare", "a.npz", "a.npz"),
        ("compare", f"onnx:{TINY}/model.onnx", f"onnx:{TINY}/rotary-mistake.onnx", "--tokens", "5 17 42", "--effort", "quick"),
    ],
}  # fmt: skip
CASES = [(name, words) for name, commands in COMMANDS.items() for words in commands]


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "words"), CASES, ids=lambda value: " ".join(map(str, value))[-60:])
def test_json_follows_its_schema(trtdx, tmp_path, name, words):
    jsonschema = pytest.importorskip("jsonschema")
    numpy = pytest.importorskip("numpy")
    numpy.savez(tmp_path / "a.npz", x=numpy.ones((2, 3), "float32"), y=numpy.ones(3, "float32"))
    numpy.savez(tmp_path / "b.npz", x=numpy.full((2, 3), numpy.nan, "float32"), y=numpy.ones(3, "float32"))
    done = trtdx(*words, "--json", env={"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert done.returncode in (0, 1), done.stderr
    schema = json.loads((ROOT / "docs" / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(done.stdout))
