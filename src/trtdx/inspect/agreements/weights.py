"""What the tensors of a model must have in common with its configuration and with what was made from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.inspect.agreement import Violation, agreement
from trtdx.inspect.agreements.lineage import called, chains, in_words, quoted, related, remake, steps
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.agreement import Agreement
    from trtdx.inspect.artifact import Artifact, Deployment

# What keeps a directory's tensors from being known in full.
INCOMPLETE = ("weights.missing", "weights.truncated", "weights.lfs_pointers", "weights.corrupt", "unparsed")
# Architectures that store their output layer as lm_head; InternLM2, RWKV and others have names of their own.
STORES_LM_HEAD = (
    "Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Phi", "Gemma", "Deepseek", "GptOss", "Nemotron", "GPTJ",
    "Granite", "Starcoder2", "Olmo2", "Cohere",
)  # fmt: skip
# Models whose query projection is wider than its heads: an output gate is computed with it.
GATED_QUERY = ("Qwen3Next", "Qwen3_5")


def complete(artifact: Artifact) -> bool:
    """Return whether all tensors were seen, so that an absent one is absent."""
    if any(artifact.items(name) for name in INCOMPLETE):
        return False
    ranks = (artifact.integer("tp_size") or 1) * (artifact.integer("pp_size") or 1)
    return artifact.kind != "checkpoint" or len(artifact.items("weights.ranks")) in (0, ranks)


@agreement("DX486", "hf", "checkpoint")
def head_kept(deployment: Deployment) -> Iterator[Violation]:
    """The output layer of a model whose embeddings are not tied is in the checkpoint.

    `PretrainedModel.load` (1.2.1) takes the embedding without a word where lm_head.weight is absent.
    """
    for source, target in steps(deployment, "weights.has_lm_head"):
        if not (source.get("weights.has_lm_head") and complete(source) and complete(target)):
            continue
        if target.get("weights.has_lm_head") is False and source.get("tie_embeddings") is not True:
            yield Violation(
                source.evidence("weights.has_lm_head", "tie_embeddings")
                + target.evidence("weights.has_lm_head"),
                {
                    "what": "the model has an output layer of its own, the checkpoint made from it has none",
                    "model": quoted(source),
                },
                Severity.ERROR,
            )


@agreement("DX486", "hf")
def head_stored(deployment: Deployment) -> Iterator[Violation]:
    """A model whose configuration says the embeddings are not tied stores an output layer."""
    for model in deployment.of("hf"):
        name = model.text("architecture")
        if not (name.startswith(STORES_LM_HEAD) and name.endswith("ForCausalLM")) or model.get("multimodal"):
            continue
        untied = model.get("tie_embeddings") is False and model.get("weights.has_lm_head") is False
        if untied and complete(model):
            yield Violation(
                model.evidence("tie_embeddings", "weights.has_lm_head"),
                {
                    "what": "the configuration says that the output layer is not tied to the embedding, "
                    "but the weights hold no output layer",
                    "model": quoted(model),
                },
                Severity.ERROR,
            )


@agreement("DX803", "hf")
def tied_head_fits(deployment: Deployment) -> Iterator[Violation]:
    """An output layer that is said to be the embedding has the embedding's shape."""
    for model in deployment.of("hf"):
        head, table = model.items("weights.lm_head_shape"), model.items("weights.embedding_shape")
        if model.get("tie_embeddings") is True and head and table and head != table:
            yield Violation(
                model.evidence("tie_embeddings", "weights.lm_head_shape", "weights.embedding_shape"),
                {"head": _shape(head), "embedding": _shape(table), "model": quoted(model)},
            )


def _shape(sizes: list[int]) -> str:
    return " x ".join(map(str, sizes))


@agreement("DX804", "hf", "checkpoint")
def query_norms(deployment: Deployment) -> Iterator[Violation]:
    """Query and key norms of a model are in the checkpoint.

    The tensors are compared, not `qk_layernorm`: 1.2.1 writes false there for Qwen3 and still applies them.
    """
    for step in steps(deployment, "weights.qk_norm"):
        source, target = step
        lost = source.get("weights.qk_norm") and target.get("weights.qk_norm") is False
        if lost and complete(target):
            yield Violation(
                source.evidence("weights.qk_norm") + target.evidence("weights.qk_norm"), remake(step)
            )


@agreement("DX805", "hf", "checkpoint", "engine")
def attention_bias(deployment: Deployment) -> Iterator[Violation]:
    """Biases of the attention projections are used where the weights have them.

    Tensors nobody asks for are only warned about ("Provided but not required tensors", 1.2.1).
    """
    for chain in chains(deployment):
        holder = next((each for each in chain if each.get("weights.qkv_bias") is True), None)
        if holder is None or not all(related(holder, each) for each in chain) or _in_halves(chain):
            continue
        for artifact in chain[chain.index(holder) :]:
            if _drops_bias(artifact):
                yield Violation(
                    holder.evidence("weights.qkv_bias") + artifact.evidence(_bias_fact(artifact)),
                    {"holder": called(holder), "but": _but(holder, artifact), "path": quoted(artifact)},
                )
                break


