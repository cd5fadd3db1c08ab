"""`trtdx trace`: the arguments, and nothing of the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtdx.cli.groups import MainCommandGroup, expand_groups, make_command_group, refuse_pair
from trtdx.cli.memory.options import ServingFlags, SetupOptions, make_flag
from trtdx.cli.options import FindingOptions, ReportOptions, emit_report
from trtdx.host import RealHost
from trtdx.optional import require_packages


class TraceGroup(MainCommandGroup):
    """Files are looked at without a word before them; `run` makes them."""

    main_command = "files"


app = make_command_group("Say where the time goes, of files or of a command.", TraceGroup)
PathsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE",
        help="Traces of torch's profiler or ONNX Runtime (.json, .json.gz), SQLite exports of Nsight Systems, --exportTimes and --exportProfile of trtexec, logs with print_iter_log, answers of /metrics and /perf_metrics, reports of trtllm-bench, benchmark_serving.py, AIPerf. Of several ranks all, or their folder.",
        show_default=False,
    ),
]
AgainstOption = Annotated[
    list[str] | None,
    make_flag(
        "--against", metavar="FILE", text="Show instead what changed since this run. For several ranks, repeat it."
    ),
]
ModelOption = Annotated[
    str, make_flag("--model", metavar="MODEL", text="The model, to say how close steps are to what its GPU allows.")
]
ContextOption = Annotated[
    int, typer.Option("--context", metavar="N", help="Tokens that each request has behind it in a decode step.", min=0)
]


def trace_time(
    setup: SetupOptions,
    serving: ServingFlags,
    findings: FindingOptions,
    output: ReportOptions,
    paths: PathsArgument,
    against: AgainstOption = None,
    model: ModelOption = "",
    context: ContextOption = 0,
) -> None:
    """Say where the time of a run goes, how far that is from the limit, and what to change first."""
    require_packages(("numpy",), purpose="add up the time of a trace")
    from trtdx.trace.run import TraceQuestion, report_trace

    setup.check_logs_model(model, serving, {})
    has_model = bool(model or setup.dims or setup.command_line or setup.config)
    if against and has_model:
        refuse_pair("--model", "--against", "only what differs from the other run is shown")
    if context and not has_model:
        raise typer.BadParameter("--context has no effect without a model: name it with --model")
    host = RealHost()
    question = TraceQuestion(
        paths=tuple(paths),
        against=tuple(against or ()),
        setup=setup.build_question(host, model, serving, {}) if has_model else None,
        context=context,
    )
    emit_report(report_trace(host, question, findings.load_rules(host)), output, findings)


app.command("files", epilog="Example: trtdx trace trace-rank-0.json trace-rank-1.json")(expand_groups(trace_time))


def trace_command(
    findings: FindingOptions,
    output: ReportOptions,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="The command, as you would type it.")],
    case: Annotated[
        str, typer.Option("--case", metavar="DIR", help="The new folder for traces and logs.", show_default=False)
    ] = "",
    warmup: Annotated[int, typer.Option("--warmup", metavar="N", min=0, help="Steps that are not recorded.")] = 10,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Steps that are recorded.")] = 20,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            metavar="S",
            min=0.1,
            help="Record no longer than this. A program that calls no torch.nn modules has no steps: it is recorded this long, from this long after torch is imported.",
        ),
    ] = 20.0,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Record Python functions too: names what the host does, and slows it down.")
    ] = False,
) -> None:
    """Run a command, record some steps of every rank after the warm-up, and say where their time goes."""
    require_packages(("numpy",), purpose="add up the time of a trace")
    from trtdx.cli.run import new_case, show_report
    from trtdx.run.nouns import ProfileRequest, RunRequest
    from trtdx.run.run import run_command
    from trtdx.trace.run import TraceQuestion, report_trace, require_traces

    host = RealHost()
    book = findings.load_rules(host)
    case = str(Path(case or new_case()).absolute())
    folder = str(Path(case, "traces"))
    request = RunRequest(
        command=tuple(command),
        case=case,
        profile=ProfileRequest(folder=folder, warmup=warmup, steps=steps, seconds=seconds, stacks=stacks),
    )
    result = run_command(host, request, lambda: book, lambda report: show_report(report, case, output.color))
    if result.status:
        show_report(result.report, case, output.color)
        raise typer.Exit(result.status)
    require_traces(host, folder, warmup)
    emit_report(report_trace(host, TraceQuestion(paths=(folder,)), book), output, findings)


app.command(
    "run",
    epilog="Example: trtdx trace run --warmup 20 -- mpirun -n 2 python3 generate.py",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)(expand_groups(trace_command))
