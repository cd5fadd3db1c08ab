"""A whole comparison: both sides, what is which, what is wrong, where first, and why."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.compare.align.align import Alignment, align_sides
from trtdx.compare.align.mapping import read_mapping
from trtdx.compare.align.modules_by_weight import modules_by_weights
from trtdx.compare.attribute import find_causes
from trtdx.compare.attribute.collect_suspect import collect_suspect
from trtdx.compare.attribute.effort import NORMAL_EFFORT, Effort
from trtdx.compare.attribute.files.file_cause import compare_files
from trtdx.compare.attribute.files.weigh_evidence import merge_file_cause, prefer_scale_cause
from trtdx.compare.attribute.run import EXPLAINED_SHARE
from trtdx.compare.attribute.twin.stand_in import GRAPH_KINDS, find_model_spec
from trtdx.compare.judge.consequences import (
    count_changed_answers,
    find_first_not_finite,
    find_same_kind_errors,
    tolerate_explained,
)
from trtdx.compare.judge.honest_runs import ReferenceRuns, candidate_in_reference_layout
from trtdx.compare.judge.model_outputs import UNCOMPARED_NOTE as OUTPUTS_DIFFER
from trtdx.compare.judge.model_outputs import judge_model_outputs
from trtdx.compare.judge.rewrites import SettledPairs, settle_rewrites
from trtdx.compare.judge.verdict import judge_pairs
from trtdx.compare.locate.first_divergence import locate_first_divergence
from trtdx.compare.report.comparison_report import (
    ComparisonReport,
    Coverage,
    UnmatchedRow,
    about_section,
    alignment_section,
    divergence_section,
    drift_section,
    missing_parts,
    tensor_row,
    verdict_text,
)
from trtdx.compare.report.finding import (
    CauseTrials,
    finding_from_divergence,
    not_finite_finding,
    raise_severity,
)
from trtdx.compare.report.refusals import find_other_architecture, refused_weights_report
from trtdx.compare.sides.disk_budget import DiskBudget
from trtdx.compare.sides.rerun import read_captured_feeds
from trtdx.compare.sides.side import ComparisonQuestion, Side, SideSpec, check_question, open_side, parse_side
from trtdx.compare.sides.working_folder import working_folder
from trtdx.engines.torch.hugging_face import RefusedWeightsError
from trtdx.errors import MissingExtraError, TrtdxError
from trtdx.formats.onnx.module_names import known_modules
from trtdx.model import Severity, Summary
from trtdx.optional import import_optional

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtdx.compare.attribute.files.constant_causes import FileCause
    from trtdx.compare.judge.tolerance import Tolerances
    from trtdx.compare.locate.first_divergence import FirstDivergence
    from trtdx.compare.nouns import Array, JudgedPair, TensorPair
    from trtdx.compare.report.portrait_nouns import TensorPortrait
    from trtdx.host import Host
    from trtdx.model import Finding
    from trtdx.rule import RuleBook

    Told = Callable[[str], None]


MOST_PLACES = 5  # that are looked at one after the other, where those before are tolerated


class ComparisonPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to compare, and how."""

    reference: str
    candidate: str
    sides: tuple[SideSpec, SideSpec] | None = None  # of a script, which has more than texts; they stand above these
    question: ComparisonQuestion = ComparisonQuestion()
    mapping: str = ""  # a file
    save_mapping: str = ""
    keep: str = ""  # a folder for the captures made on the way; a temporary one where it is not told
    budget_bytes: int | None = None  # for these captures; half of the free disk where it is not told
    attribute: bool = True
    portraits: bool = False  # whether the worst tensors are looked at more closely, for a page
    effort: Effort = NORMAL_EFFORT


