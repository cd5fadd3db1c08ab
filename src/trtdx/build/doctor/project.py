"""A project folder and the build trees in it, looked at once and never changed."""

from __future__ import annotations

import os
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.build.doctor.cmake_cache import (
    CMakeCache,
    CompilerRecord,
    read_cmake_cache,
    read_compilers,
    read_system,
)
from trtdx.build.doctor.ninja_files import read_manifest, read_ninja_log
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.build.doctor.ninja_files import NinjaLog, NinjaManifest
    from trtdx.host import Host

MAX_FILES = 400_000
MAX_COMMANDS_BYTES = 256 << 20
SKIPPED_FOLDERS = {
    ".git",
    ".hg",
    ".svn",
    "node_modules",
    "__pycache__",
    ".tox",
    ".mypy_cache",
    ".ruff_cache",
    "CMakeTmp",
}
PROJECT_MARKS = (".git", "scripts/build_wheel.py", "setup.py", "pyproject.toml")


class TreeFile(NamedTuple):
    """One file of the project, as the walk met it."""

    path: Path
    size: int
    mtime_ns: int
    ctime_ns: int


class CompileCommand(msgspec.Struct, frozen=True):
    """One entry of compile_commands.json."""

    directory: str = ""
    file: str = ""
    command: str = ""
    arguments: list[str] = []


