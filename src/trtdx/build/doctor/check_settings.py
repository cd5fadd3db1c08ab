"""Whether what was generated has the settings of the cache, and whether those fit the folder and the GPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.build.doctor.cleanup import CleanupCommands
from trtdx.build.doctor.trouble import report_trouble
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trtdx.build.doctor.installed import InstalledTools
    from trtdx.build.doctor.project import BuildProject, CMakeTree
    from trtdx.build.nouns import TreeTrouble

GENERATED, FOLDER_TYPE, ARCHITECTURES = "DX1181", "DX1204", "DX1206"
BUILD_TYPE, CUDA_ARCHITECTURES = "CMAKE_BUILD_TYPE", "CMAKE_CUDA_ARCHITECTURES"
WIDE_ARCHITECTURES = ("all", "all-major", "native", "off")
MAX_SCRIPT_BYTES = 4 << 20


def check_build_type(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """The build files have the build type of the cache, and the folder is the one for that type."""
    if tree.cache is None or tree.cache.damage:
        return
    stated, generated = tree.cache.value(BUILD_TYPE), _generated_type(tree)
    if stated and generated and stated.lower() != generated.lower() and not _is_set_by_project(project, tree):
        yield _outdated_type(project, tree, stated, generated)
    expected = _type_for_folder(project, tree)
    if stated and expected and stated.lower() != expected.lower():
        yield _wrong_folder(project, tree, stated, expected)


def _generated_type(tree: CMakeTree) -> str:
    """Return the build type that the last generate step wrote down; cmake_install.cmake has it for every generator."""
    match = re.search(r'set\(CMAKE_INSTALL_CONFIG_NAME "(\w+)"\)', _read(tree.path / "cmake_install.cmake"))
    return match[1] if match else ""


def _is_set_by_project(project: BuildProject, tree: CMakeTree) -> bool:
    """Whether CMakeLists.txt sets a build type of its own, which beats the cache."""
    source = project.source_of(tree)
    settings = re.findall(r"set\s*\(\s*CMAKE_BUILD_TYPE\b([^)]*)\)", _read(source / "CMakeLists.txt")) if source else []
    return any("CACHE" not in setting for setting in settings)


def _outdated_type(project: BuildProject, tree: CMakeTree, stated: str, generated: str) -> TreeTrouble:
    file = "build.ninja" if tree.manifest else "Makefile"
    return report_trouble(
        GENERATED,
        project,
        tree,
        [
            (f"{project.show(tree.path / 'CMakeCache.txt')}: {BUILD_TYPE}", stated),
            (project.show(tree.path / "cmake_install.cmake"), f"generated for {generated}"),
        ],
        command=CleanupCommands(project).configure(tree),
        problem=f"{project.show(tree.path)}/CMakeCache.txt has the build type {stated} ({BUILD_TYPE}), but {file} was "
        f"generated for {generated} and still compiles with its flags",
    )


def _type_for_folder(project: BuildProject, tree: CMakeTree) -> str:
    """Return the build type that scripts/build_wheel.py uses a folder for: build for Release, build_TYPE for TYPE."""
    if not project.is_wheel_project or tree.path.parent != project.root / "cpp":
        return ""
    match = re.fullmatch(r"build(?:_(Debug|RelWithDebInfo|Release))?", tree.path.name)
    return (match[1] or "Release") if match else ""


def _wrong_folder(project: BuildProject, tree: CMakeTree, stated: str, expected: str) -> TreeTrouble:
    return report_trouble(
        FOLDER_TYPE,
        project,
        tree,
        [(f"{project.show(tree.path / 'CMakeCache.txt')}: {BUILD_TYPE}", stated)],
        command=CleanupCommands(project).configure(tree, options=[f"-D{BUILD_TYPE}={expected}"]),
        stated=stated,
        expected=expected,
        explains=("DX1191", "DX1197"),
    )


def check_architectures(project: BuildProject, tree: CMakeTree, tools: InstalledTools) -> Iterator[TreeTrouble]:
    """The GPUs here can run what the tree compiles."""
    listed = tree.cache.value(CUDA_ARCHITECTURES) if tree.cache and not tree.cache.damage else ""
    names = [name for name in listed.split(";") if name]
    if not names or any(name.lower() in WIDE_ARCHITECTURES for name in names):
        return
    missing = sorted(
        {capability for capability in tools.gpu_capabilities() if not covers_capability(names, capability)}
    )
    if not missing:
        return
    added = ";".join([*names, *(f"{major}{minor}-real" for major, minor in missing)])
    shown = ", ".join(f"{major}.{minor}" for major, minor in missing)
    yield report_trouble(
        ARCHITECTURES,
        project,
        tree,
        [
            (f"{project.show(tree.path / 'CMakeCache.txt')}: {CUDA_ARCHITECTURES}", listed),
            ("nvidia-smi: compute_cap", shown),
        ],
        command=CleanupCommands(project).configure(tree, options=[f"-D{CUDA_ARCHITECTURES}={added}"]),
        severity=Severity.WARNING,
        listed=listed,
        capability=shown,
    )


def covers_capability(names: list[str], capability: tuple[int, int]) -> bool:
    """Whether a GPU runs one of the architectures: a binary of its own generation, or PTX that is not newer."""
    for name in names:
        match = re.fullmatch(r"(\d+)(\d)([af]?)(-real|-virtual)?", name)
        if match is None:
            return True  # a name not known here is not judged
        own = (int(match[1]), int(match[2]))
        if own == capability or (
            not match[3] and own[0] == capability[0] and own <= capability and match[4] != "-virtual"
        ):
            return True
        if not match[3] and match[4] != "-real" and own <= capability:
            return True
    return False


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_SCRIPT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
