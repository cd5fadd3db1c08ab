"""What must agree about quantisation: what is declared, what the weights hold, what was made from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.lineage import (
    differing_facts,
    is_older_release,
    lineage_steps,
    loading_servers,
    quoted_path,
    short_kind,
)
from trtdx.inspect.agreements.model.weights import has_all_tensors
from trtdx.inspect.agreements.serving import served_model, served_models, server_release
from trtdx.inspect.facts.gaps import MODEL_PAIR
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import join_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

# Values of quantization_config.quant_method that the PyTorch backend reads, by the release that learned them
# (`load_hf_quant_config` from 0.19 to 1.3.0rc22); "fp8" counts only with a block size.
METHOD_SINCE = {
    "fp8": "0.19.0rc0", "mxfp4": "1.1.0rc0", "compressed-tensors": "1.3.0rc1", "mxfp8": "1.3.0rc14",
    "nvfp4": "1.3.0rc14",
}  # fmt: skip
INLINE_MODELOPT_SINCE = "1.3.0rc14"  # without hf_quant_config.json
# Weight-only quantisation is made from plain weights when the engine is built (preprocess_weights, 1.2.1).
QUANTISED_AT_BUILD = ("W8A16", "W4A16", "NO_QUANT", "INT8")
EIGHT_BIT_FLOAT = ("FP8", "FP8_BLOCK_SCALES", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8")
# Old exporters wrote the bytes of FP8 as integers, and packed 4-bit weights are bytes or words.
STORAGE_DTYPES = {
    **dict.fromkeys(EIGHT_BIT_FLOAT, ("float8_e4m3fn", "float8_e5m2", "uint8", "int8")),
    **dict.fromkeys(("W4A16_AWQ", "W4A8_AWQ", "W4A16_GPTQ"), ("uint8", "int8", "int32", "int64")),
    **dict.fromkeys(("NVFP4", "W4A8_NVFP4_FP8", "NVFP4_AWQ", "W4A16_MXFP4"), ("uint8", "int8", "float4_e2m1", "int64")),
}
LOW_BIT_DTYPES = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1")
PACKED_WORD_DTYPES = ("int32", "uint8")  # several weights in one: GPTQ and AWQ (qweight), MXFP4 (blocks)
GROUP_SIZES = {
    "W4A16_AWQ": (64, 128),
    "W4A16_GPTQ": (64, 128),
    "W4A8_AWQ": (128,),
}  # the INT4 plugins', 1.2.1
REQUEST_OPTIONS = {
    "quant.algo": "option.quant_config.quant_algo",
    "quant.kv_algo": "option.quant_config.kv_cache_quant_algo",
}
FP8_BLOCK = [128, 128]  # "FP8_BLOCK_SCALES only supports block_size=(128,128)", 1.2.1


@make_agreement("DX109", "hf")
def declarations_agree(deployment: Deployment) -> Iterator[Violation]:
    """The files that declare a model's quantisation say the same."""
    for model in deployment.of_kinds("hf", "checkpoint"):
        for name, inline, words in (
            ("quant.algo", "quant.inline_algo", "the weights"),
            ("quant.kv_algo", "quant.inline_kv_algo", "the key/value cache"),
        ):
            if model.has(name, inline) and model.get(name) != model.get(inline):
                yield Violation(
                    model.evidence(name, inline),
                    {
                        "what": words,
                        "ruling": model.get(name),
                        "other": model.get(inline),
                        "path": quoted_path(model),
                    },
                    Severity.WARNING if model.kind == "hf" and name == "quant.algo" else None,
                )


@make_agreement("DX093", "hf", "llm-args", "command", "machine", needs=("hf", "llm-args|command"))
def method_supported(deployment: Deployment) -> Iterator[Violation]:
    """The PyTorch backend reads the quantisation method of the model it is given."""
    for server in loading_servers(deployment):
        model = served_model(deployment, server) if _is_pytorch_backend(server) else None
        method = model.text("quant.method") if model else ""
        if model is None or not method or model.text("quant.source") == "hf_quant_config.json":
            continue
        if not is_method_supported(model, method, server_release(deployment, server)):
            yield Violation(
                model.evidence("quant.method") + server.evidence("runtime.model"),
                {"method": method, "path": quoted_path(model)},
            )


def _is_pytorch_backend(server: Artifact) -> bool:
    return server.text("runtime.backend") in ("", "pytorch")


