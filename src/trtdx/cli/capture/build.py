"""`trtdx capture build`: the arguments, and nothing of the work."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from trtdx.cli.groups import OptionGroup
from trtdx.cli.options import FindingOptions, ReportOptions, emit_report
from trtdx.host import RealHost
from trtdx.optional import require_packages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.engines.tensorrt.build.nouns import BuildProgress


class TapVariant(str, Enum):
    """How taps are marked in the engine."""

    OUTPUTS = "outputs"
    DEBUG_TENSORS = "debug-tensors"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(OptionGroup):
    """What is marked in a network, and for which shapes and GPUs it is built."""

    tap: Annotated[
        str, typer.Option("--tap", metavar="SELECTOR", help="What to mark in the engine.", show_default=False)
    ] = ""
    variant: Annotated[
        TapVariant,
        typer.Option(
            "--variant",
            help="Mark the taps as outputs or as debug tensors; the engine without marks is then built too, and compared.",
        ),
    ] = TapVariant.NONE
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            metavar="'INPUT:MIN,OPT,MAX ...'",
            help="An optimization profile, such as 'ids:1x1,2x32,4x128 mask:1x1,2x32,4x128'. May be repeated.",
        ),
    ] = None
    compute_capability: Annotated[
        list[str] | None,
        typer.Option("--sm", metavar="SM", help="Build for this compute capability, such as 89. May be repeated."),
    ] = None


def build_engine(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="An ONNX file, or file.py:function or package.module:function that defines a network.",
            show_default=False,
        ),
    ],
    marks: NetworkOptions,
    findings: FindingOptions,
    output: ReportOptions,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="Write the plan here.", show_default=False)] = "",
) -> None:
    """Compile with TensorRT's builder, no GPU needed, and say what marking tensors for debugging changes."""
    graph = ("onnx", "onnx_ir") if marks.tap and source.endswith(".onnx") else ()
    require_packages(("numpy", "ml_dtypes", *graph, "tensorrt_rtx"), purpose="compile this")

    from trtdx.capture.build.report import render_build_report
    from trtdx.engines.tensorrt.build.build import build_plan as compile_network
    from trtdx.engines.tensorrt.build.errors import BuildCancelledError, BuildError
    from trtdx.engines.tensorrt.build.nouns import BuildOptions

    if marks.variant is not TapVariant.NONE and not marks.tap and ":" not in source:
        raise typer.BadParameter(f"--variant {marks.variant.value} needs --tap, which says what to mark")
    if marks.tap and marks.variant is TapVariant.NONE:
        raise typer.BadParameter(
            "--tap needs --variant outputs or --variant debug-tensors: without it nothing is marked"
        )
    book = findings.load_rules(RealHost())
    options, profiles = (
        BuildOptions(compute_capabilities=tuple(marks.compute_capability or ())),
        tuple(marks.profile or ()),
    )
    production = None
    try:
        with show_building() as progress:
            if marks.variant is not TapVariant.NONE:
                production = compile_network(source, profiles=profiles, options=options, progress=progress)
            built = compile_network(
                source,
                selector=marks.tap,
                variant=marks.variant.value,
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
    emit_report(report, output, findings, details=True)


@contextlib.contextmanager
def show_building() -> Iterator[Callable[[BuildProgress], None] | None]:
    """Give a function that shows how far a build has come, where a person watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("building", total=1.0)
        yield lambda state: bar.update(task, completed=state.fraction, description=state.phase[-40:])
