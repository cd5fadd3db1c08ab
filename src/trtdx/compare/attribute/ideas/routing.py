"""Mixtures of experts: who is chosen, with which weight, in which order, and the expert that all share."""

from __future__ import annotations

import copy
from itertools import product as all_of
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.experiment import Idea
from trtdx.compare.attribute.ideas import sharding
from trtdx.compare.attribute.module_copies import put
from trtdx.engines.torch.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.experiment import Bench, Outputs, Tensor

ROUTERS, SHARED = ("gate", "router"), ("shared_experts", "shared_expert", "shared_mlp")
MOST_EXPERTS = 512


class Choice(NamedTuple):
    """How weights come from a router's logits."""

    score: str  # "softmax", "sigmoid" or "softmax of the chosen"
    chosen: int
    normalised: bool
    factor: float
    biased: bool  # whether a correction is added before choosing
    passed: int = 0  # how many of the best are passed over; -1: the worst are chosen

    def differences(self, other: Choice) -> str:
        """Say in words how this differs from another."""
        told = []
        if self.score != other.score:
            told.append(f"{self.score} instead of {other.score}")
        if self.chosen != other.chosen:
            told.append(f"{self.chosen} experts instead of {other.chosen}")
        if self.normalised != other.normalised:
            told.append("weights normalised" if self.normalised else "weights not normalised")
        if abs(self.factor - other.factor) > 1e-9:
            told.append(f"weights times {self.factor:g} instead of {other.factor:g}")
        if self.biased != other.biased:
            told.append("chosen with the correction" if self.biased else "chosen without the correction")
        if self.passed != other.passed:
            told.append("the worst experts chosen" if self.passed < 0 else "the best expert passed over")
        return ", ".join(told)


class Routed(NamedTuple):
    """A block of experts in a run."""

    logits: Tensor  # [tokens, experts]
    weights: Tensor  # [tokens, experts], zero where not chosen
    each: Tensor  # [experts, tokens, width]: what every expert makes of every token
    rest: Tensor  # [tokens, width]: what is added besides
    shared: Tensor | None
    correction: Tensor | None
    own: Choice


def ideas(bench: Bench) -> Iterator[Idea]:
    """Yield what could be wrong with the choice of experts."""
    yield from _shards(bench)
    yield from _of_shared(bench)
    routed = _routed(bench)
    if routed is None:
        yield from _of_router(bench)
        return

    def outputs(weights: Tensor, each: Tensor | None = None, rest: Tensor | None = None) -> Outputs:
        made = torch.einsum("te,eth->th", weights, routed.each if each is None else each)
        made = made + (routed.rest if rest is None else rest)
        return bench.changed({bench.main: made.reshape(bench.truth[bench.main].shape)})

    for choice in _choices(routed.own, routed.logits.shape[1], biased=routed.correction is not None):
        told = choice.differences(routed.own)
        if told:
            weights = weights_of(routed.logits, choice, routed.correction)
            yield Idea("DX955", outputs(weights), {"what": told}, told, freedom=0.4 * told.count(","))
    if routed.shared is not None:
        yield Idea(
            "DX957",
            outputs(routed.weights, rest=routed.rest - routed.shared),
            {},
            "without what all tokens share",
        )
        yield Idea(
            "DX957",
            outputs(routed.weights, rest=routed.rest + routed.shared),
            {},
            "with the shared expert twice",
            freedom=0.5,
        )
    for expert in range(min(routed.logits.shape[1], 64)):
        less = routed.weights.clone()
        less[:, expert] = 0
        yield Idea(
            "DX955",
            outputs(less),
            {"what": f"expert {expert} left out"},
            f"without expert {expert}",
            freedom=0.5,
        )
    order = _order(bench, routed)
    if order is not None:
        moved = " ".join(map(str, order[:16]))
        yield Idea(
            "DX956",
            outputs(routed.weights, routed.each[order]),
            {"order": moved},
            f"experts in the order {moved}",
            freedom=0.5,
        )


