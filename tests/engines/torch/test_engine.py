"""Hugging Face decoders and any other module on torch: generated with, watched, cut and resumed."""

from __future__ import annotations

import numpy as np
import pytest

from trtdx.engines.errors import EvaluationError
from trtdx.engines.generate import cache_outputs_by_input, generate_tokens
from trtdx.engines.generation_state import Sampling
from trtdx.errors import InputError, UnknownNameError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from support.torch_models import (  # noqa: E402
    LAYERS,
    ROWS,
    decoder,
    feeds_of,
    generated,
    hooks_on,
    names,
    tokens_of,
    watched_generation,
)
from trtdx.engines.torch.engine import TorchEngine  # noqa: E402

MODELS = ["llama", "gpt2", "mixtral", "mistral", "mamba"]


@pytest.fixture(scope="module")
def llama():
    return decoder("llama")


# Generation


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_padded_batch_gives_the_tokens_of_transformers_own_generation(kind, dtype):
    model = decoder(kind, dtype=dtype)
    assert tokens_of(generate_tokens(TorchEngine(model), ROWS, 8)) == generated(model, ROWS, 8)


def test_eager_attention_gives_them_too():
    model = decoder("llama", attention="eager")
    assert tokens_of(generate_tokens(TorchEngine(model), ROWS, 8)) == generated(model, ROWS, 8)


def test_inputs_and_outputs_are_told_with_the_cache(llama):
    engine = TorchEngine(llama)
    assert list(engine.inputs)[:4] == ["input_ids", "attention_mask", "position_ids", "past.0.key"]
    assert str(engine.inputs["past.2.value"]) == "float32 [batch, 2, past, 8]"
    assert list(engine.outputs)[:2] == ["logits", "present.0.key"]
    assert cache_outputs_by_input(engine)["past.1.value"] == "present.1.value"
    assert str(TorchEngine(decoder("mistral")).inputs["past.0.key"]) == "float32 [batch, 2, past_window, 8]"


def test_a_window_keeps_no_more_than_it_needs():
    _, states = watched_generation(decoder("mistral"), "norm", steps=3)
    assert {each.shape for each in states[-1].past.values()} == {(3, 2, 4, 8)}
    assert states[-1].cached == 14


def test_a_model_whose_cache_is_unknown_is_computed_without_and_says_so():
    engine = TorchEngine(decoder("mamba"))
    assert list(engine.outputs) == ["logits"]
    assert engine.details["cache"].startswith("none: ")
    assert "each step computes the whole sequence" in engine.details["cache"]


def test_the_cache_travels_without_a_copy(llama):
    engine = TorchEngine(decoder("llama", dtype="bfloat16"))
    for step in generate_tokens(engine, ROWS[:1], 2):
        key = step.state.past["past.0.key"]
        assert key.dtype.name == "bfloat16"
        assert not key.flags.owndata
    before = key.copy()
    list(generate_tokens(engine, step.state, 2))
    assert np.array_equal(key, before)


def test_sampling_depends_on_its_seed_alone(llama):
    def run(**more):
        return tokens_of(generate_tokens(TorchEngine(llama), ROWS, 6, sampling=Sampling(temperature=2.0, **more)))

    assert run(seed=1) == run(seed=1)
    assert run(seed=1) != run(seed=2)
    assert run(seed=1, top_k=1) == generated(llama, ROWS, 6)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_run_cut_after_any_step_goes_on_as_if_it_had_not_been(kind):
    model, sampling = decoder(kind, dtype="bfloat16"), Sampling(temperature=1.5, seed=5)
    whole, kept, states = [], [], []

    def keep(into):
        return lambda each: into.append((each.step, each.place, each.tensor.clone()))

    for step in generate_tokens(TorchEngine(model, "layers.*", sink=keep(whole)), ROWS, 6, sampling=sampling):
        states.append(step.state)
        kept.append(step.tokens.tolist())
    for cut in range(5):
        rest = []
        later = TorchEngine(model, "layers.*", sink=keep(rest))
        resumed = list(generate_tokens(later, states[cut], 6 - cut - 1))
        assert [step.tokens.tolist() for step in resumed] == kept[cut + 1 :]
        expected = [each for each in whole if each[0] > cut]
        assert [each[:2] for each in rest] == [each[:2] for each in expected]
        assert all(torch.equal(a[2], b[2]) for a, b in zip(rest, expected, strict=True))


# Places and what is seen


