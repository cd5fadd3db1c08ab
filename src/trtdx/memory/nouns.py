"""Nouns of a memory plan: the set-up that is planned, and the ledger of each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

GIB = 2**30
MIB = 2**20
DEFAULT_SOURCE = "default"  # how `Setup.said` begins where nobody said a thing
LAST_STABLE_RELEASE = "1.2.1"  # of TensorRT-LLM, which is meant where no release is named


class Figure(msgspec.Struct, frozen=True):
    """A number of bytes or tokens, how far off it may be, and where it comes from.

    The true number lies between `low` and `high` nine times in ten. Sources start with one of: "exact"
    (a file's headers), "measured" (a log line), "compiled" (TensorRT's builder), "formula", "given".
    """

    value: int
    low: int
    high: int
    source: str

    @classmethod
    def exact(cls, value: float, source: str = "formula") -> Figure:
        return cls(round(value), round(value), round(value), source)

    @classmethod
    def with_tolerance(cls, value: float, share: float, source: str = "formula", extra: float = 0) -> Figure:
        """Return a figure that may be off by a share of itself, plus `extra`."""
        off = abs(value) * share + extra
        return cls(round(value), max(0, round(value - off)), round(value + off), source)

    def __add__(self, other: Figure) -> Figure:
        source = self.source if self.source == other.source else "formula"
        return Figure(self.value + other.value, self.low + other.low, self.high + other.high, source)


ZERO_FIGURE = Figure.exact(0)


class Component(msgspec.Struct, frozen=True):
    """One line of a rank's ledger."""

    name: str  # stable: see COMPONENTS
    bytes: Figure
    why: str = ""  # the sum in words: "2 x 32 layers x 8 heads x 128 x 2 bytes"
    parts: dict[str, int] = {}  # of the value, where it is made of named parts


# The names of components, in the order they are allocated, and what a table calls them.
COMPONENTS = {
    "cuda_context": "CUDA context and libraries",
    "weights": "weights",
    "draft_weights": "draft model weights",
    "encoder_weights": "multimodal encoder weights",
    "lora": "LoRA cache",
    "communication": "NCCL and all-reduce buffers",
    "activation": "activations and workspace",
    "runtime_buffers": "runtime buffers",
    "decoder_buffers": "decoder and sampler buffers",
    "logits": "logits",
    "cuda_graphs": "CUDA graphs",
    "recurrent_state": "state kept for each sequence",
    "encoder_cache": "multimodal encoder cache",
    "kv_transfer": "KV transfer buffers",
    "other_process": "other processes",
    "host_memory": "the host's share of this memory",
    "kv_pool": "KV cache",
}
COMPONENT_ORDER = {name: index for index, name in enumerate(COMPONENTS)}


