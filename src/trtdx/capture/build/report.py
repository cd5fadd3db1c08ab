"""A compile as a report: what was built, what marking changed, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.capture.build.findings import findings_from
from trtdx.engines.tensorrt.build.errors import BuildError
from trtdx.engines.tensorrt.build.observer_effect import observer_effect
from trtdx.model import Report, Section, Summary
from trtdx.words import counted, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.engines.tensorrt.build.nouns import Binding, Built
    from trtdx.model import Cell
    from trtdx.rule import RuleBook

MOST_ROWS = 200


def build_report(of: Built | BuildError, book: RuleBook, *, production: Built | None = None) -> Report:
    """Return the report on a compile, its observer effect beside the production one where that is given."""
    findings = tuple(findings_from(of, book))
    if isinstance(of, BuildError):
        text = "no plan was made" if findings else f"no plan was made: {of.message}"
        return Report(Summary(text), findings)
    sections = list(sections_from(of))
    text = f"{of.source} is a plan of {of.plan_size:,} bytes with {counted(len(of.kernels), 'kernel')}"
    if production is not None:
        effect = observer_effect(production, of)
        sections = [*(section for section in effect.sections() if section.key != "left-out"), *sections]
        text = f"{text}; {effect.text}"
    return Report(Summary(text), findings, tuple(sections))


def sections_from(built: Built) -> Iterator[Section]:
    """Yield the tables of one compile."""
    yield _plan(built)
    yield _bindings(built)
    if built.marked:
        rows = tuple((tensor.name, tensor.tensor) for tensor in built.marked[:MOST_ROWS])
        left = len(built.marked) - len(rows)
        note = f"{left} more are not shown" if left else ""
        yield Section("marked", f"marked as {built.variant}", ("asked for as", "tensor"), rows, note)
    if built.left_out:
        rows = tuple((tensor.name, tensor.reason) for tensor in built.left_out[:MOST_ROWS])
        yield Section("left-out", "tensors that could not be marked", ("tensor", "reason"), rows)


def _plan(built: Built) -> Section:
    kinds: dict[str, int] = {}
    for kernel in built.kernels:
        kinds[kernel.kind] = kinds.get(kernel.kind, 0) + 1
    counts = sorted(kinds.items(), key=lambda each: -each[1])
    rows: list[tuple[Cell, ...]] = [
        ("compiled by", built.tensorrt),
        ("variant", built.variant),
        ("file", built.plan_path or "(in memory)"),
        ("plan bytes", built.plan_size),
        ("layers of the definition", built.layers),
        ("kernels", len(built.kernels)),
        ("kernels by type", listed((f"{count} {kind}" for kind, count in counts), 8)),
        ("weights bytes", built.weights_bytes),
        *((f"activation bytes, profile {at}", size) for at, size in enumerate(built.activation_bytes)),
        ("bytes of outputs at the largest shapes", built.output_bytes),
        ("seconds", round(built.seconds, 2)),
    ]
    return Section("plan", "the plan", ("what", "value"), tuple(rows))


def _bindings(built: Built) -> Section:
    rows: list[tuple[Cell, ...]] = [_row("in", binding) for binding in built.inputs]
    rows += [_row("marked" if binding.marked else "out", binding) for binding in built.outputs]
    left = len(rows) - MOST_ROWS
    note = f"{left} more are not shown" if left > 0 else ""
    columns = ("mode", "tensor", "type", "shape", "bytes at the largest shapes")
    return Section("bindings", "inputs and outputs", columns, tuple(rows[:MOST_ROWS]), note)


def _row(mode: str, binding: Binding) -> tuple[Cell, ...]:
    return mode, binding.name, binding.dtype, f"({', '.join(map(str, binding.dims))})", binding.most_bytes