def test_places_are_in_the_order_of_execution_with_types_and_names(llama):
    engine = TorchEngine(llama)
    listed = [place.name for place in engine.places()]
    layer = [name.removeprefix("model.layers.1") for name in listed if name.startswith("model.layers.1")]
    assert layer[:5] == [
        ":in", ":in.attention_mask", ":in.position_embeddings.0", ":in.position_embeddings.1", ":in.position_ids",
    ] or layer[:4] == [":in", ":in.position_embeddings.0", ":in.position_embeddings.1", ":in.position_ids"]  # fmt: skip
    order = [layer.index(each) for each in (".self_attn.q_proj:out", ".self_attn:out", ".mlp:in", ".mlp:out", ":out")]
    assert order == sorted(order)
    assert listed.index("model.layers.1:out") < listed.index("model.norm:in") < listed.index("lm_head:out")
    assert not any(name.startswith("model.layers:") for name in listed)  # a list is never called
    assert {place.dtype for place in engine.places()} == {"float32", "int64"}
    seen, _ = watched_generation(llama, "**:*", ROWS[:1])
    assert set(names(seen)) == set(listed)


def test_modules_that_one_token_does_not_reach_are_listed_beside_their_neighbours():
    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = (torch.nn.Linear(2, 2) for _ in range(3))

    from trtdx.engines.torch.call_forms import merge_place_order
    from trtdx.engines.torch.hooks import module_places

    known = module_places(Experts())
    seen = [place for place in known if place.path in ("first", "last")]
    paths = [place.path for place in merge_place_order(seen, known)]
    assert paths == ["first", "first", "second", "second", "last", "last"]


def test_what_is_seen_has_the_step_of_the_engine_and_what_entered(llama):
    seen = []
    engine = TorchEngine(llama, "layers.0.mlp", sink=seen.append)
    engine.step = 7
    engine.run(feeds_of(engine))
    assert [each.step for each in seen] == [7]
    assert engine.step == 8
    (entered,), _ = seen[0].module_arguments
    assert entered.shape == seen[0].tensor.shape


def test_what_its_owner_computes_with_the_model_is_not_seen(llama):
    seen = []
    with TorchEngine(llama, "norm", sink=seen.append) as engine:
        engine.run(feeds_of(engine))
        llama(torch.ones(1, 2, dtype=torch.int64))
    assert len(seen) == 1


def test_watching_changes_no_bit_and_closing_leaves_nothing_behind(llama):
    plain = TorchEngine(llama).run(feeds_of(TorchEngine(llama)))
    engine = TorchEngine(llama, "**:*", sink=lambda seen: None)
    result = engine.run(feeds_of(engine))
    assert all(np.array_equal(result[name], plain[name]) for name in plain)
    assert engine.tap_effect.places == hooks_on(llama) > 2 * 9 * LAYERS
    engine.close()
    assert hooks_on(llama) == 0
    engine.run(feeds_of(engine))  # begins anew
    engine.close()
    assert hooks_on(llama) == 0


def test_another_watch_on_the_same_model_sees_on_its_own(llama):
    first, second = [], []
    engine = TorchEngine(llama, "norm", sink=first.append)
    engine.run(feeds_of(engine))
    with engine.with_selector("lm_head", second.append) as other:
        other.run(feeds_of(other))
    engine.run(feeds_of(engine))
    assert (names(first), names(second)) == (["model.norm:out"] * 2, ["lm_head:out"])
    assert other.model is engine.model


def test_an_engine_that_is_dropped_leaves_nothing_behind_either(llama):
    engine = TorchEngine(llama, "**:*", sink=lambda seen: None)
    engine.run(feeds_of(engine))
    assert hooks_on(llama)
    del engine
    assert hooks_on(llama) == 0


def test_a_module_is_in_evaluation_mode_until_the_engine_is_closed():
    model = decoder("gpt2", resid_pdrop=0.5).train()
    model.transformer.h[1].eval()
    with TorchEngine(model) as engine:
        assert tokens_of(generate_tokens(engine, ROWS, 4)) == tokens_of(generate_tokens(engine, ROWS, 4))
        assert not any(each.training for each in model.modules())
    assert model.training
    assert model.transformer.h[0].attn.training
    assert not model.transformer.h[1].attn.training


class StopError(RuntimeError):
    """What a sink raises to end a run; torch raises RuntimeErrors too."""


def test_what_a_sink_raises_ends_the_run_unchanged(llama):
    raised = StopError("enough")

    def stop(seen):
        if seen.step == 1:
            raise raised

    with TorchEngine(llama, "layers.1.mlp", sink=stop) as engine:
        with pytest.raises(StopError) as caught:
            list(generate_tokens(engine, ROWS, 3))
        assert caught.value is raised
        engine.sink = None
        assert tokens_of(generate_tokens(engine, ROWS, 3)) == generated(llama, ROWS, 3)
    assert hooks_on(llama) == 0


