"""The options and fields that YAML and Python of the LLM API name."""

from __future__ import annotations

import ast
import re
import textwrap
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from trtdx.inspect.mentions.nouns import NameMention
from trtdx.inspect.mentions.shell_mentions import is_placeholder, scripts_in_text, variables_in_code
from trtdx.knowledge.inventory import find_option, list_fields, options_by_path

if TYPE_CHECKING:
    from collections.abc import Iterator

FIELD_OWNERS = ("BuildConfig", "PluginConfig", "QuantConfig", "SamplingParams", "Mapping")
CALLABLES = ("LLM", "TorchLlmArgs", "TrtLlmArgs", "LlmArgs")
NESTED_IN_SERVERS = ("context_servers", "generation_servers")  # of disaggregated serving: options, one level down


def mentions_in_yaml(text: str) -> Iterator[NameMention]:
    """Yield the options that a YAML text sets; one that is no file of the LLM API sets none."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return
    if isinstance(data, dict):
        yield from _mentions_in_mapping(data)


def _mentions_in_mapping(data: dict[Any, Any]) -> Iterator[NameMention]:
    for name in NESTED_IN_SERVERS:
        if isinstance(data.get(name), dict):
            yield from _mentions_in_mapping(data[name])
    if any(isinstance(key, str) and find_option(key) for key in data) and not set(NESTED_IN_SERVERS) & set(data):
        yield from _option_mentions(data, "")


def _option_mentions(data: dict[Any, Any], prefix: str) -> Iterator[NameMention]:
    for key, value in data.items():
        path = f"{prefix}{key}"
        plain = str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None
        yield NameMention("option", path, value=plain if plain and not is_placeholder(plain) else None)
        if isinstance(value, dict):
            yield from _option_mentions(value, f"{path}.")


def mentions_in_python(text: str) -> Iterator[NameMention]:
    """Yield the options and fields that Python text gives to the LLM API's classes."""
    yield from variables_in_code(text)
    yield from scripts_in_text(text)
    try:
        tree = ast.parse("async def pasted():\n" + textwrap.indent(text, " "))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            for keyword in node.keywords:
                yield from _keyword_mentions(name, keyword.arg)


def _keyword_mentions(name: str, keyword: str | None) -> Iterator[NameMention]:
    if keyword is None:
        return
    if name in FIELD_OWNERS and list_fields(name):
        yield NameMention("field", keyword, name)
    elif name in CALLABLES:
        yield NameMention("option", keyword)
    elif section := _option_sections().get(name):
        yield NameMention("option", f"{section}.{keyword}")


@cache
def _option_sections() -> dict[str, str]:
    """Return the option that a configuration class is for, by its name: KvCacheConfig is kv_cache_config."""
    sections = {
        path for path, option in options_by_path().items() if "." not in path and option.eras[-1].type == "table"
    }
    return {_class_name(path): path for path in sections}


def _class_name(option: str) -> str:
    return re.sub(r"(?:^|_)(\w)", lambda match: match[1].upper(), option)
