"""An ONNX model opened without reading its weights: each stays where it lies in a file.

A weight inside the `.onnx` file becomes a reference into that very file, so that models of any size and of either
kind are opened, edited and handed to ONNX Runtime at the cost of their graph. ONNX Runtime maps what it is
referred to (1.31: a session over 3.2 GB opens in 13 ms and 52 MB); values passed to it in memory it would copy.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.errors import InputError
from trtdx.formats.onnx.fused_nodes import expose_fused_values
from trtdx.formats.onnx.module_names import assign_known_modules
from trtdx.formats.onnx.proto import needed_bytes
from trtdx.formats.onnx.strip import EXTERNAL, SMALL_BYTES, reference_weights
from trtdx.formats.onnx.untrusted import find_unusable_part
from trtdx.formats.protobuf_wire import WireError, WireLimitError, WireStream
from trtdx.optional import import_optional

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

LOCATION_ROOT = Path("/")  # what locations are relative to; ONNX Runtime refuses absolute ones and `..`
TENSOR, GRAPH, TENSORS, GRAPHS = 4, 5, 9, 10  # kinds of attributes
PURPOSE = "run ONNX models"

BROKEN_FILE_ADVICE = "it is cut off or another file: copy or export it again; `trtdx inspect` says what it is"


def open_model(path: str | Path) -> ir.Model:
    """Return a model whose large weights are references, their locations relative to `ROOT`.

    Raises:
        InputError: there is no such file, it is no ONNX model, or its data is not where it says.
    """
    file = Path(path)
    onnx = import_optional("onnx", extra="onnx", purpose=PURPOSE)
    graphs = import_optional("onnx_ir", extra="onnx", purpose=PURPOSE)
    data = _bytes_without_weights(file)
    try:
        proto = onnx.ModelProto.FromString(data)
    except Exception as err:  # protobuf's own error class is private to its backend
        raise InputError(f"{file} is not an ONNX model: {err}", fix=BROKEN_FILE_ADVICE) from err
    if not proto.graph.node:
        raise InputError(f"{file} holds no ONNX graph")
    _resolve_external_data(proto, file)
    if problem := find_unusable_part(proto):
        raise InputError(f"{file} {problem}", fix="export it again, from a source that you trust")
    try:
        model: ir.Model = graphs.from_proto(proto)
    except Exception as err:  # onnx_ir wraps whatever a malformed graph makes it stumble over
        raise InputError(f"{file} cannot be read as a graph: {_root_cause(err)}") from err
    graphs.external_data.set_base_dir(model.graph, LOCATION_ROOT)
    assign_known_modules(model, file)
    try:
        model = _inline_and_infer(model)
    except Exception as err:  # such as functions that call themselves
        raise InputError(f"{file} cannot be read as a graph: {_root_cause(err)}") from err
    expose_fused_values(model)
    return model


def _inline_and_infer(model: ir.Model) -> ir.Model:
    """Return a model with its functions inlined and, where it does not tell them, its types inferred."""
    passes = import_optional("onnx_ir.passes.common", extra="onnx", purpose=PURPOSE)
    if model.functions:
        model = passes.InlinePass()(model).model
    if any(value.dtype is None for node in model.graph for value in node.outputs):
        with _silence_logger("onnx_ir"):  # a traceback where it fails; types are then not known, and no more
            model = passes.ShapeInferencePass()(model).model
    return model


def _root_cause(err: BaseException) -> BaseException:
    """Return what an error was raised for in the first place."""
    while err.__cause__ is not None:
        err = err.__cause__
    return err


@contextlib.contextmanager
def _silence_logger(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def _bytes_without_weights(file: Path) -> bytes:
    try:
        size = file.stat().st_size
        with file.open("rb", buffering=0) as stream:
            source = WireStream(stream, size, most_bytes=2 * size + (1 << 20))
            return reference_weights(source, str(file.resolve()))
    except OSError as err:
        raise InputError(f"cannot read {file}: {err.strerror or err}", fix="name a file that ends in .onnx") from err
    except (WireError, WireLimitError) as err:
        raise InputError(f"{file} is not an ONNX model: {err}", fix=BROKEN_FILE_ADVICE) from err


def _resolve_external_data(proto: Any, file: Path) -> None:
    """Make every reference one that ONNX Runtime follows; what is small or inside a node is read at once."""
    for tensor in proto.graph.initializer:
        _resolve_tensor(tensor, file, SMALL_BYTES)
    for tensor in _inner_tensors(proto.graph.node):
        _resolve_tensor(tensor, file, None)


def _resolve_tensor(tensor: Any, file: Path, most_bytes: int | None) -> None:
    if tensor.data_location != EXTERNAL:
        return
    external = {entry.key: entry.value for entry in tensor.external_data}
    target = _external_file(external.get("location", ""), tensor.name, file)
    try:
        offset, length = (
            int(external.get("offset") or 0),
            int(external.get("length") or needed_bytes(tensor.data_type, tensor.dims) or 0),
        )
    except ValueError as err:
        raise InputError(f"{file} does not say where {tensor.name} is: {err}") from err
    _check_span(target, offset, length, tensor.name, file)
    if most_bytes is not None and length > most_bytes:
        _set_reference(tensor, target, offset, length)
    else:
        _embed_data(tensor, target, offset, length)


def _inner_tensors(nodes: Any) -> Iterator[Any]:
    """Yield the constants inside nodes: attributes, and what the bodies of If and Loop hold."""
    for attribute in (inner for node in nodes for inner in node.attribute):
        if attribute.type in (TENSOR, TENSORS):
            yield from (attribute.t, *attribute.tensors)
        elif attribute.type in (GRAPH, GRAPHS):
            for body in (attribute.g, *attribute.graphs):
                yield from body.initializer
                yield from _inner_tensors(body.node)


def _external_file(location: str, name: str, file: Path) -> Path:
    """Return the file a reference means; links are followed to where the model itself really lies, as in a cache.

    A link elsewhere could hand any file of the user's to whoever made the model.
    """
    model_file = file.resolve()
    if location == str(model_file):
        return model_file
    path = Path(location)
    if not location or path.is_absolute() or ".." in path.parts:
        raise InputError(f"{file} wants {name} from {location!r}, which is not a place beside the model")
    target = (file.parent / path).resolve()
    if not target.is_file():
        raise InputError(
            f"{file} keeps {name} in {location}, which is not there", fix=f"copy it to {file.parent / path}"
        )
    if not target.is_relative_to(file.parent.resolve()) and target.parent != model_file.parent:
        raise InputError(
            f"{file} keeps {name} in {location}, a link to {target}, which is outside the model's folder",
            fix=f"if that is meant, put the file itself there: cp --remove-destination {target} {file.parent / path}",
        )
    return target


def _check_span(target: Path, offset: int, length: int, name: str, file: Path) -> None:
    size, end = target.stat().st_size, offset + length
    if min(offset, length) < 0 or end > size:
        raise InputError(
            f"{target} has {size:,} bytes, but {name} of {file} lies from byte {offset:,} to {end:,}",
            fix="copy or export both again: the data is cut off or not of this model",
        )


def _set_reference(tensor: Any, target: Path, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (
        ("location", target.relative_to(LOCATION_ROOT)),
        ("offset", offset),
        ("length", length),
    ):
        tensor.external_data.add(key=key, value=str(value))


def _embed_data(tensor: Any, target: Path, offset: int, length: int) -> None:
    with target.open("rb") as stream:
        stream.seek(offset)
        tensor.raw_data = stream.read(length)
    del tensor.external_data[:]
    tensor.data_location = 0
