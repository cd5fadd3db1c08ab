"""What the weights of a directory are, from names and headers: formats, types, layers, and what is missing."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.formats.documents import GIT_LFS_MAGIC
from trtdx.formats.safetensors import (
    CORRUPT,
    FACT_DTYPES,
    LFS_POINTER,
    TRUNCATED,
    UNREADABLE,
    SafetensorsHeader,
    read_safetensors_header,
)
from trtdx.inspect.readers.hf.packed_weights import put_packing_layout
from trtdx.inspect.readers.hf.tied_embeddings import put_own_head_fact
from trtdx.inspect.readers.hf.weight_sets import (
    MAX_WEIGHT_FILES,
    duplicate_weight_files,
    missing_numbered_shards,
    unindexed_shards,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.inspect.readers.folder import ArtifactFolder

MAX_TENSORS = 1_500_000
MAX_LOOSE_TENSORS = 10_000  # tensors outside of layers that are kept
MAX_LAYER_PARTS = 100_000  # different names within a layer; 512 experts have about 5,000

LAYER_TENSOR = re.compile(r"(?:(.*?)\.)?(?:layers|h|blocks?)\.(\d{1,5})\.(.+)")
EXPERT_TENSOR = re.compile(r"(?:^|\.)experts\.(\d{1,5})\.")
EMBEDDING_TENSOR = re.compile(
    r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|embed_in|vocab_embedding|tok_embeddings|shared"
    r"|backbone\.embeddings)\.weight$"
)
HEAD_TENSOR = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output_layer|output)\.(?:weight|qweight)$")
OTHER_TOWER = re.compile(r"vision|visual|audio|image|encoder|speech|talker|code2wav|mtp|draft|eagle")
FINAL_NORM = re.compile(r"^(?:model\.)?norm\.weight$")
QKV_BIAS = re.compile(
    r"(?:^|\.)(?:[qkv]_proj|qkv_proj|query_key_value|c_attn|Wqkv|W_pack|attention\.qkv|query|key|value)\.bias$"
)
QK_NORM = re.compile(r"(?:^|\.)(?:[qk]_norm|[qk]_layernorm|query_layernorm|key_layernorm)\.weight$")
KV_SCALE = re.compile(r"(?:^|[._])(?:[kv]_scale|kv_scale|(?:kv|[kv])_cache_scaling_factor)$")
SCALE = re.compile(
    r"(?:weight_scale(?:_inv|_2)?|scales|qzeros|weights_(?:block_|global_)?scaling_factor(?:_2)?|per_channel_scale|_scales)$"
)
# Products of a layer that a quantised model has quantised: those of attention, and of dense or expert MLPs.
PRODUCT_WEIGHT = re.compile(
    r"(?:self_attn\.(?:[qkvo]|qkv)_proj|(?:mlp|experts\.\d{1,5}|shared_experts?)\.(?:gate|up|down|gate_up)_proj"
    r"|experts\.\d{1,5}\.w[123])\.weight$"
)
QUANTISED_DTYPES = ("F8_E4M3", "F8_E5M2", "U8", "I8", "F4")
MAX_PLAIN_PRODUCTS = 2000  # names of products in 16 bit that are kept
FUSED_EXPERTS = re.compile(r"(?:^|\.)experts\.(?:gate_up_proj|down_proj|gate_proj|up_proj)(?:_blocks)?$")
# Modules of which a layer has all or none: a projection without its siblings was lost.
SIBLING_WEIGHT = re.compile(r"(?:(gate|up|down)_proj|w([123])|([qo])_proj|([kv])_proj)\.(?:weight|qweight)$")
SCALE_NAMES = ("weight_scale", "weight_scale_inv")
COUNTED_NAMES = ("weight", *SCALE_NAMES)
MAX_LAYERS = 4096
MAX_LACKING_TENSORS = 200
MAIN_STACKS = (
    "model.language_model", "language_model.model", "language_model", "model", "model.decoder", "decoder",
    "transformer", "transformer.encoder", "gpt_neox", "model.text_model", "backbone", "model.model",
)  # fmt: skip

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
NON_WEIGHT_FILES = {"training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "rng_state.pth"}


class WeightIndex(msgspec.Struct, frozen=True):
    """Which file holds which tensor."""

    name: str
    files: dict[str, list[str]]  # tensors by file


class _WeightIndexFile(msgspec.Struct):
    weight_map: dict[str, str]


def read_weight_index(folder: ArtifactFolder, suffix: str = ".safetensors.index.json") -> WeightIndex | None:
    """Return the index of a sharded model, if there is one that can be read."""
    names = sorted((name for name in folder.names if name.endswith(suffix)), key=lambda name: (len(name), name))
    index_file = folder.decode_json(names[0], _WeightIndexFile) if names else None
    if index_file is None:
        return None
    files: dict[str, list[str]] = {}
    for tensor, file in index_file.weight_map.items():
        files.setdefault(file, []).append(tensor)
    return WeightIndex(names[0], files)


class WeightSurvey:
    """Sums up headers one after the other, so that no more than one is kept in memory."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.bytes = 0
        self.tensors = 0
        self.parameters = 0
        self.dtypes: dict[str, int] = {}
        self.dtype_bytes: dict[str, int] = {}
        self.unknown_dtypes: list[str] = []
        self.faults: dict[str, list[str]] = {}
        self._stacks: dict[str, set[int]] = {}
        self._shapes: dict[tuple[str, str], tuple[int, ...]] = {}  # by stack and name within a layer
        self._varied: set[tuple[str, str]] = set()
        self._layers_of: dict[tuple[str, str], int] = {}  # of weights and their scales, a bit for each layer
        self._quantised_in: dict[tuple[str, str], int] = {}  # and of those in eight or four bits
        self._loose: dict[str, tuple[int, ...]] = {}  # tensors outside of layers
        self.quantised = 0  # products of layers that are stored in eight or four bits
        self.plain: list[str] = []  # those that are not, by name
        self._file_of: dict[str, str] = {}  # of those, and of one tensor for each name within a layer

    def add_file(self, file: str, header: SafetensorsHeader) -> None:
        """Take in one file: its tensors, or what is wrong with it."""
        self.sizes[file] = header.file_bytes
        self.bytes += header.file_bytes
        self.tensors += len(header.tensors)
        if header.fault:
            fault_text = file if header.fault == LFS_POINTER else f"{file}: {header.problem}"
            self.faults.setdefault(header.fault, []).append(fault_text)
        self.unknown_dtypes += [f"{file}: {dtype}" for dtype in header.unknown_dtypes]
        counts, sizes = self.dtypes, self.dtype_bytes
        for name, entry in header.tensors.items():
            dtype, shape = entry.dtype, entry.shape
            begin, end = entry.data_offsets
            counts[dtype] = counts.get(dtype, 0) + 1
            sizes[dtype] = sizes.get(dtype, 0) + end - begin
            if len(shape) < 8:
                self.parameters += math.prod(shape)
            self._place_tensor(file, name, shape, is_quantised=dtype in QUANTISED_DTYPES)
            if name.endswith("proj.weight") or EXPERT_TENSOR.search(name):
                self._count_product(name, dtype)

    def _count_product(self, name: str, dtype: str) -> None:
        if not PRODUCT_WEIGHT.search(name):
            return
        if dtype in QUANTISED_DTYPES:
            self.quantised += 1
        elif dtype in FACT_DTYPES and len(self.plain) < MAX_PLAIN_PRODUCTS:
            self.plain.append(name.removesuffix(".weight"))

    def _place_tensor(self, file: str, name: str, shape: tuple[int, ...], *, is_quantised: bool) -> None:
        layer_tensor = LAYER_TENSOR.match(name)
        if layer_tensor is None:
            if len(self._loose) < MAX_LOOSE_TENSORS:
                self._loose[name] = shape
                self._file_of[name] = file
            return
        stack, number, part = layer_tensor.groups("")
        key = (stack, part)
        known_shape = self._shapes.get(key)
        if known_shape is None:
            if len(self._shapes) >= MAX_LAYER_PARTS:
                return
            self._shapes[key] = shape
            self._file_of[part] = f"{file}: {name}"
        elif known_shape != shape:
            self._varied.add(key)
        layer = int(number)
        self._stacks.setdefault(stack, set()).add(layer)
        if part.endswith(COUNTED_NAMES) and layer < MAX_LAYERS:
            self._layers_of[key] = self._layers_of.get(key, 0) | 1 << layer
            if is_quantised:
                self._quantised_in[key] = self._quantised_in.get(key, 0) | 1 << layer

    def tensor_place(self, name: str) -> str:
        """Return the file and the tensor a name (or a name within a layer) was first seen as."""
        file = self._file_of.get(name, "")
        return file if ": " in file else f"{file}: {name}"

    def tensor_file(self, name: str) -> str:
        """Return the file of a tensor outside of layers."""
        return self._file_of.get(name, "")

    @property
    def is_complete(self) -> bool:
        """Return whether every file was read whole, so that what is not there is known to be absent."""
        return bool(self.sizes) and not self.faults

    def main_stack(self) -> str | None:
        """Return the name of the language model's layers among those of vision and other towers."""
        known_stacks = [name for name in MAIN_STACKS if name in self._stacks]
        if known_stacks:
            return known_stacks[0]
        mains = [name for name in self._stacks if not OTHER_TOWER.search(name)]
        return mains[0] if len(mains) == 1 else None

    def layer_parts(self) -> dict[str, tuple[int, ...]]:
        """Return the tensors of a layer and their shapes; those whose shape differs by layer have none."""
        stack = self.main_stack()
        return {
            part: () if (where, part) in self._varied else shape
            for (where, part), shape in self._shapes.items()
            if where == stack
        }

    def lacking_tensors(self) -> list[str]:
        """Return the tensors that are not there although their siblings in the same layer are."""
        stack = self.main_stack()
        lost = [
            f"{stack}.layers.{layer}.{part}".lstrip(".")
            for (where, part), layers in self._layers_of.items()
            if where == stack and part.endswith(SCALE_NAMES)
            for layer in _set_bits(self._quantised_in.get((where, f"{part.rpartition('.')[0]}.weight"), 0) & ~layers)
        ]
        groups: dict[tuple[str, int | None], dict[str, int]] = {}
        for (where, part), layers in self._layers_of.items():
            sibling = SIBLING_WEIGHT.search(part) if where == stack else None
            if sibling:
                groups.setdefault((part[: sibling.start()], sibling.lastindex), {})[part] = layers
        for parts in groups.values():
            every = 0
            for layers in parts.values():
                every |= layers
            lost += [
                f"{stack}.layers.{layer}.{part}".lstrip(".")
                for part, layers in parts.items()
                if every != layers
                for layer in _set_bits(every & ~layers)
            ]
        return lost[:MAX_LACKING_TENSORS]

    def layer_count(self) -> int:
        stack = self.main_stack()
        return 0 if stack is None else len(self._stacks[stack])

    def loose_tensors(self, pattern: re.Pattern[str]) -> dict[str, tuple[int, ...]]:
        """Return the tensors outside of layers that a pattern fits, other towers' left out."""
        return {
            name: shape for name, shape in self._loose.items() if pattern.search(name) and not OTHER_TOWER.search(name)
        }


