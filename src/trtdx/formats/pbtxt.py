"""Text protobufs without a schema: the fields of a message in order, each with the line it stands on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from trtdx.formats.documents import UnreadableError, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host

MOST_BYTES = 4 << 20
MOST_TOKENS = 200_000
MOST_DEPTH = 100  # protobuf's own limit


class PbtxtError(UnreadableError):
    """Where a text stops being a text protobuf, and why."""

    def __init__(self, line: int, column: int, reason: str) -> None:
        super().__init__(f"line {line}, column {column}: {reason}")
        self.line, self.column, self.reason = line, column, reason


class Name(str):
    """A word without quotes: true, TYPE_FP16, or a `${variable}` that nobody filled."""


class Field(NamedTuple):
    """One value of one field; a list gives one `Field` for each of its values."""

    name: str
    value: str | int | float | Message
    line: int


class Message:
    """The fields of one message, as often as they were written."""

    def __init__(self) -> None:
        self.fields: list[Field] = []

    def all(self, name: str) -> list[Field]:
        return [field for field in self.fields if field.name == name]

    def messages(self, name: str) -> list[Message]:
        return [field.value for field in self.all(name) if isinstance(field.value, Message)]

    def at(self, *path: str) -> Field | None:
        """Return the last field by its names, as protobuf keeps the last value of a field."""
        here = self
        for name in path[:-1]:
            below = here.messages(name)
            if not below:
                return None
            here = below[-1]
        fields = here.all(path[-1])
        return fields[-1] if fields else None

    def text(self, *path: str) -> str:
        """Return a text or a word, or "" where there is none."""
        field = self.at(*path)
        return str(field.value) if field and isinstance(field.value, str) else ""

    def integer(self, *path: str) -> int | None:
        field = self.at(*path)
        return field.value if field and isinstance(field.value, int) else None

    def truth(self, *path: str) -> bool | None:
        """Return true or false in the spellings that protobuf takes."""
        field = self.at(*path)
        if field is None or isinstance(field.value, (float, Message)):
            return None
        if isinstance(field.value, str) and not isinstance(field.value, Name):
            return None
        return TRUTHS.get(str(field.value))

    def walk(self, path: str = "") -> Iterator[tuple[str, Field]]:
        """Yield every value with its dotted name; the tree is no deeper than `MOST_DEPTH`."""
        for field in self.fields:
            dotted = f"{path}.{field.name}" if path else field.name
            if isinstance(field.value, Message):
                yield from field.value.walk(dotted)
            else:
                yield dotted, field


TRUTHS = {
    "true": True, "t": True, "True": True, "1": True, "false": False, "f": False, "False": False, "0": False,
}  # fmt: skip


def read_pbtxt(host: Host, path: str) -> Message:
    """Return the message a file holds, or raise `UnreadableError`."""
    data = read_bytes(host, path, MOST_BYTES)
    if b"\0" in data[:1024]:
        raise UnreadableError("is not text")
    return parse_pbtxt(data.decode("utf-8", "replace"))


def parse_pbtxt(text: str) -> Message:
    """Return the message a text holds, or raise `PbtxtError` with the line."""
    return _Parser(text).message()


class _Token(NamedTuple):
    kind: str  # name, number, string, or the sign itself; "" at the end
    text: str
    line: int
    column: int


TOKEN = re.compile(
    r"""(?P<space>(?:[\s\f\v]|\#[^\n]*)+)
    |(?P<variable>\$\{[^}\n]*\})
    |(?P<number>(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?)(?![\w.$]))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\$\{[^}\n]*\})?)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<sign>[{}<>\[\]:,;./-])""",
    re.VERBOSE,
)


def _tokens(text: str) -> Iterator[_Token]:
    offset, line, begin, count = 0, 1, 0, 0
    while offset < len(text):
        match = TOKEN.match(text, offset)
        if match is None:
            raise PbtxtError(line, offset - begin + 1, _unexpected(text, offset))
        kind = match.lastgroup or ""
        if kind != "space":
            count += 1
            if count > MOST_TOKENS:
                raise PbtxtError(
                    line, offset - begin + 1, f"more than {MOST_TOKENS:,} words, which no such file has"
                )
            yield _Token(match[0] if kind == "sign" else kind, match[0], line, offset - begin + 1)
        newlines = match[0].count("\n")
        if newlines:
            line += newlines
            begin = offset + match[0].rindex("\n") + 1
        offset = match.end()
    yield _Token("", "the end", line, offset - begin + 1)


def _unexpected(text: str, at: int) -> str:
    if text[at] in "\"'":
        return "a text in quotes is not closed on its line"
    return f"unexpected {text[at : at + 20].split()[0]!r}"


class _Parser:
    """Reads fields one after the other; each message inside a message is one call deeper."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)
        self._depth = 0

    def message(self) -> Message:
        message = self._fields("")
        if self._next.kind != "":
            raise self._error("expected a field")
        return message

    def _take(self) -> _Token:
        token = self._next
        if token.kind != "":
            self._next = next(self._tokens)
        return token

    def _error(self, reason: str) -> PbtxtError:
        token = self._next
        return PbtxtError(token.line, token.column, f"{reason}, found {token.text[:40]}")

    def _fields(self, closing: str) -> Message:
        message = Message()
        while self._next.kind not in ("", closing):
            self._field(message)
            if self._next.kind in (",", ";"):
                self._take()
        return message

    def _field(self, message: Message) -> None:
        line = self._next.line
        name = self._field_name()
        has_colon = self._next.kind == ":"
        if has_colon:
            self._take()
        if self._next.kind in ("{", "<"):
            message.fields.append(Field(name, self._message(), line))
        elif self._next.kind == "[":
            self._list(message, name, has_colon)
        elif has_colon:
            message.fields.append(Field(name, self._scalar(), line))
        else:
            raise self._error(f"expected ':' or '{{' after {name}")

    def _field_name(self) -> str:
        if self._next.kind == "[":
            return self._extension_name()
        if self._next.kind not in ("name", "number"):
            raise self._error("expected the name of a field")
        return self._take().text

    def _extension_name(self) -> str:
        """Return a name such as [type.googleapis.com/package.Message]."""
        self._take()
        parts: list[str] = []
        while self._next.kind in ("name", "number", ".", "/", "-"):
            parts.append(self._take().text)
        if self._next.kind != "]" or not parts:
            raise self._error("expected the name of an extension and ']'")
        self._take()
        return "[" + "".join(parts) + "]"

    def _message(self) -> Message:
        closing = "}" if self._take().kind == "{" else ">"
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise self._error("nested too deeply")
        message = self._fields(closing)
        if self._next.kind != closing:
            raise self._error(f"expected '{closing}'")
        self._take()
        self._depth -= 1
        return message

    def _list(self, message: Message, name: str, has_colon: bool) -> None:
        self._take()
        while self._next.kind != "]":
            line = self._next.line
            if self._next.kind in ("{", "<"):
                message.fields.append(Field(name, self._message(), line))
            elif has_colon:
                message.fields.append(Field(name, self._scalar(), line))
            else:
                raise self._error(f"expected ':' between {name} and a list of values")
            if self._next.kind == "]":
                break
            if self._next.kind != ",":
                raise self._error("expected ',' or ']'")
            self._take()
            if self._next.kind == "]":
                raise self._error("expected a value after ','")
        self._take()

    def _scalar(self) -> str | int | float:
        kind = self._next.kind
        if kind == "string":
            return self._strings()
        if kind in ("name", "variable"):
            return Name(self._take().text)
        if kind == "number":
            return _number(self._take().text)
        if kind == "-":
            self._take()
            return self._negative()
        raise self._error("expected a value")

    def _negative(self) -> int | float | Name:
        if self._next.kind == "number":
            return -_number(self._take().text)
        if self._next.kind == "name" and self._next.text.lower() in ("inf", "infinity", "nan"):
            return -float(self._take().text)
        raise self._error("expected a number after '-'")

    def _strings(self) -> str:
        """Return texts that follow each other as one; escapes are bytes of UTF-8."""
        parts: list[bytes] = []
        while self._next.kind == "string":
            try:
                parts.append(_unescaped(self._next.text[1:-1]))
            except ValueError as err:
                raise self._error(str(err)) from err
            self._take()
        return b"".join(parts).decode("utf-8", "replace")


def _number(text: str) -> int | float:
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


ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
SIMPLE = {
    "n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\\": "\\", "'": "'",
    '"': '"', "?": "?",
}  # fmt: skip


def _unescaped(text: str) -> bytes:
    parts: list[bytes] = []
    offset = 0
    for match in ESCAPE.finditer(text):
        parts += [text[offset : match.start()].encode("utf-8", "replace"), _escape(match)]
        offset = match.end()
    return b"".join([*parts, text[offset:].encode("utf-8", "replace")])


def _escape(found: re.Match[str]) -> bytes:
    octal, hexadecimal, short, long, other = found.groups()
    if octal or hexadecimal:
        return bytes([int(octal, 8) & 255 if octal else int(hexadecimal, 16)])
    if short or long:
        code = int(short or long, 16)
        if code > 0x10FFFF:
            raise ValueError(f"there is no character \\U{long}")
        return chr(code).encode("utf-8", "replace")
    if other not in SIMPLE:
        raise ValueError(f"there is no escape \\{other}")
    return SIMPLE[other].encode()