def _but(holder: Artifact, artifact: Artifact) -> str:
    return "its configuration says" if holder is artifact else f"the {called(artifact)} says"


def _in_halves(chain: tuple[Artifact, ...]) -> bool:
    return any(each.get("encoder_decoder") for each in chain)


def _bias_fact(artifact: Artifact) -> str:
    return "attention_bias" if artifact.get("attention_bias") is False else "weights.qkv_bias"


def _drops_bias(artifact: Artifact) -> bool:
    """Return whether biases are said or seen not to be there; a model's own config.json may leave them out."""
    if artifact.kind == "hf":
        return artifact.get("attention_bias") is False
    lost = artifact.get("weights.qkv_bias") is False and complete(artifact)
    return artifact.get("attention_bias") is False or lost


@agreement("DX813", "hf")
def head_rows(deployment: Deployment) -> Iterator[Violation]:
    """The query and key projections have as many rows as the heads need."""
    for model in deployment.of("hf"):
        size = _head_size(model)
        if size is None or model.has("kv_lora_rank") or model.get("multimodal") or _packed(model):
            continue
        for name, rows, heads in (
            ("query", "weights.q_rows", "num_heads"),
            ("key/value", "weights.kv_rows", "num_kv_heads"),
        ):
            seen, count = model.integer(rows), model.integer(heads)
            if seen is None or count is None or seen == count * size:
                continue
            if name == "query" and model.text("architecture").startswith(GATED_QUERY):
                continue
            yield Violation(
                model.evidence(rows, heads, "head_size"),
                {
                    "what": name,
                    "rows": seen,
                    "heads": count,
                    "size": size,
                    "fits": _fits(seen, size),
                    "model": quoted(model),
                },
            )
            break


def _head_size(model: Artifact) -> int | None:
    hidden, heads = model.integer("hidden_size"), model.integer("num_heads")
    stated = model.integer("head_size")
    return stated if stated or not hidden or not heads else hidden // heads


def _packed(model: Artifact) -> bool:
    """Return whether rows may be packed, as 4-bit weights are."""
    return model.has("quant.algo") or model.has("quant.method")


def _fits(rows: int, size: int) -> str:
    return f"{rows // size} heads of {size}" if rows % size == 0 else f"no whole number of heads of {size}"


@agreement("DX094", "hf")
def embedding_rows(deployment: Deployment) -> Iterator[Violation]:
    """The embedding has a row for each token of the vocabulary."""
    for model in deployment.of("hf"):
        table, size = model.items("weights.embedding_shape"), model.integer("vocab_size")
        if len(table) != 2 or size is None or model.get("multimodal") or _packed(model):
            continue
        if table[0] != size:
            yield Violation(
                model.evidence("weights.embedding_shape", "vocab_size"),
                {"rows": table[0], "vocab_size": size, "model": quoted(model)},
            )


@agreement("DX131", "checkpoint")
def rank_files(deployment: Deployment) -> Iterator[Violation]:
    """A checkpoint has a file of weights for each rank, those of context parallelism apart."""
    for checkpoint in deployment.of("checkpoint"):
        ranks = (checkpoint.integer("tp_size") or 1) * (checkpoint.integer("pp_size") or 1)
        there = set(checkpoint.items("weights.ranks"))
        missing = sorted(set(range(min(ranks, 4096))) - there)
        if there and missing:
            yield Violation(
                checkpoint.evidence("weights.ranks", "tp_size", "pp_size"),
                {
                    "missing": in_words([f"rank{rank}.safetensors" for rank in missing[:4]]),
                    "ranks": ranks,
                    "found": len(there),
                    "path": quoted(checkpoint),
                },
            )


@agreement("DX855", "checkpoint")
def no_more_rank_files(deployment: Deployment) -> Iterator[Violation]:
    """A checkpoint has no files of weights that are left over from another conversion."""
    for checkpoint in deployment.of("checkpoint"):
        ranks = (checkpoint.integer("tp_size") or 1) * (checkpoint.integer("pp_size") or 1)
        beyond = sorted(rank for rank in checkpoint.items("weights.ranks") if rank >= ranks)
        if beyond and checkpoint.has("tp_size"):
            yield Violation(
                checkpoint.evidence("weights.ranks", "tp_size", "pp_size"),
                {"first": f"rank{beyond[0]}.safetensors", "ranks": ranks, "path": quoted(checkpoint)},
            )


ROWS: tuple[Agreement, ...] = (
    head_kept,
    head_stored,
    tied_head_fits,
    query_norms,
    attention_bias,
    head_rows,
    embedding_rows,
    rank_files,
    no_more_rank_files,
)
