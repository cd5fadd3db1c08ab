"""A network definition from an ONNX file or from a function of the user's; runs in the compiling process."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.engines.tensorrt.build.errors import BuildError
from trtdx.engines.tensorrt.build.nouns import NO_DRIVER_ECHO, Binding
from trtdx.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.engines.tensorrt.build.frames import BuildJob
    from trtdx.engines.tensorrt.network.registration import TensorRegistry

MOST_ERRORS = 5


def create_network(trt: Any, builder: Any, *, strongly_typed: bool) -> Any:
    """Return an empty network; TensorRT before 10 wants to be told that the batch is a dimension."""
    flags = trt.NetworkDefinitionCreationFlag
    flag_names = ["EXPLICIT_BATCH", "STRONGLY_TYPED"] if strongly_typed else ["EXPLICIT_BATCH"]
    bits = [1 << int(getattr(flags, name)) for name in flag_names if hasattr(flags, name)]
    return builder.create_network(sum(bits))


def parse_onnx(trt: Any, network: Any, logger: Any, path: str) -> Any:
    """Fill the network from an ONNX file; returns the parser, which holds the weights."""
    parser = trt.OnnxParser(network, logger)
    parsed = parser.parse_from_file(path)
    errors = [parser.get_error(number) for number in range(parser.num_errors)]
    if not parsed or errors:
        reasons = (
            "; ".join(_render_parser_error(error) for error in errors[:MOST_ERRORS]) or "the parser gave no reason"
        )
        raise BuildError(f"TensorRT's parser refuses {path}: {reasons}", stage="parse")
    if not network.num_layers and not network.num_outputs:
        # TensorRT-RTX 1.7 returns True for an empty file, and for bytes that can be read as an empty message.
        problem = "holds nothing that TensorRT's parser can see: it is empty, or no ONNX model"
        fix = f"trtdx inspect {path}"
        raise BuildError(f"{path} {problem}", stage="parse", fix=fix, code="DX166", problem=problem)
    return parser


def _render_parser_error(error: Any) -> str:
    """Return what the parser says, with the node it says it of."""
    named = (getattr(error, name, str)() for name in ("node_operator", "node_name"))  # since TensorRT 8.6
    node = " ".join(part for part in named if part)
    where = f"{node}: " if node else ""
    code = str(error.code()).rpartition(".")[2]
    reason = [line for line in error.desc().strip().splitlines() if not NO_DRIVER_ECHO.search(line)]
    return f"{where}{code}, {reason[-1] if reason else ''}"


def call_function(network: Any, job: BuildJob, registry: TensorRegistry) -> Any:
    """Let the user's function add layers; what it registers, or returns with names, is kept in the registry."""
    function = _find_function(job.path, job.function)
    try:
        takes = inspect.signature(function).parameters
    except (TypeError, ValueError):
        takes = {}  # type: ignore[assignment]
    returned = function(network, register=registry.register) if "register" in takes else function(network)
    registry.register_all(returned)
    return returned  # it may hold the weights


def _find_function(path: str, name: str) -> Callable[..., Any]:
    target: Any = _load_module_file(Path(path)) if path.endswith(".py") else _import_module(path)
    for part in name.split("."):
        if not hasattr(target, part):
            raise UnknownNameError(
                "function in " + path, part, [attribute for attribute in dir(target) if attribute[0] != "_"]
            )
        target = getattr(target, part)
    if not callable(target):
        raise BuildError(f"{name} in {path} is a {type(target).__name__}, not a function", stage="define")
    return target  # type: ignore[no-any-return]


def _import_module(name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` has it
    return importlib.import_module(name)


def _load_module_file(file: Path) -> Any:
    sys.path.insert(0, str(file.parent.resolve()))  # what lies beside it can be imported, as if it were run
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise BuildError(f"{file} cannot be loaded as Python", stage="define")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def bindings_from_inputs(network: Any) -> tuple[Binding, ...]:
    """Return the inputs of a network; a dynamic dimension is its name, or "?"."""
    return tuple(binding_from_tensor(network.get_input(number)) for number in range(network.num_inputs))


def binding_from_tensor(tensor: Any, *, most_bytes: int | None = None, marked: bool = False) -> Binding:
    """Return what is known of a tensor that goes in or out."""
    return Binding(tensor.name, tensor.dtype.name, tensor_dims(tensor), most_bytes, marked)


def tensor_dims(tensor: Any) -> tuple[int | str, ...]:
    try:
        dims = tuple(tensor.shape)
    except (ValueError, RuntimeError):  # of a layer that is at odds with itself
        return ("...",)
    named = getattr(tensor, "get_dimension_name", lambda axis: "")
    return tuple(dim if dim >= 0 else named(axis) or "?" for axis, dim in enumerate(dims))


def name_layers(network: Any) -> None:
    """Give layers without metadata their name: it comes back with each kernel and tells what was fused."""
    for number in range(network.num_layers):
        layer = network.get_layer(number)
        if not getattr(layer, "metadata", "-"):
            layer.metadata = layer.name
