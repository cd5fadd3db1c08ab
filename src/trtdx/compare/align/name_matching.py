"""Matches the names of two sides: by name, by scope, by structure, and the rest by shape, order and values."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.align.fused_layouts import FUSED_PARTS
from trtdx.compare.align.layouts import squeezed_shape
from trtdx.compare.align.name_meanings import NameMeaning, collect_meanings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trtdx.compare.align.side_tensors import NamedTensor, SideTensors

    ErrorMeasure = Callable[[NamedTensor, NamedTensor], float]
    Calls = dict[int, dict[str, NamedTensor]]  # of one module: by the number of the call and the port

GRAPH_ENGINES = ("onnxruntime", "tensorrt")
CLOSE = 0.1  # statistics this near, in relative terms, are worth a look at the values
MOST_TRIED = 8
MOST_CALLS = 4  # of one module, whose order is looked for
OTHER_CALL = 0.25  # by which another order of calls has to fit better
SAME_NUMBER = 0.25  # what the same number among ports counts for: less than content, more than chance


class NameMatch(NamedTuple):
    """A tensor of the one side and its counterpart, on whichever steps both have it."""

    reference: str
    candidate: str
    matched_by: str
    reference_part: str = ""  # "q", "k", "v", "gate", "up" of a fused tensor
    candidate_part: str = ""
    confidence: float = 1.0
    changes: tuple[str, ...] = ()  # that a mapping asks for

    @property
    def name(self) -> str:
        return f"{self.reference} ({self.reference_part})" if self.reference_part else self.reference


class SideNames:
    """The names of a side by what they mean."""

    def __init__(self, side: SideTensors) -> None:
        self.tensors = side.by_name
        self.is_graph = side.capture.header.engine in GRAPH_ENGINES
        self.meanings: dict[str, NameMeaning] = collect_meanings(side.by_name)
        self.by_scope: dict[tuple[str, str], list[NamedTensor]] = {}
        self.by_role: dict[tuple[str, str], list[NamedTensor]] = {}
        for name, tensor in side.by_name.items():
            meaning = self.meanings[name]
            self.by_scope.setdefault((meaning.scope, meaning.port), []).append(tensor)
            self.by_role.setdefault((meaning.role, meaning.port), []).append(tensor)


def match_names(reference: SideNames, candidate: SideNames, mapped: dict[str, NameMatch | None]) -> list[NameMatch]:
    """Return the matches that follow from names, in no order.

    What the user's mapping says stands: none is for a tensor that is to be left out.
    """
    matches = {name: match for name, match in mapped.items() if match}
    used = {match.candidate for match in matches.values()}
    free = [name for name in reference.tensors if name not in mapped]
    counted = (
        _numbered_ports(reference) | _numbered_ports(candidate) if reference.is_graph and candidate.is_graph else set()
    )
    called = _match_calls(reference, candidate)
    for name in free:
        other = candidate.tensors.get(called.get(name, name))
        if other is not None and other.name not in used | counted and _have_same_kind(reference.tensors[name], other):
            matches[name] = NameMatch(name, other.name, "name")
            used.add(other.name)
    for how, our_groups, their_groups in (
        ("scope", reference.by_scope, candidate.by_scope),
        ("structure", reference.by_role, candidate.by_role),
    ):
        for key, group in our_groups.items():
            left = [tensor for tensor in group if tensor.name not in matches and tensor.name not in mapped]
            others = [tensor for tensor in their_groups.get(key, ()) if tensor.name not in used]
            for one, other in _match_ports(left, others, reference, candidate):
                matches[one.name] = NameMatch(one.name, other.name, how)
                used.add(other.name)
    logits = _match_logits(reference, candidate, set(matches) | set(mapped))
    return [
        *matches.values(),
        *logits,
        *_match_fused_parts(reference, candidate, set(matches) | set(mapped), used),
    ]


def _match_calls(reference: SideNames, candidate: SideNames) -> dict[str, str]:
    """Return the tensors of modules that are called several times, where the calls fit in another order only.

    A model may go through its kinds of layers as a set has them, which is another order in each process (rotary
    embeddings of Gemma 3). What then reads a call's result has a name of its own, so that no mistake is hidden.
    """
    counterparts: dict[str, str] = {}
    mine, others = _tensors_by_call(reference), _tensors_by_call(candidate)
    for path, calls in mine.items():
        other_calls = others.get(path, {})
        if sorted(other_calls) == sorted(calls):
            counterparts |= _match_reordered_calls(calls, other_calls)
        elif 1 in (len(calls), len(other_calls)):
            counterparts |= _match_merged_calls(calls, other_calls)
    return counterparts


def _match_reordered_calls(calls: Calls, other_calls: Calls) -> dict[str, str]:
    """Return the tensors of a module's calls by their counterparts, if the calls fit in another order only."""
    numbers = sorted(calls)
    if not 1 < len(numbers) <= MOST_CALLS:
        return {}
    score = {
        (one, other): sum(
            _similarity_score(tensor, other_calls[other][port])
            for port, tensor in calls[one].items()
            if port in other_calls[other]
        )
        for one in numbers
        for other in numbers
    }

    def total(order: Iterable[int]) -> float:
        return sum(score[pair] for pair in zip(numbers, order, strict=True))

    best = max(permutations(numbers), key=total)
    if total(best) - total(numbers) <= OTHER_CALL:
        return {}
    return {
        tensor.name: other_calls[other][port].name
        for one, other in zip(numbers, best, strict=True)
        for port, tensor in calls[one].items()
        if port in other_calls[other]
    }


