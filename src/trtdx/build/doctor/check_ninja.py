"""Whether ninja can rely on what it remembers, on the list of sources, and on the times of files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.build.doctor.check_outputs import linked_programs, made_outputs
from trtdx.build.doctor.cleanup import MAX_NAMED_FILES, CleanupCommands
from trtdx.build.doctor.ninja_files import LINE_FOR_SED, deps_damage
from trtdx.build.doctor.trouble import report_trouble
from trtdx.model import Severity
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.build.doctor.installed import InstalledTools
    from trtdx.build.doctor.ninja_files import NinjaEdge
    from trtdx.build.doctor.project import BuildProject, CMakeTree
    from trtdx.build.nouns import TreeTrouble

RECORD, SOURCE_LIST, TIMES = "DX1187", "DX1194", "DX1195"
SOURCE_SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".C", ".m", ".mm", ".S")
# The versions of .ninja_log that a ninja reads: up to 1.11 version 5, 1.12 version 6, from 1.13 on version 7.
LOG_VERSIONS = (((1, 13), 7), ((1, 12), 6), ((1, 0), 5))
HEADER_SUFFIXES = (".h", ".hpp", ".cuh")
SECOND_NS = 1_000_000_000
FUTURE_NS = 60 * SECOND_NS
MAX_DEPS_BYTES = 256 << 20


def check_ninja_record(project: BuildProject, tree: CMakeTree, tools: InstalledTools) -> Iterator[TreeTrouble]:
    """The log and the dependencies that ninja keeps can be read, and are of this tree."""
    deps = tree.path / ".ninja_deps"
    log = tree.log
    if damage := deps_damage(deps):
        yield _record_trouble(project, tree, deps, damage, CleanupCommands(project).remove([deps]))
    if log is None:
        return
    here = CleanupCommands(project).quote(log.path)
    if log.version is None:
        yield _record_trouble(project, tree, log.path, "does not begin as a .ninja_log does", f"rm -f {here}")
    elif log.bad_lines:
        damage = f"has {format_count(len(log.bad_lines), 'line')} that no ninja writes (the first is line {log.bad_lines[0]})"
        yield _record_trouble(project, tree, log.path, damage, f"sed -i -E '1b;/{LINE_FOR_SED}/!d' {here}")
    elif _readable_version(tree, tools) not in (None, log.version):
        damage = f"is of version {log.version}, but the ninja here reads version {_readable_version(tree, tools)}"
        yield _record_trouble(project, tree, log.path, damage, f"rm -f {here}")
    elif _is_of_another_tree(tree):
        files = [path for path in (log.path, deps) if path.exists()]
        damage = "lists other outputs than build.ninja: it is of another tree"
        yield _record_trouble(project, tree, log.path, damage, CleanupCommands(project).remove(files))


def _record_trouble(project: BuildProject, tree: CMakeTree, file: Path, damage: str, command: str) -> TreeTrouble:
    return report_trouble(
        RECORD,
        project,
        tree,
        [(project.show(file), damage)],
        command=command,
        problem=f"{project.show(file)} {damage}",
        explains=("DX1190", "DX1189"),
    )


def _readable_version(tree: CMakeTree, tools: InstalledTools) -> int | None:
    program = (tree.cache.value("CMAKE_MAKE_PROGRAM") if tree.cache else "") or tools.find("ninja")
    version = re.match(r"(\d+)\.(\d+)", tools.program_version(program)) if program else None
    if version is None:
        return None
    release = (int(version[1]), int(version[2]))
    return next((number for since, number in LOG_VERSIONS if release >= since), None)


def _is_of_another_tree(tree: CMakeTree) -> bool:
    if tree.manifest is None or tree.manifest.damage or not tree.log or len(tree.log.entries) < 3:
        return False
    return not any(name in tree.manifest.outputs() for name in tree.log.entries)


def check_source_list(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """The sources that the tree compiles are those that are there."""
    compiled = _compiled_sources(tree)
    if not compiled or tree.cache is None or tree.cache.damage:
        return
    source = project.source_of(tree)
    globs = _glob_folders(source) if source else {}
    missing = sorted(
        path for path in compiled if not path.exists() and tree.path != path.parent and tree.path not in path.parents
    )
    added = sorted(_added_sources(project, tree, compiled, globs))
    if missing:
        yield _missing_source(project, tree, missing, bool(_globbed(missing, globs)))
    if added:
        yield report_trouble(
            SOURCE_LIST,
            project,
            tree,
            [(project.show(path), "is newer than the build files, and no rule compiles it") for path in added[:8]],
            command=CleanupCommands(project).configure(tree),
            problem=f"{abbreviate_list((project.show(path) for path in added), 3)} came after {project.show(tree.path)} was configured and "
            f"{'is' if len(added) == 1 else 'are'} not compiled: file(GLOB) looks only when CMake runs",
            todo="configure again, so that CMake lists the sources anew",
        )


def _compiled_sources(tree: CMakeTree) -> set[Path]:
    if tree.manifest and not tree.manifest.damage:
        names = [name for edge in tree.manifest.edges if "COMPILER" in edge.rule for name in edge.inputs[:1]]
        return {tree.path / name for name in names if Path(name).suffix in SOURCE_SUFFIXES}
    return {
        Path(command.directory) / command.file
        for command in tree.commands
        if Path(command.file).suffix in SOURCE_SUFFIXES
    }


def _glob_folders(source: Path) -> dict[Path, bool]:
    """Return the folders whose CMakeLists.txt lists sources by a pattern, and whether with what is below them."""
    folders: dict[Path, bool] = {}
    for number, script in enumerate(sorted(source.rglob("CMakeLists.txt"))):
        if number > 2000:
            break
        text = re.sub(r"#.*", "", script.read_text("utf-8", "replace")[: 1 << 20])
        for match in re.finditer(r"file\s*\(\s*(GLOB(?:_RECURSE)?)\b([^)]*)\)", text, re.IGNORECASE):
            if "CONFIGURE_DEPENDS" not in match[2]:
                recursive = match[1].upper().endswith("RECURSE") or "/" in match[2]
                folders[script.parent] = folders.get(script.parent, False) or recursive
    return folders


def _globbed(paths: list[Path], globs: dict[Path, bool]) -> list[Path]:
    return [
        path
        for path in paths
        if globs.get(path.parent) is not None or any(globs.get(folder) for folder in path.parents)
    ]


def _added_sources(
    project: BuildProject, tree: CMakeTree, compiled: set[Path], globs: dict[Path, bool]
) -> Iterator[Path]:
    generated = tree.path / ("build.ninja" if tree.manifest else "Makefile")
    if not globs or not generated.exists():
        return
    configured_ns = generated.stat().st_mtime_ns
    folders = {path.parent for path in compiled}
    for file in project.sources:
        is_new = file.path.suffix in SOURCE_SUFFIXES and file.mtime_ns > configured_ns and file.path not in compiled
        if is_new and file.path.parent in folders and _globbed([file.path], globs):
            yield file.path


def _missing_source(project: BuildProject, tree: CMakeTree, missing: list[Path], by_glob: bool) -> TreeTrouble:
    names = abbreviate_list((project.show(path) for path in missing), 3)
    commands = CleanupCommands(project)
    restore = "git checkout -- " + " ".join(commands.quote(path) for path in missing[:MAX_NAMED_FILES])
    return report_trouble(
        SOURCE_LIST,
        project,
        tree,
        [(project.show(path), "is compiled by the tree, and is not there") for path in missing[:8]],
        command=commands.configure(tree) if by_glob else restore,
        problem=f"{names} {'is' if len(missing) == 1 else 'are'} compiled by {project.show(tree.path)}, but not there any more",
        todo="configure again, so that CMake lists the sources anew"
        if by_glob
        else "bring the file back, or take it out of CMakeLists.txt",
    )


def check_times(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """No file is from the future, and no source was changed behind the back of its time."""
    yield from _check_future(project, tree)
    behind = sorted(set(_backdated(project, tree)))
    if behind and len(behind) * 2 <= len(_compile_edges(tree)):  # else the sources were touched as a whole
        yield report_trouble(
            TIMES,
            project,
            tree,
            [
                (project.show(path), "was changed after its object was made, but its time is older")
                for path in behind[:8]
            ],
            command="touch " + " ".join(CleanupCommands(project).quote(path) for path in behind[:MAX_NAMED_FILES]),
            severity=Severity.WARNING,
            confidence=0.7,
            problem=f"{abbreviate_list((project.show(path) for path in behind), 3)} {'was' if len(behind) == 1 else 'were'} replaced after the objects "
            "were made but kept an older time (cp -p, rsync -a, tar, mv), so neither ninja nor make compiles it again",
            todo="give them the present time, so that what depends on them is built again",
        )


def _check_future(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """Yield what has a time in the future: outputs of the tree, and once for the project its sources."""
    now_ns = int(project.host.now() * 1e9)
    ahead = [file.path for file in project.files if file.mtime_ns > now_ns + FUTURE_NS]
    inside = [path for path in ahead if tree.path in path.parents and tree.path != project.root]
    outputs = [path for path in inside if _is_output(project, tree, path)]
    is_first = tree is project.trees[0]
    others = [path for path in (ahead if is_first else inside) if path not in outputs and _is_read_by_build(path)]
    commands = CleanupCommands(project)
    if others:
        yield _future_trouble(
            project,
            tree,
            others,
            f"touch {' '.join(commands.quote(path) for path in others)}"
            if len(others) <= MAX_NAMED_FILES
            else f"find {commands.quote(project.root)} -type f -newermt now -not -path '*/.git/*' -exec touch {{}} +",
            "so what depends on them is built again and again",
            "give them the present time",
        )
    if outputs:
        yield _future_trouble(
            project,
            tree,
            outputs,
            commands.remove(outputs) if len(outputs) <= MAX_NAMED_FILES else commands.clean_target(tree),
            "so a change of their sources goes unnoticed until then",
            "remove just these; the next build makes them again",
            explains=("DX1189",),
        )


def _future_trouble(
    project: BuildProject,
    tree: CMakeTree,
    paths: list[Path],
    command: str,
    harm: str,
    todo: str,
    explains: tuple[str, ...] = (),
) -> TreeTrouble:
    return report_trouble(
        TIMES,
        project,
        tree,
        [(project.show(path), "is from the future") for path in paths[:8]],
        command=command,
        problem=f"{abbreviate_list((project.show(path) for path in paths), 3)} {'has' if len(paths) == 1 else 'have'} "
        f"a time in the future, {harm if len(paths) > 1 else harm.replace('them', 'it').replace('their', 'its')}",
        todo=todo,
        explains=explains,
    )


def _is_output(project: BuildProject, tree: CMakeTree, path: Path) -> bool:
    if path.suffix in (".o", ".a") or ".so" in path.suffixes or path in linked_programs(project):
        return True
    return str(path.relative_to(tree.path)) in made_outputs(tree)


def _is_read_by_build(path: Path) -> bool:
    suffixes = (*SOURCE_SUFFIXES, *HEADER_SUFFIXES, ".cmake", ".ninja", ".py")
    return path.suffix in suffixes or path.name in ("CMakeLists.txt", "CMakeCache.txt")


def _compile_edges(tree: CMakeTree) -> list[NinjaEdge]:
    edges = tree.manifest.edges if tree.manifest else ()
    return [edge for edge in edges if "COMPILER" in edge.rule and edge.inputs and edge.outputs]


def _backdated(project: BuildProject, tree: CMakeTree) -> Iterator[Path]:
    """Yield sources whose inode changed after the object that was made of them, with an older time of content."""
    if tree.manifest is None:
        return
    status = {file.path: file for file in project.files}
    for edge in _compile_edges(tree):
        source, result = status.get(tree.path / edge.inputs[0]), status.get(tree.path / edge.outputs[0])
        if source is None or result is None or abs(result.ctime_ns - result.mtime_ns) > 2 * SECOND_NS:
            continue
        if source.ctime_ns > result.ctime_ns + SECOND_NS and source.mtime_ns < result.mtime_ns:
            yield source.path
    yield from _backdated_headers(project, tree)


def _backdated_headers(project: BuildProject, tree: CMakeTree) -> Iterator[Path]:
    """Yield headers that ninja knows to be included and that were replaced after everything was compiled."""
    objects = [file for file in project.files if file.path.suffix == ".o" and tree.path in file.path.parents]
    headers = [file for file in project.sources if file.path.suffix in HEADER_SUFFIXES]
    if not objects or not headers or any(abs(file.ctime_ns - file.mtime_ns) > 2 * SECOND_NS for file in objects):
        return  # of a tree that was copied, the times tell nothing
    compiled_ns, first_ns = max(file.ctime_ns for file in objects), min(file.mtime_ns for file in objects)
    late = [file for file in headers if file.ctime_ns > compiled_ns + SECOND_NS and file.mtime_ns < first_ns]
    if not late or len(late) * 2 > max(len(headers), 2):
        return
    try:
        included = (tree.path / ".ninja_deps").read_bytes()[:MAX_DEPS_BYTES]
    except OSError:
        return
    yield from (file.path for file in late if str(file.path).encode() in included)
