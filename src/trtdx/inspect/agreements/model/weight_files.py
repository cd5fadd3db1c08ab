"""What files of weights promise: every one is there, they are one set, and they hold the layers that are stated."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.model.files import is_fully_read, problem_file, quoted_folder
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

PICKLES = ("bin", "pt", "pth", "ckpt")


@make_agreement("DX088", "hf")
def shards_there(deployment: Deployment) -> Iterator[Violation]:
    """Every file of weights that the index or the other shards' names promise is there."""
    for model in deployment.of_kinds("hf"):
        missing, dead = model.items("weights.missing"), model.items("weights.dead")
        if missing or dead:
            facts = [name for name in ("weights.dead", "weights.missing") if model.has(name)]
            yield Violation(
                model.evidence(*facts),
                {
                    "what": _dead_words(dead) if dead else _missing_words(missing),
                    "folder": quoted_folder(model),
                },
            )


def _missing_words(missing: list[str]) -> str:
    are = "is" if len(missing) == 1 else "are"
    return (
        f"{format_count(len(missing), 'file')} of weights that the index (or the name of another shard) promises "
        f"{are} not there: {abbreviate_list(missing, 3)}"
    )


def _dead_words(dead: list[str]) -> str:
    names = abbreviate_list([problem_file(problem) for problem in dead], 3)
    if all(problem.endswith("link to nothing") for problem in dead):
        links = "is a link" if len(dead) == 1 else "are links"
        return f"{format_count(len(dead), 'file')} of weights {links} to nothing: {names}"
    return f"{format_count(len(dead), 'file')} of weights cannot be read (no plain file, or a dead link): {names}"


@make_agreement("DX088", "hf")
def weights_there(deployment: Deployment) -> Iterator[Violation]:
    """A model directory from which nothing was made yet holds weights."""
    if deployment.first_of("checkpoint", "engine", "triton"):
        return  # the directory may be kept for its tokenizer only
    for model in deployment.of_kinds("hf"):
        reported_elsewhere = model.has("unparsed") or model.has("weights.missing") or model.has("weights.dead")
        if model.integer("weights.files") == 0 and model.has("architecture") and not reported_elsewhere:
            yield Violation(
                model.evidence("weights.files", "architecture"),
                {
                    "what": f"{model.path} holds a model's configuration and no weights",
                    "folder": quoted_folder(model),
                },
                Severity.WARNING,
                0.7,
            )


@make_agreement("DX138", "hf")
def tensors_in_place(deployment: Deployment) -> Iterator[Violation]:
    """Every tensor is in the file where the index places it."""
    for model in deployment.of_kinds("hf"):
        absent = model.items("weights.missing_tensors")
        if absent and is_fully_read(model):
            yield Violation(
                model.evidence("weights.missing_tensors"),
                {
                    "what": f"the index places {format_count(len(absent), 'tensor')} in files that do not hold them: "
                    f"{abbreviate_list(absent, 3)}",
                    "because": "The file model.safetensors.index.json and the shards are of different saves or revisions: "
                    "the index was overwritten, or some shards were",
                    "folder": quoted_folder(model),
                },
            )


@make_agreement("DX138", "hf")
def sibling_projections_there(deployment: Deployment) -> Iterator[Violation]:
    """A layer that has one of the projections of an MLP or of its attention has the others too."""
    for model in deployment.of_kinds("hf"):
        absent = list(model.items("weights.lacking"))
        if model.text("model_type").startswith(SHARED_VALUE_MODELS):
            absent = [tensor for tensor in absent if ".v_proj." not in tensor]
        if model.get("weights.qk_norm") is False and model.text("architecture") in QUERY_NORM_CLASSES:
            absent = ["self_attn.q_norm.weight and self_attn.k_norm.weight of every layer", *absent]
        absent += _missing_outer_tensors(model)
        if absent and is_fully_read(model) and not model.items("weights.missing_tensors"):
            yield Violation(
                model.evidence("weights.lacking"),
                {
                    "what": f"tensors of the model are not among the weights: {abbreviate_list(absent, 3)}",
                    "because": "A layer has all projections of its MLP and of its attention, or none of them. The save "
                    "was interrupted, or a script dropped them or gave them other names; the index, which was written "
                    "with the files, does not miss them",
                    "folder": quoted_folder(model),
                },
            )


def _missing_outer_tensors(model: Artifact) -> list[str]:
    """Return what stands outside of the layers in these families and is not there; a draft head has one layer only."""
    name, layers = model.text("architecture"), model.integer("weights.layers") or 0
    if (
        not (name.startswith(LLAMA_LIKE_CLASSES) and name.endswith("ForCausalLM"))
        or layers < 2
        or model.get("multimodal")
    ):
        return []
    lost = [] if model.has("weights.embedding_shape") else ["model.embed_tokens.weight"]
    return lost + (["model.norm.weight"] if model.get("weights.final_norm") is False else [])


