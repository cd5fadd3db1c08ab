"""How a Hugging Face checkpoint says it is quantised: four files and many shapes become quant.* facts.

Which file rules is TensorRT-LLM's own order (1.2.1 and 1.3.0rc, ModelConfig.from_pretrained):
hf_quant_config.json, else config.json's quantization_config, else dtypes.json; quant_cfg.json adds layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.inspect.facts.artifact import Facts
    from trtdx.inspect.readers.folder import Folder

CONFIG_SECTIONS = ("quantization_config", "text_config.quantization_config", "compression_config")
ALIASES = {"FP8_PB_WO": "FP8_BLOCK_SCALES"}  # ModelOpt's name for it
KV_NAMES = {"FP8", "INT8", "NVFP4"}
EXCLUDING = ("exclude_modules", "ignore", "modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules")
MOST_LAYERS = 100_000


class Opinion(msgspec.Struct):
    """What one file says, under the facts' names; None is not said."""

    where: str  # the place the values stand at, to which a key is appended
    method: str | None = None
    algo: str | None = None
    kv_algo: str | None = None
    group_size: Any = None
    block_size: Any = None
    bits: Any = None
    desc_act: Any = None
    has_zero_point: Any = None
    pre_quant_scale: Any = None
    excluded: list[Any] | None = None
    per_layer: dict[str, str] | None = None
    kv_scheme_unrecognised: str | None = None
    keys: dict[str, str] = {}  # the key a value was read from, where it has another name


def put_quantization(folder: Folder, config: Document | None) -> None:
    """Put what rules, and beside it what another file says of the same thing."""
    document = folder.document("hf_quant_config.json")
    ruling = None if document is None else _modelopt_opinion(document, "")
    inline = _inline_opinion(config)
    beside = None
    if ruling is None:
        ruling = inline or _dtypes_opinion(folder) or _older_opinion(folder)
    elif ruling.algo is None and ruling.per_layer is None and inline is not None:
        ruling, beside = inline, ruling  # a file without a global algorithm leaves it to config.json
    else:
        beside = inline
    if ruling is None:
        return
    _put_layers_file(folder, ruling)
    _put_opinion(folder.facts, ruling)
    if beside is not None and beside is not ruling:
        _put_beside(folder.facts, ruling, beside)


def _put_opinion(facts: Facts, said: Opinion) -> None:
    facts.put("quant.source", said.where.partition(": ")[0].rpartition("/")[2], said.where)
    for name in (
        "method", "algo", "kv_algo", "group_size", "block_size", "bits", "desc_act", "has_zero_point",
        "pre_quant_scale", "excluded", "per_layer", "kv_scheme_unrecognised",
    ):  # fmt: skip
        facts.put(f"quant.{name}", getattr(said, name), _place(said, name))


def _place(said: Opinion, name: str) -> str:
    key = said.keys.get(name, name)
    return f"{said.where}.{key}" if ": " in said.where else f"{said.where}: {key}"


def _put_beside(facts: Facts, ruling: Opinion, beside: Opinion) -> None:
    facts.put("quant.inline_algo", beside.algo, _place(beside, "algo"))
    facts.put("quant.inline_kv_algo", beside.kv_algo, _place(beside, "kv_algo"))
    if ruling.method is None:
        facts.put("quant.method", beside.method, _place(beside, "method"))


def _inline_opinion(config: Document | None) -> Opinion | None:
    for section in CONFIG_SECTIONS if config else ():
        table = config.at(section) if config else None
        if isinstance(table, dict) and config:
            return _hf_opinion(config, section, table)
    return None


def _modelopt_opinion(document: Document, section: str) -> Opinion:
    """Return what ModelOpt wrote: nested under "quantization" (before 1.0) or flat."""
    at = f"{section}." if section else ""
    nested = isinstance(document.at(f"{at}quantization"), dict)
    prefix = f"{at}quantization" if nested else section
    table: dict[str, Any] = (document.at(prefix) if prefix else document.data) or {}
    statement = Opinion(document.where(prefix) if prefix else document.path)
    method = document.at(f"{at}quant_method")
    statement.method = method.lower() if isinstance(method, str) else "modelopt"
    statement.algo = _algo(table.get("quant_algo"))
    statement.kv_algo = _algo(table.get("kv_cache_quant_algo"))
    statement.group_size = table.get("group_size")
    statement.has_zero_point = table.get("has_zero_point")
    statement.pre_quant_scale = table.get("pre_quant_scale")
    statement.per_layer = layer_algos(table.get("quantized_layers"))
    statement.keys = {"algo": "quant_algo", "kv_algo": "kv_cache_quant_algo", "per_layer": "quantized_layers"}
    _take_excluded(statement, table)
    _take_kv_scheme(statement, table)
    return statement


