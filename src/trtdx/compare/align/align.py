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
from trtdx.compare.align.fused_layouts import FUSED_PARTS
from trtdx.compare.align.mapping import MappingEntry, TensorMapping, mapping_from_pairs
from trtdx.compare.align.name_matching import (
    GRAPH_ENGINES,
    NameMatch,
    SideNames,
    match_by_values,
    match_names,
)
from trtdx.compare.align.name_meanings import data_flow_key
from trtdx.compare.align.onnx_borders import guessed_borders
from trtdx.compare.align.pair_building import EMPTY, NOT_KEPT, PairBuilder
from trtdx.compare.align.side_tensors import SideTensors
from trtdx.compare.align.token_positions import TokenMatching, first_different_step
from trtdx.compare.judge.model_outputs import is_model_output
from trtdx.compare.nouns import TensorPair, UnmatchedTensor
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from trtdx.compare.align.side_tensors import NamedTensor
    from trtdx.compare.nouns import LayoutChange
    from trtdx.compare.sides.side import Side


class Alignment(NamedTuple):
    """Which tensor of one side is which of the other."""

    pairs: list[TensorPair]  # in the reference's data-flow order
    unmatched: list[UnmatchedTensor]
    notes: list[str]
    mapping_entries: dict[str, MappingEntry] = {}  # noqa: RUF012  # what a mapping said

    @property
    def mapping(self) -> TensorMapping:
        """The alignment as a mapping, to be saved and corrected."""
        return mapping_from_pairs(self.pairs, self.mapping_entries)


def align_sides(reference: Side, candidate: Side, *, mapping: TensorMapping | None = None) -> Alignment:
    """Return which tensors of two sides are the same.

    The pairs have the reference's names and order. A mapping is what the user knows better: it stands above all else.

    Raises:
        UnknownNameError: the mapping names a tensor that a side has not.
    """
    return _Aligner(reference, candidate, mapping).align()


