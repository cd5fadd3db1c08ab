"""Real environments, each broken in one way: the right cause first, its culprit named, and clean once it is mended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from support.make_environments import Environment, compile_library, extension_source, set_architecture
from trtdx.model import Severity

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0f\nsize 1073741824\n"


def grave(report):
    return [finding for finding in report.findings if finding.severity is not Severity.NOTE]


def replace(environment: Environment, name: str, version: str, **options) -> None:
    for info in environment.site.glob(name.replace("-", "_") + "-*.dist-info"):
        shutil.rmtree(info)
    environment.add(name, version, **options)


def append(environment: Environment, path: str, text: str) -> None:
    target = environment.site / path
    target.write_text(target.read_text() + text)


def info_of(environment: Environment, name: str):
    return next(environment.site.glob(f"{name}-*.dist-info"))


class Broken(NamedTuple):
    """How something is broken: the code and words of the first finding, and whether its command mends it."""

    code: str
    culprit: str
    mended_by_command: bool = False
    clean_without: tuple[str, ...] = ()  # variables


CASES: dict[str, tuple] = {}


def broken(code: str, culprit: str, **options):
    def keep(break_it):
        CASES[break_it.__name__] = (break_it, Broken(code, culprit, **options))
        return break_it

    return keep


@broken("DX1100", "torch 2.4.0", mended_by_command=True)
def torch_of_another_release(environment):
    replace(environment, "torch", "2.4.0")


@broken("DX041", "transformers 5.0.0", mended_by_command=True)
def transformers_too_new(environment):
    replace(environment, "transformers", "5.0.0")


@broken("DX040", "numpy 2.1.0", mended_by_command=True)
def numpy_of_another_major_version(environment):
    replace(environment, "numpy", "2.1.0")


@broken("DX039", "cuda-python 12.6.0", mended_by_command=True)
def cuda_python_of_another_cuda(environment):
    replace(environment, "cuda-python", "12.6.0", files={})


@broken("DX1021", "torch 2.9.1+cu128")
def torch_for_another_cuda(environment):
    replace(environment, "torch", "2.9.1+cu128")


@broken("DX042", "mpi4py", mended_by_command=True)
def required_package_missing(environment):
    shutil.rmtree(info_of(environment, "mpi4py"))
    shutil.rmtree(environment.site / "mpi4py")


@broken("DX042", "regex")
def nested_import_missing(environment):
    append(environment, "transformers/__init__.py", "import regex\n")


@broken("DX030", "tensorrt_cu13_libs 10.13.3.9")
def parts_of_tensorrt_out_of_step(environment):
    environment.add("tensorrt_cu13_libs", "10.13.3.9", files={"tensorrt_libs/__init__.py": ""})


@broken("DX061", "libc10.so", mended_by_command=True)
def library_renamed(environment):
    library = environment.site / "torch/lib/libc10.so"
    library.rename(library.with_suffix(".bak"))


@broken("DX1117", "_ZN3c105touchEv")
def symbol_undefined(environment):
    compile_library(environment.site / "torch/lib/libc10.so", "int other(void) { return 1; }", soname="libc10.so")


@broken("DX1111", "_C.cpython", mended_by_command=True)
def library_for_another_processor(environment):
    set_architecture(environment.site / f"torch/_C{environment.suffix}", "aarch64")


@broken("DX050", "libc10.so")
def library_is_an_lfs_pointer(environment):
    (environment.site / "torch/lib/libc10.so").write_text(POINTER)


@broken("DX1112", "libc10.so", mended_by_command=True)
def library_cut_off(environment):
    library = environment.site / "torch/lib/libc10.so"
    library.write_bytes(library.read_bytes()[:2000])


@broken("DX017", "libnvinfer.so.10")
def tensorrt_library_nowhere(environment):
    name = "libnvinfer.so.10"
    library = compile_library(environment.folder / name, "int create(void) { return 0; }", soname=name)
    source = extension_source("_trt", "extern int create(void); int use(void) { return create(); }")
    compile_library(environment.site / f"tensorrt/_trt{environment.suffix}", source, links=(library,))
    append(environment, "tensorrt/__init__.py", "from tensorrt import _trt\n")
    library.unlink()


@broken("DX014", "compiled modules are for Python 3.9")
def extension_for_another_python(environment):
    tag = environment.tag.split("-")[0].removeprefix("cp")
    old = f"torch/_C{environment.suffix}"
    new = old.replace(f"cpython-{tag}", "cpython-39")
    (environment.site / old).rename(environment.site / new)
    record = info_of(environment, "torch") / "RECORD"
    record.write_text(record.read_text().replace(old, new))


@broken("DX1113", "badext")
def import_that_segfaults(environment):
    source = "void *PyInit__core(void) { *(volatile int *)0 = 1; return 0; }"
    library = compile_library(environment.site / f"badext/_core{environment.suffix}", source)
    environment.add("badext", "0.3", files={"badext/__init__.py": "from badext import _core\n"}, libraries=(library,))
    append(environment, "transformers/__init__.py", "import badext\n")


@broken("DX1114", "slowpoke")
def import_that_hangs(environment):
    environment.add("slowpoke", "0.1", files={"slowpoke/__init__.py": "import threading\nthreading.Event().wait()\n"})
    append(environment, "transformers/__init__.py", "import slowpoke\n")


@broken("DX712", "huggingface-hub 0.10.0")
def name_that_another_package_lacks(environment):
    environment.add("huggingface-hub", "0.10.0")
    append(environment, "transformers/__init__.py", "from huggingface_hub import split_shards\n")


@broken("DX1115", "picky 1.0")
def package_that_refuses(environment):
    environment.add("picky", "1.0", files={"picky/__init__.py": "raise RuntimeError('not here')\n"})
    append(
        environment,
        "transformers/__init__.py",
        "try:\n    import picky\nexcept Exception as err:\n    raise ImportError from err\n",
    )


@broken("DX1112", "einops")
def source_with_conflict_marks(environment):
    environment.add("einops", "0.8", files={"einops/__init__.py": "<<<<<<< HEAD\n"})
    append(environment, "transformers/__init__.py", "import einops\n")


@broken("DX1107", "torch is recorded twice")
def metadata_twice(environment):
    environment.add("torch", "2.4.0", files={})


@broken("DX1108", "pynvml")
def two_packages_of_one_module(environment):
    environment.add("nvidia-ml-py", "13.580.0", files={"pynvml.py": "x = 1\n"})
    environment.add("pynvml", "11.5.0", files={"pynvml.py": "y = 1\n"})


@broken("DX012", "tensorrt 0.0.1")
def placeholder_from_the_index(environment):
    shutil.rmtree(environment.site / "tensorrt")
    replace(environment, "tensorrt", "0.0.1", files={}, summary="A fake package that only holds the name.")


@broken("DX1110", "gone/TensorRT-LLM")
def editable_install_left_behind(environment):
    info = info_of(environment, "tensorrt_llm")
    shutil.rmtree(environment.site / "tensorrt_llm")
    url = {"url": f"file://{environment.folder}/gone/TensorRT-LLM", "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(url))
    (info / "RECORD").unlink()


@broken("DX1119", "transformers-4.57.3.dist-info")
def metadata_gone(environment):
    (info_of(environment, "transformers") / "METADATA").unlink()


@broken("DX061", "its code says it is 2.4.0")
def files_of_another_version(environment):
    (environment.site / "torch/__init__.py").write_text("__version__ = '2.4.0'\n")


@broken("DX064", "tensorrt.py", mended_by_command=True)
def file_in_the_current_folder(environment):
    Path("tensorrt.py").write_text("x = 1\n")


@broken("DX064", "random.py", mended_by_command=True)
def standard_module_hidden(environment):
    Path("random.py").write_text("x = 1\n")
    append(environment, "transformers/__init__.py", "from random import randint\n")


@broken("DX1105", "torch 2.4.0", clean_without=("PYTHONPATH",))
def older_copy_on_pythonpath(environment):
    other = environment.copy(environment.folder.parent / "other")
    replace(other, "torch", "2.4.0")
    for entry in other.site.iterdir():
        if not entry.name.startswith("torch"):
            shutil.rmtree(entry)
    os.environ["PYTHONPATH"] = str(other.site)


@broken("DX1102", "PYTHONHOME", clean_without=("PYTHONHOME",))
def home_of_nothing(environment):
    os.environ["PYTHONHOME"] = str(environment.folder / "nothing")


@broken("DX1103", "libjemalloc", clean_without=("LD_PRELOAD",))
def preloaded_library_gone(environment):
    os.environ["LD_PRELOAD"] = "/opt/none/libjemalloc.so.2"


@broken("DX1104", "libc10.so", clean_without=("LD_LIBRARY_PATH",))
def older_library_on_the_library_path(environment):
    folder = environment.folder.parent / "old"
    compile_library(folder / "libc10.so", "int other(void) { return 1; }", soname="libc10.so")
    os.environ["LD_LIBRARY_PATH"] = str(folder)


@broken("DX1101", "gone/python3")
def base_python_removed(environment):
    environment.python.unlink()
    environment.python.symlink_to("/opt/gone/python3")


@broken("DX1118", "old.pth", mended_by_command=True)
def startup_line_that_fails(environment):
    (environment.site / "old.pth").write_text("import gone_tool\n")


@broken("DX1118", "sitecustomize.py", mended_by_command=True)
def startup_file_that_ends_python(environment):
    (environment.site / "sitecustomize.py").write_text("import os\nos._exit(3)\n")


@broken("DX1125", "python3.9")
def interpreter_replaced_by_another_version(environment):
    folder = environment.site.parent
    folder.rename(folder.parent / "python3.9")
    environment.site.mkdir(parents=True)


@broken("DX1116", "libcudnn.so.9")
def two_versions_of_one_library(environment):
    site, use = environment.site, "extern int version(void); int use(void) { return version(); }"
    new = compile_library(
        site / "nvidia/cudnn/lib/libcudnn.so.9", "int version(void) { return 9; }", soname="libcudnn.so.9"
    )
    old = compile_library(
        site / "tensorrt_llm/libs/libcudnn.so.9", "int version(void) { return 8; }", soname="libcudnn.so.9"
    )
    for package, library, folder in (("torch", new, "../nvidia/cudnn/lib"), ("tensorrt_llm", old, "libs")):
        flags = (f"-Wl,-rpath,$ORIGIN/{folder}",)
        compile_library(
            site / f"{package}/_D{environment.suffix}", extension_source("_D", use), links=(library,), flags=flags
        )
        append(environment, f"{package}/__init__.py", f"from {package} import _D\n")


@broken("DX1105", "easy-install.pth", mended_by_command=True)
def checkout_put_in_front_by_a_pth_file(environment):
    source = environment.folder.parent / "checkout"
    (source / "transformers").mkdir(parents=True)
    (source / "transformers/__init__.py").write_text("__version__ = '4.40.0'\n")
    (source / "transformers.egg-info").mkdir()
    (source / "transformers.egg-info/PKG-INFO").write_text(
        "Metadata-Version: 2.1\nName: transformers\nVersion: 4.40.0\n"
    )
    before = "import sys; sys.__plen = len(sys.path)"
    after = "import sys; new = sys.path[sys.__plen:]; del sys.path[sys.__plen:]; sys.path[0:0] = new"
    (environment.site / "easy-install.pth").write_text(f"{before}\n{source}\n{after}\n")


@broken("DX086", "model.safetensors")
def weights_that_are_pointers(environment):
    Path("model").mkdir()
    Path("model/model.safetensors").write_text(POINTER)


@pytest.mark.heavy
@pytest.mark.parametrize("name", CASES)
def test_cause_is_first_names_its_culprit_and_goes_away_once_mended(name, environment, check, monkeypatch):
    break_it, expected = CASES[name]
    for variable in ("PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(variable, "")  # restored afterwards, whatever the case sets
        monkeypatch.delenv(variable)
    break_it(environment)
    report = check(environment, timeout_s=3 if "hang" in name else 20)
    first = grave(report)[0]
    shown = f"{first.message} {first.where} {[item.text for item in first.evidence]}"
    assert first.code == expected.code, [finding.message for finding in report.findings]
    assert expected.culprit in shown
    if expected.mended_by_command:
        subprocess.run(["sh", "-c", first.fixes[0].command], check=True, capture_output=True, cwd="/", timeout=300)
    for variable in expected.clean_without:
        monkeypatch.delenv(variable)
    if expected.mended_by_command or expected.clean_without:
        assert [finding.message for finding in grave(check(environment))] == []
