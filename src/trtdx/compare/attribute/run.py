"""All hypotheses tried on one suspect, best first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.attribute.effort import NORMAL, Effort
from trtdx.compare.attribute.experiment import Bench, Idea
from trtdx.compare.attribute.files import weight_differences
from trtdx.compare.attribute.ideas import (
    attention,
    cache,
    config_settings,
    embedding,
    linear,
    masks,
    mlp,
    nondeterminism,
    norms,
    precision,
    quantization,
    residual,
    rotary,
    routing,
)
from trtdx.compare.attribute.suspect import Suspect
from trtdx.compare.attribute.twin.twin import StandIn, stand_in
from trtdx.compare.nouns import Explained
from trtdx.engines.torch.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = ["Suspect", "attribute", "cause", "degree"]
EXPLAINED, PARTLY = 0.9, 0.5
CLEAR = 0.6  # of what the runner-up leaves over, which is the most that a cause may leave that does not explain all
WORTH_TELLING = 0.1
COST = 0.5  # decades that a number that was searched has to bring in what is left over
TIE = 0.15  # decades: closer than this nobody can tell two apart
MOST_TOLD = 6
MOST_TEXT = 120  # of what an exception says
MISTAKES = (TypeError, AttributeError, IndexError, KeyError, ArithmeticError, NameError, AssertionError)
STRICT = False  # whether mistakes in ideas are raised
UNEXPLAINED = "DX946"
FAMILIES: dict[str, Callable[[Bench], Iterator[Idea]]] = {
    "settings": config_settings.ideas,  # first: what the configs state needs no search
    "rotary": rotary.ideas,
    "attention": attention.ideas,
    "cache": cache.ideas,
    "norms": norms.ideas,
    "mlp": mlp.ideas,
    "routing": routing.ideas,
    "linear": linear.ideas,
    "embedding": embedding.ideas,
    "residual": residual.ideas,
    "quantization": quantization.ideas,
    "precision": precision.ideas,
    "chance": nondeterminism.ideas,
    "weights": weight_differences.ideas,
    "folded": norms.folded_norm_mistakes,
}


class Tried(NamedTuple):
    """A hypothesis and how well it does.

    The right one leaves nothing but rounding, so that it is told from one that explains 99 % by what is left over,
    in decades; a number that was searched must leave less than the others do without one.
    """

    idea: Idea
    share: float
    floor: float  # of what can be left over: less than rounding says nothing

    @property
    def score(self) -> float:
        return -math.log10(max(1 - self.share, self.floor)) - COST * self.idea.freedom


def attribute(
    question: Suspect, *, effort: Effort = NORMAL, untried: list[str] | None = None
) -> list[Explained]:
    """Return what explains the difference at a suspect, best first; nothing where there is nothing to explain.

    The first is the cause if its share says so (see `degree`), the second the runner-up. `values` tells the numbers
    for the rule's page, and in "alike" the codes that explain as much and cannot be told apart.

    Args:
        question: the suspect.
        effort: how long to go on with searches.
        untried: gets in words what could not be tried, and why.

    Raises:
        InputError: the reference cannot be computed again, or nothing of the candidate is given.
    """
    given_engine = question.engine
    ready = StandIn(question, "") if question.engine is not None else _opened(question)
    question, engine = ready.suspect, ready.suspect.engine
    try:
        with torch.no_grad():
            bench = Bench(question, engine)
            bench.deadline = effort.deadline()
            tried = _tried(bench) if not bench.healthy else _of_type(bench)
            evidence = weight_differences.evidence(question, bench)
    finally:
        if given_engine is None:
            engine.close()
    if untried is not None:
        untried += bench.failures
    tried_in = {"tried_in": ready.told} if ready.told else {}
    return [_explained(scored, tried, bench, evidence, tried_in) for scored in tried[:MOST_TOLD]]


def named(found: Sequence[Explained]) -> Explained | None:
    """Return the cause, if one explains most of the difference; one that leaves some must leave far less than the next."""
    if not found or found[0].share < PARTLY:
        return None
    best = found[0]
    alike = best.values.get("alike", "").replace(",", " ").split()
    rest = [cause for cause in found[1:] if cause.code not in (*alike, best.code)]
    clear = not rest or 1 - best.share <= CLEAR * (1 - rest[0].share)
    return best if best.share >= EXPLAINED or clear else None


def degree(found: list[Explained]) -> str:
    """Return "explained", "partly" or "unexplained"."""
    share = found[0].share if found else 0.0
    return "explained" if share >= EXPLAINED else "partly" if share >= PARTLY else "unexplained"


def cause(found: list[Explained], module: str = "") -> Explained:
    """Return the cause: the best hypothesis, or that none of them explains enough."""
    best = named(found)
    if best is not None:
        return best
    values = {"module": module, "tried": str(len(FAMILIES))}
    if found:
        values |= {"nearest": found[0].code, "share": percent(found[0].share)}
    share = found[0].share if found else 0.0
    return Explained(UNEXPLAINED, share, values, "no hypothesis explains half of it")


def percent(share: float) -> str:
    return f"{100 * max(0.0, share):.4g} %" if share < 0.9995 else "100 %"


def _opened(question: Suspect) -> StandIn:
    """Return the reference's own model, or what stands for it."""
    side = question.reference
    if side is not None and side.spec.kind == "hf":
        return StandIn(question._replace(engine=side.spec.open("")), "")
    return stand_in(question)


