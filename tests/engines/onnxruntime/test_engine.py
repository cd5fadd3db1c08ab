"""ONNX models are watched without an edit, in the same places and with the same values as on torch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from trtdx.engines.errors import EvaluationError
from trtdx.engines.generate import generate_tokens
from trtdx.engines.onnxruntime.engine import onnx_model_places
from trtdx.errors import InputError, UnknownNameError
from trtdx.tensors.taps import parse_selector

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("torch", reason="the reference is computed with it")
pytest.importorskip("onnxscript", reason="torch exports with it")
pytest.importorskip("transformers", reason="the decoder is Hugging Face's")

pytestmark = pytest.mark.heavy

pytest.register_assert_rewrite("onnx_generation")
# An export takes long: the tests of generation are collected here, so that all share one.
from support.onnx_generation import *  # noqa: E402, F403
from support.onnx_models import (  # noqa: E402
    BFLOAT16,
    CLOSE,
    FLOAT,
    INT64,
    LAYERS,
    engine_of,
    export_llama,
    external,
    llama_feeds,
    model,
    names,
    node,
    prompts,
    seen_on_both,
    watched,
)


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    return export_llama(tmp_path_factory.mktemp("llama"))


# Places


def test_one_selector_is_the_same_places_on_torch_and_onnx(llama):
    steps = list(generate_tokens(engine_of(llama.path), prompts(12), 2))
    for selector in (
        "layers.*.mlp:out", "**.q_proj:in", "layers[0,-1]:out", "layers.1.self_attn:out[0]", "**.mlp.*:* & op:Linear",
        "layers.*:in[0]", "rotary_emb", "norm, lm_head", "**.embed_tokens:*", "**.*layernorm:*", "**:* & op:SiLU*",
    ):  # fmt: skip
        theirs, ours = seen_on_both(llama, selector, steps)
        assert [each.place[:5] for each in ours] == [each.place[:5] for each in theirs], selector
        assert [each.step for each in ours] == [each.step for each in theirs]
        for their, our in zip(theirs, ours, strict=True):
            np.testing.assert_allclose(our.tensor, their.tensor, **CLOSE, err_msg=our.place.name)


def test_every_module_of_torch_is_there(llama):
    steps = list(generate_tokens(engine_of(llama.path), prompts(12), 1))
    theirs, ours = seen_on_both(llama, "**", steps)
    attention = {f"m.model.layers.{layer}.self_attn:out[1]" for layer in range(LAYERS)}  # unused: not in the graph
    named = {
        ":out",
        "m:out.logits",
        "m.model:out.last_hidden_state",
    }  # known by number here, or by name there
    wanted = {name for name in names(theirs) if not name.startswith(":out")} - attention - named
    assert wanted <= set(names(ours))
    assert {"m:out", "m.model:out", ":out.logits", "logits"} <= set(names(ours))


def test_places_are_listed_without_a_run(llama):
    listed = onnx_model_places(llama.path)
    assert [each.name for each in parse_selector("layers.1.mlp").select(listed)] == ["m.model.layers.1.mlp:out"]
    products = parse_selector("op:MatMul & layers.1.mlp.**").select(listed)
    assert [each.path.rpartition(".")[0] for each in products] == [
        f"m.model.layers.1.mlp.{part}_proj" for part in ("gate", "up", "down")
    ]
    assert {each.dtype for each in products} == {"float32"}
    assert [each.name for each in parse_selector("tensor:logits").select(listed)] == ["logits"]
    assert [each.name for each in parse_selector(".:in.input_ids").select(listed)] == ["input_ids"]


def test_names_of_the_older_exporter_are_modules_too(tmp_path):
    nodes = [
        node("Relu", ["x"], ["a"], name="/layers.0/mlp/Relu"),
        node("Neg", ["a"], ["b"], name="/layers.0/mlp/Neg"),
        node("Identity", ["b"], ["c"], name="made_by_an_optimiser"),
        node("Abs", ["c"], ["d"], name="/layers.0/norm/Abs"),
        node("Neg", ["d"], ["e"], name="/layers.1/mlp/Neg"),
    ]
    path = model(tmp_path / "m.onnx", nodes, [("x", FLOAT, ["n"])], [("e", FLOAT, ["n"])])
    _, seen, _ = watched(path, "layers.*.mlp:*", {"x": np.array([-1.0, 2.0], np.float32)})
    assert names(seen) == ["layers.0.mlp:in", "layers.0.mlp:out", "layers.1.mlp:in", "layers.1.mlp:out"]
    assert seen[1].tensor.tolist() == [0, -2]
    assert "layers.0.c" in {each.path for each in onnx_model_places(path)}  # it is where its neighbours are


def test_a_module_called_twice_is_seen_twice(tmp_path):
    nodes = [
        node("Neg", ["x"], ["a"], name="/shared/Neg"),
        node("Relu", ["a"], ["b"], name="/Relu"),
        node("Neg", ["b"], ["y"], name="/shared/Neg_1"),
    ]
    path = model(tmp_path / "m.onnx", nodes, [("x", FLOAT, [1])], [("y", FLOAT, [1])])
    _, seen, _ = watched(path, "shared", {"x": np.array([-2.0], np.float32)})
    assert [(each.place.name, each.call, each.tensor.item()) for each in seen] == [
        ("shared:out", 0, 2.0),
        ("shared:out", 1, -2.0),
    ]


def test_a_selector_that_hits_nothing_names_what_is_near(llama):
    with pytest.raises(InputError, match=r"nothing is selected by 'layers\.\*\.mpl'") as caught:
        engine_of(llama.path, "layers.*.mpl")
    assert "mlp" in caught.value.fix


# Runs


def test_watching_everything_changes_nothing_without_optimisation(llama):
    feeds = llama_feeds()
    plain = engine_of(llama.path, optimisation="none").run(feeds)
    result, seen, engine = watched(llama.path, "**:*", feeds, optimisation="none")
    assert all(np.array_equal(result[name], plain[name]) for name in plain)
    assert len(seen) == len(engine.taps) > 400
    assert "changed nothing" in engine.tap_effect.note


def test_what_watching_changed_is_told(llama):
    engine = engine_of(llama.path, "**.act_fn.*")
    assert engine.tap_effect.compiled
    assert "3 QuickGelu by 3 Mul, 3 Sigmoid" in engine.tap_effect.note
    assert "changed nothing" in engine_of(llama.path, "layers.*").tap_effect.note


@pytest.mark.parametrize("optimisation", ["none", "all"])
@pytest.mark.parametrize(
    ("selector", "budget", "parts"),
    [("layers.*", 3000, LAYERS), ("**", 20_000, 30), ("layers.1.**:*", 1, 50)],
)
def test_parts_give_bitwise_what_the_whole_gives(llama, selector, budget, parts, optimisation):
    feeds = llama_feeds()
    whole, at_once, _ = watched(llama.path, selector, feeds, optimisation=optimisation)
    result, one_by_one, engine = watched(llama.path, selector, feeds, optimisation=optimisation, budget_bytes=budget)
    assert len(engine.segments) >= parts
    assert all(np.array_equal(result[name], whole[name]) for name in whole)
    assert names(one_by_one) == names(at_once)
    assert all(np.array_equal(a.tensor, b.tensor) for a, b in zip(one_by_one, at_once, strict=True))
    assert f"in {len(engine.segments)} parts" in engine.tap_effect.note


def test_cuts_are_made_between_layers(llama):
    _, _, engine = watched(llama.path, "layers.*", llama_feeds(), budget_bytes=3000)
    begins = [engine.graph.scopes[segment.first] for segment in engine.segments]
    assert [each[2] for each in begins[1:]] == [f"m.model.layers.{layer}" for layer in range(1, LAYERS)]


def test_a_budget_that_is_large_enough_cuts_nothing_until_inputs_grow(llama):
    engine = engine_of(llama.path, "layers.*.mlp", sink=lambda seen: None, budget_bytes=10_000)
    engine.run(llama_feeds(new=5))
    assert len(engine.segments) == 1
    engine.run(llama_feeds(batch=4, new=16))
    assert len(engine.segments) == LAYERS
    engine.run(llama_feeds(new=5))
    assert len(engine.segments) == LAYERS


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"input_ids": np.ones((2, 5), np.int32)}, r"input_ids is int32, but the model wants int64 \[batch, seq\]"),
        ({"input_ids": np.ones(5, np.int64)}, r"shape \[5\], but the model wants int64 \[batch, seq\]"),
        ({"past_key_values.1.key": np.ones((2, 3, 3, 16), np.float32)}, r"wants float32 \[batch, 2, past, 16\]"),
        ({"inputs_ids": np.ones(5)}, "no input is called 'inputs_ids'"),
        ({"position_ids": None}, r"1 input not given: position_ids: int64 \[batch, seq\]"),
        ({"attention_mask": np.ones((2, 4), np.int64)}, "'node_GatherND_.*' in m.model cannot be computed: "),
    ],
)  # fmt: skip
def test_wrong_feeds_are_told_with_what_is_wanted(llama, change, told):
    feeds = {name: each for name, each in (llama_feeds() | change).items() if each is not None}
    with pytest.raises((InputError, UnknownNameError, EvaluationError), match=told):
        engine_of(llama.path).run(feeds)


# Weights


def test_a_model_whose_weights_do_not_fit_is_loaded_part_by_part(llama):
    feeds = llama_feeds()
    whole, at_once, _ = watched(llama.path, "layers.*", feeds)
    part, one_by_one, engine = watched(llama.path, "layers.*", feeds, weight_budget_bytes=150_000)
    assert LAYERS < len(engine.segments) < 3 * LAYERS
    assert 0 < len(engine._sessions) < len(engine.segments)
    assert engine._session_weight_bytes <= 150_000
    assert all(np.array_equal(part[name], whole[name]) for name in whole)
    assert all(np.array_equal(a.tensor, b.tensor) for a, b in zip(one_by_one, at_once, strict=True))


def weightless_bytes():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_what_was_seen_is_let_go_part_by_part(tmp_path):
    elements, count = 4 << 20, 24
    nodes = [node("Neg", [f"t{n}"], [f"t{n + 1}"]) for n in range(count)]
    nodes += [node("ReduceMax", [f"t{n}"], [f"m{n}"]) for n in range(1, count)]  # each kept until the end
    nodes.sort(key=lambda each: int(each.input[0][1:]))
    outputs = [(f"m{n}", FLOAT, None) for n in range(1, count)]
    path = model(tmp_path / "m.onnx", nodes, [("t0", FLOAT, ["n"])], outputs)
    feeds = {"t0": np.ones(elements, np.float32)}
    before, used = weightless_bytes(), []
    engine = engine_of(path, "t*", sink=lambda seen: used.append(weightless_bytes()), budget_bytes=4 * elements)
    engine.run(feeds)
    assert len(engine.segments) >= count - 1
    assert max(used) - before < count // 2 * 4 * elements


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_weights_beyond_two_gigabytes_are_used_where_they_lie(tmp_path):
    rows, columns = 300_000, 2048
    last = np.arange(columns, dtype=np.float32)
    with (tmp_path / "w.data").open("wb") as stream:
        stream.seek((rows - 1) * columns * 4)
        stream.write(last.tobytes())
    weight = external("w", [rows, columns], "w.data")
    nodes = [node("Gather", ["w", "i"], ["e"]), node("Neg", ["e"], ["y"])]
    path = model(tmp_path / "m.onnx", nodes, [("i", INT64, ["n"])], [("y", FLOAT, ["n", columns])], [weight])
    before = weightless_bytes()
    for budget in (None, 1):
        result, seen, engine = watched(path, "e, y", {"i": np.array([rows - 1, 0])}, budget_bytes=budget)
        assert len(engine.segments) == (1 if budget is None else 2)
        assert np.array_equal(result["y"][0], -last)
        assert np.array_equal(seen[0].tensor, np.stack([last, 0 * last]))
    assert weightless_bytes() - before < 200 << 20


def test_external_data_is_found_through_links(llama, tmp_path):
    feeds = llama_feeds()
    llama.program.save(str(tmp_path / "llama.onnx"), external_data=True)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "llama.onnx.data").rename(tmp_path / "blobs" / "abc")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "llama.onnx.data").symlink_to("../blobs/abc")
    (tmp_path / "llama.onnx").rename(tmp_path / "blobs" / "def")  # as huggingface_hub keeps files
    (tmp_path / "cache" / "llama.onnx").symlink_to("../blobs/def")
    expected = engine_of(llama.path).run(feeds)
    result = engine_of(tmp_path / "cache" / "llama.onnx", "layers.*", budget_bytes=1).run(feeds)
    assert all(np.array_equal(result[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("absent.data", "keeps w in absent.data, which is not there"),
        ("short.data", "short.data has 16 bytes, but w of .* lies from byte 0 to 8,192"),
        ("../secret", "which is not a place beside the model"),
        ("/etc/passwd", "which is not a place beside the model"),
    ],
)
def test_data_that_is_not_where_the_model_says(tmp_path, location, told):
    (tmp_path / "short.data").write_bytes(bytes(16))
    path = model(
        tmp_path / "m.onnx", [node("Neg", ["w"], ["y"])], [], [("y", FLOAT, [2048])],
        [external("w", [2048], location)],
    )  # fmt: skip
    with pytest.raises(InputError, match=told):
        engine_of(path)


def test_files_that_are_no_models(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        onnx_model_places(tmp_path / "absent.onnx")
    (tmp_path / "text.onnx").write_text("hello world " * 100)
    with pytest.raises(InputError, match=r"is not an ONNX model|holds no ONNX graph"):
        onnx_model_places(tmp_path / "text.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(InputError, match="holds no ONNX graph"):
        onnx_model_places(tmp_path / "empty.onnx")


# Types, operators and providers


def test_bfloat16_that_has_no_kernel_is_told_by_node_and_module(tmp_path):
    nodes = [node("MatMul", ["x", "x"], ["y"], name="/layers.3/mlp/MatMul")]
    path = model(tmp_path / "m.onnx", nodes, [("x", BFLOAT16, [2, 2])], [("y", BFLOAT16, [2, 2])])
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with pytest.raises(EvaluationError, match=r"has no MatMul \(opset 13\) of bfloat16 on CPU") as caught:
        engine_of(path).run({"x": np.ones((2, 2), ml_dtypes.bfloat16)})
    assert "in layers.3.mlp" in caught.value.message
    assert caught.value.layer == "/layers.3/mlp/MatMul"
    assert "float32 or float16" in caught.value.fix


def test_bfloat16_that_passes_is_seen(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    nodes = [node("Cast", ["x"], ["y"], to=FLOAT), node("Cast", ["y"], ["z"], to=BFLOAT16)]
    path = model(tmp_path / "m.onnx", nodes, [("x", BFLOAT16, ["n"])], [("z", BFLOAT16, ["n"])])
    fed = np.array([1.5, -2], ml_dtypes.bfloat16)
    result, seen, _ = watched(path, "dtype:bf16", {"x": fed}, optimisation="none")
    assert np.array_equal(result["z"], fed)
    assert result["z"].dtype == fed.dtype
    assert {"x", "z"} <= set(names(seen))


def test_operators_and_providers_nobody_has(tmp_path):
    nodes = [node("Nope", ["x"], ["y"])]
    path = model(tmp_path / "m.onnx", nodes, [("x", FLOAT, [1])], [("y", FLOAT, [1])])
    with pytest.raises(EvaluationError, match=r"knows no operator .*Nope|refuses the model: .*Nope"):
        engine_of(path).run({"x": np.ones(1, np.float32)})
    with pytest.raises(InputError, match="has no CUDAExecutionProvider") as caught:
        engine_of(path, providers=["CUDAExecutionProvider"])
    assert "CPUExecutionProvider" in caught.value.fix
    with pytest.raises(UnknownNameError, match="no level of optimisation is called 'al'"):
        engine_of(path, optimisation="al")


def test_bodies_of_conditions_take_part(tmp_path):
    from onnx import helper

    def body(op):
        made = helper.make_tensor_value_info("r", FLOAT, ["n"])
        return helper.make_graph([node(op, ["a"], ["r"])], op, [], [made])

    nodes = [
        node("Abs", ["x"], ["a"], name="/first/Abs"),
        node("If", ["c"], ["b"], name="/second/If", then_branch=body("Neg"), else_branch=body("Exp")),
        node("Neg", ["b"], ["y"], name="/third/Neg"),
    ]
    path = model(tmp_path / "m.onnx", nodes, [("x", FLOAT, ["n"]), ("c", 9, [])], [("y", FLOAT, ["n"])])
    feeds = {"x": np.array([-3.0], np.float32), "c": np.array(True)}
    _, seen, engine = watched(path, "second:*, third", feeds, budget_bytes=1)
    assert len(engine.segments) == 3
    assert [(each.place.name, each.tensor.tolist()) for each in seen] == [
        ("second:in", True),
        ("second:in[1]", [3.0]),
        ("second:out", [-3.0]),
        ("third:out", [3.0]),
    ]
