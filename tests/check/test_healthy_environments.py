"""Environments that look odd and are fine: no error, no warning."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.make_environments import compile_library, extension_source
from trtdx.model import Severity

CASES = {}


def odd(make):
    CASES[make.__name__] = make
    return make


@odd
def a_plain_deployment(environment, monkeypatch):
    pass


@odd
def a_metapackage_without_modules(environment, monkeypatch):
    environment.add("tensorrt_cu13", "10.14.1.48", files={})
    environment.add("tensorrt-meta", "10.14.1.48", files={}, requires=("tensorrt_cu13",))


@odd
def folders_without_init_in_the_current_folder(environment, monkeypatch):
    for name in ("torch", "tensorrt", "datasets"):
        Path(name).mkdir()
    Path("notes.py").write_text("")


@odd
def a_standard_name_that_disturbs_nothing(environment, monkeypatch):
    Path("calendar.py").write_text("x = 1\n")


@odd
def an_editable_install_whose_folder_is_there(environment, monkeypatch):
    source = environment.folder.parent / "source"
    (source / "mytool").mkdir(parents=True)
    (source / "mytool/__init__.py").write_text("")
    info = environment.add("mytool", "0.1", files={}, record=False)
    (info / "direct_url.json").write_text(json.dumps({"url": f"file://{source}", "dir_info": {"editable": True}}))
    (environment.site / "__editable__.mytool-0.1.pth").write_text(f"{source}\n")


@odd
def harmless_variables(environment, monkeypatch):
    folder = environment.folder.parent / "libraries"
    compile_library(folder / "libfoo.so.1", "int foo(void) { return 1; }", soname="libfoo.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{folder}:/nonexistent")
    monkeypatch.setenv("PYTHONPATH", str(folder))


@odd
def a_library_that_the_package_loads_itself(environment, monkeypatch):
    name = "libcudnn.so.9"
    source = "int version(void) { return 9; }"
    library = compile_library(environment.site / f"nvidia/cudnn/lib/{name}", source, soname=name)
    use = extension_source("_D", "extern int version(void); int use(void) { return version(); }")
    compile_library(environment.site / f"torch/_D{environment.suffix}", use, links=(library,))
    (environment.site / "torch/__init__.py").write_text(
        "import ctypes, os\n"
        f"ctypes.CDLL(os.path.dirname(__file__) + '/../nvidia/cudnn/lib/{name}', ctypes.RTLD_GLOBAL)\n"
        "from torch import _D\n"
    )


@odd
def one_library_by_several_paths_and_a_copy_of_it(environment, monkeypatch):
    name, use = "libcudnn.so.9", "extern int version(void); int use(void) { return version(); }"
    library = compile_library(
        environment.site / f"nvidia/cudnn/lib/{name}", "int version(void) { return 9; }", soname=name
    )
    for place in (f"torch/lib/_D{environment.suffix}", f"tensorrt_llm/_D{environment.suffix}"):
        up = "../" * place.count("/")
        flags = (f"-Wl,-rpath,$ORIGIN/{up}nvidia/cudnn/lib",)
        compile_library(environment.site / place, extension_source("_D", use), links=(library,), flags=flags)
    copies = environment.folder.parent / "copies"
    copies.mkdir()
    shutil.copy(library, copies)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(copies))


@odd
def the_drivers_library_on_a_machine_without_one(environment, monkeypatch):
    library = compile_library(
        environment.folder / "libcuda.so.1", "int cuInit(void) { return 0; }", soname="libcuda.so.1"
    )
    use = extension_source("_trt", "extern int cuInit(void); int use(void) { return cuInit(); }")
    compile_library(environment.site / f"tensorrt/_trt{environment.suffix}", use, links=(library,))
    library.unlink()
    init = environment.site / "tensorrt/__init__.py"
    init.write_text(init.read_text() + "from tensorrt import _trt\n")


@pytest.mark.heavy
@pytest.mark.parametrize("name", CASES)
def test_healthy_environment_gives_no_alarm(name, environment, check, monkeypatch):
    CASES[name](environment, monkeypatch)
    report = check(environment)
    assert [finding.message for finding in report.findings if finding.severity is not Severity.NOTE] == []


def test_missing_driver_is_an_error_where_a_gpu_is_expected(environment, check):
    report = check(environment, expects_gpu=True)
    assert [(finding.code, finding.severity.value) for finding in report.findings] == [("DX035", "error")]
