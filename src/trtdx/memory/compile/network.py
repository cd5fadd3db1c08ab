"""Layers of a decoder as a TensorRT network; runs in the compiling process.

Weights are constants of zeros, one set for all layers: what is compiled depends on their shapes only, and the builder
then holds one layer's weights however many layers there are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.engines.tensorrt.bindings import bindings_of_object

if TYPE_CHECKING:
    from collections.abc import Callable

TENSORRT_TYPES = {"float16": "HALF", "bfloat16": "BF16", "float32": "FLOAT"}


class DecoderBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """What is compiled: the sizes of a layer as one rank has it, how many there are, and the step's shape."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    gated: bool
    dtype: str
    layers: int
    sequences: int
    length: int  # of each sequence in the step

    @property
    def tokens(self) -> int:
        return self.sequences * self.length

    @property
    def parameters(self) -> int:
        """The parameters of one layer."""
        mixed = (self.heads + 2 * self.kv_heads) * self.head_dim
        inner = (2 + self.gated) * self.inner
        return self.hidden * (mixed + self.heads * self.head_dim + inner)


def network_definition(text: str) -> Callable[[Any], Any]:
    """Return a function that defines the network which a JSON text describes."""
    blocks = msgspec.json.decode(text, type=DecoderBlocks)

    def define(network: Any) -> Any:
        return _NetworkDefinition(network, blocks).define()

    return define


class _NetworkDefinition:
    """A network while its layers are added."""

    def __init__(self, network: Any, blocks: DecoderBlocks) -> None:
        import numpy as np

        self.network, self.blocks = network, blocks
        self.trt, self.np = bindings_of_object(network), np
        self.type = getattr(self.trt.DataType, TENSORRT_TYPES[blocks.dtype])
        self.host_arrays: list[Any] = []  # TensorRT reads constants when it compiles
        self._constants: dict[str, Any] = {}

    def define(self) -> Any:
        blocks = self.blocks
        residual = self.network.add_input("hidden", self.type, (blocks.tokens, blocks.hidden))
        for _ in range(blocks.layers):
            attended = self._attention(self._norm(residual))
            residual = self._sum(
                residual, self._linear(attended, "dense", blocks.hidden, blocks.heads * blocks.head_dim)
            )
            residual = self._sum(residual, self._mlp(self._norm(residual)))
        self.network.mark_output(residual)
        return self.host_arrays

    def _constant(self, name: str, shape: tuple[int, ...]) -> Any:
        """Return a constant of zeros, the same one for every layer."""
        if name not in self._constants:
            wide = self.np.float32 if self.blocks.dtype == "float32" else self.np.float16
            zeros = self.np.zeros(math.prod(shape), wide)  # bfloat16 is as wide, and zero is the same
            weights = self.trt.Weights(self.type, zeros.ctypes.data, zeros.size)
            self.host_arrays.append(zeros)
            self._constants[name] = self.network.add_constant(shape, weights).get_output(0)
        return self._constants[name]

    def _linear(self, tensor: Any, name: str, out: int, into: int) -> Any:
        operation = self.trt.MatrixOperation
        weight = self._constant(name, (out, into))
        return self.network.add_matrix_multiply(tensor, operation.NONE, weight, operation.TRANSPOSE).get_output(0)

    def _elementwise(self, one: Any, other: Any, operation: str) -> Any:
        kind = getattr(self.trt.ElementWiseOperation, operation)
        return self.network.add_elementwise(one, other, kind).get_output(0)

    def _sum(self, one: Any, other: Any) -> Any:
        return self._elementwise(one, other, "SUM")

    def _norm(self, tensor: Any) -> Any:
        """Add an RMS norm, reckoned in 32 bit."""
        network, trt, np = self.network, self.trt, self.np
        wide = network.add_cast(tensor, trt.DataType.FLOAT).get_output(0)
        squares = self._elementwise(wide, wide, "PROD")
        mean = network.add_reduce(squares, trt.ReduceOperation.AVG, 1 << 1, keep_dims=True).get_output(0)
        epsilon = np.full((1, 1), 1e-5, np.float32)
        self.host_arrays.append(epsilon)
        mean = self._sum(mean, network.add_constant((1, 1), trt.Weights(epsilon)).get_output(0))
        root = network.add_unary(mean, trt.UnaryOperation.SQRT).get_output(0)
        inverse = network.add_unary(root, trt.UnaryOperation.RECIP).get_output(0)
        normed = network.add_cast(self._elementwise(wide, inverse, "PROD"), self.type).get_output(0)
        return self._elementwise(normed, self._constant("norm", (1, self.blocks.hidden)), "PROD")

    def _attention(self, tensor: Any) -> Any:
        blocks, network, trt = self.blocks, self.network, self.trt
        width = (blocks.heads + 2 * blocks.kv_heads) * blocks.head_dim
        mixed = self._linear(tensor, "qkv", width, blocks.hidden)
        query = self._rotate(self._heads(mixed, 0, blocks.heads))
        key = self._rotate(self._heads(mixed, blocks.heads, blocks.kv_heads))
        value = self._heads(mixed, blocks.heads + blocks.kv_heads, blocks.kv_heads)
        attention = network.add_attention(query, key, value, trt.AttentionNormalizationOp.SOFTMAX, True)
        attention.decomposable = blocks.dtype == "float32"  # there is no kernel for it
        joined = network.add_shuffle(attention.get_output(0))
        joined.first_transpose = (0, 2, 1, 3)
        joined.reshape_dims = (blocks.tokens, blocks.heads * blocks.head_dim)
        return joined.get_output(0)

    def _heads(self, mixed: Any, first: int, count: int) -> Any:
        blocks = self.blocks
        start, width = first * blocks.head_dim, count * blocks.head_dim
        part = self.network.add_slice(mixed, (0, start), (blocks.tokens, width), (1, 1)).get_output(0)
        heads = self.network.add_shuffle(part)
        heads.reshape_dims = (blocks.sequences, blocks.length, count, blocks.head_dim)
        heads.second_transpose = (0, 2, 1, 3)
        return heads.get_output(0)

    def _rotate(self, tensor: Any) -> Any:
        """Add the rotary embedding."""
        blocks = self.blocks
        shape = (blocks.sequences, blocks.length, blocks.head_dim // 2)
        cosines, sines = self._constant("cosines", shape), self._constant("sines", shape)
        return self.network.add_rotary_embedding(tensor, cosines, sines, False, blocks.head_dim).get_output(0)

    def _mlp(self, tensor: Any) -> Any:
        blocks, trt = self.blocks, self.trt
        product = self._linear(tensor, "up", blocks.inner, blocks.hidden)
        gate = self._linear(tensor, "gate", blocks.inner, blocks.hidden) if blocks.gated else product
        sigmoid = self.network.add_activation(gate, trt.ActivationType.SIGMOID).get_output(0)
        active = self._elementwise(gate, sigmoid, "PROD")
        if blocks.gated:
            active = self._elementwise(active, product, "PROD")
        return self._linear(active, "down", blocks.hidden, blocks.inner)
