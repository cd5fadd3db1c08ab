"""The names facts go by, whatever file they were read from: one word for one thing in every artifact."""

from __future__ import annotations

from typing import Any

import msgspec

from trtdx.errors import UnknownNameError


class MalformedError(ValueError):
    """A value that is not of its term's type."""


class Term(msgspec.Struct, frozen=True):
    """One name: its type, its meaning in words, and how grave it is when two artifacts differ in it."""

    name: str
    type: str  # int, float, str, bool, list, dict, any
    meaning: str
    weight: int = (
        1  # 3: wrong output in silence; 2: fails or must be rebuilt; 1: speed or limits; 0: descriptive
    )

    @property
    def group(self) -> str:
        return self.name.split(".")[0] if "." in self.name else GROUP_OF[self.name]


# Names without a dot stand alone because several kinds of artifact state them; families are "group.*".
GROUPS: dict[str, tuple[Term, ...]] = {
    "model": (
        Term("architecture", "str", "the model's architecture", 2),
        Term("model_type", "str", "the Hugging Face model type", 0),
        Term("dtype", "str", "the data type of weights and activations", 2),
        Term("hidden_size", "int", "the hidden size", 2),
        Term("num_layers", "int", "the number of layers", 2),
        Term("num_heads", "int", "the number of attention heads", 2),
        Term("num_kv_heads", "int", "the number of key/value heads", 2),
        Term("head_size", "int", "the size of an attention head", 2),
        Term("intermediate_size", "int", "the MLP's inner size", 2),
        Term("vocab_size", "int", "the vocabulary size", 3),
        Term("max_positions", "int", "the longest position the model was made for", 3),
        Term("position_embedding", "str", "the kind of position embedding", 3),
        Term("rotary_base", "float", "the rotary base (theta)", 3),
        Term("rotary_dim", "int", "how many dimensions of a head are rotated", 3),
        Term("rope_scaling", "dict", "the rotary scaling", 3),
        Term("hidden_act", "str", "the activation function", 3),
        Term("norm_epsilon", "float", "the normalisation epsilon", 3),
        Term("tie_embeddings", "bool", "whether the output layer shares the embedding", 3),
        Term("qk_norm", "bool", "whether queries and keys are normalised", 3),
        Term("attention_bias", "bool", "whether the attention projections have a bias", 3),
        Term("sliding_window", "int", "the attention window", 3),
        Term("num_experts", "int", "the number of experts", 2),
        Term("experts_per_token", "int", "how many experts a token uses", 3),
        Term("moe_intermediate_size", "int", "an expert's inner size", 2),
        Term("q_lora_rank", "int", "MLA: the rank of compressed queries", 2),
        Term("kv_lora_rank", "int", "MLA: the rank of compressed keys and values", 2),
        Term("qk_rope_head_dim", "int", "MLA: the rotated part of a head", 2),
        Term("qk_nope_head_dim", "int", "MLA: the part of a head that is not rotated", 2),
        Term("v_head_dim", "int", "MLA: the size of a value head", 2),
        Term("multimodal", "bool", "whether the model also reads images, audio or video", 1),
        Term("encoder_decoder", "bool", "whether the model has an encoder and a decoder", 2),
        Term("remote_code", "bool", "whether the model needs Python of its own (auto_map)", 2),
        Term("logits_dtype", "str", "the data type of the logits", 2),
    ),
    "mapping": (
        Term("world_size", "int", "the number of ranks", 2),
        Term("tp_size", "int", "tensor parallelism", 2),
        Term("pp_size", "int", "pipeline parallelism", 2),
        Term("cp_size", "int", "context parallelism", 2),
        Term("moe_tp_size", "int", "tensor parallelism of the experts", 2),
        Term("moe_ep_size", "int", "expert parallelism", 2),
        Term("gpus_per_node", "int", "GPUs in one machine", 1),
        Term("attention_dp", "bool", "attention data parallelism", 1),
        Term("use_parallel_embedding", "bool", "whether the embedding is cut across ranks", 2),
        Term("embedding_sharding_dim", "int", "along which axis the embedding is cut", 2),
    ),
    "limits": (
        Term("max_batch_size", "int", "the most requests at once", 1),
        Term("max_input_len", "int", "the longest prompt", 1),
        Term("max_seq_len", "int", "the longest prompt and answer together", 1),
        Term("max_output_len", "int", "the longest answer (before 0.11)", 1),
        Term("max_beam_width", "int", "the most beams", 1),
        Term("max_num_tokens", "int", "the most tokens in one step", 1),
        Term("opt_num_tokens", "int", "the tokens per step the engine is tuned for", 1),
        Term("opt_batch_size", "int", "the batch the engine is tuned for", 1),
        Term("max_draft_len", "int", "the most draft tokens", 1),
        Term("max_encoder_input_len", "int", "the longest encoder input", 1),
        Term("max_prompt_table", "int", "the rows of the prompt embedding table", 1),
    ),
    "build": (
        Term("version", "str", "the TensorRT-LLM release that made it", 2),
        Term("era", "str", "the layout of the configuration", 0),
        Term("tensorrt", "str", "the TensorRT release that made it", 2),
        Term("kv_cache_type", "str", "the kind of key/value cache", 2),
        Term("tokens_per_block", "int", "tokens in one cache block", 1),
        Term("gather_context_logits", "bool", "whether logits of the prompt are returned", 1),
        Term("gather_generation_logits", "bool", "whether logits of the answer are returned", 1),
        Term("debug_outputs", "bool", "whether intermediate tensors are outputs", 1),
        Term("strongly_typed", "bool", "whether types are fixed by the network", 2),
        Term("profiling_verbosity", "str", "how much the engine tells about its layers", 0),
        Term("speculative_mode", "str", "the kind of speculative decoding", 2),
        Term("weight_streaming", "bool", "whether weights may stay in host memory", 1),
        Term("strip_plan", "bool", "whether the weights were left out of the plan", 2),
        Term("refit", "bool", "whether weights can be replaced", 1),
        Term("multiple_profiles", "bool", "whether several optimization profiles were built", 1),
        Term("timing_cache", "str", "the timing cache that was used", 0),
    ),
    "quant": (
        Term(
            "quant.algo",
            "str",
            "the quantisation of the weights, in TensorRT-LLM's spelling (FP8, W4A16_AWQ, ...)",
            3,
        ),
        Term("quant.kv_algo", "str", "the quantisation of the key/value cache (FP8, INT8, NVFP4)", 3),
        Term(
            "quant.method",
            "str",
            "the quantisation method a Hugging Face config names (fp8, awq, gptq, modelopt, ...)",
            3,
        ),
        Term("quant.group_size", "int", "weights that share one scale", 2),
        Term("quant.block_size", "list", "the block of weights that shares one scale", 2),
        Term("quant.bits", "int", "bits of a weight", 2),
        Term("quant.desc_act", "bool", "GPTQ: whether columns were reordered by activation", 2),
        Term("quant.excluded", "list", "modules that are not quantised", 3),
        Term("quant.per_layer", "dict", "quantisation by layer", 3),
        Term("quant.has_zero_point", "bool", "whether weights have zero points", 3),
        Term("quant.pre_quant_scale", "bool", "whether activations are scaled first", 3),
        Term("quant.source", "str", "the file the quantisation was read from", 0),
        Term(
            "quant.inline_algo",
            "str",
            "what config.json says where hf_quant_config.json says something too",
            3,
        ),
        Term(
            "quant.inline_kv_algo",
            "str",
            "the cache quantisation config.json (or quant_cfg.json) says beside the authoritative one",
            3,
        ),
        Term("quant.kv_scheme_unrecognised", "str", "a kv_cache_scheme nobody reads", 3),
    ),
    "weights": (
        Term("weights.files", "int", "files of weights", 1),
        Term("weights.bytes", "int", "bytes of weights", 1),
        Term("weights.parameters", "int", "weights in all", 1),
        Term("weights.format", "str", "the files' format (safetensors, bin, gguf, engine)", 1),
        Term("weights.dtypes", "dict", "how many tensors have which data type", 2),
        Term("weights.bytes_by_dtype", "dict", "how many bytes have which data type", 1),
        Term("weights.missing", "list", "files that are named and not there", 2),
        Term("weights.truncated", "list", "files that are shorter than their header says", 2),
        Term("weights.lfs_pointers", "list", "Git-LFS pointers in place of files", 2),
        Term("weights.corrupt", "list", "files whose header cannot be right", 2),
        Term("weights.unknown_dtypes", "list", "data types that no safetensors library knows", 2),
        Term("weights.unindexed", "list", "files of weights that the index does not name", 1),
        Term(
            "weights.missing_tensors", "list", "tensors the index places in a file that does not hold them", 2
        ),
        Term("weights.ranks", "list", "the ranks that have a file", 2),
        Term("weights.has_lm_head", "bool", "whether there is an output layer of its own", 3),
        Term("weights.embedding_shape", "list", "the shape of the embedding", 2),
        Term("weights.lm_head_shape", "list", "the shape of the output layer", 2),
        Term("weights.layers", "int", "layers that have weights", 2),
        Term("weights.qkv_bias", "bool", "whether attention projections have a bias", 2),
        Term("weights.qk_norm", "bool", "whether there are query and key norms", 3),
        Term("weights.kv_scales", "bool", "whether there are scales for the key/value cache", 3),
        Term("weights.scales", "bool", "whether there are scales of quantised weights", 2),
        Term("weights.experts", "int", "experts that have weights", 2),
        Term("weights.kv_rows", "int", "rows of a key projection", 2),
        Term("weights.q_rows", "int", "rows of a query projection", 2),
    ),
    "tokenizer": (
        Term("tokenizer.size", "int", "the highest token id plus one", 3),
        Term("tokenizer.class", "str", "the tokenizer's class", 2),
        Term("tokenizer.files", "list", "the tokenizer's files", 1),
        Term("tokenizer.bos_token", "str", "the token that begins a text", 3),
        Term("tokenizer.eos_token", "str", "the token that ends an answer", 3),
        Term("tokenizer.pad_token", "str", "the token that fills", 1),
        Term("tokenizer.bos_id", "int", "the id of the token that begins a text", 3),
        Term("tokenizer.eos_id", "int", "the id of the token that ends an answer", 3),
        Term("tokenizer.pad_id", "int", "the id of the token that fills", 1),
        Term("tokenizer.adds_bos", "bool", "whether encoding adds the beginning token", 3),
        Term("tokenizer.chat_template", "str", "the chat template", 3),
        Term("tokenizer.template_source", "str", "the file the chat template was read from", 0),
        Term("tokenizer.turn_end", "str", "the token by which the chat template ends a turn", 3),
        Term("tokenizer.turn_end_id", "int", "its id", 3),
        Term(
            "tokenizer.template_unknown_tokens",
            "list",
            "special tokens of the chat template that the tokenizer has not",
            3,
        ),
        Term("tokenizer.model_max_length", "int", "the longest text the tokenizer allows", 1),
    ),
    "generation": (
        Term("generation.eos_ids", "list", "the ids that end an answer", 3),
        Term("generation.bos_id", "int", "the id that begins a text", 3),
        Term("generation.pad_id", "int", "the id that fills", 1),
        Term("generation.config_eos_ids", "list", "the ids that end an answer, by config.json", 3),
        Term("generation.config_bos_id", "int", "the id that begins a text, by config.json", 3),
        Term("generation.temperature", "float", "the temperature", 1),
        Term("generation.top_p", "float", "the nucleus", 1),
        Term("generation.top_k", "int", "the most likely tokens considered", 1),
        Term("generation.repetition_penalty", "float", "the repetition penalty", 1),
        Term("generation.do_sample", "bool", "whether tokens are drawn", 1),
        Term("generation.max_length", "int", "the longest text", 1),
    ),
    "lora": (
        Term("lora.rank", "int", "the adapter's rank", 2),
        Term("lora.alpha", "float", "the adapter's scale", 3),
        Term("lora.modules", "list", "the modules it adapts", 2),
        Term("lora.base_model", "str", "the model it was trained on", 2),
        Term("lora.dtype", "str", "the data type of its weights", 3),
        Term("lora.dora", "bool", "whether it has magnitudes (DoRA)", 2),
        Term("lora.rslora", "bool", "whether it is scaled by the root of the rank", 3),
        Term("lora.bias", "str", "which biases it trained", 3),
        Term("lora.hidden_size", "int", "the hidden size its weights fit", 2),
        Term("lora.vocab_size", "int", "the vocabulary its embedding or output layer fits", 3),
        Term("lora.modules_to_save", "list", "modules it replaces whole", 3),
        Term("lora.max_rank", "int", "the highest rank the engine or server takes", 2),
        Term("lora.target_modules", "list", "the modules the engine or server adapts", 2),
        Term("lora.enabled", "bool", "whether adapters are taken at all", 2),
    ),
    "onnx": (
        Term("onnx.opset", "dict", "the operator sets, by domain", 1),
        Term("onnx.ir_version", "int", "the format's version", 0),
        Term("onnx.producer", "str", "what wrote it", 0),
        Term("onnx.nodes", "int", "nodes", 1),
        Term("onnx.operators", "dict", "nodes by operator", 1),
        Term("onnx.domains", "list", "operator domains other than ONNX's own", 2),
        Term("onnx.weights_bytes", "int", "bytes of weights", 1),
        Term("onnx.external_files", "list", "files that hold weights", 1),
        Term("onnx.external_missing", "list", "files of weights that are not there", 2),
        Term("onnx.external_short", "list", "files of weights that are too short", 2),
        Term("onnx.external_outside", "list", "files of weights outside the model's folder", 2),
        Term("onnx.external_wrong", "list", "entries of external data that cannot be right", 2),
        Term("onnx.truncated", "str", "where the file ends too early", 2),
        Term("onnx.corrupt", "str", "where the file is no longer an ONNX model", 2),
        Term("onnx.bytes", "int", "bytes of the file itself", 1),
        Term("onnx.inputs", "dict", "the shapes of the inputs, with the names of dynamic dimensions", 2),
        Term("onnx.modules", "dict", "the module each node comes from", 0),
        Term("onnx.empty", "bool", "whether there is no graph in it", 2),
        Term("onnx.duplicate_names", "list", "tensors that are made twice", 2),
        Term("onnx.duplicate_nodes", "list", "names that several nodes have", 0),
        Term("onnx.dangling", "list", "inputs of nodes that nothing makes", 2),
        Term("onnx.gather_out_of_range", "list", "constant indices beyond what they index", 3),
    ),
    "profiles": (
        Term("profiles.shapes", "list", "min, opt and max shapes by profile and input", 2),
        Term("profiles.unmet", "list", "nodes whose inputs do not fit together at a profile's shapes", 2),
    ),
    "plan": (
        Term("plan.product", "str", "TensorRT or TensorRT-RTX", 2),
        Term("plan.version", "str", "the TensorRT release that wrote it", 2),
        Term("plan.stated_bytes", "int", "the length its header states", 1),
        Term("plan.bytes", "int", "its length", 1),
        Term("plan.truncated", "list", "plans that are shorter than they state", 2),
        Term("plan.foreign", "list", "files that are not plans", 2),
        Term("plan.versions", "list", "the TensorRT releases that wrote the plans", 2),
        Term("plan.overlong", "list", "plans that are longer than they state", 2),
        Term("plan.sms", "list", "the compute capabilities the plans were built for", 2),
    ),
    "log": (
        Term("log.activation_bytes", "list", "activation memory by profile", 1),
        Term("log.weights_bytes", "int", "memory of the weights", 1),
        Term("log.plan_bytes", "int", "bytes of the plan", 1),
        Term("log.layers", "int", "layers or kernels", 1),
        Term("log.build_seconds", "float", "how long the build took", 0),
        Term("log.peak_bytes", "int", "the builder's peak memory", 1),
        Term("log.peak_gpu_bytes", "int", "the builder's peak memory on the GPU", 1),
        Term("log.scratch_bytes", "list", "scratch memory by profile", 1),
        Term("log.memory_changes", "list", "what the builder allocated, in MiB", 0),
    ),
    "gpu": (
        Term("gpu.name", "str", "the GPU", 2),
        Term("gpu.sm", "int", "the compute capability (89 for 8.9)", 2),
        Term("gpu.count", "int", "GPUs that are visible", 2),
        Term("gpu.runtime", "str", "the TensorRT-LLM release that runs", 2),
        Term("gpu.tensorrt", "str", "the TensorRT release that runs", 2),
    ),
    "request": (
        Term("request.batch", "int", "requests at once", 1),
        Term("request.input_len", "int", "tokens of the prompt", 1),
        Term("request.output_len", "int", "tokens of the answer", 1),
        Term("request.beam", "int", "beams", 1),
        Term("request.draft_len", "int", "draft tokens", 1),
        Term("request.prompt_table", "int", "rows of the prompt embedding table", 1),
        Term("request.lora_rank", "int", "the rank of the adapter it asks for", 1),
        Term("request.encoder_input_len", "int", "tokens or frames of the encoder input", 1),
        Term("request.count", "int", "how often it was seen", 0),
        Term("request.shapes", "list", "the distinct requests of a trace, each with its count and line", 0),
        Term("request.others", "int", "requests of a trace that are counted and not kept apart", 0),
        Term("request.uncounted", "int", "requests of a trace whose prompts are text that was not tokenized", 0),
        Term("request.bad_lines", "list", "lines of a trace that are no request", 1),
    ),
    "runtime": (
        Term("runtime.model", "str", "the model it serves", 2),
        Term("runtime.tokenizer", "str", "the tokenizer it uses", 3),
        Term("runtime.backend", "str", "the backend", 2),
        Term("runtime.dtype", "str", "the data type asked for", 3),
        Term("runtime.kv_cache_dtype", "str", "the data type of the key/value cache", 3),
        Term("runtime.free_gpu_memory_fraction", "float", "the share of free memory for the cache", 1),
        Term("runtime.max_tokens_in_cache", "int", "the most tokens in the cache", 1),
        Term("runtime.attention_window", "list", "the attention windows asked for", 3),
        Term("runtime.block_reuse", "bool", "whether cache blocks are reused", 1),
        Term("runtime.chunked_context", "bool", "whether prompts are cut into chunks", 1),
        Term("runtime.decoding_mode", "str", "the decoding mode", 2),
        Term("runtime.cross_kv_cache_fraction", "float", "the share of the cache for the encoder", 2),
        Term("runtime.trust_remote_code", "bool", "whether the model's own Python is run", 2),
        Term("runtime.version", "str", "the release the options are written for", 1),
        Term("runtime.unknown_keys", "list", "options that no release knows (with the nearest)", 2),
        Term("runtime.renamed_keys", "list", "options that have another name now", 2),
        Term("runtime.removed_keys", "list", "options that releases of today do not have any more", 1),
        Term("runtime.conflicts", "list", "options given twice with different values, and which one wins", 2),
        Term("runtime.world_size", "int", "ranks the launcher starts", 2),
        Term("runtime.guided_decoding", "str", "the guided-decoding backend", 1),
        Term("runtime.speculative", "str", "the speculative decoding asked for", 2),
        Term("runtime.gather_generation_logits", "bool", "whether logits are asked for", 1),
        Term("runtime.command", "str", "the program that is started, with its subcommand", 1),
        Term("runtime.launcher", "str", "what starts it (mpirun, srun, trtllm-llmapi-launch)", 1),
        Term("runtime.invalid_values", "list", "options whose value no release takes", 2),
        Term("runtime.duplicate_keys", "list", "options that one file states twice", 2),
        Term("runtime.paths_missing", "list", "paths that are named and not there", 2),
    ),
    "triton": (
        Term("triton.models", "list", "the models in the repository", 1),
        Term("triton.unfilled", "list", "template variables that were never filled", 2),
        Term("triton.unparsed", "list", "config.pbtxt files that are no text protobuf", 2),
        Term("triton.backend", "str", "the backend of the tensorrt_llm model", 2),
        Term("triton.engine_dir", "str", "the engine it serves", 2),
        Term("triton.tokenizer_dirs", "dict", "the tokenizer by model", 3),
        Term("triton.decoupled", "bool", "whether answers may be streamed", 2),
        Term("triton.decoupled_by_model", "dict", "the same by model", 2),
        Term("triton.max_batch_sizes", "dict", "max_batch_size by model", 2),
        Term("triton.logits_datatype", "str", "the data type of returned logits", 2),
        Term("triton.add_special_tokens", "bool", "whether preprocessing adds special tokens", 3),
        Term("triton.skip_special_tokens", "bool", "whether postprocessing drops special tokens", 3),
        Term("triton.batching", "str", "the batching strategy (gpt_model_type)", 1),
        Term("triton.missing_files", "list", "models without their version directory or model file", 2),
        Term(
            "triton.ensemble_unknown",
            "list",
            "ensemble steps that name a model or tensor that is not there",
            2,
        ),
        Term("triton.gpu_device_ids", "list", "the GPUs by instance", 2),
        Term("triton.instances", "dict", "instances by model", 1),
        Term("triton.paths_missing", "list", "paths in the configuration that do not exist", 2),
        Term("triton.name_mismatch", "list", "models whose name is not their folder's", 2),
        Term("triton.flow", "str", "how the model is served (engine, llmapi)", 2),
        Term("triton.type_mismatches", "list", "tensors that connected models declare with other types", 2),
        Term("triton.invalid_parameters", "list", "parameters whose value the backend cannot read", 2),
        Term("triton.encoder_dir", "str", "the encoder engine it serves", 2),
        Term("triton.ensemble_limits", "dict", "the smallest max_batch_size below each ensemble", 2),
    ),
}
# Settings whose names TensorRT-LLM keeps adding to are kept under its own spelling.
OPEN_FAMILIES: dict[str, Term] = {
    "build": Term("build.*", "any", "a build setting", 1),
    "plugin": Term("plugin.*", "any", "a plugin or fusion setting", 1),
    "option": Term(
        "option.*", "any", "a runtime option as it is spelled in the file or on the command line", 1
    ),
    "parameter": Term("parameter.*", "any", "a Triton model parameter", 1),
}
ALONE = (
    Term("malformed", "list", "values of the wrong type", 2),
    Term("unparsed", "list", "files that cannot be parsed", 2),
    Term("absent", "list", "files that should be there and are not", 2),
)
TERMS: dict[str, Term] = {each.name: each for group in GROUPS.values() for each in group} | {
    each.name: each for each in ALONE
}
GROUP_OF = {each.name: name for name, group in GROUPS.items() for each in group} | {
    each.name: "problems" for each in ALONE
}


def known_term(name: str) -> Term | None:
    """Return the term of a name, or None where no artifact states such a thing."""
    family, dot, _ = name.partition(".")
    if name not in TERMS and dot and family in OPEN_FAMILIES:
        return msgspec.structs.replace(OPEN_FAMILIES[family], name=name)
    return TERMS.get(name)


def term(name: str) -> Term:
    """Return the term of a name, or raise: a misspelt fact would otherwise be silently absent."""
    known = known_term(name)
    if known is None:
        raise UnknownNameError("fact", name, TERMS)
    return known


def fitted(name: str, value: Any) -> Any:
    """Return the value as its term's type; a number that is whole counts as an integer."""
    kind = term(name).type
    if kind == "any":
        return value
    if kind == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if kind == "int" and isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    types = {"int": int, "str": str, "bool": bool, "list": list, "dict": dict, "float": float}
    if isinstance(value, types[kind]) and not (kind == "int" and isinstance(value, bool)):
        return value
    raise MalformedError(f"expected {WORDS[kind]}")


WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "list": "a list",
    "dict": "a table",
}
