"""Nouns of the portraits: what a case and a page hold of a tensor."""

from __future__ import annotations

import msgspec


class ValueSummary(msgspec.Struct, frozen=True):
    """The values of one side in a few numbers; those of a tensor without a finite value are 0."""

    smallest: float
    largest: float
    mean: float
    std: float
    not_finite: int


class TensorPortrait(msgspec.Struct, frozen=True, kw_only=True):
    """How one pair of tensors differs, in histograms and as a pattern.

    Attributes:
        edges: the borders of the bins of values, one more than there are bins.
        pattern: the error of each group of tokens and channels, relative to the reference.
        down: what the rows of the pattern are.
        across: what its columns are: heads where the tensor has them.
    """

    tensor: str
    step: int
    reference: ValueSummary
    candidate: ValueSummary
    edges: list[float]
    reference_counts: list[int]
    candidate_counts: list[int]
    pattern: list[list[float]]
    down: str
    rows: list[str]
    across: str
    columns: list[str]
    note: str = ""
