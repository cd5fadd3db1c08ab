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

ROOT = "tensorrt_llm"


class Offered:
    """What an `__init__` offers: where each name comes from."""

    def __init__(self, package: str, source: str) -> None:
        self.package = package
        self.names: dict[str, tuple[str, str]] = {}  # name -> module, its name there ("" for the module)
        self.stars: list[str] = []
        self.values: dict[str, ast.expr] = {}
        self.defines = False  # functions or classes of its own
        self._read(ast.parse(source).body)

    def _read(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, ast.ImportFrom):
                self._from(statement)
            elif isinstance(statement, ast.Import):
                for alias in statement.names:
                    self.names[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0],
                        "",
                    )
            elif isinstance(statement, ast.Assign):
                self.values |= {
                    at.id: statement.value for at in statement.targets if isinstance(at, ast.Name)
                }
            elif isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                self.defines = True
            elif isinstance(statement, (ast.If, ast.Try)):
                self._read(statement.body)

    def _from(self, each: ast.ImportFrom) -> None:
        module = each.module or ""
        if each.level:
            above = self.package.rsplit(".", each.level - 1)[0]
            module = f"{above}.{module}" if module else above
        for alias in each.names:
            if alias.name == "*":
                self.stars.append(module)
            else:
                self.names[alias.asname or alias.name] = (module, alias.name)


class LazyPackage(types.ModuleType):
    """A package whose names are imported when they are asked for."""

    _offered: Offered

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep what is set, but a submodule not in the place of what the `__init__` offers by that name."""
        hidden = isinstance(value, types.ModuleType) and name in self._offered.names
        if not (hidden and self._offered.names[name][1]):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"{self.__name__} has no {name}")
        value = self.__dict__[name] = self._find(name)
        return value

    def _find(self, name: str) -> Any:
        offered = self._offered
        if name in offered.names:
            return self._imported(name, *offered.names[name])
        if name in offered.values:
            return self._computed(offered.values[name])
        for star in offered.stars:
            module = self._imported(name, star, "")
            if hasattr(module, name):
                return getattr(module, name)
        if name == "__version__":
            raise AttributeError(name)
        return self._submodule(name)

    def _imported(self, name: str, module: str, wanted: str) -> Any:
        with _Explained(f"{self.__name__}.{name}"):
            if not wanted:
                return importlib.import_module(module)
            if module == self.__name__:
                return importlib.import_module(f"{module}.{wanted}")
            imported = importlib.import_module(module)
            try:
                return getattr(imported, wanted)
            except AttributeError:
                return importlib.import_module(f"{module}.{wanted}")

    def _submodule(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        try:
            return importlib.import_module(full)
        except ModuleNotFoundError as err:
            if err.name != full:
                raise
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def _computed(self, value: ast.expr) -> Any:
        """Return the value of an assignment, with the names in it imported first."""
        names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        namespace = {name: getattr(self, name) for name in names if not hasattr(__builtins__, name)}
        code = compile(ast.Expression(value), f"{self.__name__}/__init__.py", "eval")
        return eval(code, namespace)  # of the tree the user asked to import  # noqa: S307

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._offered.names, *self._offered.values})


class _Explained:
    """Turns a failing import into an error that says what was asked for and what it takes."""

    def __init__(self, asked: str) -> None:
        self.asked = asked

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, err: BaseException | None, trace: Any) -> None:
        if isinstance(err, CudaOnlyError) or not isinstance(err, Exception):
            return
        if isinstance(err, ModuleNotFoundError) and err.name and not err.name.startswith(ROOT):
            missing = err.name.partition(".")[0]
            raise CudaOnlyError(
                f"{self.asked} needs the package {missing}, which is not installed",
                fix=f"pip install {missing}, or on_cpu(tree, stand_ins=[{missing!r}]) if no value depends on it",
            ) from err
        if isinstance(err, SyntaxError):
            version = ".".join(map(str, sys.version_info[:2]))
            raise CudaOnlyError(
                f"{self.asked} is not written for Python {version}: {err}",
                fix="use the Python version that this release of TensorRT-LLM names in its setup.py",
            ) from err
        raise CudaOnlyError(f"{self.asked} cannot be imported here: {type(err).__name__}: {err}") from err


class PackageFinder(MetaPathFinder, Loader):
    """Finds TensorRT-LLM in its tree, with packages that only bring names together made lazy."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.lazy: list[str] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != ROOT and not name.startswith(ROOT + "."):
            return None
        folder = self.package.joinpath(*name.split(".")[1:])
        init = folder / "__init__.py"
        if not init.is_file() or (name != ROOT and Offered(name, _text(init)).defines):
            return None
        spec = ModuleSpec(name, self, origin=str(init), is_package=True)
        spec.submodule_search_locations = [str(folder)]
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = LazyPackage(spec.name)
        module.__dict__["_offered"] = Offered(spec.name, _text(Path(spec.origin or "")))
        self.lazy.append(spec.name)
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
