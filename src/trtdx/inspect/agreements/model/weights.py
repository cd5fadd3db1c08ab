"""What the tensors of a model must have in common with its configuration and with what was made from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.lineage import (
    is_same_model,
    lineage_chains,
    lineage_steps,
    quoted_path,
    short_kind,
)
from trtdx.inspect.facts.gaps import MODEL_PAIR
from trtdx.knowledge.violation import Violation
from trtdx.model import Evidence, Severity
from trtdx.words import format_count, join_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

# What keeps a directory's tensors from being known in full.
INCOMPLETE_FACTS = (
    "weights.missing",
    "weights.truncated",
    "weights.lfs_pointers",
    "weights.corrupt",
    "unparsed",
)
# Architectures that store their output layer as lm_head; InternLM2, RWKV and others have names of their own.
STORES_LM_HEAD = (
    "Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Phi", "Gemma", "Deepseek", "GptOss", "Nemotron", "GPTJ",
    "Granite", "Starcoder2", "Olmo2", "Cohere",
)  # fmt: skip
# Models whose query projection is wider than its heads: an output gate is computed with it.
GATED_QUERY_CLASSES = ("Qwen3Next", "Qwen3_5")


def has_all_tensors(artifact: Artifact) -> bool:
    """Return whether all tensors were seen, so that an absent one is absent."""
    if any(artifact.items(name) for name in INCOMPLETE_FACTS):
        return False
    ranks = (artifact.integer("tp_size") or 1) * (artifact.integer("pp_size") or 1)
    return artifact.kind != "checkpoint" or len(artifact.items("weights.ranks")) in (0, ranks)


@make_agreement("DX486", "hf", "checkpoint", needs=MODEL_PAIR)
def head_kept(deployment: Deployment) -> Iterator[Violation]:
    """The output layer of a model whose embeddings are not tied is in the checkpoint.

    `PretrainedModel.load` (1.2.1) takes the embedding without a word where lm_head.weight is absent.
    """
    for source, target in lineage_steps(deployment, "weights.has_lm_head"):
        if not (source.get("weights.has_lm_head") and has_all_tensors(source) and has_all_tensors(target)):
            continue
        if target.get("weights.has_lm_head") is False and source.get("tie_embeddings") is not True:
            yield Violation(
                source.evidence("weights.has_lm_head", "tie_embeddings") + target.evidence("weights.has_lm_head"),
                {
                    "what": "the model has an output layer of its own, the checkpoint made from it has none",
                    "model": quoted_path(source),
                },
                Severity.ERROR,
            )


@make_agreement("DX486", "hf")
def head_stored(deployment: Deployment) -> Iterator[Violation]:
    """A model whose configuration says the embeddings are not tied stores an output layer."""
    for model in deployment.of_kinds("hf"):
        name = model.text("architecture")
        if not (name.startswith(STORES_LM_HEAD) and name.endswith("ForCausalLM")) or model.get("multimodal"):
            continue
        untied = model.get("tie_embeddings") is False and model.get("weights.has_lm_head") is False
        if untied and has_all_tensors(model):
            yield Violation(
                model.evidence("tie_embeddings", "weights.has_lm_head"),
                {
                    "what": "the configuration says that the output layer is not tied to the embedding, "
                    "but the weights hold no output layer",
                    "model": quoted_path(model),
                },
                Severity.ERROR,
            )


@make_agreement("DX803", "hf")
def tied_head_fits(deployment: Deployment) -> Iterator[Violation]:
    """An output layer that is said to be the embedding has the embedding's shape."""
    for model in deployment.of_kinds("hf"):
        head, table = model.items("weights.lm_head_shape"), model.items("weights.embedding_shape")
        if model.get("tie_embeddings") is True and head and table and head != table:
            yield Violation(
                model.evidence("tie_embeddings", "weights.lm_head_shape", "weights.embedding_shape"),
                {"head": _render_shape(head), "embedding": _render_shape(table), "model": quoted_path(model)},
            )


def _render_shape(sizes: list[int]) -> str:
    return " x ".join(map(str, sizes))


@make_agreement("DX804", "hf", "checkpoint", needs=MODEL_PAIR)
def query_norms(deployment: Deployment) -> Iterator[Violation]:
    """Query and key norms of a model are in the checkpoint.

    The tensors are compared, not `qk_layernorm`: 1.2.1 writes false there for Qwen3 and still applies them.
    """
    for step in lineage_steps(deployment, "weights.qk_norm"):
        source, target = step
        lost = source.get("weights.qk_norm") and target.get("weights.qk_norm") is False
        if lost and has_all_tensors(target):
            yield Violation(step.evidence("weights.qk_norm"), step.words())


