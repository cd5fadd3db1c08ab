"""The finding of a comparison: the first wrong place, in the words of the cause that explains it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.compare.align.name_meanings import tensor_in_words
from trtdx.compare.attribute.files.weigh_evidence import AGREED, ALONE
from trtdx.compare.attribute.run import UNEXPLAINED_CODE, clear_cause, render_percent
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.model import Evidence, Fix, Severity, Stage, Where
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.compare.judge.consequences import ChangedAnswers
    from trtdx.compare.locate.first_divergence import FirstDivergence
    from trtdx.compare.nouns import CauseHypothesis, JudgedPair, TensorPair
    from trtdx.model import Finding
    from trtdx.rule import Rule, RuleBook

UNTESTED, NOT_FINITE = "DX925", "DX960"
NO_STAND_IN = "nothing stands for the reference that causes could be tried out in"
WORTH_NAMING = 0.1  # of a runner-up


class CauseTrials(NamedTuple):
    """What came of trying out causes at the first wrong place."""

    causes: Sequence[CauseHypothesis] = ()
    problem: str = ""  # why none could be tried
    install_command: str = ""  # the command after which they can be
    file_differences: Sequence[str] = ()  # what differs there in the files of both sides
    untried: Sequence[str] = ()  # hypotheses that could not be tried, and why


def finding_from_divergence(located: FirstDivergence, trials: CauseTrials, command: str, book: RuleBook) -> Finding:
    """Return the finding of the first wrong place."""
    where, first = located.where, located.first
    assert where is not None
    assert first is not None
    best = clear_cause(trials.causes)
    code = best.code if best else UNTESTED if trials.problem else UNEXPLAINED_CODE
    strange = "" if best or first.difference is None else _not_finite_text(first.pair)
    code = NOT_FINITE if strange else code
    values = {
        "tensor": where.tensor,
        "module": where.module or "the model",
        "step": where.step,
        "again": command,
        "reduce": command.replace("trtdx compare ", "trtdx compare reduce ", 1) + " --out report",
        "because": "torch is not installed, so no cause was tried out" if trials.install_command else NO_STAND_IN,
    }
    if strange:
        values |= {"what": strange, "elements": first.pair.candidate.first.statistics.elements}
    if best is not None:
        values |= {"share": render_percent(best.share), **best.values}
    values |= {name: tensor_in_words(str(values[name])) for name in ("tensor", "module")}
    evidence = (
        _difference_evidence(where, first),
        *_cause_evidence(trials, best, book),
        *neighbour_evidence(located),
    )
    sure = first.confidence * (best.share if best else 0.9)
    finding = finding_at(where, book.get(code), Violation(evidence, values, confidence=round(sure, 3)))
    if not trials.install_command:
        return finding
    install = Fix(Stage.INSTALL, "install torch: causes are then tried out in it", trials.install_command)
    return msgspec.structs.replace(finding, fixes=(install, *finding.fixes))


def finding_at(where: Where, rule: Rule, violation: Violation) -> Finding:
    """Return a finding with its place."""
    return msgspec.structs.replace(finding_from(rule, violation), where=where)


def raise_severity(finding: Finding, located: FirstDivergence, answers: ChangedAnswers) -> Finding:
    """Return a finding as an error where the answer changes or numbers are not finite, with the proof of it."""
    strange = any(result.difference is not None and result.difference.not_finite for result in located.judged)
    if not answers.changed and not strange:
        return finding
    text = "NaN or infinite numbers follow from it"
    if answers.changed:
        text = f"{answers.changed} of {format_count(answers.compared, 'token')} would be chosen otherwise, beyond near ties"
    proof = Evidence("the answer changes", text)
    return msgspec.structs.replace(finding, severity=Severity.ERROR, evidence=(*finding.evidence, proof))


def not_finite_finding(judged: JudgedPair, book: RuleBook) -> Finding:
    """Return the finding of a tensor with NaN or infinities on both sides: nothing computed from it was compared."""
    pair, elements = judged.pair, judged.pair.candidate.first.statistics.elements
    values = {
        "tensor": tensor_in_words(pair.name),
        "what": _not_finite_text(pair),
        "elements": elements,
        "step": pair.step,
    }
    text = "so in the reference: neither side can be judged by what comes of it"
    where = Where(step=pair.step, tensor=pair.name)
    return finding_at(where, book.get(NOT_FINITE), Violation((Evidence(str(where), text),), values))


def _not_finite_text(pair: TensorPair) -> str:
    """Return how many numbers of the candidate's tensor are not finite, in words; "" if all are."""
    statistics = pair.candidate.first.statistics
    infinite = statistics.pos_inf + statistics.neg_inf
    return f"{statistics.nan} NaN" if statistics.nan else format_count(infinite, "infinite value") if infinite else ""


def _difference_evidence(where: Where, first: JudgedPair) -> Evidence:
    far = "" if first.difference is None else f"; relative L2 {first.difference.relative_l2:.3g}"
    text = f"differs {first.ratio:.3g} times as much as the precision explains ({first.basis}){far}"
    if first.difference is not None and first.difference.not_finite:
        text = f"{format_count(first.difference.not_finite, 'element')} NaN or infinite on one side only"
    return Evidence(str(where), text)


def _cause_evidence(trials: CauseTrials, best: CauseHypothesis | None, book: RuleBook) -> Iterator[Evidence]:
    """Yield how much the cause explains, beside what comes next; else what differs in the files, or why nothing."""
    rest = [cause for cause in trials.causes if cause is not best and cause.share >= WORTH_NAMING]
    nearest = f"{rest[0].code} {book.get(rest[0].code).slug}: {render_percent(rest[0].share)}" if rest else "none"
    if best is not None and best.values.get("witness") == ALONE:
        tried = trials.problem or f"nothing that was tried out explains it; nearest: {nearest}"
        yield Evidence("in the files alone", f"{best.values['files']}; {tried}")
    elif best is not None:
        text = f"{best.tested_by or best.code} explains {render_percent(best.share)} of the difference; runner-up: {nearest}"
        yield Evidence(f"tried out {best.values.get('tried_in') or 'in the reference'}", text)
        alike = [code for code in best.values.get("alike", "").replace(",", " ").split() if book.has_rule(code)]
        if alike:
            names = ", ".join(f"{code} {book.get(code).slug}" for code in alike)
            yield Evidence("explains as much and cannot be told apart", names)
    elif not trials.problem:
        yield Evidence("tried out in the reference", f"nothing explains most of it; nearest: {nearest}")
    if trials.untried:
        yield Evidence("not tried, because", abbreviate_list(list(dict.fromkeys(trials.untried)), 3, "; "))
    if best is not None and best.values.get("witness") == AGREED:
        yield Evidence("the files agree", best.values["files"])
    elif trials.file_differences and (best is None or best.values.get("witness") != ALONE):
        yield Evidence("in the files", abbreviate_list(trials.file_differences, 4, "; "))


def neighbour_evidence(
    located: FirstDivergence, before: str = "still good", after: str = "wrong because of it"
) -> Iterator[Evidence]:
    """Yield what stands before the first wrong tensor and what follows from it."""
    if located.still_good:
        yield Evidence(before, abbreviate_list(located.still_good, 4))
    if located.poisoned:
        count = format_count(len(located.poisoned), "tensor")
        yield Evidence(after, f"{count}: {abbreviate_list(located.poisoned, 3)}")
