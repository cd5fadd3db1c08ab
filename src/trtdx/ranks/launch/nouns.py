"""The nouns of launching: what is asked for, what is around it, and the plan with its reasons."""

from __future__ import annotations

import shlex
from enum import Enum
from typing import NamedTuple

import msgspec

from trtdx.model import Report
from trtdx.ranks.launch.remedies import SlurmPlace
from trtdx.ranks.mapping import ParallelSizes


class LaunchTarget(str, Enum):
    """Where a job is started."""

    INTERACTIVE = "interactive"
    DOCKER = "docker"
    SLURM = "slurm"
    K8S = "k8s"
    RAY = "ray"


class LaunchSurroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What counts for a launch of the machine it is started on."""

    is_root: bool = False
    cpus: int = 0
    gpus: int = 0
    place: SlurmPlace = SlurmPlace.NONE
    family: str = ""
    version: tuple[int, ...] = ()
    mpi_plugins: tuple[str, ...] = ()  # of srun; empty where it was not asked
    environment: dict[str, str] = {}
    is_container: bool = False


class LaunchQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be started, and where."""

    sizes: ParallelSizes
    target: LaunchTarget
    command: tuple[str, ...]
    runtime: str = ""
    gpus_per_node: int = 0
    hosts: tuple[str, ...] = ()
    image: str = ""

    @property
    def world(self) -> int:
        return self.sizes.world


class LaunchPart(NamedTuple):
    """Some words of a launch, and why they are there."""

    words: tuple[str, ...]
    reason: str


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A launch: what stands before the program, the program, and what goes around both.

    Attributes:
        parts: the words before the program, in order.
        variables: environment variables to be set for it.
        directives: of a batch script.
        before: commands that come first.
        notes: what the user has to know or do.
    """

    target: LaunchTarget
    nodes: int
    ranks_per_node: int
    program: tuple[str, ...]
    parts: tuple[LaunchPart, ...] = ()
    program_parts: tuple[LaunchPart, ...] = ()  # words that were added to the program's own
    variables: tuple[LaunchPart, ...] = ()
    directives: tuple[LaunchPart, ...] = ()
    before: tuple[LaunchPart, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The whole command."""
        before = [word for part in (*self.variables, *self.parts) for word in part.words]
        after = [word for part in self.program_parts for word in part.words]
        return [*before, *self.program, *after]

    @property
    def reasons(self) -> tuple[LaunchPart, ...]:
        return (*self.before, *self.directives, *self.variables, *self.parts, *self.program_parts)


class LaunchReport(Report, frozen=True, kw_only=True):
    """What `trtdx ranks launch` answers: a report, and the script or manifest it was made for."""

    script: str = ""


def join_shell(words: list[str] | tuple[str, ...]) -> str:
    """Return words as a shell line; assignments and variables that a shell is to fill in stay as they are."""
    return " ".join(word if _is_for_shell(word) else shlex.quote(word) for word in words)


def _is_for_shell(word: str) -> bool:
    name, equals, value = word.partition("=")
    return word.startswith("$") or (bool(equals) and name.isidentifier() and shlex.quote(value) == value)