def _set_bits(number: int) -> list[int]:
    return [at for at in range(number.bit_length()) if number >> at & 1]


def put_survey_facts(folder: ArtifactFolder, survey: WeightSurvey, where: str) -> None:
    """Put what was found in headers as facts; what needs all files to be read is put only when they were."""
    facts = folder.facts
    facts.put("weights.files", len(survey.sizes), where)
    facts.put("weights.bytes", survey.bytes, where)
    facts.put("weights.sizes", survey.sizes, where)
    for fault, name in FACT_BY_WEIGHT_FAULT.items():
        folder.put_list_fact(name, survey.faults.get(fault, ()), where)
    folder.unread += survey.faults.get(UNREADABLE, [])
    folder.put_list_fact("weights.unknown_dtypes", survey.unknown_dtypes, where)
    if not survey.tensors:
        return
    facts.put("weights.parameters", survey.parameters, where)
    facts.put("weights.dtypes", {dtype_word(key): count for key, count in survey.dtypes.items()}, where)
    sizes = {dtype_word(key): size for key, size in survey.dtype_bytes.items()}
    facts.put("weights.bytes_by_dtype", sizes, where)
    _put_embedding_facts(folder, survey, where)
    _put_layer_facts(folder, survey, where)


FACT_BY_WEIGHT_FAULT = {
    LFS_POINTER: "weights.lfs_pointers",
    TRUNCATED: "weights.truncated",
    CORRUPT: "weights.corrupt",
}
DTYPE_WORDS = FACT_DTYPES | {
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1",
    "I8": "int8", "U8": "uint8", "I16": "int16", "I32": "int32", "I64": "int64", "BOOL": "bool",
}  # fmt: skip


