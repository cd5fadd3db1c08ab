"""Whether a tree is for the Python and the torch of this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.build.doctor.cleanup import CleanupCommands
from trtdx.build.doctor.project import option_value
from trtdx.build.doctor.trouble import report_trouble

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.build.doctor.installed import InstalledTools, PythonVersion
    from trtdx.build.doctor.project import BuildProject, CMakeTree
    from trtdx.build.nouns import TreeTrouble

PYTHON, TORCH_ABI, BINDINGS = "DX1184", "DX1185", "DX1196"
FAMILIES = ("Python3", "Python", "PYTHON")
MODULE_TAG = re.compile(r"\.(cpython-\d+)[\w-]*\.so$")
VENV_NAME = re.compile(r"\.venv-\d+\.\d+")
ABI_MACRO = "_GLIBCXX_USE_CXX11_ABI"
MAX_LIBRARY_BYTES = 64 << 20


class TreePython:
    """The interpreter a tree was configured for."""

    def __init__(self, tree: CMakeTree) -> None:
        self._cache = tree.cache
        names = [*(f"{family}_EXECUTABLE" for family in FAMILIES), "_Python3_EXECUTABLE", "_Python_EXECUTABLE"]
        self.entry = next((name for name in names if self._value(name)), "")
        self.path = self._value(self.entry)

    def _value(self, name: str) -> str:
        return self._cache.value(name) if self._cache and name else ""

    @property
    def include(self) -> str:
        names = [f"{under}{family}_INCLUDE_DIR" for family in FAMILIES for under in ("", "_")]
        return next((value for name in names if (value := self._value(name))), "")

    @property
    def minor(self) -> str:
        """The version CMake wrote down, such as 3.12; "" where it wrote none."""
        for family in ("Python3", "Python"):
            parts = self._value(f"_{family}_INTERPRETER_PROPERTIES").split(";")
            if len(parts) > 3 and parts[1].isdigit():
                return f"{parts[1]}.{parts[2]}"
        texts = (
            self.include,
            self.path,
            self._value("PYBIND11_PYTHON_EXECUTABLE_LAST"),
            self._value("PYTHON_MODULE_EXTENSION"),
        )
        for text in texts:
            if match := re.search(r"python(\d\.\d+)|cpython-(\d)(\d+)|\.venv-(\d\.\d+)", text):
                return match[1] or match[4] or f"{match[2]}.{match[3]}"
        return ""

    def families(self) -> list[str]:
        """Return the prefixes under which the cache names an interpreter."""
        return [name for name in FAMILIES if self._value(f"{name}_EXECUTABLE")] or ["Python3"]

    def entries(self) -> list[str]:
        """Return the entries that know of this interpreter, as patterns for cmake -U."""
        names = self._cache.entries if self._cache else {}
        patterns = [
            f"{prefix}_*"
            for prefix in ("Python3", "_Python3", "Python", "_Python")
            if any(name.startswith(f"{prefix}_") for name in names)
        ]
        old_style = [
            name
            for name in names
            if re.fullmatch(
                r"PYTHON_\w*(?:EXECUTABLE|LIBRAR\w+|INCLUDE_DIRS?|EXTENSION|VERSION\w*|PREFIX|SITE_PACKAGES)|PYBIND11_PYTHON_\w+",
                name,
            )
        ]
        return patterns + old_style


def check_python(project: BuildProject, tree: CMakeTree, tools: InstalledTools) -> Iterator[TreeTrouble]:
    """The interpreter in the cache is there and of the same version; another one on the PATH is no trouble."""
    if tree.cache is None or tree.cache.damage:
        return
    configured = TreePython(tree)
    current = _own_interpreter(configured, tools) or _replacement(project, tools)
    problem = _python_problem(project, tree, configured, current, tools)
    if not problem:
        return
    commands = CleanupCommands(project)
    modules = [path for path in _modules_in(project, tree) if current and current.tag not in path.name]
    steps = [commands.remove(modules)] if modules else []
    options = [f"-D{family}_EXECUTABLE={current.path}" for family in configured.families()] if current else []
    steps.append(commands.configure(tree, unset=configured.entries(), options=options))
    yield report_trouble(
        PYTHON,
        project,
        tree,
        [
            (f"{project.show(tree.path / 'CMakeCache.txt')}: {configured.entry}", configured.path),
            ("Python here", f"{current.path} {current.version}" if current else "none"),
        ],
        command=" && ".join(steps),
        problem=problem,
        explains=(BINDINGS, "DX1186", "DX1197"),
    )


def _own_interpreter(configured: TreePython, tools: InstalledTools) -> PythonVersion | None:
    """Return the interpreter that the cache names, under that name: a link to it may lead into an environment."""
    answer = tools.python(configured.path) if configured.path else None
    return answer._replace(path=configured.path) if answer else None


def _python_problem(
    project: BuildProject, tree: CMakeTree, configured: TreePython, current: PythonVersion | None, tools: InstalledTools
) -> str:
    where, here = project.show(tree.path), f"; the Python here is {current.version} ({current.path})" if current else ""
    if not configured.path and not configured.include:
        return ""
    if configured.path and not Path(configured.path).exists():
        return f"{where} was configured for the Python {configured.path} ({configured.minor or 'version unknown'}), which is not there any more{here}"
    now = tools.python(configured.path)
    if now and configured.minor and now.minor != configured.minor:
        return f"{where} was configured for Python {configured.minor}, but {configured.path} is {now.version} today"
    if configured.include and not Path(configured.include).exists():
        return f"{where} compiles against the headers in {configured.include}, which are not there any more{here}"
    return ""


def _replacement(project: BuildProject, tools: InstalledTools) -> PythonVersion | None:
    """Return the interpreter to configure for: of the newest environment build_wheel.py made here, else of the PATH."""
    own = [
        venv / "bin" / "python"
        for venv in project.venvs
        if venv.parent == project.root and VENV_NAME.fullmatch(venv.name)
    ]
    versions = [version for path in own if (version := tools.python(str(path)))]
    return max(versions, key=lambda version: version.sort_key) if versions else tools.current_python()


def _modules_in(project: BuildProject, tree: CMakeTree) -> list[Path]:
    return [file.path for file in project.files if tree.path in file.path.parents and MODULE_TAG.search(file.path.name)]


def check_bindings(project: BuildProject, tools: InstalledTools) -> Iterator[TreeTrouble]:
    """Compiled Python modules are for the interpreter that is to import them."""
    expected = _expected_tag(project, tools)
    if not expected:
        return
    by_folder: dict[Path, list[Path]] = {}
    for file in project.files:
        if MODULE_TAG.search(file.path.name):
            by_folder.setdefault(file.path.parent, []).append(file.path)
    strange = [path for paths in by_folder.values() for path in paths if _module_tag(path) != expected]
    if strange:
        yield _bindings_trouble(project, strange, expected)


def _expected_tag(project: BuildProject, tools: InstalledTools) -> str:
    """Return the tag of the Python that the trees are configured for, else of the one here."""
    minors = [minor for tree in project.trees if (minor := TreePython(tree).minor)]
    current = tools.current_python()
    if minors:
        return "cpython-" + minors[0].replace(".", "")
    return current.tag if current else ""


def _module_tag(path: Path) -> str:
    match = MODULE_TAG.search(path.name)
    return match[1] if match else ""


def _bindings_trouble(project: BuildProject, strange: Sequence[Path], expected: str) -> TreeTrouble:
    tags = sorted({_module_tag(path) for path in strange})
    wanted_version = f"{expected[8]}.{expected[9:]}"
    tree = next((tree for tree in project.trees if any(tree.path in path.parents for path in strange)), None)
    return report_trouble(
        BINDINGS,
        project,
        tree or (project.trees[0] if project.trees else None),
        [(project.show(path), f"for {_module_tag(path)}") for path in strange[:6]],
        command=_bindings_command(project, strange, expected),
        files=", ".join(project.show(path) for path in strange[:3]),
        tags=" and ".join(tags),
        expected=expected,
        python=wanted_version,
    )


def _bindings_command(project: BuildProject, strange: Sequence[Path], expected: str) -> str:
    """Return the command that removes modules, and brings those that a tree has built to the package that has none."""
    commands = CleanupCommands(project)
    built = [path for tree in project.trees for path in _modules_in(project, tree) if _module_tag(path) == expected]
    steps = [commands.remove(strange)]
    for path in strange:
        in_tree = any(tree.path in path.parents for tree in project.trees if tree.path != project.root)
        name = path.name.partition(".")[0]
        fitting = [module for module in built if module.name.partition(".")[0] == name]
        if not in_tree and len(fitting) == 1 and not (path.parent / fitting[0].name).exists():
            steps.append(f"cp -p {commands.quote(fitting[0])} {commands.quote(path.parent)}/")
    return " && ".join(steps)


def check_venvs(project: BuildProject) -> Iterator[TreeTrouble]:
    """The virtual environments that build_wheel.py made still have their interpreter."""
    for venv in project.venvs:
        python = venv / "bin" / "python"
        if not venv.name.startswith(".venv") or (python.exists() and (venv / "pyvenv.cfg").stat().st_size):
            continue
        home = re.search(r"^home\s*=\s*(.+)$", (venv / "pyvenv.cfg").read_text("utf-8", "replace"), re.MULTILINE)
        yield report_trouble(
            PYTHON,
            project,
            None,
            [
                (project.show(venv / "pyvenv.cfg"), f"home = {home[1]}" if home else "names no interpreter"),
                (project.show(python), "leads nowhere"),
            ],
            command=CleanupCommands(project).remove([venv], folders=True),
            problem=f"the virtual environment {project.show(venv)} has lost its interpreter ({home[1] if home else 'unknown'})",
            build=project.show(venv),
            explains=("DX1186",),
        )


def check_torch_abi(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """What is compiled has the C++ ABI of the torch it is linked with."""
    if tree.cache is None or tree.cache.damage:
        return
    folder = _torch_folder(tree)
    installed, where = _installed_abi(folder) if folder else ("", "")
    used, used_where = _compiled_abi(project, tree)
    if not installed or not used or installed == used:
        return
    unset, options = _abi_changes(tree, installed)
    yield report_trouble(
        TORCH_ABI,
        project,
        tree,
        [(used_where, f"{ABI_MACRO}={used}"), (where, f"{ABI_MACRO}={installed}")],
        command=CleanupCommands(project).configure(tree, unset=unset, options=options),
        used=used,
        installed=installed,
        torch=str(folder),
    )


def _torch_folder(tree: CMakeTree) -> Path | None:
    """Return the torch package that CMake found."""
    cache = tree.cache
    entry = cache.value("Torch_DIR") if cache else ""
    candidates = [Path(entry).parents[2]] if entry.startswith("/") and len(Path(entry).parts) > 3 else []
    for name in ("TORCH_LIBRARY", "C10_LIBRARY", "TORCH_INSTALL_PREFIX"):
        value = cache.value(name) if cache else ""
        candidates += [Path(value).parents[1]] if value.endswith(".so") else [Path(value)] if value else []
    python = TreePython(tree).path
    candidates += (
        sorted(Path(python).parents[1].glob("lib/python3*/site-packages/torch")) if python.startswith("/") else []
    )
    return next((folder for folder in candidates if folder.is_dir()), None)


def _installed_abi(folder: Path) -> tuple[str, str]:
    """Return the ABI that torch states for CMake, else the one of the names in its library."""
    config = folder / "share" / "cmake" / "Torch" / "TorchConfig.cmake"
    try:
        value = option_value(config.read_text("utf-8", "replace"), ABI_MACRO) if config.is_file() else ""
        if value:
            return value, str(config)
        with (folder / "lib" / "libc10.so").open("rb") as file:
            data = file.read(MAX_LIBRARY_BYTES)
    except OSError:
        return "", ""
    has_names = b"_ZN3c10" in data
    return ("1" if b"7__cxx1112basic_string" in data else "0") if has_names else "", str(folder / "lib" / "libc10.so")


def _compiled_abi(project: BuildProject, tree: CMakeTree) -> tuple[str, str]:
    """Return the ABI that the compile commands define, and where."""
    for command in tree.commands:
        if value := option_value(command.command or " ".join(command.arguments), ABI_MACRO):
            return value, project.show(tree.path / "compile_commands.json")
    text = tree.manifest.text if tree.manifest else ""
    if value := option_value(text, ABI_MACRO):
        return value, project.show(tree.path / "build.ninja")
    for flags in sorted(tree.path.glob("**/flags.make"))[:2000]:
        if value := option_value(flags.read_text("utf-8", "replace"), ABI_MACRO):
            return value, project.show(flags)
    cache = tree.cache
    if cache and (value := option_value(cache.value("CMAKE_CXX_FLAGS"), ABI_MACRO) or cache.value("USE_CXX11_ABI")):
        return value, project.show(cache.path)
    return "", ""


def _abi_changes(tree: CMakeTree, installed: str) -> tuple[list[str], list[str]]:
    """Return the entries that hold on to the other ABI, and the options that replace them."""
    cache = tree.cache
    unset = ["USE_CXX11_ABI"] if cache and cache.value("USE_CXX11_ABI") not in ("", installed) else []
    options = []
    for name in ("CMAKE_CXX_FLAGS", "CMAKE_CUDA_FLAGS"):
        flags = cache.value(name) if cache else ""
        if option_value(flags, ABI_MACRO) not in ("", installed):
            options.append(f"-D{name}={' '.join(re.sub(rf'-D ?{ABI_MACRO}=[0-9]+', '', flags).split())}")
    return unset, options
