"""The fewest operations to keep in float32 so that a model in a lower precision is healthy.

    found = precision_search(host, "model.onnx", "float16", Question(prompts=...), out="mixed.onnx")

One run computes every operation twice, in float32 and from the same inputs in the lower precision, and so tells how
much each errs by itself: that ranks them. A second run moves every tensor by about one rounding and tells how far off
the results of an honest implementation are: that is the limit. Then halves of the ranking are kept in float32 until the
least that is healthy is known, and what of it is not needed is taken out again. What is written is strongly typed,
with its casts, and was run.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.search.bisect import RunLimitError, minimal_subset
from trtdx.compare.search.lowering import Lowering, choose_lowering
from trtdx.compare.search.precision_runs import (
    ErrorMeter,
    collect_samples,
    is_all_finite,
    is_float_array,
    relative_errors,
)
from trtdx.compare.sides.side import SideSpec
from trtdx.errors import BrokenExtraError, InputError, MissingExtraError
from trtdx.formats.onnx.edit import remove_metadata, save_model
from trtdx.formats.onnx.model import open_model
from trtdx.formats.onnx.module_graph import CLASSES
from trtdx.formats.onnx.probes import add_output_noise
from trtdx.formats.onnx.proto import SCOPES
from trtdx.model import Report, Section, Summary
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx_ir as ir

    from trtdx.compare.sides.side import ComparisonQuestion
    from trtdx.engines.engine import Array, Engine
    from trtdx.host import Host

    Told = Callable[[str], None]
    Results = list[dict[str, Array]]

LIMIT = 3.0  # times what roundings alone explain
SUSPICIOUS = 8.0  # times one rounding's share: an operation that errs so much by itself
MOST_TOLD = 12


class OperationDrift(NamedTuple):
    """How much one operation errs by itself in the lower precision, relative to what one rounding explains."""

    operation: str
    ratio: float  # infinite where a finite number became none
    largest: float  # of its results in float32, masks left out

    @property
    def is_suspicious(self) -> bool:
        return self.ratio > SUSPICIOUS


class ModelHealth(NamedTuple):
    """The health of a whole model: its worst result's error over the expected one."""

    ratio: float
    output: str

    @property
    def is_healthy(self) -> bool:
        return self.ratio <= LIMIT


class PrecisionResult(NamedTuple):
    """What a search found."""

    keep: tuple[str, ...]  # the operations to keep in float32, by the tensor they make, in the graph's order
    dtype: str  # the lower precision
    health: ModelHealth  # of the model with these kept
    before: ModelHealth  # of the one with none kept
    runs: int  # of a whole converted model
    operations: int  # how many there are
    drifts: tuple[OperationDrift, ...]  # how each operation does by itself, worst first
    sure: bool  # each of `keep` overflows by itself, or was seen to be needed for the results
    file: str = ""  # where the model is


def precision_search(
    host: Host,
    model: str,
    dtype: str,
    question: ComparisonQuestion,
    *,
    out: str,
    engine: str = "",
    most: int = 0,
    progress: Told = lambda text: None,
) -> PrecisionResult:
    """Find the operations to keep, and write the model with its casts.

    Args:
        host: where inputs are read.
        model: the float32 ONNX file.
        dtype: "float16", "bfloat16" or "int8".
        question: what the model is fed; several steps or samples all have to be healthy.
        out: the ONNX file to write.
        engine: "trt" or "onnx"; what computes the converted models. TensorRT's evaluation where it is installed, as it
            rounds where the types say so.
        most: how many converted models may be run; by itself a few more than halving the operations takes.
        progress: told in words what is being done.

    Raises:
        InputError: the model is not healthy in float32 itself, or not even with everything kept.
    """
    with tempfile.TemporaryDirectory(prefix="trtdx-precision-") as folder:
        search = _PrecisionSearch(host, model, dtype, question, Path(folder), engine or _best_engine(), progress)
        result = search.search(most)
        mixed = search.lowering.convert(result.keep)
        remove_metadata(mixed, keep=(SCOPES, CLASSES))
        save_model(mixed, Path(out))
    return result._replace(file=out)


