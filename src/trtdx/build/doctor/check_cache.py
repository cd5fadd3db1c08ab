"""Whether a tree's cache can be read, and belongs to this place and machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.build.doctor.cleanup import CleanupCommands
from trtdx.build.doctor.trouble import OF_THE_CACHE, is_same_folder, report_trouble

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.build.doctor.project import BuildProject, CMakeTree
    from trtdx.build.nouns import TreeTrouble

DAMAGED, MOVED, IN_SOURCE = "DX1180", "DX057", "DX1201"
NINJA = "Ninja"


def check_cache_damage(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """The cache is there and CMake can read it."""
    commands = CleanupCommands(project)
    if tree.cache is None:
        if (tree.path / "CMakeLists.txt").is_file():
            return  # a source folder in which CMake once ran; a whole tree there has its cache
        configure = (
            "python3 scripts/build_wheel.py --configure_cmake"
            if _wheel_script_configures(project)
            else commands.configure(tree, options=["-G", NINJA] if tree.manifest or tree.log else [])
        )
        yield report_trouble(
            DAMAGED,
            project,
            tree,
            [(project.show(tree.path), "CMakeFiles is there, CMakeCache.txt is not")],
            command=configure,
            problem=f"{project.show(tree.path)} has CMake's files but no CMakeCache.txt: it was never configured to "
            "the end, or the cache was deleted",
            todo="configure again; nothing has to be removed",
            explains=OF_THE_CACHE,
        )
    elif tree.cache.damage:
        yield report_trouble(
            DAMAGED,
            project,
            tree,
            [(project.show(tree.cache.path), tree.cache.damage)],
            command=commands.configure_anew(tree),
            problem=f"{project.show(tree.cache.path)} {tree.cache.damage}",
            todo="remove the cache, which CMake cannot read, and configure again with the options that can be read from it",
            explains=OF_THE_CACHE,
        )


def _wheel_script_configures(project: BuildProject) -> bool:
    script = project.root / "scripts" / "build_wheel.py"
    try:
        return "configure_cmake" in script.read_text("utf-8", "replace")
    except OSError:
        return False


def check_place(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """The tree lies where it was configured, beside the sources it was configured from."""
    if tree.cache is None or tree.cache.damage:
        return
    recorded_build, recorded_source = tree.cache.value("CMAKE_CACHEFILE_DIR"), str(tree.recorded_source)
    source = project.source_of(tree)
    moved = not is_same_folder(recorded_build, str(tree.path))
    other_source = source is not None and not is_same_folder(recorded_source, str(source))
    if not moved and not other_source and Path(recorded_source).exists():
        return
    name = "CMAKE_CACHEFILE_DIR" if moved else "CMAKE_HOME_DIRECTORY"
    recorded, actual = (recorded_build, tree.path) if moved else (recorded_source, source or "nowhere")
    still = (
        f"; {recorded} is still there, and ninja or make run here would build that one"
        if Path(recorded).exists()
        else ""
    )
    yield report_trouble(
        MOVED,
        project,
        tree,
        [(place_in_cache(project, tree, name), f"{name}={recorded}"), (str(actual), "where it is now")],
        command=CleanupCommands(project).configure_anew(tree, dropped=_outdated_paths(tree, source)),
        problem=f"{project.show(tree.path)}/CMakeCache.txt was made for {recorded}, but the "
        f"{'tree' if moved else 'source'} is now at {actual}{still}",
        todo="remove the cache and configure here with the same options; CMake cannot move a tree, and every command "
        "names the old path",
        explains=OF_THE_CACHE,
    )


def _outdated_paths(tree: CMakeTree, source: Path | None) -> list[str]:
    """Return the entries that name files of the old source folder."""
    old = str(tree.recorded_source)
    if tree.cache is None or source is None or old == str(source):
        return []
    return [
        entry.name
        for entry in tree.cache.entries.values()
        if entry.value.startswith(old + "/") and not Path(entry.value).exists()
    ]


def place_in_cache(project: BuildProject, tree: CMakeTree, name: str) -> str:
    """Return where an entry of the cache stands."""
    entry = tree.cache.entries.get(name) if tree.cache else None
    return f"{project.show(tree.path / 'CMakeCache.txt')}" + (f":{entry.line}" if entry else "")


def check_machine(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """The tree was configured on a machine of this kind."""
    recorded, here = tree.system.get("CMAKE_HOST_SYSTEM_PROCESSOR", ""), os.uname().machine
    if not recorded or recorded == here:
        return
    commands = CleanupCommands(project)
    yield report_trouble(
        MOVED,
        project,
        tree,
        [(f"{project.show(tree.files)}: CMAKE_HOST_SYSTEM_PROCESSOR", recorded), ("uname -m", here)],
        command=f"{commands.remove([tree.files], folders=True)} && {commands.configure_anew(tree)} && {commands.clean_target(tree)}",
        problem=f"{project.show(tree.path)} was configured on a {recorded} machine, and this one is {here}",
        todo="configure from scratch on this machine and compile everything again",
        explains=(*OF_THE_CACHE, "DX1188", "DX1192"),
    )


def read_start(path: Path, length: int = 400) -> str:
    """Return the beginning of a file; "" where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(length).decode("utf-8", "replace")
    except OSError:
        return ""


def check_in_source(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """The sources were not configured in place beside a build folder of their own."""
    others = [other for other in project.trees if other.path != tree.path]
    if tree.cache is None:
        return
    beside = tree.path in {project.source_of(other) for other in others}
    if not beside and not _is_unfinished_in_place(tree):
        return
    files, folders = _written_in_place(project, tree)
    commands = CleanupCommands(project)
    yield report_trouble(
        IN_SOURCE,
        project,
        tree,
        [
            (project.show(tree.path / "CMakeCache.txt"), "a cache in the source folder"),
            *([(project.show(others[0].path), "the build folder")] if beside else []),
        ],
        command=f"{commands.remove(files)} && {commands.remove(folders, folders=True)}"
        if folders
        else commands.remove(files),
        problem=f"an in-source configure left {project.show(tree.path / 'CMakeCache.txt')} and CMakeFiles in the source folder"
        + (f", although {project.show(others[0].path)} is the build folder" if beside else "")
        + ": cmake uses them instead of the folder it is started in",
        explains=OF_THE_CACHE,
    )


def _is_unfinished_in_place(tree: CMakeTree) -> bool:
    """Whether a source folder has a cache of its own, but nothing that a build could be started with."""
    is_source = tree.recorded_source is not None and is_same_folder(str(tree.recorded_source), str(tree.path))
    return is_source and not any((tree.path / name).is_file() for name in ("Makefile", "build.ninja"))


def _written_in_place(project: BuildProject, tree: CMakeTree) -> tuple[list[Path], list[Path]]:
    """Return the files and folders that CMake wrote between the sources."""
    names = {"CMakeCache.txt", "cmake_install.cmake", ".ninja_log", ".ninja_deps", "Makefile", "build.ninja"}
    files = [
        file.path
        for file in project.sources
        if file.path.name in names
        and "CMakeFiles" not in file.path.parts
        and (file.path.name not in ("Makefile", "build.ninja") or "CMAKE generated file" in read_start(file.path))
    ]
    folders = {path for file in project.sources for path in file.path.parents if path.name == "CMakeFiles"}
    return files, sorted(folders)
