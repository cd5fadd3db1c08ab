"""The chat template of a tokenizer: which of them is in force, and what it says of tokens."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.inspect.readers.folder import ArtifactFolder
    from trtdx.inspect.readers.hf.tokenizer import Vocabulary

MAX_TEMPLATE_BYTES = 1 << 20
TOKEN_REASSIGNED = re.compile(r"\bset\s+(?:eos|bos)_token\b")  # a template that gives these names its own tokens


def put_chat_template(
    folder: ArtifactFolder, vocabulary: Vocabulary, config: Document | None, tokens: dict[str, str]
) -> None:
    """Put the chat template and what it says of tokens, where there is one."""
    template = _template_in_force(folder, config)
    if template is None:
        return
    from trtdx.formats.jinja import TemplateError, parse_template
    from trtdx.inspect.readers.hf.template_tokens import turn_end_token, unknown_tokens

    source, where = template
    tree, fault = parse_template(source)
    folder.facts.put("tokenizer.chat_template", source, where)
    folder.facts.put("tokenizer.template_source", where.partition(": ")[0].rpartition("/")[2], where)
    folder.facts.put("tokenizer.template_fault", fault or None, where)
    if tree is None:
        return
    with suppress(TemplateError, RecursionError):
        turn_end = turn_end_token(tree, vocabulary.special, {} if TOKEN_REASSIGNED.search(source) else tokens)
        unknown = unknown_tokens(tree, vocabulary) if vocabulary.is_complete else []
        folder.put_list_fact("tokenizer.template_unknown_tokens", unknown, where)
        if turn_end:
            folder.facts.put("tokenizer.turn_end", turn_end, where)
            folder.facts.put("tokenizer.turn_end_id", vocabulary.token_id(turn_end), where)


def _template_in_force(folder: ArtifactFolder, config: Document | None) -> tuple[str, str] | None:
    """Return the template in force; transformers takes chat_template.jinja before tokenizer_config.json."""
    text = folder.read_text("chat_template.jinja", MAX_TEMPLATE_BYTES)
    if text:
        return text, folder.path_of("chat_template.jinja")
    documents = (config, folder.read_json_object("chat_template.json"))
    for document in documents:
        chosen = _default_template(document.value_at("chat_template")) if document else None
        if document and chosen:
            return chosen, document.place_of("chat_template")
    return None


def _default_template(value: Any) -> str | None:
    """Return the one template, or the default among several that have names."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        named = {key: template for key, template in value.items() if isinstance(template, str)}
    elif isinstance(value, list):
        tables = [entry for entry in value if isinstance(entry, dict)]
        named = {
            str(table.get("name")): table["template"] for table in tables if isinstance(table.get("template"), str)
        }
    else:
        return None
    return named.get("default") or next(iter(named.values()), None)
