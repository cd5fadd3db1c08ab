"""Rows of measured memory, as a `config.json` and the flags a user would give."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

# What the words of a row mean as TensorRT-LLM's quant_algo, first match first.
_ALGOS = (
    (r"mxfp4", "W4A16_MXFP4"),
    (r"mxfp8", "MXFP8"),
    (r"nvfp4|fp4(?!\w)", "NVFP4"),
    (r"block|fp8_pb_wo", "FP8_BLOCK_SCALES"),
    (r"row-?wise|per.?channel.?per.?token|pc_pt", "FP8_PER_CHANNEL_PER_TOKEN"),
    (r"w4a8", "W4A8_AWQ"),
    (r"fp8", "FP8"),
    (r"gptq", "W4A16_GPTQ"),
    (r"awq", "W4A16_AWQ"),
    (r"int4|w4a16", "W4A16"),
    (r"smoothquant|w8a8|sq", "W8A8_SQ_PER_CHANNEL"),
    (r"int8|w8a16", "W8A16"),
)
_NAMES = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "num_experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "attention_bias_qkv": "attention_bias",
    "decoder_layers": "num_decoder_layers",
    "encoder_layers": "num_layers",
}
_FAMILIES = (  # in the model's name, model type, architecture
    (r"deepseek-v4", "deepseek_v4", "DeepseekV4ForCausalLM"),
    (r"deepseek-v3\.2", "deepseek_v32", "DeepseekV32ForCausalLM"),
    (r"deepseek-v2(?!.*distill)", "deepseek_v2", "DeepseekV2ForCausalLM"),
    (r"deepseek-(r1|v3)(?!.*distill)", "deepseek_v3", "DeepseekV3ForCausalLM"),
    (r"kimi-k2", "kimi_k2", "DeepseekV3ForCausalLM"),
    (r"gpt-oss", "gpt_oss", "GptOssForCausalLM"),
    (r"llama-?4", "llama4_text", "Llama4ForCausalLM"),
    (r"nemotron-?h|nemotron-nano|nemotron-3", "nemotron_h", "NemotronHForCausalLM"),
    (r"glm-?4\.[5-7]", "glm4_moe", "Glm4MoeForCausalLM"),
    (r"minimax-m2", "minimax_m2", "MiniMaxM2ForCausalLM"),
    (r"exaone-?4", "exaone4", "Exaone4ForCausalLM"),
    (r"qwen3-next", "qwen3_next", "Qwen3NextForCausalLM"),
    (r"qwen3\.5", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
    (r"qwen3-?\d+b-a|qwen3.*-a\d+b", "qwen3_moe", "Qwen3MoeForCausalLM"),
    (r"qwen3", "qwen3", "Qwen3ForCausalLM"),
    (r"qwen", "qwen2", "Qwen2ForCausalLM"),
    (r"mixtral", "mixtral", "MixtralForCausalLM"),
    (r"mistral", "mistral", "MistralForCausalLM"),
    (r"gemma-?3", "gemma3_text", "Gemma3ForCausalLM"),
    (r"gemma-?2", "gemma2", "Gemma2ForCausalLM"),
    (r"gemma", "gemma", "GemmaForCausalLM"),
    (r"baichuan", "baichuan", "BaichuanForCausalLM"),
    (r"gpt_|gpt2", "gpt2", "GPT2LMHeadModel"),
    (r"flan-t5|t5-", "t5", "T5ForConditionalGeneration"),
    (r"falcon", "falcon", "FalconForCausalLM"),
    (r"phi-?2", "phi", "PhiForCausalLM"),
    (r"phi", "phi3", "Phi3ForCausalLM"),
    (r"starcoder2", "starcoder2", "Starcoder2ForCausalLM"),
    (r"gpt-?j", "gptj", "GPTJForCausalLM"),
    (r"bloom", "bloom", "BloomForCausalLM"),
    (r"opt-", "opt", "OPTForCausalLM"),
    (r"chatglm", "chatglm", "ChatGLMModel"),
    (r"command-r|cohere|aya", "cohere", "CohereForCausalLM"),
    (r"neox|pythia", "gpt_neox", "GPTNeoXForCausalLM"),
    (r"mpt-", "mpt", "MPTForCausalLM"),
    (r"nemotron-4|minitron", "nemotron", "NemotronForCausalLM"),
    (r"whisper", "whisper", "WhisperForConditionalGeneration"),
    (r"", "llama", "LlamaForCausalLM"),
)
_POSITIONS = (  # in the model's name, positions its public config states
    (r"deepseek-(r1|v3)(?!.*distill)", 163840),
    (r"distill-qwen|llama-?3\.[1-3]|gpt-oss|gemma-?3", 131072),
    (r"qwen3", 40960),
    (r"qwen|mistral|mixtral", 32768),
    (r"llama-?3|gemma", 8192),
    (r"gpt_|gpt2", 1024),
    (r"", 4096),
)
_FLAGS = re.compile(r"--([a-z][\w-]+)(?:[ =]([\w.]+))?")
_KNOWN = {
    "gemm_plugin": "gemm_plugin",
    "use_gemm_plugin": "gemm_plugin",
    "gpt_attention_plugin": "gpt_attention_plugin",
    "use_gpt_attention_plugin": "gpt_attention_plugin",
    "context_fmha": "context_fmha",
    "enable_context_fmha": "context_fmha",
    "remove_input_padding": "remove_input_padding",
    "paged_kv_cache": "paged_kv_cache",
    "multiple_profiles": "multiple_profiles",
    "use_inflight_batching": "use_inflight_batching",
    "use_parallel_embedding": "use_parallel_embedding",
    "max_output_len": "max_output_len",
    "max_input_len": "max_input_len",
    "max_num_tokens": "max_num_tokens",
    "tokens_per_block": "tokens_per_block",
}
_SWITCHES = (
    "context_fmha", "remove_input_padding", "paged_kv_cache", "multiple_profiles", "use_inflight_batching",
    "use_parallel_embedding",
)  # fmt: skip
# Build settings that a row states in fields of their own: true, false, "enable", "disable", or a plugin's type.
_PLUGINS = ("gemm_plugin", "gpt_attention_plugin")
_COPIED = (
    "max_batch_size",
    "max_input_len",
    "max_seq_len",
    "max_num_tokens",
    "max_beam_width",
    "tokens_per_block",
    "max_output_len",
    "max_draft_len",
    "kv_cache_type",
    "logits_dtype",
)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def family_of(row: dict[str, Any]) -> tuple[str, str]:
    name = (row["model"] or "").lower()
    return next((kind, arch) for pattern, kind, arch in _FAMILIES if re.search(pattern, name))


def algo_of(text: str | None) -> str:
    return next((algo for pattern, algo in _ALGOS if re.search(pattern, (text or "").lower())), "")


def config_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row's sizes as a Hugging Face config would state them."""
    kind, architecture = family_of(row)
    config: dict[str, Any] = {
        "model_type": kind,
        "architectures": [architecture],
        "torch_dtype": dtype_of(row),
    }
    for name, value in row["dims"].items():
        if value is not None and name != "attention":
            config[_NAMES.get(name, name)] = value
    if kind == "t5":
        config["is_encoder_decoder"] = True
    if config.get("kv_lora_rank"):  # latent attention: the heads are the row's own parts of them
        config["n_routed_experts"] = config.pop("num_experts", None)
        config.pop("head_dim", None)
    name = (row["model"] or "").lower()
    config["max_position_embeddings"] = next(most for pattern, most in _POSITIONS if re.search(pattern, name))
    return config


