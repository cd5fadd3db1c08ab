"""`trtdx capture`: the arguments of a run, and nothing of the work."""

from __future__ import annotations

import shlex
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtdx.cli.capture_options import EngineName, EngineOption, ModelArgument, TapOption, emit_table
from trtdx.cli.options import AllOption, ColorOption, FailOnOption, JsonOption, MarkdownOption
from trtdx.cli.output import Color, FailOn, emit
from trtdx.host import RealHost
from trtdx.optional import ENGINE_PACKAGES, TENSOR_PACKAGES, require_packages

if TYPE_CHECKING:
    from trtdx.engines.generate import GenerationStep


class Watch(str, Enum):
    """What to stop at."""

    NAN = "nan"


class Optimisation(str, Enum):
    """Levels of ONNX Runtime."""

    NONE = "none"
    BASIC = "basic"
    EXTENDED = "extended"
    ALL = "all"


def run(
    model: ModelArgument,
    tap: TapOption = "",
    engine: EngineOption = EngineName.AUTO,
    list_places: Annotated[
        str | None,
        typer.Option(
            "--list",
            metavar="SELECTOR",
            help="Only show what this selector hits; nothing is run.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Where the capture goes; by default a new folder here.",
            show_default=False,
        ),
    ] = "",
    ids: Annotated[
        list[str] | None,
        typer.Option("--ids", metavar="N,N,...", help="A prompt as token ids. Repeat it for a batch."),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt",
            metavar="TEXT",
            help="A prompt as text, if the model has a tokenizer.json. May be repeated.",
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="FILE", help="What to feed any other model: npz, safetensors, Polygraphy JSON."
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens",
            metavar="N",
            min=1,
            help="How many tokens to generate at most, by default 8; with --resume, those already there count.",
            show_default=False,
        ),
    ] = None,
    values: Annotated[
        str,
        typer.Option(
            "--values",
            metavar="SELECTOR",
            help="Keep the values of these too, not only their statistics.",
            show_default=False,
        ),
    ] = "",
    steps: Annotated[
        str,
        typer.Option(
            "--steps", metavar="N,N-N", help="Capture only these steps; 0 is the prompt.", show_default=False
        ),
    ] = "",
    every: Annotated[
        int, typer.Option("--every", metavar="N", min=1, help="Capture only each Nth step.")
    ] = 1,
    positions: Annotated[
        str,
        typer.Option(
            "--positions",
            metavar="N,N",
            help="Capture only these token positions; -1 is a step's last.",
            show_default=False,
        ),
    ] = "",
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="SIZE",
            help="Keep at most this much of values, such as 2GiB.",
            show_default=False,
        ),
    ] = "",
    memory: Annotated[
        str,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="onnxruntime: hold at most this much of tapped tensors at once.",
            show_default=False,
        ),
    ] = "",
    watch: Annotated[
        Watch | None,
        typer.Option(
            "--watch",
            help="Stop at the first NaN or infinity, and keep it and what led to it.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        str,
        typer.Option(
            "--resume",
            metavar="CAPTURE",
            help="Go on with the generation in this capture.",
            show_default=False,
        ),
    ] = "",
    after_step: Annotated[
        int | None,
        typer.Option(
            "--after-step",
            metavar="N",
            min=0,
            help="With --resume: go on after this step, into --out.",
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0, help="0 takes the likeliest token.")
    ] = 0.0,
    top_k: Annotated[
        int, typer.Option("--top-k", min=0, help="Draw from this many tokens only; 0 from all.")
    ] = 0,
    top_p: Annotated[
        float, typer.Option("--top-p", min=0, max=1, help="Draw from the likeliest with this share.")
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random numbers.")] = 0,
    eos: Annotated[
        list[int] | None,
        typer.Option("--eos", metavar="ID", help="A row ends at this token. May be repeated."),
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="torch: float32, bfloat16 ...; auto is what the config says.")
    ] = "auto",
    attention: Annotated[
        str, typer.Option("--attention", help="torch: eager or sdpa.", show_default=False)
    ] = "",
    compiled: Annotated[bool, typer.Option("--compile", help="torch: run through torch.compile.")] = False,
    optimisation: Annotated[
        Optimisation, typer.Option("--optimisation", help="onnxruntime: how far graphs are optimised.")
    ] = Optimisation.ALL,
    show_all: AllOption = False,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    fail_on: FailOnOption = FailOn.ERROR,
    color: ColorOption = Color.AUTO,
) -> None:
    """Run a model and capture what passes the taps; tokens appear while it runs."""
    from trtdx.capture.run import CapturePlan, capture_run
    from trtdx.capture.session.inputs import parse_token_ids, token_ids_from_texts
    from trtdx.engines.generation_state import Sampling
    from trtdx.engines.open_engine import EngineOptions, choose_engine, find_model
    from trtdx.knowledge.load import load_book
    from trtdx.words import parse_size

    found = find_model(model)
    kind = choose_engine(found, engine.value)
    if list_places is not None:  # an empty one too: a variable that is not set must not start a run
        from trtdx.capture.tensor_table import place_section
        from trtdx.engines.open_engine import select_places

        hit = select_places(found, kind, list_places or "**")
        section = place_section(hit.places, sure=hit.is_certain, most=0 if show_all or json else 60)
        emit_table(section, f"{model} on {kind}", json, markdown, color, whole=show_all)
        return
    require_packages((*TENSOR_PACKAGES, *ENGINE_PACKAGES[kind]), purpose=f"capture on {kind}")
    if sum(map(bool, (ids, prompt, inputs, resume))) > 1:
        raise typer.BadParameter("--ids, --prompt, --input and --resume exclude each other")
    if after_step is not None and not resume:
        raise typer.BadParameter("--after-step needs --resume")
    told = {"--dtype": dtype != "auto", "--attention": attention, "--compile": compiled}
    graph = {"--memory": memory, "--optimisation": optimisation is not Optimisation.ALL}
    for owner, options in (("torch", told), ("onnxruntime", graph)):
        given = [name for name, value in options.items() if value]
        if given and kind != owner:
            raise typer.BadParameter(f"{given[0]} is for {owner}, and this runs on {kind}")
    plan = CapturePlan(
        model=model,
        engine=engine.value,
        selector=tap,
        out=out,
        prompts=token_ids_from_texts(prompt, found.path) if prompt else parse_token_ids(ids or ()),
        inputs=tuple(inputs or ()),
        tokens=tokens,
        sampling=Sampling(temperature, top_k, top_p, seed, tuple(eos or ())),
        values=values,
        steps=steps,
        every=every,
        positions=positions,
        budget_bytes=parse_size(budget) if budget else None,
        watch=watch is not None,
        options=EngineOptions(
            optimisation.value, parse_size(memory) if memory else None, dtype, attention, compiled
        ),
        resume=resume,
        after_step=after_step,
        run=shlex.join(["trtdx", *sys.argv[1:]]),
    )
    host = RealHost()
    most, folders = 0 if show_all or json else None, list[Path]()
    try:
        report = capture_run(
            host, plan, load_book(host), on_start=folders.append, on_step=_show_step, most=most
        )
    except KeyboardInterrupt:
        where = f"; a generation goes on with --resume {folders[0]}" if folders else ""
        sys.stderr.write(f"interrupted{where}\n")
        raise typer.Exit(130) from None
    emit(report, json=json, markdown=markdown, color=color, details=show_all, fail_on=fail_on)


def _show_step(step: GenerationStep) -> None:
    """Show tokens as they come, on standard error."""
    sys.stderr.write(f"step {step.number}: {' '.join(map(str, step.tokens.tolist()))}\n")
    sys.stderr.flush()
