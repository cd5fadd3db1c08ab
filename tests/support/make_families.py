"""config.json of models as published, and what the converters of TensorRT-LLM 1.2.1 write for them.

Only keys that facts are read from are kept. The second half of each pair follows `from_hugging_face` of
tensorrt_llm/models/<family>/config.py (or examples/models/**/convert_checkpoint.py where there is none).
"""

from __future__ import annotations

from typing import Any

Pair = tuple[dict[str, Any], dict[str, Any]]


def _hf(model_type: str, architecture: str, sizes: str, **more: Any) -> dict[str, Any]:
    """Return a configuration; sizes are hidden, layers, heads, kv heads, inner, vocabulary, positions."""
    names = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "intermediate_size", "vocab_size", "max_position_embeddings",
    )  # fmt: skip
    numbers = {name: int(part) for name, part in zip(names, sizes.split(), strict=True) if part != "-"}
    return {
        "model_type": model_type,
        "architectures": [architecture],
        "torch_dtype": "bfloat16",
        **numbers,
        **more,
    }


def _converted(hf: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the checkpoint's configuration: what all converters write, and what this one does."""
    heads = hf.get("num_attention_heads", 1)
    head_size = changes.get("head_size") or hf.get("head_dim") or hf.get("hidden_size", 0) // heads
    kept = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "hidden_act")
    return {
        "architecture": hf["architectures"][0],
        "dtype": "bfloat16",
        "logits_dtype": "float32",
        **{name: hf[name] for name in kept if name in hf},
        "num_key_value_heads": hf.get("num_key_value_heads", heads),
        "intermediate_size": hf.get("intermediate_size", 4 * hf.get("hidden_size", 0)),
        "max_position_embeddings": hf.get("max_position_embeddings"),
        "norm_epsilon": hf.get("rms_norm_eps", 1e-5),
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": hf.get("rope_theta", 10000.0),
        "rotary_scaling": hf.get("rope_scaling"),
        "rotary_embedding_dim": int(head_size * hf.get("partial_rotary_factor", 1.0)),
        "head_size": head_size,
        "qk_layernorm": False,
        "use_parallel_embedding": False,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None, "group_size": 128},
        **changes,
    }


