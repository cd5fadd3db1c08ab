"""Runs one step: into a staging folder, and into its place only when it is complete."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.build.plan.fingerprint import files_below
from trtdx.build.plan.nouns import StepRecord
from trtdx.build.plan.read_plan import put_paths
from trtdx.build.plan.state import PendingMove, inside
from trtdx.errors import InputError, TrtdxError
from trtdx.host import start_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.build.plan.fingerprint import FileHasher
    from trtdx.build.plan.nouns import PlannedStep, StepState
    from trtdx.build.plan.staleness import Surveyor
    from trtdx.build.plan.state import PlanState
    from trtdx.host import Host

POLL_S = 0.05
REAP_S = 5.0


class StepFailedError(TrtdxError):
    """A step that did not end well: its status, its log, and whether the disk was full, which the log cannot say."""

    def __init__(self, key: str, message: str, log: Path) -> None:
        super().__init__(message)
        self.key, self.log = key, log
        self.free_bytes = shutil.disk_usage(log.parent).free if log.parent.is_dir() else None


class PlanStepRunner:
    """Runs steps of one plan."""

    def __init__(self, host: Host, state: PlanState, hasher: FileHasher, surveyor: Surveyor) -> None:
        self._host, self._state, self._hasher, self._surveyor = host, state, hasher, surveyor
        self._interrupted = threading.Event()

    @contextlib.contextmanager
    def end_if_interrupted(self) -> Iterator[None]:
        """End the commands of other threads when this one is interrupted: Ctrl-C does not reach their sessions."""
        try:
            yield
        except BaseException:
            self._interrupted.set()
            raise

    def run(self, step_state: StepState, progress: Callable[[str, float], None]) -> StepRecord:
        """Run a stale step and return its new record; a failure leaves the old outputs as they were."""
        step = step_state.step
        staging = self._state.staging(step.key)
        shutil.rmtree(staging, ignore_errors=True)
        started = self._host.now()
        documents = self._surveyor.documents(step)
        try:
            staging.mkdir(parents=True)
            targets = self._targets(step, staging)
            if step.declaration.in_place:
                self._state.drop_record(step.key)
            figures = self._make(step, staging, targets, progress)
            collected = self._collect(step, targets)
            record = StepRecord(
                key=step.key,
                plan=str(self._state.plan.path),
                fingerprint=step_state.fingerprint,
                files={name: digest for name, (_, digest) in collected.items()},
                started=started,
                seconds=round(self._host.now() - started, 3),
                documents=documents,
                figures=figures,
            )
            self._commit(step, staging, record)
        except OSError as err:
            raise StepFailedError(step.key, f"{step.key}: {err.strerror or err}", self._state.log(step.key)) from err
        finally:
            if (
                self._state.read_pending(step.key) is None
            ):  # else the outputs in it are complete, and the next run moves them
                shutil.rmtree(staging, ignore_errors=True)
        return record

    def make_outputs(self, step: PlannedStep, staging: Path, targets: dict[str, Path]) -> dict[str, Any]:
        """Make a step's outputs where they are asked for, and keep no record of it."""
        return self._make(step, staging, targets, lambda phase, fraction: None)

    def _targets(self, step: PlannedStep, staging: Path) -> dict[str, Path]:
        """Return where each output is made: in staging, or where it is to stay."""
        base = self._state.plan.output if step.declaration.in_place else staging / "out"
        targets = {output: base / output for output in step.outputs}
        for target in targets.values():
            if not inside(target, self._state.plan.output):
                raise InputError(f"{target} leads out of the output folder {self._state.plan.output}")
            target.parent.mkdir(parents=True, exist_ok=True)
        return targets

    def _make(
        self, step: PlannedStep, staging: Path, targets: dict[str, Path], progress: Callable[[str, float], None]
    ) -> dict[str, Any]:
        if step.declaration.compile is not None:
            from trtdx.build.plan.compile_step import compile_step

            def advance(phase: str, fraction: float) -> None:
                if self._interrupted.is_set():
                    raise StepFailedError(step.key, f"{step.key} was interrupted", self._state.log(step.key))
                progress(phase, fraction)

            return compile_step(self._state, step, self._surveyor, next(iter(targets.values())), advance)
        self._run_command(step, staging, targets)
        return {}

    def _run_command(self, step: PlannedStep, staging: Path, targets: dict[str, Path]) -> None:
        inputs = [str(path) for _, path in self._surveyor.input_paths(step)]
        command = put_paths(step.command, inputs, [str(path) for path in targets.values()])
        environment = {**self._host.environment(), **step.declaration.environment, "TRTDX_BUILD_STAGING": str(staging)}
        log = self._state.log(step.key)
        with log.open("wb") as output:
            child = start_process(
                ["bash", "-e", "-o", "pipefail", "-c", command],
                output_fd=output.fileno(),
                folder=str(self._state.plan.folder),
                environment=environment,
            )
            (staging / "pid").write_text(str(child.pid))
            try:
                status = self._await(child, step.declaration.timeout_s)
            finally:
                child.kill()
                child.wait(REAP_S)
        if self._interrupted.is_set():
            raise StepFailedError(step.key, f"{step.key} was interrupted", log)
        if status is None:
            raise StepFailedError(step.key, f"{step.key} did not end within {step.declaration.timeout_s:g} s", log)
        if status:
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            raise StepFailedError(step.key, f"{step.key} {how}", log)

    def _await(self, child: Any, timeout_s: float | None) -> int | None:
        until = self._host.now() + timeout_s if timeout_s else None
        while (status := child.wait(POLL_S)) is None:
            if self._interrupted.is_set() or (until is not None and self._host.now() > until):
                return None
        return int(status)

    def _collect(self, step: PlannedStep, targets: dict[str, Path]) -> dict[str, tuple[Path, str]]:
        """Return every file that was made, by its name below the output folder."""
        collected: dict[str, tuple[Path, str]] = {}
        for output, target in targets.items():
            if not target.exists():
                raise StepFailedError(
                    step.key, f"{step.key} ended well, but did not make {output}", self._state.log(step.key)
                )
            for file in files_below(target):
                name = output if file == target else f"{output}/{file.relative_to(target)}"
                collected[name] = file, self._hasher.digest(file)
        return collected

    def _commit(self, step: PlannedStep, staging: Path, record: StepRecord) -> None:
        """Move the outputs into place; whatever interrupts it, the next run ends it."""
        if step.declaration.in_place:
            self._state.write_record(record)
            return
        moves = tuple((f"out/{output}", output) for output in step.outputs)
        pending = PendingMove(record, str(staging), moves)
        self._state.write_pending(pending)
        finish_moves(self._state, pending, self._hasher)


