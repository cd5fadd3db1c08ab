"""What a configured tree holds on to: CUDA, torch's ABI, build type, GPUs, submodules; and what lies beside it."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest

from support.make_cmake_tree import ENVIRONMENT, must_run, run, tools_are_here
from trtdx.build.doctor.ninja_files import read_manifest
from trtdx.build.doctor.run import examine_tree
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book

pytestmark = pytest.mark.skipif(not tools_are_here(), reason="cmake, ninja or g++ is not installed")
BOOK = load_book(RealHost())
PROJECT = "cmake_minimum_required(VERSION 3.18)\nproject(demo LANGUAGES {languages})\n"


class PathHost(RealHost):
    """This machine, with more programs and variables."""

    def __init__(self, first="", **variables):
        super().__init__()
        self._environment = {**ENVIRONMENT, "PATH": f"{first}:{ENVIRONMENT['PATH']}", **variables}

    def environment(self):
        return dict(self._environment)


def examine(root, host=None):
    return examine_tree(host or PathHost(), str(root), BOOK).findings


def mend(root, host=None):
    """Apply the first fix and expect that nothing is left to say."""
    must_run(examine(root, host)[0].fixes[0].command, root)
    assert examine(root, host) == ()


def configure(root, options="", build="build", generator="Ninja"):
    """Return a project that has nothing to compile, configured in a moment."""
    source = root / build.rpartition("/")[0]
    source.mkdir(parents=True, exist_ok=True)
    (source / "CMakeLists.txt").write_text(PROJECT.format(languages="NONE"))
    must_run(f"cmake -S '{source}' -B '{root / build}' -G '{generator}' {options}", root)
    return root


@pytest.fixture
def wheel_project(tmp_path):
    """A TensorRT-LLM checkout with a configured cpp/build."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/build_wheel.py").write_text("")
    (tmp_path / "tensorrt_llm/libs").mkdir(parents=True)
    return configure(tmp_path, "-DCMAKE_BUILD_TYPE=Release", "cpp/build")


def test_a_cuda_that_is_gone_is_forgotten(tmp_path):
    configure(tmp_path, "-DCMAKE_CUDA_COMPILER=/opt/cuda-12.4/bin/nvcc -DCUDAToolkit_ROOT=/opt/cuda-12.4")
    findings = examine(tmp_path)
    assert [finding.code for finding in findings] == ["DX1183"]
    assert "/opt/cuda-12.4/bin/nvcc" in findings[0].message
    mend(tmp_path)
    assert "cuda-12.4" not in (tmp_path / "build/CMakeCache.txt").read_text()


def test_an_nvcc_of_another_version_has_only_its_own_objects_made_again(tmp_path):
    nvcc = tmp_path / "cuda/nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n")
    nvcc.chmod(0o755)
    root = configure(tmp_path / "demo", f"-DCMAKE_CUDA_COMPILER={nvcc} -DCMAKE_CXX_COMPILER=/usr/bin/c++")
    record = root / "build/CMakeFiles/3.25.1/CMakeCUDACompiler.cmake"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(
        f'set(CMAKE_CUDA_COMPILER "{nvcc}")\nset(CMAKE_CUDA_COMPILER_ID "NVIDIA")\n'
        'set(CMAKE_CUDA_COMPILER_VERSION "12.4.131")\n'
    )
    for name in ("kernel.cu.o", "main.cpp.o"):
        (root / "build" / name).write_bytes(b"")
    finding = next(finding for finding in examine(root) if finding.code == "DX1183")
    assert "12.4.131" in finding.message
    assert "12.8.93" in finding.message
    must_run(finding.fixes[0].command, root)
    assert not (root / "build/kernel.cu.o").exists()
    assert (root / "build/main.cpp.o").exists()


def test_a_torch_of_another_abi_is_asked_again(tmp_path):
    config = tmp_path / "site-packages/torch/share/cmake/Torch/TorchConfig.cmake"
    config.parent.mkdir(parents=True)
    config.write_text('set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=1")\n')
    root = configure(tmp_path / "demo", f"-DTorch_DIR={config.parent} -DUSE_CXX11_ABI=0")
    findings = examine(root)
    assert [finding.code for finding in findings] == ["DX1185"]
    assert "site-packages/torch" in findings[0].message
    mend(root)


def elf(size):
    """Return a library that is whole as far as its header tells."""
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    head[18] = 62
    head[40:48] = (64).to_bytes(8, "little")
    return bytes(head) + b"\1" * (size - 64)


def write_library(path, size, age_s):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(elf(size))
    moment = time.time() - age_s
    os.utime(path, (moment, moment))
    return path


def test_an_older_copy_of_a_library_is_replaced_by_what_was_built(wheel_project):
    built = write_library(wheel_project / "cpp/build/tensorrt_llm/libtensorrt_llm.so", 4096, 100)
    copy = write_library(wheel_project / "tensorrt_llm/libs/libtensorrt_llm.so", 4000, 900)
    write_library(
        wheel_project / "build/lib/tensorrt_llm/libs/libtensorrt_llm.so", 4000, 900
    )  # the next wheel renews it
    findings = examine(wheel_project)
    assert [finding.code for finding in findings] == ["DX1191"]
    assert findings[0].message.startswith("tensorrt_llm/libs/libtensorrt_llm.so is an older copy")
    mend(wheel_project)
    assert copy.read_bytes() == built.read_bytes()


