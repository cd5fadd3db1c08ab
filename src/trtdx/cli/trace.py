"""`trtdx trace`: the arguments, and nothing of the work."""

from __future__ import annotations

from typing import Annotated

import typer

from trtdx.cli.groups import refuse_pair
from trtdx.cli.memory.options import ServingFlags, SetupOptions, make_flag
from trtdx.cli.options import FindingOptions, ReportOptions, emit_report
from trtdx.host import RealHost
from trtdx.optional import require_packages

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
