# ruff: noqa: TID253 - imported only where on_cpu gives these modules
import modelopt  # not installed here, and not needed to define a network
import tensorrt as trt

from .logger import logger
from .network import Network


class BuilderConfig:
    def __init__(self, trt_builder_config):
        self.trt_builder_config = trt_builder_config


class Builder:
    def __init__(self):
        self.trt_builder = trt.Builder(logger.trt_logger)

    def create_network(self):
        flag = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        return Network()._init(self.trt_builder.create_network(flag))

    def create_builder_config(self, precision):
        config = self.trt_builder.create_builder_config()
        if precision == "float16":
            config.set_flag(trt.BuilderFlag.FP16)
        config.clear_flag(trt.BuilderFlag.TF32)
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        return BuilderConfig(config)

    def build_engine(self, network, config):
        return self.trt_builder.build_serialized_network(network.trt_network, config.trt_builder_config)

    def quantize(self):
        return modelopt.torch.quantize(self)
