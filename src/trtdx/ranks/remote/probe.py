"""What one process of a job sees: limits, shared memory, MPI, GPUs, rank variables; `network.py` adds interfaces.

Run by the job's own Python, through the user's launcher, once on every rank (see `remote/__init__.py`). It changes
nothing, and a part that fails says so instead of ending the rest.
"""

from __future__ import annotations

import glob
import json
import os
import re
import resource
import socket
import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Dict

from trtdx.ranks.remote.marked_lines import PROBE_MARK, print_marked
from trtdx.ranks.remote.network import probe_interfaces, probe_names, probe_rdma, read_link, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

Facts = Dict[str, Any]
SHOWN_VARIABLES = re.compile(
    r"(NCCL|UCX|OMPI|PMIX?|PRTE|SLURM|MPI|HYDRA|MPICH|I_MPI|CUDA|NVIDIA|GLOO|TLLM|TRTLLM|TORCH|TORCHELASTIC|RAY|NVSHMEM|"
    r"MASTER|LOCAL|GROUP|OPAL|KUBERNETES_SERVICE)_|(RANK|WORLD_SIZE|PATH|LD_LIBRARY_PATH|PYTHONPATH|OMP_NUM_THREADS)$"
)
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CRED|JWT", re.IGNORECASE)
MOST_SEGMENTS = 200
LIMITS = {"memlock": 8, "nofile": 7, "nproc": 6, "stack": 3, "as": 9, "core": 4, "data": 2}
SETTLED_S = 60.0  # a segment younger than this may belong to a job that is just starting


def run_command(argv: list[str], timeout: float = 15) -> tuple[int | None, str]:
    """Return the exit status and the output of a command, or None and why there is none."""
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=timeout,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as err:
        return None, f"{type(err).__name__}: {err}"
    return done.returncode, done.stdout.decode("utf-8", "replace")


def find_program(name: str) -> str:
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""


# --- who this is -----------------------------------------------------------------------------------------------------


def probe_identity() -> Facts:
    return {
        "host": socket.gethostname(),
        "boot_id": read_text("/proc/sys/kernel/random/boot_id"),
        "pid": os.getpid(),
        "uid": os.geteuid(),
        "time": time.time(),
        "kernel": os.uname().release,
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "cpus": len(os.sched_getaffinity(0)),
        "namespaces": {
            name: read_link("/proc/self/ns/" + name) for name in ("net", "pid", "ipc", "mnt", "user", "uts")
        },
        "container": _container_kind(),
    }


def _container_kind() -> str:
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if os.path.exists("/.dockerenv"):
        return "docker"
    if os.path.exists("/run/.containerenv"):
        return "podman"
    if os.environ.get("SINGULARITY_CONTAINER") or os.environ.get("APPTAINER_CONTAINER"):
        return "singularity"
    if os.path.exists("/etc/enroot") or os.environ.get("ENROOT_ROOTFS"):
        return "enroot"
    return ""


def probe_environment() -> dict[str, str]:
    """Return the variables that launchers and libraries read; secrets by name only."""
    return {
        name: "***" if SECRET_NAME.search(name) else value[:4000]
        for name, value in os.environ.items()
        if SHOWN_VARIABLES.match(name)
    }


# --- what it may use -------------------------------------------------------------------------------------------------


def probe_limits() -> Facts:
    status = dict(line.split(":\t", 1) for line in read_text("/proc/self/status").splitlines() if ":\t" in line)
    return {
        "limits": {name: list(resource.getrlimit(number)) for name, number in LIMITS.items()},
        "capabilities": int(status.get("CapEff", "0"), 16),
        "seccomp": int(status.get("Seccomp", "0") or 0),
        "ptrace_scope": read_text("/proc/sys/kernel/yama/ptrace_scope"),
        "user_tasks": _count_user_tasks(),
        **_cgroup_limits(),
    }


def _count_user_tasks() -> int:
    """Return how many threads this user has, which is what RLIMIT_NPROC counts."""
    mine, count = os.geteuid(), 0
    for path in glob.glob("/proc/[0-9]*"):
        try:
            if os.stat(path).st_uid == mine:
                count += len(os.listdir(path + "/task"))
        except OSError:
            continue
    return count


