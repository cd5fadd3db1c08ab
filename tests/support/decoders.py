"""Small decoders with random weights, exported to ONNX as a user would, with their KV cache in and out."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np


class Size(NamedTuple):
    """What a decoder's cache looks like."""

    heads: int
    width: int
    layers: int

    def cache_names(self, when):
        return [f"{when}.{layer}.{part}" for layer in range(self.layers) for part in ("key", "value")]


COMMON = {"vocab_size": 300, "max_position_embeddings": 128}
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
RECIPE = {  # of the measurements in recipes/
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 2000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
MODELS = {
    "llama": ("Llama", {**COMMON, **SMALL, "num_key_value_heads": 2}, Size(2, 16, 2)),
    "recipe": ("Llama", RECIPE, Size(4, 32, 4)),
    "gpt2": (
        "GPT2",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 300, "n_positions": 128},
        Size(4, 16, 2),
    ),
    "qwen": ("Qwen3", {**COMMON, **SMALL, "num_key_value_heads": 2, "head_dim": 16}, Size(2, 16, 2)),
    "mixture": (
        "Mixtral",
        {
            **COMMON,
            **SMALL,
            "num_key_value_heads": 2,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "experts_implementation": "batched_mm",
        },
        Size(2, 16, 2),
    ),
}


def decoder_module(kind, attention="eager"):
    """Return a decoder as a torch module; it is the same every time."""
    import torch
    import transformers
    from transformers.cache_utils import DynamicCache

    family, settings, _ = MODELS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**settings, attn_implementation=attention)
    name = "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    model = getattr(transformers, name)(config).eval()

    class Decoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask, position_ids, past):
            cache = DynamicCache(config=self.model.config)
            for layer, (key, value) in enumerate(past):
                cache.update(key, value, layer)
            result = self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=True,
            )
            return (
                result.logits,
                *(each for layer in result.past_key_values.layers for each in (layer.keys, layer.values)),
            )

    return Decoder().eval()


def export(kind, path, *, attention="eager", opset=20):
    """Write a decoder as ONNX and return what its cache looks like."""
    import torch

    module, size = decoder_module(kind, attention), MODELS[kind][2]
    batch, new, old = 2, 5, 3
    cached = torch.randn(batch, size.heads, old, size.width)
    axes = {0: "batch", 2: "past"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (
                torch.ones(batch, new, dtype=torch.int64),
                torch.ones(batch, old + new, dtype=torch.int64),
                torch.arange(old, old + new).repeat(batch, 1),
                [(cached.clone(), cached.clone()) for _ in range(size.layers)],
            ),
            dynamo=True,
            verbose=False,
            opset_version=opset,
            dynamic_shapes={
                "input_ids": {0: "batch", 1: "seq"},
                "attention_mask": {0: "batch", 1: "total"},
                "position_ids": {0: "batch", 1: "seq"},
                "past": [(axes, axes)] * size.layers,
            },
            input_names=["input_ids", "attention_mask", "position_ids", *size.cache_names("past")],
            output_names=["logits", *size.cache_names("present")],
            external_data=False,
            optimize=True,
        )
        program.save(str(path))
    return size


def feed_of(size, ids, mask, past, known):
    """Return the inputs of one step: new tokens, the mask over all there are, and the cache."""
    positions = np.maximum(np.cumsum(mask, 1) - 1, 0)[:, -ids.shape[1] :]
    cache = dict(zip(size.cache_names("past"), past, strict=True))
    feed = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **cache}
    return {name: value for name, value in feed.items() if name in known}


def no_cache(size, batch):
    return [np.zeros((batch, size.heads, 0, size.width), np.float32) for _ in range(2 * size.layers)]
