"""`trtdx build`: runs what is stale of a plan, says what is, cleans, verifies and repeats; questions in, `Report` out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.build.plan.clean import bring_back, plan_removal, set_aside
from trtdx.build.plan.execute import PlanStepRunner, recover_step
from trtdx.build.plan.fingerprint import FileHasher
from trtdx.build.plan.manifest import verify_manifest, write_manifest
from trtdx.build.plan.read_plan import read_plan
from trtdx.build.plan.reproduce import repeat_step
from trtdx.build.plan.run_report import (
    report_repetitions,
    report_run,
    report_status,
    report_verification,
)
from trtdx.build.plan.schedule import PlanRun, StepProgress, default_jobs, memory_budget
from trtdx.build.plan.staleness import Surveyor, examine_step
from trtdx.build.plan.state import PlanState
from trtdx.case import CaseWriter
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.build.plan.clean import Removal
    from trtdx.build.plan.nouns import PlannedStep, StepState
    from trtdx.build.plan.read_plan import BuildPlan
    from trtdx.build.plan.schedule import StepOutcome
    from trtdx.host import Host
    from trtdx.model import Report
    from trtdx.rule import RuleBook

QUIET = StepProgress()


class PlanWork:
    """A plan that is open: its state, the digests that are known, and what looks at its inputs."""

    def __init__(self, host: Host, path: str) -> None:
        self.host = host
        self.plan: BuildPlan = read_plan(host, path)
        self.state = PlanState(host, self.plan)
        self.hasher = FileHasher(host, self.state.hashes())
        self.surveyor = Surveyor(host, self.plan, self.hasher)

    def select(self, names: Sequence[str]) -> list[PlannedStep]:
        steps = self.plan.select(tuple(names))
        self.surveyor.ask_tools(steps)
        return steps

    def examine(self, steps: Sequence[PlannedStep]) -> list[StepState | tuple[PlannedStep, str]]:
        """Return the state of each step; where an input is missing, the step and what is missing."""
        states: list[StepState | tuple[PlannedStep, str]] = []
        for step in steps:
            try:
                states.append(examine_step(self.state, self.surveyor, self.hasher, step))
            except InputError as err:  # noqa: PERF203 (each step is told apart)
                states.append((step, err.message))
        self.hasher.save()
        return states


def run_plan(
    host: Host, path: str, book: RuleBook, *, steps: Sequence[str] = (), jobs: int = 0, progress: StepProgress = QUIET
) -> Report:
    """Run what is stale, write the manifest, and report; a failing step is diagnosed from its log."""
    work = PlanWork(host, path)
    work.state.prepare()
    for step in work.plan.steps:
        with work.state.lock(step.key):
            recover_step(work.state, step, work.hasher)
    work.state.clear_staging()
    selected = work.select(steps)
    runner = PlanRun(host, work.state, work.hasher, work.surveyor)
    budget = memory_budget(host, work.plan.file.memory)
    try:
        outcomes = runner.run(selected, jobs=jobs or default_jobs(), budget_bytes=budget, progress=progress)
    finally:
        work.hasher.save()
    if all(outcome.what in ("made", "fresh") for outcome in outcomes.values()):
        write_manifest(
            host, work.plan, [record for step in work.plan.steps if (record := work.state.read_record(step.key))]
        )
        work.state.forget_asides()
    report = report_run(host, work.plan, outcomes, book)
    _keep_case(host, work, outcomes, report)
    return report


def _keep_case(host: Host, work: PlanWork, outcomes: dict[str, StepOutcome], report: Report) -> None:
    """Keep the logs of what ran as a case; a disk that is full does not hide the answer."""
    ran = {key: outcome for key, outcome in outcomes.items() if outcome.what in ("made", "failed")}
    if not ran:
        return
    folder = work.state.folder / "cases" / f"{int(host.now() * 1000)}"
    try:
        case = CaseWriter(host, str(folder))
        case.record("command", {"plan": str(work.plan.path), "steps": sorted(ran)})
        for key in ran:
            log = work.state.log(key)
            if log.is_file():
                for _ in case.copy_log(f"{key}.log", iter([log.read_bytes()])):
                    pass
        case.add_report(report)
    except (InputError, OSError):
        return


def examine_plan(host: Host, path: str, *, steps: Sequence[str] = ()) -> Report:
    """Return what would run and why; nothing is made."""
    work = PlanWork(host, path)
    return report_status(work.plan, work.examine(work.select(steps)))


def plan_cleanup(host: Host, path: str, *, steps: Sequence[str], everything: bool) -> tuple[PlanWork, list[Removal]]:
    """Return what `clean` would remove: named steps, all of them, or what is stale."""
    work = PlanWork(host, path)
    if everything:
        return work, plan_removal(work.state, work.plan.steps, {}, everything=True)
    if steps:
        work.plan.select(tuple(steps))  # refuses names that no step has
        named = [step for step in work.plan.steps if step.key in steps or step.key.partition("@")[0] in steps]
        return work, plan_removal(work.state, named, {}, everything=False)
    states = [state for state in work.examine(work.select(())) if not isinstance(state, tuple)]
    stale = {state.step.key: state.reasons[0] for state in states if state.is_stale and state.record is not None}
    return work, plan_removal(work.state, [work.plan.step(key) for key in stale], stale, everything=False)


def clean_plan(work: PlanWork, removals: Sequence[Removal]) -> Path:
    """Move what was shown aside, and return where it is until the next build that succeeds."""
    work.state.prepare()
    return set_aside(work.state, removals, f"{int(work.host.now() * 1000)}")


def undo_clean(host: Host, path: str) -> list[str]:
    """Bring back what the last clean set aside."""
    return bring_back(PlanWork(host, path).state)


def verify_folder(host: Host, folder: str, book: RuleBook) -> Report:
    """Return whether a folder holds what its manifest says."""
    return report_verification(verify_manifest(FileHasher(host, None), Path(folder)), book)


def repeat_plan(host: Host, path: str, book: RuleBook, *, steps: Sequence[str] = ()) -> Report:
    """Make finished steps once more and compare; what is there stays untouched."""
    work = PlanWork(host, path)
    work.state.prepare()
    selected = work.select(steps)
    runner = PlanStepRunner(host, work.state, work.hasher, work.surveyor)
    repetitions = []
    for step in selected:
        record = work.state.read_record(step.key)
        if record is None:
            raise InputError(f"{step.key} was never made", fix=f"trtdx build {path}")
        if not step.declaration.in_place:
            repetitions.append(repeat_step(work.state, runner, work.hasher, step, record))
    return report_repetitions(repetitions, book)
