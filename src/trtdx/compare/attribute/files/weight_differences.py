"""What the files of both sides show: weights derived from the reference's, and constants and settings that differ.

It is evidence beside the numbers, and it gives one more hypothesis: the reference's module with the candidate's weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.files.weight_changes import (
    WeightChange,
    classify_weight_change,
    expert_order,
    factor_beside_siblings,
)
from trtdx.compare.attribute.mistakes.config_settings import differing_settings
from trtdx.compare.attribute.mistakes.norms import identify_norm
from trtdx.compare.attribute.mistakes.product import is_embedding_module, is_vocabulary_head
from trtdx.compare.attribute.mistakes.routing import is_router
from trtdx.compare.attribute.module_bench import Mistake
from trtdx.compare.attribute.module_copies import override_attributes
from trtdx.compare.attribute.twin.graph_reader import is_in_scope, load_graph
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtdx.compare.attribute.module_bench import ModuleBench, Tensor
    from trtdx.compare.attribute.suspect import Suspect

CLOSE_DISTANCE = 0.02  # relative distance up to which a weight is the same but for its precision
UNIT_FACTOR_TOLERANCE = 0.01  # up to which a factor is one


class WeightRelation(NamedTuple):
    """How a weight of the candidate derives from one of the reference."""

    kind: str  # "same", "transposed", "in another order", "scaled", "partly zero", "of another module", "different"
    description: str


def relate_weights(reference: Tensor, candidate: Tensor) -> WeightRelation:
    """Return how one matrix or vector derives from another."""
    one, other = reference.detach().double(), candidate.detach().double()
    if one.numel() != other.numel():
        return WeightRelation("different", f"{list(other.shape)} instead of {list(one.shape)}")
    if one.shape == other.shape and _are_close(one, other):
        return WeightRelation("same", "the same")
    if one.ndim == 2 and other.shape == one.T.shape and _are_close(one.T, other):
        return WeightRelation("transposed", "transposed")
    if one.shape != other.shape:
        return WeightRelation("different", f"{list(other.shape)} instead of {list(one.shape)}")
    for check in (_scaled_relation, _zeroed_relation, _reordered_relation):
        weight_relation = check(one, other)
        if weight_relation is not None:
            return weight_relation
    return WeightRelation("different", "another one")


def _are_close(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) <= CLOSE_DISTANCE * float(one.norm())


def _scaled_relation(one: Tensor, other: Tensor) -> WeightRelation | None:
    size = float((one * one).sum())
    factor = float((one * other).sum()) / size if size else 0.0
    if factor and _are_close(one * factor, other):
        return WeightRelation("scaled", f"multiplied by {factor:.5g}")
    if one.ndim == 1 and _are_close(one + 1, other):
        return WeightRelation("scaled", "with one added")
    if one.ndim == 1 and _are_close(one - 1, other):
        return WeightRelation("scaled", "with one taken away")
    return None


def _zeroed_relation(one: Tensor, other: Tensor) -> WeightRelation | None:
    gone = (other == 0) & (one != 0)
    if bool(gone.any()) and _are_close(torch.where(gone, torch.zeros_like(one), one), other):
        return WeightRelation("partly zero", f"{100 * float(gone.double().mean()):.3g} % of it zero")
    return None


def _reordered_relation(one: Tensor, other: Tensor) -> WeightRelation | None:
    """Return the relation if the rows or the columns are permuted."""
    for axis, axis_name in ((0, "rows"), (1, "columns")):
        if axis >= one.ndim or one.shape[axis] > 16_384:
            continue
        rows, other_rows = (one, other) if axis == 0 else (one.T, other.T)
        rows, other_rows = rows.reshape(rows.shape[0], -1), other_rows.reshape(other_rows.shape[0], -1)
        order = ((rows**2).sum(1)[:, None] - 2 * rows @ other_rows.T).argmin(0)
        if _are_close(rows[order], other_rows):
            moved = int((order != torch.arange(len(order))).sum())
            return WeightRelation("in another order", f"{moved} of {len(order)} {axis_name} in another order")
    return None


def candidate_weight_ideas(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield the reference's module with the candidate's weights, where they can be read."""
    candidates = read_candidate_weights(bench.suspect, bench)
    changed, owns = {}, dict(bench.module.named_parameters())
    norm = identify_norm(bench)
    plus = 0.0 if norm is None else norm[0].plus
    for name, parameter in owns.items():
        other = candidates.get(name)
        if other is None:
            continue
        weight_relation = relate_weights(parameter, other)
        if weight_relation.kind != "same" and other.numel() == parameter.numel():
            changed[name] = (weight_relation, other if other.shape == parameter.shape else other.T)
    if not changed:
        return
    from contextlib import ExitStack

    with ExitStack() as undo:
        for name, (_, tensor) in changed.items():
            owner, _, last = name.rpartition(".")
            undo.enter_context(override_attributes(bench.module.get_submodule(owner), **{last: tensor}))
        got = bench.run()
    factor = _factor_beside_siblings(bench, owns, changed)
    if factor is not None and abs(factor - 1) > UNIT_FACTOR_TOLERANCE:
        how = f"with the candidate's own weights: those of its siblings have the same factors, these {factor:.4g} times as much"
        yield Mistake("DX948", got, {"factor": f"{factor:.4g}"}, how, rank=-1)
        return
    description = "; ".join(f"{name} is {how.description}" for name, (how, _) in list(changed.items())[:4])
    named = [classify_weight_change(name, owns[name], tensor, plus=plus) for name, (_, tensor) in changed.items()]
    if is_router(bench) and all(how.kind == "in another order" for how, _ in changed.values()):
        named = [_expert_order(owns[name], tensor) for name, (_, tensor) in changed.items()]
    codes = {None if change is None else change.code for change in named}
    if len(codes) == 1 and named[0] is not None:
        how = f"with the candidate's own weights: {named[0].values.get('what') or description}"
        yield Mistake(named[0].code, got, named[0].values, how, rank=-1)
    code = "DX992" if is_vocabulary_head(bench) and _is_tied(bench) else "DX977"
    # Whatever went wrong with a weight, this explains it: what says how it went wrong comes first.
    yield Mistake(
        code,
        got,
        {"what": description},
        f"with the candidate's own weights: {description}",
        rank=4,
        freedom=3,
    )


