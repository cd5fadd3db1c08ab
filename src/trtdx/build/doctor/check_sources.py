"""Whether the sources are complete: submodules, Git LFS objects, and what CMake fetches by itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.build.doctor.cleanup import MAX_NAMED_FILES, CleanupCommands
from trtdx.build.doctor.trouble import report_trouble
from trtdx.formats.documents import GIT_LFS_MAGIC
from trtdx.model import Severity
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.build.doctor.installed import InstalledTools
    from trtdx.build.doctor.project import BuildProject, CMakeTree, TreeFile
    from trtdx.build.nouns import TreeTrouble

LFS, SUBMODULES, FETCHED, OTHER_COMMIT, HALF_WRITTEN = "DX050", "DX051", "DX1200", "DX1203", "DX1188"
KERNEL_FOLDER = "cpp/tensorrt_llm/kernels/contextFusedMultiHeadAttention/fmha_v2_cu"
LARGEST_POINTER = 1024
GIT_TIMEOUT_S = 20.0
# What a build reads; a picture that stayed a pointer harms nobody.
DOCUMENTS = {".png", ".jpg", ".jpeg", ".gif", ".svg", ".mp4", ".pdf", ".ipynb", ".webp"}


def check_submodules(project: BuildProject, tools: InstalledTools) -> Iterator[TreeTrouble]:
    """Every submodule has been fetched, at the commit that the project asks for."""
    paths = _submodule_paths(project.root)
    missing = [path for path in paths if _is_unfetched(project.root / path)]
    commands = CleanupCommands(project)
    git = "git" if project.commands_are_relative else f"git -C {commands.quote(project.root)}"
    if missing:
        names = " ".join(commands.quote(path) for path in missing)
        yield report_trouble(
            SUBMODULES,
            project,
            None,
            [(f".gitmodules: path = {path}", "the folder is empty or not there") for path in missing[:8]],
            command=f"{git} submodule update --init --recursive -- {names}",
            problem=f"{format_count(len(missing), 'submodule')} {'was' if len(missing) == 1 else 'were'} never fetched: {abbreviate_list(missing, 4)}",
            explains=("DX1194",),
        )
    elif paths and tools.find("git") and (project.root / ".git").exists():
        yield from _check_submodule_commits(project, git)


def _submodule_paths(root: Path) -> list[str]:
    try:
        text = (root / ".gitmodules").read_text("utf-8", "replace")[: 1 << 20]
    except OSError:
        return []
    paths = [match.strip() for match in re.findall(r"^\s*path\s*=\s*(.+)$", text, re.MULTILINE)]
    return [path for path in paths if not path.startswith("/") and ".." not in Path(path).parts]


def _is_unfetched(folder: Path) -> bool:
    """Whether a submodule's folder holds nothing but, at most, git's own mark."""
    try:
        return not folder.is_dir() or not any(entry.name != ".git" for entry in folder.iterdir())
    except OSError:
        return False


def _check_submodule_commits(project: BuildProject, git: str) -> Iterator[TreeTrouble]:
    done = project.host.run(["git", "-C", str(project.root), "submodule", "status"], timeout_s=GIT_TIMEOUT_S)
    if done.status != 0:
        return
    lines = [line for line in done.stdout.decode("utf-8", "replace").splitlines() if line.startswith("+")]
    names = [line[1:].split()[1] for line in lines if len(line[1:].split()) > 1]
    if names:
        yield report_trouble(
            OTHER_COMMIT,
            project,
            None,
            [("git submodule status", line.strip()) for line in lines[:8]],
            command=f"{git} submodule update --init -- {' '.join(CleanupCommands(project).quote(name) for name in names)}",
            severity=Severity.WARNING,
            names=abbreviate_list(names, 4),
        )


def check_lfs(project: BuildProject) -> Iterator[TreeTrouble]:
    """No file that a build reads is a Git LFS pointer."""
    pointers = [file.path for file in project.files if _may_be_pointer(file) and _is_pointer(file.path)]
    needed = [path for path in pointers if path.suffix.lower() not in DOCUMENTS]
    if not needed:
        return
    commands = CleanupCommands(project)
    shown = [str(path.relative_to(project.root)) for path in needed]
    inside = f" -C {commands.quote(project.root)}" if not project.commands_are_relative else ""
    include = (
        ",".join(shown)
        if len(shown) <= MAX_NAMED_FILES
        else ",".join(sorted({str(Path(name).parent) for name in shown}))
    )
    yield report_trouble(
        LFS,
        project,
        None,
        [(project.show(path), "is a pointer of about 130 bytes, not the file") for path in needed[:8]],
        command=f"git{inside} lfs install --local && git{inside} lfs pull --include={_quote(include)}",
        problem=f"{abbreviate_list(shown, 3)} {'is a Git LFS pointer' if len(shown) == 1 else 'are Git LFS pointers'}, not the real contents",
        explains=("DX1188",),
    )


def _quote(text: str) -> str:
    import shlex

    return shlex.quote(text)


def _may_be_pointer(file: TreeFile) -> bool:
    return len(GIT_LFS_MAGIC) < file.size <= LARGEST_POINTER


def _is_pointer(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            start = stream.read(LARGEST_POINTER)
    except OSError:
        return False
    return start.startswith(GIT_LFS_MAGIC) and b"\noid sha256:" in start


def check_generated_kernels(project: BuildProject) -> Iterator[TreeTrouble]:
    """The attention kernels that build_wheel.py generates are there; it does so only where their folder is not."""
    folder = project.root / KERNEL_FOLDER
    if not project.is_wheel_project or not folder.is_dir() or any(folder.glob("*.cu")):
        return
    yield report_trouble(
        HALF_WRITTEN,
        project,
        None,
        [(project.show(folder), "holds no .cu file")],
        command=CleanupCommands(project).remove([folder], folders=True),
        first=f"{project.show(folder)} is empty: generating its kernels was cut off, and build_wheel.py generates them "
        "only where the folder is missing",
        more="",
    )


def check_fetched(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """What FetchContent downloaded is there whole."""
    base = Path(tree.cache.value("FETCHCONTENT_BASE_DIR") or tree.path / "_deps") if tree.cache else tree.path / "_deps"
    if not base.is_dir():
        return
    incomplete = [name for name in _fetched_names(base) if _is_incomplete(base, name)]
    if not incomplete:
        return
    commands = CleanupCommands(project)
    folders = [
        base / f"{name}-{part}"
        for name in incomplete
        for part in ("src", "subbuild")
        if (base / f"{name}-{part}").exists()
    ]
    yield report_trouble(
        FETCHED,
        project,
        tree,
        [(project.show(base / f"{name}-src"), _fetch_problem(base, name)) for name in incomplete[:8]],
        command=f"{commands.remove(folders, folders=True)} && {commands.configure(tree)}",
        names=abbreviate_list(incomplete, 4),
        state="is not" if len(incomplete) == 1 else "are not",
        folder=project.show(base),
        explains=("DX1194",),
    )


def _fetched_names(base: Path) -> list[str]:
    return sorted({path.name.removesuffix("-subbuild") for path in base.glob("*-subbuild") if path.is_dir()})


def _is_incomplete(base: Path, name: str) -> bool:
    return bool(_fetch_problem(base, name))


def _fetch_problem(base: Path, name: str) -> str:
    source = base / f"{name}-src"
    if not source.is_dir():
        return "is not there"
    entries = [entry.name for entry in source.iterdir()]
    if not [entry for entry in entries if entry != ".git"]:
        return "is empty: the download or the checkout was cut off"
    if (base / f"{name}-build" / "cmake_install.cmake").exists() and not (source / "CMakeLists.txt").exists():
        return "has lost its CMakeLists.txt"
    if (source / ".git" / "index.lock").exists():
        return "has .git/index.lock: git was killed while checking it out"
    return ""
