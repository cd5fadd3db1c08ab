"""Secrets out of structured values, judged by the names they stand under as well as by their text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from trtdx.redact.keys import is_secret_name, is_stand_in
from trtdx.redact.mark import MARK
from trtdx.redact.secrets import redact_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtdx.model import Report

    AnyReport = TypeVar("AnyReport", bound=Report)


def redact_value(data: Any, redact: Callable[[str], str] = redact_secrets, name: str = "") -> Any:
    """Return plain data (mappings, lists, text, numbers) without secrets."""
    if isinstance(data, str):
        return MARK if name and is_secret_name(name) and not is_stand_in(name, data) else redact(data)
    if isinstance(data, dict):
        return {_redact_key(key, redact): redact_value(value, redact, str(key)) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(_redact_item(data, index, redact, name) for index in range(len(data)))
    return data


def _redact_key(key: Any, redact: Callable[[str], str]) -> Any:
    return redact(key) if isinstance(key, str) else key


def _redact_item(data: Sequence[Any], index: int, redact: Callable[[str], str], name: str) -> Any:
    """Return an item of a list; after an option such as `--api-key` it is what the option names."""
    before = data[index - 1] if index else ""
    option = before if isinstance(before, str) and before.startswith("-") and "=" not in before else ""
    return redact_value(data[index], redact, option if option and is_secret_name(option) else name)


def redact_report(report: AnyReport, redact: Callable[[str], str] = redact_secrets) -> AnyReport:
    """Return the report without secrets in any text of it; rows of tables are judged by their first cell's name too."""
    plain = msgspec.to_builtins(report)
    clean = redact_value({key: value for key, value in plain.items() if key != "sections"}, redact)
    clean["sections"] = tuple(_redact_section(section, redact) for section in plain.get("sections", ()))
    return report if clean == plain else msgspec.convert(clean, type(report))


def _redact_section(section: dict[str, Any], redact: Callable[[str], str]) -> dict[str, Any]:
    clean: dict[str, Any] = redact_value({key: value for key, value in section.items() if key != "rows"}, redact)
    columns = [str(column) for column in section["columns"]]
    clean["rows"] = tuple(_redact_row(row, columns, redact) for row in section["rows"])
    return clean


def _redact_row(row: Sequence[Any], columns: Sequence[str], redact: Callable[[str], str]) -> tuple[Any, ...]:
    """Return a row; the cell right of one that is a secret's name is its value, as is one under such a column."""
    cells = []
    for index, cell in enumerate(row):
        names = [
            columns[index] if index < len(columns) else "",
            *(str(left) for left in row[max(0, index - 2) : index]),
        ]
        secret = next((name for name in names if is_secret_name(name)), "")
        cells.append(redact_value(cell, redact, secret))
    return tuple(cells)