@make_agreement("DX805", "hf", "checkpoint", "engine")
def attention_bias(deployment: Deployment) -> Iterator[Violation]:
    """Biases of the attention projections are used where the weights have them.

    Tensors nobody asks for are only warned about ("Provided but not required tensors", 1.2.1).
    """
    built_chains = lineage_chains(deployment)
    alone = [(model,) for model in deployment.of_kinds("hf") if not any(model in chain for chain in built_chains)]
    for chain in (*built_chains, *alone):
        holder = next((artifact for artifact in chain if artifact.get("weights.qkv_bias") is True), None)
        if (
            holder is None
            or not all(is_same_model(holder, artifact) for artifact in chain)
            or _has_encoder_decoder(chain)
        ):
            continue
        for artifact in chain[chain.index(holder) :]:
            if _drops_bias(artifact):
                yield Violation(
                    holder.evidence("weights.qkv_bias") + artifact.evidence(_bias_fact(artifact)),
                    {
                        "holder": short_kind(holder),
                        "but": _contradiction_words(holder, artifact),
                        "path": quoted_path(artifact),
                        "remedy": KEEP_BIAS["hf" if artifact.kind == "hf" else "made"],
                    },
                )
                break


def _contradiction_words(holder: Artifact, artifact: Artifact) -> str:
    if artifact.kind == "hf" and not artifact.has("attention_bias"):
        return f"{artifact.text('architecture')} assumes, where config.json does not state attention_bias,"
    return "its configuration says" if holder is artifact else f"the {short_kind(artifact)} says"


def _has_encoder_decoder(chain: tuple[Artifact, ...]) -> bool:
    return any(artifact.get("encoder_decoder") for artifact in chain)


KEEP_BIAS = {
    "hf": 'put back the model\'s own class (Qwen2ForCausalLM, not LlamaForCausalLM) in config.json, or "attention_bias": true '
    "where its class reads that",
    "made": 'convert with the converter of the model\'s own family (Qwen2 as Qwen, not as Llama), or set "attn_bias": true '
    "in the checkpoint's config.json, and build again",
}
# Classes that have no biases there unless attention_bias says so, or never (_torch/models of 1.2.1).
UNBIASED_CLASSES = (
    "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
)  # fmt: skip


def _bias_fact(artifact: Artifact) -> str:
    by_config = artifact.kind == "hf" or artifact.get("attention_bias") is False
    return "attention_bias" if by_config else "weights.qkv_bias"


def _drops_bias(artifact: Artifact) -> bool:
    """Return whether biases are said or seen not to be there; a model's own config.json may leave them out."""
    if artifact.kind == "hf":
        unsaid = artifact.text("architecture") in UNBIASED_CLASSES and not artifact.has("attention_bias")
        return artifact.get("attention_bias") is False or unsaid
    lost = artifact.get("weights.qkv_bias") is False and has_all_tensors(artifact)
    return artifact.get("attention_bias") is False or lost


@make_agreement("DX813", "hf")
def head_rows(deployment: Deployment) -> Iterator[Violation]:
    """The query and key projections have as many rows as the heads need."""
    for model in deployment.of_kinds("hf"):
        size = _head_size(model)
        if size is None or model.has("kv_lora_rank") or model.get("multimodal"):
            continue
        if _may_be_packed(model, UNPACKED_ROW_FORMATS):
            continue
        if _contradicted_sizes(model):
            continue  # a head's size follows from the hidden size: DX814 says which one is wrong
        for name, rows, heads in (
            ("query", "weights.q_rows", "num_heads"),
            ("key/value", "weights.kv_rows", "num_kv_heads"),
        ):
            stored_rows, count = model.integer(rows), model.integer(heads)
            if stored_rows is None or count is None or stored_rows == count * size:
                continue
            if name == "query" and model.text("architecture").startswith(GATED_QUERY_CLASSES):
                continue
            yield Violation(
                model.evidence(rows, heads, "head_size"),
                {
                    "what": name,
                    "rows": stored_rows,
                    "heads": count,
                    "size": size,
                    "fits": _heads_words(stored_rows, size),
                    "model": quoted_path(model),
                },
            )
            break


