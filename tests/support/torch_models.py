"""Small decoders with random weights for tests, made here and never downloaded."""

from __future__ import annotations

import numpy as np

from trtdx.engines.generate import generate_tokens, initial_state

LAYERS, VOCABULARY = 3, 120
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 64,
}  # fmt: skip


def decoder(kind, *, attention="sdpa", dtype="float32", **more):
    import torch
    import transformers

    torch.manual_seed(0)
    gpt2 = {"n_embd": 32, "n_layer": LAYERS, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 64}
    made = {
        "llama": lambda: transformers.LlamaConfig(**SIZES | more),
        "gpt2": lambda: transformers.GPT2Config(**gpt2, **more),
        "mixtral": lambda: transformers.MixtralConfig(**SIZES, num_local_experts=4, **more),
        "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=5, **more),
        "mamba": lambda: transformers.MambaConfig(
            hidden_size=32, num_hidden_layers=2, vocab_size=VOCABULARY, state_size=8, **more
        ),
    }
    config = made[kind]()
    config.initializer_range = 0.2  # else all tokens are about as likely
    implementation = {} if kind == "mamba" else {"attn_implementation": attention}
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), **implementation)
    return model.eval()


def rows_of(*lengths):
    made = np.random.default_rng(3)
    return [made.integers(1, VOCABULARY, length).tolist() for length in lengths]


def generated(model, rows, steps):
    """Return the tokens that transformers' own generation gives, a row for each prompt."""
    import torch

    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    more = {"do_sample": False, "max_new_tokens": steps, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(ids, attention_mask=mask, **more)[:, width:].tolist()


def hooks_on(model):
    return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules())


ROWS = rows_of(12, 5, 8)


def tokens_of(steps):
    return np.stack([step.tokens for step in steps], 1).tolist()


def watched_generation(model, selector, rows=ROWS, steps=1, **more):
    """Return what is seen in a generation, copied when it passes, and the states after each step."""
    from trtdx.engines.torch.engine import TorchEngine

    seen = []

    def keep(each):
        seen.append(each._replace(tensor=each.tensor.clone(), module_arguments=None))

    with TorchEngine(model, selector, sink=keep, **more) as engine:
        states = [step.state for step in generate_tokens(engine, rows, steps)]
    return seen, states


def names(seen):
    return [each.place.name for each in seen]


def feeds_of(engine, rows=ROWS[:1]):
    state = initial_state(engine, rows)
    positions = np.maximum(np.cumsum(state.mask, 1) - 1, 0)
    return {"input_ids": state.tokens, "attention_mask": state.mask, "position_ids": positions, **state.past}
