"""Trees that really broke: without the clean-up the build fails or is wrong, with it everything is right again."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from support.make_cmake_tree import (
    ENVIRONMENT,
    PROGRAM,
    keep_time,
    make_tree,
    must_run,
    program_output,
    replace_in,
    restore,
    run,
    tools_are_here,
    works,
    write_sources,
)
from trtdx.build.doctor.check_settings import covers_capability
from trtdx.build.doctor.run import examine_tree
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book

pytestmark = pytest.mark.skipif(not tools_are_here(), reason="cmake, ninja or g++ is not installed")
BOOK = load_book(RealHost())


class CleanHost(RealHost):
    """This machine, without what a test runner may have put into the environment."""

    def environment(self):
        return dict(ENVIRONMENT)


def examine(root):
    return examine_tree(CleanHost(), str(root), BOOK)


def apply_fixes(report, root):
    for fix in report.findings[0].fixes:
        must_run(fix.command, root)


def object_times(root):
    return {path: path.stat().st_mtime_ns for path in root.glob("build/**/*.o")}


def rebuilt(before, root):
    """Return the objects that were made again."""
    return {path.name for path, mtime in object_times(root).items() if before.get(path) != mtime}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A finished tree, and the path it must be brought back to."""
    folder = tmp_path_factory.mktemp("trees")
    extra = folder / "opt"
    (extra / "old").mkdir(parents=True)
    (extra / "extra.cpp").write_text("int unused() { return 0; }\n")
    must_run("g++ -shared -fPIC extra.cpp -o old/libextra.so", extra)
    root = make_tree(folder / "demo", f"-DDEMO_EXTRA_HINTS='{extra}/old;{extra}/new'")
    shutil.copytree(root, folder / "saved", symlinks=True)
    return folder


@pytest.fixture
def tree(saved):
    opt = saved / "opt"
    if not (opt / "old").exists():
        (opt / "new").rename(opt / "old")
    return restore(saved / "saved", saved / "demo")


def truncate(size):
    def change(path):
        path.write_bytes(path.read_bytes()[:size])

    return change


def cut_cache(root):
    truncate(9000)(root / "build/CMakeCache.txt")


def empty_cache(root):
    (root / "build/CMakeCache.txt").write_text("")


def cut_manifest(root):
    truncate(6000)(root / "build/build.ninja")


def lose_manifest(root):
    (root / "build/build.ninja").unlink()


def lose_rules(root):
    (root / "build/CMakeFiles/rules.ninja").unlink()


def lose_compiler(root):
    for name in ("CMakeCache.txt", "CMakeFiles/rules.ninja", "CMakeFiles/3.25.1/CMakeCXXCompiler.cmake"):
        for path in root.glob(f"build/{name.replace('3.25.1', '[0-9]*')}"):
            replace_in(path, ENVIRONMENT_COMPILER, "/opt/gcc-11/bin/g++")
    (root / "src/part.cpp").touch()


ENVIRONMENT_COMPILER = "/usr/bin/c++"


def change_compiler(root):
    script = next(root.glob("build/CMakeFiles/[0-9]*/CMakeCXXCompiler.cmake"))
    version = script.read_text().partition('CXX_COMPILER_VERSION "')[2].partition('"')[0]
    replace_in(script, f'CXX_COMPILER_VERSION "{version}"', 'CXX_COMPILER_VERSION "11.4.0"')
    must_run("cmake -S . -B build && cmake --build build", root)


def lose_make_program(root):
    path = root / "build/CMakeCache.txt"
    program = path.read_text().partition("CMAKE_MAKE_PROGRAM:FILEPATH=")[2].partition("\n")[0]
    replace_in(
        path, f"MAKE_PROGRAM:FILEPATH={program}", "MAKE_PROGRAM:FILEPATH=/tmp/pip-build-env-x1/overlay/bin/ninja"
    )


