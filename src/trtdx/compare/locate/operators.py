"""The first operator that is wrong inside a module of a graph: all its tensors, computed twice from the same inputs.

Once on the candidate's engine; and once with the reference's graph where it is one, else with the very same graph on
another engine. Then what differs is the engine's own doing, and what does not stands in the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.capture.session.replay import replay_from
from trtdx.compare.judge.error_model import accumulated, coarser
from trtdx.compare.sides.side import Spec
from trtdx.errors import TrtdxError
from trtdx.tensors.difference import difference
from trtdx.tensors.dtypes import FLOATS

if TYPE_CHECKING:
    import numpy as np

    from trtdx.compare.judge.envelope import Runs
    from trtdx.compare.sides.side import Side
    from trtdx.engines.engine import Seen
    from trtdx.tensors.taps import Place

    Array = np.ndarray[Any, Any]

LIMIT = 24.0  # times one rounding's share, counted from the module's inputs
GRAPHS = ("onnx", "trt")


class Operator(NamedTuple):
    """What was found of the operators in a module.

    Attributes:
        place: of the first that is wrong; none where all agree.
        observed: its relative error; expected: what precision explains.
        against: what it was compared with: "the reference's graph", or "the same graph on tensorrt".
        same_graph: whether both were computed from the candidate's own file, so that an engine is to blame.
        compared: how many tensors were.
        problem: why it could not be told, if so.
    """

    place: Place | None
    observed: float
    expected: float
    against: str
    same_graph: bool
    compared: int
    problem: str = ""


def first_wrong_operator(
    module: str, reference: Side, candidate: Side, *, runs: Runs, step: int = 0
) -> Operator | None:
    """Return the first operator inside a module that differs; none where the candidate is no graph.

    Args:
        module: its path on the candidate.
        reference: one side.
        candidate: the other, of which what enters the module was captured.
        runs: where runs are counted.
        step: of which step.
    """
    if candidate.spec.kind not in GRAPHS or not module:
        return None
    same = reference.spec.kind not in GRAPHS
    if same:
        kind = "trt" if candidate.spec.kind == "onnx" else "onnx"
        other = Spec(kind, candidate.spec.path, {"level": "none"} if kind == "onnx" else {})
        against = f"the same graph on {'TensorRT' if kind == 'trt' else 'ONNX Runtime without optimisation'}"
    else:
        other, against = reference.spec, "the reference's graph"
    try:
        theirs = _inside(candidate, candidate.spec, module, step)
        ours = _inside(candidate, other, module, step)
    except TrtdxError as err:
        return Operator(None, 0.0, 0.0, against, same, 0, str(err))
    runs.segment_runs += 2
    return _first(ours, theirs, against, same)


def _inside(side: Side, spec: Spec, module: str, step: int) -> dict[str, tuple[Place, Array]]:
    """Return every tensor in a module that is given what a side captured, by its own name."""
    found: dict[str, tuple[Place, Array]] = {}

    def keep(seen: Seen) -> None:
        found[seen.place.tensor] = seen.place, seen.tensor.copy()

    engine = spec.open(f"{module}.** & is:tensor")
    try:
        engine.sink = keep
        replay_from(side.capture, engine, module, step=step)
    finally:
        engine.close()
    return found


def _first(
    ours: dict[str, tuple[Place, Array]], theirs: dict[str, tuple[Place, Array]], against: str, same: bool
) -> Operator:
    compared = 0
    for name, (place, array) in theirs.items():
        if name not in ours or ours[name][1].shape != array.shape or not array.size:
            continue
        compared += 1
        right = ours[name][1]
        found = difference(right, array)
        if {right.dtype.name, array.dtype.name} <= FLOATS:
            expected = accumulated(
                coarser(right.dtype.name, array.dtype.name), array.shape[-1] if array.ndim else 1
            )
            wrong = found.relative_l2 > LIMIT * expected or found.not_finite > 0
        else:
            expected, wrong = 0.0, found.sums.max_abs > 1  # a value between two integers may go either way
        if wrong:
            return Operator(place, found.relative_l2, expected, against, same, compared)
    return Operator(None, 0.0, 0.0, against, same, compared)
