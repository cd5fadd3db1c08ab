"""The page of a memory plan: sliders in a real browser, answered by the code that `trtdx memory` runs."""

from __future__ import annotations

import json
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from support.browser import open_browser
from ui.test_server import ask

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
TRTDX = (sys.executable, "-m", "trtdx")
MODEL = ("Llama-3.1-70B", "--gpu", "4xH100", "--max_batch_size", "128", "--max_seq_len", "8192")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("store") / "cases.sqlite")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTDX_STORE", path)
        words = [*TRTDX, "memory", "frontier", *MODEL, "--save"]
        kept = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
        yield kept.stderr.split("kept as case ")[1].split()[0]


@pytest.fixture(scope="module")
def address(store):
    server = subprocess.Popen([*TRTDX, "view"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        yield server.stderr.readline().strip()
    finally:
        server.terminate()
        server.wait(timeout=60)
        server.stderr.close()


def plan_by_command(*flags):
    words = [*TRTDX, "memory", "frontier", "Llama-3.1-70B", "--json", *flags]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=False, timeout=120).stdout)


@pytest.mark.heavy
def test_sliders_plan_what_the_command_plans(address, store):
    flags = ("--max_batch_size", "128", "--max_seq_len", "32768", "--tp", "8", "--gpu", "8xH100")
    expected = plan_by_command(*flags)
    with open_browser() as watched:
        watched.open(address)
        page = watched.page
        page.locator(f"a[href='case/{store}']").click()
        page.get_by_text("change batch, length").click()
        before = page.locator("#plan h1").inner_text()
        for name, value in (("max_seq_len", "32768"), ("tp", "8")):
            slider = page.locator(f"input[name={name}]").locator("xpath=preceding-sibling::input")
            place = slider.get_attribute("data-values").split().index(value)
            slider.fill(str(place))
        page.wait_for_url("**tp=8**")
        page.wait_for_function(
            "text => document.querySelector('#plan h1').innerText.includes(text)", arg=expected["summary"]["text"]
        )
        assert page.locator("#plan h1").inner_text() != before
        assert page.locator("#plan figure").first.locator("text", has_text="rank 7").count() == 1
        own = next(
            point["max_batch_size"]
            for point in expected["frontier"]
            if (point["max_seq_len"], point["max_num_tokens"]) == (32768, 8192)
        )
        assert page.locator("td.marked").inner_text() == str(own)
        page.reload()  # every state has an address
        assert expected["summary"]["text"] in page.locator("#plan h1").inner_text()
        assert page.locator("input[name=tp]").input_value() == "8"
        page.keyboard.press("u")
        page.wait_for_selector("tbody tr")
    assert watched.problems == []
    assert all(url.startswith("http://127.0.0.1:") for url in watched.requests)


@pytest.mark.heavy
def test_the_page_is_guarded_and_takes_only_numbers(address, store):
    query = urlsplit(address).query
    path = f"/case/{store}/memory"
    assert ask(address, path)[0] == 403
    assert ask(address, f"{path}?token=wrong&part=plan")[0] == 403
    assert ask(address, f"{path}?{query}", Host="evil.example")[0] == 421
    for value in ("0", "-1", "1e3", "x", "99999999", "%D9%A3", "<script>"):
        assert ask(address, f"{path}?{query}&tp={value}")[0] == 404, value
    status, headers, page = ask(address, f"{path}?{query}&tp=3&part=plan")
    assert status == 200
    assert "connect-src 'self'" in headers["content-security-policy"]
    assert "cannot run as asked" in page  # and not a plan of what no model can be cut into


@pytest.mark.heavy
def test_a_page_in_a_file_has_no_sliders(tmp_path):
    words = [*TRTDX, "memory", *MODEL, "--html", str(tmp_path / "plan.html")]
    subprocess.run(words, capture_output=True, check=True, timeout=120)
    page = (tmp_path / "plan.html").read_text()
    assert "KV cache" in page
    assert 'type="range"' not in page