class Dims(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a model. Zero means: not there."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    kv_heads_per_layer: tuple[int, ...] = ()  # where layers differ
    kv_shared_layers: int = 0  # the last so many take keys and values of an earlier layer (Gemma 3n, 4)
    keys_are_values: tuple[bool, ...] = ()  # by layer: without a projection of values (Gemma 4)
    qk_norm: bool | None = None  # norms of queries and keys; None: as the family has them
    head_dim_per_layer: tuple[int, ...] = ()
    inner_per_layer: tuple[int, ...] = ()  # of the dense MLPs; 0: the layer has none
    gated: bool = True  # gate and up projections
    tied: bool = False  # the output head is the embedding
    attention_bias: bool = False  # on q, k, v
    output_bias: bool = False  # on the attention's output projection
    mlp_bias: bool = False
    norm_bias: bool = False
    position_embeddings: int = 0  # rows of a learned table
    max_positions: int = 0  # what the model was made for, scaling included
    windows: tuple[int, ...] = ()  # by layer; 0 is full attention
    attention_layers: int | None = None  # None: all; hybrids have fewer
    mlp_layers: int | None = None  # None: all; Nemotron-H has layers that are nothing else
    # multi-head latent attention
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0  # also of attention without latents, where it is not head_dim (MiMo-V2)
    index_heads: int = 0  # of the indexer of sparse attention (DeepSeek V3.2, GLM 5)
    index_head_dim: int = 0
    output_groups: int = 0  # of a low-rank output projection (DeepSeek V4)
    output_rank: int = 0
    compress_ratios: tuple[int, ...] = ()  # by layer: tokens that share an entry of the cache (DeepSeek V4)
    # experts
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    shared_experts: int = 0
    shared_intermediate_size: int = 0  # of all shared experts; 0: shared_experts x moe_intermediate_size
    moe_latent_size: int = 0  # the width experts work in, where it is not the hidden size
    dense_layers: int = 0  # first layers without experts
    moe_every: int = 1  # every n-th layer has experts
    # recurrent layers (Mamba, linear attention)
    state_layers: int = 0
    state_bytes_per_sequence: int = 0  # of all these layers together, before tp
    state_numbers: int = 0  # of them, those whose type can be chosen
    state_dtype: str = ""  # that config.json wants for these
    state_params_per_layer: int = 0
    # beside the decoder's layers
    token_inputs: int = 0  # the width of each layer's own embedding of tokens (Gemma 3n, 4)
    token_inputs_vocab: int = 0
    extra_params: int = 0  # of small parts that have no other name here, spread over the layers
    nextn_layers: int = 0  # multi-token prediction
    draft_vocab: int = 0  # the words an EAGLE3 head may guess; 0: this is no such head
    encoder_positions: int = 0  # the encoder's outputs for a request, which the decoder keeps keys of
    encoder_layers: int = 0  # of an encoder-decoder model; same widths as the decoder
    encoder_params: int = 0  # of a multimodal encoder
    model_type: str = ""

    @property
    def mla(self) -> bool:
        return self.kv_lora_rank > 0


class ParallelLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How the model is spread over GPUs."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 0  # 0: not said, 1
    moe_tp: int = 0
    attention_dp: bool = False
    pp_partition: tuple[int, ...] = ()
    parallel_embedding: bool | None = None  # engines: --use_parallel_embedding; None: the release's default
    gpus_per_node: int = 0

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.cp


class Formats(msgspec.Struct, frozen=True, kw_only=True):
    """The data types of weights, cache and the rest."""

    dtype: str = "bfloat16"  # of what is not quantised
    weights: str = ""  # TensorRT-LLM's quant_algo: "FP8", "NVFP4", "W4A16_AWQ" ...; "" is none
    kv: str = ""  # "auto" resolved: "bfloat16", "fp8", "int8", "nvfp4"; "" is dtype
    group_size: int = 128
    excluded: tuple[str, ...] = ()  # patterns of modules that stay in dtype
    by_module: tuple[tuple[str, str], ...] = ()  # of MIXED_PRECISION, where it is known; the rest is in dtype
    logits_dtype: str = "float32"


class ServingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest step and the longest sequence."""

    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    max_input_len: int = 0
    max_beam_width: int = 1
    max_draft_len: int = 0
    tokens_per_block: int = 32
    max_attention_window: tuple[int, ...] = ()  # as given, repeated over the layers; (): all of max_seq_len


class RuntimeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Backend, release, and the switches that cost memory."""

    backend: str = "pytorch"  # "pytorch" or "tensorrt"
    version: str = ""  # of TensorRT-LLM; "" is the newest trtdx knows
    free_fraction: float = 0.9
    max_tokens: int = 0  # of the KV cache; 0: as many as fit
    max_kv_bytes: int = 0
    host_cache_bytes: int = 0
    block_reuse: bool = True
    # engines
    gemm_plugin: bool = True
    attention_plugin: bool = True
    context_fmha: bool = True
    packed: bool = True  # remove_input_padding
    paged_kv: bool = True
    multiple_profiles: bool = False
    gather_context_logits: bool = False
    gather_generation_logits: bool = False
    # PyTorch
    moe_backend: str = ""
    moe_max_tokens: int = 0  # of one chunk through the experts; 0: all of a step
    cuda_graphs: bool = True
    cuda_graph_max_batch: int = 0  # 0: the release's default
    piecewise_graphs: bool = False
    torch_compile: bool = False
    chunked: bool = False
    disaggregated_tokens: int = 0  # max_tokens_in_buffer
    lora: bool = False
    max_loras: int = 0
    max_lora_rank: int = 0
    other_process_bytes: int = 0
    env: dict[str, str] = {}


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of GPU."""

    name: str
    total_bytes: int  # what cudaMemGetInfo calls total
    sm: int = 0
    source: str = "table"
    unified: bool = False  # shared with the host: what the system holds is not there for the GPU


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a plan is made from."""

    model: str
    dims: Dims
    layout: ParallelLayout
    formats: Formats
    limits: ServingLimits
    running: RuntimeSettings
    device: Device | None = None
    draft: Dims | None = None
    weights_by_rank: tuple[Figure, ...] = ()  # where files tell them; else computed
    activation: Figure | None = None  # compiled, measured or calibrated; else computed
    said: dict[str, str] = {}  # where each thing was taken from: {"tp": "--tp", "hidden_size": "config.json"}

    def is_assumed(self, name: str) -> bool:
        """Return whether nobody said a thing, so that a default stands for it."""
        return self.said.get(name, DEFAULT_SOURCE).startswith(DEFAULT_SOURCE)

    @property
    def is_engine(self) -> bool:
        return self.running.backend == "tensorrt"

    @property
    def release(self) -> str:
        return self.running.version or LAST_STABLE_RELEASE

    @property
    def sm(self) -> int:
        """Return the GPU's compute capability; 0 where it is not known."""
        return self.device.sm if self.device else 0


class RankLedger(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU holds, in the order it is allocated; the KV cache takes a share of what is left."""

    rank: int
    components: tuple[Component, ...]
    kv_bytes_per_token: Figure
    kv_tokens: Figure
    total_bytes: Figure
    capacity: int = 0  # of the device; 0: not known
    fits: bool | None = None
    short_bytes: int = 0  # by how much it does not fit
    why_not: str = ""  # the component at which it ends, in words

    def find_component(self, name: str) -> Component | None:
        return next((component for component in self.components if component.name == name), None)

    def component_bytes(self, name: str) -> int:
        component = self.find_component(name)
        return component.bytes.value if component else 0


class MemoryLedger(msgspec.Struct, frozen=True, kw_only=True):
    """A plan: the ledgers of all ranks. The tightest rank decides whether it fits."""

    setup: Setup
    ranks: tuple[RankLedger, ...]
    notes: tuple[str, ...] = ()  # what was assumed

    @property
    def tightest_rank(self) -> RankLedger:
        return min(self.ranks, key=_tightness_key)

    @property
    def fits(self) -> bool | None:
        return self.tightest_rank.fits

    def rank_like(self, rank: int) -> RankLedger:
        """Return the ledger of a rank; one beyond the last is like the last."""
        return self.ranks[min(rank, len(self.ranks) - 1)]

    @property
    def kv_tokens(self) -> Figure:
        """Return the smallest count of any rank: all ranks keep only so many tokens."""
        return min((rank.kv_tokens for rank in self.ranks), key=lambda figure: figure.value)


def _tightness_key(ledger: RankLedger) -> tuple[int, int, int]:
    # All stages of a pipeline keep as many tokens as the tightest: which one that is, only its free memory shows.
    return (-ledger.short_bytes, ledger.kv_tokens.value, ledger.capacity - ledger.total_bytes.value)


def sum_figures(figures: Iterable[Figure]) -> Figure:
    """Return the sum; the bands add up as if all erred the same way."""
    total = ZERO_FIGURE
    for figure in figures:
        total = total + figure
    return total
