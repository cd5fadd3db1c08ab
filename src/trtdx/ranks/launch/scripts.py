"""A plan as a script that can be pasted, run or submitted: the reasons as comments, the command below them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.ranks.launch.nouns import LaunchTarget, join_shell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.model import Finding
    from trtdx.ranks.launch.nouns import LaunchPart, LaunchPlan

STEP_WIDTH = 100
ASSIGNMENT_ONLY = "env"


def render_script(plan: LaunchPlan, findings: Iterable[Finding] = ()) -> str:
    """Return the launch as a bash script; a batch script where it is for Slurm."""
    lines = ["#!/usr/bin/env bash", *_directive_lines(plan), *reason_lines(plan), *_warning_lines(plan, findings)]
    lines += [" ".join(part.words) for part in plan.before]
    lines += _command_lines(plan)
    return "\n".join(lines) + "\n"


def _directive_lines(plan: LaunchPlan) -> list[str]:
    return [f"#SBATCH {' '.join(part.words)}" for part in plan.directives]


def reason_lines(plan: LaunchPlan) -> list[str]:
    """Return one comment for each part, in the order of the command."""
    ranks = plan.nodes * plan.ranks_per_node
    head = f"# {ranks} {'rank' if ranks == 1 else 'ranks'} on {plan.nodes} {'node' if plan.nodes == 1 else 'nodes'}"
    return [head, *(f"#   {' '.join(part.words)}: {part.reason}" for part in plan.reasons)]


def _warning_lines(plan: LaunchPlan, findings: Iterable[Finding]) -> list[str]:
    notes = [f"# note: {note}" for note in plan.notes]
    return notes + [f"# {finding.severity.value} {finding.code}: {finding.message}" for finding in findings]


def _command_lines(plan: LaunchPlan) -> list[str]:
    """Return the command, a part on each line where it is long."""
    pieces = [part.words for part in (*plan.variables, *plan.parts)]
    pieces += [plan.program, *(part.words for part in plan.program_parts)]
    if len(join_shell(plan.words)) <= STEP_WIDTH:
        return [join_shell(plan.words)]
    return [" \\\n  ".join(join_shell(piece) for piece in pieces if piece)]


def render_reasons(parts: Iterable[LaunchPart]) -> tuple[tuple[str, str], ...]:
    """Return a table of words and reasons."""
    return tuple((" ".join(part.words), part.reason) for part in parts)


def render_launch(plan: LaunchPlan, image: str, findings: Iterable[Finding] = ()) -> str:
    """Return the launch in the form its place takes: a script, or a manifest."""
    if plan.target is LaunchTarget.K8S:
        from trtdx.ranks.launch.manifests import render_manifest

        return render_manifest(plan, image)
    return render_script(plan, findings)