def dtype_of(row: dict[str, Any]) -> str:
    text = (row["weight_dtype"] or "").lower()
    return "float16" if "float16" in text and "bfloat16" not in text else "bfloat16"


def kv_dtype_of(row: dict[str, Any]) -> str:
    text = (row["kv_dtype"] or "").lower()
    if "nvfp4" in text:
        return "nvfp4"
    if "fp8" in text or "e4m3" in text or "1-byte" in text:
        return "fp8"
    return "int8" if "int8" in text else "auto"


def argv_of(row: dict[str, Any], model: Path) -> list[str]:
    """Return the arguments of `trtdx memory` for a row whose config lies in a folder."""
    given: dict[str, Any] = {name: row.get(name) for name in _COPIED}
    given["tp"], given["pp"], given["ep"] = row.get("tp"), row.get("pp"), row.get("ep")
    given["kv_cache_free_gpu_memory_fraction"] = row.get("kv_free_fraction")
    given["dtype"] = dtype_of(row)
    given["quant_algo"] = algo_of(row["weight_dtype"]) or None
    given["kv_cache_dtype"] = kv_dtype_of(row)
    given["backend"] = row["backend"]
    given["trtllm-version"] = _version(row)
    switches = {
        "enable_attention_dp": row.get("attention_dp"),
        "gather_context_logits": row.get("gather_context_logits"),
    }
    given |= {name: value for name, value in _noted(row).items() if given.get(name) is None}
    given |= _stated(row)
    argv = [str(model)]
    for name, value in given.items():
        if value is not None and not isinstance(value, list):
            argv += [f"--{name}", str(value)]
    argv += [f"--{name}" for name, on in switches.items() if on]
    if options_of(row):
        (model / "options.json").write_text(json.dumps(options_of(row)))
        argv += ["--config", str(model / "options.json")]
    if row.get("gpu_total_gib"):
        argv += ["--gpu-memory", f"{row['gpu_total_gib']}GiB"]
    if re.search(r"[A-Z]{1,3}\d{1,4}(?!\d)|RTX|GeForce", row.get("gpu") or ""):  # a name, not "sm80"
        argv += ["--gpu", row["gpu"]]
    return argv