def is_method_supported(model: Artifact, method: str, release: str) -> bool:
    """Return whether a release's PyTorch backend reads a method; one that is not known is taken for the newest."""
    if method.startswith("modelopt"):
        return not is_older_release(release, INLINE_MODELOPT_SINCE)
    if method == "fp8" and not model.has("quant.block_size"):
        return False
    return method in METHOD_SINCE and not is_older_release(release, METHOD_SINCE[method])


@make_agreement("DX698", "hf", "llm-args", "command")
def requested_quantization(deployment: Deployment) -> Iterator[Violation]:
    """A quantisation that is asked for is the one the model already has."""
    for server, model in served_models(deployment):
        for name, option in REQUEST_OPTIONS.items():
            here, there = model.get(name), server.get(option)
            if here and isinstance(there, str) and there not in ("null", here):
                yield Violation(
                    server.evidence(option) + model.evidence(name),
                    {"asked": there, "declared": here, "path": quoted_path(server)},
                )


@make_agreement("DX835", "hf")
def cache_scheme_read(deployment: Deployment) -> Iterator[Violation]:
    """The key/value cache scheme a model declares is one that is read."""
    for model in deployment.of_kinds("hf"):
        if model.has("quant.kv_scheme_unrecognised") and not model.has("quant.kv_algo"):
            scheme = model.text("quant.kv_scheme_unrecognised")
            yield Violation(
                model.evidence("quant.kv_scheme_unrecognised"), {"scheme": scheme, "path": quoted_path(model)}
            )


@make_agreement("DX104", "hf", "checkpoint")
def cache_scales_there(deployment: Deployment) -> Iterator[Violation]:
    """A quantised key/value cache has its scales among the weights."""
    for model in deployment.of_kinds("hf", "checkpoint"):
        algo = model.text("quant.kv_algo")
        if model.has("kv_lora_rank"):
            continue  # MLA has one compressed cache and no scales for it (mla.py)
        if algo and model.get("weights.kv_scales") is False and has_all_tensors(model):
            # A checkpoint without them is refused: kv_cache_scaling_factor is a required tensor (quantize.py, 1.2.1).
            # For FP8 the PyTorch backend takes 1.0 whether there are scales or not (attention.py, 1.3.0rc22).
            refused = model.kind == "checkpoint"
            effect = "the build is refused" if refused else "1.0 is taken, which may cost accuracy"
            if unused := not refused and algo == "FP8":
                effect = "the PyTorch backend takes 1.0 in any case, but no engine can be built from it"
            yield Violation(
                model.evidence("quant.kv_algo", "weights.kv_scales"),
                {"algo": algo, "kind": short_kind(model), "path": quoted_path(model), "effect": effect},
                Severity.ERROR if algo == "INT8" or refused else Severity.NOTE if unused else None,
                0.9 if algo == "INT8" or refused else 0.7,
            )


@make_agreement("DX836", "hf")
def cache_scales_used(deployment: Deployment) -> Iterator[Violation]:
    """Scales for the key/value cache are there because a quantised cache is declared.

    Checkpoints are left out: quantize.py writes the scales and takes the algorithm out again (1.2.1).
    """
    for model in deployment.of_kinds("hf"):
        silent = not model.has("quant.kv_algo") and not model.has("quant.kv_scheme_unrecognised")
        if model.get("weights.kv_scales") is True and silent:
            yield Violation(model.evidence("weights.kv_scales", "quant.kv_algo"), {"path": quoted_path(model)})


@make_agreement("DX478", "hf", "llm-args", "command")
def cache_scales_asked_for(deployment: Deployment) -> Iterator[Violation]:
    """A 4-bit key/value cache is asked for where the model was calibrated for one.

    For FP8 the PyTorch backend takes a scale of 1.0 whether there are others or not (attention.py, 1.2.1).
    """
    for server, model in served_models(deployment):
        dtype = server.text("runtime.kv_cache_dtype").lower()
        if dtype != "nvfp4" or model.has("kv_lora_rank"):
            continue
        if model.get("weights.kv_scales") is False and not model.has("quant.kv_algo"):
            yield Violation(
                server.evidence("runtime.kv_cache_dtype") + model.evidence("weights.kv_scales"),
                {"dtype": dtype, "path": quoted_path(server), "model": quoted_path(model)},
                confidence=0.8,
            )