def is_router(bench: Bench) -> bool:
    """Whether a module says which experts a token goes to."""
    parent, _, own = bench.path.rpartition(".")
    return own in ROUTERS and any(path == f"{parent}.experts" for path, _ in bench.siblings())


def _of_shared(bench: Bench) -> Iterator[Idea]:
    """Yield the expert that all tokens share, giving nothing."""
    block, _, own = bench.path.rpartition(".")
    if own in SHARED and bench.main == f"{bench.path}:out":
        nothing = bench.changed({bench.main: torch.zeros_like(bench.truth[bench.main])})
        yield Idea("DX957", nothing, {"module": block}, f"{own} gives nothing", rank=-2)


def weights_of(logits: Tensor, choice: Choice, correction: Tensor | None) -> Tensor:
    """Return the weight of each expert for each token."""
    scores = torch.sigmoid(logits) if choice.score == "sigmoid" else torch.softmax(logits, -1)
    ranked = scores + correction if choice.biased and correction is not None else scores
    count = min(choice.chosen + max(0, choice.passed), logits.shape[1])
    chosen = ranked.topk(count, -1, largest=choice.passed >= 0).indices[:, max(0, choice.passed) :]
    held = (logits if choice.score == "softmax of the chosen" else scores).gather(1, chosen)
    if choice.score == "softmax of the chosen":
        held = torch.softmax(held, -1)
    if choice.normalised:
        held = held / held.sum(-1, keepdim=True)
    return torch.zeros_like(logits).scatter(1, chosen, held * choice.factor)


def _choices(own: Choice, experts: int, *, biased: bool) -> Iterator[Choice]:
    scores = ("softmax", "sigmoid")
    counts = {
        own.chosen,
        *(each for each in (1, 2, 4, 6, 8, own.chosen - 1, own.chosen + 1, experts) if 0 < each <= experts),
    }
    factors = {own.factor, 1.0}
    corrections = {own.biased, False} if biased else {False}
    for score, count, normal, factor, bias in all_of(
        scores, sorted(counts), (True, False), factors, corrections
    ):
        yield Choice(score, count, normal, factor, bias)
    if own.chosen < experts:
        yield from (own._replace(passed=passed) for passed in (1, -1))


def _router_of(module: Any) -> Any:
    return next((getattr(module, name) for name in ROUTERS if hasattr(module, name)), None)


def _block(bench: Bench) -> tuple[Any, bool]:
    """Return the block of experts that the module is, or that it is the experts of."""
    if hasattr(bench.module, "experts") and _router_of(bench.module) is not None:
        return bench.module, False
    parent, _, own = bench.path.rpartition(".")
    owner = bench.model.get_submodule(parent) if parent and own == "experts" else None
    router = _router_of(owner)
    if router is None:
        return None, False
    made = copy.deepcopy(router).to(bench.exact)
    return SimpleNamespace(gate=made), True


def _routed(bench: Bench) -> Routed | None:
    """Return what a block of experts does, if the module is one, or its experts, and it can be computed here."""
    block, inner = _block(bench)
    if block is None or bench.main != f"{bench.path}:out":
        return None
    x = bench.first_input()
    rows = x.reshape(-1, x.shape[-1])
    try:
        with torch.no_grad():
            told = _router_of(block)(rows)
            each = _each(bench.module if inner else block.experts, rows)
            shared = None if inner else _shared(block, rows)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    found = _weights_in(told, rows.shape[0])
    if found is None or each is None:
        return None
    logits, weights = found
    truth = bench.truth[bench.main].reshape(rows.shape[0], -1)
    rest = truth - torch.einsum("te,eth->th", weights.to(each.dtype), each)
    limit = 1e-6 * float((truth**2).sum())
    if shared is None and float((rest**2).sum()) > limit:
        return None
    correction = getattr(_router_of(block), "e_score_correction_bias", None)
    own = _own_choice(_router_of(block), logits.double(), weights.double(), correction)
    return Routed(logits.to(each.dtype), weights.to(each.dtype), each, rest, shared, correction, own)


