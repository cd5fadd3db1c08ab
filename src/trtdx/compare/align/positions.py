"""Which token each row of a step is, and which steps of two sides computed the same tokens.

A token is known by its sequence and its position in it, counted without padding. So a prefill of many tokens is
compared with one in chunks or token by token, and steps may be numbered as they like. From the first token on that
was fed differently, a sequence is not compared any more: what follows could only differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trtdx.compare.nouns import TokenRows
from trtdx.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.align.side_tensors import Reading
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


class Fed(NamedTuple):
    """The tokens that one step computes."""

    step: int
    shape: tuple[int, ...]  # of the token ids: [sequences, tokens], or [tokens] where they are packed
    sequence: Array
    position: Array  # -1: padding
    ids: Array
    real: Array | None = None  # [sequences, tokens up to now]: which of them are no padding

    @property
    def total(self) -> int:
        """How many tokens, with padding, each sequence of a batch has up to now; 0 where nobody knows."""
        return 0 if self.real is None else int(self.real.shape[1])

    @property
    def tokens(self) -> int:
        """How many tokens are no padding."""
        return int((self.position >= 0).sum())

    def seen(self, which: str) -> Fed:
        """Return the tokens that a tensor holds: all of the step, the real or last ones, all up to now, or before."""
        if which == "last":
            return self.last()
        if which == "real":
            at = self.position >= 0
            return Fed(self.step, (self.tokens,), self.sequence[at], self.position[at], self.ids[at])
        return self._before(self.total - (self.shape[1] if which == "past" else 0)) if which else self

    def _before(self, count: int) -> Fed:
        real = np.zeros((self.shape[0], 0), bool) if self.real is None else self.real[:, :count]
        position = np.where(real, real.cumsum(1) - 1, -1).ravel()
        sequence = np.repeat(np.arange(len(real)), real.shape[1])
        return Fed(self.step, real.shape, sequence, position, np.full(position.shape, -1))

    @property
    def sequences(self) -> int:
        return self.shape[0] if len(self.shape) > 1 else len(set(self.sequence.tolist()))

    def last(self) -> Fed:
        """Return the last token of each sequence, which alone may have logits."""
        rows = list(dict.fromkeys(self.sequence.tolist()))
        at = [int(np.flatnonzero(self.sequence == row)[self._newest(row)]) for row in rows]
        return Fed(self.step, (len(rows),), self.sequence[at], self.position[at], self.ids[at])

    def _newest(self, row: int) -> int:
        return int(self.position[self.sequence == row].argmax())


def fed_by_step(reading: Reading) -> dict[int, Fed]:
    """Return the tokens of each step, as far as they were captured."""
    counts_before: dict[int, int] = {}
    tokens_by_step: dict[int, Fed] = {}
    for step in reading.steps:
        ids = reading.value(step, *IDS, *_embedded(reading, step))
        if ids is None or ids.ndim not in (1, 2) or ids.dtype.kind not in "iu" or not ids.size:
            continue
        lengths = _lengths(reading, step, ids)
        if ids.ndim == 1 or lengths is not None:
            fed = _packed(reading, step, ids, lengths, counts_before)
        else:
            fed = _batch(reading, step, ids, counts_before)
        tokens_by_step[step] = fed
        for row in set(fed.sequence.tolist()):
            count = int(fed.position[fed.sequence == row].max()) + 1
            counts_before[row] = max(counts_before.get(row, 0), count)
    return tokens_by_step


def _embedded(reading: Reading, step: int) -> list[str]:
    """Return the names of what enters embeddings: token ids, where nothing is called so."""
    ends = ("embed_tokens:in", "wte:in", "vocab_embedding:in", "word_embeddings:in", "tok_embeddings:in")
    return [name for name in reading.steps[step] if name.endswith(ends)]


def _lengths(reading: Reading, step: int, ids: Array) -> Array | None:
    """Return how many tokens each of several packed sequences has, if that was captured."""
    if ids.ndim == 2 and ids.shape[0] > 1:
        return None
    lengths = reading.value(step, *LENGTHS)
    if lengths is not None and lengths.ndim == 1 and int(lengths.sum()) == ids.size:
        return np.asarray(lengths, np.int64)
    starts = reading.value(step, *STARTS)
    if starts is not None and starts.ndim == 1 and starts.size and int(starts[-1]) == ids.size:
        return np.diff(starts.astype(np.int64))
    return None


def _batch(reading: Reading, step: int, ids: Array, seen: dict[int, int]) -> Fed:
    rows, count = ids.shape
    before = np.array([seen.get(row, 0) for row in range(rows)])[:, None]
    mask = reading.value(step, *MASKS)
    if mask is None and not seen:
        mask = reading.value(step, "prompt_mask")
    position_ids, real = reading.value(step, *POSITIONS), None
    if mask is not None and mask.ndim == 2 and mask.shape[0] == rows and mask.shape[1] >= count:
        real = mask != 0
        position = real.cumsum(1)[:, mask.shape[1] - count :] - 1
        if mask.shape[1] == count:  # it tells of these tokens alone; with a cache others came before
            position = position + np.where(before > 0, _before(position_ids, before, real), 0)
        position = np.where(real[:, mask.shape[1] - count :], position, -1)
    elif position_ids is not None and position_ids.shape == ids.shape:
        position = position_ids
    else:
        position = before + np.arange(count)
    sequence = np.repeat(np.arange(rows), count)
    return Fed(step, (rows, count), sequence, np.asarray(position, np.int64).ravel(), ids.ravel(), real)


def _before(told: Array | None, seen: Array, real: Array) -> Array | int:
    """Return how many tokens came before those a mask tells of; none where positions say that all are fed again."""
    if told is not None and told.shape == real.shape:
        first = np.take_along_axis(told, real.argmax(1)[:, None], 1)
        return np.asarray(first, np.int64)
    return 0 if real.shape[1] > int(seen.max()) else seen


def _packed(reading: Reading, step: int, ids: Array, lengths: Array | None, seen: dict[int, int]) -> Fed:
    flat = ids.ravel()
    position = reading.value(step, *POSITIONS)
    if position is not None:
        position = position.ravel().astype(np.int64) if position.size == flat.size else None
    if lengths is None and position is not None:
        begins = np.flatnonzero(np.diff(position, prepend=position[0] - 2) != 1)
        lengths = np.diff(np.append(begins, flat.size))
    elif lengths is None:  # a token of each sequence known, or one sequence
        lengths = np.ones(flat.size, np.int64) if flat.size == len(seen) else np.array([flat.size])
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    if position is None:
        within = np.arange(flat.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        position = within + np.array([seen.get(int(row), 0) for row in sequence])
    return Fed(step, (flat.size,), sequence, position, flat)


class Table(NamedTuple):
    """The tokens of several steps, sorted by sequence and position; `row` counts all rows of those steps."""

    keys: Array
    step: Array
    row: Array


class Matching:
    """Which steps of the candidate hold the tokens of a step of the reference, and in which rows."""

    def __init__(self, reference: Reading, candidate: Reading) -> None:
        self.reference, self.candidate = fed_by_step(reference), fed_by_step(candidate)
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
        self._renamed = self._same_sequences() if self.known else None
        self._limits = self._first_differing() if self.known else {}
        self._cache: dict[tuple[int, str, str], tuple[tuple[int, ...], TokenRows] | str] = {}

    def rows(self, step: int, ours: str = "", theirs: str = "") -> tuple[tuple[int, ...], TokenRows] | str:
        """Return the candidate's steps that hold a step's tokens and the rows of both, or why there are none.

        A tensor holds "" the tokens of the step, "real" those without padding, "last" the last of each sequence,
        "history" all up to now, "past" all before.
        """
        key = step, ours, theirs
        if key not in self._cache:
            self._cache[key] = self._rows(*key)
        return self._cache[key]

    def padded(self, ours: int, theirs: int) -> bool:
        """Whether one of two steps has padding."""
        feds = self.reference.get(ours), self.candidate.get(theirs)
        return any(fed is not None and fed.tokens < len(fed.position) for fed in feds)

    def keys(self, step: int) -> tuple[Array, Array] | None:
        """Return the rows of a step of the reference that may be compared, and sequence and position of each."""
        fed = self.reference.get(step)
        if fed is None:
            return None
        rows = self._comparable_tokens(fed)
        return rows, np.stack([fed.sequence[rows], fed.position[rows]], 1)

    def _comparable_tokens(self, fed: Fed) -> Array:
        """Return the rows of tokens that are no padding and before the first that was fed differently."""
        limits = np.array([self._limits.get(int(row), _FAR) for row in fed.sequence])
        return np.flatnonzero((fed.position >= 0) & (fed.position < limits))

    def _rows(self, step: int, ours: str, theirs: str) -> tuple[tuple[int, ...], TokenRows] | str:
        fed = self.reference.get(step)
        if fed is None:
            return "which tokens the reference was fed at this step is not known"
        fed = fed.seen(ours)
        mine = self._comparable_tokens(fed)
        if not mine.size:
            return "other tokens were fed before: steps from here on are not comparable"
        keys = fed.sequence[mine] * _FAR + fed.position[mine]
        choices = self._choices(step, theirs)
        if isinstance(choices, str):
            return choices
        for steps in choices:
            table, at, hit = self._found(keys, steps, theirs)
            if hit.all() or theirs:
                break
        if not hit.any():
            return "the candidate computed none of this step's tokens"
        used = np.unique(table.step[at[hit]])
        if len(used) < len(steps):  # rows are counted over the steps that are needed
            table, at, hit = self._found(keys, used.tolist(), theirs)
        mine, at = mine[hit], at[hit]
        return tuple(used.tolist()), TokenRows(mine, table.row[at], fed.sequence[mine], fed.position[mine])

    def _found(self, keys: Array, steps: Sequence[int], which: str) -> tuple[Table, Array, Array]:
        """Return where some tokens are in some steps of the candidate, and which of them are there."""
        table = self._table(steps, which)
        at = np.minimum(np.searchsorted(table.keys, keys), len(table.keys) - 1)
        return table, at, table.keys[at] == keys

    def _choices(self, step: int, which: str) -> list[tuple[int, ...]] | str:
        """Return the steps to look in: the one of the same number if it has all of them, else all."""
        if which in ("history", "past"):  # where the step's own tokens are, the last of them
            same_step = self.rows(step)
            return same_step if isinstance(same_step, str) else [same_step[0][-1:]]
        every = tuple(self.candidate)
        return [(step,), every] if step in self.candidate else [every]

    def _table(self, steps: Sequence[int], which: str) -> Table:
        keys, numbers, rows, offset = [], [], [], 0
        for step in steps:
            fed = self.candidate[step].seen(which)
            sequence = np.array([self._name(int(row)) for row in fed.sequence])
            real = np.flatnonzero((fed.position >= 0) & (sequence >= 0))
            keys.append(sequence[real] * _FAR + fed.position[real])
            numbers.append(np.full(len(real), step))
            rows.append(real + offset)
            offset += len(fed.sequence)
        every = np.concatenate(keys) if keys else np.zeros(0, np.int64)
        order = np.argsort(every, kind="stable")  # the first step that computed a token stands
        if not order.size:
            return Table(np.full(1, -1), np.zeros(1, np.int64), np.zeros(1, np.int64))
        return Table(every[order], np.concatenate(numbers)[order], np.concatenate(rows)[order])

    def _name(self, row: int) -> int:
        return row if self._renamed is None else self._renamed.get(row, -1)

    def _same_sequences(self) -> dict[int, int] | None:
        """Return which of the reference's sequences each of the candidate's is, where their order is another."""
        reference, candidate = _sequences(self.reference), _sequences(self.candidate)
        if len(reference) == len(candidate) and all(
            _agree(reference[row], candidate.get(row, {})) for row in reference
        ):
            return None
        left = dict(candidate)
        renamed: dict[int, int] = {}
        for row, tokens in reference.items():
            same = next((sequence for sequence, others in left.items() if _agree(tokens, others)), None)
            if same is not None:
                renamed[same] = row
                del left[same]
        if len(renamed) < min(len(reference), len(candidate)):
            return None  # other tokens, not another order: said as such
        self.notes.append(
            f"sequences are matched by their tokens: {counted(len(candidate), 'sequence')} of the candidate against "
            f"{counted(len(reference), 'sequence')}"
            + (f"; {counted(len(left), 'other beam or sequence')} of it are left out" if left else "")
        )
        return renamed

    def _first_differing(self) -> dict[int, int]:
        reference, candidate = _sequences(self.reference), _sequences(self.candidate)
        limits: dict[int, int] = {}
        for row, tokens in candidate.items():
            name = self._name(row)
            reference_tokens = reference.get(name, {})
            apart = [
                at for at, token in tokens.items() if at in reference_tokens and reference_tokens[at] != token
            ]
            if apart:
                limits[name] = first = min(apart)
                self.notes.append(
                    f"sequence {name} was fed token {tokens[first]} at position {first} where the reference was "
                    f"fed {reference_tokens[first]}: from there on it is not compared"
                )
        return limits


def _agree(ours: dict[int, int], theirs: dict[int, int]) -> bool:
    """Whether two sequences begin with the same tokens, as far as both are known; they may part later."""
    first = min(ours, default=0)
    shared = sum(theirs.get(at) == token for at, token in ours.items())
    return first in theirs and ours[first] == theirs[first] and shared * 2 >= min(len(ours), len(theirs))


def _sequences(fed: dict[int, Fed]) -> dict[int, dict[int, int]]:
    """Return the tokens of each sequence by position; of one computed again, the first."""
    by_sequence: dict[int, dict[int, int]] = {}
    for step_tokens in fed.values():
        for row, at, token in zip(
            step_tokens.sequence.tolist(),
            step_tokens.position.tolist(),
            step_tokens.ids.tolist(),
            strict=True,
        ):
            if at >= 0:
                by_sequence.setdefault(row, {}).setdefault(at, token)
    return by_sequence


def comparable_steps(ours: list[list[int]], theirs: list[list[int]]) -> int | None:
    """Return after how many steps two generations went on with other tokens; none where they never did."""
    both = zip(ours, theirs, strict=False)
    return next((number for number, (one, other) in enumerate(both) if one != other), None)
