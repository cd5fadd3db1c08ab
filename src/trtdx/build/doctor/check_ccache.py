"""Whether ccache would hand out objects of another compiler."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trtdx.build.doctor.cleanup import CleanupCommands
from trtdx.build.doctor.trouble import report_trouble
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.build.doctor.project import BuildProject, CMakeTree
    from trtdx.build.nouns import TreeTrouble

CCACHE = "DX1193"
LAUNCHERS = ("CMAKE_CXX_COMPILER_LAUNCHER", "CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CUDA_COMPILER_LAUNCHER")
VARIABLE = "CCACHE_COMPILERCHECK"


class CompilerCheck(NamedTuple):
    """The value of ccache's compiler_check, and where it is set."""

    value: str
    where: str
    file: Path | None


def uses_ccache(tree: CMakeTree) -> bool:
    if tree.cache is None:
        return False
    compilers = [tree.cache.value(f"CMAKE_{language}_COMPILER") for language in ("C", "CXX", "CUDA")]
    texts = [tree.cache.value(name) for name in LAUNCHERS]
    return any("ccache" in text for text in texts) or any("/ccache/" in path for path in compilers)


def check_ccache(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """The ccache that compiles this tree tells compilers apart."""
    if not uses_ccache(tree):
        return
    setting = next((setting for setting in _settings(project, tree) if setting.value), None)
    if setting is None or not _is_blind(setting.value):
        return
    yield report_trouble(
        CCACHE,
        project,
        tree,
        [(setting.where, f"compiler_check = {setting.value}")],
        command=_mend_command(project, tree, setting),
        severity=Severity.WARNING,
        problem=f"{setting.where} sets ccache's compiler_check to {setting.value!r}, so the objects for "
        f"{project.show(tree.path)} may come from another compiler than the one that is asked",
        todo="let ccache look at the compiler itself; what it stored so far is then not used",
    )


def recache_command(project: BuildProject, tree: CMakeTree, remove: str) -> str:
    """Return how objects that ccache handed out are made by the compiler: ccache must not hand them out again."""
    setting = next((setting for setting in _settings(project, tree) if setting.value), None)
    if setting is not None and _is_blind(setting.value):
        return f"{_mend_command(project, tree, setting)} && {remove}"
    return f"{remove} && CCACHE_RECACHE=1 cmake --build {CleanupCommands(project).quote(tree.path)}"


def _is_blind(value: str) -> bool:
    """Whether a setting does not tell two compilers apart: none at all, or a text that never changes."""
    return value.strip().lower() == "none" or value.strip().lower().startswith("string:")


def _settings(project: BuildProject, tree: CMakeTree) -> Iterator[CompilerCheck]:
    """Yield the settings in the order in which ccache obeys them."""
    launcher = ";".join(tree.cache.value(name) for name in LAUNCHERS) if tree.cache else ""
    in_launcher = re.search(rf"{VARIABLE}=([^;]+)", launcher)
    if in_launcher:
        yield CompilerCheck(in_launcher[1], f"{project.show(tree.path / 'CMakeCache.txt')}: {LAUNCHERS[0]}", None)
    yield CompilerCheck(project.environment.get(VARIABLE, ""), f"environment: {VARIABLE}", None)
    for file in _config_files(project, launcher):
        yield CompilerCheck(_read_compiler_check(file), str(project.show(file)), file)


def _config_files(project: BuildProject, launcher: str) -> Iterator[Path]:
    environment = project.environment
    home = Path(environment.get("HOME", "/nonexistent"))
    stated = re.search(r"CCACHE_CONFIGPATH=([^;]+)", launcher)
    folder = re.search(r"CCACHE_DIR=([^;]+)", launcher)
    if path := (stated[1] if stated else environment.get("CCACHE_CONFIGPATH", "")):
        yield Path(path)
        return
    if path := (folder[1] if folder else environment.get("CCACHE_DIR", "")):
        yield Path(path) / "ccache.conf"
    else:
        yield from (file.path for file in project.files if file.path.name == "ccache.conf")
        yield home / ".ccache" / "ccache.conf"
        yield Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "ccache" / "ccache.conf"
    yield Path("/etc/ccache.conf")


def _read_compiler_check(file: Path) -> str:
    try:
        text = file.read_text("utf-8", "replace")[: 1 << 20]
    except OSError:
        return ""
    match = re.search(r"^\s*compiler_check\s*=\s*(.+?)\s*$", text, re.MULTILINE)
    return match[1] if match else ""


def _mend_command(project: BuildProject, tree: CMakeTree, setting: CompilerCheck) -> str:
    commands = CleanupCommands(project)
    if setting.file is not None:
        return f"sed -i 's/^[[:space:]]*compiler_check[[:space:]]*=.*/compiler_check = content/' {commands.quote(setting.file)}"
    if setting.where.startswith("environment"):
        return f"unset {VARIABLE}"
    options = [
        f"-D{name}={re.sub(rf'{VARIABLE}=[^;]+', f'{VARIABLE}=content', value)}"
        for name in LAUNCHERS
        if tree.cache and (value := tree.cache.value(name))
    ]
    return commands.configure(tree, options=options)
