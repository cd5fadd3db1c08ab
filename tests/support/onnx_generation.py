"""Decoders token by token, cut and resumed, and single modules replayed; collected by test_onnxruntime.py."""

from __future__ import annotations

import numpy as np
import pytest

from support.onnx_models import (
    CLOSE,
    FLOAT,
    INT64,
    LAYERS,
    engine_of,
    model,
    names,
    node,
    prompts,
    seen_on_both,
    torch_steps,
)
from trtdx.engines.generate import cache_outputs_by_input, generate_tokens
from trtdx.engines.generation_state import Sampling
from trtdx.engines.onnxruntime.replay import replay_onnx_module
from trtdx.engines.torch.hooks import tapped
from trtdx.errors import InputError, UnknownNameError
from trtdx.tensors.taps import parse_selector


def test_prefill_and_decode_agree_with_torch(llama):
    steps = list(generate_tokens(engine_of(llama.path), prompts(12), 9))
    state = steps[-1].state
    reference = list(torch_steps(llama.module, state.tokens[:, :-1], state.mask[:, :-1], 12))
    assert [each.number for each in steps] == list(range(9))
    for step, (logits, cache) in zip(steps, reference, strict=True):
        assert step.tokens.tolist() == logits[:, -1].argmax(1).tolist()
        for ours, theirs in zip(step.state.past.values(), cache, strict=True):
            np.testing.assert_allclose(ours, theirs, **CLOSE)


def test_a_batch_with_padding_agrees_with_each_prompt_alone_and_with_torch(llama):
    rows = prompts(12, 5, 8)
    seen = []
    engine = engine_of(llama.path, "layers.*", sink=seen.append)
    steps = list(generate_tokens(engine, rows, 8))
    alone = [[step.tokens[0] for step in generate_tokens(engine_of(llama.path), [row], 8)] for row in rows]
    assert np.stack([step.tokens for step in steps], 1).tolist() == alone
    theirs, ours = seen_on_both(llama, "layers.*", steps)
    assert len(ours) == len(theirs) == len(seen) == 8 * LAYERS
    for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        width = our.tensor.shape[1]
        real = steps[-1].state.mask[:, :12] == 1 if width == 12 else np.ones((3, 1), bool)
        np.testing.assert_allclose(our.tensor[real], their.tensor.numpy()[real], **CLOSE)
        np.testing.assert_array_equal(seen[number].tensor[real], our.tensor[real])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.5, top_k=40, seed=5)])
def test_the_model_on_torch_gives_the_same_tokens(llama, sampling):
    from trtdx.engines.torch.engine import TorchEngine

    engines = (engine_of(llama.path), TorchEngine(llama.module.m, threads=1))
    ours, theirs = (list(generate_tokens(each, prompts(12, 5, 8), 16, sampling=sampling)) for each in engines)
    assert ours[-1].state.tokens.tolist() == theirs[-1].state.tokens.tolist()
    for our, their in zip(ours[-1].state.past.values(), theirs[-1].state.past.values(), strict=True):
        real = ours[-1].state.mask[:, :-1] == 1
        np.testing.assert_allclose(our.swapaxes(1, 2)[real], their.swapaxes(1, 2)[real], **CLOSE)


def test_tokens_stream_while_tensors_are_seen(llama):
    told = []
    engine = engine_of(llama.path, "norm", sink=lambda seen: told.append(seen.step))
    told.extend(f"token {step.number}" for step in generate_tokens(engine, prompts(4), 3))
    assert told == [0, "token 0", 1, "token 1", 2, "token 2"]


def test_sampling_depends_on_its_seed_alone(llama):
    def run(**more):
        sampling = Sampling(temperature=2.0, **more)
        return [
            step.tokens.tolist() for step in generate_tokens(engine_of(llama.path), prompts(6, 3), 6, sampling=sampling)
        ]

    assert run(seed=1) == run(seed=1)
    assert run(seed=1) != run(seed=2)
    greedy = [step.tokens.tolist() for step in generate_tokens(engine_of(llama.path), prompts(6, 3), 6)]
    assert run(seed=1, top_k=1) == greedy == run(seed=3, top_p=1e-9)


def test_a_row_that_is_done_goes_on_with_padding(llama):
    plain = [step.tokens.tolist() for step in generate_tokens(engine_of(llama.path), prompts(6, 3), 4)]
    sampling = Sampling(eos=(plain[0][0],), pad=7)
    steps = list(generate_tokens(engine_of(llama.path), prompts(6, 3), 4, sampling=sampling))
    assert [step.tokens[0] for step in steps] == [plain[0][0], 7, 7, 7]
    assert [step.tokens[1] for step in steps] == [each[1] for each in plain]
    assert len(list(generate_tokens(engine_of(llama.path), prompts(6, 3)[:1], 4, sampling=sampling))) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_run_cut_after_any_step_goes_on_as_if_it_had_not_been(llama, temperature):
    sampling = Sampling(temperature=temperature, seed=5)
    whole, rest = [], []
    engine = engine_of(llama.path, "layers.*, lm_head", sink=whole.append)
    steps = list(generate_tokens(engine, prompts(6, 4), 6, sampling=sampling))
    for step in generate_tokens(engine_of(llama.path), prompts(6, 4), 6, sampling=sampling):
        if step.number == 2:
            break
    later = engine_of(llama.path, "layers.*, lm_head", sink=rest.append)
    resumed = list(generate_tokens(later, step.state, 3))
    assert [(step.number, step.tokens.tolist()) for step in resumed] == [
        (step.number, step.tokens.tolist()) for step in steps[3:]
    ]
    assert [(a.step, a.place) for a in rest] == [(a.step, a.place) for a in whole if a.step > 2]
    assert all(np.array_equal(a.tensor, b.tensor) for a, b in zip(rest, whole[-len(rest) :], strict=True))


