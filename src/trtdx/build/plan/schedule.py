"""Runs what is stale: steps that do not need each other side by side, as far as memory reaches."""

from __future__ import annotations

import os
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import msgspec

from trtdx.build.plan.execute import PlanStepRunner, StepFailedError, recover_step
from trtdx.build.plan.nouns import StepRecord
from trtdx.build.plan.staleness import examine_step
from trtdx.errors import InputError, TrtdxError
from trtdx.words import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.build.plan.fingerprint import FileHasher
    from trtdx.build.plan.nouns import PlannedStep
    from trtdx.build.plan.staleness import Surveyor
    from trtdx.build.plan.state import PlanState
    from trtdx.host import Host


class StepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a step in one run."""

    key: str
    what: str  # "made", "fresh", "failed", "not reached"
    reasons: tuple[str, ...] = ()
    record: StepRecord | None = None
    error: str = ""
    log: str = ""
    foreign: tuple[str, ...] = ()
    free_bytes: int | None = None  # on the disk of the outputs, when the step failed


class PlanRun:
    """One run over a plan."""

    def __init__(self, host: Host, state: PlanState, hasher: FileHasher, surveyor: Surveyor) -> None:
        self._host, self._state, self._hasher, self._surveyor = host, state, hasher, surveyor
        self._runner = PlanStepRunner(host, state, hasher, surveyor)
        self.outcomes: dict[str, StepOutcome] = {}

    def run(
        self, steps: Sequence[PlannedStep], *, jobs: int, budget_bytes: int, progress: StepProgress
    ) -> dict[str, StepOutcome]:
        """Run the steps in an order that their needs allow, and return what became of each."""
        waiting = list(steps)
        running: dict[Future[StepOutcome], PlannedStep] = {}
        with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool, self._runner.end_if_interrupted():
            while waiting or running:
                for step in self._ready(waiting, running, jobs, budget_bytes):
                    waiting.remove(step)
                    running[pool.submit(self._run_step, step, progress)] = step
                if not running:
                    break
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    self.outcomes[running.pop(future).key] = future.result()
        for step in waiting:
            self.outcomes[step.key] = StepOutcome(key=step.key, what="not reached")
        return self.outcomes

    def _ready(
        self, waiting: list[PlannedStep], running: dict[Future[StepOutcome], PlannedStep], jobs: int, budget: int
    ) -> list[PlannedStep]:
        if any(outcome.what == "failed" for outcome in self.outcomes.values()):
            return []
        used = sum(self._memory_of(step) for step in running.values())
        ready: list[PlannedStep] = []
        for step in waiting:
            fits = used + self._memory_of(step) <= budget or not (running or ready)
            if self._needs_are_made(step) and fits and len(running) + len(ready) < jobs:
                ready.append(step)
                used += self._memory_of(step)
        return ready

    def _needs_are_made(self, step: PlannedStep) -> bool:
        return all(key in self.outcomes and self.outcomes[key].what in ("made", "fresh") for key in step.needs)

    def _memory_of(self, step: PlannedStep) -> int:
        """Return what a step takes: as declared, or what building an engine of its weights takes."""
        text = step.declaration.memory
        if text != "auto":
            return parse_size(text) if text else 0
        from trtdx.memory.ledger.build_memory import build_host_memory

        try:
            files = [path for _, path in self._surveyor.input_files(step)]
        except InputError:
            return 0
        weights = sum(
            path.stat().st_size for path in files if path.suffix in (".safetensors", ".bin", ".onnx", ".data")
        )
        return int(build_host_memory(weights).value)

    def _run_step(self, step: PlannedStep, progress: StepProgress) -> StepOutcome:
        try:
            with self._state.lock(step.key):
                return self._run_locked(step, progress)
        except StepFailedError as err:
            progress.end(step.key, "failed")
            return StepOutcome(
                key=step.key, what="failed", error=err.message, log=str(err.log), free_bytes=err.free_bytes
            )
        except TrtdxError as err:
            progress.end(step.key, "failed")
            return StepOutcome(key=step.key, what="failed", error=err.message)

    def _run_locked(self, step: PlannedStep, progress: StepProgress) -> StepOutcome:
        recover_step(self._state, step, self._hasher)
        before = examine_step(self._state, self._surveyor, self._hasher, step)
        if not before.is_stale:
            return StepOutcome(key=step.key, what="fresh", record=before.record)
        if before.foreign:
            return StepOutcome(key=step.key, what="failed", foreign=before.foreign, reasons=before.reasons)
        expected = before.record.seconds if before.record else None
        progress.begin(step.key, expected, before.reasons)
        record = self._runner.run(before, lambda phase, fraction: progress.advance(step.key, phase, fraction))
        progress.end(step.key, "made")
        return StepOutcome(key=step.key, what="made", reasons=before.reasons, record=record)


class StepProgress:
    """Is told how steps get on; says nothing. The command line has one that does."""

    def begin(self, key: str, expected_s: float | None, reasons: Sequence[str]) -> None:
        pass

    def advance(self, key: str, phase: str, fraction: float) -> None:
        pass

    def end(self, key: str, what: str) -> None:
        pass


def memory_budget(host: Host, declared: str) -> int:
    """Return the memory that steps may take together: as declared, else what this machine has free."""
    if declared:
        return parse_size(declared)
    try:
        with host.open("/proc/meminfo") as file:
            lines = file.read().decode().splitlines()
    except (InputError, OSError):
        return 1 << 62
    free = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return int(free) * 1024 if free else 1 << 62


def default_jobs() -> int:
    return max(1, os.cpu_count() or 1)
