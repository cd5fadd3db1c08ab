"""What must agree about token ids: tokenizer, vocabulary, the ids that end an answer, chat template, server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.lineage import (
    is_same_model,
    loading_servers,
    quoted_path,
    short_kind,
    source_model,
)
from trtdx.inspect.agreements.serving import names_artifact, served_model
from trtdx.inspect.facts.gaps import note_gap
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import join_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

SPECIAL_IDS = {
    "tokenizer.eos_id": "the tokenizer's end", "tokenizer.bos_id": "the tokenizer's beginning",
    "tokenizer.pad_id": "the tokenizer's filling", "generation.bos_id": "generation_config.json's beginning",
    "generation.pad_id": "generation_config.json's filling",
}  # fmt: skip
# Models that end an answer with another token than the one that closes a message in their template:
# gpt-oss closes with <|end|> and ends with <|return|>; the first Gemma ends with <eos> after <end_of_turn>.
OTHER_END_MODELS = ("gpt_oss", "gemma")
MIN_VOCABULARY_SHARE = 0.9  # of a model's vocabulary that its own tokenizer uses
BYTE_VOCABULARY = 512
TOKENIZER_IDENTITY = ("tokenizer.size", "tokenizer.eos_id")  # what two tokenizers of one model have in common


def tokenizer_holders(deployment: Deployment) -> Iterator[Artifact]:
    """Yield the artifacts that hold a tokenizer."""
    holders = [artifact for artifact in deployment.of_kinds("tokenizer", "hf") if _holds_tokenizer(artifact)]
    if not holders:
        note_gap("no tokenizer is at hand")
    return iter(holders)


def _holds_tokenizer(artifact: Artifact) -> bool:
    return any(name.startswith("tokenizer.") for name in artifact.facts)


def tokenizer_in_use(deployment: Deployment, server: Artifact | None = None) -> Artifact | None:
    """Return the tokenizer that requests meet, if there is no doubt which one it is: named by the server, or alone."""
    holders = list(tokenizer_holders(deployment))
    named = [holder for holder in holders if server is not None and _gives_tokenizer(deployment, server, holder)]
    alone = list(deployment.of_kinds("tokenizer"))
    candidates = named or alone or holders
    if len(candidates) > 1:
        note_gap(
            f"it is not said which tokenizer is used, {join_words((candidate.path for candidate in candidates), conjunction='or')}"
        )
    return candidates[0] if len(candidates) == 1 else None


def _gives_tokenizer(deployment: Deployment, server: Artifact, holder: Artifact) -> bool:
    """Return whether a server names a tokenizer, or serves the model it lies with and names no other."""
    folders = server.table("triton.tokenizer_dirs").values()
    if server.has("runtime.tokenizer") or folders:
        reals = [server.resolved_paths.get(str(folder)) for folder in folders]
        return names_artifact(server, "runtime.tokenizer", holder) or (
            bool(holder.real_path) and holder.real_path in reals
        )
    return names_artifact(server, "runtime.model", holder) or served_model(deployment, server) is holder


def models_for(deployment: Deployment, tokenizer: Artifact) -> list[Artifact]:
    """Return the artifacts whose vocabulary a tokenizer's ids must fit, the nearest to the source first."""
    models = [artifact for artifact in deployment.of_kinds("hf", "checkpoint", "engine") if artifact.has("vocab_size")]
    if tokenizer.kind == "hf":
        return [model for model in models if model is tokenizer or _made_from(deployment, tokenizer, model)]
    serving = [
        server for server in loading_servers(deployment) if names_artifact(server, "runtime.tokenizer", tokenizer)
    ]
    named = [model for server in serving if (model := served_model(deployment, server)) in models]
    models = (
        [model for model in models if model in named or _made_from(deployment, named[0], model)] if named else models
    )
    if models and not all(is_same_model(models[0], model) for model in models):
        note_gap(f"it is not said which of {join_words(model.path for model in models)} {tokenizer.path} belongs to")
        return []
    return models


def _made_from(deployment: Deployment, source: Artifact, artifact: Artifact) -> bool:
    return artifact.kind != "hf" and source_model(deployment, artifact) is source and is_same_model(source, artifact)


