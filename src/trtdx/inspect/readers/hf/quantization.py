"""How a Hugging Face checkpoint says it is quantised: four files and many shapes become quant.* facts.

Which file rules is TensorRT-LLM's own order (1.2.1 and 1.3.0rc, ModelConfig.from_pretrained):
hf_quant_config.json, else config.json's quantization_config, else dtypes.json; quant_cfg.json adds layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.inspect.facts.artifact import FactCollector
    from trtdx.inspect.readers.folder import ArtifactFolder

QUANTIZATION_SECTIONS = ("quantization_config", "text_config.quantization_config", "compression_config")
ALGO_ALIASES = {"FP8_PB_WO": "FP8_BLOCK_SCALES"}  # ModelOpt's name for it
KV_CACHE_ALGOS = {"FP8", "INT8", "NVFP4"}
EXCLUSION_KEYS = (
    "exclude_modules",
    "ignore",
    "modules_to_not_convert",
    "ignored_layers",
    "llm_int8_skip_modules",
)
MAX_QUANTIZED_LAYERS = 100_000


class QuantStatement(msgspec.Struct):
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


def put_quantization_facts(folder: ArtifactFolder, config: Document | None) -> None:
    """Put what rules, and beside it what another file says of the same thing."""
    document = folder.read_json_object("hf_quant_config.json")
    ruling = None if document is None else _modelopt_statement(document, "")
    inline = _inline_statement(config)
    beside = None
    if ruling is None:
        ruling = inline or _dtypes_file_statement(folder) or _legacy_file_statement(folder)
    elif ruling.algo is None and ruling.per_layer is None and inline is not None:
        ruling, beside = inline, ruling  # a file without a global algorithm leaves it to config.json
    else:
        beside = inline
    if ruling is None:
        return
    _put_quant_cfg_layers(folder, ruling)
    _put_statement(folder.facts, ruling)
    if beside is not None and beside is not ruling:
        _put_other_statement(folder.facts, ruling, beside)


def _put_statement(facts: FactCollector, statement: QuantStatement) -> None:
    facts.put("quant.source", statement.where.partition(": ")[0].rpartition("/")[2], statement.where)
    for name in (
        "method", "algo", "kv_algo", "group_size", "block_size", "bits", "desc_act", "has_zero_point",
        "pre_quant_scale", "excluded", "per_layer", "kv_scheme_unrecognised",
    ):  # fmt: skip
        facts.put(f"quant.{name}", getattr(statement, name), _statement_place(statement, name))


def _statement_place(statement: QuantStatement, name: str) -> str:
    key = statement.keys.get(name, name)
    return f"{statement.where}.{key}" if ": " in statement.where else f"{statement.where}: {key}"


def _put_other_statement(facts: FactCollector, ruling: QuantStatement, other: QuantStatement) -> None:
    facts.put("quant.inline_algo", other.algo, _statement_place(other, "algo"))
    facts.put("quant.inline_kv_algo", other.kv_algo, _statement_place(other, "kv_algo"))
    if ruling.method is None:
        facts.put("quant.method", other.method, _statement_place(other, "method"))


def _inline_statement(config: Document | None) -> QuantStatement | None:
    for section in QUANTIZATION_SECTIONS if config else ():
        table = config.value_at(section) if config else None
        if isinstance(table, dict) and config:
            return _hf_statement(config, section, table)
    return None


def _modelopt_statement(document: Document, section: str) -> QuantStatement:
    """Return what ModelOpt wrote: nested under "quantization" (before 1.0) or flat."""
    at = f"{section}." if section else ""
    nested = isinstance(document.value_at(f"{at}quantization"), dict)
    prefix = f"{at}quantization" if nested else section
    table: dict[str, Any] = (document.value_at(prefix) if prefix else document.data) or {}
    statement = QuantStatement(document.place_of(prefix) if prefix else document.path)
    method = document.value_at(f"{at}quant_method")
    statement.method = method.lower() if isinstance(method, str) else "modelopt"
    statement.algo = _canonical_algo(table.get("quant_algo"))
    statement.kv_algo = _canonical_algo(table.get("kv_cache_quant_algo"))
    statement.group_size = table.get("group_size")
    statement.has_zero_point = table.get("has_zero_point")
    statement.pre_quant_scale = table.get("pre_quant_scale")
    statement.per_layer = layer_algos(table.get("quantized_layers"))
    statement.keys = {"algo": "quant_algo", "kv_algo": "kv_cache_quant_algo", "per_layer": "quantized_layers"}
    _take_excluded_modules(statement, table)
    _take_kv_scheme(statement, table)
    return statement


def _canonical_algo(value: Any) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    return ALGO_ALIASES.get(value.upper(), value.upper())


def layer_algos(layers: Any) -> dict[str, str] | None:
    """Return the algorithm by layer from ModelOpt's `quantized_layers`."""
    if not isinstance(layers, dict) or not layers:
        return None
    algos = {}
    for name, entry in list(layers.items())[:MAX_QUANTIZED_LAYERS]:
        algo = _canonical_algo(entry.get("quant_algo")) if isinstance(entry, dict) else None
        algos[name] = algo or "NO_QUANT"
    return algos


