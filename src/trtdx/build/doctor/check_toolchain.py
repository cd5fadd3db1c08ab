"""Whether the compilers, CUDA and the paths in a cache are those of this machine."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.build.doctor.cleanup import CleanupCommands
from trtdx.build.doctor.trouble import report_trouble
from trtdx.model import Severity
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.build.doctor.cmake_cache import CacheEntry, CompilerRecord
    from trtdx.build.doctor.installed import InstalledTools
    from trtdx.build.doctor.project import BuildProject, CMakeTree
    from trtdx.build.nouns import TreeTrouble

COMPILER, CUDA, GONE = "DX1182", "DX1183", "DX1186"
JUDGED_COMPILERS = ("GNU", "Clang", "NVIDIA")
VARIABLES = {"C": "CC", "CXX": "CXX", "CUDA": "CUDACXX", "Fortran": "FC"}
LANGUAGE_NAMES = {"C": "C", "CXX": "C++", "CUDA": "CUDA"}
# Entries whose path a build uses; what only `make install` or a packager looks at is left out.
USED_PATHS = re.compile(
    r"CMAKE_(?:AR|RANLIB|LINKER|MAKE_PROGRAM|TOOLCHAIN_FILE|COMMAND)|(?!CMAKE_(?:C|CXX|CUDA)_COMPILER_(?:AR|RANLIB))"
    r"\w*(?:_COMPILER|_EXECUTABLE|_LAUNCHER|_LIBRARY(?:_RELEASE|_DEBUG)?|_LIBRARIES|_LIB|_LIB_DIR|_INCLUDE_DIRS?|_INCLUDE|_ROOT|_ROOT_DIR|_HOME|_DIR)"
    r"|pkgcfg_lib_\w+"
)
OWN_FOLDERS = re.compile(r"\w*_(?:BINARY_DIR|SOURCE_DIR)|CMAKE_INSTALL_\w+|FETCHCONTENT_\w+|CMAKE_\w*OUTPUT_DIRECTORY")
CUDA_ENTRY = re.compile(r"CMAKE_CUDA_\w+|CUDA\w*|cuda\w*")
PYTHON_ENTRY = re.compile(r"_?(?:Python\d?|PYTHON|PYBIND11)_\w+")


def check_compilers(project: BuildProject, tree: CMakeTree, tools: InstalledTools) -> Iterator[TreeTrouble]:
    """Each compiler in the cache is still there, and still the version that CMake met."""
    if tree.cache is None or tree.cache.damage:
        return
    answers = [_compiler_problem(project, tree, language, tools) for language in _languages(tree)]
    reports = [answer for answer in answers if answer is not None]
    reported_kinds: set[str] = set()
    for code, language, evidence, problem, command in reports:
        if (
            problem.partition(":")[0] not in reported_kinds
        ):  # the C compiler of the same package needs no word of its own
            yield report_trouble(
                code,
                project,
                tree,
                evidence,
                command=_merged_command(project, tree, reports, tools) or command,
                problem=problem.partition(":")[2].strip() or problem,
                language=LANGUAGE_NAMES.get(language, language),
                explains=("DX1192", "DX1186", *((CUDA,) if code == CUDA else ())),  # its toolkit is gone with it
            )
        reported_kinds.add(problem.partition(":")[0])


CompilerProblem = tuple[str, str, list[tuple[str, str]], str, str]


def _languages(tree: CMakeTree) -> list[str]:
    cached = [
        match[1]
        for name in (tree.cache.entries if tree.cache else ())
        if (match := re.fullmatch(r"CMAKE_(CXX|C|CUDA)_COMPILER", name))
    ]
    return sorted({*cached, *tree.compilers} & {"C", "CXX", "CUDA"}, key=("CXX", "C", "CUDA").index)


def _compiler_problem(
    project: BuildProject, tree: CMakeTree, language: str, tools: InstalledTools
) -> CompilerProblem | None:
    """Return what is wrong with one compiler; the word before the colon tells problems of one kind."""
    entry = f"CMAKE_{language}_COMPILER"
    record = tree.compilers.get(language)
    path = (tree.cache.value(entry) if tree.cache else "") or (record.path if record else "")
    code = CUDA if language == "CUDA" else COMPILER
    where = f"{project.show(tree.path / 'CMakeCache.txt')}: {entry}"
    if not path or not Path(path).is_absolute():
        return None
    if not Path(path).exists():
        problem = f"gone: {project.show(tree.path)} was configured with the {LANGUAGE_NAMES[language]} compiler {path}, which is not there any more"
        return code, language, [(where, path), (path, "is not there")], problem, ""
    now = tools.compiler_version(path)
    if record and record.id in JUDGED_COMPILERS and record.version and now and now != record.version:
        problem = (
            f"changed: {project.show(tree.path)} was configured with {path} {record.version}, which is {now} today; "
            "what CMake found out about it and what it compiled is of the old one"
        )
        evidence = [
            (f"{project.show(record.file)}: CMAKE_{language}_COMPILER_VERSION", record.version),
            (f"{path} --version", now),
        ]
        return code, language, evidence, problem, ""
    return _record_problem(project, tree, language, path, record) or _variable_problem(
        project, tree, language, path, tools
    )


def _record_problem(
    project: BuildProject, tree: CMakeTree, language: str, path: str, record: CompilerRecord | None
) -> CompilerProblem | None:
    """Return the problem of a cache that names another compiler than the one CMake looked at."""
    if record is None or not record.path or os.path.realpath(record.path) == os.path.realpath(path):
        return None
    problem = (
        f"other: the cache of {project.show(tree.path)} names {path}, but what CMake found out about the "
        f"{LANGUAGE_NAMES[language]} compiler is of {record.path}"
    )
    evidence = [
        (f"{project.show(tree.path / 'CMakeCache.txt')}: CMAKE_{language}_COMPILER", path),
        (project.show(record.file), record.path),
    ]
    return CUDA if language == "CUDA" else COMPILER, language, evidence, problem, ""


def _variable_problem(
    project: BuildProject, tree: CMakeTree, language: str, path: str, tools: InstalledTools
) -> CompilerProblem | None:
    """Return the problem of a compiler that the environment asks for and CMake, after its first run, ignores."""
    variable = VARIABLES[language]
    words = [
        word for word in project.environment.get(variable, "").split() if Path(word).name not in ("ccache", "sccache")
    ]
    asked_path = tools.find(words[0]) if words else ""
    if not asked_path or os.path.realpath(asked_path) == os.path.realpath(path):
        return None
    asked_version, version = tools.compiler_version(asked_path), tools.compiler_version(path)
    if asked_version == version:
        return None
    problem = (
        f"variable: {variable} asks for {asked_path} {asked_version}, but {project.show(tree.path)} was configured with "
        f"{path} {version}, and CMake reads the variable only once"
    )
    evidence = [
        (f"environment: {variable}", project.environment[variable]),
        (f"{project.show(tree.path / 'CMakeCache.txt')}: CMAKE_{language}_COMPILER", path),
    ]
    return CUDA if language == "CUDA" else COMPILER, language, evidence, problem, ""


def _merged_command(
    project: BuildProject, tree: CMakeTree, reports: Sequence[CompilerProblem], tools: InstalledTools
) -> str:
    """Return one clean-up for all compilers: forget what CMake knows of them, and what a changed one compiled."""
    commands = CleanupCommands(project)
    kinds = {problem.partition(":")[0] for _, _, _, problem, _ in reports}
    languages = [language for _, language, _, _, _ in reports]
    records = [tree.compilers[language].file for language in languages if language in tree.compilers]
    unset: list[str] = []
    if kinds & {"gone", "variable"}:
        unset = [f"CMAKE_{language}_COMPILER" for language in languages]
        unset += _entries_under(
            tree, [tree.cache.value(name) for name in unset if "CUDA" in name] if tree.cache else []
        )
    nvcc = nvcc_here(project, tools) if "CMAKE_CUDA_COMPILER" in unset else ""
    options = [f"-DCMAKE_CUDA_COMPILER:FILEPATH={nvcc}"] if nvcc else []
    steps = [commands.remove(records)] if records else []
    steps.append(commands.configure(tree, unset=dict.fromkeys(unset), options=options))
    if kinds & {"changed"}:
        is_all = set(languages) >= set(_languages(tree))
        steps.append(commands.clean_target(tree) if is_all else commands.remove_objects(tree, languages))
    return " && ".join(steps)


def nvcc_here(project: BuildProject, tools: InstalledTools) -> str:
    """Return the nvcc of CUDA_HOME, else the one on the PATH."""
    home = project.environment.get("CUDA_HOME") or project.environment.get("CUDA_PATH") or ""
    own = Path(home) / "bin" / "nvcc"
    return str(own) if home and own.exists() else tools.find("nvcc")


def _entries_under(tree: CMakeTree, compilers: Sequence[str]) -> list[str]:
    """Return the entries of the toolkit that a vanished CUDA compiler belongs to."""
    if tree.cache is None:
        return []
    roots = [str(Path(path).parent.parent) for path in compilers if path]
    return [
        entry.name
        for entry in tree.cache.entries.values()
        if any(entry.value.startswith(root + "/") or entry.value == root for root in roots)
        and entry.type in ("FILEPATH", "PATH", "STRING", "UNINITIALIZED")
        and not Path(entry.value).exists()
    ]


def check_cuda_on_path(project: BuildProject, tree: CMakeTree, tools: InstalledTools) -> Iterator[TreeTrouble]:
    """The CUDA of the tree is the one that a shell here finds."""
    record = tree.compilers.get("CUDA")
    current = nvcc_here(project, tools)
    if record is None or not record.version or not current or not Path(record.path).exists():
        return
    now = tools.compiler_version(current)
    if (
        not now
        or now.split(".")[:2] == record.version.split(".")[:2]
        or tools.compiler_version(record.path) != record.version
    ):
        return
    yield report_trouble(
        CUDA,
        project,
        tree,
        [(f"{project.show(record.file)}: CMAKE_CUDA_COMPILER_VERSION", record.version), (f"{current} --version", now)],
        command=CleanupCommands(project).configure(tree, unset=["CMAKE_CUDA_COMPILER"]),
        severity=Severity.WARNING,
        confidence=0.7,
        problem=f"{project.show(tree.path)} was configured with CUDA {record.version} ({record.path}), but the nvcc found "
        f"here is {now} ({current})",
        language="CUDA",
    )


def check_cached_paths(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """The tools, libraries and packages that the cache names are there."""
    if tree.cache is None or tree.cache.damage:
        return
    groups: dict[str, list[CacheEntry]] = {}
    for entry in tree.cache.entries.values():
        lost = _lost_path(tree, entry)
        if lost:
            groups.setdefault(_missing_ancestor(lost), []).append(entry)
    for folder, entries in groups.items():
        yield _lost_trouble(project, tree, folder, entries)


def _lost_path(tree: CMakeTree, entry: CacheEntry) -> str:
    """Return the path of an entry that a build uses and that is not there."""
    if entry.type not in ("FILEPATH", "PATH", "STRING", "UNINITIALIZED") and entry.name != "CMAKE_COMMAND":
        return ""
    if not USED_PATHS.fullmatch(entry.name) or OWN_FOLDERS.fullmatch(entry.name) or PYTHON_ENTRY.fullmatch(entry.name):
        return ""
    if re.fullmatch(r"CMAKE_(?:C|CXX|CUDA)_COMPILER", entry.name):
        return ""
    for value in entry.value.split(";"):
        if value.startswith("/") and not value.endswith("NOTFOUND") and not Path(value).exists():
            return "" if str(tree.path) + "/" in value and entry.name != "CMAKE_TOOLCHAIN_FILE" else value
    return ""


def _missing_ancestor(path: str) -> str:
    """Return the highest folder of a path that is not there, or the file itself."""
    missing = Path(path)
    while not missing.parent.exists():
        missing = missing.parent
    return str(missing)


def _lost_trouble(project: BuildProject, tree: CMakeTree, folder: str, entries: Sequence[CacheEntry]) -> TreeTrouble:
    names = [entry.name for entry in entries]
    by_itself = [name for name in names if name != "CMAKE_COMMAND"]  # CMake writes its own path anew each time
    is_cuda = all(CUDA_ENTRY.fullmatch(name) for name in names) and "cuda" in folder.lower()
    return report_trouble(
        CUDA if is_cuda else GONE,
        project,
        tree,
        [
            (f"{project.show(tree.path / 'CMakeCache.txt')}:{entry.line}", f"{entry.name}={entry.value}")
            for entry in entries[:6]
        ],
        command=_forget_command(project, tree, by_itself),
        problem=f"the cache of {project.show(tree.path)} names {abbreviate_list(dict.fromkeys(entry.value for entry in entries), 2)} "
        f"({abbreviate_list(names, 3)}), and {folder} is not there any more",
        path=folder,
        language="CUDA",
        entries=abbreviate_list(names, 3),
        explains=("DX1181",),
    )


def _forget_command(project: BuildProject, tree: CMakeTree, entries: Sequence[str]) -> str:
    """Return the command that drops entries; a toolchain file is also named where CMake describes the system."""
    commands = CleanupCommands(project)
    configure = commands.configure(tree, unset=entries)
    if "CMAKE_TOOLCHAIN_FILE" not in entries:
        return configure
    toolchain = tree.cache.value("CMAKE_TOOLCHAIN_FILE") if tree.cache else ""
    if project.is_wheel_project and Path(toolchain).name == "conan_toolchain.cmake":
        architectures = tree.cache.value("CMAKE_CUDA_ARCHITECTURES") if tree.cache else ""
        option = f" --cuda_architectures {shlex.quote(architectures)}" if architectures else ""
        return f"python3 scripts/build_wheel.py --configure_cmake{option}"  # conan writes it anew
    systems = sorted(tree.files.glob("[0-9]*/CMakeSystem.cmake"))
    return f"{commands.remove(systems)} && {configure}" if systems else configure
