"""The sections a user asks for with `--show`: one function for each, each a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.inspect.facts.artifact import shorten_value
from trtdx.inspect.profiles.dimensions import shape_text
from trtdx.inspect.profiles.engine_profiles import why_not_derived
from trtdx.inspect.sections.stored_tensors import STORING_KINDS, stored_tensor_section
from trtdx.model import Section
from trtdx.words import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Artifact, Deployment
    from trtdx.model import Cell


def tensor_sections(artifact: Artifact, _: Deployment) -> Iterator[Section]:
    """Yield what goes in and out: name, type, and shape with the names of its dynamic dimensions."""
    if artifact.kind == "engine" and (reason := why_not_derived(artifact)):
        yield Section("tensors", f"tensors of {artifact.path}", (), (), f"not known: {reason}")
    if not artifact.tensors:
        return
    rows = tuple((tensor.mode, tensor.name, tensor.dtype, shape_text(tensor.shape)) for tensor in artifact.tensors)
    yield Section("tensors", f"tensors of {artifact.path}", ("", "name", "type", "shape"), rows)


def profile_sections(artifact: Artifact, _: Deployment) -> Iterator[Section]:
    """Yield the optimization profiles: smallest, best and largest shape of each tensor."""
    for profile in artifact.profiles:
        rows = tuple(
            (span.tensor, shape_text(span.min), shape_text(span.opt), shape_text(span.max)) for span in profile.ranges
        )
        title = f"optimization profile {profile.index} of {artifact.path}"
        yield Section("profiles", title, ("tensor", "min", "opt", "max"), rows, note=profile.source)


def settings_sections(artifact: Artifact, _: Deployment) -> Iterator[Section]:
    """Yield build settings and plugins; those that differ from the release's default come first, marked."""
    from trtdx.inspect.facts.build_defaults import settings_section

    if artifact.kind == "engine":
        yield settings_section(artifact)


def mapping_sections(artifact: Artifact, _: Deployment) -> Iterator[Section]:
    """Yield the ranks, the place of each in the parallel layout, and the file it loads; or a model's shards."""
    tp, pp, cp = (artifact.integer(f"{name}_size") or 1 for name in ("tp", "pp", "cp"))
    if artifact.kind in ("checkpoint", "engine") and artifact.has("tp_size") and tp * pp * cp <= MAX_RANKS:
        rows = tuple(_rank_row(artifact, rank, tp, cp) for rank in range(tp * pp * cp))
        columns = ("rank", "tp", "pp", "cp", "file", "size")
        yield Section("mapping", f"ranks of {artifact.path}", columns, rows)
    elif artifact.table("weights.sizes"):
        files = tuple((name, format_bytes(size)) for name, size in artifact.table("weights.sizes").items())
        yield Section("mapping", f"shards of {artifact.path}", ("file", "size"), files)


MAX_RANKS = 4096


def _rank_row(artifact: Artifact, rank: int, tp: int, cp: int) -> tuple[Cell, ...]:
    # Ranks of one context-parallel group lie side by side and share a checkpoint file (1.2.1 mapping.py).
    file_rank = rank if artifact.kind == "engine" else rank // cp
    name = f"rank{file_rank}.{'engine' if artifact.kind == 'engine' else 'safetensors'}"
    size = artifact.table("weights.sizes").get(name)
    size_text = "is missing" if size is None else format_bytes(size)
    return rank, rank // cp % tp, rank // (cp * tp), rank % cp, name, size_text


def quantization_sections(artifact: Artifact, _: Deployment) -> Iterator[Section]:
    """Yield the quantisation of all layers, of those that have their own, and what is left out."""
    layers = artifact.table("quant.per_layer")
    algo = artifact.text("quant.algo") or artifact.text("quant.method")
    if not (layers or algo or artifact.text("quant.kv_algo")):
        return
    rows: list[tuple[Cell, ...]] = [("all layers", algo or "not quantised")]
    rows += [(name, shorten_value(value)) for name, value in sorted(layers.items())]
    rows += [(str(name), "not quantised") for name in artifact.items("quant.excluded")]
    rows.append(("key/value cache", artifact.text("quant.kv_algo") or "not quantised"))
    note = f"read from {artifact.text('quant.source')}" if artifact.text("quant.source") else ""
    yield Section("quantization", f"quantisation of {artifact.path}", ("layer", "as"), tuple(rows), note)


