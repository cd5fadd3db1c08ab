"""Activation memory from TensorRT's own compiler: the layers of a model, built on the CPU for the shapes that are asked.

compiled = compiled_activation(setup)
setup = replace(setup, activation=compiled.figure)

Two layers are built, as one rank has them; more need no more (benchmarks/memory_compile.py), because the memory of one
is used again by the next. TensorRT-RTX knows no plugins, so where an engine would have them the formula widens the band.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.engines.tensorrt.bindings import PACKAGES
from trtdx.engines.tensorrt.build.build import build_plan
from trtdx.engines.tensorrt.build.errors import BuildError
from trtdx.engines.tensorrt.build.nouns import BuildOptions, BuildProgress
from trtdx.errors import InputError, MissingExtraError
from trtdx.host import RealHost
from trtdx.installation import install_packages
from trtdx.memory.compile.cache import CompileCache, compile_cache_key
from trtdx.memory.compile.network import TENSORRT_TYPES, DecoderBlocks
from trtdx.memory.ledger.engine_activation import largest_step_tokens, logits_rows
from trtdx.memory.ledger.plan import formula_activation
from trtdx.memory.ledger.weight_storage import ceil_div, dtype_bytes, pad_to_multiple
from trtdx.memory.nouns import Figure
from trtdx.words import format_bytes, group_digits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trtdx.host import Host
    from trtdx.memory.nouns import Setup

COMPILED_SOURCE = "compiled: TensorRT builder"
COMPILED_LAYERS = 2
MOST_PARAMETERS = 2_000_000_000  # of one layer: the builder holds several copies
CAPABILITIES = {80: "8.0", 86: "8.6", 89: "8.9", 120: "12.0", 121: "12.1"}  # what TensorRT-RTX compiles for
OTHER_CAPABILITY = "8.9"  # activation memory is the same for all
COMPILED_TOLERANCE = 0.03
TIMEOUT_S = 900.0


class CompiledPoint(NamedTuple):
    """What one shape needs."""

    tokens: int
    bytes: int
    cached: bool


class CompiledActivation(msgspec.Struct, frozen=True):
    """What the compiler said: the largest shape, and smaller ones for the growth curve."""

    figure: Figure
    points: tuple[CompiledPoint, ...]  # the smallest first
    tensorrt: str
    why: str


def compile_activation(
    setup: Setup,
    *,
    tokens: Iterable[int] = (),
    host: Host | None = None,
    progress: Callable[[BuildProgress], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> CompiledActivation:
    """Return the activation memory of a set-up's largest step, by compiling its layers.

    Args:
        setup: what is planned.
        tokens: further numbers of tokens in a step, for the growth curve.
        host: where results are kept; this machine.
        progress: called with each step of the compiler.
        cancel: asked several times a second; the compile ends when it says yes.

    Raises:
        InputError: the model has layers that cannot be compiled here.
        MissingExtraError: there is no TensorRT.
        BuildError: TensorRT did not compile them; it carries what was said.
    """
    package, version = installed_tensorrt()
    most = _largest_step(setup)
    token_counts = sorted({count for count in (*tokens, most) if 0 < count <= most})
    cache = CompileCache(host or RealHost())
    capability = CAPABILITIES.get(setup.sm, OTHER_CAPABILITY) if package == "tensorrt_rtx" else ""
    points = []
    for number, count in enumerate(token_counts):
        blocks = blocks_from_setup(setup, count)
        report_progress = _partial_progress(progress, number, len(token_counts), count)
        points.append(compile_point(blocks, cache, (package, version, capability), report_progress, cancel))
    return CompiledActivation(
        _compiled_figure(setup, points[-1].bytes),
        tuple(points),
        f"{package} {version}",
        f"{COMPILED_LAYERS} layers stand for {setup.dims.num_layers}, for {group_digits(most)} tokens: "
        f"{format_bytes(points[-1].bytes)}",
    )


def installed_tensorrt() -> tuple[str, str]:
    """Return which TensorRT is there and its version, without loading it."""
    for package in PACKAGES:
        version = _version_of(package)
        if version:
            return package, version
    raise MissingExtraError(
        "neither tensorrt nor tensorrt_rtx is installed, and one is needed to compile the model's layers",
        fix=f"{install_packages('tensorrt-rtx')}   # compiles without a GPU; or plan without --compile",
    )


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def blocks_from_setup(setup: Setup, tokens: int) -> DecoderBlocks:
    """Return the layers to compile for a step of so many tokens.

    Raises:
        InputError: if there are none that can be.
    """
    dims, tp = setup.dims, setup.layout.tp
    problem = _compile_problem(setup)
    if problem:
        raise InputError(problem, fix="plan without --compile: the formula covers it")
    limits = setup.limits
    longest = max(min(limits.max_input_len or limits.max_seq_len, limits.max_seq_len, tokens), 1)
    sequences = max(tokens // longest, 1)
    blocks = DecoderBlocks(
        hidden=dims.hidden_size,
        heads=ceil_div(dims.num_heads, tp),
        kv_heads=max(ceil_div(dims.num_kv_heads, tp), 1),
        head_dim=dims.head_dim,
        inner=ceil_div(dims.intermediate_size, tp),
        gated=dims.gated,
        dtype=setup.formats.dtype,
        layers=min(COMPILED_LAYERS, dims.num_layers),
        sequences=sequences,
        length=ceil_div(tokens, sequences),
    )
    if blocks.parameters > MOST_PARAMETERS:
        raise InputError(
            f"a layer of {group_digits(blocks.parameters)} parameters is too large to be compiled here",
            fix="plan without --compile, or for more GPUs (--tp)",
        )
    return blocks


def _compile_problem(setup: Setup) -> str:
    dims = setup.dims
    if dims.num_experts:
        return "layers with experts cannot be compiled: TensorRT-RTX has no kernels for them"
    if dims.mla:
        return "latent attention cannot be compiled: TensorRT-LLM has kernels of its own for it"
    if dims.state_layers or dims.encoder_layers:
        return "only decoders with attention can be compiled, and this model has other layers"
    if setup.formats.dtype not in TENSORRT_TYPES:
        return f"layers in {setup.formats.dtype} cannot be compiled"
    if dims.num_heads % max(dims.num_kv_heads, 1):
        return f"{dims.num_heads} heads cannot share {dims.num_kv_heads} key/value heads"
    return ""


def _largest_step(setup: Setup) -> int:
    return largest_step_tokens(setup) if setup.is_engine else max(setup.limits.max_num_tokens, 1)


def compile_point(
    blocks: DecoderBlocks,
    cache: CompileCache,
    compiler: tuple[str, str, str],
    progress: Callable[[BuildProgress], None] | None,
    cancel: Callable[[], bool] | None,
) -> CompiledPoint:
    """Return what some layers need: kept from before, or compiled now. `compiler`: package, version, capability."""
    text = msgspec.json.encode(blocks).decode()
    key = compile_cache_key(*compiler, text)
    cached_bytes = cache.find(key)
    if cached_bytes is not None:
        return CompiledPoint(blocks.tokens, cached_bytes, cached=True)
    package, _, capability = compiler
    options = BuildOptions(
        package=package, compute_capabilities=(capability,) if capability else (), timeout_s=TIMEOUT_S
    )
    with tempfile.TemporaryDirectory(prefix="trtdx-blocks-") as folder:
        source = Path(folder) / "blocks.py"
        source.write_text(
            f"from trtdx.memory.compile.network import network_definition\n\nnetwork = network_definition({text!r})\n"
        )
        built = build_plan(
            f"{source}:network",
            options=options,
            plan=Path(folder) / "blocks.plan",
            progress=progress,
            cancel=cancel,
        )
    if not built.activation_bytes:
        raise BuildError("TensorRT compiled the layers and did not say what memory they need", stage="compile")
    size = max(built.activation_bytes)
    cache.store(key, size)
    return CompiledPoint(blocks.tokens, size, cached=False)


def _partial_progress(
    progress: Callable[[BuildProgress], None] | None, number: int, total: int, tokens: int
) -> Callable[[BuildProgress], None] | None:
    """Return what is told of one of several compiles: how far all of them are."""
    if progress is None:
        return None

    def report_step(step: BuildProgress) -> None:
        phase = f"{group_digits(tokens)} tokens: {step.phase}"
        progress(BuildProgress(phase, step.step, step.steps, (number + step.fraction) / total))

    return report_step


def _compiled_figure(setup: Setup, compiled: int) -> Figure:
    """Return the compiler's figure; where plugins would do the work, the formula's too is in its band."""
    value = max(compiled, _logits_step_bytes(setup))
    low, high = value * (1 - COMPILED_TOLERANCE), value * (1 + COMPILED_TOLERANCE)
    running = setup.running
    if running.backend != "tensorrt" or running.attention_plugin or running.gemm_plugin:
        formula = formula_activation(setup, setup.layout.world - 1).bytes
        low, high = min(low, formula.low), max(high, formula.high)
    return Figure(value, round(low), round(high), COMPILED_SOURCE)


def _logits_step_bytes(setup: Setup) -> int:
    """Return what is alive when logits are computed; they are an output of the compiled layers, not of an engine's."""
    width = dtype_bytes(setup.formats.dtype)
    rows = logits_rows(setup) if setup.is_engine else setup.limits.max_batch_size
    words = pad_to_multiple(setup.dims.vocab_size, setup.layout.tp) * rows
    return (setup.dims.hidden_size * (_largest_step(setup) + rows) + words) * width
