"""One selector is the same places on torch, ONNX Runtime and TensorRT, with the same values.

Where the three cannot be the same:
- torch knows modules only. Graphs also have operators, one step below their module, and names of tensors; so what a
  selector hits inside modules is compared by modules, and `op:MatMul` and `tensor:` between the two graphs.
- What a module returns and nobody uses is not in an exported graph: attention's second result.
- A whole model's results have numbers on torch and names in a graph.
- The exporter merges two reshapes across the border of a module: the same numbers enter in another shape.
- TensorRT's parser adds layers of its own; their places are below `tensorrt`, and only a selector that is not bound
  to modules (`**`, `op:`, `dtype:` alone) hits them.
"""

from __future__ import annotations

import numpy as np
import pytest

from trtdx.engines.generate import generate_tokens
from trtdx.tensors.taps import parse_selector

torch = pytest.importorskip("torch")
pytest.importorskip("tensorrt_rtx", reason="networks are parsed with TensorRT's own parser")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript", reason="torch exports with it")
pytest.importorskip("transformers", reason="the decoders are Hugging Face's")

from support.decoders import MODELS, decoder_module, export  # noqa: E402
from support.onnx_models import (  # noqa: E402
    CLOSE,
    engine_of,
    llama_feeds,
    llama_module,
    names,
    prompts,
    torch_steps,
)
from trtdx.engines.onnxruntime.replay import replay_onnx_module  # noqa: E402
from trtdx.engines.tensorrt.evaluate.engine import TrtEngine  # noqa: E402
from trtdx.engines.torch.hooks import tapped  # noqa: E402


class Three:
    """One decoder on three engines, and what one step is fed."""

    def __init__(self, module, path, feeds):
        self.module, self.path, self.feeds = module, path, feeds
        self.trt = TrtEngine(path)

    def on_torch(self, selector):
        ids, mask, positions, *cache = (torch.from_numpy(each) for each in self.feeds.values())
        past = list(zip(cache[::2], cache[1::2], strict=True))
        seen = []
        with torch.no_grad(), tapped(self.module, parse_selector(selector), seen.append):
            self.module(ids, mask, positions, past)
        return seen

    def on_onnxruntime(self, selector):
        seen = []
        engine_of(self.path, selector, sink=seen.append).run(self.feeds)
        return seen

    def on_tensorrt(self, selector):
        seen = []
        self.trt.with_selector(selector, seen.append).run(self.feeds)
        return seen


@pytest.fixture(scope="module")
def llama(llama_onnx):
    return Three(llama_module(), llama_onnx, llama_feeds())


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    path, size = tmp_path_factory.mktemp("gpt2") / "gpt2.onnx", MODELS["gpt2"][2]
    export("gpt2", path)
    made = np.random.default_rng(0)
    shape = (2, size.heads, 3, size.width)
    feeds = {
        "input_ids": made.integers(0, 300, (2, 5)),
        "attention_mask": np.ones((2, 8), np.int64),
        "position_ids": np.tile(np.arange(3, 8), (2, 1)),
        **{name: made.standard_normal(shape, np.float32) for name in size.cache_names("past")},
    }
    return Three(decoder_module("gpt2"), path, feeds)


def agree(ours, theirs, selector):
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our.tensor, their.tensor, **CLOSE, err_msg=f"{selector}: {our.place.name}")


def same_on_all(three, selector):
    theirs = three.on_torch(selector)
    for ours in (three.on_onnxruntime(selector), three.on_tensorrt(selector)):
        assert theirs
        assert [each.place[:5] for each in ours] == [each.place[:5] for each in theirs], selector
        assert [each.call for each in ours] == [each.call for each in theirs]
        agree(ours, theirs, selector)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "selector",
    [
        "layers.*.mlp:out", "**.q_proj:in", "layers[0,-1]:out", "layers[1:].self_attn.o_proj:*", "**.*_proj & op:Linear",
        "layers.*:in[0] & dtype:fp32", "layers.*.mlp:out, norm, !layers[0].**", "**.*layernorm:*", ".m.lm_head:out",
        "layers.1.mlp.*:* & op:Linear, layers.1.mlp:*",
    ],
)  # fmt: skip
def test_modules_of_a_llama(llama, selector):
    same_on_all(llama, selector)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "selector",
    [
        "h.*.mlp:out",
        "**.c_attn:in",
        "h[0,-1]:out",
        "op:Conv1D & h.1.**",
        "op:LayerNorm, !**.ln_2",
        "h.*.attn.c_proj:out",
    ],
)
def test_modules_of_a_gpt2(gpt2, selector):
    same_on_all(gpt2, selector)


