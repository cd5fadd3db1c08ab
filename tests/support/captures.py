"""Captures made by hand for the tests of alignment: the same tokens' values in whatever layout is asked for."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from trtdx.capture.store.format import CaptureHeader
from trtdx.capture.store.writer import CaptureWriter
from trtdx.compare.align.name_meanings import parse_place
from trtdx.compare.align.pair_rows import iterate_row_pieces
from trtdx.compare.sides.side import Side, SideSpec
from trtdx.tensors.statistics import source_from_array
from trtdx.tensors.taps import Place


def place(name):
    if name.endswith(":new"):
        return Place("", "out", 0, name, "Cache", name)
    if ":" in name:
        path, port, which = parse_place(name)
        number, argument = (int(which), "") if which.isdigit() else (0, which)
        return Place(path, port, number, argument)
    if "." in name or "_output" in name:
        return Place(name, tensor=name)
    return Place("", "in", 0, name, "Input", name)


def write(folder, steps, *, engine="", rank=0, values=True, **details):
    """Write a capture of steps, each {name: array}, or of one rank of it."""
    header = CaptureHeader(engine=engine, rank=rank, details=details)
    with CaptureWriter(folder, header, parquet=False) as writer:
        for number, tensors in steps.items() if isinstance(steps, dict) else enumerate(steps):
            for name, array in tensors.items():
                writer.add(number, place(name), source_from_array(np.asarray(array)), values=values)
    return opened(folder)


def opened(folder):
    return Side(SideSpec("capture", str(folder)), Path(folder))


def write_ranks(folder, ranks, **details):
    """Write a capture of several ranks, each a list of steps."""
    for rank, steps in enumerate(ranks):
        write(folder, steps, rank=rank, **details)
    return opened(folder)


def vectors(name, sequence, positions, width):
    """Return a tensor's values at some tokens: always the same for the same name, sequence and position."""
    rows = [
        np.random.default_rng([zlib.crc32(name.encode()), sequence, int(at)]).standard_normal(width) for at in positions
    ]
    return np.array(rows, np.float32).reshape(len(rows), width)


class Text:
    """Some sequences of tokens, and tensors about them."""

    def __init__(self, *lengths, seed=0):
        rng = np.random.default_rng(seed)
        self.ids = [rng.integers(3, 1000, length) for length in lengths]

    def padded(self, widths, *, side="left", begin=0, end=None, rows=None, garbage=7.0):
        """Return one step [sequences, tokens, ...] of the tokens from `begin` to `end`, padding filled with garbage."""
        rows = range(len(self.ids)) if rows is None else rows
        spans = [range(begin, min(len(self.ids[row]), end or 1 << 30)) for row in rows]
        longest = max(map(len, spans))
        blanks = [longest - len(span) for span in spans]

        def stacked(parts, fill):
            return np.stack(
                [
                    np.concatenate([np.full((blank, *part.shape[1:]), fill, part.dtype), part][:: 1 if side == "left" else -1])
                    for part, blank in zip(parts, blanks, strict=True)
                ]
            )  # fmt: skip

        step = {
            "input_ids": stacked([self.ids[row][list(span)] for row, span in zip(rows, spans, strict=True)], 0),
            "position_ids": stacked([np.array(span) for span in spans], 0),
        }
        if begin == 0:
            step["attention_mask"] = stacked([np.ones(len(span), np.int64) for span in spans], 0)
        for name, width in widths.items():
            parts = [vectors(name, row, span, width) for row, span in zip(rows, spans, strict=True)]
            step[name] = stacked(parts, np.float32(garbage))
        return step

    def packed(self, widths, *, lengths=True, begin=0, end=None):
        """Return one step with the tokens of all sequences one after the other."""
        spans = [range(begin, min(len(ids), end or 1 << 30)) for ids in self.ids]
        step = {"input_ids": np.concatenate([ids[list(span)] for ids, span in zip(self.ids, spans, strict=True)])}
        if lengths:
            step["context_lengths"] = np.array([len(span) for span in spans], np.int32)
        for name, width in widths.items():
            step[name] = np.concatenate([vectors(name, row, span, width) for row, span in enumerate(spans)])
        return step


def compared(pair, reference, candidate):
    """Return both tensors of a pair, whole."""
    pieces = list(iterate_row_pieces(pair, reference, candidate))
    return tuple(np.concatenate([piece[side] for piece in pieces]) for side in (0, 1))


def agree(alignment, reference, candidate, names=None):
    """Assert that the values of all pairs, or of some, are the same, and return the pairs by name."""
    pairs = {}
    for pair in alignment.pairs:
        if names is None or pair.name in names:
            ours, theirs = compared(pair, reference, candidate)
            assert ours.shape == theirs.shape, pair
            assert np.allclose(ours, theirs, atol=1e-5), (pair.name, pair.step)
            pairs.setdefault(pair.name, pair)
    assert names is None or set(names) <= set(pairs), set(names) - set(pairs)
    return pairs
