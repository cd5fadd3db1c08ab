"""`trtdx.compare(...)` in scripts and notebooks."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from support.paths import TINY

pytest.importorskip("numpy")

import trtdx
from support.small_models import layers, make_onnx
from trtdx.capture.store.reader import Capture
from trtdx.errors import InputError, MissingExtraError


@pytest.mark.heavy
def test_importing_trtdx_imports_nothing_heavy_and_the_name_is_a_function_whatever_came_first():
    program = (
        "import sys, trtdx; assert 'compare' in dir(trtdx)\n"
        "heavy = {'numpy', 'torch', 'onnx', 'onnxruntime', 'matplotlib', 'pandas', 'typer'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import trtdx.compare.nouns\n"  # makes the package an attribute
        "assert callable(trtdx.compare) and trtdx.Comparison.__name__ == 'Comparison'\n"
        "from trtdx import compare; assert callable(compare)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_arrays_by_name_are_compared_and_the_first_wrong_one_is_given():
    found = trtdx.compare(layers(), layers(wrong=1))
    assert not found.healthy
    assert found.first.tensor == "model.layers.1:out"
    assert found.findings[0].where.layer == 1
    assert [row.verdict for row in found.table] == ["same", "wrong", "poisoned"]
    assert repr(found).startswith("<Comparison: model.layers.1:out at step 0 is the first of 3 tensors that is really")
    assert "down to the first difference" in str(found)
    assert json.loads(found.to_json())["tensors"][1]["verdict"] == "wrong"
    assert found.rows()[2]["tensor"] == "model.layers.2:out"


def test_steps_are_told_by_the_names_of_arrays():
    named = {f"step{step}/{name}": array for step in (0, 1) for name, array in layers().items()}
    other = named | {"step1/model.layers.2:out": -named["step1/model.layers.2:out"]}
    assert trtdx.compare(named, other).first.step == 1


def test_healthy_is_not_said_where_nothing_was_compared():
    same = trtdx.compare(layers(), layers())
    assert same.healthy
    assert same.first is None
    nothing = trtdx.compare({"a": np.ones((2, 3), "f4")}, {"a": np.ones((2, 4), "f4")})
    assert not nothing.healthy
    assert nothing.verdict == "nothing could be compared: shape [2, 3] against [2, 4]"


@pytest.mark.heavy
def test_the_html_escapes_names_and_says_what_the_curve_needs():
    evil = "<script>alert(1)</script>"
    found = trtdx.compare({evil: np.ones((4, 8), "f4")}, {evil: np.arange(32, dtype="f4").reshape(4, 8)})
    page = found._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<svg" in page or "pip install &#x27;trtdx[plot]&#x27;" in page


@pytest.mark.heavy
def test_the_html_has_verdict_table_and_curve(tmp_path):
    pytest.importorskip("matplotlib")
    found = trtdx.compare(layers(6), layers(6, wrong=3))
    page = found._repr_html_()
    for part in (
        "is the first of 6 tensors",
        "<table>",
        "<svg",
        "first that is wrong",
        'class="wrong">wrong',
    ):
        assert part in page
    for name in ("x.png", "x.svg", "x.html"):
        found.save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    assert "http" not in (tmp_path / "x.html").read_text().replace("http-equiv", "")  # needs no other file
    axes = found.plot().axes[0]
    assert axes.get_yscale() == "log"


@pytest.mark.parametrize("package", ["pandas", "pyarrow"])
def test_tables_of_other_packages_are_made_where_they_are_there(package):
    found = trtdx.compare(layers(), layers())
    make = {"pandas": found.to_pandas, "pyarrow": found.to_arrow}[package]
    if importlib.util.find_spec(package):
        assert len(make()) == 3
        return
    with pytest.raises(MissingExtraError, match=f"{package} is not installed"):
        make()


def test_inputs_as_arrays_and_sides_as_paths(tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    one, other = make_onnx(tmp_path / "a.onnx"), make_onnx(tmp_path / "b.onnx", scale=1.01)
    found = trtdx.compare(one, f"onnx:{other}", inputs={"x": np.ones((2, 8), "f4")}, keep=tmp_path / "kept")
    assert not found.healthy
    again = trtdx.compare(Capture(tmp_path / "kept" / "reference"), tmp_path / "kept" / "reference")
    assert again.healthy


@pytest.mark.heavy
def test_live_modules_are_compared_as_they_are_and_left_as_they_were():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    good, bad = (transformers.AutoModelForCausalLM.from_pretrained(TINY / "model").eval() for _ in range(2))
    bad.model.layers[1].input_layernorm.variance_epsilon = 0.1
    before = {name: tensor.clone() for name, tensor in good.state_dict().items()}
    found = trtdx.compare(good, bad, tokens=[5, 17, 42, 9])
    assert found.findings[0].code == "DX975"
    assert found.findings[0].where.module == "model.layers.1.input_layernorm"
    assert found.findings[0].verify == "trtdx compare REF CAND --tokens '5 17 42 9'"
    assert all(torch.equal(tensor, before[name]) for name, tensor in good.state_dict().items())
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in bad.modules())


@pytest.mark.parametrize("tokens", [["a"], [1.5, "x"], [[]], [-1], "1 b"])
def test_tokens_that_are_none_are_refused(tokens):
    with pytest.raises(InputError, match="token ids"):
        trtdx.compare(layers(), layers(), tokens=tokens)


def test_what_cannot_be_a_side_is_refused():
    with pytest.raises(InputError, match="a int cannot be compared"):
        trtdx.compare(3, layers())
    with pytest.raises(InputError, match="no arrays"):
        trtdx.compare({}, layers())
    with pytest.raises(InputError, match="is not an array of numbers"):
        trtdx.compare({"a": np.array([object()])}, layers())
    with pytest.raises(InputError, match="at least one token"):
        trtdx.compare(layers(), layers(), new_tokens=0)