def dtype_word(dtype: str) -> str:
    """Return a safetensors type in the spelling of facts: bfloat16 for BF16."""
    return DTYPE_WORDS.get(dtype, dtype[:40])


def _put_embedding_facts(folder: ArtifactFolder, survey: WeightSurvey, where: str) -> None:
    embeddings = survey.loose_tensors(EMBEDDING_TENSOR)
    heads = survey.loose_tensors(HEAD_TENSOR)
    if len(set(embeddings.values())) == 1:
        name, shape = next(iter(embeddings.items()))
        folder.facts.put("weights.embedding_shape", list(shape), folder.path_of(survey.tensor_place(name)))
    plain = {name: shape for name, shape in heads.items() if name.endswith(".weight")}
    if len(set(plain.values())) == 1:
        name, shape = next(iter(plain.items()))
        folder.facts.put("weights.lm_head_shape", list(shape), folder.path_of(survey.tensor_place(name)))
    if len(embeddings) == len(plain) == 1 and list(embeddings.values()) == list(plain.values()):
        places = [(survey.tensor_file(name), name) for name in (*embeddings, *plain)]
        put_own_head_fact(folder, *places)
    if heads or (embeddings and survey.is_complete):
        folder.facts.put("weights.has_lm_head", bool(heads), where)


