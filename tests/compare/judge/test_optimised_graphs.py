"""Graphs as people have them: saved by ONNX Runtime, fused by its optimisers, rewritten to the same result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.paths import TINY
from trtdx.compare.align.modules_by_weight import modules_by_weights
from trtdx.compare.judge.rewrites import REWRITTEN_NOTE, SettledPairs
from trtdx.compare.nouns import PairVerdict, UnmatchedTensor
from trtdx.compare.run import ComparisonPlan, compare
from trtdx.compare.sides.side import ComparisonQuestion, SideSpec
from trtdx.formats.onnx.model import open_model
from trtdx.formats.onnx.module_graph import OnnxGraph
from trtdx.host import RealHost

onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
QUESTION = ComparisonQuestion(prompts=((1, 15, 27, 3, 40, 22),), new_tokens=2)


def saved(path: Path, source: Path = TINY / "model.onnx") -> Path:
    """What ONNX Runtime writes as `optimized_model_filepath`: fused nodes, and no names of modules at all."""
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    runtime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    return path


def fused(path: Path) -> Path:
    """What ONNX Runtime's transformers optimizer makes: sums and norms in one node."""
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    config = transformers.AutoConfig.from_pretrained(TINY / "model")
    made = optimizer.optimize_model(
        str(TINY / "model.onnx"), model_type="gpt2", num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size, opt_level=0,
    )  # fmt: skip
    made.save_model_to_file(str(path))
    return path


def rewritten(path: Path) -> Path:
    """What onnxscript's rewriter makes for ONNX Runtime."""
    import onnx_ir

    fusions = pytest.importorskip("onnxscript.rewriter.ort_fusions")
    model = onnx_ir.load(TINY / "model.onnx")
    done = fusions.optimize_for_ort(model)
    onnx_ir.save(done[0] if isinstance(done, tuple) else done or model, path)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("optimised")
    makers = {"saved": saved, "fused": fused, "rewritten": rewritten}
    return {name: make(folder / f"{name}.onnx") for name, make in makers.items()}


def asked(book, reference: str, candidate: str):
    return compare(RealHost(), ComparisonPlan(reference=reference, candidate=candidate, question=QUESTION), book)


@pytest.mark.heavy
@pytest.mark.parametrize("reference", [f"hf:{TINY / 'model'}", f"onnx:{TINY / 'model.onnx'}"])
@pytest.mark.parametrize("kind", ["saved", "fused", "rewritten"])
def test_a_healthy_optimised_graph_is_compared_and_no_alarm_is_given(book, files, kind, reference):
    report = asked(book, reference, f"onnx:{files[kind]}")
    assert not report.findings
    seen = {row.tensor for row in report.tensors}
    assert {"model.layers.1.self_attn.o_proj:in", "model.layers.1.mlp.down_proj:out"} <= seen
    assert "model.layers.1.post_attention_layernorm:in" in seen, "the sum inside a fused norm"
    assert report.compared > 100


@pytest.mark.heavy
def test_files_without_any_name_of_a_module_have_them_by_their_weights(files):
    graph = OnnxGraph(open_model(files["saved"]))
    assert not any(graph.scopes), "it tells nothing"
    found = modules_by_weights(SideSpec("hf", str(TINY / "model")), SideSpec("onnx", str(files["saved"])))
    assert {"model.norm", "model.embed_tokens", "model.layers.0.self_attn.q_proj"} <= set(found.values())
    assert len(found) == len(set(found.values())) == 21


def test_a_product_whose_weight_is_nobodys_is_the_one_that_is_left(files, tmp_path):
    broken = changed(files["saved"], tmp_path / "broken.onnx", "model.layers.0.self_attn.k_proj", np.zeros_like)
    found = modules_by_weights(SideSpec("hf", str(TINY / "model")), SideSpec("onnx", str(broken)))
    assert "model.layers.0.self_attn.k_proj" in found.values()


