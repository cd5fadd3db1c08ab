"""Takes what an engine sees and puts what is wanted of it into a capture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.capture.session.selection import CaptureSelection, TokenPositions, select_columns
from trtdx.errors import TrtdxError
from trtdx.tensors.statistics import source_from_array, source_from_torch, source_statistics
from trtdx.tensors.taps import Place
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trtdx.capture.store.writer import CaptureWriter
    from trtdx.engines.engine import OperatorInput, TappedTensor
    from trtdx.tensors.statistics import Statistics, TensorSource

    Reads = Callable[[Place], Sequence[OperatorInput]]

# Where launchers say which process this is: torchrun, Open MPI, Slurm, MPICH and Intel MPI.
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK")


class NotFiniteError(TrtdxError):
    """A watched run met a NaN or an infinity; what was seen until then is in the capture.

    Attributes:
        place: where; step: when; statistics: of that tensor.
        has_inputs: whether the values of what led to it are in the capture.
    """

    def __init__(self, observed: TappedTensor, statistics: Statistics, *, has_inputs: bool) -> None:
        self.place, self.step, self.statistics = observed.place, observed.step, statistics
        self.has_inputs = has_inputs
        super().__init__(
            f"{observed.place.name} has {statistics.specials} at step {observed.step}, "
            f"of {format_count(statistics.elements, 'element')}"
        )


class Recorder:
    """A sink that writes to a capture."""

    def __init__(
        self,
        writer: CaptureWriter,
        selection: CaptureSelection,
        places: Sequence[Place],
        *,
        reads: Reads | None = None,
    ) -> None:
        """Take what is seen.

        Args:
            writer: the capture; closed by whoever opened it.
            selection: what of the run is to be kept.
            places: all there are, so that a selector's -1 is known.
            reads: tells what the operator behind a place reads, where an engine knows.
        """
        self.writer, self.selection = writer, selection
        self.tokens: TokenPositions | None = None
        self._reads = reads
        self._chooses = selection.values.predicate_among(places) if selection.values else None
        self._kept: dict[Place, bool] = {}
        self._masked: set[str] = set()  # tensors of this step whose -Inf come from a mask
        self._step, self._is_step_selected = -1, True  # the step that runs, and whether it is wanted
        # The tensor captured last, and what must not have changed since to capture it again.
        self._last: Any = None
        self._last_state: tuple[bool, int, int] | None = None

    def begin(self, step: int, tokens: TokenPositions | None) -> None:
        """Say what the coming step computes."""
        self._step, self._is_step_selected, self.tokens = step, self.selection.has_step(step), tokens
        self._masked.clear()
        self._last = None

    def __call__(self, observed: TappedTensor) -> None:
        place, tensor, step, call, _ = observed
        if step != self._step:
            self.begin(step, self.tokens)
        if not self._is_step_selected:
            return
        if self.selection.positions and self.tokens is not None:
            tensor = self._at_positions(tensor, self.tokens)
            if tensor is None:
                return
        values = self._chooses is not None and self.keeps(place)
        if call:
            place = place._replace(path=f"{place.path}#{call}")  # a later call has a name of its own
        try:
            version = getattr(tensor, "_version", 0)  # how often torch wrote to it; arrays do not count
        except RuntimeError:  # torch does not count in inference mode
            version = -1
        writer = self.writer
        if tensor is self._last and self._is_unchanged(values, version):
            writer.add_again(place)
        else:
            source = source_from_tensor(tensor)
            special = writer.add(step, place, source, values=values)
            if special and self.selection.watch:
                self._stop_if_not_finite(observed, place, source)
        self._last, self._last_state = tensor, (values, version, writer.records)

    def _is_unchanged(self, values: bool, version: int) -> bool:
        """Whether the tensor captured last is still the last in the capture, kept as wanted, and was not written to."""
        now = (values, version, self.writer.records)
        return version >= 0 and now == self._last_state and not self.selection.watch

    def keeps(self, place: Place) -> bool:
        """Whether the values of a place are kept."""
        if self._chooses is None:
            return False
        is_kept = self._kept.get(place)
        if is_kept is None:
            is_kept = self._kept[place] = self._chooses(place)
        return is_kept

    def _at_positions(self, tensor: Any, tokens: TokenPositions) -> Any:
        """Return the part of a tensor at the positions asked for; all of one that has no tokens."""
        axis = tokens.axis_in(tuple(tensor.shape))
        if axis is None:
            return tensor
        columns = tokens.columns_at(self.selection.positions)
        return select_columns(tensor, axis, columns) if columns else None

    def _stop_if_not_finite(self, observed: TappedTensor, place: Place, source: TensorSource) -> None:
        """Stop the run, unless all that is not finite was put there by a mask."""
        statistics = source_statistics(source)
        if not statistics.nan and not statistics.pos_inf and self._is_masked(observed, statistics):
            self._masked.add(observed.place.name)
            return
        if not self.keeps(observed.place):
            self.writer.add(observed.step, place, source, values=True)
        inputs = list(module_inputs(observed))
        for entering, tensor in inputs:
            self.writer.add(observed.step, entering, source_from_tensor(tensor), values=True)
        raise NotFiniteError(observed, statistics, has_inputs=bool(inputs))

    def _is_masked(self, observed: TappedTensor, statistics: Statistics) -> bool:
        """Whether -Inf is the work of a mask: a tensor of it and one other value, or what was made with one."""
        if not statistics.min < statistics.max:
            return True
        if any(source_statistics(source_from_tensor(tensor)).neg_inf for _, tensor in module_inputs(observed)):
            return True
        reads = self._reads(observed.place) if self._reads else ()
        return any(
            read.tensor in self._masked or (read.constant is not None and _has_minus_inf(read.constant))
            for read in reads
        )


def module_inputs(observed: TappedTensor) -> Iterator[tuple[Place, Any]]:
    """Yield what entered the module that a tensor left, where the engine has it."""
    if observed.module_arguments is None or observed.place.port != "out":
        return
    from trtdx.engines.torch.hooks import iterate_tensors

    for number, argument, tensor in iterate_tensors(*observed.module_arguments):
        yield Place(observed.place.path, "in", number, argument, observed.place.op), tensor


def _has_minus_inf(array: Any) -> bool:
    return bool(array.dtype.kind in "fV" and source_statistics(source_from_array(array)).neg_inf)


def source_from_tensor(tensor: Any) -> TensorSource:
    """Return where the elements of an array or a torch tensor lie."""
    return source_from_torch(tensor) if hasattr(tensor, "data_ptr") else source_from_array(tensor)


def rank_from_environment(environment: Mapping[str, str]) -> int:
    """Return which rank this process is, as its launcher says; 0 where none says."""
    numbers = (environment.get(name, "") for name in RANK_VARIABLES)
    return next((int(number) for number in numbers if number.isdigit()), 0)
