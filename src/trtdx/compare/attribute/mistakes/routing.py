"""Mixtures of experts: which experts are chosen, with which weights, in which order, and the shared expert."""

from __future__ import annotations

import copy
from itertools import product as all_of
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.mistakes import sharding
from trtdx.compare.attribute.module_bench import Mistake
from trtdx.compare.attribute.module_copies import override_attributes
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.module_bench import ModuleBench, Outputs, Tensor

ROUTER_NAMES, SHARED_EXPERT_NAMES = ("gate", "router"), ("shared_experts", "shared_expert", "shared_mlp")
MOST_EXPERTS = 512


class RoutingChoice(NamedTuple):
    """How weights come from a router's logits."""

    score: str  # "softmax", "sigmoid" or "softmax of the chosen"
    chosen: int
    normalised: bool
    factor: float
    biased: bool  # whether a correction is added before choosing
    skipped: int = 0  # how many of the best are passed over; -1: the worst are chosen

    def describe_differences(self, other: RoutingChoice) -> str:
        """Say in words how this differs from another."""
        parts = []
        if self.score != other.score:
            parts.append(f"{self.score} instead of {other.score}")
        if self.chosen != other.chosen:
            parts.append(f"{self.chosen} experts instead of {other.chosen}")
        if self.normalised != other.normalised:
            parts.append("weights normalised" if self.normalised else "weights not normalised")
        if abs(self.factor - other.factor) > 1e-9:
            parts.append(f"weights times {self.factor:g} instead of {other.factor:g}")
        if self.biased != other.biased:
            parts.append("chosen with the correction" if self.biased else "chosen without the correction")
        if self.skipped != other.skipped:
            parts.append("the worst experts chosen" if self.skipped < 0 else "the best expert passed over")
        return ", ".join(parts)


class RoutedBlock(NamedTuple):
    """A block of experts in a run."""

    logits: Tensor  # [tokens, experts]
    weights: Tensor  # [tokens, experts], zero where not chosen
    expert_outputs: Tensor  # [experts, tokens, width]: what every expert makes of every token
    rest: Tensor  # [tokens, width]: what is added besides
    shared: Tensor | None
    correction: Tensor | None
    own_choice: RoutingChoice


def routing_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield what could be wrong with the choice of experts."""
    yield from _expert_shard_mistakes(bench)
    yield from _shared_expert_mistakes(bench)
    routed = _identify_routed_block(bench)
    if routed is None:
        yield from _router_mistakes(bench)
        return

    def outputs(weights: Tensor, expert_outputs: Tensor | None = None, rest: Tensor | None = None) -> Outputs:
        mixed = torch.einsum("te,eth->th", weights, routed.expert_outputs if expert_outputs is None else expert_outputs)
        mixed = mixed + (routed.rest if rest is None else rest)
        return bench.with_main(mixed.reshape(bench.truth[bench.main_target].shape))

    for choice in _routing_choices(routed.own_choice, routed.logits.shape[1], biased=routed.correction is not None):
        difference = choice.describe_differences(routed.own_choice)
        if difference:
            weights = routing_weights(routed.logits, choice, routed.correction)
            values = {"what": difference}
            yield Mistake("DX955", outputs(weights), values, difference, freedom=0.4 * difference.count(","))
    if routed.shared is not None:
        how = "without what all tokens share"
        yield Mistake("DX957", outputs(routed.weights, rest=routed.rest - routed.shared), {}, how)
        got = outputs(routed.weights, rest=routed.rest + routed.shared)
        yield Mistake("DX957", got, {}, "with the shared expert twice", freedom=0.5)
    for expert in range(min(routed.logits.shape[1], 64)):
        less = routed.weights.clone()
        less[:, expert] = 0
        how = f"without expert {expert}"
        yield Mistake("DX955", outputs(less), {"what": f"expert {expert} left out"}, how, freedom=0.5)
    order = _find_expert_order(bench, routed)
    if order is not None:
        moved = " ".join(map(str, order[:16]))
        values = {"order": moved}
        how = f"experts in the order {moved}"
        yield Mistake("DX956", outputs(routed.weights, routed.expert_outputs[order]), values, how, freedom=0.5)


def is_router(bench: ModuleBench) -> bool:
    """Whether a module says which experts a token goes to."""
    parent, _, own_name = bench.path.rpartition(".")
    return own_name in ROUTER_NAMES and any(path == f"{parent}.experts" for path, _ in bench.sibling_modules())


def _shared_expert_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield a shared expert that contributes nothing."""
    block, _, own_name = bench.path.rpartition(".")
    if own_name in SHARED_EXPERT_NAMES and bench.main_target == f"{bench.path}:out":
        nothing = bench.with_main(torch.zeros_like(bench.truth[bench.main_target]))
        yield Mistake("DX957", nothing, {"module": block}, f"{own_name} gives nothing", rank=-2)