class CMakeTree:
    """One folder that CMake configured, with the sources it was configured from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = path / "CMakeFiles"

    @cached_property
    def cache(self) -> CMakeCache | None:
        file = self.path / "CMakeCache.txt"
        return read_cmake_cache(file) if file.exists() else None

    @cached_property
    def compilers(self) -> dict[str, CompilerRecord]:
        return read_compilers(self.files)

    @cached_property
    def system(self) -> dict[str, str]:
        return read_system(self.files)

    @cached_property
    def manifest(self) -> NinjaManifest | None:
        return read_manifest(self.path / "build.ninja")

    @cached_property
    def log(self) -> NinjaLog | None:
        return read_ninja_log(self.path / ".ninja_log")

    @cached_property
    def generator(self) -> str:
        return self.cache.value("CMAKE_GENERATOR") if self.cache else ""

    @cached_property
    def recorded_source(self) -> Path | None:
        home = self.cache.value("CMAKE_HOME_DIRECTORY") if self.cache else ""
        return Path(home) if home else None

    @cached_property
    def commands(self) -> tuple[CompileCommand, ...]:
        """What compile_commands.json lists; nothing where it is absent or broken."""
        return self._read_commands()[0]

    @cached_property
    def commands_damage(self) -> str:
        return self._read_commands()[1]

    def _read_commands(self) -> tuple[tuple[CompileCommand, ...], str]:
        file = self.path / "compile_commands.json"
        try:
            with file.open("rb") as stream:
                data = stream.read(MAX_COMMANDS_BYTES)
            return tuple(msgspec.json.decode(data, type=list[CompileCommand])), ""
        except OSError:
            return (), ""
        except (msgspec.DecodeError, UnicodeDecodeError) as err:
            return (), "is empty" if not file.stat().st_size else f"is not whole JSON: {err}"

    def output_path(self, name: str) -> Path:
        return self.path / name  # an absolute name stays what it is


class BuildProject:
    """The folder that was named, what lies in it, and how its paths are written in commands."""

    def __init__(self, host: Host, named: str) -> None:
        self.host = host
        self.named = Path(os.path.abspath(named))  # noqa: PTH100 (links stay as the user wrote them)
        if not self.named.is_dir():
            raise InputError(
                f"{named} is {'no folder' if self.named.exists() else 'not there'}",
                fix="name the project folder, or the folder that CMake built in",
            )
        self.root = _find_root(self.named)
        self.environment = dict(host.environment())
        self.notes: list[str] = []
        self.venvs: list[Path] = []
        self.dangling_links: list[Path] = []
        self.files = list(self._walk())
        self.trees = tuple(CMakeTree(path) for path in _find_trees(self))

    @cached_property
    def is_wheel_project(self) -> bool:
        """Whether it is built by TensorRT-LLM's scripts/build_wheel.py."""
        return (self.root / "scripts" / "build_wheel.py").is_file()

    @cached_property
    def commands_are_relative(self) -> bool:
        return self.root == self.named

    @cached_property
    def sources(self) -> list[TreeFile]:
        """The files outside all build trees."""
        inside = [tree.path for tree in self.trees if tree.path != self.root]
        return [file for file in self.files if not any(path in file.path.parents for path in inside)]

    def source_of(self, tree: CMakeTree) -> Path | None:
        """Return the folder whose CMakeLists.txt the tree belongs to today."""
        recorded = tree.recorded_source
        if recorded and (recorded / "CMakeLists.txt").is_file() and _is_inside(recorded, self.root):
            return recorded
        moved = self._moved_source(tree, recorded)
        if moved is not None:
            return moved
        for folder in (tree.path, *tree.path.parents):
            if (folder / "CMakeLists.txt").is_file():
                return folder
            if folder == self.root:
                break
        return next(
            (folder for folder in (self.root, self.root / "cpp") if (folder / "CMakeLists.txt").is_file()), None
        )

    @staticmethod
    def _moved_source(tree: CMakeTree, recorded: Path | None) -> Path | None:
        """Return the source beside the tree now as it was beside it then."""
        build = tree.cache.value("CMAKE_CACHEFILE_DIR") if tree.cache else ""
        if not recorded or not build:
            return None
        moved = Path(os.path.normpath(tree.path / os.path.relpath(recorded, build)))
        return moved if (moved / "CMakeLists.txt").is_file() else None

    def show(self, path: Path | str) -> str:
        """Return a path as it is written in messages and commands: short where commands are run in the project."""
        path = Path(path)
        if self.commands_are_relative and (path == self.root or self.root in path.parents):
            return str(path.relative_to(self.root))
        return str(path)

    def _walk(self) -> Iterator[TreeFile]:
        count = 0
        waiting = [self.root]
        while waiting:
            folder = waiting.pop()
            for entry in _list_folder(folder, self.notes):
                if entry.is_dir(follow_symlinks=False):
                    if entry.name in SKIPPED_FOLDERS:
                        continue
                    if (Path(entry.path) / "pyvenv.cfg").exists():
                        self.venvs.append(Path(entry.path))
                    else:
                        waiting.append(Path(entry.path))
                elif entry.is_symlink():
                    if not os.path.exists(entry.path):  # noqa: PTH110 (one of up to 400,000)
                        self.dangling_links.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    stat = entry.stat(follow_symlinks=False)
                    yield TreeFile(Path(entry.path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
                    count += 1
                    if count >= MAX_FILES:
                        self.notes.append(f"only the first {MAX_FILES:,} files of {self.root} were looked at")
                        return


def _list_folder(folder: Path, notes: list[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as err:
        notes.append(f"{folder}: cannot be listed: {err.strerror or err}")
        return []


def _is_inside(path: Path, root: Path) -> bool:
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(root))
    return real == root or root in real.parents


def _is_cmake_tree(folder: Path) -> bool:
    if (folder / "CMakeCache.txt").is_file():
        return True
    marks = ("build.ninja", "Makefile", "cmake_install.cmake", ".ninja_log")
    return (folder / "CMakeFiles").is_dir() and (
        any((folder / mark).is_file() for mark in marks) or bool(list((folder / "CMakeFiles").glob("[0-9]*")))
    )


def _find_root(named: Path) -> Path:
    """Return the project folder: the one named, or the one around a build tree that was named."""
    if not _is_cmake_tree(named) or (named / "CMakeLists.txt").is_file():
        return named
    for folder in list(named.parents)[:6]:
        if any((folder / mark).exists() for mark in PROJECT_MARKS):
            return folder
    cache = read_cmake_cache(named / "CMakeCache.txt")
    home = cache.value("CMAKE_HOME_DIRECTORY")
    if home and _is_inside(named, Path(home)):
        return Path(home)
    parent = next((folder for folder in list(named.parents)[:3] if (folder / "CMakeLists.txt").is_file()), None)
    return parent or named


def _find_trees(project: BuildProject) -> list[Path]:
    """Return the build trees of a project; those that a build makes inside its own tree are not told apart from it."""
    marks = {
        "CMakeCache.txt",
        "build.ninja",
        "Makefile",
        "cmake_install.cmake",
        ".ninja_log",
        "cmake.check_cache",
        "CMakeSystem.cmake",
    }
    candidates = set()
    for file in project.files:
        if file.path.name not in marks:
            continue
        folder = file.path.parent
        inner = [parent for parent in (folder, *folder.parents) if parent.name == "CMakeFiles"]
        candidates.add(inner[-1].parent if inner else folder)
    trees: list[Path] = []
    for folder in sorted((path for path in candidates if _is_cmake_tree(path)), key=lambda path: len(path.parts)):
        outer = [tree for tree in trees if tree in folder.parents and tree != project.root]
        if not outer and not _is_part_of_in_source_build(folder, trees, project.root):
            trees.append(folder)
    if project.named in trees and project.named != project.root:
        return [project.named]
    return trees


def _is_part_of_in_source_build(folder: Path, trees: list[Path], root: Path) -> bool:
    """Whether a folder has CMake's files only because the sources above it were configured in place."""
    return root in trees and folder != root and not (folder / "CMakeCache.txt").is_file()


def option_value(command: str, name: str) -> str:
    """Return the value of a macro that a compile command defines; "" where it defines none."""
    values = re.findall(rf"-D\s?{re.escape(name)}=(\w+)", command)
    return values[-1] if values else ""
