"""Sessions: generations that are recorded, cut, taken up again and watched."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from trtdx.capture.session.recorder import NotFiniteError, Recorder
from trtdx.capture.session.selection import CaptureSelection, parse_positions, parse_steps
from trtdx.capture.session.steps import CaptureSession, state_after, step_notes
from trtdx.capture.store.format import CaptureError, CaptureHeader
from trtdx.capture.store.reader import Capture
from trtdx.capture.store.writer import CaptureWriter
from trtdx.engines.generate import cache_outputs_by_input, generate_tokens
from trtdx.engines.generation_state import Sampling
from trtdx.engines.onnxruntime.engine import OrtEngine
from trtdx.errors import InputError
from trtdx.tensors.taps import parse_selector

PROMPTS = [[5, 17, 42, 7], [9, 3]]


ALL_STATISTICS = CaptureSelection()


def session_on(engine, folder, wanted=ALL_STATISTICS, **more):
    writer = CaptureWriter(folder, CaptureHeader(engine=engine.kind), **more)
    return CaptureSession(engine, writer, Recorder(writer, wanted, engine.places(), reads=engine.operator_inputs))


def recorded(path, folder, selector="layers.*.mlp:out", steps=4, start=PROMPTS, sampling=None, **wanted):
    session = session_on(OrtEngine(path, selector), folder, CaptureSelection(**wanted))
    with session.writer:
        return [step.tokens.tolist() for step in session.generate(start, steps, sampling=sampling)]


def test_each_step_leaves_its_tensors_what_was_fed_and_the_tokens_chosen(llama_onnx, tmp_path):
    tokens = recorded(llama_onnx, tmp_path / "cap")
    with Capture(tmp_path / "cap") as capture:
        assert {note: each.tokens for note, each in step_notes(capture).items()} == dict(enumerate(tokens))
        mlps = [record for record in capture.records() if record.place.path.endswith(".mlp")]
        assert len(mlps) == 4 * 3
        assert [each.layout.shape for each in mlps if each.step == 0] == [(2, 4, 64)] * 3
        assert [each.layout.shape for each in mlps if each.step == 3] == [(2, 1, 64)] * 3
        assert capture.values(capture.record("input_ids", step=0)).tolist() == [[5, 17, 42, 7], [0, 0, 9, 3]]
        assert capture.values(capture.record("input_ids", step=1)).ravel().tolist() == tokens[0]
        assert capture.values(capture.record("position_ids", step=1)).ravel().tolist() == [4, 2]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_run_goes_on_from_any_recorded_step_as_if_it_had_not_been_cut(llama_onnx, tmp_path, temperature):
    sampling = Sampling(temperature=temperature, seed=7)
    whole = recorded(llama_onnx, tmp_path / "whole", steps=6, sampling=sampling)
    engine = OrtEngine(llama_onnx)
    with Capture(tmp_path / "whole") as capture:
        for cut in range(5):
            state = state_after(capture, cut, caches=cache_outputs_by_input(engine))
            rest = [step.tokens.tolist() for step in generate_tokens(engine, state, 5 - cut)]
            assert rest == whole[cut + 1 :]


def test_the_cache_of_a_recorded_step_is_bitwise_what_it_was(llama_onnx, tmp_path):
    session = session_on(OrtEngine(llama_onnx), tmp_path)
    with session.writer:
        states = [step.state for step in session.generate(PROMPTS, 4)]
    with Capture(tmp_path) as capture:
        found = state_after(capture, 2, caches=cache_outputs_by_input(session.engine))
    for name, array in states[2].past.items():
        assert found.past[name].tobytes() == array.tobytes()
    assert np.array_equal(found.tokens, states[2].tokens)
    assert np.array_equal(found.mask, states[2].mask)


def test_the_cache_is_recorded_once_not_at_every_step(llama_onnx, tmp_path):
    recorded(llama_onnx, tmp_path, selector="", steps=6)
    with Capture(tmp_path) as capture:
        new = list(capture.records(name="present.0.key:new"))
    assert [record.layout.shape[2] for record in new] == [4, 1, 1, 1, 1, 1]


def test_a_step_that_was_cut_off_is_done_again(llama_onnx, tmp_path):
    whole = recorded(llama_onnx, tmp_path / "whole", steps=5)
    recorded(llama_onnx, tmp_path / "cut", steps=3)
    index = tmp_path / "cut" / "rank0.index"
    with CaptureWriter(tmp_path / "cut", CaptureHeader(), resume=True) as writer:  # a fourth step begins and is killed
        from trtdx.tensors.statistics import source_from_array
        from trtdx.tensors.taps import Place

        writer.add(3, Place("half"), source_from_array(np.ones(3, np.float32)))
    assert index.stat().st_size
    engine = OrtEngine(llama_onnx, "layers.*.mlp:out")
    writer = CaptureWriter(tmp_path / "cut", CaptureHeader(), resume=True, whole_steps=True)
    with Capture(tmp_path / "cut") as before:
        state = state_after(before, caches=cache_outputs_by_input(engine))
    session = CaptureSession(engine, writer, Recorder(writer, CaptureSelection(), engine.places()))
    with writer:
        rest = [step.tokens.tolist() for step in session.generate(state, 2)]
    assert rest == whole[3:]
    with Capture(tmp_path / "cut") as capture, Capture(tmp_path / "whole") as other:
        assert "half:out" not in {record.name for record in capture.records()}
        assert [(each.step, each.name, each.statistics) for each in capture.records()] == [
            (each.step, each.name, each.statistics) for each in other.records()
        ]


def test_a_consumer_that_has_seen_enough_leaves_a_whole_capture(llama_onnx, tmp_path):
    session = session_on(OrtEngine(llama_onnx), tmp_path)
    with session.writer:
        for step in session.generate(PROMPTS, 100):
            if step.number == 1:
                break
    with Capture(tmp_path) as capture:
        assert not capture.partial
        assert list(step_notes(capture)) == [0, 1]


def test_state_is_kept_even_when_the_budget_for_values_is_spent(llama_onnx, tmp_path):
    session = session_on(
        OrtEngine(llama_onnx, "layers.*:out"),
        tmp_path,
        CaptureSelection(values=parse_selector("**")),
        value_budget_bytes=1,
    )
    with session.writer:
        list(session.generate(PROMPTS, 3))
    with Capture(tmp_path) as capture:
        assert capture.left_out == 3 * 3
        assert state_after(capture, caches=cache_outputs_by_input(session.engine)).step == 3


def test_what_is_not_there_cannot_be_gone_on_from(llama_onnx, tmp_path):
    recorded(llama_onnx, tmp_path / "cap", steps=2)
    with CaptureWriter(tmp_path / "empty", CaptureHeader()):
        pass
    with Capture(tmp_path / "cap") as capture, pytest.raises(CaptureError, match="up to step 9") as caught:
        state_after(capture, 9, caches={})
    assert caught.value.fix == "it has steps 0 to 1"
    with Capture(tmp_path / "empty") as capture, pytest.raises(CaptureError, match="no whole generation"):
        state_after(capture, caches={})


# What is kept


def names_at(folder):
    with Capture(folder) as capture:
        return [(each.step, each.layout.shape) for each in capture.records() if each.name.endswith("mlp:out")]


def test_steps_and_every_nth(llama_onnx, tmp_path):
    engine = OrtEngine(llama_onnx, "layers.0.mlp:out")
    for name, wanted, steps in (
        ("some", CaptureSelection(steps=parse_steps("0,3-4")), [0, 3, 4]),
        ("rest", CaptureSelection(steps=parse_steps("4-")), [4, 5]),
        ("every", CaptureSelection(every=2), [0, 2, 4]),
    ):
        session = session_on(engine, tmp_path / name, wanted)
        with session.writer:
            list(session.generate(PROMPTS, 6))
        assert [step for step, _ in names_at(tmp_path / name)] == steps


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("positions", "shapes"),
    [
        ("-1", [(0, 1), (1, 1), (2, 1)]),
        ("0,3", [(0, 2)]),
        ("4", [(1, 1)]),
        ("2,-1,5", [(0, 2), (1, 1), (2, 1)]),
    ],
)
def test_positions_are_columns_of_the_sequence(llama_onnx, tmp_path, positions, shapes):
    recorded(llama_onnx, tmp_path, "layers.0.mlp:out", 3, positions=parse_positions(positions))
    assert [(step, shape[1]) for step, shape in names_at(tmp_path)] == shapes


@pytest.mark.parametrize("text", ["x", "3-1-2", "-1"])
def test_steps_that_are_none(text):
    with pytest.raises(InputError, match="not a choice of steps"):
        parse_steps(text)


# NaN and infinities


def overflowing(tmp_path):
    """Return a model whose third node overflows to NaN, and which masks with -Inf as attention does."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    mask = np.where(np.tril(np.ones((3, 3), bool)), 0, -np.inf).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["scores"], "qk"),
        helper.make_node("Add", ["scores", "mask"], ["masked"], "mask"),
        helper.make_node("Softmax", ["masked"], ["shares"], "softmax"),
        helper.make_node("Log", ["shares"], ["logs"], "log"),
        helper.make_node("Sub", ["logs", "logs"], ["gone"], "sub"),
        helper.make_node("Relu", ["gone"], ["y"], "relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 3])],
        [numpy_helper.from_array(mask, "mask")],
    )
    path = tmp_path / "nan.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_a_watched_run_stops_at_the_first_nan_and_keeps_what_led_to_it(tmp_path):
    engine = OrtEngine(overflowing(tmp_path), "**", optimisation="none")
    session = session_on(engine, tmp_path / "cap", CaptureSelection(watch=True))
    x = np.eye(3, dtype=np.float32)
    with pytest.raises(NotFiniteError) as caught, session.writer:
        session.compute({"x": x})
    # -Inf in "masked" is the mask's work; "logs" has -Inf of its own making.
    assert caught.value.message == "logs has 3 -Inf at step 0, of 9 elements"
    with Capture(tmp_path / "cap") as capture:
        assert not capture.partial
        assert np.isneginf(capture.values(capture.record("logs"))).sum() == 3
        assert np.allclose(capture.values(capture.record("shares")).sum(1), 1)
        assert "gone" not in {record.name for record in capture.records()}


