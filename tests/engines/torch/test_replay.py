"""One module computed alone gives bitwise what the whole gave."""

from __future__ import annotations

import numpy as np
import pytest

from trtdx.engines.errors import EvaluationError
from trtdx.errors import InputError, UnknownNameError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from support.torch_models import ROWS, decoder, names, watched_generation  # noqa: E402
from trtdx.engines.torch.engine import TorchEngine  # noqa: E402
from trtdx.engines.torch.replay import replay_torch_module  # noqa: E402


@pytest.fixture(scope="module")
def llama():
    return decoder("llama")


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down = torch.nn.Linear(4, 2)

    def forward(self, x, *, scale=None, pair=()):
        y = self.down(x if scale is None else x * scale)
        return y, {"doubled": 2 * y, "sums": tuple(each.sum() for each in pair)}


PARTS = {"llama": ("layers.1", "layers.1.self_attn", "layers.1.mlp"), "gpt2": ("h.1", "h.1.attn", "h.1.mlp")}
PARTS |= {"mixtral": PARTS["llama"], "mistral": PARTS["llama"]}


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1]], ids=["padded", "alone"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", PARTS)
def test_a_module_alone_gives_bitwise_what_the_whole_gave(kind, attention, rows):
    model = decoder(kind, attention=attention)
    selector = ", ".join(f"{scope}:*, {scope}.**:*" for scope in PARTS[kind][:1])
    seen, states = watched_generation(model, selector, rows, steps=3)
    for scope in PARTS[kind]:
        for step in (0, 2):
            past = states[step - 1].past if step and not scope.endswith("mlp") else {}
            inside, again = replayed(model, scope, [each for each in seen if each.step == step], past, step)
            assert names(again) == names(inside)
            assert {each.step for each in again} == {step}
            assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(again, inside, strict=True))


def replayed(model, scope, seen, past, step):
    """Return what was seen in a module and what is seen when it is computed alone."""
    inside = [each for each in seen if f".{each.place.path}.".find(f".{scope}.") >= 0]
    path = inside[0].place.path
    given = {each.place.name: each.tensor for each in inside if each.place[:2] == (path, "in")}
    again = []

    def keep(each):
        again.append(each._replace(tensor=each.tensor.clone(), module_arguments=None))

    with TorchEngine(model, f"{scope}:*, {scope}.**:*", sink=keep) as engine:
        result = replay_torch_module(engine, scope, given | dict(past), step=step)
    left = {each.place.name: each.tensor.numpy() for each in inside if each.place[:2] == (path, "out")}
    assert left
    assert all(np.array_equal(result[name], array) for name, array in left.items())
    return inside, again


def test_the_cache_that_a_replay_leaves_is_that_of_the_run(llama):
    seen, states = watched_generation(llama, "layers.1:in", steps=2)
    last = {each.place.name.partition(":")[2]: each.tensor.numpy() for each in seen if each.step == 1}
    past = {name: array for name, array in states[0].past.items() if name.startswith("past.1.")}
    result = replay_torch_module(llama, "layers.1", last | past, step=1)
    assert set(result) == {"model.layers.1:out", "present.1.key", "present.1.value"}
    assert np.array_equal(result["present.1.key"], states[1].past["past.1.key"])


def test_what_a_module_has_to_be_given_is_told(llama):
    told = {name: (str(each), each.optional) for name, each in TorchEngine(llama).replay_inputs("layers.1").items()}
    assert told["in"] == ("float32 [any, any, 32]", False)
    assert told["in.position_embeddings.1"] == ("float32 [any, any, 8]", False)
    assert told["in.attention_mask"] == ("bool [any, any, any, any]", True)
    assert told["past.1.key"] == ("float32 [batch, 2, past, 8]", True)
    assert not any(name.startswith(("past.0", "past.2")) for name in told)
    assert list(TorchEngine(llama).replay_inputs("layers.1.mlp")) == ["in"]
    declared = TorchEngine(torch.nn.Sequential(Pair())).replay_inputs("0")
    assert [(name, each.optional) for name, each in declared.items()] == [
        ("in", False), ("in.scale", True), ("in.pair", True),
    ]  # fmt: skip


def test_a_module_that_is_no_decoder_is_replayed_by_the_names_alone():
    model = torch.nn.Sequential(Pair(), torch.nn.Identity())
    x = np.ones((3, 4), np.float32)
    result = replay_torch_module(model, "0", {"0:in": x, "in.scale": np.float32(3), "in.pair.0": x, "in.pair.1": x})
    assert set(result) == {"0:out", "0:out.doubled", "0:out.sums.0", "0:out.sums.1"}
    assert np.array_equal(result["0:out.doubled"], 2 * result["0:out"])


def test_a_module_called_twice_is_replayed_as_the_call_that_is_asked_for():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.shared(self.shared(x))

    seen = []
    engine = TorchEngine(Twice(), "shared:*", sink=seen.append)
    engine.run({"x": np.ones((1, 2), np.float32)})
    assert [each.call for each in seen] == [0, 0, 1, 1]
    result = replay_torch_module(engine, "shared", {"shared#1:in": seen[2].tensor}, call=1, step=4)
    assert np.array_equal(result["shared:out"], seen[3].tensor)
    assert [(each.step, each.call) for each in seen[4:]] == [(4, 1), (4, 1)]


@pytest.mark.parametrize(
    ("scope", "change", "more", "told"),
    [
        ("layers.9", {}, {}, "no module is called 'layers.9'"),
        ("mlp", {}, {}, "'mlp' names 3 modules: model.layers.0.mlp"),
        ("layers.1", {"in": None}, {}, "1 input not given: in: float32"),
        ("layers.1", {"in.mask": 0}, {}, "no input is called 'in.mask'"),
        ("layers.1", {"in": np.ones((1, 12, 32))}, {}, "the input in is float64, but the model wants float32"),
        ("layers.1", {"layers.0:in": 0}, {}, "nothing that enters model.layers.1 is called 'layers.0:in'"),
        ("layers.1", {"in": np.ones((1, 12, 31), np.float32)}, {}, r"layers.1.* cannot be computed"),
        ("layers.1", {}, {"step": 1}, "which needs what was in the cache"),
        ("layers.1", {}, {"call": 1}, "is called 1 time; there is no call 1"),
        ("layers.1", {"past.0.key": np.ones((1, 2, 3, 8), np.float32)}, {}, "the cache's contents are missing: past.1"),
    ],
)  # fmt: skip
def test_replays_that_cannot_be(llama, scope, change, more, told):
    seen, _ = watched_generation(llama, "layers.1:in", ROWS[:1])
    given = {each.place.name.partition(":")[2]: each.tensor.numpy() for each in seen} | change
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises((InputError, UnknownNameError, EvaluationError), match=told):
        replay_torch_module(llama, scope, given, **more)


def test_a_module_that_adds_to_its_input_in_place_leaves_the_captured_value_alone():
    class InPlace(torch.nn.Module):
        def forward(self, x):
            x += 1
            return x

    given = np.zeros((2, 3), np.float32)
    given.flags.writeable = False  # as a capture's values are: a mapped file
    with TorchEngine(InPlace()) as engine:
        engine.run({"x": given})
    assert given.sum() == 0
