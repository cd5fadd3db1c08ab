"""Facts from options of the LLM API, wherever they stand: a YAML file, a command line, Triton's model.yaml."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.inspect.facts.config_keys import CONFIG_KEYS
from trtdx.inspect.facts.options import is_for_autodeploy, judged, table, wrong_value
from trtdx.inspect.facts.vocabulary import term

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trtdx.formats.documents import Document
    from trtdx.inspect.facts.artifact import Facts

MOST_SETTINGS = 2000  # a file of options has some dozens

# The names that every artifact shares, by the key of the LLM API.
FACT_OF = CONFIG_KEYS.llm_api


class Setting(NamedTuple):
    """One option as it was given."""

    key: str
    value: Any
    where: str


def settings_from(document: Document, skip: tuple[str, ...] = ()) -> list[Setting]:
    """Return the options of a file by their dotted names, sections taken apart."""
    data = {key: value for key, value in document.data.items() if key not in skip}
    return [Setting(key, value, document.where(key)) for key, value in _leaves(data)][: MOST_SETTINGS + 1]


def _leaves(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        key = f"{prefix}{name}"
        option = table().option.get(key)
        is_section = isinstance(value, dict) and bool(value) and (option is None or option.type == "table")
        if is_section:
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def put_settings(facts: Facts, settings: list[Setting], version: str = "") -> None:
    """Put each option under the name that all artifacts share; a value the release does not take is told, not kept."""
    backend = next((str(setting.value) for setting in settings if setting.key == "backend"), "")
    has_own_values = is_for_autodeploy((setting.key for setting in settings), backend)
    for setting in settings:
        reason = wrong_value(setting.key, setting.value, version)
        if reason and not (has_own_values and "one of" in reason):
            facts.add(
                "runtime.invalid_values", f"{setting.key} = {setting.value}: {reason}"[:200], setting.where
            )
        elif setting.key in FACT_OF and setting.value is not None:
            name = FACT_OF[setting.key]
            facts.put(name, coerced(term(name).type, setting.value), setting.where)
        if setting.key == "lora_config" or setting.key.startswith("lora_config."):
            facts.put("lora.enabled", setting.value is not None, setting.where)


def put_spelled(facts: Facts, settings: Iterable[Setting]) -> None:
    """Put each option as it is spelled; `null` is a statement, so it is kept as that word."""
    for setting in settings:
        is_json = isinstance(setting.value, (bool, int, float, str, list, dict))
        value = "null" if setting.value is None else setting.value if is_json else str(setting.value)
        facts.put(f"option.{setting.key}", value, setting.where)


def put_judgement(facts: Facts, settings: list[Setting], version: str, backend: str) -> None:
    """Put what releases do not know, or know under another name."""
    places = {setting.key: setting.where for setting in settings}
    if is_for_autodeploy(places, backend):
        return
    for verdict in judged(places, version, backend):
        name = LIST_OF[verdict.problem]
        where = places.get(verdict.key) or next(
            (where for key, where in places.items() if key.startswith(verdict.key + ".")), ""
        )
        facts.add(name, verdict.words, where)


LIST_OF = {
    "unknown": "runtime.unknown_keys",
    "newer": "runtime.unknown_keys",
    "engine-only": "runtime.removed_keys",
    "removed": "runtime.removed_keys",
    "renamed": "runtime.renamed_keys",
}


def coerced(kind: str, value: Any) -> Any:
    """Return a value as pydantic takes it: "8" is 8, "yes" is true."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return value
    if kind == "bool":
        return str(value).lower() in ("true", "yes", "on", "y", "t", "1", "1.0")
    if kind in ("int", "float") and isinstance(value, str):
        return _number(value)
    return value


def _number(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
