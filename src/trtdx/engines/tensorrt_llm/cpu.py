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
from trtdx.engines.tensorrt_llm.packages import ROOT, PackageFinder
from trtdx.engines.tensorrt_llm.plugins import Plugin, Plugins, real_bindings
from trtdx.engines.tensorrt_llm.runtime import World
from trtdx.engines.tensorrt_llm.stand_ins import (
    REPLACED,
    StandIn,
    StandInFinder,
    answers,
    forgotten,
    why_filled_in,
    why_replaced,
)
from trtdx.errors import InputError
from trtdx.optional import need
from trtdx.tensors.taps import Selector, parse_selector

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from types import ModuleType

    from trtdx.engines.tensorrt_llm.tensorrt import Patch

HALF = ("functional.py", "network.py", "module.py", "builder.py")  # what it takes to define a network
ENVIRONMENT = {"TRT_LLM_NO_LIB_INIT": "1"}
_ACTIVE: list[OnCpu] = []


class Changes(msgspec.Struct, frozen=True):
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
        lines += [
            f"  {name}: its __init__ is not run, its names are imported as asked for" for name in self.lazy
        ]
        lines += [f"  exchanged {name}" for name in self.replaced]
        lines += [f"  set {name}={value}" for name, value in self.environment.items()]
        lines += [f"  ignored {name}: {why}" for name, why in self.ignored.items()]
        return "\n".join([*lines, f"  networks evaluated: {self.runs}"])


class OnCpu(ClosedOnExit):
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
        self._folder = package_folder(Path(tree))
        self.version = version_of(self._folder)
        _check_python(self._folder)
        if _ACTIVE:
            raise InputError(
                f"{_ACTIVE[0]._folder} is on the CPU already", fix="close it first: one tree at a time"
            )
        self._real = real_bindings()
        self._torch = need("torch", extra="torch", to="compute TensorRT-LLM's networks")
        self._world = World(Plugins(plugins or {}), sink, _parsed(selector))
        self._packages = PackageFinder(self._folder)
        self._finders: list[StandInFinder] = []
        self._patches: list[Patch] = []
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
        enter(forgotten(self._ours))
        enter(_environment(ENVIRONMENT))
        self._patches = [
            *tensorrt.patches(self._real, self._world),
            *torch_on_cpu.patches(self._torch, self._capability),
        ]
        for patch in self._patches:
            enter(mock.patch.object(patch.owner, patch.name, patch.value, create=True))
        enter(torch_on_cpu.device_mode(self._torch))
        names_by_module = answers(self._capability) | polygraphy.answers(self._world)
        first = StandInFinder(self._why_first, names_by_module)
        last = StandInFinder(why_filled_in(self._stand_ins), names_by_module, str(self._folder))
        self._finders = [first, last]
        enter(_finding([first, self._packages], [last]))
        sys.modules["tensorrt"] = tensorrt.facade(self._real, self._world)
        sys.modules["tensorrt.tensorrt"] = sys.modules["tensorrt"]
        self.package: ModuleType = importlib.import_module(ROOT)

    @staticmethod
    def _why_first(name: str) -> str | None:
        if name.partition(".")[0] == "polygraphy":
            return "Polygraphy runs engines on a GPU; here networks are evaluated"
        return why_replaced(name)

    def _ours(self, name: str) -> bool:
        top = name.partition(".")[0]
        module = sys.modules.get(name)
        return top in (ROOT, "tensorrt", "polygraphy", *REPLACED) or isinstance(module, StandIn)

    @property
    def sink(self) -> Sink | None:
        return self._world.sink

    @sink.setter
    def sink(self, sink: Sink | None) -> None:
        self._world.sink = sink

    @property
    def selector(self) -> Selector | None:
        return self._world.selector

    @selector.setter
    def selector(self, selector: Selector | str | None) -> None:
        self._world.selector = _parsed(selector)

    def evaluate(
        self, network: Any, inputs: Mapping[str, Any], taps: Collection[str] | str | None = None
    ) -> dict[str, Any]:
        """Return the outputs of a network, TensorRT-LLM's or TensorRT's own, and the tensors tapped."""
        return self._world.prepare(getattr(network, "trt_network", network))(inputs, taps)

    def registered(self, model: Any) -> dict[str, str]:
        """Return what a module registered with `register_network_output`: the name -> its tensor, to be tapped."""
        return {name: value.trt_tensor.name for name, value in model.named_network_outputs()}

    def report(self) -> Changes:
        """Return what was changed, and what of it was used so far."""
        return Changes(
            str(self._folder),
            self.version,
            f"tensorrt_rtx {self._real.__version__} (told as {tensorrt.CLAIMED})",
            {name: why for finder in self._finders for name, why in finder.asked.items()},
            tuple(self._packages.lazy),
            ("sys.modules['tensorrt']", *(patch.told for patch in self._patches)),
            dict(ENVIRONMENT),
            dict(self._world.ignored),
            self._world.steps,
        )

    def close(self) -> None:
        """Undo everything."""
        self._undo.close()


def _parsed(selector: Selector | str | None) -> Selector | None:
    return parse_selector(selector) if isinstance(selector, str) else selector


def package_folder(tree: Path) -> Path:
    """Return the folder of the package in a source tree or an unpacked wheel."""
    folder = next(
        (candidate for candidate in (tree / ROOT, tree) if (candidate / "version.py").is_file()), None
    )
    if folder is None:
        raise InputError(
            f"{tree} is not a TensorRT-LLM source tree: there is no {ROOT}/version.py in it",
            fix="name the folder of a source tree, or of a wheel that was unpacked",
        )
    missing = [name for name in HALF if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"TensorRT-LLM {version_of(folder)} in {tree} defines no TensorRT networks: {', '.join(missing)} is not there",
            fix="take a release with the TensorRT backend: 1.2.1 is the last; its models are torch modules since",
        )
    return folder.resolve()


def version_of(folder: Path) -> str:
    """Return the version a package says it is."""
    match = re.search(
        r"__version__\s*=\s*['\"]([^'\"]+)", (folder / "version.py").read_text(encoding="utf-8")
    )
    return match[1] if match else "unknown"


def _check_python(folder: Path) -> None:
    """Hold this Python to what an unpacked wheel says it needs."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    here = ".".join(map(str, sys.version_info[:3]))
    for metadata in folder.parent.glob("tensorrt_llm-*.dist-info/METADATA"):
        match = re.search(
            r"^Requires-Python:\s*(.+)$", metadata.read_text(encoding="utf-8", errors="replace"), re.M
        )
        with contextlib.suppress(InvalidSpecifier):
            if match and here not in SpecifierSet(match[1]):
                raise InputError(
                    f"this TensorRT-LLM needs Python {match[1].strip()}, but this is {here}",
                    fix="run trtdx with such a Python",
                )


@contextlib.contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _finding(first: Sequence[Any], last: Sequence[Any]) -> Iterator[None]:
    sys.meta_path[:0] = first
    sys.meta_path.extend(last)
    try:
        yield
    finally:
        for finder in (*first, *last):
            sys.meta_path.remove(finder)
        importlib.invalidate_caches()
