"""The sizes of models that mix attention with recurrent layers: Mamba, Mamba-2, gated linear attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from trtdx.knowledge.versions import at_least

if TYPE_CHECKING:
    from trtdx.inspect.readers.hf.model_config import ModelConfig
    from trtdx.memory.nouns import Dims

STATE_WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}
SIXTEEN_BITS = 2
STATED_SINCE = "1.3.0rc5"  # mamba_ssm_cache_dtype of config.json counts; else the weights' type does
RECURRENT_KINDS = ("mamba", "linear_attention", "recurrent", "M", "conv")
ATTENTION_KINDS = ("*", "attention", "full_attention", "hybrid")
ONLY_RECURRENT = ("mamba", "mamba2", "falcon_mamba")
DENSE_KINDS, EXPERT_KINDS = ("-", "mlp"), ("E", "moe")


class RecurrentState(NamedTuple):
    """What one recurrent layer keeps of a sequence, and what it is made of."""

    numbers: int  # of the state itself, whose type can be chosen
    window: int  # of the convolution, in the type of the weights
    params: int

    @property
    def bytes(self) -> int:
        """Return what it takes in sixteen bits."""
        return (self.numbers + self.window) * SIXTEEN_BITS


def hybrid_sizes(config: ModelConfig) -> dict[str, Any]:
    """Return the fields of Dims that tell recurrent layers; none for a model without them."""
    kinds = _layer_kinds(config)
    recurrent = sum(kind in RECURRENT_KINDS for kind in kinds)
    if not recurrent:
        return {}
    state = _recurrent_state(config)
    sizes: dict[str, Any] = {
        "attention_layers": sum(kind in ATTENTION_KINDS for kind in kinds),
        "state_layers": recurrent,
        "state_bytes_per_sequence": recurrent * state.bytes,
        "state_numbers": recurrent * state.numbers,
        "state_dtype": stated if (stated := str(config.get("mamba_ssm_cache_dtype"))) in STATE_WIDTHS else "",
        "state_params_per_layer": state.params,
    }
    if config.model_type in ONLY_RECURRENT:
        sizes["mlp_layers"] = 0
    if any(kind in DENSE_KINDS + EXPERT_KINDS for kind in kinds):  # each layer is one thing only
        sizes["mlp_layers"] = sum(kind in DENSE_KINDS for kind in kinds)
        if not any(kind in EXPERT_KINDS for kind in kinds):
            sizes["num_experts"] = 0
    if config.get("num_hidden_layers", "n_layer") is None:
        sizes["num_layers"] = len(kinds)
    return sizes


def _recurrent_state(config: ModelConfig) -> RecurrentState:
    """Return the state of a recurrent layer; transformers 5 calls every kind of them linear attention."""
    if isinstance(config.get("linear_attn_config"), dict) or config.get("linear_num_heads") is not None:
        return _delta_state(config)
    if config.get("linear_num_value_heads") is not None:
        return _linear_state(config)
    return _lightning_state(config) if config.model_type.startswith("minimax") else _mamba_state(config)


def with_state_dtype(dims: Dims, stated_dtype: str, dtype: str, release: str) -> Dims:
    """Return the sizes with the recurrent state in its type: as asked for, as config.json states, or as the weights'."""
    stated = dims.state_dtype if at_least(release, STATED_SINCE) else ""
    width = STATE_WIDTHS.get(stated_dtype) or STATE_WIDTHS.get(stated) or STATE_WIDTHS.get(dtype, SIXTEEN_BITS)
    more = dims.state_numbers * (width - SIXTEEN_BITS)
    return replace(dims, state_bytes_per_sequence=dims.state_bytes_per_sequence + more)


def _layer_kinds(config: ModelConfig) -> list[str]:
    """Return the kind of each layer, in the words of whichever key states them."""
    # Nemotron-H: M is Mamba-2, * attention, - an MLP, E experts
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return list(pattern)
    for key in ("layers_block_type", "layer_types", "block_types"):
        kinds = config.get(key)
        if isinstance(kinds, list) and kinds:
            return [str(kind) for kind in kinds]
    layers = config.get("num_hidden_layers", "n_layer")
    if not isinstance(layers, int) or not 0 < layers < 10_000:
        return []
    period, offset = config.get("attn_layer_period"), config.get("attn_layer_offset")  # Jamba
    if isinstance(period, int) and period > 0 and isinstance(offset, int):
        return ["attention" if at % period == offset else "mamba" for at in range(layers)]
    every = config.get("full_attention_interval")  # Qwen3-Next
    if isinstance(every, int) and every > 0:
        return ["full_attention" if (at + 1) % every == 0 else "linear_attention" for at in range(layers)]
    full = config.get("linear_attn_config.full_attn_layers")  # Kimi Linear counts from 1
    if isinstance(full, list):
        return ["full_attention" if at + 1 in full else "linear_attention" for at in range(layers)]
    indices = config.get("attn_layer_indices")  # Bamba
    if isinstance(indices, list):
        return ["attention" if at in indices else "mamba" for at in range(layers)]
    lightning = config.get("attn_type_list")  # MiniMax: 0 is lightning attention, 1 is full
    if isinstance(lightning, list):
        return ["full_attention" if kind == 1 else "linear_attention" for kind in lightning]
    return ["mamba"] * layers if config.model_type in (*ONLY_RECURRENT, "granitemoehybrid", "bamba") else []