def _best_engine() -> str:
    from trtdx.engines.tensorrt.bindings import load_bindings

    try:
        load_bindings()
    except (MissingExtraError, BrokenExtraError):
        return "onnx"
    return "trt"


class _PrecisionSearch:
    """One search."""

    def __init__(
        self,
        host: Host,
        path: str,
        dtype: str,
        question: ComparisonQuestion,
        folder: Path,
        engine: str,
        progress: Told,
    ) -> None:
        self.model, self.dtype, self.folder = open_model(path), dtype, folder
        self.engine, self.progress = engine, progress
        with_all = SideSpec("onnx", path, {"level": "none"}).open()
        self.samples, self.truth = collect_samples(host, with_all, question)
        self.lowering: Lowering = choose_lowering(self.model, dtype, with_all, self.samples)
        self.order = self.lowering.operations
        if not self.order:
            raise InputError(f"{path} has no operation that could be computed in {dtype}")
        if any(not is_all_finite(array) for results in self.truth for array in results.values()):
            raise InputError(f"{path} has results that are not finite in float32 already")
        self.masks: set[str] = set()  # what holds numbers that stand for minus infinity
        self.runs = 0
        self._health: dict[frozenset[str], ModelHealth] = {}
        self._most = 0

    def search(self, most: int) -> PrecisionResult:
        self._most = most or 2 * math.ceil(math.log2(len(self.order) + 1)) + 16
        self.progress("computing every operation in both precisions")
        local = self.measure_operations()
        self.progress("measuring what roundings alone do")
        self.expected = self._measure_expected()
        before = self.health(())
        keep, sure = ([], True) if before.is_healthy else self._fewest_operations(local)
        kept_set = set(keep)
        ordered = tuple(name for name in self.order if name in kept_set)
        health = self.health(ordered)
        return PrecisionResult(ordered, self.dtype, health, before, self.runs, len(self.order), tuple(local), sure)

    def _fewest_operations(self, drifts: Sequence[OperationDrift]) -> tuple[list[str], bool]:
        """Return the fewest operations that are enough, and whether each is needed.

        Where a finite number becomes none by itself, nothing is to be searched for.
        """
        always = [drift.operation for drift in drifts if math.isinf(drift.ratio)]
        if always and self.health(always).is_healthy:
            return always, True
        ranking = [drift.operation for drift in drifts if not math.isinf(drift.ratio)]
        suspicious = sum(drift.is_suspicious for drift in drifts) - len(always)
        best = ranking[: self._count_needed(always, ranking, suspicious)]

        def works(some: Sequence[str]) -> bool:
            nonlocal best
            fine = self.health([*always, *some]).is_healthy
            best = list(some) if fine else best
            return fine

        try:
            minimal_subset(best, works)
        except RunLimitError:
            return [*always, *best], False
        return [*always, *best], True

    def _count_needed(self, always: list[str], ranking: list[str], guess: int) -> int:
        """Return how many of the ranking, from the worst on, have to be kept; the suspicious are tried first."""
        low, high = 0, len(ranking)  # none is too few; all is what is hoped to be enough
        if guess and self.health([*always, *ranking[:guess]]).is_healthy:
            high = guess
        elif not (everything := self.health([*always, *ranking])).is_healthy:
            raise InputError(
                f"the model is not healthy even with every operation in float32: {everything.output}",
                fix="compare the two engines first: trtdx compare onnx:MODEL trt:MODEL",
            )
        else:
            low = guess
        while high - low > 1 and self.runs < self._most // 2 + 2:
            middle = (low + high) // 2
            if self.health([*always, *ranking[:middle]]).is_healthy:
                high = middle
            else:
                low = middle
        return high

    def measure_operations(self) -> list[OperationDrift]:
        """Return the error of each operation by itself, worst first."""
        shadowed, shadows = self.lowering.shadow_model()
        meter = ErrorMeter(shadows, self.lowering.expected_error)
        engine = self._open_model(shadowed, self.folder / "shadowed.onnx", selector="**:* & is:tensor")
        engine.sink = meter
        for feeds in self.samples:
            meter.waiting.clear()
            engine.run(feeds)
        engine.close()
        self.masks = meter.masks
        drifts = [OperationDrift(name, *meter.worst.get(name, (0.0, 0.0))) for name in self.order]
        return sorted(drifts, key=lambda drift: -drift.ratio)

    def _open_model(self, model: ir.Model, file: Path, *, kind: str = "", selector: str = "") -> Engine:
        """Return a model, written to a file, on the engine of the search or on another."""
        save_model(model, file)
        kind = kind or self.engine
        return SideSpec(kind, str(file), {"level": "none"} if kind == "onnx" else {}).open(selector)

    def _measure_expected(self) -> list[dict[str, tuple[float, float]]]:
        """Return how far off each result is where every tensor is moved by about one rounding."""
        moving = [name for name in self.order if name not in self.masks]
        noisy = add_output_noise(self.model, moving, self.lowering.share)
        engine = self._open_model(noisy, self.folder / "noise.onnx", kind="onnx")
        moved = [engine.run(feeds) for feeds in self.samples]
        engine.close()
        return [
            {
                name: relative_errors(true[name], other[name], self.lowering.share)
                for name in true
                if is_float_array(true[name])
            }
            for true, other in zip(self.truth, moved, strict=True)
        ]

    def health(self, keep: Sequence[str]) -> ModelHealth:
        """Return the health of the model with some operations kept."""
        key = frozenset(keep)
        if key not in self._health:
            if self.runs >= self._most:
                raise RunLimitError
            self.runs += 1
            self.progress(f"run {self.runs}: {len(key)} of {len(self.order)} operations in float32")
            self._health[key] = self._measure_health(key)
        return self._health[key]

    def _measure_health(self, keep: frozenset[str]) -> ModelHealth:
        file = self.folder / f"run-{self.runs}.onnx"
        engine = self._open_model(self.lowering.convert(keep), file)
        worst = ModelHealth(0.0, "")
        for feeds, true, expected in zip(self.samples, self.truth, self.expected, strict=True):
            results = engine.run(feeds)
            for name, limits in expected.items():
                here = relative_errors(true[name], results[name], 0.0)
                ratio = max(one / limit for one, limit in zip(here, limits, strict=True))
                worst = max(worst, ModelHealth(ratio, name))
        engine.close()
        file.unlink()
        return worst


def precision_report(result: PrecisionResult) -> Report:
    """Return a search as a report."""
    runs = format_count(result.runs, "run")
    ratio = "not finite" if math.isinf(result.before.ratio) else f"{result.before.ratio:.3g} times too far off"
    if not result.keep:
        text = f"all {result.operations} operations may be {result.dtype} ({runs})"
    else:
        fewer = "" if result.sure else "; fewer may do, but there were no runs left"
        text = (
            f"{format_count(len(result.keep), 'operation')} of {result.operations} to keep in float32: "
            f"{abbreviate_list(result.keep, MOST_TOLD)}; in {result.dtype} alone {result.before.output} is {ratio} ({runs}{fewer})"
        )
    kept_in = dict.fromkeys(result.keep, "float32")
    shown = [drift for drift in result.drifts if drift.is_suspicious or drift.operation in kept_in]
    rows = tuple(
        (drift.operation, kept_in.get(drift.operation, result.dtype), drift.ratio, drift.largest)
        for drift in shown[: 4 * MOST_TOLD]
    )
    columns = ("operation", "kept in", "error by itself over one rounding's", "largest number")
    section = Section("precision", "operations that err by themselves", columns, rows, f"written to {result.file}")
    return Report(summary=Summary(text), sections=(section,))
