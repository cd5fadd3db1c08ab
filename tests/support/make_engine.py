"""TensorRT-LLM checkpoints and engine directories of every era, for the model of `make_hf.make_hf_model`.

`make_checkpoint` imitates what convert_checkpoint.py writes (0.8 to 1.2.1); `make_engine` what trtllm-build writes
from it (0.8 to 1.2.1) or what examples/llama/build.py wrote (0.5 to 0.7.1). Weights are sparse; plans are a true
header and zeros, laid out as real plans of TensorRT 8.6, 10.0, 10.6 and 10.9 and TensorRT-RTX 1.7.1 are.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from support.make_hf import CONFIG, DTYPES, write_json, write_safetensors
from trtdx.inspect.facts.build_defaults import defaults_of_release
from trtdx.knowledge import versions

HIDDEN, LAYERS, VOCAB = CONFIG["hidden_size"], CONFIG["num_hidden_layers"], CONFIG["vocab_size"]
MAPPING_KEYS = ("tp_size", "pp_size", "cp_size", "moe_tp_size", "moe_ep_size", "gpus_per_node")
PLAN_BYTES = 4096


def make_checkpoint(
    path: Path | str,
    version: str = "1.2.1",
    *,
    tensors: dict[str, tuple[str, tuple[int, ...]] | None] | None = None,
    layers: dict[str, Any] | None = None,
    **overrides: Any,
) -> Path:
    """Write a checkpoint and return its path.

    Args:
        path: The directory, made where it is not there.
        version: The release whose convert_checkpoint.py is imitated.
        tensors: Tensors of every rank to add or replace; None takes one away.
        layers: Quantisation by layer for quant_cfg.json (mixed precision).
        overrides: Keys of config.json, of its mapping (tp_size, ...), or quantization={...}; None takes one away.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    config = pretrained_config(version, **overrides)
    write_json(folder / "config.json", config)
    if layers:
        table = config["quantization"]
        write_json(folder / "quant_cfg.json", {**table, "quantized_layers": layers})
    mapping = config.get("mapping", {})
    tp, pp = mapping.get("tp_size", 1), mapping.get("pp_size", 1)
    for rank in range(tp * pp):
        known = rank_tensors(config, tp, pp, rank // tp) | (tensors or {})
        kept = {name: each for name, each in known.items() if each is not None}
        write_safetensors(folder / f"rank{rank}.safetensors", kept)
    return folder


def pretrained_config(version: str = "1.2.1", **overrides: Any) -> dict[str, Any]:
    """Return `PretrainedConfig` as a release writes it."""
    sizes = {key: overrides.pop(key) for key in MAPPING_KEYS if key in overrides}
    quantization = overrides.pop("quantization", None) or {}
    config: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "dtype": CONFIG["torch_dtype"],
        "logits_dtype": "float32",
        "vocab_size": VOCAB,
        "max_position_embeddings": CONFIG["max_position_embeddings"],
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": CONFIG["num_attention_heads"],
        "num_key_value_heads": CONFIG["num_key_value_heads"],
        "head_size": CONFIG["head_dim"],
        "hidden_act": CONFIG["hidden_act"],
        "intermediate_size": CONFIG["intermediate_size"],
        "norm_epsilon": CONFIG["rms_norm_eps"],
        "position_embedding_type": "rope_gpt_neox",
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
        "attn_bias": False,
        "mlp_bias": False,
        "rotary_base": CONFIG["rope_theta"],
        "rotary_scaling": dict(CONFIG["rope_scaling"]),
        "mapping": mapping(version, sizes),
        "quantization": quantization_table(version) | quantization,
    }
    config |= by_release(version) | overrides
    return {key: value for key, value in config.items() if value is not None or key == "rotary_scaling"}


def mapping(version: str, sizes: dict[str, int]) -> dict[str, Any]:
    known = {"tp_size": 1, "pp_size": 1} | ({"cp_size": 1} if versions.at_least(version, "0.11.0") else {}) | sizes
    world = known["tp_size"] * known["pp_size"] * known.get("cp_size", 1)
    table: dict[str, Any] = {"world_size": world, **known}
    if versions.at_least(version, "0.10.0"):
        table = {"gpus_per_node": 8, **table}
    if versions.at_least(version, "0.11.0"):
        table = {"moe_tp_size": known["tp_size"], "moe_ep_size": 1, **table}
    if versions.at_least(version, "1.2.0"):
        table |= {
            "attn_tp_size": known["tp_size"],
            "attn_cp_size": 1,
            "cp_config": {},
            "enable_attention_dp": False,
        }
    return table