@make_agreement("DX813", "checkpoint")
def fused_rows(deployment: Deployment) -> Iterator[Violation]:
    """The fused query, key and value projection of a checkpoint has as many rows as the heads need."""
    for checkpoint in deployment.of_kinds("checkpoint"):
        rows, size = checkpoint.integer("weights.qkv_rows"), _head_size(checkpoint)
        heads, keys = checkpoint.integer("num_heads"), checkpoint.integer("num_kv_heads")
        if not rows or not size or not heads or not keys or not _plain_heads(checkpoint):
            continue
        tp_size = checkpoint.integer("tp_size") or 1
        if heads % tp_size == 0 and rows != (heads // tp_size + 2 * -(-keys // tp_size)) * size:
            yield Violation(
                checkpoint.evidence("weights.qkv_rows", "num_heads", "num_kv_heads"),
                {
                    "what": "key/value",
                    "rows": rows,
                    "heads": f"{heads} query and {keys}",
                    "size": size,
                    "fits": _fused_heads_words(rows, size, heads, tp_size),
                    "model": quoted_path(checkpoint),
                },
            )


def _plain_heads(checkpoint: Artifact) -> bool:
    """Return whether every layer has the same attention, stored row by row."""
    odd = checkpoint.text("architecture").startswith(
        ("DeciLM", "NemotronNas", "Decoder", "Encoder", *GATED_QUERY_CLASSES)
    )
    rowwise = checkpoint.text("quant.algo") in ("", "FP8", "FP8_PER_CHANNEL_PER_TOKEN")
    return rowwise and not odd and not checkpoint.has("kv_lora_rank")


def _fused_heads_words(rows: int, size: int, heads: int, tp_size: int) -> str:
    """Return what so many rows of one rank would be right for."""
    rank_heads, rest = divmod(rows, size)
    keys, odd = divmod(rank_heads - heads // tp_size, 2)
    if rest or odd or keys < 1:
        return _heads_words(rows, size)
    return f"right for {heads} query and {keys * tp_size} key/value heads"


def _head_size(model: Artifact) -> int | None:
    hidden, heads = model.integer("hidden_size"), model.integer("num_heads")
    stated = model.integer("head_size")
    return stated if stated or not hidden or not heads else hidden // heads


# Formats whose weights keep their shape, and those that only pack the columns of a row.
UNPACKED_FORMATS = ("FP8", "FP8_BLOCK_SCALES", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8")
UNPACKED_ROW_FORMATS = (*UNPACKED_FORMATS, "NVFP4", "W4A8_NVFP4_FP8")


def _may_be_packed(model: Artifact, unpacked_formats: tuple[str, ...] = UNPACKED_FORMATS) -> bool:
    """Return whether weights may be packed, as 4-bit weights are."""
    return (model.has("quant.algo") or model.has("quant.method")) and model.text("quant.algo") not in unpacked_formats


def _heads_words(rows: int, size: int) -> str:
    return f"{rows // size} heads of {size}" if rows % size == 0 else f"no whole number of heads of {size}"


# Architectures whose q_proj reads the hidden size and whose gate_proj writes the inner size, nothing else.
PLAIN_SIZE_CLASSES = (
    "Llama", "Mistral", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GemmaForCausalLM", "Gemma2", "Granite",
)  # fmt: skip
SIZE_FACTS = (
    ("hidden_size", "weights.columns", "q_proj"),
    ("intermediate_size", "weights.mlp_rows", "gate_proj"),
)


@make_agreement("DX094", "hf", "checkpoint")
def embedding_rows(deployment: Deployment) -> Iterator[Violation]:
    """The embedding has a row for each token of the vocabulary; a checkpoint's may be filled up for the ranks."""
    for model in deployment.of_kinds("hf", "checkpoint"):
        table, size = model.items("weights.embedding_shape"), model.integer("vocab_size")
        if len(table) != 2 or size is None or model.get("multimodal"):
            continue
        padding = 64 * (model.integer("tp_size") or 1) if model.kind == "checkpoint" else 1
        if not size <= table[0] < size + padding:
            yield Violation(
                model.evidence("weights.embedding_shape", "vocab_size"),
                {"rows": table[0], "vocab_size": size, "model": quoted_path(model)},
            )


@make_agreement("DX814", "hf")
def sizes_fit(deployment: Deployment) -> Iterator[Violation]:
    """The hidden and inner size in config.json are those of the weights."""
    for model in deployment.of_kinds("hf"):
        for name, stored_fact, tensor in _contradicted_sizes(model):
            yield Violation(
                model.evidence(name, stored_fact),
                {
                    "name": name,
                    "stated": model.get(name),
                    "seen": model.get(stored_fact),
                    "tensor": tensor,
                    "model": quoted_path(model),
                },
            )


@make_agreement("DX814", "hf")
def experts_fit(deployment: Deployment) -> Iterator[Violation]:
    """The configuration has as many experts as the weights."""
    for model in deployment.of_kinds("hf"):
        stated, stored = model.integer("num_experts"), model.integer("weights.experts")
        if stated and stored and stated != stored and has_all_tensors(model) and not model.get("multimodal"):
            yield Violation(
                model.evidence("num_experts", "weights.experts"),
                {
                    "name": "num_experts",
                    "stated": stated,
                    "seen": stored,
                    "tensor": "a layer",
                    "model": quoted_path(model),
                },
            )


def _contradicted_sizes(model: Artifact) -> list[tuple[str, str, str]]:
    """Return the sizes that the weights contradict; empty if weights may be packed or of another kind."""
    name = model.text("architecture")
    plain = name.startswith(PLAIN_SIZE_CLASSES) and name.endswith("ForCausalLM") and not model.get("multimodal")
    floats = all(
        dtype.startswith(("float16", "bfloat16", "float32", "float8")) for dtype in model.table("weights.dtypes")
    )
    if not plain or not floats or _may_be_packed(model) or model.has("kv_lora_rank"):
        return []
    return [size for size in SIZE_FACTS if model.has(size[0], size[1]) and model.get(size[0]) != model.get(size[1])]


@make_agreement("DX817", "hf")
def tied_head_is_embedding(deployment: Deployment) -> Iterator[Violation]:
    """An output layer that is stored beside the embedding and said to be tied to it holds the same numbers."""
    for model in deployment.of_kinds("hf"):
        if model.get("tie_embeddings") is True and model.get("weights.own_head") is True:
            yield Violation(
                model.evidence("tie_embeddings", "weights.own_head"),
                {"model": quoted_path(model)},
                confidence=0.9,
            )


@make_agreement("DX131", "checkpoint")
def rank_files(deployment: Deployment) -> Iterator[Violation]:
    """A checkpoint has a file of weights for each rank, those of context parallelism apart."""
    for checkpoint in deployment.of_kinds("checkpoint"):
        ranks = (checkpoint.integer("tp_size") or 1) * (checkpoint.integer("pp_size") or 1)
        there = set(checkpoint.items("weights.ranks"))
        missing = sorted(set(range(min(ranks, 4096))) - there)
        if missing and (there or checkpoint.items("weights.missing")):
            files_words = f"the files of ranks {join_words(sorted(there)[:8])}" if there else "no rank*.safetensors"
            yield Violation(
                (Evidence(checkpoint.path, files_words), *checkpoint.evidence("tp_size", "pp_size")),
                {
                    "missing": join_words([f"rank{rank}.safetensors" for rank in missing[:4]]),
                    "are": "is" if len(missing) == 1 else "are",
                    "ranks": format_count(ranks, "rank"),
                    "found": len(there) or "none",
                    "path": quoted_path(checkpoint),
                },
                # config.json alone is enough for trtllm-build --model_config, or beside an engine
                None if there else Severity.NOTE if deployment.first_of("engine") else Severity.WARNING,
                0.95 if there else 0.8,
            )


@make_agreement("DX855", "checkpoint")
def no_more_rank_files(deployment: Deployment) -> Iterator[Violation]:
    """A checkpoint has no files of weights that are left over from another conversion."""
    for checkpoint in deployment.of_kinds("checkpoint"):
        ranks = (checkpoint.integer("tp_size") or 1) * (checkpoint.integer("pp_size") or 1)
        beyond = sorted(rank for rank in checkpoint.items("weights.ranks") if rank >= ranks)
        if beyond and checkpoint.has("tp_size"):
            yield Violation(
                checkpoint.evidence("weights.ranks", "tp_size", "pp_size"),
                {"first": f"rank{beyond[0]}.safetensors", "ranks": ranks, "path": quoted_path(checkpoint)},
            )