def _expert_order(reference: Tensor, candidate: Tensor) -> WeightChange:
    """Return the order of a router's rows, one for each expert."""
    rows, candidate_rows = (matrix.detach().double().reshape(matrix.shape[0], -1) for matrix in (reference, candidate))
    return expert_order(torch.cdist(candidate_rows, rows).argmin(1))


def _factor_beside_siblings(
    bench: ModuleBench, parameters: Mapping[str, Tensor], changed: Mapping[str, tuple[WeightRelation, Tensor]]
) -> float | None:
    """Return the factor by which a weight changed beyond the norm that was folded into it and its siblings."""
    side = bench.suspect.candidate
    if list(changed) != ["weight"] or side is None or side.spec.kind != "hf":
        return None
    siblings = (
        (module.weight, candidate["weight"])
        for path, module in bench.sibling_modules()
        if hasattr(module, "weight") and "weight" in (candidate := _weights_from_folder(side, path))
    )
    return factor_beside_siblings(parameters["weight"], changed["weight"][1], siblings)


def _is_tied(bench: ModuleBench) -> bool:
    """Whether the reference's module has the weight of an embedding."""
    weight = getattr(bench.model.get_submodule(bench.path), "weight", None)
    return any(is_embedding_module(module) and module.weight is weight for module in bench.model.modules())


def read_candidate_weights(suspect: Suspect, bench: ModuleBench) -> dict[str, Tensor]:
    """Return the candidate's weights of the module, by the reference's names; empty if they cannot be read."""
    side = suspect.candidate
    if side is None:
        return {}
    if side.spec.kind == "hf":
        return _weights_from_folder(side, bench.path)
    if side.spec.kind in ("onnx", "trt"):
        return _weights_from_onnx(side.spec.path, bench)
    return {}


def _weights_from_folder(side: Any, path: str) -> dict[str, Tensor]:
    engine = side.spec.open("")
    try:
        modules = dict(engine.model.named_modules())
        if path not in modules:
            return {}
        return {name: parameter.detach().clone() for name, parameter in modules[path].named_parameters()}
    finally:
        engine.close()


def _weights_from_onnx(path: str, bench: ModuleBench) -> dict[str, Tensor]:
    """Return the constants in the module's scope of a graph, matched to the weights by their size."""
    weights: dict[str, Tensor] = {}
    constants = _constants_in_scope(path, bench.path)
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
            and (chosen.shape != parameter.shape or _is_kept_transposed(parameter, chosen))
        ):
            chosen = chosen.T  # graphs multiply by [in, out]
        weights[name] = chosen
    return weights


def _is_kept_transposed(weight: Tensor, constant: Tensor) -> bool:
    """Whether a square constant is stored transposed, as a graph multiplies by it."""
    return (
        weight.shape == constant.shape
        and weight.shape[0] == weight.shape[1]
        and not _are_close(weight.double(), constant.double())
    )


def _constants_in_scope(path: str, scope: str) -> list[tuple[str, Tensor]]:
    """Return the constants that nodes in a scope read, with the innermost module of the node."""
    graph = load_graph(path)
    constants = []
    for at, node in enumerate(graph.nodes):
        if not is_in_scope(graph.scopes[at], scope):
            continue
        for value in node.inputs:
            constant = None if value is None else value.const_value
            if constant is not None and constant.dtype.name in ("FLOAT", "FLOAT16", "DOUBLE"):
                constants.append((graph.scopes[at][-1], torch.from_numpy(constant.numpy().copy())))
    return constants


def describe_file_differences(suspect: Suspect, bench: ModuleBench) -> list[str]:
    """Return what differs in the files at this place, in words."""
    descriptions = []
    candidates = read_candidate_weights(suspect, bench)
    for name, parameter in bench.module.named_parameters():
        if name in candidates:
            weight_relation = relate_weights(parameter, candidates[name])
            if weight_relation.kind != "same":
                descriptions.append(f"the candidate's {bench.path}.{name} is {weight_relation.description}")
    return descriptions + [
        setting.description for setting in differing_settings(suspect, getattr(bench.model, "config", None))
    ]