@make_agreement("DX837", "hf", "checkpoint")
def quantised_as_declared(deployment: Deployment) -> Iterator[Violation]:
    """Weights that are declared to be quantised are."""
    for model in deployment.of_kinds("hf", "checkpoint"):
        algo = model.text("quant.algo")
        if not algo or algo in QUANTISED_AT_BUILD or not has_all_tensors(model) or model.has("quant.per_layer"):
            continue
        if _lacks_scales(model, algo) or _has_other_storage(model, algo):
            stored = join_words(sorted(model.table("weights.dtypes"))) or "plain numbers"
            scales = "" if model.get("weights.scales") else ", without scales"
            yield Violation(
                model.evidence("quant.algo", "weights.scales", "weights.dtypes"),
                {
                    "algo": algo,
                    "held": stored + scales,
                    "kind": short_kind(model),
                    "path": quoted_path(model),
                },
            )


def _lacks_scales(model: Artifact, algo: str) -> bool:
    """Return whether no scale is there; those of FP4 in a checkpoint have names of their own."""
    has_named_scales = model.kind == "hf" or algo in EIGHT_BIT_FLOAT or "AWQ" in algo or "GPTQ" in algo
    return has_named_scales and model.get("weights.scales") is False


def _has_other_storage(model: Artifact, algo: str) -> bool:
    """Return whether no tensor has a type the algorithm stores; a checkpoint may view packed words as float16."""
    dtypes = model.table("weights.dtypes")
    storage_dtypes = STORAGE_DTYPES.get(algo, ())
    if not dtypes or not storage_dtypes or (model.kind == "checkpoint" and algo not in EIGHT_BIT_FLOAT):
        return False
    return not any(dtype in storage_dtypes for dtype in dtypes)


@make_agreement("DX838", "hf", "checkpoint")
def declared_as_quantised(deployment: Deployment) -> Iterator[Violation]:
    """Weights that are stored in eight or four bits are declared to be quantised."""
    for model in deployment.of_kinds("hf", "checkpoint"):
        if any(model.has(name) for name in ("quant.algo", "quant.method", "quant.per_layer", "quant.kv_algo")):
            continue
        packed = [dtype for dtype in LOW_BIT_DTYPES if dtype in model.table("weights.dtypes")]
        if model.kind == "hf" and model.get("weights.scales") is True:
            packed = packed or [dtype for dtype in PACKED_WORD_DTYPES if dtype in model.table("weights.dtypes")]
        if packed and not model.has("unparsed"):
            yield Violation(
                model.evidence("weights.dtypes", "quant.algo"),
                {"dtypes": join_words(packed), "kind": short_kind(model), "path": quoted_path(model)},
            )


@make_agreement("DX844", "hf")
def packed_as_declared(deployment: Deployment) -> Iterator[Violation]:
    """Packed weights have the layout, the bits and the group size that the configuration declares."""
    for model in deployment.of_kinds("hf"):
        layout, method = model.text("weights.packing"), model.text("quant.method")
        if not layout or method not in ("awq", "gptq"):
            continue
        differences = [
            f"{words} {here} instead of {there}"
            for words, here, there in (
                ("the layout of", layout.upper(), method.upper()),
                ("bits", model.integer("weights.packed_bits"), model.integer("quant.bits")),
                ("groups of", model.integer("weights.packed_group"), model.integer("quant.group_size")),
            )
            if here and there and here != there
        ]
        if differences:
            yield Violation(
                model.evidence("quant.method", "quant.group_size", "weights.packing", "weights.packed_group"),
                {
                    "differences": join_words(differences),
                    "layout": layout,
                    "bits": model.get("weights.packed_bits"),
                    "group": model.get("weights.packed_group"),
                    "path": quoted_path(model),
                },
            )


@make_agreement("DX098", "checkpoint", "engine", "hf")
def group_size(deployment: Deployment) -> Iterator[Violation]:
    """Weights share a scale in groups of a size the INT4 kernels have."""
    for artifact in deployment.of_kinds("hf", "checkpoint", "engine"):
        algo, size = artifact.text("quant.algo"), artifact.integer("quant.group_size")
        works = GROUP_SIZES.get(algo, ())
        if size is not None and works and size not in works:
            yield Violation(
                artifact.evidence("quant.algo", "quant.group_size"),
                {
                    "algo": algo,
                    "size": size,
                    "works": join_words(works),
                    "kind": short_kind(artifact),
                    "qformat": "w4a8_awq" if algo == "W4A8_AWQ" else "int4_awq",
                },
            )
            return


