"""A pair made of a match of names at one step: shards joined, layouts brought together, rows matched by tokens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.align import rank_shards, value_check
from trtdx.compare.align.expert_rows import has_same_experts, is_in_experts
from trtdx.compare.align.fused_layouts import FusedLayouts
from trtdx.compare.align.layouts import (
    TOKENS_HELD,
    LayoutFit,
    are_masks,
    changed_shape,
    columns_change,
    consistent_forms,
    features_per_token,
    fit_shapes,
    fit_tokens,
    mask_change,
)
from trtdx.compare.align.mapping import RequestedLayout, parse_requested_layout
from trtdx.compare.align.name_meanings import ROW_PARALLEL
from trtdx.compare.align.paged_cache import pair_with_pages, read_page_table
from trtdx.compare.align.token_shards import pair_token_shards
from trtdx.compare.nouns import AlignedTensor, LayoutChange, TensorPair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.capture.store.reader import TensorRecord
    from trtdx.compare.align.name_matching import NameMatch, SideNames
    from trtdx.compare.align.side_tensors import SideTensors
    from trtdx.compare.align.token_positions import TokenMatching
    from trtdx.compare.nouns import TokenRows

    Group = tuple[TensorRecord, ...]

_LAYER_NUMBER = re.compile(r"(?<=layers\.)\d+")
MOST_SHAPES = 6  # of one tensor that are looked at to tell where its tokens lie
NOT_KEPT = "values were not kept"
EMPTY = "it is empty"
UNORDERED = "tokens are in the order of their experts, and these are not the same or not known"


class PairPlan(NamedTuple):
    """How the tensors of a match come together; the same for all steps of the same shapes."""

    reference: rank_shards.ShardJoin
    candidate: rank_shards.ShardJoin
    fit: LayoutFit
    requested: RequestedLayout


class PairBuilder:
    """Makes pairs."""

    def __init__(
        self,
        reference: SideTensors,
        candidate: SideTensors,
        tokens: TokenMatching,
        reference_names: SideNames,
        candidate_names: SideNames,
    ) -> None:
        self.reference, self.candidate, self.tokens = reference, candidate, tokens
        self.reference_names, self.candidate_names = reference_names, candidate_names
        self.fused_layouts = FusedLayouts(reference, candidate, reference_names, candidate_names)
        self._requested: dict[NameMatch, RequestedLayout | str] = {}
        self._forms: dict[tuple[int, str, tuple[LayoutChange, ...]], list[str]] = {}
        self._plans: dict[Any, PairPlan | str] = {}
        self._partial: dict[str, bool] = {}

    def build(self, match: NameMatch, step: int) -> TensorPair | str:
        """Return the pair of a match at a step of the reference, or why there is none."""
        requested = self._requested.get(match)
        if requested is None:
            requested = self._requested[match] = self._requested_layout(match)
        if isinstance(requested, str):
            return requested
        records = self.reference.steps[step][match.reference]
        if not records[0].layout.elements:
            return EMPTY
        reason = ""
        if self.tokens.known and step in self.tokens.reference:
            pair = self._pair_with_pages(match, step, records, requested) or self._pair_by_tokens(
                match, step, records, requested
            )
            if isinstance(pair, TensorPair):
                return pair
            reason = pair
            if reason and self._has_tokens(match, requested):
                return reason
        steps = step, self._candidate_step(step)
        if is_in_experts(match.reference) and (
            self.tokens.is_padded(*steps)
            or not has_same_experts(self.reference, self.candidate, match.reference, steps)
        ):
            return UNORDERED
        pair = self._pair_without_tokens(match, step, records, requested)
        return pair if isinstance(pair, TensorPair) else pair or reason

    def _requested_layout(self, match: NameMatch) -> RequestedLayout | str:
        if match.changes:
            return parse_requested_layout(match.changes)
        if not (match.reference_part or match.candidate_part):
            return RequestedLayout()
        changes = self.fused_layouts.part_changes(match)
        return changes if isinstance(changes, str) else RequestedLayout(*changes)

    def _has_tokens(self, match: NameMatch, requested: RequestedLayout) -> bool:
        return bool(
            self._token_forms(0, match.reference, requested.reference_changes)
            and self._token_forms(1, match.candidate, requested.candidate_changes)
        )

    def _token_forms(self, side: int, name: str, changes: tuple[LayoutChange, ...]) -> list[str]:
        key = side, name, changes
        if key not in self._forms:
            reading, fed = ((self.reference, self.tokens.reference), (self.candidate, self.tokens.candidate))[side]
            shapes: dict[tuple[Any, Any], Any] = {}
            for step, records in reading.steps_with(name):
                if step in fed:
                    shape = records[0].layout.shape
                    shapes.setdefault((shape, fed[step].shape), (changed_shape(shape, changes), fed[step]))
                if len(shapes) >= MOST_SHAPES:
                    break
            self._forms[key] = consistent_forms(list(shapes.values()), name)
        return self._forms[key]

    def _pair_by_tokens(
        self, match: NameMatch, step: int, records: Group, requested: RequestedLayout
    ) -> TensorPair | str:
        """Return a pair whose rows are tokens."""
        mine = self._token_forms(0, match.reference, requested.reference_changes)
        others = self._token_forms(1, match.candidate, requested.candidate_changes)
        choices = [(one, other) for one in mine for other in others]
        if self._have_same_dimensions(
            match, step, records
        ):  # else the likeliest form of each, not one that they happen to share
            choices.sort(key=lambda both: both[0] != both[1])
        reason = ""
        if mine and not others and self.tokens.assumed is False:
            group = self.candidate.steps.get(self._candidate_step(step), {}).get(match.candidate, ())
            pair = pair_token_shards(match, self.tokens, step, records, group, mine[0])
            if pair is not None:
                return pair
        for one, other in choices:
            rows = self.tokens.rows(step, TOKENS_HELD.get(one, ""), TOKENS_HELD.get(other, ""))
            if isinstance(rows, str):
                reason = reason or rows
                continue
            steps, tokens = rows
            groups = [self.candidate.steps[candidate_step].get(match.candidate, ()) for candidate_step in steps]
            if not all(groups):
                reason = f"the candidate does not have it at step {steps[groups.index(())]}"
                continue
            plan = self._plan_pair(match, records, groups, (one, other), (step, steps[0]), requested)
            if isinstance(plan, PairPlan):
                return self._make_pair(match, step, records, groups, plan, tokens)
            reason = plan
        return reason

    def _have_same_dimensions(self, match: NameMatch, step: int, records: Group) -> bool:
        """Return whether both have the same number of dimensions."""
        others = self.candidate.steps.get(self._candidate_step(step), {}).get(match.candidate, ())
        return not others or len(others[0].layout.shape) == len(records[0].layout.shape)

    def _plan_pair(
        self,
        match: NameMatch,
        records: Group,
        groups: Sequence[Group],
        forms: tuple[str, str],
        steps: tuple[int, int],
        requested: RequestedLayout,
    ) -> PairPlan | str:
        feds = self.tokens.reference[steps[0]], self.tokens.candidate[steps[1]]
        candidate_records = _records_of_rank(groups[0], requested)
        shapes_and_ranks = [(_record_shapes(group), _count_distinct(group)) for group in (records, candidate_records)]
        key = match, forms, *shapes_and_ranks, feds[0].shape, feds[1].shape
        if key not in self._plans:
            reference_shapes = [changed_shape(shape, requested.reference_changes) for shape in _record_shapes(records)]
            candidate_shapes = [
                changed_shape(shape, requested.candidate_changes) for shape in _record_shapes(candidate_records)
            ]
            widths = [features_per_token(shape, forms[0]) for shape in reference_shapes]
            candidate_widths = [features_per_token(shape, forms[1]) for shape in candidate_shapes]
            both = rank_shards.plan_joins(
                rank_shards.rank_contents(records, widths),
                rank_shards.rank_contents(candidate_records, candidate_widths),
                partial=self._is_partial_sum(match),
                trims=self._is_logits(match),
            )
            if both and requested.join not in ("", both[1].join):
                both = (
                    both[0],
                    both[1]._replace(indices=tuple(range(len(candidate_records))), join=requested.join),
                )
            self._plans[key] = (
                PairPlan(*both, fit_tokens(reference_shapes[0], candidate_shapes[0], *forms, feds), requested)
                if both
                else _shape_mismatch_text(records, candidate_records)
            )
        return self._plans[key]

    def _is_partial_sum(self, match: NameMatch) -> bool:
        """Whether each rank may hold a partial sum: by what the module is, and by where the ranks exchange them.

        Where the same module of another layer holds copies, the exchange is inside it; and where what leaves the
        module around it differs between ranks, there was none. A partial sum is then a mistake and not a layout.
        """
        meaning = self.reference_names.meanings[match.reference]
        if meaning.port != "out" or not ROW_PARALLEL.search(meaning.role):
            return False
        kind = _LAYER_NUMBER.sub("", meaning.role)
        if kind not in self._partial:
            same = [records for records in self._candidate_outputs(kind) if len(records) > 1]
            around = self._candidate_outputs(kind.rpartition(".")[0])
            exchanged_behind = not around or any(_count_distinct(records) == 1 for records in around)
            self._partial[kind] = exchanged_behind and all(_count_distinct(records) > 1 for records in same)
        return self._partial[kind]

    def _candidate_outputs(self, kind: str) -> list[Group]:
        """Return what leaves the modules of one kind, those of all layers."""
        groups = self.candidate_names.by_role.items()
        return [
            group[0].records for (role, port), group in groups if port == "out" and _LAYER_NUMBER.sub("", role) == kind
        ]

    def _is_logits(self, match: NameMatch) -> bool:
        return self.reference_names.meanings[match.reference].role in (
            "logits",
            "head",
        ) or match.reference.endswith("logits")

    def _make_pair(
        self,
        match: NameMatch,
        step: int,
        records: Group,
        groups: Sequence[Group],
        plan: PairPlan,
        tokens: TokenRows | None,
    ) -> TensorPair | str:
        reference = _aligned_tensor(
            [records], plan.reference, (*plan.requested.reference_changes, *plan.fit.reference_changes)
        )
        reference = self._regroup_shards(0, match, reference)
        chosen = [_records_of_rank(group, plan.requested) for group in groups]
        candidate = _aligned_tensor(
            chosen, plan.candidate, (*plan.requested.candidate_changes, *plan.fit.candidate_changes)
        )
        candidate = self._regroup_shards(1, match, candidate)
        if are_masks(reference.first, candidate.first):
            reference, candidate = (
                tensor._replace(joined_changes=(*tensor.joined_changes, mask_change()))
                for tensor in (reference, candidate)
            )
        pair = TensorPair(match.name, step, reference, candidate, match.matched_by, plan.fit.token_axis)
        pair = pair._replace(tokens=tokens, confidence=match.confidence)
        if not pair.has_values and not _is_hash_comparable(pair):
            return NOT_KEPT
        summed = candidate.join == "sum" and not plan.requested.join
        return self._choose_sum_or_copy(pair, groups) if summed else pair

    def _regroup_shards(self, side: int, match: NameMatch, aligned: AlignedTensor) -> AlignedTensor:
        """Return fused shards side by side as the whole fused tensor would be."""
        if aligned.join != "concatenate -1" or match.reference_part or match.candidate_part:
            return aligned
        split = self.fused_layouts.joined_shards(side, (match.reference, match.candidate)[side], len(aligned.records))
        return aligned._replace(joined_changes=(split.regroup_change(), *aligned.joined_changes)) if split else aligned

    def _choose_sum_or_copy(self, pair: TensorPair, groups: Sequence[Group]) -> TensorPair:
        """Return a pair of partial sums, or of copies where ranks differ in noise only: already exchanged."""
        one_of_each = tuple(group[0] for group in groups)
        copies = pair._replace(candidate=pair.candidate._replace(records=one_of_each, join=""))
        captures = self.reference.capture, self.candidate.capture
        alone, together = (
            value_check.pair_value_error(copies, *captures),
            value_check.pair_value_error(pair, *captures),
        )
        if alone < value_check.GOOD and alone < together:
            return copies
        return pair._replace(note="each rank holds a partial sum; they are added")

    def _pair_without_tokens(
        self, match: NameMatch, step: int, records: Group, requested: RequestedLayout
    ) -> TensorPair | str:
        """Return a pair of tensors without tokens: weights, tables, or anything where tokens are not known."""
        group = self.candidate.steps.get(self._candidate_step(step), {}).get(match.candidate, ())
        if not group:
            return "the candidate does not have it at this step"
        group = _records_of_rank(group, requested)
        reference_shapes, candidate_shapes = (
            [changed_shape(record.layout.shape, changes) for record in some]
            for some, changes in (
                (records, requested.reference_changes),
                (group, requested.candidate_changes),
            )
        )
        weight = self.reference_names.meanings[match.reference].port in ("weight", "bias")
        shape_fit = fit_shapes(reference_shapes[0], candidate_shapes[0], weight=weight)
        join = ""
        if requested.join or (not shape_fit and len(group) > 1):
            axis = rank_shards.shard_axis(reference_shapes[0], candidate_shapes)
            join = requested.join or (f"concatenate {axis}" if axis is not None else "")
            shape_fit = shape_fit or (LayoutFit() if join else None)
        elif self._is_partial_sum(match) and _count_distinct(group) > 1:
            join = "sum"
        if shape_fit is None:
            return _shape_mismatch_text(records, group)
        which = tuple(range(len(group))) if join else (rank_shards.usual_rank(_record_hashes(group)),)
        plan = PairPlan(rank_shards.ShardJoin((0,)), rank_shards.ShardJoin(which, join), shape_fit, requested)
        return self._make_pair(match, step, records, [group], plan, None)

    def _candidate_step(self, step: int) -> int:
        """Return the candidate's step that computed the same tokens, or the one of the same number."""
        if self.tokens.known:
            rows = self.tokens.rows(step)
            if not isinstance(rows, str) and len(rows[0]) == 1:
                return rows[0][0]
        return step

    def _pair_with_pages(
        self, match: NameMatch, step: int, records: Group, requested: RequestedLayout
    ) -> TensorPair | str:
        """Return a pair of which the candidate's tokens are in pages, if they are."""
        rows = self.tokens.rows(step)
        if isinstance(rows, str) or not (requested.pages or self._is_cache(match)):
            return ""
        at = rows[0][-1]
        table = read_page_table(self.candidate, at, requested.pages)
        group = self.candidate.steps[at].get(match.candidate, ())
        mine = self._token_forms(0, match.reference, requested.reference_changes)
        plain = self._token_forms(1, match.candidate, ()) and not requested.pages
        if table is None or not group or not mine or plain:
            return ""
        return pair_with_pages(self.tokens, step, records, group, table, mine[0], match)

    def _is_cache(self, match: NameMatch) -> bool:
        return self.reference_names.meanings[match.reference].role.startswith("cache ")

    def odd_rank_pairs(self, match: NameMatch, pair: TensorPair) -> list[TensorPair]:
        """Return pairs of the ranks whose copy of a tensor is not that of the others.

        Where the reference has the same ranks, each is compared with its own: there they may differ by right.
        """
        if pair.candidate.join or len({record.step for record in pair.candidate.records}) > 1:
            return []
        group = self.candidate.steps[pair.candidate.first.step].get(match.candidate, ())
        if len(group) < 2 or pair.candidate.first not in group or match.changes:
            return []
        if any(record.layout.shape != group[0].layout.shape for record in group):
            return []
        reference_by_rank = self._reference_by_rank(match, pair, group)
        odd_pairs = []
        for record in rank_shards.odd_ranks(group):
            reference_record = reference_by_rank.get(record.rank)
            if reference_record is not None and reference_record.statistics.hash == record.statistics.hash:
                continue
            odd_pair = pair._replace(candidate=pair.candidate._replace(records=(record,)))
            if reference_record is not None and _count_distinct(tuple(reference_by_rank.values())) > 1:
                reference = pair.reference._replace(records=(reference_record,))
                odd_pairs.append(odd_pair._replace(reference=reference, note=""))
                continue
            note = f"rank {record.rank} holds other values than rank {pair.candidate.first.rank}"
            odd_pairs.append(odd_pair._replace(note=note))
        return odd_pairs

    def _reference_by_rank(
        self, match: NameMatch, pair: TensorPair, candidate_records: Group
    ) -> dict[int, TensorRecord]:
        """Return the reference's records of a tensor by rank, if it has the same ranks as the candidate."""
        group = self.reference.steps[pair.reference.first.step].get(match.reference, ())
        by_rank = {record.rank: record for record in group}
        alike = list(by_rank) == [record.rank for record in candidate_records] and not pair.reference.join
        return by_rank if alike and pair.reference.first in group else {}