def _take_excluded_modules(statement: QuantStatement, table: dict[str, Any]) -> None:
    for key in EXCLUSION_KEYS:
        if isinstance(table.get(key), list):
            statement.excluded = [*(statement.excluded or []), *table[key]]
            statement.keys = {"excluded": key, **statement.keys}


def _take_kv_scheme(statement: QuantStatement, table: dict[str, Any]) -> None:
    """Read kv_cache_scheme as TensorRT-LLM does; one it does not know switches cache quantisation off."""
    scheme = table.get("kv_cache_scheme")
    if scheme is None or statement.kv_algo is not None:
        return
    statement.keys = statement.keys | {
        "kv_algo": "kv_cache_scheme",
        "kv_scheme_unrecognised": "kv_cache_scheme",
    }
    if isinstance(scheme, str) and scheme.upper() in KV_CACHE_ALGOS:
        statement.kv_algo = scheme.upper()
    elif isinstance(scheme, dict) and scheme.get("type") == "float" and scheme.get("num_bits") == 8:
        statement.kv_algo = "FP8"
    else:
        statement.kv_scheme_unrecognised = msgspec.json.encode(scheme).decode()[:200]


def _hf_statement(config: Document, section: str, table: dict[str, Any]) -> QuantStatement:
    method = table.get("quant_method")
    method = method.lower() if isinstance(method, str) else None
    producer = table.get("producer")
    by_modelopt = isinstance(producer, dict) and producer.get("name") == "modelopt"
    if (method or "").startswith("modelopt") or by_modelopt:
        return _modelopt_statement(config, section)
    statement = QuantStatement(config.place_of(section), method=method or _older_method(table))
    statement.keys = {"method": "quant_method", "algo": "quant_method", "block_size": "weight_block_size"}
    statement.group_size = _group_size(table.get("group_size"))
    statement.bits = table.get("bits")
    statement.desc_act = table.get("desc_act")
    statement.has_zero_point = table.get("zero_point")
    if statement.has_zero_point is not None:
        statement.keys = statement.keys | {"has_zero_point": "zero_point"}
    _take_excluded_modules(statement, table)
    _take_kv_scheme(statement, table)
    reader = READ_BY_METHOD.get(statement.method or "")
    if reader is not None:
        reader(statement, table)
    return statement


def _group_size(value: Any) -> Any:
    return None if value == -1 else value  # -1 is one scale for each channel


def _older_method(table: dict[str, Any]) -> str | None:
    """Return the method of configurations older than `quant_method`."""
    return "bitsandbytes" if "load_in_8bit" in table or "load_in_4bit" in table else None


def _read_fp8(statement: QuantStatement, table: dict[str, Any]) -> None:
    statement.block_size = table.get("weight_block_size")
    statement.algo = "FP8_BLOCK_SCALES" if statement.block_size else "FP8"
    statement.bits = 8
    if isinstance(statement.block_size, list) and statement.block_size:
        statement.group_size = statement.block_size[0]


def _read_mxfp4(statement: QuantStatement, table: dict[str, Any]) -> None:
    # TensorRT-LLM also quantises activations on Blackwell; the weights are these either way.
    statement.algo, statement.bits, statement.group_size = "W4A16_MXFP4", 4, 32


def _read_mxfp8(statement: QuantStatement, table: dict[str, Any]) -> None:
    statement.algo, statement.bits, statement.group_size = "MXFP8", 8, 32
    statement.block_size = table.get("weight_block_size")


def _read_nvfp4(statement: QuantStatement, table: dict[str, Any]) -> None:
    statement.algo, statement.bits = "NVFP4", 4
    statement.group_size = statement.group_size or 16


def _read_awq(statement: QuantStatement, table: dict[str, Any]) -> None:
    statement.bits = statement.bits or table.get("w_bit")
    statement.group_size = statement.group_size or table.get("q_group_size")
    statement.algo = "W4A16_AWQ" if statement.bits in (4, None) else None


def _read_gptq(statement: QuantStatement, table: dict[str, Any]) -> None:
    statement.algo = {4: "W4A16_GPTQ", 8: "W8A16_GPTQ"}.get(statement.bits) if isinstance(statement.bits, int) else None


