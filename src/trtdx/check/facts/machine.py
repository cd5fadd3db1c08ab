"""The machine: driver, GPUs, limits, space, container, clock. What cannot be asked is left out and said so."""

from __future__ import annotations

import os
import re
import resource
import shutil
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.check.facts.elf_reader import LFS_POINTER, SharedObject, can_read_elf, defined_versions
from trtdx.check.nouns import DiskFacts, GpuFacts, MachineFacts
from trtdx.check.probe import changed_at, list_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtdx.check.facts.loader import LibraryLoader
    from trtdx.host import Host

SMI = ("nvidia-smi", "--query-gpu=name,memory.total,compute_cap,driver_version", "--format=csv,noheader,nounits")
CAP_IPC_LOCK = 14
MOST_XIDS, MOST_POINTERS, MOST_LOOKED_AT = 8, 20, 2000
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".engine", ".plan", ".npz", ".model")
POINTER_BYTES = 1024  # a pointer has three lines; what is longer is a file


def collect_machine(host: Host, loader: LibraryLoader, prefix: str) -> MachineFacts:
    """Return the facts of this machine."""
    variables = host.environment()
    gpus, driver, problem = _ask_nvidia_smi(host)
    mpirun = shutil.which("mpirun", path=variables.get("PATH"))
    xids, silence = _read_kernel_log(host)
    shm_total, shm_free = _space("/dev/shm")  # noqa: S108  only its size is asked
    return MachineFacts(
        system=_system_name(),
        container=container_kind(variables),
        driver=driver,
        driver_problem=problem,
        gpus=gpus,
        toolkits=_cuda_toolkits(""),
        libstdcxx=_libstdcxx_version(loader),
        mpirun=_first_line(host, [mpirun, "--version"]) if mpirun else "",
        mpirun_path=mpirun or "",
        libmpi=_library_behind(loader, "libmpi.so"),
        uv_path=shutil.which("uv", path=variables.get("PATH")) or "",
        shm_bytes=shm_total,
        shm_free_bytes=shm_free,
        memlock_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        can_lock=_may_lock_memory(),
        pids_limit=_cgroup_number("pids.max", "pids/pids.max"),
        memory_limit_bytes=_cgroup_number("memory.max", "memory/memory.limit_in_bytes"),
        memory_bytes=_memory_bytes(),
        disks=tuple(_disks(variables, prefix)),
        xids=xids,
        kernel_log=silence,
        now=host.now(),
        newest_file=_newest_change(prefix),
        pointers=tuple(islice(_weight_pointers(os.getcwd()), MOST_POINTERS)),
        triton_image=_read(Path("/opt/tritonserver/TRITON_VERSION")),
    )


def read_machine_of_root(root: str) -> MachineFacts:
    """Return what a root file system tells of its machine without being run."""
    release = _read(Path(root) / "etc/os-release")
    name = re.search(r'^PRETTY_NAME="?([^"\n]+)', release, re.MULTILINE)
    return MachineFacts(
        system=name[1] if name else "",
        container="root file system",
        toolkits=_cuda_toolkits(root),
        triton_image=_read(Path(root) / "opt/tritonserver/TRITON_VERSION"),
        driver_problem="a root file system has no driver",
    )


def _read(path: Path, limit: int = 65536) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(limit).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _first_line(host: Host, argv: list[str]) -> str:
    done = host.run(argv, timeout_s=5)
    lines = (done.stdout or done.stderr).decode("utf-8", "replace").strip().splitlines()
    return next((line.strip()[:200] for line in lines if line.strip()), "")


def _system_name() -> str:
    name = re.search(r'^PRETTY_NAME="?([^"\n]+)', _read(Path("/etc/os-release")), re.MULTILINE)
    return name[1] if name else os.uname().sysname


def _ask_nvidia_smi(host: Host) -> tuple[tuple[GpuFacts, ...], str, str]:
    done = host.run(SMI, timeout_s=10)
    text = done.stdout.decode("utf-8", "replace")
    if done.status != 0:
        return (), "", (done.problem or (text + done.stderr.decode("utf-8", "replace")).strip())[:400]
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    rows = [row for row in rows if len(row) == 4]
    gpus = tuple(
        GpuFacts(name=row[0], memory_mib=int(row[1]) if row[1].isdigit() else 0, capability=row[2]) for row in rows
    )
    return gpus, rows[0][3] if rows else "", ""


