"""What a search for precisions measures: samples and their answers, how far off results are, each operation by itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.capture.run import is_decoder
from trtdx.capture.session.inputs import MADE_UP_PROMPT
from trtdx.compare.sides.side import question_feeds
from trtdx.engines.generate import generate
from trtdx.tensors.difference import difference

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtdx.compare.sides.side import Question
    from trtdx.engines.engine import Array, Engine, Seen
    from trtdx.host import Host
    from trtdx.tensors.feeds import Input

    Results = list[dict[str, Array]]

A_MASK = 1e30  # numbers beyond stand for minus infinity, and any large one will do


class Meter:
    """Looks at tensors as they pass, each beside its form in the lower precision."""

    def __init__(self, shadows: Mapping[str, str], own: Callable[[Array], float]) -> None:
        """Start; `own` is the relative error that a tensor's operation is expected to make."""
        self.shadows, self.own = shadows, own
        self.wanted = set(shadows.values())
        self.seen: dict[str, Array] = {}
        self.worst: dict[str, tuple[float, float]] = {}
        self.masks: set[str] = set()

    def __call__(self, seen: Seen) -> None:
        name = seen.place.tensor
        if name in self.wanted:
            self.seen[name] = seen.tensor.copy()
        elif name in self.shadows and self.shadows[name] in self.seen:
            exact_name = self.shadows[name]
            self._measure(exact_name, self.seen.pop(exact_name), seen.tensor)

    def _measure(self, name: str, true: Array, low: Array) -> None:
        low = low.astype(np.float32)
        masked = (np.abs(true) > A_MASK) & (np.sign(low) == np.sign(true)) & (np.abs(low) > 1e4)
        if (np.abs(true) > A_MASK).any():
            self.masks.add(name)
        low, true = np.where(masked, 0, low), np.where(masked, 0, true)
        error = difference(true.astype(np.float32), low)
        largest = float(np.abs(true, where=np.isfinite(true), out=np.zeros_like(true)).max(initial=0.0))
        ratio = error.relative_l2 / self.own(true) if error.sums.compared else 0.0
        ratio = math.inf if error.not_finite else ratio
        before = self.worst.get(name, (0.0, 0.0))
        self.worst[name] = max(before[0], ratio), max(before[1], largest)


def samples_of(host: Host, engine: Engine, question: Question) -> tuple[list[dict[str, Array]], Results]:
    """Return what a model is fed at each step or sample of a question, and what it answers.

    A generation goes on with the model's own tokens and cache.
    """
    recorder = _Recorder(engine)
    if question.inputs or not is_decoder(engine):
        for feeds in question_feeds(host, engine, question):
            recorder.run(feeds)
    else:
        for _ in generate(recorder, question.prompts or (MADE_UP_PROMPT,), question.new_tokens):
            pass
    engine.close()
    return recorder.fed, recorder.results


class _Recorder:
    """An engine that keeps what it is fed and what it answers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.inputs: Mapping[str, Input] = engine.inputs
        self.outputs: Sequence[str] = engine.outputs
        self.step = 0
        self.fed: list[dict[str, Array]] = []
        self.results: Results = []

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        self.fed.append(dict(feeds))
        self.results.append(self._engine.run(feeds))
        return self.results[-1]


def is_real(array: Array) -> bool:
    return array.dtype.kind == "f" and array.size > 0


def finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def apart(true: Array, other: Array, least: float) -> tuple[float, float]:
    """Return the relative error of a whole result and of its worst row; infinite where it is not finite."""
    if not finite(other):
        return math.inf, math.inf
    width = true.shape[-1] if true.ndim > 1 else max(true.size, 1)
    right, wrong = (np.asarray(array, np.float64).reshape(-1, width) for array in (true, other))
    norms, errors = np.sqrt((right**2).mean(1)), np.sqrt(((wrong - right) ** 2).mean(1))
    usual = float(np.sqrt((norms**2).mean())) or 1.0
    overall = float(np.sqrt((errors**2).mean())) / usual
    worst = float((errors / np.maximum(norms, 0.1 * usual)).max())
    return max(overall, least), max(worst, least)
