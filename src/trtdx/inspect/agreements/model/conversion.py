"""What must agree between a model, the checkpoint converted from it and the engine built from that."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.lineage import (
    MODEL_DIMENSIONS,
    LineageStep,
    differing_facts,
    is_same_model,
    lineage_pairs,
    lineage_steps,
    short_kind,
)
from trtdx.inspect.agreements.serving import served_models
from trtdx.inspect.facts.gaps import MODEL_PAIR
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

# The classes of MODEL_MAP (tensorrt_llm/models/__init__.py, 1.2.1) by the family that computes the same.
# GPTForCausalLM is left out: exports from NeMo use it for models of several families.
ARCHITECTURE_FAMILIES = {
    "llama": "Llama Mistral Mixtral Exaone Arctic InternLM InternLM2 Granite GraniteMoe Skywork Aquila Yi LLaMA",
    "qwen": "QWen Qwen2 Qwen2Moe Qwen3 Qwen3Moe QWenLMHeadModel",
    "gemma": "Gemma Gemma2 Gemma3",
    "falcon": "RW Falcon",
    "bloom": "Bloom",
    "opt": "OPT",
    "gptj": "GPTJ",
    "gptneox": "GPTNeoX",
    "mpt": "Mpt MPT",
    "phi": "Phi",
    "phi3": "Phi3 Phi3V Phi3Small PhiMoE",
    "chatglm": "ChatGLMModel ChatGLM ChatGLMForConditionalGeneration",
    "baichuan": "Baichuan BaiChuan",
    "deepseek-v1": "Deepseek",
    "deepseek-v2": "DeepseekV2",
    "mamba": "Mamba Mamba2",
    "cohere": "Cohere",
    "dbrx": "Dbrx",
}
FAMILY_OF_CLASS = {name: family for family, names in ARCHITECTURE_FAMILIES.items() for name in names.split()}
# TensorRT-LLM computes every GELU by its tanh form, and names gated activations apart (ACT2FN, 1.2.1).
ACTIVATION_SPELLINGS = {
    "silu": "silu swish swiglu fast-swiglu",
    "gelu": "gelu gelu_new gelu_fast gelu_pytorch_tanh gelu_python openai-gelu geglu gegelu gated-gelu "
    "gelu_python_tanh",
    "relu": "relu",
    "squared relu": "relu2 squared-relu",
    "quick gelu": "quick_gelu",
    "tanh": "tanh",
}
ACTIVATION_OF = {name: kind for kind, names in ACTIVATION_SPELLINGS.items() for name in names.split()}
LATENT_ATTENTION_FACTS = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
DIMENSION_FACTS = (*MODEL_DIMENSIONS, "num_experts", "moe_intermediate_size")
# ModelOpt pads the vocabulary to multiples of 64, converters to multiples of tp, Megatron to 128 times tp.
VOCABULARY_PADDING = 128
PADDED_AT_MOST = 1.05  # a vocabulary that is larger than this is another one
PRONE_TO_OVERFLOW = ("gemma", "t5", "mt5", "umt5")  # NaN in FP16 is their known failure
LOGITS_DTYPES = ("float32", "float16")  # gptJsonConfig.cpp and SizeType of the logits buffers, 1.2.1


@make_agreement("DX806", "hf", "checkpoint", "engine", needs=MODEL_PAIR)
def same_model_throughout(deployment: Deployment) -> Iterator[Violation]:
    """Checkpoint and engine are of the model they are said to be of."""
    for step in lineage_pairs(deployment):
        if is_same_model(*step) or step.source.get("encoder_decoder"):
            continue
        names = differing_facts(*step)
        yield Violation(step.evidence(*names), step.words() | {"differences": step.differences(names)})


@make_agreement("DX807", "hf", "checkpoint", "engine", needs=MODEL_PAIR)
def same_dimensions(deployment: Deployment) -> Iterator[Violation]:
    """Checkpoint and engine have the model's layers, heads and sizes."""
    for step in lineage_pairs(deployment):
        names = [name for name in differing_facts(*step, DIMENSION_FACTS) if not _is_padded(step, name)]
        if not is_same_model(*step) or not names or step.source.get("encoder_decoder"):
            continue
        yield Violation(step.evidence(*names), step.words() | {"differences": step.differences(names)})


def _is_padded(step: LineageStep, name: str) -> bool:
    """Return whether a larger inner size is only filled up: JAIS is by its converter, AWQ by ModelOpt."""
    if name not in ("intermediate_size", "moe_intermediate_size"):
        return False
    here, there = step.source.get(name), step.target.get(name)
    return bool(here <= there < here + VOCABULARY_PADDING * (step.target.integer("tp_size") or 1))


@make_agreement("DX812", "hf", "checkpoint", "engine", needs=MODEL_PAIR)
def latent_attention(deployment: Deployment) -> Iterator[Violation]:
    """The ranks and head parts of compressed attention (MLA) are the model's."""
    for step in lineage_pairs(deployment):
        names = differing_facts(*step, LATENT_ATTENTION_FACTS)
        if is_same_model(*step) and names:
            yield Violation(step.evidence(*names), step.words() | {"differences": step.differences(names)})


