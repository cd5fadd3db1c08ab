"""ONNX Runtime at arm's length: sessions over graphs whose weights stay in their files, and errors a user can act on."""

from __future__ import annotations

import ctypes
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.engines.errors import EvaluationError
from trtdx.engines.torch.lazy_import import numpy as np
from trtdx.errors import InputError, UnknownNameError
from trtdx.formats.onnx.model import LOCATION_ROOT, PURPOSE
from trtdx.optional import import_optional
from trtdx.tensors.dtypes import numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import onnx_ir as ir

    from trtdx.engines.engine import Array
    from trtdx.formats.onnx.module_graph import OnnxGraph

OPTIMISATION_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
# Types that NumPy has no name for: what ONNX calls them by number, and how wide they are.
_FOREIGN_NAMES = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_NON_NUMPY_DTYPES = dict(enumerate(_FOREIGN_NAMES, 16))
_NON_NUMPY_TENSOR_TYPES = {f"tensor({name.replace('_', '')})" for name in _NON_NUMPY_DTYPES.values()}
_ONNX_TYPE_BY_DTYPE = {name: number for number, name in _NON_NUMPY_DTYPES.items()}


class UnsupportedNodeError(EvaluationError):
    """A node for which ONNX Runtime has no kernel."""


class OrtOptions(NamedTuple):
    """How sessions are made."""

    optimisation: str = "all"
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    threads: int = 0  # 0: as many as there are cores
    sparing: bool = False  # give memory back as soon as it is free, at some cost of time
    settings: tuple[tuple[str, str], ...] = ()  # entries of the session's configuration
    disabled: tuple[str, ...] = ()  # optimisers by name

    def validate(self) -> OrtOptions:
        """Return the options, or raise for a level or provider that there is not."""
        if self.optimisation not in OPTIMISATION_LEVELS:
            raise UnknownNameError("level of optimisation", self.optimisation, OPTIMISATION_LEVELS)
        there = import_onnxruntime().get_available_providers()
        absent = [provider for provider in self.providers if provider not in there]
        if absent:  # ONNX Runtime itself would warn and quietly use the CPU
            raise InputError(
                f"this ONNX Runtime has no {', '.join(absent)}",
                fix=f"use {' or '.join(there)}, or install a build of onnxruntime that has it",
            )
        return self


def import_onnxruntime() -> Any:
    return import_optional("onnxruntime", extra="onnx", purpose=PURPOSE)


