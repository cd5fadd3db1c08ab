"""`trtdx trace`: the arguments, and nothing of the work."""

from __future__ import annotations

from typing import Annotated

import typer

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


def trace_time(
    findings: FindingOptions,
    output: ReportOptions,
    paths: PathsArgument,
) -> None:
    """Say where the time of a run goes, and what to change first."""
    require_packages(("numpy",), purpose="add up the time of a trace")
    from trtdx.trace.run import TraceQuestion, report_trace

    host = RealHost()
    report = report_trace(host, TraceQuestion(paths=tuple(paths)), findings.load_rules(host))
    emit_report(report, output, findings)
