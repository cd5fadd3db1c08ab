"""What a reader makes of a path: facts under names every reader shares, each with the place it was read at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.formats.tensorrt.nouns import Kernel, OptimizationProfile, TensorSpec
from trtdx.inspect.facts.gaps import note_absent_fact
from trtdx.inspect.facts.vocabulary import MalformedFactError, fit_to_type, require_term
from trtdx.model import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND_TITLES = {
    "hf": "Hugging Face model directory",
    "tokenizer": "tokenizer directory",
    "checkpoint": "TensorRT-LLM checkpoint",
    "engine": "TensorRT-LLM engine directory",
    "plan": "TensorRT plan",
    "onnx": "ONNX model",
    "llm-args": "LLM-API options",
    "command": "command line",
    "triton": "Triton model repository",
    "lora": "LoRA adapter",
    "build-log": "verbose build log",
    "profiles": "optimization profiles",
    "machine": "machine",
    "request": "request",
    "unknown": "path that is nothing trtdx knows",
}


class Fact(msgspec.Struct, frozen=True):
    """A value and where anyone can see it again: "engine/config.json: build_config.max_batch_size"."""

    value: Any
    where: str


class Artifact(msgspec.Struct, frozen=True):
    """One thing a user has on disk, on a command line or in the machine."""

    kind: str
    path: str
    facts: dict[str, Fact] = {}
    tensors: tuple[TensorSpec, ...] = ()
    profiles: tuple[OptimizationProfile, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    refers_to: tuple[str, ...] = ()  # paths this artifact names, to be inspected with it where they exist
    unread: tuple[str, ...] = ()  # what could not be looked at, and why: a partial answer says so
    real_path: str = ""  # where it really lies, however it was named
    command_text: str = ""  # a command line as it was given
    resolved_paths: dict[str, str] = {}  # paths it names that are on this machine, and where each really lies
    parts: tuple[Artifact, ...] = ()  # what else the same file describes: other containers, and machines
    unit: str = ""  # the container or job it belongs to; those of several are not held against each other
    shared_by: tuple[str, ...] = ()  # the units that name it, where several do

    @property
    def title(self) -> str:
        return KIND_TITLES[self.kind]

    def is_in(self, unit: str) -> bool:
        """Return whether it belongs to a unit: by itself, or because it belongs to no other."""
        return self.unit == unit or (not self.unit and (not self.shared_by or unit in self.shared_by))

    def has(self, *names: str) -> bool:
        return all(self._fact_or_note(name) is not None for name in names)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a fact's value as its vocabulary type, or the default where nobody stated it."""
        fact = self._fact_or_note(name)
        return default if fact is None else fact.value

    def _fact_or_note(self, name: str) -> Fact | None:
        meaning = require_term(name).meaning
        fact = self.facts.get(name)
        if fact is None:
            note_absent_fact(self.kind, self.path, name, meaning)
        return fact

    def integer(self, name: str) -> int | None:
        value = self.get(name)
        return value if isinstance(value, int) else None

    def text(self, name: str) -> str:
        value = self.get(name)
        return value if isinstance(value, str) else ""

    def items(self, name: str) -> list[Any]:
        value = self.get(name)
        return value if isinstance(value, list) else []

    def table(self, name: str) -> dict[str, Any]:
        value = self.get(name)
        return value if isinstance(value, dict) else {}

    def family_facts(self, prefix: str) -> dict[str, Fact]:
        """Return the facts of an open family under their own names: "gemm_plugin" for the family "plugin"."""
        return {name[len(prefix) + 1 :]: fact for name, fact in self.facts.items() if name.startswith(prefix + ".")}

    def distinct_facts(self) -> dict[str, Fact]:
        """Return the facts without options that another fact states: max_batch_size and option.max_batch_size."""
        places = {fact.where for name, fact in self.facts.items() if not name.startswith("option.")}
        return {
            name: fact for name, fact in self.facts.items() if not (name.startswith("option.") and fact.where in places)
        }

    def evidence(self, *names: str) -> tuple[Evidence, ...]:
        """Return where each fact was read and what it says; an unstated one is told as such."""
        return tuple(self._fact_evidence(name) for name in names)

    def _fact_evidence(self, name: str) -> Evidence:
        fact = self.facts.get(name)
        if fact is None:
            return Evidence(self.path, f"does not state {require_term(name).meaning}")
        return Evidence(fact.where, shorten_value(fact.value))


class FactCollector:
    """Collects a reader's facts; a value of the wrong type becomes the fact `malformed`, never an exception."""

    def __init__(self) -> None:
        self._facts: dict[str, Fact] = {}
        self._malformed: list[str] = []
        self._where = ""

    def put(self, name: str, value: Any, where: str) -> None:
        """Keep a value under a name of the vocabulary; None means that nothing was stated."""
        if value is None:
            return
        try:
            self._facts[name] = Fact(fit_to_type(name, value), where)
        except MalformedFactError as err:
            self.put_malformed(value, where, str(err))

    def put_malformed(self, value: Any, where: str, reason: str) -> None:
        """Keep a value that cannot be meant as the fact `malformed`."""
        value_text = f'"{shorten_value(value)}"' if isinstance(value, str) else shorten_value(value)
        self._malformed.append(f"{where} = {value_text}: {reason}")
        self._where = self._where or where

    def add(self, name: str, item: Any, where: str) -> None:
        """Append to a fact that is a list."""
        known_fact = self._facts.get(name)
        self.put(name, [*(known_fact.value if known_fact else []), item], known_fact.where if known_fact else where)

    def has(self, name: str) -> bool:
        return name in self._facts

    def get(self, name: str) -> Any:
        fact = self._facts.get(name)
        return None if fact is None else fact.value

    def to_dict(self) -> dict[str, Fact]:
        if self._malformed:
            self._facts["malformed"] = Fact(list(self._malformed), self._where)
        return dict(self._facts)


def shorten_value(value: Any, max_chars: int = 120) -> str:
    """Return a value in few characters, as it would stand in JSON; a huge one is not spelled out first."""
    if isinstance(value, str):
        text = value[: max_chars + 1]
    elif isinstance(value, (dict, list)) and len(value) > 200:
        text = f"{type(value).__name__} of {len(value)} entries"
    else:
        text = msgspec.json.encode(value, enc_hook=str).decode()
    text = " ".join(text.split())
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."


class Deployment(msgspec.Struct, frozen=True):
    """Artifacts that are meant to work together."""

    artifacts: tuple[Artifact, ...]

    def of_kinds(self, *kinds: str) -> Iterator[Artifact]:
        return (artifact for artifact in self.artifacts if artifact.kind in kinds)

    def split_units(self) -> list[Deployment]:
        """Return what is meant to work together: each container or job with all that belongs to none."""
        names = list(dict.fromkeys(artifact.unit for artifact in self.artifacts if artifact.unit))
        return [
            Deployment(tuple(artifact for artifact in self.artifacts if artifact.is_in(name))) for name in names
        ] or [self]

    def first_of(self, *kinds: str) -> Artifact | None:
        return next(self.of_kinds(*kinds), None)
