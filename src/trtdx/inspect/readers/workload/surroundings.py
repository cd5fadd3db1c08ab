"""What a command runs in: the image, GPUs, shared memory, ports and mounts of a container or a Slurm job.

Kubernetes, compose, Dockerfiles, `docker run` and `#SBATCH` all become one `Surroundings`, and that becomes facts of
the command and of the machine it runs on.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.inspect.facts.artifact import Artifact, Fact, FactCollector
from trtdx.knowledge.versions import release_of_image, tensorrt_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.host import Host

SHARED_MEMORY = "/dev/shm"  # noqa: S108
DEFAULT_SHM = 64 << 20  # of Docker and of Kubernetes where nobody says otherwise
MAX_VARIABLES = 200
UNIT_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
UNKNOWN_VALUE = "__unknown__"  # stands for what only a template's values, an .env file or a secret says
PLAIN_PATH = re.compile(r"[\w./@+-]+")


class HostMount(NamedTuple):
    """A folder of the host inside a container."""

    target: str
    source: str


class Surroundings(msgspec.Struct, kw_only=True):
    """One container or job; what is not stated is None."""

    system: str
    unit: str = ""
    image: Fact | None = None
    release: Fact | None = None  # installed into the image
    gpus: Fact | None = None  # on one machine
    speaks_of_gpus: bool = False  # in a way that gives no number
    asks_for_gpus: bool = False  # this kind of description is where GPUs are asked for
    nodes: Fact | None = None
    tasks: Fact | None = None  # ranks that Slurm starts where srun names no number
    shm: Fact | None = None
    memory: Fact | None = None
    memlock: Fact | None = None
    mpi: Fact | None = None
    ports: list[int] = []
    ports_place: str = ""
    callers: dict[str, int] = {}  # the port that each probe and service calls
    environment: dict[str, Fact] = {}
    mounts: list[HostMount] = []
    files: dict[str, tuple[str, int]] = {}
    refused: list[Fact] = []
    no_shell: list[Fact] = []
    is_container: bool = True
    mounted_folders: tuple[str, ...] = ()  # folders of this machine that are mounted into it


def put_surroundings_facts(facts: FactCollector, surroundings: Surroundings, place: str) -> None:
    """Put what is stated, under the names agreements know."""
    facts.put("container.system", surroundings.system, place)
    for name in ("image", "gpus", "nodes", "memory_bytes", "memlock", "mpi", "shm_bytes"):
        fact = getattr(surroundings, name.removesuffix("_bytes"))
        if fact is not None:
            facts.put(f"container.{name}", fact.value, fact.where)
    if surroundings.asks_for_gpus and surroundings.gpus is None and not surroundings.speaks_of_gpus:
        facts.put("container.no_gpus", True, place)
    if surroundings.ports:
        facts.put("container.ports", sorted(set(surroundings.ports)), surroundings.ports_place or place)
    if surroundings.callers:
        facts.put("container.callers", surroundings.callers, surroundings.ports_place or place)
    if surroundings.environment:
        table = {name: str(fact.value) for name, fact in list(surroundings.environment.items())[:MAX_VARIABLES]}
        facts.put("container.environment", table, next(iter(surroundings.environment.values())).where)
    for name in ("refused", "no_shell"):
        for fact in getattr(surroundings, name)[:20]:
            facts.add(f"container.{name}", str(fact.value), fact.where)
    _put_visible_gpus(facts, surroundings)


def _put_visible_gpus(facts: FactCollector, surroundings: Surroundings) -> None:
    """Put how many GPUs CUDA_VISIBLE_DEVICES leaves; "all" and names of MIG slices say nothing."""
    fact = surroundings.environment.get("CUDA_VISIBLE_DEVICES")
    listed = re.fullmatch(r"\d{1,3}(?:,\d{1,3})*", str(fact.value).replace(" ", "")) if fact else None
    if fact is not None and listed:
        facts.put("container.visible_gpus", listed[0].count(",") + 1, fact.where)


def machine_from_surroundings(surroundings: Surroundings, facts: FactCollector) -> Artifact | None:
    """Return the machine that is described: its release by the image, its GPUs by the limits."""
    machine_facts = FactCollector()
    release, where = _stated_release(surroundings)
    if release:
        machine_facts.put("gpu.runtime", release, where)
        machine_facts.put("gpu.tensorrt", tensorrt_of(release) or None, f"TensorRT of release {release}")
    counts = [facts.get("container.gpus"), facts.get("container.visible_gpus")]
    known_counts = [count for count in counts if isinstance(count, int)]
    if known_counts:
        several = bool(facts.get("runtime.launcher")) and surroundings.nodes is not None
        nodes = surroundings.nodes.value if several and surroundings.nodes else 1
        fact = surroundings.gpus if surroundings.gpus and surroundings.gpus.value == min(known_counts) else None
        place = fact or surroundings.environment.get("CUDA_VISIBLE_DEVICES")
        machine_facts.put("gpu.count", min(known_counts) * nodes, place.where if place else surroundings.system)
    done = machine_facts.to_dict()
    return Artifact("machine", surroundings.system, done, unit=surroundings.unit) if done else None


def _stated_release(surroundings: Surroundings) -> tuple[str, str]:
    """Return the release that runs: the one installed on top of the image, else the image's own."""
    if surroundings.release is not None:
        return str(surroundings.release.value), surroundings.release.where
    if surroundings.image is None:
        return "", ""
    return release_of_image(str(surroundings.image.value)), surroundings.image.where