def _each(experts: Any, rows: Tensor) -> Tensor | None:
    count = getattr(experts, "num_experts", None) or (len(experts) if hasattr(experts, "__len__") else 0)
    if not 0 < count <= MOST_EXPERTS:
        return None
    if hasattr(experts, "__getitem__"):
        return torch.stack([experts[at](rows) for at in range(count)])
    ones = torch.ones((rows.shape[0], 1), dtype=rows.dtype)
    return torch.stack([experts(rows, torch.full((rows.shape[0], 1), at), ones) for at in range(count)])


def _shared(block: Any, rows: Tensor) -> Tensor | None:
    expert = next((getattr(block, name) for name in SHARED if getattr(block, name, None) is not None), None)
    if expert is None:
        return None
    made = expert(rows)
    gate = getattr(block, "shared_expert_gate", None)
    return made if gate is None else torch.sigmoid(gate(rows)) * made


def _weights_in(told: Any, rows: int) -> tuple[Tensor, Tensor] | None:
    """Return the logits and the weights in what a router gives."""
    if not isinstance(told, (tuple, list)):
        return None
    chosen = next((each for each in told if not each.is_floating_point()), None)
    if chosen is None:
        return None
    floats = [each for each in told if each.is_floating_point()]
    held = next((each for each in floats if each.shape == chosen.shape), None)
    logits = next((each for each in floats if each.shape[-1] >= chosen.shape[-1] and each is not held), None)
    if held is None or logits is None or logits.shape[0] != rows:
        return None
    return logits, torch.zeros_like(logits).scatter(1, chosen, held.to(logits.dtype))


def _own_choice(router: Any, logits: Tensor, weights: Tensor, correction: Tensor | None) -> Choice:
    count = int((weights != 0).sum(1).max())
    factor = float(getattr(router, "routed_scaling_factor", 1.0))
    bias = correction is not None
    options = [
        Choice(score, count, normal, factor, bias)
        for score in ("softmax", "sigmoid")
        for normal in (True, False)
    ]
    made = [((weights_of(logits, each, correction) - weights) ** 2).sum() for each in options]
    return options[int(torch.stack(made).argmin())]


def _order(bench: Bench, routed: Routed) -> list[int] | None:
    """Return which expert stands where, from the weights that explain each token best."""
    theirs = torch.nan_to_num(bench.targets[bench.main]).reshape(routed.rest.shape) - routed.rest
    experts, _, width = routed.each.shape
    if width < experts:
        return None
    fit = torch.linalg.lstsq(routed.each.permute(1, 2, 0).double(), theirs.double()[..., None]).solution[
        ..., 0
    ]
    own = routed.weights.double()
    order = torch.cdist(own.T, fit.T).argmin(1).tolist()  # whose weights are over there what these are here
    used = (routed.weights != 0).any(0)
    order = [each if bool(used[at]) else at for at, each in enumerate(order)]
    return order if order != list(range(experts)) else None


