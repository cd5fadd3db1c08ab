"""Arguments that the commands of `trtdx capture` share."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from trtdx.cli.output import Color, FailOn, emit

if TYPE_CHECKING:
    from trtdx.model import Section


class EngineName(str, Enum):
    """What can compute a model."""

    AUTO = "auto"
    TORCH = "torch"
    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"


ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A Hugging Face folder or an ONNX file.", show_default=False)
]
CaptureArgument = Annotated[
    str, typer.Argument(metavar="CAPTURE", help="A folder that `trtdx capture` made.")
]
EngineOption = Annotated[EngineName, typer.Option("--engine", help="What computes the model.")]
TapOption = Annotated[
    str,
    typer.Option(
        "--tap",
        metavar="SELECTOR",
        help="What to look at: 'layers.*.mlp:out', '**.q_proj:in', 'layers[0,-1].**', 'op:MatMul', 'tensor:logits', 'dtype:bf16', with , ! and &. By default what leaves each module.",
        show_default=False,
    ),
]


def emit_table(
    section: Section, subject: str, json: bool, markdown: bool, color: Color, *, whole: bool = True
) -> None:
    """Print one table as a report, its cells whole or as long as the terminal has room for."""
    from trtdx.model import Report, Summary

    report = Report(Summary(subject), sections=(section,))
    emit(report, json=json, markdown=markdown, color=color, details=whole, fail_on=FailOn.NEVER)
