"""Tables of what the shapes at run time were: each execution, the range, the distribution, the profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from trtdx.inspect.profiles.dimensions import dimension_of_axis, shape_text
from trtdx.inspect.profiles.engine_profiles import engine_profiles
from trtdx.model import Section
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.tensorrt.nouns import OptimizationProfile
    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.inspect.profiles.dimensions import EngineDimension
    from trtdx.inspect.shapes.distribution import LoggedEngine, LoggedExecution, SizeHistogram
    from trtdx.inspect.shapes.trace_log import ShapeLog

MAX_CHANGES_SHOWN = 8
MAX_NAMED_TENSORS = 2  # tensors named in a cell before the rest is counted
FEW_TOKENS = 32  # below this the kernels are the same
FAR_FACTOR = 2  # an optimum so many times away from the median is worth another build
TableCells = tuple[str | int | float | bool | None, ...]
ShapeT = TypeVar("ShapeT")


def shape_tables(log: ShapeLog, engine: Artifact | None = None) -> list[Section]:
    """Return the tables of a log; an engine lends its profiles where the log has none."""
    if not log.executions:
        return [
            Section(
                "shape-executions",
                f"Shapes at run time in {log.path}",
                EXECUTION_COLUMNS,
                (),
                _log_notes(log),
            )
        ]
    sections: list[Section] = []
    for number, logged in enumerate(log.engines, 1):
        if logged.executions:
            profiles = profiles_of_logged_engine(logged, engine)
            which = f" (engine {number})" if sum(bool(one.executions) for one in log.engines) > 1 else ""
            axes = list(observed_axes(logged, profiles))
            sections += [
                _range_table(log, axes, which, profiles),
                _distribution_table(log, axes, which),
                _profile_table(log, logged, which, profiles),
                _execution_table(log, logged, which),
            ]
    return sections


def profiles_of_logged_engine(logged: LoggedEngine, engine: Artifact | None) -> tuple[OptimizationProfile, ...]:
    """Return the profiles an engine of a log ran with; an engine that was given lends its own where the log has none."""
    return logged.profiles or ((engine.profiles or engine_profiles(engine)) if engine else ())


def _log_notes(log: ShapeLog) -> str:
    return ". ".join(log.notes)


EXECUTION_COLUMNS = ("execution", "where", "rank", "profile", "tensors", "shape", "before")


def _execution_table(log: ShapeLog, engine: LoggedEngine, which: str) -> Section:
    changes = engine.changes[:MAX_CHANGES_SHOWN]
    rows = [row for execution in engine.first[:1] for row in _execution_rows(engine, execution)]
    for change in changes:
        groups = _group_by_shape({name: (new, old) for name, (old, new) in change.changed.items()})
        rows += [
            (
                change.number,
                change.where,
                change.rank,
                change.profile,
                names,
                shape_text(new),
                shape_text(old),
            )
            for names, (new, old) in groups
        ]
    rows += [row for execution in list(engine.last)[-1:] for row in _execution_rows(engine, execution)]
    often = ", ".join(f"{name} {count} times" for name, count in engine.changed.most_common(5))
    note = f"{format_count(engine.executions, 'execution')}; shapes changed {format_count(engine.change_count, 'time')}"
    note += f" ({often})" if often else ""
    if engine.change_count > len(changes):
        note += f"; the first {len(changes)} changes and the first and last execution are shown"
    title = f"Shapes at run time in {log.path}{which}"
    return Section("shape-executions", title, EXECUTION_COLUMNS, tuple(rows), f"{note}. {_log_notes(log)}".strip())


def _execution_rows(engine: LoggedEngine, execution: LoggedExecution) -> Iterator[TableCells]:
    """Yield the shapes of an execution, of the tensors that vary, or of all when none does."""
    shown = set(engine.varying_tensors() or engine.names)
    shapes = {name: shape for name, shape in zip(engine.names, execution.shapes, strict=True) if name in shown}
    for names, shape in _group_by_shape(shapes):
        yield (*execution[:4], names, shape_text(shape), "")


def _group_by_shape(shapes: dict[str, ShapeT]) -> Iterator[tuple[str, ShapeT]]:
    """Yield tensors of the same shape together."""
    groups: dict[ShapeT, list[str]] = {}
    for name, shape in shapes.items():
        groups.setdefault(shape, []).append(name)
    for same, names in groups.items():
        yield _short_names(names), same


def _short_names(names: list[str]) -> str:
    more = len(names) - MAX_NAMED_TENSORS
    return ", ".join(names[:MAX_NAMED_TENSORS]) + (f" and {more} more" if more > 0 else "")


class ObservedAxis(NamedTuple):
    """One dimension in one profile: the tensors that have it, the sizes seen and the bounds."""

    dimension: EngineDimension
    profile: int
    tensors: list[str]
    sizes: SizeHistogram
    bounds: tuple[int, int, int] | None

    @property
    def is_outside(self) -> bool:
        """Return whether a size was seen that the profile does not allow."""
        if self.bounds is None or self.sizes.low is None or self.sizes.high is None:
            return False
        return self.sizes.low < self.bounds[0] or self.sizes.high > self.bounds[2]


def observed_axes(engine: LoggedEngine, profiles: tuple[OptimizationProfile, ...]) -> Iterator[ObservedAxis]:
    """Yield the dimensions that vary or could; tensors that share one are one row."""
    profile_by_index = {profile.index: profile for profile in profiles}
    axes: dict[tuple[object, ...], ObservedAxis] = {}
    for profile, tensors in sorted(engine.statistics().items()):
        for name, statistics in tensors.items():
            for axis, sizes in enumerate(statistics.axes):
                bounds = _axis_bounds(profile_by_index.get(profile), name, axis, len(statistics.axes))
                if not _is_axis_shown(bounds, sizes, profile_by_index):
                    continue
                what = dimension_of_axis(name, axis, len(statistics.axes))
                key = (
                    profile,
                    what.name or (name, axis),
                    bounds,
                    sizes.low,
                    sizes.high,
                    sizes.percentile(0.5),
                )
                axes.setdefault(key, ObservedAxis(what, profile, [], sizes, bounds)).tensors.append(name)
    yield from axes.values()


def _is_axis_shown(
    bounds: tuple[int, int, int] | None, sizes: SizeHistogram, profiles: dict[int, OptimizationProfile]
) -> bool:
    """Return whether an axis can vary; where profiles are known, outputs, which have none, are left out."""
    if bounds is None:
        return not profiles and sizes.distinct > 1
    return bounds[0] < bounds[2] and sizes.low is not None


def _axis_bounds(profile: OptimizationProfile | None, name: str, axis: int, dims: int) -> tuple[int, int, int] | None:
    bounds = profile.range_of(name) if profile else None
    if bounds is None or len(bounds.max) != dims or len(bounds.opt) != dims:
        return None
    return bounds.min[axis], bounds.opt[axis], bounds.max[axis]


RANGE_COLUMNS = ("profile", "dimension", "tensors", "least", "most", "allowed", "room left", "verdict")


def _range_table(
    log: ShapeLog, axes: list[ObservedAxis], which: str, profiles: tuple[OptimizationProfile, ...]
) -> Section:
    rows = tuple(_range_row(axis) for axis in axes)
    source = f"Profiles {profiles[0].source}." if profiles else "The log holds no profiles, and no engine was given."
    return Section("shape-ranges", f"Shapes against the profile in {log.path}{which}", RANGE_COLUMNS, rows, source)


def _range_row(axis: ObservedAxis) -> TableCells:
    low, high = axis.sizes.low or 0, axis.sizes.high or 0
    words = (axis.profile, axis.dimension.meaning, _short_names(axis.tensors), low, high)
    if axis.bounds is None:
        return (*words, "", "", "")
    least, _, most = axis.bounds
    room = f"{most - high} ({100 * (most - high) // most} %)" if most and not axis.is_outside else ""
    if axis.is_outside:
        flags = " and ".join(axis.dimension.flags)
        verdict = f"outside the profile{', rebuild with ' + flags if flags else ''}"
    elif low == high == most and axis.dimension.name in PREALLOCATED_DIMENSIONS:
        verdict = "always of full size: the executor makes it so, whatever the requests need"
    else:
        verdict = "full" if high == most else "fits"
    return (*words, f"{least} to {most}", room, verdict)


PREALLOCATED_DIMENSIONS = ("max_blocks_per_seq", "batch_size_cache", "beam_width", "max_seq_len")


DISTRIBUTION_COLUMNS = ("profile", "dimension", "p50", "p90", "p99", "most", "tuned for", "suggestion")


def _distribution_table(log: ShapeLog, axes: list[ObservedAxis], which: str) -> Section:
    rows = tuple(_distribution_row(axis) for axis in axes if axis.sizes.distinct > 1 or _build_suggestion(axis))
    note = "Shares count executions, not time. The optimum of a dimension is what TensorRT chooses kernels for."
    return Section(
        "shape-distribution",
        f"Traffic inside the profile in {log.path}{which}",
        DISTRIBUTION_COLUMNS,
        rows,
        note,
    )


def _distribution_row(axis: ObservedAxis) -> TableCells:
    percentiles = (axis.sizes.percentile(share) for share in (0.5, 0.9, 0.99))
    best = axis.bounds[1] if axis.bounds else None
    return (
        axis.profile,
        axis.dimension.meaning,
        *percentiles,
        axis.sizes.high,
        best,
        _build_suggestion(axis),
    )


def _build_suggestion(axis: ObservedAxis) -> str:
    """Return the flags of trtllm-build that move the optimum to the middle of the traffic."""
    if axis.bounds is None:
        return ""
    usual, most, (_, best, bound) = axis.sizes.percentile(0.5), axis.sizes.high or 0, axis.bounds
    if max(usual, best) < FEW_TOKENS or usual / FAR_FACTOR <= best <= usual * FAR_FACTOR:
        return ""
    if axis.dimension.name == "num_tokens":
        apart = axis.sizes.percentile(0.99) >= 8 * usual
        other = ", or --multiple_profiles enable: prompts and answers differ much" if apart else ""
        return f"--opt_num_tokens {usual}{other}"
    if axis.dimension.name in ("batch_size_beam_width", "input_len") and best > usual:
        # there is no flag for these: the optimum is always half of the bound
        flag = "--max_batch_size" if axis.dimension.name == "batch_size_beam_width" else "--max_input_len"
        enough = max(most, 2 * usual - 1)
        return f"{flag} {enough}, whose optimum is {(enough + 1) // 2}" if enough < bound else ""
    return ""


PROFILE_COLUMNS = ("profile", "executions", "share", "tokens of a step")


def _profile_table(
    log: ShapeLog, engine: LoggedEngine, which: str, profiles: tuple[OptimizationProfile, ...]
) -> Section:
    profile_by_index = {profile.index: profile for profile in profiles}
    rows = []
    for index in sorted({*profile_by_index, *engine.by_profile}):
        count = engine.by_profile[index]
        bounds = profile_by_index[index].range_of("input_ids") if index in profile_by_index else None
        tokens = f"{bounds.min[-1]} to {bounds.max[-1]}" if bounds else ""
        rows.append((index, count, f"{100 * count / engine.executions:.1f} %", tokens))
    ranks = ", ".join(f"rank {rank}: {count}" for rank, count in list(engine.by_rank.items())[:16] if rank is not None)
    return Section("shape-profiles", f"Which profile served in {log.path}{which}", PROFILE_COLUMNS, tuple(rows), ranks)