def _records_of_rank(group: Group, requested: RequestedLayout) -> Group:
    if requested.rank is None:
        return group
    return tuple(record for record in group if record.rank == requested.rank) or group[:1]


def _aligned_tensor(
    groups: Sequence[Group], shard_join: rank_shards.ShardJoin, changes: tuple[LayoutChange, ...]
) -> AlignedTensor:
    records = tuple(group[number] for group in groups for number in shard_join.indices)
    after = (columns_change(0, shard_join.columns),) if shard_join.columns else ()
    return AlignedTensor(records, shard_join.join, changes, after)


def _is_hash_comparable(pair: TensorPair) -> bool:
    """Whether hashes and statistics can be compared, where there are no values: all of both, as they are."""
    shapes = pair.reference.first.layout.shape, pair.candidate.first.layout.shape
    return pair.reference.is_unchanged and pair.candidate.is_unchanged and shapes[0] == shapes[1]


def _count_distinct(records: Group) -> int:
    """Return how many different contents the ranks hold."""
    return len(set(_record_hashes(records)))


def _record_hashes(records: Group) -> list[str]:
    return [record.statistics.hash for record in records]


def _record_shapes(records: Group) -> tuple[Any, ...]:
    return tuple(record.layout.shape for record in records)


def _shape_mismatch_text(reference: Group, candidate: Group) -> str:
    shape_texts = [
        f"{list(some[0].layout.shape)}" + (f" on {len(some)} ranks" if len(some) > 1 else "")
        for some in (reference, candidate)
    ]
    return f"shape {shape_texts[0]} against {shape_texts[1]}"
