"""What starts ranks: mpirun, srun, torchrun, ssh to a list of hosts, or nothing."""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import TYPE_CHECKING

import msgspec

from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtdx.host import Host

MPI_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra")
COUNT_FLAGS = ("-n", "-np", "--np", "-c", "--n", "--ntasks", "--nproc-per-node", "--nproc_per_node", "--nproc")
PASSED_BY_SSH = ("NCCL_", "GLOO_", "UCX_", "OMPI_MCA_btl", "MASTER_", "LD_LIBRARY_PATH")
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")


class RankLauncher(msgspec.Struct, frozen=True):
    """The words in front of a program, what kind of launcher they are, and how many ranks they start."""

    words: tuple[str, ...]
    kind: str  # "mpirun", "srun", "torchrun", "ssh", "other", or "" for no launcher at all
    ranks: int = 1
    hosts: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()  # assignments that ssh does not pass on by itself
    is_counted: bool = False  # its words say how many ranks
    is_own: bool = False  # chosen by trtdx, not by the user

    def command_lines(self, program: Sequence[str]) -> list[list[str]]:
        """Return the commands that start a program on all ranks: one, or one for each host of a list."""
        if self.kind == "ssh":
            per_host = -(-self.ranks // len(self.hosts))
            line = _numbered_copies([*(["env", *self.variables] if self.variables else []), *program], per_host)
            return [[*SSH, host, line] for host in self.hosts]
        if self.kind == "torchrun":
            return [[*self.words, "--no-python", *program]]
        return [[*self.words, *program]]


def _numbered_copies(program: Sequence[str], copies: int) -> str:
    """Return a shell line that runs a program several times at once on one host."""
    line = shlex.join(program)
    return line if copies == 1 else f"for i in $(seq {copies}); do {line} & done; wait"


def parse_launcher(text: str, count: int = 0) -> RankLauncher:
    """Return the launcher that a user's own words name.

    Raises:
        InputError: they are not words of a shell, or name nothing.
    """
    try:
        words = shlex.split(text)
    except ValueError as err:
        raise InputError(f"the launcher {text!r} cannot be read: {err}", fix="quote it as a shell would") from err
    if not words:
        raise InputError("the launcher is empty", fix="--launcher 'mpirun -n 4'")
    kind = launcher_kind(words)
    stated = _stated_count(words)
    if count and not stated and kind in ("mpirun", "srun"):
        words += ["-n", str(count)]
    if count and not stated and kind == "torchrun":
        words.append(f"--nproc-per-node={count}")
    return RankLauncher(tuple(words), kind, stated or count or 1, is_counted=bool(stated))


def launcher_kind(words: Sequence[str]) -> str:
    """Return which kind of launcher some words are, whatever stands before it: env, timeout, variables."""
    for word in words:
        name = posixpath.basename(word)
        if name.split(".")[0] in MPI_LAUNCHERS or name in MPI_LAUNCHERS:
            return "mpirun"
        if name in ("srun", "torchrun"):
            return name
        if name == "torch.distributed.run":
            return "torchrun"
    return "other"


def _stated_count(words: Sequence[str]) -> int:
    for flag, value in zip(words, [*words[1:], ""], strict=True):
        name, _, attached = flag.partition("=")
        text = attached or value
        if name in COUNT_FLAGS and text.isdigit():
            return int(text)
        short = re.fullmatch(r"-n(\d+)", flag)
        if short:
            return int(short[1])
    return 0


def choose_launcher(host: Host, count: int, *, slurm: bool, hosts: Sequence[str], cpus: int) -> RankLauncher:
    """Return the launcher for ranks here when the user names none."""
    environment = host.environment()
    if hosts:
        named = [f"{name}={value}" for name, value in environment.items() if name.startswith(PASSED_BY_SSH)]
        return RankLauncher((), "ssh", max(count, len(hosts)), tuple(hosts), tuple(named))
    if slurm:
        return RankLauncher(("srun", "--mpi=pmix", "-n", str(count or 1)), "srun", count or 1)
    if count < 2:
        return RankLauncher((), "", 1)
    if not find_on_path(host, "mpirun"):
        return RankLauncher((), "", 1)
    words = ("mpirun", "-n", str(count), *mpirun_flags(host, environment, count, cpus))
    return RankLauncher(words, "mpirun", count, is_own=True)


def mpirun_flags(host: Host, environment: Mapping[str, str], count: int, cpus: int) -> list[str]:
    """Return what Open MPI's mpirun needs on this machine: leave to run as root, more ranks than cores."""
    if mpi_family(host.run(["mpirun", "--version"], timeout_s=15).stdout.decode("utf-8", "replace")) != "Open MPI":
        return []
    is_root = host.run(["id", "-u"], timeout_s=5).stdout.strip() == b"0"
    allowed = environment.get("OMPI_ALLOW_RUN_AS_ROOT") == "1"
    return [
        *(["--allow-run-as-root"] if is_root and not allowed else []),
        # Inside a Slurm job its tasks are the slots.
        *(["--oversubscribe"] if count > cpus or "SLURM_JOB_ID" in environment else []),
    ]


def find_on_path(host: Host, name: str) -> str:
    """Return where a program lies, or nothing."""
    for folder in host.environment().get("PATH", "").split(":"):
        path = posixpath.join(folder or ".", name)
        if host.kind(path) == "file":
            return path
    return ""


def mpi_family(text: str) -> str:
    """Return the implementation that a version text is of: "Open MPI", "MPICH", "Intel MPI" or nothing."""
    for pattern, family in (
        (r"Intel\(R\) MPI", "Intel MPI"),
        (r"Open ?MPI|OpenRTE|open-mpi\.org|PRTE|PMIx Reference", "Open MPI"),
        (r"MVAPICH", "MVAPICH"),
        (r"MPICH|HYDRA|Hydra", "MPICH"),
    ):
        if re.search(pattern, text):
            return family
    return ""


def mpi_version(text: str) -> tuple[int, ...]:
    """Return the version in such a text as numbers; empty where there is none."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in match.groups() if part) if match else ()