@pytest.mark.heavy
def test_a_reshape_that_the_exporter_merged_changes_no_number(gpt2):
    selector = "h.*.attn.c_proj:in"
    theirs = gpt2.on_torch(selector)
    for ours in (gpt2.on_onnxruntime(selector), gpt2.on_tensorrt(selector)):
        assert names(ours) == names(theirs)
        assert [each.tensor.shape for each in ours] == [(2, 5, 4, 16)] * 2
        flat = [each._replace(tensor=each.tensor.reshape(2, 5, 64)) for each in ours]
        agree(flat, theirs, selector)


def test_everything_in_the_first_and_last_layer(llama):
    selector = "layers[0,-1].**"
    theirs = llama.on_torch(selector)
    unused = {f"m.model.layers.{layer}.self_attn:out[1]" for layer in (0, 2)}
    wanted = [each for each in theirs if each.place.name not in unused]
    graphs = [llama.on_onnxruntime(selector), llama.on_tensorrt(selector)]
    for seen in graphs:
        modules = [each for each in seen if not each.place.tensor]
        found = {each.place.name: each for each in modules}
        assert len(found) == len(modules)
        assert {each.place.name for each in wanted} == set(found)
        agree([found[each.place.name] for each in wanted], wanted, selector)
    assert [each.place for each in graphs[0]] == [each.place for each in graphs[1]]
    agree(graphs[1], graphs[0], selector)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "selector",
    [
        "op:MatMul", "tensor:logits", "op:MatMul & layers.1.mlp.**", "dtype:fp32 & layers.0.**:*", "tensor:present.*",
        "dtype:int64 & m.**, !tensorrt.**", "**:*, !tensorrt.**", ".:in, .:out", "tensor:*_1*, !tensorrt.**:*",
    ],
)  # fmt: skip
@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_operators_and_names_of_tensors_in_both_graphs(model, selector, request):
    three = request.getfixturevalue(model)
    if model == "gpt2":
        selector = selector.replace("layers", "h").replace("m.**", "model.**").replace("op:MatMul &", "op:Gemm &")
    theirs, ours = three.on_onnxruntime(selector), three.on_tensorrt(selector)
    assert theirs
    assert [each.place for each in ours] == [each.place for each in theirs]
    agree(ours, theirs, selector)


def test_logits_are_the_same_tensor_by_name_and_by_number(llama):
    (number,) = llama.on_torch(".:out[0]")
    for seen in (llama.on_onnxruntime("tensor:logits"), llama.on_tensorrt("tensor:logits")):
        agree(seen, [number], "logits")


def test_what_only_tensorrt_has_is_outside_of_every_module(llama):
    extra = llama.on_tensorrt("tensorrt.**")
    assert extra
    everything = {each.place for each in llama.on_tensorrt("**:*")}
    assert everything == {each.place for each in (*llama.on_onnxruntime("**:*"), *extra)}


@pytest.mark.heavy
def test_a_generation_on_three_engines(llama):
    selector, rows = "layers.*.mlp:out, lm_head", prompts(12, 7)
    seen = {"onnxruntime": [], "tensorrt": []}
    engines = [
        engine_of(llama.path, selector, sink=seen["onnxruntime"].append),
        llama.trt.with_selector(selector, seen["tensorrt"].append),
    ]
    steps = [list(generate_tokens(engine, rows, 4)) for engine in engines]
    tokens = [[step.tokens.tolist() for step in each] for each in steps]
    assert tokens[0] == tokens[1]
    state, theirs = steps[0][-1].state, []
    with tapped(llama.module, parse_selector(selector), theirs.append):
        list(torch_steps(llama.module, state.tokens[:, :-1], state.mask[:, :-1], 12))
    for ours in seen.values():
        assert [(each.step, each.place[:5]) for each in ours] == [(each.step, each.place[:5]) for each in theirs]
        for our, their in zip(ours, theirs, strict=True):
            real = state.mask[:, :12] == 1 if our.step == 0 else np.ones((2, 1), bool)  # padding is anything
            np.testing.assert_allclose(our.tensor[real], their.tensor.numpy()[real], **CLOSE)


@pytest.mark.parametrize("scope", ["layers.1", "layers.2.mlp", "layers.0.self_attn"])
def test_a_module_is_replayed_on_inputs_of_torch(llama, scope):
    entering = {each.place.name: each.tensor for each in llama.on_onnxruntime(f"{scope}:in")}
    left = [each for each in llama.on_torch(f"{scope}:out") if not each.place.number]
    for engine in (engine_of(llama.path), llama.trt):
        results = replay_onnx_module(engine, scope, entering).values()
        assert any(
            each.shape == tuple(left[0].tensor.shape) and np.allclose(each, left[0].tensor, **CLOSE) for each in results
        )
    assert names(left) == [f"m.model.{scope}:out"]
