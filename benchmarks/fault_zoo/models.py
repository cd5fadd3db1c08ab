"""Six small decoders of random weights that behave like trained ones where it matters to a comparison.

Random weights of the usual size make attention nearly uniform and norms trivial, so that mistakes in them drown in rounding.
Here, by measurement (`python -m fault_zoo.models` prints it): queries and keys are scaled until the attention scores
have a deviation of about 2.5, which leaves 47 to 57 % of the entropy of uniform attention; norms have weights
between 0.4 and 2, some of them four times that; two channels of the embedding are four times the others, as in trained models;
each branch adds about as much as there is in the residual stream; biases are as large as what they are added to.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import transformers

if TYPE_CHECKING:
    from pathlib import Path

SEED = 5
VOCABULARY = 160
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "max_position_embeddings": 256, "attn_implementation": "eager",
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
ROTARY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    **COMMON,
}


class Names(NamedTuple):
    """What an architecture calls its parts; `layers` and what is in a layer."""

    layers: str = "model.layers"
    attention: str = "self_attn"
    before_attention: str = "input_layernorm"
    before_mlp: str = "post_attention_layernorm"
    mlp: str = "mlp"
    query: str = "q_proj"
    key: str = "k_proj"
    value: str = "v_proj"
    output: str = "o_proj"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    embedding: str = "model.embed_tokens"
    last_norm: str = "model.norm"
    rotary: str = "model.rotary_emb"
    head: str = "lm_head"


class Architecture(NamedTuple):
    """One of the six."""

    name: str
    config: Any  # makes it
    count: int  # of layers
    names: Names = Names()


def llama() -> Any:
    return transformers.LlamaConfig(num_hidden_layers=6, tie_word_embeddings=False, rms_norm_eps=1e-5, **ROTARY)


def gpt2() -> Any:
    return transformers.GPT2Config(
        n_embd=64, n_layer=4, n_head=4, n_positions=256, vocab_size=VOCABULARY, attn_implementation="eager",
        bos_token_id=1, eos_token_id=2, pad_token_id=0, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1,
    )  # fmt: skip


def qwen2() -> Any:
    return transformers.Qwen2Config(
        num_hidden_layers=4, tie_word_embeddings=True, rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        **ROTARY,
    )  # fmt: skip


def gemma2() -> Any:
    return transformers.Gemma2Config(
        num_hidden_layers=4, head_dim=16, query_pre_attn_scalar=16, sliding_window=128, **ROTARY
    )


def mixtral() -> Any:
    return transformers.MixtralConfig(
        num_hidden_layers=4, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False, sliding_window=None,
        **ROTARY,
    )  # fmt: skip


def deepseek() -> Any:
    mla = {
        "q_lora_rank": 48,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
    }
    return transformers.DeepseekV3Config(
        num_hidden_layers=4, first_k_dense_replace=4, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2,
        tie_word_embeddings=False, rope_interleave=True, **mla, **{**ROTARY, "num_key_value_heads": 4},
    )  # fmt: skip


GPT2 = Names(
    "transformer.h", "attn", "ln_1", "ln_2", "mlp", "c_attn", "c_attn", "c_attn", "c_proj", "c_fc", "c_fc", "c_proj",
    "transformer.wte", "transformer.ln_f", "", "lm_head",
)  # fmt: skip
ARCHITECTURES = {
    each.name: each
    for each in (
        Architecture("llama", llama, 6),
        Architecture("gpt2", gpt2, 4, GPT2),
        Architecture("qwen2", qwen2, 4),
        Architecture("gemma2", gemma2, 4, Names(before_mlp="pre_feedforward_layernorm")),
        Architecture("mixtral", mixtral, 4, Names(gate="gate", up="experts", down="experts")),
        Architecture("deepseek", deepseek, 4, Names(query="q_b_proj", key="kv_a_proj_with_mqa", value="kv_b_proj")),
    )
}


def made(name: str) -> Any:
    """Return a model in float32; the same every time."""
    torch.manual_seed(SEED)
    config = ARCHITECTURES[name].config()
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.copy_(_values(path, parameter, generator, plus_one=name == "gemma2"))
    model.tie_weights()
    with torch.no_grad():
        _sharpen(model, name)
    return model


def _values(path: str, parameter: torch.Tensor, generator: torch.Generator, *, plus_one: bool) -> torch.Tensor:
    noise = torch.randn(parameter.shape, generator=generator)
    if path.endswith("bias"):
        return 0.3 * noise
    if parameter.ndim == 1:  # a norm
        weight = (0.35 * noise).exp().clamp(0.4, 2.0)
        weight[torch.randperm(len(weight), generator=generator)[: len(weight) // 20 or 1]] *= 4
        return weight - 1 if plus_one else weight
    if "embed" in path or "wte" in path or "wpe" in path:
        noise[:, torch.randperm(noise.shape[1], generator=generator)[:2]] *= 4 if "wpe" not in path else 1
        return noise * (0.5 if "wpe" in path else 1.0 if not plus_one else 0.125)
    fan_in = parameter.shape[0] if _is_conv1d(path) else parameter.shape[-1]
    rows = (0.3 * torch.randn(noise.shape[:-1], generator=generator)).exp()  # channels are not all of one size
    return noise * rows.unsqueeze(-1) / fan_in**0.5


def _is_conv1d(path: str) -> bool:
    return any(part in path for part in ("c_attn", "c_proj", "c_fc"))


def _sharpen(model: Any, name: str, wanted: float = 2.5) -> None:
    """Scale each layer's queries until its attention scores have the deviation wanted, from the first layer on."""
    for number in range(ARCHITECTURES[name].count):
        factor = wanted / score_deviation(model, number)
        attention = layer_of(model, number).get_submodule(ARCHITECTURES[name].names.attention)
        query = attention.get_submodule(ARCHITECTURES[name].names.query)
        part = slice(0, model.config.hidden_size) if name == "gpt2" else slice(None)
        if name == "gpt2":
            query.weight[:, part] *= factor
        else:
            query.weight *= factor
        if getattr(query, "bias", None) is not None:
            query.bias[part] *= factor


