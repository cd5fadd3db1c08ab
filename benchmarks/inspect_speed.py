"""How fast `trtdx inspect` reads metadata, beside the scripts a user would write instead; one run, as ratios.

A 400 GB model directory and a 10 GB ONNX model are made of sparse files, so nothing of that size is written.
Run it with the Python of the tests' environment (`scripts/test` makes it): safetensors and onnx are the peers.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HIDDEN, INNER, LAYERS, VOCABULARY, HEADS, KV_HEADS = 16384, 53248, 61, 128256, 128, 8
SHARDS = 86
ROUNDS = 5

# What a user would write: every shard opened, every tensor's shape and dtype looked at, configuration read.
BY_HAND = """
import json, sys
from pathlib import Path
from safetensors import safe_open
folder = Path(sys.argv[1]); total = 0
json.loads((folder / "config.json").read_text())
index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
for shard in sorted(set(index.values())):
    with safe_open(folder / shard, "np") as file:
        for name in file.keys():
            part = file.get_slice(name); total += len(part.get_shape()); part.get_dtype()
print(total)
"""
# The same with what the user's own stack has for configuration and tokenizer.
WITH_TRANSFORMERS = (
    "import sys\nfrom transformers import AutoConfig, AutoTokenizer\n"
    "AutoConfig.from_pretrained(sys.argv[1]); AutoTokenizer.from_pretrained(sys.argv[1])\n" + BY_HAND
)
ONNX_BY_HAND = """
import sys, onnx
model = onnx.load(sys.argv[1], load_external_data=False)
print(len(model.graph.node), [i.name for i in model.graph.input])
"""


def tensors() -> dict[str, list[int]]:
    kv = HIDDEN // HEADS * KV_HEADS
    found = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN]}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        found |= {
            f"{name}self_attn.q_proj.weight": [HIDDEN, HIDDEN],
            f"{name}self_attn.k_proj.weight": [kv, HIDDEN],
            f"{name}self_attn.v_proj.weight": [kv, HIDDEN],
            f"{name}self_attn.o_proj.weight": [HIDDEN, HIDDEN],
            f"{name}mlp.gate_proj.weight": [INNER, HIDDEN],
            f"{name}mlp.up_proj.weight": [INNER, HIDDEN],
            f"{name}mlp.down_proj.weight": [HIDDEN, INNER],
            f"{name}input_layernorm.weight": [HIDDEN],
            f"{name}post_attention_layernorm.weight": [HIDDEN],
        }
    return found | {"model.norm.weight": [HIDDEN], "lm_head.weight": [VOCABULARY, HIDDEN]}


def make_model(folder: Path) -> int:
    """Write a Llama-shaped model of 400 GB as sparse shards; return its size."""
    folder.mkdir()
    every = list(tensors().items())
    size = -(-len(every) // SHARDS)
    index, total = {}, 0
    for number in range(SHARDS):
        header, end = {}, 0
        name = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        for tensor, shape in every[number * size : (number + 1) * size]:
            length = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + length]}
            end += length
            index[tensor] = name
        text = json.dumps(header).encode()
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + end)
        total += end
    index_text = json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(index_text)
    (folder / "config.json").write_text(json.dumps(config()))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "t0", "eos_token": "t1", "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    return total


def config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def tokenizer() -> dict[str, object]:
    """Return a tokenizer as large as Llama 3's."""
    vocabulary = {f"t{number}": number for number in range(VOCABULARY)}
    merges = [f"t{number} t{number + 1}" for number in range(VOCABULARY - 1)]
    return {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }


def make_onnx(folder: Path) -> Path:
    """Write an ONNX model of 2 000 nodes whose 10 GB of weights lie in a sparse file."""
    import onnx
    from onnx import TensorProto, helper

    folder.mkdir()
    count, rows = 2000, 1250
    weights, nodes, offset = [], [], 0
    for number in range(count):
        tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=[rows, 1000])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", offset), ("length", rows * 4000)):
            tensor.external_data.add(key=key, value=str(value))
        offset += rows * 4000
        weights.append(tensor)
        nodes.append(helper.make_node("MatMul", [f"x{number}", f"w{number}"], [f"x{number + 1}"], f"n{number}"))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", rows]) for name in ("x0", f"x{count}")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph), folder / "model.onnx")
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(offset)
    return folder / "model.onnx"


def measured(argv: list[str]) -> tuple[float, float]:
    """Return the best wall time in seconds and the largest resident size in MB of several runs."""
    best, most = float("inf"), 0.0
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        errors = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in (0, 1):
            sys.exit(f"{argv[:4]} ended with {child.returncode}: {errors.decode()[-400:]}")
        best = min(best, time.perf_counter() - begin)
        most = max(most, usage.ru_maxrss / 1024)
    return best, most


def row(name: str, ours: list[str], theirs: list[str], peer: str) -> None:
    (our_s, our_mb), (their_s, their_mb) = measured(ours), measured(theirs)
    print(
        f"{name}: trtdx {our_s:.2f} s, {our_mb:.0f} MB; {peer} {their_s:.2f} s, {their_mb:.0f} MB; "
        f"time ratio {our_s / their_s:.2f}, memory ratio {our_mb / their_mb:.2f}"
    )


def main() -> None:
    trtdx = [sys.executable, "-m", "trtdx", "inspect", "--fail-on", "never"]
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        size = make_model(model)
        row(
            f"{size / 1e9:.0f} GB model directory, {SHARDS} shards",
            [*trtdx, str(model)],
            [sys.executable, "-c", BY_HAND, str(model)],
            "a script with safetensors (no checks, no tokenizer)",
        )
        row(
            "the same",
            [*trtdx, str(model)],
            [sys.executable, "-c", WITH_TRANSFORMERS, str(model)],
            "a script with transformers and safetensors (no checks)",
        )
        graph = make_onnx(Path(scratch) / "onnx")
        row(
            "10 GB ONNX model, 2 000 nodes",
            [*trtdx, str(graph)],
            [sys.executable, "-c", ONNX_BY_HAND, str(graph)],
            "onnx.load without data (no checks)",
        )


if __name__ == "__main__":
    main()
