"""`trtdx capture`: looking at captures, moving them, replaying from them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trtdx.cli.capture.options import CaptureArgument, EngineName, EngineOption, emit_table
from trtdx.cli.options import AllOption, FindingOptions, OutputOptions, emit_report
from trtdx.cli.output import write_output
from trtdx.host import RealHost


def show_capture(
    capture: CaptureArgument,
    findings: FindingOptions,
    output: OutputOptions,
    selector: Annotated[str, typer.Argument(metavar="SELECTOR", help="Only these tensors.", show_default=False)] = "",
    steps: Annotated[str, typer.Option("--steps", metavar="N,N-N", help="Only these steps.", show_default=False)] = "",
    sort: Annotated[str, typer.Option("--sort", help="order, absmax, std, nan or bytes.")] = "order",
    show_all: AllOption = False,
) -> None:
    """Show what is in a capture: each tensor over its steps, the tokens, and the first that is not finite."""
    from trtdx.capture.run import capture_report

    report = capture_report(
        capture,
        findings.load_rules(RealHost()),
        selector=selector,
        steps=steps,
        sort=sort,
        most=0 if show_all or output.is_json else None,
    )
    emit_report(report, output, findings, details=show_all)


def query_capture(
    capture: CaptureArgument,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT over the table `tensors`.")],
    output: OutputOptions,
) -> None:
    """Ask the statistics anything, in SQL."""
    from trtdx.capture.run import open_capture, query_section

    with open_capture(capture) as opened:
        emit_table(query_section(opened, sql), capture, output)


def verify_values(capture: CaptureArgument, findings: FindingOptions, output: OutputOptions) -> None:
    """Read all values of a capture and check that they are what was captured; name the tensors that are not."""
    from trtdx.capture.run import verify_capture

    emit_report(verify_capture(capture, findings.load_rules(RealHost())), output, findings)


def import_dump(
    dump: Annotated[
        str,
        typer.Argument(metavar="DUMP", help="TensorRT-LLM's dump trees, Polygraphy JSON, npz, npy, safetensors."),
    ],
    capture: Annotated[str, typer.Argument(metavar="CAPTURE", help="The folder to create.")],
) -> None:
    """Read another tool's dump into a capture."""
    from trtdx.capture.dumps.import_dump import import_capture
    from trtdx.words import format_count

    done = import_capture(RealHost(), dump, capture)
    write_output(f"{capture}: {format_count(done.records, 'tensor')} from {dump} ({done.format})\n")
    for line in done.notes:
        sys.stderr.write(f"note: {line}\n")


def export_values(
    capture: CaptureArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The .npz or .safetensors file to write.")],
    tap: Annotated[str, typer.Option("--tap", metavar="SELECTOR", help="Only these tensors.", show_default=False)] = "",
    steps: Annotated[str, typer.Option("--steps", metavar="N,N-N", help="Only these steps.", show_default=False)] = "",
) -> None:
    """Write the values kept in a capture to a file that other tools read."""
    from trtdx.capture.dumps.export import export_capture
    from trtdx.capture.run import open_capture, selected_records
    from trtdx.words import format_count

    with open_capture(capture) as opened:
        done = export_capture(opened, file, selected_records(opened, tap, steps))
    write_output(f"{file}: {format_count(done.tensors, 'tensor')}\n")
    for line in done.notes:
        sys.stderr.write(f"note: {line}\n")


def replay_module(
    capture: CaptureArgument,
    module: Annotated[
        str, typer.Argument(metavar="MODULE", help="The module to run by itself: layers.3, layers.3.mlp.")
    ],
    output: OutputOptions,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="The model that has it; by default the capture's own.",
            show_default=False,
        ),
    ] = "",
    engine: EngineOption = EngineName.AUTO,
    step: Annotated[int, typer.Option("--step", metavar="N", min=0, help="With the inputs of this step.")] = 0,
    out: Annotated[
        str,
        typer.Option("--out", metavar="DIR", help="Capture what is computed inside it.", show_default=False),
    ] = "",
) -> None:
    """Compute one module with captured inputs, on any engine that has it, beside what was captured."""
    from trtdx.capture.session.replay import replay_section

    section = replay_section(capture, module, model=model, engine=engine.value, step=step, out=out)
    emit_table(section, f"{module} of {capture}", output)
