"""`trtdx build` and its subcommands: the arguments, and nothing of the work."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trtdx.cli.groups import MAIN, expand_groups, make_command_group
from trtdx.cli.options import FindingOptions, ReportOptions, emit_report
from trtdx.cli.output import write_output
from trtdx.errors import InputError
from trtdx.host import RealHost

PlanArgument = Annotated[
    str, typer.Argument(metavar="PLAN", help="The plan, a YAML file; `trtdx build init` writes one.")
]
StepOption = Annotated[
    list[str] | None,
    typer.Option("--step", metavar="STEP", help="Only this step and what it needs. May be repeated."),
]


def run_build(
    plan: PlanArgument,
    findings: FindingOptions,
    output: ReportOptions,
    step: StepOption = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", "-j", min=0, help="How many steps run side by side; by default as many as processors."),
    ] = 0,
) -> None:
    """Run the steps of a plan that are stale, and no others.

    Outputs appear only when they are complete, so it can be killed and started again at any time. What was built from
    what is written to manifest.json beside the outputs.
    """
    from trtdx.build.run import run_plan
    from trtdx.cli.build.progress import show_steps

    host = RealHost()
    book = findings.load_rules(host)
    with show_steps() as progress:
        report = run_plan(host, plan, book, steps=step or (), jobs=jobs, progress=progress)
    emit_report(report, output, findings)


def show_plan_status(
    plan: PlanArgument, findings: FindingOptions, output: ReportOptions, step: StepOption = None
) -> None:
    """Say which steps are stale and what changed; nothing is made."""
    from trtdx.build.run import examine_plan

    emit_report(examine_plan(RealHost(), plan, steps=step or ()), output, findings)


def examine_build_tree(
    tree: Annotated[str, typer.Argument(metavar="TREE", help="The project folder, or a folder that CMake built in.")],
    findings: FindingOptions,
    output: ReportOptions,
) -> None:
    """Say what is wrong with a build tree that no plan describes, and the smallest clean-up that mends it.

    It reads CMakeCache.txt, compile_commands.json, ninja's logs, compiled files and wheels. It changes nothing, and
    starts nothing from the tree.
    """
    from trtdx.build.doctor.run import examine_tree

    host = RealHost()
    emit_report(examine_tree(host, tree, findings.load_rules(host)), output, findings)


def clean_outputs(
    plan: PlanArgument,
    step: Annotated[
        list[str] | None, typer.Option("--step", metavar="STEP", help="The outputs of this step. May be repeated.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All outputs of the plan.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Bring back what the last clean removed.")] = False,
) -> None:
    """Remove outputs: by default those that are stale. Shows them first, and keeps them until the next success.

    Nothing outside the plan's output folder is touched, and no link is followed out of it.
    """
    from trtdx.build.run import clean_plan, plan_cleanup, undo_clean

    host = RealHost()
    if undo:
        write_output("".join(f"brought back: {name}\n" for name in undo_clean(host, plan)))
        return
    work, removals = plan_cleanup(host, plan, steps=step or (), everything=everything)
    if not removals:
        write_output("nothing to remove\n")
        return
    write_output("".join(f"{work.plan.output / removal.path}   {removal.why}\n" for removal in removals))
    if not yes and not (sys.stdin.isatty() and typer.confirm("Remove these?", err=True)):
        write_output("nothing was removed; --yes removes them without asking\n")
        return
    aside = clean_plan(work, removals)
    write_output(f"moved to {aside} until the next build succeeds; to bring it back: trtdx build clean {plan} --undo\n")


def verify_artifacts(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder of outputs, or one below it.")],
    findings: FindingOptions,
    output: ReportOptions,
) -> None:
    """Check that artifacts are what the manifest beside them says."""
    from trtdx.build.run import verify_folder

    host = RealHost()
    emit_report(verify_folder(host, folder, findings.load_rules(host)), output, findings)


def repeat_steps(plan: PlanArgument, findings: FindingOptions, output: ReportOptions, step: StepOption = None) -> None:
    """Make finished steps once more, elsewhere, and say whether the result is the same.

    TensorRT plans are compared by their kernels and memory, because no two have the same bytes.
    """
    from trtdx.build.run import repeat_plan

    host = RealHost()
    emit_report(repeat_plan(host, plan, findings.load_rules(host), steps=step or ()), output, findings)


def write_template(
    template: Annotated[
        str, typer.Argument(metavar="[TEMPLATE]", help="Which flow; without one they are listed.", show_default=False)
    ] = "",
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="Where to write it.")] = "plan.yaml",
) -> None:
    """Write a commented plan to begin with, for each era of TensorRT-LLM and for ONNX to TensorRT-RTX."""
    from trtdx.build.plan.templates import read_template, template_names

    if not template:
        width = max(map(len, template_names()))
        write_output("".join(f"{name:{width}}  {words}\n" for name, words in template_names().items()))
        return
    host = RealHost()
    text = read_template(template)
    if host.kind(out) != "absent":
        raise InputError(f"{out} already exists", fix="name another file with --out")
    host.write(out, text.encode())
    write_output(f"{out} is written; look it through, then: trtdx build {out}\n")


app = make_command_group("Build from a plan, and mend what is stale.")
app.command(MAIN, hidden=True, epilog="Example: trtdx build init onnx-rtx && trtdx build plan.yaml")(
    expand_groups(run_build)
)
app.command("status", epilog="Example: trtdx build status plan.yaml")(expand_groups(show_plan_status))
app.command("doctor", epilog="Example: trtdx build doctor ~/TensorRT-LLM")(expand_groups(examine_build_tree))
app.command("clean", epilog="Example: trtdx build clean plan.yaml --step compile")(expand_groups(clean_outputs))
app.command("verify", epilog="Example: trtdx build verify out/engine")(expand_groups(verify_artifacts))
app.command("reproduce", epilog="Example: trtdx build reproduce plan.yaml --step compile")(expand_groups(repeat_steps))
app.command("init", epilog="Example: trtdx build init onnx-rtx")(expand_groups(write_template))