def change_generator(root):
    replace_in(
        root / "build/CMakeCache.txt", "CMAKE_GENERATOR:INTERNAL=Ninja", "CMAKE_GENERATOR:INTERNAL=Unix Makefiles"
    )


def lose_library(root):
    (root.parent / "opt/old").rename(root.parent / "opt/new")


def cut_object(root):
    keep_time(root / "build/CMakeFiles/app.dir/src/part.cpp.o", truncate(500))
    (root / "build/app").unlink()


def empty_library(root):
    keep_time(root / "build/lib/libdemo_lib.so", truncate(0))


def patch_library(root):
    other = root.parent / "patched.cpp"
    other.write_text("int base() { return 1; }\nint extra() { return 1; }\n")
    must_run(f"g++ -shared -fPIC {other} -o {root}/build/lib/libdemo_lib.so", root)


def add_source(root):
    (root / "lib/more.cpp").write_text('#include "lib.h"\nint other();\nint extra() { return other(); }\n')
    (root / "lib/other.cpp").write_text("int other() { return 2; }\n")


def drop_source(root):
    (root / "lib/more.cpp").unlink()
    (root / "lib/lib.cpp").write_text('#include "lib.h"\nint base() { return 40; }\nint extra() { return 2; }\n')


def future_script(root):
    ahead = time.time() + 86400
    os.utime(root / "CMakeLists.txt", (ahead, ahead))


def damage_deps(root):
    (root / "build/.ninja_deps").write_bytes(b"no dependencies at all, but quite some bytes of something else")


BROKEN = {
    cut_cache: ("DX1180", "CMakeCache.txt", ["part.cpp.o"]),
    empty_cache: ("DX1180", "CMakeCache.txt", []),
    cut_manifest: ("DX1181", "build.ninja", ["part.cpp.o", "lib.cpp.o"]),
    lose_manifest: ("DX1181", "build.ninja", ["part.cpp.o", "lib.cpp.o"]),
    lose_rules: ("DX1181", "rules.ninja", ["part.cpp.o", "lib.cpp.o"]),
    lose_compiler: ("DX1182", "/opt/gcc-11/bin/g++", []),
    change_compiler: ("DX1182", "11.4.0", []),
    lose_make_program: ("DX1186", "pip-build-env-x1", ["part.cpp.o", "lib.cpp.o"]),
    change_generator: ("DX057", "generator", ["part.cpp.o", "lib.cpp.o"]),
    lose_library: ("DX1186", "libextra.so", ["part.cpp.o", "lib.cpp.o"]),
    cut_object: ("DX1188", "part.cpp.o", ["main.cpp.o", "lib.cpp.o"]),
    empty_library: ("DX1188", "libdemo_lib.so", ["part.cpp.o", "lib.cpp.o"]),
    patch_library: ("DX1189", "libdemo_lib.so", ["part.cpp.o", "lib.cpp.o"]),
    add_source: ("DX1194", "other.cpp", ["lib.cpp.o", "part.cpp.o"]),
    drop_source: ("DX1194", "more.cpp", ["part.cpp.o"]),
    future_script: ("DX1195", "CMakeLists.txt", ["part.cpp.o", "lib.cpp.o"]),
}


@pytest.mark.parametrize("spoil", BROKEN, ids=lambda spoil: spoil.__name__)
def test_a_broken_tree_fails_without_the_clean_up_and_works_with_it(tree, saved, spoil):
    code, culprit, kept = BROKEN[spoil]
    spoil(tree)
    spoilt = saved / "spoilt"
    shutil.rmtree(spoilt, ignore_errors=True)
    shutil.copytree(tree, spoilt, symlinks=True)
    if spoil is not empty_cache:  # of an empty cache no option is left to be kept
        assert not works(tree), "without the clean-up it works: nothing was broken"
    restore(spoilt, tree)

    report = examine(tree)
    before = object_times(tree)
    assert report.findings[0].code == code, report.findings
    assert culprit in str(report.findings[0])
    apply_fixes(report, tree)
    if spoil is empty_cache:
        must_run("cmake -DDEMO_LOUD=ON build", tree)
    assert works(tree)
    assert not set(kept) & rebuilt(before, tree)
    assert examine(tree).findings == ()


