"""Which name of one side is which of the other: the same, the same below other wrappers, or the same part of a layer.

Hugging Face, torch's exporter, TensorRT-LLM, vLLM and Megatron call the same parts by other names. What a name means is
told by its structure alone: where it stands below the list of layers, and what its module is called there.
"""

from __future__ import annotations

import re
from functools import lru_cache, reduce
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.layer_paths import LAYERS
from trtdx.tensors.cache_names import cache_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.compare.align.side_tensors import NamedTensor

WRAPPERS = {"m", "model", "transformer", "base_model", "module", "_orig_mod", "language_model", "gpt_neox",
            "wrapped"}  # fmt: skip
_ATTENTION = r"(?:self_attn|self_attention|attention|attn|temporal_block)"
_MLP = r"(?:mlp|feed_forward|ffn|block_sparse_moe|moe)"
_EXPERT = r"(?P<expert>experts\.\d+\.|shared_experts?\.)?"
# What a module inside a layer is; the first that fits.
_IN_LAYER = [
    (rf"{_ATTENTION}\.(?:self\.)?(?:q_proj|wq|query|q|q_lin|q_linear)", "attention.q"),
    (rf"{_ATTENTION}\.(?:self\.)?(?:k_proj|wk|key|k|k_lin|k_linear)", "attention.k"),
    (rf"{_ATTENTION}\.(?:self\.)?(?:v_proj|wv|value|v|v_lin|v_linear)", "attention.v"),
    (rf"{_ATTENTION}\.(?:qkv|qkv_proj|query_key_value|c_attn|Wqkv|wqkv|W_pack|in_proj|linear_qkv)", "attention.qkv"),
    (rf"{_ATTENTION}\.(?:o_proj|dense|out_proj|c_proj|wo|output\.dense|linear_proj|out_lin)", "attention.o"),
    (rf"{_ATTENTION}\.(?:q_norm|q_layernorm)", "attention.q_norm"),
    (rf"{_ATTENTION}\.(?:k_norm|k_layernorm)", "attention.k_norm"),
    (rf"{_ATTENTION}(?:\.self)?", "attention"),
    (rf"{_MLP}\.{_EXPERT}(?:gate_up_proj|fused_fc|linear_fc1|w13|gate_up)", "mlp.{expert}gate_up"),
    (rf"{_MLP}\.{_EXPERT}(?:gate_proj|w1|w_gate)", "mlp.{expert}gate"),
    (rf"{_MLP}\.{_EXPERT}(?:up_proj|w3)", "mlp.{expert}up"),
    (rf"{_MLP}\.{_EXPERT}(?:down_proj|w2|proj|c_proj|dense_4h_to_h|linear_fc2|fc_out|fc2)", "mlp.{expert}down"),
    # `fc` with a sibling `gate` is TensorRT-LLM's gated one: see `gated`
    (rf"{_MLP}\.{_EXPERT}(?:c_fc|dense_h_to_4h|fc_in|fc1|fc)", "mlp.{expert}fc"),
    (rf"{_MLP}\.(?:router|gate)", "mlp.router"),
    (rf"{_MLP}\.{_EXPERT}(?:act_fn|act|activation|activation_fn)", "mlp.{expert}act"),
    (rf"{_MLP}", "mlp"),
    (r"(?:input_layernorm|ln_1|self_attn_layer_norm|attention_norm|norm1|norm_1)", "norm1"),
    (r"(?:post_attention_layernorm|post_layernorm|ln_2|ffn_norm|norm2|norm_2|final_layer_norm)", "norm2"),
    (r"(?:fc1|intermediate\.dense)", "mlp.fc"),
    (r"(?:fc2|output\.dense)", "mlp.down"),
]  # fmt: skip
_AT_TOP = [
    (r"(?:embed_tokens|wte|vocab_embedding|word_embeddings|tok_embeddings|embed_in|embeddings\.word_embeddings)",
     "embedding"),
    (r"(?:wpe|position_embedding|embed_positions|embeddings\.position_embeddings)", "position embedding"),
    (r"(?:norm|ln_f|final_layernorm|final_layer_norm|ln_out|norm_f)", "last norm"),
    (r"(?:lm_head|embed_out|output|output_layer)", "head"),
    (r"(?:rotary_emb|rotary)", "rotary"),
]  # fmt: skip
_TABLES = {
    top: [(re.compile(pattern), role) for pattern, role in table]
    for top, table in ((True, _AT_TOP), (False, _IN_LAYER))
}
ROW_PARALLEL = re.compile(r"(?:attention\.o|mlp\.(?:.*\.)?down|embedding)$")  # each rank may hold a partial sum
_PLACE_NAME = re.compile(r"(.*?):(in|out)(?:\[(\d+)\]|\.(.+))?")
_DEBUG_NAMES = [  # names that TensorRT-LLM's models register, see `register_network_output`
    (re.compile(r"(?:decoder_|encoder_)?layer_(\d+)_output"), r"layers.\1"),
    (re.compile(r"(?:embedding_output|embedding_layer_output|word_embeddings)"), "vocab_embedding"),
    (re.compile(r"(.*layers\.\d+\.(?:mlp|attention))_output"), r"\1"),
    (re.compile(r"(.*layers\.\d+)\.(?:output|hidden_states)"), r"\1"),
]


