"""Which key of which file states which fact; the names live in one data file, `data/config_keys.toml`."""

from __future__ import annotations

from importlib import resources

import msgspec


class ConfigKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole data file: facts by key, and for Hugging Face's config.json the keys of each fact."""

    builder_config: dict[str, str]
    build_config: dict[str, str]
    pretrained_config: dict[str, str]
    mapping: dict[str, str]
    quantization: dict[str, str]
    trtllm_build: dict[str, str]
    llm_api: dict[str, str]
    adapter_config: dict[str, str]
    generation_config: dict[str, str]
    hf_config: dict[str, tuple[str, ...]]
    hf_decoder: dict[str, tuple[str, ...]]
    hf_switches: dict[str, tuple[str, ...]]


CONFIG_KEYS = msgspec.toml.decode(
    resources.files("trtdx").joinpath("data/config_keys.toml").read_bytes(), type=ConfigKeys
)
