"""Limits of batch, tokens and lengths: as stated, or the release's defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.inspect.facts.build_defaults import UNKNOWN_DEFAULT
from trtdx.inspect.facts.option_table import option_table
from trtdx.memory.nouns import DEFAULT_SOURCE, RuntimeSettings, ServingLimits
from trtdx.memory.question.build_defaults import build_default

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.memory.nouns import Dims
    from trtdx.memory.question.settings import LayeredSettings

LARGEST_LIMITS = {
    "max_batch_size": 10**6,
    "max_num_tokens": 10**8,
    "max_seq_len": 10**8,
    "max_input_len": 10**8,
}


def limits_from_settings(settings: LayeredSettings, running: RuntimeSettings, dims: Dims) -> ServingLimits:
    """Return the limits of one step and one sequence; an engine's defaults depend on its release."""
    engine = running.backend == "tensorrt"
    release = running.version
    usual_of = _release_defaults(running, dims)
    batch = _read_limit(settings, "max_batch_size", usual_of("max_batch_size", 2048), release)
    beams = settings.number("max_beam_width", "max_beam_width", default=1, most=10**4)
    length = _max_sequence_length(settings, engine, release, dims)
    prompt = min(_read_limit(settings, "max_input_len", usual_of("max_input_len", 1024), release), length)
    usual = usual_of("max_num_tokens", 0)
    usual = min(usual, batch * length) if usual else batch * prompt
    tokens = _read_limit(settings, "max_num_tokens", max(usual, 1) if engine else 8192, release)
    block = usual_of("tokens_per_block", 32)
    window = settings.find_fact("runtime.attention_window")
    sizes = window.value if window and isinstance(window.value, list) else []
    windows = [size for size in sizes if isinstance(size, int)]
    return ServingLimits(
        max_batch_size=batch,
        max_attention_window=tuple(windows),
        max_num_tokens=tokens,
        max_seq_len=length,
        max_input_len=prompt,
        max_beam_width=beams,
        max_draft_len=settings.number("max_draft_len", "max_draft_len", default=0, least=0, most=10**4),
        tokens_per_block=settings.number(
            "tokens_per_block", "tokens_per_block", "option.--tokens_per_block", default=block, most=2**16
        ),
    )


def _read_limit(settings: LayeredSettings, name: str, default: int, release: str) -> int:
    return settings.number(
        name,
        name,
        f"option.--{name}",
        default=default,
        why=f"of {release}" if release else "",
        most=LARGEST_LIMITS[name],
    )


def _release_defaults(running: RuntimeSettings, dims: Dims) -> Callable[[str, int], int]:
    """Return a function that looks up a release's default limits; 0 where it deduces one."""

    def usual(name: str, otherwise: int) -> int:
        if running.backend == "tensorrt":
            value = build_default(running.version, dims.model_type, name)
            return otherwise if value is UNKNOWN_DEFAULT else int(value or 0)
        option = option_table().option.get(name) or option_table().option.get(f"kv_cache_config.{name}")
        return option.default if option and isinstance(option.default, int) else otherwise

    return usual


def _max_sequence_length(settings: LayeredSettings, engine: bool, release: str, dims: Dims) -> int:
    """Return the longest sequence: as said, the sum of its parts in old releases, else the model's own."""
    answer = settings.find_fact("max_output_len")
    usual = build_default(release, dims.model_type, "max_output_len") if engine else UNKNOWN_DEFAULT
    own_prompt = 1024 if usual is UNKNOWN_DEFAULT else build_default(release, dims.model_type, "max_input_len")
    stated = answer.value if answer is not None and isinstance(answer.value, int) else None
    length = stated if stated is not None else usual if isinstance(usual, int) else None
    if settings.find_fact("max_seq_len") is None and length is not None:
        prompt = settings.number(
            "max_input_len", "max_input_len", default=own_prompt, most=LARGEST_LIMITS["max_input_len"]
        )
        settings.sources["max_seq_len"] = answer.where if answer else f"{DEFAULT_SOURCE}: max_input_len + {length}"
        return prompt + length
    model_length = dims.max_positions or 2048
    return settings.number(
        "max_seq_len",
        "max_seq_len",
        default=model_length,
        why="what the model was made for",
        most=LARGEST_LIMITS["max_seq_len"],
    )