def test_a_coarsely_watched_run_still_keeps_what_led_to_it(tmp_path):
    engine = OrtEngine(overflowing(tmp_path), "tensor:gone", optimisation="none")
    session = session_on(engine, tmp_path / "cap", CaptureSelection(watch=True))
    with pytest.raises(NotFiniteError, match="gone has 3 NaN"), session.writer:
        session.compute({"x": np.eye(3, dtype=np.float32)})
    with Capture(tmp_path / "cap") as capture:
        assert np.isneginf(capture.values(capture.record("logs"))).any()


def test_a_mask_is_no_reason_to_stop(tmp_path):
    engine = OrtEngine(overflowing(tmp_path), "tensor:scores, tensor:masked, tensor:shares", optimisation="none")
    session = session_on(engine, tmp_path / "cap", CaptureSelection(watch=True))
    with session.writer:
        session.compute({"x": np.eye(3, dtype=np.float32)})
    with Capture(tmp_path / "cap") as capture:
        assert capture.record("masked").statistics.neg_inf == 3
        assert "shares" in {record.name for record in capture.records()}


# Replay


@pytest.fixture(scope="module")
def recorded_layers(llama_onnx, tmp_path_factory):
    """Return captures of one generation on two engines, with the values of what enters and leaves a layer."""
    from trtdx.engines.tensorrt.evaluate.engine import TrtEngine

    found = {}
    for kind, engine_class in (("onnxruntime", OrtEngine), ("tensorrt", TrtEngine)):
        folder = tmp_path_factory.mktemp(kind)
        engine = engine_class(llama_onnx, "layers.1:*")
        header = CaptureHeader(
            engine=kind, details={"caches": cache_outputs_by_input(engine), "model": str(llama_onnx)}
        )
        writer = CaptureWriter(folder / "cap", header)
        wanted = CaptureSelection(values=parse_selector("**:*"))
        with writer:
            list(CaptureSession(engine, writer, Recorder(writer, wanted, engine.places())).generate(PROMPTS, 3))
        found[kind] = folder / "cap"
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize("own", ["onnxruntime", "tensorrt"])
def test_a_layer_replayed_on_its_own_engine_is_bitwise_the_same(recorded_layers, own, step):
    from trtdx.capture.session.replay import replay_section

    section = replay_section(str(recorded_layers[own]), "layers.1", engine=own, step=step)
    assert section.rows[0][2:] == ("bitwise the same", 0.0, 0.0)


