"""Limits of batch, tokens and lengths: as stated, or the release's defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.inspect.facts.build_defaults import UNKNOWN
from trtdx.inspect.facts.options import table
from trtdx.memory.nouns import DEFAULT_SOURCE, Limits, Running
from trtdx.memory.question.build_defaults import build_default

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.memory.nouns import Dims
    from trtdx.memory.question.settings import Chosen

MOST = {"max_batch_size": 10**6, "max_num_tokens": 10**8, "max_seq_len": 10**8, "max_input_len": 10**8}


def limits_of(chosen: Chosen, running: Running, dims: Dims) -> Limits:
    """Return the limits of one step and one sequence; an engine's defaults depend on its release."""
    engine = running.backend == "tensorrt"
    release = running.version
    usual_of = _usual_in(running, dims)
    batch = _limit(chosen, "max_batch_size", usual_of("max_batch_size", 2048), release)
    beams = chosen.number("max_beam_width", "max_beam_width", default=1, most=10**4)
    length = _sequence(chosen, engine, release, dims)
    prompt = min(_limit(chosen, "max_input_len", usual_of("max_input_len", 1024), release), length)
    usual = usual_of("max_num_tokens", 0)
    usual = min(usual, batch * length) if usual else batch * prompt
    tokens = _limit(chosen, "max_num_tokens", max(usual, 1) if engine else 8192, release)
    block = usual_of("tokens_per_block", 32)
    window = chosen.find("runtime.attention_window")
    sizes = window.value if window and isinstance(window.value, list) else []
    windows = [size for size in sizes if isinstance(size, int)]
    return Limits(
        max_batch_size=batch,
        max_attention_window=tuple(windows),
        max_num_tokens=tokens,
        max_seq_len=length,
        max_input_len=prompt,
        max_beam_width=beams,
        max_draft_len=chosen.number("max_draft_len", "max_draft_len", default=0, least=0, most=10**4),
        tokens_per_block=chosen.number(
            "tokens_per_block", "tokens_per_block", "option.--tokens_per_block", default=block, most=2**16
        ),
    )


def _limit(chosen: Chosen, name: str, default: int, release: str) -> int:
    return chosen.number(
        name,
        name,
        f"option.--{name}",
        default=default,
        why=f"of {release}" if release else "",
        most=MOST[name],
    )


def _usual_in(running: Running, dims: Dims) -> Callable[[str, int], int]:
    """Return a function that looks up a release's default limits; 0 where it deduces one."""

    def usual(name: str, otherwise: int) -> int:
        if running.backend == "tensorrt":
            value = build_default(running.version, dims.model_type, name)
            return otherwise if value is UNKNOWN else int(value or 0)
        option = table().option.get(name) or table().option.get(f"kv_cache_config.{name}")
        return option.default if option and isinstance(option.default, int) else otherwise

    return usual


def _sequence(chosen: Chosen, engine: bool, release: str, dims: Dims) -> int:
    """Return the longest sequence: as said, the sum of its parts in old releases, else the model's own."""
    answer = chosen.find("max_output_len")
    usual = build_default(release, dims.model_type, "max_output_len") if engine else UNKNOWN
    own_prompt = 1024 if usual is UNKNOWN else build_default(release, dims.model_type, "max_input_len")
    stated = answer.value if answer is not None and isinstance(answer.value, int) else None
    length = stated if stated is not None else usual if isinstance(usual, int) else None
    if chosen.find("max_seq_len") is None and length is not None:
        prompt = chosen.number(
            "max_input_len", "max_input_len", default=own_prompt, most=MOST["max_input_len"]
        )
        chosen.said["max_seq_len"] = answer.where if answer else f"{DEFAULT_SOURCE}: max_input_len + {length}"
        return prompt + length
    model_length = dims.max_positions or 2048
    return chosen.number(
        "max_seq_len",
        "max_seq_len",
        default=model_length,
        why="what the model was made for",
        most=MOST["max_seq_len"],
    )
