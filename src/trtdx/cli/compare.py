"""`trtdx compare`: the arguments, and nothing of the work."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtdx.cli.options import ColorOption, FailOnOption, JsonOption, MarkdownOption, RulesOption
from trtdx.cli.output import Color, FailOn, emit
from trtdx.compare.sides.needed_packages import need_packages
from trtdx.errors import TrtdxError
from trtdx.host import RealHost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtdx.compare.judge.tolerance import Tolerances
    from trtdx.compare.report.comparison_report import ComparisonReport
    from trtdx.compare.run import Plan
    from trtdx.compare.sides.side import ComparisonQuestion
    from trtdx.model import Report
    from trtdx.rule import RuleBook

SIDE = "A capture, another tool's dump, or a model: hf:DIR?dtype=bfloat16, onnx:FILE?level=none, trt:FILE."


def command(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REF",
            help=f"What is right. {SIDE} With --baseline: the model to run, if it has moved or changed.",
            show_default=False,
        ),
    ] = "",
    candidate: Annotated[
        str,
        typer.Argument(
            metavar="CAND",
            help="What is compared with it; with --bisect also command:TEMPLATE with {NAME} and {out}.",
            show_default=False,
        ),
    ] = "",
    tokens: Annotated[
        list[str] | None,
        typer.Option("--tokens", metavar="'N N ...'", help="A prompt as token ids. Repeat it for a batch."),
    ] = None,
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", metavar="N", min=1, help="How many tokens to generate.")
    ] = 1,
    inputs: Annotated[
        str,
        typer.Option(
            "--inputs", metavar="FILE", help="Arrays by input name: npz, safetensors.", show_default=False
        ),
    ] = "",
    mapping: Annotated[
        str,
        typer.Option("--map", metavar="FILE", help="Which tensor is which, corrected.", show_default=False),
    ] = "",
    save_mapping: Annotated[
        str,
        typer.Option(
            "--save-map", metavar="FILE", help="Write which tensor was taken for which.", show_default=False
        ),
    ] = "",
    baseline: Annotated[
        str,
        typer.Option(
            "--baseline",
            metavar="RUN",
            help="Run what this capture is of once more, and say what changed since: for CI.",
            show_default=False,
        ),
    ] = "",
    plot: Annotated[
        str,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Also draw the drift over the layers: .png, .svg, or .html with the tables.",
            show_default=False,
        ),
    ] = "",
    rtol: Annotated[
        float | None, typer.Option("--rtol", help="Judge by this tolerance instead.", show_default=False)
    ] = None,
    atol: Annotated[
        float | None, typer.Option("--atol", help="Judge by this tolerance instead.", show_default=False)
    ] = None,
    keep: Annotated[
        str,
        typer.Option(
            "--keep", metavar="DIR", help="Keep the captures made on the way here.", show_default=False
        ),
    ] = "",
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="SIZE",
            help="Write at most this much of captures on the way, such as 20GiB; by default half of the free disk.",
            show_default=False,
        ),
    ] = "",
    effort: Annotated[
        str,
        typer.Option(
            "--effort",
            metavar="HOW",
            help="How long to look for the cause: quick (10 s), normal (60 s), thorough, or seconds.",
        ),
    ] = "normal",
    reduce: Annotated[
        str,
        typer.Option(
            "--reduce",
            metavar="DIR",
            help="Also write the smallest part that fails, with its inputs, as a bug report.",
            show_default=False,
        ),
    ] = "",
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Find which options of the candidate flip the verdict instead.")
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=FAILING,OTHER", help="With --bisect: an option to try. May be repeated."
        ),
    ] = None,
    runs: Annotated[
        str,
        typer.Option(
            "--runs", metavar="FILE", help="With --bisect: keep done runs here, to go on.", show_default=False
        ),
    ] = "",
    precision_search: Annotated[
        str,
        typer.Option(
            "--precision-search",
            metavar="OUT.onnx",
            help="Find the fewest operations of REF (onnx:FILE) to keep in float32, and write it with casts.",
            show_default=False,
        ),
    ] = "",
    dtype: Annotated[
        str, typer.Option("--dtype", help="With --precision-search: float16, bfloat16 or int8.")
    ] = "float16",
    rules: RulesOption = None,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    fail_on: FailOnOption = FailOn.ERROR,
    color: ColorOption = Color.AUTO,
    details: Annotated[bool, typer.Option("--details", "-v", help="Also show all evidence.")] = False,
) -> None:
    """Find the first tensor that is really wrong, not merely noisy, and which mistake made it."""
    _check_sides(reference, candidate, baseline=baseline, alone=bool(precision_search))
    need_packages(reference, candidate)

    from trtdx.capture.session.inputs import parse_token_ids
    from trtdx.compare.attribute.effort import parse_effort
    from trtdx.compare.judge.tolerance import Tolerances
    from trtdx.compare.run import Plan, compare
    from trtdx.compare.sides.side import ComparisonQuestion
    from trtdx.knowledge.load import load_book
    from trtdx.words import parse_size

    host = RealHost()
    question = ComparisonQuestion(prompts=parse_token_ids(tokens or ()), new_tokens=new_tokens, inputs=inputs)
    answer = partial(
        _answer, json=json, markdown=markdown, color=color, details=details, fail_on=fail_on, plot=plot
    )  # prints and ends
    if plot:
        from trtdx.compare.report.drift_chart import check_picture

        check_picture(plot)
    if precision_search:
        answer(_precision_search(host, reference, dtype, question, precision_search))
    tolerance = Tolerances(atol, rtol) if rtol is not None or atol is not None else None
    book = load_book(host, rules or [])
    if baseline:
        asked = {
            "--tokens": tokens,
            "--inputs": inputs,
            "--map": mapping,
            "--reduce": reduce,
            "--bisect": bisect,
        }
        _refuse(asked, "the baseline says what is run and fed")
        answer(_regression(host, baseline, reference, keep, book, tolerance))
    plan = Plan(
        reference=reference,
        candidate=candidate,
        question=question,
        mapping=mapping,
        save_mapping=save_mapping,
        keep=keep,
        budget_bytes=parse_size(budget) if budget else None,
        effort=parse_effort(effort),
    )
    if bisect:
        answer(_bisected(host, plan, option or [], runs, book, tolerance))
    report = compare(host, plan, book, tolerance=tolerance, progress=_show)
    failed = None
    if reduce and report.findings:
        try:
            report = _reduced(host, plan, report, reduce, book)
        except TrtdxError as err:
            failed = err
    answer(report, failed=failed)


def _check_sides(reference: str, candidate: str, *, baseline: str, alone: bool) -> None:
    if baseline and candidate:
        raise typer.BadParameter(f"with --baseline name the model only, not also {candidate!r}")
    if not reference and not baseline:
        raise typer.BadParameter("name a reference and a candidate, or --baseline RUN")
    if not candidate and not baseline and not alone:
        raise typer.BadParameter("name a candidate")


def _refuse(given: Mapping[str, object], why: str) -> None:
    named = [name for name, value in given.items() if value]
    if named:
        raise typer.BadParameter(f"{named[0]} does not go with --baseline: {why}")


def _answer(report: Report, *, plot: str, failed: TrtdxError | None = None, **how: Any) -> None:
    """Draw what is to be drawn, print the report and end; what failed after the answer was known is told behind it."""
    from trtdx.compare.report.comparison_report import ComparisonReport

    compared = report if isinstance(report, ComparisonReport) else None
    if plot and compared is not None:
        from trtdx.compare.report.drift_chart import write_picture

        try:
            write_picture(compared, plot)
        except TrtdxError as err:
            failed = err
    nothing = compared is not None and not compared.findings and not compared.compared
    try:
        emit(report, status=2 if nothing else None, **how)
    except typer.Exit:
        if failed is not None:
            raise failed from None
        raise


def _regression(
    host: RealHost, baseline: str, model: str, keep: str, book: RuleBook, tolerance: Tolerances | None
) -> Report:
    from trtdx.compare.search.baseline import BaselineCheck, compare_with_baseline

    asked = BaselineCheck(baseline=baseline, model=model, keep=keep)
    return compare_with_baseline(host, asked, book, tolerance=tolerance, progress=_show)


def _bisected(
    host: RealHost, plan: Plan, option: list[str], runs: str, book: RuleBook, tolerance: Tolerances | None
) -> Report:
    from trtdx.compare.search.bisect_candidate import bisect_candidate, parse_option

    asked = [parse_option(text) for text in option]
    return bisect_candidate(host, plan, book, options=asked, file=runs, tolerance=tolerance, progress=_show)


def _precision_search(
    host: RealHost, reference: str, dtype: str, question: ComparisonQuestion, out: str
) -> Report:
    from trtdx.compare.search.precision import precision_report, precision_search
    from trtdx.compare.sides.side import parse_side

    path = parse_side(host, reference).path
    return precision_report(precision_search(host, path, dtype, question, out=out, progress=_show))


def _reduced(
    host: RealHost, plan: Plan, report: ComparisonReport, folder: str, book: RuleBook
) -> ComparisonReport:
    """Write the smallest part that fails, and say so in the report."""
    import msgspec

    from trtdx.compare.search.reduce import reduce_candidate, reproducer_report
    from trtdx.model import Where

    where = report.findings[0].where
    if not isinstance(where, Where):
        return report
    made = reproducer_report(reduce_candidate(host, plan, where, folder, book, progress=_show))
    return msgspec.structs.replace(report, sections=(*report.sections, *made.sections))


def _show(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")