def _of_router(bench: Bench) -> Iterator[Idea]:
    """Yield other weights from the same logits, where the suspect is the router itself."""
    made = bench.run(all_targets=True)  # the candidate may have fewer of them
    outputs = {name: each for name, each in made.items() if name.startswith(f"{bench.path}:out")}
    found = (
        _weights_in(tuple(outputs.values()), len(next(iter(outputs.values())))) if len(outputs) == 3 else None
    )
    if found is None:
        return
    logits, weights = (each.double() for each in found)
    shape = next(each.shape for each in outputs.values() if not each.is_floating_point())

    def idea(told: str, held: Tensor, chosen: Tensor, freedom: float) -> Idea:
        held, chosen = _in_order_of(bench, held, chosen)
        got = {
            name: held if each.is_floating_point() else chosen
            for name, each in bench.truth.items()
            if each.shape == shape and name in outputs
        }
        return Idea("DX955", bench.changed(got), {"what": told}, told, freedom=freedom)

    held = next(each for each in outputs.values() if each.is_floating_point() and each.shape == shape)
    for shift, which in ((1, "after"), (-1, "before")):
        chosen = next(each for each in outputs.values() if not each.is_floating_point())
        told = f"the expert {which} the one that was chosen"
        yield idea(told, held, (chosen + shift) % logits.shape[1], 0.3)
    correction = getattr(bench.module, "e_score_correction_bias", None)
    own = _own_choice(bench.module, logits, weights, correction)
    for choice in _choices(own, logits.shape[1], biased=correction is not None):
        told = choice.differences(own)
        if not told or choice.chosen != own.chosen:
            continue
        held, chosen = weights_of(logits, choice, correction).topk(own.chosen, -1)
        yield idea(told, held, chosen, 0.4 * told.count(","))


def _in_order_of(bench: Bench, held: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights and numbers of the chosen in the candidate's order where it chose the same: the order says nothing."""
    theirs = next(
        (each for name, each in bench.targets.items() if not bench.truth[name].is_floating_point()), None
    )
    if theirs is None or theirs.shape != chosen.shape:
        return held, chosen
    same = theirs.long()[:, :, None] == chosen[:, None, :]
    own = torch.arange(chosen.shape[1]).expand_as(chosen)
    order = torch.where(same.any(-1).all(-1, keepdim=True), same.double().argmax(-1), own)
    return held.gather(1, order), chosen.gather(1, order)


def _shards(bench: Bench) -> Iterator[Idea]:
    """Yield experts whose last product, one tensor for all of them, was cut among ranks wrongly."""
    owner = next((each for each in bench.module.modules() if _stacked(each) is not None), None)
    if owner is None:
        return
    weight = _stacked(owner)
    assert weight is not None
    axis = 2 if weight.shape[2] != bench.first_input().shape[-1] or weight.shape[1] == weight.shape[2] else 1
    for ranks in sharding.RANKS:
        if weight.shape[axis] % ranks:
            continue
        parts, sums = weight.chunk(ranks, axis), sharding.is_partial(bench, ranks)
        for kept in range(ranks):
            one = torch.cat([each if at == kept else 0 * each for at, each in enumerate(parts)], axis)
            values = {"ranks": str(ranks), "present": str(kept), "missing": "the others"}
            how = f"only the sums of shard {kept} of {ranks} of the experts"
            with put(owner, down_proj=one):
                got = bench.run()
            yield Idea("DX985", got, values, how, freedom=0.1 * ranks, rank=int(not sums))
            if ranks == 2:
                yield Idea("DX984", got, values, how, freedom=0.1 * ranks, rank=int(sums))
            else:
                less = torch.cat([0 * each if at == kept else each for at, each in enumerate(parts)], axis)
                with put(owner, down_proj=less):
                    told = {"ranks": str(ranks), "missing": str(kept), "present": "the others"}
                    how = f"without shard {kept} of {ranks} of the experts"
                    yield Idea("DX984", bench.run(), told, how, freedom=0.1 * ranks)
        with put(owner, down_proj=torch.cat((*parts[1:], parts[0]), axis)):
            values = {"ranks": str(ranks), "order": "turned by one"}
            yield Idea(
                "DX983", bench.run(), values, f"{ranks} shards of the experts turned by one", freedom=0.2
            )
        with put(owner, down_proj=ranks * weight):
            yield Idea("DX986", bench.run(), {"ranks": str(ranks)}, f"the experts' sum taken {ranks} times")


def _stacked(module: Any) -> Tensor | None:
    """Return the last weights of all experts, where they are one tensor."""
    held = getattr(module, "_parameters", {}).get("down_proj")
    return held if held is not None and held.ndim == 3 else None
