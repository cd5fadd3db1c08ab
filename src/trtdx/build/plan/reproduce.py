"""Whether a step made twice gives the same: by content, and for TensorRT plans by program and memory.

A plan holds counters, times and the names of temporary kernels, so two plans of one network differ in bytes.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.build.plan.fingerprint import files_below

if TYPE_CHECKING:
    from pathlib import Path

    from trtdx.build.plan.execute import PlanStepRunner
    from trtdx.build.plan.fingerprint import FileHasher
    from trtdx.build.plan.nouns import PlannedStep, StepRecord
    from trtdx.build.plan.state import PlanState

PROGRAM_FIGURES = ("kernels", "activation_bytes", "weights_bytes", "tensorrt")


class Repetition(msgspec.Struct, frozen=True, kw_only=True):
    """What came of making a step once more."""

    key: str
    same: int  # files equal byte for byte
    differing: tuple[str, ...]
    program: str = ""  # of a compiled plan: what differs in it, "same" where nothing does

    @property
    def is_reproducible(self) -> bool:
        return not self.differing or self.program == "same"


def repeat_step(
    state: PlanState, runner: PlanStepRunner, hasher: FileHasher, step: PlannedStep, record: StepRecord
) -> Repetition:
    """Make a step again in a folder of its own and compare; what is there stays untouched."""
    staging = state.staging(f"{step.key}.again")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        targets = {output: staging / "out" / output for output in step.outputs}
        for target in targets.values():
            target.parent.mkdir(parents=True, exist_ok=True)
        figures = runner.make_outputs(step, staging, targets)
        again = _digests(hasher, targets)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    differing = tuple(name for name in sorted({*again, *record.files}) if again.get(name) != record.files.get(name))
    return Repetition(
        key=step.key,
        same=len(record.files) - len(set(differing) & set(record.files)),
        differing=differing,
        program=_program_difference(record.figures, figures) if figures else "",
    )


def _digests(hasher: FileHasher, targets: dict[str, Path]) -> dict[str, str]:
    return {
        output if file == target else f"{output}/{file.relative_to(target)}": hasher.digest(file)
        for output, target in targets.items()
        for file in files_below(target)
    }


def _program_difference(first: dict[str, Any], second: dict[str, Any]) -> str:
    names = [name for name in PROGRAM_FIGURES if first.get(name) != second.get(name)]
    return ", ".join(names) or "same"
