"""Questions that several judges ask of the facts: who owns a file, what is in force, what matters here."""

from __future__ import annotations

import os
import re
from functools import cached_property
from typing import TYPE_CHECKING

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement

from trtdx.check.nouns import InstalledDistribution, canonical_name
from trtdx.knowledge.versions import parse_release
from trtdx.model import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.version import Version

    from trtdx.check.nouns import EnvironmentRecord, FolderFacts, ImportTrial, ModuleOrigin

# Distributions that a deployment of TensorRT-LLM is made of; what they need in turn matters too.
ROOTS = re.compile(
    r"tensorrt(?!-rtx)|torch$|torchvision$|transformers$|mpi4py$|nvidia-(?:modelopt|ammo)|cuda-python$|numpy$"
)
# Modules whose distribution has another name.
DISTRIBUTION_OF_MODULE = {
    "cuda": "cuda-python", "modelopt": "nvidia-modelopt", "pynvml": "nvidia-ml-py", "yaml": "pyyaml", "PIL": "pillow",
    "cv2": "opencv-python-headless", "zmq": "pyzmq", "flashinfer": "flashinfer-python", "sklearn": "scikit-learn",
    "google": "protobuf", "dateutil": "python-dateutil", "attr": "attrs", "ammo": "nvidia-ammo", "StrEnum": "strenum",
    "cutlass": "nvidia-cutlass-dsl", "tensorrt_libs": "tensorrt-cu12-libs", "tensorrt_bindings": "tensorrt-cu12-bindings",
}  # fmt: skip


