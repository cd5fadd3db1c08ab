"""`trtdx compare`: the arguments, and nothing of the work."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trtdx.cli.options import ColorOption, FailOnOption, JsonOption, MarkdownOption, RulesOption
from trtdx.cli.output import Color, FailOn, emit
from trtdx.host import RealHost

SIDE = "A capture, another tool's dump, or a model: hf:DIR?dtype=bfloat16, onnx:FILE?level=none, trt:FILE."


def command(
    reference: Annotated[
        str, typer.Argument(metavar="REF", help=f"What is right. {SIDE}", show_default=False)
    ],
    candidate: Annotated[
        str, typer.Argument(metavar="CAND", help="What is compared with it.", show_default=False)
    ],
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
    rules: RulesOption = None,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    fail_on: FailOnOption = FailOn.ERROR,
    color: ColorOption = Color.AUTO,
    details: Annotated[bool, typer.Option("--details", "-v", help="Also show all evidence.")] = False,
) -> None:
    """Find the first tensor that is really wrong, not merely noisy, and which mistake made it."""
    from trtdx.capture.feeding import parse_ids
    from trtdx.compare.run import Plan, compare
    from trtdx.compare.side import Question
    from trtdx.compare.tolerance import Tolerances
    from trtdx.knowledge import load_book

    host = RealHost()
    plan = Plan(
        reference=reference,
        candidate=candidate,
        question=Question(prompts=parse_ids(tokens or ()), new_tokens=new_tokens, inputs=inputs),
        mapping=mapping,
        save_mapping=save_mapping,
        keep=keep,
    )
    tolerance = Tolerances(atol, rtol) if rtol is not None or atol is not None else None
    report = compare(host, plan, load_book(host, rules or []), tolerance=tolerance, progress=_show)
    emit(report, json=json, markdown=markdown, color=color, details=details, fail_on=fail_on)


def _show(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")
