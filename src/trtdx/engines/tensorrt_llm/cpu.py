"""`on_cpu`: the network-definition half of a TensorRT-LLM tree, importable where there is no CUDA."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec

from trtdx.engines.engine import ClosedOnExit, Sink
from trtdx.engines.tensorrt_llm import polygraphy, tensorrt
from trtdx.engines.tensorrt_llm import torch as torch_on_cpu
from trtdx.engines.tensorrt_llm.packages import ROOT_PACKAGE, PackageFinder
from trtdx.engines.tensorrt_llm.plugins import Plugin, PluginReferences, load_rtx_bindings
from trtdx.engines.tensorrt_llm.runtime import CpuRuntime
from trtdx.engines.tensorrt_llm.stand_ins import (
    REPLACED_PACKAGES,
    StandInFinder,
    StandInModule,
    absence_reason_function,
    hide_modules,
    replacement_reason,
    stand_in_names,
)
from trtdx.errors import InputError
from trtdx.optional import import_optional
from trtdx.tensors.taps import Selector, parse_selector

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from types import ModuleType

    from trtdx.engines.tensorrt_llm.tensorrt import AttributePatch

NETWORK_FILES = (
    "functional.py",
    "network.py",
    "module.py",
    "builder.py",
)  # what it takes to define a network
ENVIRONMENT_VARIABLES = {"TRT_LLM_NO_LIB_INIT": "1"}
_ACTIVE: list[TensorRtLlmOnCpu] = []


class CpuChanges(msgspec.Struct, frozen=True):
    """What `on_cpu` changed, and what of it was used."""

    tree: str
    version: str
    tensorrt: str
    stand_ins: dict[str, str]  # modules that were asked for and are stand-ins -> why
    lazy: tuple[str, ...]  # packages whose __init__ is not run
    replaced: tuple[str, ...]  # attributes exchanged
    environment: dict[str, str]
    ignored: dict[str, str]  # what the code asked for that changes nothing here -> why
    runs: int  # how often a network was evaluated

    def __str__(self) -> str:
        lines = [f"TensorRT-LLM {self.version} of {self.tree} on the CPU, networks on {self.tensorrt}"]
        lines += [f"  stand-in {name}: {why}" for name, why in sorted(self.stand_ins.items())]
        lines += [f"  {name}: its __init__ is not run, its names are imported as asked for" for name in self.lazy]
        lines += [f"  exchanged {name}" for name in self.replaced]
        lines += [f"  set {name}={value}" for name, value in self.environment.items()]
        lines += [f"  ignored {name}: {why}" for name, why in self.ignored.items()]
        return "\n".join([*lines, f"  networks evaluated: {self.runs}"])


class TensorRtLlmOnCpu(ClosedOnExit):
    """A TensorRT-LLM tree in use on the CPU, until it is closed.

    Attributes:
        package: the module `tensorrt_llm`.
        sink: who is shown every output of every network that is run, and what is tapped.
        selector: what to show besides the outputs, such as "**.mlp:out".
    """

    def __init__(
        self,
        tree: str | Path,
        *,
        plugins: Mapping[str, Callable[..., Any] | Plugin] | None = None,
        sink: Sink | None = None,
        selector: Selector | str | None = None,
        stand_ins: Sequence[str] = (),
        capability: tuple[int, int] = (8, 0),
    ) -> None:
        """Make a TensorRT-LLM tree of the engine era importable here, its networks computed on the CPU.

        It holds from this call on until `close()`, or until the end of a `with` block.

        Args:
            tree: a source tree or an unpacked wheel, up to 1.2.1.
            plugins: for a plugin's name, a function from input arrays to output arrays, or a `Plugin`.
            sink: who is shown the outputs of every network that is run, and what is selected.
            selector: what to show besides the outputs; a network that has nothing of it is no mistake.
            stand_ins: packages that are not installed and on which no value depends.
            capability: the architecture that tests are told when they decide what to skip.
        """
        self._folder = find_package_folder(Path(tree))
        self.version = package_version(self._folder)
        _check_python(self._folder)
        if _ACTIVE:
            raise InputError(f"{_ACTIVE[0]._folder} is on the CPU already", fix="close it first: one tree at a time")
        self._bindings = load_rtx_bindings()
        self._torch = import_optional("torch", extra="torch", purpose="compute TensorRT-LLM's networks")
        self._runtime = CpuRuntime(PluginReferences(plugins or {}), sink, _parse_optional_selector(selector))
        self._packages = PackageFinder(self._folder)
        self._finders: list[StandInFinder] = []
        self._patches: list[AttributePatch] = []
        self._capability, self._stand_ins = capability, stand_ins
        self._undo = contextlib.ExitStack()
        try:
            self._install()
        except BaseException:
            self._undo.close()
            raise
        _ACTIVE.append(self)
        self._undo.callback(_ACTIVE.remove, self)

    def _install(self) -> None:
        enter = self._undo.enter_context
        enter(hide_modules(self._is_replaced_module))
        enter(_set_environment(ENVIRONMENT_VARIABLES))
        self._patches = [
            *tensorrt.tensorrt_patches(self._bindings, self._runtime),
            *torch_on_cpu.torch_patches(self._torch, self._capability),
        ]
        for patch in self._patches:
            enter(mock.patch.object(patch.owner, patch.name, patch.value, create=True))
        enter(torch_on_cpu.cuda_is_cpu_mode(self._torch))
        names_by_module = stand_in_names(self._capability) | polygraphy.polygraphy_names(self._runtime)
        first = StandInFinder(self._replacement_reason, names_by_module)
        last = StandInFinder(absence_reason_function(self._stand_ins), names_by_module, str(self._folder))
        self._finders = [first, last]
        enter(_install_finders([first, self._packages], [last]))
        sys.modules["tensorrt"] = tensorrt.create_tensorrt_module(self._bindings, self._runtime)
        sys.modules["tensorrt.tensorrt"] = sys.modules["tensorrt"]
        self.package: ModuleType = importlib.import_module(ROOT_PACKAGE)

    @staticmethod
    def _replacement_reason(name: str) -> str | None:
        if name.partition(".")[0] == "polygraphy":
            return "Polygraphy runs engines on a GPU; here networks are evaluated"
        return replacement_reason(name)

    def _is_replaced_module(self, name: str) -> bool:
        top = name.partition(".")[0]
        module = sys.modules.get(name)
        return top in (ROOT_PACKAGE, "tensorrt", "polygraphy", *REPLACED_PACKAGES) or isinstance(module, StandInModule)

    @property
    def sink(self) -> Sink | None:
        return self._runtime.sink

    @sink.setter
    def sink(self, sink: Sink | None) -> None:
        self._runtime.sink = sink

    @property
    def selector(self) -> Selector | None:
        return self._runtime.selector

    @selector.setter
    def selector(self, selector: Selector | str | None) -> None:
        self._runtime.selector = _parse_optional_selector(selector)

    def evaluate(
        self, network: Any, inputs: Mapping[str, Any], taps: Collection[str] | str | None = None
    ) -> dict[str, Any]:
        """Return the outputs of a network, TensorRT-LLM's or TensorRT's own, and the tensors tapped."""
        return self._runtime.prepare_network(getattr(network, "trt_network", network))(inputs, taps)

    def registered_tensors(self, model: Any) -> dict[str, str]:
        """Return what a module registered with `register_network_output`: the name -> its tensor, to be tapped."""
        return {name: value.trt_tensor.name for name, value in model.named_network_outputs()}

    def report(self) -> CpuChanges:
        """Return what was changed, and what of it was used so far."""
        return CpuChanges(
            str(self._folder),
            self.version,
            f"tensorrt_rtx {self._bindings.__version__} (told as {tensorrt.CLAIMED_VERSION})",
            {name: why for finder in self._finders for name, why in finder.imported_modules.items()},
            tuple(self._packages.lazy),
            ("sys.modules['tensorrt']", *(patch.qualified_name for patch in self._patches)),
            dict(ENVIRONMENT_VARIABLES),
            dict(self._runtime.ignored),
            self._runtime.step,
        )

    def close(self) -> None:
        """Undo everything."""
        self._undo.close()


def _parse_optional_selector(selector: Selector | str | None) -> Selector | None:
    return parse_selector(selector) if isinstance(selector, str) else selector


def find_package_folder(tree: Path) -> Path:
    """Return the folder of the package in a source tree or an unpacked wheel."""
    folder = next(
        (candidate for candidate in (tree / ROOT_PACKAGE, tree) if (candidate / "version.py").is_file()), None
    )
    if folder is None:
        raise InputError(
            f"{tree} is not a TensorRT-LLM source tree: there is no {ROOT_PACKAGE}/version.py in it",
            fix="name the folder of a source tree, or of a wheel that was unpacked",
        )
    missing = [name for name in NETWORK_FILES if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"TensorRT-LLM {package_version(folder)} in {tree} defines no TensorRT networks: {', '.join(missing)} is not there",
            fix="take a release with the TensorRT backend: 1.2.1 is the last; its models are torch modules since",
        )
    return folder.resolve()


def package_version(folder: Path) -> str:
    """Return the version a package says it is."""
    match = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", (folder / "version.py").read_text(encoding="utf-8"))
    return match[1] if match else "unknown"


def _check_python(folder: Path) -> None:
    """Hold this Python to what an unpacked wheel says it needs."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    here = ".".join(map(str, sys.version_info[:3]))
    for metadata in folder.parent.glob("tensorrt_llm-*.dist-info/METADATA"):
        match = re.search(r"^Requires-Python:\s*(.+)$", metadata.read_text(encoding="utf-8", errors="replace"), re.M)
        with contextlib.suppress(InvalidSpecifier):
            if match and here not in SpecifierSet(match[1]):
                raise InputError(
                    f"this TensorRT-LLM needs Python {match[1].strip()}, but this is {here}",
                    fix="run trtdx with such a Python",
                )


@contextlib.contextmanager
def _set_environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _install_finders(first: Sequence[Any], last: Sequence[Any]) -> Iterator[None]:
    sys.meta_path[:0] = first
    sys.meta_path.extend(last)
    try:
        yield
    finally:
        for finder in (*first, *last):
            sys.meta_path.remove(finder)
        importlib.invalidate_caches()