def compare(
    host: Host,
    plan: ComparisonPlan,
    book: RuleBook,
    *,
    tolerance: Tolerances | None = None,
    progress: Told = lambda text: None,
) -> ComparisonReport:
    """Return where a candidate first differs from its reference by more than precision explains, and why.

    Args:
        host: where files are read.
        plan: what to compare.
        book: the words of what may be found.
        tolerance: limits of the user's instead of what precision explains.
        progress: told in words what is being done.
    """
    specs = plan.sides or (parse_side(host, plan.reference), parse_side(host, plan.candidate))
    check_question(plan.question, specs)
    with ExitStack() as stack:
        for known, nameless in (specs[::-1], specs):
            stack.enter_context(known_modules(nameless.path, modules_by_weights(known, nameless)))
        folder = stack.enter_context(working_folder(plan.keep))
        plan, candidate_capture = _as_captured(plan, specs, folder)
        budget = DiskBudget(folder, plan.budget_bytes)
        progress(f"reading {specs[0].text}")
        reference = budget.open_side(host, specs[0], plan.question, folder / "reference", forced=candidate_capture)
        progress(f"reading {specs[1].text}")
        forced = reference.step_tokens() or None
        try:
            candidate = budget.open_side(host, specs[1], plan.question, folder / "candidate", forced=forced)
        except RefusedWeightsError as err:
            return refused_weights_report(err, specs, book, reference)
        mapping = read_mapping(host, plan.mapping) if plan.mapping else None
        alignment = align_sides(reference, candidate, mapping=mapping)
        alignment.notes[:0] = budget.notes
        if plan.save_mapping:
            host.write(plan.save_mapping, alignment.mapping.text.encode())
        return _Comparison(host, plan, book, folder, reference, candidate, alignment, progress).report(tolerance)


def _as_captured(
    plan: ComparisonPlan, specs: tuple[SideSpec, SideSpec], folder: Path
) -> tuple[ComparisonPlan, list[list[int]] | None]:
    """Return a plan that feeds a model what the captured run beside it was fed, and the tokens a reference goes on with.

    A candidate's tokens are known before its reference is run where it was captured: later steps are comparable only
    if the reference is fed them too.
    """
    captured = [spec for spec in specs if spec.kind == "capture"]
    if len(captured) != 1 or not all(spec.is_model for spec in specs if spec not in captured):
        return plan, None
    side = Side(captured[0], Path(captured[0].path))
    forced = (side.step_tokens() or None) if captured[0] is specs[1] else None
    if plan.question.prompts or plan.question.inputs:
        return plan, forced if _was_asked(side, plan.question) else None
    try:
        question = read_captured_feeds(side.capture).to_question(folder)
    except TrtdxError:  # it does not say: something is made up, and what cannot be compared is told
        return plan, forced
    return msgspec.structs.replace(plan, question=question), forced


def _was_asked(side: Side, question: ComparisonQuestion) -> bool:
    """Whether a captured run was of the same prompts: another batch, or a prompt in chunks, goes on with other tokens."""
    try:
        fed = read_captured_feeds(side.capture)
    except TrtdxError:
        return False
    if fed.prompt is None or fed.mask is None:
        return bool(question.inputs)
    rows = zip(fed.prompt.tolist(), fed.mask.tolist(), strict=True)
    captured_prompts = [[token for token, kept in zip(row, mask, strict=False) if kept] for row, mask in rows]
    return captured_prompts == [list(prompt) for prompt in question.prompts]


class ReachedDivergence(NamedTuple):
    """A wrong place, and what was found there."""

    located: FirstDivergence
    finding: Finding | None = None
    problem: str = ""

    @property
    def badness(self) -> int:
        return -1 if self.finding is None else self.finding.severity.badness


