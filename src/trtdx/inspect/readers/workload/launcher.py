"""What stands around a program on its command line: `docker run`, `srun` and the directives of an sbatch script."""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import TYPE_CHECKING

from trtdx.inspect.facts.artifact import Fact
from trtdx.inspect.readers.workload.surroundings import (
    DEFAULT_SHM,
    Mount,
    Surroundings,
    size_in_bytes,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.shell import Word
    from trtdx.inspect.readers.server.commands import CommandLine

ENGINES = ("docker", "podman", "nerdctl")
# Flags of `docker run` that take no value.
SWITCHES = re.compile(
    r"-[itdP]+|--(?:rm|tty|interactive|detach|privileged|init|read-only|publish-all|no-healthcheck|sig-proxy|oom-kill-disable)(?:=.*)?"
)
SHORT = {
    "-v": "--volume", "-e": "--env", "-p": "--publish", "-m": "--memory", "-u": "--user", "-w": "--workdir",
}  # fmt: skip
DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(.+)$", re.MULTILINE)
SLURM_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus", "-c": "--cpus-per-task"}
VISIBLE = re.compile(r"^\s*(?:export\s+)?CUDA_VISIBLE_DEVICES=([\d,]+)\s*(?:$|;)", re.MULTILINE)


def surroundings_of(line: CommandLine, text: str, place: str) -> Surroundings | None:
    """Return what a command line or script says of the container or job it runs in; None where it says nothing."""
    surroundings = _container(line, place) or Surroundings(system="", is_container=False)
    _put_variables(surroundings, line, text, place)
    _put_job(surroundings, line, text, place)
    spoken = surroundings.system or surroundings.environment or surroundings.tasks or surroundings.nodes
    surroundings.system = surroundings.system or "command line"
    return surroundings if spoken else None


def _put_variables(around: Surroundings, line: CommandLine, text: str, place: str) -> None:
    exported = VISIBLE.findall(text)
    if exported:
        around.environment.setdefault("CUDA_VISIBLE_DEVICES", Fact(exported[-1], place))
    for word in line.before:
        name, equals, value = word.text.partition("=")
        if equals and re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) and word.is_known:
            around.environment[name] = Fact(value, f"{place}: {name}")


def _container(line: CommandLine, place: str) -> Surroundings | None:
    """Return the container that `docker run` makes around the program."""
    words = line.before
    start = next((at for at, word in enumerate(words) if posixpath.basename(word.text) in ENGINES), None)
    if start is None or "run" not in [word.text for word in words[start : start + 4]]:
        return None
    surroundings = Surroundings(system="docker run", asks_for_gpus=True)
    first = [word.text for word in words].index("run", start) + 1
    for flag, value, word in _flags(words[first:], surroundings, place):
        if word.is_known:
            _put_limits(surroundings, flag, value, f"{place}: {flag}")
            _put_connections(surroundings, flag, value, f"{place}: {flag}")
    if surroundings.shm is None:
        surroundings.shm = Fact(DEFAULT_SHM, f"{place}: docker run without --shm-size or --ipc=host")
    elif surroundings.shm.value < 0:
        surroundings.shm = None  # the host's own
    return surroundings