class EnvironmentView:
    """One record, with its distributions in the order in which they count."""

    def __init__(self, record: EnvironmentRecord) -> None:
        self.record = record
        self.python = record.python.interpreter
        self.folders: tuple[FolderFacts, ...] = record.python.folders

    @cached_property
    def distributions(self) -> tuple[InstalledDistribution, ...]:
        return tuple(distribution for folder in self.folders for distribution in folder.distributions)

    @cached_property
    def in_force(self) -> dict[str, InstalledDistribution]:
        """The distributions that `importlib.metadata` finds: the first of each name on the path."""
        first: dict[str, InstalledDistribution] = {}
        for distribution in self.distributions:
            if distribution.version:
                first.setdefault(distribution.key, distribution)
        return first

    @cached_property
    def release(self) -> str:
        """The installed TensorRT-LLM, without its local part; empty where it is not installed."""
        distribution = self.in_force.get("tensorrt-llm")
        version = parse_release(distribution.version) if distribution else None
        return str(version) if version else ""

    @cached_property
    def origins(self) -> dict[str, ModuleOrigin]:
        return {origin.name: origin for origin in self.record.python.origins}

    @cached_property
    def trials(self) -> dict[str, ImportTrial]:
        return {trial.module: trial for trial in self.record.trials}

    @cached_property
    def working_modules(self) -> frozenset[str]:
        return frozenset(trial.module.split(".")[0] for trial in self.record.trials if trial.outcome == "works")

    @cached_property
    def failing(self) -> tuple[ImportTrial, ...]:
        return tuple(trial for trial in self.record.trials if trial.outcome in ("error", "crash", "hang"))

    def works(self, distribution: InstalledDistribution) -> bool:
        """Whether the distribution's module was imported, or all that can be imported of it was."""
        return bool(self.working_modules & set(distribution.top_modules))

    def requirements(
        self, distribution: InstalledDistribution, extras: tuple[str, ...] = ("",)
    ) -> Iterator[Requirement]:
        """Yield what a distribution requires here, with its markers judged for the interpreter at hand."""
        for text in distribution.requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if requirement.marker is None or self._holds(requirement, extras):
                yield requirement

    def _holds(self, requirement: Requirement, extras: tuple[str, ...]) -> bool:
        markers = {"platform_release": "", "platform_version": "", "implementation_version": "0", **self.python.markers}
        try:
            return any(
                requirement.marker is not None and requirement.marker.evaluate({**markers, "extra": extra})
                for extra in extras
            )
        except (UndefinedEnvironmentName, ValueError):
            return False

    @cached_property
    def relevant(self) -> frozenset[str]:
        """The distributions that matter to a deployment: its parts, and all they require."""
        queue = [key for key in self.in_force if ROOTS.match(key) or key in self._in_trouble]
        reached = set(queue)
        while queue:
            distribution = self.in_force.get(queue.pop())
            for requirement in self.requirements(distribution) if distribution else ():
                key = canonical_name(requirement.name)
                if key not in reached:
                    reached.add(key)
                    queue.append(key)
        return frozenset(reached)

    @cached_property
    def _in_trouble(self) -> frozenset[str]:
        """The distributions in which an import ended."""
        modules = {name.split(".")[0] for trial in self.failing for name, _, _ in trial.failures}
        modules |= {name.split(".")[0] for trial in self.failing for name, _ in trial.loading}
        return frozenset(key for key, copy in self.in_force.items() if modules & set(copy.top_modules))

    @cached_property
    def _places(self) -> dict[str, InstalledDistribution]:
        places: dict[str, InstalledDistribution] = {}
        for distribution in self.distributions:
            for place in (*distribution.places, *distribution.top_level):
                places.setdefault(f"{distribution.folder}/{place}", distribution)
                places.setdefault(f"{distribution.folder}/{place.split('/')[0]}", distribution)
        return places

    def owner_of_path(self, path: str) -> InstalledDistribution | None:
        """Return the distribution a file belongs to, by the folders it lists."""
        place = path
        while len(place) > 1:
            owner = self._places.get(place) or self._places.get(f"{place}.py")
            if owner:
                return owner
            place = os.path.dirname(place)
        return None

    def owner_of_module(self, module: str) -> InstalledDistribution | None:
        """Return the distribution that has a module, installed or at least named like it."""
        top = module.split(".")[0]
        owners = [distribution for distribution in self.in_force.values() if top in distribution.top_modules]
        namesake = self.in_force.get(self.distribution_name(top))
        return namesake if namesake and (namesake in owners or not owners) else next(iter(owners), None)

    def distribution_name(self, module: str) -> str:
        """Return what the distribution of a module is called."""
        name = canonical_name(DISTRIBUTION_OF_MODULE.get(module, module))
        return name.replace("-cu12", "-cu13") if name.startswith("tensorrt-cu12") and self._has_tensorrt_13 else name

    @cached_property
    def _has_tensorrt_13(self) -> bool:
        return any(key.startswith("tensorrt-cu13") for key in self.in_force)

    def title_of_path(self, path: str) -> str:
        """Return words for whose file it is: "torch 2.9.1", or nothing."""
        owner = self.owner_of_path(path)
        return owner.title if owner else ""

    def is_standard(self, path: str) -> bool:
        return any(path.startswith(f"{folder}/") for folder in self.python.standard) or path.startswith("<")

    @property
    def pip(self) -> str:
        """The command that installs into this environment."""
        python = self.record.python_path or "python3"
        if "pip" in self.in_force:
            return f"{python} -m pip install"
        uses_uv = self.record.machine.uv_path or "uv = " in self.record.python.pyvenv
        return f"uv pip install --python {python}" if uses_uv else f"python3 -m pip --python {python} install"

    def without(self, variable: str, folder: str) -> str:
        """Return the command that takes one folder out of a variable with a list of them."""
        folders = self.record.python.variables.get(variable, "").split(":")
        rest = [other for other in folders if other and other.rstrip("/") != folder.rstrip("/")]
        return f"export {variable}={':'.join(rest)}" if rest else f"unset {variable}"

    @property
    def uninstall(self) -> str:
        """The command that removes from this environment."""
        return self.pip.replace(" install", " uninstall") + ("" if self.pip.startswith("uv ") else " -y")

    @property
    def has_gpu(self) -> bool:
        return bool(self.record.machine.gpus)


def make_evidence(where: str, text: str) -> Evidence:
    """Return one piece of evidence, in one line."""
    return Evidence(where, re.sub(r"\s+", " ", text).strip()[:400])


def version_or_none(text: str) -> Version | None:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        return None
