"""The nouns of a plan: steps as a user declares them, steps as they are run, and what is remembered of each."""

from __future__ import annotations

from typing import Any

import msgspec

RECORD_VERSION = 1


class CompileSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An ONNX file compiled by TensorRT's builder, driven by trtdx itself."""

    onnx: str
    profiles: tuple[str, ...] = ()
    sm: tuple[str, ...] = ()
    tap: str = ""
    mark: str = "none"  # "outputs" or "debug-tensors": how taps are marked


class StepDeclaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One step as the plan declares it."""

    outputs: tuple[str, ...]
    command: str = ""
    compile: CompileSettings | None = None
    inputs: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    uses_variables: tuple[str, ...] = ()  # environment variables whose value can change the result
    tools: tuple[str, ...] = ()
    gpu: bool = False  # whether the GPU of this machine can change the result
    memory: str = ""  # "8GiB", or "auto": what building an engine from the weights among the inputs takes
    in_place: bool = False  # the command needs a folder that stays, as CMake does
    timeout_s: float | None = None


class VariantDeclaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one variant says of the plan's variables."""

    variables: dict[str, str | int | float | bool] = {}


class PlanFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A plan as it is written."""

    steps: dict[str, StepDeclaration]
    output: str = "build-output"
    name: str = ""
    version: int = 1
    variables: dict[str, str | int | float | bool] = {}
    variants: dict[str, VariantDeclaration] = {}
    tools: dict[str, str] = {}
    memory: str = ""


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of one variant, or of all where they do not differ in it."""

    key: str  # "compile", or "compile@debug"
    declaration: StepDeclaration
    command: str  # with variables and inputs put in; outputs are still {{ output }}
    inputs: tuple[str, ...]  # paths and patterns, as the plan writes them
    needs: tuple[str, ...]  # keys of the steps whose outputs it reads
    outputs: tuple[str, ...]  # below the plan's output folder


class StepFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can change what a step makes."""

    command: str
    outputs: tuple[str, ...]
    inputs: dict[str, str]  # name: digest
    environment: dict[str, str] = {}
    tools: dict[str, str] = {}
    gpu: str = ""


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a finished step."""

    key: str
    plan: str
    fingerprint: StepFingerprint
    files: dict[str, str]  # file below the output folder: digest
    started: float
    seconds: float
    documents: dict[str, dict[str, Any]] = {}  # small JSON and YAML inputs, flat, to say what changed in them
    figures: dict[str, Any] = {}
    record_version: int = RECORD_VERSION


class StepState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a step has to run, and every reason why."""

    step: PlannedStep
    fingerprint: StepFingerprint
    record: StepRecord | None
    reasons: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()  # outputs that are there and that this plan did not make

    @property
    def is_stale(self) -> bool:
        return bool(self.reasons)
