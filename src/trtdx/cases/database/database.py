"""What the store asks of a database. Statements have `?` for values and are the same for both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager


class Database(Protocol):
    """A connection to SQLite or PostgreSQL; every error of theirs leaves it as a `CaseError`."""

    name: str  # without a password
    spellings: Mapping[str, str]  # what this database writes differently

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement for each row of values."""

    def transaction(self, *, exclusive: bool = False) -> AbstractContextManager[None]:
        """Make all that is done inside happen, or nothing of it; `exclusive`: nobody else does the same meanwhile."""

    def has_table(self, name: str) -> bool:
        """Whether there is such a table."""

    def set_words(self, number: int, words: Sequence[str]) -> None:
        """Make a case findable by these words and no others."""

    def count_words(self, words: Sequence[str]) -> dict[str, int]:
        """Return how many cases have each word; words that none has are left out."""

    def cases_with_words(self, words: Sequence[str], limit: int) -> list[int]:
        """Return the numbers of cases with any of the words, those with more and rarer ones first."""

    def words_of_cases(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return the words of cases, separated by blanks."""

    def close(self) -> None:
        """End the connection."""