@make_agreement("DX842", "hf")
def block_size(deployment: Deployment) -> Iterator[Violation]:
    """FP8 weights share a scale in blocks of the one size there are kernels for."""
    for model in deployment.of_kinds("hf"):
        block = model.items("quant.block_size")
        if model.text("quant.method") == "fp8" and block and block != FP8_BLOCK:
            yield Violation(
                model.evidence("quant.block_size"),
                {"block": " x ".join(map(str, block)), "path": quoted_path(model)},
            )


@make_agreement("DX092", "hf")
def activation_order(deployment: Deployment) -> Iterator[Violation]:
    """GPTQ weights are in the order of the model's columns."""
    for model in deployment.of_kinds("hf"):
        if model.get("quant.desc_act") is True and model.text("quant.method") in ("", "gptq"):
            yield Violation(model.evidence("quant.desc_act"), {"path": quoted_path(model)})


@make_agreement("DX480", "hf", "checkpoint", "engine", needs=MODEL_PAIR)
def packed_layout(deployment: Deployment) -> Iterator[Violation]:
    """Weights that came quantised are read with the group size and zero points they were written with."""
    for step in lineage_steps(deployment, "quant.algo"):
        if step.source.text("quant.method") not in ("awq", "gptq"):
            continue
        names = ["quant.group_size"]
        if step.source.text("quant.method") == "awq":  # 1.2.1 writes `sym` of GPTQ into has_zero_point
            names.append("quant.has_zero_point")
        lost = differing_facts(*step, names)
        if lost:
            values = step.words() | {"differences": step.differences(lost).replace("quant.", "")}
            yield Violation(step.evidence(*lost), values, Severity.ERROR)


@make_agreement("DX841", "checkpoint", "engine", needs=MODEL_PAIR)
def same_algorithm(deployment: Deployment) -> Iterator[Violation]:
    """An engine is quantised as the checkpoint it was built from."""
    for source, target in _checkpoints_and_engines(deployment):
        here, there = (_declared_words(artifact) for artifact in (source, target))
        if here != there:
            yield Violation(
                source.evidence("quant.algo", "quant.kv_algo") + target.evidence("quant.algo", "quant.kv_algo"),
                {"checkpoint": here, "engine": there, "path": quoted_path(source)},
                confidence=0.9,
            )


def _checkpoints_and_engines(deployment: Deployment) -> Iterator[tuple[Artifact, Artifact]]:
    return (step for step in lineage_steps(deployment, "dtype") if step.source.kind == "checkpoint")


def _declared_words(artifact: Artifact) -> str:
    algo, kv_algo = artifact.text("quant.algo") or "no quantisation", artifact.text("quant.kv_algo")
    return f"{algo} with a key/value cache in {kv_algo}" if kv_algo else algo


@make_agreement("DX840", "hf", "checkpoint", "engine", needs=MODEL_PAIR)
def head_not_quantised(deployment: Deployment) -> Iterator[Violation]:
    """An output layer that the model leaves unquantised stays so."""
    for step in lineage_steps(deployment, "quant.excluded"):
        if _names_head(step.source) and not _names_head(step.target) and step.target.has("quant.algo"):
            yield Violation(step.evidence("quant.excluded"), step.words() | {"path": quoted_path(step.target)})


def _names_head(artifact: Artifact) -> bool:
    patterns = [str(pattern) for pattern in artifact.items("quant.excluded")]
    return any("lm_head" in pattern or pattern in ("*", "*head*") for pattern in patterns)


@make_agreement("DX843", "hf", "checkpoint", "engine")
def mixed_precision(deployment: Deployment) -> Iterator[Violation]:
    """A mixed precision says which layer has which."""
    for artifact in deployment.of_kinds("hf", "checkpoint"):
        mixed = artifact.text("quant.algo") == "MIXED_PRECISION"
        if mixed and not artifact.table("quant.per_layer") and artifact.text("quant.method") != "compressed-tensors":
            yield Violation(artifact.evidence("quant.algo", "quant.per_layer"), {"path": quoted_path(artifact)})
