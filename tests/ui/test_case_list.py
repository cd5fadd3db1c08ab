"""The list of a store with thousands of cases: a hundred at a time, and searched."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.browser import open_browser
from trtdx.cases.facts import facts_from_report
from trtdx.cases.nouns import NewCase
from trtdx.cases.store import opened_store
from trtdx.host import RealHost
from trtdx.model import Report, Summary
from trtdx.ui.shelves import FolderShelf, StoreShelf

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.heavy
CASES = 2000


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTDX_STORE", str(tmp_path_factory.mktemp("store") / "cases.sqlite"))
        facts = facts_from_report(Report(Summary("nothing")), {})
        with opened_store(RealHost(), writes=True) as store:
            for number in range(CASES):
                title = "the walrus <b>queue</b> is full" if number == 7 else f"engine of team {number} is stale"
                store.add(
                    NewCase(
                        tool="diagnose", created=1000.0 + number, title=title, severity="error", facts=facts, body=b"x"
                    )
                )
        yield


def test_pieces_of_the_list_make_the_whole(store):
    shelf = StoreShelf(RealHost())
    keys = [row.key for skip in range(0, CASES, 300) for row in shelf.list_cases("", skip=skip, most=300).rows]
    assert len(set(keys)) == len(keys) == CASES
    assert shelf.list_cases("").total == CASES
    assert shelf.list_cases("", skip=CASES).rows == []


def test_a_person_turns_pages_and_searches(store):
    words = [sys.executable, "-m", "trtdx", "view"]
    with (
        subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server,
        open_browser() as watched,
    ):
        watched.open(server.stderr.readline().strip())
        page = watched.page
        assert page.locator("h1").inner_text() == "2,000 cases"
        assert page.locator("tbody tr").count() == 100
        assert "team 1999 " in page.locator("tbody tr").first.inner_text()
        page.get_by_role("link", name="older").click()
        page.wait_for_url("**page=2")
        assert "101 to 200 of 2,000" in page.locator("main").inner_text()
        page.get_by_role("link", name="last").click()
        page.wait_for_url("**page=20")
        assert "team 0 " in page.locator("tbody tr").last.inner_text()
        assert page.get_by_role("link", name="older").count() == 0
        page.fill("input[type=search]", "walrus queue")
        page.keyboard.press("Enter")
        page.wait_for_url("**q=walrus**")
        assert "walrus <b>queue</b>" in page.locator("tbody tr").first.inner_text()
        server.terminate()
    assert watched.problems == []
    assert all(url.startswith("http://127.0.0.1:") for url in watched.requests)


def test_a_folder_is_read_again_only_where_a_case_has_changed(tmp_path):
    for name, line in (("a", "first"), ("b", "second")):
        log = tmp_path / f"{name}.log"
        log.write_text(f"{line}\n")
        words = [sys.executable, "-m", "trtdx", "diagnose", str(log), "--save", str(tmp_path / "cases" / name)]
        subprocess.run(words, capture_output=True, check=False, timeout=120)
    shelf = FolderShelf(RealHost(), [str(tmp_path / "cases")])
    before = shelf.list_cases("").rows
    journal = tmp_path / "cases" / "a" / "case.jsonl"
    journal.write_text("{")
    after = {row.name: row for row in shelf.list_cases("").rows}
    assert "cannot be read" in after[str(tmp_path / "cases" / "a")].text
    assert after[str(tmp_path / "cases" / "b")] in before