def _put_layer_facts(folder: ArtifactFolder, survey: WeightSurvey, where: str) -> None:
    parts = survey.layer_parts()
    if not parts:
        return
    facts = folder.facts
    facts.put("weights.layers", survey.layer_count(), where)
    if survey.is_complete:
        facts.put("weights.qkv_bias", _matches_any(QKV_BIAS, parts), where)
        facts.put("weights.qk_norm", _matches_any(QK_NORM, parts), where)
        facts.put("weights.kv_scales", _matches_any(KV_SCALE, parts), where)
        facts.put("weights.scales", _matches_any(SCALE, parts), where)
        folder.put_list_fact("weights.lacking", survey.lacking_tensors(), where)
        facts.put("weights.final_norm", bool(survey.loose_tensors(FINAL_NORM)), where)
    if survey.quantised:
        folder.put_list_fact("weights.unquantised", survey.plain, where)
    facts.put("weights.experts", _expert_count(parts), where)
    for name, end, axis in SIZE_FACTS:
        shape = parts.get(end, ())
        if len(shape) == 2:
            facts.put(name, shape[axis], folder.path_of(survey.tensor_place(end)))
    put_packing_layout(folder, survey)


SIZE_FACTS = (
    ("weights.q_rows", "self_attn.q_proj.weight", 0),
    ("weights.columns", "self_attn.q_proj.weight", 1),
    ("weights.kv_rows", "self_attn.k_proj.weight", 0),
    ("weights.mlp_rows", "mlp.gate_proj.weight", 0),
    ("weights.qkv_rows", "attention.qkv.weight", 0),
)


def _matches_any(pattern: re.Pattern[str], parts: Iterable[str]) -> bool:
    return any(pattern.search(part) for part in parts)


def _expert_count(parts: dict[str, tuple[int, ...]]) -> int | None:
    numbers = [int(expert[1]) for part in parts if (expert := EXPERT_TENSOR.search(part))]
    if numbers:
        return len(set(numbers))
    fused = [shape[0] for part, shape in parts.items() if FUSED_EXPERTS.search(part) and len(shape) >= 3]
    return fused[0] if fused else None


