"""TensorRT-LLM's packages without their `__init__`, which import the runtime and its compiled parts.

What an `__init__` would bring together is read from its text, and each name is imported when it is asked for.
"""

from __future__ import annotations

import ast
import importlib
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.engines.tensorrt_llm.stand_ins import CudaOnlyError

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT_PACKAGE = "tensorrt_llm"


class PackageExports:
    """What an `__init__` offers: where each name comes from."""

    def __init__(self, package: str, source: str) -> None:
        self.package = package
        self.names: dict[str, tuple[str, str]] = {}  # name -> module, its name there ("" for the module)
        self.star_imports: list[str] = []
        self.assigned_values: dict[str, ast.expr] = {}
        self.has_definitions = False  # functions or classes of its own
        self._read_statements(ast.parse(source).body)

    def _read_statements(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, ast.ImportFrom):
                self._read_import_from(statement)
            elif isinstance(statement, ast.Import):
                for alias in statement.names:
                    self.names[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0],
                        "",
                    )
            elif isinstance(statement, ast.Assign):
                self.assigned_values |= {at.id: statement.value for at in statement.targets if isinstance(at, ast.Name)}
            elif isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                self.has_definitions = True
            elif isinstance(statement, (ast.If, ast.Try)):
                self._read_statements(statement.body)

    def _read_import_from(self, statement: ast.ImportFrom) -> None:
        module = statement.module or ""
        if statement.level:
            above = self.package.rsplit(".", statement.level - 1)[0]
            module = f"{above}.{module}" if module else above
        for alias in statement.names:
            if alias.name == "*":
                self.star_imports.append(module)
            else:
                self.names[alias.asname or alias.name] = (module, alias.name)


class LazyPackage(types.ModuleType):
    """A package whose names are imported when they are asked for."""

    _offered: PackageExports

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep what is set, but a submodule not in the place of what the `__init__` offers by that name."""
        hidden = isinstance(value, types.ModuleType) and name in self._offered.names
        if not (hidden and self._offered.names[name][1]):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"{self.__name__} has no {name}")
        value = self.__dict__[name] = self._find_name(name)
        return value

    def _find_name(self, name: str) -> Any:
        offered = self._offered
        if name in offered.names:
            return self._import_name(name, *offered.names[name])
        if name in offered.assigned_values:
            return self._evaluate_assignment(offered.assigned_values[name])
        for star in offered.star_imports:
            module = self._import_name(name, star, "")
            if hasattr(module, name):
                return getattr(module, name)
        if name == "__version__":
            raise AttributeError(name)
        return self._import_submodule(name)

    def _import_name(self, name: str, module: str, attribute: str) -> Any:
        with _ExplainedImport(f"{self.__name__}.{name}"):
            if not attribute:
                return importlib.import_module(module)
            if module == self.__name__:
                return importlib.import_module(f"{module}.{attribute}")
            imported = importlib.import_module(module)
            try:
                return getattr(imported, attribute)
            except AttributeError:
                return importlib.import_module(f"{module}.{attribute}")

    def _import_submodule(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        try:
            return importlib.import_module(full)
        except ModuleNotFoundError as err:
            if err.name != full:
                raise
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def _evaluate_assignment(self, value: ast.expr) -> Any:
        """Return the value of an assignment, with the names in it imported first."""
        names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        namespace = {name: getattr(self, name) for name in names if not hasattr(__builtins__, name)}
        code = compile(ast.Expression(value), f"{self.__name__}/__init__.py", "eval")
        return eval(code, namespace)  # of the tree the user asked to import  # noqa: S307

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._offered.names, *self._offered.assigned_values})


class _ExplainedImport:
    """Turns a failing import into an error that says what was asked for and what it takes."""

    def __init__(self, requested_name: str) -> None:
        self.requested_name = requested_name

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, err: BaseException | None, trace: Any) -> None:
        if isinstance(err, CudaOnlyError) or not isinstance(err, Exception):
            return
        if isinstance(err, ModuleNotFoundError) and err.name and not err.name.startswith(ROOT_PACKAGE):
            missing = err.name.partition(".")[0]
            raise CudaOnlyError(
                f"{self.requested_name} needs the package {missing}, which is not installed",
                fix=f"pip install {missing}, or on_cpu(tree, stand_ins=[{missing!r}]) if no value depends on it",
            ) from err
        if isinstance(err, SyntaxError):
            version = ".".join(map(str, sys.version_info[:2]))
            raise CudaOnlyError(
                f"{self.requested_name} is not written for Python {version}: {err}",
                fix="use the Python version that this release of TensorRT-LLM names in its setup.py",
            ) from err
        raise CudaOnlyError(f"{self.requested_name} cannot be imported here: {type(err).__name__}: {err}") from err


class PackageFinder(MetaPathFinder, Loader):
    """Finds TensorRT-LLM in its tree, with packages that only bring names together made lazy."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.lazy: list[str] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != ROOT_PACKAGE and not name.startswith(ROOT_PACKAGE + "."):
            return None
        folder = self.package.joinpath(*name.split(".")[1:])
        init = folder / "__init__.py"
        if not init.is_file() or (name != ROOT_PACKAGE and PackageExports(name, _read_text(init)).has_definitions):
            return None
        spec = ModuleSpec(name, self, origin=str(init), is_package=True)
        spec.submodule_search_locations = [str(folder)]
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = LazyPackage(spec.name)
        module.__dict__["_offered"] = PackageExports(spec.name, _read_text(Path(spec.origin or "")))
        self.lazy.append(spec.name)
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
