"""The suspect module on the bench: copied in high precision, fed what it was fed, changed, and called again."""

from __future__ import annotations

import copy
import math
import re
from collections import OrderedDict
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.capture.taps import Place
from trtdx.compare.attribute.suspect import Suspect, dtype_of_candidate, prepared_from
from trtdx.engines.lazy import torch
from trtdx.engines.torch import tensors_in
from trtdx.engines.torch_replay import named_outputs
from trtdx.engines.torch_values import tensor_from_array
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Tensor = Any
    Outputs = dict[str, Tensor]

MOST_EXACT = 40_000_000  # weights that are computed in float64; more in float32
MOST_WEIGHTS = 2_000_000_000  # of a module that is copied at all
HEALTHY = 1.3  # squared error over that of honest rounding, up to which there is nothing to explain
HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
)
LOW = {"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"}
_LAYER = re.compile(r"(.*?\.)(\d+)(\..*|)$")


class Idea(NamedTuple):
    """A hypothesis: what the module would have given if it were true."""

    code: str
    outputs: Outputs
    values: Mapping[str, str] = {}
    how: str = ""
    freedom: float = 0  # how many numbers were searched or fitted: each costs
    rank: int = 0  # of two that cannot be told apart, the lower is named first
    share: float | None = None  # where it is not told by outputs


@contextmanager
def put(owner: Any, **values: Any) -> Iterator[None]:
    """Give a module other weights or attributes inside the block."""
    before = {}
    for name, value in values.items():
        before[name] = getattr(owner, name)
        if name in owner._parameters:
            like = before[name]
            made = None if value is None else value.to(like.dtype if like is not None else torch.float64)
            owner._parameters[name] = None if made is None else torch.nn.Parameter(made, requires_grad=False)
        else:
            setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if name in owner._parameters:
                owner._parameters[name] = value
            else:
                setattr(owner, name, value)


