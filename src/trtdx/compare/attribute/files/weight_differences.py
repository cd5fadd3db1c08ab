"""What both sides' files tell: weights that are a change of the reference's, constants and settings that differ.

It is evidence beside the numbers, and it gives one more hypothesis: the reference's module with the candidate's weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.experiment import Idea
from trtdx.compare.attribute.files.weight_changes import WeightChange, change_of, expert_order, factor_beside
from trtdx.compare.attribute.ideas.config_settings import stated_settings
from trtdx.compare.attribute.ideas.norms import norm_of
from trtdx.compare.attribute.ideas.product import is_embedding, is_vocabulary
from trtdx.compare.attribute.ideas.routing import is_router
from trtdx.compare.attribute.module_copies import put
from trtdx.compare.attribute.twin.graph import graph_of, is_in_scope
from trtdx.engines.torch.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtdx.compare.attribute.experiment import Bench, Tensor
    from trtdx.compare.attribute.suspect import Suspect

CLOSE = 0.02  # relative distance up to which a weight is the same but for its precision
NO_FACTOR = 0.01  # up to which a factor is one
CODES = {"transposed": "DX982", "in another order": "DX983", "scaled": "DX948", "partly zero": "DX984"}


class Relation(NamedTuple):
    """How a weight of the candidate comes from one of the reference."""

    kind: str  # "same", "transposed", "in another order", "scaled", "partly zero", "of another module", "different"
    told: str


def relation(reference: Tensor, candidate: Tensor) -> Relation:
    """Return how one matrix or vector comes from another."""
    one, other = reference.detach().double(), candidate.detach().double()
    if one.numel() != other.numel():
        return Relation("different", f"{list(other.shape)} instead of {list(one.shape)}")
    if one.shape == other.shape and _near(one, other):
        return Relation("same", "the same")
    if one.ndim == 2 and other.shape == one.T.shape and _near(one.T, other):
        return Relation("transposed", "transposed")
    if one.shape != other.shape:
        return Relation("different", f"{list(other.shape)} instead of {list(one.shape)}")
    for check in (_scaled, _zeroed, _ordered):
        weight_relation = check(one, other)
        if weight_relation is not None:
            return weight_relation
    return Relation("different", "another one")


def _near(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) <= CLOSE * float(one.norm())


def _scaled(one: Tensor, other: Tensor) -> Relation | None:
    size = float((one * one).sum())
    factor = float((one * other).sum()) / size if size else 0.0
    if factor and _near(one * factor, other):
        return Relation("scaled", f"multiplied by {factor:.5g}")
    if one.ndim == 1 and _near(one + 1, other):
        return Relation("scaled", "with one added")
    if one.ndim == 1 and _near(one - 1, other):
        return Relation("scaled", "with one taken away")
    return None


def _zeroed(one: Tensor, other: Tensor) -> Relation | None:
    gone = (other == 0) & (one != 0)
    if bool(gone.any()) and _near(torch.where(gone, torch.zeros_like(one), one), other):
        return Relation("partly zero", f"{100 * float(gone.double().mean()):.3g} % of it zero")
    return None


def _ordered(one: Tensor, other: Tensor) -> Relation | None:
    """Return that the rows, or the columns, stand in another order."""
    for axis, axis_name in ((0, "rows"), (1, "columns")):
        if axis >= one.ndim or one.shape[axis] > 16_384:
            continue
        rows, other_rows = (one, other) if axis == 0 else (one.T, other.T)
        rows, other_rows = rows.reshape(rows.shape[0], -1), other_rows.reshape(other_rows.shape[0], -1)
        order = ((rows**2).sum(1)[:, None] - 2 * rows @ other_rows.T).argmin(0)
        if _near(rows[order], other_rows):
            moved = int((order != torch.arange(len(order))).sum())
            return Relation("in another order", f"{moved} of {len(order)} {axis_name} in another order")
    return None


def ideas(bench: Bench) -> Iterator[Idea]:
    """Yield the reference's module with the candidate's weights, where they can be read."""
    candidates = candidate_weights(bench.suspect, bench)
    changed, owns = {}, dict(bench.module.named_parameters())
    norm = norm_of(bench)
    plus = 0.0 if norm is None else norm[0].plus
    for name, parameter in owns.items():
        other = candidates.get(name)
        if other is None:
            continue
        weight_relation = relation(parameter, other)
        if weight_relation.kind != "same" and other.numel() == parameter.numel():
            changed[name] = (weight_relation, other if other.shape == parameter.shape else other.T)
    if not changed:
        return
    from contextlib import ExitStack

    with ExitStack() as undo:
        for name, (_, tensor) in changed.items():
            owner, _, last = name.rpartition(".")
            undo.enter_context(put(bench.module.get_submodule(owner), **{last: tensor}))
        got = bench.run()
    factor = _beside_siblings(bench, owns, changed)
    if factor is not None and abs(factor - 1) > NO_FACTOR:
        how = f"with the candidate's own weights: those of its siblings have the same factors, these {factor:.4g} times as much"
        yield Idea("DX948", got, {"factor": f"{factor:.4g}"}, how, rank=-1)
        return
    description = "; ".join(f"{name} is {how.told}" for name, (how, _) in list(changed.items())[:4])
    named = [change_of(name, owns[name], tensor, plus=plus) for name, (_, tensor) in changed.items()]
    if is_router(bench) and all(how.kind == "in another order" for how, _ in changed.values()):
        named = [_experts_of(owns[name], tensor) for name, (_, tensor) in changed.items()]
    codes = {None if change is None else change.code for change in named}
    if len(codes) == 1 and named[0] is not None:
        how = f"with the candidate's own weights: {named[0].values.get('what') or description}"
        yield Idea(named[0].code, got, named[0].values, how, rank=-1)
    code = "DX992" if is_vocabulary(bench) and _is_tied(bench) else "DX977"
    # Whatever went wrong with a weight, this explains it: what says how it went wrong comes first.
    yield Idea(
        code,
        got,
        {"what": description},
        f"with the candidate's own weights: {description}",
        rank=4,
        freedom=3,
    )


def _experts_of(own: Tensor, other: Tensor) -> WeightChange:
    """Return in which order the rows of a router, one for each expert, stand."""
    rows, candidate_rows = (matrix.detach().double().reshape(matrix.shape[0], -1) for matrix in (own, other))
    return expert_order(torch.cdist(candidate_rows, rows).argmin(1))


def _beside_siblings(
    bench: Bench, owns: Mapping[str, Tensor], changed: Mapping[str, tuple[Relation, Tensor]]
) -> float | None:
    """Return the factor that is left of a weight's change once a norm is made up for that was folded into its siblings."""
    side = bench.suspect.candidate
    if list(changed) != ["weight"] or side is None or side.spec.kind != "hf":
        return None
    siblings = (
        (module.weight, candidate["weight"])
        for path, module in bench.siblings()
        if hasattr(module, "weight") and "weight" in (candidate := _from_folder(side, path))
    )
    return factor_beside(owns["weight"], changed["weight"][1], siblings)