@pytest.mark.heavy
@pytest.mark.parametrize("step", [0, 2])
def test_a_layer_is_replayed_on_another_engine_with_its_inputs_matched(recorded_layers, step):
    from trtdx.capture.session.replay import replay_section

    section = replay_section(str(recorded_layers["onnxruntime"]), "layers.1", engine="tensorrt", step=step)
    _, _, verdict, largest, relative = section.rows[0]
    assert verdict == "differs"
    assert largest < 1e-5
    assert relative < 1e-5
    assert "inputs matched by type and shape" in section.note


@pytest.mark.parametrize("step", [0, 2])
def test_a_layer_captured_on_onnx_is_replayed_on_torch_and_back(recorded_layers, llama_onnx, tmp_path, step):
    pytest.importorskip("torch")
    from support.onnx_models import llama_module
    from trtdx.capture.session.replay import replay_module
    from trtdx.engines.torch.engine import TorchEngine

    model = llama_module().m
    prompts = [PROMPTS[0]]  # padding would need a mask, which torch writes otherwise
    ort = OrtEngine(llama_onnx, "layers.1:*")
    torch_engine = TorchEngine(model, "layers.1:*")
    for engine in (ort, torch_engine):
        header = CaptureHeader(engine=engine.kind, details={"caches": cache_outputs_by_input(engine)})
        writer = CaptureWriter(tmp_path / engine.kind, header)
        recorder = Recorder(writer, CaptureSelection(values=parse_selector("**:*")), engine.places())
        with writer:
            list(CaptureSession(engine, writer, recorder).generate(prompts, 3))
    for own, other in (("onnxruntime", torch_engine), ("torch", ort)):
        other.sink = None
        with Capture(tmp_path / own) as capture:
            first = replay_module(capture, other, "layers.1", step=step).outputs[0]
            assert np.allclose(first.replayed, capture.values(first.captured), atol=1e-5)
    torch_engine.close()


def test_a_replay_needs_the_values_of_what_enters(recorded_layers, llama_onnx):
    from trtdx.capture.session.replay import replay_section

    with pytest.raises(CaptureError, match=r"no values of what enters layers\.0") as caught:
        replay_section(str(recorded_layers["onnxruntime"]), "layers.0")
    assert "--tap 'layers.0:*' --values 'layers.0:*'" in caught.value.fix
