"""The tensors of an engine, built from the names of their dimensions, release by release."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.profiles.engine_settings import EngineSettings

DimensionSpan = tuple[int, int, int]  # min, opt, max


class InputAxis(NamedTuple):
    """One dimension of an input: TensorRT-LLM's name for it, and its bounds in every profile."""

    name: str
    spans: tuple[DimensionSpan, ...]

    @property
    def is_dynamic(self) -> bool:
        return len({size for span in self.spans for size in span}) > 1


class EngineTensor(NamedTuple):
    """One tensor of an engine; `axes` is empty where a size the engine does not state is needed."""

    name: str
    dtype: str
    axes: tuple[InputAxis, ...]
    mode: str = "in"


class TensorMaker:
    """Makes tensors from the names of their dimensions."""

    def __init__(self, settings: EngineSettings, spans: dict[str, tuple[DimensionSpan, ...]], pp_rank: int) -> None:
        self.settings, self.spans = settings, dict(spans)
        self.profiles = len(next(iter(spans.values())))
        self.is_first_rank, self.is_last_rank = pp_rank == 0, pp_rank == settings.pp_size - 1
        self.layers = layers_of_rank(settings, pp_rank)
        pools = (1, 1, max(1, len(self.layers)))  # how many there are depends on the attention windows
        self.spans["num_kv_cache_pools"] = (pools,) * self.profiles

    def make_tensor(self, name: str, dtype: str, *axes: str | int, mode: str = "in") -> EngineTensor:
        """Return a tensor; an axis is a dimension's name or a fixed size, and 0 is a size nobody stated."""
        if 0 in axes:
            return EngineTensor(name, dtype, (), mode)
        return EngineTensor(name, dtype, tuple(map(self._make_axis, axes)), mode)

    def _make_axis(self, axis: str | int) -> InputAxis:
        if isinstance(axis, str):
            return InputAxis(axis, self.spans[axis])
        return InputAxis("", ((axis, axis, axis),) * self.profiles)


