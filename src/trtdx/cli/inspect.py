"""`trtdx inspect`: the arguments, and nothing of the work."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from trtdx.cli.options import ColorOption, FailOnOption, JsonOption, MarkdownOption, RulesOption
from trtdx.cli.output import Color, FailOn, emit
from trtdx.host import RealHost


class Show(str, Enum):
    """The sections there are."""

    TENSORS = "tensors"
    PROFILES = "profiles"
    SETTINGS = "settings"
    MAPPING = "mapping"
    QUANTIZATION = "quantization"
    SHAPES = "shapes"
    DEBUG = "debug"
    KERNELS = "kernels"
    FACTS = "facts"
    ALL = "all"


def command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH",
            help="Model, checkpoint, engine, tokenizer, LoRA or Triton directories; plans, ONNX files, option files, build logs; scripts, Kubernetes manifests, compose files and Dockerfiles that start TensorRT-LLM. Several are checked together.",
            show_default=False,
        ),
    ] = None,
    show: Annotated[
        list[Show] | None,
        typer.Option("--show", help="Also show this section. May be repeated.", show_default=False),
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="OTHER",
            help="Show what differs from this one instead, most consequential first.",
            show_default=False,
        ),
    ] = "",
    request: Annotated[
        list[str] | None,
        typer.Option(
            "--request",
            metavar="KEY=N,...",
            help="A request the engine is to take: batch=8,input_len=900,output_len=100,beam=1. May be repeated.",
        ),
    ] = None,
    requests: Annotated[
        str,
        typer.Option(
            "--requests",
            metavar="FILE",
            help="Real traffic as JSON lines: input_len, output_len ... of each request.",
            show_default=False,
        ),
    ] = "",
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shapes",
            metavar="LOG",
            help="Tables of the shapes at run time, from a log or case at level TRACE.",
        ),
    ] = None,
    command_line: Annotated[
        list[str] | None,
        typer.Option(
            "--command", metavar="TEXT", help="A trtllm-serve, trtllm-bench or trtllm-build command line."
        ),
    ] = None,
    runtime: Annotated[
        str,
        typer.Option(
            "--runtime",
            metavar="VERSION",
            help="The TensorRT-LLM release that is to run it.",
            show_default=False,
        ),
    ] = "",
    gpu: Annotated[
        str,
        typer.Option("--gpu", metavar="NAME", help="The GPU, such as L40S, or its SM.", show_default=False),
    ] = "",
    gpus: Annotated[
        int, typer.Option("--gpus", metavar="N", min=0, help="How many GPUs there are.", show_default=False)
    ] = 0,
    rules: RulesOption = None,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    fail_on: FailOnOption = FailOn.ERROR,
    color: ColorOption = Color.AUTO,
    details: Annotated[
        bool, typer.Option("--details", "-v", help="Also show all evidence, and cells in full.")
    ] = False,
) -> None:
    """Say what is in these artifacts, whether they take your requests, and what disagrees with what."""
    from trtdx.cli.progress import WatchedHost, reading
    from trtdx.inspect.facts.machine import machine_from_flags
    from trtdx.inspect.requests.requests import requests_from_flags
    from trtdx.inspect.run import InspectQuestion, inspect_artifacts
    from trtdx.knowledge.load import load_book

    if not (paths or command_line or shapes):
        raise typer.BadParameter("name an artifact, or give --command or --shapes")
    if json and markdown:
        raise typer.BadParameter("--json and --markdown exclude each other")
    with reading(RealHost(), [*(shapes or []), *([requests] if requests else [])]) as progress:
        host = WatchedHost(progress)
        question = InspectQuestion(
            paths=tuple(dict.fromkeys(paths or ())),
            commands=tuple(command_line or ()),
            machine=machine_from_flags(runtime=runtime, gpu=gpu, gpus=gpus),
            shown_sections=(
                *(each.value for each in show or ()),
                *(["shapes"] if json else []),
            ),  # data is given whole
            compare_with=against,
            requests=requests_from_flags(host, request or [], requests),
            shape_logs=tuple(shapes or ()),
        )
        report = inspect_artifacts(host, question, load_book(host, rules or []))
    emit(report, json=json, markdown=markdown, color=color, details=details, fail_on=fail_on)
