"""Lower bounds of a step's time: what must be read, computed and exchanged, by the GPU's best figures.

Nothing real is faster: kernels read each weight at least once, the cache of every request once, and multiply every
weight with every token. What overlaps is assumed to overlap wholly, so a bound is the largest of the three.
Assumptions: even routing to experts, attention at the speed of the weights' format, no drafts.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.memory.ledger.step_work import StepLoad, work_by_module

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.memory.nouns import Setup

PRACTICAL = 0.8  # of the bandwidth, that good kernels reach (aiconfigurator's own assumption)


class GpuSpeeds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a GPU can do at most."""

    name: str
    memory: float  # GB/s
    bf16: float  # TFLOPS, dense
    fp8: float = 0
    int8: float = 0  # where it is not that of fp8
    fp4: float = 0
    link: float = 0  # GB/s, one way
    source: str = ""


class _SpeedTable(msgspec.Struct, frozen=True):
    gpu: tuple[GpuSpeeds, ...]


class StepBound(NamedTuple):
    """The least time of one step, in seconds, and what it is made of."""

    memory_s: float
    compute_s: float
    link_s: float
    read_bytes: float
    flops: float

    @property
    def seconds(self) -> float:
        return max(self.memory_s, self.compute_s, self.link_s)

    @property
    def binding(self) -> str:
        """What no kernel can get around."""
        times = {"memory bandwidth": self.memory_s, "compute": self.compute_s, "links between GPUs": self.link_s}
        return max(times, key=times.__getitem__)


@cache
def _all_speeds() -> dict[str, GpuSpeeds]:
    data = resources.files("trtdx").joinpath("data/gpu_speeds.toml").read_bytes()
    return {gpu.name: gpu for gpu in msgspec.toml.decode(data, type=_SpeedTable).gpu}


def speeds_of(setup: Setup) -> GpuSpeeds | None:
    """Return what the set-up's GPU can do; None where that is not known."""
    return _all_speeds().get(setup.device.name) if setup.device else None


def bound_step(setup: Setup, speeds: GpuSpeeds, load: StepLoad) -> StepBound:
    """Return the bound of a step."""
    return sum_bounds(bound_modules(setup, speeds, load).values())


def bound_modules(setup: Setup, speeds: GpuSpeeds, load: StepLoad) -> dict[str, StepBound]:
    """Return the bound of each module in a step; these add up to more than the step's own, since parts may overlap."""
    peak = _peak(setup, speeds) * 1e12
    return {
        module: StepBound(
            memory_s=work.read_bytes / (speeds.memory * 1e9),
            compute_s=work.flops / peak,
            link_s=work.sent_bytes / (speeds.link * 1e9) if speeds.link else 0.0,
            read_bytes=work.read_bytes,
            flops=work.flops,
        )
        for module, work in work_by_module(setup, load).items()
    }


def sum_bounds(bounds: Iterable[StepBound]) -> StepBound:
    """Return the bound of things that are done together."""
    return StepBound(*map(sum, zip(*bounds, strict=True)))


def bound_decode_step(setup: Setup, speeds: GpuSpeeds, batch: float, context: float) -> StepBound:
    """Return the bound of a step in which each of some requests, with so many tokens behind it, gets one more."""
    return bound_step(setup, speeds, StepLoad(decoding=batch, context=context))


def bound_prefill_step(setup: Setup, speeds: GpuSpeeds, tokens: float, requests: float = 1) -> StepBound:
    """Return the bound of a step that works on whole prompts of so many tokens together."""
    return bound_step(setup, speeds, StepLoad(prompt_tokens=tokens, prompts=requests, ends=requests))


def _peak(setup: Setup, speeds: GpuSpeeds) -> float:
    """Return the TFLOPS of the format that products are made in; weights alone in fewer bits change nothing."""
    formats = setup.formats.weights
    if "NVFP4" in formats or "MXFP4" in formats:
        return max(speeds.fp4, speeds.fp8, speeds.bf16)
    if "FP8" in formats:
        return max(speeds.fp8, speeds.bf16)
    return max(speeds.fp8, speeds.int8, speeds.bf16) if "A8" in formats else speeds.bf16
