"""The nouns of the store: what is known of a case, how it was resolved, and what a search answers."""

from __future__ import annotations

import msgspec

from trtdx.model import Report


class CaseFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a case is about, in the words that a re-occurrence shares with it."""

    codes: tuple[str, ...] = ()  # of the findings, the cause first
    release: str = ""  # of TensorRT-LLM
    gpus: tuple[str, ...] = ()
    models: tuple[str, ...] = ()  # "llama-3.1-8b", "llama": the most particular first
    errors: tuple[str, ...] = ()  # lines without what changes from run to run, the cause's first
    frames: tuple[str, ...] = ()  # "file.py:function", the innermost first


class Resolution(msgspec.Struct, frozen=True):
    """What it really was, what fixed it, and which command showed that it is gone."""

    cause: str
    fix: str = ""
    verified_by: str = ""
    resolved_at: float = 0.0


class CaseRemark(msgspec.Struct, frozen=True):
    """Something added to a case later: a note, or a link to another case or an address."""

    kind: str  # note, link
    time: float
    text: str


class NewCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case on its way into the store, without secrets."""

    tool: str  # the command that made it: diagnose, run, check, compare, memory
    title: str
    severity: str
    created: float
    facts: CaseFacts
    body: bytes  # the case as a `.trtdx` file
    id: str = ""  # of an imported case: the one it had
    resolution: Resolution | None = None
    remarks: tuple[CaseRemark, ...] = ()


class StoredCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case as the store lists it."""

    id: str
    number: int
    created: float
    tool: str
    title: str
    severity: str
    facts: CaseFacts
    body: str  # where its file lies
    body_bytes: int
    group: int  # the same for re-occurrences
    resolution: Resolution | None = None

    @property
    def status(self) -> str:
        return "resolved" if self.resolution else "open"


class OpenedCase(msgspec.Struct, frozen=True):
    """What a case file holds: its report and its texts by name."""

    report: Report | None
    texts: dict[str, str]
    command: str = ""
    created: float = 0.0
    id: str = ""
    resolution: Resolution | None = None
    remarks: tuple[CaseRemark, ...] = ()
    hidden: int = 0  # texts in which secrets were still to be hidden


class Recurrence(msgspec.Struct, frozen=True, omit_defaults=True):
    """How often a problem has come back, how long it took each time, and what worked."""

    count: int
    resolved: int = 0
    mean_hours: float | None = None  # from its occurrence to its resolution
    worked: tuple[tuple[str, int], ...] = ()  # fixes, and how often each was the one


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """A past case, or a rule page, that is like what was asked about."""

    id: str
    score: float
    codes: tuple[str, ...]
    resolution: Resolution | None
    kind: str = "case"  # case, rule
    title: str = ""
    created: float = 0.0
    recurrence: Recurrence | None = None
    same: tuple[str, ...] = ()  # other cases of the same problem on the same set-up