def running_release(surroundings: Surroundings) -> str:
    return _stated_release(surroundings)[0]


def size_in_bytes(value: object) -> int | None:
    """Return "16Gi", "16G", "1gb" or 1048576 as bytes; capitals alone are Kubernetes' powers of ten."""
    size = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,6})?)\s*([kmgtKMGT]?)(i?)([bB]?)\s*", str(value))
    if size is None:
        return None
    is_decimal = size[2].isupper() and not size[3] and not size[4]
    return int(float(size[1]) * (1000 if is_decimal else 1024) ** UNIT_POWERS[size[2].lower()])


def parse_small_integer(value: object) -> int | None:
    text = str(value).strip()
    return int(text) if text.isdecimal() and len(text) < 7 else None


def shell_text_from_words(words: Iterable[tuple[str, int]]) -> str:
    """Return words as shell text in which each stands on its own line of the file it came from."""
    text, at = "", 1
    for word, line in words:
        gap = max(line - at, 0)
        text += "\n" * gap if not text.strip() else "\\\n" * gap
        at += gap
        quoted = f'"{mark_unknown_values(word)}"' if UNKNOWN_VALUE in word else shlex.quote(word)
        text += f"{quoted} "
        at += quoted.count("\n")
    return text


def mark_unknown_values(text: str) -> str:
    """Return shell text in which a value that stands elsewhere is a variable that nobody sets."""
    return text.replace(UNKNOWN_VALUE, "${VALUE_FROM_ELSEWHERE}")


def inline_shell_script(words: list[tuple[str, int]]) -> tuple[str, int] | None:
    """Return the script of ["bash", "-c", script] and the line it begins on."""
    for at, (word, _) in enumerate(words[:-1]):
        if re.fullmatch(r"-[a-z]*c", word) and at and re.fullmatch(r"(?:.*/)?(?:ba|z|da)?sh", words[0][0]):
            return words[at + 1]
    return None


def command_text(words: list[tuple[str, int]], environment: dict[str, Fact]) -> str:
    """Return a container's command as shell text; in a script the variables of the container are known."""
    script = inline_shell_script(words)
    if script is None:
        return shell_text_from_words(words)
    text, line = script
    assignments = " ".join(
        f"{name}={shlex.quote(str(fact.value))}"
        for name, fact in environment.items()
        if re.fullmatch(r"[A-Za-z_]\w*", name) and "\n" not in str(fact.value)
    )
    return f"{assignments}{chr(10) * max(line - 1, 1 if assignments else 0)}{mark_unknown_values(text)}"


def replace_mounted_paths(host: Host, text: str, mounts: list[HostMount]) -> tuple[str, tuple[str, ...]]:
    """Return a command with the paths of this machine in place of the container's, and the folders they lie in."""
    from trtdx.inspect.readers.server.named_paths import path_kind

    here = []
    for mount in sorted(mounts, key=lambda mount: -len(mount.target)):
        source, target = mount.source.rstrip("/") or "/", mount.target.rstrip("/")
        usable = bool(target) and PLAIN_PATH.fullmatch(source) and path_kind(host, source) != "absent"
        if usable and source != target:
            text = re.sub(rf"(?<![\w./-]){re.escape(target)}(?=[/\s'\"]|$)", source, text)
        if usable:
            here.append(source)
    return text, tuple(here)
