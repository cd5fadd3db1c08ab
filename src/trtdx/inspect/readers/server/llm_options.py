"""Facts from options of the LLM API, wherever they stand: a YAML file, a command line, Triton's model.yaml."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.inspect.facts.config_keys import CONFIG_KEYS
from trtdx.inspect.facts.option_table import option_table
from trtdx.inspect.facts.options import is_for_autodeploy, judge_options, wrong_value_reason
from trtdx.inspect.facts.vocabulary import require_term

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trtdx.formats.documents import Document
    from trtdx.inspect.facts.artifact import FactCollector

MAX_SETTINGS = 2000  # a file of options has some dozens

# The names that every artifact shares, by the key of the LLM API.
FACT_BY_OPTION = CONFIG_KEYS.llm_api


class OptionSetting(NamedTuple):
    """One option as it was given."""

    key: str
    value: Any
    where: str


def settings_from_document(document: Document, skip: tuple[str, ...] = ()) -> list[OptionSetting]:
    """Return the options of a file by their dotted names, sections taken apart."""
    data = {key: value for key, value in document.data.items() if key not in skip}
    return [OptionSetting(key, value, document.place_of(key)) for key, value in _leaf_options(data)][: MAX_SETTINGS + 1]


def _leaf_options(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        key = f"{prefix}{name}"
        option = option_table().option.get(key)
        is_section = isinstance(value, dict) and bool(value) and (option is None or option.type == "table")
        if is_section:
            yield from _leaf_options(value, f"{key}.")
        else:
            yield key, value


def put_option_facts(facts: FactCollector, settings: list[OptionSetting], version: str = "") -> None:
    """Put each option under the name that all artifacts share; a value the release does not take is told, not kept."""
    backend = next((str(setting.value) for setting in settings if setting.key == "backend"), "")
    has_own_values = is_for_autodeploy((setting.key for setting in settings), backend)
    for setting in settings:
        reason = wrong_value_reason(setting.key, setting.value, version)
        if reason and not (has_own_values and "one of" in reason):
            facts.add("runtime.invalid_values", f"{setting.key} = {setting.value}: {reason}"[:200], setting.where)
        elif setting.key in FACT_BY_OPTION and setting.value is not None:
            name = FACT_BY_OPTION[setting.key]
            facts.put(name, coerce_value(require_term(name).type, setting.value), setting.where)
        if setting.key == "lora_config" or setting.key.startswith("lora_config."):
            facts.put("lora.enabled", setting.value is not None, setting.where)


def put_spelled_options(facts: FactCollector, settings: Iterable[OptionSetting]) -> None:
    """Put each option as it is spelled; `null` is a statement, so it is kept as that word."""
    for setting in settings:
        is_json = isinstance(setting.value, (bool, int, float, str, list, dict))
        value = "null" if setting.value is None else setting.value if is_json else str(setting.value)
        facts.put(f"option.{setting.key}", value, setting.where)


def put_option_verdicts(facts: FactCollector, settings: list[OptionSetting], version: str, backend: str) -> None:
    """Put what releases do not know, or know under another name."""
    places = {setting.key: setting.where for setting in settings}
    if is_for_autodeploy(places, backend):
        return
    for verdict in judge_options(places, version, backend):
        name = FACT_BY_PROBLEM[verdict.problem]
        where = places.get(verdict.key) or next(
            (where for key, where in places.items() if key.startswith(verdict.key + ".")), ""
        )
        facts.add(name, verdict.words, where)


FACT_BY_PROBLEM = {
    "unknown": "runtime.unknown_keys",
    "newer": "runtime.unknown_keys",
    "engine-only": "runtime.removed_keys",
    "removed": "runtime.removed_keys",
    "renamed": "runtime.renamed_keys",
}


def coerce_value(type_name: str, value: Any) -> Any:
    """Return a value as pydantic takes it: "8" is 8, "yes" is true."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return value
    if type_name == "bool":
        return str(value).lower() in ("true", "yes", "on", "y", "t", "1", "1.0")
    if type_name in ("int", "float") and isinstance(value, str):
        return _parse_number(value)
    return value


def _parse_number(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