def debug_sections(artifact: Artifact, _: Deployment) -> Iterator[Section]:
    """Yield whether intermediate tensors are outputs, and what that costs."""
    marked = artifact.get("debug_outputs")
    if marked is None:
        return
    rows: tuple[tuple[Cell, ...], ...] = (("intermediate tensors are outputs", bool(marked)),)
    note = COST_OF_DEBUGGING if marked else HOW_TO_DEBUG
    yield Section("debug", f"debugging of {artifact.path}", ("", ""), rows, note)


COST_OF_DEBUGGING = (
    "Each marked tensor blocks the fusions around it and is written to memory at every step; a Python session "
    "also writes it to disk. Only a session in debug mode takes such an engine. Build without "
    "--enable_debug_output for production."
)
HOW_TO_DEBUG = "trtllm-build --enable_debug_output marks what the model registers by register_network_output."


def compiled_kernel_sections(artifact: Artifact, deployment: Deployment) -> Iterator[Section]:
    """Yield the compiled kernels, the ONNX nodes each computes, and their modules."""
    from trtdx.inspect.sections.kernels import kernel_sections

    if artifact.kernels:
        yield from kernel_sections(artifact, deployment)


def fact_sections(artifact: Artifact, _: Deployment) -> Iterator[Section]:
    """Yield every fact that was read and where it stands."""
    rows = tuple(
        (name, _fact_cell(fact.value), fact.where.removeprefix(f"{artifact.path.rstrip('/')}/"))
        for name, fact in sorted(artifact.distinct_facts().items())
    )
    yield Section("facts", f"facts of {artifact.path}", ("fact", "value", "where"), rows)


def _fact_cell(value: object) -> Cell:
    return value if isinstance(value, (int, float, bool)) else shorten_value(value, 200)


class ShownSection(NamedTuple):
    """One word of `--show`: what makes its sections, and what to give where there are none."""

    sections: Callable[[Artifact, Deployment], Iterator[Section]]
    need: str


SECTIONS_BY_NAME = {
    "tensors": ShownSection(tensor_sections, "give a model, a checkpoint, an engine of 0.8 or later, or an ONNX file"),
    "profiles": ShownSection(
        profile_sections, "give an engine of 0.8 or later, a verbose build log or a file of profiles"
    ),
    "settings": ShownSection(settings_sections, "give an engine directory"),
    "mapping": ShownSection(mapping_sections, "give a checkpoint, an engine or a model"),
    "quantization": ShownSection(quantization_sections, "none of it is quantised"),
    "debug": ShownSection(debug_sections, "give an engine directory"),
    "kernels": ShownSection(compiled_kernel_sections, "give a verbose build log"),
    "facts": ShownSection(fact_sections, "give an artifact"),
}


def sections_to_show(host: Host, deployment: Deployment, requested: list[str]) -> Iterator[Section]:
    """Yield the sections asked for, artifact by artifact; those of requests are answered with the requests."""
    names = (
        list(SECTIONS_BY_NAME)
        if "all" in requested
        else [name for name in dict.fromkeys(requested) if name in SECTIONS_BY_NAME]
    )
    shown = set()
    for artifact in deployment.artifacts:
        for name in names:
            sections = list(SECTIONS_BY_NAME[name].sections(artifact, deployment))
            if name == "tensors" and artifact.kind in STORING_KINDS:
                sections.append(stored_tensor_section(host, artifact))
            shown |= {name} if sections else set()
            yield from sections
    for name in names if "all" not in requested else ():
        if name not in shown:
            note = f"Nothing that was given has any: {SECTIONS_BY_NAME[name].need}."
            yield Section(name, f"{name}: nothing to show", (), (), note)
