"""ONNX models for tests: a small Llama exported as a user would, and graphs of a few nodes written by hand."""

from __future__ import annotations

import logging
import warnings
from typing import Any, NamedTuple

import numpy as np

LAYERS, HEADS, WIDTH, VOCABULARY = 3, 2, 16, 300
FLOAT, BFLOAT16, INT64 = 1, 16, 7
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
CACHE = [(layer, part) for layer in range(LAYERS) for part in ("key", "value")]


class Llama(NamedTuple):
    """A decoder as a torch module and as an ONNX file; both take ids, mask, positions and the cache."""

    module: Any
    program: Any
    path: Any


def llama_module():
    """Return the decoder as a torch module; it is the same every time."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=HEADS, vocab_size=VOCABULARY, max_position_embeddings=128,
        attn_implementation="eager", tie_word_embeddings=False,
    )  # fmt: skip
    llama = transformers.LlamaForCausalLM(config).eval()
    for parameter in llama.parameters():  # norms of all ones would become one weight in the file
        parameter.data += 0.05 * torch.randn_like(parameter)
    return _wrapped(llama)


def export_llama(folder):
    import torch

    module = llama_module()
    names = [f"{layer}.{part}" for layer, part in CACHE]
    axes = {0: "batch", 2: "past"}
    # Not one tensor for all: the exporter takes inputs that are the same tensor to be the same input.
    past = [tuple(torch.randn(2, HEADS, 3, WIDTH) for _ in range(2)) for _ in range(LAYERS)]
    ids, mask = torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (ids, mask, torch.arange(3, 8).repeat(2, 1), past),
            dynamo=True, verbose=False, opset_version=20, optimize=True, external_data=False,
            dynamic_shapes={
                "input_ids": {0: "batch", 1: "seq"},
                "attention_mask": {0: "batch", 1: "total"},
                "position_ids": {0: "batch", 1: "seq"},
                "past": [(axes, axes)] * LAYERS,
            },
            input_names=["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{n}" for n in names)],
            output_names=["logits", *(f"present.{name}" for name in names)],
        )  # fmt: skip
        program.save(str(folder / "llama.onnx"))
    return Llama(module, program, folder / "llama.onnx")


def _wrapped(llama):
    import torch
    from transformers.cache_utils import DynamicCache

    class Decoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.m = llama

        def forward(self, input_ids, attention_mask, position_ids, past):
            cache = DynamicCache(config=self.m.config)
            for layer, (key, value) in enumerate(past):
                cache.update(key, value, layer)
            result = self.m(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=True,
            )
            layers = result.past_key_values.layers
            return (result.logits, *(each for layer in layers for each in (layer.keys, layer.values)))

    return Decoder().eval()


def torch_steps(module, tokens, mask, length):
    """Yield (logits, cache) of a prefill of `length` tokens and a decode step for each that follows."""
    import torch

    past = [tuple(torch.zeros(len(tokens), HEADS, 0, WIDTH) for _ in range(2)) for _ in range(LAYERS)]
    begin = 0
    for end in range(length, tokens.shape[1] + 1):
        now = torch.from_numpy(mask[:, :end])
        positions = torch.clamp(torch.cumsum(now, 1) - 1, min=0)[:, begin:]
        with torch.no_grad():
            logits, *cache = module(torch.from_numpy(tokens[:, begin:end]), now, positions, past)
        past, begin = list(zip(cache[::2], cache[1::2], strict=True)), end
        yield logits.numpy(), [each.numpy() for each in cache]


def prompts(*lengths):
    made = np.random.default_rng(3)
    return [made.integers(1, VOCABULARY, length).tolist() for length in lengths]


def node(op, reads, makes, **more):
    from onnx import helper

    return helper.make_node(op, reads, makes, name=more.pop("name", f"/{makes[0]}/{op}"), **more)


def model(path, nodes, inputs, outputs, weights=()):
    """Write a graph; inputs and outputs are (name, ONNX type, dimensions)."""
    from onnx import helper

    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(*each) for each in outputs],
        list(weights),
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path.write_bytes(proto.SerializeToString())
    return path


def external(name, dims, location, **entries):
    """Return a float32 weight whose data lies in another file."""
    import onnx

    tensor = onnx.TensorProto(name=name, data_type=1, dims=dims, data_location=1)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def engine_of(path, selector="", **more):
    from trtdx.engines.onnxruntime.engine import OrtEngine

    return OrtEngine(path, selector, threads=1, **more)


def watched(path, selector, feeds, **more):
    seen = []
    engine = engine_of(path, selector, sink=seen.append, **more)
    return engine.run(feeds), seen, engine


def names(seen):
    return [each.place.name for each in seen]


def llama_feeds(batch=2, new=5, old=3):
    made = np.random.default_rng(0)
    cache = {
        f"past_key_values.{layer}.{part}": made.standard_normal((batch, 2, old, 16), np.float32)
        for layer, part in CACHE
    }
    return {
        "input_ids": made.integers(0, VOCABULARY, (batch, new)),
        "attention_mask": np.ones((batch, old + new), np.int64),
        "position_ids": np.tile(np.arange(old, old + new), (batch, 1)),
        **cache,
    }


def seen_on_both(llama, selector, steps, prompt=12):
    """Return what torch and ONNX Runtime show of a generation that was made before."""
    from trtdx.engines.generate import generate_tokens
    from trtdx.engines.torch.hooks import tapped
    from trtdx.tensors.taps import parse_selector

    theirs, ours = [], []
    state = steps[-1].state
    tokens, mask = state.tokens[:, :-1], state.mask[:, :-1]
    with tapped(llama.module, parse_selector(selector), theirs.append):
        assert len(list(torch_steps(llama.module, tokens, mask, prompt))) == len(steps)
    engine = engine_of(llama.path, selector, sink=ours.append)
    list(generate_tokens(engine, tokens[:, :prompt], len(steps), attention_mask=mask[:, :prompt]))
    return theirs, ours