def _cgroup_limits() -> Facts:
    """Return the tightest limits of the control groups this process is in, and what is used of them."""
    limits: Dict[str, int] = {}
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for key, controller, names in (
            ("pids", "pids", ("pids.max", "pids.current")),
            ("memory", "memory", ("memory.max", "memory.current", "memory.limit_in_bytes", "memory.usage_in_bytes")),
        ):
            root = "/sys/fs/cgroup" if not controllers else "/sys/fs/cgroup/" + controller
            if controllers and controller not in controllers.split(","):
                continue
            for folder in _folders_upwards(root, path):
                _take_tightest(limits, key, folder, names)
    return {"cgroup": limits}


def _folders_upwards(root: str, path: str) -> Iterator[str]:
    """Yield a control group's folder and those above it; in a container its path may be the host's, so the root too."""
    parts = [part for part in path.split("/") if part and part != ".."]
    for depth in range(len(parts), -1, -1):
        yield os.path.join(root, *parts[:depth])


def _take_tightest(limits: dict[str, int], key: str, folder: str, names: tuple[str, ...]) -> None:
    for most, used in zip(names[::2], names[1::2]):
        value = read_text(os.path.join(folder, most))
        if value.isdigit() and int(value) < (1 << 60) and int(value) < limits.get(key + "_max", 1 << 60):
            limits[key + "_max"] = int(value)
            current = read_text(os.path.join(folder, used))
            limits[key + "_current"] = int(current) if current.isdigit() else 0


def probe_shared_memory() -> Facts:
    path = "/dev/shm"
    try:
        space, node = os.statvfs(path), os.stat(path)
    except OSError as err:
        return {"shm": {"problem": str(err)}}
    return {
        "shm": {
            "size": space.f_blocks * space.f_frsize,
            "free": space.f_bavail * space.f_frsize,
            "device": node.st_dev,
            "writable": os.access(path, os.W_OK | os.X_OK) and not space.f_flag & os.ST_RDONLY,
            "segments": _list_segments(path),
        },
        "tmp": _probe_folder(os.environ.get("TMPDIR") or "/tmp"),
    }


def _probe_folder(path: str) -> Facts:
    try:
        space = os.statvfs(path)
        return {"path": path, "free": space.f_bavail * space.f_frsize, "writable": os.access(path, os.W_OK | os.X_OK)}
    except OSError as err:
        return {"path": path, "problem": str(err)}


def _list_segments(path: str) -> list[Facts]:
    """Return the largest files of shared memory, and whether a process holds each: None where that cannot be told."""
    try:
        entries = [(entry.name, entry.stat(follow_symlinks=False)) for entry in os.scandir(path)]
    except OSError:
        return []
    files = [(name, node) for name, node in entries if stat.S_ISREG(node.st_mode)]
    files.sort(key=lambda pair: -pair[1].st_blocks)
    if not files:
        return []
    mapped, is_complete = _mapped_files(path)
    now = time.time()
    return [
        {
            "name": name,
            "bytes": node.st_blocks * 512,
            "uid": node.st_uid,
            "is_held": True if name in mapped or now - node.st_mtime < SETTLED_S else False if is_complete else None,
        }
        for name, node in files[:MOST_SEGMENTS]
    ]


