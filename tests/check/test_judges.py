"""Judgements of recorded facts: each row is a record, the code that comes first, and words of its message or command."""

from __future__ import annotations

import msgspec
import pytest

from trtdx.check.nouns import EnvironmentRecord, name_in_other_abi
from trtdx.check.run import judge_record
from trtdx.model import Severity

SITE = "/venv/lib/python3.12/site-packages"
GPU = {"name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "capability": "9.0"}
ABI = "_ZN3c106detail14torchCheckFailEPKcS2_jRK"
NEW, OLD = f"{ABI}NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", f"{ABI}Ss"


def package(name, version, *, modules=None, **more):
    module = name.replace("-", "_")
    modules = [module] if modules is None else modules
    facts = {"folder": SITE, "info": f"{module}-{version}.dist-info", "name": name, "version": version, "files": 20}
    return {**facts, "has_record": True, "modules": modules, "places": modules, **more}


def failing(text, kind="ImportError", **more):
    return {"module": "tensorrt_llm", "outcome": "error", "chain": [{"kind": kind, "text": text}], **more}


def record(*packages, machine=None, variables=None, leftovers=(), **more):
    python = {
        "interpreter": {"version": "3.12.3", "prefix": "/venv", "base_prefix": "/usr", "machine": "x86_64"},
        "folders": [{"folder": SITE, "distributions": packages, "leftovers": leftovers}],
        "variables": variables or {},
    }
    facts = {"python_path": "/venv/bin/python", "python": python, **more}
    return msgspec.convert(
        {**facts, "machine": {"gpus": [GPU], "driver": "590.44.01", **(machine or {})}}, EnvironmentRecord
    )


LLM, TORCH = package("tensorrt_llm", "1.2.1", requires=["torch>=2.9.1"]), package("torch", "2.9.1+cu130")
OPENMPI = {"name": "libmpi.so.40", "path": "/usr/lib/libmpi.so.40"}
MPI4PY = f"{SITE}/mpi4py/MPI.mpich.so"
ROWS = {
    "a neighbour that asks for another torch is what has to change": (
        record(LLM, TORCH, package("torchvision", "0.20.1", requires=["torch==2.5.1"])),
        "DX044", "torchvision 0.20.1 requires torch==2.5.1", "'torchvision' 'torch==2.9.1+cu130'",
    ),
    "a package that an interrupted pip took away": (
        record(LLM, leftovers=["~orch"]), "DX061", f"left {SITE}/~orch behind", "'torch>=2.9.1'",
    ),
    "a stub in place of the package that is missing": (
        record(package("torch", "2.9.1", requires=["nvidia-cudnn-cu13"]), package("nvidia-cudnn", "0.0.1", modules=[], summary="a fake package", files=3)),
        "DX012", "nvidia-cudnn 0.0.1 is only a placeholder", "'nvidia-cudnn-cu13'",
    ),
    "libraries of TensorRT for two CUDA versions": (
        record(LLM, TORCH, package("tensorrt_cu12_libs", "10.13.3.9", modules=["tensorrt_libs"]), package("tensorrt_cu13_libs", "10.14.1.48", modules=["tensorrt_libs"])),
        "DX1108", "write the same module tensorrt_libs", "uninstall -y tensorrt_cu12_libs tensorrt_cu13_libs",
    ),
    "a file that another package has overwritten": (
        record(LLM, TORCH, package("tensorrt_cu13", "10.14.1.48", modules=["tensorrt"], wrong_size=[["tensorrt/__init__.py", 90, 20]]), package("nvidia-tensorrt", "8.4.3.1", modules=["tensorrt"])),
        "DX1108", "tensorrt_cu13 10.14.1.48 and nvidia-tensorrt 8.4.3.1", "uninstall",
    ),
    "an extension of the old C++ ABI": (
        record(LLM, TORCH, trials=[failing(f"{SITE}/tensorrt_llm/libs/libth_common.so: undefined symbol: {OLD}")],
               providers=[{"symbol": NEW, "path": f"{SITE}/torch/lib/libc10.so", "owner": "torch"}]),
        "DX026", "built with the old C++ ABI, and the installed torch 2.9.1+cu130 with the new one", "tensorrt_llm==1.2.1",
    ),
    "mpi4py that takes libmpi.so of MPICH, which Debian names otherwise": (
        record(LLM, TORCH, package("mpi4py", "4.1.2"), machine={"libmpi": "/usr/lib/libmpich.so.12.2.2"},
               trials=[failing("libmpi.so.12: cannot open shared object file: No such file or directory", failures=[["mpi4py.MPI", MPI4PY, {"text": "x"}]])],
               libraries=[{"path": MPI4PY, "owner": "mpi4py", "needs": [{"name": "libmpi.so.12"}]}, {"path": f"{SITE}/mpi4py/MPI.openmpi.so", "owner": "mpi4py", "needs": [OPENMPI]}]),
        "DX023", "libmpi.so leads to /usr/lib/libmpich.so.12.2.2", "export MPI4PY_MPIABI=openmpi",
    ),
    "the nested module whose source is no text": (
        record(LLM, TORCH, package("transformers", "4.57.3"), trials=[failing("source code string cannot contain null bytes", "SyntaxError",
               failures=[["transformers", f"{SITE}/transformers/__init__.py", {"text": "source code string cannot contain null bytes"}]])]),
        "DX1112", f"{SITE}/transformers/__init__.py of transformers 4.57.3", "'transformers==4.57.3'",
    ),
    "a crash, and the requirement that installs the culprit anew": (
        record(LLM, TORCH, package("flashinfer-python", "0.6.4", modules=["flashinfer"]), trials=[{"module": "tensorrt_llm", "outcome": "crash", "status": -11, "loading": [["flashinfer", f"{SITE}/flashinfer/__init__.py"]]}]),
        "DX1113", "SIGSEGV in flashinfer-python 0.6.4", "--python /venv/bin/python install --force-reinstall --no-deps --no-cache-dir 'flashinfer-python==0.6.4'",
    ),
    "every GPU hidden by a variable": (
        record(LLM, TORCH, variables={"CUDA_VISIBLE_DEVICES": ""}, expects_gpu=True), "DX035", "CUDA_VISIBLE_DEVICES= hides the GPU", "unset CUDA_VISIBLE_DEVICES",
    ),
    "no GPU where one is expected": (
        record(LLM, TORCH, machine={"gpus": [], "driver_problem": "could not be started: No such file"}, expects_gpu=True), "DX035", "no NVIDIA GPU", "nvidia-smi",
    ),
    "what Docker gives of shared memory": (
        record(LLM, TORCH, machine={"shm_bytes": 64 << 20, "shm_free_bytes": 64 << 20, "container": "Docker"}), "DX400", "64.0 MiB of /dev/shm", None,
    ),
    "weights that were never fetched": (
        record(LLM, TORCH, machine={"pointers": ["/models/l/model.safetensors"]}), "DX086", "/models/l/model.safetensors", "cd /models/l && git lfs",
    ),
    "faults the kernel tells of go before notes": (
        record(machine={"gpus": [], "xids": ["NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."]}), "DX297", "fallen off", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_cause_comes_first_with_its_culprit_and_its_command(name, book):
    facts, code, words, command = ROWS[name]
    findings = judge_record(facts, book).findings
    graver = [finding.code for finding in findings if finding.severity is not Severity.NOTE]
    assert (findings[0].code, graver) == (code, [code]), [finding.message for finding in findings]
    assert words in findings[0].message
    assert command is None or command in (findings[0].fixes[0].command or "")


def test_libraries_of_a_toolkit_on_the_path_are_a_note(book):
    folder = "/usr/local/cuda/lib64"
    needs = [{"name": "libcudart.so.13", "path": f"{folder}/libcudart.so.13", "via": "LD_LIBRARY_PATH"}]
    runtime = package(
        "nvidia-cuda-runtime", "13.0.96", modules=["nvidia"], compiled=["nvidia/cu13/lib/libcudart.so.13"]
    )
    facts = record(
        LLM, TORCH, runtime, variables={"LD_LIBRARY_PATH": folder},
        libraries=[{"path": f"{SITE}/torch/lib/libtorch_cuda.so", "owner": "torch", "needs": needs}],
    )  # fmt: skip
    (finding,) = judge_record(facts, book).findings
    assert (finding.code, finding.severity) == ("DX1104", Severity.NOTE)


@pytest.mark.parametrize(("name", "twin"), [(NEW, OLD), (OLD, NEW), ("ncclAllReduce", ""), ("_ZN2at3addEv", "")])
def test_symbols_are_known_by_their_name_in_the_other_abi(name, twin):
    assert name_in_other_abi(name) == twin
