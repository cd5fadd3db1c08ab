"""Tokenizer files as facts: how many ids there are, what the special tokens are, and the chat template."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.formats.sentencepiece import is_tiktoken, pieces_from_sentencepiece, vocab_size_from_tiktoken
from trtdx.inspect.readers.hf.chat_template import put_chat_template

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.inspect.readers.folder import ArtifactFolder

SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "sentencepiece.model")
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tekken.json", "chat_template.jinja", "chat_template.json", *SENTENCEPIECE_FILES,
)  # fmt: skip
VOCABULARY_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "tekken.json", *SENTENCEPIECE_FILES)
MAX_VOCABULARY_BYTES = 64 << 20
MAX_TOKEN_ID = 1 << 26  # beyond it an id is damage, not a token
MAX_MODEL_LENGTH = 1 << 40  # "no limit" is written as 1e30
# Tokens that a processor puts in for images and sounds; a text-only model of the family has no row for them.
PLACEHOLDER_TOKEN = re.compile(r"(?i)<.*(?:image|img|audio|video|vision|soft_token|speech).*>")
ORDINARY_TEXT = re.compile(r"[^<>\[\]|\s]+")
# Tokens by which the turn of a speaker ends; base models end a text with another one.
TURN_END_TOKENS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|END_OF_TURN_TOKEN|>",
    "<|end_of_role|>", "<|role_end|>", "[e~[", "<|user|>", "<|observation|>",
)  # fmt: skip
BOS_SWITCH_CLASSES = (
    "Llama",
    "CodeLlama",
    "Gemma",
)  # classes that rewrite the post-processor by add_bos_token


class _AddedToken(msgspec.Struct):
    content: str
    id: int


class _TokenizerModel(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _TokenizerFile(msgspec.Struct):
    """The parts of tokenizer.json that are needed; merges are many and are not kept."""

    model: _TokenizerModel
    added_tokens: list[_AddedToken] = []
    post_processor: Any = None


class Vocabulary:
    """Tokens and their ids, from whichever files state them."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.special: dict[str, int] = {}
        self.size = 0
        self.where = ""
        self.is_complete = False  # whether ids has every token, so that an absent one is absent
        self.post_processor: Any = None

    def has_token(self, token: str) -> bool:
        return token in self.special or token in self.ids

    def token_id(self, token: str) -> int | None:
        return self.special.get(token, self.ids.get(token))

    def add_token(self, token: str, token_id: int, where: str) -> None:
        """Take in an added token; ids beyond any vocabulary are damage and left out."""
        if 0 <= token_id < MAX_TOKEN_ID:
            self.special[token] = token_id
            self.grow_to(token_id + 1, where)

    def grow_to(self, size: int, where: str) -> None:
        if size > self.size:
            self.size, self.where = size, where


def tokenizer_files(folder: ArtifactFolder) -> list[str]:
    named = [name for name in TOKENIZER_FILES if name in folder.names]
    return named + sorted(name for name in folder.names if name.endswith(".tiktoken") or name == "tiktoken.model")


def read_tokenizer(folder: ArtifactFolder) -> None:
    """Put every tokenizer.* fact; a directory without such files states that it has none."""
    files = tokenizer_files(folder)
    folder.facts.put("tokenizer.files", files, folder.path)
    if not files:
        return
    config = folder.read_json_object("tokenizer_config.json")
    specials = folder.read_json_object("special_tokens_map.json")
    vocabulary = read_vocabulary(folder, files)
    _take_added_tokens(folder, vocabulary, config)
    if vocabulary.size:
        folder.facts.put("tokenizer.size", vocabulary.size, vocabulary.where)
        _put_text_size(folder, vocabulary)
    tokens = _put_special_tokens(folder, vocabulary, config, specials)
    _put_ordinary_eos(folder, vocabulary, tokens.get("eos"))
    _put_turn_end(folder, vocabulary, tokens.get("eos"))
    _put_tokenizer_config(folder, config)
    _put_bos_switch(folder, vocabulary, config, tokens.get("bos"))
    put_chat_template(folder, vocabulary, config, tokens)


def _put_text_size(folder: ArtifactFolder, vocabulary: Vocabulary) -> None:
    """Put the size without placeholders at the end of the vocabulary, where there are such."""
    placeholder_ids = {at for token, at in vocabulary.special.items() if PLACEHOLDER_TOKEN.fullmatch(token)}
    size = vocabulary.size
    while size - 1 in placeholder_ids:
        size -= 1
    if size < vocabulary.size:
        folder.facts.put("tokenizer.text_size", size, vocabulary.where)


