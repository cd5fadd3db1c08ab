"""The tables beside the findings: the machine, the parts of a deployment, the imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.check.judges.requirements import table_requirements
from trtdx.check.view import ROOTS
from trtdx.model import Section
from trtdx.words import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.check.view import EnvironmentView


def list_sections(view: EnvironmentView) -> tuple[Section, ...]:
    """Return the tables that have something in them."""
    machine = Section("machine", "Machine", ("what", "value"), tuple(_machine_rows(view)), after_findings=True)
    packages = Section(
        "packages", "Parts of a deployment", ("distribution", "installed", "release table", "import", "folder"),
        tuple(_package_rows(view)), after_findings=True,
    )  # fmt: skip
    return tuple(section for section in (packages, machine) if section.rows)


def _package_rows(view: EnvironmentView) -> Iterator[tuple[str, ...]]:
    table = table_requirements(view)
    for key, copy in sorted(view.in_force.items()):
        if ROOTS.match(key) or key in ("triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "flashinfer-python"):
            yield copy.name, copy.version, table.get(key, ""), _outcome(view, copy.top_modules), copy.folder


def _outcome(view: EnvironmentView, modules: tuple[str, ...]) -> str:
    outcomes = [trial.outcome for name, trial in view.trials.items() if name.split(".")[0] in modules]
    return outcomes[0] if outcomes else "not tried"


def _machine_rows(view: EnvironmentView) -> Iterator[tuple[str, str]]:
    python, machine = view.python, view.record.machine
    gpus = ", ".join(f"{gpu.name} ({gpu.capability})" for gpu in machine.gpus)
    limit = f", limited to {format_bytes(machine.memory_limit_bytes)}" if machine.memory_limit_bytes >= 0 else ""
    rows = {
        "Python": f"{python.version} ({view.record.python_path})" if python.version else "",
        "system": machine.system,
        "container": machine.container,
        "C library": f"{python.libc}; {machine.libstdcxx}".strip("; "),
        "GPUs": gpus or "none seen",
        "driver": machine.driver,
        "CUDA toolkits": ", ".join(machine.toolkits),
        "mpirun": f"{machine.mpirun} ({machine.mpirun_path})" if machine.mpirun else "",
        "memory": f"{format_bytes(machine.memory_bytes)}{limit}" if machine.memory_bytes else "",
        "shared memory (/dev/shm)": format_bytes(machine.shm_bytes) if machine.shm_bytes >= 0 else "",
        "kernel messages": f"not readable: {machine.kernel_log}" if machine.kernel_log else "",
    }
    yield from ((what, value) for what, value in rows.items() if value)
    for disk in machine.disks:
        yield f"space for {disk.purpose}", f"{format_bytes(disk.free_bytes)} free ({disk.path})"