def _algo(value: Any) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    return ALIASES.get(value.upper(), value.upper())


def layer_algos(layers: Any) -> dict[str, str] | None:
    """Return the algorithm by layer from ModelOpt's `quantized_layers`."""
    if not isinstance(layers, dict) or not layers:
        return None
    algos = {}
    for name, entry in list(layers.items())[:MOST_LAYERS]:
        algo = _algo(entry.get("quant_algo")) if isinstance(entry, dict) else None
        algos[name] = algo or "NO_QUANT"
    return algos


def _take_excluded(said: Opinion, table: dict[str, Any]) -> None:
    for key in EXCLUDING:
        if isinstance(table.get(key), list):
            said.excluded = [*(said.excluded or []), *table[key]]
            said.keys = {"excluded": key, **said.keys}


def _take_kv_scheme(said: Opinion, table: dict[str, Any]) -> None:
    """Read kv_cache_scheme as TensorRT-LLM does; one it does not know switches cache quantisation off."""
    scheme = table.get("kv_cache_scheme")
    if scheme is None or said.kv_algo is not None:
        return
    said.keys = said.keys | {"kv_algo": "kv_cache_scheme", "kv_scheme_unrecognised": "kv_cache_scheme"}
    if isinstance(scheme, str) and scheme.upper() in KV_NAMES:
        said.kv_algo = scheme.upper()
    elif isinstance(scheme, dict) and scheme.get("type") == "float" and scheme.get("num_bits") == 8:
        said.kv_algo = "FP8"
    else:
        said.kv_scheme_unrecognised = msgspec.json.encode(scheme).decode()[:200]


def _hf_opinion(config: Document, section: str, table: dict[str, Any]) -> Opinion:
    method = table.get("quant_method")
    method = method.lower() if isinstance(method, str) else None
    producer = table.get("producer")
    by_modelopt = isinstance(producer, dict) and producer.get("name") == "modelopt"
    if (method or "").startswith("modelopt") or by_modelopt:
        return _modelopt_opinion(config, section)
    statement = Opinion(config.where(section), method=method or _bitsandbytes(table))
    statement.keys = {"method": "quant_method", "algo": "quant_method", "block_size": "weight_block_size"}
    statement.group_size = _group(table.get("group_size"))
    statement.bits = table.get("bits")
    statement.desc_act = table.get("desc_act")
    statement.has_zero_point = table.get("zero_point")
    if statement.has_zero_point is not None:
        statement.keys = statement.keys | {"has_zero_point": "zero_point"}
    _take_excluded(statement, table)
    _take_kv_scheme(statement, table)
    reader = BY_METHOD.get(statement.method or "")
    if reader is not None:
        reader(statement, table)
    return statement


def _group(value: Any) -> Any:
    return None if value == -1 else value  # -1 is one scale for each channel


def _bitsandbytes(table: dict[str, Any]) -> str | None:
    """Return the method of configurations older than `quant_method`."""
    return "bitsandbytes" if "load_in_8bit" in table or "load_in_4bit" in table else None


def _read_fp8(said: Opinion, table: dict[str, Any]) -> None:
    said.block_size = table.get("weight_block_size")
    said.algo = "FP8_BLOCK_SCALES" if said.block_size else "FP8"
    said.bits = 8
    if isinstance(said.block_size, list) and said.block_size:
        said.group_size = said.block_size[0]


def _read_mxfp4(said: Opinion, table: dict[str, Any]) -> None:
    # TensorRT-LLM also quantises activations on Blackwell; the weights are these either way.
    said.algo, said.bits, said.group_size = "W4A16_MXFP4", 4, 32


def _read_mxfp8(said: Opinion, table: dict[str, Any]) -> None:
    said.algo, said.bits, said.group_size = "MXFP8", 8, 32
    said.block_size = table.get("weight_block_size")


def _read_nvfp4(said: Opinion, table: dict[str, Any]) -> None:
    said.algo, said.bits = "NVFP4", 4
    said.group_size = said.group_size or 16


def _read_awq(said: Opinion, table: dict[str, Any]) -> None:
    said.bits = said.bits or table.get("w_bit")
    said.group_size = said.group_size or table.get("q_group_size")
    said.algo = "W4A16_AWQ" if said.bits in (4, None) else None


def _read_gptq(said: Opinion, table: dict[str, Any]) -> None:
    said.algo = {4: "W4A16_GPTQ", 8: "W8A16_GPTQ"}.get(said.bits) if isinstance(said.bits, int) else None


