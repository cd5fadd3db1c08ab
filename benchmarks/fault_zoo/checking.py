"""Is a fault there to be seen, and is a healthy pair healthy? Measured without `trtdx compare`.

Three runs are compared at the planted tensor and at the logits: the reference in float32, the candidate, and the healthy model
in the candidate's type on torch. A fault is visible if its worst token is off by more than three times what the honest run is, or
if what sets it apart from the honest run, which has the same inputs there, is more than rounding. Another one nobody could find.
"""

from __future__ import annotations

import shutil
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .quantised import weights_in_int8
from .workshop import DTYPES, Workshop

if TYPE_CHECKING:
    from .nouns import Fault, Healthy, Question

VISIBLE = 3.0
NEVER_LESS = {
    "fp32": 1e-6,
    "bf16": 1e-3,
    "fp16": 1e-4,
    "int8": 2e-3,
}  # relative rounding of one operation, about
HEALTHY = {
    "fp32": 1e-5,
    "bf16": 0.06,
    "fp16": 0.01,
    "int8": 0.2,
}  # of the median token's logits, after all layers


class Opened:
    """Captures of specs, kept for the runs that need them again."""

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop
        self.scratch = Path(tempfile.mkdtemp(prefix="zoo-"))
        self.known: dict[tuple[str, str], Any] = {}

    def side(self, text: str, question: Question, forced: list[list[int]] | None, *, keep: bool = False) -> Any:
        from trtdx.compare.sides.side import ComparisonQuestion as Asked
        from trtdx.compare.sides.side import open_side, parse_side
        from trtdx.host import RealHost

        key = (text, question.key)
        if key in self.known:
            return self.known[key]
        host = RealHost()
        spec = parse_side(host, text)
        folder = self.scratch / f"{len(list(self.scratch.iterdir()))}"
        folder.mkdir()
        asked = Asked(prompts=tuple(map(tuple, question.rows())), new_tokens=question.steps)
        side = open_side(host, spec, asked, folder / "c", forced=forced)
        if keep:
            self.known[key] = side
        return side

    def close(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)


