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

from trtdx.engines.engine import Array, ClosedOnExit, OperatorInput, Sink, TapEffect
from trtdx.engines.errors import EvaluationError
from trtdx.engines.torch.call_forms import DecoderForm, PlainModuleForm, is_causal_decoder
from trtdx.engines.torch.hooks import ModuleWatch, is_compiled, uncompiled_module
from trtdx.engines.torch.hugging_face import load_model
from trtdx.engines.torch.lazy_import import torch
from trtdx.engines.torch.replay import replay_torch_module, torch_module_inputs
from trtdx.engines.torch.values import model_device
from trtdx.errors import InputError, TrtdxError
from trtdx.tensors.taps import Place, Selector, parse_selector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtdx.tensors.feeds import ModelInput


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
        self._selector = parse_selector(selector) if isinstance(selector, str) and selector else selector or None
        self._module = None if self.path is not None else model
        self._training_modules: list[Any] = []  # modules to be set back when the engine is closed
        self.notes: list[str] = []
        self._open_model()

    def _open_model(self) -> None:
        if self.path is not None:
            self._callable_model, self.notes = load_model(self.path, **self._options)  # type: ignore[arg-type]
        else:
            self._callable_model = self._module
        if not hasattr(self._callable_model, "named_modules"):
            raise InputError(f"{type(self._callable_model).__name__} is neither a torch module nor a path")
        if self._backend:
            backend = {"backend": self._backend} if isinstance(self._backend, str) else {}
            self._callable_model = torch.compile(self._callable_model, **backend)
        self._watch = self._create_watch(self._callable_model)

    def _create_watch(self, model: Any) -> ModuleWatch | None:
        if self._selector is None:
            return None
        watch = ModuleWatch(model, self._selector, None, start=None)
        # An engine that is dropped without being closed leaves nothing behind either.
        weakref.finalize(self, watch.detach).atexit = False
        return watch

    @property
    def model(self) -> Any:
        """The module itself; loaded again after the engine was closed."""
        if self._callable_model is None:
            self._open_model()
        return uncompiled_module(self._callable_model)

    @cached_property
    def form(self) -> DecoderForm | PlainModuleForm:
        """How the module is called."""
        model = self.model
        with self._inference_settings():
            return DecoderForm(model) if is_causal_decoder(model) else PlainModuleForm(model)

    @property
    def inputs(self) -> Mapping[str, ModelInput]:
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
            "device": str(model_device(model)),
            "threads": self._threads or torch.get_num_threads(),
            "compiled": is_compiled(self._callable_model),
            "cache": self.form.cache_note,
            "notes": list(self.notes),
        }

    @property
    def tap_effect(self) -> TapEffect:
        """What watching changed."""
        if self._watch is None:
            return TapEffect(is_compiled(self._callable_model), 0, "")
        return self._watch.attach()

    def places(self) -> list[Place]:
        """Return every place there is, in the order in which a decoder computes one token, else as they are defined."""
        return self.form.places()

    def operator_inputs(self, place: Place) -> Sequence[OperatorInput]:
        """Return nothing: what enters a module comes with what leaves it, as `TappedTensor.module_arguments`."""
        return ()

    def with_selector(self, selector: Selector | str, sink: Sink) -> TorchEngine:
        """Return the same model with another selector and sink; its weights are shared."""
        _ = self.form  # made once, for both
        other = copy.copy(self)
        other.sink, other.step, other._training_modules = sink, 0, []
        other._selector = parse_selector(selector) if isinstance(selector, str) else selector
        other._watch = other._create_watch(self._callable_model)
        return other

    def replay_inputs(self, scope: str, call: int = 0) -> dict[str, ModelInput]:
        """Return what a module has to be given to be computed alone, by the names that `replay` takes."""
        return torch_module_inputs(self, scope, call)

    def replay(self, scope: str, inputs: Mapping[str, Any], *, call: int = 0, step: int = 0) -> dict[str, Array]:
        """Return what leaves a module that is computed alone; see `replay_torch_module`."""
        return replay_torch_module(self, scope, inputs, call=call, step=step)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Compute one step: returns the outputs, and hands each selected tensor to the sink.

        The arrays are the memory of the tensors that torch made: keep them as long as you like.

        Raises:
            InputError: something fed is missing, unknown, or of another type or shape than the model wants.
            EvaluationError: torch cannot compute it.
        """
        form = self.form
        step, self.step = self.step, self.step + 1
        with self.watch_computation(step):
            return form.run(self._callable_model, feeds)

    @contextmanager
    def watch_computation(self, step: int, calls: Mapping[str, int] | None = None) -> Iterator[None]:
        """Let the sink see what is computed inside the block, and name the module where something fails."""
        watch, model = self._watch, self.model
        if watch is not None:
            watch.attach()
            watch.begin_step(step, calls)
            watch.sink = self.sink
        try:
            with self._inference_settings():
                yield
        except TrtdxError:
            raise
        except Exception as err:
            if watch is not None and err is watch.failure:
                raise
            raise _error_from_torch(model, err) from err
        finally:
            if watch is not None:
                watch.sink = None

    @contextmanager
    def _inference_settings(self) -> Iterator[None]:
        """Compute without gradients, in evaluation mode and with the threads asked for."""
        if not self._training_modules and self.model.training:
            self._training_modules = [module for module in self.model.modules() if module.training]
            for module in self._training_modules:
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
        for module in self._training_modules:
            module.training = True
        self._training_modules = []
        if self.path is not None:
            self._callable_model = self._watch = None
            self.__dict__.pop("form", None)


def _error_from_torch(model: Any, err: Exception) -> EvaluationError:
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