_PAGES = re.compile(
    r"(?:kv_cache[._])?(key|value|k|v)_?(?:pages|cache|blocks)[._](\d+)|kv_cache[._](\d+)[._](key|value|k|v)"
)


def _paged_cache_part(name: str) -> str:
    """Return the part of the cache that pages hold: "3.key" of "key_pages.3"."""
    match = _PAGES.fullmatch(name)
    if match is None:
        return ""
    which = {"k": "key", "v": "value"}
    part = match[1] or match[4]
    return f"{match[2] or match[3]}.{which.get(part, part)}"


class NameMeaning(NamedTuple):
    """What a name means, on whichever side."""

    scope: str  # the module below the wrappers: "layers.3.mlp", "" is what holds the layers, "^1" what holds that
    role: str  # the same in words that all conventions share: "layers.3.mlp.gate"
    port: str
    port_key: str  # the number or the name of one of several


def tensor_in_words(name: str) -> str:
    """Return a tensor's or module's name as a sentence has it: "h.4#1:in[3]" is "the 4th input of h.4 (2nd call)"."""
    place = _PLACE_NAME.fullmatch(name)
    path, calls, call = (place[1] if place else name).partition("#")
    if calls and not call.isdigit():
        return name
    times = f" ({_ordinal_text(int(call) + 1)} call)" if calls else ""
    if place is None or not place[3]:
        return f"{path}{name[len(place[1]) :] if place else ''}{times}"
    what = "input" if place[2] == "in" else "output"
    return f"the {_ordinal_text(int(place[3]) + 1)} {what} of {path or 'the model'}{times}"


def _ordinal_text(number: int) -> str:
    teens = 11 <= number % 100 <= 13
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def parse_place(name: str) -> tuple[str, str, str]:
    """Return path, port and which of several, from a name alone."""
    if name == "logits":
        return "", "out", "logits"
    match = _PLACE_NAME.fullmatch(name)
    if match:
        return match[1], match[2], match[3] or match[4] or "0"
    for pattern, path in _DEBUG_NAMES:
        debug = pattern.fullmatch(name)
        if debug:
            return debug.expand(path), "out", "0"
    if name.endswith((".weight", ".bias")):
        path, _, port = name.rpartition(".")
        return path, port, "0"
    return name, "out", "0"


def _place_parts(tensor: NamedTensor) -> tuple[str, str, str]:
    place = tensor.place
    if place.tensor and place.path in ("", place.tensor.replace("/", ".")):
        return parse_place(place.path or place.tensor)
    if place.tensor:  # a tensor inside a graph: its name is all that it has
        return f"tensor {place.tensor}", place.port, place.argument or str(place.number)
    return place.path, place.port, place.argument or str(place.number)