def _mapped_files(path: str) -> tuple[set[str], bool]:
    """Return the names in shared memory that processes have mapped or open, and whether all processes could be asked."""
    names, is_complete = set(), True
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            with open(folder + "/maps", encoding="utf-8", errors="replace") as maps:
                names.update(re.findall(re.escape(path) + r"/(.+?)(?: \(deleted\))?$", maps.read(), re.MULTILINE))
            links = [read_link(folder + "/fd/" + number) for number in os.listdir(folder + "/fd")]
            names.update(link[len(path) + 1 :] for link in links if link.startswith(path + "/"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError:
            is_complete = is_complete and folder == "/proc/1"  # init shares no memory with ranks
    return names, is_complete


# --- MPI, Slurm, packages, GPUs --------------------------------------------------------------------------------------

ASK_MPI = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; import sys; "
    "sys.stdout.write(mpi4py.__version__ + chr(10) + MPI.Get_library_version())"
)


def probe_mpi() -> Facts:
    """Return the launchers on PATH and the library that mpi4py loads; MPI is not initialised."""
    launchers = {}
    for name in ("mpirun", "mpiexec"):
        path = find_program(name)
        if path:
            launchers[name] = {"path": os.path.realpath(path), "version": run_command([path, "--version"])[1][:400]}
    status, text = run_command([sys.executable, "-W", "ignore", "-c", ASK_MPI], timeout=60)
    mpi4py = (
        {"version": text.split("\n")[0], "library": text.partition("\n")[2][:300]}
        if status == 0
        else {"problem": text[-600:]}
    )
    return {"mpi": {"launchers": launchers, "mpi4py": mpi4py}}


def probe_slurm() -> Facts:
    if not (find_program("srun") and os.environ.get("SLURM_JOB_ID")):
        return {}
    _, plugins = run_command(["srun", "--mpi=list"], timeout=10)
    _, settings = run_command(["scontrol", "show", "config"], timeout=10)
    chosen = re.findall(r"^(MpiDefault|SLURM_VERSION|PropagateResourceLimits\w*)\s*=\s*(.*)$", settings, re.MULTILINE)
    words = [
        word
        for line in plugins.splitlines()[:20]
        for word in re.findall(r"^(?:srun:)?\s+([a-z0-9_]+)$|specific pmix plugin versions available: (.*)$", line)
    ]
    names = [name.strip() for pair in words for part in pair for name in part.split(",") if name.strip()]
    return {"slurm": {"mpi_plugins": names, "settings": dict(chosen)}}


def probe_packages() -> Facts:
    try:
        from importlib import metadata
    except ImportError:
        return {}
    versions: Dict[str, str] = {}
    for dist in metadata.distributions():
        name = (dist.metadata["Name"] or "").lower().replace("_", "-")
        if name in ("tensorrt-llm", "torch", "mpi4py", "tensorrt", "ray") or name.startswith("nvidia-nccl"):
            versions.setdefault(name, dist.version)
    return {"packages": versions}


def probe_gpus(is_first: bool) -> Facts:
    """Return the GPUs of this node; the slow questions are asked by one process of it."""
    facts: Facts = {"devices": sorted(glob.glob("/dev/nvidia[0-9]*"))}
    if find_program("nvidia-smi"):
        status, text = run_command(
            ["nvidia-smi", "--query-gpu=index,uuid,name,pci.bus_id", "--format=csv,noheader"], timeout=30
        )
        key = "list" if status == 0 else "problem"
        facts[key] = (
            [[cell.strip() for cell in line.split(",")] for line in text.splitlines()] if status == 0 else text[:400]
        )
        if is_first and status == 0:
            facts["topology"] = run_command(["nvidia-smi", "topo", "-m"], timeout=30)[1][:8000]
            facts["p2p"] = run_command(["nvidia-smi", "topo", "-p2p", "r"], timeout=30)[1][:8000]
    if is_first and facts["devices"]:
        facts["acs"] = _bridges_with_acs()
        facts["iommu"] = len(glob.glob("/sys/kernel/iommu_groups/*"))
    return {"gpus": facts}


def _bridges_with_acs() -> list[str]:
    """Return the PCI bridges that redirect peer-to-peer traffic (ACS on); only root can read this."""
    status, text = run_command(["lspci", "-vvv"], timeout=30) if find_program("lspci") else (None, "")
    bridges, device = [], ""
    for line in text.splitlines() if status == 0 else ():
        if line[:1].strip():
            device = line
        elif "ACSCtl:" in line and "SrcValid+" in line and "PCI bridge" in device:
            bridges.append(device.split(" ")[0])
    return bridges


# --- all of it -------------------------------------------------------------------------------------------------------


def is_first_of_node() -> bool:
    names = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "LOCAL_RANK")
    return next((os.environ[name] for name in names if name in os.environ), "0") == "0"


def collect_facts(question: Facts) -> Facts:
    first = is_first_of_node()
    parts: Dict[str, Callable[[], Facts]] = {
        "identity": probe_identity,
        "environment": lambda: {"environment": probe_environment()},
        "limits": probe_limits,
        "shared memory": probe_shared_memory,
        "interfaces": probe_interfaces,
        "names": lambda: probe_names(question.get("peers", ()), question.get("ports", ())),
        "rdma": probe_rdma,
        "mpi": probe_mpi,
        "slurm": probe_slurm if first else dict,
        "packages": probe_packages,
        "gpus": lambda: probe_gpus(first),
    }
    facts: Facts = {"probe": 1, "nonce": question.get("nonce", "")}
    problems: Dict[str, str] = {}
    for name, part in parts.items():
        try:
            facts.update(part())
        except Exception as err:
            problems[name] = f"{type(err).__name__}: {err}"
    facts["problems"] = problems
    return facts


def main() -> None:
    question = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    print_marked(PROBE_MARK, collect_facts(question))


if __name__ == "__main__":
    main()
