"""Buffers of the engines' C++ runtime, by batch, length, beams and vocabulary.

`[MemUsageChange] Allocated ... for runtime buffers` and `... for decoder` are these sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.memory.ledger.decoder_layers import is_last_stage
from trtdx.memory.ledger.weight_storage import dtype_bytes, pad_to_multiple
from trtdx.memory.model.families import is_since_release
from trtdx.memory.nouns import MIB, Component, Figure
from trtdx.words import format_large_count, group_digits

if TYPE_CHECKING:
    from trtdx.memory.nouns import Setup

# Of each position of each sequence: three cache indirections, the slot's ids and log probabilities, one more.
POSITION_BYTES = 24
# In the decoder: ids, parents and log probabilities of all slots, those in another order, and what a request returns.
STATE_BYTES = 32
BEAM_BYTES = 20  # hypotheses of a beam search, beside
# Of each word for each sequence: bias, logits after penalties, counts for penalties, sorted words and their chances.
WORD_BYTES = 20
UNSORTED_WORD_BYTES = 13  # since words are no longer sorted whole
UNSORTED_SINCE = "0.14.0"
DECODER_FLOOR = 8 * MIB
CACHED_STEPS = 8  # of generation logits


def runtime_buffers(setup: Setup, rank: int) -> Component:
    """Return the runtime's own buffers: logits, cache indirections, the results of each slot."""
    limits = setup.limits
    sequences = max(limits.max_batch_size * limits.max_beam_width, 1)
    last = is_last_stage(setup.layout, rank)
    parts = {
        "positions": POSITION_BYTES * sequences * max(limits.max_seq_len, 1),
        "tokens": 4 * limits.max_num_tokens,
    }
    if setup.layout.pp > 1:
        parts["hidden"] = limits.max_num_tokens * setup.dims.hidden_size * dtype_bytes(setup.formats.dtype)
    if last:
        parts |= _logits_buffers(setup, sequences)
    words = f"{format_large_count(sequences, 'sequence')} x ({group_digits(limits.max_seq_len)} positions x {POSITION_BYTES} bytes"
    return Component(
        "runtime_buffers",
        Figure.with_tolerance(sum(parts.values()), 0.1, extra=2 * MIB),
        f"{words} + logits)",
        parts,
    )


def _logits_buffers(setup: Setup, sequences: int) -> dict[str, int]:
    word = dtype_bytes(setup.formats.logits_dtype)
    vocabulary = pad_to_multiple(setup.dims.vocab_size, setup.layout.world)
    running, limits = setup.running, setup.limits
    parts = {}
    if not running.gather_context_logits:  # else they are made anew for each step
        parts["logits"] = sequences * (1 + limits.max_draft_len) * vocabulary * word
    if running.gather_generation_logits or running.gather_context_logits:
        parts["logits_of_steps"] = CACHED_STEPS * (sequences + limits.max_beam_width) * vocabulary * word
    return parts


def decoder_buffers(setup: Setup, rank: int) -> Component:
    """Return what the decoder and its sampling kernels keep; only the last stage of a pipeline samples."""
    limits = setup.limits
    if not is_last_stage(setup.layout, rank):
        return Component("decoder_buffers", Figure.exact(0), "sampling is on the last stage")
    sequences = max(limits.max_batch_size * limits.max_beam_width, 1)
    vocabulary = pad_to_multiple(setup.dims.vocab_size, setup.layout.world)
    light = is_since_release(setup.running.version, UNSORTED_SINCE)
    word = UNSORTED_WORD_BYTES if light else WORD_BYTES
    state = STATE_BYTES + (BEAM_BYTES if limits.max_beam_width > 1 else 0)
    parts = {
        "sampling": sequences * vocabulary * word,
        "state": sequences * max(limits.max_seq_len, 1) * state,
        "floor": DECODER_FLOOR,
    }
    words = f"{format_large_count(sequences, 'sequence')} x ({group_digits(vocabulary)} words x {word} + {group_digits(limits.max_seq_len)} x {state})"
    tolerance = 0.1 if limits.max_beam_width == 1 and not limits.max_draft_len else 0.4
    return Component("decoder_buffers", Figure.with_tolerance(sum(parts.values()), tolerance), words, parts)
