"""Whether what a tree has built is whole, made by its own rules and compiler, and untouched since."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections import Counter
from typing import TYPE_CHECKING

from trtdx.build.doctor.binaries import compiler_comments, elf_machine, file_damage, is_immutable
from trtdx.build.doctor.cleanup import MAX_NAMED_FILES, CleanupCommands
from trtdx.build.doctor.trouble import report_trouble
from trtdx.model import Severity
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trtdx.build.doctor.project import BuildProject, CMakeTree, TreeFile
    from trtdx.build.nouns import TreeTrouble

HALF_WRITTEN, BY_HAND, NO_RULE, OTHER_COMPILER, LOCKED = "DX1188", "DX1189", "DX1190", "DX1192", "DX1205"
BINARY_NAME = re.compile(r".+\.(?:o|a|so(?:\.\d+)*|whl)")
LIBRARY_NAME = re.compile(r".+\.(?:a|so(?:\.\d+)*)")
SOURCE_NAME = re.compile(r".+\.(?:c|cc|cpp|cu|cuh|h|hpp|inc)")
SLACK_NS = 500_000_000
MAX_OBJECTS = 4000
MAX_LINK_COMMAND = 1 << 22
MASS_SHARE = 0.5  # where so many outputs differ from the log, the tree was copied or touched as a whole


def check_half_written(project: BuildProject) -> Iterator[TreeTrouble]:
    """Compiled files, libraries and wheels are whole."""
    damaged = [
        (file.path, damage)
        for file in project.files
        if _is_judged(project, file) and (damage := file_damage(file.path))
    ]
    if not damaged:
        return
    paths = [path for path, _ in damaged]
    tree = _tree_of(project, paths[0])
    command = CleanupCommands(project).remove(paths[:MAX_NAMED_FILES])
    if len(paths) > MAX_NAMED_FILES and tree:
        command = CleanupCommands(project).clean_target(tree)
    yield report_trouble(
        HALF_WRITTEN,
        project,
        tree,
        [(project.show(path), damage) for path, damage in damaged[:8]],
        command=command,
        first=f"{project.show(paths[0])} {damaged[0][1]}",
        more=f", and {format_count(len(paths) - 1, 'other file')} too" if len(paths) > 1 else "",
        explains=("DX1189", "DX1192", "DX1191", "DX1197"),
    )


def _is_judged(project: BuildProject, file: TreeFile) -> bool:
    if "CompilerIdC" in str(file.path) or "CMakeScratch" in file.path.parts:
        return False
    if BINARY_NAME.fullmatch(file.path.name):
        in_tree = _tree_of(project, file.path) is not None
        return in_tree or file.path.suffix == ".whl" or ".so" in file.path.name
    return file.path in linked_programs(project)


def linked_programs(project: BuildProject) -> set[Path]:
    """Return the executables that the trees link."""
    cached: set[Path] | None = project.__dict__.get("linked_programs")
    if cached is None:
        cached = {path for tree in project.trees for path in (*_ninja_programs(tree), *_make_programs(project, tree))}
        project.__dict__["linked_programs"] = cached
    return cached


def _ninja_programs(tree: CMakeTree) -> Iterator[Path]:
    for edge in tree.manifest.edges if tree.manifest else ():
        if "EXECUTABLE_LINKER" in edge.rule:
            yield from (tree.output_path(name) for name in edge.outputs)


def _make_programs(project: BuildProject, tree: CMakeTree) -> Iterator[Path]:
    return (output for _, output in _link_outputs(project, tree))


def _link_outputs(project: BuildProject, tree: CMakeTree) -> Iterator[tuple[Path, Path]]:
    """Yield the link commands of Makefiles (<folder>/CMakeFiles/<target>.dir/link.txt), each with what it writes."""
    for file in project.files:
        if file.path.name == "link.txt" and tree.path in file.path.parents and len(file.path.parts) > 3:
            with contextlib.suppress(OSError, ValueError):
                words = shlex.split(file.path.read_text("utf-8", "replace")[:MAX_LINK_COMMAND])
                for at, word in enumerate(words[:-1]):
                    if word == "-o":
                        yield file.path, file.path.parents[2] / words[at + 1]


def _tree_of(project: BuildProject, path: Path) -> CMakeTree | None:
    return next((tree for tree in project.trees if tree.path in path.parents), None)


def check_changed_outputs(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """Outputs are as the build left them."""
    if tree.log is None or tree.manifest is None:
        return
    outputs = made_outputs(tree)
    present = [
        (name, tree.output_path(name))
        for name in tree.log.entries
        if name in outputs and tree.output_path(name).is_file()
    ]
    changed = [path for name, path in present if _was_changed(tree, name, path)]
    if not changed or len(changed) > max(1, MASS_SHARE * len(present)):
        return
    yield report_trouble(
        BY_HAND,
        project,
        tree,
        [(project.show(path), "was written after the step that makes it had ended") for path in changed[:8]],
        command=CleanupCommands(project).remove(changed[:MAX_NAMED_FILES]),
        problem=f"{abbreviate_list((project.show(path) for path in changed), 3)} {'was' if len(changed) == 1 else 'were'} "
        f"changed after the build had made {'it' if len(changed) == 1 else 'them'}, so what is there is not what the sources give",
        todo="remove just this; the next build makes it again",
    )


def made_outputs(tree: CMakeTree) -> set[str]:
    """Return what compilers and linkers make, and generated sources; other commands may rewrite theirs at any time."""
    return {
        name
        for edge in (tree.manifest.edges if tree.manifest else ())
        for name in edge.outputs
        if re.search(r"LINKER|COMPILER", edge.rule) or (edge.rule == "CUSTOM_COMMAND" and SOURCE_NAME.fullmatch(name))
    }


def _was_changed(tree: CMakeTree, name: str, path: Path) -> bool:
    """Whether a file was written later than its step took; ninja notes the start or the end of a step, by version."""
    entry = tree.log.entries[name] if tree.log else None
    if entry is None or not entry.mtime_ns:
        return False
    late = path.stat().st_mtime_ns - entry.mtime_ns
    if not _notes_exact_times(tree):
        return late > int(entry.seconds * 1e9) + SLACK_NS
    return late > 1000  # an older time is no harm: ninja then makes the file again where it has to


def _notes_exact_times(tree: CMakeTree) -> bool:
    """Whether this log holds the very times of the files, as ninja up to 1.11 writes them."""
    exact = tree.__dict__.get("log_is_exact")
    if exact is None:
        entries = tree.log.entries if tree.log else {}
        paths = [(entries[name], tree.output_path(name)) for name in made_outputs(tree) if name in entries]
        exact = any(path.is_file() and path.stat().st_mtime_ns == entry.mtime_ns for entry, path in paths)
        tree.__dict__["log_is_exact"] = exact
    return bool(exact)


def check_dead_outputs(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """Libraries and programs in the tree are made by a rule that is still there."""
    dead = list(_dead_of_ninja(tree) if tree.manifest else _dead_of_make(project, tree))
    if dead:
        yield report_trouble(
            NO_RULE,
            project,
            tree,
            [(project.show(path), "was made here; no rule of the tree makes it now") for path in dead[:8]],
            command=CleanupCommands(project).remove(dead[:MAX_NAMED_FILES]),
            files=abbreviate_list((project.show(path) for path in dead), 3),
            verb="has" if len(dead) == 1 else "have",
        )


def _dead_of_ninja(tree: CMakeTree) -> Iterator[Path]:
    """Yield what ninja remembers to have linked and has no rule for."""
    if tree.manifest is None or tree.manifest.damage or not tree.manifest.edges:
        return
    live = {tree.output_path(name) for name in tree.manifest.outputs()}
    for path in dict.fromkeys(tree.output_path(name) for name in (tree.log.entries if tree.log else ())):
        is_linked = LIBRARY_NAME.fullmatch(path.name) or _looks_linked(path)
        if path not in live and is_linked and path.is_file():
            yield path


def _dead_of_make(project: BuildProject, tree: CMakeTree) -> Iterator[Path]:
    """Yield what the link commands of dropped targets wrote; CMake leaves their folders, but lists the others."""
    try:
        listed = (tree.files / "TargetDirectories.txt").read_text("utf-8", "replace").split("\n")
    except OSError:
        return
    live = {os.path.realpath(line) for line in listed if line}
    written = {output: os.path.realpath(script.parent) for script, output in _link_outputs(project, tree)}
    for path, folder in written.items():
        if folder not in live and path.is_file():
            yield path


def _looks_linked(path: Path) -> bool:
    return not path.suffix and path.is_file() and bool(elf_machine(path))


def _objects(project: BuildProject, tree: CMakeTree) -> list[Path]:
    objects = [file.path for file in project.files if file.path.suffix == ".o" and tree.path in file.path.parents]
    return [
        path for path in objects[:MAX_OBJECTS] if "CMakeScratch" not in path.parts and "CompilerIdC" not in str(path)
    ]


def check_object_architectures(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """All objects are for one processor."""
    machines = {path: machine for path in _objects(project, tree) if (machine := elf_machine(path))}
    if len(set(machines.values())) < 2:
        return
    usual = Counter(machines.values()).most_common(1)[0][0]
    strange = [path for path, machine in machines.items() if machine != usual]
    yield report_trouble(
        OTHER_COMPILER,
        project,
        tree,
        [(project.show(path), f"for {machines[path]}") for path in strange[:6]],
        command=CleanupCommands(project).remove(strange[:MAX_NAMED_FILES]),
        problem=f"{abbreviate_list((project.show(path) for path in strange), 3)} {'is' if len(strange) == 1 else 'are'} for "
        f"the architecture {machines[strange[0]]}, the other objects of {project.show(tree.path)} for {usual}: the folder "
        "was shared with another machine",
        todo="remove these objects, so that the compiler here makes them again",
        severity=Severity.ERROR,
        explains=(BY_HAND,),
    )


def check_locked_outputs(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """What the tree has linked can be replaced by the next build."""
    names = [
        file.path for file in project.files if LIBRARY_NAME.fullmatch(file.path.name) and tree.path in file.path.parents
    ]
    programs = [path for path in linked_programs(project) if tree.path in path.parents]
    locked = [path for path in (*names, *sorted(programs)) if is_immutable(path)]
    if locked:
        yield report_trouble(
            LOCKED,
            project,
            tree,
            [(f"lsattr {project.show(path)}", "immutable (i)") for path in locked[:6]],
            command=" ".join(
                ["chattr -i", *(CleanupCommands(project).quote(path) for path in locked[:MAX_NAMED_FILES])]
            ),
            files=abbreviate_list((project.show(path) for path in locked), 3),
        )


def check_object_compilers(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """Objects were made by the compiler that the tree is configured for."""
    record = tree.compilers.get("CXX") or tree.compilers.get("C")
    if record is None or record.id not in ("GNU", "Clang") or not record.version:
        return
    makers = {path: comments for path in _objects(project, tree) if (comments := compiler_comments(path))}
    strange = {
        path: comments for path, comments in makers.items() if not any(record.version in text for text in comments)
    }
    if not strange:
        return
    yield _object_trouble(
        project, tree, list(strange), Counter(strange.values()).most_common(1)[0][0], len(makers), record.version
    )


def _object_trouble(
    project: BuildProject, tree: CMakeTree, strange: Sequence[Path], makers: tuple[str, ...], count: int, version: str
) -> TreeTrouble:
    from trtdx.build.doctor.check_ccache import recache_command, uses_ccache

    commands = CleanupCommands(project)
    cached = uses_ccache(tree)
    remove = commands.clean_target(tree) if len(strange) > MAX_NAMED_FILES else commands.remove(strange)
    return report_trouble(
        "DX1193" if cached else OTHER_COMPILER,
        project,
        tree,
        [(f"{project.show(path)}: .comment", ", ".join(makers)) for path in strange[:6]],
        command=recache_command(project, tree, remove) if cached else remove,
        problem=f"{len(strange)} of {format_count(count, 'object')} in {project.show(tree.path)} ({abbreviate_list((path.name for path in strange), 2)}) "
        f"{'was' if len(strange) == 1 else 'were'} made by {', '.join(makers)}, but the tree is configured for version {version}"
        + ("; they came out of ccache" if cached else ""),
        todo="remove these objects, so that the compiler makes them again",
        severity=Severity.ERROR,
        explains=("DX1189",),
    )
