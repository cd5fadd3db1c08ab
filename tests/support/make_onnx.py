"""ONNX files and profiles for tests.

Graphs by `onnx.helper` (onnx 1.23); a tiny Llama with key/value cache by `torch.onnx` (PyTorch 2.13, transformers
5.22), in a process of its own because torch is slow to load.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(nodes, inputs, outputs, weights=(), *, opset=20, ir_version=10, functions=()):
    """Return a model; inputs and outputs are (name, shape) or (name, shape, type)."""
    values = [
        [helper.make_tensor_value_info(name, (kind or [FLOAT])[0], shape) for name, shape, *kind in side]
        for side in (inputs, outputs)
    ]
    graph = helper.make_graph(list(nodes), "graph", *values, list(weights))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(
        graph,
        opset_imports=imports[: 2 if functions else 1],
        ir_version=ir_version,
        functions=list(functions),
    )


def node(op, inputs, outputs, name="", **attributes):
    return helper.make_node(op, inputs, outputs, name=name or op.lower(), **attributes)


def weight(name, values):
    return numpy_helper.from_array(np.asarray(values), name)


def added(first=("batch", 4), second=("batch", 4), **kwargs):
    """Return z = x + y."""
    return model(
        [node("Add", ["x", "y"], ["z"])],
        [("x", first), ("y", second)],
        [("z", [None] * len(first))],
        **kwargs,
    )


def masked(total="total"):
    """Return the skeleton of attention with a cache: concat(past, new) + mask."""
    return model(
        [node("Concat", ["past_key_values.0.key", "input_ids"], ["all"], axis=1), node("Add", ["all", "attention_mask"], ["z"])],
        [("input_ids", ["batch", "seq"]), ("attention_mask", ["batch", total]), ("past_key_values.0.key", ["batch", "past"])],
        [("z", ["batch", None])],
    )  # fmt: skip


def saved(path, made):
    """Write a model (or raw bytes) and return its path as text."""
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return str(path)


def with_external(location, *, offset=None, length=None, name="w", dims=(4,)):
    """Return z = x + w where w lies in another file, whatever that file is like."""
    made = model([node("Add", ["x", "w"], ["z"])], [("x", ["batch", 4])], [("z", ["batch", 4])])
    tensor = made.graph.initializer.add(name=name, data_type=FLOAT, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return made


def nested(depth):
    """Return If inside If, to a depth."""
    inner = helper.make_graph([node("Relu", ["x"], ["y0"], "leaf")], "leaf", [], [])
    for level in range(1, depth + 1):
        branch = node("If", ["condition"], [f"y{level}"], f"if{level}", then_branch=inner, else_branch=inner)
        inner = helper.make_graph([branch], f"body{level}", [], [])
    return model(
        inner.node,
        [("x", ["batch", 4]), ("condition", [], TensorProto.BOOL)],
        [(f"y{depth}", ["batch", 4])],
    )


def varint(value):
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(found + bytes([value]))


def span(number, payload, *, says=None):
    """Return a length-delimited field; `says` is the length it claims."""
    return varint(number << 3 | 2) + varint(len(payload) if says is None else says) + payload


def llm_sized(layers=22, nodes_each=80):
    """Return the bytes of a graph like that of a 1.1 B Llama: 1,768 nodes with PyTorch's provenance, 3 MB."""
    parts = []
    for index in range(layers * nodes_each + 8):
        scope = f"model.layers.{index // nodes_each}.self_attn"
        made = node("Mul", [f"t{index}", "w"], [f"t{index + 1}"], f"node_mul_{index}")
        entries = {
            "namespace": f": W/{scope}: LlamaAttention/mul_{index}: aten.mul.Tensor" * 3,
            "pkg.torch.onnx.class_hierarchy": "['transformers.models.llama.modeling_llama.LlamaAttention']" * 3,
            "pkg.torch.onnx.name_scopes": f"['', 'model', '{scope}', 'mul_{index}']",
            "pkg.torch.onnx.stack_trace": 'File "modeling_llama.py", line 1, in forward\n' * 26,
        }
        for key, value in entries.items():
            made.metadata_props.add(key=key, value=value)
        parts.append(span(1, made.SerializeToString()))
    parts += [span(5, weight("w", np.ones(4, np.float32)).SerializeToString())]
    parts += [
        span(13, helper.make_tensor_value_info(f"t{index}", FLOAT, ["batch", 4]).SerializeToString())
        for index in range(1700)
    ]
    parts += [span(11, helper.make_tensor_value_info("t0", FLOAT, ["batch", 4]).SerializeToString())]
    return b"\x08\x0a" + span(7, b"".join(parts)) + span(8, b"\x10\x14")


