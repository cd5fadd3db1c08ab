"""`trtdx view --tui`: the same cases in a terminal, by the keys that a person would press."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from trtdx.host import RealHost
from trtdx.ui.shelves import FolderShelf, StoreShelf
from ui.test_server import OUT_OF_MEMORY, OUT_OF_SHM, write_case

pytest.importorskip("textual")
pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    write_case(folder / "shm", OUT_OF_SHM)
    write_case(folder / "oom", OUT_OF_MEMORY)
    (folder / "broken").mkdir()
    (folder / "broken" / "case.jsonl").write_text("{")
    return FolderShelf(RealHost(), [str(folder)])


@pytest.fixture(scope="module")
def frontier_shelf(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTDX_STORE", str(tmp_path_factory.mktemp("store") / "cases.sqlite"))
        words = [sys.executable, "-m", "trtdx", "memory", "frontier", "Llama-3.1-8B", "--gpu", "H100", "--save"]
        subprocess.run(words, capture_output=True, check=True, timeout=120)
        yield StoreShelf(RealHost())


def press(shelf, *keys):
    """Press keys, and return the title and the text of the screen that they lead to."""
    from textual.widgets import DataTable, Static

    from trtdx.ui.terminal import CaseTerminal

    async def use():
        terminal = CaseTerminal(shelf)
        async with terminal.run_test(size=(120, 40)) as pilot:
            await pilot.pause()
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
            screen = terminal.screen
            tables = [table.get_row_at(row) for table in screen.query(DataTable) for row in range(table.row_count)]
            words = [str(cell) for row in tables for cell in row]
            words += [str(static.render()) for static in screen.query(Static)]
            return screen.sub_title or terminal.sub_title, "\n".join(words)

    return asyncio.run(use())


def search(words):
    return ("slash", *("space" if letter == " " else letter for letter in words), "enter")


def test_cases_are_listed_and_searched(shelf):
    title, text = press(shelf)
    assert title == "3 cases"
    assert "/dev/shm" in text
    assert press(shelf, *search("dx400"))[0] == "1 case"


def test_a_case_is_shown_as_its_report_and_leads_to_the_line_in_its_log(shelf):
    _, text = press(shelf, *search("shm"), "enter")
    assert "DX400" in text
    title, text = press(shelf, *search("shm"), "enter", "l")
    assert "serve.log: lines 1181 to 1201, the end" in title
    assert f"1201 {OUT_OF_SHM} ← cause" in text
    assert "<b>bold</b>" in text
    title, _ = press(shelf, *search("shm"), "enter", "l", "p", "p")
    assert "lines 181 to 680" in title
    assert "lines 1181 to" in press(shelf, *search("shm"), "enter", "l", "p", "p", "c")[0]
    assert press(shelf, *search("shm"), "enter", "l", "u", "u")[0] == "1 case"


def test_a_frontier_is_a_table_with_the_details_of_a_cell(frontier_shelf):
    title, text = press(frontier_shelf, "enter", "m")
    assert "batch" in text
    title, detail = press(frontier_shelf, "enter", "m", "right", "down")
    assert title
    assert "what stands in the way of more: KV cache" in detail


def test_what_is_not_there_is_said(shelf):
    assert "DX" not in press(shelf, *search("broken"), "enter")[1]
    title, text = press(shelf, *search("shm"), "enter", "m")
    assert "DX400" in text
    assert title


def test_without_a_terminal_the_way_out_is_named():
    words = [sys.executable, "-m", "trtdx", "view", "--tui", "."]
    answer = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120)
    assert answer.returncode == 2
