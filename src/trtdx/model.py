"""The nouns every capability yields and every renderer reads."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from trtdx.words import abbreviate_list, describe_holds_for, format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.pictures import Picture

SCHEMA_VERSION = 1
Cell = str | int | float | bool | None
Language = Literal["sh", "python", "yaml", "cpp", "dockerfile"]


class Severity(str, Enum):
    """How bad a finding is; ordered by `badness`."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def badness(self) -> int:
        return {"error": 2, "warning": 1, "note": 0}[self.value]


class Stage(str, Enum):
    """The step of a deployment at which something is to be changed."""

    INSTALL = "install"
    CONVERT = "convert"
    BUILD = "build"
    LAUNCH = "launch"
    SERVE = "serve"


class MessagePlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where in a program's sources a line of a log was raised.

    Attributes:
        since: the first release that is known to have it here; empty where the sources of older ones are not public.
        until: the last release that has it here.
        gone_since: the first release that has the wording nowhere any more; empty where the newest still has it.
        share: the share of the message's constant words, by weight, that the line holds; 0 where only the file is
            known.
        is_named: whether the line itself names the file.
    """

    project: str
    path: str
    function: str = ""
    level: str = "text"
    since: str = ""
    until: str = ""
    gone_since: str = ""
    share: float = 0.0
    is_named: bool = False

    def __str__(self) -> str:
        function = f", function {self.function}" if self.function else ""
        first = "" if self.since == self.until else f"{self.since} to " if self.since else "up to "
        gone = f"; no release since {self.gone_since} has this wording" if self.gone_since else ""
        return f"{self.path}{function} ({self.project} {first}{self.until}{gone})"


class ReleaseEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The release that a log comes from, as far as it tells.

    Attributes:
        first: the oldest release that fits.
        last: the newest one; the same as `first` where the release is known.
        where: the line that states it; empty where it is inferred.
        lines: the lines it is inferred from.
    """

    project: str
    first: str
    last: str
    where: str = ""
    lines: int = 0

    @property
    def is_stated(self) -> bool:
        return bool(self.where)

    def __str__(self) -> str:
        return f"{self.project} {self.first}" + (f" to {self.last}" if self.last != self.first else "")


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """One observed fact, where anyone can see it again, and for a line of a log where it was raised."""

    where: str
    text: str
    raised_in: tuple[MessagePlace, ...] = ()


class Fix(msgspec.Struct, frozen=True):
    """One thing to do, the stage it belongs to, and where possible the command to paste."""

    stage: Stage
    text: str
    command: str | None = None
    lang: Language = "sh"  # what the command is written in
    holds_for: str = ""  # the releases it is for: "<0.20", "TensorRT <11"; "": every release, or the one that runs

    @property
    def statement(self) -> str:
        """What to do, and for which releases where it is not for all."""
        text = self.text.removeprefix("or ")
        return f"{text} (for {describe_holds_for(self.holds_for)})" if self.holds_for else text


class Symptom(msgspec.Struct, frozen=True):
    """A consequence folded under its cause."""

    code: str
    message: str
    where: str


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a run: a tensor at a step, and which tokens of it."""

    step: int
    tensor: str
    module: str = ""
    layer: int | None = None
    rank: int = 0
    tokens: tuple[int, ...] = ()

    def __str__(self) -> str:
        rank = f", rank {self.rank}" if self.rank else ""
        tokens = (
            f", {format_count(len(self.tokens), 'token')}: {abbreviate_list(self.tokens, 8)}" if self.tokens else ""
        )
        return f"step {self.step}, {self.tensor}{rank}{tokens}"


class Finding(msgspec.Struct, frozen=True):
    """One cause, with all a reader needs to believe it, mend it and see it gone."""

    code: str
    slug: str
    severity: Severity
    message: str
    why: str
    fixes: tuple[Fix, ...]
    verify: str
    confidence: float
    where: str | Where
    evidence: tuple[Evidence, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    ranks: tuple[int, ...] = ()  # those to blame, not their victims; empty where no rank is


class Harmless(msgspec.Struct, frozen=True):
    """A line that looks alarming and is known to be fine."""

    code: str
    message: str
    where: str
    count: int
    at_least: bool = False  # of a flood not every line is counted

    @property
    def lines(self) -> str:
        return ("at least " if self.at_least else "") + format_count(self.count, "line")


class Unjudged(msgspec.Struct, frozen=True):
    """Agreements that could not be judged, and why; `given`: although all they are between was given."""

    reason: str  # where a side was not given: that side
    codes: tuple[str, ...]
    given: bool = False


class IgnoredFinding(msgspec.Struct, frozen=True):
    """A finding that the user asked not to be told about, and the reason given."""

    code: str
    slug: str
    severity: Severity
    message: str
    where: str
    reason: str


class Summary(msgspec.Struct, frozen=True):
    """What was looked at and, in one line, what came of it."""

    text: str
    inputs: int = 0  # 0: nothing was read, but something was run
    bytes_read: int = 0
    lines_read: int = 0
    ranks: tuple[int, ...] = ()
    harmless: tuple[Harmless, ...] = ()
    partial: tuple[str, ...] = ()
    unjudged: tuple[Unjudged, ...] = ()
    ignored: tuple[IgnoredFinding, ...] = ()
    release: ReleaseEstimate | None = None  # of TensorRT-LLM, where a log tells it


class Section(msgspec.Struct, frozen=True):
    """A table beside the findings: what was seen, for a reader to look things up in."""

    key: str  # stable: "profiles", "settings"
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    after_findings: bool = False  # for looking things up in, once what is wrong has been read


class Report(msgspec.Struct, frozen=True):
    """What a command answers: findings, best first, and the tables asked for."""

    verdict_first: ClassVar[bool] = False  # whether the summary is what a reader wants to see first

    summary: Summary
    findings: tuple[Finding, ...] = ()
    sections: tuple[Section, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def pictures(self) -> tuple[Picture, ...]:
        """Return what a page draws beside the tables."""
        return ()

    def worst_severity(self) -> Severity | None:
        return max((finding.severity for finding in self.findings), key=lambda s: s.badness, default=None)


def headline_from_findings(findings: Sequence[Finding]) -> str:
    """Return how many findings there are of each severity, and the first of them."""
    counts = [(sum(finding.severity is severity for finding in findings), severity.value) for severity in Severity]
    totals = ", ".join(format_count(count, name) for count, name in counts if count)
    return f"{totals}; first: {findings[0].code} {findings[0].message}"
