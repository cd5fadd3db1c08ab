"""Any module is watched without an edit, and nothing is left behind."""

from __future__ import annotations

import pytest

from trtdx.errors import InputError
from trtdx.tensors.taps import parse_selector

torch = pytest.importorskip("torch")
from trtdx.engines.torch.hooks import module_places, tapped  # noqa: E402


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x, *, scale=None):
        y = self.down(torch.nn.functional.silu(self.up(x)))
        return (y if scale is None else y * scale), {"gate": x[:1]}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x):
        for layer in self.layers:
            out, _ = layer(x, scale=torch.ones(8))
            x = x + out
        return {"logits": self.head(x), "hidden": x}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model().eval()


def watched(model, selector, runs=1, call=None):
    seen = []
    with torch.no_grad(), tapped(model, parse_selector(selector), seen.append) as what:
        for _ in range(runs):
            (model if call is None else call)(torch.ones(2, 8))
    return seen, what


def names(seen):
    return [each.place.name for each in seen]


def test_outputs_of_modules(model):
    seen, _ = watched(model, "layers.*.up")
    assert names(seen) == ["layers.0.up:out", "layers.1.up:out", "layers.2.up:out"]
    assert seen[0].tensor.shape == (2, 16)


def test_inputs_and_keyword_arguments(model):
    seen, _ = watched(model, "layers[0]:in")
    assert names(seen) == ["layers.0:in", "layers.0:in.scale"]


def test_tuples_and_dicts_of_outputs(model):
    assert names(watched(model, "layers[-1]")[0]) == ["layers.2:out", "layers.2:out.gate"]
    assert names(watched(model, "layers[-1]:out[0]")[0]) == ["layers.2:out"]
    assert names(watched(model, ".:out.logits")[0]) == [":out.logits"]


def test_steps_are_counted(model):
    seen, _ = watched(model, "head", runs=3)
    assert [each.step for each in seen] == [0, 1, 2]


def test_steps_begin_where_they_are_told_to(model):
    seen = []
    with torch.no_grad(), tapped(model, parse_selector("head"), seen.append, start=5):
        model(torch.ones(2, 8))
        model(torch.ones(2, 8))
    assert [each.step for each in seen] == [5, 6]


def test_what_entered_comes_with_what_leaves(model):
    seen, _ = watched(model, "layers[0]:out[0]")
    (entered,), named = seen[0].module_arguments
    assert torch.equal(entered, torch.ones(2, 8))
    assert list(named) == ["scale"]


class EnoughError(RuntimeError):
    """What a sink raises to end a run; torch raises RuntimeErrors too."""


@pytest.mark.parametrize(
    "backend", ["", pytest.param("aot_eager", marks=pytest.mark.heavy), pytest.param("inductor", marks=pytest.mark.heavy)]
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when inductor is imported
def test_what_a_sink_raises_leaves_the_call_unchanged(model, backend):
    raised = EnoughError("enough")

    def stop(seen):
        if seen.place.path == "layers.1.up":
            raise raised

    called = torch.compile(model, backend=backend) if backend else model
    with pytest.raises(EnoughError) as caught, torch.no_grad():  # noqa: SIM117
        with tapped(called, parse_selector("layers.*.up"), stop):
            called(torch.ones(2, 8))
    assert caught.value is raised
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    assert called(torch.ones(2, 8))["logits"].shape == (2, 4)


def test_types_are_known_when_they_pass(model):
    assert names(watched(model, "head & dtype:fp32")[0]) == ["head:out"]
    assert names(watched(model, "head & dtype:bf16")[0]) == []


def test_nothing_is_left_behind(model):
    before = model(torch.ones(2, 8))["logits"]
    watched(model, "**:*")
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    assert torch.equal(model(torch.ones(2, 8))["logits"], before)


def test_hooks_go_also_when_the_run_fails(model):
    with pytest.raises(RuntimeError), tapped(model, parse_selector("**"), lambda seen: None):
        model(torch.ones(2, 9))
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


def test_a_selector_that_hits_nothing_is_told_before_the_run(model):
    with pytest.raises(InputError) as caught, tapped(model, parse_selector("layers.*.upp"), print):
        pass
    assert "up" in caught.value.fix


def test_places_are_listed_before_anything_runs(model):
    listed = parse_selector("layers[0].**:*").select(module_places(model))
    assert [each.name for each in listed] == [
        "layers.0:in", "layers.0:out", "layers.0.up:in", "layers.0.up:out", "layers.0.down:in", "layers.0.down:out",
    ]  # fmt: skip


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when inductor is imported
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_modules_show_all_that_plain_ones_do(model, backend):
    compiled = torch.compile(model, backend=backend)
    expected, _ = watched(model, "layers[0,-1]:*, head:*, .:*")
    seen = []

    def keep(each):  # a copy: inductor uses the memory again
        seen.append(each._replace(tensor=each.tensor.clone()))

    with torch.no_grad(), tapped(compiled, parse_selector("layers[0,-1]:*, head:*, .:*"), keep):
        compiled(torch.ones(2, 8))
    # Also what nobody reads, such as a layer's second result. A compiler may reorder what is independent.
    assert sorted(names(seen)) == sorted(names(expected))
    assert "layers.2:out.gate" in names(seen)
    values = {each.place.name: each.tensor for each in expected}
    assert all(torch.allclose(each.tensor, values[each.place.name]) for each in seen)


@pytest.mark.heavy
def test_compiled_modules_are_watched_inside_their_graph(model):
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        plain = compiled(torch.ones(2, 8))["logits"]
    seen, what = watched(model, "layers.*.up", call=compiled)
    assert what.compiled is False or names(seen)
    seen, what = watched(compiled, "layers.*.up", runs=2)
    assert what.compiled
    assert "compiled anew" in what.note
    assert names(seen) == ["layers.0.up:out", "layers.1.up:out", "layers.2.up:out"] * 2
    assert [each.step for each in seen] == [0, 0, 0, 1, 1, 1]
    with torch.no_grad():
        assert torch.equal(compiled(torch.ones(2, 8))["logits"], plain)
    expected, _ = watched(model, "layers.*.up")
    assert torch.equal(seen[2].tensor, expected[2].tensor)
