"""Whether a model still computes what it did: a run that was kept, made again with the same input and tokens.

    report = compare_with_baseline(host, Regression(baseline="good-run"), book)

The same engine and type are expected to give the same bits. Where they do not, what a re-run may change (the order
of sums, by threads or processor) is told from a change by asking today's model: given what the baseline's modules were
given, does it compute what they gave. So the model is the reference there, and the baseline what is judged.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trtdx.capture.session.steps import PROMPT_MASK
from trtdx.capture.store.origin import changes_between
from trtdx.compare.align.align import align
from trtdx.compare.align.pair_building import EMPTY
from trtdx.compare.judge.envelope import Runs
from trtdx.compare.judge.from_statistics import judged_by_statistics
from trtdx.compare.judge.metrics import measure
from trtdx.compare.judge.verdict import judge
from trtdx.compare.locate.first_divergence import locate
from trtdx.compare.nouns import Judged, TokenRows, Verdict, Where
from trtdx.compare.report.report import (
    ComparisonReport,
    Lonely,
    drift_section,
    missing_parts,
    tensor_row,
    way_section,
)
from trtdx.compare.run import working_folder
from trtdx.compare.sides.rerun import Fed, fed_in, rerun, spec_of_baseline
from trtdx.compare.sides.side import Question, Side, Spec, open_side, parse_side
from trtdx.errors import InputError
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.model import Evidence, Section, Summary
from trtdx.words import counted, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtdx.compare.judge.tolerance import Tolerances
    from trtdx.compare.locate.first_divergence import Located
    from trtdx.compare.nouns import Pair, Unmatched
    from trtdx.host import Host
    from trtdx.model import Finding
    from trtdx.rule import RuleBook

CHANGED, MISSING = "DX931", "DX932"
NOTHING_TOLD = "nothing that the two runs tell of: the same versions, options, files and processor"


class Regression(msgspec.Struct, frozen=True, kw_only=True):
    """What to run again."""

    baseline: str  # a capture
    model: str = ""  # the one that the baseline names, where it is not told; also another capture
    keep: str = ""  # a folder for the new run


def compare_with_baseline(
    host: Host,
    asked: Regression,
    book: RuleBook,
    *,
    tolerance: Tolerances | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> ComparisonReport:
    """Return what changed since a run was kept: nothing, or the first tensor that did.

    Raises:
        InputError: the baseline does not say what was run, or is cut off and nothing changed in what is there.
    """
    baseline = Side(Spec("capture", asked.baseline), Path(asked.baseline))
    with working_folder(asked.keep) as folder:
        progress(f"running what {asked.baseline} is of")
        now, question = _run_again(host, asked, baseline, folder)
        progress("comparing")
        return _Change(host, asked, book, baseline, now).report(
            Runs(host, question, folder / "runs", now, baseline), tolerance
        )


def _run_again(host: Host, asked: Regression, baseline: Side, folder: Path) -> tuple[Side, Question]:
    given = parse_side(host, asked.model) if asked.model else None
    if given is not None and not given.is_model:
        return open_side(host, given, Question(), folder / "now"), Question()
    spec = spec_of_baseline(baseline.capture, given)
    fed: Fed = fed_in(baseline.capture)
    now = rerun(spec, baseline.capture, fed, folder / "now")
    return now, fed.question(folder)


class _Change:
    """A baseline and today's run, on the way to a report."""

    def __init__(self, host: Host, asked: Regression, book: RuleBook, baseline: Side, now: Side) -> None:
        self.host, self.asked, self.book = host, asked, book
        self.baseline, self.now = baseline, now
        self.changes = changes_between(baseline.capture.header, now.capture.header)

    def report(self, runs: Runs, tolerance: Tolerances | None) -> ComparisonReport:
        found = align(self.now, self.baseline)
        pairs = judge(found.pairs, self.now, self.baseline, runs=runs, tolerance=tolerance)
        padded = self._is_padded()  # a prompt; later steps have a token of each row
        judged = [judged_by_statistics(each, padded=padded and not each.pair.step) for each in pairs]
        located = locate(judged, self.now, self.baseline, runs=runs)
        located = located._replace(judged=[self._turned(each) for each in located.judged])
        lonely = [_turned_side(each) for each in found.unmatched if each.reason != EMPTY]
        finding = self._finding(located, lonely)
        if finding is None:
            self._check_told(located.judged)
            self._check_whole(located.judged)
        return ComparisonReport(
            summary=Summary(
                self._changed_text(finding) if finding else self._unchanged_text(located.judged, runs),
                partial=missing_parts(self.baseline, self.now),
            ),
            findings=(finding,) if finding else (),
            sections=self._sections(located) if finding else (),
            tensors=tuple(map(tensor_row, located.judged)),
            unmatched=tuple(Lonely(each.side, each.name, each.step, each.reason) for each in lonely),
            segment_runs=located.segment_runs,
        )

    def _turned(self, each: Judged) -> Judged:
        """Return a verdict with the baseline as the reference that a reader takes it for."""
        pair = _turned_pair(each.pair)
        measured = measure(pair, self.baseline, self.now).difference if each.difference else None
        return each._replace(pair=pair, difference=measured)

    def _finding(self, located: Located, lonely: Sequence[Unmatched]) -> Finding | None:
        if located.where is not None:
            return self._changed(located, located.where)
        gone = [each for each in lonely if each.side == "reference" and each.step in self._whole_steps()]
        return self._missing(gone) if gone or not located.judged else None

    def _changed(self, located: Located, where: Where) -> Finding:
        first = next(
            each for each in located.judged if each.pair.name == where.tensor and each.pair.step == where.step
        )
        evidence = [Evidence(str(where), _how_much(first)), self._since()]
        if located.still_good:
            evidence.append(Evidence("unchanged before it", listed(located.still_good, 4)))
        if located.poisoned:
            count = counted(len(located.poisoned), "tensor")
            evidence.append(Evidence("changed because of it", f"{count}: {listed(located.poisoned, 3)}"))
        evidence += self._tokens()
        values = {"tensor": where.tensor, "step": where.step, **self._words()}
        rule = self.book.get(CHANGED)
        made = finding_from(rule, Violation(tuple(evidence), values, confidence=round(first.confidence, 3)))
        return msgspec.structs.replace(made, where=where)

    def _missing(self, gone: Sequence[Unmatched]) -> Finding:
        """Return the finding of a run that has not all that the baseline has."""
        first = gone[0].name if gone else "all of it"
        seen = Evidence(
            f"step {gone[0].step}, {first}" if gone else self.asked.baseline,
            f"{gone[0].reason}; {counted(len(gone), 'such tensor')}"
            if gone
            else "no tensor has a counterpart",
        )
        values = {"tensor": first, "count": len(gone), **self._words()}
        return finding_from(self.book.get(MISSING), Violation((seen, self._since()), values))

    def _since(self) -> Evidence:
        return Evidence("since the baseline", listed(self.changes, 4, "; ") or NOTHING_TOLD)

    def _words(self) -> dict[str, str]:
        told = {"again": self._command(), "baseline": self.asked.baseline}
        return told | ({"changes": listed(self.changes, 2, "; ")} if self.changes else {})

    def _tokens(self) -> list[Evidence]:
        """Return where other tokens are chosen now; they were not gone on with."""
        before, after = self.baseline.chosen(), self.now.chosen()
        for step, (old, new) in enumerate(zip(before, after, strict=False)):
            if old != new:
                text = f"{listed(new, 6, ' ')} instead of {listed(old, 6, ' ')}"
                return [Evidence(f"tokens chosen at step {step}", text)]
        return []

    def _sections(self, located: Located) -> tuple[Section, ...]:
        first = next((each for each in located.judged if _is_at(each, located.where)), None)
        changes = Section(
            "changes", "changed since the baseline", ("",), tuple((each,) for each in self.changes)
        )
        found = (changes, drift_section(located.judged), way_section(located.judged, first))
        return tuple(section for section in found if section.rows)

    def _whole_steps(self) -> set[int]:
        return {note.step for note in self.baseline.capture.notes(rank=self.baseline.capture.ranks[0])} or {0}

    def _is_padded(self) -> bool:
        """Whether rows of padding are among what statistics were made of."""
        found = [each for each in self.baseline.capture.records(step=0, name=PROMPT_MASK) if each.kept]
        return any(not self.baseline.capture.values(each).all() for each in found)

    def _check_told(self, judged: Sequence[Judged]) -> None:
        """Refuse to call a run unchanged where nobody can tell."""
        unsure = [each for each in judged if each.verdict is Verdict.UNKNOWN]
        if unsure:
            raise InputError(
                f"{counted(len(unsure), 'tensor')} of {len(judged)} are not bitwise what {self.asked.baseline} has, first "
                f"{unsure[0].pair.name}, and whether that is more than rounding cannot be told: {unsure[0].note}",
                fix="keep a baseline with values: trtdx capture MODEL --tap '**:* & is:module' --values '**:*'",
            )

    def _check_whole(self, judged: Sequence[Judged]) -> None:
        """Refuse to call a run unchanged when the baseline is not all there: nobody knows what is missing."""
        problems = self.baseline.capture.partial
        if problems:
            raise InputError(
                f"{self.asked.baseline} is not whole ({problems[0]}): {counted(len(judged), 'tensor')} of it did not "
                "change, and nothing is known of the rest",
                fix="keep a new baseline from a good run",
            )

    def _changed_text(self, finding: Finding) -> str:
        since = f"; since then: {listed(self.changes, 2, '; ')}" if self.changes else ""
        return f"changed since {self.asked.baseline}: {finding.message}{since}"

    def _unchanged_text(self, judged: Sequence[Judged], runs: Runs) -> str:
        same = sum(each.verdict is Verdict.SAME for each in judged)
        told = f"unchanged since {self.asked.baseline}: {counted(len(judged), 'tensor')}"
        if same == len(judged):
            return f"{told}, all bitwise the same"
        by = (
            "their statistics differ by no more than rounding (the baseline has no values)"
            if any(each.basis == "statistics" for each in judged)
            else "the others differ by no more than a re-run may"
        )
        since = f"; since then: {listed(self.changes, 2, '; ')}" if self.changes else ""
        unsure = f"; {runs.problem}" if runs.problem else ""
        return f"{told}, {same} bitwise the same, {by}{since}{unsure}"

    def _command(self) -> str:
        model = [self.asked.model] if self.asked.model else []
        return shlex.join(["trtdx", "compare", "baseline", self.asked.baseline, *model])


def _is_at(each: Judged, where: Where | None) -> bool:
    return where is not None and (each.pair.name, each.pair.step) == (where.tensor, where.step)


def _how_much(first: Judged) -> str:
    """Return by how much a tensor changed, in words."""
    if first.basis == "statistics" or first.difference is None:
        return first.note or f"{first.basis}: changed"
    found = first.difference
    far = f"relative L2 {found.relative_l2:.3g}, largest difference {found.sums.max_abs:.3g}"
    if found.not_finite:
        return f"{counted(found.not_finite, 'element')} not finite on one side only; {far}"
    return f"{far}; {first.ratio:.3g} times what a re-run explains ({first.basis})"


def _turned_pair(pair: Pair) -> Pair:
    rows = pair.tokens
    tokens = rows and TokenRows(rows.candidate, rows.reference, rows.sequence, rows.position)
    return pair._replace(reference=pair.candidate, candidate=pair.reference, tokens=tokens)


def _turned_side(each: Unmatched) -> Unmatched:
    return each._replace(side="candidate" if each.side == "reference" else "reference")
