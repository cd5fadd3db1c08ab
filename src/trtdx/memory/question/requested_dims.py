"""A model's sizes, overridden by `--dims`, completed and checked."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import InputError
from trtdx.memory.nouns import Dims

if TYPE_CHECKING:
    from trtdx.memory.model.dims import Sizes
    from trtdx.memory.model.source import ModelSource
    from trtdx.memory.question.settings import LayeredSettings

REQUIRED_SIZES = {
    "num_layers": ("layers", "num_hidden_layers", 32),
    "hidden_size": ("the hidden size", "hidden_size", 4096),
    "num_heads": ("attention heads", "num_attention_heads", 32),
    "intermediate_size": ("the MLP's inner size", "intermediate_size", 14336),
    "vocab_size": ("the vocabulary", "vocab_size", 128256),
}
LARGEST_SIZES = {
    "num_layers": 10_000, "attention_layers": 10_000, "state_layers": 10_000, "encoder_layers": 10_000,
    "nextn_layers": 100, "vocab_size": 100_000_000, "num_experts": 100_000, "max_positions": 10**9,
    "encoder_params": 10**13, "extra_params": 10**12, "state_bytes_per_sequence": 10**12, "state_params_per_layer": 10**12,
    "state_numbers": 10**12,
}  # fmt: skip
LARGEST_SIZE = 10_000_000
FIELD_TYPES = {str: str, bool: bool}  # the rest are whole numbers
POSITIVE_SIZES = ("num_layers", "hidden_size", "vocab_size", "moe_every")
# What the same thing is called in a config.json.
SIZE_ALIASES = {
    "num_hidden_layers": "num_layers", "n_layer": "num_layers", "layers": "num_layers", "hidden": "hidden_size",
    "num_attention_heads": "num_heads", "n_head": "num_heads", "heads": "num_heads", "n_embd": "hidden_size",
    "num_key_value_heads": "num_kv_heads", "kv_heads": "num_kv_heads", "head_size": "head_dim",
    "ffn_hidden_size": "intermediate_size", "n_inner": "intermediate_size", "ffn": "intermediate_size",
    "vocab": "vocab_size", "num_local_experts": "num_experts", "n_routed_experts": "num_experts",
    "experts": "num_experts", "num_experts_per_tok": "experts_per_token", "top_k": "experts_per_token",
    "max_position_embeddings": "max_positions", "n_positions": "max_positions", "n_shared_experts": "shared_experts",
    "tie_word_embeddings": "tied", "first_k_dense_replace": "dense_layers",
    "num_nextn_predict_layers": "nextn_layers", "decoder_layers": "num_layers", "attention_bias_qkv": "attention_bias",
    "qkv_bias": "attention_bias", "sliding_window": "windows",
}  # fmt: skip
PER_LAYER_SIZES = ("windows", "kv_heads_per_layer", "head_dim_per_layer", "inner_per_layer")
TRUE_WORDS, FALSE_WORDS = ("true", "yes", "1", "on"), ("false", "no", "0", "off")


def dims_from_source(model: ModelSource, stated_dims: str, settings: LayeredSettings) -> Dims:
    """Return the sizes of a model; one error names all that are missing and how each is given."""
    sizes: Sizes = dict(model.sizes)
    for name, value in parse_dims(stated_dims).items():
        sizes[name] = (value, "--dims")
    _fill_derived_sizes(sizes)
    _require_sizes(model, sizes)
    for name, (value, where) in sizes.items():
        _check_size(name, value, where)
        settings.sources[name] = where
    dims = Dims(**{name: value for name, (value, _) in sizes.items()})
    _check_sizes_agree(dims)
    return dims


def parse_dims(text: str) -> dict[str, Any]:
    """Return the sizes in "num_layers=32,hidden_size=4096"; config.json's names are taken too."""
    sizes: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.replace("\n", ",").split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        name = SIZE_ALIASES.get(name.replace("-", "_"), name.replace("-", "_"))
        if not equals or name not in DIMS_FIELDS:
            near = difflib.get_close_matches(name, [*DIMS_FIELDS, *SIZE_ALIASES], n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}=N?" if near else f"sizes are {', '.join(REQUIRED_SIZES)}, num_kv_heads ..."
            raise InputError(f"--dims {part!r} is not a size of a model", fix=hint)
        sizes[name] = _parse_size_value(name, value)
    return sizes


DIMS_FIELDS = {field.name: field for field in msgspec.structs.fields(Dims)}


def _parse_size_value(name: str, value: str) -> Any:
    kind = DIMS_FIELDS[name].type
    if kind is str:
        return value
    if kind is bool:
        if value.lower() not in (*TRUE_WORDS, *FALSE_WORDS):
            raise InputError(f"--dims {name}={value} is neither true nor false")
        return value.lower() in TRUE_WORDS
    try:
        numbers = tuple(int(number.replace("_", "")) for number in value.split("/"))
    except ValueError:
        raise InputError(f"--dims {name}={value} is not a whole number", fix=f"write {name}=32") from None
    return numbers if name in PER_LAYER_SIZES else numbers[0]