def _named(capture: Any, names: tuple[str, ...], step: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for record in capture.records(step=step, rank=capture.ranks[0]):
        if (
            record.kept
            and record.layout.dtype.startswith(("float", "bfloat"))
            and any(fnmatchcase(record.name, name) or record.name == name for name in names)
        ):
            found.setdefault(record.name, record)
    return found


def _array(capture: Any, record: Any) -> Any:
    return np.asarray(capture.values(record)).astype(np.float64)


def _rows(array: Any, tokens: Any) -> Any:
    """Return an array with a row for each token, where it has tokens."""
    if array.shape[:2] == tokens.shape:
        return array.reshape(tokens.size, -1)
    return array.reshape(-1, array.shape[-1])


def _tokens(capture: Any, step: int) -> Any:
    """Return which rows of a step are tokens and not padding, [batch, tokens]."""
    fed = {
        record.name: record
        for record in capture.records(step=step, rank=capture.ranks[0])
        if record.name in ("input_ids", "attention_mask")
    }
    ids = capture.values(fed["input_ids"])
    return np.asarray(capture.values(fed["attention_mask"]))[:, -ids.shape[1] :].astype(bool)


def token_errors(reference: Any, candidate: Any, tokens: Any) -> Any:
    """Return each token's relative difference; none where the two are not of one shape."""
    if reference.size == candidate.size and reference.shape[:2] == candidate.shape[:2]:
        candidate = candidate.reshape(reference.shape)  # heads and their width may be two axes or one
    a, b = _rows(reference, tokens), _rows(candidate, tokens)
    if a.shape != b.shape or not a.size:
        return None
    if len(a) == tokens.size:
        a, b = a[tokens.reshape(-1)], b[tokens.reshape(-1)]
    with np.errstate(all="ignore"):
        return np.sqrt(np.square(a - b).sum(1) / np.maximum(np.square(a).sum(1), 1e-300))


def error(reference: Any, candidate: Any, tokens: Any) -> float:
    """Return the worst token's relative difference; infinite where one is not finite."""
    each = token_errors(reference, candidate, tokens)
    if each is None:
        return float("nan")
    return float("inf") if not np.isfinite(each).all() else float(each.max())


def errors_at(
    reference: Any, candidate: Any, names: tuple[str, ...], steps: int, first_step: int = 0
) -> dict[str, float]:
    """Return the worst error of each tensor named, over the steps."""
    found: dict[str, float] = {}
    for step in range(first_step, steps):
        ours, theirs, tokens = (
            _named(reference, names, step),
            _named(candidate, names, step),
            _tokens(reference, step),
        )
        for name in ours.keys() & theirs.keys():
            now = error(_array(reference, ours[name]), _array(candidate, theirs[name]), tokens)
            found[name] = max(found.get(name, 0.0), now) if now == now else found.get(name, now)
    return found


LOGITS = ("lm_head:out", "logits")


def logits_error(reference: Any, candidate: Any, steps: int) -> float:
    found = errors_at(reference, candidate, LOGITS, steps)
    return max(found.values(), default=float("nan"))


def measured(opened: Opened, fault: Fault) -> dict[str, Any]:
    """Return how far a fault's tensor and the logits are off, and how far an honest run is."""
    sides = fault.make(opened.shop)
    question, truth = fault.question, fault.truth
    reference = opened.side(sides.reference, question, None, keep=sides.reference.startswith("hf:"))
    forced = reference.tokens()
    candidate = opened.side(sides.candidate, question, forced)
    names, steps, first = truth.right + truth.also, question.steps, truth.first_step
    off = errors_at(reference.capture, candidate.capture, names, steps, first)
    shown = {name: off[name] for name in truth.right if name in off} or off
    honest_run = _honest(opened, fault, sides.reference, forced) or reference
    honest = errors_at(reference.capture, honest_run.capture, names, steps, first)
    alone = errors_at(honest_run.capture, candidate.capture, names, steps, first)  # by the fault, not by rounding
    floor = NEVER_LESS[fault.dtype]

    def ratio(name: str) -> float:
        return shown[name] / max(honest.get(name, 0.0), floor)

    name = max(shown, key=lambda each: (shown[each] == float("inf"), ratio(each)), default="")
    seen = bool(name) and (ratio(name) > VISIBLE or alone[name] > 10 * floor or shown[name] == float("inf"))
    if fault.cause in ("fp16-overflow", "underflow"):  # an honest run in that type has it too
        seen = shown[name] > 30 * floor
    return {
        "tensor": name, "strict": name in truth.right, "error": shown.get(name), "honest": honest.get(name), "alone": alone.get(name),
        "ratio": ratio(name) if name else float("nan"), "logits": logits_error(reference.capture, candidate.capture, steps),
        "visible": seen, "before": early(honest_run.capture, candidate.capture, fault) if name else {},
    }  # fmt: skip


def _honest(opened: Opened, fault: Fault, text: str, forced: Any) -> Any:
    """Return the run of the healthy model in the candidate's type."""
    if not text.startswith("hf:"):
        return None
    if fault.dtype == "int8":
        path = opened.shop.operated(f"{fault.architecture}-int8", opened.shop.onnx(fault.architecture), weights_in_int8)
        return opened.side(f"onnx:{path}", fault.question, forced, keep=True)
    dtype = DTYPES.get(fault.dtype, "float32")
    return opened.side(f"{text}?dtype={dtype}&attention=eager", fault.question, forced, keep=True)


def early(honest: Any, candidate: Any, fault: Fault) -> dict[str, float]:
    """Return the tensors before the planted one that differ from the honest run; there should be none.

    On torch nothing may differ at all; an engine of another kind and ranks round in other places.
    """
    truth, steps = fault.truth, fault.question.steps
    exact = fault.engine == "torch" and fault.given != "ranks"
    least = (
        0.0
        if exact
        else 0.5 * max(errors_at(honest, candidate, truth.right, steps, truth.first_step).values(), default=0.0)
    )
    found: dict[str, float] = {}
    for step in range(steps):
        for record in list(honest.records(step=step, rank=honest.ranks[0])):
            if record.name in truth.right and step >= truth.first_step:
                return found
            if (
                not record.kept
                or not record.layout.dtype.startswith(("float", "bfloat"))
                or record.name.startswith(("present", "past"))
                or ".experts." in record.name
            ):
                continue
            off = errors_at(honest, candidate, (record.name,), step + 1, step).get(record.name, 0.0)
            if off > least and not any(fnmatchcase(record.name, each) for each in truth.also):
                found[record.name] = off
    return found


def last_logits(capture: Any) -> Any:
    """Return the logits of the first sequence's last token, whatever the layout."""
    step = max(record.step for record in capture.records(rank=capture.ranks[0]))
    found = _named(capture, LOGITS, step)
    array = _array(capture, next(iter(found.values())))
    return array.reshape(-1, array.shape[-1])[:1] if array.ndim < 3 else array[:1, -1]


def judged(opened: Opened, pair: Healthy) -> dict[str, Any]:
    """Return how far a healthy pair's logits are apart: of all tokens, or where layouts differ of the last one.

    The median token decides. Some tokens are so sensitive (a near-tie in attention, or in the choice of experts)
    that bf16 moves their logits by their own size, with nothing wrong; the median goes with the type's rounding.
    """
    sides = pair.make(opened.shop)
    side = opened.side(sides.reference, pair.question, None, keep=sides.reference.startswith("hf:"))
    reference, candidate = side.capture, opened.side(sides.candidate, pair.question, side.tokens()).capture
    found = []
    for step in range(pair.question.steps):
        ours, theirs = _named(reference, LOGITS, step), _named(candidate, LOGITS, step)
        for name in ours.keys() & theirs.keys():
            arrays = _array(reference, ours[name]), _array(candidate, theirs[name])
            found.append(token_errors(*arrays, _tokens(reference, step)))
    if not found or any(each is None for each in found):
        found = [token_errors(last_logits(reference), last_logits(candidate), np.ones((1, 1), bool))]
    every = np.concatenate(found)
    median = float(np.median(every))
    return {"logits": float(every.max()), "median": median, "healthy": median < HEALTHY[pair.dtype]}