def _tried(bench: Bench) -> list[Tried]:
    """Return the best of each code, best first; of equals the simpler one."""
    mask_causes = _best_of(masks.of_tensors(bench))
    if mask_causes and mask_causes[0].share > EXPLAINED:
        return mask_causes  # who sees whom differs itself: what follows from it explains nothing
    best_by_code: dict[str, Tried] = {}
    floor = min(0.5, max(1e-12, bench.noise / max(bench.residual, 1e-300)))
    for family, ideas in FAMILIES.items():
        if bench.is_late:
            bench.failures.append(f"{family}: the time was over (--effort thorough tries all)")
            continue
        for mistake in _safely(family, ideas, bench):
            share = bench.share(mistake.outputs) if mistake.share is None else mistake.share
            if math.isnan(share) or share < WORTH_TELLING:
                continue
            scored = Tried(mistake, share, floor)
            bench.solved = bench.solved or (1 - share <= 2 * floor and mistake.freedom <= 1)
            before = best_by_code.get(mistake.code)
            if before is None or scored.score > before.score:
                best_by_code[mistake.code] = scored
            if bench.is_late:
                bench.failures.append(f"{family}: not to its end, the time was over (--effort thorough)")
                break
    ranked = _best_first(best_by_code.values())
    rechecked = [_as_held(scored, bench) for scored in ranked[:MOST_TOLD]]
    return _ties_in_order(_best_first(rechecked) + ranked[MOST_TOLD:])


def _best_first(tried: Iterable[Tried]) -> list[Tried]:
    return sorted(tried, key=lambda scored: -scored.score)


def _as_held(each: Tried, bench: Bench) -> Tried:
    """Return a hypothesis with the share it explains of every other token, where that is less than of all."""
    if each.idea.share is not None or not each.idea.outputs:
        return each
    return each._replace(share=min(each.share, bench.held_share(each.idea.outputs)))


def _of_type(bench: Bench) -> list[Tried]:
    """Return what the candidate's type does, where there is nothing else to explain."""
    return _best_of(precision.too_narrow(bench)) or _best_of(masks.of_tensors(bench))


def _best_of(ideas: Iterator[Idea]) -> list[Tried]:
    """Return the best of each code, best first."""
    tried = [Tried(mistake, mistake.share or 0.0, 1e-3) for mistake in ideas]
    tried.sort(key=lambda scored: scored.score)
    return _best_first({scored.idea.code: scored for scored in tried}.values())


def _safely(family: str, ideas: Callable[[Bench], Iterator[Idea]], bench: Bench) -> Iterator[Idea]:
    """Yield a family's ideas; a module that is built so that one of them cannot be tried ends that family.

    What torch refuses (shapes, types) is to be expected of modules nobody has seen. Anything else is a mistake in the
    idea: users are told, and where `STRICT` is set, as in the tests, it is raised.
    """
    try:
        yield from ideas(bench)
    except (RuntimeError, ValueError, *MISTAKES) as err:
        if STRICT and isinstance(err, MISTAKES):
            raise
        text = " ".join(str(err).split())
        bench.failures.append(f"{family}: {type(err).__name__}: {text[:MOST_TEXT]}")


def _ties_in_order(ranked: list[Tried]) -> list[Tried]:
    if not ranked:
        return []
    top = [scored for scored in ranked if ranked[0].score - scored.score < TIE]
    return sorted(top, key=lambda scored: (scored.idea.rank, -scored.score)) + ranked[len(top) :]


def _explained(
    each: Tried, tried: list[Tried], bench: Bench, evidence: list[str], told: Mapping[str, str]
) -> Explained:
    first = tried[0]
    others = [other for other in tried if other is not each]
    alike = [other.idea.code for other in others if abs(other.score - each.score) < TIE]
    inner = each.idea.values.get("inner", "")
    if inner and inner in dict(bench.module.named_modules()):  # a part of the module is what is wrong
        told = {**told, "module": f"{bench.path}.{inner}" if bench.path else inner}
    values = {"module": bench.path or "the model", "share": percent(each.share), **each.idea.values, **told}
    if alike:
        values["alike"] = ", ".join(alike)
    if others:
        values |= {"runner_up": others[0].idea.code, "runner_up_share": percent(others[0].share)}
    if evidence and each is first:
        values["evidence"] = "; ".join(evidence[:4])
    how = f"{bench.path or 'the model'}: {each.idea.how}"
    if alike and each is first:
        how = f"{how}; cannot be told apart from {', '.join(alike)} here"
    return Explained(each.idea.code, min(1.0, each.share), values, how)
