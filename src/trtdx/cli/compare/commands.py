"""`trtdx compare` and its subcommands: the arguments, and nothing of the work."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec
import typer

from trtdx.cli.compare.options import (
    CandidateArgument,
    ComparisonOptions,
    KeepOption,
    PlotOption,
    QuestionOptions,
    ReferenceArgument,
    SaveMappingOption,
    ToleranceOptions,
    VerdictOptions,
)
from trtdx.cli.deprecated import MovedCompareFlags
from trtdx.cli.groups import MAIN, expand_groups, make_command_group
from trtdx.cli.options import FindingOptions, ReportOptions, emit_report
from trtdx.cli.saving import SaveFlag, store_report
from trtdx.compare.sides.needed_packages import need_packages
from trtdx.errors import TrtdxError
from trtdx.host import RealHost

if TYPE_CHECKING:
    from trtdx.compare.report.comparison_report import ComparisonReport
    from trtdx.compare.run import ComparisonPlan
    from trtdx.model import Report
    from trtdx.rule import RuleBook


def run_compare(
    context: typer.Context,
    comparison: ComparisonOptions,
    tolerance: ToleranceOptions,
    moved: MovedCompareFlags,
    findings: FindingOptions,
    output: ReportOptions,
    reference: ReferenceArgument = "",
    candidate: CandidateArgument = "",
    save_mapping: SaveMappingOption = "",
    plot: PlotOption = "",
    save: SaveFlag = False,
) -> None:
    """Find the first tensor that is really wrong, not merely noisy, and which mistake made it."""
    mode = moved.choose_mode(context)
    if mode == "baseline":
        if candidate:
            raise typer.BadParameter(f"with --baseline name the model only, not also {candidate!r}")
        compare_baseline(moved.baseline, tolerance, findings, output, reference, comparison.keep, plot, save)
    if mode == "precision_search":
        search_precision(reference, moved.precision_search, comparison, findings, output, moved.dtype)
    if not reference or not candidate:
        raise typer.BadParameter("name a reference and a candidate" if not reference else "name a candidate")
    if mode == "bisect":
        bisect_options(reference, candidate, comparison, tolerance, findings, output, moved.option, moved.runs)
    if mode == "reduce":
        reduce_failure(reference, candidate, moved.reduce, comparison, tolerance, findings, output, save_mapping, plot)
    _compare_sides(reference, candidate, comparison, tolerance, findings, output, save_mapping, plot, save=save)


def reduce_failure(
    reference: ReferenceArgument,
    candidate: CandidateArgument,
    out: Annotated[
        str,
        typer.Option("--out", metavar="DIR", help="Where the bug report goes: a new folder.", show_default=False),
    ],
    comparison: ComparisonOptions,
    tolerance: ToleranceOptions,
    findings: FindingOptions,
    output: ReportOptions,
    save_mapping: SaveMappingOption = "",
    plot: PlotOption = "",
) -> NoReturn:
    """Compare, and write the smallest part that fails, with its inputs, as a bug report anyone can run."""
    _compare_sides(reference, candidate, comparison, tolerance, findings, output, save_mapping, plot, reduce_to=out)


def _compare_sides(
    reference: str,
    candidate: str,
    comparison: ComparisonOptions,
    tolerance: ToleranceOptions,
    findings: FindingOptions,
    output: ReportOptions,
    save_mapping: str,
    plot: str,
    *,
    reduce_to: str = "",
    save: bool = False,
) -> NoReturn:
    """Compare two sides, reduce what fails if a folder is named for it, print the report and end."""
    need_packages(reference, candidate)
    _check_plot(plot)

    from trtdx.compare.run import compare

    host = RealHost()
    limits = tolerance.build_tolerances()
    book = findings.load_rules(host)
    plan = comparison.build_plan(reference, candidate, save_mapping)
    plan = msgspec.structs.replace(plan, portraits=bool(save or output.html or plot.endswith(".html")))
    report = compare(host, plan, book, tolerance=limits, progress=_show_progress)
    failed = None
    if reduce_to and report.findings:
        try:
            report = _with_reduction(host, plan, report, reduce_to, book)
        except TrtdxError as err:
            failed = err
    _finish_comparison(report, plot, findings, output, failed=failed, save=save)


def bisect_options(
    reference: ReferenceArgument,
    candidate: Annotated[
        str,
        typer.Argument(
            metavar="CAND",
            help="The side to compare with it; also command:TEMPLATE with {NAME} and {out}.",
            show_default=False,
        ),
    ],
    comparison: VerdictOptions,
    tolerance: ToleranceOptions,
    findings: FindingOptions,
    output: ReportOptions,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=FAILING,OTHER", help="An option to try. May be repeated."),
    ] = None,
    runs: Annotated[
        str,
        typer.Option(
            "--runs",
            metavar="FILE",
            help="Record finished runs here, so that the search can be continued later.",
            show_default=False,
        ),
    ] = "",
) -> NoReturn:
    """Find which options of the candidate flip the verdict."""
    need_packages(reference, candidate)

    from trtdx.compare.search.bisect_candidate import bisect_candidate, parse_option

    host = RealHost()
    report = bisect_candidate(
        host,
        comparison.build_plan(reference, candidate),
        findings.load_rules(host),
        options=[parse_option(text) for text in option or ()],
        file=runs,
        tolerance=tolerance.build_tolerances(),
        progress=_show_progress,
    )
    _finish_comparison(report, "", findings, output)


def compare_baseline(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A capture of a good run, with values.", show_default=False)
    ],
    tolerance: ToleranceOptions,
    findings: FindingOptions,
    output: ReportOptions,
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            help="The model to run, if it has moved or changed; or a new capture.",
            show_default=False,
        ),
    ] = "",
    keep: KeepOption = "",
    plot: PlotOption = "",
    save: SaveFlag = False,
) -> NoReturn:
    """Run what a capture is of once more, and say what changed since: for CI."""
    need_packages(model, "")
    _check_plot(plot)

    from trtdx.compare.search.baseline import BaselineCheck, compare_with_baseline

    host = RealHost()
    question = BaselineCheck(baseline=run, model=model, keep=keep)
    report = compare_with_baseline(
        host,
        question,
        findings.load_rules(host),
        tolerance=tolerance.build_tolerances(),
        progress=_show_progress,
    )
    _finish_comparison(report, plot, findings, output, save=save)


def search_precision(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The graph: onnx:FILE.", show_default=False)],
    out: Annotated[
        str, typer.Option("--out", metavar="OUT.onnx", help="Write the mixed graph here.", show_default=False)
    ],
    question: QuestionOptions,
    findings: FindingOptions,
    output: ReportOptions,
    dtype: Annotated[
        str, typer.Option("--dtype", help="What the rest is computed in: float16, bfloat16 or int8.")
    ] = "float16",
) -> NoReturn:
    """Find the fewest operations to keep in float32, and write the graph with casts around them."""
    if not model:
        raise typer.BadParameter("name a model: onnx:FILE")
    need_packages(model, "")

    from trtdx.compare.search.precision import precision_report, precision_search
    from trtdx.compare.sides.side import parse_side

    host = RealHost()
    findings.load_rules(host)
    path = parse_side(host, model).path
    mixed = precision_search(host, path, dtype, question.build_question(), out=out, progress=_show_progress)
    _finish_comparison(precision_report(mixed), "", findings, output)


def _check_plot(plot: str) -> None:
    if plot:
        from trtdx.compare.report.drift_chart import check_picture

        check_picture(plot)


def _finish_comparison(
    report: Report,
    plot: str,
    findings: FindingOptions,
    output: ReportOptions,
    *,
    failed: TrtdxError | None = None,
    save: bool = False,
) -> NoReturn:
    """Draw the plot, keep the run where asked, print the report and end; what failed after the answer was known is told behind it."""
    from trtdx.compare.report.comparison_report import ComparisonReport

    compared = report if isinstance(report, ComparisonReport) else None
    if plot and compared is not None:
        from trtdx.compare.report.drift_chart import write_picture

        try:
            write_picture(compared, plot)
        except TrtdxError as err:
            failed = err
    if save:
        store_report(RealHost(), "compare", report)
    is_empty = compared is not None and not compared.findings and not compared.compared
    try:
        emit_report(report, output, findings, status=2 if is_empty else None)
    except typer.Exit:
        if failed is not None:
            raise failed from None
        raise


def _with_reduction(
    host: RealHost, plan: ComparisonPlan, report: ComparisonReport, folder: str, book: RuleBook
) -> ComparisonReport:
    """Write the smallest part that fails, and say so in the report."""
    import msgspec

    from trtdx.compare.search.reduce import reduce_candidate, reproducer_report
    from trtdx.model import Where

    where = report.findings[0].where
    if not isinstance(where, Where):
        return report
    reduced = reproducer_report(reduce_candidate(host, plan, where, folder, book, progress=_show_progress))
    return msgspec.structs.replace(report, sections=(*report.sections, *reduced.sections))


def _show_progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")


app = make_command_group("Compare two runs, and search for what makes them differ.")
app.command(
    MAIN,
    hidden=True,
    epilog="Example: trtdx compare hf:./model onnx:./model.onnx --tokens '1 15 27' --new-tokens 4",
)(expand_groups(run_compare))
app.command("bisect", epilog="Example: trtdx compare bisect onnx:./a.onnx onnx:./b.onnx")(expand_groups(bisect_options))
app.command("reduce", epilog="Example: trtdx compare reduce hf:./model onnx:./model.onnx --out ./bug-report")(
    expand_groups(reduce_failure)
)
app.command("baseline", epilog="Example: trtdx compare baseline ./good-run")(expand_groups(compare_baseline))
app.command("precision", epilog="Example: trtdx compare precision onnx:./model.onnx --out mixed.onnx --dtype float16")(
    expand_groups(search_precision)
)
