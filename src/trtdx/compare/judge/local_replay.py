"""The reference computed anew from what the candidate had: each operation is given the candidate's own inputs.

In one run, every tensor that the candidate has too is first shown, as the reference computes it, and then exchanged
for the candidate's. So what is shown at a place depends only on the candidate's tensors just before it: an error from
further up is in them, and no longer in the difference. The healthy candidate is as far from such a run in float64 as
the reference in the candidate's type is; a mistake stands out alone, where it is made.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trtdx.tensors.taps import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trtdx.compare.nouns import Array
    from trtdx.engines.torch.engine import TorchEngine

    TensorDonor = Callable[[int, str], "Array | None"]


@contextmanager
def graft_candidate_tensors(engine: TorchEngine, donor: TensorDonor) -> Iterator[TensorGrafts]:
    """Exchange what enters and leaves modules for what a donor has, in every run inside the block.

    Args:
        engine: on torch; what it is told to watch is seen before it is exchanged.
        donor: returns the tensor of a step by the name that a capture gives it; none where it has none.
    """
    _ = (
        engine.form,
        engine.places(),
        engine.tap_effect,
    )  # computes a token and hooks the watch up, both before us
    grafts = TensorGrafts(engine, donor)
    hooks = []
    for path, module in engine.model.named_modules():
        hooks.append(module.register_forward_pre_hook(grafts.input_hook(path), with_kwargs=True))
        hooks.append(module.register_forward_hook(grafts.output_hook(path)))
    try:
        yield grafts
    finally:
        for hook in hooks:
            hook.remove()


class TensorGrafts:
    """Exchanges tensors while a model computes.

    Attributes:
        made: how many tensors were exchanged.
    """

    def __init__(self, engine: TorchEngine, donor: TensorDonor) -> None:
        self.replaced_count = 0
        self._engine, self._donor = engine, donor
        self._step = -1
        self._calls: dict[tuple[str, str], int] = {}

    def input_hook(self, path: str) -> Callable[..., Any]:
        """Return the hook for what enters a module."""

        def hook(_: Any, args: Any, kwargs: Any) -> Any:
            return self._replace_tensors(path, "in", tuple(args), dict(kwargs))

        return hook

    def output_hook(self, path: str) -> Callable[..., Any]:
        """Return the hook for what leaves a module."""

        def hook(_: Any, __: Any, output: Any) -> Any:
            several = isinstance(output, (tuple, list))
            values, _named = self._replace_tensors(path, "out", tuple(output) if several else (output,), {})
            if not several:
                return values[0]
            return type(output)(*values) if hasattr(output, "_fields") else type(output)(values)

        return hook

    def _replace_tensors(
        self, path: str, port: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        from collections.abc import Mapping as AnyMapping

        from trtdx.engines.torch.hooks import MOST_DEPTH, iterate_tensors, replace_tensors

        step = self._engine.step - 1
        if step != self._step:
            self._step = step
            self._calls.clear()
        call = self._calls[path, port] = self._calls.get((path, port), -1) + 1
        called = f"{path}#{call}" if call else path
        names = iter(
            [Place(called, port, number, argument).name for number, argument, _ in iterate_tensors(args, kwargs)]
        )

        def put(tensor: Any) -> Any:
            return self._replace_tensor(next(names), tensor)

        new_args = [replace_tensors(value, MOST_DEPTH + isinstance(value, AnyMapping), put) for value in args]
        return tuple(new_args), {name: replace_tensors(value, MOST_DEPTH, put) for name, value in kwargs.items()}

    def _replace_tensor(self, name: str, tensor: Any) -> Any:
        from trtdx.engines.torch.values import tensor_from_array

        array = self._donor(self._step, name)
        if array is None or tuple(array.shape) != tuple(tensor.shape):
            return tensor
        donor_tensor = tensor_from_array(array, tensor.device)
        if donor_tensor.is_floating_point() != tensor.is_floating_point():
            return tensor
        self.replaced_count += 1
        return donor_tensor.to(tensor.dtype)
