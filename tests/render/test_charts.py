"""Charts as files and inside pages, with matplotlib and without."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from trtdx.errors import InputError
from trtdx.pictures import Chart, Curve, Mark
from trtdx.render.charts import inline_svg, write_chart

CHART = Chart(
    title="drift", x="layer", y="error", log_y=True, whole_x=True,
    curves=(Curve("observed", [0, 1, 2], [1e-7, None, float("inf")], marker="o"),), marks=(Mark(1, "first"),),
)  # fmt: skip


def test_a_missing_matplotlib_is_named_with_its_extra():
    hidden = (
        "import sys; sys.modules['matplotlib'] = None; import importlib.util as u; u.find_spec = lambda name: None\n"
    )
    program = (
        hidden + "from trtdx.pictures import Chart\nfrom trtdx.render.charts import draw_chart\n"
        "try:\n draw_chart(Chart(title='', x='', y=''))\nexcept Exception as err:\n print(type(err).__name__, err, err.fix)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingExtraError matplotlib is needed to draw")
    assert "pip install" in done.stdout
    assert "[plot]" in done.stdout


def test_other_kinds_of_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="not a kind of picture"):
        write_chart(CHART, str(tmp_path / "x.gif"))


@pytest.mark.heavy
def test_files_have_a_background_and_need_no_display(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.delenv("DISPLAY", raising=False)
    write_chart(CHART, str(tmp_path / "x.png"))
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    write_chart(CHART, str(tmp_path / "x.svg"))
    first = (tmp_path / "x.svg").read_text()
    assert "#ffffff" in first
    write_chart(CHART, str(tmp_path / "x.svg"))
    assert (tmp_path / "x.svg").read_text() == first  # nothing in it comes from chance or the clock
    assert "pyplot" not in [name.rpartition(".")[2] for name in sys.modules if name.startswith("matplotlib")]


@pytest.mark.heavy
def test_inside_a_page_text_and_axes_have_the_colour_of_the_page():
    pytest.importorskip("matplotlib")
    text = inline_svg(CHART)
    assert text.startswith("<svg ")
    assert "currentColor" in text
    assert "#010203" not in text
    assert "#ffffff" not in text
    words = "".join(ET.fromstring(text).itertext())
    assert all(word in words for word in ("drift", "layer", "error", "observed", "first"))