class _Comparison:
    """Two sides with their pairs, on the way to a report."""

    def __init__(
        self,
        host: Host,
        plan: ComparisonPlan,
        book: RuleBook,
        folder: Path,
        reference: Side,
        candidate: Side,
        alignment: Alignment,
        progress: Told,
    ) -> None:
        self.host, self.plan, self.book, self.folder = host, plan, book, folder
        self.reference, self.candidate, self.alignment = reference, candidate, alignment
        self.progress = progress
        self.rewritten: tuple[str, ...] = ()  # what is to be said of tensors that are computed otherwise

    def report(self, tolerance: Tolerances | None) -> ComparisonReport:
        other = find_other_architecture(self.reference, self.candidate, self.book)
        if other is not None:
            return ComparisonReport(summary=Summary(other.message), findings=(other,))
        self.progress(f"judging {len(self.alignment.pairs)} pairs")
        runs = ReferenceRuns(
            self.host,
            self.plan.question,
            self.folder / "runs",
            self.reference,
            self.candidate,
            selector=self.reference.selector,
        )
        reached = self._collect_divergences(runs, tolerance)
        located = reached[0].located
        findings = tuple(divergence.finding for divergence in reached if divergence.finding is not None)
        read = [f"{side.spec.path}: {note}" for side in (self.reference, self.candidate) for note in side.notes]
        problems = [divergence.problem for divergence in reached if divergence.problem]
        notes = [
            *read,
            *self.alignment.notes,
            *self.rewritten,
            *located.notes,
            *problems,
            *([runs.problem] if runs.problem else []),
        ]
        sections = (
            about_section(notes),
            drift_section(located.judged),
            divergence_section(located.judged, located.first),
            alignment_section(self.alignment),
        )
        first = findings[0] if findings else None
        return ComparisonReport(
            summary=Summary(
                verdict_text(located, located.judged, first, self.alignment.unmatched),
                partial=missing_parts(self.reference, self.candidate),
            ),
            findings=findings,
            sections=tuple(section for section in sections if section.rows),
            tensors=tuple(map(tensor_row, located.judged)),
            portraits=self._draw_portraits(located.judged),
            unmatched=tuple(
                UnmatchedRow(tensor.side, tensor.name, tensor.step, tensor.reason)
                for tensor in self.alignment.unmatched
            ),
            segment_runs=located.segment_runs,
            coverage=Coverage.from_verdicts(located.judged, self.alignment.unmatched),
        )

    def _draw_portraits(self, judged: Sequence[JudgedPair]) -> tuple[TensorPortrait, ...]:
        if not self.plan.portraits:
            return ()
        from trtdx.compare.report.tensor_portrait import draw_portraits

        self.progress("drawing the worst tensors")
        return draw_portraits(judged, self.reference, self.candidate)

    def _collect_divergences(self, runs: ReferenceRuns, tolerance: Tolerances | None) -> list[ReachedDivergence]:
        """Return the first wrong place with its finding; past a tolerated one the search goes on. The most severe comes first."""
        divergences: list[ReachedDivergence] = []
        explained: set[tuple[int, str]] = set()
        for _ in range(MOST_PLACES):
            verdicts = judge_pairs(
                self.alignment.pairs,
                self.reference,
                self.candidate,
                runs=runs,
                tolerance=tolerance,
                explained=explained,
            )
            settled = (
                settle_rewrites(tolerate_explained(verdicts, explained))
                if tolerance is None
                else SettledPairs(verdicts)
            )
            judged, self.rewritten = settled
            # Past what is explained, outputs differ because of it.
            located = self._locate_first(judged, runs, sure=tolerance is None and not explained)
            if located.where is None or located.first is None:
                return self._sort_by_severity(divergences) if divergences else [self._no_divergence(located)]
            reached = self._explain_divergence(located, runs)
            finding = reached.finding
            if finding is None or all(
                finding.message != known.finding.message for known in divergences if known.finding
            ):
                divergences.append(reached)  # else another tensor of the same mistake
            if finding is None or finding.severity is Severity.ERROR or tolerance is not None:
                break
            explained |= find_same_kind_errors(judged, located.first) | {(located.where.step, located.where.tensor)}
        return self._sort_by_severity(divergences)

    def _locate_first(self, judged: list[JudgedPair], runs: ReferenceRuns, *, sure: bool) -> FirstDivergence:
        """Return where it first goes wrong; if nothing inside does and an output is still far off, that output."""
        located = locate_first_divergence(judged, self.reference, self.candidate, runs=runs, align=_aligned_pairs)
        if located.where is not None or not sure:
            return located
        alarmed = judge_model_outputs(judged, quantised=bool(runs.quantised.modules))
        if alarmed is None:
            return located
        self.rewritten = (*self.rewritten, OUTPUTS_DIFFER)
        return locate_first_divergence(alarmed, self.reference, self.candidate, runs=runs, align=_aligned_pairs)

    def _sort_by_severity(self, divergences: list[ReachedDivergence]) -> list[ReachedDivergence]:
        """Return the divergences, most severe first; if all are tolerated, the first is an error if the answer changes."""
        first = divergences[0]
        if first.finding is not None and all(divergence.badness < Severity.ERROR.badness for divergence in divergences):
            answers = count_changed_answers(first.located.judged, self.reference, self.candidate)
            divergences = [
                first._replace(finding=raise_severity(first.finding, first.located, answers)),
                *divergences[1:],
            ]
        # Of the same gravity the first stays first.
        return sorted(divergences, key=lambda divergence: -divergence.badness)

    def _no_divergence(self, located: FirstDivergence) -> ReachedDivergence:
        """Return that nothing is wrong, unless numbers are not finite on both sides."""
        strange = find_first_not_finite(located.judged)
        if strange is None:
            return ReachedDivergence(located)
        return ReachedDivergence(located, not_finite_finding(strange, self.book))

    def _explain_divergence(self, located: FirstDivergence, runs: ReferenceRuns) -> ReachedDivergence:
        where = located.where
        assert where is not None
        tested = CauseTrials(problem="no cause was asked for")
        if self.plan.attribute:
            self.progress(f"{where.tensor} at step {where.step} is wrong; looking for the cause")
            tested = self._try_causes(located, runs)
        return ReachedDivergence(
            located,
            finding_from_divergence(located, tested, _repeat_command(self.plan), self.book),
            tested.problem,
        )

    def _try_causes(self, located: FirstDivergence, runs: ReferenceRuns) -> CauseTrials:
        """Return what explains the first difference; where no cause can be tried, what differs in the files."""
        where = located.where
        assert where is not None
        pairs, sides = self.alignment.pairs, (self.reference, self.candidate)
        if located.finer_sides is not None:  # what was seen with finer taps is of captures of its own
            pairs, sides = [verdict.pair for verdict in located.inner_verdicts], located.finer_sides
        suspect = collect_suspect(where, pairs, *sides, rerun=self._module_rerun(where.module, where.step))
        causes, problem, untried = [], "", list[str]()
        try:
            import_optional("torch", extra="torch", purpose="try out causes")
            causes = find_causes(suspect, effort=self.plan.effort, untried=untried)
        except MissingExtraError as err:  # the place is known all the same
            return CauseTrials(problem=f"no cause was tried out: {err.message}", install_command=err.fix)
        except TrtdxError as err:
            problem = f"no cause was tried out: {err.message}"
        file_notes, files = self._compare_model_files(where.module)
        if runs.quantised.scheme_of(where.module) is not None:
            causes = prefer_scale_cause(causes)
        causes = merge_file_cause(causes, files)
        if located.finer_sides is None and located.first is not None:
            clipping = runs.explain_clipping(located.first.pair, self.alignment.pairs)
            if clipping is not None and clipping.share >= EXPLAINED_SHARE:  # seen in the file itself: nothing is surer
                causes, problem = [clipping, *causes], ""
        return CauseTrials(causes, problem, file_differences=file_notes, untried=untried)

    def _compare_model_files(self, module: str) -> tuple[list[str], FileCause | None]:
        """Return what differs in the files of both sides at a module, in words, and which mistake that is."""
        specs = find_model_spec(self.reference), find_model_spec(self.candidate)
        paths = [spec.path for spec in specs if spec is not None and spec.kind in GRAPH_KINDS]
        if len(paths) < 2 or paths[0] == paths[1]:
            return [], None
        return compare_files(paths[0], paths[1], module)

    def _module_rerun(self, module: str, step: int) -> Callable[[], dict[str, Array]] | None:
        """Return what runs the candidate once more and gives what left a module."""
        if not self.candidate.spec.is_model:
            return None

        def run() -> dict[str, Array]:
            folder = self.folder / f"again-{len(list(self.folder.glob('again-*')))}"
            side = open_side(
                self.host,
                self.candidate.spec,
                self.plan.question,
                folder,
                forced=self.reference.step_tokens() or None,
            )
            pairs = align_sides(self.reference, side).pairs
            codes = {
                pair.name: candidate_in_reference_layout(pair, self.reference, side)
                for pair in pairs
                if pair.step == step and pair.name.startswith((f"{module}:out", f"{module}."))
            }
            return {name: array for name, array in codes.items() if array is not None}

        return run


def _aligned_pairs(reference: Side, candidate: Side) -> list[TensorPair]:
    return align_sides(reference, candidate).pairs


def _repeat_command(plan: ComparisonPlan) -> str:
    """Return the command that compares the same once more."""
    question = plan.question
    words = ["trtdx", "compare", plan.reference, plan.candidate]
    words += [word for prompt in question.prompts for word in ("--tokens", " ".join(map(str, prompt)))]
    words += ["--new-tokens", str(question.new_tokens)] if question.new_tokens > 1 else []
    words += ["--inputs", question.inputs] if question.inputs else []
    words += ["--map", plan.mapping] if plan.mapping else []
    return shlex.join(words)
