"""TensorRT networks, parsed or made with the API, are watched place by place while the CPU computes them.

That the places are those of torch and ONNX Runtime is in tests/engines/test_three_engines.py.
"""

from __future__ import annotations

import os
import weakref

import numpy as np
import pytest

trt = pytest.importorskip("tensorrt_rtx", reason="networks are defined with TensorRT's own bindings")
torch = pytest.importorskip("torch", reason="heavy layers are computed with torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

from support.networks import LOG, Net  # noqa: E402
from support.onnx_models import FLOAT, INT64, external, model, names, node  # noqa: E402
from support.plugin_networks import network_with_plugin  # noqa: E402
from trtdx.engines.errors import EvaluationError, LayerError, MissingPluginError  # noqa: E402
from trtdx.engines.generate import generate_tokens  # noqa: E402
from trtdx.engines.onnxruntime.replay import replay_onnx_module  # noqa: E402
from trtdx.engines.tensorrt.evaluate.engine import TrtEngine  # noqa: E402
from trtdx.engines.tensorrt.network import parse_onnx  # noqa: E402
from trtdx.engines.tensorrt.network.places import places_by_tensor, places_of_network  # noqa: E402
from trtdx.errors import InputError, UnknownNameError  # noqa: E402

NONE = trt.MatrixOperation.NONE
ONE = np.ones((2, 4), np.float32)


def weight(name, array):
    return onnx.numpy_helper.from_array(np.asarray(array), name)


def watched(source, selector, feeds, **more):
    seen = []
    engine = TrtEngine(source, selector, sink=seen.append, **more)
    return engine.run(feeds), seen, engine


@pytest.fixture
def mlp(net):
    """Two products named as a user names layers, and one as TensorRT-LLM does."""
    x = net.input("x", (-1, 4))
    w = net.constant(np.arange(16, dtype=np.float32).reshape(4, 4) / 8)
    fc = net.add_matrix_multiply(x, NONE, w, NONE)
    fc.name = "layers.0.mlp/fc"
    act = net.add_activation(fc.get_output(0), trt.ActivationType.RELU)
    act.name = "layers.0.mlp/act"
    last = net.add_matrix_multiply(act.get_output(0), NONE, w, NONE)
    last.name = "Model/layers/1/proj/multiply_collect_L286/matmul_L1102/MATRIX_MULTIPLY_0"
    net.out(last, "y")
    return net


# Places of networks made with the API


def test_names_of_layers_are_paths_in_modules(mlp):
    placed = places_of_network(mlp.trt)
    proj = "Model.layers.1.proj.multiply_collect_L286.matmul_L1102.MATRIX_MULTIPLY_0"
    assert [(spot.place.path, spot.place.port, spot.tensor) for spot in placed.select_places("**:*, !.:*")] == [
        ("layers.0", "in", "x"), ("layers.0.mlp", "in", "x"), ("layers.0.mlp.fc", "in", "x"),
        ("layers.0.mlp.fc", "out", "layers.0.mlp/fc_output"), ("layers.0.mlp.act", "in", "layers.0.mlp/fc_output"),
        ("layers.0.mlp.act", "out", "layers.0.mlp/act_output"), ("layers.0.mlp", "out", "layers.0.mlp/act_output"),
        ("layers.0", "out", "layers.0.mlp/act_output"), ("Model", "in", "layers.0.mlp/act_output"),
        ("Model.layers.1", "in", "layers.0.mlp/act_output"), ("Model.layers.1.proj", "in", "layers.0.mlp/act_output"),
        (proj, "in", "layers.0.mlp/act_output"), (proj, "out", "y"), ("Model.layers.1.proj", "out", "y"),
        ("Model.layers.1", "out", "y"), ("Model", "out", "y"),
    ]  # fmt: skip
    assert [each.name for each in placed.places() if each.path == ""] == ["x", ":out.y"]


def test_one_selector_language(mlp):
    placed = places_of_network(mlp.trt)
    assert set(places_by_tensor(placed, "op:matrix_multiply")) == {"layers.0.mlp/fc_output", "y"}
    assert set(places_by_tensor(placed, "**.proj:out")) == {"y"}
    assert set(places_by_tensor(placed, "layers.0.mlp:*")) == {"x", "layers.0.mlp/act_output"}
    assert set(places_by_tensor(placed, "tensor:*fc_output, dtype:fp32 & tensor:y")) == {
        "layers.0.mlp/fc_output",
        "y",
    }
    with pytest.raises(InputError, match=r"nothing is selected by 'layers\.0\.mpl'") as caught:
        placed.select_places("layers.0.mpl")
    assert "mlp" in caught.value.fix


def test_layers_that_stand_before_what_they_need_are_listed_after_it(net):
    x = net.input("x", (2, 4))
    first = net.add_unary(x, trt.UnaryOperation.NEG)
    second = net.add_unary(x, trt.UnaryOperation.ABS)
    first.set_input(0, second.get_output(0))
    first.name, second.name = "b/neg", "a/abs"
    net.out(first)
    outs = [spot.place.path for spot in places_of_network(net.trt).tensor_places if spot.place.op == "UNARY"]
    assert outs == ["a.abs", "b.neg"]
    _, seen, _ = watched(net.trt, "a.abs, b.neg", {"x": ONE})
    assert [each.place.path for each in seen] == ["a.abs", "b.neg"]


def test_a_layer_without_a_name_has_a_place(net):
    x = net.input("x", (2, 4))
    net.out(net.add_unary(net.add_unary(x, trt.UnaryOperation.NEG).get_output(0), trt.UnaryOperation.ABS))
    _, seen, _ = watched(net.trt, "**", {"x": ONE})
    assert [each.place.path for each in seen] == ["Unnamed_Layer_0_Unary", "Unnamed_Layer_1_Unary", ""]


# Places of networks parsed from ONNX


def body(op, made="r"):
    result = onnx.helper.make_tensor_value_info(made, FLOAT, ["n", 4])
    inner = [node(op, ["a"], ["inner"]), node("Neg", ["inner"], [made])]
    return onnx.helper.make_graph(inner, op, [], [result])


@pytest.fixture
def odd(tmp_path):
    """All that a parser might fold, drop or rename: copies of inputs and weights, dropout, bodies with one name."""
    nodes = [
        node("Identity", ["x"], ["i"], name="/l/Identity"), node("Dropout", ["i"], ["d"], name="/l/Dropout"),
        node("Cast", ["d"], ["c"], to=FLOAT, name="/l/Cast"), node("Transpose", ["w"], ["wt"], name="/l/Transpose"),
        node("Identity", ["w"], ["wi"], name="/l/IdW"), node("MatMul", ["c", "wt"], ["m"], name="/l/MatMul"),
        node("Reshape", ["m", "shape"], ["rs"], name="/l/Reshape"), node("Abs", ["rs"], ["a"], name="/l/Abs"),
        node("If", ["cond"], ["b"], name="/k/If", then_branch=body("Neg"), else_branch=body("Exp")),
        node("Identity", ["b"], ["y"], name="/k/Out"), node("Neg", ["a"], ["unused"], name="/k/Unused"),
        node("Shape", ["x"], ["s"], name="/k/Shape"), node("Cast", ["s"], ["sf"], to=FLOAT, name="/k/CastS"),
    ]  # fmt: skip
    outputs = [("y", FLOAT, ["n", 4]), ("sf", FLOAT, [2]), ("wi", FLOAT, [4, 4]), ("a", FLOAT, None)]
    weights = [weight("w", np.arange(16, dtype=np.float32).reshape(4, 4)), weight("shape", np.array([-1, 4]))]
    return model(tmp_path / "odd.onnx", nodes, [("x", FLOAT, ["n", 4]), ("cond", 9, [])], outputs, weights)


@pytest.mark.parametrize("cond", [True, False])
def test_nothing_of_the_file_is_lost(odd, cond):
    onnxruntime = pytest.importorskip("trtdx.engines.onnxruntime.engine")
    pytest.importorskip("onnxruntime")
    feeds, theirs = {"x": ONE * 3, "cond": np.array(cond)}, []
    onnxruntime.OrtEngine(odd, "**:*", sink=theirs.append, optimisation="none", threads=1).run(feeds)
    _, ours, engine = watched(odd, "**:*, !tensorrt.**", feeds)
    assert (engine.network_places.renamed, engine.network_places.lost) == ({}, {})
    assert [each.place for each in ours] == [each.place for each in theirs]
    assert all(np.allclose(a.tensor, b.tensor) for a, b in zip(ours, theirs, strict=True))


def test_bodies_have_places_below_tensorrt_and_the_branch_taken_is_seen(odd):
    _, seen, engine = watched(odd, "tensorrt.**", {"x": ONE, "cond": np.array(False)})
    listed = {each.name for each in engine.places()}
    assert {"inner", "r"} < listed  # of the first branch; those of the other have a number appended
    taken = [each.place.tensor for each in seen if each.place.op == "UNARY"]
    assert len(taken) == 2
    assert not {"inner", "r"} & set(taken)


def test_functions_are_inlined_so_that_names_are_those_of_the_places(tmp_path):
    helper = onnx.helper
    inner = [
        helper.make_node("Add", ["a", "a"], ["t"], name="add"),
        helper.make_node("Neg", ["t"], ["b"], name="neg"),
    ]
    twice = helper.make_function("my", "Twice", ["a"], ["b"], inner, [helper.make_opsetid("", 20)])
    calls = [helper.make_node("Twice", [a], [b], domain="my", name=b) for a, b in (("x", "g"), ("g", "h"), ("h", "y"))]
    ends = [[helper.make_tensor_value_info(name, FLOAT, [2])] for name in "xy"]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("my", 1)]
    proto = helper.make_model(
        helper.make_graph(calls, "g", *ends), functions=[twice], opset_imports=opsets, ir_version=10
    )
    path = tmp_path / "f.onnx"
    path.write_bytes(proto.SerializeToString())
    _, seen, engine = watched(path, "op:Add", {"x": np.array([1, 2], np.float32)})
    assert [each.tensor.tolist() for each in seen] == [[2, 4], [-4, -8], [8, 16]]
    assert engine.network_places.lost == {}
    # A network that somebody else parsed names the tensors inside in its own way, and that is told.
    other = Net()
    assert trt.OnnxParser(other.trt, LOG).parse_from_file(str(path))
    lost = places_of_network(other.trt, path).lost
    assert lost
    assert all("parser made no tensor of" in why or "comes from" in why for why in lost.values())


