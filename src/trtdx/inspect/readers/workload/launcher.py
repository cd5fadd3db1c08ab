"""What stands around a program on its command line: `docker run`, `srun` and the directives of an sbatch script."""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import TYPE_CHECKING

from trtdx.inspect.facts.artifact import Fact
from trtdx.inspect.readers.workload.surroundings import (
    DEFAULT_SHM,
    HostMount,
    Surroundings,
    parse_small_integer,
    size_in_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.shell import ShellWord
    from trtdx.inspect.readers.server.commands import CommandLine

CONTAINER_ENGINES = ("docker", "podman", "nerdctl")
# Flags of `docker run` that take no value.
DOCKER_SWITCHES = re.compile(
    r"-[itdP]+|--(?:rm|tty|interactive|detach|privileged|init|read-only|publish-all|no-healthcheck|sig-proxy|oom-kill-disable)(?:=.*)?"
)
DOCKER_SHORT_FLAGS = {
    "-v": "--volume", "-e": "--env", "-p": "--publish", "-m": "--memory", "-u": "--user", "-w": "--workdir",
}  # fmt: skip
SBATCH_DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(.+)$", re.MULTILINE)
SLURM_SHORT_FLAGS = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus", "-c": "--cpus-per-task"}
VISIBLE_DEVICES = re.compile(r"^\s*(?:export\s+)?CUDA_VISIBLE_DEVICES=([\d,]+)\s*(?:$|;)", re.MULTILINE)


def surroundings_of_command(line: CommandLine, text: str, place: str) -> Surroundings | None:
    """Return what a command line or script says of the container or job it runs in; None where it says nothing."""
    surroundings = _docker_surroundings(line, place) or Surroundings(system="", is_container=False)
    _put_environment_variables(surroundings, line, text, place)
    _put_slurm_job(surroundings, line, text, place)
    spoken = surroundings.system or surroundings.environment or surroundings.tasks or surroundings.nodes
    surroundings.system = surroundings.system or "command line"
    return surroundings if spoken else None


def _put_environment_variables(surroundings: Surroundings, line: CommandLine, text: str, place: str) -> None:
    exported = VISIBLE_DEVICES.findall(text)
    if exported:
        surroundings.environment.setdefault("CUDA_VISIBLE_DEVICES", Fact(exported[-1], place))
    for word in line.before:
        name, equals, value = word.text.partition("=")
        if equals and re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) and word.is_known:
            surroundings.environment[name] = Fact(value, f"{place}: {name}")


def _docker_surroundings(line: CommandLine, place: str) -> Surroundings | None:
    """Return the container that `docker run` makes around the program."""
    words = line.before
    start = next((at for at, word in enumerate(words) if posixpath.basename(word.text) in CONTAINER_ENGINES), None)
    if start is None or "run" not in [word.text for word in words[start : start + 4]]:
        return None
    surroundings = Surroundings(system="docker run", asks_for_gpus=True)
    first = [word.text for word in words].index("run", start) + 1
    for flag, value, word in _docker_flags(words[first:], surroundings, place):
        if word.is_known:
            _put_docker_limits(surroundings, flag, value, f"{place}: {flag}")
            _put_docker_connections(surroundings, flag, value, f"{place}: {flag}")
    if surroundings.shm is None:
        surroundings.shm = Fact(DEFAULT_SHM, f"{place}: docker run without --shm-size or --ipc=host")
    elif surroundings.shm.value < 0:
        surroundings.shm = None  # the host's own
    return surroundings