def options_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the LLM API's options that a row's server was given in a file."""
    options: dict[str, Any] = {}
    graphs = row.get("cuda_graph_max_batch") or row.get("cuda_graph_batch_sizes_max")
    if graphs:
        options["cuda_graph_config"] = {"max_batch_size": graphs}
    if row.get("moe_backend"):
        options["moe_config"] = {"backend": row["moe_backend"]}
    if row.get("piecewise_cuda_graph"):
        options["torch_compile_config"] = {"enable_piecewise_cuda_graph": True}
    draft = re.search(r"MTP.*max_draft_len=(\d+)", str(row.get("speculative") or ""))
    if draft:
        options["speculative_config"] = {"decoding_type": "MTP", "num_nextn_predict_layers": int(draft[1])}
    return options


def _noted(row: dict[str, Any]) -> dict[str, Any]:
    """Return the build flags that a row's notes quote."""
    notes = row["notes"] or ""
    found = {_KNOWN[name]: value or "enable" for name, value in _FLAGS.findall(notes) if name in _KNOWN}
    found |= {name: "enable" for name in _SWITCHES if name in found and found[name] not in ("disable", "enable")}
    if row["backend"] == "tensorrt" and "build.py" in notes and "_plugin" not in notes:
        # A note that quotes the limits only: every README of these scripts has the plugins on.
        found |= {"gemm_plugin": "float16", "gpt_attention_plugin": "float16", "context_fmha": "enable"}
    if row["backend"] == "tensorrt" and _PYTHON_BENCHMARK in notes:  # its caches are one buffer for each layer
        found |= {"kv_cache_type": "continuous"} | {name: "float16" for name in _PLUGINS if "plugin" in notes}
    return found


_PYTHON_BENCHMARK = "Python benchmark"


def _stated(row: dict[str, Any]) -> dict[str, str]:
    """Return the build settings that a row states in fields of their own."""
    found = {}
    for name in (*_SWITCHES, *_PLUGINS):
        value = row.get(name)
        if value is None:
            continue
        off = value is False or str(value).lower() in ("false", "disable", "null", "none", "off")
        plain = "disable" if off else "enable" if name in _SWITCHES else str(value)
        found[name] = "auto" if plain in ("True", "true", "enable") and name in _PLUGINS else plain
    return found


def _version(row: dict[str, Any]) -> str | None:
    """Return the release; example scripts called build.py were the way to build until 0.7."""
    found = re.match(r"\d+\.\d+[\w.]*", row["trtllm_version"] or "")
    if found:
        return found[0]
    return "0.7.1" if row["backend"] == "tensorrt" and "build.py" in (row["notes"] or "") else None
