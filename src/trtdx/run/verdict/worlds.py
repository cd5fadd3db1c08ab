"""Whether the world formed: every rank must see as many ranks as were started."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtdx.run.nouns import AgentRecord, ProcessEnd, RankStory

_MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_MEETING_PLACE = ("MASTER_ADDR", "MASTER_PORT")
_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


class LonelyWorld(NamedTuple):
    """Processes that were started together and each think they are alone."""

    processes: int
    launcher: str  # whose variables they carry
    library: str


class MissingRanks(NamedTuple):
    """Ranks that a rendezvous waits for and that nobody started."""

    expected: int
    ranks: tuple[int, ...]
    present: tuple[int, ...]


def find_lonely_world(stories: Sequence[RankStory]) -> LonelyWorld | None:
    ranks = [story for story in stories if story.rank is not None]
    if any(world["size"] > 1 for story in ranks for agent in story.agents for world in agent.worlds):
        return None
    lonely = [
        agent
        for story in ranks
        for agent in story.agents
        if any(world["library"] == "mpi4py" for world in agent.worlds)
    ]
    lonely = [agent for agent in lonely if _started_size(agent.variables) != 1 and _has_mpi_rank(agent.variables)]
    if len({story.rank for story in ranks if any(agent in lonely for agent in story.agents)}) < 2:
        return None
    return LonelyWorld(len(lonely), launcher_of(lonely[0].variables), "mpi4py")


def _has_mpi_rank(variables: Mapping[str, str]) -> bool:
    return any(name in variables for name in _MPI_RANKS)


def _started_size(variables: Mapping[str, str]) -> int:
    return next((int(variables[name]) for name in _MPI_SIZES if variables.get(name, "").isdigit()), 0)


def launcher_of(variables: Mapping[str, str]) -> str:
    if "OMPI_COMM_WORLD_RANK" in variables:
        return "Open MPI's mpirun"
    if "SLURM_PROCID" in variables:
        return "srun"
    return "MPICH's mpiexec" if "PMI_RANK" in variables else "a PMIx launcher"


def find_missing_ranks(stories: Sequence[RankStory]) -> MissingRanks | None:
    """Return the ranks that torch's rendezvous waits for although no process has them."""
    waiting = [
        story
        for story in stories
        for call in story.calls
        if call.name == "init_process_group" and (call.is_open or call.has_failed)
    ]
    if not waiting:
        return None
    sizes = [size for story in waiting if (size := _rendezvous_size(story))]
    present = _claimed_ranks(stories)
    if not sizes:
        return None
    expected = max(sizes)
    missing = tuple(rank for rank in range(expected) if rank not in present)
    return MissingRanks(expected, missing, tuple(sorted(present))) if missing else None


def _rendezvous_size(story: RankStory) -> int:
    call = next(call for call in story.calls if call.name == "init_process_group")
    sizes = [call.data.get("world_size", ""), *(agent.variables.get("WORLD_SIZE", "") for agent in story.agents)]
    return next((int(size) for size in sizes if size.isdigit()), 0)


def _claimed_ranks(stories: Sequence[RankStory]) -> set[int]:
    ranks = {story.rank for story in stories if story.rank is not None}
    for story in stories:
        ranks |= {int(call.data["rank"]) for call in story.calls if call.data.get("rank", "").isdigit()}
    return ranks


def find_claimed_twice(stories: Sequence[RankStory], ends: Mapping[int, ProcessEnd]) -> dict[int, int]:
    """Return ranks that more than one process brought to the same rendezvous, and how many did."""
    counts = {}
    for story in stories:
        meetings = [
            agent
            for agent in story.agents
            if agent.ppid not in story.pids and any(call.name == "init_process_group" for call in agent.calls)
        ]
        together = [agent for agent in meetings if any(_meet(agent, other, ends) for other in meetings)]
        if story.rank is not None and len(together) > 1:
            counts[story.rank] = len(together)
    return counts


def _meet(agent: AgentRecord, other: AgentRecord, ends: Mapping[int, ProcessEnd]) -> bool:
    """Whether two processes lived at the same time and met at the same address; one after the other is a restart."""
    if agent is other or any(agent.variables.get(name) != other.variables.get(name) for name in _MEETING_PLACE):
        return False
    first, second = sorted((agent, other), key=lambda entry: entry.started)
    return first.pid not in ends or ends[first.pid].time > second.started
