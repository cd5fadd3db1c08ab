"""Removes what a plan made, and nothing else: shown first, moved aside, and brought back until the next success."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trtdx.build.plan.manifest import MANIFEST
from trtdx.build.plan.state import inside
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.build.plan.nouns import PlannedStep
    from trtdx.build.plan.state import PlanState


class Removal(msgspec.Struct, frozen=True):
    """One path to be removed, and why."""

    path: str  # below the output folder
    why: str


def plan_removal(
    state: PlanState, steps: Sequence[PlannedStep], reasons: dict[str, str], *, everything: bool
) -> list[Removal]:
    """Return what would go: the outputs of these steps; with `everything` also what no step has any more."""
    removals = [
        Removal(output, f"output of {step.key}: {reasons.get(step.key, 'asked for')}")
        for step in steps
        for output in step.outputs
        if _is_there(state.plan.output / output)
    ]
    if everything:
        known = {output for step in state.plan.steps for output in step.outputs}
        outdated = {name for record in state.records() for name in record.fingerprint.outputs} - known
        removals += [
            Removal(name, "output of a step that the plan has no more")
            for name in sorted(outdated)
            if _is_there(state.plan.output / name)
        ]
        removals += [Removal(MANIFEST, "manifest")] if (state.plan.output / MANIFEST).exists() else []
    for removal in removals:
        _check_inside(state, removal.path)
    return removals


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _check_inside(state: PlanState, name: str) -> None:
    if not inside(state.plan.output / name, state.plan.output):
        raise InputError(
            f"{state.plan.output / name} leads out of the output folder {state.plan.output}: nothing was removed",
            fix="remove the link yourself if it is not needed",
        )


def set_aside(state: PlanState, removals: Sequence[Removal], stamp: str) -> Path:
    """Move paths aside; a link is moved as the link it is, never what it leads to."""
    folder = state.folder / "aside" / stamp
    for removal in removals:
        target = folder / removal.path
        target.parent.mkdir(parents=True, exist_ok=True)
        (state.plan.output / removal.path).rename(target)
    for step in state.plan.steps:
        if any(removal.path in step.outputs for removal in removals):
            _move_record(state, step.key, folder)
    return folder


def _move_record(state: PlanState, key: str, folder: Path) -> None:
    record = state.folder / "records" / f"{key}.json"
    if record.exists():
        (folder / ".records").mkdir(parents=True, exist_ok=True)
        record.rename(folder / ".records" / record.name)


def bring_back(state: PlanState) -> list[str]:
    """Move what was set aside last back to its place, where nothing new is, and return what came back."""
    asides = state.asides()
    if not asides:
        raise InputError(
            "there is nothing to bring back",
            fix="what clean removes is kept only until it is brought back, or until the next build succeeds",
        )
    folder = asides[-1]
    names = _aside_outputs(state, folder)
    taken = [name for name in names if _is_there(state.plan.output / name)]
    if taken:
        raise InputError(
            f"{state.plan.output / taken[0]} already exists: nothing was brought back", fix="move it away first"
        )
    for name in names:
        (state.plan.output / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).rename(state.plan.output / name)
    for record in sorted((folder / ".records").glob("*.json")):
        record.rename(state.folder / "records" / record.name)
    for below, _, _ in os.walk(folder, topdown=False):
        Path(below).rmdir()
    return names


def _aside_outputs(state: PlanState, folder: Path) -> list[str]:
    outputs = {output for step in state.plan.steps for output in step.outputs} | {MANIFEST}
    outputs |= {name for record in state.records() for name in record.fingerprint.outputs}
    return sorted(name for name in outputs if _is_there(folder / name))