def test_a_name_the_parser_changed_is_followed_and_told(tmp_path):
    """The parser calls the second `r` of two bodies `r_2`, say; then the file's own `r_2` is taken."""
    branches = {"then_branch": body("Neg"), "else_branch": body("Exp")}
    nodes = [node("Abs", ["x"], ["a"]), node("If", ["cond"], ["b"], **branches)]
    inputs = [("x", FLOAT, ["n", 4]), ("cond", 9, [])]
    path = model(tmp_path / "m.onnx", nodes, inputs, [("b", FLOAT, ["n", 4])])
    (taken,) = [each.tensor for each in TrtEngine(path).places() if each.tensor.startswith("r_")]
    nodes += [node("Neg", ["b"], [taken]), node("Abs", [taken], ["y"])]
    model(path, nodes, inputs, [("b", FLOAT, ["n", 4]), ("y", FLOAT, ["n", 4])])
    result, seen, engine = watched(path, f"op:Neg & tensor:{taken}", {"x": ONE * 2, "cond": np.array(True)})
    assert list(engine.network_places.renamed) == [taken]
    assert engine.network_places.renamed[taken] != taken
    assert engine.details["renamed"] == engine.network_places.renamed
    assert np.array_equal(seen[0].tensor, -result["b"])


# Runs