LLAMA_LIKE_CLASSES = ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Gemma", "Phi3", "DeepseekV", "GptOss")
SHARED_VALUE_MODELS = ("gemma4",)  # some layers have no projection for values
QUERY_NORM_CLASSES = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM")


@make_agreement("DX770", "hf")
def single_save_of_shards(deployment: Deployment) -> Iterator[Violation]:
    """A directory holds the shards of one save only.

    TensorRT-LLM's loader (1.2.1) ignores the index and takes every *.safetensors, whichever comes last.
    """
    for model in deployment.of_kinds("hf"):
        stray = model.items("weights.unindexed")
        if stray:
            folder = quoted_folder(model)
            names = [f"{folder}/{shlex.quote(problem_file(file))}" for file in stray[:8]]
            yield Violation(
                model.evidence("weights.unindexed"),
                {"files": abbreviate_list(stray, 3), "folder": folder, "moved": " ".join(names)},
                confidence=0.85,
            )


@make_agreement("DX773", "hf")
def no_pickles(deployment: Deployment) -> Iterator[Violation]:
    """Weights are stored as safetensors rather than as pickles."""
    for model in deployment.of_kinds("hf"):
        kind = model.text("weights.format")
        if kind in PICKLES:
            yield Violation(
                model.evidence("weights.format", "weights.files"),
                {"kind": kind, "folder": quoted_folder(model)},
            )


@make_agreement("DX774", "hf")
def no_gguf(deployment: Deployment) -> Iterator[Violation]:
    """Weights are in a format that TensorRT-LLM reads, which GGUF is not."""
    for model in deployment.of_kinds("hf"):
        if model.text("weights.format") == "gguf":
            yield Violation(model.evidence("weights.format"), {"path": model.path})


@make_agreement("DX775", "hf", "checkpoint")
def layers_there(deployment: Deployment) -> Iterator[Violation]:
    """The weights have as many layers as the configuration says."""
    for model in deployment.of_kinds("hf", "checkpoint"):
        stored_layers, stated = model.integer("weights.layers"), model.integer("num_layers")
        certain = not (model.get("encoder_decoder") or model.get("multimodal"))
        if stored_layers and stated and stored_layers < stated and certain and is_fully_read(model):
            yield Violation(
                model.evidence("weights.layers", "num_layers"),
                {
                    "found": stored_layers,
                    "stated": stated,
                    "kind": model.title,
                    "folder": quoted_folder(model),
                },
            )


@make_agreement("DX778", "hf", "checkpoint")
def no_layers_left_over(deployment: Deployment) -> Iterator[Violation]:
    """The configuration has as many layers as the weights; layers it does not name are not computed.

    Models that predict several tokens at once (MTP) keep those layers behind the others and count them apart.
    """
    for model in deployment.of_kinds("hf", "checkpoint"):
        stored_layers, stated = model.integer("weights.layers"), model.integer("num_layers")
        certain = not (model.get("encoder_decoder") or model.get("multimodal"))
        if stored_layers and stated and stated > 0 and stored_layers - stated > _mtp_layers(model) and certain:
            yield Violation(
                model.evidence("num_layers", "weights.layers"),
                {"found": stored_layers, "stated": stated, "folder": quoted_folder(model)},
                confidence=0.9,
            )


MAX_MTP_LAYERS = 4
# Families whose published weights have such layers among `layers.N`, whether the configuration counts them or not.
MTP_MODELS = (
    "deepseek", "kimi", "glm4_moe", "glm_moe", "glm4moe", "glmmoe", "bailing", "step3", "mimo", "longcat", "exaone",
    "ernie", "minimax", "hunyuan", "pangu", "hy_v3", "mistrallarge3", "qwen3next", "qwen3_next", "qwen3_5",
)  # fmt: skip


def _mtp_layers(model: Artifact) -> int:
    """Return how many layers may stand behind those that the configuration counts."""
    names = (model.text("model_type").lower(), model.text("architecture").lower())
    is_known_family = any(name.startswith(MTP_MODELS) for name in names)
    return max(model.integer("predicting_layers") or 0, MAX_MTP_LAYERS if is_known_family else 0)


@make_agreement("DX777", "hf", "checkpoint")
def dtypes_known(deployment: Deployment) -> Iterator[Violation]:
    """Tensors have data types that the safetensors library knows."""
    for model in deployment.of_kinds("hf", "checkpoint"):
        unknown = model.items("weights.unknown_dtypes")
        if unknown:
            file, _, dtype = unknown[0].partition(": ")
            yield Violation(
                model.evidence("weights.unknown_dtypes"),
                {"file": file, "dtype": dtype, "folder": quoted_folder(model)},
            )
