"""The suspect module under test: copied in high precision, fed its captured inputs, changed, and called again."""

from __future__ import annotations

import math
import re
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.module_copies import (
    MOST_FLOAT64_WEIGHTS,
    capture_hook,
    cast_all,
    copy_in_dtype,
    view_as_real,
)
from trtdx.compare.attribute.suspect import Suspect, candidate_compute_dtype, prepare_suspect_module
from trtdx.engines.torch.lazy_import import torch
from trtdx.engines.torch.replay import named_outputs
from trtdx.engines.torch.values import tensor_from_array
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Tensor = Any
    Outputs = dict[str, Tensor]

MOST_WEIGHTS = 2_000_000_000  # of a module that is copied at all
HEALTHY_RATIO = 1.3  # squared error over that of honest rounding, up to which there is nothing to explain
LEAST_TOKENS = 6  # of which every other is held back to test a cause on
LEAST_HALF_SHARE = 0.02  # of the difference that must be in a half for it to say anything
LOW_PRECISION_DTYPES = {"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"}
_LAYER_PATH = re.compile(r"(.*?\.)(\d+)(\..*|)$")


class Mistake(NamedTuple):
    """A hypothesis: what the module would have given if it were true."""

    code: str
    outputs: Outputs
    values: Mapping[str, str] = {}
    tested_by: str = ""
    freedom: float = 0  # how many numbers were searched or fitted: each costs
    rank: int = 0  # of two that cannot be told apart, the lower is named first
    share: float | None = None  # where it is not told by outputs


