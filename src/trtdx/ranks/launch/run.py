"""`trtdx ranks launch`: the launch for this place and release, checked against the model first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.model import Section, Severity, Summary, headline_from_findings
from trtdx.ranks.judges.gpus import visible_gpus
from trtdx.ranks.judges.mpi import library_text
from trtdx.ranks.launch.containers import image_name
from trtdx.ranks.launch.nouns import LaunchReport, LaunchSurroundings, LaunchTarget, join_shell
from trtdx.ranks.launch.plan import plan_launch
from trtdx.ranks.launch.remedies import SlurmPlace, slurm_place
from trtdx.ranks.launch.scripts import render_launch, render_reasons
from trtdx.ranks.launchers import mpi_family, mpi_version
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.model import Finding
    from trtdx.ranks.launch.nouns import LaunchPlan, LaunchQuestion
    from trtdx.ranks.nouns import RankProbe


def surroundings_from_probe(probe: RankProbe) -> LaunchSurroundings:
    """Return what counts for a launch of what one process sees."""
    text = library_text(probe)
    return LaunchSurroundings(
        is_root=probe.uid == 0 and probe.environment.get("OMPI_ALLOW_RUN_AS_ROOT") != "1",
        cpus=probe.cpus,
        gpus=len(visible_gpus(probe) or ()),
        place=slurm_place(probe.environment),
        family=mpi_family(text),
        version=mpi_version(text),
        mpi_plugins=tuple(probe.slurm.get("mpi_plugins", ())),
        environment=probe.environment,
        is_container=bool(probe.container),
    )


def default_target(around: LaunchSurroundings) -> LaunchTarget:
    """Return the place a launch is for when nobody says: an allocation of Slurm, else this shell."""
    return LaunchTarget.INTERACTIVE if around.place is SlurmPlace.NONE else LaunchTarget.SLURM


def report_launch(
    question: LaunchQuestion, around: LaunchSurroundings, findings: Sequence[Finding] = ()
) -> tuple[LaunchReport, LaunchPlan | None]:
    """Return the launch; where the model cannot be run on these ranks, why, and no launch."""
    if any(finding.severity is Severity.ERROR for finding in findings):
        return LaunchReport(summary=Summary(headline_from_findings(findings)), findings=tuple(findings)), None
    plan = plan_launch(question, around)
    script = render_launch(plan, image_name(question), findings)
    reasons = Section("launch", "Why", ("words", "reason"), render_reasons(plan.reasons), after_findings=True)
    text = f"{format_count(question.world, 'rank')} on {format_count(plan.nodes, 'node')}: {join_shell(plan.words)}"
    report = LaunchReport(
        summary=Summary(text, partial=plan.notes), findings=tuple(findings), sections=(reasons,), script=script
    )
    return report, plan