@pytest.mark.heavy
@pytest.mark.parametrize("reference", [f"hf:{TINY / 'model'}", f"onnx:{TINY / 'model.onnx'}"])
@pytest.mark.parametrize(
    "module",
    ["model.layers.1.mlp.up_proj", "model.layers.0.self_attn.v_proj", "model.layers.1.self_attn.o_proj"],
)
def test_a_wrong_weight_in_a_file_without_names_is_placed(book, files, tmp_path, module, reference):
    broken = changed(files["saved"], tmp_path / "broken.onnx", module, lambda held: held * np.float32(1.5))
    (finding,) = asked(book, reference, f"onnx:{broken}").findings
    assert finding.where.tensor == f"{module}:out"


def changed(source: Path, target: Path, module: str, change) -> Path:
    """A file with another weight in a module, which is known by its weight."""
    names = modules_by_weights(SideSpec("hf", str(TINY / "model")), SideSpec("onnx", str(source)))
    made = next(value for value, each in names.items() if each == module)
    model = onnx.load(source)
    node = next(node for node in model.graph.node if made in node.output)
    for held in model.graph.initializer:
        if held.name in node.input:
            held.CopyFrom(onnx.numpy_helper.from_array(change(onnx.numpy_helper.to_array(held)), held.name))
    onnx.save(model, target)
    return target


def folded(model):
    """A part of each norm's weight in the products that read it."""
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, readers in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            own, left = norm.weight.clone(), torch.linspace(0.5, 2.0, len(norm.weight))
            norm.weight.copy_(left)
            for reader in readers:
                reader.weight.mul_(own / left)


def permuted(model):
    """The neurons of each MLP in another order."""
    for layer in model.model.layers:
        order = torch.arange(layer.mlp.gate_proj.weight.shape[0] - 1, -1, -1)
        for part in (layer.mlp.gate_proj, layer.mlp.up_proj):
            part.weight.copy_(part.weight[order])
        layer.mlp.down_proj.weight.copy_(layer.mlp.down_proj.weight[:, order])


def scaled(model):
    """A factor moved from one weight to the next."""
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight.mul_(4)
        layer.self_attn.o_proj.weight.div_(4)


def changed_folder(change, folder: Path) -> str:
    model = transformers.AutoModelForCausalLM.from_pretrained(TINY / "model", dtype=torch.float32)
    with torch.no_grad():
        change(model)
    model.save_pretrained(folder)
    return f"hf:{folder}"


@pytest.mark.heavy
@pytest.mark.parametrize("change", [folded, permuted])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_model_written_otherwise_gives_a_note_and_no_alarm(book, tmp_path, change, dtype):
    candidate = changed_folder(change, tmp_path / "candidate")
    report = asked(book, f"hf:{TINY / 'model'}", f"{candidate}?dtype={dtype}")
    assert not report.findings
    told = str([section.rows for section in report.sections])
    assert "computed otherwise, to the same result" in told


@pytest.mark.heavy
def test_a_mistake_among_rewrites_is_what_is_told(book, tmp_path):
    def change(model):
        folded(model)
        model.model.layers[1].self_attn.k_proj.weight.mul_(1.5)

    (finding,) = asked(book, f"hf:{TINY / 'model'}", changed_folder(change, tmp_path / "c")).findings
    assert finding.where.tensor == "model.layers.1.self_attn.k_proj:out"


@pytest.mark.heavy
def test_a_factor_in_the_cache_is_wrong_though_the_answer_is_the_same(book, tmp_path):
    """Whoever reads the cache reads other values: it leaves the layer."""
    (finding,) = asked(book, f"hf:{TINY / 'model'}", changed_folder(scaled, tmp_path / "c")).findings
    assert finding.where.tensor == "model.layers.0.self_attn.v_proj:out"


