"""Old spellings that work for one more release, each with a note that names the new one. Goes with 0.3."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from trtdx.cli.groups import OptionGroup, given_flags, refuse_options, refuse_pair
from trtdx.cli.options import FindingOptions, ReportOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

REMOVED_IN = "0.3"  # tests/cli/test_subcommands.py fails once this version is reached


def note_deprecated(old: str, new: str) -> None:
    """Say on standard error that a spelling goes, when, and what to write instead."""
    sys.stderr.write(f"note: {old} is deprecated and will be removed in trtdx {REMOVED_IN}; use {new}\n")


def old_option(*names: str) -> Any:
    """Return an option that works and is no longer shown in help."""
    return typer.Option(*names, hidden=True)


class MovedMode(NamedTuple):
    """A mode that was an option of the main command and is a subcommand now."""

    usage: str
    because: str  # why options without effect in it are refused
    allowed: tuple[str, ...]  # parameters of the main command that have an effect in it


COMMON = tuple(parameter.name for group in (FindingOptions, ReportOptions) for parameter in group.list_parameters())
QUESTION = ("tokens", "new_tokens", "inputs")
VERDICT = (*QUESTION, "mapping", "budget", "rtol", "atol")
COMPARE_MODES = {
    "baseline": MovedMode(
        "trtdx compare baseline RUN [MODEL]",
        "the baseline says what is run and fed",
        ("keep", "rtol", "atol", "plot"),
    ),
    "bisect": MovedMode(
        "trtdx compare bisect REF CAND",
        "a bisection only says which options flip the verdict",
        (*VERDICT, "option", "runs"),
    ),
    "reduce": MovedMode(
        "trtdx compare reduce REF CAND --out DIR",
        "it compares once and writes the part that fails",
        (*VERDICT, "keep", "effort", "save_mapping", "plot"),
    ),
    "precision_search": MovedMode(
        "trtdx compare precision MODEL --out OUT.onnx",
        "a precision search looks at one model only",
        (*QUESTION, "dtype"),
    ),
}
SETUP_OF_LOGS = ("length", "target", "compile_", "plot", "frontier")
MEMORY_MODES = {
    "log": MovedMode("trtdx memory log LOG... --model MODEL", "a log is of one run, which is not planned", ()),
    "calibrate": MovedMode(
        "trtdx memory calibrate LOG... --model MODEL", "constants are learnt, and nothing is planned", ()
    ),
    "frontier": MovedMode("trtdx memory frontier MODEL", "", ("plot",)),
    "plot": MovedMode("trtdx memory frontier MODEL --plot FILE", "", ("frontier",)),
}


def choose_moved_mode(context: typer.Context, modes: Mapping[str, MovedMode]) -> str:
    """Return the name of the old mode that was asked for, with a note that names its new command.

    Raises:
        typer.BadParameter: an option was given that has no effect in this mode, another mode among them.
    """
    flags = given_flags(context)
    name = next((mode for mode in modes if mode in flags), "")
    if not name:
        return ""
    mode = modes[name]
    other = next((other for other in modes if other in flags and other not in (name, *mode.allowed)), "")
    if other:
        refuse_pair(flags[other], flags[name], mode.because)
    note_deprecated(flags[name], mode.usage)
    return name


@dataclass(frozen=True, kw_only=True)
class MovedCompareFlags(OptionGroup):
    """Modes of `trtdx compare` that were options."""

    baseline: Annotated[str, old_option("--baseline")] = ""
    reduce: Annotated[str, old_option("--reduce")] = ""
    bisect: Annotated[bool, old_option("--bisect")] = False
    option: Annotated[list[str] | None, old_option("--option")] = None
    runs: Annotated[str, old_option("--runs")] = ""
    precision_search: Annotated[str, old_option("--precision-search")] = ""
    dtype: Annotated[str, old_option("--dtype")] = "float16"

    @staticmethod
    def choose_mode(context: typer.Context) -> str:
        """Return the old mode that was asked for, "" for a plain comparison."""
        name = choose_moved_mode(context, COMPARE_MODES)
        if name:
            mode = COMPARE_MODES[name]
            flag = given_flags(context)[name]
            refuse_options(context, flag, mode.because, allowed=(*COMMON, *mode.allowed, name))
            return name
        for lonely, owner in (("option", "bisect"), ("runs", "bisect"), ("dtype", "precision")):
            if lonely in (flags := given_flags(context)):
                raise typer.BadParameter(f"{flags[lonely]} is an option of `trtdx compare {owner}`")
        return ""


@dataclass(frozen=True, kw_only=True)
class MovedMemoryFlags(OptionGroup):
    """Modes of `trtdx memory` that were options."""

    log: Annotated[list[str] | None, old_option("--log")] = None
    calibrate: Annotated[list[str] | None, old_option("--calibrate")] = None
    model: Annotated[str, old_option("--model")] = ""
    frontier: Annotated[bool, old_option("--frontier")] = False
    plot: Annotated[str, old_option("--plot")] = ""

    @staticmethod
    def choose_mode(context: typer.Context) -> str:
        """Return the old mode that was asked for, "" for a plain plan."""
        name = choose_moved_mode(context, MEMORY_MODES)
        flags = given_flags(context)
        if name in ("log", "calibrate"):
            dropped = next((option for option in SETUP_OF_LOGS if option in flags), "")
            if dropped:
                refuse_pair(flags[dropped], flags[name], MEMORY_MODES[name].because)
        return name