def test_caches_are_known_by_their_names(tmp_path):
    for past, present in (
        ("past_key_values.0.key", "present.0.key"), ("past.0.value", "present.0.value"), ("past_0", "present_0"),
        ("past_key_3", "present_key_3"), ("past_key_values.1.decoder.key", "present.1.decoder.key"),
    ):  # fmt: skip
        inputs = [("input_ids", INT64, ["n", "s"]), (past, FLOAT, ["n", "past"])]
        outputs = [("logits", FLOAT, None), (present, FLOAT, None)]
        nodes = [node("Cast", ["input_ids"], ["logits"], to=FLOAT), node("Identity", [past], [present])]
        path = model(tmp_path / "m.onnx", nodes, inputs, outputs)
        assert cache_outputs_by_input(engine_of(path)) == {past: present}
    path = model(tmp_path / "m.onnx", nodes[:1], inputs, outputs[:1])
    with pytest.raises(InputError, match=r"takes 'past_key_values\.1\.decoder\.key', but none of its outputs"):
        next(generate_tokens(engine_of(path), [[1]], 1))


def test_a_model_without_a_cache_gets_all_tokens_each_time(tmp_path):
    nodes = [node("Cast", ["input_ids"], ["f"], to=FLOAT), node("Unsqueeze", ["f", "axis"], ["u"]),
             node("Concat", ["u", "u"], ["logits"], axis=2)]  # fmt: skip
    import onnx

    axis = onnx.numpy_helper.from_array(np.array([2]), "axis")
    path = model(tmp_path / "m.onnx", nodes, [("input_ids", INT64, ["n", "s"])], [("logits", FLOAT, None)], [axis])
    seen = []
    engine = engine_of(path, ".:in", sink=lambda each: seen.append(each.tensor.shape))
    list(generate_tokens(engine, [[4, 5]], 3))
    assert seen == [(1, 2), (1, 3), (1, 4)]


def test_inputs_that_are_no_part_of_a_generation(tmp_path):
    nodes = [node("Cast", ["input_ids"], ["f"], to=FLOAT), node("Add", ["f", "pixels"], ["logits"])]
    inputs = [("input_ids", INT64, ["n", "s"]), ("pixels", FLOAT, [1])]
    path = model(tmp_path / "m.onnx", nodes, inputs, [("logits", FLOAT, ["n", "s"])])
    with pytest.raises(InputError, match=r"wants pixels \(float32 \[1\]\)"):
        next(generate_tokens(engine_of(path), [[1]], 1))
    assert next(generate_tokens(engine_of(path), [[1]], 1, extra={"pixels": np.ones(1, np.float32)})).tokens == [0]
    with pytest.raises(InputError, match="ends in padding"):
        next(generate_tokens(engine_of(path), [[1, 2]], 1, attention_mask=[[1, 0]]))


# Replay


def test_a_layer_is_replayed_with_captured_inputs(llama):
    seen, again = [], []
    engine = engine_of(llama.path, "layers.1:*, layers.1.**", sink=seen.append)
    list(generate_tokens(engine, prompts(7, 4), 3))
    last = [each for each in seen if each.step == 2]
    captured = {each.place.name: each.tensor for each in last if each.place.port == "in"}
    engine.sink = again.append
    result = replay_onnx_module(engine, "layers.1", captured, step=2)
    left = next(each for each in last if each.place.name == "m.model.layers.1:out")
    assert set(result) > {"present.1.key", "present.1.value"}
    assert any(np.array_equal(each, left.tensor) for each in result.values())
    assert names(again) == names(last)
    assert all(np.array_equal(a.tensor, b.tensor) for a, b in zip(again, last, strict=True))


def test_a_module_is_replayed_on_inputs_of_torch(llama):
    theirs = []
    with tapped(llama.module, parse_selector("layers.2.mlp:*"), theirs.append):
        tokens = np.array(prompts(9))
        list(torch_steps(llama.module, tokens, np.ones_like(tokens), 9))
    captured = {each.place.name: each.tensor for each in theirs if each.place.port == "in"}
    (result,) = replay_onnx_module(engine_of(llama.path), "layers.2.mlp", captured).values()
    np.testing.assert_allclose(result, theirs[1].tensor, **CLOSE)


@pytest.mark.parametrize(
    ("scope", "inputs", "told"),
    [
        ("layers.9", {}, "no module of the graph is called 'layers.9'"),
        ("mlp", {}, "'mlp' names 3 modules"),
        ("layers.1.mlp", {}, r"1 input not given: .*: float32 \[batch, seq, 64\]"),
        ("layers.1.mlp", {"in[1]": 0}, "has 1 input,"),
        ("layers.1.mlp", {"layers.0.mlp:in": 0}, "nothing that enters m.model.layers.1.mlp is called"),
    ],
)
def test_replays_that_cannot_be(llama, scope, inputs, told):
    with pytest.raises((InputError, UnknownNameError), match=told):
        replay_onnx_module(engine_of(llama.path), scope, inputs)