@contextmanager
def giving(module: Any, change: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Let what leaves a module be `change(first input, first output)` inside the block."""

    def after(_: Any, args: Any, kwargs: Any, result: Any) -> Any:
        first = next((tensor for _, _, tensor in tensors_in(args, kwargs)), None)
        if isinstance(result, tuple):
            return (change(first, result[0]), *result[1:])
        return change(first, result)

    hook = module.register_forward_hook(after, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


class Bench:
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
        solved: whether something tried already leaves nothing but rounding; long searches are not begun then.
    """

    def __init__(self, suspect: Suspect, engine: Any) -> None:
        self.suspect, self.model, self.engine = suspect, engine.model, engine
        ready = prepared_from(suspect, engine)
        self.path, self.evaluations = ready.path, 0
        self.failures: list[str] = []
        self.solved = False
        self.known: dict[str, Any] = {}  # what several families need, found once
        size = sum(each.numel() for each in ready.module.parameters())
        if size > MOST_WEIGHTS:
            raise InputError(
                f"{self.path or 'the model'} is too large to be computed again with changes",
                fix="compare with captures of its parts: --tap '**'",
            )
        self.dtype = dtype_of_candidate(suspect)
        large = size > (MOST_EXACT if self.dtype in LOW else 5 * MOST_EXACT)
        exact = torch.float32 if large else torch.float64
        self.module = _copied(ready.module, exact)
        self.exact = exact
        self._ready = ready
        self.inputs = {name: _cast(each, exact) for name, each in ready.tensors.items()}
        self.past = {name: _cast(each, exact) for name, each in ready.past.items()}
        self.targets = {
            self._full(name): real(tensor_from_array(array)).to(torch.float64)
            for name, array in suspect.candidate_outputs.items()
        }
        self._inner = {name for name in self.targets if not self._own(name)}
        self.truth = self._fitting(self.run(all_targets=True))
        told = [
            name for name in self.truth if "mask" in name.rpartition(":")[2]
        ]  # whose numbers are no quantities
        self.masks = {name: (self.truth.pop(name), self.targets[name]) for name in told}
        self.targets = {name: self.targets[name].reshape(self.truth[name].shape) for name in self.truth}
        if not self.targets:
            raise InputError(f"nothing that leaves {self.path or 'the model'} is given of the candidate")
        self._rows = {name: self._counting(each) for name, each in self.truth.items()}
        self._sizes = {name: self._squares(name, each) or 1.0 for name, each in self.truth.items()}
        self._noises = self._honest_noises()
        self._let = {name: self._let_to(name) for name in self.targets}
        self.residual = self.error(self.truth)
        self.noise = sum(each for name, each in self._noises.items() if not self._let[name])

    def _full(self, name: str) -> str:
        return name if ":" in name or name.startswith("present.") else f"{self.path}:{name}"

    def _own(self, name: str) -> bool:
        return name.startswith((f"{self.path}:out", "present."))

    def _fitting(self, found: Outputs) -> Outputs:
        """Return the outputs that the candidate has too, in as many elements."""
        return {
            name: each
            for name, each in found.items()
            if name in self.targets
            and each.numel() == self.targets[name].numel()
            and "mask" not in name.rpartition(":")[2]  # whose numbers are no quantities
        }

    def _counting(self, tensor: Tensor) -> Tensor | None:
        """Return which rows of a tensor count, if it has a row for each token."""
        counts = self.suspect.counts
        if counts is None:
            return None
        kept = torch.as_tensor(counts, dtype=torch.bool)
        if tuple(tensor.shape[: kept.ndim]) == tuple(kept.shape):
            return kept
        return kept.reshape(-1) if tensor.shape[:1] == (kept.numel(),) else None

    def _squares(self, name: str, tensor: Tensor) -> float:
        kept = self._rows.get(name) if hasattr(self, "_rows") else None
        held = tensor if kept is None else tensor[kept]
        finite = torch.nan_to_num(held.double(), nan=0.0, posinf=0.0, neginf=0.0)
        return float((finite * finite).sum())

    def _let_to(self, name: str) -> float:
        """Return the error that a tensor may always have: its noise where it is healthy, so that it drowns no other."""
        allowed = HEALTHY * self._noises[name]
        return allowed if self._error(name, self.truth[name]) <= allowed else 0.0

    def error(self, outputs: Outputs) -> float:
        """Return the squared distance from the candidate, each tensor's relative to its size, beyond what it may have."""
        return sum(max(0.0, self._error(name, outputs[name]) - self._let[name]) for name in self.targets)

    def _error(self, name: str, got: Tensor) -> float:
        mine, theirs = self.targets[name], got.double().reshape(self.targets[name].shape)
        kept = self._rows[name]
        if kept is not None:
            mine, theirs = mine[kept], theirs[kept]
        return (
            _distance(mine, theirs, math.sqrt(self._sizes[name] / max(1, mine.numel()))) / self._sizes[name]
        )

    def relative(self, name: str, got: Tensor) -> float:
        """Return the distance of one tensor from the candidate's, relative to its size."""
        return math.sqrt(self._error(name, got))

    def residual_of(self, candidate: Outputs) -> float:
        """Return the squared distance of another candidate from the reference."""
        own, self.targets = (
            self.targets,
            {name: each.reshape(self.truth[name].shape) for name, each in candidate.items()},
        )
        try:
            return self.error(self.truth)
        finally:
            self.targets = own

    def size(self, outputs: Outputs) -> float:
        """Return how large outputs are beside the reference's, squared, in the mean."""
        sizes = [self._squares(name, outputs[name]) / self._sizes[name] for name in self.targets]
        return sum(sizes) / len(sizes)

    def share(self, outputs: Outputs) -> float:
        """Return the share of the squared difference that outputs explain; what rounding does counts as explained."""
        left = max(0.0, self.error(outputs) - 1.1 * self.noise * max(1.0, self.size(outputs)))
        return 1.0 - left / max(self.residual - self.noise, 1e-300)

    @property
    def healthy(self) -> bool:
        return all(self._let.values())

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
        ready = self._ready._replace(
            module=called,
            tensors=self.inputs if inputs is None else inputs,
            past=self.past if past is None else past,
        )
        arguments, held = ready.arguments()
        seen: Outputs = {}
        with torch.no_grad(), self._inside(called, seen):
            result = called(*arguments.args, **arguments.kwargs)
        found = named_outputs(self.path, result) | seen
        if held is not None and ready.cache is not None:
            found |= ready.cache.contents(held)
        found = {name: real(each) for name, each in found.items()}
        return found if all_targets else {name: found[name] for name in self.targets}

    @contextmanager
    def _inside(self, module: Any, seen: Outputs) -> Iterator[None]:
        """Keep what passes the borders of inner modules that the candidate has too."""
        with ExitStack() as hooks:
            for name in self._inner:
                path, _, port = name.rpartition(":")
                inner = path[len(self.path) + 1 :] if self.path else path
                if not path.startswith(self.path) or inner not in dict(module.named_modules()):
                    continue
                hook = module.get_submodule(inner).register_forward_hook(
                    _keeping(seen, path, port.startswith("in")),
                    with_kwargs=True,
                    prepend=True,  # what leaves a part is what it made, whatever is then done with it
                )
                hooks.callback(hook.remove)
            yield

    def _honest_noises(self) -> dict[str, float]:
        """Return the squared error of the reference's own module in the candidate's precision, of each tensor."""
        if self.dtype == "float64":
            return dict.fromkeys(self.targets, (4 * float(torch.finfo(torch.float64).eps)) ** 2)
        low = getattr(torch, self.dtype if self.dtype in ("float16", "bfloat16") else "float32")
        slack = 1.0 if low.itemsize == 2 else 4.0  # in float32 the order of sums matters most, and is free
        least = (2 * float(torch.finfo(low).eps)) ** 2 / 12
        try:
            found = self.in_precision(low)
        except RuntimeError:  # torch has no such operation in this type on the CPU
            return dict.fromkeys(self.targets, 16 * least)
        return {name: least + slack * self._finite_gap(name, found[name]) for name in self.targets}

    def in_precision(self, dtype: Any) -> Outputs:
        """Return what the module gives when it is computed in another type."""
        return self.run(
            {name: _cast(each, dtype) for name, each in self.inputs.items()},
            {name: _cast(each, dtype) for name, each in self.past.items()},
            module=_copied(self.module, dtype),
        )

    @contextmanager
    def as_candidate(self) -> Iterator[None]:
        """Compute in the candidate's precision inside the block, for what depends on how numbers were rounded before."""
        low = getattr(torch, self.dtype if self.dtype in LOW and "8" not in self.dtype else "float32")
        before = self.module, self.inputs, self.past
        self.module = _copied(self.module, low)
        self.inputs = {name: _cast(each, low) for name, each in self.inputs.items()}
        self.past = {name: _cast(each, low) for name, each in self.past.items()}
        try:
            yield
        finally:
            self.module, self.inputs, self.past = before

    def _finite_gap(self, name: str, found: Tensor) -> float:
        kept = self._index(name)
        gap = torch.nan_to_num(
            (found.double() - self.truth[name].double())[kept], nan=0.0, posinf=0.0, neginf=0.0
        )
        return float((gap * gap).sum()) / self._sizes[name]

    def _index(self, name: str) -> Any:
        return ... if self._rows[name] is None else self._rows[name]

    def changed(self, outputs: Mapping[str, Tensor]) -> Outputs:
        """Return the truth with some outputs replaced."""
        return {**self.truth, **outputs}

    @property
    def wrong_targets(self) -> list[str]:
        """The names of the targets that are further off than rounding explains."""
        return [name for name, allowed in self._let.items() if not allowed]

    @property
    def main(self) -> str:
        """The name of the first target: what leaves the module, if that is among them."""
        return next((name for name in self.targets if name == f"{self.path}:out"), next(iter(self.targets)))

    def first_input(self) -> Tensor:
        return next(each for each in self.inputs.values() if each.is_floating_point())

    def twins(self) -> Iterator[tuple[str, Any]]:
        """Yield the same module of other layers, nearest first, as it is in the reference."""
        found = _LAYER.match(self.path)
        if found is None:
            return
        own, modules = int(found[2]), dict(self.model.named_modules())
        numbers = sorted(
            (
                int(each[2])
                for path in modules
                if (each := _LAYER.match(path)) and each[1] == found[1] and not each[3]
            ),
            key=lambda number: (abs(number - own), number),
        )
        for number in numbers:
            path = f"{found[1]}{number}{found[3]}"
            if number != own and path in modules:
                yield path, modules[path]

    def siblings(self) -> Iterator[tuple[str, Any]]:
        """Yield the other modules in the module's parent, as they are in the reference."""
        parent, _, own = self.path.rpartition(".")
        for name, module in self.model.get_submodule(parent).named_children():
            if name != own:
                yield f"{parent}.{name}" if parent else name, module


def real(tensor: Tensor) -> Tensor:
    """Return complex numbers as pairs of real ones."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _copied(module: Any, dtype: Any) -> Any:
    memo: dict[int, Any] = {
        id(getattr(each, name)): OrderedDict()
        for each in module.modules()
        for name in HOOKS
        if hasattr(each, name)
    }
    made = copy.deepcopy(module, memo).to(dtype).eval().requires_grad_(False)
    for each in made.modules():
        if getattr(getattr(each, "config", None), "_experts_implementation", None):
            each.config._experts_implementation = "eager"  # the others do not take every type
    return made


def _cast(tensor: Tensor, dtype: Any) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _keeping(seen: Outputs, path: str, entering: bool) -> Callable[..., None]:
    def after(_: Any, args: Any, kwargs: Any, result: Any) -> None:
        if not entering:
            seen.update(named_outputs(path, result))
            return
        for number, name, tensor in tensors_in(args, kwargs):
            seen[Place(path, "in", number, name).name] = tensor

    return after


def _distance(one: Tensor, other: Tensor, scale: float) -> float:
    """Return the squared distance; what is not finite in one alone counts as ten times the usual size."""
    strange = ~(torch.isfinite(one) & torch.isfinite(other))
    if not bool(strange.any()):
        gap = one - other
        return float((gap * gap).sum())
    same = (one == other) | (torch.isnan(one) & torch.isnan(other))
    gap = torch.where(strange, torch.zeros_like(one), one - other)
    alone = int((strange & ~same).sum())
    return float((gap * gap).sum()) + alone * (10 * scale) ** 2