def test_a_finished_tree_is_healthy(tree):
    assert examine(tree).findings == ()
    assert examine(tree / "build").findings == ()


def test_a_tree_of_several_configurations_is_healthy(tmp_path):
    write_sources(tmp_path)
    must_run("cmake -S . -B build -G 'Ninja Multi-Config' && cmake --build build", tmp_path)
    assert examine(tmp_path).findings == ()


def test_a_toolchain_file_that_is_gone_is_forgotten(tmp_path):
    (tmp_path / "chain.cmake").write_text("set(CMAKE_CXX_FLAGS_INIT -O1)\n")
    root = make_tree(tmp_path / "demo", f"-DCMAKE_TOOLCHAIN_FILE={tmp_path}/chain.cmake")
    (tmp_path / "chain.cmake").unlink()
    (root / "CMakeLists.txt").touch()
    assert not works(root)
    report = examine(root)
    assert report.findings[0].code == "DX1186"
    assert "chain.cmake" in report.findings[0].message
    apply_fixes(report, root)
    assert works(root)
    assert examine(root).findings == ()


def test_sources_edited_since_are_no_trouble(tree):
    (tree / "lib/lib.cpp").write_text('#include "lib.h"\nint base() { return 41; }\n')
    assert examine(tree).findings == ()


def test_a_tree_that_is_only_configured_is_healthy(tree):
    shutil.rmtree(tree / "build")
    must_run("cmake -S . -B build -G Ninja", tree)
    assert examine(tree).findings == ()


@pytest.mark.parametrize("generator", ["Ninja", "Unix Makefiles"])
def test_a_moved_tree_is_configured_where_it_is_now(tmp_path, generator):
    make_tree(tmp_path / "before", generator=generator)
    root = (tmp_path / "before").rename(tmp_path / "after")
    assert run("cmake --build build", root).returncode
    report = examine(root)
    assert report.findings[0].code == "DX057"
    assert str(tmp_path / "before/build") in report.findings[0].message
    apply_fixes(report, root)
    assert works(root)
    assert examine(root).findings == ()


def test_a_copy_beside_its_original_would_build_the_original(tree):
    copy = tree.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(tree, copy, symlinks=True)
    (copy / "lib/lib.cpp").write_text('#include "lib.h"\nint base() { return 100; }\n')
    assert run("ninja -C build", copy).returncode == 0
    assert program_output(copy) == PROGRAM  # of the original: wrong
    report = examine(copy)
    assert "still there" in report.findings[0].message
    apply_fixes(report, copy)
    must_run("cmake --build build", copy)
    assert program_output(copy) == "loud 102"


def test_a_tree_reached_through_a_link_is_healthy(tree, tmp_path):
    (tmp_path / "link").symlink_to(tree)
    assert examine(tmp_path / "link").findings == ()


def test_a_lost_cache_is_configured_again(tree):
    (tree / "build/CMakeCache.txt").unlink()
    assert not works(tree)
    report = examine(tree)
    assert report.findings[0].code == "DX1180"
    apply_fixes(report, tree)
    must_run("cmake --build build", tree)
    assert program_output(tree) == "42"  # the option went with the cache


def test_a_library_without_a_rule_is_left_over(tmp_path):
    root = make_tree(tmp_path / "demo", "-DDEMO_OLD=ON")
    must_run("cmake -DDEMO_OLD=OFF build && cmake --build build", root)
    assert (root / "build/lib/libdemo_old.so").exists()
    report = examine(root)
    assert report.findings[0].code == "DX1190"
    assert "libdemo_old.so" in report.findings[0].message
    apply_fixes(report, root)
    assert not (root / "build/lib/libdemo_old.so").exists()
    assert works(root)
    assert examine(root).findings == ()


