"""Which module a node belongs to if its file does not say: the one whose weight it uses.

Quantisers, optimisers and ONNX Runtime itself write files whose nodes have no names of modules. The weight stays what it
was: integers go with the weight they were made of, whatever their scale and zero point, and a few channels are enough to
tell weights apart. A node whose weight is nobody's, because that is what is wrong, is known by elimination: it is the one
module that is left where it stands.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trtdx.errors import TrtdxError
from trtdx.formats.onnx.module_names import WEIGHT_INPUTS, find_norm_nodes
from trtdx.formats.onnx.scopes import ScopeFinder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trtdx.compare.nouns import Array
    from trtdx.compare.sides.side import SideSpec
    from trtdx.formats.onnx.module_graph import OnnxGraph


CHANNELS, LENGTH = 6, 1024  # of a weight that are looked at
ALIKE = 0.97  # correlation of a channel with its int8 form: it is more than 0.999, with 4 bits about 0.99
APART = 0.05  # by which the next one must be less alike
EQUAL = 2e-2  # what a vector may be off by, relative: it was rounded to sixteen bits at most
MATRIX = 2
PRODUCT, TABLE, VECTOR = "product", "table", "vector"
KINDS = {"Gather": TABLE, "GatherBlockQuantized": TABLE, "Mul": VECTOR, "LayerNormalization": VECTOR,
         "RMSNormalization": VECTOR, "SimplifiedLayerNormalization": VECTOR}  # fmt: skip
PASSING = ("DequantizeLinear", "Identity", "Cast", "Transpose")


class WeightSample(NamedTuple):
    """A few channels of a weight, each without its mean and of length one; of a vector all of it as it is."""

    name: str  # the module, or the value that the node makes
    kind: str
    shape: tuple[int, ...]  # channels, and what is summed over
    channels: Array


def modules_by_weights(known: SideSpec, nameless: SideSpec) -> dict[str, str]:
    """Return the module of each node without a module name, by its output; empty if no weights can be read.

    Args:
        known: a side whose modules have names.
        nameless: a side of which some nodes do not tell where they belong.
    """
    if nameless.kind not in ("onnx", "trt") or known.kind not in ("hf", "onnx"):
        return {}
    try:
        graph = _open_graph(nameless.path)
        left = list(_iterate_weights(graph, graph.inserted))
        if not left:
            return {}
        others = list(_weights_of_folder(Path(known.path)) if known.kind == "hf" else _weights_of_graph(known.path))
    except (TrtdxError, OSError, ValueError):  # what cannot be read is told when it is run
        return {}
    return _claim_modules(graph, left, others)


def _claim_modules(graph: OnnxGraph, left: list[WeightSample], known: list[WeightSample]) -> dict[str, str]:
    names = {sample.name for sample in known}
    modules: dict[str, str] = {}
    used_modules = {scope[-1] for at, scope in enumerate(graph.scopes) if scope and at not in graph.inserted}
    named_modules = _modules_from_weight_names(graph, left, known)
    attention_outputs = {
        str(graph.nodes[at].outputs[0].name) for at in graph.inserted if graph.nodes[at].op_type == "Attention"
    }
    for sample in left:
        module = named_modules.get(sample.name) or _module_of_weight(sample, known)
        if sample.name in attention_outputs:  # its projections are inside it
            module = module.rpartition(".")[0]
        if module and (module not in used_modules or module not in names):
            modules[sample.name] = module
            used_modules.add(module)
    unclaimed = [sample for sample in left if sample.name not in modules]
    return modules | _modules_by_elimination(graph, unclaimed, known, modules)


def _modules_from_weight_names(graph: OnnxGraph, left: list[WeightSample], known: list[WeightSample]) -> dict[str, str]:
    """Return the modules that weight names reveal, such as "model.norm.weight"; a tied weight belongs to two modules."""
    modules = {(sample.kind, sample.name) for sample in known}
    kinds = {sample.name: sample.kind for sample in left}
    named = {}
    for at in graph.inserted:
        output = str(graph.nodes[at].outputs[0].name) if graph.nodes[at].outputs else ""
        for value in graph.nodes[at].inputs if output in kinds else ():
            module, _, part = str(value.name if value is not None else "").rpartition(".")
            if part == "weight" and (kinds[output], module) in modules:
                named[output] = module
    return named


def _modules_by_elimination(
    graph: OnnxGraph, left: list[WeightSample], known: list[WeightSample], claimed: Mapping[str, str]
) -> dict[str, str]:
    """Return the products that must be a module because it is the only one left in their layer."""
    if not left or not claimed:
        return {}
    numbers = {str(node.outputs[0].name): at for at, node in enumerate(graph.nodes) if node.outputs}
    scopes: dict[int, tuple[str, ...] | None] = {
        at: None if at in graph.inserted else graph.scopes[at] for at in range(len(graph.nodes))
    }
    scopes |= {numbers[name]: _module_chain(module) for name, module in claimed.items()}
    around = ScopeFinder(graph).scopes_between_neighbours(scopes)
    missing = {
        sample.name: sample for sample in known if sample.name not in claimed.values() and sample.kind == PRODUCT
    }
    by_layer: dict[tuple[str, tuple[int, ...]], tuple[list[str], list[str]]] = {}
    for sample in left:
        if sample.kind == PRODUCT:
            layer = _layer_in_scope(around[numbers[sample.name]])
            by_layer.setdefault((layer, tuple(sorted(sample.shape))), ([], []))[0].append(sample.name)
    for name, sample in missing.items():
        key = _layer_in_scope(_module_chain(name)), tuple(sorted(sample.shape))
        if key in by_layer:
            by_layer[key][1].append(name)
    return {nodes[0]: modules[0] for nodes, modules in by_layer.values() if len(nodes) == len(modules) == 1}


def _module_chain(module: str) -> tuple[str, ...]:
    """Return the modules around one and itself; lists of layers are none."""
    parts = module.split(".")
    paths = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    lists = {path for path, after in zip(paths, parts[1:], strict=False) if after.isdigit()}
    return tuple(path for path in paths if path not in lists)


def _layer_in_scope(scope: Iterable[str]) -> str:
    return next((path for path in scope if path.rpartition(".")[2].isdigit()), "")


def _module_of_weight(weight: WeightSample, known: list[WeightSample]) -> str:
    """Return the module that has a weight; "" if none or several have."""
    alike = [sample for sample in known if sample.kind == weight.kind and sample.shape == weight.shape]
    if weight.kind == VECTOR:
        size = float(np.abs(weight.channels).max(initial=0.0)) or 1.0
        same = {
            sample.name
            for sample in alike
            for plus in (0.0, 1.0)  # a norm that scales by one more than its weight
            if np.abs(sample.channels + plus - weight.channels).max() <= EQUAL * size
        }
        return next(iter(same)) if len(same) == 1 else ""
    scores = sorted(
        ((float(np.median((sample.channels * weight.channels).sum(1))), sample.name) for sample in alike),
        reverse=True,
    )
    if not scores or scores[0][0] < ALIKE:
        return ""
    others = [score for score, name in scores if name != scores[0][1]]
    return scores[0][1] if not others or others[0] < scores[0][0] - APART else ""


def _sample_channels(
    name: str, shape: Sequence[int], channel: Callable[[int], Any], kind: str = PRODUCT
) -> WeightSample:
    """Return a few channels of a matrix; only these are read."""
    some = np.unique(np.linspace(0, shape[0] - 1, CHANNELS).astype(int))
    rows = np.stack([np.asarray(channel(int(at)), np.float64).reshape(-1) for at in some])
    rows -= rows.mean(1, keepdims=True)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    return WeightSample(name, kind, (shape[0], shape[1]), rows)


def _sample_columns(name: str, matrix: Any) -> WeightSample:
    return _sample_channels(name, matrix.shape[::-1], lambda at: matrix[:LENGTH, at])


def _sample_rows(name: str, matrix: Any, kind: str = PRODUCT) -> WeightSample:
    return _sample_channels(name, matrix.shape, lambda at: matrix[at, :LENGTH], kind)


def _open_graph(path: str) -> OnnxGraph:
    from trtdx.formats.onnx.model import open_model
    from trtdx.formats.onnx.module_graph import OnnxGraph

    return OnnxGraph(open_model(path))


def _iterate_weights(graph: OnnxGraph, numbers: Iterable[int]) -> Iterator[WeightSample]:
    """Yield the weights of nodes, by what the nodes make."""
    for at in sorted(numbers):
        node = graph.nodes[at]
        name = str(node.outputs[0].name) if node.outputs else ""
        for value in node.inputs if node.op_type == "Mul" else [_weight_input(node)]:
            sample = None if value is None else _sample_node_weight(graph, node, name, value)
            if sample is not None:
                yield sample


def _weight_input(node: Any) -> Any:
    which = WEIGHT_INPUTS.get(node.op_type, len(node.inputs))
    return node.inputs[which] if which < len(node.inputs) else None


def _sample_node_weight(graph: OnnxGraph, node: Any, name: str, value: Any) -> WeightSample | None:
    """Return the weight of a node; None if it has none that could be told from others."""
    kind = KINDS.get(node.op_type, PRODUCT)
    if node.op_type == "MatMulNBits":
        rows = _dequantise_blocks(node)
        return None if rows is None else _sample_rows(name, rows)
    constant = _constant_behind(graph, value)
    if constant is None:
        return None
    if kind == VECTOR:
        is_row = constant.ndim and constant.size == constant.shape[-1] > 1
        plain = is_row and constant.dtype.kind == "f" and np.ptp(constant) > 0
        written_out = node.op_type == "Mul" and not (plain and find_norm_nodes(node))
        row = np.asarray(constant, np.float64).reshape(-1)
        return WeightSample(name, VECTOR, row.shape, row) if plain and not written_out else None
    if "Conv" in node.op_type:
        return _sample_rows(name, constant.reshape(len(constant), -1))
    if node.op_type == "Attention" and constant.ndim == MATRIX:
        constant = constant[:, : constant.shape[1] // 3]  # of the queries
    if constant.ndim != MATRIX or constant.dtype.kind not in "fiuV":
        return None
    turned = kind == TABLE or bool(node.attributes.get_int("transB", 0) if "transB" in node.attributes else 0)
    return _sample_rows(name, constant, kind) if turned else _sample_columns(name, constant)


def _constant_behind(graph: OnnxGraph, value: Any, depth: int = 0) -> Any:
    """Return the constant behind a value, also through casts and transposes; integers as they are."""
    if value.const_value is not None:
        return value.const_value.numpy()
    at = graph.producers.get(value)
    node = None if at is None else graph.nodes[at]
    if node is None or node.op_type not in PASSING or not node.inputs or node.inputs[0] is None or depth > 4:
        return None
    constant = _constant_behind(graph, node.inputs[0], depth + 1)
    if constant is None or node.op_type != "Transpose":
        return constant
    order = node.attributes["perm"].as_ints() if "perm" in node.attributes else None
    return constant.transpose(order)


def _dequantise_blocks(node: Any) -> Any:
    """Return the weight of a MatMulNBits with its scales, zero points left out: channels are centred anyway."""
    constants = [
        None if value is None or value.const_value is None else value.const_value.numpy() for value in node.inputs[1:3]
    ]
    bits = node.attributes.get_int("bits", 4)
    if constants[0] is None or constants[1] is None or bits not in (4, 8):
        return None
    data, rows = constants[0], node.attributes.get_int("N", 0)
    numbers = data if bits == 8 else np.stack((data & 15, data >> 4), -1)
    numbers = numbers.reshape(rows, -1, data.shape[-1] * 8 // bits).astype(np.float32) - 2 ** (bits - 1)
    weights = numbers * constants[1].reshape(rows, -1, 1).astype(np.float32)
    return weights.reshape(rows, -1)[:, : node.attributes.get_int("K", 0)]


def _weights_of_graph(path: str) -> Iterator[WeightSample]:
    """Yield the weights of a graph's nodes by the innermost module they are in."""
    graph = _open_graph(path)
    named_nodes = [at for at in range(len(graph.nodes)) if graph.scopes[at] and at not in graph.inserted]
    numbers = {str(graph.nodes[at].outputs[0].name): at for at in named_nodes if graph.nodes[at].outputs}
    for sample in _iterate_weights(graph, named_nodes):
        yield sample._replace(name=graph.scopes[numbers[sample.name]][-1])