def _put_ordinary_eos(folder: ArtifactFolder, vocabulary: Vocabulary, eos: str | None) -> None:
    """Put the ends of generation_config.json that are ordinary text, beside an end token that is special."""
    named = folder.facts.get("generation.eos_ids")
    if not vocabulary.is_complete or eos not in vocabulary.special or not isinstance(named, list):
        return
    text_ids = {at for at in named if isinstance(at, int)} - set(vocabulary.special.values())
    text = [
        f"{at} ({token})" for token, at in vocabulary.ids.items() if at in text_ids and ORDINARY_TEXT.fullmatch(token)
    ]
    folder.put_list_fact("tokenizer.text_eos", text, folder.path_of("generation_config.json") + ": eos_token_id")


def _put_turn_end(folder: ArtifactFolder, vocabulary: Vocabulary, eos: str | None) -> None:
    """Put the token that ends a speaker's turn where answers end with it: only models for chat are saved so."""
    named = folder.facts.get("generation.eos_ids")
    ids = named if isinstance(named, list) else []
    if eos in TURN_END_TOKENS:
        folder.facts.put("tokenizer.ends_turn", eos, folder.path_of("tokenizer_config.json") + ": eos_token")
        return
    turn_end = next((token for token in TURN_END_TOKENS if vocabulary.token_id(token) in ids), None)
    if turn_end is not None and vocabulary.token_id(turn_end) is not None:
        folder.facts.put("tokenizer.ends_turn", turn_end, folder.path_of("generation_config.json") + ": eos_token_id")


def read_vocabulary(folder: ArtifactFolder, files: list[str]) -> Vocabulary:
    """Return the vocabulary of the first file that has one."""
    vocabulary = Vocabulary()
    readers = {
        "tokenizer.json": _read_fast_tokenizer,
        "vocab.json": _read_vocab_json,
        **dict.fromkeys(SENTENCEPIECE_FILES, _read_sentencepiece),
        "vocab.txt": _read_vocab_txt,
        "tekken.json": _read_tekken,
    }
    for name in [*(name for name in readers if name in files), *(f for f in files if "tiktoken" in f)]:
        readers.get(name, _read_sentencepiece)(folder, name, vocabulary)
        if vocabulary.size:
            break
    return vocabulary


def _read_fast_tokenizer(folder: ArtifactFolder, name: str, vocabulary: Vocabulary) -> None:
    tokenizer_file = folder.decode_json(name, _TokenizerFile)
    if tokenizer_file is None:
        return
    vocab = tokenizer_file.model.vocab
    vocabulary.ids = vocab if isinstance(vocab, dict) else {text: at for at, (text, _) in enumerate(vocab)}
    vocabulary.is_complete = True
    vocabulary.post_processor = tokenizer_file.post_processor
    _grow_to_highest_id(vocabulary, folder.path_of(name))
    for token in tokenizer_file.added_tokens:
        vocabulary.add_token(token.content, token.id, f"{folder.path_of(name)}: added_tokens")


def _grow_to_highest_id(vocabulary: Vocabulary, where: str) -> None:
    highest = max(vocabulary.ids.values(), default=-1)
    if 0 <= highest < MAX_TOKEN_ID:
        vocabulary.grow_to(highest + 1, where)


def _read_vocab_json(folder: ArtifactFolder, name: str, vocabulary: Vocabulary) -> None:
    vocabulary.ids = folder.decode_json(name, dict[str, int]) or {}
    vocabulary.is_complete = bool(vocabulary.ids)
    _grow_to_highest_id(vocabulary, folder.path_of(name))


def _read_sentencepiece(folder: ArtifactFolder, name: str, vocabulary: Vocabulary) -> None:
    data = folder.read_bytes(name, MAX_VOCABULARY_BYTES)
    if data is None:
        return
    if "tiktoken" in name or is_tiktoken(data[:256]):
        vocabulary.grow_to(vocab_size_from_tiktoken(data), folder.path_of(name))
        return
    pieces = pieces_from_sentencepiece(data)
    if pieces.problem:
        folder.note_unparsed(name, pieces.problem)
        return
    vocabulary.grow_to(pieces.count, folder.path_of(name))
    vocabulary.special.update(pieces.special_ids)