def test_a_damaged_log_keeps_what_is_intact(tree):
    log = tree / "build/.ninja_log"
    whole = log.read_text()
    log.write_text(whole[: whole.rindex("\t") - 3])
    report = examine(tree)
    assert report.findings[0].code == "DX1187"
    apply_fixes(report, tree)
    before = object_times(tree)
    assert works(tree)
    assert len(rebuilt(before, tree)) <= 1
    assert examine(tree).findings == ()


def test_damaged_dependencies_are_dropped(tree):
    damage_deps(tree)
    assert "bad deps log" in must_run("ninja -C build -n 2>&1", tree)  # and forgets all of it
    damage_deps(tree)
    report = examine(tree)
    assert report.findings[0].code == "DX1187"
    apply_fixes(report, tree)
    assert "bad deps log" not in must_run("ninja -C build -n 2>&1", tree)
    assert works(tree)


def test_a_source_replaced_with_an_older_time_is_not_compiled_again(tmp_path):
    root = make_tree(tmp_path / "demo")
    time.sleep(1.2)  # the inode's own time cannot be set
    replace_in(root / "lib/lib.cpp", "40", "50")
    must_run("cmake --build build", root)
    assert program_output(root) == PROGRAM  # wrong: the source says 52
    report = examine(root)
    assert report.findings[0].code == "DX1195"
    assert "lib.cpp" in report.findings[0].message
    apply_fixes(report, root)
    must_run("cmake --build build", root)
    assert program_output(root) == "loud 52"


def test_a_source_folder_configured_in_place_is_told(tree):
    must_run("cmake -S . -B .", tree)
    (tree / "build2").mkdir()
    must_run("cmake ..", tree / "build2")
    assert not (tree / "build2/CMakeCache.txt").exists()  # wrong: the source folder was configured once more
    report = examine(tree)
    assert report.findings[0].code == "DX1201"
    apply_fixes(report, tree)
    assert works(tree)
    must_run("cmake ..", tree / "build2")
    assert (tree / "build2/CMakeCache.txt").exists()
    shutil.rmtree(tree / "build2")
    assert examine(tree).findings == ()


def test_the_python_of_a_tree_that_is_gone_is_replaced(tmp_path):
    venv = tmp_path / "venv"
    must_run(f"{sys.executable} -m venv --without-pip {venv}", tmp_path)
    root = tmp_path / "demo"
    root.mkdir()
    (root / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(demo LANGUAGES NONE)\n"
        "find_package(Python3 REQUIRED COMPONENTS Interpreter)\n"
        "add_custom_target(say ALL COMMAND ${Python3_EXECUTABLE} -c 'print(42)')\n"
    )
    must_run(f"cmake -S . -B build -G Ninja -DPython3_EXECUTABLE={venv}/bin/python3", root)
    must_run("cmake --build build", root)
    shutil.rmtree(venv)
    assert run("cmake --build build", root).returncode
    report = examine(root)
    assert report.findings[0].code == "DX1184"
    assert str(venv) in report.findings[0].message
    apply_fixes(report, root)
    must_run("cmake --build build", root)
    assert examine(root).findings == ()


def test_a_compiler_in_the_tree_is_never_started(tree):
    evil = tree / "evil.sh"
    evil.write_text(f"#!/bin/sh\ntouch {tree}/started\necho 'g++ 12.2.0'\n")
    evil.chmod(0o755)
    replace_in(
        tree / "build/CMakeCache.txt", f"CXX_COMPILER:FILEPATH={ENVIRONMENT_COMPILER}", f"CXX_COMPILER:FILEPATH={evil}"
    )
    examine(tree)
    assert not (tree / "started").exists()