def routing_weights(logits: Tensor, choice: RoutingChoice, correction: Tensor | None) -> Tensor:
    """Return the weight of each expert for each token."""
    scores = torch.sigmoid(logits) if choice.score == "sigmoid" else torch.softmax(logits, -1)
    ranked = scores + correction if choice.biased and correction is not None else scores
    count = min(choice.chosen + max(0, choice.skipped), logits.shape[1])
    chosen = ranked.topk(count, -1, largest=choice.skipped >= 0).indices[:, max(0, choice.skipped) :]
    chosen_weights = (logits if choice.score == "softmax of the chosen" else scores).gather(1, chosen)
    if choice.score == "softmax of the chosen":
        chosen_weights = torch.softmax(chosen_weights, -1)
    if choice.normalised:
        chosen_weights = chosen_weights / chosen_weights.sum(-1, keepdim=True)
    return torch.zeros_like(logits).scatter(1, chosen, chosen_weights * choice.factor)


def _routing_choices(own_choice: RoutingChoice, experts: int, *, biased: bool) -> Iterator[RoutingChoice]:
    scores = ("softmax", "sigmoid")
    counts = {
        own_choice.chosen,
        *(
            count
            for count in (1, 2, 4, 6, 8, own_choice.chosen - 1, own_choice.chosen + 1, experts)
            if 0 < count <= experts
        ),
    }
    factors = {own_choice.factor, 1.0}
    corrections = {own_choice.biased, False} if biased else {False}
    for score, count, normal, factor, bias in all_of(scores, sorted(counts), (True, False), factors, corrections):
        yield RoutingChoice(score, count, normal, factor, bias)
    if own_choice.chosen < experts:
        yield from (own_choice._replace(skipped=passed) for passed in (1, -1))


def _find_router(module: Any) -> Any:
    return next((getattr(module, name) for name in ROUTER_NAMES if hasattr(module, name)), None)


def _find_expert_block(bench: ModuleBench) -> tuple[Any, bool]:
    """Return the block of experts that the module is, or that it is the experts of."""
    if hasattr(bench.module, "experts") and _find_router(bench.module) is not None:
        return bench.module, False
    parent, _, own_name = bench.path.rpartition(".")
    owner = bench.model.get_submodule(parent) if parent and own_name == "experts" else None
    router = _find_router(owner)
    if router is None:
        return None, False
    exact_router = copy.deepcopy(router).to(bench.exact_dtype)
    return SimpleNamespace(gate=exact_router), True


def _identify_routed_block(bench: ModuleBench) -> RoutedBlock | None:
    """Return what a block of experts does, if the module is one, or its experts, and it can be computed here."""
    block, inner = _find_expert_block(bench)
    if block is None or bench.main_target != f"{bench.path}:out":
        return None
    x = bench.first_float_input()
    rows = x.reshape(-1, x.shape[-1])
    try:
        with torch.no_grad():
            router_outputs = _find_router(block)(rows)
            expert_outputs = _all_expert_outputs(bench.module if inner else block.experts, rows)
            shared = None if inner else _shared_expert_output(block, rows)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    logits_and_weights = _router_logits_and_weights(router_outputs, rows.shape[0])
    if logits_and_weights is None or expert_outputs is None:
        return None
    logits, weights = logits_and_weights
    truth = bench.truth[bench.main_target].reshape(rows.shape[0], -1)
    rest = truth - torch.einsum("te,eth->th", weights.to(expert_outputs.dtype), expert_outputs)
    limit = 1e-6 * float((truth**2).sum())
    if shared is None and float((rest**2).sum()) > limit:
        return None
    correction = getattr(_find_router(block), "e_score_correction_bias", None)
    own_choice = _identify_choice(_find_router(block), logits.double(), weights.double(), correction)
    return RoutedBlock(
        logits.to(expert_outputs.dtype),
        weights.to(expert_outputs.dtype),
        expert_outputs,
        rest,
        shared,
        correction,
        own_choice,
    )


