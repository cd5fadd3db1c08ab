"""A report as a page: whole, escaped, within its own policy, and what a person sees in a browser."""

from __future__ import annotations

import re

import pytest

from support.browser import open_browser
from trtdx.model import Evidence, Finding, Fix, Report, Section, Severity, Stage, Summary, Symptom
from trtdx.pictures import BarPart, Chart, Curve, HeatCell, HeatMap, Mark, StackedBar, StackedBars
from trtdx.render.html import MOST_ROWS, policy_hash, render_html
from trtdx.render.svg import draw_picture

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202egnp.exe\u2066 &amp; \"'"


def make_finding(text: str = "it broke", code: str = "DX400") -> Finding:
    return Finding(
        code=code,
        slug="it-broke",
        severity=Severity.ERROR,
        message=text,
        why=text,
        fixes=(Fix(Stage.LAUNCH, text, "docker run --ipc=host IMAGE"), Fix(Stage.BUILD, "or else", "make")),
        verify="df -h /dev/shm",
        confidence=0.95,
        where="rank0.log:3",
        evidence=(Evidence("rank0.log:3", text),),
        symptoms=(Symptom("DX443", text, "rank1.log:9"),),
        ranks=(2,),
    )


def make_report(text: str = "it broke", rows: int = 3) -> Report:
    table = Section("t", f"a table {text}", ("name", "count"), tuple((text, number) for number in range(rows)), text)
    findings = (make_finding(text), make_finding(text, "DX401"))
    return Report(summary=Summary(text, inputs=1, partial=(text,)), findings=findings, sections=(table,))


def test_hostile_text_stays_text():
    page = render_html(make_report(HOSTILE), subject=HOSTILE)
    assert page.count("<script>") == 1  # the page's own
    assert not re.search(r"<img", page)
    assert not any(sign in page for sign in "\x1b\u202e\u2066")
    assert "&lt;script&gt;alert(1)" in page


def test_the_policy_allows_nothing_but_the_pages_own_style_and_script():
    page = render_html(make_report())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    style = re.search(r"<style>(.*)</style>", page, re.DOTALL)[1]
    assert "default-src 'none'" in policy
    assert f"script-src '{policy_hash(script)}'" in policy
    assert f"style-src '{policy_hash(style)}'" in policy
    assert " style=" not in page.replace(style, "")  # an attribute that the policy would drop
    assert "http" not in page.replace("http-equiv", "")


def test_long_tables_and_lines_keep_the_page_small():
    page = render_html(make_report("x" * 1_000, rows=MOST_ROWS + 500))
    assert len(page) < 3_000_000
    assert "500 more rows are not shown here" in page


@pytest.mark.parametrize(
    "picture",
    [
        Chart(title=HOSTILE, x=HOSTILE, y=HOSTILE, curves=(Curve(HOSTILE, [0, 1, 2], [1, None, float("inf")]),)),
        Chart(title="", x="", y="", curves=(Curve("a", [0, 1], [1e-9, 1e3], marker="o"),), marks=(Mark(1, "m"),), log_y=True),
        Chart(title="nothing", x="", y="", curves=(Curve("a", [], []),)),
        StackedBars(title=HOSTILE, unit="GiB", bars=(StackedBar(HOSTILE, (BarPart(HOSTILE, 3.0),), 2.0, 4.0),), limit=80),
        StackedBars(title="empty", unit="GiB", bars=()),
        HeatMap(title=HOSTILE, across="x", down="y", columns=("1",), rows=((HOSTILE, (HeatCell(HOSTILE, 2.0, HOSTILE, True),)),)),
    ],
)  # fmt: skip
def test_pictures_are_escaped_and_never_fail(picture):
    markup = draw_picture(picture)
    assert "<script" not in markup
    assert "<img" not in markup
    assert markup.startswith("<figure>")


@pytest.mark.heavy
def test_a_browser_shows_it_runs_nothing_else_and_copies_the_fix(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(render_html(make_report(HOSTILE)), "utf-8")
    with open_browser(width=390, scheme="dark") as watched:
        watched.open(path.as_uri())
        page = watched.page
        assert page.locator("article").count() == 2
        assert page.locator("h1").inner_text().startswith("error")
        width, shown = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width <= shown  # nothing is cut off on a telephone
        page.locator("button").first.click()
        assert page.evaluate("navigator.clipboard.readText()") == "docker run --ipc=host IMAGE"
        page.keyboard.press("j")
        page.keyboard.press("j")
        assert page.evaluate("document.activeElement.id") == "2-DX401"
        assert page.url.endswith("#2-DX401")
        page.locator("summary").first.click()
        assert page.locator("details li").first.is_visible()
    assert watched.requests == [path.as_uri()]
    assert watched.problems == []