def test_objects_of_ccache_with_a_blind_check_are_told(tree):
    config = tree / ".ccache/ccache.conf"
    config.parent.mkdir()
    config.write_text("max_size = 5G\ncompiler_check = none\n")
    must_run("cmake -DCMAKE_CXX_COMPILER_LAUNCHER=ccache build", tree)
    report = examine(tree)
    assert report.findings[0].code == "DX1193"
    apply_fixes(report, tree)
    assert config.read_text() == "max_size = 5G\ncompiler_check = content\n"
    assert examine(tree).findings == ()


def test_what_fetchcontent_left_half_done_is_fetched_again(tmp_path):
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "CMakeLists.txt").write_text("add_library(tiny INTERFACE)\n")
    must_run("git init -q . && git add . && git -c user.name=x -c user.email=x@x commit -qm one", origin)
    root = tmp_path / "demo"
    root.mkdir()
    (root / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(demo LANGUAGES NONE)\ninclude(FetchContent)\n"
        f"FetchContent_Declare(tiny GIT_REPOSITORY {origin} GIT_TAG master)\nFetchContent_MakeAvailable(tiny)\n"
    )
    must_run(f"git -C {origin} branch -M master; cmake -S . -B build -G Ninja", root)
    assert examine(root).findings == ()
    for path in (root / "build/_deps/tiny-src").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert run("cmake -S . -B build", root).returncode
    report = examine(root)
    assert report.findings[0].code == "DX1200"
    assert "tiny" in report.findings[0].message
    apply_fixes(report, root)
    must_run("cmake --build build", root)
    assert examine(root).findings == ()


def test_a_missing_submodule_is_fetched_alone(tmp_path):
    identity = "-c user.name=x -c user.email=x@x -c protocol.file.allow=always"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.h").write_text("\n")
        must_run(f"git init -q . && git add . && git {identity} commit -qm one", tmp_path / name)
    source = tmp_path / "source"
    source.mkdir()
    must_run("git init -q .", source)
    for name in ("one", "two"):
        must_run(f"git {identity} submodule add -q {tmp_path}/{name} 3rdparty/{name}", source)
    must_run(f"git {identity} commit -qm all", source)
    must_run(f"git {identity} clone -q source clone", tmp_path)
    clone = tmp_path / "clone"
    must_run(f"git {identity} submodule update -q --init 3rdparty/one", clone)
    report = examine(clone)
    assert report.findings[0].code == "DX051"
    assert "3rdparty/two" in report.findings[0].message
    assert "3rdparty/one" not in report.findings[0].message
    must_run(report.findings[0].fixes[0].command, clone, GIT_ALLOW_PROTOCOL="file")
    assert (clone / "3rdparty/two/two.h").exists()
    assert examine(clone).findings == ()


def test_no_folder_and_no_tree_are_said(tmp_path):
    from trtdx.errors import InputError

    with pytest.raises(InputError, match="not there"):
        examine(tmp_path / "nothing")
    assert "no tree" in examine(tmp_path).summary.text


@pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"\xff\xfe rubbish", b"A" * (1 << 20), b"NAME:TYPE=x\n" * 1000])
def test_hostile_files_give_an_answer(tree, content):
    for name in ("CMakeCache.txt", "build.ninja", ".ninja_log", ".ninja_deps", "compile_commands.json"):
        (tree / "build" / name).write_bytes(content)
        assert examine(tree).findings, Path(name)