def _all_expert_outputs(experts: Any, rows: Tensor) -> Tensor | None:
    count = getattr(experts, "num_experts", None) or (len(experts) if hasattr(experts, "__len__") else 0)
    if not 0 < count <= MOST_EXPERTS:
        return None
    if hasattr(experts, "__getitem__"):
        return torch.stack([experts[at](rows) for at in range(count)])
    ones = torch.ones((rows.shape[0], 1), dtype=rows.dtype)
    return torch.stack([experts(rows, torch.full((rows.shape[0], 1), at), ones) for at in range(count)])


def _shared_expert_output(block: Any, rows: Tensor) -> Tensor | None:
    expert = next(
        (getattr(block, name) for name in SHARED_EXPERT_NAMES if getattr(block, name, None) is not None), None
    )
    if expert is None:
        return None
    shared_output = expert(rows)
    gate = getattr(block, "shared_expert_gate", None)
    return shared_output if gate is None else torch.sigmoid(gate(rows)) * shared_output


def _router_logits_and_weights(router_outputs: Any, rows: int) -> tuple[Tensor, Tensor] | None:
    """Return the logits and the weights in what a router gives."""
    if not isinstance(router_outputs, (tuple, list)):
        return None
    chosen = next((tensor for tensor in router_outputs if not tensor.is_floating_point()), None)
    if chosen is None:
        return None
    floats = [tensor for tensor in router_outputs if tensor.is_floating_point()]
    chosen_weights = next((tensor for tensor in floats if tensor.shape == chosen.shape), None)
    logits = next(
        (tensor for tensor in floats if tensor.shape[-1] >= chosen.shape[-1] and tensor is not chosen_weights),
        None,
    )
    if chosen_weights is None or logits is None or logits.shape[0] != rows:
        return None
    return logits, torch.zeros_like(logits).scatter(1, chosen, chosen_weights.to(logits.dtype))


def _identify_choice(router: Any, logits: Tensor, weights: Tensor, correction: Tensor | None) -> RoutingChoice:
    count = int((weights != 0).sum(1).max())
    factor = float(getattr(router, "routed_scaling_factor", 1.0))
    bias = correction is not None
    options = [
        RoutingChoice(score, count, normal, factor, bias)
        for score in ("softmax", "sigmoid")
        for normal in (True, False)
    ]
    gaps = [((routing_weights(logits, option, correction) - weights) ** 2).sum() for option in options]
    return options[int(torch.stack(gaps).argmin())]


def _find_expert_order(bench: ModuleBench, routed: RoutedBlock) -> list[int] | None:
    """Return the order of the experts, from the weights that explain each token best."""
    candidate = torch.nan_to_num(bench.targets[bench.main_target]).reshape(routed.rest.shape) - routed.rest
    experts, _, width = routed.expert_outputs.shape
    if width < experts:
        return None
    fit = torch.linalg.lstsq(routed.expert_outputs.permute(1, 2, 0).double(), candidate.double()[..., None]).solution[
        ..., 0
    ]
    own_weights = routed.weights.double()
    # Whose weights are over there what these are here.
    order = torch.cdist(own_weights.T, fit.T).argmin(1).tolist()
    used = (routed.weights != 0).any(0)
    order = [expert if bool(used[at]) else at for at, expert in enumerate(order)]
    return order if order != list(range(experts)) else None


