"""Tensors behind the drift map: from a wrong cell to the tensor's own pictures, in a real browser."""

from __future__ import annotations

import msgspec
import pytest

from support.browser import open_browser
from trtdx.compare.report.comparison_report import ComparisonReport, TensorRow
from trtdx.compare.report.portrait_nouns import TensorPortrait, ValueSummary
from trtdx.model import Summary
from trtdx.pictures import list_maps
from trtdx.render.html import render_html
from trtdx.ui.read_case import report_from_data


def tensor_row(layer, step, *, is_wrong):
    return TensorRow(
        tensor=f"layers.{layer}:out", candidate=f"layers.{layer}:out", step=step, how="name", dtype="float32",
        candidate_dtype="float16", shape=[2, 4], verdict="wrong" if is_wrong else "noise", observed=0.5 if is_wrong else 0.001,
        expected=0.001, limit=4.0, ratio=1.0, confidence=1.0, basis="model",
    )  # fmt: skip


def portrait(tensor, step):
    return TensorPortrait(
        tensor=tensor, step=step, reference=ValueSummary(-1.0, 1.0, 0.0, 0.5, 0), candidate=ValueSummary(-2.0, 2.0, 0.1, 0.9, 3),
        edges=[-2.0, 0.0, 2.0], reference_counts=[4, 4], candidate_counts=[5, 3], pattern=[[0.01, 0.9], [0.02, -1.0]],
        down="sequence:token", rows=["0:0", "0:1"], across="head", columns=["0", "<script>alert(1)</script>"],
    )  # fmt: skip


@pytest.fixture
def report():
    rows = tuple(tensor_row(layer, step, is_wrong=layer == 1) for layer in (0, 1) for step in (0, 1))
    portraits = (portrait("layers.1:out", 0), portrait("layers.1:out", 1))
    return ComparisonReport(summary=Summary("wrong"), tensors=rows, portraits=portraits)


def test_a_report_read_back_from_a_case_still_draws_its_tensors(report):
    again = report_from_data(msgspec.json.decode(msgspec.json.encode(report)))
    assert again.pictures() == report.pictures()
    assert len(list_maps(again.pictures())) == 3


def test_only_cells_whose_tensor_is_shown_are_links(report):
    drift = list_maps(report.pictures())[0]
    links = {(name, number): cell.link for name, cells in drift.rows for number, cell in enumerate(cells)}
    assert links == {("0", 0): "", ("0", 1): "", ("1", 0): "tensor-1", ("1", 1): "tensor-2"}


@pytest.mark.heavy
def test_a_wrong_cell_leads_to_its_tensor(report, tmp_path):
    (tmp_path / "page.html").write_text(render_html(report))
    with open_browser() as watched:
        watched.open((tmp_path / "page.html").as_uri())
        page = watched.page
        assert page.locator("details.fold[open]").count() == 0
        page.locator("td.marked a").nth(1).click()
        page.wait_for_selector("#tensor-2[open]")
        fold = page.locator("#tensor-2")
        text = fold.inner_text()
        assert "layers.1:out at step 1: wrong" in text
        assert "candidate: -2 to 2, mean 0.1, standard deviation 0.9, 3 not finite" in text
        assert "<script>alert(1)</script>" in text
        assert fold.locator("td.marked").inner_text() == "not finite"
        assert fold.locator("svg polyline").count() == 2
        watched.open((tmp_path / "page.html").as_uri() + "#tensor-1")  # every state has an address
        page.reload()
        page.wait_for_selector("#tensor-1[open]")
    assert watched.problems == []
    assert all(url.startswith("file:") for url in watched.requests)