def collect_meanings(tensors: dict[str, NamedTensor]) -> dict[str, NameMeaning]:
    """Return what the names of a side mean."""
    parts = {name: _place_parts(tensor) for name, tensor in tensors.items()}
    trunk = _layer_parent(path for path, _, _ in parts.values())
    gated = {path.rpartition(".")[0] for path, _, _ in parts.values() if path.endswith(".fc")} & {
        path.rpartition(".")[0] for path, _, _ in parts.values() if path.endswith(".gate")
    }
    meanings_by_name = {}
    for name, (path, port, which) in parts.items():
        cache = cache_key(name.removesuffix(":new")) or _paged_cache_part(name)
        if cache and tensors[name].place.path in ("", name):
            scope = role = f"cache {cache}"
        elif not path and which == "logits":
            scope, role = "^logits", "logits"
        else:
            scope = _path_below(path, trunk)
            role = _module_role(scope, path.rpartition(".")[0] in gated)
        meanings_by_name[name] = NameMeaning(scope, role, port, which)
    return meanings_by_name


def _layer_parent(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the path of what holds the lists of layers: all that they have in common before."""
    every = {tuple(path.split(".")) for path in paths if path}
    parents = []
    for parts in every:
        at = next((number for number, part in enumerate(parts) if part.isdigit()), 0)
        if at and re.fullmatch(LAYERS, parts[at - 1]):
            parents.append(parts[: at - 1])
    if parents:
        return reduce(_common_prefix, parents)
    shared = reduce(_common_prefix, every) if every else ()  # of a model without layers
    return tuple(takewhile(WRAPPERS.__contains__, shared))


def _path_below(path: str, trunk: tuple[str, ...]) -> str:
    parts = tuple(path.split(".")) if path else ()
    if parts[: len(trunk)] == trunk:
        return ".".join(parts[len(trunk) :])
    if trunk[: len(parts)] == parts:
        return f"^{len(trunk) - len(parts)}"
    return ".".join(parts[len(_common_prefix(parts, trunk)) :])


def _common_prefix(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    both = takewhile(lambda parts: parts[0] == parts[1], zip(one, other, strict=False))
    return tuple(part for part, _ in both)


@lru_cache(maxsize=1 << 16)
def _module_role(scope: str, gated: bool) -> str:
    plain, _, call = scope.partition("#")
    layer = re.fullmatch(rf"(?:(.*)\.)?{LAYERS}\.(\d+)(?:\.(.+))?", plain)
    above, inside = (f"{layer[1] or ''}layers.{layer[2]}", layer[3] or "") if layer else ("", plain)
    role = inside
    for pattern, meant in _TABLES[not layer]:
        fits = pattern.fullmatch(inside)
        if fits:
            role = meant.replace("{expert}", (fits.groupdict().get("expert") or ""))
            break
    if gated:  # TensorRT-LLM: fc is what the activation is of, gate what it is multiplied with
        role = {"mlp.fc": "mlp.gate", "mlp.router": "mlp.up"}.get(role, role)
    joined = ".".join(part for part in (above, role) if part)
    return f"{joined}#{call}" if call else joined


_FLOW = ("in", "norm1", "attention:in", "attention.q_norm", "attention.k_norm", "attention.o", "attention", "norm2",
         "mlp:in", "mlp.router", "mlp.act", "mlp.down", "mlp", "")  # fmt: skip
_STARTS = {"attention": "attention:in", "mlp": "mlp:in"}
_INSIDE = {
    **dict.fromkeys(("attention.q", "attention.k", "attention.v", "attention.qkv"), "attention.q_norm"),
    **dict.fromkeys(("mlp.gate", "mlp.up", "mlp.gate_up", "mlp.fc"), "mlp.router"),
}
_ENDS = {"last norm": 1, "head": 2, "logits": 3}


def data_flow_key(meaning: NameMeaning) -> tuple[int, int, int, int]:
    """Return what sorts tensors as a decoder computes them, where they come in no order of their own."""
    port = 0 if meaning.port == "in" else 1
    layer = re.match(r"layers\.(\d+)(?:\.(.*))?$", meaning.role)
    if layer is None:
        return _ENDS.get(meaning.role, -1), 0, 0, port
    role = layer[2] or ("in" if not port else "")
    if not port:
        role = _STARTS.get(role, role)
    role = _INSIDE.get(role, role)
    known = next(name for name in (role, role.split(".")[0], "") if name in _FLOW)
    return 0, int(layer[1]), _FLOW.index(known), port
