"""A model of the zoo as an ONNX file, with its cache as tensors and its module scopes in the file."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers


class WithCache(torch.nn.Module):
    """The decoder with its cache as tensors, as exporters want it; its parts keep their names."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.base = model.base_model_prefix
        setattr(self, self.base, getattr(model, self.base))
        self.lm_head, self.config = model.lm_head, model.config

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: Any) -> tuple[Any, ...]:
        cache = transformers.DynamicCache()
        for number, (keys, values) in enumerate(past):
            cache.update(keys, values, number)
        done = getattr(self, self.base)(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache, use_cache=True
        )  # fmt: skip
        logits = logits_by_config(self.lm_head(done.last_hidden_state), self.config)
        present = [part for layer in done.past_key_values.layers for part in (layer.keys, layer.values)]
        return (logits, *present)


def logits_by_config(logits: Any, config: Any) -> Any:
    """Return logits scaled and capped as the model's own forward does after its head."""
    if scale := getattr(config, "logit_scale", None):  # Cohere
        logits = logits * scale
    if scaling := getattr(config, "logits_scaling", None):  # Granite
        logits = logits / scaling
    if softcap := getattr(config, "final_logit_softcapping", None):  # Gemma 2
        logits = torch.tanh(logits / softcap) * softcap
    return logits


def cache_shapes(model: Any) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return (heads, width) of the keys and values of each layer, as the model itself makes them."""
    with torch.no_grad():
        cache = model(torch.ones(1, 2, dtype=torch.int64), use_cache=True).past_key_values
    return [
        ((each.keys.shape[1], each.keys.shape[3]), (each.values.shape[1], each.values.shape[3]))
        for each in cache.layers
    ]


def export(model: Any, path: Path) -> None:
    """Write a model as ONNX, in the type it has."""
    dtype, axes = model.dtype, {0: "batch", 2: "past"}
    shapes = cache_shapes(model)
    names = [f"{n}.{part}" for n in range(len(shapes)) for part in ("key", "value")]
    past = [tuple(torch.randn(2, heads, 3, width, dtype=dtype) for heads, width in layer) for layer in shapes]
    ids, mask = torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            WithCache(model).eval(),
            (ids, mask, torch.arange(3, 8).repeat(2, 1), past),
            dynamo=True, verbose=False, opset_version=20, optimize=True, external_data=False,
            dynamic_shapes={
                "input_ids": {0: "batch", 1: "seq"}, "attention_mask": {0: "batch", 1: "total"},
                "position_ids": {0: "batch", 1: "seq"}, "past": [(axes, axes)] * len(shapes),
            },
            input_names=["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{n}" for n in names)],
            output_names=["logits", *(f"present.{name}" for name in names)],
        )  # fmt: skip
    assert program is not None
    program.save(str(path))


if __name__ == "__main__":
    import sys

    torch.set_num_threads(1)
    folder, kind, at = sys.argv[1:]
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, kind), attn_implementation="eager", local_files_only=True
    ).eval()
    if hasattr(loaded, "set_experts_implementation"):
        loaded.set_experts_implementation("batched_mm")
    export(loaded, Path(at))
