# ruff: noqa: TID252, TID253 - imported only where on_cpu gives these modules
from dataclasses import dataclass

import tensorrt as trt
import torch

from ..logger import logger


@dataclass
class TensorInfo:
    name: str
    dtype: trt.DataType
    shape: tuple


class Session:
    @staticmethod
    def from_serialized_engine(plan):
        session = Session()
        session.engine = trt.Runtime(logger.trt_logger).deserialize_cuda_engine(plan)
        session.context = session.engine.create_execution_context()
        stream = torch.cuda.current_stream()
        session.context.set_optimization_profile_async(0, stream.cuda_stream)
        stream.synchronize()
        return session

    def infer_shapes(self, inputs):
        for each in inputs:
            if not self.context.set_input_shape(each.name, each.shape):
                raise RuntimeError(f"could not set shape {each.shape} for {each.name}")
        names = [self.engine.get_tensor_name(at) for at in range(self.engine.num_io_tensors)]
        outputs = [n for n in names if self.engine.get_tensor_mode(n) == trt.TensorIOMode.OUTPUT]
        return [
            TensorInfo(n, self.engine.get_tensor_dtype(n), tuple(self.context.get_tensor_shape(n))) for n in outputs
        ]

    def run(self, inputs, outputs, stream):
        for name, tensor in {**inputs, **outputs}.items():
            self.context.set_tensor_address(name, tensor.data_ptr())
        return self.context.execute_async_v3(stream)
