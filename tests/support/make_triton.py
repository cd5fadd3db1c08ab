"""Makes Triton model repositories and option files as TensorRT-LLM 1.2.1 has them, filled and consistent.

The models, tensors and parameters are those of triton_backend/all_models/inflight_batcher_llm and llmapi at tag
v1.2.1, as far as anything depends on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

# name, type, dims, and "?" for optional
PREPROCESSING = (
    [
        "QUERY STRING 1",
        "DECODER_QUERY STRING 1 ?",
        "REQUEST_OUTPUT_LEN INT32 1",
        "BAD_WORDS_DICT STRING -1 ?",
        "STOP_WORDS_DICT STRING -1 ?",
        "END_ID INT32 1 ?",
        "PAD_ID INT32 1 ?",
    ],
    [
        "INPUT_ID INT32 -1",
        "REQUEST_INPUT_LEN INT32 1",
        "REQUEST_OUTPUT_LEN INT32 -1",
        "BAD_WORDS_IDS INT32 2,-1",
        "STOP_WORDS_IDS INT32 2,-1",
        "OUT_END_ID INT32 1",
        "OUT_PAD_ID INT32 1",
    ],
)
LLM = (
    [
        "input_ids INT32 -1 ?",
        "input_lengths INT32 1",
        "request_output_len INT32 1",
        "end_id INT32 1 ?",
        "pad_id INT32 1 ?",
        "stop_words_list INT32 2,-1 ?",
        "bad_words_list INT32 2,-1 ?",
        "beam_width INT32 1 ?",
        "temperature FP32 1 ?",
        "streaming BOOL 1 ?",
        "draft_logits LOGITS -1,-1 ?",
    ],
    [
        "output_ids INT32 -1,-1",
        "sequence_length INT32 -1",
        "context_logits LOGITS -1,-1",
        "generation_logits LOGITS -1,-1,-1",
    ],
)
POSTPROCESSING = (["TOKENS_BATCH INT32 -1,-1", "SEQUENCE_LENGTH INT32 -1"], ["OUTPUT STRING -1"])
TEXT = (
    [
        "text_input STRING 1",
        "max_tokens INT32 1",
        "bad_words STRING -1 ?",
        "stop_words STRING -1 ?",
        "end_id INT32 1 ?",
        "pad_id INT32 1 ?",
        "temperature FP32 1 ?",
        "beam_width INT32 1 ?",
        "stream BOOL 1 ?",
    ],
    ["text_output STRING -1", "context_logits LOGITS -1,-1", "generation_logits LOGITS -1,-1,-1"],
)
STEPS: tuple[tuple[str, dict[str, str], dict[str, str]], ...] = (
    (
        "preprocessing",
        {"QUERY": "text_input", "REQUEST_OUTPUT_LEN": "max_tokens", "BAD_WORDS_DICT": "bad_words"}
        | {"STOP_WORDS_DICT": "stop_words", "END_ID": "end_id", "PAD_ID": "pad_id"},
        {"INPUT_ID": "_INPUT_ID", "REQUEST_INPUT_LEN": "_REQUEST_INPUT_LEN"}
        | {"REQUEST_OUTPUT_LEN": "_REQUEST_OUTPUT_LEN", "BAD_WORDS_IDS": "_BAD_WORDS_IDS"}
        | {"STOP_WORDS_IDS": "_STOP_WORDS_IDS", "OUT_END_ID": "_END_ID", "OUT_PAD_ID": "_PAD_ID"},
    ),
    (
        "tensorrt_llm",
        {
            "input_ids": "_INPUT_ID",
            "input_lengths": "_REQUEST_INPUT_LEN",
            "end_id": "_END_ID",
            "pad_id": "_PAD_ID",
        }
        | {"request_output_len": "_REQUEST_OUTPUT_LEN", "stop_words_list": "_STOP_WORDS_IDS"}
        | {"bad_words_list": "_BAD_WORDS_IDS", "beam_width": "beam_width", "temperature": "temperature"}
        | {"streaming": "stream"},
        {"output_ids": "_TOKENS_BATCH", "sequence_length": "_SEQUENCE_LENGTH"}
        | {"context_logits": "context_logits", "generation_logits": "generation_logits"},
    ),
    (
        "postprocessing",
        {"TOKENS_BATCH": "_TOKENS_BATCH", "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH"},
        {"OUTPUT": "text_output"},
    ),
)
DEFAULTS: dict[str, str] = {
    "triton_backend": "tensorrtllm",
    "triton_max_batch_size": "8",
    "decoupled_mode": "False",
    "bls_decoupled_mode": "False",
    "max_queue_delay_microseconds": "0",
    "max_queue_size": "0",
    "logits_datatype": "TYPE_FP32",
    "ensemble_logits_datatype": "TYPE_FP32",
    "instance_count": "1",
    "max_beam_width": "1",
    "batching_strategy": "inflight_fused_batching",
    "encoder_engine_dir": "",
    "max_tokens_in_paged_kv_cache": "",
    "max_attention_window_size": "",
    "batch_scheduler_policy": "guaranteed_no_evict",
    "kv_cache_free_gpu_mem_fraction": "0.9",
    "cross_kv_cache_fraction": "",
    "enable_kv_cache_reuse": "true",
    "enable_chunked_context": "true",
    "exclude_input_in_output": "true",
    "gpu_device_ids": "",
    "decoding_mode": "",
    "guided_decoding_backend": "",
    "add_special_tokens": "true",
    "skip_special_tokens": "true",
    "accumulate_tokens": "false",
    "tensorrt_llm_model_name": "tensorrt_llm",
}


def make_triton(path: Path, engine_dir: str, tokenizer_dir: str, **overrides: str | None) -> Path:
    """Write an inflight_batcher_llm repository; an override of None leaves its `${variable}` unfilled."""
    values = DEFAULTS | {
        "engine_dir": engine_dir,
        "preprocessing_tokenizer_dir": tokenizer_dir,
        "postprocessing_tokenizer_dir": tokenizer_dir,
    }
    for model in ("preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls", "ensemble"):
        values[f"{model}_max_batch_size"] = overrides.get("triton_max_batch_size", values["triton_max_batch_size"])
    values |= overrides
    fill = {name: f"${{{name}}}" if value is None else str(value) for name, value in values.items()}
    models = {
        "preprocessing": _python("preprocessing", PREPROCESSING, fill, ("tokenizer_dir", "add_special_tokens")),
        "tensorrt_llm": _llm(fill),
        "postprocessing": _python("postprocessing", POSTPROCESSING, fill, ("tokenizer_dir", "skip_special_tokens")),
        "tensorrt_llm_bls": _bls(fill),
        "ensemble": _ensemble(fill),
    }
    for name, text in models.items():
        version = path / name / "1"
        version.mkdir(parents=True)
        (path / name / "config.pbtxt").write_text(text)
        if name not in ("ensemble",):
            (version / "model.py").write_text("# imitates 1.2.1\n")
    return path


def _tensors(side: str, specs: list[str], logits: str) -> str:
    return f"{side} [\n" + ",\n".join(_tensor(spec, logits) for spec in specs) + "\n]\n"


def _tensor(spec: str, logits: str) -> str:
    name, data_type, dims, *optional = spec.split()
    data_type = logits if data_type == "LOGITS" else f"TYPE_{data_type}"
    tail = "\n    optional: true" if optional else ""
    return f'  {{\n    name: "{name}"\n    data_type: {data_type}\n    dims: [ {dims} ]{tail}\n  }}'


def _parameter(key: str, value: str) -> str:
    return f'parameters: {{\n  key: "{key}"\n  value: {{\n    string_value: "{value}"\n  }}\n}}\n'


def _head(name: str, backend: str, fill: dict[str, str]) -> str:
    return (
        f'# {name} of 1.2.1\nname: "{name}"\nbackend: "{backend}"\nmax_batch_size: {fill[name + "_max_batch_size"]}\n'
    )


def _policy(decoupled: str) -> str:
    return f"\nmodel_transaction_policy {{\n  decoupled: {decoupled}\n}}\n"


def _instances(fill: dict[str, str]) -> str:
    return f"instance_group [\n  {{\n    count: {fill['instance_count']}\n    kind : KIND_CPU\n  }}\n]\n"


def _python(name: str, tensors: tuple[list[str], list[str]], fill: dict[str, str], parameters: tuple[str, ...]) -> str:
    text = _head(name, "python", fill) + _tensors("input", tensors[0], "") + _tensors("output", tensors[1], "")
    for key in parameters:
        text += _parameter(key, fill.get(f"{name}_{key}", fill.get(key, "")))
    return text + _instances(fill)


def _llm(fill: dict[str, str]) -> str:
    renamed = {"gpt_model_type": "batching_strategy", "gpt_model_path": "engine_dir"}
    renamed |= {"encoder_model_path": "encoder_engine_dir"}
    kept = [
        "max_beam_width",
        "gpt_model_type",
        "gpt_model_path",
        "encoder_model_path",
        "max_tokens_in_paged_kv_cache",
        "max_attention_window_size",
        "batch_scheduler_policy",
        "kv_cache_free_gpu_mem_fraction",
        "cross_kv_cache_fraction",
        "enable_kv_cache_reuse",
        "enable_chunked_context",
        "exclude_input_in_output",
        "gpu_device_ids",
        "decoding_mode",
        "guided_decoding_backend",
    ]
    logits = fill["logits_datatype"]
    return (
        _head("tensorrt_llm", fill["triton_backend"], fill)
        + _policy(fill["decoupled_mode"])
        + f"dynamic_batching {{\n    preferred_batch_size: [ {fill['tensorrt_llm_max_batch_size']} ]\n"
        + f"    max_queue_delay_microseconds: {fill['max_queue_delay_microseconds']}\n"
        + f"    default_queue_policy: {{ max_queue_size: {fill['max_queue_size']} }}\n}}\n"
        + _tensors("input", LLM[0], logits)
        + _tensors("output", LLM[1], logits)
        + _instances(fill)
        + _parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "no")
        + "".join(_parameter(key, fill[renamed.get(key, key)]) for key in kept)
    )


def _bls(fill: dict[str, str]) -> str:
    logits = fill["ensemble_logits_datatype"]
    return (
        _head("tensorrt_llm_bls", "python", fill)
        + _policy(fill["bls_decoupled_mode"])
        + _tensors("input", TEXT[0], logits)
        + _tensors("output", TEXT[1], logits)
        + "".join(_parameter(key, fill[key]) for key in ("accumulate_tokens", "tensorrt_llm_model_name"))
        + _instances(fill)
    )


def _ensemble(fill: dict[str, str]) -> str:
    logits = fill["ensemble_logits_datatype"]
    steps = ",\n".join(_step(*step) for step in STEPS)
    return (
        f'name: "ensemble"\nplatform: "ensemble"\nmax_batch_size: {fill["ensemble_max_batch_size"]}\n'
        + _tensors("input", TEXT[0], logits)
        + _tensors("output", TEXT[1], logits)
        + f"ensemble_scheduling {{\n  step [\n{steps}\n  ]\n}}\n"
    )


def _step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = [("input_map", *pair) for pair in inputs.items()] + [("output_map", *pair) for pair in outputs.items()]
    entries = "".join(
        f'      {kind} {{\n        key: "{key}"\n        value: "{value}"\n      }}\n' for kind, key, value in maps
    )
    return f'    {{\n      model_name: "{model}"\n      model_version: -1\n{entries}    }}'


def make_llmapi(path: Path, **options: Any) -> Path:
    """Write the llmapi repository of 1.2.1: config.pbtxt without limits, and the options in 1/model.yaml."""
    folder = path / "tensorrt_llm"
    (folder / "1").mkdir(parents=True)
    inputs = ["text_input STRING 1", "streaming BOOL 1 ?", "sampling_param_max_tokens INT32 1 ?"]
    text = 'name: "tensorrt_llm"\nbackend: "python"\n' + _instances({"instance_count": "1"})
    text += _tensors("input", inputs, "") + _tensors("output", ["text_output STRING -1"], "")
    (folder / "config.pbtxt").write_text(text)
    (folder / "1" / "model.py").write_text("# imitates 1.2.1\n")
    values = {"backend": "pytorch", "tensor_parallel_size": 1, "pipeline_parallel_size": 1} | options
    values.setdefault("triton_config", {"max_batch_size": 0, "decoupled": False})
    (folder / "1" / "model.yaml").write_text(yaml.safe_dump(values))
    return path


def make_llm_args(path: Path, **options: Any) -> Path:
    """Write a file for --config of trtllm-serve 1.2.1; keyword options replace its own."""
    values: dict[str, Any] = {
        "tensor_parallel_size": 1,
        "max_batch_size": 8,
        "max_num_tokens": 4096,
        "max_seq_len": 2048,
        "enable_chunked_prefill": True,
        "cuda_graph_config": {"enable_padding": True, "batch_sizes": [1, 2, 4, 8]},
        "kv_cache_config": {"free_gpu_memory_fraction": 0.8, "enable_block_reuse": True, "dtype": "auto"},
    }
    path.write_text(yaml.safe_dump(values | options, sort_keys=False))
    return path
