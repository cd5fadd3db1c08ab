"""Which artifact was made from which: a model, the checkpoint converted from it, the engine built from that."""

from __future__ import annotations

import shlex
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from packaging.version import InvalidVersion, Version

from trtdx.inspect.agreements import serving
from trtdx.inspect.facts.gaps import note_gap
from trtdx.inspect.readers.server.commands import ENGINE_FLAGS
from trtdx.words import join_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.inspect.facts.artifact import Artifact, Deployment
    from trtdx.model import Evidence

# What makes a model another model: where this many differ, nothing else is worth comparing.
MODEL_DIMENSIONS = (
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "intermediate_size",
    "head_size",
)
OTHER_MODEL_DIFFERENCES = 3


SHORT_KIND_NAMES = {
    "hf": "model", "llm-args": "options file", "command": "command line", "triton": "Triton repository",
    "lora": "adapter",
}  # fmt: skip


class LineageStep(NamedTuple):
    """Two neighbours of a chain: what was there first, and what was made from it."""

    source: Artifact
    target: Artifact

    def evidence(self, *names: str) -> tuple[Evidence, ...]:
        """Return where both state these facts."""
        return self.source.evidence(*names) + self.target.evidence(*names)

    def words(self) -> dict[str, str]:
        """Return what pages say of a step: what both are called, and how the later one is made again."""
        return {"source": short_kind(self.source), "kind": short_kind(self.target), **remake_values(self)}

    def differences(self, names: Sequence[str]) -> str:
        """Return how facts differ: "tp_size 2 instead of 4"."""
        return join_words(f"{name} {self.target.get(name)} instead of {self.source.get(name)}" for name in names)


def differing_facts(one: Artifact, other: Artifact, names: Sequence[str] = MODEL_DIMENSIONS) -> list[str]:
    """Return the facts that both state and that differ."""
    return [name for name in names if one.has(name) and other.has(name) and one.get(name) != other.get(name)]


def is_same_model(one: Artifact, other: Artifact) -> bool:
    """Return whether both can be the same model."""
    return len(differing_facts(one, other)) < OTHER_MODEL_DIFFERENCES


def mark_tokenizer_lenders(referred: list[Artifact], named_artifacts: list[Artifact]) -> list[Artifact]:
    """Return artifacts that others name, with a model that only its tokenizer is taken from as just that.

    A Llama of 8B may well be served with the tokenizer in the folder of the 70B: it is of another model only where
    the tokenizer does not fit.
    """
    everything = [*referred, *named_artifacts]
    engines = [artifact for artifact in everything if artifact.kind in ("engine", "checkpoint")]
    named = {real for artifact in everything for real in _named_paths(artifact, ("runtime.model", *ENGINE_OPTIONS))}
    lent = {real for artifact in everything for real in _named_paths(artifact, TOKENIZER_OPTIONS)} - named
    return [
        _only_tokenizer(artifact)
        if artifact.kind == "hf"
        and artifact.real_path in lent
        and engines
        and not any(is_same_model(artifact, engine) for engine in engines)
        else artifact
        for artifact in referred
    ]


def _named_paths(server: Artifact, facts: tuple[str, ...]) -> list[str]:
    names = [str(server.facts[fact].value) for fact in facts if fact in server.facts]
    if facts is TOKENIZER_OPTIONS and "triton.tokenizer_dirs" in server.facts:
        names += map(str, server.table("triton.tokenizer_dirs").values())
    return [server.resolved_paths[name] for name in names if name in server.resolved_paths]


TOKENIZER_OPTIONS = ("runtime.tokenizer", "option.--tokenizer_dir")
ENGINE_OPTIONS = ("triton.engine_dir", *(f"option.{flag}" for flag in ENGINE_FLAGS))


def _only_tokenizer(model: Artifact) -> Artifact:
    tokenizer_facts = {name: fact for name, fact in model.facts.items() if name.startswith("tokenizer.")}
    return msgspec.structs.replace(model, kind="tokenizer", facts=tokenizer_facts)


def lineage_chains(deployment: Deployment) -> list[tuple[Artifact, ...]]:
    """Return model, checkpoint and engine in the order they were made; what is not at hand is left out."""
    chains_found: list[tuple[Artifact, ...]] = []
    for engine in deployment.of_kinds("engine"):
        checkpoint = source_artifact(deployment, engine, "checkpoint")
        model = source_artifact(deployment, checkpoint or engine, "hf")
        chains_found.append(tuple(artifact for artifact in (model, checkpoint, engine) if artifact is not None))
    used = {id(artifact) for chain in chains_found for artifact in chain}
    for checkpoint in deployment.of_kinds("checkpoint"):
        if id(checkpoint) not in used:
            model = source_artifact(deployment, checkpoint, "hf")
            chains_found.append((model, checkpoint) if model is not None else (checkpoint,))
    return chains_found


