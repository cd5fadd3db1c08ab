"""Arguments and option groups of `trtdx capture` and its subcommands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trtdx.cli.deprecated import note_deprecated, old_option
from trtdx.cli.groups import OptionGroup, refuse_pair
from trtdx.cli.options import FindingOptions, OutputOptions, emit_report
from trtdx.cli.output import FailOn

if TYPE_CHECKING:
    from pathlib import Path

    from trtdx.engines.generation_state import Sampling
    from trtdx.engines.open_engine import EngineOptions
    from trtdx.model import Section


class EngineName(str, Enum):
    """What can compute a model."""

    AUTO = "auto"
    TORCH = "torch"
    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"


class OptimisationLevel(str, Enum):
    """Levels of ONNX Runtime."""

    NONE = "none"
    BASIC = "basic"
    EXTENDED = "extended"
    ALL = "all"


class WatchedValue(str, Enum):
    """What to stop at."""

    NAN = "nan"


CaptureArgument = Annotated[str, typer.Argument(metavar="CAPTURE", help="A folder that `trtdx capture` made.")]
EngineOption = Annotated[EngineName, typer.Option("--engine", help="What computes the model.")]


@dataclass(frozen=True, kw_only=True)
class PromptOptions(OptionGroup):
    """What a model is fed, and how many tokens it is to generate."""

    tokens: Annotated[
        list[str] | None,
        typer.Option("--tokens", metavar="'N N ...'", help="A prompt as token ids. Repeat it for a batch."),
    ] = None
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt",
            metavar="TEXT",
            help="A prompt as text, if the model has a tokenizer.json. May be repeated.",
        ),
    ] = None
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--inputs",
            metavar="FILE",
            help="What to feed any other model: npz, safetensors, Polygraphy JSON.",
        ),
    ] = None
    new_tokens: Annotated[
        int | None,
        typer.Option(
            "--new-tokens",
            metavar="N",
            min=1,
            help="How many tokens to generate at most, by default 8; with --resume, those already there count.",
            show_default=False,
        ),
    ] = None
    ids: Annotated[list[str] | None, old_option("--ids")] = None
    input: Annotated[list[str] | None, old_option("--input")] = None

    def __post_init__(self) -> None:
        """Read the old spellings as the new ones, with a note."""
        renamed = object.__setattr__  # the dataclass is frozen for everyone else
        if self.input:
            note_deprecated("--input", "--inputs")
            renamed(self, "inputs", [*(self.inputs or ()), *self.input])
        if self.is_token_count:
            count = " ".join(self.tokens or ())
            note_deprecated("--tokens as a number of tokens", f"--new-tokens {count}")
            renamed(self, "new_tokens", int(count))
            renamed(self, "tokens", None)
        if self.ids:
            note_deprecated("--ids", "--tokens")
            renamed(self, "tokens", [*(self.tokens or ()), *self.ids])

    @property
    def is_token_count(self) -> bool:
        """Whether `--tokens` is meant as before 0.2: one number, which is no prompt, and says how many to generate."""
        tokens = self.tokens or ()
        return self.new_tokens is None and len(tokens) == 1 and tokens[0].isdecimal() and int(tokens[0]) > 0

    def check_sources(self, resume: str) -> None:
        """Refuse more than one thing to start from."""
        set_options = {
            "--tokens": self.tokens,
            "--prompt": self.prompt,
            "--inputs": self.inputs,
            "--resume": resume,
        }
        named = [flag for flag, value in set_options.items() if value]
        if len(named) > 1:
            raise typer.BadParameter(
                f"{named[0]} does not go with {named[1]}: a run starts from one of them; they exclude each other"
            )

    def parse_prompts(self, model_folder: Path) -> tuple[tuple[int, ...], ...]:
        """Return the prompts as token ids, a row each."""
        from trtdx.capture.session.inputs import parse_token_ids, token_ids_from_texts

        return token_ids_from_texts(self.prompt, model_folder) if self.prompt else parse_token_ids(self.tokens or ())


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(OptionGroup):
    """How the next token is chosen."""

    temperature: Annotated[
        float, typer.Option("--temperature", min=0, help="0 always takes the most likely token.")
    ] = 0.0
    top_k: Annotated[
        int, typer.Option("--top-k", min=0, help="Sample from this many of the most likely tokens; 0 is all of them.")
    ] = 0
    top_p: Annotated[
        float,
        typer.Option("--top-p", min=0, max=1, help="Sample from the most likely tokens that make up this probability."),
    ] = 1.0
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random numbers.")] = 0
    eos: Annotated[
        list[int] | None,
        typer.Option("--eos", metavar="ID", help="Stop a sequence at this token. May be repeated."),
    ] = None

    def build_sampling(self) -> Sampling:
        """Return how tokens are chosen."""
        from trtdx.engines.generation_state import Sampling

        drawn = {"--top-k": self.top_k, "--top-p": self.top_p < 1, "--seed": self.seed}
        for flag, value in drawn.items():
            if value and not self.temperature:
                refuse_pair(
                    flag, "temperature 0", "the likeliest token is taken and none is drawn; add --temperature 1"
                )

        return Sampling(self.temperature, self.top_k, self.top_p, self.seed, tuple(self.eos or ()))


@dataclass(frozen=True, kw_only=True)
class SelectionOptions(OptionGroup):
    """What to look at, and what to keep of it."""

    tap: Annotated[
        str,
        typer.Option(
            "--tap",
            metavar="SELECTOR",
            help="What to look at: 'layers.*.mlp:out', '**.q_proj:in', 'layers[0,-1].**', 'op:MatMul', 'tensor:logits', 'dtype:bf16', with , ! and &. By default what leaves each module.",
            show_default=False,
        ),
    ] = ""
    values: Annotated[
        str,
        typer.Option(
            "--values",
            metavar="SELECTOR",
            help="Keep the values of these too, not only their statistics.",
            show_default=False,
        ),
    ] = ""
    steps: Annotated[
        str,
        typer.Option("--steps", metavar="N,N-N", help="Capture only these steps; 0 is the prompt.", show_default=False),
    ] = ""
    every: Annotated[int, typer.Option("--every", metavar="N", min=1, help="Capture only every Nth step.")] = 1
    positions: Annotated[
        str,
        typer.Option(
            "--positions",
            metavar="N,N",
            help="Capture only these token positions; -1 is the last of a step.",
            show_default=False,
        ),
    ] = ""
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="SIZE",
            help="Keep at most this many bytes of values, such as 2GiB.",
            show_default=False,
        ),
    ] = ""
    watch: Annotated[
        WatchedValue | None,
        typer.Option(
            "--watch",
            help="Stop at the first NaN or infinity, and keep it and what led to it.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class EngineFlags(OptionGroup):
    """What computes the model, and how."""

    engine: EngineOption = EngineName.AUTO
    dtype: Annotated[
        str, typer.Option("--dtype", help="torch: float32, bfloat16 ...; auto takes it from the config.")
    ] = "auto"
    attention: Annotated[str, typer.Option("--attention", help="torch: eager or sdpa.", show_default=False)] = ""
    torch_compile: Annotated[bool, typer.Option("--torch-compile", help="torch: run through torch.compile.")] = False
    optimisation: Annotated[
        OptimisationLevel, typer.Option("--optimisation", help="onnxruntime: how far graphs are optimised.")
    ] = OptimisationLevel.ALL
    memory: Annotated[
        str,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="onnxruntime: hold at most this many bytes of tapped tensors at once.",
            show_default=False,
        ),
    ] = ""
    compile_: Annotated[bool, old_option("--compile")] = False

    def __post_init__(self) -> None:
        """Read the old spelling as the new one, with a note."""
        if self.compile_:
            note_deprecated("--compile", "--torch-compile")
            object.__setattr__(self, "torch_compile", True)

    def build_options(self, kind: str) -> EngineOptions:
        """Return the settings of the engine that computes the model.

        Raises:
            typer.BadParameter: a setting is of another engine.
        """
        from trtdx.engines.open_engine import EngineOptions
        from trtdx.words import parse_size

        settings = {
            "torch": {
                "--dtype": self.dtype != "auto",
                "--attention": self.attention,
                "--torch-compile": self.torch_compile,
            },
            "onnxruntime": {
                "--memory": self.memory,
                "--optimisation": self.optimisation is not OptimisationLevel.ALL,
            },
        }
        for owner, flags in settings.items():
            set_flags = [name for name, value in flags.items() if value]
            if set_flags and kind != owner:
                raise typer.BadParameter(f"{set_flags[0]} is for {owner}, and this runs on {kind}")
        budget = parse_size(self.memory) if self.memory else None
        return EngineOptions(self.optimisation.value, budget, self.dtype, self.attention, self.torch_compile)


@dataclass(frozen=True, kw_only=True)
class CaptureTarget(OptionGroup):
    """Where a capture goes, or which one goes on."""

    out: Annotated[
        str,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Where the capture goes; by default a new folder here.",
            show_default=False,
        ),
    ] = ""
    resume: Annotated[
        str,
        typer.Option(
            "--resume",
            metavar="CAPTURE",
            help="Continue the generation in this capture.",
            show_default=False,
        ),
    ] = ""
    after_step: Annotated[
        int | None,
        typer.Option(
            "--after-step",
            metavar="N",
            min=0,
            help="With --resume: continue after this step, into --out.",
            show_default=False,
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse a step to go on from where nothing goes on."""
        if self.after_step is not None and not self.resume:
            raise typer.BadParameter("--after-step needs --resume")


def emit_table(section: Section, subject: str, output: OutputOptions, *, all_rows: bool = True) -> NoReturn:
    """Print one table as a report, its cells whole or as long as the terminal has room for, and end."""
    from trtdx.model import Report, Summary

    report = Report(Summary(subject), sections=(section,))
    emit_report(report, output, FindingOptions(fail_on=FailOn.NEVER), details=all_rows)