def _config_int(config: ModelConfig, *keys: str, default: int = 0) -> int:
    value = config.get(*keys)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1e9 else default


def _mamba_state(config: ModelConfig) -> RecurrentState:
    """Return the state of Mamba layers, of the first kind or the second."""
    first = config.model_type in ("mamba", "jamba", "falcon_mamba")
    return _mamba_1_state(config) if first else _mamba_2_state(config)


def _mamba_1_state(config: ModelConfig) -> RecurrentState:
    hidden = _config_int(config, "hidden_size", "d_model")
    inner = _config_int(config, "expand", "mamba_expand", default=2) * hidden
    if config.model_type != "jamba":  # whose inner size is the MLP's
        inner = _config_int(config, "intermediate_size", "d_inner") or inner
    state = _config_int(config, "state_size", "mamba_d_state", default=16)
    kernel = _config_int(config, "conv_kernel", "mamba_d_conv", "d_conv", default=4)
    rank = _config_int(config, "time_step_rank", "mamba_dt_rank", default=-(-hidden // 16))
    params = 3 * hidden * inner + inner * (kernel + 1)  # in and out, convolution with bias
    params += inner * (rank + 2 * state) + (rank + 1) * inner + inner * (state + 1)
    params += rank + 2 * state if config.model_type == "jamba" else 0  # norms
    return RecurrentState(inner * state, inner * (kernel - 1), params)


def _mamba_2_state(config: ModelConfig) -> RecurrentState:
    hidden = _config_int(config, "hidden_size", "d_model")
    heads = _config_int(config, "mamba_num_heads", "mamba_n_heads", "num_heads")
    head_dim = _config_int(config, "mamba_head_dim", "mamba_d_head", "head_dim", default=64)
    inner = heads * head_dim or hidden * _config_int(config, "expand", "mamba_expand", default=2)
    heads = heads or inner // head_dim
    state = _config_int(config, "ssm_state_size", "mamba_d_state", "state_size", default=128)
    groups = _config_int(config, "n_groups", "mamba_n_groups", default=1)
    kernel = _config_int(config, "conv_kernel", "mamba_d_conv", "d_conv", default=4)
    channels = inner + 2 * groups * state
    bias = config.get("use_conv_bias", "mamba_conv_bias") is not False
    params = hidden * (inner + channels + heads) + inner * hidden + channels * (kernel + bias)
    params += 3 * heads + inner  # time steps, decay, skip; the gated norm
    return RecurrentState(inner * state, channels * (kernel - 1), params)


def _lightning_state(config: ModelConfig) -> RecurrentState:
    """Return the state of MiniMax's lightning attention: a square for each head."""
    hidden = _config_int(config, "hidden_size")
    heads = _config_int(config, "num_attention_heads")
    head_dim = _config_int(config, "head_dim", default=hidden // max(heads, 1))
    inner = heads * head_dim
    return RecurrentState(inner * head_dim, 0, 5 * hidden * inner + inner)


def _linear_state(config: ModelConfig) -> RecurrentState:
    """Return the state of gated delta-net layers (Qwen3-Next): a matrix for each value head."""
    hidden = _config_int(config, "hidden_size")
    key_heads = _config_int(config, "linear_num_key_heads", default=16)
    value_heads = _config_int(config, "linear_num_value_heads", default=32)
    key_dim = _config_int(config, "linear_key_head_dim", default=128)
    value_dim = _config_int(config, "linear_value_head_dim", default=128)
    kernel = _config_int(config, "linear_conv_kernel_dim", default=4)
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    matrix = value_heads * key_dim * value_dim
    params = hidden * (channels + value_heads * value_dim + 2 * value_heads) + value_heads * value_dim * hidden
    params += channels * kernel + 2 * value_heads + value_dim  # convolution, decay and time steps, norm
    return RecurrentState(matrix, channels * (kernel - 1), params)


def _delta_state(config: ModelConfig) -> RecurrentState:
    """Return the state of Kimi's delta attention: a square for each head; gates of low or of full rank."""
    hidden = _config_int(config, "hidden_size")
    heads = _config_int(config, "linear_attn_config.num_heads", "linear_num_heads", default=32)
    head_dim = _config_int(config, "linear_attn_config.head_dim", "linear_head_dim", default=128)
    kernel = _config_int(config, "linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim", default=4)
    inner = heads * head_dim
    low = head_dim * (hidden + inner)
    gate = hidden * inner if config.get("linear_attn_config.use_full_rank_gate") is True else low
    params = 4 * hidden * inner + low + gate + hidden * heads + 3 * inner * kernel
    params += inner + heads + head_dim  # time steps, decay, norm
    return RecurrentState(inner * head_dim, 3 * inner * (kernel - 1), params)
