"""Commands that clean up, as small as suffices, for a shell in the project folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.build.doctor.cmake_cache import ON_COMMAND_LINE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trtdx.build.doctor.cmake_cache import CacheEntry, CMakeCache
    from trtdx.build.doctor.project import BuildProject, CMakeTree

# Entries that a user gives and CMake keeps like its own.
KEPT_CMAKE_OPTIONS = (
    "CMAKE_BUILD_TYPE",
    "CMAKE_CUDA_ARCHITECTURES",
    "CMAKE_TOOLCHAIN_FILE",
    "CMAKE_PREFIX_PATH",
    "CMAKE_C_COMPILER_LAUNCHER",
    "CMAKE_CXX_COMPILER_LAUNCHER",
    "CMAKE_CUDA_COMPILER_LAUNCHER",
    "BUILD_SHARED_LIBS",
)
DEFAULTS_OF_MODULES = ("FETCHCONTENT_", "BUILD_TESTING", "CPACK_", "SITE", "CTEST_", "GIT_", "Python", "PYTHON", "_")
OBJECT_SUFFIXES = {"C": (".c",), "CXX": (".cpp", ".cc", ".cxx", ".C"), "CUDA": (".cu",)}
DEFAULT_COMPILERS = ("/usr/bin/cc", "/usr/bin/c++")
MAX_OPTIONS = 40
MAX_NAMED_FILES = 200


class CleanupCommands:
    """How clean-ups of one project are written."""

    def __init__(self, project: BuildProject) -> None:
        self._project = project

    def quote(self, path: Path | str) -> str:
        return shlex.quote(self._project.show(path))

    def remove(self, paths: Iterable[Path], *, folders: bool = False) -> str:
        return " ".join(["rm -rf" if folders else "rm -f", *(self.quote(path) for path in paths)])

    def configure(self, tree: CMakeTree, *, unset: Iterable[str] = (), options: Iterable[str] = ()) -> str:
        """Return the command that configures again and keeps what the cache holds, but for `unset`."""
        source = self._project.source_of(tree) or tree.path
        words = [f"-U {shlex.quote(name)}" for name in unset]
        words += [shlex.quote(option) for option in options]
        words += ["-S", self.quote(source), "-B", self.quote(tree.path)]
        return " ".join(["cmake", *words])

    def configure_anew(self, tree: CMakeTree, *, generator: str = "", dropped: Iterable[str] = ()) -> str:
        """Return the commands that drop the cache and configure with the options it held."""
        generator = generator or tree.generator or ("Ninja" if tree.log or tree.manifest else "")
        options = ["-G", generator] if generator else []
        options += list(self._kept_options(tree, set(dropped)))
        removed = self.remove([tree.path / "CMakeCache.txt", *_inner_caches(tree)])
        return f"{removed} && {self.configure(tree, options=options)}"

    def clean_target(self, tree: CMakeTree) -> str:
        """Return the command that removes what the tree has compiled and linked."""
        return f"cmake --build {self.quote(tree.path)} --target clean"

    def remove_objects(self, tree: CMakeTree, languages: Iterable[str]) -> str:
        """Return the command that removes the objects of some languages; what is linked from them follows by itself."""
        suffixes = [suffix for language in languages for suffix in OBJECT_SUFFIXES[language]]
        names = " -o ".join(f"-name '*{suffix}.o'" for suffix in suffixes)
        return f"find {self.quote(tree.path)} \\( {names} \\) -delete"

    def build(self, tree: CMakeTree | None) -> str:
        """Return the command that builds again."""
        if self._project.is_wheel_project:
            return "python3 scripts/build_wheel.py"
        return f"cmake --build {self.quote(tree.path)}" if tree else "cmake --build BUILD_FOLDER"

    def _kept_options(self, tree: CMakeTree, dropped: set[str]) -> Iterator[str]:
        cache = tree.cache
        if cache is None:
            return
        old, new = moved_roots(cache.value("CMAKE_CACHEFILE_DIR"), str(tree.path))
        for entry in list(_user_entries(cache))[:MAX_OPTIONS]:
            if entry.name in dropped:
                continue
            value = entry.value
            if old and value.startswith(old + "/"):  # inside what was moved
                value = new + value[len(old) :]
            if not _is_lost(entry.name, value):
                yield f"-D{entry.name}={value}"


def _is_lost(name: str, value: str) -> bool:
    """Whether an option names a path that is not here, such as one of the container the tree was configured in."""
    return value.startswith("/") and ";" not in value and name != "CMAKE_INSTALL_PREFIX" and not Path(value).exists()


def moved_roots(recorded: str, actual: str) -> tuple[str, str]:
    """Return the folder that was moved, as it was and as it is: what both paths end with moved along."""
    old, new = recorded.split("/"), actual.split("/")
    while len(old) > 1 and len(new) > 1 and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    return "/".join(old), "/".join(new)


def _inner_caches(tree: CMakeTree) -> list[Path]:
    """Return the caches of builds inside the tree: they name its path too."""
    return [path for path in sorted(tree.path.glob("*/**/CMakeCache.txt")) if "CMakeTmp" not in path.parts][
        :MAX_NAMED_FILES
    ]


def _user_entries(cache: CMakeCache) -> Iterator[CacheEntry]:
    """Yield the entries that a user gave, or may have given: what CMake finds by itself is left out."""
    for entry in cache.entries.values():
        if entry.type in ("INTERNAL", "STATIC") or not entry.value or entry.value.endswith("NOTFOUND"):
            continue
        is_given = (
            entry.name in KEPT_CMAKE_OPTIONS
            or _is_chosen_tool(entry)
            or entry.help == ON_COMMAND_LINE
            or entry.type == "UNINITIALIZED"
        )
        prefix = entry.name == "CMAKE_INSTALL_PREFIX" and entry.value != "/usr/local"
        if is_given or prefix or (entry.type in ("BOOL", "STRING") and not _is_of_a_module(cache, entry)):
            yield entry


def _is_chosen_tool(entry: CacheEntry) -> bool:
    """Whether an entry is a compiler or interpreter other than the one that CMake takes by itself."""
    is_compiler = re.fullmatch(r"CMAKE_(?:C|CXX|CUDA)_COMPILER", entry.name) and entry.value not in DEFAULT_COMPILERS
    return bool(is_compiler or re.fullmatch(r"Python3?_EXECUTABLE", entry.name))


def _is_of_a_module(cache: CMakeCache, entry: CacheEntry) -> bool:
    return entry.name.startswith(("CMAKE_", *DEFAULTS_OF_MODULES)) or cache.is_advanced(entry.name)
