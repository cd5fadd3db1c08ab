"""The tensors that a test saw, in the order of the data's flow."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trtdx.errors import InputError, UnknownNameError
from trtdx.tensors.statistics import Statistics, source_from_array, source_statistics
from trtdx.words import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from trtdx.tensors.taps import Place

    Array = np.ndarray[Any, Any]

MAX_HELD_BYTES = 256 << 20  # of values of one test; of tensors beyond that only statistics are kept
_STORED_AS = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8", "float4_e2m1fn": "float32"}


def array_from_any(tensor: Any) -> Array:
    """Return the values of an array, a torch tensor or a number, in a type that captures know."""
    import numpy as np

    if hasattr(tensor, "data_ptr"):
        from trtdx.engines.torch.values import array_from_tensor

        return array_from_tensor(tensor)
    array = np.asarray(tensor)
    stored = _STORED_AS.get(array.dtype.name)
    return array.astype(stored) if stored else array


class RecordedTensor:
    """One tensor of one run: its values, if there was room for them, and what they look like."""

    def __init__(self, step: int, name: str, place: Place, values: Array, *, keep_values: bool) -> None:
        self.step, self.name, self.place = step, name, place
        self.dtype, self.shape = values.dtype.name, values.shape
        self.values: Array | None = values
        if not keep_values:
            _ = self.statistics
            self.values = None

    @cached_property
    def statistics(self) -> Statistics:
        return source_statistics(source_from_array(self.values))

    @property
    def title(self) -> str:
        """Its name, and its run where it is not the first."""
        return f"{self.name} (run {self.step})" if self.step else self.name


class DxRun(Mapping[str, Any]):
    """What one run computed: names to values, in the order of the data's flow.

    Attributes:
        step: the number of the run in its test.
        outputs: the names of what the model gives back.
        result: what the model returned, as it is; of a torch module, its tensors.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.outputs: list[str] = []
        self.result: Any = None
        self.tensors: dict[str, RecordedTensor] = {}

    def __getitem__(self, name: str) -> Array:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise UnknownNameError(f"tensor of run {self.step}", name, self.tensors)
        if tensor.values is None:
            raise InputError(
                f"the values of {name} were not held: the test holds {format_bytes(MAX_HELD_BYTES)} already",
                fix=f"look at less: dx.tap('tensor:{name}')",
            )
        return tensor.values

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        return f"<run {self.step}: {', '.join(self.tensors) or 'nothing'}>"


class RecordedTensors:
    """All that a test saw, run by run."""

    def __init__(self) -> None:
        self.runs: list[DxRun] = []
        self._held_bytes = 0

    def begin_run(self) -> DxRun:
        self.runs.append(DxRun(len(self.runs)))
        return self.runs[-1]

    def add(self, run: DxRun, name: str, place: Place, tensor: Any) -> str:
        """Keep a copy of a tensor; returns the name it has, with a number where the name is taken."""
        values = array_from_any(tensor)
        fits = self._held_bytes + values.nbytes <= MAX_HELD_BYTES
        self._held_bytes += values.nbytes if fits else 0
        free, number = name, 0
        while free in run.tensors:
            number += 1
            free = f"{name}#{number}"
        run.tensors[free] = RecordedTensor(run.step, free, place, values.copy() if fits else values, keep_values=fits)
        return free

    def __iter__(self) -> Iterator[RecordedTensor]:
        return (tensor for run in self.runs for tensor in run.tensors.values())

    def __bool__(self) -> bool:
        return any(run.tensors for run in self.runs)