def read_weights(folder: ArtifactFolder) -> None:
    """Put every weights.* fact of a Hugging Face directory; no weight is read, and no pickle is opened."""
    files = sorted(name for name in folder.names if name.endswith(".safetensors"))
    index = read_weight_index(folder)
    if files or index:
        folder.facts.put("weights.format", "safetensors", folder.path_of(index.name if index else files[0]))
        _read_safetensors(folder, files, index)
    else:
        _read_other_formats(folder)


def _read_safetensors(folder: ArtifactFolder, files: list[str], index: WeightIndex | None) -> None:
    where = folder.path_of(index.name if index else files[0])
    dead = [name for name in files if not folder.is_file(name)]
    is_link = {name: folder.host.kind(folder.path_of(name)) == "absent" for name in dead}
    reasons = [f"{name}: is {'a link to nothing' if is_link[name] else 'not a plain file'}" for name in dead]
    folder.put_list_fact("weights.dead", reasons, where)
    files = [name for name in files if name not in dead]
    stray = unindexed_shards(files, index)
    stray += duplicate_weight_files(folder, [name for name in files if name not in stray], index)
    model_files = [name for name in files if name in index.files] if index else [n for n in files if n not in stray]
    missing = (
        [name for name in index.files if not folder.is_file(name)] if index else missing_numbered_shards(model_files)
    )
    missing = list(dict.fromkeys([*missing, *dead]))
    survey, absent = survey_files(folder, [n for n in model_files if n not in missing], index)
    put_survey_facts(folder, survey, where)
    folder.put_list_fact("weights.missing", sorted(missing), where)
    folder.put_list_fact("weights.unindexed", stray, where)
    folder.put_list_fact("weights.missing_tensors", absent, where)


def survey_files(
    folder: ArtifactFolder, files: list[str], index: WeightIndex | None = None
) -> tuple[WeightSurvey, list[str]]:
    """Return the sum of the files' headers, and the tensors an index places in a file that lacks them."""
    survey = WeightSurvey()
    absent: list[str] = []
    for at, name in enumerate(files):
        if at == MAX_WEIGHT_FILES or survey.tensors > MAX_TENSORS:
            folder.unread.append(f"{len(files) - at:,} of {len(files):,} files of weights were not looked at")
            break
        header = read_safetensors_header(folder.host, folder.path_of(name))
        survey.add_file(name, header)
        if index and header.tensors:
            absent += [f"{tensor} ({name})" for tensor in index.files[name] if tensor not in header.tensors]
    return survey, absent


def _read_other_formats(folder: ArtifactFolder) -> None:
    """Put the facts of weights that are no safetensors: how many, and whether they are there at all."""
    index = read_weight_index(folder, ".bin.index.json")
    pickles = sorted(n for n in folder.names if n.endswith(PICKLE_SUFFIXES) and n not in NON_WEIGHT_FILES)
    ggufs = sorted(name for name in folder.names if name.endswith(".gguf"))
    files = pickles or ggufs
    if not files and index is None:
        if folder.names:
            folder.facts.put("weights.files", 0, folder.path)
        return
    where = folder.path_of(index.name if index else files[0])
    kind = "gguf" if ggufs and not pickles else (files[0] if files else ".bin").rpartition(".")[2]
    folder.facts.put("weights.format", kind, where)
    folder.facts.put("weights.files", len(files), where)
    folder.facts.put("weights.bytes", sum(folder.file_size(name) for name in files[:MAX_WEIGHT_FILES]), where)
    missing = [name for name in index.files if not folder.is_file(name)] if index else missing_numbered_shards(files)
    folder.put_list_fact("weights.missing", sorted(missing), where)
    small = [name for name in files[:MAX_WEIGHT_FILES] if folder.is_file(name) and folder.file_size(name) < 1024]
    starts: dict[str, Any] = {name: folder.first_bytes(name) for name in small}
    folder.put_list_fact("weights.lfs_pointers", [n for n, b in starts.items() if b.startswith(GIT_LFS_MAGIC)], where)
    folder.put_list_fact("weights.truncated", [f"{n}: is empty" for n, b in starts.items() if not b], where)
