"""`trtdx inspect`: the arguments, and nothing of the work."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from trtdx.cli.groups import OptionGroup, refuse_pair
from trtdx.cli.options import FindingOptions, MachineOptions, ReportOptions, emit_report
from trtdx.cli.saving import SaveFlag, store_report
from trtdx.host import RealHost

if TYPE_CHECKING:
    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Artifact


class SectionChoice(str, Enum):
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


PathsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH",
        help="Model, checkpoint, engine, tokenizer, LoRA or Triton directories; plans, ONNX files, option files, build logs; scripts, Kubernetes manifests, compose files and Dockerfiles that start TensorRT-LLM. Several are checked together.",
        show_default=False,
    ),
]
ShowOption = Annotated[
    list[SectionChoice] | None,
    typer.Option("--show", help="Also show this section. May be repeated.", show_default=False),
]
ShapesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shapes",
        metavar="LOG",
        help="Tables of the shapes at run time, from a log or case at level TRACE.",
    ),
]
CommandOption = Annotated[
    list[str] | None,
    typer.Option("--command", metavar="TEXT", help="A trtllm-serve, trtllm-bench or trtllm-build command line."),
]


@dataclass(frozen=True, kw_only=True)
class RequestOptions(OptionGroup):
    """The requests an engine is to take."""

    request: Annotated[
        list[str] | None,
        typer.Option(
            "--request",
            metavar="KEY=N,...",
            help="A request the engine should accept: batch=8,input_len=900,output_len=100,beam=1. May be repeated.",
        ),
    ] = None
    requests: Annotated[
        str,
        typer.Option(
            "--requests",
            metavar="FILE",
            help="Real traffic as JSON lines: input_len, output_len ... of each request.",
            show_default=False,
        ),
    ] = ""

    def build_requests(self, host: Host) -> tuple[Artifact, ...]:
        """Return the requests as artifacts."""
        from trtdx.inspect.requests.requests import requests_from_flags

        return requests_from_flags(host, self.request or [], self.requests)


def inspect_artifacts(
    requests: RequestOptions,
    machine: MachineOptions,
    findings: FindingOptions,
    output: ReportOptions,
    paths: PathsArgument = None,
    show: ShowOption = None,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="OTHER",
            help="Show instead what differs from this one, most consequential first.",
            show_default=False,
        ),
    ] = "",
    shapes: ShapesOption = None,
    command_line: CommandOption = None,
    save: SaveFlag = False,
) -> None:
    """Say what is in these artifacts, whether they take your requests, and what disagrees with what."""
    from trtdx.cli.progress import WatchedHost, show_reading
    from trtdx.inspect.run import InspectQuestion, inspect_artifacts

    if not (paths or command_line or shapes):
        raise typer.BadParameter("name an artifact, or give --command or --shapes")
    dropped = {
        "--show": show,
        "--shapes": shapes,
        "--request": requests.request,
        "--requests": requests.requests,
        "--command": paths and command_line,
        "--gpu": machine.gpu,
        "--gpus": machine.gpus,
    }
    for flag, value in dropped.items():
        if against and value:
            refuse_pair(flag, "--against", "only what differs from the other one is shown")
    with show_reading(RealHost(), [*(shapes or []), *filter(None, [requests.requests])]) as progress:
        host = WatchedHost(progress)
        question = InspectQuestion(
            paths=tuple(dict.fromkeys(paths or ())),
            commands=tuple(command_line or ()),
            machine=machine.build_machine(host),
            # Data is given whole.
            shown_sections=(
                *(section.value for section in show or ()),
                *(["shapes"] if output.is_json else []),
            ),
            compare_with=against,
            requests=requests.build_requests(host),
            shape_logs=tuple(shapes or ()),
        )
        report = inspect_artifacts(host, question, findings.load_rules(host))
    if save:
        store_report(RealHost(), "inspect", report)
    emit_report(report, output, findings)