@pytest.mark.heavy
def test_compiled_models_show_the_same_and_stop_the_same():
    from trtdx.engines.torch import hooks as taps

    llama = decoder("llama", num_hidden_layers=1)
    selector = "layers[0]:*, norm, lm_head, .:*"
    expected, states = watched_generation(llama, selector, steps=2)
    seen, compiled_states = watched_generation(llama, selector, steps=2, compiled="aot_eager")
    assert [(each.step, each.call, each.place) for each in seen] == [
        (each.step, each.call, each.place) for each in expected
    ]
    assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(seen, expected, strict=True))
    assert compiled_states[-1].tokens.tolist() == states[-1].tokens.tolist()
    raised = StopError("enough")

    def stop(seen):
        raise raised

    engine = TorchEngine(llama, selector, sink=stop, compiled="aot_eager")
    assert engine.tap_effect.compiled
    with pytest.raises(StopError) as caught:
        engine.run(feeds_of(engine))
    assert caught.value is raised
    engine.close()
    assert hooks_on(llama) == 0
    assert not taps._TAPS


# Any module


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down = torch.nn.Linear(4, 2)

    def forward(self, x, *, scale=None, pair=()):
        y = self.down(x if scale is None else x * scale)
        return y, {"doubled": 2 * y, "sums": tuple(each.sum() for each in pair)}


def test_any_module_takes_what_its_forward_declares():
    seen = []
    engine = TorchEngine(Pair(), "down:*", sink=seen.append)
    x = np.ones((3, 4), np.float32)
    result = engine.run({"x": x, "scale": np.float32(2), "pair": (x, x)})
    assert list(engine.inputs) == ["x", "scale", "pair"]
    assert list(result) == list(engine.outputs) == ["out", "doubled", "sums.0", "sums.1"]
    assert np.array_equal(result["doubled"], 2 * result["out"])
    assert result["sums.1"] == 12
    assert [each.tensor[0, 0].item() for each in seen][:1] == [2.0]
    assert engine.details["cache"].startswith("none")


def test_a_module_that_gives_scores_generates_without_a_cache():
    class Next(torch.nn.Module):
        def forward(self, input_ids):
            return {"logits": torch.nn.functional.one_hot(input_ids + 1, 50).float()}

    assert tokens_of(generate_tokens(TorchEngine(Next()), [[3, 4], [7]], 3)) == [[5, 6, 7], [8, 9, 10]]


@pytest.mark.parametrize(
    ("feeds", "told"),
    [
        ({}, "1 input not given: x"),
        ({"x": 0, "y": 0}, "no input is called 'y'"),
        ({"x": np.ones((3, 5), np.float32)}, r"down \(Linear\) cannot be computed: mat1 and mat2"),
    ],
)
def test_wrong_feeds_of_any_module(feeds, told):
    with pytest.raises((InputError, UnknownNameError, EvaluationError), match=told):
        TorchEngine(Pair()).run(feeds)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"input_ids": np.ones((1, 12), np.int32)},
            r"input_ids is int32, but the model wants int64 \[batch, seq\]",
        ),
        (
            {"past.1.key": np.ones((1, 3, 0, 8), np.float32)},
            r"past.1.key has shape .* wants float32 \[batch, 2",
        ),
        (
            {"attention_mask": np.ones((1, 13), np.int64)},
            "the mask is 13 tokens wide, but there are 12 new ones",
        ),
        ({"input_ids": np.full((1, 12), 500)}, r"model.embed_tokens \(Embedding\) cannot be computed: index"),
        ({"position_ids": None}, "1 input not given: position_ids"),
    ],
)
def test_wrong_feeds_of_a_decoder(llama, change, told):
    engine = TorchEngine(llama)
    feeds = {name: each for name, each in (feeds_of(engine) | change).items() if each is not None}
    with pytest.raises((InputError, EvaluationError), match=told):
        engine.run(feeds)


def test_things_that_are_no_models(llama):
    with pytest.raises(InputError, match="dict is neither a torch module nor a path"):
        TorchEngine({})
    with pytest.raises(InputError, match="a module is used as it is"):
        TorchEngine(llama, dtype="bfloat16")
    with pytest.raises(InputError, match="nothing is selected by 'layers"):
        TorchEngine(llama, "layers.9")