def _read_vocab_txt(folder: ArtifactFolder, name: str, vocabulary: Vocabulary) -> None:
    text = folder.read_text(name, MAX_VOCABULARY_BYTES)
    if text:
        vocabulary.ids = {line.rstrip("\r"): at for at, line in enumerate(text.removesuffix("\n").split("\n"))}
        vocabulary.is_complete = True
        _grow_to_highest_id(vocabulary, folder.path_of(name))


def _read_tekken(folder: ArtifactFolder, name: str, vocabulary: Vocabulary) -> None:
    document = folder.read_json_object(name)
    size = document.value_at("config.default_vocab_size") if document else None
    if document and isinstance(size, int) and 0 < size < MAX_TOKEN_ID:
        vocabulary.grow_to(size, document.place_of("config.default_vocab_size"))


def _take_added_tokens(folder: ArtifactFolder, vocabulary: Vocabulary, config: Document | None) -> None:
    """Take in tokens that are stated beside the vocabulary."""
    table = config.value_at("added_tokens_decoder") if config else None
    if config and isinstance(table, dict):
        for key, entry in table.items():
            token = _token_text(entry)
            if token is not None and key.isdecimal() and len(key) < 12:
                vocabulary.add_token(token, int(key), config.place_of("added_tokens_decoder"))
    older = folder.read_json_object("added_tokens.json") if "tokenizer.json" not in folder.names else None
    for token, at in (older.data if older else {}).items():
        if isinstance(at, int):
            vocabulary.add_token(token, at, folder.path_of("added_tokens.json"))


def _token_text(value: Any) -> str | None:
    """Return a token that is written as a text, or as a table with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _put_special_tokens(
    folder: ArtifactFolder, vocabulary: Vocabulary, config: Document | None, specials: Document | None
) -> dict[str, str]:
    """Put the tokens that begin, end and fill, with their ids; return them."""
    tokens = {}
    for which in ("bos", "eos", "pad"):
        key = f"{which}_token"
        for document in (config, specials):
            token = _token_text(document.value_at(key)) if document else None
            if document is None or token is None:
                continue
            tokens[which] = token
            folder.facts.put(f"tokenizer.{key}", token, document.place_of(key))
            folder.facts.put(f"tokenizer.{which}_id", vocabulary.token_id(token), document.place_of(key))
            if vocabulary.is_complete and vocabulary.special and which != "pad" and not vocabulary.has_token(token):
                folder.facts.add("tokenizer.absent_special", f"{key} {token}", document.place_of(key))
            break
    return tokens


def _put_tokenizer_config(folder: ArtifactFolder, config: Document | None) -> None:
    if config is None:
        return
    folder.facts.put("tokenizer.class", config.value_at("tokenizer_class"), config.place_of("tokenizer_class"))
    length = config.value_at("model_max_length")
    if isinstance(length, (int, float)) and length < MAX_MODEL_LENGTH:
        folder.facts.put("tokenizer.model_max_length", length, config.place_of("model_max_length"))


def _put_bos_switch(folder: ArtifactFolder, vocabulary: Vocabulary, config: Document | None, bos: str | None) -> None:
    """Put whether encoding begins with the beginning token, where the files that decide it agree."""
    switch = config.value_at("add_bos_token") if config else None
    by_template = _begins_with(vocabulary.post_processor, bos)
    if config is not None and isinstance(switch, bool):
        decides = by_template is None or str(config.value_at("tokenizer_class")).startswith(BOS_SWITCH_CLASSES)
        if decides or by_template is switch:
            folder.facts.put("tokenizer.adds_bos", switch, config.place_of("add_bos_token"))
    elif by_template is not None:
        folder.facts.put("tokenizer.adds_bos", by_template, folder.path_of("tokenizer.json") + ": post_processor")


def _begins_with(processor: Any, bos: str | None, depth: int = 0) -> bool | None:
    """Return whether a post-processor puts the token first; None where it cannot be told."""
    if not isinstance(processor, dict) or bos is None or depth > 4:
        return None
    if processor.get("type") == "ByteLevel":
        return False
    if processor.get("type") == "Sequence" and isinstance(processor.get("processors"), list):
        begins = [_begins_with(part, bos, depth + 1) for part in processor["processors"][:16]]
        return True if True in begins else False if False in begins else None
    single = processor.get("single")
    if processor.get("type") != "TemplateProcessing" or not isinstance(single, list) or not single:
        return None
    first = single[0].get("SpecialToken") if isinstance(single[0], dict) else None
    return isinstance(first, dict) and first.get("id") == bos
