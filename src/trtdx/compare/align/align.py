"""Which tensor of a reference is which of a candidate, and what makes the two comparable.

An alignment must not hide a mistake. So it never searches for what fits best:

- Tensors of the same name, or the same below other wrappers, are compared as they are: only what shapes leave no doubt
  about is changed (tokens packed or padded, heads first or tokens first, dimensions of one, shards, a padded vocabulary).
- Between conventions of naming, the order inside a fused tensor is the one that the module's name declares, and shards
  stand in the order of their ranks. Values are looked at to confirm. Where they fit another order only, the declared
  one stands, and a note says so: that order may be the very mistake.
- Values decide alone only for tensors that no name tells of, with low confidence, between a copy and a partial sum, and
  whether a module of an optimised graph ends where it seems to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.align import value_check
from trtdx.compare.align.fused import PARTS
from trtdx.compare.align.mapping import Entry, Mapping, mapping_of
from trtdx.compare.align.matching import GRAPHS, Match, Names, by_values, matched
from trtdx.compare.align.names import flow_key
from trtdx.compare.align.onnx_borders import guessed_borders
from trtdx.compare.align.pair_building import EMPTY, NOT_KEPT, Builder
from trtdx.compare.align.positions import Matching, comparable_steps
from trtdx.compare.align.side_tensors import Reading
from trtdx.compare.judge.model_outputs import is_model_output
from trtdx.compare.nouns import Pair, Unmatched
from trtdx.words import listed

if TYPE_CHECKING:
    from trtdx.compare.align.side_tensors import Named
    from trtdx.compare.nouns import Change
    from trtdx.compare.sides.side import Side


class Alignment(NamedTuple):
    """What is which."""

    pairs: list[Pair]  # in the reference's data-flow order
    unmatched: list[Unmatched]
    notes: list[str]
    asked: dict[str, Entry] = {}  # noqa: RUF012  # what a mapping said

    @property
    def mapping(self) -> Mapping:
        """The alignment as a mapping, to be saved and corrected."""
        return mapping_of(self.pairs, self.asked)


def align(reference: Side, candidate: Side, *, mapping: Mapping | None = None) -> Alignment:
    """Return which tensors of two sides are the same.

    The pairs have the reference's names and order. A mapping is what the user knows better: it stands above all else.

    Raises:
        UnknownNameError: the mapping names a tensor that a side has not.
    """
    return _Aligner(reference, candidate, mapping).align()


class _Aligner:
    def __init__(self, reference: Side, candidate: Side, mapping: Mapping | None) -> None:
        self._sides = reference, candidate
        reference_tensors, candidate_tensors = Reading(reference.capture), Reading(candidate.capture)
        if reference_tensors.layers > candidate_tensors.layers and len(candidate.capture.ranks) > 1:
            candidate_tensors = Reading(candidate.capture, layers=reference_tensors.layers)
        elif candidate_tensors.layers > reference_tensors.layers and len(reference.capture.ranks) > 1:
            reference_tensors = Reading(reference.capture, layers=candidate_tensors.layers)
        self._ours, self._theirs = reference_tensors, candidate_tensors
        self._our_names, self._their_names = Names(reference_tensors), Names(candidate_tensors)
        if "format" in reference.capture.header.details:  # imported files have no order of their own
            reference_tensors.reorder(lambda name: flow_key(self._our_names.meant[name]))
        self._tokens = Matching(reference_tensors, candidate_tensors)
        self._notes = [*reference_tensors.notes, *candidate_tensors.notes, *self._tokens.notes]
        self._builder = Builder(
            reference_tensors, candidate_tensors, self._tokens, self._our_names, self._their_names
        )
        self._asked = mapping.applied(reference_tensors.named, candidate_tensors.named) if mapping else {}
        self._unmatched: dict[tuple[str, str, str], Unmatched] = {}
        self._looked_at: set[Match] = set()
        self._guessed = guessed_borders(reference), guessed_borders(candidate)

    def align(self) -> Alignment:
        matches = self._matches()
        until = self._comparable_until()
        pairs: list[Pair] = []
        dropped: list[int] = []
        for step, tensors in self._ours.steps.items():
            if until is not None and step > until:
                dropped.append(step)
                continue
            for name in tensors:
                for match in matches.get(name, ()):
                    pairs += self._pairs(match, step, len(pairs))
        if dropped:
            self._notes.append(
                f"other tokens were chosen at step {until}: later steps ({listed(dropped)}) are not comparable"
            )
        paired = {pair.name for pair in pairs}
        for unmatched in list(self._unmatched.values()):
            if unmatched.reason == EMPTY and unmatched.name in paired:  # as a cache is before the first step
                del self._unmatched[unmatched.side, unmatched.name, EMPTY]
        self._tell_unmatched(matches)
        return Alignment(pairs, list(self._unmatched.values()), self._notes, self._asked)

    def _pairs(self, match: Match, step: int, position: int) -> list[Pair]:
        pair_or_reason = self._builder.build(match, step)
        if isinstance(pair_or_reason, str):
            self._leave_out("reference", match.name, step, pair_or_reason or "nothing of it can be compared")
            return []
        pair = pair_or_reason._replace(position=position)
        if self._ends_elsewhere(match, pair):
            reason = "where the module ends is not told by the file: a fused node stands there"
            self._leave_out("candidate", match.theirs, step, reason)
            return []
        if match not in self._looked_at:
            self._looked_at.add(match)
            pair = self._confirmed(match, pair)
        odd = [
            odd_pair._replace(position=position + 1 + number)
            for number, odd_pair in enumerate(self._builder.copies(match, pair))
        ]
        self._notes += [
            f"{odd_pair.name} at step {step}: {odd_pair.note}" for odd_pair in odd if odd_pair.note
        ]
        return [pair, *odd]

    def _leave_out(self, side: str, name: str, step: int, reason: str) -> None:
        self._unmatched.setdefault((side, name, reason), Unmatched(side, name, step, reason))

    def _pair_error(self, pair: Pair) -> float:
        return value_check.error(pair, self._ours.capture, self._theirs.capture)

    def _ends_elsewhere(self, match: Match, pair: Pair) -> bool:
        """Whether a border that is a guess proves to be another tensor by its values."""
        names = pair.reference.first.place, pair.candidate.first.place
        guessed = [
            f"{place.path}:{place.port}" in borders
            for place, borders in zip(names, self._guessed, strict=True)
            if not place.tensor
        ]
        if not any(guessed) or match.how == "map" or not pair.kept or is_model_output(pair):
            return False
        return self._pair_error(pair) > value_check.GOOD

    def _confirmed(self, match: Match, pair: Pair) -> Pair:
        """Look whether values fit a layout that was told by names and shapes; say so where only another one does."""
        aligned = pair.candidate, pair.reference
        plain = not any(
            tensor.join == "concatenate -1" or any(map(_is_part, tensor.changes)) for tensor in aligned
        )
        if plain or match.how == "map" or not pair.kept:
            return pair
        declared = self._pair_error(pair)
        if declared < value_check.BAD:
            return pair
        for layout_text, other in self._other_ways(match, pair):
            if self._pair_error(other) < min(value_check.GOOD, declared / 4):
                note = (
                    f"compared as {_told(pair)}, which is what names declare; the values fit {layout_text} only. If that is "
                    f"how they are meant to lie, say so in a mapping; if not, it is what is wrong"
                )
                self._notes.append(f"{pair.name}: {note}")
                return pair._replace(note=note)
        return pair

    def _other_ways(self, match: Match, pair: Pair) -> list[tuple[str, Pair]]:
        layouts = [
            (order_text, pair._replace(candidate=aligned))
            for order_text, aligned in value_check.other_orders(pair.candidate)
        ]
        for side, name, part in ((1, match.theirs, match.their_part), (0, match.ours, match.our_part)):
            split = self._builder.parting.split(side, name) if part else ""
            if isinstance(split, str):
                continue
            aligned = pair.candidate if side else pair.reference
            for order in split.orders():
                change = order.change(part)
                turned = aligned._replace(changes=(change, *aligned.changes[1:]))
                other = pair._replace(candidate=turned) if side else pair._replace(reference=turned)
                layouts.append((f"“{change.text}”", other))
        return layouts

    def _comparable_until(self) -> int | None:
        """Return the last comparable step by the tokens that both sides chose, where their inputs were not captured."""
        if self._tokens.known and not self._tokens.assumed:
            return None
        apart = comparable_steps(self._sides[0].tokens(), self._sides[1].tokens())
        steps = sorted(self._ours.steps)
        return steps[apart] if apart is not None and apart < len(steps) else None

    def _matches(self) -> dict[str, list[Match]]:
        """Return the matches of each of the reference's names."""
        mapped = self._mapped()
        matches_found = matched(self._our_names, self._their_names, dict.fromkeys(mapped))
        matches_found += [match for some in mapped.values() for match in some]
        matches_found = [part_match for match in matches_found for part_match in self._in_parts(match)]
        done, used = {match.ours for match in matches_found}, {match.theirs for match in matches_found}
        left = [
            tensor for name, tensor in self._ours.named.items() if name not in done and name not in mapped
        ]
        others = [tensor for name, tensor in self._theirs.named.items() if name not in used]
        matches_found += by_values([tensor for tensor in left if tensor.kind == "f"], others, self._error)
        matches: dict[str, list[Match]] = {}
        for match in matches_found:
            matches.setdefault(match.ours, []).append(match)
        return matches

    def _mapped(self) -> dict[str, list[Match]]:
        """Return what the mapping says of each of the reference's names."""
        matches: dict[str, list[Match]] = {}
        for key, entry in self._asked.items():
            name, bracket, part = key.partition(" (")
            some = matches.setdefault(name, [])
            if entry.candidate is not None:
                inside = part.rstrip(")") if bracket else ""
                some.append(Match(name, entry.candidate, "map", our_part=inside, changes=entry.changes))
        return matches

    def _error(self, one: Named, other: Named) -> float:
        """Return how far two tensors are apart that no name puts together."""
        pair = self._builder.build(Match(one.name, other.name, "shape and order"), one.step)
        return self._pair_error(pair) if isinstance(pair, Pair) else float("inf")

    def _in_parts(self, match: Match) -> list[Match]:
        """Return a match of two fused tensors by their parts, where they are not divided in the same way."""
        reference_meaning = self._our_names.meant[match.ours]
        candidate_meaning = self._their_names.meant[match.theirs]
        parts = next((parts for key, parts in PARTS.items() if reference_meaning.role.endswith(key)), ())
        apart = match.our_part or match.their_part or match.how == "map" or reference_meaning.port != "out"
        if apart or not parts or reference_meaning.role != candidate_meaning.role:
            return [match]
        same_name = reference_meaning.scope.rpartition(".")[2] == candidate_meaning.scope.rpartition(".")[2]
        if same_name or self._builder.parting.same_order(match.ours, match.theirs):
            return [match]
        return [match._replace(our_part=part, their_part=part) for part in parts]

    def _tell_unmatched(self, matches: dict[str, list[Match]]) -> None:
        """List what has no counterpart, and why."""
        used = {match.theirs for some in matches.values() for match in some}
        left_out = set(self._mapped())
        for side, tensors, done, names, others in (
            ("reference", self._ours, set(matches) | left_out, self._our_names, self._their_names),
            ("candidate", self._theirs, used, self._their_names, self._our_names),
        ):
            graph = self._sides[side == "candidate"].kind in GRAPHS
            for name, tensor in tensors.named.items():
                if name not in done:
                    self._leave_out(side, name, tensor.step, _reason(tensor, names, others, graph))
            for name in sorted(left_out - set(matches)) if side == "reference" else ():
                self._leave_out(side, name, tensors.named[name].step, "left out by the mapping")


def _reason(named: Named, names: Names, others: Names, graph: bool) -> str:
    meaning = names.meant[named.name]
    if meaning.scope.startswith("tensor "):
        return "only in the compiled graph" if graph else "no tensor of that name"
    ports = others.by_role.get((meaning.role, meaning.port)) or others.by_scope.get(
        (meaning.scope, meaning.port)
    )
    if ports:
        if graph:
            return "only in the compiled graph"
        other = "of that name" if not meaning.which.isdigit() else "like it"
        what = "input" if meaning.port == "in" else "output"
        return f"the module has no {what} {other} on the other side"
    if not named.records[0].kept:
        return f"no module of that name; {NOT_KEPT}"
    return "no module of that name"


def _is_part(change: Change) -> bool:
    return change.text.startswith("part ")


def _told(pair: Pair) -> str:
    """Return how a pair's tensors are laid out, in words."""
    changes = (*pair.reference.changes, *pair.candidate.changes)
    texts = [change.text for change in changes if _is_part(change)]
    if pair.candidate.join:
        texts.append(f"ranks {' '.join(str(record.rank) for record in pair.candidate.records)} side by side")
    return "“" + ", ".join(texts) + "”"
