"""`trtdx ranks check|smoke|launch`: the arguments, and nothing of the work."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trtdx.cli.groups import expand_groups
from trtdx.cli.options import FindingOptions, ReportOptions, emit_report
from trtdx.cli.output import OutputFormat, write_output
from trtdx.cli.ranks.options import (
    CommandAfterDashes,
    LauncherOptions,
    ModelPath,
    SizeOptions,
    check_model,
    collect_ports,
    command_words,
    probe_here,
    usual_runtime,
)
from trtdx.errors import InputError
from trtdx.host import RealHost, run_attached
from trtdx.ranks.launch.nouns import LaunchTarget

if TYPE_CHECKING:
    from trtdx.ranks.launch.nouns import LaunchPlan

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at the ranks of a job before and around its launch."
)


def check_ranks(
    context: typer.Context,
    launcher: LauncherOptions,
    sizes: SizeOptions,
    findings: FindingOptions,
    output: ReportOptions,
    model: ModelPath = "",
    recorded: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="FILE", help="Judge what --save wrote, or the output of a launched probe."),
    ] = None,
    save: Annotated[str, typer.Option("--save", metavar="FILE", help="Also write what the ranks saw.")] = "",
    port: Annotated[
        list[int] | None, typer.Option("--port", help="A port that rank 0 is to listen on. May be repeated.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="Give up after so long.")
    ] = 60.0,
) -> NoReturn:
    """Look at every rank as it is launched: limits, shared memory, network, MPI, GPUs, variables.

    Without --launcher, --slurm or --hosts mpirun is used for -n ranks, and for one rank nothing. MODEL and --tp/--pp
    check how a model or engine is cut; words after -- are the command the ranks are to run.
    """
    from trtdx.ranks.collect import RankQuestion, read_recorded, save_probes
    from trtdx.ranks.run import check_ranks, report_probes

    host, command = RealHost(), command_words(context)
    book = findings.load_rules(host)
    started = launcher.stated_count()
    mapping = check_model(host, book, model, sizes, started, command)
    chosen_sizes = mapping.sizes if mapping else sizes.build_sizes()
    world = started or (chosen_sizes.world if chosen_sizes.is_stated else 0)
    if recorded:
        run = read_recorded(host, recorded, world)
        emit_report(report_probes(run, book, mapping.findings if mapping else ()), output, findings)
    question = RankQuestion(
        launcher.build_launcher(host, world),
        world=world,
        python=launcher.python,
        command=command,
        ports=collect_ports(host, command, port or ()),
        peers=launcher.peers(host),
        timeout_s=timeout,
        runtime=sizes.runtime,
    )
    report, run = check_ranks(host, question, book, mapping.findings if mapping else ())
    if save:
        save_probes(host, run, save)
    emit_report(report, output, findings)


def smoke_ranks(
    launcher: LauncherOptions,
    findings: FindingOptions,
    output: ReportOptions,
    backend: Annotated[str, typer.Option("--backend", metavar="NAME", help="mpi, gloo or nccl.")] = "mpi",
    spawn: Annotated[
        bool, typer.Option("--spawn", help="Spawn the ranks from one process, as the LLM API does.")
    ] = False,
    size: Annotated[
        list[str] | None,
        typer.Option("--size", metavar="BYTES", help="A message size, such as 1MiB. May be repeated."),
    ] = None,
    step_limit: Annotated[
        float, typer.Option("--step-limit", metavar="SECONDS", min=1, help="The time limit of one step.")
    ] = 20.0,
    start_limit: Annotated[
        float, typer.Option("--start-limit", metavar="SECONDS", min=1, help="The time limit until all ranks are up.")
    ] = 60.0,
    recorded: Annotated[str, typer.Option("--from", metavar="FILE", help="Judge what --save wrote.")] = "",
    save: Annotated[str, typer.Option("--save", metavar="FILE", help="Also write what the ranks said.")] = "",
) -> NoReturn:
    """Run real collectives over the ranks: barrier, all-reduce, broadcast, all-gather, and every pair.

    What arrives is compared with what was sent. What fails is named: the rank, the pair or the step. Else the latency
    and bandwidth of every pair are shown.
    """
    from trtdx.ranks.run import report_smoke, run_smoke
    from trtdx.ranks.smoke.nouns import DEFAULT_SIZES, SmokeQuestion
    from trtdx.ranks.smoke.run import read_recorded_smoke, save_smoke
    from trtdx.words import parse_size

    if backend not in ("mpi", "gloo", "nccl"):
        raise typer.BadParameter(f"{backend!r} is none of mpi, gloo, nccl", param_hint="--backend")
    host = RealHost()
    if recorded:
        emit_report(report_smoke(read_recorded_smoke(host, recorded), findings.load_rules(host)), output, findings)
    count = launcher.count or 2
    started = launcher.build_launcher(host, 1 if spawn else count, spawns=spawn)
    question = SmokeQuestion(
        started,
        count if spawn or not launcher.launcher else max(started.ranks, launcher.count),
        python=launcher.python,
        backend=backend,
        spawn=count if spawn else 0,
        sizes=tuple(parse_size(text) for text in size) if size else DEFAULT_SIZES,
        step_s=step_limit,
        start_s=start_limit,
    )
    if any(number < 1 or number > 1 << 30 for number in question.sizes):
        raise typer.BadParameter("a size is between 1 byte and 1 GiB", param_hint="--size")
    run = run_smoke(question)
    if save:
        save_smoke(host, run, save)
    emit_report(report_smoke(run, findings.load_rules(host)), output, findings)


def launch_ranks(
    context: typer.Context,
    sizes: SizeOptions,
    findings: FindingOptions,
    output: ReportOptions,
    target: Annotated[
        LaunchTarget | None,
        typer.Option("--for", help="Where it is started; by default what this shell is in.", show_default=False),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", metavar="PATH", help="Check how this model or engine is cut first.")
    ] = "",
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", metavar="N", min=0, help="GPUs of a node.")] = 0,
    hosts: Annotated[
        str, typer.Option("--hosts", metavar="A,B", help="The hosts, where no scheduler names them.")
    ] = "",
    image: Annotated[str, typer.Option("--image", metavar="IMAGE", help="The container image.")] = "",
    write: Annotated[str, typer.Option("--write", metavar="FILE", help="Write the script or manifest to a file.")] = "",
    run: Annotated[bool, typer.Option("--run", help="Run it, and end with its status.")] = False,
    python: Annotated[str, typer.Option("--python", metavar="PATH", help="The Python of the job.")] = "python3",
) -> NoReturn:
    """Print the right launch for this place and release, with a reason for every flag.

    The words after -- are the command without any launcher. The model or engine it names is checked first: one that
    cannot be cut this way gets the reason and no launch.
    """
    from trtdx.ranks.launch.nouns import LaunchQuestion
    from trtdx.ranks.launch.run import default_target, surroundings_from_probe
    from trtdx.ranks.run import report_launch

    host, command = RealHost(), command_words(context)
    book = findings.load_rules(host)
    mapping = check_model(host, book, model, sizes, 0, command)
    around = surroundings_from_probe(probe_here(host, python))
    question = LaunchQuestion(
        sizes=mapping.sizes if mapping else sizes.build_sizes(),
        target=target or default_target(around),
        command=command,
        runtime=sizes.runtime or usual_runtime(host),
        gpus_per_node=gpus_per_node,
        hosts=tuple(word.strip() for word in hosts.split(",") if word.strip()),
        image=image,
    )
    report, plan = report_launch(question, around, mapping.findings if mapping else ())
    if plan is None:
        emit_report(report, output, findings)
    if write:
        host.write(write, report.script.encode())
        sys.stderr.write(f"wrote {write}\n")
    if run:
        raise typer.Exit(_run_plan(plan))
    if not write and output.chosen_format is OutputFormat.TEXT:
        write_output(report.script)
        raise typer.Exit(0)
    if write and output.chosen_format is OutputFormat.TEXT:
        raise typer.Exit(0)
    emit_report(report, output, findings)


def _run_plan(plan: LaunchPlan) -> int:
    """Run the command of a plan that this shell can run, and return its status."""
    if plan.target is LaunchTarget.K8S or plan.before or any("NODE1" in word for word in plan.words):
        raise InputError("this launch is not one command for this shell", fix="--write FILE, and start it there")
    return run_attached(["env", *plan.words] if plan.variables else plan.words)


app.command(
    "check", cls=CommandAfterDashes, epilog="Example: trtdx ranks check --launcher 'srun --mpi=pmix -n 8' ./engine"
)(expand_groups(check_ranks))
app.command("smoke", epilog="Example: trtdx ranks smoke -n 4")(expand_groups(smoke_ranks))
app.command(
    "launch",
    cls=CommandAfterDashes,
    epilog="Example: trtdx ranks launch --tp 4 --pp 2 --for slurm -- trtllm-serve ./model",
)(expand_groups(launch_ranks))