def test_a_step(mlp):
    x = np.arange(8, dtype=np.float32).reshape(2, 4) - 4
    result, seen, engine = watched(mlp.trt, "layers.0.mlp:*", {"x": x})
    w = np.arange(16, dtype=np.float32).reshape(4, 4) / 8
    np.testing.assert_allclose(result["y"], np.maximum(x @ w, 0) @ w)
    np.testing.assert_allclose(seen[1].tensor, np.maximum(x @ w, 0))
    assert names(seen) == ["layers.0.mlp:in", "layers.0.mlp:out"]
    assert (engine.kind, engine.outputs, engine.step) == ("tensorrt", ["y"], 1)
    assert str(engine.inputs["x"]) == "float32 [dim0, 4]"
    assert engine.details["computed"] == "on the CPU from the network definition; no plan was executed"
    assert engine.details["tensorrt"].startswith("tensorrt_rtx ")
    assert engine.details["optimisation"] == "none"
    assert not engine.tap_effect.compiled
    assert "changed nothing" in engine.tap_effect.note


def test_steps_are_counted_and_the_same_network_is_watched_twice(mlp):
    first, second = [], []
    engine = TrtEngine(mlp.trt, "act", sink=first.append)
    other = engine.with_selector("fc", second.append)
    for _ in range(2):
        engine.run({"x": ONE})
    other.run({"x": ONE})
    assert [(each.step, each.place.path) for each in first] == [
        (0, "layers.0.mlp.act"),
        (1, "layers.0.mlp.act"),
    ]
    assert [(each.step, each.place.path) for each in second] == [(0, "layers.0.mlp.fc")]


