"""What can go wrong, told apart by who can act.

TrtdxError                the user can act; printed without a traceback, exit status 2
├── InputError            a file, stream or argument cannot be used
├── RulePageError         a rule page breaks the format
├── UnknownNameError      a code, slug or command nobody knows; carries the nearest ones
├── CaseError             a case folder or file cannot be read or written
├── CaptureError          a capture cannot be read or written (capture/store/format.py)
├── NotFiniteError        a watched run met a NaN or an infinity (capture/session/recorder.py)
├── EvaluationError       an engine cannot compute a model to its end (engines/errors.py)
├── BuildError            TensorRT cannot compile a network (engines/tensorrt/build/errors.py)
├── MissingExtraError     an optional package is not installed
└── BrokenExtraError      an optional package is installed and does not load

Anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class TrtdxError(Exception):
    """An error the user can act on, with the action."""

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class InputError(TrtdxError):
    pass


class RulePageError(TrtdxError):
    pass


MOST_BEGINNINGS = 10


def _nearest_names(name: str, known: Sequence[str]) -> list[str]:
    """Return the names that begin as this one does, else those of which a word does, else those spelt much like it."""
    prefix = name.strip().lower()
    spelt = {candidate.lower(): candidate for candidate in sorted(known)}
    words = [candidate for candidate in spelt if len(prefix) > 1 and f"-{prefix}" in f"-{candidate}"]
    beginning = [candidate for candidate in words if candidate.startswith(prefix)]
    close = difflib.get_close_matches(prefix, list(spelt), n=3, cutoff=0.5)
    return [spelt[candidate] for candidate in (beginning or words or close)[:MOST_BEGINNINGS]]


class UnknownNameError(TrtdxError):
    """A name nobody knows, with the nearest ones; else with `known_as`, or all of them where they are few."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, known_as: str = "") -> None:
        names = list(known)
        near = _nearest_names(name, names)
        few = f"one of {', '.join(names)}" if 0 < len(names) <= MOST_BEGINNINGS else ""
        fix = f"did you mean {' or '.join(near)}?" if near else known_as or few
        super().__init__(f"no {kind} is called {name!r}", fix=fix)


class CaseError(TrtdxError):
    pass


class _OptionalPackageError(TrtdxError):
    def __str__(self) -> str:
        """The fix is in the text: a script's traceback shows nothing else."""
        return f"{self.message}: {self.fix}" if self.fix else self.message


class MissingExtraError(_OptionalPackageError):
    pass


class BrokenExtraError(_OptionalPackageError):
    pass
