"""Decoders so small that a test makes, breaks and compares one in a second. Their weights are random."""

from __future__ import annotations

import copy
import sys
from itertools import count
from typing import TYPE_CHECKING, Any

from trtdx.errors import UnknownNameError
from trtdx.optional import import_optional

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 128,
}  # fmt: skip
# A family's config class in transformers, and what it needs to be small.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SIZES),
    "qwen2": ("Qwen2Config", SIZES),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 96, "n_positions": 64}),
    "mistral": ("MistralConfig", {**SIZES, "sliding_window": 5}),
    "mixtral": ("MixtralConfig", {**SIZES, "num_local_experts": 4}),
    "granite": (
        "GraniteConfig",
        {**SIZES, "residual_multiplier": 0.4, "embedding_multiplier": 3.0, "logits_scaling": 4.0},
    ),
    "gpt_oss": (
        "GptOssConfig",
        {**SIZES, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6},
    ),
    "stablelm": ("StableLmConfig", SIZES),
    "phi3": ("Phi3Config", {**SIZES, "pad_token_id": 0}),
    "olmo2": ("Olmo2Config", SIZES),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40},
    ),
    "gemma": ("GemmaConfig", {**SIZES, "head_dim": 8}),
    "gemma2": (
        "Gemma2Config",
        {**SIZES, "head_dim": 8, "sliding_window": 6, "attn_logit_softcapping": 1.0, "query_pre_attn_scalar": 8},
    ),
    "deepseek": (
        "DeepseekV3Config",
        {
            **SIZES, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
            "v_head_dim": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
            "moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 1,
        },
    ),
}  # fmt: skip
_numbers = count()


def tiny_decoder(family: str, *, attention: str = "eager", **config: Any) -> Any:
    """Return a transformers model of three layers in which every norm, bias and expert matters.

    The same arguments give the same weights.

    Args:
        family: "llama", "qwen2", "gpt2", "mixtral" ...
        attention: which of transformers' attention implementations computes it.
        config: settings of its config that are to differ.
    """
    if family not in FAMILIES:
        raise UnknownNameError("family", family, list(FAMILIES))
    torch = import_optional("torch", extra="torch", purpose="make a model")
    transformers = import_optional("transformers", extra="torch", purpose="make a model")
    name, sizes = FAMILIES[family]
    settings = getattr(transformers, name)(**{**sizes, **config})
    settings.initializer_range = 0.2
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32, attn_implementation=attention)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.ndim == 1:
                middle = 1.0 if "norm" in path or "ln_" in path else 0.0
                parameter.copy_(torch.randn_like(parameter) * 0.3 + middle)
        for path, buffer in model.named_buffers():
            if "correction" in path:
                buffer.copy_(torch.randn_like(buffer) * 0.3)
    return model.eval()


def replace_attention(module: Any, function: Callable[..., Any]) -> None:
    """Have one attention module compute what lies between its projections with a function.

    Args:
        module: the attention of one layer.
        function: called with the eager attention of the model's own file, then as that is:
            (eager, module, query, key, value, mask, scaling=..., ...).
    """
    registry = import_optional("transformers.modeling_utils", extra="torch", purpose="run a model")
    eager = sys.modules[type(module).__module__].eager_attention_forward
    name = f"trtdx_{next(_numbers)}"
    registry.ALL_ATTENTION_FUNCTIONS.register(name, lambda *args, **options: function(eager, *args, **options))
    module.config = copy.copy(module.config)
    module.config._attn_implementation_internal = name
