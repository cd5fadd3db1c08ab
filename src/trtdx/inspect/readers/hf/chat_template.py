"""The chat template of a tokenizer: which of them is in force, and what it says of tokens."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.inspect.readers.folder import Folder
    from trtdx.inspect.readers.hf.tokenizer import Vocabulary

MOST_BYTES = 1 << 20
RENAMED = re.compile(r"\bset\s+(?:eos|bos)_token\b")  # a template that gives these names its own tokens


def put_template(
    folder: Folder, vocabulary: Vocabulary, config: Document | None, tokens: dict[str, str]
) -> None:
    """Put the chat template and what it says of tokens, where there is one."""
    template = _template(folder, config)
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
        turn_end = turn_end_token(tree, vocabulary.special, {} if RENAMED.search(source) else tokens)
        unknown = unknown_tokens(tree, vocabulary) if vocabulary.whole else []
        folder.put_list("tokenizer.template_unknown_tokens", unknown, where)
        if turn_end:
            folder.facts.put("tokenizer.turn_end", turn_end, where)
            folder.facts.put("tokenizer.turn_end_id", vocabulary.id_of(turn_end), where)


def _template(folder: Folder, config: Document | None) -> tuple[str, str] | None:
    """Return the template in force; transformers takes chat_template.jinja before tokenizer_config.json."""
    text = folder.text("chat_template.jinja", MOST_BYTES)
    if text:
        return text, folder.at("chat_template.jinja")
    documents = (config, folder.document("chat_template.json"))
    for document in documents:
        chosen = _chosen(document.at("chat_template")) if document else None
        if document and chosen:
            return chosen, document.where("chat_template")
    return None


def _chosen(value: Any) -> str | None:
    """Return the one template, or the default among several that have names."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        named = {key: template for key, template in value.items() if isinstance(template, str)}
    elif isinstance(value, list):
        tables = [entry for entry in value if isinstance(entry, dict)]
        named = {
            str(table.get("name")): table["template"]
            for table in tables
            if isinstance(table.get("template"), str)
        }
    else:
        return None
    return named.get("default") or next(iter(named.values()), None)
