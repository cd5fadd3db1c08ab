"""What runs where: releases against TensorRT, quantisations and data types against compute capabilities.

Sources: TensorRT-LLM's support matrices (docs/source/legacy/reference/support-matrix.md and docs/source/features/
quantization.md at 1.0.0, 1.1.0, 1.2.1 and 1.3.0rc22) and the checks in builder.py and attentionOp.cpp (1.2.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.knowledge import versions

if TYPE_CHECKING:
    from trtdx.inspect.facts.artifact import Artifact

FP8_ALGOS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_BLOCK_SCALES", "W4A8_AWQ")
INTEGER_WEIGHT_ALGOS = ("W8A16", "W4A16", "W4A16_AWQ", "W4A16_GPTQ", "W8A16_GPTQ", "W4A8_AWQ")
DATA_CENTRE_BLACKWELL = range(100, 120)  # builder.py raises for INT8, INT4 and SmoothQuant on these

# PyTorch backend: the compute capabilities a quantisation is listed for; (since, list), the last that fits counts.
SMS_BY_ALGO: dict[str, tuple[tuple[str, tuple[int, ...]], ...]] = {
    "NVFP4": (("0.17.0", (100, 103, 120, 121)),),
    "FP8": (("0.17.0", (89, 90, 100, 103, 120, 121)),),
    "FP8_BLOCK_SCALES": (("0.17.0", (90, 100, 103)), ("0.21.0", (89, 90, 100, 103))),
    "FP8_PER_CHANNEL_PER_TOKEN": (("0.17.0", (90,)),),
    "W4A8_AWQ": (("0.17.0", (89, 90)), ("1.2.0", (89, 90, 100, 103))),
    "W4A16_AWQ": (("0.17.0", (80, 86, 87, 89, 90)), ("1.2.0", (80, 86, 87, 89, 90, 100, 103))),
    "W4A16_GPTQ": (("0.17.0", (80, 86, 87, 89, 90)), ("1.2.0", (80, 86, 87, 89, 90, 100, 103))),
}
ASSUMED_RELEASE = "1.2.1"  # what is assumed where nobody names a release
FIRST_FP8, FIRST_FP4, FIRST_BF16 = 89, 100, 80


class UnsupportedAlgo(NamedTuple):
    """A quantisation that a GPU cannot compute."""

    algo: str
    works_on: tuple[int, ...]
    is_certain: bool  # False: it is not listed, but no hardware forbids it


def unsupported_algo(artifact: Artifact, machine: Artifact) -> UnsupportedAlgo | None:
    """Return the quantisation of a model or engine that this machine's GPU cannot compute."""
    sm = machine.integer("gpu.sm")
    unsupported = (
        (_unsupported_on_machine(artifact, machine, algo, sm) for algo in quantization_algos(artifact))
        if sm is not None
        else ()
    )
    return next((verdict for verdict in unsupported if verdict is not None), None)


def quantization_algos(artifact: Artifact) -> list[str]:
    """Return the quantisations of a model, those of single layers among them."""
    layers = [algo for algo in artifact.table("quant.per_layer").values() if isinstance(algo, str)]
    algos = [artifact.text("quant.algo"), *layers]
    return [algo for algo in dict.fromkeys(algos) if algo and algo != "MIXED_PRECISION"]


def _unsupported_on_machine(artifact: Artifact, machine: Artifact, algo: str, sm: int) -> UnsupportedAlgo | None:
    unsupported = _unsupported_by_hardware(algo, sm)
    if unsupported is not None:
        return unsupported
    if artifact.kind in ("engine", "checkpoint"):
        return _unsupported_by_builder(artifact, algo, sm)
    return _unsupported_by_release(algo, sm, machine.text("gpu.runtime") or ASSUMED_RELEASE)


def _unsupported_by_hardware(algo: str, sm: int) -> UnsupportedAlgo | None:
    """Return what no kernel can make up for: FP8 and FP4 need tensor cores that compute them."""
    known_sms = [int(sm_number) for sm_number in versions.version_table().sm]
    if algo in FP8_ALGOS and sm < FIRST_FP8:
        return UnsupportedAlgo(algo, tuple(known_sm for known_sm in known_sms if known_sm >= FIRST_FP8), True)
    if "NVFP4" in algo and "W4A16" not in algo and sm < FIRST_FP4:
        return UnsupportedAlgo(algo, tuple(known_sm for known_sm in known_sms if known_sm >= FIRST_FP4), True)
    return None


