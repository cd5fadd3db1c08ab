"""The names that sentences of a page mention in backticks, and flags without any."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from trtdx.inspect.mentions.nouns import NameMention
from trtdx.inspect.mentions.shell_mentions import known_programs, mentions_in_shell, scripts_in_text, variables_in_code
from trtdx.knowledge.holds_for import TENSORRT
from trtdx.knowledge.inventory import TENSORRT_LLM, find_option, find_variable, list_tool_flags, list_tools

if TYPE_CHECKING:
    from collections.abc import Iterator

JUDGED_PRODUCTS = (TENSORRT_LLM, TENSORRT, "tensorrtllm_backend")
_CODE = re.compile(r"`([^`\n]+)`")
_FLAG = re.compile(r"(?<![\w-])(--[A-Za-z][\w-]*[A-Za-z0-9])(?![\w*-])")
# Words by which a sentence says that it is not about every release.
DATED = re.compile(
    r"(?i)\b(?:v?\d+\.\d+(?:\.\d+)?(?:\.?(?:rc|post)\d+)?|TensorRT \d+|Open MPI \d|since|until|before|older?|earlier|former(?:ly)?|"
    r"gone|removed|legacy|deprecated|no longer|renamed|engine backend|TensorRT backend|TensorRT engines?)\b"
)


class ProseMention(NamedTuple):
    """A name in a sentence, and whether the sentence says of which releases it speaks."""

    mention: NameMention
    is_dated: bool


def mentions_in_prose(text: str) -> Iterator[ProseMention]:
    """Yield the names that sentences mention."""
    for paragraph in text.splitlines():
        is_dated = bool(DATED.search(paragraph))
        for mention in _mentions_in_paragraph(paragraph):
            yield ProseMention(mention, is_dated)


def _mentions_in_paragraph(paragraph: str) -> Iterator[NameMention]:
    for code in _CODE.findall(paragraph):
        yield from _mentions_in_code(code)
    yield from scripts_in_text(paragraph)
    for flag in _FLAG.findall(_CODE.sub(" ", paragraph)):
        yield from _bare_flag(flag)


def _mentions_in_code(code: str) -> Iterator[NameMention]:
    first = code.split()[0].rpartition("/")[2] if code.split() else ""
    if first in known_programs():
        yield from mentions_in_shell(code)
        return
    for flag in _FLAG.findall(code):
        yield from _bare_flag(flag)
    yield from variables_in_code(code)
    if find_variable(code):
        yield NameMention("variable", code)
    root, dot, rest = code.partition(".")
    section = find_option(root)
    if dot and section is not None and section.eras[-1].type == "table" and re.fullmatch(r"[a-z_][\w.]*", rest):
        yield NameMention("option", code)


def _bare_flag(flag: str) -> Iterator[NameMention]:
    """Yield a flag whose program is not said, where some program of the inventory has it."""
    entries = [entry for tool in list_tools() for entry in list_tool_flags(tool) if entry.flag == flag]
    if entries and all(entry.product in JUDGED_PRODUCTS for entry in entries):
        yield NameMention("any-flag", flag, " ".join(dict.fromkeys(entry.tool for entry in entries)))
