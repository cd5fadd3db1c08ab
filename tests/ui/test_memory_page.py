"""A memory plan that is kept can be asked again with sliders; `memory` itself computes what they ask."""

from __future__ import annotations

import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from support.browser import open_browser

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
SLOWEST_MS = 60_000


@pytest.fixture
def address(tmp_path, monkeypatch):
    monkeypatch.setenv("TRTDX_STORE", str(tmp_path / "cases.sqlite"))
    words = [sys.executable, "-m", "trtdx"]
    plan = ["memory", "meta-llama/Llama-3.1-8B", "--gpu", "H100", "--max-batch-size", "64", "--max-seq-len", "8192"]
    subprocess.run([*words, *plan, "--save"], capture_output=True, check=True, timeout=120)
    server = subprocess.Popen([*words, "view"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        yield server.stderr.readline().strip()
    finally:
        server.terminate()
        server.communicate(timeout=60)


def test_sliders_give_another_plan_and_another_address(address):
    with open_browser() as watched:
        watched.open(address)
        page = watched.page
        page.locator("tbody a").first.click()
        page.get_by_text("change batch, length").click()
        assert "54 requests of 8192" in page.locator("#plan").inner_text()
        lengths = page.locator("input[type=range]").nth(1)
        lengths.focus()
        page.keyboard.press("ArrowRight")
        page.get_by_text("27 requests of 16384").wait_for(timeout=SLOWEST_MS)
        assert "max_seq_len 8192 → 16384" in page.locator("#plan").inner_text()
        assert "max_seq_len=16384" in urlsplit(page.url).query
        page.reload()  # the address is the state
        assert "27 requests of 16384" in page.locator("#plan").inner_text()
        page.fill("input[name=max_num_tokens]", "0")
        page.get_by_text("max_num_tokens is a whole number").wait_for(timeout=SLOWEST_MS)
    assert watched.problems == ["Failed to load resource: the server responded with a status of 404 (Not Found)"]
    assert all(url.startswith("http://127.0.0.1:") for url in watched.requests)
