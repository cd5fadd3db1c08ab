"""The sections a user asks for with `--show`: one function for each, each a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.inspect.facts.artifact import shortened
from trtdx.inspect.profiles.dimensions import shape_text
from trtdx.inspect.profiles.engine_profiles import why_not_derived
from trtdx.inspect.sections.stored_tensors import STORING, stored_tensors
from trtdx.model import Section
from trtdx.words import size_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Artifact, Deployment
    from trtdx.model import Cell


def tensors(artifact: Artifact, _: Deployment) -> Iterator[Section]:
    """Yield what goes in and out: name, type, and shape with the names of its dynamic dimensions."""
    if artifact.kind == "engine" and (reason := why_not_derived(artifact)):
        yield Section("tensors", f"tensors of {artifact.path}", (), (), f"not known: {reason}")
    if not artifact.tensors:
        return
    rows = tuple(
        (tensor.mode, tensor.name, tensor.dtype, shape_text(tensor.shape)) for tensor in artifact.tensors
    )
    yield Section("tensors", f"tensors of {artifact.path}", ("", "name", "type", "shape"), rows)


def profiles(artifact: Artifact, _: Deployment) -> Iterator[Section]:
    """Yield the optimization profiles: smallest, best and largest shape of each tensor."""
    for profile in artifact.profiles:
        rows = tuple(
            (span.tensor, shape_text(span.min), shape_text(span.opt), shape_text(span.max))
            for span in profile.ranges
        )
        title = f"optimization profile {profile.index} of {artifact.path}"
        yield Section("profiles", title, ("tensor", "min", "opt", "max"), rows, note=profile.source)


def settings(artifact: Artifact, _: Deployment) -> Iterator[Section]:
    """Yield build settings and plugins; those that differ from the release's default come first, marked."""
    from trtdx.inspect.facts.build_defaults import settings_section

    if artifact.kind == "engine":
        yield settings_section(artifact)


def mapping(artifact: Artifact, _: Deployment) -> Iterator[Section]:
    """Yield the ranks, the place of each in the parallel layout, and the file it loads; or a model's shards."""
    tp, pp, cp = (artifact.integer(f"{name}_size") or 1 for name in ("tp", "pp", "cp"))
    if artifact.kind in ("checkpoint", "engine") and artifact.has("tp_size") and tp * pp * cp <= MOST_RANKS:
        rows = tuple(_rank_row(artifact, rank, tp, cp) for rank in range(tp * pp * cp))
        columns = ("rank", "tp", "pp", "cp", "file", "size")
        yield Section("mapping", f"ranks of {artifact.path}", columns, rows)
    elif artifact.table("weights.sizes"):
        files = tuple((name, size_in_words(size)) for name, size in artifact.table("weights.sizes").items())
        yield Section("mapping", f"shards of {artifact.path}", ("file", "size"), files)


MOST_RANKS = 4096


def _rank_row(artifact: Artifact, rank: int, tp: int, cp: int) -> tuple[Cell, ...]:
    # Ranks of one context-parallel group lie side by side and share a checkpoint file (1.2.1 mapping.py).
    file_rank = rank if artifact.kind == "engine" else rank // cp
    name = f"rank{file_rank}.{'engine' if artifact.kind == 'engine' else 'safetensors'}"
    size = artifact.table("weights.sizes").get(name)
    size_text = "is missing" if size is None else size_in_words(size)
    return rank, rank // cp % tp, rank // (cp * tp), rank % cp, name, size_text


def quantization(artifact: Artifact, _: Deployment) -> Iterator[Section]:
    """Yield the quantisation of all layers, of those that have their own, and what is left out."""
    layers = artifact.table("quant.per_layer")
    algo = artifact.text("quant.algo") or artifact.text("quant.method")
    if not (layers or algo or artifact.text("quant.kv_algo")):
        return
    rows: list[tuple[Cell, ...]] = [("all layers", algo or "not quantised")]
    rows += [(name, shortened(value)) for name, value in sorted(layers.items())]
    rows += [(str(name), "not quantised") for name in artifact.items("quant.excluded")]
    rows.append(("key/value cache", artifact.text("quant.kv_algo") or "not quantised"))
    note = f"read from {artifact.text('quant.source')}" if artifact.text("quant.source") else ""
    yield Section("quantization", f"quantisation of {artifact.path}", ("layer", "as"), tuple(rows), note)


def debug(artifact: Artifact, _: Deployment) -> Iterator[Section]:
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


def kernels(artifact: Artifact, deployment: Deployment) -> Iterator[Section]:
    """Yield the compiled kernels, the ONNX nodes each computes, and their modules."""
    from trtdx.inspect.sections.kernels import kernel_sections

    if artifact.kernels:
        yield from kernel_sections(artifact, deployment)


def facts(artifact: Artifact, _: Deployment) -> Iterator[Section]:
    """Yield every fact that was read and where it stands."""
    rows = tuple(
        (name, _cell(fact.value), fact.where.removeprefix(f"{artifact.path.rstrip('/')}/"))
        for name, fact in sorted(artifact.distinct().items())
    )
    yield Section("facts", f"facts of {artifact.path}", ("fact", "value", "where"), rows)


def _cell(value: object) -> Cell:
    return value if isinstance(value, (int, float, bool)) else shortened(value, 200)


class ShownSection(NamedTuple):
    """One word of `--show`: what makes its sections, and what to give where there are none."""

    sections: Callable[[Artifact, Deployment], Iterator[Section]]
    need: str


SHOWS = {
    "tensors": ShownSection(
        tensors, "give a model, a checkpoint, an engine of 0.8 or later, or an ONNX file"
    ),
    "profiles": ShownSection(
        profiles, "give an engine of 0.8 or later, a verbose build log or a file of profiles"
    ),
    "settings": ShownSection(settings, "give an engine directory"),
    "mapping": ShownSection(mapping, "give a checkpoint, an engine or a model"),
    "quantization": ShownSection(quantization, "none of it is quantised"),
    "debug": ShownSection(debug, "give an engine directory"),
    "kernels": ShownSection(kernels, "give a verbose build log"),
    "facts": ShownSection(facts, "give an artifact"),
}


def sections_from(host: Host, deployment: Deployment, wanted: list[str]) -> Iterator[Section]:
    """Yield the sections asked for, artifact by artifact; those of requests are answered with the requests."""
    names = list(SHOWS) if "all" in wanted else [name for name in dict.fromkeys(wanted) if name in SHOWS]
    shown = set()
    for artifact in deployment.artifacts:
        for name in names:
            sections = list(SHOWS[name].sections(artifact, deployment))
            if name == "tensors" and artifact.kind in STORING:
                sections.append(stored_tensors(host, artifact))
            shown |= {name} if sections else set()
            yield from sections
    for name in names if "all" not in wanted else ():
        if name not in shown:
            note = f"Nothing that was given has any: {SHOWS[name].need}."
            yield Section(name, f"{name}: nothing to show", (), (), note)
