# ruff: noqa: TID253 - imported only where on_cpu gives these modules
import contextlib

import tensorrt as trt

from . import _common


class Network:
    def _init(self, trt_network):
        self._trt_network = trt_network
        self._arrays = []  # TensorRT is given pointers into these
        self._inputs = {}
        self.strongly_typed = trt.INetworkDefinition.get_flag(
            trt_network, trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
        )
        return self

    @property
    def trt_network(self):
        return self._trt_network

    def _add_input(self, tensor, name, dtype, shape):
        tensor.trt_tensor = self.trt_network.add_input(name, dtype, shape)
        self._inputs[name] = tensor

    def _mark_output(self, tensor, name, dtype):
        from .functional import cast

        tensor = cast(tensor, dtype)
        self.trt_network.mark_output(tensor.trt_tensor)
        tensor.trt_tensor.name = name


@contextlib.contextmanager
def net_guard(network):
    before = _common.net
    _common.set_network(network)
    try:
        yield
    finally:
        _common.set_network(before)
