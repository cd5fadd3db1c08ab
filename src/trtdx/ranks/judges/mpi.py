"""Whether launcher and library are of one MPI, and whether Slurm tells the ranks who they are in a way it understands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.model import Evidence, Severity
from trtdx.ranks.judges.judge import launch_fix
from trtdx.ranks.launch.program import ProgramKind, classify_program
from trtdx.ranks.launch.remedies import Remedy, SlurmPlace, find_remedy, slurm_place
from trtdx.ranks.launchers import launcher_kind, mpi_family, mpi_version
from trtdx.ranks.nouns import RankProbe, RankViolation, name_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtdx.model import Fix
    from trtdx.ranks.nouns import ProbedJob


def library_text(probe: RankProbe) -> str:
    """Return what the library that mpi4py loads says of itself."""
    return str(probe.mpi.get("mpi4py", {}).get("library", ""))


def mpi4py_problem(probe: RankProbe) -> str:
    """Return what importing mpi4py ended with, if it failed."""
    return str(probe.mpi.get("mpi4py", {}).get("problem", ""))


def library_family(probe: RankProbe) -> str:
    return mpi_family(library_text(probe))


def launcher_family(job: ProbedJob, probe: RankProbe) -> str:
    """Return the MPI that started a rank, by the variables it got; else the one whose mpirun is on PATH."""
    if job.is_launched and launcher_kind(job.launcher) == "mpirun":
        if "OMPI_COMM_WORLD_RANK" in probe.environment:
            return "Open MPI"
        if "PMI_RANK" in probe.environment:
            return "MPICH"
    launchers = probe.mpi.get("launchers", {})
    return mpi_family(str(launchers.get("mpirun", launchers.get("mpiexec", {})).get("version", "")))


def judge_families(job: ProbedJob) -> Iterator[RankViolation]:
    """The launcher is of the MPI that the program's library is of."""
    if job.is_launched and launcher_kind(job.launcher) in ("srun", "torchrun", "other") and job.launcher[0] != "ssh":
        return
    # Every MPI derived from MPICH forms worlds with the others' launchers.
    kin = {"Intel MPI": "MPICH", "MVAPICH": "MPICH"}
    mixed = []
    for probe in job.probes:
        launcher, library = launcher_family(job, probe), library_family(probe)
        if launcher and library and kin.get(launcher, launcher) != kin.get(library, library):
            mixed.append(probe)
    if not mixed:
        return
    probe = mixed[0]
    launcher, library = launcher_family(job, probe), library_family(probe)
    path = probe.mpi.get("launchers", {}).get("mpirun", {}).get("path", "mpirun")
    is_used = job.is_launched and launcher_kind(job.launcher) == "mpirun"
    yield RankViolation(
        "DX435",
        f"{'the launcher is' if is_used else 'mpirun is'} {launcher}, but mpi4py of {probe.executable} loads {library}: "
        "every process becomes rank 0 of a world of one",
        (
            Evidence(f"{probe.title}: mpi4py", library_text(probe).splitlines()[0][:120]),
            Evidence(f"{probe.title}: launcher", " ".join(job.launcher) if is_used else f"{path}: {launcher}"),
        ),
        (_matching_launcher_fix(library),),
        tuple(mixed),
        None if is_used else Severity.WARNING,
        0.97 if is_used else 0.85,
        verify="trtdx ranks smoke -n 2",
    )


def _matching_launcher_fix(library: str) -> Fix:
    if library == "Open MPI":
        return launch_fix("start with Open MPI's own launcher", "mpirun.openmpi -n RANKS COMMAND")
    return launch_fix(
        "give mpi4py an Open MPI library, which TensorRT-LLM needs in any case",
        "sudo apt-get install -y openmpi-bin libopenmpi-dev && MPI4PY_MPIABI=openmpi mpirun -n RANKS COMMAND",
    )