class _Aligner:
    def __init__(self, reference: Side, candidate: Side, mapping: TensorMapping | None) -> None:
        self._sides = reference, candidate
        reference_tensors, candidate_tensors = SideTensors(reference.capture), SideTensors(candidate.capture)
        if reference_tensors.layers > candidate_tensors.layers and len(candidate.capture.ranks) > 1:
            candidate_tensors = SideTensors(candidate.capture, layers=reference_tensors.layers)
        elif candidate_tensors.layers > reference_tensors.layers and len(reference.capture.ranks) > 1:
            reference_tensors = SideTensors(reference.capture, layers=candidate_tensors.layers)
        self._reference, self._candidate = reference_tensors, candidate_tensors
        self._reference_names, self._candidate_names = (
            SideNames(reference_tensors),
            SideNames(candidate_tensors),
        )
        if "format" in reference.capture.header.details:  # imported files have no order of their own
            reference_tensors.reorder_steps(lambda name: data_flow_key(self._reference_names.meanings[name]))
        self._token_matching = TokenMatching(reference_tensors, candidate_tensors)
        self._notes = [*reference_tensors.notes, *candidate_tensors.notes, *self._token_matching.notes]
        self._pair_builder = PairBuilder(
            reference_tensors,
            candidate_tensors,
            self._token_matching,
            self._reference_names,
            self._candidate_names,
        )
        self._mapping_entries = (
            mapping.resolve_names(reference_tensors.by_name, candidate_tensors.by_name) if mapping else {}
        )
        self._unmatched: dict[tuple[str, str, str], UnmatchedTensor] = {}
        self._checked_matches: set[NameMatch] = set()
        self._guessed_borders = guessed_borders(reference), guessed_borders(candidate)

    def align(self) -> Alignment:
        matches = self._collect_matches()
        until = self._last_comparable_step()
        pairs: list[TensorPair] = []
        dropped: list[int] = []
        for step, tensors in self._reference.steps.items():
            if until is not None and step > until:
                dropped.append(step)
                continue
            for name in tensors:
                for match in matches.get(name, ()):
                    pairs += self._pairs_at_step(match, step, len(pairs))
        if dropped:
            self._notes.append(
                f"other tokens were chosen at step {until}: later steps ({abbreviate_list(dropped)}) are not comparable"
            )
        paired = {pair.name for pair in pairs}
        for unmatched in list(self._unmatched.values()):
            if unmatched.reason == EMPTY and unmatched.name in paired:  # as a cache is before the first step
                del self._unmatched[unmatched.side, unmatched.name, EMPTY]
        self._collect_unmatched(matches)
        return Alignment(pairs, list(self._unmatched.values()), self._notes, self._mapping_entries)

    def _pairs_at_step(self, match: NameMatch, step: int, position: int) -> list[TensorPair]:
        pair_or_reason = self._pair_builder.build(match, step)
        if isinstance(pair_or_reason, str):
            self._leave_out("reference", match.name, step, pair_or_reason or "nothing of it can be compared")
            return []
        pair = pair_or_reason._replace(position=position)
        if self._is_wrong_border(match, pair):
            reason = "where the module ends is not told by the file: a fused node stands there"
            self._leave_out("candidate", match.candidate, step, reason)
            return []
        if match not in self._checked_matches:
            self._checked_matches.add(match)
            pair = self._confirm_layout(match, pair)
        odd = [
            odd_pair._replace(position=position + 1 + number)
            for number, odd_pair in enumerate(self._pair_builder.odd_rank_pairs(match, pair))
        ]
        self._notes += [f"{odd_pair.name} at step {step}: {odd_pair.note}" for odd_pair in odd if odd_pair.note]
        return [pair, *odd]

    def _leave_out(self, side: str, name: str, step: int, reason: str) -> None:
        self._unmatched.setdefault((side, name, reason), UnmatchedTensor(side, name, step, reason))

    def _pair_error(self, pair: TensorPair) -> float:
        return value_check.pair_value_error(pair, self._reference.capture, self._candidate.capture)

    def _is_wrong_border(self, match: NameMatch, pair: TensorPair) -> bool:
        """Whether the values show that a guessed module border is another tensor."""
        names = pair.reference.first.place, pair.candidate.first.place
        guessed = [
            f"{place.path}:{place.port}" in borders
            for place, borders in zip(names, self._guessed_borders, strict=True)
            if not place.tensor
        ]
        if not any(guessed) or match.matched_by == "map" or not pair.has_values or is_model_output(pair):
            return False
        return self._pair_error(pair) > value_check.GOOD

    def _confirm_layout(self, match: NameMatch, pair: TensorPair) -> TensorPair:
        """Check a layout derived from names and shapes against the values, and say so if only another one fits."""
        aligned = pair.candidate, pair.reference
        plain = not any(
            tensor.join == "concatenate -1" or any(map(_is_fused_part, tensor.changes)) for tensor in aligned
        )
        if plain or match.matched_by == "map" or not pair.has_values:
            return pair
        declared = self._pair_error(pair)
        if declared < value_check.BAD:
            return pair
        for layout_text, other in self._other_layouts(match, pair):
            if self._pair_error(other) < min(value_check.GOOD, declared / 4):
                note = (
                    f"compared as {_layout_text(pair)}, which is what names declare; the values fit {layout_text} only. If that is "
                    f"how they are meant to lie, say so in a mapping; if not, it is what is wrong"
                )
                self._notes.append(f"{pair.name}: {note}")
                return pair._replace(note=note)
        return pair

    def _other_layouts(self, match: NameMatch, pair: TensorPair) -> list[tuple[str, TensorPair]]:
        layouts = [
            (order_text, pair._replace(candidate=aligned))
            for order_text, aligned in value_check.other_rank_orders(pair.candidate)
        ]
        for side, name, part in (
            (1, match.candidate, match.candidate_part),
            (0, match.reference, match.reference_part),
        ):
            split = self._pair_builder.fused_layouts.layout(side, name) if part else ""
            if isinstance(split, str):
                continue
            aligned = pair.candidate if side else pair.reference
            for order in split.other_orders():
                change = order.part_change(part)
                turned = aligned._replace(changes=(change, *aligned.changes[1:]))
                other = pair._replace(candidate=turned) if side else pair._replace(reference=turned)
                layouts.append((f"“{change.text}”", other))
        return layouts

    def _last_comparable_step(self) -> int | None:
        """Return the last comparable step, from the tokens that both sides chose, if their inputs were not captured."""
        if self._token_matching.known and not self._token_matching.assumed:
            return None
        apart = first_different_step(self._sides[0].step_tokens(), self._sides[1].step_tokens())
        steps = sorted(self._reference.steps)
        return steps[apart] if apart is not None and apart < len(steps) else None

    def _collect_matches(self) -> dict[str, list[NameMatch]]:
        """Return the matches of each of the reference's names."""
        mapped = self._mapped_matches()
        matches_found = match_names(self._reference_names, self._candidate_names, dict.fromkeys(mapped))
        matches_found += [match for some in mapped.values() for match in some]
        matches_found = [part_match for match in matches_found for part_match in self._split_fused_match(match)]
        done, used = (
            {match.reference for match in matches_found},
            {match.candidate for match in matches_found},
        )
        left = [tensor for name, tensor in self._reference.by_name.items() if name not in done and name not in mapped]
        others = [tensor for name, tensor in self._candidate.by_name.items() if name not in used]
        matches_found += match_by_values([tensor for tensor in left if tensor.kind == "f"], others, self._value_error)
        matches: dict[str, list[NameMatch]] = {}
        for match in matches_found:
            matches.setdefault(match.reference, []).append(match)
        return matches

    def _mapped_matches(self) -> dict[str, list[NameMatch]]:
        """Return what the mapping says of each of the reference's names."""
        matches: dict[str, list[NameMatch]] = {}
        for key, entry in self._mapping_entries.items():
            name, bracket, part = key.partition(" (")
            some = matches.setdefault(name, [])
            if entry.candidate is not None:
                inside = part.rstrip(")") if bracket else ""
                some.append(NameMatch(name, entry.candidate, "map", reference_part=inside, changes=entry.changes))
        return matches

    def _value_error(self, reference: NamedTensor, candidate: NamedTensor) -> float:
        """Return the difference of two tensors that no name matches."""
        pair = self._pair_builder.build(NameMatch(reference.name, candidate.name, "shape and order"), reference.step)
        return self._pair_error(pair) if isinstance(pair, TensorPair) else float("inf")

    def _split_fused_match(self, match: NameMatch) -> list[NameMatch]:
        """Return a match of two fused tensors by their parts, where they are not divided in the same way."""
        reference_meaning = self._reference_names.meanings[match.reference]
        candidate_meaning = self._candidate_names.meanings[match.candidate]
        parts = next((parts for key, parts in FUSED_PARTS.items() if reference_meaning.role.endswith(key)), ())
        apart = (
            match.reference_part or match.candidate_part or match.matched_by == "map" or reference_meaning.port != "out"
        )
        if apart or not parts or reference_meaning.role != candidate_meaning.role:
            return [match]
        same_name = reference_meaning.scope.rpartition(".")[2] == candidate_meaning.scope.rpartition(".")[2]
        if same_name or self._pair_builder.fused_layouts.has_same_order(match.reference, match.candidate):
            return [match]
        return [match._replace(reference_part=part, candidate_part=part) for part in parts]

    def _collect_unmatched(self, matches: dict[str, list[NameMatch]]) -> None:
        """List what has no counterpart, and why."""
        used = {match.candidate for some in matches.values() for match in some}
        left_out = set(self._mapped_matches())
        for side, tensors, done, names, others in (
            (
                "reference",
                self._reference,
                set(matches) | left_out,
                self._reference_names,
                self._candidate_names,
            ),
            ("candidate", self._candidate, used, self._candidate_names, self._reference_names),
        ):
            graph = self._sides[side == "candidate"].kind in GRAPH_ENGINES
            for name, tensor in tensors.by_name.items():
                if name not in done:
                    self._leave_out(side, name, tensor.step, _unmatched_reason(tensor, names, others, graph))
            for name in sorted(left_out - set(matches)) if side == "reference" else ():
                self._leave_out(side, name, tensors.by_name[name].step, "left out by the mapping")


def _unmatched_reason(tensor: NamedTensor, names: SideNames, others: SideNames, graph: bool) -> str:
    meaning = names.meanings[tensor.name]
    if meaning.scope.startswith("tensor "):
        return "only in the compiled graph" if graph else "no tensor of that name"
    ports = others.by_role.get((meaning.role, meaning.port)) or others.by_scope.get((meaning.scope, meaning.port))
    if ports:
        if graph:
            return "only in the compiled graph"
        other = "of that name" if not meaning.port_key.isdigit() else "like it"
        what = "input" if meaning.port == "in" else "output"
        return f"the module has no {what} {other} on the other side"
    if not tensor.records[0].kept:
        return f"no module of that name; {NOT_KEPT}"
    return "no module of that name"


def _is_fused_part(change: LayoutChange) -> bool:
    return change.text.startswith("part ")


def _layout_text(pair: TensorPair) -> str:
    """Return how a pair's tensors are laid out, in words."""
    changes = (*pair.reference.changes, *pair.candidate.changes)
    texts = [change.text for change in changes if _is_fused_part(change)]
    if pair.candidate.join:
        texts.append(f"ranks {' '.join(str(record.rank) for record in pair.candidate.records)} side by side")
    return "“" + ", ".join(texts) + "”"