def _match_merged_calls(calls: Calls, other_calls: Calls) -> dict[str, str]:
    """Return the outputs of a module's calls by those of the other side, which has all of them as outputs of one call.

    Graphs have them like that. Their first outputs are those of whichever call was traced first.
    """
    reference_outputs, candidate_outputs = _call_outputs(calls), _call_outputs(other_calls)
    count = len(reference_outputs)
    if count != len(candidate_outputs) or len(calls) == len(other_calls) or count > MOST_CALLS * 2:
        return {}
    scores = (
        (-_similarity_score(one, other), abs(first - second), first, second)
        for first, one in enumerate(reference_outputs)
        for second, other in enumerate(candidate_outputs)
    )
    order = _best_first(scores)
    return {reference_outputs[first].name: candidate_outputs[second].name for first, second in order.items()}


def _best_first(scores: Iterable[tuple[Any, ...]]) -> dict[int, int]:
    """Return the pairs in order of score, the best remaining first; the last two items of a score are their indices."""
    order: dict[int, int] = {}
    for *_, first, second in sorted(scores):
        if first not in order and second not in order.values():
            order[first] = second
    return order


def _call_outputs(calls: Calls) -> list[NamedTensor]:
    """Return the outputs of all calls of a module, call by call, in the order of their ports."""
    return [
        tensor
        for number in sorted(calls)
        for port, tensor in sorted(calls[number].items(), key=lambda item: (len(item[0]), item[0]))
        if port.startswith("out")
    ]


def _tensors_by_call(names: SideNames) -> dict[str, Calls]:
    """Return the tensors of each module by the number of the call and the port."""
    tensors: dict[str, Calls] = {}
    for name, tensor in names.tensors.items():
        path, _, call = tensor.place.path.partition("#")
        port = name.rpartition(":")[2]
        if path:
            tensors.setdefault(path, {}).setdefault(int(call) if call.isdigit() else 0, {})[port] = tensor
    return tensors


def _numbered_ports(names: SideNames) -> set[str]:
    """Return the tensors that only a port number names: the inputs of a graph's module come in any order."""
    several = (group for group in names.by_scope.values() if len(group) > 1)
    return {
        tensor.name
        for group in several
        for tensor in group
        if names.meanings[tensor.name].port_key.isdigit() and not tensor.place.tensor
    }


def _have_same_kind(one: NamedTensor, other: NamedTensor) -> bool:
    """Whether two tensors can be the same by the kind of their elements; an exporter may count inputs differently."""
    if one.kind == other.kind:
        return True
    masks = {one.kind, other.kind} == {"b", "f"} and len(one.shape) == len(other.shape)
    return masks or {one.kind, other.kind} == {"b", "i"}


def _match_ports(
    reference: list[NamedTensor],
    candidate: list[NamedTensor],
    reference_names: SideNames,
    candidate_names: SideNames,
) -> Iterable[tuple[NamedTensor, NamedTensor]]:
    """Yield which inputs, or outputs, of a module are the same.

    Those of the same name or number first, if they can be; then the best fits: the same content, the same shape, near
    statistics, and in doubt the order.
    """
    left = list(candidate)
    waiting = []
    for one in reference:
        which = reference_names.meanings[one.name].port_key
        same = [
            other
            for other in left
            if candidate_names.meanings[other.name].port_key == which and _can_be_same(one, other)
        ]
        if same and not which.isdigit():
            left.remove(same[0])
            yield one, same[0]
        else:
            waiting.append(one)
    scores = (
        (
            -_similarity_score(one, other)
            - SAME_NUMBER * _has_same_number(one, other, reference_names, candidate_names),
            first,
            second,
        )
        for first, one in enumerate(waiting)
        for second, other in enumerate(left)
        if _can_be_same(one, other) or (len(waiting) == len(left) == 1 and _have_same_kind(one, other))
    )
    for first, second in _best_first(scores).items():
        yield waiting[first], left[second]


