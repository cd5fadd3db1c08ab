"""The tables, as numbered steps: a step that has been released is never changed, only followed by another.

`{...}` stands for what the two databases write differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.errors import CaseError

if TYPE_CHECKING:
    from trtdx.cases.database.database import Database

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE cases (
            number {identity},
            id TEXT NOT NULL UNIQUE,
            created {real} NOT NULL,
            tool TEXT NOT NULL,
            title TEXT NOT NULL,
            severity TEXT NOT NULL,
            facts TEXT NOT NULL,
            body TEXT NOT NULL,
            body_bytes BIGINT NOT NULL,
            group_number BIGINT NOT NULL,
            resolved_at {real},
            cause TEXT NOT NULL DEFAULT '',
            fix TEXT NOT NULL DEFAULT '',
            verified_by TEXT NOT NULL DEFAULT ''
        )""",
        "CREATE INDEX cases_group ON cases (group_number)",
        "CREATE INDEX cases_created ON cases (created)",
        """CREATE TABLE case_terms (
            term BIGINT NOT NULL,
            case_number BIGINT NOT NULL,
            PRIMARY KEY (term, case_number)
        ) {clustered}""",
        """CREATE TABLE case_remarks (
            number {identity},
            case_number BIGINT NOT NULL,
            kind TEXT NOT NULL,
            time {real} NOT NULL,
            text TEXT NOT NULL
        )""",
        "CREATE INDEX case_remarks_case ON case_remarks (case_number)",
        "CREATE TABLE case_bodies (id TEXT PRIMARY KEY, data {bytes} NOT NULL)",
        "{words_table}",
        "{words_index}",
    ),
)


def migrate(database: Database) -> None:
    """Bring the tables up to date; whoever comes second finds it done.

    Raises:
        CaseError: a newer trtdx made them.
    """
    if applied_migrations(database) == len(MIGRATIONS):
        return
    with database.transaction(exclusive=True):
        database.execute(
            "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, applied_at TEXT DEFAULT CURRENT_TIMESTAMP)"
        )
        for number in range(applied_migrations(database), len(MIGRATIONS)):
            for statement in MIGRATIONS[number]:
                if text := statement.format_map(database.spellings):
                    database.execute(text)
            database.execute("INSERT INTO migrations (number) VALUES (?)", (number + 1,))


def applied_migrations(database: Database) -> int:
    """Return how many steps the tables have had.

    Raises:
        CaseError: a newer trtdx made them.
    """
    if not database.has_table("migrations"):
        return 0
    number = int(database.execute("SELECT COALESCE(MAX(number), 0) FROM migrations")[0][0])
    if number > len(MIGRATIONS):
        raise CaseError(
            f"the store {database.name} was made by a newer trtdx (its tables are at step {number}, this one knows {len(MIGRATIONS)})",
            fix="update trtdx, or name another store with TRTDX_STORE",
        )
    return number
