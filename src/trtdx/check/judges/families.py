"""Which page a library, or a C++ symbol, belongs to."""

from __future__ import annotations

import re

from trtdx.knowledge.versions import tensorrt_of

# The first that fits wins.
LIBRARY_PAGES = (
    (r"lib(?:tensorrt_llm|nvinfer_plugin_tensorrt_llm|th_common|decoder_attention|pg_utils)", "DX016"),
    (r"libnvinfer_(?:builder_resource|lean|dispatch|vc_plugin)", "DX189"),
    (r"lib(?:nvinfer|nvonnxparser|nvparsers|nvcaffe_parser)", "DX017"),
    (r"libcudnn", "DX019"),
    (r"libnccl", "DX020"),
    (r"lib(?:mpi|mpich|open-rte|open-pal|pmix|prrte)", "DX021"),
    (
        r"lib(?:cudart|cublas|curand|nvrtc|cufft|cusparse|cusolver|nvJitLink|nvToolsExt|cupti|cudla|cufile|nppc|npp)",
        "DX018",
    ),
    (r"libpython", "DX025"),
    (r"lib(?:torch|c10|caffe2|shm)", "DX027"),
)
DRIVER = re.compile(r"lib(?:cuda|nvidia-ml|nvidia-ptxjitcompiler|nvcuvid|cudadebugger)\.so")
SYMBOL_PAGES = (
    (r"_ZN?K?(?:St.*)?12tensorrt_llm|tensorrt_llm", "DX029"),
    (r"c10|_ZN2at|_ZNK2at|5torch|torch|_ZN6caffe2", "DX026"),
    (r"^cu[A-Z]\w+(?:_v\d)?$", "DX031"),
)
# What a symbol's namespace is defined in.
SYMBOL_OWNERS = (
    (r"tensorrt_llm", "tensorrt-llm"),
    (r"c10|_ZN2at|_ZNK2at|torch|caffe2", "torch"),
    (r"nvinfer1|createInfer|nvonnxparser", "tensorrt"),
    (r"nccl[A-Z]", "nvidia-nccl"),
    (r"cudnn", "nvidia-cudnn"),
    (r"^(?:MPI|ompi)_", "mpi4py"),
)


def page_of_library(name: str) -> str:
    """Return the code of the page about a missing library."""
    return next((code for pattern, code in LIBRARY_PAGES if re.match(pattern, name)), "DX711")


# The distribution on the index that brings a library; up to CUDA 12 its name ends with -cu12.
CUDA_PACKAGES = {
    "libcudart": "nvidia-cuda-runtime", "libcublas": "nvidia-cublas", "libcublasLt": "nvidia-cublas", "libcurand": "nvidia-curand",
    "libnvrtc": "nvidia-cuda-nvrtc", "libcufft": "nvidia-cufft", "libcusparse": "nvidia-cusparse",
    "libcusolver": "nvidia-cusolver", "libnvJitLink": "nvidia-nvjitlink", "libcupti": "nvidia-cuda-cupti",
}  # fmt: skip


def package_with_library(name: str, release: str) -> str:
    """Return the requirement that brings a library; empty where the index has none, or which one cannot be told."""
    stem, major = library_stem(name), name.rpartition(".so.")[2].split(".")[0]
    if stem in CUDA_PACKAGES and major in ("11", "12"):
        return f"{CUDA_PACKAGES[stem]}-cu{major}"
    if stem in CUDA_PACKAGES and major == "13":
        return CUDA_PACKAGES[stem]
    if re.match(r"libnv(?:infer|onnxparser)", stem) and major.isdigit():
        version = tensorrt_of(release) if release else ""
        return f"tensorrt=={version}" if version.startswith(f"{major}.") else f"tensorrt>={major},<{int(major) + 1}"
    return ""


def family_of_package(key: str) -> str:
    """Return a distribution's name without its CUDA version: "nvidia-cudnn"."""
    return re.sub(r"-cu\d\d", "", key)


def family_of_library(name: str) -> str:
    """Return the family of distributions that bring a library; empty where it is of no such family."""
    stem = library_stem(name)
    if re.match(r"libnv(?:infer|onnxparser)", stem):
        return "tensorrt-libs"
    own = {"libcudnn": "nvidia-cudnn", "libnccl": "nvidia-nccl", **CUDA_PACKAGES}
    return next((family for start, family in own.items() if stem.startswith(start)), "")


def is_driver_library(name: str) -> bool:
    """Whether a library comes with the NVIDIA driver and not with a package."""
    return bool(DRIVER.match(name))


def page_of_symbol(symbol: str) -> str:
    """Return the code of the page about an undefined symbol."""
    return next((code for pattern, code in SYMBOL_PAGES if re.search(pattern, symbol)), "DX1117")


def owner_of_symbol(symbol: str) -> str:
    """Return the distribution in whose libraries a symbol is usually defined; empty where its name does not tell."""
    return next((owner for pattern, owner in SYMBOL_OWNERS if re.search(pattern, symbol)), "")


def library_stem(name: str) -> str:
    """Return a library's name without its version: "libcudart"."""
    return re.split(r"\.so\b|-[0-9a-f]{8}\.", name)[0]
