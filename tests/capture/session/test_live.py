"""A module of the user's, captured while the user's own code runs it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from trtdx.capture.session.live import capturing  # noqa: E402
from trtdx.capture.session.recorder import NotFiniteError  # noqa: E402
from trtdx.capture.store.reader import Capture  # noqa: E402
from trtdx.errors import InputError  # noqa: E402


@pytest.fixture
def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)).eval()


def hooks(model):
    return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules())


def test_what_passes_is_captured_and_nothing_stays_behind(model, tmp_path):
    with capturing(model, tmp_path / "cap", "0:out, 2:out", values="2:out"):
        given = model(torch.ones(5, 4))
    with Capture(tmp_path / "cap") as capture:
        assert [(each.name, each.kept) for each in capture.records()] == [("0:out", False), ("2:out", True)]
        assert (capture.values(capture.record("2:out")) == given.detach().numpy()).all()
    assert not hooks(model)


def test_an_error_in_the_block_leaves_a_whole_capture(model, tmp_path):
    with pytest.raises(RuntimeError, match="size mismatch"), capturing(model, tmp_path / "cap"):
        model(torch.ones(5, 4)) @ torch.ones(7)
    with Capture(tmp_path / "cap") as capture:
        assert len(capture) == 4
        assert not capture.partial
    assert not hooks(model)


def test_one_inside_another(model, tmp_path):
    with capturing(model, tmp_path / "outer", "0:out"), capturing(model, tmp_path / "inner", "2:out"):
        model(torch.ones(5, 4))
    for name, place in (("outer", "0:out"), ("inner", "2:out")):
        with Capture(tmp_path / name) as capture:
            assert [each.name for each in capture.records()] == [place]


@pytest.mark.parametrize(
    ("selector", "values", "told"),
    [
        ("typo", "", "nothing is selected by 'typo'"),
        ("0:out", "typo", "nothing is selected by 'typo'"),
        ("0:out", "2:out", "nothing that is tapped is selected by '2:out'"),
    ],
)
def test_a_selector_that_hits_nothing_leaves_no_folder_behind(model, tmp_path, selector, values, told):
    with (
        pytest.raises(InputError, match=told),
        capturing(model, tmp_path / "cap", selector, values=values),
    ):
        pass
    assert not (tmp_path / "cap").exists()


def test_what_is_no_module(tmp_path):
    with (
        pytest.raises(InputError, match="a function is not a torch module"),
        capturing(hooks, tmp_path / "cap"),
    ):
        pass


def test_watching_stops_at_the_first_nan(model, tmp_path):
    model[2].weight.data[0, 0] = float("nan")
    with (
        pytest.raises(NotFiniteError, match="2:out has 5 NaN"),
        capturing(model, tmp_path / "cap", watch=True),
    ):
        model(torch.ones(5, 4))
    with Capture(tmp_path / "cap") as capture:
        assert capture.record("2:in").kept


def test_each_rank_writes_its_own_files(model, tmp_path, monkeypatch):
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        with capturing(model, tmp_path / "cap", "0:out"):
            model(torch.ones(5, 4))
    with Capture(tmp_path / "cap") as capture:
        assert capture.ranks == (0, 1)
