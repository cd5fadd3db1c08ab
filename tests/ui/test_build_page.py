"""A debug build beside the production one, as a page."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.browser import open_browser
from support.paths import SUPPORT

pytest.importorskip("tensorrt_rtx", reason="compiles with the real TensorRT")
MLP = f"{SUPPORT / 'network_definitions.py'}:mlp"


@pytest.mark.heavy
def test_the_page_shows_what_debugging_changed(tmp_path):
    page_file = tmp_path / "build.html"
    words = [sys.executable, "-m", "trtdx", "capture", "build", MLP, "--profile", "x:1x64,2x64,4x64"]
    words += ["--variant", "outputs", "--tap", "layers.*.fc", "--html", str(page_file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    with open_browser() as watched:
        watched.open(page_file.as_uri())
        figures = watched.page.locator("figure")
        assert figures.count() == 2
        kernels = figures.first.text_content()
        assert "kernels by type" in kernels
        assert "production" in kernels
        assert "outputs" in kernels
        assert "gemm: 3.00 kernels" in kernels
        assert "kgen: 2.00 kernels" in kernels
        assert "output bindings" in figures.nth(1).text_content()
        text = watched.page.locator("main").inner_text()
        assert "fusions lost" in text
        assert "layers.0.fc" in text
    assert watched.problems == []
    assert len(watched.requests) == 1
