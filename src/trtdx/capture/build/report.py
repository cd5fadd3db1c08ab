"""A compile as a report: what was built, what marking changed, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.capture.build.findings import findings_from_build
from trtdx.engines.tensorrt.build.errors import BuildError
from trtdx.engines.tensorrt.build.observer_effect import compare_builds
from trtdx.model import Report, Section, Summary
from trtdx.pictures import BarPart, StackedBar, StackedBars
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.engines.tensorrt.build.nouns import Binding, BuiltPlan
    from trtdx.model import Cell
    from trtdx.pictures import Picture
    from trtdx.rule import RuleBook

MAX_ROWS = 200
MIB = 1 << 20
MEMORY_ROWS = ("weights bytes", "activation bytes, profile 0", "bytes of output bindings at the largest shapes")


class BuildReport(Report, frozen=True):
    """What `trtdx capture build` answers; a debug variant is drawn beside the production one."""

    def pictures(self) -> tuple[Picture, ...]:
        """Return kernels by type and memory of both variants; nothing where only one was built."""
        tables = {section.key: section for section in self.sections}
        if not {"observer", "observer-kernels"} <= tables.keys():
            return ()
        memory = [row for row in tables["observer"].rows if str(row[0]).startswith(MEMORY_ROWS)]
        return (
            _draw_variants(
                "kernels by type", "kernels", tables["observer-kernels"], tables["observer-kernels"].rows, 1
            ),
            _draw_variants("memory of both variants", "MiB", tables["observer"], memory, MIB),
        )


def _draw_variants(title: str, unit: str, table: Section, rows: Sequence[tuple[Cell, ...]], scale: int) -> StackedBars:
    """Return one bar for production and one for the debug variant, from the columns of a table."""
    bars = []
    for column in (1, 2):
        values = [(str(row[0]).removeprefix("bytes of ").replace(" bytes", ""), row[column]) for row in rows]
        parts = tuple(BarPart(name, value / scale) for name, value in values if isinstance(value, int | float))
        bars.append(StackedBar("production" if column == 1 else table.columns[column], parts))
    return StackedBars(title=title, unit=unit, bars=tuple(bars))


def render_build_report(
    build: BuiltPlan | BuildError, book: RuleBook, *, production: BuiltPlan | None = None
) -> Report:
    """Return the report on a compile, its observer effect beside the production one where that is given."""
    findings = tuple(findings_from_build(build, book))
    if isinstance(build, BuildError):
        text = "no plan was made" if findings else f"no plan was made: {build.message}"
        return Report(Summary(text), findings)
    sections = list(sections_from_build(build))
    text = f"{build.source} is a plan of {build.plan_size:,} bytes with {format_count(len(build.kernels), 'kernel')}"
    if production is not None:
        effect = compare_builds(production, build)
        sections = [*(section for section in effect.sections() if section.key != "left-out"), *sections]
        text = f"{text}; {effect.summary}"
    return BuildReport(Summary(text), findings, tuple(sections))


def sections_from_build(built: BuiltPlan) -> Iterator[Section]:
    """Yield the tables of one compile."""
    yield _plan_section(built)
    yield _bindings_section(built)
    if built.marked:
        rows = tuple((tensor.name, tensor.tensor) for tensor in built.marked[:MAX_ROWS])
        left = len(built.marked) - len(rows)
        note = f"{left} more are not shown" if left else ""
        yield Section("marked", f"marked as {built.variant}", ("asked for as", "tensor"), rows, note)
    if built.left_out:
        rows = tuple((tensor.name, tensor.reason) for tensor in built.left_out[:MAX_ROWS])
        yield Section("left-out", "tensors that could not be marked", ("tensor", "reason"), rows)


def _plan_section(built: BuiltPlan) -> Section:
    kinds: dict[str, int] = {}
    for kernel in built.kernels:
        kinds[kernel.kind] = kinds.get(kernel.kind, 0) + 1
    counts = sorted(kinds.items(), key=lambda item: -item[1])
    rows: list[tuple[Cell, ...]] = [
        ("compiled by", built.tensorrt),
        ("variant", built.variant),
        ("file", built.plan_path or "(in memory)"),
        ("plan bytes", built.plan_size),
        ("layers of the definition", built.layers),
        ("kernels", len(built.kernels)),
        ("kernels by type", abbreviate_list((f"{count} {kind}" for kind, count in counts), 8)),
        ("weights bytes", built.weights_bytes),
        *((f"activation bytes, profile {at}", size) for at, size in enumerate(built.activation_bytes)),
        ("bytes of outputs at the largest shapes", built.output_bytes),
        ("seconds", round(built.seconds, 2)),
    ]
    return Section("plan", "the plan", ("what", "value"), tuple(rows))


def _bindings_section(built: BuiltPlan) -> Section:
    rows: list[tuple[Cell, ...]] = [_binding_row("in", binding) for binding in built.inputs]
    rows += [_binding_row("marked" if binding.marked else "out", binding) for binding in built.outputs]
    left = len(rows) - MAX_ROWS
    note = f"{left} more are not shown" if left > 0 else ""
    columns = ("mode", "tensor", "type", "shape", "bytes at the largest shapes")
    return Section("bindings", "inputs and outputs", columns, tuple(rows[:MAX_ROWS]), note)


def _binding_row(mode: str, binding: Binding) -> tuple[Cell, ...]:
    return mode, binding.name, binding.dtype, f"({', '.join(map(str, binding.dims))})", binding.most_bytes
