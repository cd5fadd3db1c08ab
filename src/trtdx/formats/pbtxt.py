"""Text protobufs without a schema: the fields of a message in order, each with the line it stands on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from trtdx.formats.documents import UnreadableError, read_file_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host

MAX_PBTXT_BYTES = 4 << 20
MAX_TOKENS = 200_000
MAX_MESSAGE_DEPTH = 100  # protobuf's own limit


class PbtxtError(UnreadableError):
    """Where a text stops being a text protobuf, and why."""

    def __init__(self, line: int, column: int, reason: str) -> None:
        super().__init__(f"line {line}, column {column}: {reason}")
        self.line, self.column, self.reason = line, column, reason


class PbtxtWord(str):
    """A word without quotes: true, TYPE_FP16, or a `${variable}` that nobody filled."""


class PbtxtField(NamedTuple):
    """One value of one field; a list gives one `Field` for each of its values."""

    name: str
    value: str | int | float | PbtxtMessage
    line: int


class PbtxtMessage:
    """The fields of one message, as often as they were written."""

    def __init__(self) -> None:
        self.fields: list[PbtxtField] = []

    def fields_named(self, name: str) -> list[PbtxtField]:
        return [field for field in self.fields if field.name == name]

    def messages_named(self, name: str) -> list[PbtxtMessage]:
        return [field.value for field in self.fields_named(name) if isinstance(field.value, PbtxtMessage)]

    def last_field(self, *path: str) -> PbtxtField | None:
        """Return the last field by its names, as protobuf keeps the last value of a field."""
        here = self
        for name in path[:-1]:
            below = here.messages_named(name)
            if not below:
                return None
            here = below[-1]
        fields = here.fields_named(path[-1])
        return fields[-1] if fields else None

    def text_at(self, *path: str) -> str:
        """Return a text or a word, or "" where there is none."""
        field = self.last_field(*path)
        return str(field.value) if field and isinstance(field.value, str) else ""

    def integer_at(self, *path: str) -> int | None:
        field = self.last_field(*path)
        return field.value if field and isinstance(field.value, int) else None

    def bool_at(self, *path: str) -> bool | None:
        """Return true or false in the spellings that protobuf takes."""
        field = self.last_field(*path)
        if field is None or isinstance(field.value, (float, PbtxtMessage)):
            return None
        if isinstance(field.value, str) and not isinstance(field.value, PbtxtWord):
            return None
        return BOOL_SPELLINGS.get(str(field.value))

    def walk_fields(self, path: str = "") -> Iterator[tuple[str, PbtxtField]]:
        """Yield every value with its dotted name; the tree is no deeper than `MOST_DEPTH`."""
        for field in self.fields:
            dotted = f"{path}.{field.name}" if path else field.name
            if isinstance(field.value, PbtxtMessage):
                yield from field.value.walk_fields(dotted)
            else:
                yield dotted, field


BOOL_SPELLINGS = {
    "true": True, "t": True, "True": True, "1": True, "false": False, "f": False, "False": False, "0": False,
}  # fmt: skip


def read_pbtxt(host: Host, path: str) -> PbtxtMessage:
    """Return the message a file holds, or raise `UnreadableError`."""
    data = read_file_bytes(host, path, MAX_PBTXT_BYTES)
    if b"\0" in data[:1024]:
        raise UnreadableError("is not text")
    return parse_pbtxt(data.decode("utf-8", "replace"))


def parse_pbtxt(text: str) -> PbtxtMessage:
    """Return the message a text holds, or raise `PbtxtError` with the line."""
    return _PbtxtParser(text).parse_message()


class _PbtxtToken(NamedTuple):
    kind: str  # name, number, string, or the sign itself; "" at the end
    text: str
    line: int
    column: int


TOKEN_REGEX = re.compile(
    r"""(?P<space>(?:[\s\f\v]|\#[^\n]*)+)
    |(?P<variable>\$\{[^}\n]*\})
    |(?P<number>(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?)(?![\w.$]))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\$\{[^}\n]*\})?)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<sign>[{}<>\[\]:,;./-])""",
    re.VERBOSE,
)


def _tokenize_pbtxt(text: str) -> Iterator[_PbtxtToken]:
    offset, line, begin, count = 0, 1, 0, 0
    while offset < len(text):
        match = TOKEN_REGEX.match(text, offset)
        if match is None:
            raise PbtxtError(line, offset - begin + 1, _unexpected_text(text, offset))
        kind = match.lastgroup or ""
        if kind != "space":
            count += 1
            if count > MAX_TOKENS:
                raise PbtxtError(line, offset - begin + 1, f"more than {MAX_TOKENS:,} words, which no such file has")
            yield _PbtxtToken(match[0] if kind == "sign" else kind, match[0], line, offset - begin + 1)
        newlines = match[0].count("\n")
        if newlines:
            line += newlines
            begin = offset + match[0].rindex("\n") + 1
        offset = match.end()
    yield _PbtxtToken("", "the end", line, offset - begin + 1)


def _unexpected_text(text: str, offset: int) -> str:
    if text[offset] in "\"'":
        return "a text in quotes is not closed on its line"
    return f"unexpected {text[offset : offset + 20].split()[0]!r}"


class _PbtxtParser:
    """Reads fields one after the other; each message inside a message is one call deeper."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokenize_pbtxt(text)
        self._lookahead = next(self._tokens)
        self._depth = 0

    def parse_message(self) -> PbtxtMessage:
        message = self._parse_fields("")
        if self._lookahead.kind != "":
            raise self._syntax_error("expected a field")
        return message

    def _next_token(self) -> _PbtxtToken:
        token = self._lookahead
        if token.kind != "":
            self._lookahead = next(self._tokens)
        return token

    def _syntax_error(self, reason: str) -> PbtxtError:
        token = self._lookahead
        return PbtxtError(token.line, token.column, f"{reason}, found {token.text[:40]}")

    def _parse_fields(self, closing: str) -> PbtxtMessage:
        message = PbtxtMessage()
        while self._lookahead.kind not in ("", closing):
            self._parse_field(message)
            if self._lookahead.kind in (",", ";"):
                self._next_token()
        return message

    def _parse_field(self, message: PbtxtMessage) -> None:
        line = self._lookahead.line
        name = self._parse_field_name()
        has_colon = self._lookahead.kind == ":"
        if has_colon:
            self._next_token()
        if self._lookahead.kind in ("{", "<"):
            message.fields.append(PbtxtField(name, self._parse_nested_message(), line))
        elif self._lookahead.kind == "[":
            self._parse_list(message, name, has_colon)
        elif has_colon:
            message.fields.append(PbtxtField(name, self._parse_scalar(), line))
        else:
            raise self._syntax_error(f"expected ':' or '{{' after {name}")

    def _parse_field_name(self) -> str:
        if self._lookahead.kind == "[":
            return self._parse_extension_name()
        if self._lookahead.kind not in ("name", "number"):
            raise self._syntax_error("expected the name of a field")
        return self._next_token().text

    def _parse_extension_name(self) -> str:
        """Return a name such as [type.googleapis.com/package.Message]."""
        self._next_token()
        parts: list[str] = []
        while self._lookahead.kind in ("name", "number", ".", "/", "-"):
            parts.append(self._next_token().text)
        if self._lookahead.kind != "]" or not parts:
            raise self._syntax_error("expected the name of an extension and ']'")
        self._next_token()
        return "[" + "".join(parts) + "]"

    def _parse_nested_message(self) -> PbtxtMessage:
        closing = "}" if self._next_token().kind == "{" else ">"
        self._depth += 1
        if self._depth > MAX_MESSAGE_DEPTH:
            raise self._syntax_error("nested too deeply")
        message = self._parse_fields(closing)
        if self._lookahead.kind != closing:
            raise self._syntax_error(f"expected '{closing}'")
        self._next_token()
        self._depth -= 1
        return message

    def _parse_list(self, message: PbtxtMessage, name: str, has_colon: bool) -> None:
        self._next_token()
        while self._lookahead.kind != "]":
            line = self._lookahead.line
            if self._lookahead.kind in ("{", "<"):
                message.fields.append(PbtxtField(name, self._parse_nested_message(), line))
            elif has_colon:
                message.fields.append(PbtxtField(name, self._parse_scalar(), line))
            else:
                raise self._syntax_error(f"expected ':' between {name} and a list of values")
            if self._lookahead.kind == "]":
                break
            if self._lookahead.kind != ",":
                raise self._syntax_error("expected ',' or ']'")
            self._next_token()
            if self._lookahead.kind == "]":
                raise self._syntax_error("expected a value after ','")
        self._next_token()

    def _parse_scalar(self) -> str | int | float:
        kind = self._lookahead.kind
        if kind == "string":
            return self._parse_strings()
        if kind in ("name", "variable"):
            return PbtxtWord(self._next_token().text)
        if kind == "number":
            return _parse_number(self._next_token().text)
        if kind == "-":
            self._next_token()
            return self._parse_negative()
        raise self._syntax_error("expected a value")

    def _parse_negative(self) -> int | float | PbtxtWord:
        if self._lookahead.kind == "number":
            return -_parse_number(self._next_token().text)
        if self._lookahead.kind == "name" and self._lookahead.text.lower() in ("inf", "infinity", "nan"):
            return -float(self._next_token().text)
        raise self._syntax_error("expected a number after '-'")

    def _parse_strings(self) -> str:
        """Return texts that follow each other as one; escapes are bytes of UTF-8."""
        parts: list[bytes] = []
        while self._lookahead.kind == "string":
            try:
                parts.append(_unescape_text(self._lookahead.text[1:-1]))
            except ValueError as err:
                raise self._syntax_error(str(err)) from err
            self._next_token()
        return b"".join(parts).decode("utf-8", "replace")


