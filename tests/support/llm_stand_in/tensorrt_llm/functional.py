# ruff: noqa: TID253 - imported only where on_cpu gives these modules
import numpy as np
import tensorrt as trt

from ._common import default_net, default_trtnet


class Tensor:
    def __init__(self, name=None, dtype=None, shape=None, trt_tensor=None):
        self.trt_tensor = trt_tensor
        if trt_tensor is None:
            default_net()._add_input(self, name, dtype, shape)
            self.trt_tensor.dtype = dtype
            self.trt_tensor.location = trt.TensorLocation.DEVICE

    def mark_output(self, name, dtype=None):
        default_net()._mark_output(self, name, dtype)


def _of(layer):
    return Tensor(trt_tensor=layer.get_output(0))


def constant(array):
    weights = trt.Weights(trt.float32, array.ctypes.data, array.size)
    default_net()._arrays.append(array)
    return _of(default_trtnet().add_constant(array.shape, weights))


def cast(tensor, dtype):
    if dtype is None or tensor.trt_tensor.dtype == dtype:
        return tensor
    return _of(default_trtnet().add_cast(tensor.trt_tensor, dtype))


def matmul(left, right):
    kind = trt.MatrixOperation.NONE
    return _of(default_trtnet().add_matrix_multiply(left.trt_tensor, kind, right.trt_tensor, kind))


def relu(tensor):
    return _of(default_trtnet().add_activation(tensor.trt_tensor, trt.ActivationType.RELU))


def nonzero(tensor):
    return _of(default_trtnet().add_non_zero(tensor.trt_tensor))


def swish_plugin(tensor, beta):
    creator = trt.get_plugin_registry().get_plugin_creator("Swish", "1", "tensorrt_llm")
    field = trt.PluginField("beta", np.array([beta], np.float32), trt.PluginFieldType.FLOAT32)
    plugin = creator.create_plugin("swish", trt.PluginFieldCollection([field]))
    layer = default_trtnet().add_plugin_v2([tensor.trt_tensor], plugin)
    layer.name = "swish"
    return _of(layer)
