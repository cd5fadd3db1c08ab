"""Tables of what the shapes at run time were: each execution, the range, the distribution, the profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from trtdx.inspect.profiles.dimensions import dimension_of, shape_text
from trtdx.inspect.profiles.engine_profiles import profiles_of
from trtdx.model import Section
from trtdx.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.tensorrt.nouns import Profile
    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.inspect.profiles.dimensions import Dimension
    from trtdx.inspect.shapes.distribution import Execution, Histogram, LoggedEngine
    from trtdx.inspect.shapes.trace_log import ShapeLog

MOST_CHANGES_SHOWN = 8
NAMED = 2  # tensors named in a cell before the rest is counted
FEW = 32  # below this the kernels are the same
FAR = 2  # an optimum so many times away from the median is worth another build
Cells = tuple[str | int | float | bool | None, ...]
Same = TypeVar("Same")


def shape_tables(log: ShapeLog, engine: Artifact | None = None) -> list[Section]:
    """Return the tables of a log; an engine lends its profiles where the log has none."""
    if not log.executions:
        return [Section("shape-executions", f"Shapes at run time in {log.path}", EXECUTIONS, (), _told(log))]
    sections: list[Section] = []
    for number, logged in enumerate(log.engines, 1):
        if logged.executions:
            profiles = profiles_for(logged, engine)
            which = f" (engine {number})" if sum(bool(one.executions) for one in log.engines) > 1 else ""
            axes = list(axes_in(logged, profiles))
            sections += [
                _ranges(log, axes, which, profiles),
                _distribution(log, axes, which),
                _profiles(log, logged, which, profiles),
                _executions(log, logged, which),
            ]
    return sections


def profiles_for(logged: LoggedEngine, engine: Artifact | None) -> tuple[Profile, ...]:
    """Return the profiles an engine of a log ran with; an engine that was given lends its own where the log has none."""
    return logged.profiles or ((engine.profiles or profiles_of(engine)) if engine else ())


def _told(log: ShapeLog) -> str:
    return ". ".join(log.notes)


EXECUTIONS = ("execution", "where", "rank", "profile", "tensors", "shape", "before")


def _executions(log: ShapeLog, engine: LoggedEngine, which: str) -> Section:
    changes = engine.changes[:MOST_CHANGES_SHOWN]
    rows = [row for execution in engine.first[:1] for row in _whole(engine, execution)]
    for change in changes:
        groups = _grouped({name: (new, old) for name, (old, new) in change.changed.items()})
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
    rows += [row for execution in list(engine.last)[-1:] for row in _whole(engine, execution)]
    often = ", ".join(f"{name} {count} times" for name, count in engine.changed.most_common(5))
    note = f"{counted(engine.executions, 'execution')}; shapes changed {counted(engine.change_count, 'time')}"
    note += f" ({often})" if often else ""
    if engine.change_count > len(changes):
        note += f"; the first {len(changes)} changes and the first and last execution are shown"
    title = f"Shapes at run time in {log.path}{which}"
    return Section("shape-executions", title, EXECUTIONS, tuple(rows), f"{note}. {_told(log)}".strip())


def _whole(engine: LoggedEngine, execution: Execution) -> Iterator[Cells]:
    """Yield the shapes of an execution, of the tensors that vary, or of all when none does."""
    shown = set(engine.varying() or engine.names)
    shapes = {
        name: shape for name, shape in zip(engine.names, execution.shapes, strict=True) if name in shown
    }
    for names, shape in _grouped(shapes):
        yield (*execution[:4], names, shape_text(shape), "")


def _grouped(shapes: dict[str, Same]) -> Iterator[tuple[str, Same]]:
    """Yield tensors of the same shape together."""
    groups: dict[Same, list[str]] = {}
    for name, shape in shapes.items():
        groups.setdefault(shape, []).append(name)
    for same, names in groups.items():
        yield _names(names), same


def _names(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


class SeenAxis(NamedTuple):
    """One dimension in one profile: the tensors that have it, the sizes seen and the bounds."""

    dimension: Dimension
    profile: int
    tensors: list[str]
    seen: Histogram
    bounds: tuple[int, int, int] | None

    @property
    def is_outside(self) -> bool:
        """Return whether a size was seen that the profile does not allow."""
        if self.bounds is None or self.seen.low is None or self.seen.high is None:
            return False
        return self.seen.low < self.bounds[0] or self.seen.high > self.bounds[2]


def axes_in(engine: LoggedEngine, profiles: tuple[Profile, ...]) -> Iterator[SeenAxis]:
    """Yield the dimensions that vary or could; tensors that share one are one row."""
    profile_by_index = {profile.index: profile for profile in profiles}
    axes: dict[tuple[object, ...], SeenAxis] = {}
    for profile, tensors in sorted(engine.statistics().items()):
        for name, statistics in tensors.items():
            for axis, sizes in enumerate(statistics.axes):
                bounds = _bounds(profile_by_index.get(profile), name, axis, len(statistics.axes))
                if not _is_shown(bounds, sizes, profile_by_index):
                    continue
                what = dimension_of(name, axis, len(statistics.axes))
                key = (
                    profile,
                    what.name or (name, axis),
                    bounds,
                    sizes.low,
                    sizes.high,
                    sizes.percentile(0.5),
                )
                axes.setdefault(key, SeenAxis(what, profile, [], sizes, bounds)).tensors.append(name)
    yield from axes.values()


def _is_shown(bounds: tuple[int, int, int] | None, seen: Histogram, known: dict[int, Profile]) -> bool:
    """Return whether an axis can vary; where profiles are known, outputs, which have none, are left out."""
    if bounds is None:
        return not known and seen.distinct > 1
    return bounds[0] < bounds[2] and seen.low is not None


def _bounds(profile: Profile | None, name: str, axis: int, dims: int) -> tuple[int, int, int] | None:
    bounds = profile.range_of(name) if profile else None
    if bounds is None or len(bounds.max) != dims or len(bounds.opt) != dims:
        return None
    return bounds.min[axis], bounds.opt[axis], bounds.max[axis]


RANGES = ("profile", "dimension", "tensors", "least", "most", "allowed", "room left", "verdict")


def _ranges(log: ShapeLog, axes: list[SeenAxis], which: str, profiles: tuple[Profile, ...]) -> Section:
    rows = tuple(_range_row(axis) for axis in axes)
    source = (
        f"Profiles {profiles[0].source}."
        if profiles
        else "The log holds no profiles, and no engine was given."
    )
    return Section("shape-ranges", f"Shapes against the profile in {log.path}{which}", RANGES, rows, source)


def _range_row(axis: SeenAxis) -> Cells:
    low, high = axis.seen.low or 0, axis.seen.high or 0
    words = (axis.profile, axis.dimension.meaning, _names(axis.tensors), low, high)
    if axis.bounds is None:
        return (*words, "", "", "")
    least, _, most = axis.bounds
    room = f"{most - high} ({100 * (most - high) // most} %)" if most and not axis.is_outside else ""
    if axis.is_outside:
        flags = " and ".join(axis.dimension.flags)
        verdict = f"outside the profile{', rebuild with ' + flags if flags else ''}"
    elif low == high == most and axis.dimension.name in ALLOCATED:
        verdict = "always of full size: the executor makes it so, whatever the requests need"
    else:
        verdict = "full" if high == most else "fits"
    return (*words, f"{least} to {most}", room, verdict)


ALLOCATED = ("max_blocks_per_seq", "batch_size_cache", "beam_width", "max_seq_len")


DISTRIBUTION = ("profile", "dimension", "p50", "p90", "p99", "most", "tuned for", "suggestion")


def _distribution(log: ShapeLog, axes: list[SeenAxis], which: str) -> Section:
    rows = tuple(_distribution_row(axis) for axis in axes if axis.seen.distinct > 1 or _suggestion(axis))
    note = (
        "Shares count executions, not time. The optimum of a dimension is what TensorRT chooses kernels for."
    )
    return Section(
        "shape-distribution", f"Traffic inside the profile in {log.path}{which}", DISTRIBUTION, rows, note
    )


def _distribution_row(axis: SeenAxis) -> Cells:
    percentiles = (axis.seen.percentile(share) for share in (0.5, 0.9, 0.99))
    best = axis.bounds[1] if axis.bounds else None
    return (axis.profile, axis.dimension.meaning, *percentiles, axis.seen.high, best, _suggestion(axis))


def _suggestion(axis: SeenAxis) -> str:
    """Return the flags of trtllm-build that move the optimum to the middle of the traffic."""
    if axis.bounds is None:
        return ""
    usual, most, (_, best, bound) = axis.seen.percentile(0.5), axis.seen.high or 0, axis.bounds
    if max(usual, best) < FEW or usual / FAR <= best <= usual * FAR:
        return ""
    if axis.dimension.name == "num_tokens":
        apart = axis.seen.percentile(0.99) >= 8 * usual
        other = ", or --multiple_profiles enable: prompts and answers differ much" if apart else ""
        return f"--opt_num_tokens {usual}{other}"
    if axis.dimension.name in ("batch_size_beam_width", "input_len") and best > usual:
        # there is no flag for these: the optimum is always half of the bound
        flag = "--max_batch_size" if axis.dimension.name == "batch_size_beam_width" else "--max_input_len"
        enough = max(most, 2 * usual - 1)
        return f"{flag} {enough}, whose optimum is {(enough + 1) // 2}" if enough < bound else ""
    return ""


PROFILES = ("profile", "executions", "share", "tokens of a step")


def _profiles(log: ShapeLog, engine: LoggedEngine, which: str, profiles: tuple[Profile, ...]) -> Section:
    profile_by_index = {profile.index: profile for profile in profiles}
    rows = []
    for index in sorted({*profile_by_index, *engine.by_profile}):
        count = engine.by_profile[index]
        bounds = profile_by_index[index].range_of("input_ids") if index in profile_by_index else None
        tokens = f"{bounds.min[-1]} to {bounds.max[-1]}" if bounds else ""
        rows.append((index, count, f"{100 * count / engine.executions:.1f} %", tokens))
    ranks = ", ".join(
        f"rank {rank}: {count}" for rank, count in list(engine.by_rank.items())[:16] if rank is not None
    )
    return Section(
        "shape-profiles", f"Which profile served in {log.path}{which}", PROFILES, tuple(rows), ranks
    )