def _weights_of_folder(folder: Path) -> Iterator[WeightSample]:
    """Yield the weights of a Hugging Face folder by their module, matrices in both ways that linear modules have them."""
    from trtdx.optional import import_optional

    opener = import_optional("safetensors", extra="torch", purpose="read the weights of a model").safe_open
    for file in sorted(folder.glob("*.safetensors")):
        with opener(str(file), framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118
                module, _, kind = name.rpartition(".")
                part = weights.get_slice(name)
                shape = part.get_shape()
                if kind != "weight":
                    continue
                if len(shape) == 1:
                    yield WeightSample(module, VECTOR, tuple(shape), np.asarray(part[:].double()))
                elif len(shape) > MATRIX:
                    kernel = np.asarray(part[:].float())
                    yield _sample_rows(module, kernel.reshape(len(kernel), -1))
                elif "embed" in module or module.rpartition(".")[2] in ("wte", "wpe"):
                    yield _sample_channels(module, shape, partial(_read_row, part), TABLE)
                else:
                    yield _sample_channels(module, shape, partial(_read_row, part))
                    yield _sample_channels(module, shape[::-1], partial(_read_column, part))


def _read_row(part: Any, row: int) -> Any:
    return part[row : row + 1, :LENGTH].float()


def _read_column(part: Any, column: int) -> Any:
    return part[:LENGTH, column : column + 1].float()
