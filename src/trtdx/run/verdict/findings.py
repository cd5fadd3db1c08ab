"""What the verdict is made of: the job as it is looked at, and findings in the words of their pages."""

from __future__ import annotations

import re
import shlex
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trtdx.knowledge.violation import Violation, finding_from
from trtdx.words import join_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtdx.model import Evidence, Finding, Severity
    from trtdx.rule import RuleBook
    from trtdx.run.nouns import JobRecord, RankStory

TAIL_BYTES = 256 << 10
LONGEST_COMMAND = 160


class JobView:
    """All that a verdict may look at."""

    def __init__(
        self, record: JobRecord, stories: Sequence[RankStory], live: Path, load_rules: Callable[[], RuleBook]
    ) -> None:
        self.record, self.stories, self.live = record, stories, live
        self._load_rules = load_rules
        self.ranks = [story for story in stories if story.rank is not None]

    @cached_property
    def book(self) -> RuleBook:
        """Return the rules; a job that is well needs none."""
        return self._load_rules()

    @property
    def others(self) -> list[RankStory]:
        return [story for story in self.stories if story.rank is None]

    def story_of(self, rank: int) -> RankStory:
        return next(story for story in self.ranks if story.rank == rank)

    def launcher_texts(self) -> dict[str, str]:
        """Return the end of what the launcher, and all that prints through it, has printed."""
        return {path.stem: read_tail(path) for path in sorted((self.live / "launcher").glob("*.log"))}

    def texts_of(self, story: RankStory) -> dict[str, str]:
        """Return the end of what a rank has printed, and of its exceptions and crash stacks."""
        texts = {}
        for agent in story.agents:
            for path in sorted(Path(agent.folder).glob("*.log")):
                texts[f"{story.name} {path.stem}"] = read_tail(path)
        for number, exception in enumerate(story.exceptions):
            texts.setdefault(f"{story.name} exception {number}", exception.traceback)
        return texts

    def last_words(self, story: RankStory) -> str:
        """Return the last line a rank has printed."""
        for agent in reversed(story.agents):
            for name in ("stderr", "output", "stdout"):
                lines = [
                    line for line in read_tail(Path(agent.folder, f"{name}.log"), 4096).splitlines() if line.strip()
                ]
                if lines:
                    return lines[-1].strip()[:200]
        return ""


def read_tail(path: Path, most: int = TAIL_BYTES) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - most))
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


def name_ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {join_words(ranks)}"


def name_each(ranks: Sequence[int]) -> str:
    """Return ranks as the subject of a sentence about one."""
    return name_ranks(ranks) if len(ranks) == 1 else f"each of {name_ranks(ranks)}"


def make_finding(
    view: JobView,
    code: str,
    ranks: Sequence[int],
    evidence: Sequence[Evidence],
    values: Mapping[str, object],
    *,
    confidence: float = 0.95,
    severity: Severity | None = None,
) -> Finding:
    """Return a finding in the words of its page, with the ranks to blame."""
    finding = finding_from(view.book.get(code), Violation(tuple(evidence), values, severity, confidence))
    fixes = tuple(
        msgspec.structs.replace(fix, command=_fill_command(view, fix.command) if fix.command else None)
        for fix in finding.fixes
    )
    return msgspec.structs.replace(finding, ranks=tuple(ranks), fixes=fixes, verify=_fill_command(view, finding.verify))


def _fill_command(view: JobView, text: str) -> str:
    """Return a command to paste with this job's command and case in it."""
    text = re.sub(r"\bCASE\b", lambda match: shlex.quote(str(view.live.parent)), text)
    command = shlex.join(view.record.command)
    if "\n" in command or len(command) > LONGEST_COMMAND:
        return text
    return re.sub(r"(?<=-- )COMMAND\b", lambda match: command, text)