def _unsupported_by_builder(artifact: Artifact, algo: str, sm: int) -> UnsupportedAlgo | None:
    refused = algo in INTEGER_WEIGHT_ALGOS or algo.startswith("W8A8_SQ") or artifact.get("quant.kv_algo") == "INT8"
    if sm not in DATA_CENTRE_BLACKWELL or not refused:
        return None
    lowest = FIRST_FP8 if algo in FP8_ALGOS else FIRST_BF16
    known_sms = [int(sm_number) for sm_number in versions.version_table().sm]
    return UnsupportedAlgo(
        algo, tuple(known_sm for known_sm in known_sms if lowest <= known_sm < 100 or known_sm >= 120), True
    )


def _unsupported_by_release(algo: str, sm: int, runtime: str) -> UnsupportedAlgo | None:
    rows = [sms for since, sms in SMS_BY_ALGO.get(algo, ()) if versions.at_least(runtime, since)]
    if not rows or sm in rows[-1]:
        return None
    return UnsupportedAlgo(algo, rows[-1], False)


def kernels_not_serving(machine: Artifact) -> versions.Kernels | None:
    """Return the kernels of the release where none of them runs on this machine's GPU."""
    sm, runtime = machine.integer("gpu.sm"), machine.text("gpu.runtime")
    kernels = versions.kernels_of(runtime) if runtime else None
    return kernels if kernels is not None and sm is not None and not kernels.serve(sm) else None


def lacks_engine_flow(machine: Artifact) -> bool:
    """Return whether the machine's release has lost the engine flow."""
    return versions.has_engine_flow(machine.text("gpu.runtime")) is False


class PlanWriter(NamedTuple):
    """The TensorRT that wrote plans, and the one that is to read them."""

    writer_version: str
    reader_version: str
    is_observed: bool  # read off the plans; False: concluded from the release that built them

    @property
    def is_same(self) -> bool:
        return version_numbers(self.writer_version)[:3] == version_numbers(self.reader_version)[:3]

    @property
    def differs_in_patch(self) -> bool:
        """Return whether only the patch differs."""
        return version_numbers(self.writer_version)[:2] == version_numbers(self.reader_version)[:2]


def version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def plan_writer(artifact: Artifact, machine: Artifact) -> PlanWriter | None:
    """Return which TensorRT wrote the plans and which one reads them, where both are known."""
    reads = machine.text("gpu.tensorrt") or versions.tensorrt_of(machine.text("gpu.runtime"))
    if not reads or artifact.text("plan.product") not in ("", "TensorRT"):
        return None
    plan_versions = [version for version in artifact.items("plan.versions") if isinstance(version, str)]
    if len(plan_versions) > 1:
        return None  # plans of several builds are another matter
    if plan_versions:
        return PlanWriter(plan_versions[0], reads, True)
    wrote = versions.tensorrt_of(artifact.text("version"))
    return PlanWriter(wrote, reads, False) if wrote else None


def is_same_release(left: str, right: str) -> bool:
    """Return whether two releases are one, patches and local suffixes apart; a pre-release is one of its own."""
    here, there = versions.parse_release(left), versions.parse_release(right)
    if here is None or there is None:
        return False
    if here.is_prerelease or there.is_prerelease:
        return (here.release, here.pre, here.dev) == (there.release, there.pre, there.dev)
    return here.release[:2] == there.release[:2]


LEGACY_ERA = "before 0.8"
LEGACY_RELEASES = ("0.5.0", "0.6.1", "0.7.1")


def is_legacy_engine(engine: Artifact) -> bool:
    """Return whether an engine was built before 0.8, when config.json stated no release."""
    return engine.text("era") == LEGACY_ERA and not engine.has("version")


def possible_builders(engine: Artifact) -> tuple[str, ...]:
    """Return the releases that can have built an engine: the one it states, or those its plans and keys allow."""
    if engine.has("version"):
        return (engine.text("version"),)
    if not is_legacy_engine(engine):
        return ()
    wrote = [version_numbers(str(version))[:3] for version in engine.items("plan.versions")]
    return tuple(
        release
        for release in LEGACY_RELEASES
        if _has_keys_of(engine, release)
        and all(plan_version == version_numbers(versions.tensorrt_of(release))[:3] for plan_version in wrote)
    )


def _has_keys_of(engine: Artifact, release: str) -> bool:
    """Return whether the plugin settings are those of a release before 0.8 (plugin.py at each tag)."""
    if engine.has("plugin.use_paged_context_fmha"):
        return release == "0.7.1"
    later = engine.has("plugin.multi_block_mode") or engine.has("plugin.lora_plugin")
    return release in (("0.6.1",) if later else ("0.5.0", "0.6.1"))


def gpu_words(sms: tuple[int, ...]) -> str:
    """Return words for the GPUs of compute capabilities."""
    return ", ".join(f"{capability_text(sm)} ({versions.gpus_with_sm(str(sm))})" for sm in sms)


def capability_text(sm: int) -> str:
    """Return a compute capability as NVIDIA writes it: 8.9 for 89."""
    return f"{sm // 10}.{sm % 10}"