def _flags(words: tuple[Word, ...], around: Surroundings, place: str) -> Iterator[tuple[str, str, Word]]:
    """Yield the flags of `docker run` up to the image, which is noted."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.text.startswith("-"):
            around.image = Fact(word.text, f"{place}: image") if word.is_known else None
            return
        name, equals, value = word.text.partition("=")
        if not equals and not SWITCHES.fullmatch(word.text):
            value = words[at].text if at < len(words) else ""
            at += 1
        yield SHORT.get(name, name), value, word


def _put_limits(around: Surroundings, flag: str, value: str, where: str) -> None:
    if flag == "--gpus":
        around.gpus = gpus_of_docker(value, where)
        around.speaks_of_gpus = True
    elif flag in ("--runtime", "--device"):
        around.speaks_of_gpus = around.speaks_of_gpus or "nvidia" in value
    elif flag == "--shm-size" and around.shm is None:
        around.shm = Fact(size_in_bytes(value) or -1, where)
    elif flag == "--ipc" and value.startswith(("host", "container:")):
        around.shm = Fact(-1, where)
    elif flag == "--ulimit" and re.match(r"memlock=-?\d{1,18}\b", value):
        around.memlock = Fact(int(value.removeprefix("memlock=").partition(":")[0]), where)
    elif flag == "--memory" and size_in_bytes(value):
        around.memory = Fact(size_in_bytes(value), where)


def _put_connections(around: Surroundings, flag: str, value: str, where: str) -> None:
    if flag == "--env" and "=" in value:
        name, _, text = value.partition("=")
        around.environment[name] = Fact(text, where)
        around.speaks_of_gpus = around.speaks_of_gpus or name == "NVIDIA_VISIBLE_DEVICES"
    elif flag == "--publish":
        port = whole_number(value.rpartition(":")[2].partition("/")[0])
        around.ports += [port] if port else []
        around.ports_at = where
    elif flag in ("--volume", "--mount"):
        around.mounts += mounts_of_docker(value)


def gpus_of_docker(value: str, where: str) -> Fact | None:
    """Return how many GPUs `--gpus` gives: 2, "device=0,1"; "all" is no number."""
    text = value.strip("'\"")
    named = re.search(r"device=([\w,-]+)", text)
    if named:
        return Fact(len([device for device in named[1].split(",") if device]), where)
    number = whole_number(text.removeprefix("count="))
    return Fact(number, where) if number is not None else None


def mounts_of_docker(value: str) -> list[Mount]:
    """Return the mount of `-v SOURCE:TARGET[:ro]` or `--mount type=bind,source=S,target=T`."""
    plain = re.sub(r"\$\{?PWD\}?|\$\(pwd\)|`pwd`", ".", value)
    if "target=" in plain or "dst=" in plain:
        parts = dict(option.partition("=")[::2] for option in plain.split(","))
        source = parts.get("source") or parts.get("src") or ""
        target = parts.get("target") or parts.get("dst") or parts.get("destination") or ""
    else:
        source, _, rest = plain.partition(":")
        target = rest.partition(":")[0]
    is_folder = source.startswith(("/", ".")) and target.startswith("/")
    return [Mount(target, source)] if is_folder else []


def _put_job(around: Surroundings, line: CommandLine, text: str, place: str) -> None:
    """Put what Slurm is asked for: by #SBATCH, and by srun for its own step."""
    job = {}
    for words in DIRECTIVE.findall(text):
        job.update(_slurm_options(words))
    step = _step_options(line)
    if not job and "srun" not in line.launcher:
        return
    around.system = "Slurm" if not around.system else around.system
    both = job | step
    nodes = whole_number(both.get("--nodes", "1")) if "--nodes" in both else None
    if nodes:
        around.nodes = Fact(nodes, f"{place}: --nodes")
    _put_slurm_gpus(around, both, nodes or 1, place)
    tasks = _tasks(both, nodes)
    if "srun" in line.launcher and tasks:
        around.tasks = Fact(tasks, f"{place}: --ntasks")
    kind = step.get("--mpi") or (re.search(r"SLURM_MPI_TYPE=(\w+)", text) or ["", ""])[1]
    if kind:
        around.mpi = Fact(kind, f"{place}: --mpi")
    image = both.get("--container-image", "").replace("#", "/")
    if image:
        around.image = Fact(image, f"{place}: --container-image")


def _put_slurm_gpus(around: Surroundings, options: dict[str, str], nodes: int, place: str) -> None:
    per_node = options.get("--gpus-per-node", "").rpartition(":")[2]
    listed = re.search(r"gpu(?::[\w-]+)?:(\d{1,4})", options.get("--gres", ""))
    total = whole_number(options.get("--gpus", "").rpartition(":")[2])
    if whole_number(per_node) or listed:
        count = whole_number(per_node) or int(listed[1] if listed else 0)
        flag = "--gpus-per-node" if whole_number(per_node) else "--gres"
        around.gpus = Fact(count, f"{place}: {flag}")
    elif total and total % nodes == 0:
        around.gpus = Fact(total // nodes, f"{place}: --gpus")


def _tasks(options: dict[str, str], nodes: int | None) -> int | None:
    total, per_node = (
        whole_number(options.get("--ntasks", "")),
        whole_number(options.get("--ntasks-per-node", "")),
    )
    if total:
        return total
    return per_node * nodes if per_node and nodes else None


def _slurm_options(text: str) -> dict[str, str]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        words = text.split()
    options: dict[str, str] = {}
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        joined = re.fullmatch(r"(-[NnGc])(\d+)", word)
        if joined:
            name, value = joined[1], joined[2]
        elif not equals and name.startswith("-"):
            value = words[at + 1] if at + 1 < len(words) else ""
        if name.startswith("-"):
            options[SLURM_SHORT.get(name, name)] = value
    return options


def _step_options(line: CommandLine) -> dict[str, str]:
    """Return the options of srun that are known; those of what it starts come after its first plain word."""
    words = list(line.before)
    start = next((at for at, word in enumerate(words) if posixpath.basename(word.text) == "srun"), None)
    if start is None:
        return {}
    text = " ".join(shlex.quote(word.text) for word in words[start + 1 :] if word.is_known)
    return _slurm_options(text)