def test_a_copy_that_kept_its_time_in_whole_seconds_is_no_older_one(wheel_project):
    built = write_library(wheel_project / "cpp/build/libone.so", 4096, 100)
    copy = write_library(wheel_project / "tensorrt_llm/libs/libone.so", 4000, 100)  # its RPATH was taken out
    os.utime(copy, (int(built.stat().st_mtime), int(built.stat().st_mtime)))
    assert examine(wheel_project) == ()


def test_a_link_that_a_removed_tree_left_is_told(wheel_project):
    link = wheel_project / "tensorrt_llm/libs/libtensorrt_llm.so"
    link.symlink_to(wheel_project / "cpp/build/tensorrt_llm/libtensorrt_llm.so")
    findings = examine(wheel_project)
    assert [finding.code for finding in findings] == ["DX1191"]
    assert "libs/libtensorrt_llm.so is a link" in findings[0].message
    mend(wheel_project)


def test_kernels_that_were_never_generated_are_told(wheel_project):
    folder = wheel_project / "cpp/tensorrt_llm/kernels/contextFusedMultiHeadAttention/fmha_v2_cu"
    folder.mkdir(parents=True)
    findings = examine(wheel_project)
    assert [finding.code for finding in findings] == ["DX1188"]
    assert "fmha_v2_cu is empty" in findings[0].message
    mend(wheel_project)
    assert not folder.exists()


def test_a_debug_build_in_the_folder_for_release_explains_the_older_copies(wheel_project):
    must_run("cmake -DCMAKE_BUILD_TYPE=Debug cpp/build", wheel_project)
    write_library(wheel_project / "cpp/build/libone.so", 4096, 100)
    write_library(wheel_project / "tensorrt_llm/libs/libone.so", 4000, 900)
    findings = examine(wheel_project)
    assert [finding.code for finding in findings] == ["DX1204"]
    assert "cpp/build" in findings[0].message
    must_run(findings[0].fixes[0].command, wheel_project)
    assert [finding.code for finding in examine(wheel_project)] == ["DX1191"]


def test_a_library_that_nobody_may_replace_is_told(tmp_path):
    if os.geteuid() or not shutil.which("chattr"):
        pytest.skip("only root can make a file immutable")
    library = write_library(configure(tmp_path) / "build/libone.so", 4096, 1)
    if run("chattr +i build/libone.so", tmp_path).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        findings = examine(tmp_path)
        assert [finding.code for finding in findings] == ["DX1205"]
        assert "build/libone.so" in findings[0].message
        mend(tmp_path)
        library.unlink()
    finally:
        run("chattr -i build/libone.so", tmp_path)


