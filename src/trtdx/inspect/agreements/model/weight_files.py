"""What files of weights promise: every one is there, they are one set, and they hold the layers that are stated."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import agreement
from trtdx.inspect.agreements.model.files import file_in, folder_of, whole
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import counted, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

PICKLES = ("bin", "pt", "pth", "ckpt")


@agreement("DX088", "hf")
def shards_there(deployment: Deployment) -> Iterator[Violation]:
    """Every file of weights that the index or the other shards' names promise is there."""
    for model in deployment.of("hf"):
        missing, dead = model.items("weights.missing"), model.items("weights.dead")
        if missing or dead:
            facts = [name for name in ("weights.dead", "weights.missing") if model.has(name)]
            yield Violation(
                model.evidence(*facts),
                {"what": _dead_words(dead) if dead else _missing_words(missing), "folder": folder_of(model)},
            )


def _missing_words(missing: list[str]) -> str:
    are = "is" if len(missing) == 1 else "are"
    return (
        f"{counted(len(missing), 'file')} of weights that the index (or the name of another shard) promises "
        f"{are} not there: {listed(missing, 3)}"
    )


def _dead_words(dead: list[str]) -> str:
    names = listed([file_in(problem) for problem in dead], 3)
    if all(problem.endswith("link to nothing") for problem in dead):
        links = "is a link" if len(dead) == 1 else "are links"
        return f"{counted(len(dead), 'file')} of weights {links} to nothing: {names}"
    return f"{counted(len(dead), 'file')} of weights cannot be read (no plain file, or a dead link): {names}"


@agreement("DX088", "hf")
def weights_there(deployment: Deployment) -> Iterator[Violation]:
    """A model directory from which nothing was made yet holds weights."""
    if deployment.first("checkpoint", "engine", "triton"):
        return  # the directory may be kept for its tokenizer only
    for model in deployment.of("hf"):
        reported_elsewhere = (
            model.has("unparsed") or model.has("weights.missing") or model.has("weights.dead")
        )
        if model.integer("weights.files") == 0 and model.has("architecture") and not reported_elsewhere:
            yield Violation(
                model.evidence("weights.files", "architecture"),
                {
                    "what": f"{model.path} holds a model's configuration and no weights",
                    "folder": folder_of(model),
                },
                Severity.WARNING,
                0.7,
            )


@agreement("DX138", "hf")
def tensors_in_place(deployment: Deployment) -> Iterator[Violation]:
    """Every tensor is in the file where the index places it."""
    for model in deployment.of("hf"):
        absent = model.items("weights.missing_tensors")
        if absent and whole(model):
            yield Violation(
                model.evidence("weights.missing_tensors"),
                {
                    "what": f"the index places {counted(len(absent), 'tensor')} in files that do not hold them: "
                    f"{listed(absent, 3)}",
                    "because": "The file model.safetensors.index.json and the shards are of different saves or revisions: "
                    "the index was overwritten, or some shards were",
                    "folder": folder_of(model),
                },
            )


@agreement("DX138", "hf")
def siblings_there(deployment: Deployment) -> Iterator[Violation]:
    """A layer that has one of the projections of an MLP or of its attention has the others too."""
    for model in deployment.of("hf"):
        absent = list(model.items("weights.lacking"))
        if model.text("model_type").startswith(VALUES_ARE_KEYS):
            absent = [tensor for tensor in absent if ".v_proj." not in tensor]
        if model.get("weights.qk_norm") is False and model.text("architecture") in WITH_QUERY_NORMS:
            absent = ["self_attn.q_norm.weight and self_attn.k_norm.weight of every layer", *absent]
        absent += _loose_ones_lost(model)
        if absent and whole(model) and not model.items("weights.missing_tensors"):
            yield Violation(
                model.evidence("weights.lacking"),
                {
                    "what": f"tensors of the model are not among the weights: {listed(absent, 3)}",
                    "because": "A layer has all projections of its MLP and of its attention, or none of them. The save "
                    "was interrupted, or a script dropped them or gave them other names; the index, which was written "
                    "with the files, does not miss them",
                    "folder": folder_of(model),
                },
            )


def _loose_ones_lost(model: Artifact) -> list[str]:
    """Return what stands outside of the layers in these families and is not there; a draft head has one layer only."""
    name, layers = model.text("architecture"), model.integer("weights.layers") or 0
    if (
        not (name.startswith(LLAMA_LIKE) and name.endswith("ForCausalLM"))
        or layers < 2
        or model.get("multimodal")
    ):
        return []
    lost = [] if model.has("weights.embedding_shape") else ["model.embed_tokens.weight"]
    return lost + (["model.norm.weight"] if model.get("weights.final_norm") is False else [])