def test_what_a_layer_reads_is_told(mlp):
    engine = TrtEngine(mlp.trt)
    (place,) = [each for each in engine.places() if each.tensor == "y"]
    data, constant = engine.operator_inputs(place)
    assert (data.tensor, data.constant) == ("layers.0.mlp/act_output", None)
    engine.run({"x": ONE})
    assert engine.operator_inputs(place)[1].constant.shape == (4, 4)
    assert constant.tensor
    assert engine.operator_inputs(engine.places()[0]) == []


def test_a_closed_engine_opens_again(mlp, odd):
    for source, feeds in ((mlp.trt, {"x": ONE}), (odd, {"x": ONE, "cond": np.array(True)})):
        with TrtEngine(source) as engine:
            before = engine.run(feeds)
        assert engine._prepared is None
        after = engine.run(feeds)
        assert all(np.array_equal(before[name], after[name]) for name in before)


def test_tensors_are_let_go_when_they_were_seen(tmp_path):
    count = 24
    nodes = [node("Neg", [f"t{n}"], [f"t{n + 1}"], name=f"/l.{n}/Neg") for n in range(count)]
    path = model(tmp_path / "m.onnx", nodes, [("t0", FLOAT, ["n"])], [(f"t{count}", FLOAT, ["n"])])
    alive, most = [], []

    def look(seen):
        alive.append(weakref.ref(seen.tensor))
        most.append(len({id(each()) for each in alive if each() is not None}))

    TrtEngine(path, "**:*", sink=look).run({"t0": np.ones(1 << 16, np.float32)})
    assert len(alive) > 3 * count
    assert max(most) <= 5  # what is fed and what comes back, the tensor of now and its neighbours


def test_a_sink_that_raises_is_not_blamed_on_a_layer(mlp):
    def stop(seen):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        TrtEngine(mlp.trt, "fc", sink=stop).run({"x": ONE})


def test_a_tensor_inside_a_loop_is_seen_in_each_iteration(net):
    x = net.input("x", (2,))
    loop = net.add_loop()
    loop.add_trip_limit(net.constant(np.array(3, np.int32)), trt.TripLimit.COUNT)
    state = loop.add_recurrence(x)
    doubled = net.add_elementwise(state.get_output(0), state.get_output(0), trt.ElementWiseOperation.SUM)
    doubled.name = "loop/double"
    state.set_input(1, doubled.get_output(0))
    net.out(loop.add_loop_output(state.get_output(0), trt.LoopOutput.LAST_VALUE, 0))
    result, seen, _ = watched(net.trt, "loop.double", {"x": np.array([1, 3], np.float32)})
    assert [(each.call, each.tensor.tolist()) for each in seen] == [(0, [2, 6]), (1, [4, 12]), (2, [8, 24])]
    assert result["y"].tolist() == [8, 24]


def test_types_that_numpy_lacks(net):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = net.input("x", (2, 4), trt.bfloat16)
    net.out(net.add_unary(x, trt.UnaryOperation.NEG))
    result, seen, engine = watched(net.trt, "dtype:bf16 & op:UNARY", {"x": ONE.astype(ml_dtypes.bfloat16)})
    assert result["y"].dtype == ml_dtypes.bfloat16
    assert seen[0].place.dtype == "bfloat16" == engine.inputs["x"].dtype


