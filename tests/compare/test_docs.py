"""docs/compare.md shows what is really printed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from support.paths import ROOT

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")

BLOCKS = re.findall(r"```text\n(\$ .*?)```", (ROOT / "docs" / "compare.md").read_text(), re.DOTALL)


def told(text):
    """Return lines without what may be another on another machine: how large noise is, and so how wide columns are."""
    plain = re.sub(r"\d[\d.]*(?:e[+-]\d+)?\b", "N", text)
    return [" ".join(line.split()) for line in plain.splitlines() if line.strip()]


def test_the_page_has_examples():
    assert len(BLOCKS) == 2


@pytest.mark.heavy
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split()[3])
def test_examples_print_what_the_page_shows(block, tmp_path):
    shutil.copytree(ROOT / "examples" / "tiny" / "model", tmp_path / "model")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command, shown in re.findall(r"\$ (.*)\n((?:(?!\$ ).*\n)*)", block):
        words = command.replace("trtdx ", f"{sys.executable} -m trtdx ", 1)
        done = subprocess.run(words, shell=True, capture_output=True, text=True, cwd=tmp_path, check=False)
        printed = told(done.stdout)
        for line in told(shown.replace("...\n", "")):
            assert line in printed, f"{line!r} is not among what {command} prints:\n{done.stdout}{done.stderr}"