def _read_bitsandbytes(said: Opinion, table: dict[str, Any]) -> None:
    said.bits = 4 if table.get("load_in_4bit") is True else 8 if table.get("load_in_8bit") is True else None


def _read_compressed(said: Opinion, table: dict[str, Any]) -> None:
    """Read llm-compressor's groups; several that differ are a mixed precision."""
    groups = table.get("config_groups")
    group_tables = (
        [group for group in groups.values() if isinstance(group, dict)] if isinstance(groups, dict) else []
    )
    schemes = [_scheme(group, table.get("format")) for group in group_tables]
    if not schemes:
        return
    said.keys = said.keys | dict.fromkeys(("algo", "bits", "group_size"), "config_groups")
    algo, said.bits, said.group_size = schemes[0]
    said.algo = algo if len(schemes) == 1 else "MIXED_PRECISION"


def _scheme(group: dict[str, Any], form: Any) -> tuple[str | None, Any, Any]:
    """Return algorithm, bits and group size of one group; no algorithm where TensorRT-LLM has none for it."""
    weights = _table(group.get("weights"))
    inputs = _table(group.get("input_activations"))
    bits, size = weights.get("num_bits"), weights.get("group_size")
    parts = (bits, weights.get("type"), weights.get("strategy"), inputs.get("strategy"))
    key = tuple(part if isinstance(part, (int, str)) else None for part in parts)
    if group.get("format", form) == "mxfp4-pack-quantized" or key == (4, "float", "group", None):
        return "W4A16_MXFP4", 4, size
    if key == (8, "float", "block", "group"):
        return "FP8_BLOCK_SCALES", 8, inputs.get("group_size")
    return SCHEMES.get(key), bits, _group(size)


SCHEMES: dict[tuple[int | str | None, ...], str] = {
    (8, "float", "channel", "token"): "FP8_PER_CHANNEL_PER_TOKEN",
    (8, "float", "tensor", "tensor"): "FP8",
    (4, "float", "tensor_group", "tensor_group"): "NVFP4",
}
BY_METHOD = {
    "fp8": _read_fp8,
    "mxfp4": _read_mxfp4,
    "mxfp8": _read_mxfp8,
    "nvfp4": _read_nvfp4,
    "awq": _read_awq,
    "gptq": _read_gptq,
    "bitsandbytes": _read_bitsandbytes,
    "compressed-tensors": _read_compressed,
}


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dtypes_opinion(folder: Folder) -> Opinion | None:
    """Return what dtypes.json implies: gpt-oss in OpenAI's own layout names the type of each tensor."""
    document = folder.document("dtypes.json")
    if document is None:
        return None
    packed = any(
        (name.endswith("weight") and kind == "MXFP4") or name.endswith("weight.blocks")
        for name, kind in document.data.items()
    )
    if not packed:
        return None
    plain = [
        name.rpartition(".")[0]
        for name, kind in document.data.items()
        if name.endswith(".weight") and kind in ("BF16", "FP16")
    ]
    statement = Opinion(document.path, method="mxfp4", excluded=sorted(plain))
    _read_mxfp4(statement, {})
    return statement


def _older_opinion(folder: Folder) -> Opinion | None:
    """Return what AutoGPTQ and AutoAWQ wrote into a file of their own before 2024."""
    for name, method in (("quantize_config.json", "gptq"), ("quant_config.json", "awq")):
        document = folder.document(name)
        if document is None or not {"bits", "w_bit"} & document.data.keys():
            continue
        statement = Opinion(document.path, method=method, bits=document.at("bits"))
        statement.group_size = _group(document.at("group_size"))
        statement.desc_act = document.at("desc_act")
        BY_METHOD[method](statement, document.data)
        return statement
    return None


def _put_layers_file(folder: Folder, ruling: Opinion) -> None:
    """Add quant_cfg.json, in which ModelOpt writes the layers of a mixed precision."""
    document = folder.document("quant_cfg.json")
    if document is None:
        return
    kv_algo = _algo(document.at("kv_cache_quant_algo"))
    if kv_algo is not None and ruling.kv_algo is not None and kv_algo != ruling.kv_algo:
        folder.facts.put("quant.inline_kv_algo", kv_algo, document.where("kv_cache_quant_algo"))
    if ruling.algo != "MIXED_PRECISION":
        return
    layers = layer_algos(document.at("quantized_layers"))
    if layers is not None:
        ruling.per_layer = None
        folder.facts.put("quant.per_layer", layers, document.where("quantized_layers"))
    ruling.kv_algo = ruling.kv_algo or kv_algo
