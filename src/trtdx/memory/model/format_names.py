"""Formats of weights and caches: the words people use, and TensorRT-LLM's own."""

from __future__ import annotations

from typing import NamedTuple

from trtdx.errors import InputError

DTYPE_WORDS = {
    "fp32": "float32", "float32": "float32", "float": "float32", "fp16": "float16", "float16": "float16",
    "half": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16",
}  # fmt: skip


class WeightFormat(NamedTuple):
    """How weights may be kept."""

    algo: str  # TensorRT-LLM's quant_algo
    bits: float  # of one weight, scales included
    least_sm: int  # the first compute capability with kernels
    backends: tuple[str, ...]
    qformat: str = ""  # what quantize.py calls it
    words: tuple[str, ...] = ()


_BOTH, _ENGINE, _TORCH = ("pytorch", "tensorrt"), ("tensorrt",), ("pytorch",)
WEIGHT_FORMATS: dict[str, WeightFormat] = {
    form.algo: form
    for form in (
        WeightFormat("FP8", 8, 89, _BOTH, "fp8"),
        WeightFormat("FP8_PER_CHANNEL_PER_TOKEN", 8, 90, _BOTH, "fp8_pc_pt", ("fp8_rowwise",)),
        WeightFormat("FP8_BLOCK_SCALES", 8, 90, _TORCH, "", ("fp8_block", "fp8_pb_wo", "fp8_blockwise")),
        WeightFormat("MXFP8", 8.25, 100, _TORCH),
        WeightFormat("NVFP4", 4.5, 100, _BOTH, "nvfp4", ("fp4",)),
        WeightFormat("NVFP4_AWQ", 4.5, 100, _BOTH, "nvfp4_awq"),
        WeightFormat("W4A8_NVFP4_FP8", 4.25, 100, _TORCH),
        WeightFormat("W4A16_MXFP4", 4.25, 80, _TORCH, "", ("mxfp4",)),
        WeightFormat("W4A8_MXFP4_FP8", 4.25, 90, _TORCH),
        WeightFormat("W4A8_MXFP4_MXFP8", 4.25, 100, _TORCH),
        WeightFormat("W8A16", 8, 70, _ENGINE, "int8_wo", ("int8", "int8_weight_only")),
        WeightFormat("W4A16", 4, 70, _ENGINE, "int4_wo", ("int4", "int4_weight_only")),
        WeightFormat("W4A16_AWQ", 4.125, 80, _BOTH, "int4_awq", ("awq",)),
        WeightFormat("W4A8_AWQ", 4.125, 89, _BOTH, "w4a8_awq"),
        WeightFormat("W4A16_GPTQ", 4.125, 80, _ENGINE, "", ("gptq", "gptq-int4")),
        WeightFormat("W8A16_GPTQ", 8.125, 80, _ENGINE),
        WeightFormat("W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", 8, 80, _ENGINE, "int8_sq", ("smoothquant", "sq")),
        WeightFormat("W8A8_SQ_PER_CHANNEL", 8, 80, _ENGINE),
        WeightFormat("W8A8_SQ_PER_TENSOR_PLUGIN", 8, 80, _ENGINE),
        WeightFormat("W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN", 8, 80, _ENGINE),
        WeightFormat("W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN", 8, 80, _ENGINE),
        WeightFormat("W4A8_QSERVE_PER_GROUP", 4.5, 80, _ENGINE, "", ("qserve",)),
        WeightFormat("W4A8_QSERVE_PER_CHANNEL", 4, 80, _ENGINE),
        WeightFormat("MIXED_PRECISION", 8, 89, _BOTH),
    )
}
NO_FORMAT_WORDS = ("", "none", "no", "full_prec", "no_quant", *DTYPE_WORDS)
_BY_WORD = {
    word: form.algo
    for form in WEIGHT_FORMATS.values()
    for word in (form.algo.lower(), form.qformat, *form.words)
    if word
}

# The types a key/value cache may have: bytes of an element, the first compute capability, the backends.
KV_BITS = {"float32": 32.0, "float16": 16.0, "bfloat16": 16.0, "fp8": 8.0, "int8": 8.0, "nvfp4": 4.5}
KV_LEAST_SM = {"fp8": 89, "int8": 70, "nvfp4": 100}
KV_WORDS = {"fp4": "nvfp4", "auto": "", "none": ""} | DTYPE_WORDS | {kind: kind for kind in KV_LEAST_SM}


def weight_format_from_word(text: str) -> str:
    """Return TensorRT-LLM's name of a format: "awq" is W4A16_AWQ; "" is none."""
    word = text.strip().lower()
    if word in NO_FORMAT_WORDS:
        return ""
    if word not in _BY_WORD:
        raise InputError(
            f"no format of weights is called {text!r}",
            fix="use one of fp8, fp8_block, nvfp4, mxfp4, awq, gptq, int8, int4, w4a8_awq, smoothquant, or none",
        )
    return _BY_WORD[word]


def kv_dtype_from_word(text: str) -> str:
    """Return the type of a cache; "" is that of the model."""
    word = text.strip().lower()
    if word not in KV_WORDS:
        raise InputError(
            f"no key/value cache has the type {text!r}", fix="use auto, fp8, nvfp4, int8, float16 or bfloat16"
        )
    return KV_WORDS[word]


def dtype_from_word(text: str) -> str:
    """Return the type of what is not quantised, or raise."""
    word = text.strip().lower().removeprefix("torch.")
    if word not in DTYPE_WORDS:
        raise InputError(f"no model has the type {text!r}", fix="use float16, bfloat16 or float32")
    return DTYPE_WORDS[word]