def shared_in_another_form(path: Path) -> Path:
    """Layer 1 is handed cosines that layer 0 has worked on, as exporters do that compute the same thing once (GLM-4)."""
    model = onnx.load(TINY / "model.onnx")
    cosines = "unsqueeze_13"  # of both layers
    at, own = next((at, node) for at, node in enumerate(model.graph.node) if cosines in node.output)
    readers = [
        node
        for node in model.graph.node
        if cosines in node.input and any("layers.1" in each.value for each in node.metadata_props)
    ]
    worked = onnx.helper.make_node("Mul", [cosines, "two"], ["worked"])
    again = onnx.helper.make_node("Div", ["worked", "two"], ["cosines_again"])
    for node, beside in ((worked, own), (again, readers[0])):
        node.metadata_props.extend(beside.metadata_props)
    for node in readers:
        node.input[list(node.input).index(cosines)] = "cosines_again"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(2), "two"))
    model.graph.node.insert(at + 1, worked)
    model.graph.node.insert(list(model.graph.node).index(readers[0]), again)
    onnx.save(model, path)
    return path


@pytest.mark.heavy
def test_a_tensor_that_a_graph_hands_on_in_another_form_is_no_mistake(book, tmp_path):
    candidate = shared_in_another_form(tmp_path / "shared.onnx")
    report = asked(book, f"hf:{TINY / 'model'}", f"onnx:{candidate}")
    told = str([section.rows for section in report.sections])
    assert "computed otherwise, to the same result: model.layers.1:in.position_embeddings" in told
    assert not report.findings


def reordered(model):
    """Chosen experts the other way round, with their weights: the sum is the same (top-k need not sort)."""
    for layer in model.model.layers:
        own = layer.mlp.gate.forward

        def forward(x, own=own):
            logits, held, chosen = own(x)
            return logits, held.flip(-1), chosen.flip(-1)

        layer.mlp.gate.forward = forward
    return model


@pytest.mark.heavy
def test_experts_that_are_chosen_in_another_order_are_no_mistake():
    import sys

    import trtdx

    sys.path.insert(0, str(Path(__file__).parent))
    from support.planted_faults import decoder

    tokens = list(QUESTION.prompts[0])
    assert not trtdx.compare(decoder("mixtral"), reordered(decoder("mixtral")), tokens=tokens).findings


def test_a_norm_that_takes_the_mean_away_is_found_whole():
    """Cohere's, written out by an exporter: what enters it is what the mean is taken of."""
    from onnx import helper

    from trtdx.formats.onnx.module_names import find_norm_nodes

    steps = [
        ("ReduceMean", ["x"], "mean"), ("Sub", ["x", "mean"], "centred"), ("Mul", ["centred", "centred"], "square"),
        ("ReduceMean", ["square"], "variance"), ("Add", ["variance", "eps"], "more"), ("Sqrt", ["more"], "root"),
        ("Reciprocal", ["root"], "inverse"), ("Mul", ["centred", "inverse"], "normed"), ("Mul", ["normed", "weight"], "y"),
    ]  # fmt: skip
    nodes = [helper.make_node(kind, given, [made]) for kind, given, made in steps]
    held = [
        onnx.numpy_helper.from_array(np.ones(8, "f4"), "weight"),
        onnx.numpy_helper.from_array(np.float32(1e-5), "eps"),
    ]
    ends = [[helper.make_tensor_value_info(name, 1, [2, 8])] for name in ("x", "y")]
    import onnx_ir

    graph = onnx_ir.from_proto(helper.make_model(helper.make_graph(nodes, "norm", *ends, held))).graph
    inside = find_norm_nodes(graph.node(len(nodes) - 1))
    assert {each.outputs[0].name for each in inside} == {made for _, _, made in steps} - {"y"}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["fused", "rewritten"])
