"""ONNX graphs made into TensorRT networks, with what the parser says as errors a user can act on.

The parser is given the graph as it was opened (functions inlined, weights where they lie), so that its names are those
of the places. Some inputs end the interpreter instead of raising, so a child process parses first.
"""

from __future__ import annotations

import re
import signal
import sys
import tempfile
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.engines.errors import EvaluationError
from trtdx.engines.tensorrt.bindings import create_builder, load_bindings
from trtdx.formats.onnx.model import LOCATION_ROOT
from trtdx.host import RealHost
from trtdx.optional import import_optional

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    import onnx_ir as ir

    from trtdx.formats.onnx.module_graph import OnnxGraph

WEIGHTS_ROOT = str(LOCATION_ROOT / "model.onnx")  # what the weights' locations are relative to
PROBE_TIMEOUT_S = 600
REFUSED_STATUS = 3
# It has nothing of ours to import, and leaves without tearing down what may be broken.
PROBE = f"""
import importlib, os, sys
trt = importlib.import_module(sys.argv[1])
log = trt.Logger(trt.Logger.INTERNAL_ERROR)
builder = trt.Builder(log)
strongly = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
network = builder.create_network(0 if strongly is None else 1 << int(strongly))
parser = trt.OnnxParser(network, log)
fine = parser.parse(open(sys.argv[2], "rb").read(), {WEIGHTS_ROOT!r})
os._exit(0 if fine else {REFUSED_STATUS})
"""
_PARSED_FILES: set[tuple[str, int, int]] = set()  # files a child parsed: path, time of the last change, size


class ParsedNetwork(NamedTuple):
    """A network and what has to live as long as it does: the parser owns weights."""

    network: Any
    parser: Any
    builder: Any


def parse_graph(graph: OnnxGraph, part: ir.Graph | None = None, *, file: Path | None = None) -> ParsedNetwork:
    """Return an opened model, or a part of it, as a network.

    Args:
        graph: the model.
        part: some of it, where not all is wanted.
        file: where it comes from; one that has not changed since a child process parsed it is not tried again.

    Raises:
        EvaluationError: TensorRT cannot take a node; the error names it, its module and the reason.
    """
    graphs = import_optional("onnx_ir", extra="onnx", purpose="read ONNX graphs")
    model = graph.model if part is None else graphs.Model(part, ir_version=graph.model.ir_version)
    data = graphs.to_proto(model).SerializeToString()
    trt = load_bindings()
    if part is None:
        _parse_in_child(data, trt.__name__, file)
    network = _empty_network(trt)
    if not network.parser.parse(data, WEIGHTS_ROOT):
        raise _error_from_parser(network.parser, graph)
    return network


def _empty_network(trt: ModuleType) -> ParsedNetwork:
    log = _silent_logger(trt)
    builder = create_builder(trt, log)
    strongly = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)  # no flag: always so
    network = builder.create_network(0 if strongly is None else 1 << int(strongly))
    return ParsedNetwork(network, trt.OnnxParser(network, log), builder)


@cache
def _silent_logger(trt: ModuleType) -> Any:
    """Return a logger that is silent: the parser's errors are raised. TensorRT keeps the first of a process."""
    return trt.Logger(trt.Logger.INTERNAL_ERROR)


def _parse_in_child(data: bytes, package: str, file: Path | None) -> None:
    key = None
    if file is not None:
        state = file.stat()
        key = (str(file.resolve()), state.st_mtime_ns, state.st_size)
    if key in _PARSED_FILES:
        return
    with tempfile.NamedTemporaryFile(prefix="trtdx-", suffix=".onnx") as copy:
        copy.write(data)
        copy.flush()
        done = RealHost().run([sys.executable, "-c", PROBE, package, copy.name], timeout_s=PROBE_TIMEOUT_S)
    if done.status not in (0, REFUSED_STATUS):
        last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise EvaluationError(
            f"TensorRT's parser {_render_exit_status(done.status, done.problem)} on {file or 'this model'}"
            + (f": {last_line}" if last_line else ""),
            fix="use the onnxruntime engine, or simplify the model; trtdx inspect tells what is in it",
        )
    if key is not None:
        _PARSED_FILES.add(key)


def _render_exit_status(status: int | None, problem: str) -> str:
    if status is None:
        return problem
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _error_from_parser(parser: Any, graph: OnnxGraph) -> EvaluationError:
    """Return the parser's first error, with the module its node is in."""
    if not parser.num_errors:
        return EvaluationError("TensorRT's parser refuses the model and does not say why")
    error = parser.get_error(0)
    name, op, code = error.node_name(), error.node_operator(), error.code().name
    at = next((at for at, node in enumerate(graph.nodes) if name and node.name == name), None)
    inside = f" in {graph.scopes[at][-1]}" if at is not None and graph.scopes[at] else ""
    what = f"{op} {name!r}{inside}" if op or name else "the model"
    return EvaluationError(
        f"TensorRT's parser does not take {what}: {_strip_parser_source(error.desc(), code)}",
        layer=name,
        fix=_fix_for_parser_error(code, error),
    )


def _strip_parser_source(text: str, code: str) -> str:
    """Return a description without the parser's own sources; an unsupported node's is only "false"."""
    plain = re.sub(r"^Invalid Node - .*\n?", "", text.strip())
    plain = re.sub(r"^Assertion failed: .*?: (?=[A-Z])", "", plain).partition("\n")[0].strip()
    words = code.lower().replace("_", " ")
    return words if plain in ("", "false") else f"{plain} ({words})"


def _fix_for_parser_error(code: str, error: Any) -> str:
    if "Plugin not found" in error.desc():
        return (
            "no operator and no plugin has this name and domain: register the plugin before, "
            "or export the model without it"
        )
    if code.startswith("UNSUPPORTED"):
        return "export it as other operators, or use the onnxruntime engine, which may have it"
    return "correct the node, or export the model again; onnx.checker.check_model tells more"
