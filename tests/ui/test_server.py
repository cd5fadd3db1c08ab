"""`trtdx view`: cases on loopback, behind a token, in a real browser."""

from __future__ import annotations

import http.client
import subprocess
import sys
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from support.browser import open_browser

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
OUT_OF_SHM = "NCCL WARN Error: failed to extend /dev/shm/nccl-k2Xv8a to 9637892 bytes"
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB."


def write_case(folder, line):
    log = folder.parent / "serve.log"
    log.write_text("\n".join([*(f"step {number} <b>bold</b>" for number in range(1200)), line, ""]))
    words = [sys.executable, "-m", "trtdx", "diagnose", str(log), "--save", str(folder)]
    assert subprocess.run(words, capture_output=True, check=False, timeout=120).returncode == 1
    log.unlink()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    write_case(folder / "shm", OUT_OF_SHM)
    write_case(folder / "oom", OUT_OF_MEMORY)
    (folder / "broken").mkdir()
    (folder / "broken" / "case.jsonl").write_text("{")
    words = [sys.executable, "-m", "trtdx", "view", str(folder)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        yield server.stderr.readline().strip()
        server.terminate()
        assert server.wait(timeout=60) is not None  # although a browser had connections open


def ask(address, path="/", **headers):
    parts = urlsplit(address)
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)) as connection:
        connection.request("GET", path, headers={"Host": parts.netloc, **headers})
        with connection.getresponse() as response:
            return response.status, dict(response.getheaders()), response.read().decode()


@pytest.mark.heavy
def test_without_its_token_or_with_another_host_or_origin_nothing_is_shown(address):
    query = "/?" + urlsplit(address).query
    assert ask(address)[0] == 403
    assert ask(address, "/?token=wrong")[0] == 403
    assert ask(address, "/case/0")[0] == 403
    assert ask(address, query, Host="evil.example")[0] == 421
    assert ask(address, query, Origin="http://evil.example")[0] == 421
    status, headers, page = ask(address, query)
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    assert "3 cases" in page


@pytest.mark.heavy
def test_unknown_pages_are_not_there(address):
    query = "?" + urlsplit(address).query
    for path in ("/case/99", "/case/0/log/9", "/case/-1", "/etc/passwd", "/case/0/log/0/../../.."):
        assert ask(address, path + query)[0] == 404, path


@pytest.mark.heavy
def test_a_person_finds_the_case_and_its_log(address):
    with open_browser() as watched:
        watched.open(address)
        page = watched.page
        assert page.locator("tbody tr").count() == 3
        assert "cannot be read" in page.locator("tbody").inner_text()
        page.fill("input[type=search]", "DX400")
        page.keyboard.press("Enter")
        page.wait_for_url("**q=DX400**")
        page.locator("tbody a").first.click()
        assert "DX400" in page.locator("article h2").inner_text()
        page.get_by_text("the whole log").click()
        assert page.locator(".cause").inner_text().count("failed to extend") == 1
        assert page.locator("b", has_text="bold").count() == 0  # what a log holds is no markup
        page.get_by_text("earlier").click()
        assert "step 700" in page.locator("pre").inner_text()
        page.go_back()
        page.get_by_text("the case", exact=True).click()
        page.get_by_text("all cases").click()
        assert page.locator("tbody tr").count() == 3
    assert watched.problems == []
    assert all(url.startswith("http://127.0.0.1:") for url in watched.requests)


@pytest.mark.heavy
def test_a_folder_without_cases_is_refused_with_a_way_on(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "trtdx", "view", str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "--save" in done.stderr


@pytest.mark.heavy
def test_without_a_name_the_store_is_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("TRTDX_STORE", str(tmp_path / "cases.sqlite"))
    words = [sys.executable, "-m", "trtdx"]
    none = subprocess.run([*words, "view"], capture_output=True, text=True, check=False, timeout=60)
    assert none.returncode == 2
    assert "Traceback" not in none.stderr
    (tmp_path / "serve.log").write_text(f"start\n{OUT_OF_SHM}\n")
    saved = [*words, "diagnose", str(tmp_path / "serve.log"), "--save"]
    assert subprocess.run(saved, capture_output=True, check=False, timeout=120).returncode == 1
    with subprocess.Popen([*words, "view"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        address = server.stderr.readline().strip()
        query = urlsplit(address).query
        page = ask(address, f"/?{query}&q=shared+memory")[2]
        key = page.split('href="case/')[1].split('"')[0]
        case = ask(address, f"/case/{key}?{query}")[2]
        log = ask(address, f"/case/{key}/log/0?{query}")[2]
        missing = ask(address, f"/case/zzzzz?{query}")[0]
        server.terminate()
    assert "1 case<" in page
    assert "DX400" in case
    assert "failed to extend" in log
    assert missing == 404