def test_a_python_on_the_path_that_is_not_the_trees_own_is_no_trouble(tmp_path):
    must_run(
        f"{sys.executable} -m venv --without-pip .venv-{sys.version_info.major}.{sys.version_info.minor}", tmp_path
    )
    python = next(tmp_path.glob(".venv-*/bin/python"))
    (tmp_path / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.18)\nproject(demo LANGUAGES NONE)\n")
    must_run(f"cmake -S . -B build -G Ninja -DPython3_EXECUTABLE={python} -DBINDING_TYPE=nanobind", tmp_path)
    stranger = tmp_path / "bin"
    stranger.mkdir()
    (stranger / "python3").write_text("#!/bin/sh\necho 3.7.1\necho /opt/python3.7\n")
    (stranger / "python3").chmod(0o755)
    host = CleanHost()
    host.environment = lambda: {**ENVIRONMENT, "PATH": f"{stranger}:{ENVIRONMENT['PATH']}"}
    assert examine_tree(host, str(tmp_path), BOOK).findings == ()


def test_an_unfinished_configure_in_the_source_folder_is_told(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.18)\nproject(demo LANGUAGES NONE)\n")
    must_run("cmake -S . -B . -G 'Unix Makefiles'", tmp_path)
    (tmp_path / "Makefile").unlink()
    report = examine(tmp_path)
    assert [finding.code for finding in report.findings] == ["DX1201"]
    apply_fixes(report, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["CMakeLists.txt"]


def test_a_header_from_a_template_that_was_edited_is_generated_again(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(demo VERSION 2.0 LANGUAGES NONE)\n"
        "configure_file(version.h.in generated/version.h)\n"
    )
    (tmp_path / "version.h.in").write_text('#define DEMO "@PROJECT_VERSION@"\n')
    must_run("cmake -S . -B build -G Ninja", tmp_path)
    assert examine(tmp_path).findings == ()
    header = tmp_path / "build/generated/version.h"
    header.write_text('#define DEMO "9.9"\n')
    moment = time.time() + 5
    os.utime(header, (moment, moment))
    report = examine(tmp_path)
    assert [finding.code for finding in report.findings] == ["DX1189"]
    assert "9.9" in report.findings[0].message
    apply_fixes(report, tmp_path)
    assert "2.0" in header.read_text()


def test_a_build_type_edited_in_the_cache_is_not_the_one_that_is_built(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.18)\nproject(demo LANGUAGES NONE)\n")
    must_run("cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE:STRING=Release", tmp_path)
    replace_in(tmp_path / "build/CMakeCache.txt", "CMAKE_BUILD_TYPE:STRING=Release", "CMAKE_BUILD_TYPE:STRING=Debug")
    report = examine(tmp_path)
    assert [finding.code for finding in report.findings] == ["DX1181"]
    assert "Debug" in report.findings[0].message
    apply_fixes(report, tmp_path)
    assert examine(tmp_path).findings == ()


def test_an_object_for_another_processor_is_made_again(tree):
    path = min(tree.glob("build/**/*.o"))
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[18:20] = (183).to_bytes(2, "little")
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    report = examine(tree)
    assert report.findings[0].code == "DX1192"
    assert "aarch64" in report.findings[0].message
    apply_fixes(report, tree)
    assert works(tree)


def test_an_empty_program_of_a_makefile_build_is_linked_again(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(demo LANGUAGES CXX)\nadd_executable(app main.cpp)\n"
    )
    (tmp_path / "main.cpp").write_text("int main() { return 0; }\n")
    must_run("cmake -S . -B build -G 'Unix Makefiles' && cmake --build build", tmp_path)
    assert examine(tmp_path).findings == ()
    (tmp_path / "build/app").write_bytes(b"")
    report = examine(tmp_path)
    assert [finding.code for finding in report.findings] == ["DX1188"]
    apply_fixes(report, tmp_path)
    must_run("cmake --build build && ./build/app", tmp_path)


@pytest.mark.parametrize(
    ("names", "capability", "covered"),
    [
        (["80-real", "86-real"], (9, 0), False),
        (["80-real"], (8, 9), True),
        (["90a-real"], (9, 0), True),
        (["80"], (9, 0), True),
        (["100f-real"], (9, 0), False),
    ],
)
def test_a_gpu_runs_its_own_generation_and_older_ptx(names, capability, covered):
    assert covers_capability(names, capability) is covered