@make_agreement("DX801", "hf", "checkpoint", "engine", needs=MODEL_PAIR)
def same_vocabulary(deployment: Deployment) -> Iterator[Violation]:
    """The vocabulary keeps its size; it may only be filled up for the ranks or the kernels."""
    for step in lineage_steps(deployment, "vocab_size"):
        here, there = (artifact.get("vocab_size") for artifact in step)
        unit = VOCABULARY_PADDING * (step.target.integer("tp_size") or 1)
        if here <= there <= math.ceil(here / unit) * unit or step.source.get("multimodal"):
            continue
        yield Violation(
            step.evidence("vocab_size"),
            step.words() | {"expected": here, "actual": there},
            None if there < here or there > PADDED_AT_MOST * here else Severity.WARNING,
        )


@make_agreement("DX808", "hf", "checkpoint", "engine", needs=MODEL_PAIR)
def same_architecture(deployment: Deployment) -> Iterator[Violation]:
    """The class that computes the model is one that computes models of its family."""
    for step in lineage_steps(deployment, "architecture"):
        here, there = (_architecture_family(artifact) for artifact in step)
        if here and there and here != there:
            yield Violation(
                step.evidence("architecture"),
                step.words() | {"expected": step.source.get("architecture"), "actual": step.target.get("architecture")},
            )


def _architecture_family(artifact: Artifact) -> str:
    """Return the family of a class; drafting heads and wrappers such as Medusa's have none."""
    name = artifact.text("architecture")
    return FAMILY_OF_CLASS.get(name.removesuffix("ForCausalLM"), FAMILY_OF_CLASS.get(name, ""))


@make_agreement("DX500", "hf", "checkpoint", "engine", needs=MODEL_PAIR)
def norm_epsilon(deployment: Deployment) -> Iterator[Violation]:
    """The normalisation epsilon is the model's."""
    for step in lineage_steps(deployment, "norm_epsilon"):
        here, there = (artifact.get("norm_epsilon") for artifact in step)
        if not math.isclose(here, there, rel_tol=1e-3):
            yield _detail_violation(step, "norm_epsilon", "the normalisation epsilon")


@make_agreement("DX500", "hf", "checkpoint", "engine", needs=MODEL_PAIR)
def activation_function(deployment: Deployment) -> Iterator[Violation]:
    """The activation function is the model's."""
    for step in lineage_steps(deployment, "hidden_act"):
        here, there = (ACTIVATION_OF.get(artifact.get("hidden_act")) for artifact in step)
        if here and there and here != there:
            yield _detail_violation(step, "hidden_act", "the activation function")


@make_agreement("DX500", "hf", "checkpoint", "engine", needs=MODEL_PAIR)
def experts_per_token(deployment: Deployment) -> Iterator[Violation]:
    """A token goes through as many experts as in the model."""
    for step in lineage_steps(deployment, "experts_per_token"):
        if step.source.get("experts_per_token") != step.target.get("experts_per_token"):
            yield _detail_violation(step, "experts_per_token", "the number of experts a token uses")


def _detail_violation(step: LineageStep, name: str, words: str) -> Violation:
    return Violation(
        step.evidence(name),
        step.words() | {"detail": words, "expected": step.source.get(name), "actual": step.target.get(name)},
        Severity.ERROR,
    )


@make_agreement("DX495", "hf", "checkpoint", "engine", needs=MODEL_PAIR)
def half_precision(deployment: Deployment) -> Iterator[Violation]:
    """A model trained in bfloat16 is not squeezed into float16."""
    for step in lineage_steps(deployment, "dtype"):
        if (step.source.get("dtype"), step.target.get("dtype")) == ("bfloat16", "float16"):
            yield _float16_violation(step.source, step.target, "dtype")


@make_agreement("DX495", "hf", "llm-args", "command")
def half_precision_asked_for(deployment: Deployment) -> Iterator[Violation]:
    """A model that is known to overflow is not asked to run in float16; for others that is DX877."""
    for server, model in served_models(deployment):
        overflows = model.get("dtype") == "bfloat16" and _is_prone_to_overflow(model)
        if overflows and server.text("runtime.dtype") in ("float16", "half", "fp16"):
            yield _float16_violation(model, server, "runtime.dtype")


def _float16_violation(model: Artifact, server: Artifact, name: str) -> Violation:
    overflows = _is_prone_to_overflow(model)
    return Violation(
        model.evidence("dtype") + server.evidence(name),
        {"kind": short_kind(server)},
        Severity.ERROR if overflows else Severity.NOTE,
        0.8 if overflows else 0.5,
    )


def _is_prone_to_overflow(model: Artifact) -> bool:
    return model.text("model_type").startswith(PRONE_TO_OVERFLOW)


@make_agreement("DX810", "checkpoint", "engine")
def logits_dtype(deployment: Deployment) -> Iterator[Violation]:
    """The logits have a data type the runtime can read."""
    for artifact in deployment.of_kinds("checkpoint", "engine"):
        dtype = artifact.text("logits_dtype")
        if dtype and dtype not in LOGITS_DTYPES:
            yield Violation(artifact.evidence("logits_dtype"), {"dtype": dtype, "kind": short_kind(artifact)})


@make_agreement("DX811", "checkpoint", "engine", needs=MODEL_PAIR)
def same_rank_mapping(deployment: Deployment) -> Iterator[Violation]:
    """An engine is cut for as many ranks as the checkpoint it was built from."""
    for step in lineage_pairs(deployment):
        names = differing_facts(*step, ("tp_size", "pp_size"))
        if step.source.kind == "checkpoint" and is_same_model(*step) and names:
            yield Violation(step.evidence(*names), step.words() | {"differences": step.differences(names)})
