"""Hugging Face directories as real ones are, without torch: configuration, tokenizer and sparse weights.

`make_hf_model` imitates Llama-3.1-8B-Instruct as transformers 4.43 to 4.57 save it (`torch_dtype`,
`rope_theta`, `rope_scaling`), with a small vocabulary; everything in it agrees. `make_lora` imitates PEFT 0.12.
"""

from __future__ import annotations

import itertools
import json
import math
import string
import struct
from functools import cache
from pathlib import Path
from typing import Any

RESERVED = 256  # Llama 3 keeps that many special tokens after its ordinary ones
BITS = {"F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "I8": 8, "U8": 8, "I32": 32, "I64": 64, "F8_E8M0": 8}
DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0",
    "use_cache": True,
    "vocab_size": 2048,
}
CHAT_TEMPLATE = (
    "{{- bos_token }}\n"
    "{%- for message in messages %}\n"
    "    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n"
    "{%- endif %}\n"
)
SPECIAL = {
    0: "<|begin_of_text|>",
    1: "<|end_of_text|>",
    4: "<|finetune_right_pad_id|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    8: "<|eom_id|>",
    9: "<|eot_id|>",
    10: "<|python_tag|>",
}


def make_hf_model(
    path: Path | str,
    *,
    shards: int = 4,
    generation: dict[str, Any] | None = None,
    tokenizer: dict[str, Any] | None = None,
    tensors: dict[str, tuple[str, tuple[int, ...]]] | None = None,
    **overrides: Any,
) -> Path:
    """Write a whole model directory and return its path.

    Args:
        path: The directory, made where it is not there.
        shards: How many safetensors files; 1 writes `model.safetensors` without an index.
        generation: Keys of generation_config.json to change; None takes a key away.
        tokenizer: Keys of tokenizer_config.json to change; None takes a key away.
        tensors: Tensors to add or replace, as name -> (safetensors dtype, shape); None takes one away.
        overrides: Keys of config.json to change; None takes a key away. Weights and vocabulary follow.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    config = model_config(**overrides)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", changed(generation_config(config), generation))
    make_tokenizer(folder, config["vocab_size"], tokenizer)
    write_weights(folder, changed(llama_tensors(config), tensors), shards)
    return folder


def make_tokenizer(
    path: Path | str, vocab_size: int = CONFIG["vocab_size"], changes: dict[str, Any] | None = None
) -> Path:
    """Write the tokenizer files of a vocabulary; its last 256 ids are Llama 3's special tokens."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(tokenizer_json(vocab_size))
    special = special_tokens(vocab_size)
    config = {
        "added_tokens_decoder": {str(each["id"]): {k: v for k, v in each.items() if k != "id"} for each in special},
        "bos_token": "<|begin_of_text|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": True,
        "eos_token": "<|eot_id|>",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 131072,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    write_json(folder / "tokenizer_config.json", changed(config, changes))
    write_json(folder / "special_tokens_map.json", {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"})
    return folder


def make_lora(
    path: Path | str,
    *,
    model: dict[str, Any] | None = None,
    dtype: str = "BF16",
    tensors: dict[str, tuple[str, tuple[int, ...]]] | None = None,
    **overrides: Any,
) -> Path:
    """Write a PEFT adapter for the model of `make_hf_model` with the config keys in `model` changed."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    base = model_config(**(model or {}))
    adapter = changed(
        {
            "alpha_pattern": {},
            "base_model_name_or_path": "meta-llama/Llama-3.1-8B-Instruct",
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "lora_alpha": 32,
            "lora_dropout": 0.05,
            "modules_to_save": None,
            "peft_type": "LORA",
            "r": 16,
            "rank_pattern": {},
            "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
            "task_type": "CAUSAL_LM",
            "use_dora": False,
            "use_rslora": False,
        },
        overrides,
    )
    write_json(folder / "adapter_config.json", adapter)
    write_safetensors(folder / "adapter_model.safetensors", changed(lora_tensors(base, adapter, dtype), tensors))
    return folder


def model_config(**overrides: Any) -> dict[str, Any]:
    """Return config.json; its special ids follow the size of the vocabulary."""
    ids = generation_config(CONFIG | overrides)
    return changed(CONFIG | {key: ids[key] for key in ("bos_token_id", "eos_token_id")}, overrides)


def changed(known: dict[str, Any], changes: dict[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (known | (changes or {})).items() if value is not None}


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False), encoding="utf-8")


def generation_config(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "bos_token_id": special_id(config["vocab_size"], "<|begin_of_text|>"),
        "do_sample": True,
        "eos_token_id": [
            special_id(config["vocab_size"], name) for name in ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")
        ],
        "temperature": 0.6,
        "top_p": 0.9,
        "transformers_version": "4.43.0",
    }


def special_id(vocab_size: int, name: str) -> int:
    return vocab_size - RESERVED + next(at for at, each in SPECIAL.items() if each == name)


def special_tokens(vocab_size: int) -> list[dict[str, Any]]:
    return [
        {
            "id": vocab_size - RESERVED + at,
            "content": SPECIAL.get(at, f"<|reserved_special_token_{at}|>"),
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for at in range(RESERVED)
    ]


@cache
def tokenizer_json(vocab_size: int) -> bytes:
    """Return a byte-level BPE tokenizer that adds the beginning token, as Llama 3's does."""
    letters = string.ascii_letters + string.digits
    alphabet = [chr(code) for code in byte_level_alphabet()]
    pairs = [(a, b) for a, b in itertools.product(letters, repeat=2)]
    triples = ((a + b, c) for (a, b), c in itertools.product(pairs, letters))
    wanted = vocab_size - RESERVED - len(alphabet)
    merges = list(itertools.islice(itertools.chain(pairs, triples), max(wanted, 0)))
    vocab = {token: at for at, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    bos = {"id": "<|begin_of_text|>", "ids": [special_id(vocab_size, "<|begin_of_text|>")]}
    template = [{"SpecialToken": {"id": bos["id"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special_tokens(vocab_size),
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": template,
            "pair": [*template, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos["id"]: bos | {"tokens": [bos["id"]]}},
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": vocab,
            "merges": [list(pair) for pair in merges],
        },
    }  # fmt: skip
    return json.dumps(document, ensure_ascii=False).encode()


def byte_level_alphabet() -> list[int]:
    """Return the 256 characters that stand for bytes in a byte-level vocabulary."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return plain + list(range(256, 256 + 256 - len(plain)))


def llama_tensors(config: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the tensors a Llama, Qwen or Mixtral of this configuration has."""
    dtype = DTYPES[config.get("torch_dtype") or config.get("dtype") or "bfloat16"]
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in layer_shapes(config).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocab, hidden)
    return {name: (dtype, shape) for name, shape in shapes.items()}


def layer_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    queries, keys = heads * size, config.get("num_key_value_heads", heads) * size
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.get("attention_bias") or config["model_type"] == "qwen2":
        rows = {"q": queries, "k": keys, "v": keys}
        shapes |= {f"self_attn.{which}_proj.bias": (size,) for which, size in rows.items()}
    if config["model_type"] in ("qwen3", "qwen3_moe"):
        shapes |= {f"self_attn.{which}_norm.weight": (size,) for which in "qk"}
    return shapes | mlp_shapes(config)


def mlp_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    experts = config.get("num_local_experts")
    if not experts:
        return {
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
    shapes: dict[str, tuple[int, ...]] = {"block_sparse_moe.gate.weight": (experts, hidden)}
    for expert in range(experts):
        at = f"block_sparse_moe.experts.{expert}"
        shapes |= {f"{at}.w1.weight": (inner, hidden), f"{at}.w2.weight": (hidden, inner)}
        shapes |= {f"{at}.w3.weight": (inner, hidden)}
    return shapes


def lora_tensors(config: dict[str, Any], adapter: dict[str, Any], dtype: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    rank, targets = adapter["r"], adapter["target_modules"]
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in layer_shapes(config).items():
            module = name.removesuffix(".weight")
            if len(shape) != 2 or module.rpartition(".")[2] not in targets:
                continue
            at = f"base_model.model.model.layers.{layer}.{module}"
            found[f"{at}.lora_A.weight"] = (dtype, (rank, shape[1]))
            found[f"{at}.lora_B.weight"] = (dtype, (shape[0], rank))
            if adapter.get("use_dora"):
                found[f"{at}.lora_magnitude_vector"] = (dtype, (shape[0],))
    return found


def write_weights(folder: Path, tensors: dict[str, tuple[str, tuple[int, ...]]], shards: int) -> None:
    """Write tensors to one file, or to several with an index, as `save_pretrained` does."""
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    each = math.ceil(len(tensors) / shards)
    names, weight_map = iter(tensors), {}
    for number in range(1, shards + 1):
        file = f"model-{number:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in itertools.islice(names, each)}
        write_safetensors(folder / file, part)
        weight_map |= dict.fromkeys(part, file)
    total = sum(math.prod(shape) * BITS[dtype] // 8 for dtype, shape in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_json(folder / "model.safetensors.index.json", index)


def write_safetensors(
    path: Path | str,
    tensors: dict[str, tuple[str, tuple[int, ...]]],
    metadata: dict[str, str] | None = None,
) -> None:
    """Write a header and so many bytes of zeros; the file is sparse, so that gigabytes cost nothing."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"} if metadata is None else metadata}
    at = 0
    for name, (dtype, shape) in tensors.items():
        length = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + length]}
        at += length
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with Path(path).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


# Real directories, written by the installed transformers and tokenizers: tiny, with random weights.
TINY = {"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = TINY | {"num_key_value_heads": 2, "intermediate_size": 64}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ENCODER_DECODER = {"d_model": 32, "vocab_size": 320}
REAL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("Llama", "CausalLM", GROUPED | {"rope_scaling": LLAMA3_ROPE}),
    "qwen2": ("Qwen2", "CausalLM", GROUPED | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", "CausalLM", GROUPED | {"head_dim": 16}),
    "qwen3_moe": ("Qwen3Moe", "CausalLM", GROUPED | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    "mistral": ("Mistral", "CausalLM", GROUPED | {"sliding_window": 16}),
    "mixtral": ("Mixtral", "CausalLM", GROUPED | {"num_local_experts": 4}),
    "gemma": ("Gemma", "CausalLM", GROUPED | {"head_dim": 16}),
    "gemma2": ("Gemma2", "CausalLM", GROUPED | {"head_dim": 16}),
    "gemma3_text": ("Gemma3Text", "CausalLM", GROUPED | {"head_dim": 16}),
    "gpt2": ("GPT2", "CausalLM", {"vocab_size": 320, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}),
    "gpt_neox": ("GPTNeoX", "CausalLM", TINY | {"intermediate_size": 64, "rotary_pct": 0.25}),
    "falcon": ("Falcon", "CausalLM", TINY),
    "phi3": ("Phi3", "CausalLM", GROUPED | {"original_max_position_embeddings": 32, "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 2, "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}}),
    "deepseek_v3": ("DeepseekV3", "CausalLM", GROUPED | {"num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "q_lora_rank": 16, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 12, "first_k_dense_replace": 1}),
    "gpt_oss": ("GptOss", "CausalLM", GROUPED | {"num_local_experts": 4, "head_dim": 8}),
    "nemotron": ("Nemotron", "CausalLM", GROUPED),
    "t5": ("T5", "Seq2SeqLM", ENCODER_DECODER | {"d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}),
    "whisper": ("Whisper", "SpeechSeq2Seq", ENCODER_DECODER | {"encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}),
}  # fmt: skip


def make_real_models(root: Path) -> dict[str, Path]:
    """Write one tiny model of each family with the installed transformers, in bfloat16 and several shards."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folders = {}
    for family, (prefix, head, settings) in REAL.items():
        config = getattr(transformers, f"{prefix}Config")(**settings)
        folders[family] = _save_real(root / family, config, head, torch.bfloat16)
    vision = transformers.SiglipVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )  # fmt: skip
    text = transformers.Gemma3TextConfig(**GROUPED, head_dim=16)
    gemma3 = transformers.Gemma3Config(text_config=text, vision_config=vision)
    folders["gemma3"] = _save_real(root / "gemma3", gemma3, "ImageTextToText", torch.bfloat16)
    return folders


def _save_real(folder: Path, config: Any, head: str, dtype: Any) -> Path:
    import transformers

    model = getattr(transformers, f"AutoModelFor{head}").from_config(config, dtype=dtype)
    model.save_pretrained(folder, max_shard_size="50KB")
    return folder


CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXTS = ["the quick brown fox jumps over the lazy dog", "hello world, this trains a tokenizer"] * 20


def make_real_tokenizers(root: Path) -> dict[str, tuple[Path, int]]:
    """Write a tokenizer of each kind with the installed libraries; return each with its length."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    byte_level.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    )
    unigram = Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    control = ["<unk>", "<s>", "</s>"]
    unigram.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=60, special_tokens=control, unk_token="<unk>")
    )
    unigram.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    pieces.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=90, special_tokens=["[UNK]", "[PAD]"]))
    fast = {
        "bpe": PreTrainedTokenizerFast(tokenizer_object=byte_level, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=4096),
        "unigram": PreTrainedTokenizerFast(tokenizer_object=unigram, bos_token="<s>", eos_token="</s>", unk_token="<unk>"),
        "wordpiece": PreTrainedTokenizerFast(tokenizer_object=pieces, pad_token="[PAD]", unk_token="[UNK]"),
    }  # fmt: skip
    fast["bpe"].chat_template = CHATML
    fast["bpe"].add_tokens(["<tool>"])
    for name, tokenizer in fast.items():
        tokenizer.save_pretrained(root / name)
    return {name: (root / name, len(tokenizer)) for name, tokenizer in fast.items()}