def _parse_number(text: str) -> int | float:
    try:
        if text[:2] in ("0x", "0X"):
            return int(text, 16)
        if re.fullmatch(r"0[0-7]+", text):
            return int(text, 8)
        if text.isdecimal() and len(text) < 100:
            return int(text)
        return float(text.rstrip("fF"))
    except (ValueError, OverflowError):
        return float("nan")


ESCAPE_REGEX = re.compile(
    r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
SIMPLE_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\\": "\\", "'": "'",
    '"': '"', "?": "?",
}  # fmt: skip


def _unescape_text(text: str) -> bytes:
    parts: list[bytes] = []
    offset = 0
    for match in ESCAPE_REGEX.finditer(text):
        parts += [text[offset : match.start()].encode("utf-8", "replace"), _unescape_match(match)]
        offset = match.end()
    return b"".join([*parts, text[offset:].encode("utf-8", "replace")])


def _unescape_match(match: re.Match[str]) -> bytes:
    octal, hexadecimal, short, long, other = match.groups()
    if octal or hexadecimal:
        return bytes([int(octal, 8) & 255 if octal else int(hexadecimal, 16)])
    if short or long:
        code = int(short or long, 16)
        if code > 0x10FFFF:
            raise ValueError(f"there is no character \\U{long}")
        return chr(code).encode("utf-8", "replace")
    if other not in SIMPLE_ESCAPES:
        raise ValueError(f"there is no escape \\{other}")
    return SIMPLE_ESCAPES[other].encode()
