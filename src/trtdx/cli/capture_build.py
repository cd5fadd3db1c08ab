"""`trtdx capture build`: the arguments, and nothing of the work."""

from __future__ import annotations

import contextlib
import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from trtdx.cli.options import ColorOption, FailOnOption, JsonOption, MarkdownOption, RulesOption
from trtdx.cli.output import Color, FailOn, emit
from trtdx.host import RealHost
from trtdx.optional import require_packages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.engines.tensorrt.build.nouns import BuildProgress


class Variant(str, Enum):
    """How taps are marked in the engine."""

    OUTPUTS = "outputs"
    DEBUG_TENSORS = "debug-tensors"
    NONE = "none"


def build(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="An ONNX file, or file.py:function or package.module:function that defines a network.",
            show_default=False,
        ),
    ],
    tap: Annotated[
        str, typer.Option("--tap", metavar="SELECTOR", help="What to mark in the engine.", show_default=False)
    ] = "",
    variant: Annotated[
        Variant,
        typer.Option(
            "--variant",
            help="Mark taps as outputs or as debug tensors, or build for production; with marks, both are built and compared.",
        ),
    ] = Variant.NONE,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            metavar="'INPUT:MIN,OPT,MAX ...'",
            help="An optimization profile, such as 'ids:1x1,2x32,4x128 mask:1x1,2x32,4x128'. May be repeated.",
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--sm", metavar="SM", help="Build for this compute capability, such as 89. May be repeated."
        ),
    ] = None,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Write the plan here.", show_default=False)
    ] = "",
    rules: RulesOption = None,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    fail_on: FailOnOption = FailOn.ERROR,
    color: ColorOption = Color.AUTO,
) -> None:
    """Compile with TensorRT's builder, no GPU needed, and say what marking tensors for debugging changes."""
    graph = ("onnx", "onnx_ir") if tap and source.endswith(".onnx") else ()
    require_packages(("numpy", "ml_dtypes", *graph, "tensorrt_rtx"), purpose="compile this")

    from trtdx.capture.build.report import render_build_report
    from trtdx.engines.tensorrt.build.build import build_plan as compile_network
    from trtdx.engines.tensorrt.build.errors import BuildCancelledError, BuildError
    from trtdx.engines.tensorrt.build.nouns import BuildOptions
    from trtdx.knowledge.load import load_book

    if variant is not Variant.NONE and not tap and ":" not in source:
        raise typer.BadParameter(f"--variant {variant.value} needs --tap, which says what to mark")
    book = load_book(RealHost(), rules or [])
    options, profiles = BuildOptions(compute_capabilities=tuple(gpu or ())), tuple(profile or ())
    production = None
    try:
        with building() as progress:
            if variant is not Variant.NONE:
                production = compile_network(source, profiles=profiles, options=options, progress=progress)
            built = compile_network(
                source,
                selector=tap,
                variant=variant.value,
                profiles=profiles,
                options=options,
                plan=out or None,
                progress=progress,
            )
    except BuildCancelledError:
        raise
    except BuildError as err:
        report = render_build_report(err, book)
        if not report.findings:
            raise
    else:
        report = render_build_report(built, book, production=production)
    emit(report, json=json, markdown=markdown, color=color, details=True, fail_on=fail_on)


@contextlib.contextmanager
def building() -> Iterator[Callable[[BuildProgress], None] | None]:
    """Give a function that shows how far a build has come, where a person watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("building", total=1.0)
        yield lambda each: bar.update(task, completed=each.fraction, description=each.phase[-40:])