def recover_step(state: PlanState, step: PlannedStep, hasher: FileHasher) -> None:
    """End what a killed build had begun: outputs that were complete are moved into place."""
    pending = state.read_pending(step.key)
    if pending is not None:
        finish_moves(state, pending, hasher)


def finish_moves(state: PlanState, pending: PendingMove, hasher: FileHasher) -> None:
    """Move what is still staged over what is there, then write the record; it may be begun any number of times."""
    staging = Path(pending.staging)
    for source, name in pending.moves:
        target = state.plan.output / name
        if not (staging / source).exists() and not (staging / source).is_symlink():
            continue
        if not inside(target, state.plan.output):
            raise InputError(f"{target} leads out of the output folder {state.plan.output}")
        target.parent.mkdir(parents=True, exist_ok=True)
        old = staging / "old" / name
        old.parent.mkdir(parents=True, exist_ok=True)
        if target.is_symlink() or target.exists():
            target.rename(old if not old.exists() else old.with_name(f"{old.name}.{os.getpid()}"))
        (staging / source).rename(target)
    for name, digest in pending.record.files.items():
        if (state.plan.output / name).is_file():
            hasher.remember_moved(state.plan.output / name, digest)
    state.write_record(pending.record)
    state.drop_pending(pending.record.key)
    shutil.rmtree(staging, ignore_errors=True)


def describe_record(record: StepRecord) -> dict[str, Any]:
    """Return what a manifest says of a step."""
    return {
        "step": record.key,
        "command": record.fingerprint.command,
        "environment": record.fingerprint.environment,
        "tools": record.fingerprint.tools,
        "gpu": record.fingerprint.gpu,
        "startedOn": record.started,
        "seconds": record.seconds,
        "figures": msgspec.to_builtins(record.figures),
        "inputs": record.fingerprint.inputs,
        "outputs": record.files,
    }
