"""A whole comparison: both sides, what is which, what is wrong, where first, and why."""

from __future__ import annotations

import shlex
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trtdx.compare.align import Alignment, align
from trtdx.compare.attribute import attribute
from trtdx.compare.attribute.graph_diff import graph_differences
from trtdx.compare.envelope import Runs, in_reference_layout
from trtdx.compare.finding import Tested, finding_of
from trtdx.compare.locate import locate
from trtdx.compare.mapping import Mapping, read_mapping
from trtdx.compare.report import (
    ComparisonReport,
    Lonely,
    alignment_section,
    drift_section,
    tensor_row,
    verdict_text,
    way_section,
)
from trtdx.compare.side import Question, Side, Spec, open_side, parse_side
from trtdx.compare.suspect import suspect_at
from trtdx.compare.verdict import judge
from trtdx.errors import InputError, TrtdxError
from trtdx.model import Section, Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.compare.locate import Located
    from trtdx.compare.nouns import Array, Pair
    from trtdx.compare.tolerance import Tolerances
    from trtdx.host import Host
    from trtdx.rule import RuleBook

    Told = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to compare, and how."""

    reference: str
    candidate: str
    question: Question = Question()
    mapping: str = ""  # a file
    save_mapping: str = ""
    keep: str = ""  # a folder for the captures made on the way; a temporary one where it is not told
    attribute: bool = True


def compare(
    host: Host,
    plan: Plan,
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
    specs = parse_side(host, plan.reference), parse_side(host, plan.candidate)
    with _folder(plan.keep) as folder:
        progress(f"reading {specs[0].text}")
        reference = open_side(host, specs[0], plan.question, folder / "reference")
        progress(f"reading {specs[1].text}")
        forced = reference.tokens() or None
        candidate = open_side(host, specs[1], plan.question, folder / "candidate", forced=forced)
        mapping = read_mapping(host, plan.mapping) if plan.mapping else None
        found = align(reference, candidate, mapping=mapping)
        if plan.save_mapping:
            _save(found.mapping, plan.save_mapping)
        return _Comparison(host, plan, book, folder, reference, candidate, found, progress).report(tolerance)


class _Comparison:
    """Two sides with their pairs, on the way to a report."""

    def __init__(
        self,
        host: Host,
        plan: Plan,
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

    def report(self, tolerance: Tolerances | None) -> ComparisonReport:
        self.progress(f"judging {len(self.alignment.pairs)} pairs")
        runs = Runs(self.host, self.plan.question, self.folder / "runs", self.reference, self.candidate)
        judged = judge(self.alignment.pairs, self.reference, self.candidate, runs=runs, tolerance=tolerance)
        located = locate(judged, self.reference, self.candidate, runs=runs, align=_pairs)
        finding = None
        notes = [*self.alignment.notes, *located.notes, *([runs.problem] if runs.problem else [])]
        if located.where is not None:
            tested = Tested(problem="no cause was asked for")
            if self.plan.attribute:
                self.progress(f"testing causes at {located.where.tensor}")
                tested = self._tested(located)
            notes += [tested.problem] if tested.problem else []
            finding = finding_of(located, tested, _command(self.plan), self.book)
        about = Section("about", "about this comparison", ("",), tuple((note,) for note in notes))
        sections = (
            about,
            drift_section(located.judged),
            way_section(located.judged, located.first),
            alignment_section(self.alignment),
        )
        return ComparisonReport(
            summary=Summary(
                verdict_text(located, located.judged, finding),
                partial=(*self.reference.capture.partial, *self.candidate.capture.partial),
            ),
            findings=(finding,) if finding else (),
            sections=tuple(section for section in sections if section.rows),
            tensors=tuple(map(tensor_row, located.judged)),
            unmatched=tuple(
                Lonely(each.side, each.name, each.step, each.reason) for each in self.alignment.unmatched
            ),
            segment_runs=located.segment_runs,
        )

    def _tested(self, located: Located) -> Tested:
        """Return what explains the first difference; where no cause can be tried, what differs in the files."""
        where = located.where
        assert where is not None
        pairs, sides = self.alignment.pairs, (self.reference, self.candidate)
        if located.finer is not None:  # what was seen with finer taps is of captures of its own
            pairs, sides = [each.pair for each in located.inner], located.finer
        suspect = suspect_at(where, pairs, *sides, again=self._again(where.module, where.step))
        try:
            return Tested(attribute(suspect))
        except TrtdxError as err:
            return Tested((), f"no cause was tried out: {err.message}", self._in_files(where.module))

    def _in_files(self, module: str) -> list[str]:
        specs = self.reference.spec, self.candidate.spec
        if not module or any(spec.kind not in ("onnx", "trt") for spec in specs):
            return []
        return graph_differences(specs[0].path, specs[1].path, module)

    def _again(self, module: str, step: int) -> Callable[[], dict[str, Array]] | None:
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
                forced=self.reference.tokens() or None,
            )
            pairs = align(self.reference, side).pairs
            found = {
                pair.name: in_reference_layout(pair, self.reference, side)
                for pair in pairs
                if pair.step == step and pair.name.startswith((f"{module}:out", f"{module}."))
            }
            return {name: array for name, array in found.items() if array is not None}

        return run


def _pairs(reference: Side, candidate: Side) -> list[Pair]:
    return align(reference, candidate).pairs


def _save(mapping: Mapping, path: str) -> None:
    try:
        Path(path).write_text(mapping.text, encoding="utf-8")
    except OSError as err:
        raise InputError(f"cannot write {path}: {err.strerror or err}") from err


def _command(plan: Plan) -> str:
    """Return the command that compares the same once more."""
    question = plan.question
    words = ["trtdx", "compare", plan.reference, plan.candidate]
    words += [word for prompt in question.prompts for word in ("--tokens", " ".join(map(str, prompt)))]
    words += ["--new-tokens", str(question.new_tokens)] if question.new_tokens > 1 else []
    words += ["--inputs", question.inputs] if question.inputs else []
    words += ["--map", plan.mapping] if plan.mapping else []
    return shlex.join(words)


@contextmanager
def _folder(keep: str) -> Iterator[Path]:
    """Give a folder for what is captured on the way."""
    if keep:
        Path(keep).mkdir(parents=True, exist_ok=True)
        yield Path(keep)
        return
    with tempfile.TemporaryDirectory(prefix="trtdx-compare-") as folder:
        yield Path(folder)


__all__ = ["Mapping", "Plan", "Question", "Spec", "compare"]
