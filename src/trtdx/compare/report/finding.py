"""The finding of a comparison: the first wrong place, in the words of the cause that explains it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.compare.align.names import in_words
from trtdx.compare.attribute.files.witnesses import AGREED, ALONE
from trtdx.compare.attribute.run import UNEXPLAINED, named, percent
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.model import Evidence, Fix, Severity, Stage, Where
from trtdx.words import counted, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.compare.judge.consequences import Answers
    from trtdx.compare.locate.first_divergence import Located
    from trtdx.compare.nouns import Explained, Judged, Pair
    from trtdx.model import Finding
    from trtdx.rule import RuleBook

UNTESTED, NOT_FINITE = "DX925", "DX960"
NO_STAND_IN = "nothing stands for the reference that causes could be tried out in"
WORTH_NAMING = 0.1  # of a runner-up


class Tested(NamedTuple):
    """What came of trying out causes at the first wrong place."""

    causes: Sequence[Explained] = ()
    problem: str = ""  # why none could be tried
    install: str = ""  # the command after which they can be
    in_files: Sequence[str] = ()  # what differs there in the files of both sides
    untried: Sequence[str] = ()  # hypotheses that could not be tried, and why


def finding_of(located: Located, tested: Tested, again: str, book: RuleBook) -> Finding:
    """Return the finding of the first wrong place.

    Args:
        located: where it is.
        tested: what may explain it.
        again: the command that compares once more.
        book: the words.
    """
    where, first = located.where, located.first
    assert where is not None
    assert first is not None
    best = named(tested.causes)
    code = best.code if best else UNTESTED if tested.problem else UNEXPLAINED
    strange = "" if best or first.difference is None else _not_finite(first.pair)
    code = NOT_FINITE if strange else code
    values = {
        "tensor": where.tensor,
        "module": where.module or "the model",
        "step": where.step,
        "again": again,
        "reduce": again.replace("trtdx compare ", "trtdx compare reduce ", 1) + " --out report",
        "because": "torch is not installed, so no cause was tried out" if tested.install else NO_STAND_IN,
    }
    if strange:
        values |= {"what": strange, "elements": first.pair.candidate.first.statistics.elements}
    if best is not None:
        values |= {"share": percent(best.share), **best.values}
    values |= {name: in_words(str(values[name])) for name in ("tensor", "module")}
    evidence = (_seen(where, first), *_explaining(tested, best, book), *_around(located))
    sure = first.confidence * (best.share if best else 0.9)
    made = finding_from(book.get(code), Violation(evidence, values, confidence=round(sure, 3)))
    install = (Fix(Stage.INSTALL, "install torch: causes are then tried out in it", tested.install),)
    return msgspec.structs.replace(
        made, where=where, fixes=(*install, *made.fixes) if tested.install else made.fixes
    )


def graver(finding: Finding, located: Located, answers: Answers) -> Finding:
    """Return a finding as an error where the answer changes or numbers are not finite, with the proof of it."""
    strange = any(each.difference is not None and each.difference.not_finite for each in located.judged)
    if not answers.changed and not strange:
        return finding
    told = f"{answers.changed} of {counted(answers.compared, 'token')} would be chosen otherwise, beyond near ties"
    proof = Evidence(
        "the answer changes", told if answers.changed else "NaN or infinite numbers follow from it"
    )
    return msgspec.structs.replace(finding, severity=Severity.ERROR, evidence=(*finding.evidence, proof))


def not_finite_on_both(each: Judged, book: RuleBook) -> Finding:
    """Return that a tensor holds NaN or infinities on both sides: nothing that comes of it was compared."""
    pair, elements = each.pair, each.pair.candidate.first.statistics.elements
    values = {
        "tensor": in_words(pair.name),
        "what": _not_finite(pair),
        "elements": elements,
        "step": pair.step,
    }
    told = "so in the reference: neither side can be judged by what comes of it"
    where = Where(step=pair.step, tensor=pair.name)
    made = finding_from(book.get(NOT_FINITE), Violation((Evidence(str(where), told),), values))
    return msgspec.structs.replace(made, where=where)


def _not_finite(pair: Pair) -> str:
    """Return how many numbers of the candidate's tensor are not finite, in words; "" where all are."""
    seen = pair.candidate.first.statistics
    infinite = seen.pos_inf + seen.neg_inf
    return f"{seen.nan} NaN" if seen.nan else counted(infinite, "infinite value") if infinite else ""


def _seen(where: Where, first: Judged) -> Evidence:
    far = "" if first.difference is None else f"; relative L2 {first.difference.relative_l2:.3g}"
    text = f"differs {first.ratio:.3g} times as much as the precision explains ({first.basis}){far}"
    if first.difference is not None and first.difference.not_finite:
        text = f"{counted(first.difference.not_finite, 'element')} NaN or infinite on one side only"
    return Evidence(str(where), text)


def _explaining(tested: Tested, best: Explained | None, book: RuleBook) -> Iterator[Evidence]:
    """Yield how much the cause explains, beside what comes next; else what differs in the files, or why nothing."""
    rest = [each for each in tested.causes if each is not best and each.share >= WORTH_NAMING]
    nearest = f"{rest[0].code} {book.get(rest[0].code).slug}: {percent(rest[0].share)}" if rest else "none"
    if best is not None and best.values.get("witness") == ALONE:
        tried = tested.problem or f"nothing that was tried out explains it; nearest: {nearest}"
        yield Evidence("in the files alone", f"{best.values['files']}; {tried}")
    elif best is not None:
        told = (
            f"{best.how or best.code} explains {percent(best.share)} of the difference; runner-up: {nearest}"
        )
        yield Evidence(f"tried out {best.values.get('tried_in') or 'in the reference'}", told)
        alike = [code for code in best.values.get("alike", "").replace(",", " ").split() if book.knows(code)]
        if alike:
            names = ", ".join(f"{code} {book.get(code).slug}" for code in alike)
            yield Evidence("explains as much and cannot be told apart", names)
    elif not tested.problem:
        yield Evidence("tried out in the reference", f"nothing explains most of it; nearest: {nearest}")
    if tested.untried:
        yield Evidence("not tried, because", listed(list(dict.fromkeys(tested.untried)), 3, "; "))
    if best is not None and best.values.get("witness") == AGREED:
        yield Evidence("the files agree", best.values["files"])
    elif tested.in_files and (best is None or best.values.get("witness") != ALONE):
        yield Evidence("in the files", listed(tested.in_files, 4, "; "))


def _around(located: Located) -> Iterator[Evidence]:
    if located.still_good:
        yield Evidence("still good", listed(located.still_good, 4))
    if located.poisoned:
        count = counted(len(located.poisoned), "tensor")
        yield Evidence("wrong because of it", f"{count}: {listed(located.poisoned, 3)}")