def _docker_flags(
    words: tuple[ShellWord, ...], surroundings: Surroundings, place: str
) -> Iterator[tuple[str, str, ShellWord]]:
    """Yield the flags of `docker run` up to the image, which is noted."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.text.startswith("-"):
            surroundings.image = Fact(word.text, f"{place}: image") if word.is_known else None
            return
        name, equals, value = word.text.partition("=")
        if not equals and not DOCKER_SWITCHES.fullmatch(word.text):
            value = words[at].text if at < len(words) else ""
            at += 1
        yield DOCKER_SHORT_FLAGS.get(name, name), value, word


def _put_docker_limits(surroundings: Surroundings, flag: str, value: str, where: str) -> None:
    if flag == "--gpus":
        surroundings.gpus = gpus_from_docker_flag(value, where)
        surroundings.speaks_of_gpus = True
    elif flag in ("--runtime", "--device"):
        surroundings.speaks_of_gpus = surroundings.speaks_of_gpus or "nvidia" in value
    elif flag == "--shm-size" and surroundings.shm is None:
        surroundings.shm = Fact(size_in_bytes(value) or -1, where)
    elif flag == "--ipc" and value.startswith(("host", "container:")):
        surroundings.shm = Fact(-1, where)
    elif flag == "--ulimit" and re.match(r"memlock=-?\d{1,18}\b", value):
        surroundings.memlock = Fact(int(value.removeprefix("memlock=").partition(":")[0]), where)
    elif flag == "--memory" and size_in_bytes(value):
        surroundings.memory = Fact(size_in_bytes(value), where)


def _put_docker_connections(surroundings: Surroundings, flag: str, value: str, where: str) -> None:
    if flag == "--env" and "=" in value:
        name, _, text = value.partition("=")
        surroundings.environment[name] = Fact(text, where)
        surroundings.speaks_of_gpus = surroundings.speaks_of_gpus or name == "NVIDIA_VISIBLE_DEVICES"
    elif flag == "--publish":
        port = parse_small_integer(value.rpartition(":")[2].partition("/")[0])
        surroundings.ports += [port] if port else []
        surroundings.ports_place = where
    elif flag in ("--volume", "--mount"):
        surroundings.mounts += mounts_from_docker_flag(value)


def gpus_from_docker_flag(value: str, where: str) -> Fact | None:
    """Return how many GPUs `--gpus` gives: 2, "device=0,1"; "all" is no number."""
    text = value.strip("'\"")
    named = re.search(r"device=([\w,-]+)", text)
    if named:
        return Fact(len([device for device in named[1].split(",") if device]), where)
    number = parse_small_integer(text.removeprefix("count="))
    return Fact(number, where) if number is not None else None


def mounts_from_docker_flag(value: str) -> list[HostMount]:
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
    return [HostMount(target, source)] if is_folder else []


def _put_slurm_job(surroundings: Surroundings, line: CommandLine, text: str, place: str) -> None:
    """Put what Slurm is asked for: by #SBATCH, and by srun for its own step."""
    job = {}
    for words in SBATCH_DIRECTIVE.findall(text):
        job.update(_parse_slurm_options(words))
    step = _srun_options(line)
    if not job and "srun" not in line.launcher:
        return
    surroundings.system = "Slurm" if not surroundings.system else surroundings.system
    both = job | step
    nodes = parse_small_integer(both.get("--nodes", "1")) if "--nodes" in both else None
    if nodes:
        surroundings.nodes = Fact(nodes, f"{place}: --nodes")
    _put_slurm_gpus(surroundings, both, nodes or 1, place)
    tasks = _slurm_tasks(both, nodes)
    if "srun" in line.launcher and tasks:
        surroundings.tasks = Fact(tasks, f"{place}: --ntasks")
    kind = step.get("--mpi") or (re.search(r"SLURM_MPI_TYPE=(\w+)", text) or ["", ""])[1]
    if kind:
        surroundings.mpi = Fact(kind, f"{place}: --mpi")
    image = both.get("--container-image", "").replace("#", "/")
    if image:
        surroundings.image = Fact(image, f"{place}: --container-image")


def _put_slurm_gpus(surroundings: Surroundings, options: dict[str, str], nodes: int, place: str) -> None:
    per_node = options.get("--gpus-per-node", "").rpartition(":")[2]
    listed = re.search(r"gpu(?::[\w-]+)?:(\d{1,4})", options.get("--gres", ""))
    total = parse_small_integer(options.get("--gpus", "").rpartition(":")[2])
    if parse_small_integer(per_node) or listed:
        count = parse_small_integer(per_node) or int(listed[1] if listed else 0)
        flag = "--gpus-per-node" if parse_small_integer(per_node) else "--gres"
        surroundings.gpus = Fact(count, f"{place}: {flag}")
    elif total and total % nodes == 0:
        surroundings.gpus = Fact(total // nodes, f"{place}: --gpus")


def _slurm_tasks(options: dict[str, str], nodes: int | None) -> int | None:
    total, per_node = (
        parse_small_integer(options.get("--ntasks", "")),
        parse_small_integer(options.get("--ntasks-per-node", "")),
    )
    if total:
        return total
    return per_node * nodes if per_node and nodes else None


def _parse_slurm_options(text: str) -> dict[str, str]:
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
            options[SLURM_SHORT_FLAGS.get(name, name)] = value
    return options


def _srun_options(line: CommandLine) -> dict[str, str]:
    """Return the options of srun that are known; those of what it starts come after its first plain word."""
    words = list(line.before)
    start = next((at for at, word in enumerate(words) if posixpath.basename(word.text) == "srun"), None)
    if start is None:
        return {}
    text = " ".join(shlex.quote(word.text) for word in words[start + 1 :] if word.is_known)
    return _parse_slurm_options(text)
