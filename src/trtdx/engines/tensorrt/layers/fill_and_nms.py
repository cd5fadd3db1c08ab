"""New values: fill and non-maximum suppression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trtdx.engines.tensorrt.layers.kernel_registry import (
    Kernel,
    dims_tuple,
    register_kernel,
    register_torch_kernel,
    shape_along,
)
from trtdx.engines.tensorrt.network.values import Array, torch_dtype, trt_numpy_dtype
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.network.graph import TrtLayer


@register_kernel("FILL")
def fill_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    """Return the layer's kernel. Random numbers are the same in each run: the seed is the layer's number.

    TensorRT draws others, and others in each run; only their distribution can be compared.
    """
    operation = trt.operation.name
    # Asking for what an input gives makes TensorRT log a warning.
    fixed = None if layer.has_input(0) else dims_tuple(trt.shape)
    first, second = (0.0, 0.0) if layer.has_input(1) else (trt.alpha, trt.beta)
    dtype = trt_numpy_dtype(layer.outputs[0].dtype)

    def compute(shape: Array | None = None, alpha: Array | None = None, beta: Array | None = None) -> Array:
        sizes = list(fixed or ()) if shape is None else shape.tolist()
        start = first if alpha is None else alpha.item()
        if operation == "LINSPACE":
            steps = [second] if beta is None else beta.reshape(-1).tolist()
            return _fill_linspace(sizes, start, steps, dtype)
        spread = second if beta is None else beta.item()
        source = np.random.default_rng(layer.index)
        if operation == "RANDOM_UNIFORM":
            return source.uniform(start, spread, sizes).astype(dtype)
        return source.normal(start, spread, sizes).astype(dtype)

    return compute


def _fill_linspace(sizes: list[int], start: float, steps: list[float], dtype: np.dtype[Any]) -> Array:
    """Return start + the sum of each axis' step times the place along it."""
    wide = np.dtype(np.float64 if dtype.kind == "f" else np.int64)
    value: Any = np.full([1] * len(sizes), start, wide)
    for axis, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        along: Any = np.arange(size, dtype=wide) * np.array(step, wide)
        value = value + along.reshape(shape_along(axis, len(sizes)))
    filled: Array = value.astype(dtype)
    return filled


@register_torch_kernel("NMS")
def nms_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    centred = trt.bounding_box_format.name == "CENTER_SIZES"
    most = trt.topk_box_limit
    dtype = torch_dtype(layer.outputs[0].dtype)

    def compute(boxes: Any, scores: Any, count: Any, overlap: Any = None, least: Any = None) -> tuple[Any, Any]:
        corners = _box_corners(boxes.to(torch.float32).numpy(), centred)
        shared, low = (0.0 if threshold is None else float(threshold.item()) for threshold in (overlap, least))
        rules = NmsLimits(int(count.item()), shared, low, most)
        selected = _select_boxes(corners, scores.to(torch.float32).numpy(), rules)
        rows = np.array(selected, np.int64).reshape(-1, 3)
        return torch.from_numpy(rows).to(dtype), torch.tensor(len(selected), dtype=torch.int32)

    return compute


def _box_corners(boxes: Array, centred: bool) -> Array:
    """Return boxes as (low x, low y, high x, high y)."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if centred:
        return np.concatenate([first - second / 2, first + second / 2], -1)
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


class NmsLimits(NamedTuple):
    """What decides which boxes are kept."""

    most_kept: int  # of each class
    overlap: float  # that two boxes of a class may have
    least_score: float  # score that is not enough
    most_considered: int


def _select_boxes(boxes: Array, scores: Array, rules: NmsLimits) -> list[tuple[int, int, int]]:
    """Return (batch, class, box) of what is kept, by batch and then by falling score."""
    selected: list[tuple[int, int, int]] = []
    for batch in range(scores.shape[0]):
        order = np.argsort(-scores[batch].T.reshape(-1), kind="stable")
        boxes_by_class: dict[int, list[int]] = {}
        for place in order[: rules.most_considered if rules.most_considered > 0 else None].tolist():
            kind, box = divmod(place, scores.shape[1])
            rivals = boxes_by_class.setdefault(kind, [])
            if scores[batch, box, kind] <= rules.least_score or len(rivals) >= rules.most_kept:
                continue
            class_boxes = boxes[batch] if boxes.ndim == 3 else boxes[batch, :, kind]
            if all(_intersection_over_union(class_boxes[box], class_boxes[rival]) <= rules.overlap for rival in rivals):
                rivals.append(box)
                selected.append((batch, kind, box))
    return selected


def _intersection_over_union(left: Array, right: Array) -> float:
    """Return the area two boxes share by the area they cover."""
    sides = np.clip(np.minimum(left[2:], right[2:]) - np.maximum(left[:2], right[:2]), 0, None)
    shared = float(sides[0] * sides[1])
    areas = sum(float((box[2] - box[0]) * (box[3] - box[1])) for box in (left, right))
    return shared / (areas - shared) if areas > shared else 0.0
