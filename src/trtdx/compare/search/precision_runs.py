"""What a search for precisions measures: samples and their answers, how far off results are, each operation by itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.capture.run import is_decoder
from trtdx.capture.session.inputs import DUMMY_PROMPT
from trtdx.compare.sides.side import question_feeds
from trtdx.engines.generate import generate_tokens
from trtdx.tensors.difference import measure_difference

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtdx.compare.sides.side import ComparisonQuestion
    from trtdx.engines.engine import Array, Engine, TappedTensor
    from trtdx.host import Host
    from trtdx.tensors.feeds import ModelInput

    Results = list[dict[str, Array]]

MASK_MAGNITUDE = 1e30  # numbers beyond stand for minus infinity, and any large one will do


class ErrorMeter:
    """Measures tensors as they pass, each beside its form in the lower precision."""

    def __init__(self, shadows: Mapping[str, str], expected_error: Callable[[Array], float]) -> None:
        """Start; `own` is the relative error that a tensor's operation is expected to make."""
        self.shadows, self.expected_error = shadows, expected_error
        self.exact_names = set(shadows.values())
        self.waiting: dict[str, Array] = {}
        self.worst: dict[str, tuple[float, float]] = {}
        self.masks: set[str] = set()

    def __call__(self, tapped: TappedTensor) -> None:
        name = tapped.place.tensor
        if name in self.exact_names:
            self.waiting[name] = tapped.tensor.copy()
        elif name in self.shadows and self.shadows[name] in self.waiting:
            exact_name = self.shadows[name]
            self._measure(exact_name, self.waiting.pop(exact_name), tapped.tensor)

    def _measure(self, name: str, true: Array, low: Array) -> None:
        low = low.astype(np.float32)
        masked = (np.abs(true) > MASK_MAGNITUDE) & (np.sign(low) == np.sign(true)) & (np.abs(low) > 1e4)
        if (np.abs(true) > MASK_MAGNITUDE).any():
            self.masks.add(name)
        low, true = np.where(masked, 0, low), np.where(masked, 0, true)
        error = measure_difference(true.astype(np.float32), low)
        largest = float(np.abs(true, where=np.isfinite(true), out=np.zeros_like(true)).max(initial=0.0))
        ratio = error.relative_l2 / self.expected_error(true) if error.sums.compared else 0.0
        ratio = math.inf if error.not_finite else ratio
        before = self.worst.get(name, (0.0, 0.0))
        self.worst[name] = max(before[0], ratio), max(before[1], largest)


def collect_samples(host: Host, engine: Engine, question: ComparisonQuestion) -> tuple[list[dict[str, Array]], Results]:
    """Return what a model is fed at each step or sample of a question, and what it answers.

    A generation goes on with the model's own tokens and cache.
    """
    recorder = _FeedRecorder(engine)
    if question.inputs or not is_decoder(engine):
        for feeds in question_feeds(host, engine, question):
            recorder.run(feeds)
    else:
        for _ in generate_tokens(recorder, question.prompts or (DUMMY_PROMPT,), question.new_tokens):
            pass
    engine.close()
    return recorder.feeds, recorder.results


class _FeedRecorder:
    """An engine that keeps what it is fed and what it answers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.inputs: Mapping[str, ModelInput] = engine.inputs
        self.outputs: Sequence[str] = engine.outputs
        self.step = 0
        self.feeds: list[dict[str, Array]] = []
        self.results: Results = []

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        self.feeds.append(dict(feeds))
        self.results.append(self._engine.run(feeds))
        return self.results[-1]


def is_float_array(array: Array) -> bool:
    return array.dtype.kind == "f" and array.size > 0


def is_all_finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def relative_errors(true: Array, other: Array, least: float) -> tuple[float, float]:
    """Return the relative error of a whole result and of its worst row; infinite where it is not finite."""
    if not is_all_finite(other):
        return math.inf, math.inf
    width = true.shape[-1] if true.ndim > 1 else max(true.size, 1)
    right, wrong = (np.asarray(array, np.float64).reshape(-1, width) for array in (true, other))
    norms, errors = np.sqrt((right**2).mean(1)), np.sqrt(((wrong - right) ** 2).mean(1))
    usual = float(np.sqrt((norms**2).mean())) or 1.0
    overall = float(np.sqrt((errors**2).mean())) / usual
    worst = float((errors / np.maximum(norms, 0.1 * usual)).max())
    return max(overall, least), max(worst, least)
