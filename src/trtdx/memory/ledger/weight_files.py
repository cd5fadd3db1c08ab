"""Weights to the byte where their files are at hand: engines, checkpoints cut for ranks, Hugging Face folders."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from trtdx.formats.safetensors import FACT_DTYPES, read_safetensors_header
from trtdx.inspect.readers.hf.weight_sets import MAX_WEIGHT_FILES
from trtdx.inspect.readers.hf.weights import EMBEDDING_TENSOR, HEAD_TENSOR, LAYER_TENSOR, OTHER_TOWER
from trtdx.memory.ledger.decoder_layers import stage_layer_range
from trtdx.memory.ledger.weight_storage import FILE_LAYOUT
from trtdx.memory.ledger.weights import ENGINE_FLOW, WeightModel, stage_weights, weight_model_of
from trtdx.memory.nouns import MIB, Figure, ParallelLayout

if TYPE_CHECKING:
    from trtdx.formats.safetensors import SafetensorsHeader
    from trtdx.host import Host
    from trtdx.memory.nouns import Setup

HEADERS_SOURCE = "exact: safetensors headers"
PLAN_OVERHEAD = 0.003  # of an engine's file: code and names, which are not kept as weights
_PLAN = re.compile(r"(?:.*_)?rank(\d{1,6})\.engine")
_CUT = re.compile(r"rank(\d{1,6})\.safetensors")
_PARTS = (
    ("token_inputs", re.compile(r"per_layer_(?:input|projection)")),
    ("shared_experts", re.compile(r"shared_expert")),
    ("experts", re.compile(r"(?:^|\.)experts?\.|\.experts$")),
    ("router", re.compile(r"(?:^|\.)(?:router|gate)\.(?:weight|bias|e_score_correction_bias)$|e_score_correction_bias")),
    ("norms", re.compile(r"(?:^|\.|_)(?:layer_?norm|norm|ln)(?:_?\w*)?\.(?:weight|bias)$|_layernorm\.")),
    ("recurrent", re.compile(r"(?:^|\.)(?:mamba|linear_attn|ssm)\.|mixer\.(?:in_proj|out_proj|conv1d|A_log|D|dt_bias)")),
    ("cross_attention", re.compile(r"cross_attn|EncDecAttention|encoder_attn")),
    ("attention", re.compile(r"attn|attention|query_key_value|mixer\.[qkvo]_proj")),
)  # fmt: skip
_POSITIONS = re.compile(r"(?:^|\.)(?:wpe|embed_positions|position_embeddings)\.weight$")


class _TensorSizes(NamedTuple):
    """The bytes of a folder's tensors by part and layer (-1: outside of layers), and the type most numbers have."""

    sizes: Counter[tuple[str, int]]
    dtype: str


def weights_from_files(host: Host, folder: str, setup: Setup) -> tuple[Figure, ...]:
    """Return what each rank's weights take, as the files in a folder say; empty if they do not say it."""
    names = host.entries(folder)
    base = folder.rstrip("/")
    plans = {int(match[1]): name for name in names if (match := _PLAN.fullmatch(name))}
    if plans:
        return _weights_from_plans(host, base, plans, setup.layout.world)
    cut = {int(match[1]): name for name in names if (match := _CUT.fullmatch(name))}
    if cut:
        return _weights_from_rank_files(host, base, cut, setup)
    shards = [name for name in names if name.endswith(".safetensors") and "consolidated" not in name]
    if not shards or len(shards) > MAX_WEIGHT_FILES:
        return ()
    headers = [read_safetensors_header(host, f"{base}/{name}") for name in shards]
    return _weights_from_shards(headers, setup)


def _weights_from_plans(host: Host, base: str, plans: dict[int, str], world: int) -> tuple[Figure, ...]:
    if sorted(plans) != list(range(world)):
        return ()
    figures = []
    for rank in range(world):
        size = host.size(f"{base}/{plans[rank]}")
        managed = f"{base}/rank{rank}_managed_weights.safetensors"
        if host.kind(managed) == "file":
            size += host.size(managed)
        low = max(0, round(size * (1 - PLAN_OVERHEAD)) - 8 * MIB)
        figures.append(Figure(size, low, size, f"exact: the size of {plans[rank]}"))
    return tuple(figures)


def _weights_from_rank_files(host: Host, base: str, cut: dict[int, str], setup: Setup) -> tuple[Figure, ...]:
    """Return the sums of files that are cut as asked; ranks of context parallelism share one."""
    layout = setup.layout
    if sorted(cut) != list(range(layout.tp * layout.pp)):
        return ()
    headers = {rank: read_safetensors_header(host, f"{base}/{name}") for rank, name in cut.items()}
    if any(header.fault for header in headers.values()):
        return ()
    model = weight_model_of(setup)
    tables = {stage: stage_weights(model, stage).parts.get("rope_table", 0) for stage in range(layout.pp)}
    figures = []
    for rank in range(layout.world):
        stage, within = divmod(rank, layout.tp * layout.cp)
        header = headers[stage * layout.tp + within % layout.tp]
        size = sum(entry.data_bytes for entry in header.tensors.values()) + tables[stage]
        figures.append(_figure_from_headers(size))
    return tuple(figures)


