"""The store: cases go in, are listed, noted on, resolved and found again by what they are about."""

from __future__ import annotations

import hashlib
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.cases.bodies import open_bodies
from trtdx.cases.database.migrations import MIGRATIONS, applied_migrations, migrate
from trtdx.cases.facts import group_number, search_words, term_number, term_texts
from trtdx.cases.location import locate_store
from trtdx.cases.nouns import CaseFacts, CaseRemark, Resolution, StoredCase
from trtdx.errors import CaseError
from trtdx.redact import redact_secrets, redact_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtdx.cases.bodies import BodyStore
    from trtdx.cases.database.database import Database
    from trtdx.cases.location import StoreLocation
    from trtdx.cases.nouns import NewCase
    from trtdx.host import Host

LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # none that looks like another
ID_LETTERS = 9
LEAST_PREFIX = 3
MAX_REMARK = 8000
COLUMNS = "number, id, created, tool, title, severity, facts, body, body_bytes, group_number, resolved_at, cause, fix, verified_by"


class CaseStore:
    """Cases in a database, their files in a place of their own."""

    def __init__(self, database: Database, bodies: BodyStore, now: Any) -> None:
        self.database, self._bodies, self._now = database, bodies, now

    def add(self, case: NewCase) -> str:
        """Keep a case and return its id. Its file is there before the row that points to it."""
        case_id = case.id if case.id and not self._has_id(case.id) else self._fresh_id()
        digest = hashlib.blake2b(case.body, digest_size=8).hexdigest()
        body = self._bodies.write(f"{case_id}-{digest}.trtdx", case.body)
        with self.database.transaction():
            number = self._insert(case, case_id, body)
            terms = term_texts(case.facts).items()
            rows = [(term_number(kind, text), number) for kind, texts in terms for text in texts]
            self.database.execute_many(
                "INSERT INTO case_terms (term, case_number) VALUES (?, ?) ON CONFLICT DO NOTHING", rows
            )
            remarks = [(number, remark.kind, remark.time, remark.text) for remark in case.remarks]
            self._insert_remarks(remarks)
            self.database.set_words(number, _words(case.title, case.facts, case.resolution, case.remarks))
        return case_id

    def _insert(self, case: NewCase, case_id: str, body: str) -> int:
        solved = case.resolution
        row = (
            case_id, case.created, case.tool, redact_secrets(case.title), case.severity,
            msgspec.json.encode(redact_value(msgspec.to_builtins(case.facts))).decode(), body, len(case.body), group_number(case.facts),
            solved.resolved_at if solved else None, *(_clean_resolution(solved) if solved else ("", "", "")),
        )  # fmt: skip
        columns = COLUMNS.partition(", ")[2]
        marks = ", ".join("?" * len(row))
        statement = f"INSERT INTO cases ({columns}) VALUES ({marks}) RETURNING number"  # noqa: S608
        return int(self.database.execute(statement, row)[0][0])

    def _insert_remarks(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            self.database.execute_many(
                "INSERT INTO case_remarks (case_number, kind, time, text) VALUES (?, ?, ?, ?)", rows
            )

    def _fresh_id(self) -> str:
        while self._has_id(case_id := "".join(secrets.choice(LETTERS) for _ in range(ID_LETTERS))):
            pass
        return case_id

    def _has_id(self, case_id: str) -> bool:
        return bool(self.database.execute("SELECT 1 FROM cases WHERE id = ?", (case_id,)))

    def find(self, name: str) -> StoredCase:
        """Return the case whose id this is, or begins with.

        Raises:
            CaseError: there is none, or several.
        """
        prefix = name.strip().lower()
        rows = self._select("WHERE id = ? OR (id >= ? AND id < ?) ORDER BY id LIMIT 3", (prefix, prefix, prefix + "~"))
        exact = [row for row in rows if row.id == prefix]
        if exact or (len(rows) == 1 and len(prefix) >= LEAST_PREFIX):
            return (exact or rows)[0]
        if rows:
            raise CaseError(f"{len(rows)} or more cases begin with {name!r}", fix="give more letters of the id")
        raise CaseError(f"no case has the id {name!r}", fix="trtdx cases list")

    def list_cases(
        self, *, limit: int, skip: int = 0, status: str = "", code: str = "", tool: str = "", since: float = 0.0
    ) -> list[StoredCase]:
        """Return the newest cases that fit, the newest first, without the first few of them."""
        conditions, values = ["created >= ?"], [since]  # type: tuple[list[str], list[Any]]
        if status:
            conditions.append("resolved_at IS NOT NULL" if status == "resolved" else "resolved_at IS NULL")
        if tool:
            conditions.append("tool = ?")
            values.append(tool)
        if code:
            conditions.append("number IN (SELECT case_number FROM case_terms WHERE term = ?)")
            values.append(term_number("code", code.upper()))
        return self._select(
            f"WHERE {' AND '.join(conditions)} ORDER BY created DESC, number DESC LIMIT ? OFFSET ?",
            (*values, limit, skip),
        )

    def cases_by_number(self, numbers: Sequence[int]) -> list[StoredCase]:
        """Return the cases with these numbers."""
        marks = ",".join("?" * len(numbers))
        return self._select(f"WHERE number IN ({marks})", numbers) if numbers else []

    def cases_of_groups(self, groups: Sequence[int]) -> list[tuple[int, float, float | None, str]]:
        """Return group, creation, resolution and fix of every case of the groups."""
        marks = ",".join("?" * len(groups))
        statement = f"SELECT group_number, created, resolved_at, fix FROM cases WHERE group_number IN ({marks})"  # noqa: S608
        return self.database.execute(statement, groups) if groups else []

    def largest_groups(self, limit: int) -> list[tuple[int, int, int]]:
        """Return the problems that came back most often: group, occurrences, and the newest case of it."""
        return self.database.execute(
            """SELECT group_number, COUNT(*), MAX(number) FROM cases GROUP BY group_number HAVING COUNT(*) > 1
            ORDER BY COUNT(*) DESC, group_number LIMIT ?""",
            (limit,),
        )

    def count_by(self, column: str) -> dict[str, int]:
        """Return how many cases there are of each tool or severity."""
        assert column in ("tool", "severity")
        rows = self.database.execute(f"SELECT {column}, COUNT(*) FROM cases GROUP BY {column} ORDER BY 2 DESC, 1")  # noqa: S608
        return {str(name): int(count) for name, count in rows}

    def resolution_times(self) -> tuple[int, int, float | None]:
        """Return how many cases there are, how many are resolved, and the mean time that took in seconds."""
        row = self.database.execute("SELECT COUNT(*), COUNT(resolved_at), AVG(resolved_at - created) FROM cases")[0]
        return int(row[0]), int(row[1]), None if row[2] is None else float(row[2])

    def _select(self, rest: str, values: Sequence[Any]) -> list[StoredCase]:
        return [_case_from_row(row) for row in self.database.execute(f"SELECT {COLUMNS} FROM cases {rest}", values)]  # noqa: S608

    def remarks(self, case: StoredCase) -> list[CaseRemark]:
        """Return what was added to a case, in its order."""
        rows = self.database.execute(
            "SELECT kind, time, text FROM case_remarks WHERE case_number = ? ORDER BY number", (case.number,)
        )
        return [CaseRemark(str(kind), float(time), str(text)) for kind, time, text in rows]

    def add_remark(self, case: StoredCase, kind: str, text: str) -> None:
        """Add a note or a link, and make its words searchable."""
        with self._changing(case):
            self._insert_remarks([(case.number, kind, self._now(), redact_secrets(text)[:MAX_REMARK])])

    def resolve(self, case: StoredCase, resolution: Resolution) -> None:
        """Say what a case really was; a second time replaces the first."""
        with self._changing(case):
            self.database.execute(
                "UPDATE cases SET resolved_at = ?, cause = ?, fix = ?, verified_by = ? WHERE number = ?",
                (resolution.resolved_at or self._now(), *_clean_resolution(resolution), case.number),
            )

    @contextmanager
    def _changing(self, case: StoredCase) -> Iterator[None]:
        """Hold the case's row while it is changed, then index its words anew."""
        with self.database.transaction():
            self.database.execute("UPDATE cases SET tool = tool WHERE number = ?", (case.number,))
            yield
            changed = self.cases_by_number([case.number])[0]
            words = _words(changed.title, changed.facts, changed.resolution, self.remarks(changed))
            self.database.set_words(case.number, words)

    def read_body(self, case: StoredCase) -> bytes:
        """Return the case's file."""
        return self._bodies.read(case.body)

    def count_cases(self) -> int:
        return int(self.database.execute("SELECT COUNT(*) FROM cases")[0][0])

    def count_terms(self, terms: Sequence[int]) -> dict[int, int]:
        """Return how many cases have each term."""
        marks = ",".join("?" * len(terms))
        statement = f"SELECT term, COUNT(*) FROM case_terms WHERE term IN ({marks}) GROUP BY term"  # noqa: S608
        return dict(self.database.execute(statement, terms)) if terms else {}

    def cases_with_terms(self, weights: Mapping[int, float], limit: int) -> list[int]:
        """Return the numbers of the cases whose terms weigh most."""
        if not weights:
            return []
        rows = ", ".join(["(CAST(? AS BIGINT), CAST(? AS REAL))"] * len(weights))
        statement = f"""WITH query (term, weight) AS (VALUES {rows})
            SELECT case_terms.case_number FROM query JOIN case_terms ON case_terms.term = query.term
            GROUP BY case_terms.case_number ORDER BY SUM(query.weight) DESC, case_terms.case_number DESC LIMIT ?"""  # noqa: S608
        values = [value for pair in weights.items() for value in pair]
        return [int(row[0]) for row in self.database.execute(statement, (*values, limit))]

    def close(self) -> None:
        self.database.close()


def _case_from_row(row: tuple[Any, ...]) -> StoredCase:
    resolved_at, cause, fix, verified_by = row[10:]
    return StoredCase(
        number=int(row[0]), id=row[1], created=float(row[2]), tool=row[3], title=row[4], severity=row[5],
        facts=msgspec.json.decode(row[6], type=CaseFacts), body=row[7], body_bytes=int(row[8]), group=int(row[9]),
        resolution=None if resolved_at is None else Resolution(cause, fix, verified_by, float(resolved_at)),
    )  # fmt: skip


def _clean_resolution(resolution: Resolution) -> tuple[str, str, str]:
    cause, fix, verified_by = (
        redact_secrets(text)[:MAX_REMARK] for text in (resolution.cause, resolution.fix, resolution.verified_by)
    )
    return cause, fix, verified_by


def _words(title: str, facts: CaseFacts, resolution: Resolution | None, remarks: Sequence[CaseRemark]) -> list[str]:
    """Return all words that a case is to be found by; what people wrote goes before what programs print."""
    written = [resolution.cause, resolution.fix, resolution.verified_by] if resolution else []
    written += [remark.text for remark in remarks]
    return search_words(*written, title, *facts.codes, *facts.models, *facts.gpus, *facts.errors)


@contextmanager
def opened_store(host: Host, *, writes: bool) -> Iterator[CaseStore]:
    """Give the store that the environment names, its tables up to date; nothing is made for a reader.

    Raises:
        CaseError: it cannot be opened, or there is none yet to read.
    """
    location = locate_store(host.environment())
    database = _open_database(location, writes=writes)
    try:
        if writes:
            migrate(database)
        elif applied_migrations(database) < len(MIGRATIONS):
            raise _no_store(database.name)
        yield CaseStore(database, open_bodies(host, location, database), host.now)
    finally:
        database.close()


def has_store(host: Host) -> bool:
    """Whether there is a store to read; one in PostgreSQL is expected to be there."""
    location = locate_store(host.environment())
    return location.is_postgres or Path(location.database).exists()


def _open_database(location: StoreLocation, *, writes: bool) -> Database:
    if location.is_postgres:
        from trtdx.cases.database.postgres import PostgresDatabase

        return PostgresDatabase(location.database)
    from trtdx.cases.database.sqlite import SqliteDatabase

    file = Path(location.database)
    if writes:
        _make_folder(file.parent)
    elif not file.exists():
        raise _no_store(location.database)
    return SqliteDatabase(location.database, writes=writes)


def _make_folder(folder: Path) -> None:
    """Make the store's folder, which only its owner reads: logs of others' machines lie in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as err:
        raise CaseError(
            f"the folder of the store cannot be made: {folder}: {err.strerror or err}",
            fix="TRTDX_STORE=/path/of/your/own/cases.sqlite trtdx ...",
        ) from err


def _no_store(name: str) -> CaseError:
    return CaseError(f"there is no store of cases yet ({name})", fix="trtdx diagnose server.log --save")