def layer_of(model: Any, number: int) -> Any:
    return model.get_submodule("transformer.h" if hasattr(model, "transformer") else "model.layers")[number]


def attentions(model: Any) -> Any:
    ids = torch.tensor([prompt(24, 1)])
    with torch.no_grad():
        return model(ids, output_attentions=True).attentions


def score_deviation(model: Any, number: int) -> float:
    """Return the deviation of a layer's scores within a row, over the later tokens of a prompt."""
    rows = attentions(model)[number][0][:, 12:]
    found = [row[: 13 + at].clamp_min(1e-30).log().std() for head in rows for at, row in enumerate(head)]
    return float(torch.stack(found).mean())


def entropy_share(model: Any) -> list[float]:
    """Return each layer's attention entropy as a share of that of uniform attention."""
    shares = []
    for layer in attentions(model):
        rows = layer[0][:, 12:]
        lengths = torch.arange(13, 25).log()
        entropy = -(rows * rows.clamp_min(1e-30).log()).sum(-1)
        shares.append(round(float((entropy / lengths).mean()), 2))
    return shares


def prompt(length: int, seed: int) -> list[int]:
    made_up = torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed))
    return made_up.tolist()


def with_attention(model: Any, kind: str) -> Any:
    changed = copy.deepcopy(model)
    changed.set_attn_implementation(kind)
    return changed


def save(name: str, folder: Path) -> None:
    made(name).save_pretrained(folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in ARCHITECTURES:
        model = made(each)
        with torch.no_grad():
            out = model(torch.tensor([prompt(24, 1)]), output_hidden_states=True)
        sizes = [round(float(hidden.square().mean().sqrt()), 2) for hidden in out.hidden_states]
        print(
            each,
            "entropy",
            entropy_share(model),
            "residual",
            sizes,
            "logits",
            round(float(out.logits.std()), 2),
        )