def _can_be_same(one: NamedTensor, other: NamedTensor) -> bool:
    if not _have_same_kind(one, other):
        return False
    return squeezed_shape(one.shape) == squeezed_shape(other.shape) or one.shape[-1:] == other.shape[-1:]


def _has_same_number(
    one: NamedTensor, other: NamedTensor, reference_names: SideNames, candidate_names: SideNames
) -> bool:
    return reference_names.meanings[one.name].port_key == candidate_names.meanings[other.name].port_key


def _similarity_score(one: NamedTensor, other: NamedTensor) -> float:
    mine, their = one.records[0].statistics, other.records[0].statistics
    score = 4.0 * (mine.hash == their.hash) + 2.0 * (squeezed_shape(one.shape) == squeezed_shape(other.shape))
    return score + statistics_similarity(one, other)


def statistics_similarity(one: NamedTensor, other: NamedTensor) -> float:
    """Return how near the statistics of two tensors are: 1 is the same."""
    mine, their = one.records[0].statistics, other.records[0].statistics
    both = ((mine.absmax, their.absmax), (mine.l2, their.l2), (mine.mean, their.mean))
    sizes = [size for size in (mine.absmax, their.absmax) if size == size]  # of nothing it is NaN
    scale = max([1e-30, *sizes])
    apart = max(abs(a - b) / max(abs(a), abs(b), scale * 1e-2) for a, b in both)
    return 1.0 - min(apart, 1.0) if apart == apart else 0.0


def _match_logits(reference: SideNames, candidate: SideNames, done: set[str]) -> list[NameMatch]:
    """Return logits where one side calls them so and the other has them as the head's output alone."""
    keys = ("logits", "out"), ("head", "out")
    for key, other in (keys, keys[::-1]):
        mine = [tensor for tensor in reference.by_role.get(key, ()) if tensor.name not in done]
        their = candidate.by_role.get(other, [])
        both = reference.by_role.get(other)  # then the head is another tensor: scores are capped behind it
        if mine and their and not candidate.by_role.get(key) and not both:
            return [NameMatch(mine[0].name, their[0].name, "structure")]
    return []


def _match_fused_parts(reference: SideNames, candidate: SideNames, done: set[str], used: set[str]) -> list[NameMatch]:
    """Return the parts of what one side keeps together and the other apart."""
    matches: list[NameMatch] = []
    for one, other, turned in ((reference, candidate, False), (candidate, reference, True)):
        finished = used if turned else done
        for (role, port), group in one.by_role.items():
            above, _, part = role.rpartition(".")
            fused = next(
                (key for key, parts in FUSED_PARTS.items() if part in parts and key.split(".")[0] in above),
                "",
            )
            together = other.by_role.get((f"{above}.{fused.rpartition('.')[2]}", port), ()) if fused else ()
            if not together or group[0].name in finished:
                continue
            inside = part if port != "in" else ""
            if turned:
                matches.append(NameMatch(together[0].name, group[0].name, "structure", reference_part=inside))
            else:
                matches.append(NameMatch(group[0].name, together[0].name, "structure", candidate_part=inside))
    return matches


def match_by_values(
    reference: Iterable[NamedTensor], candidate: list[NamedTensor], error: ErrorMeasure
) -> list[NameMatch]:
    """Return matches of tensors without a matching name, by shape, order and nearly equal values.

    The error of two tensors is relative, and infinite where nobody can tell.
    """
    shelves: dict[tuple[str, tuple[int, ...]], list[NamedTensor]] = {}
    for tensor in candidate:
        if tensor.kind == "f":
            shelves.setdefault((tensor.kind, tensor.shape[-1:]), []).append(tensor)
    used: set[str] = set()
    matches = []
    for one in reference:
        shelf = shelves.get((one.kind, one.shape[-1:]), ())
        likely = sorted(
            (tensor for tensor in shelf if _is_worth_comparing(one, tensor)),
            key=lambda tensor: tensor.name in used,
        )
        best = next((tensor for tensor in likely[:MOST_TRIED] if error(one, tensor) < CLOSE / 2), None)
        if best is not None:
            used.add(best.name)
            matches.append(NameMatch(one.name, best.name, "shape and order", confidence=0.5))
    return matches


def _is_worth_comparing(one: NamedTensor, other: NamedTensor) -> bool:
    """Whether values are worth comparing: their statistics are close; with different padding only the largest magnitude counts."""
    if squeezed_shape(one.shape) == squeezed_shape(other.shape):
        return 1 - statistics_similarity(one, other) < CLOSE
    mine, their = one.records[0].statistics.absmax, other.records[0].statistics.absmax
    return abs(mine - their) <= CLOSE * max(mine, their)
