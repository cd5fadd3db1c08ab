"""A pair made of a match of names at one step: shards joined, layouts brought together, rows matched by tokens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.align import rank_shards, value_check
from trtdx.compare.align.expert_rows import in_experts, same_experts
from trtdx.compare.align.fused import Parting
from trtdx.compare.align.layouts import (
    HOLDS,
    Fit,
    as_mask,
    changed_shape,
    columns,
    consistent,
    features,
    fit,
    fit_whole,
    is_added_mask,
)
from trtdx.compare.align.mapping import Asked, asked_by
from trtdx.compare.align.names import ROW_PARALLEL
from trtdx.compare.align.paged_cache import page_rows, table_at
from trtdx.compare.align.token_shards import paired_by_tokens
from trtdx.compare.nouns import Aligned, Change, Pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.capture.store.reader import Record
    from trtdx.compare.align.matching import Match, Names
    from trtdx.compare.align.positions import Matching
    from trtdx.compare.align.side_tensors import Reading
    from trtdx.compare.nouns import TokenRows

    Group = tuple[Record, ...]

_LAYER_NUMBER = re.compile(r"(?<=layers\.)\d+")
MOST_SHAPES = 6  # of one tensor that are looked at to tell where its tokens lie
NOT_KEPT = "values were not kept"
EMPTY = "it is empty"
UNORDERED = "tokens are in the order of their experts, and these are not the same or not known"


class Plan(NamedTuple):
    """How the tensors of a match come together; the same for all steps of the same shapes."""

    ours: rank_shards.Way
    theirs: rank_shards.Way
    fit: Fit
    asked: Asked


class Builder:
    """Makes pairs."""

    def __init__(
        self, ours: Reading, theirs: Reading, tokens: Matching, our_names: Names, their_names: Names
    ) -> None:
        self.ours, self.theirs, self.tokens = ours, theirs, tokens
        self.our_names, self.their_names = our_names, their_names
        self.parting = Parting(ours, theirs, our_names, their_names)
        self._asked: dict[Match, Asked | str] = {}
        self._forms: dict[tuple[int, str, tuple[Change, ...]], list[str]] = {}
        self._plans: dict[Any, Plan | str] = {}
        self._partial: dict[str, bool] = {}

    def build(self, match: Match, step: int) -> Pair | str:
        """Return the pair of a match at a step of the reference, or why there is none."""
        requested = self._asked.get(match)
        if requested is None:
            requested = self._asked[match] = self._what_is_asked(match)
        if isinstance(requested, str):
            return requested
        records = self.ours.steps[step][match.ours]
        if not records[0].layout.elements:
            return EMPTY
        reason = ""
        if self.tokens.known and step in self.tokens.reference:
            pair = self._paged(match, step, records, requested) or self._by_tokens(
                match, step, records, requested
            )
            if isinstance(pair, Pair):
                return pair
            reason = pair
            if reason and self._has_tokens(match, requested):
                return reason
        steps = step, self._step_like(step)
        if in_experts(match.ours) and (
            self.tokens.padded(*steps) or not same_experts(self.ours, self.theirs, match.ours, steps)
        ):
            return UNORDERED
        pair = self._whole(match, step, records, requested)
        return pair if isinstance(pair, Pair) else pair or reason

    def _what_is_asked(self, match: Match) -> Asked | str:
        if match.changes:
            return asked_by(match.changes)
        if not (match.our_part or match.their_part):
            return Asked()
        changes = self.parting.changes(match)
        return changes if isinstance(changes, str) else Asked(*changes)

    def _has_tokens(self, match: Match, asked: Asked) -> bool:
        return bool(
            self._forms_of(0, match.ours, asked.ours) and self._forms_of(1, match.theirs, asked.theirs)
        )

    def _forms_of(self, side: int, name: str, changes: tuple[Change, ...]) -> list[str]:
        key = side, name, changes
        if key not in self._forms:
            reading, fed = ((self.ours, self.tokens.reference), (self.theirs, self.tokens.candidate))[side]
            shapes: dict[tuple[Any, Any], Any] = {}
            for step, records in reading.of(name):
                if step in fed:
                    shape = records[0].layout.shape
                    shapes.setdefault((shape, fed[step].shape), (changed_shape(shape, changes), fed[step]))
                if len(shapes) >= MOST_SHAPES:
                    break
            self._forms[key] = consistent(list(shapes.values()), name)
        return self._forms[key]

    def _by_tokens(self, match: Match, step: int, records: Group, asked: Asked) -> Pair | str:
        """Return a pair whose rows are tokens."""
        mine = self._forms_of(0, match.ours, asked.ours)
        others = self._forms_of(1, match.theirs, asked.theirs)
        choices = [(one, other) for one in mine for other in others]
        if self._alike(
            match, step, records
        ):  # else the likeliest form of each, not one that they happen to share
            choices.sort(key=lambda both: both[0] != both[1])
        reason = ""
        if mine and not others and self.tokens.assumed is False:
            group = self.theirs.steps.get(self._step_like(step), {}).get(match.theirs, ())
            pair = paired_by_tokens(match, self.tokens, step, records, group, mine[0])
            if pair is not None:
                return pair
        for one, other in choices:
            rows = self.tokens.rows(step, HOLDS.get(one, ""), HOLDS.get(other, ""))
            if isinstance(rows, str):
                reason = reason or rows
                continue
            steps, tokens = rows
            groups = [self.theirs.steps[candidate_step].get(match.theirs, ()) for candidate_step in steps]
            if not all(groups):
                reason = f"the candidate does not have it at step {steps[groups.index(())]}"
                continue
            plan = self._plan(match, records, groups, (one, other), (step, steps[0]), asked)
            if isinstance(plan, Plan):
                return self._paired(match, step, records, groups, plan, tokens)
            reason = plan
        return reason

    def _alike(self, match: Match, step: int, records: Group) -> bool:
        """Return whether both have the same number of dimensions."""
        others = self.theirs.steps.get(self._step_like(step), {}).get(match.theirs, ())
        return not others or len(others[0].layout.shape) == len(records[0].layout.shape)

    def _plan(
        self,
        match: Match,
        records: Group,
        groups: Sequence[Group],
        forms: tuple[str, str],
        steps: tuple[int, int],
        asked: Asked,
    ) -> Plan | str:
        feds = self.tokens.reference[steps[0]], self.tokens.candidate[steps[1]]
        candidate_records = _chosen(groups[0], asked)
        shapes_and_ranks = [(_shapes(group), _ranks(group)) for group in (records, candidate_records)]
        key = match, forms, *shapes_and_ranks, feds[0].shape, feds[1].shape
        if key not in self._plans:
            reference_shapes = [changed_shape(shape, asked.ours) for shape in _shapes(records)]
            candidate_shapes = [changed_shape(shape, asked.theirs) for shape in _shapes(candidate_records)]
            widths = [features(shape, forms[0]) for shape in reference_shapes]
            candidate_widths = [features(shape, forms[1]) for shape in candidate_shapes]
            both = rank_shards.ways(
                rank_shards.ranks_of(records, widths),
                rank_shards.ranks_of(candidate_records, candidate_widths),
                partial=self._is_partial(match),
                trims=self._is_logits(match),
            )
            if both and asked.join not in ("", both[1].join):
                both = both[0], both[1]._replace(which=tuple(range(len(candidate_records))), join=asked.join)
            self._plans[key] = (
                Plan(*both, fit(reference_shapes[0], candidate_shapes[0], *forms, feds), asked)
                if both
                else _unlike(records, candidate_records)
            )
        return self._plans[key]

    def _is_partial(self, match: Match) -> bool:
        """Whether each rank may hold a partial sum: by what the module is, and by where the ranks exchange them.

        Where the same module of another layer holds copies, the exchange is inside it; and where what leaves the
        module around it differs between ranks, there was none. A partial sum is then a mistake and not a layout.
        """
        meaning = self.our_names.meant[match.ours]
        if meaning.port != "out" or not ROW_PARALLEL.search(meaning.role):
            return False
        kind = _LAYER_NUMBER.sub("", meaning.role)
        if kind not in self._partial:
            same = [records for records in self._candidate_outputs(kind) if len(records) > 1]
            around = self._candidate_outputs(kind.rpartition(".")[0])
            exchanged_behind = not around or any(_ranks(records) == 1 for records in around)
            self._partial[kind] = exchanged_behind and all(_ranks(records) > 1 for records in same)
        return self._partial[kind]

    def _candidate_outputs(self, kind: str) -> list[Group]:
        """Return what leaves the modules of one kind, those of all layers."""
        groups = self.their_names.by_role.items()
        return [
            group[0].records
            for (role, port), group in groups
            if port == "out" and _LAYER_NUMBER.sub("", role) == kind
        ]

    def _is_logits(self, match: Match) -> bool:
        return self.our_names.meant[match.ours].role in ("logits", "head") or match.ours.endswith("logits")

    def _paired(
        self,
        match: Match,
        step: int,
        records: Group,
        groups: Sequence[Group],
        plan: Plan,
        tokens: TokenRows | None,
    ) -> Pair | str:
        reference = _aligned([records], plan.ours, (*plan.asked.ours, *plan.fit.ours))
        reference = self._regrouped(0, match, reference)
        chosen = [_chosen(group, plan.asked) for group in groups]
        candidate = _aligned(chosen, plan.theirs, (*plan.asked.theirs, *plan.fit.theirs))
        candidate = self._regrouped(1, match, candidate)
        if _are_masks(reference.first, candidate.first):
            reference, candidate = (
                tensor._replace(after=(*tensor.after, as_mask())) for tensor in (reference, candidate)
            )
        pair = Pair(match.name, step, reference, candidate, match.how, plan.fit.axis)
        pair = pair._replace(tokens=tokens, confidence=match.confidence)
        if not pair.kept and not _hash_tells(pair):
            return NOT_KEPT
        summed = candidate.join == "sum" and not plan.asked.join
        return self._summed_or_copied(pair, groups) if summed else pair

    def _regrouped(self, side: int, match: Match, aligned: Aligned) -> Aligned:
        """Return fused shards side by side as the whole fused tensor would be."""
        if aligned.join != "concatenate -1" or match.our_part or match.their_part:
            return aligned
        split = self.parting.shards_of(side, (match.ours, match.theirs)[side], len(aligned.records))
        return aligned._replace(after=(split.regrouped(), *aligned.after)) if split else aligned

    def _summed_or_copied(self, pair: Pair, groups: Sequence[Group]) -> Pair:
        """Return a pair of partial sums, or of copies where ranks differ in noise only: already exchanged."""
        one_of_each = tuple(group[0] for group in groups)
        copies = pair._replace(candidate=pair.candidate._replace(records=one_of_each, join=""))
        captures = self.ours.capture, self.theirs.capture
        alone, together = value_check.error(copies, *captures), value_check.error(pair, *captures)
        if alone < value_check.GOOD and alone < together:
            return copies
        return pair._replace(note="each rank holds a partial sum; they are added")

    def _whole(self, match: Match, step: int, records: Group, asked: Asked) -> Pair | str:
        """Return a pair of tensors without tokens: weights, tables, or anything where tokens are not known."""
        group = self.theirs.steps.get(self._step_like(step), {}).get(match.theirs, ())
        if not group:
            return "the candidate does not have it at this step"
        group = _chosen(group, asked)
        reference_shapes, candidate_shapes = (
            [changed_shape(record.layout.shape, changes) for record in some]
            for some, changes in ((records, asked.ours), (group, asked.theirs))
        )
        weight = self.our_names.meant[match.ours].port in ("weight", "bias")
        shape_fit = fit_whole(reference_shapes[0], candidate_shapes[0], weight=weight)
        join = ""
        if asked.join or (not shape_fit and len(group) > 1):
            axis = rank_shards.axis_of_shards(reference_shapes[0], candidate_shapes)
            join = asked.join or (f"concatenate {axis}" if axis is not None else "")
            shape_fit = shape_fit or (Fit() if join else None)
        elif self._is_partial(match) and _ranks(group) > 1:
            join = "sum"
        if shape_fit is None:
            return _unlike(records, group)
        which = tuple(range(len(group))) if join else (rank_shards.usual_rank(_hashes(group)),)
        plan = Plan(rank_shards.Way((0,)), rank_shards.Way(which, join), shape_fit, asked)
        return self._paired(match, step, records, [group], plan, None)

    def _step_like(self, step: int) -> int:
        """Return the candidate's step that computed the same tokens, or the one of the same number."""
        if self.tokens.known:
            rows = self.tokens.rows(step)
            if not isinstance(rows, str) and len(rows[0]) == 1:
                return rows[0][0]
        return step

    def _paged(self, match: Match, step: int, records: Group, asked: Asked) -> Pair | str:
        """Return a pair of which the candidate's tokens are in pages, if they are."""
        rows = self.tokens.rows(step)
        if isinstance(rows, str) or not (asked.pages or self._is_cache(match)):
            return ""
        at = rows[0][-1]
        table = table_at(self.theirs, at, asked.pages)
        group = self.theirs.steps[at].get(match.theirs, ())
        mine = self._forms_of(0, match.ours, asked.ours)
        plain = self._forms_of(1, match.theirs, ()) and not asked.pages
        if table is None or not group or not mine or plain:
            return ""
        return page_rows(self.tokens, step, records, group, table, mine[0], match)

    def _is_cache(self, match: Match) -> bool:
        return self.our_names.meant[match.ours].role.startswith("cache ")

    def copies(self, match: Match, pair: Pair) -> list[Pair]:
        """Return pairs of the ranks whose copy of a tensor is not that of the others.

        Where the reference has the same ranks, each is compared with its own: there they may differ by right.
        """
        if pair.candidate.join or len({record.step for record in pair.candidate.records}) > 1:
            return []
        group = self.theirs.steps[pair.candidate.first.step].get(match.theirs, ())
        if len(group) < 2 or pair.candidate.first not in group or match.changes:
            return []
        if any(record.layout.shape != group[0].layout.shape for record in group):
            return []
        reference_by_rank = self._same_ranks(match, pair, group)
        odd_pairs = []
        for record in rank_shards.odd_ranks(group):
            reference_record = reference_by_rank.get(record.rank)
            if reference_record is not None and reference_record.statistics.hash == record.statistics.hash:
                continue
            odd_pair = pair._replace(candidate=pair.candidate._replace(records=(record,)))
            if reference_record is not None and _ranks(tuple(reference_by_rank.values())) > 1:
                reference = pair.reference._replace(records=(reference_record,))
                odd_pairs.append(odd_pair._replace(reference=reference, note=""))
                continue
            note = f"rank {record.rank} holds other values than rank {pair.candidate.first.rank}"
            odd_pairs.append(odd_pair._replace(note=note))
        return odd_pairs

    def _same_ranks(self, match: Match, pair: Pair, theirs: Group) -> dict[int, Record]:
        """Return the reference's records of a tensor by rank, if it has the same ranks as the candidate."""
        group = self.ours.steps[pair.reference.first.step].get(match.ours, ())
        by_rank = {record.rank: record for record in group}
        alike = list(by_rank) == [record.rank for record in theirs] and not pair.reference.join
        return by_rank if alike and pair.reference.first in group else {}


