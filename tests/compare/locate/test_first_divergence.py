"""The first place that is wrong, found in few runs, with what was still good and what it poisons."""

from __future__ import annotations

import numpy as np
import pytest

from support.paths import TINY

pytest.importorskip("torch")
pytest.importorskip("transformers")


from support.verdict_pairs import ALONE, QUESTION, mistaken, pairs_of, runs_of, save_llama, side
from trtdx.compare.judge.verdict import judge_pairs
from trtdx.compare.locate.first_divergence import MOST_RUNS, ModelSegment, locate_first_divergence
from trtdx.compare.nouns import PairVerdict
from trtdx.compare.run import ComparisonPlan, compare
from trtdx.compare.sides.side import ComparisonQuestion, SideSpec
from trtdx.host import RealHost

SHORT = ComparisonQuestion(prompts=(QUESTION.prompts[0],), new_tokens=1)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    spec = SideSpec("hf", str(save_llama(folder / "model")), ALONE)
    return side(spec, folder / "reference", question=SHORT)


def located(reference, candidate, folder, *, question=SHORT, only_local=False):
    runs = runs_of(reference, candidate, folder / "runs", question=question)
    pairs = pairs_of(reference, candidate)
    judged = judge_pairs(pairs, reference, candidate, runs=runs, only_local=only_local)
    return locate_first_divergence(judged, reference, candidate, runs=runs, align=pairs_of)


def mistaken_side(reference, folder, mistake):
    spec = SideSpec("hf", reference.spec.path, {"dtype": "float32", **ALONE})
    return mistaken(spec, folder, mistake, forced=reference.step_tokens(), question=SHORT)


@pytest.mark.heavy
def test_the_module_its_inputs_and_what_it_poisons(reference, tmp_path):
    candidate = mistaken_side(
        reference, tmp_path / "candidate", lambda model: model.model.layers[1].mlp.up_proj.weight.mul_(1.5)
    )
    found = located(reference, candidate, tmp_path)
    assert found.where.tensor == "model.layers.1.mlp.up_proj:out"
    assert (found.where.module, found.where.layer, found.where.step) == ("model.layers.1.mlp.up_proj", 1, 0)
    assert found.still_good == ("model.layers.1.mlp.up_proj:in",)
    assert "lm_head:out" in found.poisoned
    assert not any("layers.0." in name for name in found.poisoned)
    assert found.segment_runs == 0, "the captures were fine enough"


def test_what_no_module_computes_is_told_by_its_neighbours(reference, tmp_path):
    def mistake(model):
        model.model.layers[1].self_attn.scaling *= 2

    found = located(reference, mistaken_side(reference, tmp_path / "candidate", mistake), tmp_path, only_local=True)
    assert found.where.tensor == "model.layers.1.self_attn.o_proj:in"
    assert found.where.module == "model.layers.1.self_attn"
    assert any("v_proj:out" in name for name in found.still_good)


def test_an_input_from_outside_the_modules_is_named_itself(reference, tmp_path):
    def mistake(model):
        def later(_, args, kwargs):
            return args, kwargs | {"position_ids": kwargs["position_ids"] + 1}

        model.model.rotary_emb.register_forward_pre_hook(later, with_kwargs=True, prepend=True)

    found = located(reference, mistaken_side(reference, tmp_path / "candidate", mistake), tmp_path, only_local=True)
    assert found.where.tensor == "model.rotary_emb:in.position_ids"


def test_nothing_is_located_where_nothing_is_wrong(reference, tmp_path):
    found = located(reference, mistaken_side(reference, tmp_path / "candidate", lambda model: None), tmp_path)
    assert found.where is None
    assert not found.poisoned


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("layers", "wrong", "taps"), [(64, 41, "layers.*:out"), (6, 3, "lm_head:out"), (6, 3, "layers[0,5]:out")]
)
def test_coarse_captures_are_refined_in_few_runs(tmp_path, layers, wrong, taps):
    import safetensors.torch

    good, bad = (save_llama(tmp_path / name, layers=layers, hidden=16) for name in ("good", "bad"))
    weights = safetensors.torch.load_file(bad / "model.safetensors")
    weights[f"model.layers.{wrong}.mlp.down_proj.weight"] *= -1
    safetensors.torch.save_file(weights, bad / "model.safetensors", metadata={"format": "pt"})
    question = ComparisonQuestion(prompts=((1, 5, 9, 22),), new_tokens=1)
    reference = side(SideSpec("hf", str(good), ALONE), tmp_path / "a", question=question, selector=taps)
    candidate = side(
        SideSpec("hf", str(bad), ALONE),
        tmp_path / "b",
        question=question,
        selector=taps,
        forced=reference.step_tokens(),
    )
    runs = runs_of(reference, candidate, tmp_path / "runs", question=question)
    pairs = [pair for pair in pairs_of(reference, candidate) if not pair.name.startswith("present")]
    judged = judge_pairs(pairs, reference, candidate, runs=runs, only_local=True)
    found = locate_first_divergence(judged, reference, candidate, runs=runs, align=pairs_of)
    assert found.where.tensor == f"model.layers.{wrong}.mlp.down_proj:out"
    assert found.where.layer == wrong
    assert found.segment_runs + len(runs.run_names) <= MOST_RUNS
    assert found.finer_sides is not None