def _read_bitsandbytes(statement: QuantStatement, table: dict[str, Any]) -> None:
    statement.bits = 4 if table.get("load_in_4bit") is True else 8 if table.get("load_in_8bit") is True else None


def _read_compressed_tensors(statement: QuantStatement, table: dict[str, Any]) -> None:
    """Read llm-compressor's groups; several that differ are a mixed precision."""
    groups = table.get("config_groups")
    group_tables = [group for group in groups.values() if isinstance(group, dict)] if isinstance(groups, dict) else []
    schemes = [_group_scheme(group, table.get("format")) for group in group_tables]
    if not schemes:
        return
    statement.keys = statement.keys | dict.fromkeys(("algo", "bits", "group_size"), "config_groups")
    algo, statement.bits, statement.group_size = schemes[0]
    statement.algo = algo if len(schemes) == 1 else "MIXED_PRECISION"


def _group_scheme(group: dict[str, Any], pack_format: Any) -> tuple[str | None, Any, Any]:
    """Return algorithm, bits and group size of one group; no algorithm where TensorRT-LLM has none for it."""
    weights = _dict_or_empty(group.get("weights"))
    inputs = _dict_or_empty(group.get("input_activations"))
    bits, size = weights.get("num_bits"), weights.get("group_size")
    parts = (bits, weights.get("type"), weights.get("strategy"), inputs.get("strategy"))
    key = tuple(part if isinstance(part, (int, str)) else None for part in parts)
    if group.get("format", pack_format) == "mxfp4-pack-quantized" or key == (4, "float", "group", None):
        return "W4A16_MXFP4", 4, size
    if key == (8, "float", "block", "group"):
        return "FP8_BLOCK_SCALES", 8, inputs.get("group_size")
    return ALGO_BY_SCHEME.get(key), bits, _group_size(size)


ALGO_BY_SCHEME: dict[tuple[int | str | None, ...], str] = {
    (8, "float", "channel", "token"): "FP8_PER_CHANNEL_PER_TOKEN",
    (8, "float", "tensor", "tensor"): "FP8",
    (4, "float", "tensor_group", "tensor_group"): "NVFP4",
}
READ_BY_METHOD = {
    "fp8": _read_fp8,
    "mxfp4": _read_mxfp4,
    "mxfp8": _read_mxfp8,
    "nvfp4": _read_nvfp4,
    "awq": _read_awq,
    "gptq": _read_gptq,
    "bitsandbytes": _read_bitsandbytes,
    "compressed-tensors": _read_compressed_tensors,
}


def _dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dtypes_file_statement(folder: ArtifactFolder) -> QuantStatement | None:
    """Return what dtypes.json implies: gpt-oss in OpenAI's own layout names the type of each tensor."""
    document = folder.read_json_object("dtypes.json")
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
    statement = QuantStatement(document.path, method="mxfp4", excluded=sorted(plain))
    _read_mxfp4(statement, {})
    return statement


def _legacy_file_statement(folder: ArtifactFolder) -> QuantStatement | None:
    """Return what AutoGPTQ and AutoAWQ wrote into a file of their own before 2024."""
    for name, method in (("quantize_config.json", "gptq"), ("quant_config.json", "awq")):
        document = folder.read_json_object(name)
        if document is None or not {"bits", "w_bit"} & document.data.keys():
            continue
        statement = QuantStatement(document.path, method=method, bits=document.value_at("bits"))
        statement.group_size = _group_size(document.value_at("group_size"))
        statement.desc_act = document.value_at("desc_act")
        READ_BY_METHOD[method](statement, document.data)
        return statement
    return None


def _put_quant_cfg_layers(folder: ArtifactFolder, ruling: QuantStatement) -> None:
    """Add quant_cfg.json, in which ModelOpt writes the layers of a mixed precision."""
    document = folder.read_json_object("quant_cfg.json")
    if document is None:
        return
    kv_algo = _canonical_algo(document.value_at("kv_cache_quant_algo"))
    if kv_algo is not None and ruling.kv_algo is not None and kv_algo != ruling.kv_algo:
        folder.facts.put("quant.inline_kv_algo", kv_algo, document.place_of("kv_cache_quant_algo"))
    if ruling.algo != "MIXED_PRECISION":
        return
    layers = layer_algos(document.value_at("quantized_layers"))
    if layers is not None:
        ruling.per_layer = None
        folder.facts.put("quant.per_layer", layers, document.place_of("quantized_layers"))
    ruling.kv_algo = ruling.kv_algo or kv_algo
