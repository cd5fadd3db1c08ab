"""Write src/trtdx/data/config_defaults.json: what a key that config.json leaves out means, by model type.

    python scripts/make_config_defaults.py

Read off the configuration classes of the installed transformers, so that trtdx itself never imports it. Only
declared defaults are taken: what a class computes from other keys is None in its declaration, and stays out. Lists
with one entry for each layer are kept as [the first ones, those that repeat].
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "src" / "trtdx" / "data" / "config_defaults.json"
# The keys whose values tell sizes; everything else (tokens, dropout, initialisation) is of no concern to memory.
SIZES = re.compile(
    r"""(?:.*_(?:size|dim|heads|layers|rank|experts|kernel|groups|window|interval|per_tok|per_token|period|offset|
    step|freq|pattern|topk|lora|expand|bias|dtype|ratio|kind|ffn|state|conv|embeddings|positions|input|v)|[nd]_\w+|num_\w+|
    vocab_size|head_dim|mamba_\w+|linear_\w+|index_\w+|attn_\w+|moe_\w+|expand|conv_kernel|tie_word_embeddings|
    is_encoder_decoder|multi_query|new_decoder_architecture|parallel_attn|use_(?:qk_norm|bias|qkv_bias|sliding_window|conv_bias|parallel_residual)|depth|expansion_ratio|qk_layernorm|
    alibi|hc_mult|o_groups|first_k_dense_replace|bias|feed_forward_proj|zero_expert_num|enable_moe_block|layers|heads|
    swa_\w+|spatial_merge_size|gated|mlp_layer_types|layer_types|layers_block_type|mtp_\w+)""",
    re.VERBOSE,
)
NOT_SIZES = re.compile(
    r"initializer|dropout|eps|token|coef|theta|_act$|kernels|use_cache|jitter|image_size|num_channels"
)


def main() -> None:
    from transformers import CONFIG_MAPPING, __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )

    classes = {name: CONFIG_MAPPING[name] for name in CONFIG_MAPPING_NAMES}
    sections = {name: below for name in sorted(classes) if "text_config" in (below := _sections(classes[name]))}
    generating = {
        *MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        "whisper",
    }
    named = generating.union(*(below.values() for below in sections.values()))
    types = {name: _declared(classes[name]) | _patterns(classes[name]) for name in sorted(named) if name in classes}
    lines = [f'"transformers": "{__version__}"', _table("sections", sections), _table("types", types)]
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{TARGET}: {len(types)} types, {TARGET.stat().st_size:,} bytes")


def _declared(config: type) -> dict[str, Any]:
    """Return the sizes a class declares with a value."""
    if not dataclasses.is_dataclass(config):
        return {}
    found = {}
    for field in dataclasses.fields(config):
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if SIZES.fullmatch(field.name) and not NOT_SIZES.search(field.name) and _is_plain(value):
            if field.name == "is_encoder_decoder" and not value:
                continue
            found[field.name] = list(value) if isinstance(value, tuple) else value
    return found


def _patterns(config: type) -> dict[str, Any]:
    """Return the lists by layer that a class makes up by itself, as a beginning and what then repeats."""
    found = {}
    for key in ("layer_types", "mlp_layer_types"):
        try:
            long, short = (getattr(config(num_hidden_layers=count), key, None) for count in (48, 31))
        except Exception:
            continue
        pattern = _repeating(long) if isinstance(long, list) else None
        if pattern and len(set(long)) > 1 and _unfolded(pattern, 31)[:-1] == short[:-1]:
            found[f"@{key}"] = pattern
    return found


def _repeating(kinds: list[str]) -> list[list[str]] | None:
    for period in range(1, 9):
        for start in range(4):
            pattern = [kinds[:start], kinds[start : start + period]]
            if _unfolded(pattern, len(kinds)) == kinds:
                return pattern
    return None


def _unfolded(pattern: list[list[str]], count: int) -> list[str]:
    start, period = pattern
    return (start + period * count)[:count]


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return 0 < len(value) < 130 and all(isinstance(each, (int, str)) for each in value)
    return isinstance(value, (bool, int, str)) or (isinstance(value, float) and value == value)


def _sections(config: type) -> dict[str, str]:
    """Return the model type of each section that a composite configuration has."""
    found = {}
    for section, below in (getattr(config, "sub_configs", None) or {}).items():
        model_type = getattr(below, "model_type", "")
        if not model_type:  # AutoConfig: which class it is, an instance without arguments tells
            try:
                model_type = getattr(getattr(config(), section, None), "model_type", "")
            except Exception:
                continue
        if model_type:
            found[section] = model_type
    return found


def _table(name: str, entries: dict[str, Any]) -> str:
    rows = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in entries.items()
    )
    return f'"{name}": {{\n{rows}\n}}'


if __name__ == "__main__":
    main()
