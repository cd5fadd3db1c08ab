"""`trtdx capture`: the arguments of a run, and nothing of the work."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trtdx.cli.capture.options import (
    CaptureTarget,
    EngineFlags,
    PromptOptions,
    SamplingOptions,
    SelectionOptions,
    emit_table,
)
from trtdx.cli.groups import refuse_options
from trtdx.cli.options import AllOption, FindingOptions, OutputOptions, emit_report
from trtdx.host import RealHost
from trtdx.optional import ENGINE_PACKAGES, TENSOR_PACKAGES, require_packages

if TYPE_CHECKING:
    from trtdx.capture.run import CapturePlan
    from trtdx.engines.generate import GenerationStep
    from trtdx.engines.open_engine import ComputableModel

LISTS_WITH = ("list_places", "engine", "show_all", "format", "json", "markdown", "color")


def run_capture(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A Hugging Face folder or an ONNX file.", show_default=False),
    ],
    selection: SelectionOptions,
    prompts: PromptOptions,
    sampling: SamplingOptions,
    engine: EngineFlags,
    target: CaptureTarget,
    findings: FindingOptions,
    output: OutputOptions,
    list_places: Annotated[
        str | None,
        typer.Option(
            "--list",
            metavar="SELECTOR",
            help="Only list what this selector matches; nothing is run.",
            show_default=False,
        ),
    ] = None,
    show_all: AllOption = False,
) -> None:
    """Run a model on any engine and capture its intermediate tensors, with no edit of the model.

    Tokens appear on standard error while it runs.
    """
    from trtdx.capture.run import CapturePlan
    from trtdx.engines.open_engine import choose_engine, find_model
    from trtdx.words import parse_size

    found_model = find_model(model)
    kind = choose_engine(found_model, engine.engine.value)
    if list_places is not None:  # an empty one too: a variable that is not set must not start a run
        refuse_options(context, "--list", "nothing is run", allowed=LISTS_WITH)
        _list_places(found_model, kind, list_places, output, show_all=show_all)
    require_packages((*TENSOR_PACKAGES, *ENGINE_PACKAGES[kind]), purpose=f"capture on {kind}")
    prompts.check_sources(target.resume)
    plan = CapturePlan(
        model=model,
        engine=engine.engine.value,
        selector=selection.tap,
        out=target.out,
        prompts=prompts.parse_prompts(found_model.path),
        inputs=tuple(prompts.inputs or ()),
        tokens=prompts.new_tokens,
        sampling=sampling.build_sampling(),
        values=selection.values,
        steps=selection.steps,
        every=selection.every,
        positions=selection.positions,
        budget_bytes=parse_size(selection.budget) if selection.budget else None,
        watch=selection.watch is not None,
        options=engine.build_options(kind),
        resume=target.resume,
        after_step=target.after_step,
        run=shlex.join(["trtdx", *sys.argv[1:]]),
    )
    _capture_plan(plan, findings, output, show_all=show_all)


def _list_places(
    model: ComputableModel, kind: str, selector: str, output: OutputOptions, *, show_all: bool
) -> NoReturn:
    from trtdx.capture.tensor_table import place_section
    from trtdx.engines.open_engine import select_places

    hit = select_places(model, kind, selector or "**")
    section = place_section(hit.places, sure=hit.is_certain, most=0 if show_all or output.is_json else 60)
    emit_table(section, f"{model.path} on {kind}", output, all_rows=show_all)


def _capture_plan(plan: CapturePlan, findings: FindingOptions, output: OutputOptions, *, show_all: bool) -> NoReturn:
    """Carry out a plan, print what was seen and end."""
    from trtdx.capture.run import capture_run

    host = RealHost()
    most, folders = 0 if show_all or output.is_json else None, list[Path]()
    try:
        report = capture_run(
            host, plan, findings.load_rules(host), on_start=folders.append, on_step=_show_step, most=most
        )
    except KeyboardInterrupt:
        where = f"; a generation goes on with --resume {folders[0]}" if folders else ""
        sys.stderr.write(f"interrupted{where}\n")
        raise typer.Exit(130) from None
    emit_report(report, output, findings, details=show_all)


def _show_step(step: GenerationStep) -> None:
    """Show tokens as they come, on standard error."""
    sys.stderr.write(f"step {step.number}: {' '.join(map(str, step.tokens.tolist()))}\n")
    sys.stderr.flush()
