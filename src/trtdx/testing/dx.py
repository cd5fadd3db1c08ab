"""The fixture `dx`: define a network, a module or an ONNX graph, name tensors, run, and assert.

def test_mlp(dx):
    net = dx.network()
    ...
    dx.register("hidden", gelu.get_output(0))
    dx.run(x=x)
    dx.assert_close("hidden", expected)
"""

from __future__ import annotations

import zlib
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.errors import InputError, UnknownNameError
from trtdx.tensors.closeness import Tolerance
from trtdx.tensors.taps import Place, parse_selector
from trtdx.testing.assertions import assert_close, assert_runs_match
from trtdx.testing.recorded_tensors import DxRun, RecordedTensors
from trtdx.testing.subjects import DxSubject, ModuleSubject, NetworkSubject, OnnxSubject, installed_versions
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    import numpy as np

    Array = np.ndarray[Any, Any]


class DxMarker:
    """What `@pytest.mark.trtdx(...)` says of a test."""

    def __init__(
        self, rtol: float | None = None, atol: float | None = None, taps: str = "", golden: bool = True
    ) -> None:
        self.tolerance = Tolerance(rtol, atol)
        self.taps, self.golden = taps, golden


class Dx:
    """What one test defines, runs and sees."""

    def __init__(self, test: str, marker: DxMarker, folder: Callable[[], Path]) -> None:
        """Start with nothing.

        Args:
            test: its id, of which the random numbers are made.
            marker: what its marker says.
            folder: makes an empty folder for files that an engine wants.
        """
        self.tensors = RecordedTensors()
        self.marker = marker
        self._test, self._folder = test, folder
        self._taps = marker.taps
        self._subjects: list[DxSubject] = []  # the current one last
        self._has_run = False
        self._kept_alive: list[Any] = []  # builders, whose networks have to be outlived
        self._log: tuple[Any, int] | None = None
        self._trt: ModuleType | None = None
        self._open = ExitStack()

    def __repr__(self) -> str:
        return f"<dx: {format_count(len(self.tensors.runs), 'run')}, {format_count(len(list(self.tensors)), 'tensor')}>"

    # Something to run

    def network(self, network: Any = None, *, plugins: Any = None, collectives: Any = None) -> Any:
        """Return an empty INetworkDefinition, strongly typed, or take one that is there.

        Args:
            network: one that somebody else made; a new one where it is left out.
            plugins: reference functions for plugins, as `trtdx.engines.tensorrt.evaluate.prepared_network` takes them.
            collectives: what collective layers do, likewise.
        """
        if network is not None and self._make_current(network):
            return network
        from trtdx.engines.tensorrt.bindings import bindings_of_object
        from trtdx.engines.tensorrt.network.registration import collect_registered
        from trtdx.testing.networks import new_network, shared_logger

        if network is None:
            new = new_network()
            self._kept_alive.append(new)
            network, self._trt = new.network, new.trt
            log = shared_logger(new.trt)
            self._log = self._log or (log, log.count)
        else:
            self._trt = bindings_of_object(network)
        registry = self._open.enter_context(collect_registered())
        options = {"plugins": plugins, "collectives": collectives}
        self._subjects.append(NetworkSubject(network, registry, self._trt.__name__, options))
        return network

    @property
    def trt(self) -> ModuleType:
        """The bindings of the network: `dx.trt.float32`, `dx.trt.ActivationType.GELU_ERF`."""
        if self._trt is None:
            raise InputError("dx.trt is that of a network, and there is none", fix="call dx.network() first")
        return self._trt

    def module(self, module: Any) -> Any:
        """Take a torch module, to be run as it is; returns it."""
        if not hasattr(module, "named_modules"):
            raise InputError(f"a {type(module).__name__} is not a torch module")
        if not self._make_current(module):
            self._subjects.append(ModuleSubject(module))
        return module

    def onnx(self, model: Any, *, engine: str = "onnxruntime", **options: Any) -> Any:
        """Take an ONNX model; returns it.

        Args:
            model: a path, or a ModelProto.
            engine: "onnxruntime", or "tensorrt": parsed by TensorRT and computed on the CPU.
            options: of that engine, such as `optimisation="none"`.
        """
        path = Path(model) if isinstance(model, (str, Path)) else self._write_model(model)
        self._subjects.append(OnnxSubject(model, path, engine, options))
        return model

    def _write_model(self, model: Any) -> Path:
        if not hasattr(model, "SerializeToString"):
            raise InputError(f"a {type(model).__name__} is not an ONNX model", fix="pass a path or an onnx.ModelProto")
        path = self._folder() / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    def _make_current(self, thing: Any) -> bool:
        """Make something current that was handed in before."""
        current = next((subject for subject in self._subjects if subject.thing is thing), None)
        if current is not None:
            self._subjects.remove(current)
            self._subjects.append(current)
        return current is not None

    # What to look at

    def register(self, name: str, tensor: Any) -> None:
        """Look at a tensor under a name: one of the network, when it runs; an array or torch tensor, as it is now."""
        if hasattr(tensor, "is_network_output") or hasattr(tensor, "trt_tensor"):
            self._current_network("register a tensor of").registry.register(name, tensor)
            return
        if not hasattr(tensor, "shape") or not hasattr(tensor, "dtype"):
            raise InputError(
                f"{name} is registered as a {type(tensor).__name__}, which is not a tensor",
                fix=f"of a layer, pass its output: dx.register({name!r}, layer.get_output(0))",
            )
        run = self.tensors.runs[-1] if self.tensors.runs else self.tensors.begin_run()
        self.tensors.add(run, name, Place(name, op="Registered", tensor=name), tensor)

    def register_all(self, model: Any) -> int:
        """Look at all of a TensorRT-LLM model's `named_network_outputs()`; returns how many there are."""
        if not hasattr(model, "named_network_outputs"):
            raise InputError(f"a {type(model).__name__} has no named_network_outputs()")
        return self._current_network("register tensors of").registry.register_all(model)

    def _current_network(self, to: str) -> NetworkSubject:
        for subject in reversed(self._subjects):
            if isinstance(subject, NetworkSubject):
                return subject
        raise InputError(f"there is no network to {to}", fix="call dx.network() first")

    def tap(self, selector: str) -> None:
        """Look at what a selector names, such as "layers.*.mlp:out", and no longer at everything."""
        parse_selector(selector)
        self._taps = f"{self._taps}, {selector}" if self._taps else selector

    @property
    def taps(self) -> str:
        return self._taps

    # Running and asserting

    def run(self, *args: Any, **kwargs: Any) -> DxRun:
        """Run what was handed in last; returns every tensor seen, by name.

        A network and an ONNX model are fed by name, a torch module is called with what is given.
        """
        if not self._subjects:
            raise InputError("there is nothing to run", fix="dx.network(), dx.module(m) or dx.onnx(path) first")
        early = self.tensors.runs and not self._has_run  # arrays registered before the first run belong to it
        run = self.tensors.runs[0] if early else self.tensors.begin_run()
        self._has_run = True
        run.result, run.outputs = self._subjects[-1].run(
            args, kwargs, self._taps, lambda name, place, tensor: self.tensors.add(run, name, place, tensor)
        )
        return run

    def __getitem__(self, name: str) -> Array:
        """Return the values of a tensor in the last run that has one of this name."""
        for run in reversed(self.tensors.runs):
            if name in run:
                return run[name]
        raise UnknownNameError("tensor of this test", name, {tensor.name for tensor in self.tensors})

    def assert_close(
        self, tensor: Any, reference: Any, *, rtol: float | None = None, atol: float | None = None
    ) -> None:
        """Fail unless a tensor, by its name or as it is, is close to a reference.

        The tolerances are those of the types where they are not told, here or by the marker.
        """
        __tracebackhide__ = True
        name, values = (tensor, self[tensor]) if isinstance(tensor, str) else ("the tensor", tensor)
        assert_close(name, values, reference, self._tolerance(rtol, atol))

    def assert_matches(
        self,
        reference: Mapping[str, Any],
        *,
        names: Mapping[str, str] | None = None,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> None:
        """Fail unless the last run is close to another one, tensor by tensor; the first that is not is named.

        Args:
            reference: another run, or values by name. Of a run, what has the same name is compared; values given by
                name must all be there.
            names: for names here, those in the reference where they differ.
            rtol: relative tolerance.
            atol: absolute tolerance.
        """
        __tracebackhide__ = True
        run = next((candidate for candidate in reversed(self.tensors.runs) if candidate is not reference), None)
        if run is None:
            raise InputError("nothing was run that could match", fix="dx.run(...) first")
        assert_runs_match(run, reference, names or {}, self._tolerance(rtol, atol))

    def _tolerance(self, rtol: float | None, atol: float | None) -> Tolerance:
        marked = self.marker.tolerance
        return Tolerance(marked.rtol if rtol is None else rtol, marked.atol if atol is None else atol)

    @cached_property
    def rng(self) -> np.random.Generator:
        """Random numbers that are the same in every run of this test."""
        import numpy as np

        return np.random.default_rng(zlib.crc32(self._test.encode("utf-8", "backslashreplace")))

    # For the plugin

    @property
    def engine(self) -> str:
        return ", ".join(dict.fromkeys(subject.engine for subject in self._subjects)) or "the test itself"

    def versions(self) -> dict[str, str]:
        """Return the versions of what computed."""
        return installed_versions(dict.fromkeys(name for subject in self._subjects for name in subject.packages))

    def messages(self) -> list[str]:
        """Return what TensorRT said meanwhile."""
        if self._log is None:
            return []
        from trtdx.testing.networks import messages_since

        return list(messages_since(*self._log))

    def close(self) -> None:
        with suppress(ValueError):  # of an asynchronous test, whose context is gone
            self._open.close()
        self._subjects.clear()
        self._kept_alive.clear()