def _is_tied(bench: Bench) -> bool:
    """Whether the reference's module has the weight of an embedding."""
    weight = getattr(bench.model.get_submodule(bench.path), "weight", None)
    return any(is_embedding(module) and module.weight is weight for module in bench.model.modules())


def candidate_weights(suspect: Suspect, bench: Bench) -> dict[str, Tensor]:
    """Return the candidate's weights of the module, by the reference's names; none where they cannot be read."""
    side = suspect.candidate
    if side is None:
        return {}
    if side.spec.kind == "hf":
        return _from_folder(side, bench.path)
    if side.spec.kind in ("onnx", "trt"):
        return _from_onnx(side.spec.path, bench)
    return {}


def _from_folder(side: Any, path: str) -> dict[str, Tensor]:
    engine = side.spec.open("")
    try:
        modules = dict(engine.model.named_modules())
        if path not in modules:
            return {}
        return {name: parameter.detach().clone() for name, parameter in modules[path].named_parameters()}
    finally:
        engine.close()


def _from_onnx(path: str, bench: Bench) -> dict[str, Tensor]:
    """Return the constants of a graph that stand in the module's scope, for the weights they have the size of."""
    weights: dict[str, Tensor] = {}
    constants = _constants(path, bench.path)
    for name, parameter in bench.module.named_parameters():
        owner = name.rpartition(".")[0]
        scope = ".".join(part for part in (bench.path, owner) if part)
        fitting = [
            constant
            for inner, constant in constants
            if inner.endswith(scope) and constant.numel() == parameter.numel() > 1
        ]
        same = [constant for constant in fitting if constant.shape == parameter.shape]
        if not fitting:
            continue
        chosen = (same or fitting)[0]
        if (
            parameter.ndim == 2
            and chosen.ndim == 2
            and (chosen.shape != parameter.shape or _is_multiplied(parameter, chosen))
        ):
            chosen = chosen.T  # graphs multiply by [in, out]
        weights[name] = chosen
    return weights


def _is_multiplied(own: Tensor, found: Tensor) -> bool:
    """Whether a square constant is kept as a graph multiplies by it: as its transpose is nearer."""
    return (
        own.shape == found.shape and own.shape[0] == own.shape[1] and not _near(own.double(), found.double())
    )


def _constants(path: str, scope: str) -> list[tuple[str, Tensor]]:
    """Return the constants that nodes in a scope read, with the innermost module of the node."""
    graph = graph_of(path)
    constants = []
    for at, node in enumerate(graph.nodes):
        if not is_in_scope(graph.scopes[at], scope):
            continue
        for value in node.inputs:
            constant = None if value is None else value.const_value
            if constant is not None and constant.dtype.name in ("FLOAT", "FLOAT16", "DOUBLE"):
                constants.append((graph.scopes[at][-1], torch.from_numpy(constant.numpy().copy())))
    return constants


def evidence(suspect: Suspect, bench: Bench) -> list[str]:
    """Return what differs in the files at this place, in words."""
    descriptions = []
    candidates = candidate_weights(suspect, bench)
    for name, parameter in bench.module.named_parameters():
        if name in candidates:
            weight_relation = relation(parameter, candidates[name])
            if weight_relation.kind != "same":
                descriptions.append(f"the candidate's {bench.path}.{name} is {weight_relation.told}")
    return descriptions + [
        setting.told for setting in stated_settings(suspect, getattr(bench.model, "config", None))
    ]
