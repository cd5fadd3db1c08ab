"""Fills keys that config.json leaves out with the defaults of the model type's configuration class.

The table is read off transformers by scripts/make_config_defaults.py, so transformers is not needed here. A model type
that is not in it gets nothing: another model's value would be a guess.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import msgspec

from trtdx.formats.documents import Document
from trtdx.inspect.readers.hf.model_config import DECODER_KEYS, EXPERT_COUNT_KEYS, HF_CONFIG_KEYS, ModelConfig

# Keys that mean the same: one that is stated leaves no room for another's default.
_ALIASES = [
    *(keys + DECODER_KEYS.get(name, ()) for name, keys in HF_CONFIG_KEYS.items()),
    EXPERT_COUNT_KEYS,
    (
        "layer_types", "layers_block_type", "hybrid_override_pattern", "block_types", "attn_layer_indices",
        "sliding_window_pattern", "_sliding_window_pattern", "full_attention_interval", "attn_layer_period",
        "linear_attn_config.full_attn_layers", "hybrid_layer_pattern", "compress_ratios", "attn_type_list",
    ),
    ("mlp_layer_types", "first_k_dense_replace", "moe_layer_freq", "num_dense_layers"),
    ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    ("sliding_window", "sliding_window_size", "window_size"),
]  # fmt: skip
_NAMES = {key: names for names in _ALIASES for key in names}
_BY_LAYER = "@"  # before a key: its value is [the first entries, those that then repeat over the layers]


MOST_LAYERS = 10_000


class _DefaultsTable(msgspec.Struct, frozen=True):
    sections: dict[str, dict[str, str]]  # of a composite model type: the model type of each section
    types: dict[str, dict[str, Any]]


class CompletedDocument(Document):
    """A config.json with its class defaults put in; each of these says that it is one."""

    def __init__(self, path: str, data: dict[str, Any], defaults: dict[str, str]) -> None:
        super().__init__(path, data)
        self._defaults = defaults  # by dotted key: the model type it is a default of

    def place_of(self, dotted: str) -> str:
        owner = self._defaults.get(dotted)
        if not owner:
            return super().place_of(dotted)
        return f"{self.path}: {dotted} is left out, which means the default of {owner}"


@cache
def _defaults_table() -> _DefaultsTable:
    data = resources.files("trtdx").joinpath("data/config_defaults.json").read_bytes()
    return msgspec.json.decode(data, type=_DefaultsTable)


def with_class_defaults(document: Document) -> Document:
    """Return a config.json in which the language model and the encoders have all that their classes declare."""
    model_type = document.value_at("model_type")
    below = _defaults_table().sections.get(model_type, {}) if isinstance(model_type, str) else {}
    text = ModelConfig(document).section
    owners = {section: below.get(section, "") for section in (*below, text) if "." not in section}
    if not text:
        owners[""] = below.get("text_config", model_type if isinstance(model_type, str) else "")
    data, defaults = dict(document.data), dict[str, str]()
    for section, implied in owners.items():
        table = data if not section else document.value_at(section)
        if isinstance(table, dict):
            stated = table.get("model_type") if section else ""
            owner = stated if isinstance(stated, str) and stated else implied
            filled = _missing_defaults(owner, table, document.data)
            prefix = f"{section}." if section else ""
            defaults |= {prefix + key: owner for key in filled}
            data |= {section: table | filled} if section else filled
    return CompletedDocument(document.path, data, defaults)


def _missing_defaults(owner: str, table: dict[str, Any], document_data: dict[str, Any]) -> dict[str, Any]:
    """Return the declared defaults for which neither the section nor the top level states anything."""
    filled = {}
    for key, value in _defaults_table().types.get(owner, {}).items():
        names = _NAMES.get(key.removeprefix(_BY_LAYER), (key,))
        stated = any(
            _states_key(table, name) or document_data.get(name.partition(".")[0]) is not None for name in names
        )
        if not stated:
            filled[key] = value
    depth = {**filled, **table}.get("num_hidden_layers")
    for key in [key for key in filled if key.startswith(_BY_LAYER)]:
        first, repeated = filled.pop(key)
        if isinstance(depth, int) and 0 < depth < MOST_LAYERS:
            filled[key.removeprefix(_BY_LAYER)] = (first + repeated * depth)[:depth]
    return filled


def _states_key(table: dict[str, Any], name: str) -> bool:
    """A null is a statement too: the class then computes the value."""
    first, _, rest = name.partition(".")
    return first in table and (not rest or not isinstance(table[first], dict) or _states_key(table[first], rest))
