"""MPI of one kind: what mpi4py, TensorRT-LLM and the launcher are made for, and what `libmpi.so` leads to."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from trtdx.check.nouns import Cause, MendingOrder
from trtdx.check.view import make_evidence
from trtdx.knowledge.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.check.nouns import ElfFacts
    from trtdx.check.view import EnvironmentView

MPI_FLAVOURS = (
    (r"libmpi\.so\.(?:40|20|1)\b|openmpi|Open MPI", "Open MPI"),
    (r"libmpi\.so\.12|libmpich|mpich|HYDRA", "MPICH"),
)
# How mpi4py calls its builds, which lie side by side in its wheel: MPI.openmpi.cpython-312-x86_64-linux-gnu.so.
BUILDS = {"Open MPI": "openmpi", "MPICH": "mpich"}


def _flavour(text: str) -> str:
    return next((name for pattern, name in MPI_FLAVOURS if re.search(pattern, text)), "")


def judge_mpi(view: EnvironmentView) -> Iterator[Cause]:
    """Yield an mpi4py, launcher or TensorRT-LLM of different MPI implementations."""
    mpi4py = view.in_force.get("mpi4py")
    library, place = _mpi_of_mpi4py(view)
    if not mpi4py or not library:
        return
    rivals: dict[str, tuple[str, str]] = {}
    for thing in view.record.libraries:
        if thing.owner.startswith("tensorrt-llm"):
            rivals |= {
                _flavour(need.name): (thing.path, need.name) for need in thing.needs if need.name.startswith("libmpi")
            }
    launcher = _flavour(view.record.machine.mpirun)
    if launcher:
        rivals.setdefault(launcher, (view.record.machine.mpirun_path, view.record.machine.mpirun))
    for flavour, (path, text) in rivals.items():
        if flavour and flavour != library:
            values = {
                "mpi4py": mpi4py.title, "library": library, "place": place, "rival": path, "flavour": flavour, "pip": view.pip, "instead": "",
            }  # fmt: skip
            evidence = (
                make_evidence(place, f"{mpi4py.title} uses {library}"),
                make_evidence(path, f"{flavour}: {text}"),
            )
            yield Cause(
                "DX023",
                Violation(evidence, values),
                MendingOrder.LIBRARIES,
                frozenset({"mpi4py", "libmpi.so.40", "libmpi.so.12"}),
            )
            return


def _mpi_of_mpi4py(view: EnvironmentView) -> tuple[str, str]:
    """Return which MPI mpi4py uses, and the file that tells."""
    trial = view.trials.get("mpi4py.MPI")
    if trial and trial.outcome == "works" and _flavour(os.path.basename(trial.path)):
        return _flavour(os.path.basename(trial.path)), trial.path
    names = {
        (_flavour(need.name), thing.path)
        for thing in view.record.libraries
        if thing.owner == "mpi4py"
        for need in thing.needs
        if need.name.startswith("libmpi")
    }
    flavours = {flavour for flavour, _ in names if flavour}
    return next(iter(sorted(names))) if len(flavours) == 1 else ("", "")


def loadable_flavours(view: EnvironmentView, thing: ElfFacts) -> list[ElfFacts]:
    """Return the other builds of mpi4py's extension, beside this one, whose MPI is there."""
    return [
        other
        for other in view.record.libraries
        if other.owner == "mpi4py"
        and other.path != thing.path
        and other.needs
        and all(need.path for need in other.needs)
    ]


def wrong_build_cause(view: EnvironmentView, name: str, thing: ElfFacts) -> Cause | None:
    """Return the cause of an mpi4py that takes the build for an MPI which is not there, while that of another would load.

    mpi4py's wheel opens `libmpi.so` to see which MPI there is. Debian lets that name lead to MPICH, whose library it
    calls libmpich.so.12, not libmpi.so.12.
    """
    mpi4py, others = view.in_force.get("mpi4py"), loadable_flavours(view, thing)
    if mpi4py is None or thing.owner != "mpi4py" or not others:
        return None
    library, leads_to = _flavour(name), view.record.machine.libmpi
    need = next(need for need in others[0].needs if need.name.startswith("libmpi"))
    flavour = _flavour(need.name)
    place = f"libmpi.so leads to {leads_to}" if leads_to else os.path.basename(thing.path)
    values = {
        "mpi4py": mpi4py.title, "library": library, "place": place, "rival": need.path, "flavour": flavour,
        "abi": BUILDS.get(flavour, ""), "master": f"mpi-{view.python.machine}-linux-gnu",
    }  # fmt: skip
    evidence = (
        make_evidence(thing.path, f"needs {name}, which is not there"),
        *([make_evidence("libmpi.so", f"leads to {leads_to}")] if leads_to else []),
        make_evidence(others[0].path, f"would load: {need.name} is {need.path}"),
    )
    return Cause("DX023", Violation(evidence, values), MendingOrder.LIBRARIES, frozenset({"mpi4py", name}))