def quantization_table(version: str) -> dict[str, Any]:
    table: dict[str, Any] = {"quant_algo": None, "kv_cache_quant_algo": None, "group_size": 128}
    table |= {"has_zero_point": False, "pre_quant_scale": False, "exclude_modules": None}
    if versions.at_least(version, "0.12.0"):
        table |= {"smoothquant_val": 0.5, "clamp_val": None}
    return table | ({} if versions.at_least(version, "0.9.0") else {"sq_use_plugin": False})


def by_release(version: str) -> dict[str, Any]:
    """Return the keys that came or went."""
    if not versions.at_least(version, "0.11.0"):
        return {
            "share_embedding_table": False,
            "moe_num_experts": 0,
            "moe_top_k": 0,
            "kv_dtype": CONFIG["torch_dtype"],
        }
    keys: dict[str, Any] = {
        "moe": {"num_experts": 0, "top_k": 0, "normalization_mode": 1},
        "qk_layernorm": False,
    }
    if versions.at_least(version, "0.13.0"):
        keys |= {"rotary_embedding_dim": CONFIG["head_dim"], "runtime_defaults": None}
    return keys


def rank_tensors(config: dict[str, Any], tp: int, pp: int, stage: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the tensors of one rank: its share of every matrix, of the layers of its pipeline stage."""
    dtype = DTYPES[config["dtype"]]
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_size"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "attention.qkv.weight": ((queries + 2 * keys) // tp, hidden),
        "attention.dense.weight": (hidden, queries // tp),
        "post_layernorm.weight": (hidden,),
        "mlp.fc.weight": (inner // tp, hidden),
        "mlp.gate.weight": (inner // tp, hidden),
        "mlp.proj.weight": (hidden, inner // tp),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    if stage == 0:
        cut = config.get("use_parallel_embedding") and config.get("embedding_sharding_dim", 0) == 0
        shapes["transformer.vocab_embedding.weight"] = (config["vocab_size"] // (tp if cut else 1), hidden)
    for number in range(config["num_hidden_layers"] // pp):
        shapes |= {f"transformer.layers.{number}.{name}": shape for name, shape in layer.items()}
    if stage == pp - 1:
        shapes |= {
            "transformer.ln_f.weight": (hidden,),
            "lm_head.weight": (config["vocab_size"] // tp, hidden),
        }
    tensors = {name: (dtype, shape) for name, shape in shapes.items()}
    return tensors | scale_tensors(config, tensors)


def scale_tensors(
    config: dict[str, Any], tensors: dict[str, tuple[str, tuple[int, ...]]]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return what FP8 and a quantised cache add; the matrices of the layers become FP8 too."""
    table = config.get("quantization") or {}
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, (_, shape) in tensors.items():
        if table.get("kv_cache_quant_algo") and name.endswith("attention.qkv.weight"):
            found[name.replace("qkv.weight", "kv_cache_scaling_factor")] = ("F32", (1,))
        if table.get("quant_algo") == "FP8" and ".layers." in name and len(shape) == 2:
            found[name] = ("F8_E4M3", shape)
            found |= {name.replace(".weight", f".{each}"): ("F32", (1,)) for each in SCALES}
    return found


SCALES = ("activation_scaling_factor", "weights_scaling_factor")


def make_engine(
    path: Path | str,
    version: str = "1.2.1",
    *,
    tensorrt: str = "",
    sm: int = 89,
    product: str = "tensorrt",
    ranks: int | None = None,
    **overrides: Any,
) -> Path:
    """Write an engine directory and return its path.

    Args:
        path: The directory, made where it is not there.
        version: The release whose trtllm-build (before 0.8: build.py) is imitated.
        tensorrt: The TensorRT that wrote the plans; that of the release where nothing is said.
        sm: The compute capability the plans were built on.
        product: "tensorrt" or "tensorrt-rtx".
        ranks: How many plans there are; as many as the mapping says where nothing is said.
        overrides: Keys of build_config, plugin_config, pretrained_config or its mapping, or quantization={...}.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    old = not versions.at_least(version, "0.8.0")
    config = old_engine_config(**overrides) if old else engine_config(version, **overrides)
    write_json(folder / "config.json", config)
    world = config["builder_config"]["tensor_parallel"] if old else config["pretrained_config"]["mapping"]["world_size"]
    tensorrt = tensorrt or versions.tensorrt_of(version) or "10.14.1.48"
    for rank in range(world if ranks is None else ranks):
        name = f"llama_{config['builder_config']['precision']}_tp{world}_rank{rank}" if old else f"rank{rank}"
        (folder / f"{name}.engine").write_bytes(plan_bytes(tensorrt, product, sm=sm))
    return folder


def engine_config(version: str = "1.2.1", **overrides: Any) -> dict[str, Any]:
    """Return config.json of an engine built with a release's defaults."""
    known = defaults_of_release(version)
    build = {name.partition(".")[2]: value for name, value in known.items() if name.startswith("build.")}
    plugin = {name.partition(".")[2]: value for name, value in known.items() if name.startswith("plugin.")}
    lora = overrides.pop("lora_config", {})
    ours = {key: overrides.pop(key) for key in list(overrides) if key in build}
    plugged = {key: overrides.pop(key) for key in list(overrides) if key in plugin}
    pretrained = pretrained_config(version, **overrides)
    if versions.at_least(version, "0.9.0"):
        build["lora_config"] = {"lora_dir": [], "lora_ckpt_source": "hf", "max_lora_rank": 64} | lora
        build["lora_config"].setdefault("lora_target_modules", [])
    if versions.at_least(version, "0.9.0") and not versions.at_least(version, "1.2.0"):
        build["auto_parallel_config"] = {"world_size": 1, "gpus_per_node": 8, "cluster_key": "L40S"}
    built(version, build | ours, plugin, pretrained)
    limits = deduced_limits(version, build | ours, pretrained)
    plugins = {key: None if value is False and off(key) else value for key, value in (plugin | plugged).items()}
    plugins["dtype"] = pretrained["dtype"]
    return {
        "version": version,
        "pretrained_config": pretrained,
        "build_config": {**limits, "plugin_config": plugins},
    }


def off(plugin: str) -> bool:
    """Return whether false in our table is null in config.json: plugins that take a type."""
    flags = (
        "quantize_per_token_plugin",
        "quantize_tensor_plugin",
        "dora_plugin",
        "explicitly_disable_gemm_plugin",
    )
    return plugin.endswith("_plugin") and plugin not in flags


def built(version: str, build: dict[str, Any], plugin: dict[str, Any], pretrained: dict[str, Any]) -> None:
    """Change the plugins as the builder does for this model."""
    alone = pretrained["mapping"]["world_size"] == 1
    plugin["nccl_plugin"] = False if alone else pretrained["dtype"]
    algo, cache = pretrained["quantization"]["quant_algo"], pretrained["quantization"]["kv_cache_quant_algo"]
    if not (algo == "FP8" and cache == "FP8") and "use_fp8_context_fmha" in plugin:
        plugin["use_fp8_context_fmha"] = False
    if not versions.at_least(version, "0.11.0"):
        plugin["gpt_attention_plugin"] = pretrained["dtype"]  # chosen on the command line: the default is float16


def deduced_limits(version: str, build: dict[str, Any], pretrained: dict[str, Any]) -> dict[str, Any]:
    """Return the build settings with what the builder deduces; a sequence length here is 8192."""
    build = dict(build)
    if "max_seq_len" in build:
        build["max_seq_len"] = build["max_seq_len"] or pretrained["max_position_embeddings"]
    length = build.get("max_seq_len") or build["max_input_len"] + build["max_output_len"]
    if build["max_num_tokens"] is None and versions.at_least(version, "0.9.0"):
        build["max_num_tokens"] = build["max_batch_size"] * build["max_input_len"]
    if build["max_num_tokens"] is not None:
        build["max_num_tokens"] = min(build["max_num_tokens"], build["max_batch_size"] * length)
    if "opt_num_tokens" in build and build["opt_num_tokens"] is None:
        build["opt_num_tokens"] = min(build["max_batch_size"] * build["max_beam_width"], build["max_num_tokens"])
    if "kv_cache_type" in build and not versions.at_least(version, "1.2.0"):
        build["kv_cache_type"] = build["kv_cache_type"].upper()
    if isinstance(build.get("speculative_decoding_mode"), str):
        build["speculative_decoding_mode"] = 1
    return build


def old_engine_config(**overrides: Any) -> dict[str, Any]:
    """Return config.json as examples/llama/build.py of 0.7.1 wrote it."""
    builder: dict[str, Any] = {
        "name": "llama",
        "precision": CONFIG["torch_dtype"],
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "num_layers": LAYERS,
        "num_heads": CONFIG["num_attention_heads"],
        "num_kv_heads": CONFIG["num_key_value_heads"],
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "hidden_act": CONFIG["hidden_act"],
        "max_position_embeddings": CONFIG["max_position_embeddings"],
        "max_batch_size": 8,
        "max_beam_width": 1,
        "max_input_len": 2048,
        "max_output_len": 512,
        "max_num_tokens": None,
        "int8": False,
        "quant_mode": 0,
        "strongly_typed": False,
        "opt_level": None,
        "max_prompt_embedding_table_size": 0,
        "gather_all_token_logits": False,
        "lora_target_modules": None,
    }
    plugins: dict[str, Any] = {
        "bert_attention_plugin": False,
        "gpt_attention_plugin": CONFIG["torch_dtype"],
        "multi_block_mode": False,
        "identity_plugin": False,
        "gemm_plugin": CONFIG["torch_dtype"],
        "attention_qk_half_accumulation": False,
        "remove_input_padding": True,
        "context_fmha_type": 1,
        "nccl_plugin": False,
        "use_custom_all_reduce": False,
        "paged_kv_cache": True,
        "tokens_per_block": 128,
        "lookup_plugin": False,
        "lora_plugin": False,
        "use_paged_context_fmha": False,
        "use_context_fmha_for_generation": False,
    }
    for key, value in overrides.items():
        (plugins if key in plugins else builder)[key] = value
    return {"builder_config": builder, "plugin_config": plugins}


def plan_bytes(
    version: str = "10.14.1.48",
    product: str = "tensorrt",
    *,
    sm: int = 89,
    size: int = PLAN_BYTES,
    layout: str = "10.9",
) -> bytes:
    """Return a plan: a true header with length, release and GPU, and zeros for the rest.

    `layout` is the release whose order of GPU properties is imitated: "8.6" (up to 10.6.0.26) or "10.9".
    """
    numbers = bytes(int(part) for part in version.split("."))
    if product == "tensorrt-rtx":
        mask = 1 << (75, 80, 86, 89, 120, 121).index(sm)
        return struct.pack("<4sIQQ4s4sQ", b"vtrt", 0, 2, size, numbers, b"vtrt", mask).ljust(size, b"\0")
    header = struct.pack("<4sIQQ4s4s", b"ftrt", 0, 1, size, numbers, b"rtrt")
    entry = struct.pack("<4sIQQ", b"NGNE", 0, 56, size - 56)
    archive = struct.pack("<4sIQQ", b"ptrt", 0, 0xED, size - 80)
    release = b"".join(field(0x02, number, 1) for number in numbers)
    mark = bytes.fromhex("d2800100 07800100 00000000 12800100 10800100")
    return (header + entry + archive + release + mark + GPU[layout](sm)).ljust(size, b"\0")


def old_plan_bytes(version: str = "8.2.1.8", *, sm: int = 86, size: int = PLAN_BYTES) -> bytes:
    """Return a plan as TensorRT before 8.6 wrote it: the engine archive without a header around it."""
    release = b"".join(field(0x02, int(number), 1) for number in version.split("."))
    archive = release + bytes.fromhex("12800100 10800100") + gpu_properties(sm)
    return (struct.pack("<4sIQQ", b"ptrt", 0, 205, size - 24) + archive).ljust(size, b"\0")


def gpu_properties(sm: int) -> bytes:
    first = [sm // 10, sm % 10, 2_520_000, 9_001_000, 384]
    last = [49_152, 102_400, 512, 142]
    return integers(first) + longs([75_497_472, 56_623_104]) + integers(last)


def later_gpu_properties(sm: int) -> bytes:
    memory = field(0x09, 48 << 30, 8) + longs([75_497_472, 56_623_104])
    first = [2_520_000, 9_001_000, 384, 49_152, 102_400, 142, 0, 1024, 1024]
    return memory + integers([*first, sm // 10, sm % 10, 512])


GPU = {"8.6": gpu_properties, "10.9": later_gpu_properties}


def integers(values: list[int]) -> bytes:
    return b"".join(field(0x07, value, 4) for value in values)


def longs(values: list[int]) -> bytes:
    return b"".join(field(0x08, value, 8) for value in values)


def field(tag: int, value: int, width: int) -> bytes:
    return bytes((tag, 0x80, 0x01, 0x00)) + value.to_bytes(width, "little")
