"""Names of two sides put together: by name, by scope, by structure, and what is left by shape, order and values."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.align.fused import PARTS
from trtdx.compare.align.layouts import squeezed_shape
from trtdx.compare.align.names import Meaning, meanings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trtdx.compare.align.side_tensors import Named, Reading

    Close = Callable[[Named, Named], float]
    Calls = dict[int, dict[str, Named]]  # of one module: by the number of the call and the port

GRAPHS = ("onnxruntime", "tensorrt")
CLOSE = 0.1  # statistics this near, in relative terms, are worth a look at the values
MOST_TRIED = 8
MOST_CALLS = 4  # of one module, whose order is looked for
OTHER_CALL = 0.25  # by which another order of calls has to fit better
SAME_NUMBER = 0.25  # what the same number among ports counts for: less than content, more than chance


class Match(NamedTuple):
    """A tensor of the one side and its counterpart, on whichever steps both have it."""

    ours: str
    theirs: str
    how: str
    our_part: str = ""  # "q", "k", "v", "gate", "up" of a fused tensor
    their_part: str = ""
    confidence: float = 1.0
    changes: tuple[str, ...] = ()  # that a mapping asks for

    @property
    def name(self) -> str:
        return f"{self.ours} ({self.our_part})" if self.our_part else self.ours


class Names:
    """The names of a side by what they mean."""

    def __init__(self, reading: Reading) -> None:
        self.named = reading.named
        self.is_graph = reading.capture.header.engine in GRAPHS
        self.meant: dict[str, Meaning] = meanings(reading.named)
        self.by_scope: dict[tuple[str, str], list[Named]] = {}
        self.by_role: dict[tuple[str, str], list[Named]] = {}
        for name, tensor in reading.named.items():
            meaning = self.meant[name]
            self.by_scope.setdefault((meaning.scope, meaning.port), []).append(tensor)
            self.by_role.setdefault((meaning.role, meaning.port), []).append(tensor)


def matched(ours: Names, theirs: Names, mapped: dict[str, Match | None]) -> list[Match]:
    """Return the matches that names tell, in no order.

    What the user's mapping says stands: none is for a tensor that is to be left out.
    """
    matches = {name: match for name, match in mapped.items() if match}
    used = {match.theirs for match in matches.values()}
    free = [name for name in ours.named if name not in mapped]
    counted = _counted(ours) | _counted(theirs) if ours.is_graph and theirs.is_graph else set()
    called = _calls(ours, theirs)
    for name in free:
        other = theirs.named.get(called.get(name, name))
        if other is not None and other.name not in used | counted and _alike(ours.named[name], other):
            matches[name] = Match(name, other.name, "name")
            used.add(other.name)
    for how, our_groups, their_groups in (
        ("scope", ours.by_scope, theirs.by_scope),
        ("structure", ours.by_role, theirs.by_role),
    ):
        for key, group in our_groups.items():
            left = [tensor for tensor in group if tensor.name not in matches and tensor.name not in mapped]
            others = [tensor for tensor in their_groups.get(key, ()) if tensor.name not in used]
            for one, other in _ports(left, others, ours, theirs):
                matches[one.name] = Match(one.name, other.name, how)
                used.add(other.name)
    logits = _logits(ours, theirs, set(matches) | set(mapped))
    return [*matches.values(), *logits, *_fused(ours, theirs, set(matches) | set(mapped), used)]


def _calls(ours: Names, theirs: Names) -> dict[str, str]:
    """Return the tensors of modules that are called several times, where the calls fit in another order only.

    A model may go through its kinds of layers as a set has them, which is another order in each process (rotary
    embeddings of Gemma 3). What then reads a call's result has a name of its own, so that no mistake is hidden.
    """
    counterparts: dict[str, str] = {}
    mine, others = _by_call(ours), _by_call(theirs)
    for path, calls in mine.items():
        other_calls = others.get(path, {})
        if sorted(other_calls) == sorted(calls):
            counterparts |= _reordered_calls(calls, other_calls)
        elif 1 in (len(calls), len(other_calls)):
            counterparts |= _calls_in_one(calls, other_calls)
    return counterparts


def _reordered_calls(calls: Calls, other_calls: Calls) -> dict[str, str]:
    """Return the tensors of a module's calls by their counterparts, if the calls fit in another order only."""
    numbers = sorted(calls)
    if not 1 < len(numbers) <= MOST_CALLS:
        return {}
    score = {
        (one, other): sum(
            _score(tensor, other_calls[other][port])
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


def _calls_in_one(calls: Calls, other_calls: Calls) -> dict[str, str]:
    """Return the outputs of a module's calls by those of the other side, which has all of them as outputs of one call.

    Graphs have them like that. Their first outputs are those of whichever call was traced first.
    """
    reference_outputs, candidate_outputs = _outputs(calls), _outputs(other_calls)
    count = len(reference_outputs)
    if count != len(candidate_outputs) or len(calls) == len(other_calls) or count > MOST_CALLS * 2:
        return {}
    scores = (
        (-_score(one, other), abs(first - second), first, second)
        for first, one in enumerate(reference_outputs)
        for second, other in enumerate(candidate_outputs)
    )
    order = _best_first(scores)
    return {reference_outputs[first].name: candidate_outputs[second].name for first, second in order.items()}


def _best_first(scores: Iterable[tuple[Any, ...]]) -> dict[int, int]:
    """Return which is put with which, the best of what is left first; the last two of a score are their numbers."""
    order: dict[int, int] = {}
    for *_, first, second in sorted(scores):
        if first not in order and second not in order.values():
            order[first] = second
    return order


def _outputs(calls: Calls) -> list[Named]:
    """Return the outputs of all calls of a module, call by call, in the order of their ports."""
    return [
        tensor
        for number in sorted(calls)
        for port, tensor in sorted(calls[number].items(), key=lambda item: (len(item[0]), item[0]))
        if port.startswith("out")
    ]


def _by_call(names: Names) -> dict[str, Calls]:
    """Return the tensors of each module by the number of the call and the port."""
    tensors: dict[str, Calls] = {}
    for name, tensor in names.named.items():
        path, _, call = tensor.place.path.partition("#")
        port = name.rpartition(":")[2]
        if path:
            tensors.setdefault(path, {}).setdefault(int(call) if call.isdigit() else 0, {})[port] = tensor
    return tensors


def _counted(names: Names) -> set[str]:
    """Return the tensors that only a port number names: the inputs of a graph's module come in any order."""
    several = (group for group in names.by_scope.values() if len(group) > 1)
    return {
        tensor.name
        for group in several
        for tensor in group
        if names.meant[tensor.name].which.isdigit() and not tensor.place.tensor
    }


def _alike(one: Named, other: Named) -> bool:
    """Whether two tensors can be the same by the kind of their elements; an exporter may count inputs differently."""
    if one.kind == other.kind:
        return True
    masks = {one.kind, other.kind} == {"b", "f"} and len(one.shape) == len(other.shape)
    return masks or {one.kind, other.kind} == {"b", "i"}


def _ports(
    ours: list[Named], theirs: list[Named], our_names: Names, their_names: Names
) -> Iterable[tuple[Named, Named]]:
    """Yield which inputs, or outputs, of a module are the same.

    Those of the same name or number first, if they can be; then the best fits: the same content, the same shape, near
    statistics, and in doubt the order.
    """
    left = list(theirs)
    waiting = []
    for one in ours:
        which = our_names.meant[one.name].which
        same = [other for other in left if their_names.meant[other.name].which == which and _fits(one, other)]
        if same and not which.isdigit():
            left.remove(same[0])
            yield one, same[0]
        else:
            waiting.append(one)
    scores = (
        (-_score(one, other) - SAME_NUMBER * _same_number(one, other, our_names, their_names), first, second)
        for first, one in enumerate(waiting)
        for second, other in enumerate(left)
        if _fits(one, other) or (len(waiting) == len(left) == 1 and _alike(one, other))
    )
    for first, second in _best_first(scores).items():
        yield waiting[first], left[second]


def _fits(one: Named, other: Named) -> bool:
    if not _alike(one, other):
        return False
    return squeezed_shape(one.shape) == squeezed_shape(other.shape) or one.shape[-1:] == other.shape[-1:]


def _same_number(one: Named, other: Named, our_names: Names, their_names: Names) -> bool:
    return our_names.meant[one.name].which == their_names.meant[other.name].which


def _score(one: Named, other: Named) -> float:
    mine, their = one.records[0].statistics, other.records[0].statistics
    score = 4.0 * (mine.hash == their.hash) + 2.0 * (squeezed_shape(one.shape) == squeezed_shape(other.shape))
    return score + near(one, other)


def near(one: Named, other: Named) -> float:
    """Return how near the statistics of two tensors are: 1 is the same."""
    mine, their = one.records[0].statistics, other.records[0].statistics
    both = ((mine.absmax, their.absmax), (mine.l2, their.l2), (mine.mean, their.mean))
    sizes = [size for size in (mine.absmax, their.absmax) if size == size]  # of nothing it is NaN
    scale = max([1e-30, *sizes])
    apart = max(abs(a - b) / max(abs(a), abs(b), scale * 1e-2) for a, b in both)
    return 1.0 - min(apart, 1.0) if apart == apart else 0.0


def _logits(ours: Names, theirs: Names, done: set[str]) -> list[Match]:
    """Return logits where one side calls them so and the other has them as the head's output alone."""
    keys = ("logits", "out"), ("head", "out")
    for key, other in (keys, keys[::-1]):
        mine = [tensor for tensor in ours.by_role.get(key, ()) if tensor.name not in done]
        their = theirs.by_role.get(other, [])
        both = ours.by_role.get(other)  # then the head is another tensor: scores are capped behind it
        if mine and their and not theirs.by_role.get(key) and not both:
            return [Match(mine[0].name, their[0].name, "structure")]
    return []


def _fused(ours: Names, theirs: Names, done: set[str], used: set[str]) -> list[Match]:
    """Return the parts of what one side keeps together and the other apart."""
    matches: list[Match] = []
    for one, other, turned in ((ours, theirs, False), (theirs, ours, True)):
        finished = used if turned else done
        for (role, port), group in one.by_role.items():
            above, _, part = role.rpartition(".")
            fused = next(
                (key for key, parts in PARTS.items() if part in parts and key.split(".")[0] in above), ""
            )
            together = other.by_role.get((f"{above}.{fused.rpartition('.')[2]}", port), ()) if fused else ()
            if not together or group[0].name in finished:
                continue
            inside = part if port != "in" else ""
            if turned:
                matches.append(Match(together[0].name, group[0].name, "structure", our_part=inside))
            else:
                matches.append(Match(group[0].name, together[0].name, "structure", their_part=inside))
    return matches


def by_values(ours: Iterable[Named], theirs: list[Named], error: Close) -> list[Match]:
    """Return matches of what no name tells, by shape, order and nearly the same values.

    The error of two tensors is relative, and infinite where nobody can tell.
    """
    shelves: dict[tuple[str, tuple[int, ...]], list[Named]] = {}
    for tensor in theirs:
        if tensor.kind == "f":
            shelves.setdefault((tensor.kind, tensor.shape[-1:]), []).append(tensor)
    used: set[str] = set()
    matches = []
    for one in ours:
        shelf = shelves.get((one.kind, one.shape[-1:]), ())
        likely = sorted(
            (tensor for tensor in shelf if _likely(one, tensor)), key=lambda tensor: tensor.name in used
        )
        best = next((tensor for tensor in likely[:MOST_TRIED] if error(one, tensor) < CLOSE / 2), None)
        if best is not None:
            used.add(best.name)
            matches.append(Match(one.name, best.name, "shape and order", confidence=0.5))
    return matches


def _likely(one: Named, other: Named) -> bool:
    """Whether values are worth a look: statistics are near; with other padding only the largest magnitude can be."""
    if squeezed_shape(one.shape) == squeezed_shape(other.shape):
        return 1 - near(one, other) < CLOSE
    mine, their = one.records[0].statistics.absmax, other.records[0].statistics.absmax
    return abs(mine - their) <= CLOSE * max(mine, their)