class ModuleBench:
    """A module of the reference, computed in high precision from the candidate's inputs, beside what the candidate gave.

    Attributes:
        module: the copy that may be changed.
        model: the whole reference, to look at.
        inputs: what the module is called with, by name without the path.
        past: what is in the cache before.
        targets: what the candidate gave.
        truth: what the reference gives.
        noise: squared error that the candidate's precision alone explains, relative to the size of the targets.
        residual: squared error that there is.
        evaluations: how often the module was called.
        failures: what could not be tried, and why.
        deadline: when to stop, on the monotonic clock.
        solved: whether something tried already leaves nothing but rounding; long searches are not begun then.
    """

    def __init__(self, suspect: Suspect, engine: Any) -> None:
        self.suspect, self.model, self.engine = suspect, engine.model, engine
        ready = prepare_suspect_module(suspect, engine)
        self.path, self.evaluations = ready.path, 0
        self.failures: list[str] = []
        self.solved, self.deadline = False, math.inf
        self.shared_results: dict[str, Any] = {}  # what several families need, found once
        size = sum(parameter.numel() for parameter in ready.module.parameters())
        if size > MOST_WEIGHTS:
            raise InputError(
                f"{self.path or 'the model'} is too large to be computed again with changes",
                fix="compare with captures of its parts: --tap '**'",
            )
        self.dtype = candidate_compute_dtype(suspect)
        large = size > (MOST_FLOAT64_WEIGHTS if self.dtype in LOW_PRECISION_DTYPES else 5 * MOST_FLOAT64_WEIGHTS)
        exact = self.exact_dtype = torch.float32 if large else torch.float64
        self.module, self._prepared = copy_in_dtype(ready.module, exact), ready
        self.inputs, self.past = cast_all(ready.tensors, exact), cast_all(ready.past, exact)
        self.targets = {
            self.full_name(name): view_as_real(tensor_from_array(array)).to(torch.float64)
            for name, array in suspect.candidate_outputs.items()
        }
        self._inner_targets = {name for name in self.targets if not self._is_own_output(name)}
        self.truth = self._comparable_outputs(self.run(all_targets=True))
        self.targets = {name: self.targets[name].reshape(self.truth[name].shape) for name in self.truth}
        if not self.targets:
            raise InputError(f"no output of {self.path or 'the model'} was captured of the candidate")
        self._counted_rows = {name: self._find_counted_rows(tensor) for name, tensor in self.truth.items()}
        self.target_sizes = {name: self._sum_of_squares(name, tensor) or 1.0 for name, tensor in self.truth.items()}
        self._rounding_noise = self._rounding_noises()
        self._tolerated_errors = {name: self._tolerated_error(name) for name in self.targets}
        self.residual = self.squared_error(self.truth)
        self.noise = sum(noise for name, noise in self._rounding_noise.items() if not self._tolerated_errors[name])

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.deadline

    def full_name(self, name: str) -> str:
        return name if ":" in name or name.startswith("present.") else f"{self.path}:{name}"

    def _is_own_output(self, name: str) -> bool:
        return name.startswith((f"{self.path}:out", "present."))

    def _comparable_outputs(self, outputs: Outputs) -> Outputs:
        """Return the outputs that the candidate has too, in as many elements."""
        return {
            name: tensor
            for name, tensor in outputs.items()
            if name in self.targets
            and tensor.numel() == self.targets[name].numel()
            and "mask" not in name.rpartition(":")[2]  # whose numbers are no quantities
        }

    def _find_counted_rows(self, tensor: Tensor) -> Tensor | None:
        """Return which rows of a tensor count, if it has a row for each token."""
        counts = self.suspect.counted_tokens
        if counts is None:
            return None
        counted_rows = torch.as_tensor(counts, dtype=torch.bool)
        if tuple(tensor.shape[: counted_rows.ndim]) == tuple(counted_rows.shape):
            return counted_rows
        return counted_rows.reshape(-1) if tensor.shape[:1] == (counted_rows.numel(),) else None

    def _sum_of_squares(self, name: str, tensor: Tensor) -> float:
        """Return the sum of squares of the rows that count; what is not finite counts as nothing."""
        finite = torch.nan_to_num(tensor[self.row_index(name)].double(), nan=0.0, posinf=0.0, neginf=0.0)
        return float((finite * finite).sum())

    def _tolerated_error(self, name: str) -> float:
        """Return the error a tensor is always allowed: its noise if it is healthy, so that it does not drown the others."""
        allowed = HEALTHY_RATIO * self._rounding_noise[name]
        return allowed if self.tensor_error(name, self.truth[name]) <= allowed else 0.0

    def squared_error(self, outputs: Outputs) -> float:
        """Return the squared distance from the candidate, each tensor's relative to its size, beyond what it may have."""
        return sum(
            max(0.0, self.tensor_error(name, outputs[name]) - self._tolerated_errors[name]) for name in self.targets
        )

    def tensor_error(self, name: str, got: Tensor) -> float:
        rows, size = self.row_index(name), self.target_sizes[name]
        target, output = self.targets[name][rows], got.double().reshape(self.targets[name].shape)[rows]
        return _squared_distance(target, output, math.sqrt(size / max(1, target.numel()))) / size

    def relative_error(self, name: str, got: Tensor) -> float:
        """Return the distance of one tensor from the candidate's, relative to its size."""
        return math.sqrt(self.tensor_error(name, got))

    def residual_of(self, candidate: Outputs) -> float:
        """Return the squared distance of another candidate from the reference."""
        own_targets = self.targets
        self.targets = {name: tensor.reshape(self.truth[name].shape) for name, tensor in candidate.items()}
        try:
            return self.squared_error(self.truth)
        finally:
            self.targets = own_targets

    def relative_size(self, outputs: Outputs) -> float:
        """Return the mean square of outputs relative to the reference's."""
        sizes = [self._sum_of_squares(name, outputs[name]) / self.target_sizes[name] for name in self.targets]
        return sum(sizes) / len(sizes)

    def explained_share(self, outputs: Outputs) -> float:
        """Return the share of the squared difference that outputs explain; what rounding does counts as explained."""
        left = max(0.0, self.squared_error(outputs) - 1.1 * self.noise * max(1.0, self.relative_size(outputs)))
        return 1.0 - left / max(self.residual - self.noise, 1e-300)

    def cross_validated_share(self, outputs: Outputs) -> float:
        """Return the share explained on every other token, the worse of the two halves; 1 if there are too few tokens.

        What a search fitted to a few tokens that stand out explains little of the others.
        """
        shares = []
        for half in (0, 1):
            left = total = 0.0
            for name in self.wrong_targets:
                target, got, truth = (
                    _every_other_token(tensor, half, name)
                    for tensor in (self.targets[name], outputs[name], self.truth[name])
                )
                if target is None or got is None or truth is None:
                    return 1.0
                scale = math.sqrt(self.target_sizes[name] / max(1, self.targets[name].numel()))
                left += _squared_distance(target, got.double().reshape(target.shape), scale) / self.target_sizes[name]
                total += _squared_distance(target, truth.double(), scale) / self.target_sizes[name]
            allowed = self.noise * max(1.0, self.relative_size(outputs))
            if total > LEAST_HALF_SHARE * self.residual and total > 2 * allowed:
                shares.append(1.0 - max(0.0, left - allowed) / total)
        return min(shares, default=1.0)

    @property
    def is_healthy(self) -> bool:
        return all(self._tolerated_errors.values())

    def run(
        self,
        inputs: Mapping[str, Tensor] | None = None,
        past: Mapping[str, Tensor] | None = None,
        *,
        module: Any = None,
        all_targets: bool = False,
    ) -> Outputs:
        """Call the module, with other inputs than its own where they are given."""
        self.evaluations += 1
        called = self.module if module is None else module
        ready = self._prepared._replace(
            module=called,
            tensors=self.inputs if inputs is None else inputs,
            past=self.past if past is None else past,
        )
        arguments, cache = ready.create_arguments()
        inner_tensors: Outputs = {}
        with torch.no_grad(), self._capture_inner_tensors(called, inner_tensors):
            result = called(*arguments.args, **arguments.kwargs)
        outputs = named_outputs(self.path, result) | inner_tensors
        if cache is not None and ready.cache is not None:
            outputs |= ready.cache.read_contents(cache)
        outputs = {name: view_as_real(tensor) for name, tensor in outputs.items()}
        return outputs if all_targets else {name: outputs[name] for name in self.targets}

    @contextmanager
    def _capture_inner_tensors(self, module: Any, inner_tensors: Outputs) -> Iterator[None]:
        """Keep what passes the borders of inner modules that the candidate has too."""
        with ExitStack() as hooks:
            for name in self._inner_targets:
                path, _, port = name.rpartition(":")
                inner = path[len(self.path) + 1 :] if self.path else path
                if not path.startswith(self.path) or inner not in dict(module.named_modules()):
                    continue
                hook = module.get_submodule(inner).register_forward_hook(
                    capture_hook(inner_tensors, path, port.startswith("in")),
                    with_kwargs=True,
                    prepend=True,  # what leaves a part is what it made, whatever is then done with it
                )
                hooks.callback(hook.remove)
            yield

    def _rounding_noises(self) -> dict[str, float]:
        """Return the squared error of the reference's own module in the candidate's precision, of each tensor."""
        if self.dtype == "float64":
            return dict.fromkeys(self.targets, (4 * float(torch.finfo(torch.float64).eps)) ** 2)
        low = getattr(torch, self.dtype if self.dtype in ("float16", "bfloat16") else "float32")
        slack = 1.0 if low.itemsize == 2 else 4.0  # in float32 the order of sums matters most, and is free
        least = (2 * float(torch.finfo(low).eps)) ** 2 / 12
        try:
            low_outputs = self.run_in_precision(low)
        except RuntimeError:  # torch has no such operation in this type on the CPU
            return dict.fromkeys(self.targets, 16 * least)
        gaps = {name: low_outputs[name].double() - self.truth[name].double() for name in self.targets}
        return {
            name: least + slack * self._sum_of_squares(name, gap) / self.target_sizes[name]
            for name, gap in gaps.items()
        }

    def run_in_precision(self, dtype: Any) -> Outputs:
        """Return what the module gives when it is computed in another type."""
        inputs, past = cast_all(self.inputs, dtype), cast_all(self.past, dtype)
        return self.run(inputs, past, module=copy_in_dtype(self.module, dtype))

    @contextmanager
    def candidate_precision(self) -> Iterator[None]:
        """Compute in the candidate's precision inside the block, for what depends on how numbers were rounded before."""
        low = getattr(torch, self.dtype if self.dtype in LOW_PRECISION_DTYPES and "8" not in self.dtype else "float32")
        before = self.module, self.inputs, self.past
        self.module = copy_in_dtype(self.module, low)
        self.inputs, self.past = cast_all(self.inputs, low), cast_all(self.past, low)
        try:
            yield
        finally:
            self.module, self.inputs, self.past = before

    def row_index(self, name: str) -> Any:
        return ... if self._counted_rows[name] is None else self._counted_rows[name]

    def with_outputs(self, outputs: Mapping[str, Tensor]) -> Outputs:
        """Return the truth with some outputs replaced."""
        return {**self.truth, **outputs}

    def with_main(self, tensor: Tensor) -> Outputs:
        """Return the truth with the main target replaced."""
        return self.with_outputs({self.main_target: tensor})

    @property
    def wrong_targets(self) -> list[str]:
        """The names of the targets that are further off than rounding explains."""
        return [name for name, allowed in self._tolerated_errors.items() if not allowed]

    @property
    def main_target(self) -> str:
        """The name of the first target: what leaves the module, if that is among them."""
        return next((name for name in self.targets if name == f"{self.path}:out"), next(iter(self.targets)))

    def first_float_input(self) -> Tensor:
        return next(tensor for tensor in self.inputs.values() if tensor.is_floating_point())

    def modules_of_other_layers(self) -> Iterator[tuple[str, Any]]:
        """Yield the same module of other layers, nearest first, as it is in the reference."""
        layer_match = _LAYER_PATH.match(self.path)
        if layer_match is None:
            return
        own_number, modules = int(layer_match[2]), dict(self.model.named_modules())
        numbers = sorted(
            (
                int(other_match[2])
                for path in modules
                if (other_match := _LAYER_PATH.match(path)) and other_match[1] == layer_match[1] and not other_match[3]
            ),
            key=lambda number: (abs(number - own_number), number),
        )
        for number in numbers:
            path = f"{layer_match[1]}{number}{layer_match[3]}"
            if number != own_number and path in modules:
                yield path, modules[path]

    def sibling_modules(self) -> Iterator[tuple[str, Any]]:
        """Yield the other modules in the module's parent, as they are in the reference."""
        parent, _, own_name = self.path.rpartition(".")
        for name, module in self.model.get_submodule(parent).named_children():
            if name != own_name:
                yield f"{parent}.{name}" if parent else name, module


def _every_other_token(tensor: Tensor, first: int, name: str) -> Tensor | None:
    """Return every other token of a tensor [batch, tokens, ...], [tokens, ...] or, of a cache, [batch, heads, tokens, ...]."""
    axis = 2 if name.startswith("present.") else 1 if tensor.ndim > 2 else 0
    if tensor.ndim <= axis or tensor.shape[axis] < LEAST_TOKENS:
        return None
    return tensor.index_select(axis, torch.arange(first, tensor.shape[axis], 2))


def _squared_distance(one: Tensor, other: Tensor, scale: float) -> float:
    """Return the squared distance; an element that is finite on one side only counts as ten times the usual size."""
    not_finite = ~(torch.isfinite(one) & torch.isfinite(other))
    if not bool(not_finite.any()):
        gap = one - other
        return float((gap * gap).sum())
    same = (one == other) | (torch.isnan(one) & torch.isnan(other))
    gap = torch.where(not_finite, torch.zeros_like(one), one - other)
    alone = int((not_finite & ~same).sum())
    return float((gap * gap).sum()) + alone * (10 * scale) ** 2
