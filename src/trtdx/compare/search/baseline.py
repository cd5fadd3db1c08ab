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
from trtdx.capture.store.origin import describe_changes
from trtdx.compare.align.align import align_sides
from trtdx.compare.align.pair_building import EMPTY
from trtdx.compare.judge.honest_runs import ReferenceRuns
from trtdx.compare.judge.metrics import measure_pair
from trtdx.compare.judge.statistics_verdict import judge_by_statistics
from trtdx.compare.judge.verdict import judge_pairs
from trtdx.compare.locate.first_divergence import locate_first_divergence
from trtdx.compare.nouns import JudgedPair, PairVerdict, TokenRows, Where
from trtdx.compare.report.comparison_report import (
    ComparisonReport,
    UnmatchedRow,
    divergence_section,
    drift_section,
    missing_parts,
    tensor_row,
)
from trtdx.compare.report.finding import finding_at, neighbour_evidence
from trtdx.compare.sides.rerun import CapturedFeeds, read_captured_feeds, rerun_capture, spec_from_capture
from trtdx.compare.sides.side import ComparisonQuestion, Side, SideSpec, open_side, parse_side
from trtdx.compare.sides.working_folder import working_folder
from trtdx.errors import InputError
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.model import Evidence, Section, Summary
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtdx.compare.judge.tolerance import Tolerances
    from trtdx.compare.locate.first_divergence import FirstDivergence
    from trtdx.compare.nouns import TensorPair, UnmatchedTensor
    from trtdx.host import Host
    from trtdx.model import Finding
    from trtdx.rule import RuleBook

CHANGED, MISSING = "DX931", "DX932"
NOTHING_TOLD = "nothing that the two runs tell of: the same versions, options, files and processor"


class BaselineCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Which baseline to check, against which model."""

    baseline: str  # a capture
    model: str = ""  # the one that the baseline names, where it is not told; also another capture
    keep: str = ""  # a folder for the new run


def compare_with_baseline(
    host: Host,
    check: BaselineCheck,
    book: RuleBook,
    *,
    tolerance: Tolerances | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> ComparisonReport:
    """Return what changed since a run was kept: nothing, or the first tensor that did.

    Raises:
        InputError: the baseline does not say what was run, or is cut off and nothing changed in what is there.
    """
    baseline = Side(SideSpec("capture", check.baseline), Path(check.baseline))
    with working_folder(check.keep) as folder:
        progress(f"running what {check.baseline} is of")
        now, question = _run_again(host, check, baseline, folder)
        progress("comparing")
        return _BaselineComparison(host, check, book, baseline, now).report(
            ReferenceRuns(host, question, folder / "runs", now, baseline), tolerance
        )


def _run_again(host: Host, check: BaselineCheck, baseline: Side, folder: Path) -> tuple[Side, ComparisonQuestion]:
    model = parse_side(host, check.model) if check.model else None
    if model is not None and not model.is_model:
        return open_side(host, model, ComparisonQuestion(), folder / "now"), ComparisonQuestion()
    spec = spec_from_capture(baseline.capture, model)
    fed: CapturedFeeds = read_captured_feeds(baseline.capture)
    now = rerun_capture(spec, baseline.capture, fed, folder / "now")
    return now, fed.to_question(folder)


class _BaselineComparison:
    """A baseline and today's run, on the way to a report."""

    def __init__(self, host: Host, check: BaselineCheck, book: RuleBook, baseline: Side, now: Side) -> None:
        self.host, self.check, self.book = host, check, book
        self.baseline, self.new_run = baseline, now
        self.changes = describe_changes(baseline.capture.header, now.capture.header)

    def report(self, runs: ReferenceRuns, tolerance: Tolerances | None) -> ComparisonReport:
        alignment = align_sides(self.new_run, self.baseline)
        pairs = judge_pairs(alignment.pairs, self.new_run, self.baseline, runs=runs, tolerance=tolerance)
        padded = self._is_padded()  # a prompt; later steps have a token of each row
        judged = [judge_by_statistics(result, padded=padded and not result.pair.step) for result in pairs]
        located = locate_first_divergence(judged, self.new_run, self.baseline, runs=runs)
        located = located._replace(judged=[self._swap_sides(result) for result in located.judged])
        lonely = [_swap_unmatched(tensor) for tensor in alignment.unmatched if tensor.reason != EMPTY]
        finding = self._find_change(located, lonely)
        if finding is None:
            self._check_judgeable(located.judged)
            self._check_complete(located.judged)
        return ComparisonReport(
            summary=Summary(
                self._changed_text(finding) if finding else self._unchanged_text(located.judged, runs),
                partial=missing_parts(self.baseline, self.new_run),
            ),
            findings=(finding,) if finding else (),
            sections=self._report_sections(located) if finding else (),
            tensors=tuple(map(tensor_row, located.judged)),
            unmatched=tuple(UnmatchedRow(*tensor) for tensor in lonely),
            segment_runs=located.segment_runs,
        )

    def _swap_sides(self, judged: JudgedPair) -> JudgedPair:
        """Return a verdict with the baseline as the reference, as a reader expects."""
        pair = _swap_pair(judged.pair)
        measured = measure_pair(pair, self.baseline, self.new_run).difference if judged.difference else None
        return judged._replace(pair=pair, difference=measured)

    def _find_change(self, located: FirstDivergence, lonely: Sequence[UnmatchedTensor]) -> Finding | None:
        if located.where is not None:
            return self._changed_finding(located, located.where)
        gone = [tensor for tensor in lonely if tensor.side == "reference" and tensor.step in self._complete_steps()]
        return self._missing_finding(gone) if gone or not located.judged else None

    def _changed_finding(self, located: FirstDivergence, where: Where) -> Finding:
        first = next(result for result in located.judged if _is_at_place(result, where))
        around = neighbour_evidence(located, "unchanged before it", "changed because of it")
        evidence = (
            Evidence(str(where), _change_text(first)),
            self._since_evidence(),
            *around,
            *self._token_evidence(),
        )
        values = {"tensor": where.tensor, "step": where.step, **self._page_values()}
        violation = Violation(evidence, values, confidence=round(first.confidence, 3))
        return finding_at(where, self.book.get(CHANGED), violation)

    def _missing_finding(self, gone: Sequence[UnmatchedTensor]) -> Finding:
        """Return the finding for a run that lacks tensors of the baseline."""
        first = gone[0].name if gone else "all of it"
        missing = Evidence(self.check.baseline, "no tensor has a counterpart")
        if gone:
            text = f"{gone[0].reason}; {format_count(len(gone), 'such tensor')}"
            missing = Evidence(f"step {gone[0].step}, {first}", text)
        values = {"tensor": first, "count": len(gone), **self._page_values()}
        return finding_from(self.book.get(MISSING), Violation((missing, self._since_evidence()), values))

    def _since_evidence(self) -> Evidence:
        return Evidence("since the baseline", abbreviate_list(self.changes, 4, "; ") or NOTHING_TOLD)

    def _page_values(self) -> dict[str, str]:
        values = {"again": self._rerun_command(), "baseline": self.check.baseline}
        return values | ({"changes": abbreviate_list(self.changes, 2, "; ")} if self.changes else {})

    def _token_evidence(self) -> list[Evidence]:
        """Return where other tokens are chosen now; generation still continued with the baseline's."""
        before, after = self.baseline.chosen_tokens(), self.new_run.chosen_tokens()
        for step, (old, new) in enumerate(zip(before, after, strict=False)):
            if old != new:
                text = f"{abbreviate_list(new, 6, ' ')} instead of {abbreviate_list(old, 6, ' ')}"
                return [Evidence(f"tokens chosen at step {step}", text)]
        return []

    def _report_sections(self, located: FirstDivergence) -> tuple[Section, ...]:
        first = next((result for result in located.judged if _is_at_place(result, located.where)), None)
        changes = Section("changes", "changed since the baseline", ("",), tuple((change,) for change in self.changes))
        sections = (changes, drift_section(located.judged), divergence_section(located.judged, first))
        return tuple(section for section in sections if section.rows)

    def _complete_steps(self) -> set[int]:
        return {note.step for note in self.baseline.capture.notes(rank=self.baseline.capture.ranks[0])} or {0}

    def _is_padded(self) -> bool:
        """Whether the statistics include rows of padding."""
        masks = [record for record in self.baseline.capture.records(step=0, name=PROMPT_MASK) if record.kept]
        return any(not self.baseline.capture.values(mask).all() for mask in masks)

    def _check_judgeable(self, judged: Sequence[JudgedPair]) -> None:
        """Refuse to call a run unchanged if that cannot be judged."""
        unsure = [result for result in judged if result.verdict is PairVerdict.UNKNOWN]
        if unsure:
            raise InputError(
                f"{format_count(len(unsure), 'tensor')} of {len(judged)} are not bitwise what {self.check.baseline} has, first "
                f"{unsure[0].pair.name}, and whether that is more than rounding cannot be told: {unsure[0].note}",
                fix="keep a baseline with values: trtdx capture MODEL --tap '**:* & is:module' --values '**:*'",
            )

    def _check_complete(self, judged: Sequence[JudgedPair]) -> None:
        """Refuse to call a run unchanged if the baseline is incomplete: what is missing is unknown."""
        problems = self.baseline.capture.partial
        if problems:
            raise InputError(
                f"{self.check.baseline} is not whole ({problems[0]}): {format_count(len(judged), 'tensor')} of it did not "
                "change, and nothing is known of the rest",
                fix="keep a new baseline from a good run",
            )

    def _changed_text(self, finding: Finding) -> str:
        return f"changed since {self.check.baseline}: {finding.message}{self._since_text}"

    @property
    def _since_text(self) -> str:
        return f"; since then: {abbreviate_list(self.changes, 2, '; ')}" if self.changes else ""

    def _unchanged_text(self, judged: Sequence[JudgedPair], runs: ReferenceRuns) -> str:
        same = sum(result.verdict is PairVerdict.SAME for result in judged)
        text = f"unchanged since {self.check.baseline}: {format_count(len(judged), 'tensor')}"
        if same == len(judged):
            return f"{text}, all bitwise the same"
        by = (
            "their statistics differ by no more than rounding (the baseline has no values)"
            if any(result.basis == "statistics" for result in judged)
            else "the others differ by no more than a re-run may"
        )
        unsure = f"; {runs.problem}" if runs.problem else ""
        return f"{text}, {same} bitwise the same, {by}{self._since_text}{unsure}"

    def _rerun_command(self) -> str:
        model = [self.check.model] if self.check.model else []
        return shlex.join(["trtdx", "compare", "baseline", self.check.baseline, *model])


def _is_at_place(judged: JudgedPair, where: Where | None) -> bool:
    return where is not None and (judged.pair.name, judged.pair.step) == (where.tensor, where.step)


def _change_text(first: JudgedPair) -> str:
    """Return by how much a tensor changed, in words."""
    if first.basis == "statistics" or first.difference is None:
        return first.note or f"{first.basis}: changed"
    difference = first.difference
    far = f"relative L2 {difference.relative_l2:.3g}, largest difference {difference.sums.max_abs:.3g}"
    if difference.not_finite:
        return f"{format_count(difference.not_finite, 'element')} not finite on one side only; {far}"
    return f"{far}; {first.ratio:.3g} times what a re-run explains ({first.basis})"


def _swap_pair(pair: TensorPair) -> TensorPair:
    rows = pair.tokens
    tokens = rows and TokenRows(rows.candidate, rows.reference, rows.sequence, rows.position)
    return pair._replace(reference=pair.candidate, candidate=pair.reference, tokens=tokens)


def _swap_unmatched(unmatched: UnmatchedTensor) -> UnmatchedTensor:
    return unmatched._replace(side="candidate" if unmatched.side == "reference" else "reference")
