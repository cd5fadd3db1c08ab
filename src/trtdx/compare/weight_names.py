"""Which module a quantised product is, where its file does not tell: the one whose weight it has.

Integers go with the weight they were made of, whatever their scale and zero point: along a channel the two are the same
up to a factor and an offset. A few channels of each weight are enough to tell them apart.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.engines.onnx_names import WEIGHT
from trtdx.errors import TrtdxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from trtdx.compare.side import Spec
    from trtdx.engines.onnx_graph import Graph

    Array = np.ndarray[Any, Any]

CHANNELS, LENGTH = 6, 1024  # of a weight that are looked at
ALIKE = 0.97  # correlation of a channel with its int8 form: it is more than 0.999, with 4 bits about 0.99
APART = 0.05  # by which the next one must be less alike
MATRIX = 2


class Seen(NamedTuple):
    """A few channels of a weight, each without its mean and of length one."""

    name: str
    shape: tuple[int, int]  # channels, and what is summed over
    channels: Array


def modules_by_weights(reference: Spec, candidate: Spec) -> dict[str, str]:
    """Return the module of each quantised weight of a candidate that does not tell it; none where nothing can be looked at."""
    if candidate.kind not in ("onnx", "trt") or reference.kind not in ("hf", "onnx"):
        return {}
    try:
        nameless = list(_nameless(candidate.path))
        if not nameless:
            return {}
        known = list(
            _of_folder(Path(reference.path)) if reference.kind == "hf" else _of_graph(reference.path)
        )
    except (TrtdxError, OSError, ValueError):  # what cannot be read is told when it is run
        return {}
    found = {each.name: _module(each, known) for each in nameless}
    return {weight: module for weight, module in found.items() if module}


def _module(weight: Seen, known: list[Seen]) -> str:
    """Return the module that has a weight; "" where none or several have."""
    import numpy as np

    scores = sorted(
        (
            (float(np.median((each.channels * weight.channels).sum(1))), each.name)
            for each in known
            if each.shape == weight.shape
        ),
        reverse=True,
    )
    if not scores or scores[0][0] < ALIKE:
        return ""
    others = [score for score, name in scores if name != scores[0][1]]
    return scores[0][1] if not others or others[0] < scores[0][0] - APART else ""


def _seen(name: str, shape: Sequence[int], channel: Callable[[int], Any]) -> Seen:
    """Return a few channels of a matrix; only these are read."""
    import numpy as np

    some = np.unique(np.linspace(0, shape[0] - 1, CHANNELS).astype(int))
    rows = np.stack([np.asarray(channel(int(at)), np.float64).reshape(-1) for at in some])
    rows -= rows.mean(1, keepdims=True)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    return Seen(name, (shape[0], shape[1]), rows)


def _columns(name: str, held: Any) -> Seen:
    return _seen(name, held.shape[::-1], lambda at: held[:LENGTH, at])


def _rows(name: str, held: Any) -> Seen:
    return _seen(name, held.shape, lambda at: held[at, :LENGTH])


def _opened(path: str) -> Graph:
    from trtdx.engines.onnx_graph import Graph
    from trtdx.engines.onnx_model import open_model

    return Graph(open_model(path))


def _nameless(path: str) -> Iterator[Seen]:
    """Yield the weights of quantised products that do not tell their module."""
    graph = _opened(path)
    for at in sorted(graph.inserted):
        node = graph.nodes[at]
        which = WEIGHT.get(node.op_type, len(node.inputs))
        weight = node.inputs[which] if which < len(node.inputs) else None
        held = None if weight is None or weight.const_value is None else weight.const_value.numpy()
        if held is not None and held.ndim == MATRIX:
            yield _columns(str(weight.name) if weight is not None else "", held)


def _of_graph(path: str) -> Iterator[Seen]:
    """Yield the weights of a graph's products by the innermost module they are in."""
    graph = _opened(path)
    for at, node in enumerate(graph.nodes):
        if node.op_type not in ("MatMul", "Gemm") or not graph.scopes[at]:
            continue
        weight = node.inputs[1]
        held = None if weight is None or weight.const_value is None else weight.const_value.numpy()
        if held is None or held.ndim != MATRIX:
            continue
        yield (_rows if node.attributes.get_int("transB", 0) else _columns)(graph.scopes[at][-1], held)


def _of_folder(folder: Path) -> Iterator[Seen]:
    """Yield the matrices of a Hugging Face folder by their module, each in both ways that linear modules have them."""
    from trtdx.optional import need

    opener = need("safetensors", extra="torch", to="read the weights of a model").safe_open
    for file in sorted(folder.glob("*.safetensors")):
        with opener(str(file), framework="pt") as held:
            for name in held.keys():  # noqa: SIM118
                module, _, kind = name.rpartition(".")
                part = held.get_slice(name)
                shape = part.get_shape()
                if kind != "weight" or "embed" in module or len(shape) != MATRIX:
                    continue
                yield _seen(module, shape, partial(_row_of, part))
                yield _seen(module, shape[::-1], partial(_column_of, part))


def _row_of(part: Any, at: int) -> Any:
    return part[at : at + 1, :LENGTH].float()


def _column_of(part: Any, at: int) -> Any:
    return part[:LENGTH, at : at + 1].float()
