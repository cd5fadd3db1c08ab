"""Whether copies of what was built are of the newest build: libraries, wheels and what is staged for them."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.build.doctor.check_python import TreePython
from trtdx.build.doctor.cleanup import MAX_NAMED_FILES, CleanupCommands
from trtdx.build.doctor.trouble import report_trouble
from trtdx.model import Severity
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.build.doctor.project import BuildProject, TreeFile
    from trtdx.build.nouns import TreeTrouble

COPY, WHEEL, STAGED = "DX1191", "DX1197", "DX1198"
SHARED_LIBRARY = re.compile(r".+\.so(?:\.\d+)*")
SECOND_NS = 1_000_000_000
MAX_MEMBER_BYTES = 64 << 20
MAX_MEMBERS = 20_000
COMPILED_SOURCES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
BLOCK = 1 << 20


def check_library_copies(project: BuildProject) -> Iterator[TreeTrouble]:
    """Copies of a library are not older than the library that the tree built."""
    built = _built_libraries(project)
    stale = [
        (file.path, original)
        for file in _library_files(project)
        if (original := built.get(file.path.name)) and _is_older_copy(file, original)
    ]
    if stale:
        commands = CleanupCommands(project)
        yield report_trouble(
            COPY,
            project,
            None,
            [
                (project.show(path), f"is older than {project.show(original.path)} and differs from it")
                for path, original in stale[:8]
            ],
            command=" && ".join(
                [
                    f"cp -p {commands.quote(original.path)} {commands.quote(path)}"
                    for path, original in stale[:MAX_NAMED_FILES]
                ]
                + [commands.remove([wheel.path]) for wheel in _wheels_with(project, stale)]
            ),
            problem=f"{abbreviate_list((project.show(path) for path, _ in stale), 3)} {'is an older copy' if len(stale) == 1 else 'are older copies'} "
            f"of what the tree has built since ({project.show(stale[0][1].path)})",
            todo="copy what was built over it",
            explains=("DX1197",),
        )
    yield from _check_dangling_links(project)
    yield from _check_search_path(project, built)


def _wheels_with(project: BuildProject, stale: list[tuple[Path, TreeFile]]) -> list[TreeFile]:
    """Return the newest wheel of the project if an outdated copy went into it."""
    wheel = _newest_wheel(project)
    if wheel is None or wheel.mtime_ns >= max(original.mtime_ns for _, original in stale):
        return []
    with zipfile.ZipFile(wheel.path) as archive:
        members = set(archive.namelist()[:MAX_MEMBERS])
    return [wheel] if any(_package_path(project, path) in members for path, _ in stale) else []


def _check_dangling_links(project: BuildProject) -> Iterator[TreeTrouble]:
    """Yield the links to built libraries that a removed tree left, as build_wheel.py --linking_install_binary makes them."""
    links = {path: _link_target(path) for path in project.dangling_links if SHARED_LIBRARY.fullmatch(path.name)}
    lost = [
        path
        for path, target in links.items()
        if project.root in target.parents and not any(tree.path in path.parents for tree in project.trees)
    ]
    if lost:
        yield report_trouble(
            COPY,
            project,
            None,
            [(project.show(path), f"leads to {project.show(links[path])}") for path in lost[:8]],
            command=CleanupCommands(project).remove(lost[:MAX_NAMED_FILES]),
            problem=f"{abbreviate_list((project.show(path) for path in lost), 3)} {'is a link' if len(lost) == 1 else 'are links'} "
            f"to what is not there any more ({project.show(links[lost[0]])})",
            todo="remove the link; the next build_wheel.py puts the library there again",
        )


def _link_target(path: Path) -> Path:
    return Path(os.path.normpath(path.parent / path.readlink()))


def _built_libraries(project: BuildProject) -> dict[str, TreeFile]:
    """Return the shared libraries that trees have built, by name; a name built twice is not judged."""
    built: dict[str, TreeFile] = {}
    repeated: set[str] = set()
    folders = [tree.path for tree in project.trees if tree.path != project.root]
    for file in project.files:
        if SHARED_LIBRARY.fullmatch(file.path.name) and any(folder in file.path.parents for folder in folders):
            repeated |= {file.path.name} & set(built)
            built[file.path.name] = file
    return {name: file for name, file in built.items() if name not in repeated}


def _library_files(project: BuildProject) -> list[TreeFile]:
    """Return the libraries outside all trees; what is staged for a wheel is brought up to date with the next one."""
    staging = _staging_folders(project)
    return [
        file
        for file in project.sources
        if SHARED_LIBRARY.fullmatch(file.path.name) and not any(folder in file.path.parents for folder in staging)
    ]


def _is_older_copy(copy: TreeFile, original: TreeFile) -> bool:
    if copy.mtime_ns >= original.mtime_ns or not original.size or _has_kept_time(copy, original):
        return False
    return copy.size != original.size or _differs(copy.path, original.path)


def _has_kept_time(copy: TreeFile, original: TreeFile) -> bool:
    """Whether a copy has the time of what it was made of; installers keep it, but not all of its digits."""
    return any(original.mtime_ns // unit * unit == copy.mtime_ns for unit in (SECOND_NS, 1_000_000, 1_000))


def _differs(first: Path, second: Path) -> bool:
    try:
        with first.open("rb") as one, second.open("rb") as two:
            while True:
                block, other = one.read(BLOCK), two.read(BLOCK)
                if block != other:
                    return True
                if not block:
                    return False
    except OSError:
        return False


def _check_search_path(project: BuildProject, built: dict[str, TreeFile]) -> Iterator[TreeTrouble]:
    """Yield the libraries that LD_LIBRARY_PATH puts before the ones the tree built."""
    folders = [folder for folder in project.environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    for folder in folders:
        for name, original in sorted(built.items()):
            path = Path(folder) / name
            if not path.is_file() or original.path.parent.samefile(folder) or not _differs(path, original.path):
                continue
            yield report_trouble(
                COPY,
                project,
                None,
                [("environment: LD_LIBRARY_PATH", folder), (str(path), f"differs from {project.show(original.path)}")],
                command='export LD_LIBRARY_PATH="$(printf %s "$LD_LIBRARY_PATH" | tr : "\\n" | grep -vxF '
                f'{CleanupCommands(project).quote(folder)} | paste -sd :)"',
                severity=Severity.WARNING,
                problem=f"LD_LIBRARY_PATH leads to {path}, which is not the {project.show(original.path)} that the tree has built",
                todo="take the folder out of LD_LIBRARY_PATH, or remove the old library from it",
            )


def check_staged_files(project: BuildProject) -> Iterator[TreeTrouble]:
    """What is staged for the next wheel is still in the package."""
    for staged in _staging_folders(project):
        gone = [
            file.path
            for file in project.files
            if staged in file.path.parents
            and not (project.root / file.path.relative_to(staged)).exists()
            and file.path.suffix in (".py", ".so", ".pyi")
            and _package_is_here(project, file.path.relative_to(staged))
        ]
        if gone:
            yield report_trouble(
                STAGED,
                project,
                None,
                [(project.show(path), "is not in the package any more") for path in gone[:8]],
                command=CleanupCommands(project).remove(gone[:MAX_NAMED_FILES])
                if len(gone) <= MAX_NAMED_FILES
                else CleanupCommands(project).remove([staged], folders=True),
                files=abbreviate_list((project.show(path) for path in gone), 3),
                folder=project.show(staged),
                severity=Severity.WARNING,
            )


def _staging_folders(project: BuildProject) -> list[Path]:
    build = project.root / "build"
    return (
        [folder for folder in (build / "lib", *sorted(build.glob("lib.*"))) if folder.is_dir()]
        if build.is_dir()
        else []
    )


def _package_is_here(project: BuildProject, relative: Path) -> bool:
    return len(relative.parts) > 1 and (project.root / relative.parts[0]).is_dir()


def check_wheels(project: BuildProject) -> Iterator[TreeTrouble]:
    """The newest wheel holds what the package holds today."""
    wheel = _newest_wheel(project)
    if wheel is None:
        return
    reasons = list(_version_reasons(project, wheel.path)) or list(_content_reasons(project, wheel))
    reasons = reasons or (list(_source_reasons(project, wheel)) if project.trees else [])
    if reasons:
        yield report_trouble(
            WHEEL,
            project,
            project.trees[0] if project.trees else None,
            [(where, text) for where, text in reasons[:8]],
            command=CleanupCommands(project).remove([wheel.path]),
            wheel=project.show(wheel.path),
            first=reasons[0][0],
            reason=reasons[0][1],
            more=f", and {len(reasons) - 1} more" if len(reasons) > 1 else "",
            rebuild="python3 scripts/build_wheel.py"
            if project.is_wheel_project
            else "python3 -m build --wheel --no-isolation",
        )


def _newest_wheel(project: BuildProject) -> TreeFile | None:
    """Return the newest wheel that this project made, if it can be read."""
    wheels = sorted((file for file in project.files if file.path.suffix == ".whl"), key=lambda file: file.mtime_ns)
    own = [wheel for wheel in wheels if _is_of_project(project, wheel.path)]
    return own[-1] if own and zipfile.is_zipfile(own[-1].path) else None


def _is_of_project(project: BuildProject, wheel: Path) -> bool:
    """Whether a wheel is one that this project makes: it holds a package that is here."""
    package = wheel.name.partition("-")[0]
    return (
        (project.root / package).is_dir()
        or (project.root / "src" / package).is_dir()
        or wheel.parent.name in ("dist", "build")
    )


def _version_reasons(project: BuildProject, wheel: Path) -> Iterator[tuple[str, str]]:
    package, _, rest = wheel.name.partition("-")
    file = project.root / package / "version.py"
    if not file.is_file():
        return
    stated = re.search(r"__version__\s*=\s*[\"']([^\"']+)", file.read_text("utf-8", "replace")[: 1 << 16])
    version = rest.partition("-")[0].partition("+")[0]
    if stated and stated[1].partition("+")[0] != version:
        yield project.show(file), f"says {stated[1]}, the wheel is of {version}"
    tags = {"cp" + minor.replace(".", "") for tree in project.trees if (minor := TreePython(tree).minor)}
    tag = re.search(r"-(cp\d+)-cp\d+-", wheel.name)
    if tag and tags and tag[1] not in tags:
        yield (
            project.show(project.trees[0].path),
            f"is configured for {' and '.join(sorted(tags))}, the wheel is for {tag[1]}",
        )


def _content_reasons(project: BuildProject, wheel: TreeFile) -> Iterator[tuple[str, str]]:
    """Yield the files of the package that were changed after the wheel was made."""
    with zipfile.ZipFile(wheel.path) as archive:
        members = {member.filename: member for member in archive.infolist()[:MAX_MEMBERS]}
    packages = {name.partition("/")[0] for name in members if "/" in name and ".dist-info/" not in name}
    for file in project.sources:
        relative = _package_path(project, file.path)
        if relative.partition("/")[0] not in packages or file.mtime_ns <= wheel.mtime_ns:
            continue
        member = members.get(relative)
        if member is None:
            if file.path.suffix == ".py":
                yield project.show(file.path), "is newer than the wheel and not in it"
        elif member.file_size != file.size or _checksum(file) not in (None, member.CRC):
            yield project.show(file.path), "was changed after the wheel was made"


def _source_reasons(project: BuildProject, wheel: TreeFile) -> Iterator[tuple[str, str]]:
    """Yield the C++ and CUDA sources that are newer than the wheel, unless the files were touched as a whole."""
    times = [
        file.mtime_ns for file in project.sources if file.path.suffix == ".py" and file.path.parent != project.root
    ]
    if sum(mtime > wheel.mtime_ns for mtime in times) * 2 > len(times):
        return
    for file in project.sources:
        if file.path.suffix in COMPILED_SOURCES and file.mtime_ns > wheel.mtime_ns + 2 * SECOND_NS:
            yield project.show(file.path), "is newer than the wheel"


def _package_path(project: BuildProject, path: Path) -> str:
    relative = path.relative_to(project.root)
    return str(relative.relative_to("src") if relative.parts[0] == "src" and len(relative.parts) > 1 else relative)


def _checksum(file: TreeFile) -> int | None:
    """Return a file's CRC-32; None where it is too large to be read for this."""
    if file.size > MAX_MEMBER_BYTES:
        return None
    try:
        return zlib.crc32(file.path.read_bytes())
    except OSError:
        return None
