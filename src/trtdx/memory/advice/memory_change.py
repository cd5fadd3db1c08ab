"""One change to a set-up: what it does and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from trtdx.memory.advice.costs import STAGE_EFFORT
from trtdx.memory.question.setup_facts import differing_facts, stages_to_rerun
from trtdx.model import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtdx.memory.advice.costs import ChangeHarm
    from trtdx.memory.nouns import Setup


MEASURED_FIELDS = {
    "max_num_tokens", "max_batch_size", "tp", "weights", "gemm_plugin", "context_fmha", "packed", "max_beam_width",
}  # fmt: skip


class MemoryChange(NamedTuple):
    """One change to a set-up."""

    group: str  # two changes of one group exclude each other
    words: str
    apply: Callable[[Setup], Setup]
    harm: ChangeHarm
    saves: str  # the component or figure it is about

    def stages(self, setup: Setup) -> frozenset[Stage]:
        """Return the stages that have to be run again."""
        return stages_to_rerun(setup, differing_facts(setup, self.apply(setup)))


class ChangeCosts:
    """What sets of changes cost, for thousands of them: the stages of each are looked up once."""

    def __init__(self, setup: Setup, changes: Sequence[MemoryChange]) -> None:
        self._stages = {id(change): change.stages(setup) for change in changes}

    def cost_of_set(self, changes: Sequence[MemoryChange]) -> float:
        """Return the points of several changes; a stage is gone through once, and each one more has to be explained."""
        stages = frozenset[Stage]().union(*(self._stages[id(change)] for change in changes))
        work = sum(STAGE_EFFORT[stage.value] for stage in stages)
        return sum(change.harm.points for change in changes) + work + 0.5 * (len(changes) - 1)


def cost_of_changes(changes: Sequence[MemoryChange], setup: Setup) -> float:
    return ChangeCosts(setup, changes).cost_of_set(changes)


def apply_changes(setup: Setup, changes: Sequence[MemoryChange]) -> Setup:
    for change in changes:
        setup = change.apply(setup)
    return setup


def replace_part(part: str, **values: Any) -> Callable[[Setup], Setup]:
    def changed(setup: Setup) -> Setup:
        inner = replace(getattr(setup, part), **values)
        # What was read or measured of the old set-up says nothing of the new one's.
        forget: dict[str, Any] = {"weights_by_rank": ()} if part in ("layout", "formats") else {}
        if part != "device" and values.keys() & MEASURED_FIELDS:
            forget["activation"] = None
        return replace(setup, **{part: inner}, **forget)

    return changed
