"""The commands of the docs, run as a reader would paste them, a page after the other."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TINY = ROOT / "examples" / "tiny"
PAGES = ("capture", "compare", "diagnose", "inspect", "memory")


def commands_of(page: str) -> list[tuple[list[str], str]]:
    """Return the commands of a page's shell examples as words, and what is piped into each."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M) for line in block.splitlines()]
    found = []
    for line in lines:
        before, _, own = line.removeprefix("$ ").rpartition("| ")
        words = shlex.split(own, comments=True)
        if words[:1] == ["trtdx"] and "--follow" not in words:  # which only ends with Ctrl-C
            found.append((words, before))
    return found


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """Stand in a folder that has what the examples name, and return the command line as a function."""
    from trtdx.cli.main import main

    for part in ("model", "model.onnx"):
        (tmp_path / part).symlink_to(TINY / part)
    (tmp_path / "a.onnx").symlink_to(TINY / "model.onnx")
    (tmp_path / "b.onnx").symlink_to(TINY / "rotary-mistake.onnx")
    for part in ("engine", "checkpoint", "triton_repo"):  # names are what matters
        shutil.copytree(ROOT / "examples" / "deployment" / "engine", tmp_path / part)
    shutil.copy(ROOT / "examples" / "logs" / "serve-out-of-memory.log", tmp_path / "server.log")
    shutil.copytree(ROOT / "examples" / "logs" / "four-ranks", tmp_path / "logs")
    (tmp_path / "traffic.jsonl").write_text(json.dumps({"input_len": 900, "output_len": 100}) + "\n")
    for name in ("extra.yaml", "options.yaml"):
        (tmp_path / name).write_text("kv_cache_config: {free_gpu_memory_fraction: 0.8}\n")
    monkeypatch.chdir(tmp_path)

    def run(words, piped=""):
        monkeypatch.setattr(sys, "argv", words)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped.encode())))
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0

    return run


@pytest.mark.heavy
@pytest.mark.parametrize("page", PAGES)
def test_every_shell_example_of_the_docs_runs(page, desk, capfd, monkeypatch):
    if page in ("capture", "compare"):
        for package in ("torch", "transformers", "tensorrt_rtx", "onnxruntime", "tokenizers"):
            pytest.importorskip(package)
    if page == "capture":
        Path("model").unlink()
        shutil.copytree(TINY / "model", "model")
        write_tokenizer(Path("model/tokenizer.json"))
    if page == "inspect":
        Path("server.log").write_bytes(trace_log(monkeypatch))
    if page == "compare":
        for name in ("good-run", "run-of-today", "capture-of-the-engine"):
            desk(shlex.split(f"trtdx capture ./model --tokens 1,15,27 --new-tokens 2 --values '**' --out {name}"))
    given = commands_of(page)
    assert given
    for words, piped in given:
        status = desk(words, piped)
        said = capfd.readouterr()
        assert status in (0, 1), f"{shlex.join(words)}\n{said.out[-500:]}\n{said.err}"
        assert "Traceback" not in said.err


def trace_log(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return a log with tables of shapes."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "inspect"))
    from support import make_trace_log as make

    tensors = make.glm_tensors()
    tables = (
        make.engine_table(tensors, [make.glm_profile()]),
        make.context_table(tensors, make.glm_shapes(300, 3)),
    )
    return make.log_bytes(*map(make.lines, tables))


def write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"Hello": 5, "[UNK]": 0}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(path))
