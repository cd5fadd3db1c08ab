"""The store of a team: PostgreSQL."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from trtdx.errors import CaseError
from trtdx.optional import import_optional
from trtdx.redact import redact_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CONNECT_S = 10
MIGRATION_LOCK = 0x7472_7464  # of all locks of this database, the one for changing the tables


class PostgresDatabase:
    """A connection to the database that a URL names."""

    spellings: Mapping[str, str] = {
        "identity": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "real": "DOUBLE PRECISION",
        "bytes": "BYTEA",
        "clustered": "",
        "words_table": "CREATE TABLE case_words (case_number BIGINT PRIMARY KEY, words TEXT NOT NULL, lexemes TSVECTOR NOT NULL)",
        "words_index": "CREATE INDEX case_words_lexemes ON case_words USING gin (lexemes)",
    }

    def __init__(self, url: str) -> None:
        self.name = redact_secrets(re.sub(r"(?<=://)([^@/]*?):[^@/]*@", r"\1@", url))
        self._psycopg = import_optional("psycopg", extra="postgres", purpose="use a store in PostgreSQL")
        try:
            self._connection = self._psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_S)
        except self._psycopg.Error as err:
            raise CaseError(
                f"cannot connect to the store {self.name}: {_first_line(err)}",
                fix="see that the server runs and that TRTDX_STORE names it; passwords go into ~/.pgpass",
            ) from err

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            cursor = self._connection.execute(statement.replace("?", "%s"), tuple(values))
            return list(cursor.fetchall()) if cursor.description else []
        except self._psycopg.Error as err:
            raise self._explained(err) from err

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            with self._connection.cursor() as cursor:
                cursor.executemany(statement.replace("?", "%s"), rows)
        except self._psycopg.Error as err:
            raise self._explained(err) from err

    @contextlib.contextmanager
    def transaction(self, *, exclusive: bool = False) -> Iterator[None]:
        try:
            with self._connection.transaction():
                if exclusive:
                    self.execute("SELECT pg_advisory_xact_lock(?)", (MIGRATION_LOCK,))
                yield
        except self._psycopg.Error as err:  # of the commit
            raise self._explained(err) from err

    def has_table(self, name: str) -> bool:
        return self.execute("SELECT to_regclass(?)", (name,))[0][0] is not None

    def set_words(self, number: int, words: Sequence[str]) -> None:
        self.execute(
            """INSERT INTO case_words (case_number, words, lexemes) VALUES (?, ?, array_to_tsvector(?))
            ON CONFLICT (case_number) DO UPDATE SET words = excluded.words, lexemes = excluded.lexemes""",
            (number, " ".join(words), list(words)),
        )

    def count_words(self, words: Sequence[str]) -> dict[str, int]:
        rows = self.execute(
            """SELECT word, (SELECT COUNT(*) FROM case_words WHERE lexemes @@ quote_literal(word)::tsquery)
            FROM unnest(CAST(? AS TEXT[])) AS word""",
            (list(words),),
        )
        return {word: int(count) for word, count in rows if count}

    def cases_with_words(self, words: Sequence[str], limit: int) -> list[int]:
        query = " | ".join(f"'{word}'" for word in words)
        rows = self.execute(
            """SELECT case_number FROM case_words, CAST(? AS TSQUERY) AS query WHERE lexemes @@ query
            ORDER BY ts_rank(lexemes, query) DESC, case_number DESC LIMIT ?""",
            (query, limit),
        )
        return [int(row[0]) for row in rows]

    def words_of_cases(self, numbers: Sequence[int]) -> dict[int, str]:
        return dict(
            self.execute("SELECT case_number, words FROM case_words WHERE case_number = ANY(?)", (list(numbers),))
        )

    def close(self) -> None:
        self._connection.close()

    def _explained(self, err: Any) -> CaseError:
        if err.sqlstate in ("42501", "25006"):  # insufficient_privilege, read_only_sql_transaction
            return CaseError(
                f"you may read the store {self.name} and not write to it",
                fix="ask for the role trtdx_writer (docs/cases.md), or name another store with TRTDX_STORE",
            )
        return CaseError(f"the store {self.name} cannot be used: {_first_line(err)}")


def _first_line(err: Any) -> str:
    return redact_secrets((str(err).strip().splitlines() or [type(err).__name__])[0])
