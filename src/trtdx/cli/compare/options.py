"""Option groups of `trtdx compare` and its subcommands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from trtdx.cli.groups import OptionGroup

if TYPE_CHECKING:
    from trtdx.compare.judge.tolerance import Tolerances
    from trtdx.compare.run import ComparisonPlan
    from trtdx.compare.sides.side import ComparisonQuestion

SIDE = "A capture, another tool's dump, or a model: hf:DIR?dtype=bfloat16, onnx:FILE?level=none, trt:FILE."
ReferenceArgument = Annotated[
    str, typer.Argument(metavar="REF", help=f"The side that is right. {SIDE}", show_default=False)
]
CandidateArgument = Annotated[
    str, typer.Argument(metavar="CAND", help="The side to compare with it.", show_default=False)
]
SaveMappingOption = Annotated[
    str,
    typer.Option(
        "--save-map", metavar="FILE", help="Write down which tensor was matched with which.", show_default=False
    ),
]
PlotOption = Annotated[
    str,
    typer.Option(
        "--plot",
        metavar="FILE",
        help="Also draw the drift over the layers: .png, .svg, or .html with the tables.",
        show_default=False,
    ),
]
KeepOption = Annotated[
    str,
    typer.Option("--keep", metavar="DIR", help="Keep the intermediate captures in this folder.", show_default=False),
]


@dataclass(frozen=True, kw_only=True)
class QuestionOptions(OptionGroup):
    """What models are fed."""

    tokens: Annotated[
        list[str] | None,
        typer.Option("--tokens", metavar="'N N ...'", help="A prompt as token ids. Repeat it for a batch."),
    ] = None
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", metavar="N", min=1, help="How many tokens to generate.")
    ] = 1
    inputs: Annotated[
        str,
        typer.Option("--inputs", metavar="FILE", help="Arrays by input name: npz, safetensors.", show_default=False),
    ] = ""

    def build_question(self) -> ComparisonQuestion:
        """Return what both sides are asked."""
        from trtdx.capture.session.inputs import parse_token_ids
        from trtdx.compare.sides.side import ComparisonQuestion

        return ComparisonQuestion(
            prompts=parse_token_ids(self.tokens or ()), new_tokens=self.new_tokens, inputs=self.inputs
        )


@dataclass(frozen=True, kw_only=True)
class VerdictOptions(QuestionOptions):
    """How two sides are run and compared, as far as the verdict goes."""

    mapping: Annotated[
        str,
        typer.Option("--map", metavar="FILE", help="A file from --save-map, corrected by hand.", show_default=False),
    ] = ""
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="SIZE",
            help="Write at most this many bytes of intermediate captures, such as 20GiB; by default half of the free disk.",
            show_default=False,
        ),
    ] = ""

    def build_plan(self, reference: str, candidate: str) -> ComparisonPlan:
        """Return what to compare, and how."""
        from trtdx.compare.run import ComparisonPlan
        from trtdx.words import parse_size

        return ComparisonPlan(
            reference=reference,
            candidate=candidate,
            question=self.build_question(),
            mapping=self.mapping,
            budget_bytes=parse_size(self.budget) if self.budget else None,
        )


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(VerdictOptions):
    """How two sides are run and compared, and the cause of a difference looked for."""

    keep: KeepOption = ""
    effort: Annotated[
        str,
        typer.Option(
            "--effort",
            metavar="HOW",
            help="How long to look for the cause: quick (10 s), normal (60 s), thorough, or seconds.",
        ),
    ] = "normal"

    def build_plan(self, reference: str, candidate: str, save_mapping: str = "") -> ComparisonPlan:
        """Return what to compare, and how."""
        from msgspec.structs import replace

        from trtdx.compare.attribute.effort import parse_effort

        plan = super().build_plan(reference, candidate)
        return replace(plan, keep=self.keep, save_mapping=save_mapping, effort=parse_effort(self.effort))


@dataclass(frozen=True, kw_only=True)
class ToleranceOptions(OptionGroup):
    """By which limits tensors are judged."""

    rtol: Annotated[
        float | None,
        typer.Option("--rtol", help="Judge by this relative tolerance instead.", show_default=False),
    ] = None
    atol: Annotated[
        float | None,
        typer.Option("--atol", help="Judge by this absolute tolerance instead.", show_default=False),
    ] = None

    def build_tolerances(self) -> Tolerances | None:
        """Return the user's limits; None where precision decides."""
        from trtdx.compare.judge.tolerance import Tolerances

        if self.rtol is None and self.atol is None:
            return None
        return Tolerances(self.atol, self.rtol)