def abi_violation(title: str, problem: str, probes: Sequence[RankProbe]) -> RankViolation | None:
    """Return why mpi4py cannot be imported, where its wheel took this machine's MPI for another; else None."""
    line = next((line for line in problem.splitlines() if "libmpi.so.12: cannot open" in line), "")
    if not line:
        return None
    return RankViolation(
        "DX023",
        "mpi4py takes the MPI of this machine for MPICH and looks for libmpi.so.12, which is not there",
        (Evidence(title, line.strip()),),
        (
            launch_fix("tell mpi4py which MPI it is", "export MPI4PY_MPIABI=openmpi"),
            launch_fix(
                "or let libmpi.so be Open MPI's again",
                "sudo update-alternatives --set mpi-$(uname -m)-linux-gnu /usr/lib/$(uname -m)-linux-gnu/openmpi/include",
            ),
        ),
        tuple(probes),
        verify="trtdx ranks smoke -n 2",
    )


def judge_abi(job: ProbedJob) -> Iterator[RankViolation]:
    """mpi4py finds the library of the MPI that it takes for this machine's."""
    broken = [probe for probe in job.probes if "libmpi.so.12: cannot" in mpi4py_problem(probe)]
    if broken and (violation := abi_violation(f"{broken[0].title}: mpi4py", mpi4py_problem(broken[0]), broken)):
        yield violation


def judge_flavour(job: ProbedJob) -> Iterator[RankViolation]:
    """The library is Open MPI, which is the one TensorRT-LLM runs on."""
    others = [probe for probe in job.probes if library_family(probe) not in ("", "Open MPI")]
    if not others or any(launcher_family(job, probe) == "Open MPI" for probe in others):
        return  # a mixture is told as one
    probe = others[0]
    has_product = "tensorrt-llm" in probe.packages
    yield RankViolation(
        "DX023",
        f"mpi4py of {probe.executable} loads {library_family(probe)}, and TensorRT-LLM works with Open MPI only",
        (Evidence(f"{probe.title}: mpi4py", library_text(probe).splitlines()[0][:120]),),
        (),
        tuple(others),
        None if has_product else Severity.WARNING,
        0.95 if has_product else 0.8,
    )


def judge_slurm_ranks(job: ProbedJob) -> Iterator[RankViolation]:
    """Under srun the ranks are told their numbers in the protocol their library speaks."""
    if not job.is_launched or launcher_kind(job.launcher) != "srun" or len(job.probes) < 2:
        return
    deaf = [probe for probe in job.probes if library_family(probe) and not _hears_slurm(probe)]
    if not deaf:
        return
    probe = deaf[0]
    library, version = library_family(probe), ".".join(map(str, mpi_version(library_text(probe))))
    plugins: list[str] = next((one.slurm.get("mpi_plugins", []) for one in job.probes if one.slurm), [])
    plugin = "pmix" if library == "Open MPI" else "pmi2"
    offered = any(name.startswith(plugin) for name in plugins) or not plugins
    yield RankViolation(
        "DX442",
        f"srun tells {library} {version} no rank it understands: {name_ranks(deaf)} would each be alone, or fail to start",
        (
            Evidence(f"{probe.title}: variables", _pmi_words(probe)),
            Evidence("srun --mpi=list", ", ".join(plugins) or "not asked"),
        ),
        (
            launch_fix(f"choose the plugin that {library} speaks", f"srun --mpi={plugin} -n RANKS COMMAND")
            if offered
            else launch_fix(
                f"this Slurm has no {plugin} plugin: start inside the allocation with mpirun",
                "mpirun -n RANKS --oversubscribe COMMAND",
            ),
        ),
        tuple(deaf),
        confidence=0.9,
        verify="trtdx ranks smoke --launcher 'srun --mpi=pmix -n 2'",
    )