LLAMA31 = _hf(
    "llama", "LlamaForCausalLM", "4096 32 32 8 14336 128256 131072", hidden_act="silu", rms_norm_eps=1e-5,
    rope_theta=500000.0, attention_bias=False, tie_word_embeddings=False,
    rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 8192},
)  # fmt: skip
LLAMA2 = _hf(
    "llama", "LlamaForCausalLM", "4096 32 32 32 11008 32000 4096", hidden_act="silu", rms_norm_eps=1e-5,
    rope_scaling=None, tie_word_embeddings=False, torch_dtype="float16",
)  # fmt: skip
MISTRAL = _hf(
    "mistral", "MistralForCausalLM", "4096 32 32 8 14336 32000 32768", hidden_act="silu", rms_norm_eps=1e-5,
    rope_theta=10000.0, sliding_window=4096, tie_word_embeddings=False,
)  # fmt: skip
MIXTRAL = _hf(
    "mixtral", "MixtralForCausalLM", "4096 32 32 8 14336 32000 32768", hidden_act="silu", rms_norm_eps=1e-5,
    rope_theta=1000000.0, num_local_experts=8, num_experts_per_tok=2, sliding_window=None,
)  # fmt: skip
QWEN2_YARN = _hf(
    "qwen2", "Qwen2ForCausalLM", "3584 28 28 4 18944 152064 32768", hidden_act="silu", rms_norm_eps=1e-6,
    rope_theta=1000000.0, use_sliding_window=False, sliding_window=131072, tie_word_embeddings=False,
    rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
)  # fmt: skip
QWEN2_MOE = _hf(
    "qwen2_moe", "Qwen2MoeForCausalLM", "2048 24 16 16 5632 151936 8192", hidden_act="silu",
    rms_norm_eps=1e-6, rope_theta=1000000.0, num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408,
)  # fmt: skip
QWEN3 = _hf(
    "qwen3", "Qwen3ForCausalLM", "4096 36 32 8 12288 151936 40960", hidden_act="silu", rms_norm_eps=1e-6,
    rope_theta=1000000.0, head_dim=128, attention_bias=False, rope_scaling=None, tie_word_embeddings=False,
)  # fmt: skip
GEMMA2 = _hf(
    "gemma2", "Gemma2ForCausalLM", "3584 42 16 8 14336 256000 8192", hidden_act="gelu_pytorch_tanh",
    hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, rope_theta=10000.0, head_dim=256,
    sliding_window=4096, attention_bias=False,
)  # fmt: skip
PHI2 = _hf(
    "phi", "PhiForCausalLM", "2560 32 32 32 10240 51200 2048", hidden_act="gelu_new", layer_norm_eps=1e-5,
    rope_theta=10000.0, partial_rotary_factor=0.4, qk_layernorm=False, tie_word_embeddings=False,
)  # fmt: skip
PHI3_LONG = _hf(
    "phi3", "Phi3ForCausalLM", "3072 32 32 32 8192 32064 131072", hidden_act="silu", rms_norm_eps=1e-5,
    rope_theta=10000.0, sliding_window=262144, original_max_position_embeddings=4096, attention_bias=False,
    rope_scaling={"type": "su", "short_factor": [1.0] * 48, "long_factor": [1.1] * 48},
)  # fmt: skip
FALCON = {
    "model_type": "falcon", "architectures": ["FalconForCausalLM"], "torch_dtype": "bfloat16", "alibi": False,
    "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "vocab_size": 65024, "bias": False,
    "layer_norm_epsilon": 1e-5, "multi_query": True, "new_decoder_architecture": False, "parallel_attn": True,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_layer": 12, "n_head": 12,
    "n_positions": 1024, "vocab_size": 50257, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
}  # fmt: skip
GPTJ = {
    "model_type": "gptj", "architectures": ["GPTJForCausalLM"], "n_embd": 4096, "n_layer": 28, "n_head": 16,
    "n_positions": 2048, "vocab_size": 50400, "rotary_dim": 64, "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False, "torch_dtype": "float16",
}  # fmt: skip
NEOX = _hf(
    "gpt_neox", "GPTNeoXForCausalLM", "6144 44 64 - 24576 50432 2048", hidden_act="gelu_fast",
    layer_norm_eps=1e-5, rotary_emb_base=10000, rotary_pct=0.25, torch_dtype="float16", attention_bias=True,
)  # fmt: skip
BLOOM = {
    "model_type": "bloom", "architectures": ["BloomForCausalLM"], "hidden_size": 4096, "n_layer": 30,
    "num_attention_heads": 32, "vocab_size": 250880, "layer_norm_epsilon": 1e-5, "torch_dtype": "float16",
}  # fmt: skip
STARCODER2 = _hf(
    "starcoder2", "Starcoder2ForCausalLM", "4608 32 36 4 18432 49152 16384", hidden_act="gelu_pytorch_tanh",
    norm_epsilon=1e-5, rope_theta=1000000, use_bias=True, sliding_window=4096,
)  # fmt: skip
NEMOTRON = _hf(
    "nemotron", "NemotronForCausalLM", "3072 32 24 8 9216 256000 4096", hidden_act="relu2", norm_eps=1e-5,
    rope_theta=10000.0, partial_rotary_factor=0.5, head_dim=128, attention_bias=False, mlp_bias=False,
    tie_word_embeddings=False,
)  # fmt: skip
CHATGLM3 = {
    "model_type": "chatglm", "architectures": ["ChatGLMModel"], "torch_dtype": "float16", "hidden_size": 4096,
    "num_layers": 28, "num_attention_heads": 32, "multi_query_group_num": 2, "ffn_hidden_size": 13696,
    "padded_vocab_size": 65024, "vocab_size": 65024, "seq_length": 8192, "layernorm_epsilon": 1e-5,
    "kv_channels": 128, "add_qkv_bias": True, "rope_ratio": 1,
}  # fmt: skip
DEEPSEEK2 = _hf(
    "deepseek_v2", "DeepseekV2ForCausalLM", "2048 27 16 16 10944 102400 163840", hidden_act="silu",
    rms_norm_eps=1e-6, rope_theta=10000, kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=128,
    qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=64, num_experts_per_tok=6, moe_intermediate_size=1408,
    rope_scaling={"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707,
                  "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096},
)  # fmt: skip
INTERNLM2 = _hf(
    "internlm2", "InternLM2ForCausalLM", "4096 32 32 8 14336 92544 32768", hidden_act="silu", rms_norm_eps=1e-5,
    rope_theta=1000000, bias=False, rope_scaling={"type": "dynamic", "factor": 2.0},
)  # fmt: skip

FAMILIES: dict[str, Pair] = {
    "llama 3.1": (LLAMA31, _converted(LLAMA31, attn_bias=False, tie_word_embeddings=False)),
    "llama 2": (LLAMA2, _converted(LLAMA2, dtype="float16", attn_bias=False)),
    "llama 2 in four ranks": (
        LLAMA2,
        _converted(LLAMA2, dtype="float16", mapping={"world_size": 4, "tp_size": 2, "pp_size": 2}),
    ),
    "mistral": (MISTRAL, _converted(MISTRAL, attn_bias=False)),
    "mistral as llama (0.8)": (MISTRAL, _converted(MISTRAL, architecture="LlamaForCausalLM")),
    "mixtral": (MIXTRAL, _converted(MIXTRAL, hidden_act="swiglu", moe={"num_experts": 8, "top_k": 2})),
    "qwen2 with yarn": (QWEN2_YARN, _converted(QWEN2_YARN, attn_bias=True)),
    "qwen2 moe": (
        QWEN2_MOE,
        _converted(
            QWEN2_MOE, hidden_act="swiglu", attn_bias=True, moe={"num_experts": 60, "top_k": 4},
            moe_intermediate_size=1408,
        ),
    ),
    "qwen3": (QWEN3, _converted(QWEN3, attn_bias=False)),
    "gemma 2": (GEMMA2, _converted(GEMMA2, head_size=256, attn_bias=False)),
    "phi 2": (PHI2, _converted(PHI2, rotary_pct=0.4)),
    "phi 3 128k": (
        PHI3_LONG,
        _converted(
            PHI3_LONG, hidden_act="swiglu", rotary_scaling=None, position_embedding_type="long_rope",
            original_max_position_embeddings=4096,
        ),
    ),
    "falcon 7b": (
        FALCON,
        _converted(FALCON, num_key_value_heads=1, hidden_act="gelu", max_position_embeddings=2048, bias=False),
    ),
    "gpt2": (
        GPT2,
        _converted(
            GPT2, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=12,
            intermediate_size=3072, head_size=64, max_position_embeddings=1024, hidden_act="gelu_new",
            position_embedding_type="learned_absolute", rotary_embedding_dim=64, dtype="float16",
        ),
    ),
    "gpt-j": (
        GPTJ,
        _converted(
            GPTJ, hidden_size=4096, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=16,
            intermediate_size=16384, head_size=256, max_position_embeddings=2048, hidden_act="gelu",
            position_embedding_type="rope_gptj", rotary_dim=64, rotary_embedding_dim=64, dtype="float16",
        ),
    ),
    "gpt-neox": (
        NEOX,
        _converted(NEOX, dtype="float16", hidden_act="gelu", rotary_base=10000, rotary_pct=0.25, rotary_embedding_dim=24),
    ),
    "bloom": (
        BLOOM,
        _converted(BLOOM, num_hidden_layers=30, position_embedding_type="alibi", hidden_act="gelu", dtype="float16"),
    ),
    "starcoder2": (STARCODER2, _converted(STARCODER2, hidden_act="gelu", norm_epsilon=1e-5, bias=True)),
    "nemotron": (NEMOTRON, _converted(NEMOTRON, hidden_act="squared-relu", rotary_pct=0.5, bias=False)),
    "nemotron as gpt (NeMo)": (NEMOTRON, _converted(NEMOTRON, architecture="GPTForCausalLM", hidden_act="squared-relu")),
    "chatglm3": (
        CHATGLM3,
        _converted(
            CHATGLM3, architecture="ChatGLMForCausalLM", num_hidden_layers=28, num_key_value_heads=2,
            intermediate_size=13696, max_position_embeddings=8192, hidden_act="swiglu", rotary_pct=0.5,
            position_embedding_type="rope_gptj", add_qkv_bias=True, head_size=128, rotary_embedding_dim=64,
            dtype="float16",
        ),
    ),
    "deepseek v2 lite": (
        DEEPSEEK2,
        _converted(
            DEEPSEEK2, hidden_act="swiglu", moe={"num_experts": 64, "top_k": 6}, moe_inter_size=1408,
            kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        ),
    ),
    "internlm2": (INTERNLM2, _converted(INTERNLM2, attn_bias=False)),
    "llama 3.1 padded by ModelOpt": (LLAMA31, _converted(LLAMA31, vocab_size=128256, rotary_dim=128)),
}  # fmt: skip