def embedding_row_count(artifact: Artifact) -> int:
    """Return how many ids a model has rows for: its embedding may be larger than its configuration says."""
    table = artifact.items("weights.embedding_shape")
    rows = table[0] if artifact.kind == "hf" and len(table) == 2 else 0
    return max(artifact.integer("vocab_size") or 0, rows)


@make_agreement("DX820", "hf", "tokenizer", "checkpoint", "engine", needs=("hf|tokenizer", "hf|checkpoint|engine"))
def ids_in_vocabulary(deployment: Deployment) -> Iterator[Violation]:
    """Every id the tokenizer can give has a row in the model's embedding."""
    for tokenizer in tokenizer_holders(deployment):
        size = text_size(tokenizer)
        models = list(models_for(deployment, tokenizer))
        small = [model for model in models if size is not None and embedding_row_count(model) < size]
        # Where the model has room and what was made from it has not, the vocabulary shrank: that is DX801.
        if size is None or not small or len(small) < len(models) or _reads_more_than_text(deployment):
            continue
        least = min(small, key=embedding_row_count)
        only_filler = size - embedding_row_count(least) == 1 and tokenizer.integer("tokenizer.pad_id") == size - 1
        yield Violation(
            tokenizer.evidence("tokenizer.size") + least.evidence("vocab_size"),
            {
                "last_id": size - 1,
                "vocab_size": embedding_row_count(least),
                "kind": short_kind(least),
                "extra": size - embedding_row_count(least),
                "model": quoted_path(tokenizer) if tokenizer.kind == "hf" else "model",
                "tokenizer": quoted_path(tokenizer),
                "size": size,
            },
            Severity.WARNING if only_filler else None,
            0.7 if only_filler else 0.95,
        )


def text_size(tokenizer: Artifact) -> int | None:
    """Return the ids a text can give; placeholders of images beyond them never reach a text model (Gemma 3)."""
    return tokenizer.integer("tokenizer.text_size") or tokenizer.integer("tokenizer.size")


def _reads_more_than_text(deployment: Deployment) -> bool:
    """Return whether ids beyond the vocabulary are placeholders, such as the image token of Llama 3.2 Vision."""
    return any(artifact.get("multimodal") for artifact in deployment.of_kinds("hf", "checkpoint", "engine"))


@make_agreement("DX822", "hf", "tokenizer", "checkpoint", "engine", needs=("hf|tokenizer", "hf|checkpoint|engine"))
def special_ids_in_vocabulary(deployment: Deployment) -> Iterator[Violation]:
    """The ids that begin, end and fill a text are in the vocabulary."""
    for tokenizer in deployment.of_kinds("tokenizer", "hf"):
        models = models_for(deployment, tokenizer)
        least = min(models, key=embedding_row_count, default=None)
        if least is None or (text_size(tokenizer) or 0) > embedding_row_count(least):
            continue  # the tokenizer as a whole is too large: DX820
        outside = [
            (name, which, number)
            for name, which, number in _special_ids(tokenizer)
            if number >= embedding_row_count(least) and not _reads_more_than_text(deployment)
        ]
        for name, which, number in outside[:1]:
            yield Violation(
                tokenizer.evidence(name) + least.evidence("vocab_size"),
                {
                    "which": which,
                    "id": number,
                    "vocab_size": embedding_row_count(least),
                    "kind": short_kind(least),
                    "path": quoted_path(tokenizer),
                },
                Severity.WARNING if "pad" in name else None,  # Vicuna's 32000 never reaches the model
            )


def _special_ids(artifact: Artifact) -> Iterator[tuple[str, str, int]]:
    for name, which in SPECIAL_IDS.items():
        number = artifact.integer(name)
        if number is not None:
            yield name, which, number
    for number in artifact.items("generation.eos_ids"):
        if isinstance(number, int):
            yield "generation.eos_ids", "generation_config.json's end", number


