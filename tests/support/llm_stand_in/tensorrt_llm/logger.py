# ruff: noqa: TID253 - imported only where on_cpu gives these modules
import tensorrt as trt


class Logger:
    def __init__(self):
        self.trt_logger = trt.Logger(trt.Logger.ERROR)

    def set_level(self, level):
        self.level = level


logger = Logger()