EXPORT = """
import sys, torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
layers = 1
config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
                     num_key_value_heads=2, vocab_size=100, max_position_embeddings=64,
                     attn_implementation="eager", tie_word_embeddings=False)
class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.llama = LlamaForCausalLM(config).eval()
    def forward(self, input_ids, attention_mask, position_ids, past):
        cache = DynamicCache(config=config)
        for index, (key, value) in enumerate(past):
            cache.update(key, value, index)
        out = self.llama(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                         past_key_values=cache, use_cache=True)
        return out.logits, *(each for layer in out.past_key_values.layers for each in (layer.keys, layer.values))
shapes = {"input_ids": {0: "batch", 1: "seq"}, "attention_mask": {0: "batch", 1: "total"},
          "position_ids": {0: "batch", 1: "seq"}, "past": [({0: "batch", 2: "past"}, {0: "batch", 2: "past"})] * layers}
arguments = (torch.randint(0, 100, (2, 5)), torch.ones(2, 8, dtype=torch.int64), torch.arange(3, 8).repeat(2, 1),
             [(torch.randn(2, 2, 3, 8), torch.randn(2, 2, 3, 8)) for _ in range(layers)])
cached = [f"{index}.{kind}" for index in range(layers) for kind in ("key", "value")]
torch.onnx.export(Decoder().eval(), arguments, dynamo=True, opset_version=20, dynamic_shapes=shapes,
                  input_names=["input_ids", "attention_mask", "position_ids", *("past_key_values." + each for each in cached)],
                  output_names=["logits", *("present." + each for each in cached)],
                  external_data=False, optimize=True).save(sys.argv[1])
"""


@functools.cache
def exported_llama():
    """Return the path of a one-layer Llama with cache, exported by PyTorch; made once per test process."""
    needs("torch", "transformers", "onnxscript")
    folder = Path(tempfile.mkdtemp(prefix="trtdx-onnx-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "llama.onnx"
    run([sys.executable, "-W", "ignore", "-c", EXPORT, str(path)])
    return path


def needs(*packages):
    """Skip the test where a package it runs for real is not installed."""
    absent = [package for package in packages if importlib.util.find_spec(package) is None]
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")


def run(argv, text=""):
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def llama_profile(batch, sequence, past, total=None):
    """Return one profile of the exported Llama as {input: {min, opt, max}}; the mask is past + sequence unless told."""
    total = total or [a + b for a, b in zip(past, sequence, strict=True)]
    shapes = {
        "input_ids": zip(batch, sequence, strict=True),
        "position_ids": zip(batch, sequence, strict=True),
        "attention_mask": zip(batch, total, strict=True),
        "past_key_values.0.key": ((b, 2, p, 8) for b, p in zip(batch, past, strict=True)),
        "past_key_values.0.value": ((b, 2, p, 8) for b, p in zip(batch, past, strict=True)),
    }
    return {name: dict(zip(("min", "opt", "max"), map(list, each), strict=True)) for name, each in shapes.items()}


CONTEXT = llama_profile((1, 2, 4), (1, 8, 32), (0, 0, 0))
GENERATION = llama_profile((1, 2, 4), (1, 1, 1), (1, 16, 31))
