# ruff: noqa: TID253 - imported only where on_cpu gives these modules
import os

from mpi4py import MPI

from .bindings import DataType, KVCacheType
from .bindings.BuildInfo import ENABLE_MULTI_DEVICE

NAMES = {DataType.FLOAT: "float32", DataType.HALF: "float16"}
RANK = MPI.COMM_WORLD.Split_type(split_type=0).Get_rank()
PAGED = KVCacheType.PAGED
ALONE = not ENABLE_MULTI_DEVICE
LIBRARY_LEFT_OUT = os.environ.get("TRT_LLM_NO_LIB_INIT") == "1"
net = None


def default_net():
    assert net is not None, "use net_guard first"
    return net


def default_trtnet():
    return default_net().trt_network


def set_network(network):
    global net
    net = network


def is_paged(kind):
    return kind == KVCacheType.PAGED
