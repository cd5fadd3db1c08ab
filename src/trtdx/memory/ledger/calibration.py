"""Factors that correct the plan's formulas, learnt from the user's own logs.

Kept as JSON under the user's configuration folder, one entry for a backend, a family of models and a factor:

    {"version": 1, "entries": {"pytorch/llama/activation_factor": {"value": 1.08, "low": 1.02, "high": 1.14,
     "logs": 3, "lines": ["serve.log:118", ...]}}}

`plan(setup, constants)` asks `applied` for each component.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from trtdx.errors import InputError
from trtdx.memory.nouns import Component, Figure
from trtdx.words import format_count

if TYPE_CHECKING:
    from trtdx.host import Host
    from trtdx.memory.nouns import Setup

CONSTANTS_VERSION = 1
CONSTANTS_FILE = "memory-constants.json"
ANY_FAMILY = "*"
# Which factor a component is multiplied with. What is outside of torch, or in use before anything is loaded, is one
# number in a log, so its parts share a factor.
FACTOR_OF_COMPONENT = {
    "activation": "activation_factor",
    "decoder_buffers": "decoder_factor",
    "runtime_buffers": "runtime_factor",
    "cuda_context": "outside_factor",
    "communication": "outside_factor",
    "cuda_graphs": "outside_factor",
}


class CalibrationFactor(msgspec.Struct, frozen=True, kw_only=True):
    """One factor, the band it was seen in, and the lines that taught it."""

    value: float
    low: float
    high: float
    logs: int
    lines: tuple[str, ...] = ()


class CalibrationConstants(msgspec.Struct, frozen=True):
    """All factors known, by "backend/family/name"."""

    version: int = CONSTANTS_VERSION
    entries: dict[str, CalibrationFactor] = {}

    def find_factor(self, setup: Setup, name: str) -> CalibrationFactor | None:
        """Return the factor for a set-up: of its family of models, else of any."""
        backend = setup.running.backend
        for family in (setup.dims.model_type, ANY_FAMILY):
            constant = self.entries.get(f"{backend}/{family}/{name}")
            if constant is not None:
                return constant
        return None

    def apply_factor(self, setup: Setup, component: Component) -> Component:
        """Return the component as the user's logs say it is; one that was measured or compiled stays as it is."""
        name = FACTOR_OF_COMPONENT.get(component.name)
        figure = component.bytes
        if name is None or not figure.source.startswith("formula"):
            return component
        constant = self.find_factor(setup, name)
        if constant is None:
            return component
        value = figure.value
        scaled = Figure(
            round(value * constant.value),
            round(value * constant.low),
            round(value * constant.high),
            f"measured: formula x {constant.value:.3f}, calibrated on {format_count(constant.logs, 'log')}",
        )
        parts = {part: round(size * constant.value) for part, size in component.parts.items()}
        return replace(component, bytes=scaled, parts=parts)


def constants_path(host: Host) -> str:
    """Return where constants are kept."""
    environment = host.environment()
    home = environment.get("XDG_CONFIG_HOME") or str(PurePosixPath(environment.get("HOME", "/")) / ".config")
    return str(PurePosixPath(home) / "trtdx" / CONSTANTS_FILE)


def load_constants(host: Host) -> CalibrationConstants:
    """Return what was calibrated before; nothing where nothing was.

    Raises:
        InputError: if the file is there and cannot be used.
    """
    path = constants_path(host)
    if host.kind(path) != "file":
        return CalibrationConstants()
    fix = f"calibrate again, or remove it: rm {path}"
    try:
        with host.open(path) as stream:
            constants = msgspec.json.decode(stream.read(), type=CalibrationConstants)
    except (msgspec.MsgspecError, UnicodeDecodeError) as err:
        raise InputError(f"{path} does not hold constants: {err}", fix=fix) from err
    if constants.version != CONSTANTS_VERSION:
        raise InputError(
            f"{path} is of version {constants.version}, this trtdx reads version {CONSTANTS_VERSION}", fix=fix
        )
    if not all(0 < constant.low <= constant.value <= constant.high < 1000 for constant in constants.entries.values()):
        raise InputError(f"{path} holds a factor that is not a positive number", fix=fix)
    return constants


def store_constants(host: Host, constants: CalibrationConstants) -> str:
    """Write the constants in one step and return where."""
    path = constants_path(host)
    data = msgspec.json.format(msgspec.json.encode(constants), indent=2)
    host.write(path, data + b"\n")
    return path