def _chosen(group: Group, asked: Asked) -> Group:
    if asked.rank is None:
        return group
    return tuple(record for record in group if record.rank == asked.rank) or group[:1]


def _aligned(groups: Sequence[Group], way: rank_shards.Way, changes: tuple[Change, ...]) -> Aligned:
    records = tuple(group[number] for group in groups for number in way.which)
    after = (columns(0, way.columns),) if way.columns else ()
    return Aligned(records, way.join, changes, after)


def _are_masks(ours: Record, theirs: Record) -> bool:
    """Whether two tensors are masks of which one or both are added to scores: how negative they are says nothing."""
    is_bool = [record.layout.dtype == "bool" for record in (ours, theirs)]
    if is_bool[0] != is_bool[1]:
        return True
    return not is_bool[0] and is_added_mask(ours) and is_added_mask(theirs)


def _hash_tells(pair: Pair) -> bool:
    """Whether hashes and statistics can be compared, where there are no values: all of both, as they are."""
    shapes = pair.reference.first.layout.shape, pair.candidate.first.layout.shape
    return pair.reference.is_unchanged and pair.candidate.is_unchanged and shapes[0] == shapes[1]


def _ranks(records: Group) -> int:
    """Return how many different contents the ranks hold."""
    return len(set(_hashes(records)))


def _hashes(records: Group) -> list[str]:
    return [record.statistics.hash for record in records]


def _shapes(records: Group) -> tuple[Any, ...]:
    return tuple(record.layout.shape for record in records)


def _unlike(ours: Group, theirs: Group) -> str:
    shape_texts = [
        f"{list(some[0].layout.shape)}" + (f" on {len(some)} ranks" if len(some) > 1 else "")
        for some in (ours, theirs)
    ]
    return f"shape {shape_texts[0]} against {shape_texts[1]}"