def _read_kernel_log(host: Host) -> tuple[tuple[str, ...], str]:
    """Return the driver's fault lines, or why the kernel's messages cannot be read."""
    done = host.run(["dmesg"], timeout_s=5)
    if done.status != 0:
        return (), done.problem or done.stderr.decode("utf-8", "replace").strip()[:200]
    lines = [line for line in done.stdout.decode("utf-8", "replace").splitlines() if "NVRM: Xid" in line]
    return tuple(lines[-MOST_XIDS:]), ""


def container_kind(variables: Mapping[str, str]) -> str:
    """Return what kind of container this is, or nothing."""
    if "KUBERNETES_SERVICE_HOST" in variables:
        return "Kubernetes"
    if "APPTAINER_NAME" in variables or "SINGULARITY_NAME" in variables:
        return "Apptainer"
    if Path("/run/.containerenv").exists():
        return "Podman"
    if Path("/.dockerenv").exists() or "docker" in _read(Path("/proc/1/cgroup")):
        return "Docker"
    return ""


def _cuda_toolkits(root: str) -> tuple[str, ...]:
    folders = sorted(Path(f"{root}/usr/local").glob("cuda-[0-9]*")) if Path(f"{root}/usr/local").is_dir() else []
    return tuple(folder.name.removeprefix("cuda-") for folder in folders[:20])


def _libstdcxx_version(loader: LibraryLoader) -> str:
    path = loader.cache.get("libstdc++.so.6")
    if not path or not can_read_elf():
        return ""
    versions = [
        tuple(map(int, match[1].split(".")))
        for name in defined_versions(path)
        if (match := re.fullmatch(r"GLIBCXX_([\d.]+)", name))
    ]
    return "GLIBCXX_" + ".".join(map(str, max(versions))) if versions else ""


def _library_behind(loader: LibraryLoader, name: str) -> str:
    """Return the file that a program gets which opens a library by its bare name; empty where there is none."""
    path = loader.resolve(SharedObject(""), name).path
    return os.path.realpath(path) if path else ""


def _space(path: str) -> tuple[int, int]:
    try:
        facts = os.statvfs(path)
    except OSError:
        return -1, -1
    return facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize


def _may_lock_memory() -> bool:
    """Whether the limit on locked memory does not bind this user."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", _read(Path("/proc/self/status")), re.MULTILINE)
    return bool(match and int(match[1], 16) >> CAP_IPC_LOCK & 1)


def _cgroup_number(second: str, first: str) -> int:
    for path in (Path("/sys/fs/cgroup") / second, Path("/sys/fs/cgroup") / first):
        text = _read(path, 64)
        if text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return -1


def _memory_bytes() -> int:
    match = re.search(r"^MemTotal:\s*(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _disks(variables: Mapping[str, str], prefix: str) -> Iterator[DiskFacts]:
    home = variables.get("HOME", "/root")
    cache = variables.get("XDG_CACHE_HOME") or f"{home}/.cache"
    purposes = {
        "the Python environment": prefix,
        "the current folder": os.getcwd(),
        "temporary files": variables.get("TMPDIR") or "/tmp",  # noqa: S108  only its free space is asked
        "the model cache": variables.get("HF_HOME") or f"{cache}/huggingface",
        "caches": cache,
    }
    for purpose, path in purposes.items():
        place = Path(path) if path else Path("/")
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            facts = os.statvfs(place)
        except OSError:
            continue
        yield DiskFacts(
            purpose=purpose,
            path=str(place),
            free_bytes=facts.f_bavail * facts.f_frsize,
            total_bytes=facts.f_blocks * facts.f_frsize,
            free_files=facts.f_favail if facts.f_files else -1,
        )


def _newest_change(prefix: str) -> float:
    """Return when the environment was last changed, to see a clock that is behind it."""
    times = []
    for folder in Path(prefix).glob("lib/python3*/site-packages") if prefix else ():
        times += [changed_at(f"{folder}/{name}") for name in list_names(str(folder))[:500]]
    return max(times, default=0.0)


def _weight_pointers(folder: str) -> Iterator[str]:
    """Yield weights in a folder, and up to two below it, that are Git LFS pointers."""
    base = Path(folder)
    paths = (path for pattern in ("*", "*/*", "*/*/*") for path in base.glob(pattern))
    for path in islice(paths, MOST_LOOKED_AT):
        if path.suffix in WEIGHTS and _is_pointer(path):
            yield str(path)


def _is_pointer(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= POINTER_BYTES and path.read_bytes().startswith(LFS_POINTER)
    except OSError:
        return False