def test_a_gpu_that_the_tree_is_not_compiled_for_is_told(tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho 9.0\n")
    (programs / "nvidia-smi").chmod(0o755)
    root = configure(tmp_path / "demo", "-DCMAKE_CUDA_ARCHITECTURES=80-real")
    host = PathHost(programs)
    findings = examine(root, host)
    assert [finding.code for finding in findings] == ["DX1206"]
    assert "80-real" in findings[0].message
    assert "9.0" in findings[0].message
    mend(root, host)


def test_a_submodule_at_another_commit_is_brought_back(tmp_path):
    identity = "-c user.name=x -c user.email=x@x -c protocol.file.allow=always"
    library, source = tmp_path / "library", tmp_path / "source"
    for folder in (library, source):
        folder.mkdir()
        must_run("git init -q .", folder)
    (library / "one.h").write_text("\n")
    must_run(f"git add . && git {identity} commit -qm one", library)
    must_run(f"git {identity} submodule add -q {library} 3rdparty/library && git {identity} commit -qm all", source)
    assert examine(source) == ()
    must_run(f"git {identity} commit -q --allow-empty -m two", source / "3rdparty/library")
    findings = examine(source)
    assert [finding.code for finding in findings] == ["DX1203"]
    assert "3rdparty/library" in findings[0].message
    mend(source)


def test_a_path_with_blanks_is_as_good_as_any(tmp_path):
    assert examine(configure(tmp_path / "my project")) == ()


def test_a_variable_that_asks_for_another_generator_is_told(tmp_path):
    configure(tmp_path, generator="Unix Makefiles")
    host = PathHost(CMAKE_GENERATOR="Ninja")
    findings = examine(tmp_path, host)
    assert [finding.code for finding in findings] == ["DX057"]
    assert "CMAKE_GENERATOR asks for the generator Ninja" in findings[0].message
    mend(tmp_path, host)


def test_a_moved_tree_keeps_its_compiler_and_drops_what_is_not_here(tmp_path):
    compiler = shutil.which("g++")
    configure(tmp_path / "old", f"-DCMAKE_CXX_COMPILER={compiler} -DTensorRT_ROOT=/opt/container/tensorrt")
    (tmp_path / "old").rename(tmp_path / "new")
    findings = examine(tmp_path / "new")
    assert [finding.code for finding in findings] == ["DX057"]
    assert f"-DCMAKE_CXX_COMPILER={compiler}" in findings[0].fixes[0].command
    assert "TensorRT_ROOT" not in findings[0].fixes[0].command
    mend(tmp_path / "new")


def test_byproducts_are_outputs_too(tmp_path):
    (tmp_path / "build.ninja").write_text(
        "cmake_ninja_workdir = /x/\nbuild stamp a.lib | ${cmake_ninja_workdir}stamp ${cmake_ninja_workdir}a.lib: CUSTOM_COMMAND b\n"
        "build my$ app: CXX_EXECUTABLE_LINKER__app a$:b.o\ndefault all\n"
    )
    manifest = read_manifest(tmp_path / "build.ninja")
    assert manifest.outputs() == {"stamp", "a.lib", "my app"}
    assert manifest.edges[1].inputs == ("a:b.o",)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A tree of Makefiles with a library, a target that was dropped since, and a header from a command."""
    root = tmp_path_factory.mktemp("made")
    (root / "main.cpp").write_text('#include "value.h"\nint main() { return VALUE; }\n')
    (root / "one.cpp").write_text("int one() { return 1; }\n")
    (root / "CMakeLists.txt").write_text(
        PROJECT.format(languages="CXX") + "add_executable(app main.cpp)\ntarget_include_directories(app PRIVATE .)\n"
        "option(OLD x ON)\nif(OLD)\n  add_library(old SHARED one.cpp)\nendif()\n"
    )
    (root / "value.h").write_text("#define VALUE 0\n")
    must_run("cmake -S . -B build -G 'Unix Makefiles' && cmake --build build", root)
    must_run("cmake -DOLD=OFF build && cmake --build build && build/app", root)
    return root


def test_make_keeps_what_no_target_makes_any_more(made):
    findings = examine(made)
    assert [finding.code for finding in findings] == ["DX1190"]
    assert "build/libold.so" in findings[0].message
    mend(made)
    must_run("cmake --build build && build/app", made)


@pytest.mark.parametrize(
    ("name", "code"), [("compiler_depend.make", "DX1187"), ("build.make", "DX1181"), ("main.cpp.o", "DX1195")]
)
def test_what_make_relies_on_is_whole_and_of_its_time(made, name, code):
    (made / "build/libold.so").unlink(missing_ok=True)
    path = made / "build/CMakeFiles/app.dir" / name
    if code == "DX1195":
        os.utime(path, (time.time() + 86400, time.time() + 86400))
        (made / "main.cpp").write_text("int main() { return 0; }\n")
    else:
        path.write_bytes(path.read_bytes()[:-20] + b"\0\0")
    findings = examine(made)
    assert [finding.code for finding in findings] == [code]
    assert name in findings[0].message
    mend(made)
    must_run("cmake --build build && build/app", made)


def test_a_header_that_a_command_made_and_a_hand_changed_is_made_again(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        PROJECT.format(languages="NONE") + "add_custom_command(OUTPUT value.h COMMAND ${CMAKE_COMMAND} -E copy "
        "${CMAKE_SOURCE_DIR}/value.in value.h DEPENDS value.in)\nadd_custom_target(all_of_it ALL DEPENDS value.h)\n"
    )
    (tmp_path / "value.in").write_text("1\n")
    must_run("cmake -S . -B build -G Ninja && cmake --build build", tmp_path)
    assert examine(tmp_path) == ()
    header = tmp_path / "build/value.h"
    header.write_text("9\n")
    os.utime(header, (time.time() + 30, time.time() + 30))
    findings = examine(tmp_path)
    assert [finding.code for finding in findings] == ["DX1189"]
    assert "build/value.h" in findings[0].message
    must_run(f"{findings[0].fixes[0].command} && cmake --build build", tmp_path)
    assert header.read_text() == "1\n"


def test_weights_that_break_off_are_told(tmp_path):
    header = json.dumps({"w": {"dtype": "F32", "shape": [10], "data_offsets": [0, 40]}}).encode()
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "LlamaForCausalLM"}))
    weights = tmp_path / "rank0.safetensors"
    weights.write_bytes(len(header).to_bytes(8, "little") + header + bytes(40))
    assert examine(tmp_path) == ()
    weights.write_bytes(weights.read_bytes()[:-8])
    findings = examine(tmp_path)
    assert [finding.code for finding in findings] == ["DX1188"]
    assert "rank0.safetensors" in findings[0].message


def test_a_fetched_source_that_lost_its_build_file_is_fetched_again(tmp_path):
    configure(tmp_path)
    for name in ("tiny-subbuild", "tiny-build", "tiny-src"):
        (tmp_path / "build/_deps" / name).mkdir(parents=True)
    (tmp_path / "build/_deps/tiny-build/cmake_install.cmake").write_text("")
    (tmp_path / "build/_deps/tiny-src/tiny.h").write_text("\n")
    assert [finding.code for finding in examine(tmp_path)] == ["DX1200"]
    mend(tmp_path)