@make_agreement("DX509", "tokenizer", "hf", "checkpoint", "engine", needs=("tokenizer", "hf|checkpoint|engine"))
def tokenizer_of_model(deployment: Deployment) -> Iterator[Violation]:
    """A tokenizer beside a model is the model's: it gives the ids the model was trained with."""
    for tokenizer in deployment.of_kinds("tokenizer"):
        for model in [artifact for artifact in models_for(deployment, tokenizer) if artifact.kind == "hf"]:
            if all(_differs_in_fact(tokenizer, model, name) for name in TOKENIZER_IDENTITY):
                yield Violation(
                    tokenizer.evidence(*TOKENIZER_IDENTITY) + model.evidence(*TOKENIZER_IDENTITY),
                    {
                        "what": f"the tokenizer has {tokenizer.get('tokenizer.size')} ids and ends a text with "
                        f"{tokenizer.get('tokenizer.eos_id')}, the model's own has "
                        f"{model.get('tokenizer.size')} and {model.get('tokenizer.eos_id')}",
                        "tokenizer": quoted_path(tokenizer),
                    },
                    Severity.ERROR,
                )
                return
    yield from _undersized_tokenizers(deployment)


def _differs_in_fact(one: Artifact, other: Artifact, name: str) -> bool:
    return one.has(name) and other.has(name) and one.get(name) != other.get(name)


def _undersized_tokenizers(deployment: Deployment) -> Iterator[Violation]:
    """Yield a tokenizer with far fewer ids than the model it is for has rows; vocabularies are padded by a few per cent.

    Published models fill theirs up by 2 % at most, but for vocabularies of single bytes (ByT5: 259 of 384).
    """
    for tokenizer in tokenizer_holders(deployment):
        size, models = tokenizer.integer("tokenizer.size"), models_for(deployment, tokenizer)
        # where the model has room, what was made from it grew: DX801
        model = min(models, key=embedding_row_count, default=None)
        if size is None or model is None or _reads_more_than_text(deployment):
            continue
        table = model.items("weights.embedding_shape")
        rows = min(
            [embedding_row_count(model), *table[:1]]
        )  # a configuration that says more than the weights have is DX094
        if size < MIN_VOCABULARY_SHARE * rows and rows > BYTE_VOCABULARY:
            yield Violation(
                tokenizer.evidence("tokenizer.size") + model.evidence("vocab_size"),
                {
                    "what": f"the tokenizer has {size} ids, the model's vocabulary {rows}",
                    "tokenizer": quoted_path(tokenizer),
                },
                Severity.ERROR,
                0.8,
            )


@make_agreement("DX502", "hf", "tokenizer")
def turn_end_stops(deployment: Deployment) -> Iterator[Violation]:
    """The token by which the chat template ends a turn is one at which generation stops."""
    for holder in tokenizer_holders(deployment):
        turn_end = holder.integer("tokenizer.turn_end_id")
        stops = stop_ids(holder)
        if turn_end is None or not stops or turn_end in stops or ends_with_other_token(holder):
            continue
        yield Violation(
            holder.evidence("tokenizer.turn_end", "tokenizer.eos_id", "generation.eos_ids"),
            {
                "token": holder.text("tokenizer.turn_end") or f"token {turn_end}",
                "id": turn_end,
                "stops": join_words(sorted(stops)),
                "who": "generation",
            },
            Severity.ERROR,
            0.85,
        )


def stop_ids(holder: Artifact) -> set[int]:
    """Return the ids at which the LLM API stops: the tokenizer's and all of generation_config.json.

    Those of config.json are not among them (`SamplingParams._setup`, 1.2.1).
    """
    eos_id = holder.integer("tokenizer.eos_id")
    return {token_id for token_id in (*holder.items("generation.eos_ids"), eos_id) if isinstance(token_id, int)}


def ends_with_other_token(holder: Artifact) -> bool:
    return holder.text("model_type") in OTHER_END_MODELS or "<|return|>" in holder.text("tokenizer.chat_template")


@make_agreement("DX823", "hf", "tokenizer")
def template_tokens(deployment: Deployment) -> Iterator[Violation]:
    """Every special token the chat template writes is one the tokenizer knows."""
    for holder in tokenizer_holders(deployment):
        unknown = holder.items("tokenizer.template_unknown_tokens")
        if unknown and holder.has("tokenizer.size"):
            yield Violation(
                holder.evidence("tokenizer.template_unknown_tokens", "tokenizer.size"),
                {"tokens": join_words(unknown[:4]), "path": quoted_path(holder)},
                confidence=0.8,
            )


