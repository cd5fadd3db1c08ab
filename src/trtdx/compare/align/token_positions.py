"""Which token each row of a step is, and which steps of two sides computed the same tokens.

A token is known by its sequence and its position in it, counted without padding. So a prefill of many tokens is
compared with one in chunks or token by token, and steps may be numbered as they like. From the first token on that
was fed differently, a sequence is not compared any more: what follows could only differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trtdx.compare.nouns import TokenRows
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.align.side_tensors import SideTensors
    from trtdx.compare.nouns import Array


IDS = ("input_ids", ":in.input_ids", "model:in.input_ids", "transformer:in.input_ids", "tokens", "token_ids")
POSITIONS = ("position_ids", ":in.position_ids", "positions", "model:in.position_ids")
MASKS = ("attention_mask", ":in.attention_mask")
LENGTHS = (
    "context_lengths", "host_context_lengths", "seq_lens", "query_lens", "input_lengths", "prompt_lens",
    "sequence_lengths",
)  # fmt: skip
STARTS = ("cu_seqlens", "cu_seqlens_q", "qo_indptr", "query_start_loc")
_FAR = 1 << 40


class StepTokens(NamedTuple):
    """The tokens that one step computes."""

    step: int
    shape: tuple[int, ...]  # of the token ids: [sequences, tokens], or [tokens] where they are packed
    sequence: Array
    position: Array  # -1: padding
    ids: Array
    real: Array | None = None  # [sequences, tokens up to now]: which of them are no padding

    @property
    def total(self) -> int:
        """How many tokens, padding included, each sequence of a batch has so far; 0 if unknown."""
        return 0 if self.real is None else int(self.real.shape[1])

    @property
    def tokens(self) -> int:
        """How many tokens are not padding."""
        return int((self.position >= 0).sum())

    def subset(self, which: str) -> StepTokens:
        """Return which tokens a tensor holds: all of the step, those without padding, the last ones, all so far, or all before."""
        if which == "last":
            return self.last_tokens()
        if which == "real":
            at = self.position >= 0
            return StepTokens(self.step, (self.tokens,), self.sequence[at], self.position[at], self.ids[at])
        return self._tokens_before(self.total - (self.shape[1] if which == "past" else 0)) if which else self

    def _tokens_before(self, count: int) -> StepTokens:
        real = np.zeros((self.shape[0], 0), bool) if self.real is None else self.real[:, :count]
        position = np.where(real, real.cumsum(1) - 1, -1).ravel()
        sequence = np.repeat(np.arange(len(real)), real.shape[1])
        return StepTokens(self.step, real.shape, sequence, position, np.full(position.shape, -1))

    @property
    def sequences(self) -> int:
        return self.shape[0] if len(self.shape) > 1 else len(set(self.sequence.tolist()))

    def last_tokens(self) -> StepTokens:
        """Return the last token of each sequence, which alone may have logits."""
        rows = list(dict.fromkeys(self.sequence.tolist()))
        at = [int(np.flatnonzero(self.sequence == row)[self._newest_row(row)]) for row in rows]
        return StepTokens(self.step, (len(rows),), self.sequence[at], self.position[at], self.ids[at])

    def _newest_row(self, row: int) -> int:
        return int(self.position[self.sequence == row].argmax())


def collect_step_tokens(side: SideTensors) -> dict[int, StepTokens]:
    """Return the tokens of each step, as far as they were captured."""
    counts_before: dict[int, int] = {}
    tokens_by_step: dict[int, StepTokens] = {}
    for step in side.steps:
        ids = side.kept_value(step, *IDS, *_embedding_inputs(side, step))
        if ids is None or ids.ndim not in (1, 2) or ids.dtype.kind not in "iu" or not ids.size:
            continue
        lengths = _packed_lengths(side, step, ids)
        if ids.ndim == 1 or lengths is not None:
            fed = _packed_tokens(side, step, ids, lengths, counts_before)
        else:
            fed = _batch_tokens(side, step, ids, counts_before)
        tokens_by_step[step] = fed
        for row in set(fed.sequence.tolist()):
            count = int(fed.position[fed.sequence == row].max()) + 1
            counts_before[row] = max(counts_before.get(row, 0), count)
    return tokens_by_step


def _embedding_inputs(side: SideTensors, step: int) -> list[str]:
    """Return the names of tensors that enter embeddings: they are the token ids if no tensor has that name."""
    ends = ("embed_tokens:in", "wte:in", "vocab_embedding:in", "word_embeddings:in", "tok_embeddings:in")
    return [name for name in side.steps[step] if name.endswith(ends)]


def _packed_lengths(side: SideTensors, step: int, ids: Array) -> Array | None:
    """Return how many tokens each of several packed sequences has, if that was captured."""
    if ids.ndim == 2 and ids.shape[0] > 1:
        return None
    lengths = side.kept_value(step, *LENGTHS)
    if lengths is not None and lengths.ndim == 1 and int(lengths.sum()) == ids.size:
        return np.asarray(lengths, np.int64)
    starts = side.kept_value(step, *STARTS)
    if starts is not None and starts.ndim == 1 and starts.size and int(starts[-1]) == ids.size:
        return np.diff(starts.astype(np.int64))
    return None


def _batch_tokens(side: SideTensors, step: int, ids: Array, counts_before: dict[int, int]) -> StepTokens:
    rows, count = ids.shape
    before = np.array([counts_before.get(row, 0) for row in range(rows)])[:, None]
    mask = side.kept_value(step, *MASKS)
    if mask is None and not counts_before:
        mask = side.kept_value(step, "prompt_mask")
    position_ids, real = side.kept_value(step, *POSITIONS), None
    if mask is not None and mask.ndim == 2 and mask.shape[0] == rows and mask.shape[1] >= count:
        real = mask != 0
        position = real.cumsum(1)[:, mask.shape[1] - count :] - 1
        if mask.shape[1] == count:  # it tells of these tokens alone; with a cache others came before
            position = position + np.where(before > 0, _count_before(position_ids, before, real), 0)
        position = np.where(real[:, mask.shape[1] - count :], position, -1)
    elif position_ids is not None and position_ids.shape == ids.shape:
        position = position_ids
    else:
        position = before + np.arange(count)
    sequence = np.repeat(np.arange(rows), count)
    return StepTokens(step, (rows, count), sequence, np.asarray(position, np.int64).ravel(), ids.ravel(), real)


def _count_before(position_ids: Array | None, counts_before: Array, real: Array) -> Array | int:
    """Return how many tokens precede those in a mask; None if positions show that all tokens are fed again."""
    if position_ids is not None and position_ids.shape == real.shape:
        first = np.take_along_axis(position_ids, real.argmax(1)[:, None], 1)
        return np.asarray(first, np.int64)
    return 0 if real.shape[1] > int(counts_before.max()) else counts_before


def _packed_tokens(
    side: SideTensors, step: int, ids: Array, lengths: Array | None, counts_before: dict[int, int]
) -> StepTokens:
    flat = ids.ravel()
    position = side.kept_value(step, *POSITIONS)
    if position is not None:
        position = position.ravel().astype(np.int64) if position.size == flat.size else None
    if lengths is None and position is not None:
        begins = np.flatnonzero(np.diff(position, prepend=position[0] - 2) != 1)
        lengths = np.diff(np.append(begins, flat.size))
    elif lengths is None:  # a token of each sequence known, or one sequence
        lengths = np.ones(flat.size, np.int64) if flat.size == len(counts_before) else np.array([flat.size])
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    if position is None:
        within = np.arange(flat.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        position = within + np.array([counts_before.get(int(row), 0) for row in sequence])
    return StepTokens(step, (flat.size,), sequence, position, flat)


class TokenTable(NamedTuple):
    """The tokens of several steps, sorted by sequence and position; `row` counts all rows of those steps."""

    keys: Array
    step: Array
    row: Array


class TokenMatching:
    """Which steps of the candidate hold the tokens of a step of the reference, and in which rows."""

    def __init__(self, reference: SideTensors, candidate: SideTensors) -> None:
        self.reference, self.candidate = collect_step_tokens(reference), collect_step_tokens(candidate)
        self.notes: list[str] = []
        self.assumed = bool(self.reference) != bool(self.candidate)
        if self.assumed:  # a dump may not tell; most dumps are of the same prompt
            known_side = self.reference or self.candidate
            missing = "candidate" if self.reference else "reference"
            known_steps = (candidate if self.reference else reference).steps
            setattr(self, missing, {step: fed for step, fed in known_side.items() if step in known_steps})
            self.notes.append(
                f"the {missing} does not tell which tokens it was fed: those of the other side are assumed"
            )
        self.known = bool(self.reference) and bool(self.candidate)
        self._renamed_sequences = self._match_sequences() if self.known else None
        self._comparable_limits = self._first_different_tokens() if self.known else {}
        self._rows_cache: dict[tuple[int, str, str], tuple[tuple[int, ...], TokenRows] | str] = {}

    def rows(
        self, step: int, reference_tokens: str = "", candidate_tokens: str = ""
    ) -> tuple[tuple[int, ...], TokenRows] | str:
        """Return the candidate's steps that computed the tokens of this step, with the rows on both sides, or why there are none.

        A tensor holds "" the tokens of the step, "real" those without padding, "last" the last of each sequence,
        "history" all up to now, "past" all before.
        """
        key = step, reference_tokens, candidate_tokens
        if key not in self._rows_cache:
            self._rows_cache[key] = self._find_rows(*key)
        return self._rows_cache[key]

    def is_padded(self, reference_step: int, candidate_step: int) -> bool:
        """Whether one of two steps has padding."""
        feds = self.reference.get(reference_step), self.candidate.get(candidate_step)
        return any(fed is not None and fed.tokens < len(fed.position) for fed in feds)

    def comparable_rows(self, step: int) -> tuple[Array, Array] | None:
        """Return the rows of a step of the reference that may be compared, and sequence and position of each."""
        fed = self.reference.get(step)
        if fed is None:
            return None
        rows = self._comparable_tokens(fed)
        return rows, np.stack([fed.sequence[rows], fed.position[rows]], 1)

    def _comparable_tokens(self, fed: StepTokens) -> Array:
        """Return the rows of tokens that are not padding and come before the first token that was fed differently."""
        limits = np.array([self._comparable_limits.get(int(row), _FAR) for row in fed.sequence])
        return np.flatnonzero((fed.position >= 0) & (fed.position < limits))

    def _find_rows(
        self, step: int, reference_tokens: str, candidate_tokens: str
    ) -> tuple[tuple[int, ...], TokenRows] | str:
        fed = self.reference.get(step)
        if fed is None:
            return "which tokens the reference was fed at this step is not known"
        fed = fed.subset(reference_tokens)
        mine = self._comparable_tokens(fed)
        if not mine.size:
            return "other tokens were fed before: steps from here on are not comparable"
        keys = fed.sequence[mine] * _FAR + fed.position[mine]
        choices = self._candidate_steps(step, candidate_tokens)
        if isinstance(choices, str):
            return choices
        for steps in choices:
            table, at, hit = self._locate_tokens(keys, steps, candidate_tokens)
            if hit.all() or candidate_tokens:
                break
        if not hit.any():
            return "the candidate computed none of this step's tokens"
        used = np.unique(table.step[at[hit]])
        if len(used) < len(steps):  # rows are counted over the steps that are needed
            table, at, hit = self._locate_tokens(keys, used.tolist(), candidate_tokens)
        mine, at = mine[hit], at[hit]
        return tuple(used.tolist()), TokenRows(mine, table.row[at], fed.sequence[mine], fed.position[mine])

    def _locate_tokens(self, keys: Array, steps: Sequence[int], which: str) -> tuple[TokenTable, Array, Array]:
        """Return the rows of these tokens in these steps of the candidate, and which of the tokens are present."""
        table = self._token_table(steps, which)
        at = np.minimum(np.searchsorted(table.keys, keys), len(table.keys) - 1)
        return table, at, table.keys[at] == keys

    def _candidate_steps(self, step: int, which: str) -> list[tuple[int, ...]] | str:
        """Return the steps to search: the one with the same number if it has all tokens, otherwise all steps."""
        if which in ("history", "past"):  # where the step's own tokens are, the last of them
            same_step = self.rows(step)
            return same_step if isinstance(same_step, str) else [same_step[0][-1:]]
        every = tuple(self.candidate)
        return [(step,), every] if step in self.candidate else [every]

    def _token_table(self, steps: Sequence[int], which: str) -> TokenTable:
        keys, numbers, rows, offset = [], [], [], 0
        for step in steps:
            fed = self.candidate[step].subset(which)
            sequence = np.array([self._reference_sequence(int(row)) for row in fed.sequence])
            real = np.flatnonzero((fed.position >= 0) & (sequence >= 0))
            keys.append(sequence[real] * _FAR + fed.position[real])
            numbers.append(np.full(len(real), step))
            rows.append(real + offset)
            offset += len(fed.sequence)
        every = np.concatenate(keys) if keys else np.zeros(0, np.int64)
        order = np.argsort(every, kind="stable")  # the first step that computed a token stands
        if not order.size:
            return TokenTable(np.full(1, -1), np.zeros(1, np.int64), np.zeros(1, np.int64))
        return TokenTable(every[order], np.concatenate(numbers)[order], np.concatenate(rows)[order])

    def _reference_sequence(self, row: int) -> int:
        return row if self._renamed_sequences is None else self._renamed_sequences.get(row, -1)

    def _match_sequences(self) -> dict[int, int] | None:
        """Return which of the reference's sequences each of the candidate's is, if their order differs."""
        reference, candidate = _tokens_by_sequence(self.reference), _tokens_by_sequence(self.candidate)
        if len(reference) == len(candidate) and all(
            _start_alike(reference[row], candidate.get(row, {})) for row in reference
        ):
            return None
        left = dict(candidate)
        renamed: dict[int, int] = {}
        for row, tokens in reference.items():
            same = next((sequence for sequence, others in left.items() if _start_alike(tokens, others)), None)
            if same is not None:
                renamed[same] = row
                del left[same]
        if len(renamed) < min(len(reference), len(candidate)):
            return None  # other tokens, not another order: said as such
        self.notes.append(
            f"sequences are matched by their tokens: {format_count(len(candidate), 'sequence')} of the candidate against "
            f"{format_count(len(reference), 'sequence')}"
            + (f"; {format_count(len(left), 'other beam or sequence')} of it are left out" if left else "")
        )
        return renamed

    def _first_different_tokens(self) -> dict[int, int]:
        reference, candidate = _tokens_by_sequence(self.reference), _tokens_by_sequence(self.candidate)
        limits: dict[int, int] = {}
        for row, tokens in candidate.items():
            name = self._reference_sequence(row)
            reference_tokens = reference.get(name, {})
            apart = [at for at, token in tokens.items() if at in reference_tokens and reference_tokens[at] != token]
            if apart:
                limits[name] = first = min(apart)
                self.notes.append(
                    f"sequence {name} was fed token {tokens[first]} at position {first} where the reference was "
                    f"fed {reference_tokens[first]}: from there on it is not compared"
                )
        return limits


def _start_alike(reference: dict[int, int], candidate: dict[int, int]) -> bool:
    """Whether two sequences start with the same tokens, as far as both are known; they may diverge later."""
    first = min(reference, default=0)
    shared = sum(candidate.get(at) == token for at, token in reference.items())
    return (
        first in candidate
        and reference[first] == candidate[first]
        and shared * 2 >= min(len(reference), len(candidate))
    )


def _tokens_by_sequence(tokens_by_step: dict[int, StepTokens]) -> dict[int, dict[int, int]]:
    """Return the tokens of each sequence by position; if a position was computed twice, the first token."""
    by_sequence: dict[int, dict[int, int]] = {}
    for step_tokens in tokens_by_step.values():
        for row, at, token in zip(
            step_tokens.sequence.tolist(),
            step_tokens.position.tolist(),
            step_tokens.ids.tolist(),
            strict=True,
        ):
            if at >= 0:
                by_sequence.setdefault(row, {}).setdefault(at, token)
    return by_sequence


def first_different_step(reference_tokens: list[list[int]], candidate_tokens: list[list[int]]) -> int | None:
    """Return after how many steps two generations diverged; None if they never did."""
    both = zip(reference_tokens, candidate_tokens, strict=False)
    return next((number for number, (one, other) in enumerate(both) if one != other), None)
