"""Whether a tree's cache can be read, belongs to this place and machine, and fits the files generated from it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trtdx.build.doctor.cleanup import CleanupCommands
from trtdx.build.doctor.trouble import OF_THE_CACHE, is_same_folder, report_trouble
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.build.doctor.project import BuildProject, CMakeTree
    from trtdx.build.nouns import TreeTrouble

DAMAGED, MOVED, GENERATED, IN_SOURCE = "DX1180", "DX057", "DX1181", "DX1201"
MAKEFILES, NINJA = "Unix Makefiles", "Ninja"
MAX_MAKEFILE_BYTES = 64 << 20


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
        [(_place(project, tree, name), f"{name}={recorded}"), (str(actual), "where it is now")],
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


def _place(project: BuildProject, tree: CMakeTree, name: str) -> str:
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


def check_generator(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """The generator in the cache is the one whose files are there, and the one that presets ask for."""
    if tree.cache is None or tree.cache.damage or tree.generator not in (NINJA, MAKEFILES):
        return
    other = MAKEFILES if tree.generator == NINJA else NINJA
    present = _generated_by(tree)
    if tree.generator not in present and other in present:
        yield _generator_trouble(project, tree, other)
    elif _program_generator(tree) == other:
        yield _program_trouble(project, tree)
    elif other in present:
        yield _leftover_trouble(project, tree, other)
    for preset, generator in _presets_for(project, tree):
        if generator != tree.generator:
            yield _preset_trouble(project, tree, preset, generator)


def _generated_by(tree: CMakeTree) -> set[str]:
    present = {NINJA} if tree.manifest is not None and "CMAKE generated file" in tree.manifest.text[:400] else set()
    start = _read_start(tree.path / "Makefile")
    return present | ({MAKEFILES} if "CMAKE generated file" in start else set())


def _read_start(path: Path, length: int = 400) -> str:
    try:
        with path.open("rb") as file:
            return file.read(length).decode("utf-8", "replace")
    except OSError:
        return ""


def _program_generator(tree: CMakeTree) -> str:
    program = Path(tree.cache.value("CMAKE_MAKE_PROGRAM") if tree.cache else "").name
    return NINJA if "ninja" in program or program == "samu" else MAKEFILES if "make" in program else ""


def _generator_trouble(project: BuildProject, tree: CMakeTree, other: str) -> TreeTrouble:
    """Return the trouble of a cache with one generator and the files of the other: what built last is kept."""
    commands = CleanupCommands(project)
    built_by = NINJA if tree.log and tree.log.entries else other
    leftover = [tree.path / "Makefile"] if built_by == NINJA and tree.generator == NINJA else []
    if built_by == tree.generator:
        command = f"{commands.remove(leftover)} && {commands.configure(tree)}" if leftover else commands.configure(tree)
    else:
        command = commands.configure_anew(tree, generator=built_by)
    file = "build.ninja" if other == NINJA else "Makefile"
    return report_trouble(
        MOVED,
        project,
        tree,
        [
            (_place(project, tree, "CMAKE_GENERATOR"), f"CMAKE_GENERATOR={tree.generator}"),
            (project.show(tree.path / file), f"generated by {other}"),
        ],
        command=command,
        problem=f"{project.show(tree.path)}/CMakeCache.txt names the generator {tree.generator}, but what was generated "
        f"is {file}, of {other}",
        todo=f"configure again for {built_by}, which made what is built so far",
        explains=("DX1181",),
    )


def _program_trouble(project: BuildProject, tree: CMakeTree) -> TreeTrouble:
    program = tree.cache.value("CMAKE_MAKE_PROGRAM") if tree.cache else ""
    return report_trouble(
        MOVED,
        project,
        tree,
        [(_place(project, tree, "CMAKE_MAKE_PROGRAM"), f"CMAKE_MAKE_PROGRAM={program}")],
        command=CleanupCommands(project).configure(tree, unset=["CMAKE_MAKE_PROGRAM"]),
        problem=f"{project.show(tree.path)}/CMakeCache.txt names the generator {tree.generator}, but runs it with {program}",
        todo="drop the one entry and configure again: CMake then looks for the program that goes with the generator",
        explains=("DX1181",),
    )


def _leftover_trouble(project: BuildProject, tree: CMakeTree, other: str) -> TreeTrouble:
    names = ["Makefile"] if other == MAKEFILES else ["build.ninja", ".ninja_log", ".ninja_deps"]
    files = [tree.path / name for name in names if (tree.path / name).exists()]
    return report_trouble(
        MOVED,
        project,
        tree,
        [
            (_place(project, tree, "CMAKE_GENERATOR"), f"CMAKE_GENERATOR={tree.generator}"),
            (project.show(files[0]), f"generated by {other}"),
        ],
        command=CleanupCommands(project).remove(files),
        severity=Severity.WARNING,
        problem=f"{project.show(tree.path)} holds {files[0].name} of the generator {other} beside the files of "
        f"{tree.generator}: run by mistake, it builds with an old configuration",
        todo=f"remove what {other} left",
    )


def _presets_for(project: BuildProject, tree: CMakeTree) -> Iterator[tuple[str, str]]:
    """Yield the presets that configure this very folder, with the generator they ask for."""
    source = project.source_of(tree)
    for name in ("CMakePresets.json", "CMakeUserPresets.json"):
        if source is None or not (source / name).is_file():
            continue
        try:
            document = msgspec.json.decode((source / name).read_bytes())
        except (OSError, msgspec.DecodeError):
            continue
        presets = document.get("configurePresets", []) if isinstance(document, dict) else []
        for preset in presets if isinstance(presets, list) else []:
            if isinstance(preset, dict) and isinstance(preset.get("generator"), str):
                folder = str(preset.get("binaryDir", "")).replace("${sourceDir}", str(source))
                folder = folder.replace("${presetName}", str(preset.get("name", "")))
                if folder and is_same_folder(str(source / folder), str(tree.path)):
                    yield str(preset.get("name", "")), preset["generator"]


def _preset_trouble(project: BuildProject, tree: CMakeTree, preset: str, generator: str) -> TreeTrouble:
    commands = CleanupCommands(project)
    source = commands.quote(project.source_of(tree) or project.root)
    names = (
        "CMakeCache.txt",
        *(("build.ninja", ".ninja_log", ".ninja_deps") if tree.generator == NINJA else ("Makefile",)),
    )
    outdated = [tree.path / name for name in names if (tree.path / name).exists()]
    return report_trouble(
        MOVED,
        project,
        tree,
        [
            (_place(project, tree, "CMAKE_GENERATOR"), f"CMAKE_GENERATOR={tree.generator}"),
            (f"preset {preset}", f"generator {generator}"),
        ],
        command=f"{commands.remove(outdated)} && cmake -S {source} --preset {preset}",
        problem=f"{project.show(tree.path)} was configured with the generator {tree.generator}, but the preset {preset} "
        f"configures it with {generator}",
        todo="remove the cache and configure with the preset",
    )


def check_generated(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """The files that CMake generates are all there, whole, and made from this cache."""
    if tree.cache is None or tree.cache.damage or tree.generator not in (NINJA, MAKEFILES):
        return
    problem = _generated_problem(project, tree)
    if problem:
        yield report_trouble(
            GENERATED,
            project,
            tree,
            [problem],
            command=CleanupCommands(project).configure(tree),
            problem=f"{problem[0]} {problem[1]}",
        )


def _generated_problem(project: BuildProject, tree: CMakeTree) -> tuple[str, str] | None:
    """Return the generated file that is of no use, and why."""
    if tree.generator == NINJA:
        path = tree.path / "build.ninja"
        problem = (
            "is missing: the last configure did not come to its end" if tree.manifest is None else tree.manifest.damage
        )
        problem = problem or _other_workdir(tree)
    else:
        path, problem = _makefile_problem(tree)
    if problem:
        return project.show(path), problem
    if tree.commands_damage:
        return project.show(tree.path / "compile_commands.json"), tree.commands_damage
    return _commands_problem(project, tree)


def _other_workdir(tree: CMakeTree) -> str:
    workdir = re.search(r"^cmake_ninja_workdir = (.+?)/?$", tree.manifest.text if tree.manifest else "", re.MULTILINE)
    if workdir is None or is_same_folder(workdir[1], str(tree.path)):
        return ""
    return f"was generated for the folder {workdir[1]}, not for this one"


def _makefile_problem(tree: CMakeTree) -> tuple[Path, str]:
    for name in ("Makefile", "CMakeFiles/Makefile2", "CMakeFiles/Makefile.cmake"):
        path = tree.path / name
        if not path.is_file():
            return path, "is missing: the last configure did not come to its end"
        if not path.stat().st_size:
            return path, "is empty"
    text = _read_start(tree.path / "Makefile", MAX_MAKEFILE_BYTES)
    if "\0" in text or ".PHONY : cmake_check_build_system" not in text:
        return tree.path / "Makefile", "breaks off before its last rule"
    return tree.path / "Makefile", ""


def _commands_problem(project: BuildProject, tree: CMakeTree) -> tuple[str, str] | None:
    """Return what shows that the generated commands are of another cache than this one."""
    where = project.show(tree.path / "compile_commands.json")
    folders = {command.directory for command in tree.commands}
    root = str(tree.path)
    strange = [
        folder
        for folder in sorted(folders)
        if folder and folder != root and not folder.startswith(root + "/") and not is_same_folder(folder, root)
    ]
    if folders and len(strange) == len(folders):
        return where, f"was generated for the folder {strange[0]}, not for this one"
    compilers = (
        [tree.cache.value(f"CMAKE_{language}_COMPILER") for language in ("C", "CXX", "CUDA")] if tree.cache else []
    )
    texts = [command.command or " ".join(command.arguments) for command in tree.commands]
    if texts and any(compilers) and not any(compiler and compiler in text for text in texts for compiler in compilers):
        return where, f"compiles with {texts[0].split()[0]}, which is not the compiler in CMakeCache.txt"
    return None


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
        problem=f"an in-source configure left CMakeCache.txt and CMakeFiles in the source folder {project.show(tree.path)}"
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
        and (file.path.name not in ("Makefile", "build.ninja") or "CMAKE generated file" in _read_start(file.path))
    ]
    folders = {path for file in project.sources for path in file.path.parents if path.name == "CMakeFiles"}
    return files, sorted(folders)
