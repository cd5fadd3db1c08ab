"""Where a generation stands, as a value; a capture keeps it after every step (see `capture.session.state_after`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtdx.engines.engine import Array


class Sampling(NamedTuple):
    """How the next token is chosen: the likeliest at temperature 0, else drawn from what the limits leave."""

    temperature: float = 0.0
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    seed: int = 0
    eos: tuple[int, ...] = ()  # a row that chose one of these is done
    pad: int = 0  # what a row that is done goes on with, and what fills shorter prompts on their left


class GenerationState(NamedTuple):
    """All that the next step depends on."""

    tokens: Array  # [batch, length]: prompts, filled up on the left, and what was chosen since
    mask: Array  # [batch, length]: 1 where there is a token
    done: Array  # [batch]
    past: Mapping[str, Array]  # the cache, by the names of the model's inputs
    cached: int  # how many positions are in the cache
    step: int  # how many steps were computed
    sampling: Sampling
    generator: tuple[int, int]  # where the random numbers stand: PCG64's state and increment
