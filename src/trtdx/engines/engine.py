"""What every engine is to the rest of the house: a model that is computed step by step while taps are watched."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from trtdx.errors import InputError, UnknownNameError
from trtdx.tensors.taps import Place, Selector, last_indices, path_matches

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Self

    from trtdx.tensors.feeds import ModelInput

Array: TypeAlias = "np.ndarray[Any, Any]"


class TappedTensor(NamedTuple):
    """A tensor that passed a place; the next operation may change it in place, so look or copy at once."""

    place: Place
    tensor: Any  # a NumPy array or a torch tensor
    step: int
    call: int  # how often this module was called before in the same step
    # Positional and named arguments of the module, where the engine has them.
    module_arguments: tuple[Any, Any] | None = None


Sink = Callable[[TappedTensor], None]


class TapEffect(NamedTuple):
    """What watching changed: whether the model is compiled, how many places are watched, and in words."""

    compiled: bool
    places: int
    note: str


class OperatorInput(NamedTuple):
    """What an operator reads: a tensor by its name, and its values if they never change."""

    tensor: str
    constant: Array | None = None


class ClosedOnExit:
    """Something that a `with` block closes at its end."""

    def close(self) -> None:
        """Let go of what is held."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def find_module_path(scope: str, paths: Collection[str], places: Iterable[Place], what: str) -> str:
    """Return the one path that a scope means, such as "layers.3" of "model.layers.3"."""
    last = last_indices(places)
    matches = [path for path in paths if path_matches(scope, path, last)]
    if not matches:
        raise UnknownNameError(what, scope, paths)
    if len(matches) > 1:
        raise InputError(f"{scope!r} names {len(matches)} modules: {', '.join(matches[:4])}", fix="name one of them")
    return matches[0]


class StepRunner(Protocol):
    """What a generation needs: something that is fed and gives back, step by step."""

    @property
    def inputs(self) -> Mapping[str, ModelInput]:
        """What one step is fed, by name, the cache included."""

    @property
    def outputs(self) -> Sequence[str]:
        """What one step gives back, by name, the cache included."""

    @property
    def step(self) -> int:
        """The number that the next run has."""

    @step.setter
    def step(self, number: int) -> None: ...

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Compute one step: returns the outputs, and hands each selected tensor to the sink."""


class Engine(StepRunner, Protocol):
    """A model, what to watch in it, and where what is seen goes."""

    kind: str  # "torch", "onnxruntime" or "tensorrt"
    sink: Sink | None

    @property
    def details(self) -> Mapping[str, Any]:
        """What a reader of the capture has to know to repeat the run: versions, precision, optimisation."""

    @property
    def tap_effect(self) -> TapEffect:
        """What watching changed."""

    def places(self) -> list[Place]:
        """Return every place there is, in the order of the data's flow."""

    def operator_inputs(self, place: Place) -> Sequence[OperatorInput]:
        """Return what the operator behind a place reads, where the engine knows: ONNX nodes and layers."""

    def with_selector(self, selector: Selector, sink: Sink) -> Engine:
        """Return the same model with another selector and sink."""

    def replay_inputs(self, scope: str, call: int = 0) -> Mapping[str, ModelInput]:
        """Return what has to be given to replay a module, in the order in which it is used."""

    def replay(self, scope: str, inputs: Mapping[str, Any], *, call: int = 0, step: int = 0) -> dict[str, Array]:
        """Return what leaves a module that is given its inputs, in the order of its ports."""

    def close(self) -> None:
        """Let go of the memory held."""