def test_a_decoder_is_generated_with(tmp_path):
    """A cache that remembers tokens; the next token is their sum."""
    nodes = [
        node("Cast", ["input_ids"], ["f"], to=FLOAT), node("Concat", ["past.0", "f"], ["present.0"], axis=1),
        node("ReduceSum", ["present.0", "axis"], ["sum"]), node("Sub", ["range", "sum"], ["d"]), node("Abs", ["d"], ["e"]),
        node("Neg", ["e"], ["logits"]),
    ]  # fmt: skip
    weights = [weight("axis", np.array([1])), weight("range", np.arange(50, dtype=np.float32)[None])]
    path = model(
        tmp_path / "m.onnx", nodes, [("input_ids", INT64, ["batch", "seq"]), ("past.0", FLOAT, ["batch", "past"])],
        [("logits", FLOAT, ["batch", 50]), ("present.0", FLOAT, ["batch", "total"])], weights,
    )  # fmt: skip
    seen = []
    engine = TrtEngine(path, "tensor:sum", sink=seen.append)
    assert [step.tokens.tolist() for step in generate_tokens(engine, [[1, 2], [4, 1]], 3)] == [
        [3, 5],
        [6, 10],
        [12, 20],
    ]
    assert [each.step for each in seen] == [0, 1, 2]


# Replay


def test_a_module_of_a_network_made_with_the_api_is_replayed(mlp):
    _, seen, engine = watched(mlp.trt, "layers.0.mlp:*, Model.layers.1:*", {"x": ONE})
    captured = {each.place.name: each.tensor for each in seen}
    again = []
    other = engine.with_selector("**.proj:out, layers.0.**", again.append)
    entering = {"in": captured["Model.layers.1:in"]}
    (result,) = replay_onnx_module(other, "Model.layers.1", entering, step=5).values()
    assert np.array_equal(result, captured["Model.layers.1:out"])
    assert [(each.place.name, each.step) for each in again] == [("Model.layers.1.proj:out", 5)]
    (result,) = replay_onnx_module(other, "mlp", {"layers.0.mlp:in": captured["layers.0.mlp:in"]}).values()
    assert np.array_equal(result, captured["layers.0.mlp:out"])


@pytest.mark.parametrize(
    ("scope", "inputs", "told"),
    [
        ("layers.7", {}, "no module of the graph is called 'layers.7'"),
        ("layers.0.mlp", {}, "1 input not given: x"),
        ("layers.0.mlp", {"in": ONE.astype(np.float64)}, "is float64"),
        ("layers.0.mlp", {"in": ONE[:, :3]}, "cannot be computed"),
        ("layers.0.mlp", {"other": ONE}, "nothing that enters layers.0.mlp is called 'other'"),
    ],
)
def test_replays_that_cannot_be(mlp, scope, inputs, told):
    with pytest.raises((InputError, UnknownNameError, LayerError), match=told):
        replay_onnx_module(TrtEngine(mlp.trt), scope, inputs)


def test_any_tensor_is_computed_from_any_that_are_given(mlp):
    ready = mlp.prepare()
    act = np.full((1, 4), 2, np.float32)
    assert set(ready.compute_tensors({"layers.0.mlp/act_output": act}, ["y"])) == {"y"}
    with pytest.raises(InputError, match="x of the network is needed too"):
        ready.compute_tensors({"y": act}, ["layers.0.mlp/act_output"])
    with pytest.raises(UnknownNameError):
        ready.compute_tensors({"nobody": act}, ["y"])


# What is wrong


def test_what_comes_before_a_plugin_without_a_reference_reaches_the_sink(net):
    seen = []
    engine = TrtEngine(network_with_plugin(net), "**:*", sink=seen.append)
    with pytest.raises(MissingPluginError, match="GPTAttention version 1") as caught:
        engine.run({"x": np.array([2, 8], np.float32)})
    assert "plugins=" in caught.value.fix
    assert {"x", "doubled", "aside", "layers.0.attention:in", "layers.0:in"} <= set(names(seen))
    assert not {"y", "layers.0:out"} & set(names(seen))


def test_a_plugin_with_a_reference(net):
    plugins = {"GPTAttention": lambda value: value * 4}
    result, seen, _ = watched(
        network_with_plugin(net), "layers.0.attention:*", {"x": np.array([2, 8], np.float32)}, plugins=plugins
    )
    np.testing.assert_allclose(result["y"], [4, 8])
    assert [each.tensor.tolist() for each in seen] == [[4, 16], [16, 64]]


