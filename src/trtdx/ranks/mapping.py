"""Whether a model or engine can be cut over the ranks asked for: the agreements of `inspect`, those about ranks only."""

from __future__ import annotations

import itertools
import math
import shlex
from typing import TYPE_CHECKING

import msgspec

from trtdx.errors import InputError
from trtdx.model import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Artifact, Deployment
    from trtdx.rule import RuleBook

# The agreements about how many ranks there are and how a model is cut over them.
CODES = (
    "DX096",
    "DX131",
    "DX210",
    "DX465",
    "DX467",
    "DX850",
    "DX851",
    "DX852",
    "DX853",
    "DX854",
    "DX856",
    "DX858",
    "DX860",
    "DX905",
)


class ParallelSizes(msgspec.Struct, frozen=True):
    """How a model is to be cut; 0 where nobody said."""

    tp: int = 0
    pp: int = 0
    cp: int = 0
    ep: int = 0

    @property
    def world(self) -> int:
        return math.prod(size or 1 for size in (self.tp, self.pp, self.cp))

    @property
    def is_stated(self) -> bool:
        return bool(self.tp or self.pp or self.cp)

    def flags(self) -> list[str]:
        """Return the sizes as trtllm-serve takes them."""
        named = (("--tp_size", self.tp), ("--pp_size", self.pp), ("--cp_size", self.cp), ("--ep_size", self.ep))
        return [word for flag, size in named if size > 1 for word in (flag, str(size))]


class MappingAnswer(msgspec.Struct, frozen=True):
    """What was found out about a model's ranks."""

    sizes: ParallelSizes
    findings: tuple[Finding, ...] = ()
    engine_world: int = 0  # what an engine was built for
    kind: str = ""


def check_mapping(
    host: Host,
    book: RuleBook,
    *,
    path: str,
    sizes: ParallelSizes,
    world: int = 0,
    command: Sequence[str] = (),
    runtime: str = "",
) -> MappingAnswer:
    """Return what speaks against running a model on these ranks; an engine's own sizes count where none are asked for.

    Raises:
        InputError: the path is neither a model nor an engine.
    """
    from trtdx.inspect.agreements import agreement_table
    from trtdx.inspect.agreements.agreement import judge_findings
    from trtdx.inspect.facts.machine import machine_from_flags
    from trtdx.inspect.run import InspectQuestion, collect_deployment

    paths = (path,) if path else ()
    deployment, _ = collect_deployment(host, InspectQuestion(paths=paths))
    model = _model_in(deployment, path)
    built = _built_sizes(model)
    started = world or (sizes.world if sizes.is_stated else 0) or (built.world if built else 1)
    line = shlex.join(command) if command else _stand_in_command(path, model, sizes, started)
    machine = machine_from_flags(runtime=runtime, gpu="", gpus=0) if runtime else None
    question = InspectQuestion(paths=paths, commands=(line,) if line else (), machine=machine)
    deployment, _ = collect_deployment(host, question)
    rows = tuple(row for row in agreement_table() if row.code in CODES)
    findings = tuple(judge_findings(rows, deployment, book))
    kind = model.kind if model else ""
    return MappingAnswer(sizes if sizes.is_stated or not built else built, findings, built.world if built else 0, kind)


def _model_in(deployment: Deployment, path: str) -> Artifact | None:
    model = deployment.first_of("engine", "checkpoint", "hf")
    if path and model is None:
        raise InputError(f"{path} is neither a model, a checkpoint nor an engine directory")
    return model


def _built_sizes(model: Artifact | None) -> ParallelSizes | None:
    if model is None or model.kind == "hf":
        return None
    return ParallelSizes(*(model.integer(name) or 1 for name in ("tp_size", "pp_size", "cp_size")))


def _stand_in_command(path: str, model: Artifact | None, sizes: ParallelSizes, started: int) -> str:
    """Return the command that would run the model on these ranks, for the agreements to judge."""
    if not path or model is None:
        return ""
    if model.kind == "hf":
        return shlex.join(["trtllm-serve", path, *(sizes.flags() or ["--tp_size", str(started)])])
    return shlex.join(["mpirun", "-n", str(started), "python3", "examples/run.py", "--engine_dir", path])


def model_in_command(host: Host, command: Sequence[str]) -> str:
    """Return the model or engine directory that a command names and that is on this machine."""
    words = [value for flag, value in itertools.pairwise(command) if flag in ("--engine_dir", "--model", "--model_dir")]
    words += [word for word in command[1:] if not word.startswith("-")]
    return next((word for word in words if host.kind(f"{word}/config.json") == "file"), "")
