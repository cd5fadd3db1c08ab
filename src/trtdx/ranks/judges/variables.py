"""Whether the variables of the ranks fit together: their numbers, what reached them, and what contradicts what."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from trtdx.model import Evidence, Severity
from trtdx.ranks.judges.judge import launch_fix
from trtdx.ranks.launchers import launcher_kind
from trtdx.ranks.nouns import RANK_VARIABLES, RankProbe, RankViolation, name_ranks
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.model import Fix
    from trtdx.ranks.nouns import ProbedJob

LLMAPI_LAUNCH = "trtllm-llmapi-launch"
# What must reach the ranks as it is in the shell; the launcher's own variables are meant to differ.
FORWARDED = ("NCCL_", "UCX_", "CUDA_", "TLLM", "TRTLLM", "GLOO_", "NVSHMEM_", "TORCH_NCCL_", "OMPI_MCA_")
NOT_FORWARDED = (
    "CUDA_VISIBLE_DEVICES",
    "OMPI_MCA_orte",
    "OMPI_MCA_ess",
    "OMPI_MCA_pmix",
    "OMPI_MCA_rmaps",
    "OMPI_MCA_plm",
)
# NCCL settings that every rank of a communicator must have in common, or its collectives do not match.
SAME_ON_ALL = (
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS", "NCCL_NVLS_ENABLE", "NCCL_COLLNET_ENABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_SOCKET_FAMILY", "NCCL_COMM_ID", "NCCL_CROSS_NIC", "NCCL_NTHREADS",
    "NCCL_PXN_DISABLE", "NCCL_CUMEM_ENABLE", "NCCL_GRAPH_REGISTER", "NCCL_RUNTIME_CONNECT",
)  # fmt: skip


def judge_rank_numbers(job: ProbedJob) -> Iterator[RankViolation]:
    """The variables that tell a rank its number agree with each other."""
    if job.is_own_launcher:
        return  # nobody starts the job that way
    torn = [(probe, numbers) for probe in job.probes if len(set((numbers := _stated_ranks(probe)).values())) > 1]
    if not torn:
        yield from _lone_numbers(job)
        return
    probe, numbers = max(torn, key=lambda pair: pair[0].rank or 0)
    is_read = any(posixpath.basename(word) == LLMAPI_LAUNCH for word in job.command)
    by_slurm = "SLURM_PROCID" in numbers and "OMPI_COMM_WORLD_RANK" in numbers
    if by_slurm and not is_read and set(numbers) <= {"SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"}:
        return  # mpirun inside a job: nobody but trtllm-llmapi-launch asks Slurm's number first
    words = ", ".join(f"{name}={number}" for name, number in numbers.items())
    names = [name for name in numbers if name != "OMPI_COMM_WORLD_RANK"] if by_slurm else list(numbers)[1:]
    yield RankViolation(
        "DX1308",
        f"{probe.title} has contradicting numbers: {words}",
        tuple(
            Evidence(f"{one.title}: variables", ", ".join(f"{k}={v}" for k, v in stated.items()))
            for one, stated in torn[:4]
        ),
        (_unset_fix(job, names, by_slurm),),
        tuple(one for one, _ in torn),
        Severity.ERROR if is_read and by_slurm else Severity.WARNING,
        0.95 if is_read else 0.75,
    )


def _unset_fix(job: ProbedJob, names: list[str], by_slurm: bool) -> Fix:
    sizes = dict(RANK_VARIABLES)
    dropped = [word for name in names for word in (name, sizes.get(name, "")) if word and not word.startswith("PMI")]
    command = f"env {' '.join(f'-u {name}' for name in dropped)} {' '.join(job.launcher) or 'mpirun -n RANKS'} {' '.join(job.command) or 'COMMAND'}"
    if by_slurm:
        return launch_fix(
            "inside a Slurm job start the ranks with srun, or hide Slurm's own numbers from mpirun's ranks", command
        )
    return launch_fix("take away the numbers that an outer launcher left", command)


def _stated_ranks(probe: RankProbe) -> dict[str, int]:
    return {
        rank: int(probe.environment[rank]) for rank, _ in RANK_VARIABLES if probe.environment.get(rank, "").isdigit()
    }


def _lone_numbers(job: ProbedJob) -> Iterator[RankViolation]:
    """Several processes that an MPI launcher started do not all run with MPI switched off."""
    off = [probe for probe in job.probes if probe.environment.get("TLLM_DISABLE_MPI") == "1"]
    by_mpi = job.is_launched and launcher_kind(job.launcher) in ("mpirun", "srun")
    if len(off) > 1 and by_mpi and not any("RANK" in probe.environment for probe in off):
        yield RankViolation(
            "DX1308",
            f"TLLM_DISABLE_MPI=1 makes each of {name_ranks(off)} rank 0: TensorRT-LLM asks torch.distributed then, and nothing set that up",
            (Evidence(f"{off[0].title}: variables", "TLLM_DISABLE_MPI=1, no RANK"),),
            (launch_fix("leave MPI on, or start the ranks with torchrun", "unset TLLM_DISABLE_MPI"),),
            tuple(off),
        )


def judge_left_over_proxy(job: ProbedJob) -> Iterator[RankViolation]:
    """No shell outside of trtllm-llmapi-launch says that a proxy process is there."""
    left = [probe for probe in job.probes if probe.environment.get("TLLM_SPAWN_PROXY_PROCESS") == "1"]
    if left and "TLLM_SPAWN_PROXY_PROCESS" in job.shell:
        yield RankViolation(
            "DX468",
            "TLLM_SPAWN_PROXY_PROCESS=1 is set in the shell: the program would wait for a proxy that only trtllm-llmapi-launch starts",
            (Evidence("shell", f"TLLM_SPAWN_PROXY_PROCESS={job.shell['TLLM_SPAWN_PROXY_PROCESS']}"),),
            (
                launch_fix(
                    "take it out of the shell",
                    "unset TLLM_SPAWN_PROXY_PROCESS TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR TLLM_SPAWN_PROXY_PROCESS_IPC_HMAC_KEY",
                ),
            ),
            tuple(left),
            confidence=0.9,
        )


def judge_forwarding(job: ProbedJob) -> Iterator[RankViolation]:
    """What is set in the shell for NCCL, UCX, CUDA and TensorRT-LLM reaches every rank."""
    if not job.is_launched or job.launcher[0] == "ssh":
        return  # by ssh the hosts are looked at, the job is started otherwise
    names = [name for name in job.shell if name.startswith(FORWARDED) and not name.startswith(NOT_FORWARDED)]
    lost = {name: gone for name in sorted(names) if (gone := _ranks_without(job, name))}
    if not lost:
        return
    probes = tuple({probe.pid: probe for gone in lost.values() for probe in gone}.values())
    flags = " ".join(f"-x {name}" for name in lost)
    kind = launcher_kind(job.launcher)
    command = {
        "mpirun": f"mpirun {flags} -n RANKS COMMAND",
        "srun": "srun --export=ALL -n RANKS COMMAND",
    }.get(kind, " ".join(f"{name}={job.shell[name]}" for name in lost) + " COMMAND")
    yield RankViolation(
        "DX450",
        f"{abbreviate_list(lost, 4)} {'is' if len(lost) == 1 else 'are'} set here, but {name_ranks(probes)} "
        f"{'does' if len(probes) == 1 else 'do'} not see {'it' if len(lost) == 1 else 'them'}",
        tuple(
            Evidence(f"{gone[0].title}: {name}", f"{gone[0].environment.get(name, 'not set')}; here: {job.shell[name]}")
            for name, gone in list(lost.items())[:4]
        ),
        (launch_fix("pass them on to the ranks", command),),
        probes,
    )


def _ranks_without(job: ProbedJob, name: str) -> list[RankProbe]:
    return [probe for probe in job.probes if probe.environment.get(name) not in (job.shell[name], "***")]


def judge_equal_settings(job: ProbedJob) -> Iterator[RankViolation]:
    """NCCL's settings are the same on all ranks."""
    for name in SAME_ON_ALL:
        values: dict[str, list[RankProbe]] = {}
        for probe in job.probes:
            values.setdefault(probe.environment.get(name, ""), []).append(probe)
        if len(values) < 2 or any(
            probe.environment.get(name) != job.shell.get(name) and name in job.shell for probe in job.probes
        ):
            continue  # what the launcher lost is told as that
        few = min(values.items(), key=lambda item: (len(item[1]), not item[0]))[1]  # of two, the one that is set
        yield RankViolation(
            "DX1309",
            f"{name} differs between ranks: "
            + "; ".join(f"{value or 'not set'} on {name_ranks(probes)}" for value, probes in values.items()),
            tuple(Evidence(f"{probes[0].title}: {name}", value or "not set") for value, probes in values.items()),
            (
                launch_fix(
                    "set it once, where the job is started, and pass it to all ranks",
                    f"mpirun -x {name} -n RANKS COMMAND",
                ),
            ),
            tuple(few),
        )


def judge_stripped_settings(job: ProbedJob) -> Iterator[RankViolation]:
    """UCX settings do not rely on trtllm-llmapi-launch, which takes them from rank 0's own program."""
    if not any(posixpath.basename(word) == LLMAPI_LAUNCH for word in job.command):
        return
    names = sorted({name for probe in job.probes for name in probe.environment if name.startswith("UCX_")})
    if names:
        yield RankViolation(
            "DX450",
            f"trtllm-llmapi-launch hides {abbreviate_list(names, 4)} from the program on rank 0; the workers keep them",
            (
                Evidence(
                    "tensorrt_llm/llmapi/trtllm-llmapi-launch", "mpi_blacklist: OMPI_ PMIX_ PMI_ SLURM_ MPI_ UCX_ ..."
                ),
            ),
            (
                launch_fix(
                    "set them inside the program's own command", f"trtllm-llmapi-launch env {names[0]}=VALUE COMMAND"
                ),
            ),
            (),
            Severity.NOTE,
            0.8,
        )


JUDGES = (
    judge_rank_numbers,
    judge_left_over_proxy,
    judge_forwarding,
    judge_equal_settings,
    judge_stripped_settings,
)
