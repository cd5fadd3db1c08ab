"""All hypotheses tried on one suspect, best first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.attribute.effort import NORMAL_EFFORT, Effort
from trtdx.compare.attribute.files import weight_differences
from trtdx.compare.attribute.mistakes import (
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
from trtdx.compare.attribute.module_bench import Mistake, ModuleBench
from trtdx.compare.attribute.suspect import Suspect
from trtdx.compare.attribute.twin.stand_in import TorchStandIn, find_stand_in
from trtdx.compare.nouns import CauseHypothesis
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = ["Suspect", "choose_cause", "explanation_degree", "find_causes"]
EXPLAINED_SHARE, PARTLY_SHARE = 0.9, 0.5
CLEAR_FACTOR = (
    0.6  # of what the runner-up leaves over, which is the most that a cause may leave that does not explain all
)
LEAST_SHARE = 0.1
FREEDOM_COST = 0.5  # decades that a number that was searched has to bring in what is left over
TIE_DECADES = 0.15  # decades: closer than this nobody can tell two apart
MOST_CAUSES = 6
MOST_TEXT = 120  # of what an exception says
PROGRAMMING_ERRORS = (
    TypeError,
    AttributeError,
    IndexError,
    KeyError,
    ArithmeticError,
    NameError,
    AssertionError,
)
STRICT = False  # whether mistakes in ideas are raised
UNEXPLAINED_CODE = "DX946"
FAMILIES: dict[str, Callable[[ModuleBench], Iterator[Mistake]]] = {
    "settings": config_settings.config_mistakes,  # first: what the configs state needs no search
    "rotary": rotary.rotary_mistakes,
    "attention": attention.attention_mistakes,
    "cache": cache.cache_mistakes,
    "norms": norms.norm_mistakes,
    "mlp": mlp.mlp_mistakes,
    "routing": routing.routing_mistakes,
    "linear": linear.linear_mistakes,
    "embedding": embedding.embedding_mistakes,
    "residual": residual.residual_mistakes,
    "quantization": quantization.quantization_mistakes,
    "precision": precision.precision_mistakes,
    "chance": nondeterminism.nondeterminism_mistakes,
    "weights": weight_differences.candidate_weight_ideas,
    "folded": norms.folded_norm_mistakes,
}


class ScoredMistake(NamedTuple):
    """A hypothesis and how much it explains.

    The right one leaves nothing but rounding, so that it is told from one that explains 99 % by what is left over,
    in decades; a number that was searched must leave less than the others do without one.
    """

    mistake: Mistake
    share: float
    floor: float  # of what can be left over: less than rounding says nothing

    @property
    def score(self) -> float:
        return -math.log10(max(1 - self.share, self.floor)) - FREEDOM_COST * self.mistake.freedom


def find_causes(
    suspect: Suspect, *, effort: Effort = NORMAL_EFFORT, untried: list[str] | None = None
) -> list[CauseHypothesis]:
    """Return what explains the difference at a suspect, best first; empty if there is nothing to explain.

    The first is the cause if its share says so (see `degree`), the second the runner-up. `values` tells the numbers
    for the rule's page, and in "alike" the codes that explain as much and cannot be told apart.

    Args:
        suspect: the suspect.
        effort: how long to go on with searches.
        untried: gets in words what could not be tried, and why.

    Raises:
        InputError: the reference cannot be computed again, or nothing of the candidate is given.
    """
    given_engine = suspect.engine
    ready = TorchStandIn(suspect, "") if suspect.engine is not None else _open_reference(suspect)
    suspect, engine = ready.suspect, ready.suspect.engine
    try:
        with torch.no_grad():
            bench = ModuleBench(suspect, engine)
            bench.deadline = effort.deadline()
            tried = _try_mistakes(bench) if not bench.is_healthy else _dtype_causes(bench)
            evidence = weight_differences.describe_file_differences(suspect, bench)
    finally:
        if given_engine is None:
            engine.close()
    if untried is not None:
        untried += bench.failures
    tried_in = {"tried_in": ready.description} if ready.description else {}
    return [_make_explanation(scored, tried, bench, evidence, tried_in) for scored in tried[:MOST_CAUSES]]


def clear_cause(explanations: Sequence[CauseHypothesis]) -> CauseHypothesis | None:
    """Return the cause if one explains most of the difference; if it leaves a rest, that must be far less than the next one's."""
    if not explanations or explanations[0].share < PARTLY_SHARE:
        return None
    best = explanations[0]
    alike = best.values.get("alike", "").replace(",", " ").split()
    rest = [cause for cause in explanations[1:] if cause.code not in (*alike, best.code)]
    clear = not rest or 1 - best.share <= CLEAR_FACTOR * (1 - rest[0].share)
    return best if best.share >= EXPLAINED_SHARE or clear else None


def explanation_degree(explanations: list[CauseHypothesis]) -> str:
    """Return whether a difference is "explained", "partly" explained or "unexplained"."""
    share = explanations[0].share if explanations else 0.0
    return "explained" if share >= EXPLAINED_SHARE else "partly" if share >= PARTLY_SHARE else "unexplained"


def choose_cause(explanations: list[CauseHypothesis], module: str = "") -> CauseHypothesis:
    """Return the cause: the best hypothesis, or that none of them explains enough."""
    best = clear_cause(explanations)
    if best is not None:
        return best
    values = {"module": module, "tried": str(len(FAMILIES))}
    if explanations:
        values |= {"nearest": explanations[0].code, "share": render_percent(explanations[0].share)}
    share = explanations[0].share if explanations else 0.0
    return CauseHypothesis(UNEXPLAINED_CODE, share, values, "no hypothesis explains half of it")


