"""Commands in shell text: words, line numbers, variables that are set in the text, and files it writes.

Not a shell: nothing is run and no control flow is followed. A word whose value cannot be known from the text
alone (an unset variable, `$(...)`) keeps its spelling and says so.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MOST_TEXT = 1 << 20
MOST_WORDS = 50_000
LONGEST_VALUE = 4096


class Word(NamedTuple):
    """One word, its value as far as the text tells, and the line it begins on."""

    text: str
    line: int
    is_known: bool = True  # no part of it depends on something outside the text


class Command(NamedTuple):
    """One simple command: what stands between `;`, `&&`, `|` or line ends."""

    words: tuple[Word, ...]
    line: int


class Script(NamedTuple):
    """All commands of a text, and the files its here-documents write."""

    commands: tuple[Command, ...]
    files: dict[str, tuple[str, int]]  # path: content and the line it begins on
    is_whole: bool = True  # False: the text was longer than is looked at
    unclosed: str = ""  # the quote that is opened and never closed


OPERATORS = re.compile(r";;|&&|\|\||[;|&()\n]")
REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|&>>?|>>|>&|<&|>\||>|<)")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
PARAMETER = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^{}$]*))?\})")
ARRAY = re.compile(r'(")?\$\{(\w+)\[[@*]\]\}(?(1)")')
DECLARING = ("export", "local", "declare", "readonly", "typeset")
KEYWORDS = ("if", "then", "elif", "else", "while", "until", "do", "{", "!")  # a command may follow these


def parse_shell(text: str) -> Script:
    """Return the commands of a shell text; text that is no shell gives odd commands, never an error."""
    lexer = _Lexer(text[:MOST_TEXT])
    lexer.run()
    return Script(
        tuple(lexer.commands), lexer.files, len(text) <= MOST_TEXT and not lexer.is_full, lexer.unclosed
    )


class _Here(NamedTuple):
    """A here-document: the line that ends it, and what is done to its text."""

    mark: str
    tabs_go: bool
    is_literal: bool


class _Lexer:
    """Reads shell text once from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self.commands: list[Command] = []
        self.files: dict[str, tuple[str, int]] = {}
        self.is_full = False
        self.unclosed = ""
        self._text = text
        self._at = 0
        self._line = 1
        self._words: list[Word] = []
        self._count = 0
        self._variables: dict[str, str] = {}
        self._arrays: dict[str, list[Word]] = {}
        self._array = ""  # the one whose brackets are open
        self._before: list[Word] = []  # what stands before it on the line
        self._here: list[_Here] = []  # that begin after this line
        self._filled_in = 0
        self._target = ""  # the file that this command's output goes to
        self._is_appended = False

    def run(self) -> None:
        while self._at < len(self._text) and not self.is_full:
            self._step()
        self._end_command()

    def _step(self) -> None:
        rest = self._text[self._at : self._at + 3]
        if rest.startswith("\\\n") or rest.startswith("\\\r\n"):
            self._skip(rest.index("\n") + 1)
        elif rest[0] in " \t\r":
            self._skip(1)
        elif rest[0] == "#":
            self._skip(len(self._until("\n")))
        elif REDIRECTION.match(self._text, self._at) and not self._is_process():
            self._redirection()
        elif OPERATORS.match(self._text, self._at):
            self._operator()
        elif (array := ARRAY.match(self._text, self._at)) and array[2] in self._arrays:
            self._skip(len(array[0]))
            for word in self._arrays[array[2]]:
                self._take(word._replace(line=self._line))
        else:
            for word in self._fields():
                self._take(word)

    def _skip(self, length: int) -> None:
        self._line += self._text.count("\n", self._at, self._at + length)
        self._at += length

    def _until(self, end: str) -> str:
        end_offset = self._text.find(end, self._at)
        return self._text[self._at : end_offset if end_offset >= 0 else len(self._text)]

    def _take(self, word: Word) -> None:
        self._count += 1
        self.is_full = self._count >= MOST_WORDS
        self._words.append(word)

    def _operator(self) -> None:
        match = OPERATORS.match(self._text, self._at)
        operator = match[0] if match else "\n"
        if self._array or (operator == "(" and self._opens_array()):
            self._step_in_array(operator)
            return
        self._end_command(is_piped=operator == "|")
        self._skip(len(operator))
        if operator == "\n":
            self._here_documents()

    def _opens_array(self) -> bool:
        """Return whether `NAME=` stands right before the bracket."""
        is_joined = self._at > 0 and self._text[self._at - 1] == "="
        assignment = ASSIGNMENT.fullmatch(self._words[-1].text) if self._words and is_joined else None
        if assignment is None:
            return False
        self._words.pop()
        self._array = assignment[1]
        self._before = self._words
        self._words = list(self._arrays.get(assignment[1], ())) if assignment[2] else []
        return True

    def _step_in_array(self, operator: str) -> None:
        """Take a bracket or a line break of `NAME=(...)`; what stands between are its words."""
        self._skip(len(operator))
        if operator == ")":
            self._arrays[self._array] = self._words
            self._words, self._array = self._before, ""

    def _end_command(self, *, is_piped: bool = False) -> None:
        words = self._words
        self._words = []
        while words and words[0].text in KEYWORDS:
            words = words[1:]
        if self._target and len(words) > 1 and words[0].text == "echo":
            self._write_echo(words)
        if not is_piped and not self._here:
            self._target = ""
        if not words:
            return
        if words[0].text == "tee":
            self._target = self._target or next((w.text for w in words[1:] if not w.text.startswith("-")), "")
        assignments = [ASSIGNMENT.fullmatch(word.text) for word in words if word.text not in DECLARING]
        if all(assignments):
            self._set(assignments, words)
        elif words[0].text in ("for", "read") and len(words) > 1:
            self._variables.pop(words[1].text, None)
        else:
            self.commands.append(Command(tuple(words), words[0].line))

    def _write_echo(self, words: list[Word]) -> None:
        text = " ".join(word.text for word in words[1:] if word.text != "-e")
        before, line = (
            self.files.get(self._target, ("", words[0].line)) if self._is_appended else ("", words[0].line)
        )
        self.files[self._target] = (f"{before}{text}\n", line)

    def _set(self, assignments: list[re.Match[str] | None], words: list[Word]) -> None:
        unknown = {word.text.partition("=")[0].rstrip("+") for word in words if not word.is_known}
        for assignment in assignments:
            if assignment is None:
                continue
            before = self._variables.pop(assignment[1], None if assignment[2] else "")
            value = (
                None
                if before is None or assignment[1] in unknown
                else (before if assignment[2] else "") + assignment[3]
            )
            if value is not None and len(value) <= LONGEST_VALUE:
                self._variables[assignment[1]] = value

    def _redirection(self) -> None:
        match = REDIRECTION.match(self._text, self._at)
        operator = match[0].lstrip("0123456789") if match else ""
        self._skip(len(match[0]) if match else 1)
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._skip(1)
        if self._text[self._at : self._at + 1] in ("", "\r", *"\n;|&()<>"):
            return
        is_literal = self._text[self._at] in "'\"\\"
        word = self._word()
        if operator in ("<<", "<<-"):
            self._here.append(_Here(word.text, operator == "<<-", is_literal))
        elif operator in (">", ">>", ">|"):
            self._target, self._is_appended = word.text, operator == ">>"

    def _here_documents(self) -> None:
        """Pass over the texts that begin after this line, and keep what goes into a file."""
        for here in self._here:
            begin, lines = self._line, []
            while self._at < len(self._text):
                line = self._until("\n")
                self._skip(len(line) + 1)
                line = line.rstrip("\r").lstrip("\t" if here.tabs_go else "")
                if line == here.mark:
                    break
                lines.append(line if here.is_literal else self._filled(line))
            if self._target:
                self.files[self._target] = ("\n".join(lines) + "\n", begin)
        self._here, self._target = [], ""

    def _filled(self, text: str) -> str:
        return PARAMETER.sub(lambda match: match[0] if (value := self._value(match)) is None else value, text)

    def _value(self, found: re.Match[str]) -> str | None:
        """Return what a `$NAME` or `${NAME:-default}` stands for, where the text tells."""
        value = self._variables.get(found[1] or found[2], found[3])
        self._filled_in += len(value or "")
        return value if self._filled_in <= MOST_TEXT else None

    def _is_process(self) -> bool:
        return self._text.startswith(("<(", ">("), self._at)

    def _word(self) -> Word:
        """Return the next word, whole whatever its variables hold: the target of a redirection."""
        fields = self._fields()
        return Word(" ".join(word.text for word in fields), self._line, all(word.is_known for word in fields))

    def _fields(self) -> list[Word]:
        """Return the words that the next one becomes: the value of a variable outside of quotes is split."""
        line, texts, is_known, is_gone = self._line, [""], True, True
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t\r\n;|&()<>" and not self._is_process():
                break
            part, part_known = self._part(char)
            is_known = is_known and part_known
            if char != "$" or not part_known or ASSIGNMENT.fullmatch(texts[0]):
                texts[-1] += part
                is_gone = False
                continue
            first, *more = re.split(r"\s+", part)
            texts[-1] += first
            texts += more
        nonempty = [text for text in texts if text] if len(texts) > 1 or is_gone else texts
        return [Word(text, line, is_known) for text in nonempty]

    def _part(self, char: str) -> tuple[str, bool]:
        """Return the next piece of a word without its quotes, and whether its value is known."""
        if char == "'":
            return self._quoted("'"), True
        if char == '"':
            return self._expanded(self._quoted('"'))
        if char == "\\":
            self._skip(1)
            taken_text = self._text[self._at : self._at + 1]
            self._skip(len(taken_text))
            return ("" if taken_text == "\n" else taken_text), True
        if char in "$`" or self._is_process():
            return self._substitution()
        plain = re.compile(r"[^\s;|&()<>'\"\\$`]+").match(self._text, self._at)
        taken_text = plain[0] if plain else char
        self._skip(len(taken_text))
        return taken_text, True

    def _quoted(self, quote: str) -> str:
        """Return what stands between quotes; a quote that is never closed reaches to the end."""
        self._skip(1)
        pattern = r"[^']*" if quote == "'" else r'(?:[^"\\]|\\.)*'
        match = re.compile(pattern, re.DOTALL).match(self._text, self._at)
        inside = match[0] if match else ""
        if self._at + len(inside) >= len(self._text):
            self.unclosed = self.unclosed or quote
        self._skip(len(inside) + 1)
        return inside

    def _expanded(self, text: str) -> tuple[str, bool]:
        """Return double-quoted text with its variables; what stays unknown keeps its spelling."""
        plain = re.sub(r"\\\n", "", text)
        filled = self._filled(plain)
        filled = re.sub(r"\\([\"\\`])", r"\1", filled)
        return filled.replace("\\$", "$"), not re.search(r"(?<!\\)[$`]", self._filled(plain))

    def _substitution(self) -> tuple[str, bool]:
        match = PARAMETER.match(self._text, self._at)
        if match:
            self._skip(len(match[0]))
            value = self._value(match)
            return (match[0], False) if value is None else (value, True)
        begin = self._at
        if self._text[begin] == "`":
            self._skip(1)
            self._skip(len(self._until("`")) + 1)
        elif self._text[begin + 1 : begin + 2] in ("(", "{"):
            self._skip(self._length_of_brackets(begin + 1) + 1)
        else:
            self._skip(1)
        return self._text[begin : self._at], False

    def _length_of_brackets(self, begin: int) -> int:
        depth = 0
        for offset in range(begin, min(len(self._text), begin + 10_000)):
            depth += (self._text[offset] in "({") - (self._text[offset] in ")}")
            if depth == 0:
                return offset + 1 - begin
        return min(len(self._text), begin + 10_000) - begin
