"""What a test can run: a TensorRT network, a torch module, an ONNX model. Each tells all it sees to one function."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol

from trtdx.engines.errors import EvaluationError
from trtdx.errors import InputError
from trtdx.tensors.taps import Place, parse_selector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from trtdx.engines.engine import TappedTensor
    from trtdx.engines.tensorrt.network.registration import TensorRegistry

    Show = Callable[[str, Place, Any], str]

INPUT, OUTPUT = "input", "output"  # what a torch module's own are called


class DxSubject(Protocol):
    """Something that a test runs."""

    engine: str  # "tensorrt_rtx evaluate"
    thing: Any  # what the test handed in or got
    packages: Sequence[str]  # whose versions decide on values

    def run(self, args: Any, kwargs: Any, taps: str, show: Show) -> tuple[Any, list[str]]:
        """Compute once; returns what comes back, and the names that `show` gave to it."""


class NetworkSubject:
    """A TensorRT network definition, computed on the CPU."""

    def __init__(self, network: Any, registry: TensorRegistry, package: str, options: Mapping[str, Any]) -> None:
        self.thing, self.registry = network, registry
        self.engine = f"{package} evaluate"
        self.packages: Sequence[str] = (package, "torch", "numpy")
        self._options = options

    def run(self, args: Any, kwargs: Any, taps: str, show: Show) -> tuple[Any, list[str]]:
        """Compute the network; without taps and registered tensors every tensor is shown."""
        from trtdx.engines.tensorrt import prepare_network
        from trtdx.engines.tensorrt.network.network_graph import sort_layers

        if not self.thing.num_outputs and not self.registry.tensors:
            raise InputError(
                "the network has no output and nothing is registered, so there is nothing to compute",
                fix="network.mark_output(tensor), or dx.register(name, tensor)",
            )
        feeds = feeds_by_name(args, kwargs)
        prepared = prepare_network(self.thing, **self._options)
        inputs = [tensor.name for tensor in prepared.graph.inputs]
        outputs = [tensor.name for tensor in prepared.graph.outputs]
        ordered = [tensor.name for layer in sort_layers(prepared.graph) for tensor in layer.outputs]
        names = self._registered_names(taps)
        try:
            values = prepared(feeds, list(names) or "all")
        except EvaluationError as err:  # what was computed before is what the test's author wants to see
            values = {name: feeds[name] for name in inputs} | dict(err.partial)
            _show_tensors(values, [*inputs, *ordered], names, show)
            raise
        values = {name: feeds[name] for name in inputs} | values
        shown = _show_tensors(values, [*inputs, *ordered], names, show)
        return {name: values[name] for name in outputs}, [shown[name] for name in outputs]

    def _registered_names(self, taps: str) -> dict[str, list[str]]:
        """Return the names that the test gave to tensors, by the network's own."""
        names: dict[str, list[str]] = {}
        for name, tensor in self.registry.tensors.items():
            names.setdefault(tensor.name, []).append(name)
        if taps:
            from trtdx.engines.tensorrt.network.places import places_by_tensor, places_of_network

            for tensor, places in places_by_tensor(places_of_network(self.thing), taps).items():
                if tensor not in names:
                    names[tensor] = [places[0].name]
        return names


def _show_tensors(
    values: Mapping[str, Any], ordered: Iterable[str], names: Mapping[str, Sequence[str]], show: Show
) -> dict[str, str]:
    """Show tensors of a network in their order, each under the names it was given; returns what each is called."""
    shown = {}
    for tensor in ordered:
        if tensor in values:
            known = names.get(tensor, [tensor])
            called = [show(name, Place(name, op="Registered", tensor=name), values[tensor]) for name in known]
            shown[tensor] = called[0]
    return shown


class ModuleSubject:
    """A torch module, run as it is."""

    def __init__(self, module: Any) -> None:
        self.thing = module
        self.engine, self.packages = "torch", ("torch", "numpy")  # type: tuple[str, Sequence[str]]

    def run(self, args: Any, kwargs: Any, taps: str, show: Show) -> tuple[Any, list[str]]:
        """Call the module; without taps the outputs of every module in it are shown."""
        from trtdx.engines.torch.hooks import iterate_tensors, module_places, tapped

        for number, argument, tensor in iterate_tensors(args, kwargs):
            show(_port_name(INPUT, number, argument), Place("", "in", number, argument), tensor)

        def see(tensor: TappedTensor) -> None:
            if tensor.place.path:  # the module's own inputs and outputs have names of their own
                show(tensor.place.name, tensor.place, tensor.tensor)

        selector = parse_selector(taps or "**:out")
        if not taps and not any(place.path for place in module_places(self.thing)):
            result = self.thing(*args, **kwargs)
        else:
            with tapped(self.thing, selector, see):
                result = self.thing(*args, **kwargs)
        outputs = [
            show(_port_name(OUTPUT, number, argument), Place("", "out", number, argument), tensor)
            for number, argument, tensor in iterate_tensors((result,), {})
        ]
        return result, outputs


class OnnxSubject:
    """An ONNX model on ONNX Runtime, or parsed into a TensorRT network and computed on the CPU."""

    def __init__(self, thing: Any, path: Path, engine: str, options: Mapping[str, Any]) -> None:
        if engine not in ("onnxruntime", "tensorrt"):
            raise InputError(f"{engine!r} computes no ONNX models", fix="engine='onnxruntime' or 'tensorrt'")
        self.thing, self._path, self._options = thing, path, options
        self.engine = engine
        self.packages: Sequence[str] = (
            ("onnxruntime", "numpy") if engine == "onnxruntime" else ("tensorrt_rtx", "tensorrt", "torch", "numpy")
        )

    def run(self, args: Any, kwargs: Any, taps: str, show: Show) -> tuple[Any, list[str]]:
        """Compute the model; without taps every tensor is shown."""
        feeds = feeds_by_name(args, kwargs)

        results: list[str] = []

        def see(tensor: TappedTensor) -> None:
            if tensor.place.path and tensor.place.tensor not in results:  # shown at the end
                show(tensor.place.name, tensor.place, tensor.tensor)

        for name, value in feeds.items():
            show(name, Place("", "in", 0, name, tensor=name), value)
        with self._open_engine(taps or "**", see) as engine:
            results += engine.outputs
            values = engine.run(feeds)
        outputs = [show(name, Place("", "out", 0, name, tensor=name), values[name]) for name in results]
        return values, outputs

    def _open_engine(self, selector: str, see: Callable[[TappedTensor], None]) -> Any:
        if self.engine == "onnxruntime":
            from trtdx.engines.onnxruntime.engine import OrtEngine

            return OrtEngine(self._path, selector, sink=see, **self._options)
        from trtdx.engines.tensorrt.evaluate.engine import TrtEngine

        return TrtEngine(self._path, selector, sink=see, **self._options)


def feeds_by_name(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is fed by name: `run({"x": x})` or `run(x=x)`."""
    from trtdx.testing.recorded_tensors import array_from_any

    if len(args) > 1 or (args and not isinstance(args[0], Mapping)):
        raise InputError("a network and an ONNX model are fed by name", fix='dx.run({"x": x}) or dx.run(x=x)')
    feeds = {**(args[0] if args else {}), **kwargs}
    return {name: array_from_any(value) if hasattr(value, "data_ptr") else value for name, value in feeds.items()}


def _port_name(side: str, number: int, argument: str) -> str:
    return f"{side}.{argument}" if argument else f"{side}[{number}]" if number else side


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    return {name: version for name in packages if (version := installed_version(name))}


def installed_version(package: str) -> str:
    """Return a package's version; nothing where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
