"""Where the pages take cases from: folders and files that were named, or the store."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from trtdx.case import RECORDS_FILE, case_from_bytes, is_case, open_case
from trtdx.errors import CaseError, InputError
from trtdx.render.text import printable_text
from trtdx.ui.read_case import read_case

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.cases.nouns import StoredCase
    from trtdx.host import Host
    from trtdx.ui.read_case import ReadCase

MOST_CASES = 5000
MOST_HITS = 200
PAGE_CASES = 100


class CaseRow(NamedTuple):
    """A case in the list."""

    key: str  # what its address ends in
    name: str
    time: float
    severity: str
    text: str

    @property
    def when(self) -> str:
        return datetime.fromtimestamp(self.time).strftime("%Y-%m-%d %H:%M") if self.time else ""


class CaseList(NamedTuple):
    """A piece of a list of cases, and how many there are in all."""

    rows: list[CaseRow]
    total: int


class CaseShelf(Protocol):
    """Some cases: a list that can be searched, and each of them."""

    def list_cases(self, query: str, *, skip: int = 0, most: int = PAGE_CASES) -> CaseList:
        """Return some of the cases that fit, best or newest first."""

    def read(self, key: str) -> ReadCase:
        """Return a case.

        Raises:
            CaseError: there is no such case, or it is damaged.
        """


class FolderShelf:
    """Cases that were named, or that lie in folders that were named."""

    def __init__(self, host: Host, paths: Sequence[str]) -> None:
        self._host = host
        self._cases = [case for path in paths for case in _cases_below(host, path)][:MOST_CASES]
        if not self._cases:
            raise InputError(f"there is no case in {', '.join(paths)}", fix="make one: trtdx diagnose LOG --save CASE")
        self._rows: dict[
            int, tuple[str, CaseRow, str]
        ] = {}  # by number: the stamp of what was read, the row, its words

    def list_cases(self, query: str, *, skip: int = 0, most: int = PAGE_CASES) -> CaseList:
        words = query.lower().split()
        rows = [self._row(number) for number in range(len(self._cases))]
        kept = sorted((row for row, text in rows if all(word in text for word in words)), key=lambda row: -row.time)
        return CaseList(kept[skip : skip + most], len(kept))

    def _row(self, number: int) -> tuple[CaseRow, str]:
        """Return a row, and the words by which it is found; a case is read again only when it has changed."""
        stamp = _stamp(Path(self._cases[number]))
        kept = self._rows.get(number)
        if kept is None or kept[0] != stamp:
            kept = self._rows[number] = (stamp, *self._read_row(number))
        return kept[1:]

    def _read_row(self, number: int) -> tuple[CaseRow, str]:
        path = self._cases[number]
        name = printable_text(path)
        try:
            view = self.read(f"{number}").view
        except CaseError as err:
            return CaseRow(f"{number}", name, 0.0, "", f"cannot be read: {printable_text(err.message)}"), path.lower()
        worst = view.report.worst_severity()
        findings = " ".join(f"{finding.code} {finding.slug} {finding.message}" for finding in view.report.findings)
        text = printable_text(view.report.summary.text)
        row = CaseRow(f"{number}", name, view.time, worst.value if worst else "", text)
        return row, f"{path} {text} {findings} {view.command}".lower()

    def read(self, key: str) -> ReadCase:
        if not key.isdigit() or int(key) >= len(self._cases):
            raise CaseError(f"there is no case {key}")
        path = self._cases[int(key)]
        return read_case(open_case(self._host, path))


def _stamp(path: Path) -> str:
    """Return what changes when a case does: size and time of its file, or of the journal in its folder."""
    try:
        status = (path / RECORDS_FILE if path.is_dir() else path).stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def _cases_below(host: Host, path: str) -> Iterator[str]:
    if is_case(host, path):
        yield path
    elif host.kind(path) == "directory":
        yield from (str(entry) for entry in sorted(Path(path).iterdir()) if is_case(host, str(entry)))
    elif host.kind(path) == "absent":
        raise InputError(f"{path} does not exist")


class StoreShelf:
    """The store's cases; the store is opened for each question, because pages are made in several threads."""

    def __init__(self, host: Host) -> None:
        from trtdx.cases.store import opened_store

        self._host = host
        with opened_store(host, writes=False):  # refuses where there is none
            pass

    def list_cases(self, query: str, *, skip: int = 0, most: int = PAGE_CASES) -> CaseList:
        from trtdx.cases.search import query_from_words, search_cases
        from trtdx.cases.store import opened_store

        with opened_store(self._host, writes=False) as store:
            if not query.strip():
                listed = store.list_cases(limit=most, skip=skip)
                return CaseList([_row_from_stored(case) for case in listed], store.count_cases())
            hits = search_cases(store, query_from_words(query), limit=MOST_HITS)
            shown = [store.find(hit.id) for hit in hits[skip : skip + most]]
            return CaseList([_row_from_stored(case) for case in shown], len(hits))

    def read(self, key: str) -> ReadCase:
        from trtdx.cases.store import opened_store

        with opened_store(self._host, writes=False) as store:
            stored = store.find(key)
            return read_case(case_from_bytes(store.read_body(stored), stored.id))


def _row_from_stored(case: StoredCase) -> CaseRow:
    resolved = f" — resolved: {case.resolution.cause}" if case.resolution else ""
    name = f"{case.id} ({case.tool})"
    return CaseRow(case.id, name, case.created, case.severity, printable_text(f"{case.title}{resolved}"))
