"""The store in one file: SQLite, with FTS5 for words."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.errors import CaseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

WAIT_S = 60.0  # for other writers; each holds the file for milliseconds


class SqliteDatabase:
    """A store's file, opened for reading or for writing."""

    spellings: Mapping[str, str] = {
        "identity": "INTEGER PRIMARY KEY",
        "real": "REAL",
        "bytes": "BLOB",
        "clustered": "WITHOUT ROWID",
        "words_table": "CREATE VIRTUAL TABLE case_words USING fts5(words, tokenize = 'ascii')",
        "words_index": "CREATE VIRTUAL TABLE case_word_counts USING fts5vocab(case_words, row)",
    }

    def __init__(self, path: str, *, writes: bool) -> None:
        self.name, self._writes = path, writes
        try:
            self._connection = self._open(Path(path))
        except sqlite3.Error as err:
            raise self._explained(err) from err

    def _open(self, path: Path) -> sqlite3.Connection:
        if not self._writes:
            return _open_reader(path)
        connection = _connect(path, "rwc")
        connection.execute("PRAGMA journal_mode = WAL")  # readers and one writer do not wait for each other
        return connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, tuple(values)).fetchall()
        except sqlite3.Error as err:
            raise self._explained(err) from err

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            self._connection.executemany(statement, rows)
        except sqlite3.Error as err:
            raise self._explained(err) from err

    @contextlib.contextmanager
    def transaction(self, *, exclusive: bool = False) -> Iterator[None]:
        self.execute("BEGIN IMMEDIATE")  # always exclusive: a reader that turns writer half-way could be refused
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    def has_table(self, name: str) -> bool:
        return bool(self.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)))

    def set_words(self, number: int, words: Sequence[str]) -> None:
        self.execute("DELETE FROM case_words WHERE rowid = ?", (number,))
        self.execute("INSERT INTO case_words (rowid, words) VALUES (?, ?)", (number, " ".join(words)))

    def count_words(self, words: Sequence[str]) -> dict[str, int]:
        marks = ",".join("?" * len(words))
        return dict(self.execute(f"SELECT term, doc FROM case_word_counts WHERE term IN ({marks})", words))  # noqa: S608

    def cases_with_words(self, words: Sequence[str], limit: int) -> list[int]:
        query = " OR ".join(f'"{word}"' for word in words)
        rows = self.execute(
            "SELECT rowid FROM case_words WHERE case_words MATCH ? ORDER BY bm25(case_words), rowid DESC LIMIT ?",
            (query, limit),
        )
        return [int(row[0]) for row in rows]

    def words_of_cases(self, numbers: Sequence[int]) -> dict[int, str]:
        marks = ",".join("?" * len(numbers))
        return dict(self.execute(f"SELECT rowid, words FROM case_words WHERE rowid IN ({marks})", numbers))  # noqa: S608

    def close(self) -> None:
        self._connection.close()

    def _explained(self, err: sqlite3.Error) -> CaseError:
        text = str(err)
        if "fts5" in text:
            return CaseError(
                "this Python's SQLite has no FTS5, which the store needs", fix="use another build of Python"
            )
        if "readonly" in text or "read-only" in text:
            return CaseError(f"the store {self.name} cannot be written", fix="name another with TRTDX_STORE")
        if "not a database" in text or "malformed" in text:
            return CaseError(
                f"{self.name} is not a store of cases: {text}", fix="move it away, or name another with TRTDX_STORE"
            )
        if "locked" in text:
            return CaseError(f"the store {self.name} was busy for {WAIT_S:.0f} s", fix="try again")
        return CaseError(f"the store {self.name} cannot be used: {text}")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=WAIT_S, isolation_level=None)


def _open_reader(path: Path) -> sqlite3.Connection:
    """Return a connection that changes nothing, also where nothing beside the file can be written."""
    connection = _connect(path, "ro")
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    except sqlite3.OperationalError:
        connection.close()
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?immutable=1", uri=True, timeout=WAIT_S, isolation_level=None
        )
    return connection