LLAMA_LIKE = ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Gemma", "Phi3", "DeepseekV", "GptOss")
VALUES_ARE_KEYS = ("gemma4",)  # some layers have no projection for values
WITH_QUERY_NORMS = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM")


@agreement("DX770", "hf")
def one_generation(deployment: Deployment) -> Iterator[Violation]:
    """A directory holds the shards of one save only.

    TensorRT-LLM's loader (1.2.1) ignores the index and takes every *.safetensors, whichever comes last.
    """
    for model in deployment.of("hf"):
        stray = model.items("weights.unindexed")
        if stray:
            folder = folder_of(model)
            names = [f"{folder}/{shlex.quote(file_in(file))}" for file in stray[:8]]
            yield Violation(
                model.evidence("weights.unindexed"),
                {"files": listed(stray, 3), "folder": folder, "moved": " ".join(names)},
                confidence=0.85,
            )


@agreement("DX773", "hf")
def no_pickles(deployment: Deployment) -> Iterator[Violation]:
    """Weights are stored as safetensors rather than as pickles."""
    for model in deployment.of("hf"):
        kind = model.text("weights.format")
        if kind in PICKLES:
            yield Violation(
                model.evidence("weights.format", "weights.files"), {"kind": kind, "folder": folder_of(model)}
            )


@agreement("DX774", "hf")
def no_gguf(deployment: Deployment) -> Iterator[Violation]:
    """Weights are in a format that TensorRT-LLM reads, which GGUF is not."""
    for model in deployment.of("hf"):
        if model.text("weights.format") == "gguf":
            yield Violation(model.evidence("weights.format"), {"path": model.path})


@agreement("DX775", "hf", "checkpoint")
def layers_there(deployment: Deployment) -> Iterator[Violation]:
    """The weights have as many layers as the configuration says."""
    for model in deployment.of("hf", "checkpoint"):
        stored_layers, stated = model.integer("weights.layers"), model.integer("num_layers")
        certain = not (model.get("encoder_decoder") or model.get("multimodal"))
        if stored_layers and stated and stored_layers < stated and certain and whole(model):
            yield Violation(
                model.evidence("weights.layers", "num_layers"),
                {"found": stored_layers, "stated": stated, "kind": model.title, "folder": folder_of(model)},
            )


@agreement("DX778", "hf", "checkpoint")
def no_layers_left_over(deployment: Deployment) -> Iterator[Violation]:
    """The configuration has as many layers as the weights; layers it does not name are not computed.

    Models that predict several tokens at once (MTP) keep those layers behind the others and count them apart.
    """
    for model in deployment.of("hf", "checkpoint"):
        stored_layers, stated = model.integer("weights.layers"), model.integer("num_layers")
        certain = not (model.get("encoder_decoder") or model.get("multimodal"))
        if (
            stored_layers
            and stated
            and stated > 0
            and stored_layers - stated > _predicting_layers(model)
            and certain
        ):
            yield Violation(
                model.evidence("num_layers", "weights.layers"),
                {"found": stored_layers, "stated": stated, "folder": folder_of(model)},
                confidence=0.9,
            )


MOST_PREDICTING_LAYERS = 4
# Families whose published weights have such layers among `layers.N`, whether the configuration counts them or not.
WITH_PREDICTING_LAYERS = (
    "deepseek", "kimi", "glm4_moe", "glm_moe", "glm4moe", "glmmoe", "bailing", "step3", "mimo", "longcat", "exaone",
    "ernie", "minimax", "hunyuan", "pangu", "hy_v3", "mistrallarge3", "qwen3next", "qwen3_next", "qwen3_5",
)  # fmt: skip


def _predicting_layers(model: Artifact) -> int:
    """Return how many layers may stand behind those that the configuration counts."""
    names = (model.text("model_type").lower(), model.text("architecture").lower())
    is_known_family = any(name.startswith(WITH_PREDICTING_LAYERS) for name in names)
    return max(model.integer("predicting_layers") or 0, MOST_PREDICTING_LAYERS if is_known_family else 0)


@agreement("DX777", "hf", "checkpoint")
def dtypes_known(deployment: Deployment) -> Iterator[Violation]:
    """Tensors have data types that the safetensors library knows."""
    for model in deployment.of("hf", "checkpoint"):
        unknown = model.items("weights.unknown_dtypes")
        if unknown:
            file, _, dtype = unknown[0].partition(": ")
            yield Violation(
                model.evidence("weights.unknown_dtypes"),
                {"file": file, "dtype": dtype, "folder": folder_of(model)},
            )