def _fill_derived_sizes(sizes: Sizes) -> None:
    """Fill in the sizes that follow from others, as transformers does."""
    if "num_heads" in sizes and "num_kv_heads" not in sizes:
        sizes["num_kv_heads"] = (sizes["num_heads"][0], "default: as many as num_heads")
    latent = sizes.get("qk_nope_head_dim", (0, ""))[0] + sizes.get("qk_rope_head_dim", (0, ""))[0]
    if "head_dim" not in sizes and latent:
        sizes["head_dim"] = (latent, "qk_nope_head_dim + qk_rope_head_dim")
    elif "head_dim" not in sizes and {"num_heads", "hidden_size"} <= sizes.keys():
        heads = sizes["num_heads"][0]
        sizes["head_dim"] = (sizes["hidden_size"][0] // heads if heads > 0 else 0, "hidden_size / num_heads")
    if latent and "v_head_dim" not in sizes and {"num_heads", "hidden_size"} <= sizes.keys():  # MiniCPM 3
        sizes["v_head_dim"] = (
            sizes["hidden_size"][0] // max(sizes["num_heads"][0], 1),
            "hidden_size / num_heads",
        )
    experts = sizes.get("num_experts", (0, ""))[0]
    if experts and "moe_intermediate_size" not in sizes and "intermediate_size" in sizes:
        sizes["moe_intermediate_size"] = sizes["intermediate_size"]
    if "intermediate_size" not in sizes and ("moe_intermediate_size" in sizes or _has_no_mlp(sizes)):
        sizes["intermediate_size"] = sizes.get("moe_intermediate_size", (0, "no MLP of its own"))


def _has_no_mlp(sizes: Sizes) -> bool:
    return bool(sizes.get("state_layers", (0, ""))[0])


def _require_sizes(model: ModelSource, sizes: Sizes) -> None:
    attention = sizes.get("attention_layers", (None, ""))[0] != 0
    needed = {name: description for name, description in REQUIRED_SIZES.items() if attention or name != "num_heads"}
    missing = {name: description for name, description in needed.items() if name not in sizes}
    if not missing:
        if not attention:  # a model of recurrent layers alone
            for name in ("num_heads", "num_kv_heads", "head_dim"):
                sizes.setdefault(name, (0, "no attention"))
        return
    wrong = model.artifact.items("malformed")
    names = ", ".join(f"{words} ({name})" for name, (words, _, _) in missing.items())
    example = ",".join(f"{name}={value}" for name, (_, _, value) in missing.items())
    keys = ", ".join(key for _, key, _ in missing.values())
    raise InputError(
        f"{model.name} does not say {names}" + (f"; it says {wrong[0]}" if wrong else ""),
        fix=f"add --dims {example} with your numbers, or {keys} to its config.json",
    )


def _check_size(name: str, value: Any, where: str) -> None:
    numbers = value if isinstance(value, tuple) else (value,)
    if not (
        value is None or all(isinstance(number, FIELD_TYPES.get(DIMS_FIELDS[name].type, int)) for number in numbers)
    ):
        raise InputError(
            f"{name} = {str(value)[:60]!r} ({where}) is not a size of a model",
            fix=f"give the right one: --dims {name}=N",
        )
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            continue
        least, most = (1 if name in POSITIVE_SIZES else 0), LARGEST_SIZES.get(name, LARGEST_SIZE)
        if not least <= number <= most:
            raise InputError(
                f"{name} = {number} ({where}) is not a size of a model",
                fix=f"it is between {least} and {most:,}; give the right one: --dims {name}=N",
            )


def _check_sizes_agree(dims: Dims) -> None:
    """Raise where sizes contradict each other."""
    attention = dims.attention_layers != 0
    if attention and not (dims.num_heads and dims.num_kv_heads and dims.head_dim):
        raise InputError(
            f"{dims.num_heads} attention heads, {dims.num_kv_heads} for keys and values, of {dims.head_dim} numbers each: "
            "none of these can be 0",
            fix="give the right ones: --dims num_heads=32,num_kv_heads=8,head_dim=128",
        )
    if dims.num_experts and not 0 < dims.experts_per_token <= dims.num_experts:
        raise InputError(
            f"a token uses {dims.experts_per_token} of {dims.num_experts} experts",
            fix="give the right numbers: --dims num_experts=8,experts_per_token=2",
        )
    if max(dims.attention_layers or 0, dims.state_layers, dims.dense_layers) > dims.num_layers:
        raise InputError(
            f"there are {dims.num_layers} layers, and more of one kind",
            fix="give the right numbers: --dims num_layers=N",
        )