def _router_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield other weights from the same logits, where the suspect is the router itself."""
    all_outputs = bench.run(all_targets=True)  # the candidate may have fewer of them
    outputs = {name: tensor for name, tensor in all_outputs.items() if name.startswith(f"{bench.path}:out")}
    logits_and_weights = (
        _router_logits_and_weights(tuple(outputs.values()), len(next(iter(outputs.values()))))
        if len(outputs) == 3
        else None
    )
    if logits_and_weights is None:
        return
    logits, weights = (tensor.double() for tensor in logits_and_weights)
    shape = next(tensor.shape for tensor in outputs.values() if not tensor.is_floating_point())

    def idea(description: str, chosen_weights: Tensor, chosen: Tensor, freedom: float) -> Mistake:
        chosen_weights, chosen = _in_candidate_order(bench, chosen_weights, chosen)
        got = {
            name: chosen_weights if tensor.is_floating_point() else chosen
            for name, tensor in bench.truth.items()
            if tensor.shape == shape and name in outputs
        }
        return Mistake("DX955", bench.with_outputs(got), {"what": description}, description, freedom=freedom)

    chosen_weights = next(tensor for tensor in outputs.values() if tensor.is_floating_point() and tensor.shape == shape)
    for shift, which in ((1, "after"), (-1, "before")):
        chosen = next(tensor for tensor in outputs.values() if not tensor.is_floating_point())
        description = f"the expert {which} the one that was chosen"
        yield idea(description, chosen_weights, (chosen + shift) % logits.shape[1], 0.3)
    correction = getattr(bench.module, "e_score_correction_bias", None)
    own_choice = _identify_choice(bench.module, logits, weights, correction)
    for choice in _routing_choices(own_choice, logits.shape[1], biased=correction is not None):
        description = choice.describe_differences(own_choice)
        if not description or choice.chosen != own_choice.chosen:
            continue
        chosen_weights, chosen = routing_weights(logits, choice, correction).topk(own_choice.chosen, -1)
        yield idea(description, chosen_weights, chosen, 0.4 * description.count(","))


def _in_candidate_order(bench: ModuleBench, chosen_weights: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the chosen experts and their weights in the candidate's order if it chose the same ones; their order means nothing."""
    candidate_ids = next(
        (tensor for name, tensor in bench.targets.items() if not bench.truth[name].is_floating_point()), None
    )
    if candidate_ids is None or candidate_ids.shape != chosen.shape:
        return chosen_weights, chosen
    same = candidate_ids.long()[:, :, None] == chosen[:, None, :]
    own_order = torch.arange(chosen.shape[1]).expand_as(chosen)
    order = torch.where(same.any(-1).all(-1, keepdim=True), same.double().argmax(-1), own_order)
    return chosen_weights.gather(1, order), chosen.gather(1, order)


def _expert_shard_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield experts whose last product, one tensor for all of them, was cut among ranks wrongly."""
    owner = next((module for module in bench.module.modules() if _stacked_down_proj(module) is not None), None)
    if owner is None:
        return
    weight = _stacked_down_proj(owner)
    assert weight is not None
    axis = 2 if weight.shape[2] != bench.first_float_input().shape[-1] or weight.shape[1] == weight.shape[2] else 1
    for ranks in sharding.RANK_COUNTS:
        if weight.shape[axis] % ranks:
            continue
        parts, sums = weight.chunk(ranks, axis), sharding.is_partial_sum(bench, ranks)
        for kept_rank in range(ranks):
            one = torch.cat([shard if at == kept_rank else 0 * shard for at, shard in enumerate(parts)], axis)
            values = {"ranks": str(ranks), "present": str(kept_rank), "missing": "the others"}
            how = f"only the sums of shard {kept_rank} of {ranks} of the experts"
            with override_attributes(owner, down_proj=one):
                got = bench.run()
            yield Mistake("DX985", got, values, how, freedom=0.1 * ranks, rank=int(not sums))
            if ranks == 2:
                yield Mistake("DX984", got, values, how, freedom=0.1 * ranks, rank=int(sums))
            else:
                less = torch.cat([0 * shard if at == kept_rank else shard for at, shard in enumerate(parts)], axis)
                with override_attributes(owner, down_proj=less):
                    missing_values = {"ranks": str(ranks), "missing": str(kept_rank), "present": "the others"}
                    how = f"without shard {kept_rank} of {ranks} of the experts"
                    yield Mistake("DX984", bench.run(), missing_values, how, freedom=0.1 * ranks)
        with override_attributes(owner, down_proj=torch.cat((*parts[1:], parts[0]), axis)):
            values = {"ranks": str(ranks), "order": "turned by one"}
            yield Mistake("DX983", bench.run(), values, f"{ranks} shards of the experts turned by one", freedom=0.2)
        with override_attributes(owner, down_proj=ranks * weight):
            yield Mistake("DX986", bench.run(), {"ranks": str(ranks)}, f"the experts' sum taken {ranks} times")


def _stacked_down_proj(module: Any) -> Tensor | None:
    """Return the last weights of all experts, where they are one tensor."""
    down_proj = getattr(module, "_parameters", {}).get("down_proj")
    return down_proj if down_proj is not None and down_proj.ndim == 3 else None
