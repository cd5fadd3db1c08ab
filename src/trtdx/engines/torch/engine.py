"""A Hugging Face decoder or any other module on torch, as an engine.

    engine = TorchEngine("folder", "layers.*.mlp:out", sink=show)      # or a module instead of the folder
    for step in generate_tokens(engine, [[1, 5, 9], [7]], 16): ...     # with its KV cache
    engine.replay("layers.3", captured)                                # one module with captured inputs

The first time that its inputs or places are asked for, a decoder computes one token: this shows in which order its
modules are called, and what its cache looks like.
"""

from __future__ import annotations

import copy
import sys
import weakref
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.engines.engine import Array, ClosedOnExit, Read, Sink, Tapped
from trtdx.engines.errors import EvaluationError
from trtdx.engines.torch.call_forms import AnyModule, Decoder, is_decoder
from trtdx.engines.torch.hooks import Watch, is_compiled, plain
from trtdx.engines.torch.lazy import torch
from trtdx.engines.torch.load import loaded
from trtdx.engines.torch.replay import entering, replay
from trtdx.engines.torch.values import device_of
from trtdx.errors import InputError, TrtdxError
from trtdx.tensors.taps import Place, Selector, parse_selector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtdx.tensors.feeds import Input


class TorchEngine(ClosedOnExit):
    """A module, what to watch in it, and where what is seen goes."""

    kind = "torch"

    def __init__(
        self,
        model: Any,
        selector: Selector | str = "",
        *,
        sink: Sink | None = None,
        dtype: str = "auto",
        attention: str = "",
        device: str = "cpu",
        strict: bool = True,
        compiled: bool | str = False,
        threads: int = 0,
    ) -> None:
        """Take or load a model; nothing is computed yet.

        Args:
            model: a module, or the path of a Hugging Face folder. A module is used as it is, in evaluation mode
                until the engine is closed; what its owner computes with it meanwhile is not seen.
            selector: what to watch; nothing where it is empty.
            sink: called with each selected tensor when it passes; what it raises ends the run and leaves `run` as it is.
            dtype: for a folder: what to compute in; see `load_model`.
            attention: for a folder: "eager", "sdpa", ...; see `load_model`.
            device: for a folder: where to compute.
            strict: for a folder: whether weights nobody wants are an error.
            compiled: whether to run the model through `torch.compile`, or with which of its backends.
            threads: how many compute one operator; 0 leaves it to torch.
        """
        self.sink, self.step = sink, 0
        self.path = Path(model) if isinstance(model, (str, Path)) else None
        self._options = {"dtype": dtype, "attention": attention, "device": device, "strict": strict}
        if self.path is None and (dtype, attention, device, strict) != ("auto", "", "cpu", True):
            raise InputError(
                "dtype, attention, device and strict are for loading a folder; a module is used as it is",
                fix="prepare the module before it is handed in, or pass the path of a folder",
            )
        self._backend, self._threads = compiled, threads
        self._selector = (
            parse_selector(selector) if isinstance(selector, str) and selector else selector or None
        )
        self._given = None if self.path is not None else model
        self._trained: list[Any] = []  # modules to be set back when the engine is closed
        self.notes: list[str] = []
        self._open()

    def _open(self) -> None:
        if self.path is not None:
            self._called, self.notes = loaded(self.path, **self._options)  # type: ignore[arg-type]
        else:
            self._called = self._given
        if not hasattr(self._called, "named_modules"):
            raise InputError(f"{type(self._called).__name__} is neither a torch module nor a path")
        if self._backend:
            backend = {"backend": self._backend} if isinstance(self._backend, str) else {}
            self._called = torch.compile(self._called, **backend)
        self._watch = self._watch_on(self._called)

    def _watch_on(self, called: Any) -> Watch | None:
        if self._selector is None:
            return None
        watch = Watch(called, self._selector, None, start=None)
        # An engine that is dropped without being closed leaves nothing behind either.
        weakref.finalize(self, watch.detach).atexit = False
        return watch

    @property
    def model(self) -> Any:
        """The module itself; loaded again after the engine was closed."""
        if self._called is None:
            self._open()
        return plain(self._called)

    @cached_property
    def form(self) -> Decoder | AnyModule:
        """How the module is called."""
        model = self.model
        with self._settled():
            return Decoder(model) if is_decoder(model) else AnyModule(model)

    @property
    def inputs(self) -> Mapping[str, Input]:
        """What one step is fed, by name; of any module, what its forward declares, also what may be left out."""
        return self.form.inputs

    @property
    def outputs(self) -> Sequence[str]:
        """What one step gives back, by name; of a module that is no decoder, known after its first run."""
        return self.form.outputs

    @property
    def details(self) -> dict[str, Any]:
        """What a reader of the capture has to know to repeat the run."""
        model = self.model
        config = getattr(model, "config", None)
        first = next(model.parameters(), None)
        return {
            "torch": torch.__version__,
            "transformers": getattr(sys.modules.get("transformers"), "__version__", ""),
            "model": str(self.path) if self.path else type(model).__name__,
            "architecture": type(model).__name__,
            "dtype": str(getattr(first, "dtype", "")).removeprefix("torch."),
            "attention": str(getattr(config, "_attn_implementation", None) or ""),
            "device": str(device_of(model)),
            "threads": self._threads or torch.get_num_threads(),
            "compiled": is_compiled(self._called),
            "cache": self.form.cache_note,
            "notes": list(self.notes),
        }

    @property
    def tapped(self) -> Tapped:
        """What watching changed."""
        if self._watch is None:
            return Tapped(is_compiled(self._called), 0, "")
        return self._watch.attach()

    def places(self) -> list[Place]:
        """Return every place there is, in the order in which a decoder computes one token, else as they are defined."""
        return self.form.places()

    def reads(self, place: Place) -> Sequence[Read]:
        """Return nothing: what enters a module comes with what leaves it, as `TappedTensor.module_arguments`."""
        return ()

    def watching(self, selector: Selector | str, sink: Sink) -> TorchEngine:
        """Return the same model with another selector and sink; its weights are shared."""
        _ = self.form  # made once, for both
        other = copy.copy(self)
        other.sink, other.step, other._trained = sink, 0, []
        other._selector = parse_selector(selector) if isinstance(selector, str) else selector
        other._watch = other._watch_on(self._called)
        return other

    def entering(self, scope: str, call: int = 0) -> dict[str, Input]:
        """Return what a module has to be given to be computed alone, by the names that `replay` takes."""
        return entering(self, scope, call)

    def replay(
        self, scope: str, inputs: Mapping[str, Any], *, call: int = 0, step: int = 0
    ) -> dict[str, Array]:
        """Return what leaves a module that is computed alone; see `replay_torch_module`."""
        return replay(self, scope, inputs, call=call, step=step)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Compute one step: returns the outputs, and hands each selected tensor to the sink.

        The arrays are the memory of the tensors that torch made: keep them as long as you like.

        Raises:
            InputError: something fed is missing, unknown, or of another type or shape than the model wants.
            EvaluationError: torch cannot compute it.
        """
        form = self.form
        step, self.step = self.step, self.step + 1
        with self.computing(step):
            return form.run(self._called, feeds)

    @contextmanager
    def computing(self, step: int, calls: Mapping[str, int] | None = None) -> Iterator[None]:
        """Let the sink see what is computed inside the block, and name the module where something fails."""
        watch, model = self._watch, self.model
        if watch is not None:
            watch.attach()
            watch.begin(step, calls)
            watch.sink = self.sink
        try:
            with self._settled():
                yield
        except TrtdxError:
            raise
        except Exception as err:
            if watch is not None and err is watch.failure:
                raise
            raise _failed(model, err) from err
        finally:
            if watch is not None:
                watch.sink = None

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Compute without gradients, in evaluation mode and with the threads asked for."""
        if not self._trained and self.model.training:
            self._trained = [module for module in self.model.modules() if module.training]
            for module in self._trained:
                module.training = False
        before = torch.get_num_threads()
        if self._threads and before != self._threads:
            torch.set_num_threads(self._threads)
        try:
            with torch.no_grad():
                yield
        finally:
            if self._threads and before != self._threads:
                torch.set_num_threads(before)

    def close(self) -> None:
        """Take all hooks away and let go of a model that was loaded from a folder; a later run begins anew."""
        if self._watch is not None:
            self._watch.detach()
        for module in self._trained:
            module.training = True
        self._trained = []
        if self.path is not None:
            self._called = self._watch = None
            self.__dict__.pop("form", None)


def _failed(model: Any, err: Exception) -> EvaluationError:
    """Return the error of a run that torch refused, with the innermost module where it happened."""
    names = {id(module): path for path, module in model.named_modules()}
    layer, trace = "", err.__traceback__
    while trace is not None:
        layer = names.get(id(trace.tb_frame.f_locals.get("self")), layer)
        trace = trace.tb_next
    reason = str(err).strip().partition("\n")[0] or type(err).__name__
    where = f"{layer} ({type(model.get_submodule(layer)).__name__})" if layer else type(model).__name__
    rows = getattr(model.get_submodule(layer), "num_embeddings", 0) if isinstance(err, IndexError) else 0
    beyond = f"a token id or position is beyond its {rows} rows: check the ids, or generate fewer tokens"
    return EvaluationError(f"{where} cannot be computed: {reason}", layer=layer, fix=beyond if rows else "")
