"""A small real C++ project that CMake and ninja build in a second, with everything a tree can go stale in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = {
    key: value
    for key, value in os.environ.items()
    if key not in ("CC", "CXX", "CUDACXX", "LD_LIBRARY_PATH", "CMAKE_GENERATOR", "CCACHE_DIR", "VIRTUAL_ENV")
}
FILES = {
    "CMakeLists.txt": """cmake_minimum_required(VERSION 3.18)
project(demo VERSION 1.2 LANGUAGES CXX)
option(DEMO_LOUD "Say more" OFF)
option(DEMO_OLD "Also build the old library" OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
find_library(EXTRA_LIBRARY extra HINTS ${DEMO_EXTRA_HINTS} NO_DEFAULT_PATH)
if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  add_compile_definitions(DEMO_OLD_COMPILER)
endif()
if(DEMO_LOUD)
  add_compile_definitions(DEMO_LOUD)
endif()
add_subdirectory(lib)
add_executable(app src/main.cpp src/part.cpp)
target_link_libraries(app PRIVATE demo_lib)
if(EXTRA_LIBRARY)
  target_link_libraries(app PRIVATE ${EXTRA_LIBRARY})
endif()
""",
    "lib/CMakeLists.txt": """file(GLOB SOURCES *.cpp)
add_library(demo_lib SHARED ${SOURCES})
target_include_directories(demo_lib PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
if(DEMO_OLD)
  add_library(demo_old SHARED lib.cpp)
endif()
""",
    "lib/lib.h": "#pragma once\nint base();\nint extra();\n",
    "lib/lib.cpp": '#include "lib.h"\nint base() { return 40; }\n',
    "lib/more.cpp": '#include "lib.h"\nint extra() { return 2; }\n',
    "src/part.cpp": '#include "lib.h"\nint part() { return base() + extra(); }\n',
    "src/main.cpp": """#include <cstdio>
int part();
int main() {
#ifdef DEMO_OLD_COMPILER
  std::printf("old ");
#endif
#ifdef DEMO_LOUD
  std::printf("loud ");
#endif
  std::printf("%d\\n", part());
}
""",
}
PROGRAM = "loud 42"


def run(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command by bash in a folder."""
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def must_run(command: str, folder: Path, **environment: str) -> str:
    done = run(command, folder, **environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_sources(root: Path) -> None:
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def make_tree(root: Path, *options: str, generator: str = "Ninja") -> Path:
    """Make a project with a finished build, configured with an option that must survive every clean-up."""
    write_sources(root)
    must_run(f"cmake -S . -B build -G '{generator}' -DDEMO_LOUD=ON {' '.join(options)}", root)
    must_run("cmake --build build", root)
    assert program_output(root) == PROGRAM
    return root


def program_output(root: Path) -> str:
    """Return what the program prints, or how it fails."""
    done = run("build/app", root)
    return done.stdout.strip() if done.returncode == 0 else f"failed: {done.stderr.strip()[:200]}"


def works(root: Path) -> bool:
    """Whether the tree builds and its program prints what the sources say."""
    return run("cmake --build build", root).returncode == 0 and program_output(root) == PROGRAM


def keep_time(path: Path, change) -> None:
    """Change a file and give it back its time, as after a crash that lost the contents."""
    status = path.stat()
    change(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    keep_time(path, lambda file: file.write_text(text.replace(old, new)))


def restore(saved: Path, root: Path) -> Path:
    """Bring a saved project back to the path it was built at, times included."""
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(saved, root, symlinks=True)
    return root


def tools_are_here() -> bool:
    return all(shutil.which(tool) for tool in ("cmake", "ninja", "g++")) and sys.platform == "linux"