def blocks_span(span: DimensionSpan, tokens_per_block: int) -> DimensionSpan:
    low, best, high = (-(-size // tokens_per_block) for size in span)
    return low, best, high


def layers_of_rank(settings: EngineSettings, pp_rank: int) -> range:
    """Return the layers of a pipeline rank; since 0.20 the first ranks take what division leaves over."""
    per_rank, over = divmod(settings.num_layers, settings.pp_size)
    if not settings.since(0, 20):
        return range(pp_rank * per_rank, (pp_rank + 1) * per_rank)
    start = pp_rank * per_rank + min(pp_rank, over)
    return range(start, start + per_rank + (pp_rank < over))


def token_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    """Yield the tokens and their positions, or the hidden states the rank before sends."""
    s = make.settings
    if not make.is_first_rank:
        size = s.hidden_size // s.tp_size if s.reduce_scatter and s.is_packed else s.hidden_size
        axes = ("num_tokens",) if s.is_packed else ("batch_size_beam_width", "input_len")
        yield make.make_tensor("hidden_states_input", s.dtype, *axes, size)
        return
    if s.is_packed:
        both = (2,) if s.two_positions else ()
        yield make.make_tensor("input_ids", "int32", "num_tokens")
        yield make.make_tensor("position_ids", "int32", *both, "position_ids_num_tokens_range")
        return
    both = (2,) if s.two_positions else ()
    yield make.make_tensor("input_ids", "int32", "batch_size_beam_width", "input_len")
    yield make.make_tensor("position_ids", "int32", "batch_size_beam_width", *both, "position_ids_inlen_range")


def workspace_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    """Yield the pointers that ranks of one tensor-parallel group share; before 0.12 they could be left out."""
    s = make.settings
    if s.tp_size == 1 or not s.since(0, 12):
        return
    pointers = (4, 1) if not s.since(0, 14) else (7, 3) if s.since(0, 21) else (7, 2)
    yield make.make_tensor("all_reduce_workspace", "int64", pointers[0] * s.tp_size + pointers[1])


def prompt_table_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    """Yield the prompt embedding table (images, p-tuning) and which task each token belongs to."""
    s = make.settings
    if not s.prompt_table:
        return
    yield make.make_tensor("prompt_embedding_table", s.dtype, "prompt_embedding_table_size", s.hidden_size)
    axes: tuple[str | int, ...] = ("input_len_task",) if s.is_packed else ("batch_size_beam_width", 1)
    yield make.make_tensor("tasks", "int32", *axes)
    yield make.make_tensor("prompt_vocab_size", "int32", 1)


def lora_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    """Yield where the adapter's weights are, and of what rank, for each layer and module."""
    pointers = 3 if make.settings.since(0, 19) else 2  # the scales of DoRA came third
    for layer in make.layers:
        for module in make.settings.lora_modules:
            name = f"{module}_lora_weights_pointers_{layer}"
            yield make.make_tensor(name, "int64", "batch_size_beam_width", pointers)
            yield make.make_tensor(f"{module}_lora_ranks_{layer}", "int32", "batch_size_beam_width")


def logit_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    """Yield which tokens get logits, on the last rank."""
    s = make.settings
    if not make.is_last_rank or s.gathers_context_logits:
        return
    if not s.is_packed and s.max_draft_len:
        yield make.make_tensor("last_token_ids", "int32", "batch_size_beam_width", "last_token_ids")
    else:
        yield make.make_tensor("last_token_ids", "int32", "batch_size_last_token_ids")


def draft_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    """Yield lengths, positions and masks of draft tokens that the engine itself proposes."""
    s = make.settings
    if not s.max_draft_len or s.drafts_from_outside or not s.since(0, 10):
        return
    words, step = "spec_decoding_packed_mask_dim1", "spec_decoding_position_ids_dim0"
    if not s.since(0, 11):
        yield make.make_tensor("spec_decoding_position_offsets", "int32", "batch_size_beam_width", step)
        yield make.make_tensor("spec_decoding_packed_mask", "int32", "batch_size_beam_width", step, words)
        return
    yield make.make_tensor("spec_decoding_generation_lengths", "int32", "batch_size_beam_width_0")
    yield make.make_tensor("spec_decoding_position_offsets", "int32", "batch_size_beam_width_0", step)
    yield make.make_tensor("spec_decoding_packed_mask", "int32", "spec_decoding_packed_mask_dim0", words)
    if s.since(0, 17):
        yield make.make_tensor("spec_decoding_use", "int32", 1)


def rotary_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    """Yield the multimodal rotary table of Qwen2-VL."""
    s = make.settings
    if not s.rotary_table or not s.since(0, 16):
        return
    name = "mrope_rotary_cos_sin" if s.since(0, 17) else "mrope_rotary_sin_cos"
    yield make.make_tensor(name, "float32", "batch_size_beam_width", s.rotary_table)
    yield make.make_tensor("mrope_position_deltas", "int32", "batch_size_beam_width", 1)


def cache_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    """Yield the key/value cache: one tensor for each layer, or where its blocks are."""
    s = make.settings
    if s.cache == "disabled":
        return
    if s.cache == "paged":
        yield from _block_inputs(make)
        return
    heads = -(-s.num_kv_heads // s.tp_size)
    for layer in make.layers:
        axes = ("batch_size_beam_width", 2, heads, "past_key_len", s.head_size)
        yield make.make_tensor(f"past_key_value_{layer}", s.kv_dtype, *axes)


def _block_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    s, layers = make.settings, len(make.layers)
    blocks: tuple[str | int, ...] = ("batch_size_beam_width", 2, "max_blocks_per_seq")
    if not s.since(0, 10):
        yield make.make_tensor("kv_cache_block_pointers", "int64", layers, *blocks)
        yield make.make_tensor("host_kv_cache_block_pointers", "int64", layers, *blocks)
        return
    pools: tuple[str | int, ...] = ()
    if s.since(0, 20):
        pools = ("num_kv_cache_pools",) if layers else (0,)
    elif s.since(0, 14):
        pools = (1,)
    yield make.make_tensor("kv_cache_block_offsets", "int32", *pools, *blocks)
    yield make.make_tensor("host_kv_cache_block_offsets", "int32", *pools, *blocks)
    yield make.make_tensor("host_kv_cache_pool_pointers", "int64", *pools, 2)
    if s.since(0, 14):
        where: tuple[int, ...] = (layers, 2) if s.since(0, 19) else (layers,)
        yield make.make_tensor("host_kv_cache_pool_mapping", "int32", *where)


def attention_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    """Yield lengths and kinds of the sequences for the attention plugin, or the mask without it."""
    s = make.settings
    if not s.attention_plugin:
        yield make.make_tensor("attention_mask", "int32", "batch_size_beam_width", "mask_len")
    else:
        yield from _plugin_inputs(make)
    if s.cache != "disabled":
        yield make.make_tensor("cache_indirection", "int32", "batch_size_cache", "beam_width", "max_seq_len")


def _plugin_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    s = make.settings
    cached = s.cache != "disabled"
    if cached:
        yield make.make_tensor("sequence_length", "int32", "batch_size_beam_width")
    yield make.make_tensor("host_request_types", "int32", "batch_size_beam_width")
    if cached:
        yield make.make_tensor("host_past_key_value_lengths", "int32", "batch_size_beam_width")
    yield make.make_tensor("context_lengths", "int32", "batch_size_beam_width")
    if s.since(0, 12):
        yield make.make_tensor("host_runtime_perf_knobs", "int64", 16)
    if s.since(0, 15):
        yield make.make_tensor("host_context_progress", "int64", 1)
    if s.is_packed:
        yield make.make_tensor("host_context_lengths", "int32", "batch_size_beam_width")
    yield make.make_tensor("host_max_attention_window_sizes", "int32", len(make.layers))
    yield make.make_tensor("host_sink_token_length", "int32", 1)


def rank_outputs(make: TensorMaker) -> Iterator[EngineTensor]:
    """Yield the logits, or the hidden states for the next rank."""
    s = make.settings
    tokens: tuple[str | int, ...] = ("num_tokens",) if s.is_packed else ("batch_size_beam_width", "input_len")
    if not make.is_last_rank:
        yield make.make_tensor("hidden_states_output", s.dtype, *tokens, s.hidden_size, mode="out")
        return
    padded_vocab = -(-s.vocab_size // s.tp_size) * s.tp_size
    rows = tokens if s.gathers_context_logits else ("batch_size_last_token_ids",)
    yield make.make_tensor("logits", s.logits_dtype, *rows, padded_vocab, mode="out")


INPUT_GROUPS = (
    token_inputs,
    workspace_inputs,
    prompt_table_inputs,
    lora_inputs,
    logit_inputs,
    draft_inputs,
    rotary_inputs,
    cache_inputs,
    attention_inputs,
    rank_outputs,
)