def test_graphs_are_compared_by_replays_where_no_float64_is_to_be_had(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    model = onnx.load(TINY / "model.onnx")
    name = "model.layers.1.input_layernorm.weight"
    weight = next(each for each in model.graph.initializer if each.name == name)
    values = onnx.numpy_helper.to_array(weight)
    weight.CopyFrom(onnx.numpy_helper.from_array((values * 1.01).astype(np.float32), name))
    onnx.save(model, tmp_path / "bad.onnx")
    ours = side(SideSpec("onnx", str(TINY / "model.onnx")), tmp_path / "a", question=SHORT)
    theirs = side(
        SideSpec("onnx", str(tmp_path / "bad.onnx")),
        tmp_path / "b",
        question=SHORT,
        forced=ours.step_tokens(),
    )
    runs = runs_of(ours, theirs, tmp_path / "runs", question=SHORT)
    judged = judge_pairs(pairs_of(ours, theirs), ours, theirs, runs=runs)
    found = locate_first_divergence(judged, ours, theirs, runs=runs, align=pairs_of)
    assert found.where.module == "model.layers.1.input_layernorm"
    assert found.first.basis == "local replay of the reference's module"
    assert PairVerdict.POISONED in {each.verdict for each in found.judged}


def test_a_segment_says_what_it_is():
    assert ModelSegment("model.layers", 3, 4).text == "model.layers.3"
    assert ModelSegment("model.layers", 3, 9).text == "model.layers.3 to 8"
    assert ModelSegment("lm_head", 0, 0).selector.startswith("lm_head:*")


def deep_graph(path, *, layers=64, width=8, wrong=None):
    """Write an ONNX file of many layers with a residual each, one down projection with its sign changed if asked."""
    onnx = pytest.importorskip("onnx")
    rng = np.random.default_rng(0)
    nodes, weights, now = [], [], "x"
    for layer in range(layers):
        for part in ("norm", "up", "down"):
            shape = (width,) if part == "norm" else (width, width)
            array = rng.standard_normal(shape).astype(np.float32) / np.float32(width**0.5)
            array = -array if (layer, part) == (wrong, "down") else array
            weights.append(onnx.numpy_helper.from_array(array, f"{part}{layer}"))
        for op, reads, makes, scope in (
            ("Mul", (now, f"norm{layer}"), f"n{layer}", "norm/Mul"),
            ("MatMul", (f"n{layer}", f"up{layer}"), f"u{layer}", "mlp/up_proj/MatMul"),
            ("Tanh", (f"u{layer}",), f"t{layer}", "mlp/act_fn/Tanh"),
            ("MatMul", (f"t{layer}", f"down{layer}"), f"d{layer}", "mlp/down_proj/MatMul"),
            ("Add", (now, f"d{layer}"), f"x{layer}", "Add"),
        ):
            nodes.append(onnx.helper.make_node(op, reads, [makes], name=f"/model/layers.{layer}/{scope}"))
        now = f"x{layer}"
    shape = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ["n", width])
    graph = onnx.helper.make_graph(
        nodes,
        "deep",
        [onnx.helper.make_value_info("x", shape)],
        [onnx.helper.make_value_info(now, shape)],
        weights,
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return str(path)


@pytest.mark.heavy
@pytest.mark.parametrize("wrong", [0, 41, 63])
def test_sixty_four_layers_of_a_graph_take_few_segment_runs(tmp_path, book, wrong):
    pytest.importorskip("onnxruntime")
    np.savez(tmp_path / "in.npz", x=np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32))
    plan = ComparisonPlan(
        reference=f"onnx:{deep_graph(tmp_path / 'good.onnx')}",
        candidate=f"onnx:{deep_graph(tmp_path / 'bad.onnx', wrong=wrong)}",
        question=ComparisonQuestion(inputs=str(tmp_path / "in.npz")),
        attribute=False,
    )
    report = compare(RealHost(), plan, book)
    assert report.findings[0].where.module == f"model.layers.{wrong}.mlp.down_proj"
    assert report.segment_runs <= MOST_RUNS


@pytest.mark.heavy
@pytest.mark.parametrize("taps", ["layers.*:*", "layers.*:*, layers.*.mlp:*, layers.*.self_attn:*"])
def test_only_the_suspicious_module_is_computed_again_where_its_inputs_are_known(tmp_path, taps):
    import safetensors.torch

    good, bad = (save_llama(tmp_path / name, layers=8, hidden=16) for name in ("good", "bad"))
    weights = safetensors.torch.load_file(bad / "model.safetensors")
    weights["model.layers.5.mlp.down_proj.weight"] *= -1
    safetensors.torch.save_file(weights, bad / "model.safetensors", metadata={"format": "pt"})
    reference = side(SideSpec("hf", str(good), ALONE), tmp_path / "a", question=SHORT, selector=taps)
    candidate = side(
        SideSpec("hf", str(bad), ALONE),
        tmp_path / "b",
        question=SHORT,
        selector=taps,
        forced=reference.step_tokens(),
    )
    found = located(reference, candidate, tmp_path, only_local=True)
    assert found.where.tensor == "model.layers.5.mlp.down_proj:out"
    assert any("computed again from its inputs" in note for note in found.notes)
    assert not list((tmp_path / "runs").glob("segment-*")), "no model was run as a whole"
    assert found.segment_runs <= MOST_RUNS