def lineage_steps(deployment: Deployment, fact: str) -> Iterator[LineageStep]:
    """Yield neighbours that both state a fact, each pair once; one that does not state it is stepped over.

    Encoder-decoder models are left out: their engine directory is two engines with facts of their own.
    """
    for step in all_lineage_steps(deployment, fact):
        if not (step.source.get("encoder_decoder") or step.target.get("encoder_decoder")):
            yield step


def all_lineage_steps(deployment: Deployment, fact: str) -> Iterator[LineageStep]:
    yielded = set()
    for chain in lineage_chains(deployment):
        stating = [artifact for artifact in chain if artifact.has(fact)]
        for source, target in pairwise(stating):
            if is_same_model(source, target) and (id(source), id(target)) not in yielded:
                yielded.add((id(source), id(target)))
                yield LineageStep(source, target)


def lineage_pairs(deployment: Deployment) -> Iterator[LineageStep]:
    """Yield every neighbour pair of every chain once, whatever they state, other models included."""
    yielded = set()
    for chain in lineage_chains(deployment):
        for source, target in pairwise(chain):
            if (id(source), id(target)) not in yielded:
                yielded.add((id(source), id(target)))
                yield LineageStep(source, target)


def source_model(deployment: Deployment, artifact: Artifact) -> Artifact | None:
    """Return the Hugging Face model an engine or checkpoint was made from, where it is at hand."""
    for chain in lineage_chains(deployment):
        if chain[0].kind == "hf" and any(member is artifact for member in chain):
            return chain[0]
    return None


def loading_servers(deployment: Deployment) -> list[Artifact]:
    """Return what loads a model by itself."""
    return list(serving.serving_artifacts(deployment, "llm-args", "command"))


def source_artifact(deployment: Deployment, derived: Artifact, kind: str) -> Artifact | None:
    """Return what an artifact was made from: the only one there is, or the one that is nearest in its sizes."""
    candidates = list(deployment.of_kinds(kind))
    if len(candidates) == 1 and sum(1 for _ in deployment.of_kinds(derived.kind)) == 1:
        return candidates[0]
    distances = [len(differing_facts(candidate, derived)) for candidate in candidates]
    least = min(distances, default=OTHER_MODEL_DIFFERENCES)
    nearest = [
        candidate
        for candidate, far in zip(candidates, distances, strict=True)
        if far == least < OTHER_MODEL_DIFFERENCES
    ]
    if len(nearest) > 1:
        named = {real for artifact in deployment.artifacts for real in artifact.resolved_paths.values()}
        nearest = [candidate for candidate in nearest if candidate.real_path in named] or nearest
    if len(nearest) > 1:
        paths = join_words(candidate.path for candidate in nearest)
        note_gap(f"which of {paths} {derived.path} was made from cannot be told from their sizes")
    return nearest[0] if len(nearest) == 1 else None


def remake_values(step: LineageStep) -> dict[str, str]:
    """Return how the later artifact is made again: in words, and as a command that overwrites nothing."""
    source, target = step
    if source.kind == "checkpoint":
        return {
            "remedy": "build the engine again from this checkpoint",
            "command": _build_command(source.path, target),
        }
    if target.kind == "checkpoint":
        return {"remedy": "convert the model again", "command": _convert_command(source.path, target)}
    return {
        "remedy": "convert the model again and build the engine from the new checkpoint",
        "command": f"{_convert_command(source.path, target, 'checkpoint.new')} && {_build_command('checkpoint.new', target)}",
    }


def _convert_command(model: str, like: Artifact, output: str = "") -> str:
    options = "".join(
        f" --{name} {shlex.quote(str(like.get(name)))}"
        for name in ("dtype", "tp_size", "pp_size")
        if like.has(name) and like.get(name) != 1
    )
    return (
        f"python3 convert_checkpoint.py --model_dir {shlex.quote(model)} "
        f"--output_dir {shlex.quote(output or like.path.rstrip('/') + '.new')}{options}"
    )


def _build_command(checkpoint: str, engine: Artifact) -> str:
    output = shlex.quote(engine.path.rstrip("/") + ".new")
    return f"trtllm-build --checkpoint_dir {shlex.quote(checkpoint)} --output_dir {output}"


def is_older_release(version: str, limit: str) -> bool:
    """Return whether a release is older than another; an unknown one is not."""
    try:
        return Version(version) < Version(limit)
    except InvalidVersion:
        return False


def short_kind(artifact: Artifact) -> str:
    """Return what an artifact is called within a sentence."""
    return SHORT_KIND_NAMES.get(artifact.kind, artifact.kind)


def quoted_path(artifact: Artifact) -> str:
    """Return the path of an artifact as it can be pasted."""
    return shlex.quote(artifact.path.rstrip("/") or "/")
