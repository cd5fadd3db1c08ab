"""What a module of a graph computes, put in order: calls of the modules inside it, known parts, single nodes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.twin.graph_reader import find_head_width, find_rotary_frequencies
from trtdx.compare.attribute.twin.operators import ONNX_FLOAT, compute_operator, node_settings
from trtdx.compare.attribute.twin.subgraph_patterns import (
    ActivationPattern,
    AttentionPattern,
    RotationPattern,
    find_activations,
    find_attentions,
    find_rotations,
    table_origin,
)
from trtdx.errors import InputError
from trtdx.formats.onnx.places import module_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import onnx_ir as ir

    from trtdx.compare.attribute.twin.graph_reader import GraphReader
    from trtdx.formats.onnx.places import ModuleCall

    Tensor = Any

LEAST_WEIGHT_ELEMENTS = 2  # from how many elements on a constant is a weight
PATTERN_KINDS = ("attention", "rotation", "curve")


class ProgramUnit(NamedTuple):
    """One thing to do: from these values to those."""

    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    run: Callable[[Any, Sequence[Any]], Sequence[Any]]
    child: str = ""


class ActivationFunction:
    """An activation, as a function."""

    def __init__(self, reader: GraphReader, pattern: ActivationPattern) -> None:
        self._reader, self._pattern = reader, pattern

    def __call__(self, x: Tensor) -> Tensor:
        values: dict[Any, Any] = {self._pattern.input_value: x}
        for node in self._pattern.nodes:
            inputs = [self._value_of(value, values, x.dtype) for value in node.inputs]
            outputs = compute_operator(node.op_type, inputs, node_settings(node), x.dtype, domain=node.domain)
            values.update(zip(node.outputs, outputs, strict=False))
        return values[self._pattern.output]

    def _value_of(self, value: ir.Value | None, values: Mapping[Any, Any], dtype: Any) -> Any:
        if value is None or value in values:
            return None if value is None else values[value]
        constant = self._reader.constant(value)
        return constant.to(dtype) if constant.is_floating_point() else constant

    def __deepcopy__(self, _: Any) -> ActivationFunction:
        return self


class ModuleProgram:
    """The computation of one module.

    Attributes:
        inputs: what enters, as data, in the order in which a capture has it.
        outputs: what leaves.
        weights: its own large constants, by the names of parameters.
        speeds: its rotary frequencies, where it makes cosines and sines.
        curve: the activation among its own nodes.
        attention: whether it computes attention.
        head_dim: how wide its heads are.
    """

    def __init__(
        self,
        reader: GraphReader,
        path: str,
        call: ModuleCall,
        *,
        is_typed: Callable[[str], bool],
        pattern_kinds: Iterable[str] = PATTERN_KINDS,
    ) -> None:
        """Read a module.

        Args:
            reader: the graph.
            path: of the module, "" for all of it.
            call: its nodes.
            is_typed: whether a module inside is of a kind that torch knows, and keeps nothing but its output.
            pattern_kinds: which parts among its own nodes are looked for.
        """
        self.reader, self.path, self.call, self._is_typed = reader, path, call, is_typed
        self.inputs = [value for value, _ in call.inputs]
        self.outputs = list(call.outputs)
        self._node_numbers, self._input_values = set(call.nodes), set(self.inputs)
        self._inlined: set[str] = set()
        own_nodes = [reader.graph.nodes[at] for at in call.nodes if not self._child_at(at)]
        self.weights, self._weight_names = self._own_weights(own_nodes)
        data = [node for node in own_nodes if any(reader.is_data(value) for value in node.outputs)]
        self.rotary_frequencies = find_rotary_frequencies(reader, data)
        self._pattern_units: dict[ir.Value, ProgramUnit] = {}
        self.has_attention = False
        self.activation: ActivationFunction | None = None
        self._lift_patterns(data, set(pattern_kinds))
        self.head_dim = find_head_width(reader, call.nodes)
        self._units: dict[frozenset[str], list[ProgramUnit]] = {}

    def __deepcopy__(self, _: Any) -> ModuleProgram:
        return self

    def _child_at(self, node_index: int) -> str:
        """Return the direct child that a node is in, "" if it is the module's own."""
        scopes = self.reader.graph.scopes[node_index]
        inner = scopes[scopes.index(self.path) + 1 :] if self.path in scopes else scopes if not self.path else ()
        return next((scope for scope in inner if scope != self.path), "")

    def _own_weights(self, nodes: Iterable[ir.Node]) -> tuple[dict[str, Tensor], dict[ir.Value, str]]:
        weights: dict[str, Tensor] = {}
        names: dict[ir.Value, str] = {}
        for node in nodes:
            if not any(self.reader.is_data(value) for value in node.outputs):
                continue
            for value in node.inputs:
                if value is None or value in names or not self.reader.is_weight(value):
                    continue
                tensor = self.reader.constant(value)
                if tensor.numel() >= LEAST_WEIGHT_ELEMENTS and tensor.is_floating_point():
                    names[value] = f"weight_{len(names) + 1}" if names else "weight"
                    weights[names[value]] = tensor
        return weights, names

    def _lift_patterns(self, nodes: list[ir.Node], pattern_kinds: set[str]) -> None:
        for part in find_attentions(self.reader, nodes) if "attention" in pattern_kinds else ():
            self.has_attention = True
            inputs = (part.query, part.key, part.value, *(masking.value for masking in part.masks))
            self._pattern_units[part.output] = ProgramUnit(inputs, (part.output,), partial(_run_attention, part))
        turned: dict[tuple[Any, ...], list[RotationPattern]] = {}
        for rotation in find_rotations(self.reader, nodes) if "rotation" in pattern_kinds else ():
            made_of = table_origin(self.reader, rotation.cosine), table_origin(self.reader, rotation.sine)
            turned.setdefault((*made_of, rotation.input_layout, rotation.output_layout), []).append(rotation)
        for both in turned.values():
            if len(both) == 2:
                one, other = both
                unit = ProgramUnit(
                    (one.input_value, other.input_value, one.cosine, one.sine),
                    (one.output, other.output),
                    partial(_run_rotation, one),
                )
                self._pattern_units |= dict.fromkeys(unit.outputs, unit)
        bent = list(find_activations(self.reader, nodes)) if "curve" in pattern_kinds and not self.has_attention else []
        if len(bent) == 1:
            self.activation = ActivationFunction(self.reader, bent[0])
            unit = ProgramUnit(
                (bent[0].input_value,), (bent[0].output,), lambda module, inputs: (module.act_fn(inputs[0]),)
            )
            self._pattern_units[bent[0].output] = unit

    def run_module(self, module: Any, inputs: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return what leaves, and what else was asked for by `module.extra_names`."""
        dtype = module._kind.dtype
        if len(inputs) != len(self.inputs):
            raise ValueError(f"{self.path} takes {len(self.inputs)} tensors, not {len(inputs)}")
        values: dict[Any, Any] = dict(zip(self.inputs, inputs, strict=True))
        for unit in self._ordered_units(module.extra_names):
            outputs = unit.run(module, [self._value_of(value, values, module, dtype) for value in unit.inputs])
            values.update(zip(unit.outputs, outputs, strict=False))
        left = {name: values[self.reader.graph.values[name]] for name in module.extra_names}
        return [self._value_of(value, values, module, dtype) for value in self.outputs], left

    def _value_of(self, value: ir.Value, values: Mapping[Any, Any], module: Any, dtype: Any) -> Any:
        if value in values:
            return values[value]
        if value in self._weight_names:
            return getattr(module, self._weight_names[value])
        constant = self.reader.constant(value)
        if not constant.is_floating_point():
            return constant
        narrow = (
            dtype.itemsize <= 2
            and value.dtype is not None
            and value.dtype.value == ONNX_FLOAT
            and self._is_mixed_precision
        )
        return constant.float() if narrow else constant.to(dtype)

    @property
    def _is_mixed_precision(self) -> bool:
        """Whether the module's own nodes change between floating types, so that constants have theirs."""
        nodes = (self.reader.graph.nodes[at] for at in self.call.nodes)
        return any(
            node.op_type == "Cast"
            and node_settings(node).get("to") == ONNX_FLOAT
            and self.reader.is_data(node.outputs[0])
            for node in nodes
        )

    def _ordered_units(self, also: frozenset[str]) -> list[ProgramUnit]:
        """Return what there is to do, in order; a module that cannot be called as one is computed node by node."""
        while also not in self._units:
            output_values = [*self.outputs, *(self.reader.graph.values[name] for name in also)]
            circle, units = _UnitOrder(self).order_units(output_values)
            if circle:
                self._inlined.add(circle)
                continue
            self._units[also] = units
        return self._units[also]

    def unit_of(self, value: ir.Value, extras: dict[str, set[str]]) -> ProgramUnit | None:
        """Return what makes a value here; None if it is given or a constant."""
        if value in self._input_values or not self.reader.is_data(value):
            return None
        if value in self._pattern_units:
            return self._pattern_units[value]
        at = self.reader.graph.producers.get(value)
        if at is None or at not in self._node_numbers:
            raise InputError(f"{value.name} is made outside of {self.path}")
        child = self._child_at(at)
        if child and child not in self._inlined:
            call = self._call_of(child)
            if call is None:
                self._inlined.add(child)
            elif value in call.outputs or not self._is_typed(child):
                if value not in call.outputs:
                    extras.setdefault(child, set()).add(str(value.name))
                return _unit_of_child(self.reader, child, self.path, call, extras.get(child, ()))
        return _unit_of_node(self.reader.graph.nodes[at])

    def _call_of(self, child: str) -> ModuleCall | None:
        graph = self.reader.graph
        nodes = [at for at in self.call.nodes if child in graph.scopes[at]]
        calls = module_calls(graph, nodes)
        return calls[0] if len(calls) == 1 else None


class _UnitOrder:
    """Units put in an order in which each has what it needs."""

    def __init__(self, program: ModuleProgram) -> None:
        self.program = program
        self.extras: dict[str, set[str]] = {}
        self.done: dict[str, ProgramUnit] = {}
        self.open: list[str] = []

    def order_units(self, values: Iterable[ir.Value]) -> tuple[str, list[ProgramUnit]]:
        """Return the units for some values, or the module that makes them a cycle."""
        stack: list[tuple[str, ProgramUnit, Iterator[ir.Value]]] = []
        for value in values:
            circle = self._begin_unit(value, stack)
            while stack and not circle:
                key, unit, rest = stack[-1]
                following = next(rest, None)
                if following is None:
                    stack.pop()
                    self.open.remove(key)
                    self.done[key] = unit
                else:
                    circle = self._begin_unit(following, stack)
            if circle:
                return circle, []
        return "", list(self.done.values())

    def _begin_unit(self, value: ir.Value, stack: list[tuple[str, ProgramUnit, Iterator[ir.Value]]]) -> str:
        unit = self.program.unit_of(value, self.extras)
        if unit is None:
            return ""
        key = unit.child or "/".join(str(output.name) for output in unit.outputs)
        if key in self.open:
            child = next((unit.child for _, unit, _ in reversed(stack) if unit.child), "")
            if not child:
                raise InputError("the nodes of a module form a cycle")
            return child
        if key in self.done:
            if unit.child:
                self.done[key] = unit  # more of what it makes is asked for
            return ""
        self.open.append(key)
        stack.append((key, unit, iter(unit.inputs)))
        return ""


def _unit_of_node(node: ir.Node) -> ProgramUnit:
    settings = node_settings(node) | {"_outputs": len(node.outputs)}
    present = [value is not None for value in node.inputs]

    def run(module: Any, present_inputs: Sequence[Any]) -> Sequence[Any]:
        rest = iter(present_inputs)
        inputs = [next(rest) if there else None for there in present]
        return compute_operator(node.op_type, inputs, settings, module._kind.dtype, domain=node.domain)

    return ProgramUnit(tuple(value for value in node.inputs if value is not None), tuple(node.outputs), run)


def _unit_of_child(reader: GraphReader, child: str, path: str, call: ModuleCall, also: Iterable[str]) -> ProgramUnit:
    """Return the call of a module inside, with what it makes on the way where that is wanted."""
    name, extra_names = child[len(path) + 1 :] if path else child, tuple(sorted(also))
    more = tuple(reader.graph.values[extra] for extra in extra_names)

    def run(module: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        called = module.get_submodule(name)
        if extra_names:
            called.extra_names = frozenset(extra_names)
        outputs = called(*inputs)
        outputs = tuple(outputs) if isinstance(outputs, tuple) else (outputs,)
        return (*outputs, *(called.extra_values[extra] for extra in extra_names))

    return ProgramUnit(tuple(value for value, _ in call.inputs), (*call.outputs, *more), run, child)


def _run_attention(part: AttentionPattern, module: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    return (module.compute_attention(part, inputs),)


def _run_rotation(part: RotationPattern, module: Any, inputs: Sequence[Any]) -> Any:
    return module.rotate_query_key(inputs, part.input_layout, part.output_layout, single=part.has_half_tables)