def _hears_slurm(probe: RankProbe) -> bool:
    """Whether the variables of a task fit the library: Open MPI speaks PMIx, those of MPICH's kin PMI-1 and PMI-2."""
    environment = probe.environment
    has_pmi = any(name in environment for name in ("PMI_RANK", "PMI_FD", "PMI_JOBID", "PMI2_RANK"))
    if library_family(probe) == "Open MPI":
        return "PMIX_RANK" in environment or "PMIX_NAMESPACE" in environment
    return has_pmi and "PMIX_RANK" not in environment


def _pmi_words(probe: RankProbe) -> str:
    names = [
        name for name in sorted(probe.environment) if name.startswith(("PMI_", "PMI2_", "PMIX_RANK", "PMIX_NAMESPACE"))
    ]
    return ", ".join(names) if names else "no PMI or PMIx variable is set"


def judge_interference(job: ProbedJob) -> Iterator[RankViolation]:
    """A program that spawns its own workers is not started where Slurm's step answers for its MPI."""
    if not _may_spawn(job):
        return
    probe = job.probes[0]
    place = slurm_place(job.shell if job.is_launched else probe.environment)
    if place not in (SlurmPlace.STEP, SlurmPlace.TASK) or library_family(probe) not in ("", "Open MPI"):
        return
    remedy = find_remedy(place, library_family(probe) or "Open MPI", mpi_version(library_text(probe)), spawns=True)
    yield RankViolation(
        "DX1307",
        f"this shell is inside a Slurm step (job {job.shell.get('SLURM_JOB_ID', '?')}), where a program that "
        "spawns its own MPI workers fails or hangs",
        (
            Evidence(f"{probe.host}: variables", _step_words(job.shell or probe.environment)),
            Evidence("MPI library", library_text(probe).splitlines()[0][:120] if library_text(probe) else "not known"),
        ),
        (launch_fix(remedy.reason, _isolated_command(job, probe, remedy)),),
        confidence=0.9,
        verify="trtdx ranks smoke --spawn -n 2",
    )


def _isolated_command(job: ProbedJob, probe: RankProbe, remedy: Remedy) -> str:
    needs_leave = probe.uid == 0 and job.shell.get("OMPI_ALLOW_RUN_AS_ROOT") != "1"
    words = [*remedy.words, *(["--allow-run-as-root"] if needs_leave else []), *(job.command or ["COMMAND"])]
    return " ".join(words)


def _may_spawn(job: ProbedJob) -> bool:
    """Whether the job is a program of this shell that may spawn its workers: no launcher was named for it."""
    if job.world < 2 or (job.is_launched and not job.is_own_launcher):
        return False
    return not job.command or classify_program(job.command) is ProgramKind.SPAWNS


def _step_words(environment: Mapping[str, str]) -> str:
    names = ("SLURM_STEP_ID", "SLURM_PROCID", "PMIX_RANK", "PMI_FD", "PMI_RANK")
    return ", ".join(f"{name}={environment[name]}" for name in names if name in environment)


def judge_slots(job: ProbedJob) -> Iterator[RankViolation]:
    """Open MPI counts enough slots for the workers that a program spawns beside itself."""
    if not _may_spawn(job) or (job.is_launched and not job.command):
        return
    probe = job.probes[0]
    if library_family(probe) != "Open MPI" or slurm_place(probe.environment) is not SlurmPlace.NONE:
        return
    if probe.cpus >= job.world + 1 or probe.environment.get("OMPI_MCA_rmaps_base_oversubscribe") in ("1", "true"):
        return
    yield RankViolation(
        "DX431",
        f"Open MPI counts {probe.cpus} slots on {probe.host}, and a program that spawns {job.world} workers needs {job.world + 1}",
        (Evidence(f"{probe.host}: sched_getaffinity", f"{probe.cpus} cores"),),
        (launch_fix("let Open MPI use more processes than cores", "export OMPI_MCA_rmaps_base_oversubscribe=1"),),
        (probe,),
        Severity.WARNING,
        0.85,
        verify=f"trtdx ranks smoke --spawn -n {job.world}",
    )


JUDGES = (judge_abi, judge_families, judge_flavour, judge_slurm_ranks, judge_interference, judge_slots)
