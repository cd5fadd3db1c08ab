"""What a step must do at least on one GPU, by module: bytes to read, products to make, bytes to exchange."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from trtdx.memory.ledger.decoder_layers import rank_layer_range
from trtdx.memory.ledger.kv_cache import kv_bytes_per_token
from trtdx.memory.ledger.weights import parameters_by_part, rank_weights

if TYPE_CHECKING:
    from trtdx.memory.nouns import Dims, Setup

ACTIVATION_BYTES = 2
ATTENTION, MLP, MOE, HEAD, ALL_REDUCE, OTHER = "attention", "mlp", "moe", "lm_head", "all-reduce", "other"
MODULE_OF_PART = {
    "attention": ATTENTION, "cross_attention": ATTENTION, "mlp": MLP, "lm_head": HEAD,
    "experts": MOE, "shared_experts": MOE, "router": MOE,
}  # fmt: skip
# Of tables a step reads a row for each token at most; an encoder has worked before.
_NOT_READ = frozenset(
    {"embedding", "positions", "token_inputs", "mtp", "encoder", "rope_table", "expert_workspace", "experts"}
)


class StepLoad(NamedTuple):
    """What one step works on: tokens of prompts, and requests that get one more token."""

    prompt_tokens: float = 0  # of all prompts together
    prompts: float = 0
    ends: float = 0  # of the prompts, those whose last token is among these: only they get logits
    cached: float = 0  # tokens of each prompt that earlier steps have worked on
    decoding: float = 0
    context: float = 0  # tokens that each of the decoding requests has behind it

    @property
    def tokens(self) -> float:
        return self.prompt_tokens + self.decoding


class ModuleWork(NamedTuple):
    """The least that a GPU has to do for a module."""

    read_bytes: float = 0.0
    flops: float = 0.0
    sent_bytes: float = 0.0

    def plus(self, read_bytes: float = 0.0, flops: float = 0.0, sent_bytes: float = 0.0) -> ModuleWork:
        """Return this work and more of it."""
        return ModuleWork(self.read_bytes + read_bytes, self.flops + flops, self.sent_bytes + sent_bytes)


def work_by_module(setup: Setup, load: StepLoad) -> dict[str, ModuleWork]:
    """Return what the first rank has to do in a step."""
    work: dict[str, ModuleWork] = defaultdict(ModuleWork)
    for part, size in _bytes_read(setup, load).items():
        module = MODULE_OF_PART.get(part, OTHER)
        work[module] = work[module].plus(read_bytes=size)
    for part, flops in _product_flops(setup, load).items():
        module = MODULE_OF_PART.get(part, OTHER)
        work[module] = work[module].plus(flops=flops)
    work[ATTENTION] = work[ATTENTION].plus(_cache_bytes(setup, load), _attention_flops(setup, load))
    if sent := _sent_bytes(setup, load):
        work[ALL_REDUCE] = ModuleWork(sent_bytes=sent)
    return dict(work)


def _rank_share(setup: Setup) -> float:
    """Return the share of requests that one rank has: with attention data parallelism each has its own."""
    return 1 / setup.layout.tp if setup.layout.attention_dp else 1.0


def _bytes_read(setup: Setup, load: StepLoad) -> dict[str, float]:
    """Return the bytes of weights that are read, by part: all, but only the experts that have tokens."""
    parts = rank_weights(setup, 0).parts
    read = {part: float(size) for part, size in parts.items() if part not in _NOT_READ}
    if "lm_head" not in parts and setup.layout.pp == 1:
        read["lm_head"] = parts.get("embedding", 0)  # the table is the head
    if not load.decoding and not load.ends:
        read.pop("lm_head", None)
    if "experts" in parts:
        read["experts"] = parts["experts"] * _touched_share(setup.dims, load.tokens)
    read["attention"] = read.get("attention", 0.0) - _bytes_kept_twice(setup)
    return read


def _touched_share(dims: Dims, tokens: float) -> float:
    """Return the share of experts that at least one token goes to, where routing is even."""
    untouched: float = (1.0 - dims.experts_per_token / dims.num_experts) ** max(tokens, 1.0)
    return 1.0 - untouched


def _bytes_kept_twice(setup: Setup) -> float:
    """Return what latent attention keeps a second time and a step does not read."""
    dims = setup.dims
    if not dims.mla:
        return 0.0
    layers = len(rank_layer_range(dims, setup.layout, 0))
    return layers * _heads(setup) * (dims.qk_nope_head_dim + dims.v_head_dim) * dims.kv_lora_rank * ACTIVATION_BYTES


def _heads(setup: Setup) -> float:
    return setup.dims.num_heads / (1 if setup.layout.attention_dp else setup.layout.tp)


def _product_flops(setup: Setup, load: StepLoad) -> dict[str, float]:
    """Return the work of matrix products by part; only tokens that others follow from go through the output head."""
    world = setup.layout.tp * setup.layout.pp
    flops = {
        part: 2.0 * count * load.tokens / world for part, count in _active_parameters(setup.dims, setup.model).items()
    }
    head = setup.dims.vocab_size * setup.dims.hidden_size
    return flops | {"lm_head": 2.0 * head * (load.ends + load.decoding) / world}


@cache
def _active_parameters(dims: Dims, model: str) -> dict[str, float]:
    """Return the parameters that each token is multiplied with, by part and without the output head."""
    parts = {part: float(count) for part, count in parameters_by_part(dims, model).items() if part not in _NOT_READ}
    parts.pop("lm_head", None)
    if dims.num_experts:
        experts = parameters_by_part(dims, model).get("experts", 0)
        parts["experts"] = experts * dims.experts_per_token / dims.num_experts
    return parts


def _cache_bytes(setup: Setup, load: StepLoad) -> float:
    """Return what is read of the KV cache: that of every request once."""
    per_token = kv_bytes_per_token(setup, 0).value * _rank_share(setup)
    return per_token * (
        load.decoding * _mean_tokens_seen(setup.dims, load.context)
        + load.prompts * _mean_tokens_seen(setup.dims, load.cached)
    )


def _mean_tokens_seen(dims: Dims, context: float) -> float:
    """Return how many earlier tokens a layer looks at in the mean: those with a window only its width."""
    if dims.index_heads:
        return 0.0  # an indexer chooses them, and how many it takes is not among the sizes
    if not dims.windows:
        return context
    return sum(min(window or context, context) for window in dims.windows) / len(dims.windows)


def _attention_flops(setup: Setup, load: StepLoad) -> float:
    """Return the work of attention itself: two products for each pair of a token and one that it looks at."""
    dims = setup.dims
    layers = len(rank_layer_range(dims, setup.layout, 0))
    if dims.attention_layers is not None:
        layers = min(layers, dims.attention_layers)
    width = dims.qk_nope_head_dim + dims.qk_rope_head_dim + dims.v_head_dim if dims.mla else 2 * dims.head_dim
    pairs = load.decoding * _mean_tokens_seen(dims, load.context)
    if load.prompts:
        pairs += load.prompts * _pairs_of_prompt(dims, load.prompt_tokens / load.prompts, load.cached)
    return 2.0 * layers * _heads(setup) * width * pairs * _rank_share(setup)


def _pairs_of_prompt(dims: Dims, tokens: float, cached: float) -> float:
    """Return the pairs of a piece of a prompt with what is before each token, in the mean of layers."""
    if dims.index_heads:
        return 0.0
    end = cached + tokens
    windows = dims.windows or (0,)
    return sum(_pairs_within(window or end, cached, end) for window in windows) / len(windows)


def _pairs_within(window: float, begin: float, end: float) -> float:
    """Return the sum of min(window, place) over the places from begin to end."""
    inside = min(max(window, begin), end)
    return (inside**2 - begin**2) / 2 + (end - inside) * window


def _sent_bytes(setup: Setup, load: StepLoad) -> float:
    """Return what two all-reduces in each layer send on a ring; none with attention data parallelism."""
    ranks = setup.layout.tp
    if ranks < 2 or setup.layout.attention_dp:
        return 0.0
    layers = len(rank_layer_range(setup.dims, setup.layout, 0))
    return 2 * layers * 2 * (ranks - 1) / ranks * load.tokens * setup.dims.hidden_size * ACTIVATION_BYTES