@make_agreement("DX827", "hf", "tokenizer")
def template_parses(deployment: Deployment) -> Iterator[Violation]:
    """The chat template is a template: its tags are known and its blocks are closed."""
    for holder in tokenizer_holders(deployment):
        fault = holder.text("tokenizer.template_fault")
        if fault:
            yield Violation(holder.evidence("tokenizer.template_fault"), {"fault": fault, "path": quoted_path(holder)})


@make_agreement("DX825", "hf", "tokenizer")
def special_tokens_known(deployment: Deployment) -> Iterator[Violation]:
    """The tokens that begin and end a text are in the tokenizer's vocabulary.

    transformers adds one that is not, with an id after all others, which the model never learned.
    """
    for holder in tokenizer_holders(deployment):
        absent = holder.items("tokenizer.absent_special")
        if absent:
            ends = any(str(token).startswith("eos") for token in absent)
            yield Violation(
                holder.evidence("tokenizer.absent_special", "tokenizer.size"),
                {"tokens": join_words(absent), "path": quoted_path(holder)},
                None if ends else Severity.NOTE,
                0.9,
            )


@make_agreement("DX826", "hf", "tokenizer")
def eos_ids_are_special(deployment: Deployment) -> Iterator[Violation]:
    """The ids at which generation stops are special tokens, not pieces of ordinary text."""
    for holder in tokenizer_holders(deployment):
        text = holder.items("tokenizer.text_eos")
        if text:
            yield Violation(
                holder.evidence("tokenizer.text_eos", "tokenizer.eos_id"),
                {
                    "ids": join_words(text),
                    "token": holder.text("tokenizer.eos_token") or "another token",
                    "id": holder.get("tokenizer.eos_id", "its id"),
                    "path": quoted_path(holder),
                },
                confidence=0.85,
            )


@make_agreement("DX126", "hf", "tokenizer", "command")
def template_there(deployment: Deployment) -> Iterator[Violation]:
    """A chat model that is served has a chat template."""
    flags = ("option.chat_template", "option.--chat_template")
    serving = [
        server
        for server in loading_servers(deployment)
        if not any(map(server.has, flags))
        and not server.text("runtime.command").startswith(("trtllm-bench", "trtllm-eval"))
    ]
    holder = tokenizer_in_use(deployment, serving[0]) if serving else None
    if holder is None or holder.has("tokenizer.chat_template"):
        return
    names = (holder.path, holder.text("saved_as"), serving[0].text("runtime.model"))
    is_named = holder.has("tokenizer.class") and any(map(_names_chat, names))
    if holder.has("tokenizer.ends_turn") or is_named:
        certain = holder.has("tokenizer.ends_turn")
        shown = "tokenizer.ends_turn" if certain else "tokenizer.class"
        yield Violation(
            holder.evidence(shown, "tokenizer.chat_template") + serving[0].evidence("runtime.model"),
            {"path": quoted_path(holder)},
            None if certain else Severity.WARNING,
            0.85 if certain else 0.7,
        )


def _names_chat(name: str) -> bool:
    """Return whether the name of a model, not of a folder above it, says that it was made for chat."""
    parts = [part for part in name.lower().rstrip("/").split("/") if part.startswith("models--")]
    last = parts[-1] if parts else name.lower().rstrip("/").rpartition("/")[2]
    return re.search(r"(?:^|[-_.])(?:instruct|chat|it)(?:$|[-_.])", last) is not None


@make_agreement("DX824", "hf", "tokenizer", "engine", needs=("hf|tokenizer", "engine"))
def tokenizer_length(deployment: Deployment) -> Iterator[Violation]:
    """The tokenizer allows texts as long as the engine does."""
    for engine in deployment.of_kinds("engine"):
        source = source_model(deployment, engine) if deployment.first_of("tokenizer") is None else None
        holds = source is not None and _holds_tokenizer(source)
        tokenizer = source if holds else tokenizer_in_use(deployment)
        longest = tokenizer.integer("tokenizer.model_max_length") if tokenizer else None
        limit = engine.integer("max_input_len") if engine.has("max_input_len") else None
        if tokenizer is not None and longest and limit is not None and 0 < longest < limit:
            yield Violation(
                tokenizer.evidence("tokenizer.model_max_length") + engine.evidence("max_input_len"),
                {"longest": longest, "limit": limit, "path": quoted_path(tokenizer)},
                confidence=0.7,
            )
