"""Shapes of a log at run time that lie outside the optimization profile: one finding for each engine of the log."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from trtdx.inspect.facts.gaps import note_gap
from trtdx.inspect.rebuild.build_command import build_command
from trtdx.inspect.shapes.tables import observed_axes, profiles_of_logged_engine
from trtdx.knowledge.violation import Violation
from trtdx.model import Evidence
from trtdx.words import join_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.inspect.shapes.tables import ObservedAxis
    from trtdx.inspect.shapes.trace_log import ShapeLog

CODE = "DX275"
# Dimensions whose bound is the limit itself.
LIMIT_BY_DIMENSION = {
    "num_tokens": "max_num_tokens",
    "position_ids_num_tokens_range": "max_num_tokens",
    "input_len_task": "max_num_tokens",
    "batch_size_cache": "max_batch_size",
    "batch_size": "max_batch_size",
    "beam_width": "max_beam_width",
    "input_len": "max_input_len",
    "position_ids_inlen_range": "max_input_len",
    "max_seq_len": "max_seq_len",
    "past_key_len": "max_seq_len",
    "mask_len": "max_seq_len",
}


def shapes_outside_profile(log: ShapeLog, engine: Artifact | None) -> Iterator[Violation]:
    """Yield what a log's executions have outside the profile they ran with."""
    for logged in log.engines:
        profiles = profiles_of_logged_engine(logged, engine)
        if logged.executions and not profiles:
            note_gap(f"{log.path} holds no optimization profiles, and no engine was given")
        wrong = [axis for axis in observed_axes(logged, profiles) if axis.is_outside]
        if wrong:
            yield _profile_violation(log, wrong, engine, lent=not logged.profiles)


def _profile_violation(log: ShapeLog, wrong: list[ObservedAxis], engine: Artifact | None, *, lent: bool) -> Violation:
    raised = _raised_limits(wrong, engine)
    flags = " ".join(f"--{name} {value}" for name, value in raised.items())
    if engine is not None:
        command = build_command(engine, raised=raised)
    else:
        command = f"trtllm-build --checkpoint_dir CHECKPOINT_DIR --output_dir ENGINE_DIR.new {flags}".rstrip()
    values = {
        "what": join_words([_axis_words(axis) for axis in wrong[:3]]),
        "flags": f": {flags}" if flags else "",
        "rebuild": command,
        "log": log.path,
    }
    evidence = tuple(Evidence(f"{log.path}: {axis.tensors[0]}", _axis_words(axis)) for axis in wrong)
    return Violation(evidence, values, confidence=0.8 if lent else 0.95)  # it may be another engine's profile


def _axis_words(axis: ObservedAxis) -> str:
    least, _, most = axis.bounds or (0, 0, 0)
    low, high = axis.sizes.low or 0, axis.sizes.high or 0
    return f"{axis.dimension.meaning}: {high if high > most else low} (allowed {least} to {most})"


def _raised_limits(wrong: list[ObservedAxis], engine: Artifact | None) -> dict[str, int]:
    """Return the limits that would take what was seen."""
    limits: dict[str, int] = {}
    for axis in wrong:
        name, high = axis.dimension.name, axis.sizes.high or 0
        limit = LIMIT_BY_DIMENSION.get(name, "")
        if engine is not None and name == "batch_size_beam_width":
            limit, high = "max_batch_size", ceil(high / (engine.integer("max_beam_width") or 1))
        if engine is not None and name == "max_blocks_per_seq":
            limit, high = "max_seq_len", high * (engine.integer("tokens_per_block") or 32)
        if limit and axis.bounds is not None and (axis.sizes.high or 0) > axis.bounds[2]:
            limits[limit] = max(high, limits.get(limit, 0))
    return limits
