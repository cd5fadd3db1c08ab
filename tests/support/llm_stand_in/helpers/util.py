# ruff: noqa: I001, TID253 - imported only where on_cpu gives these modules
"""What the helpers of TensorRT-LLM's tests do."""

import pynvml
import tensorrt as trt
import torch
from cuda import cuda, nvrtc

from tensorrt_llm.runtime import Session, TensorInfo

TYPES = {torch.float32: trt.float32, torch.float16: trt.float16}


def sm_version():
    (error,) = cuda.cuInit(0)
    assert isinstance(error, cuda.CUresult)
    assert not isinstance(error, nvrtc.nvrtcResult)
    assert error == cuda.CUresult.CUDA_SUCCESS
    _, device = cuda.cuDeviceGet(0)
    kind = cuda.CUdevice_attribute
    _, major = cuda.cuDeviceGetAttribute(kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    _, minor = cuda.cuDeviceGetAttribute(kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
    return major * 10 + minor


def gpus():
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetCount()


def create_session(builder, network, precision="float32", optimization_profiles=()):
    config = builder.create_builder_config(precision)
    for profile in optimization_profiles:
        config.trt_builder_config.add_optimization_profile(profile)
    return Session.from_serialized_engine(builder.build_engine(network, config))


def run_session(session, inputs, outputs=None):
    told = session.infer_shapes([TensorInfo(n, TYPES[t.dtype], t.shape) for n, t in inputs.items()])
    types = {dtype: kind for kind, dtype in TYPES.items()}
    made = {each.name: torch.empty(each.shape, dtype=types[each.dtype], device="cuda") for each in told}
    stream = torch.cuda.current_stream()
    assert session.run(inputs, made, stream.cuda_stream)
    stream.synchronize()
    return made