def test_a_wrong_weight_before_a_fused_norm_is_placed(book, files, tmp_path, kind):
    module = "model.layers.1.self_attn.o_proj"
    graph = OnnxGraph(open_model(files[kind]))
    node = next(graph.nodes[at] for at, scope in enumerate(graph.scopes) if scope[-1:] == (module,))
    model = onnx.load(files[kind])
    for held in model.graph.initializer:
        if held.name in [each.name for each in node.inputs]:
            turned = onnx.numpy_helper.to_array(held)[::-1].copy()
            held.CopyFrom(onnx.numpy_helper.from_array(turned, held.name))
    onnx.save(model, tmp_path / "broken.onnx")
    (finding,) = asked(book, f"onnx:{TINY / 'model.onnx'}", f"onnx:{tmp_path / 'broken.onnx'}").findings
    assert finding.where.tensor == f"{module}:out"


class Everything:
    """Holds whatever is looked for: each border is a guess."""

    def __contains__(self, name: str) -> bool:
        return True


@pytest.mark.heavy
@pytest.mark.parametrize("reference", [f"hf:{TINY / 'model'}", f"onnx:{TINY / 'model.onnx'}"])
def test_logits_that_are_off_are_an_error_though_every_wrong_tensor_was_taken_for_another(
    book, files, tmp_path, monkeypatch, reference
):
    broken = changed(files["saved"], tmp_path / "b.onnx", "model.layers.1.self_attn.o_proj", np.flipud)
    monkeypatch.setattr("trtdx.compare.align.align.guessed_borders", lambda side: Everything())
    report = asked(book, reference, f"onnx:{broken}")
    assert [finding.severity.value for finding in report.findings] == ["error"]
    assert not asked(book, reference, f"onnx:{files['saved']}").findings


@pytest.mark.heavy
def test_logits_that_are_off_are_an_error_though_all_else_was_called_a_rewrite(book, tmp_path, monkeypatch):
    def change(model):
        model.model.layers[1].self_attn.o_proj.weight.mul_(1.5)

    def all_taken_back(judged):
        harmless = [each._replace(verdict=PairVerdict.UNKNOWN, note=REWRITTEN_NOTE) for each in judged]
        ends = zip(judged, harmless, strict=True)
        return SettledPairs(
            [one._replace(verdict=PairVerdict.NOISE) if "logits" in one.pair.name else other for one, other in ends]
        )

    candidate = changed_folder(change, tmp_path / "c")
    monkeypatch.setattr("trtdx.compare.run.settle_rewrites", all_taken_back)
    (finding,) = asked(book, f"hf:{TINY / 'model'}", candidate).findings
    assert finding.severity.value == "error"


@pytest.mark.heavy
def test_a_factor_in_a_weight_into_which_a_norm_was_folded_is_told_as_that_factor(book, tmp_path):
    def change(model):
        folded(model)
        model.model.layers[1].self_attn.k_proj.weight.mul_(1.3)

    (finding,) = asked(book, f"hf:{TINY / 'model'}", changed_folder(change, tmp_path / "c")).findings
    assert (finding.code, finding.where.tensor) == ("DX948", "model.layers.1.self_attn.k_proj:out")
    assert "1.3 times" in finding.message


@pytest.mark.heavy
def test_a_comparison_of_little_does_not_read_as_healthy(book, files, monkeypatch):
    from trtdx.compare import run

    def few(*sides, **more):
        found = real(*sides, **more)
        lost = [each for each in found.pairs if "logits" not in each.name]
        found.unmatched[:] = [UnmatchedTensor("reference", each.name, each.step, "no such tensor") for each in lost]
        found.pairs[:] = [each for each in found.pairs if "logits" in each.name]
        return found

    real = run.align_sides
    monkeypatch.setattr(run, "align_sides", few)
    report = asked(book, f"hf:{TINY / 'model'}", f"onnx:{files['saved']}")
    assert report.summary.text.startswith(f"only {report.coverage.compared} of {report.coverage.total} tensors")
    assert report.coverage.compared < report.coverage.total