def render_percent(share: float) -> str:
    return f"{100 * max(0.0, share):.4g} %" if share < 0.9995 else "100 %"


def _open_reference(suspect: Suspect) -> TorchStandIn:
    """Return the reference's own model, or what stands for it."""
    side = suspect.reference
    if side is not None and side.spec.kind == "hf":
        return TorchStandIn(suspect._replace(engine=side.spec.open("")), "")
    return find_stand_in(suspect)


def _try_mistakes(bench: ModuleBench) -> list[ScoredMistake]:
    """Return the best of each code, best first; of equals the simpler one."""
    mask_causes = _best_of_codes(masks.mask_tensor_mistakes(bench))
    if mask_causes and mask_causes[0].share > EXPLAINED_SHARE:
        return mask_causes  # who sees whom differs itself: what follows from it explains nothing
    best_by_code: dict[str, ScoredMistake] = {}
    floor = min(0.5, max(1e-12, bench.noise / max(bench.residual, 1e-300)))
    for family, ideas in FAMILIES.items():
        if bench.is_late:
            bench.failures.append(f"{family}: the time was over (--effort thorough tries all)")
            continue
        for mistake in _guarded_mistakes(family, ideas, bench):
            share = bench.explained_share(mistake.outputs) if mistake.share is None else mistake.share
            if math.isnan(share) or share < LEAST_SHARE:
                continue
            scored = ScoredMistake(mistake, share, floor)
            bench.solved = bench.solved or (1 - share <= 2 * floor and mistake.freedom <= 1)
            before = best_by_code.get(mistake.code)
            if before is None or scored.score > before.score:
                best_by_code[mistake.code] = scored
            if bench.is_late:
                bench.failures.append(f"{family}: not to its end, the time was over (--effort thorough)")
                break
    ranked = _best_first(best_by_code.values())
    rechecked = [_recheck_on_halves(scored, bench) for scored in ranked[:MOST_CAUSES]]
    return _order_ties(_best_first(rechecked) + ranked[MOST_CAUSES:])


def _best_first(tried: Iterable[ScoredMistake]) -> list[ScoredMistake]:
    return sorted(tried, key=lambda scored: -scored.score)


def _recheck_on_halves(scored: ScoredMistake, bench: ModuleBench) -> ScoredMistake:
    """Return a hypothesis with the share it explains of every other token, where that is less than of all."""
    if scored.mistake.share is not None or not scored.mistake.outputs:
        return scored
    return scored._replace(share=min(scored.share, bench.cross_validated_share(scored.mistake.outputs)))


def _dtype_causes(bench: ModuleBench) -> list[ScoredMistake]:
    """Return what the candidate's type does, where there is nothing else to explain."""
    return _best_of_codes(precision.narrow_dtype_mistakes(bench)) or _best_of_codes(masks.mask_tensor_mistakes(bench))


def _best_of_codes(mistakes: Iterator[Mistake]) -> list[ScoredMistake]:
    """Return the best of each code, best first."""
    tried = [ScoredMistake(mistake, mistake.share or 0.0, 1e-3) for mistake in mistakes]
    tried.sort(key=lambda scored: scored.score)
    return _best_first({scored.mistake.code: scored for scored in tried}.values())


def _guarded_mistakes(
    family: str, make_mistakes: Callable[[ModuleBench], Iterator[Mistake]], bench: ModuleBench
) -> Iterator[Mistake]:
    """Yield a family's ideas; a module that is built so that one of them cannot be tried ends that family.

    What torch refuses (shapes, types) is to be expected of modules nobody has seen. Anything else is a mistake in the
    idea: users are told, and where `STRICT` is set, as in the tests, it is raised.
    """
    try:
        yield from make_mistakes(bench)
    except (RuntimeError, ValueError, *PROGRAMMING_ERRORS) as err:
        if STRICT and isinstance(err, PROGRAMMING_ERRORS):
            raise
        text = " ".join(str(err).split())
        bench.failures.append(f"{family}: {type(err).__name__}: {text[:MOST_TEXT]}")


def _order_ties(ranked: list[ScoredMistake]) -> list[ScoredMistake]:
    if not ranked:
        return []
    top = [scored for scored in ranked if ranked[0].score - scored.score < TIE_DECADES]
    return sorted(top, key=lambda scored: (scored.mistake.rank, -scored.score)) + ranked[len(top) :]


def _make_explanation(
    scored: ScoredMistake,
    ranked: list[ScoredMistake],
    bench: ModuleBench,
    evidence: list[str],
    tried_in: Mapping[str, str],
) -> CauseHypothesis:
    first = ranked[0]
    others = [other for other in ranked if other is not scored]
    alike = [other.mistake.code for other in others if abs(other.score - scored.score) < TIE_DECADES]
    inner = scored.mistake.values.get("inner", "")
    if inner and inner in dict(bench.module.named_modules()):  # a part of the module is what is wrong
        tried_in = {**tried_in, "module": f"{bench.path}.{inner}" if bench.path else inner}
    values = {
        "module": bench.path or "the model",
        "share": render_percent(scored.share),
        **scored.mistake.values,
        **tried_in,
    }
    if alike:
        values["alike"] = ", ".join(alike)
    if others:
        values |= {"runner_up": others[0].mistake.code, "runner_up_share": render_percent(others[0].share)}
    if evidence and scored is first:
        values["evidence"] = "; ".join(evidence[:4])
    how = f"{bench.path or 'the model'}: {scored.mistake.tested_by}"
    if alike and scored is first:
        how = f"{how}; cannot be told apart from {', '.join(alike)} here"
    return CauseHypothesis(scored.mistake.code, min(1.0, scored.share), values, how)