@pytest.mark.parametrize(
    ("feeds", "told"),
    [
        ({}, r"1 input not given: x: float32 \[dim0, 4\]"),
        ({"x": ONE.astype(np.float64)}, r"the input x is float64, but the model wants float32"),
        ({"x": ONE[0]}, r"shape \[4\], but the model wants"),
        ({"x": ONE[:, :3]}, r"shape \[2, 3\], but the model wants"),
        ({"x": ONE, "y": ONE}, "no input is called 'y'"),
        ({"x": "words"}, "the input x is str"),
    ],
)
def test_wrong_feeds_are_told_with_what_is_wanted(mlp, feeds, told):
    with pytest.raises((InputError, UnknownNameError), match=told):
        TrtEngine(mlp.trt).run(feeds)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "holds no ONNX graph"),
        (b"hello world " * 100, r"is not an ONNX model|holds no ONNX graph"),
        (None, "No such file"),
        ("cut", r"is not an ONNX model|holds no ONNX graph"),
    ],
)
def test_files_that_are_no_models(odd, tmp_path, content, told):
    path = tmp_path / "bad.onnx"
    if content == "cut":
        content = odd.read_bytes()[:-100]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=told):
        TrtEngine(path)


def test_what_is_no_network_either():
    with pytest.raises(InputError, match="int is not a network definition"):
        TrtEngine(3)


@pytest.mark.parametrize(
    ("location", "told"),
    [("absent.data", "which is not there"), ("../secret", "not a place beside the model")],
)
def test_data_that_is_not_where_the_model_says(tmp_path, location, told):
    nodes = [node("Neg", ["w"], ["y"])]
    path = model(tmp_path / "m.onnx", nodes, [], [("y", FLOAT, [2048])], [external("w", [2048], location)])
    with pytest.raises(InputError, match=told):
        TrtEngine(path)


def test_data_beside_the_model_is_used_where_it_lies(tmp_path):
    values = np.arange(2048, dtype=np.float32)
    (tmp_path / "w.data").write_bytes(bytes(64) + values.tobytes())
    nodes = [node("Add", ["x", "w"], ["y"])]
    weights = [external("w", [2048], "w.data", offset=64)]
    path = model(tmp_path / "m.onnx", nodes, [("x", FLOAT, [1])], [("y", FLOAT, [2048])], weights)
    result = TrtEngine(path).run({"x": np.ones(1, np.float32)})
    assert np.array_equal(result["y"], values + 1)


@pytest.mark.parametrize(
    ("made", "told", "fix"),
    [
        (node("Nope", ["x"], ["y"], name="/layers.3/mlp/Nope"), r"does not take Nope '/layers.3/mlp/Nope' in layers.3.mlp: ", "plugin"),
        (node("Det", ["x"], ["y"]), "does not take Det '/y/Det' in y", ""),
        (node("MatMul", ["x", "x"], ["y"]), "last dimension of input0 = 3", "onnx.checker"),
    ],
)  # fmt: skip
def test_what_the_parser_does_not_take_is_told_by_node_module_and_reason(tmp_path, made, told, fix):
    path = model(tmp_path / "m.onnx", [made], [("x", FLOAT, [2, 3])], [("y", FLOAT, None)])
    with pytest.raises(EvaluationError, match=told) as caught:
        TrtEngine(path)
    assert caught.value.layer == made.name
    assert fix in caught.value.fix
    assert caught.value.fix


def test_a_model_that_kills_the_parser_kills_a_child_only(tmp_path):
    """A block size of zero: TensorRT-RTX 1.7.1 divides by it."""
    path = model(
        tmp_path / "m.onnx", [node("DepthToSpace", ["x"], ["y"], blocksize=0)], [("x", FLOAT, [1, 4, 8, 8])], [("y", FLOAT, None)]
    )  # fmt: skip
    with pytest.raises(EvaluationError, match="TensorRT's parser") as caught:
        TrtEngine(path)
    assert caught.value.fix


def test_a_file_is_tried_in_a_child_once_until_it_changes(odd, monkeypatch):
    tried = []
    run = parse_onnx.RealHost.run
    monkeypatch.setattr(
        parse_onnx.RealHost, "run", lambda self, argv, **more: tried.append(argv) or run(self, argv, **more)
    )
    TrtEngine(odd)
    TrtEngine(odd)
    assert len(tried) == 1
    os.utime(odd, (1, 1))
    TrtEngine(odd)
    assert len(tried) == 2
