"""Runs something when a module has been imported, without importing it ourselves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from .process import SupervisedProcess


class ImportWatch:
    """A finder that finds nothing itself: it wraps the loaders of the modules that something waits for."""

    def __init__(self, process: SupervisedProcess) -> None:
        self._process = process
        self._actions: dict[str, list[Callable[[ModuleType], None]]] = {}
        self._finding: set[str] = set()

    def when_imported(self, name: str, action: Callable[[ModuleType], None]) -> None:
        module = sys.modules.get(name)
        if module is not None:
            self.run_action(action, module)
            return
        self._actions.setdefault(name, []).append(action)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def run_action(self, action: Callable[[ModuleType], None], module: ModuleType) -> None:
        try:
            action(module)
        except Exception as err:  # the module works as it would without us
            self._process.note_failure(f"import of {module.__name__}", err)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._actions or name in self._finding:
            return None
        self._finding.add(name)
        try:
            spec: Any = None
            for finder in list(sys.meta_path):
                if finder is not self and hasattr(finder, "find_spec"):
                    spec = finder.find_spec(name, path, target)
                    if spec is not None:
                        break
        finally:
            self._finding.discard(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _LoaderWithAction(spec.loader, self, self._actions.pop(name))
        return spec


class _LoaderWithAction:
    def __init__(self, loader: Any, watch: ImportWatch, actions: list[Callable[[ModuleType], None]]) -> None:
        self._loader, self._watch, self._actions = loader, watch, actions
        self.create_module = (
            loader.create_module
        )  # no frame of ours in the traceback of a library that cannot be loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = self._loader
        self._loader.exec_module(module)
        for action in self._actions:
            self._watch.run_action(action, sys.modules.get(module.__name__, module))