def _figure_from_headers(size: float) -> Figure:
    value = round(size)
    return Figure(value, value, round(size * 1.01) + 64 * MIB, HEADERS_SOURCE)


def _weights_from_shards(headers: list[SafetensorsHeader], setup: Setup) -> tuple[Figure, ...]:
    if any(header.fault for header in headers):
        return ()
    tensors = _collect_tensor_sizes(headers, setup)
    model, layout = weight_model_of(setup), setup.layout
    unsharded = ParallelLayout(pp=layout.pp, pp_partition=layout.pp_partition)
    formats = replace(setup.formats, dtype=tensors.dtype)
    in_files = WeightModel(model.dims, unsharded, formats, FILE_LAYOUT, model.family, mtp_layers=model.mtp_layers)
    if not _is_plausible(tensors, in_files):
        return ()
    stages = [_figure_from_headers(_stage_bytes(tensors, model, in_files, stage)) for stage in range(layout.pp)]
    return tuple(stages[rank // (layout.tp * layout.cp)] for rank in range(layout.world))


def _is_plausible(tensors: _TensorSizes, in_files: WeightModel) -> bool:
    """The files must be about what the sizes say, else they are another model's, or not all there."""
    file_bytes = sum(tensors.sizes.values())
    reckoned = sum(stage_weights(in_files, stage).bytes.value for stage in range(in_files.layout.pp))
    return bool(file_bytes) and 0.8 < file_bytes / max(reckoned, 1) < 1.25


def _stage_bytes(tensors: _TensorSizes, model: WeightModel, in_files: WeightModel, stage: int) -> float:
    """Return a stage's tensors, each part cut and padded as the formula cuts and pads it."""
    rank_parts, file_parts = stage_weights(model, stage).parts, stage_weights(in_files, stage).parts
    here = _stage_part_sizes(tensors, model, stage)
    total = 0.0
    for part in {*rank_parts, *here}:
        size, rank_size, file_size = here[part], rank_parts.get(part, 0), file_parts.get(part, 0)
        if not size:
            total += rank_size  # what no file holds: copies, tables
        elif file_size:
            total += size * (rank_size / file_size)
        else:
            total += size
    return total


def _stage_part_sizes(tensors: _TensorSizes, model: WeightModel, stage: int) -> Counter[str]:
    layout, layers = model.layout, model.dims.num_layers
    mine = stage_layer_range(layers, layout.pp, layout.pp_partition, stage)
    last = stage == layout.pp - 1
    here: Counter[str] = Counter()
    for (part, layer), size in tensors.sizes.items():
        if part == "mtp":
            here[part] += size if last and model.mtp_layers else 0
        elif part == "encoder":
            here[part] += size // layout.pp
        elif layer >= 0:
            here[part] += size if layer in mine else 0
        elif part in ("embedding", "positions", "token_inputs"):
            here[part] += 0 if stage else size
        else:
            here[part] += size if last else 0
    return here


def _collect_tensor_sizes(headers: list[SafetensorsHeader], setup: Setup) -> _TensorSizes:
    sizes: Counter[tuple[str, int]] = Counter()
    types: Counter[str] = Counter()
    for name, entry in (item for header in headers for item in header.tensors.items()):
        part, layer = _tensor_part(name, setup.dims.num_layers, encoder=setup.dims.encoder_layers > 0)
        if not part:
            continue
        sizes[part, layer] += entry.data_bytes
        if entry.dtype in FACT_DTYPES:
            types[FACT_DTYPES[entry.dtype]] += entry.data_bytes
    dtype = types.most_common(1)[0][0] if types else setup.formats.dtype
    if setup.running.backend != ENGINE_FLOW and setup.dims.tied:  # a table that nobody loads
        for key in [key for key in sizes if key[0] == "lm_head"]:
            del sizes[key]
    return _TensorSizes(sizes, dtype)


def _tensor_part(name: str, layers: int, *, encoder: bool) -> tuple[str, int]:
    """Return the part and layer of a tensor; no part for one of another tower."""
    match = LAYER_TENSOR.match(name)
    stack = match[1] or "" if match else name
    if "mtp" in name or "nextn" in name:
        return "mtp", -1
    if encoder and "encoder" in stack.split(".") and "transformer" not in stack:
        return "encoder", -1
    if OTHER_TOWER.search(stack) and not stack.startswith("transformer.encoder"):
        return "", -1
    if match is None:
        return _part_outside_layers(name), -1
    number, inner = int(match[2]), match[3]
    if number >= layers:
        return "mtp", -1
    return next((part for part, pattern in _PARTS if pattern.search(inner)), "mlp"), number


def _part_outside_layers(name: str) -> str:
    if "per_layer" in name:  # of Gemma 3n and 4
        return "token_inputs"
    if EMBEDDING_TENSOR.search(name):
        return "embedding"
    if HEAD_TENSOR.search(name):
        return "lm_head"
    return "positions" if _POSITIONS.search(name) else "norms"