class OrtSession:
    """One part of a model, ready to be computed."""

    def __init__(self, part: ir.Graph, graph: OnnxGraph, options: OrtOptions) -> None:
        self._graph = graph
        self._session = _create_session(part, graph, _session_options(options), options)
        ends = (*self._session.get_inputs(), *self._session.get_outputs())
        self._has_non_numpy_types = any(end.type in _NON_NUMPY_TENSOR_TYPES for end in ends)

    def compute_values(self, names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return values by name, each in memory of its own."""
        try:
            values = (
                self._run_with_ort_values(names, feeds)
                if self._has_non_numpy_types
                else self._session.run(names, feeds)
            )
        except Exception as err:  # ONNX Runtime's exceptions have no common base
            raise error_from_onnxruntime(err, self._graph) from err
        return dict(zip(names, values, strict=True))

    def _run_with_ort_values(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Return values also of types that ONNX Runtime cannot hand over as arrays."""
        ort_values = {name: _ort_value_from_array(array) for name, array in feeds.items()}
        # Each value keeps all of its run in memory (onnxruntime 1.31), so none is handed out.
        return [_array_from_ort_value(value) for value in self._session.run_with_ort_values(list(names), ort_values)]


def _create_session(part: ir.Graph, graph: OnnxGraph, settings: Any, options: OrtOptions) -> Any:
    graphs = import_optional("onnx_ir", extra="onnx", purpose=PURPOSE)
    model = graphs.Model(part, ir_version=graph.model.ir_version)
    data = graphs.to_proto(model).SerializeToString()
    try:
        return import_onnxruntime().InferenceSession(
            data, settings, providers=list(options.providers), disabled_optimizers=list(options.disabled)
        )
    except Exception as err:  # as above
        raise error_from_onnxruntime(err, graph, options) from err


def _session_options(options: OrtOptions) -> Any:
    package = import_onnxruntime()
    settings = package.SessionOptions()
    settings.graph_optimization_level = getattr(
        package.GraphOptimizationLevel, OPTIMISATION_LEVELS[options.optimisation]
    )
    settings.intra_op_num_threads = options.threads
    # What an arena once took, it holds as long as its session.
    settings.enable_cpu_mem_arena = not options.sparing
    settings.log_severity_level = 4  # errors are raised; nobody wants them on stderr as well
    # Threads that spin while they wait slow down every other session and torch: 5 times with 5 sessions on 2 cores.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    settings.add_session_config_entry("session.model_external_initializers_file_folder_path", str(LOCATION_ROOT))
    for key, value in options.settings:
        settings.add_session_config_entry(key, value)
    return settings


def count_optimised_operators(part: ir.Graph, graph: OnnxGraph, options: OrtOptions) -> Counter[str]:
    """Return how many nodes of which kind ONNX Runtime makes of a graph."""
    settings = _session_options(options)
    with tempfile.TemporaryDirectory(prefix="trtdx-") as folder:
        optimised, weights = Path(folder, "optimised.onnx"), Path(folder, "weights")
        weights.symlink_to("/dev/null")  # ONNX Runtime insists on writing them
        settings.optimized_model_filepath = str(optimised)
        for key, value in (("file_name", weights.name), ("min_size_in_bytes", "1024")):
            settings.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
        _create_session(part, graph, settings, options)
        proto = import_optional("onnx", extra="onnx", purpose=PURPOSE).load(optimised, load_external_data=False)
    return Counter(node.op_type for node in proto.graph.node)


def trim_free_memory() -> None:
    """Return freed memory to the system where the C library would keep it, scattered between what is in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc
    if trim is not None:
        trim(0)


def _ort_value_from_array(array: Array) -> Any:
    """Return an array as ONNX Runtime takes it, sharing its memory where it is contiguous."""
    package, packed = import_onnxruntime(), np.ascontiguousarray(array).reshape(array.shape)
    number = _ONNX_TYPE_BY_DTYPE.get(packed.dtype.name)
    if number is None:
        return package.OrtValue.ortvalue_from_numpy(packed)
    bits = packed.view(f"uint{8 * packed.itemsize}")
    return package.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number)


def _array_from_ort_value(value: Any) -> Array:
    """Return what ONNX Runtime computed, sharing its memory where NumPy knows the type."""
    try:
        array: Array = value.numpy()
    except RuntimeError:  # no corresponding NumPy type
        dtype = numpy_dtype(_NON_NUMPY_DTYPES.get(value.element_type(), value.data_type()))
        size = value.tensor_size_in_bytes()
        memory = (ctypes.c_char * size).from_address(value.data_ptr()) if size else b""
        array = np.frombuffer(memory, dtype).reshape(value.shape()).copy()
    return array


def error_from_onnxruntime(err: Exception, graph: OnnxGraph, options: OrtOptions | None = None) -> EvaluationError:
    """Return what ONNX Runtime says as an error that names the node, its module and what to do."""
    message = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(err)).strip()
    match = re.search(r"Could not find an implementation for (\w+)\((\d+)\) node with name '([^']*)'", message)
    if match:
        return _unsupported_node_error(match[1], match[2], match[3], graph, options)
    match = re.search(r"running (\w+) node\. Name:'([^']*)' Status Message: (.*)", message, re.DOTALL)
    if match:
        return EvaluationError(
            f"{match[1]} {match[2]!r}{_render_node_scope(graph, match[2])} cannot be computed: {_strip_source_location(match[3])}",
            layer=match[2],
        )
    match = re.search(r"(\S+)\(-?\d+\) is not a registered function/op", message)
    if match:
        return UnsupportedNodeError(f"ONNX Runtime knows no operator {match[1]}", layer=match[1])
    return EvaluationError(
        f"ONNX Runtime {import_onnxruntime().__version__} refuses the model: {_strip_source_location(message)}"
    )


def _unsupported_node_error(
    op: str, opset: str, name: str, graph: OnnxGraph, options: OrtOptions | None
) -> UnsupportedNodeError:
    types = _node_dtypes(graph, name)
    of_types = f" of {' and '.join(types)}" if types else ""
    on = f" on {', '.join(options.providers)}" if options else ""
    fix = "use a provider that has it, or the torch engine"
    if types & set(_ONNX_TYPE_BY_DTYPE):
        fix = "export the model in float32 or float16, or use the torch engine"
    return UnsupportedNodeError(
        f"ONNX Runtime {import_onnxruntime().__version__} has no {op} (opset {opset}){of_types}{on}: "
        f"node {name!r}{_render_node_scope(graph, name)}",
        layer=name,
        fix=fix,
    )


def _node_dtypes(graph: OnnxGraph, name: str) -> set[str]:
    from trtdx.formats.onnx.places import value_dtype

    read = (operand for at in _node_indices(graph, name) for operand in (*graph.reads[at], *graph.nodes[at].outputs))
    return {dtype for value in read if (dtype := value_dtype(value)) not in ("", "int64")}


def _render_node_scope(graph: OnnxGraph, name: str) -> str:
    scopes = [graph.scopes[at][-1:] for at in _node_indices(graph, name)]
    return f" in {scopes[0][0]}" if scopes and scopes[0] else ""


def _node_indices(graph: OnnxGraph, name: str) -> Iterable[int]:
    return [at for at, node in enumerate(graph.nodes) if name and node.name == name]


def _strip_source_location(text: str) -> str:
    """Return a message without the place in ONNX Runtime's sources it came from."""
    return re.sub(r"^/onnxruntime_src/\S+:\d+ .*?(?:was false\. |\) (?=[A-Z\[]))", "", text.strip(), flags=re.DOTALL)
