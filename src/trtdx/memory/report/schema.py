"""The JSON of `trtdx memory` as types, from which `docs/memory.schema.json` is generated.

The plan is written as plain dictionaries (see `memory_json`); a test holds real output to these types.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from trtdx.memory.ledger.frontier import FrontierPoint
from trtdx.memory.nouns import COMPONENTS, Figure, Setup
from trtdx.model import Report, Stage

RankDocument = msgspec.defstruct(
    "RankDocument",
    [
        ("rank", int),
        ("fits", bool | None),
        ("short_bytes", int),
        ("capacity_bytes", int),
        ("kv_bytes_per_token", Figure),
        ("kv_tokens", Figure),
        ("total_bytes", Figure),
        *((f"{name}_bytes", Figure | UnsetType, UNSET) for name in COMPONENTS),
    ],
    namespace={"__doc__": "What one GPU holds; a component that it does not hold may be absent."},
    forbid_unknown_fields=True,
    kw_only=True,
)


class SmallestHome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The smallest GPUs a model runs on, where none was named."""

    gpu: str
    count: int


class PlanDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan, or what logs tell; of a calibration the constants alone."""

    fits: bool | UnsetType | None = UNSET
    kv_tokens: Figure | UnsetType | None = UNSET
    ranks: list[RankDocument] | UnsetType = UNSET  # type: ignore[valid-type]
    assumed: list[str] | UnsetType = UNSET
    setup: Setup | UnsetType = UNSET
    smallest: SmallestHome | UnsetType = UNSET
    settings: dict[str, Any] | UnsetType = UNSET  # from logs
    constants: dict[str, Any] | UnsetType = UNSET  # from a calibration


class StagedCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command line to run again, and the stage it belongs to."""

    stage: Stage
    text: str


class CommandsDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The commands of a change: those to run again, all of them as `--command` takes them, and the check."""

    flags: list[StagedCommand]
    command: str
    verify: str


class AdviceDocument(CommandsDocument, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One change, and what it gains."""

    change: str
    gain_bytes: int
    fits: bool | None
    kv_tokens: int
    harm: float
    speed: str


class NamedChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change in words."""

    change: str


class RefusedChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change that was tried, and why it does not do."""

    change: str
    why_not: str


class NearestLoadJson(CommandsDocument, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A load near the target that can be reached."""

    batch: int
    seq: int
    tokens: int
    beam: int
    changes: list[str]


class TargetDocument(CommandsDocument, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The load asked for, and the cheapest change that reaches it."""

    batch: int
    seq: int
    tokens: int
    beam: int
    fits: bool
    fits_now: bool
    changes: list[NamedChange]
    nearest: list[NearestLoadJson]
    kv_tokens: int
    dearer: list[str]
    others: list[RefusedChange]


class MemoryDocument(Report, frozen=True, kw_only=True):
    """What `trtdx memory` and its subcommands print as JSON."""

    memory: PlanDocument | None = None
    frontier: tuple[FrontierPoint, ...] = ()
    advice: tuple[AdviceDocument, ...] = ()
    target: TargetDocument | None = None
