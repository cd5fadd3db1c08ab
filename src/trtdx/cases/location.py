"""Where the store lies: what TRTDX_STORE names, else a file of the user's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trtdx.errors import CaseError

if TYPE_CHECKING:
    from collections.abc import Mapping

STORE_VARIABLE = "TRTDX_STORE"
FILES_VARIABLE = "TRTDX_CASE_FILES"
STORE_FILE = "cases.sqlite"


class StoreLocation(msgspec.Struct, frozen=True):
    """The database, and where the files of cases go; `files` is empty where they go into the database."""

    database: str  # a path, or postgresql://...
    files: str

    @property
    def is_postgres(self) -> bool:
        return self.database.startswith(("postgresql://", "postgres://"))


def locate_store(environment: Mapping[str, str]) -> StoreLocation:
    """Return where the store lies.

    Raises:
        CaseError: nothing says where, and no folder that others can write to is taken in its place.
    """
    named = environment.get(STORE_VARIABLE, "").strip()
    files = environment.get(FILES_VARIABLE, "").strip()
    if named.startswith(("postgresql://", "postgres://")):
        return StoreLocation(named, files)
    if re.match(r"[a-z][a-z0-9+]*://", named) and not named.startswith("sqlite://"):
        raise CaseError(
            f"{STORE_VARIABLE} names a kind of store that nobody knows: {named.partition('://')[0]}://",
            fix=f"{STORE_VARIABLE}=postgresql://HOST/DATABASE, or a file",
        )
    path = Path(named.removeprefix("sqlite://")) if named else _data_folder(environment) / STORE_FILE
    if path.is_dir() or named.endswith("/"):
        path = path / STORE_FILE
    return StoreLocation(str(path), files or str(path.with_suffix("")) + "-files")


def _data_folder(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_DATA_HOME", "")
    home = environment.get("HOME", "")
    if base and Path(base).is_absolute():
        return Path(base, "trtdx")
    if home and Path(home).is_absolute():
        return Path(home, ".local", "share", "trtdx")
    raise CaseError(
        "there is no place for the store of cases: neither HOME nor XDG_DATA_HOME is set",
        fix=f"{STORE_VARIABLE}=/path/of/your/own/cases.sqlite trtdx ...",
    )
