"""Makes examples/tiny: a decoder of random weights as a Hugging Face folder and as an ONNX file, small enough for git.

A second ONNX file has a planted mistake: its rotary embedding turns neighbours (GPT-J's way) instead of halves.

Needs torch, transformers and onnxscript (`install_models` in scripts/setup). The files are committed; run this only
to change them.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers

FOLDER = Path(__file__).parent.parent / "examples" / "tiny"
LAYERS, HEADS, WIDTH = 2, 2, 8


class WithCache(torch.nn.Module):
    """The decoder with its cache as tensors, as exporters want it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.model
        self.lm_head = model.lm_head
        self.config = model.config

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: Any) -> tuple[Any, ...]:
        cache = transformers.DynamicCache(config=self.config)
        for number, (keys, values) in enumerate(past):
            cache.update(keys, values, number)
        done = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        present = [part for layer in done.past_key_values.layers for part in (layer.keys, layer.values)]
        return (self.lm_head(done.last_hidden_state), *present)


def main() -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=HEADS, vocab_size=128, max_position_embeddings=128, tie_word_embeddings=False,
        attn_implementation="eager", bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():  # norms of all ones would become one weight in the ONNX file
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(FOLDER / "model")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export(model, FOLDER / "model.onnx")
        llama = transformers.models.llama.modeling_llama
        llama.apply_rotary_pos_emb, right = turn_neighbours, llama.apply_rotary_pos_emb
        export(model, FOLDER / "rotary-mistake.onnx")
        llama.apply_rotary_pos_emb = right


def turn_neighbours(query: Any, key: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> tuple[Any, Any]:
    half = cos.shape[-1] // 2
    cos = cos[..., :half].repeat_interleave(2, -1).unsqueeze(unsqueeze_dim)
    sin = sin[..., :half].repeat_interleave(2, -1).unsqueeze(unsqueeze_dim)

    def turned(given: Any) -> Any:
        other = torch.stack((-given[..., 1::2], given[..., ::2]), -1).flatten(-2)
        return given * cos + other * sin

    return turned(query), turned(key)


def export(model: Any, path: Path) -> None:
    axes, names = {0: "batch", 2: "past"}, [f"{n}.{part}" for n in range(LAYERS) for part in ("key", "value")]
    past = [tuple(torch.randn(2, HEADS, 3, WIDTH) for _ in range(2)) for _ in range(LAYERS)]
    ids, mask = torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64)
    program = torch.onnx.export(
        WithCache(model).eval(),
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
    assert program is not None
    program.save(str(path))
    scrub(path)


def scrub(path: Path) -> None:
    """Leave the module scopes in the file, and nothing that tells of the machine it was made on."""
    model = onnx.load(path)
    for node in model.graph.node:
        kept = [prop for prop in node.metadata_props if "scopes" in prop.key or "class_hierarchy" in prop.key]
        told = [(prop.key, prop.value) for prop in kept]
        del node.metadata_props[:]
        for key, value in told:
            node.metadata_props.add(key=key, value=value)
    onnx.save(model, path)


if __name__ == "__main__":
    main()
