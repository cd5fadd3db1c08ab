"""Commands in shell text: words, line numbers, variables that are set in the text, and files it writes.

Not a shell: nothing is run and no control flow is followed. A word whose value cannot be known from the text
alone (an unset variable, `$(...)`) keeps its spelling and says so.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_TEXT = 1 << 20
MAX_WORDS = 50_000
MAX_VALUE_LENGTH = 4096


class ShellWord(NamedTuple):
    """One word, its value as far as the text tells, and the line it begins on."""

    text: str
    line: int
    is_known: bool = True  # no part of it depends on something outside the text


class ShellCommand(NamedTuple):
    """One simple command: what stands between `;`, `&&`, `|` or line ends."""

    words: tuple[ShellWord, ...]
    line: int


class ShellScript(NamedTuple):
    """All commands of a text, and the files its here-documents write."""

    commands: tuple[ShellCommand, ...]
    files: dict[str, tuple[str, int]]  # path: content and the line it begins on
    is_complete: bool = True  # False: the text was longer than is looked at
    unclosed_quote: str = ""  # the quote that is opened and never closed


OPERATORS = re.compile(r";;|&&|\|\||[;|&()\n]")
REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|&>>?|>>|>&|<&|>\||>|<)")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
PARAMETER = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^{}$]*))?\})")
ARRAY = re.compile(r'(")?\$\{(\w+)\[[@*]\]\}(?(1)")')
DECLARATIONS = ("export", "local", "declare", "readonly", "typeset")
KEYWORDS = ("if", "then", "elif", "else", "while", "until", "do", "{", "!")  # a command may follow these


def parse_shell(text: str) -> ShellScript:
    """Return the commands of a shell text; text that is no shell gives odd commands, never an error."""
    lexer = _ShellLexer(text[:MAX_TEXT])
    lexer.read_all()
    return ShellScript(
        tuple(lexer.commands), lexer.files, len(text) <= MAX_TEXT and not lexer.is_full, lexer.unclosed_quote
    )


class _HereDocument(NamedTuple):
    """A here-document: the line that ends it, and what is done to its text."""

    delimiter: str
    strips_tabs: bool
    is_literal: bool


class _ShellLexer:
    """Reads shell text once from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self.commands: list[ShellCommand] = []
        self.files: dict[str, tuple[str, int]] = {}
        self.is_full = False
        self.unclosed_quote = ""
        self._text = text
        self._offset = 0
        self._line = 1
        self._words: list[ShellWord] = []
        self._count = 0
        self._variables: dict[str, str] = {}
        self._arrays: dict[str, list[ShellWord]] = {}
        self._open_array = ""  # the one whose brackets are open
        self._words_before_array: list[ShellWord] = []  # what stands before it on the line
        self._pending_heredocs: list[_HereDocument] = []  # that begin after this line
        self._expanded_length = 0
        self._output_file = ""  # the file that this command's output goes to
        self._is_appended = False

    def read_all(self) -> None:
        while self._offset < len(self._text) and not self.is_full:
            self._read_token()
        self._end_command()

    def _read_token(self) -> None:
        rest = self._text[self._offset : self._offset + 3]
        if rest.startswith("\\\n") or rest.startswith("\\\r\n"):
            self._advance(rest.index("\n") + 1)
        elif rest[0] in " \t\r":
            self._advance(1)
        elif rest[0] == "#":
            self._advance(len(self._text_until("\n")))
        elif REDIRECTION.match(self._text, self._offset) and not self._at_process_substitution():
            self._read_redirection()
        elif OPERATORS.match(self._text, self._offset):
            self._read_operator()
        elif (array := ARRAY.match(self._text, self._offset)) and array[2] in self._arrays:
            self._advance(len(array[0]))
            for word in self._arrays[array[2]]:
                self._add_word(word._replace(line=self._line))
        else:
            for word in self._read_words():
                self._add_word(word)

    def _advance(self, length: int) -> None:
        self._line += self._text.count("\n", self._offset, self._offset + length)
        self._offset += length

    def _text_until(self, end: str) -> str:
        end_offset = self._text.find(end, self._offset)
        return self._text[self._offset : end_offset if end_offset >= 0 else len(self._text)]

    def _add_word(self, word: ShellWord) -> None:
        self._count += 1
        self.is_full = self._count >= MAX_WORDS
        self._words.append(word)

    def _read_operator(self) -> None:
        match = OPERATORS.match(self._text, self._offset)
        operator = match[0] if match else "\n"
        if self._open_array or (operator == "(" and self._try_open_array()):
            self._read_in_array(operator)
            return
        self._end_command(is_piped=operator == "|")
        self._advance(len(operator))
        if operator == "\n":
            self._read_heredocs()

    def _try_open_array(self) -> bool:
        """Return whether `NAME=` stands right before the bracket."""
        is_joined = self._offset > 0 and self._text[self._offset - 1] == "="
        assignment = ASSIGNMENT.fullmatch(self._words[-1].text) if self._words and is_joined else None
        if assignment is None:
            return False
        self._words.pop()
        self._open_array = assignment[1]
        self._words_before_array = self._words
        self._words = list(self._arrays.get(assignment[1], ())) if assignment[2] else []
        return True

    def _read_in_array(self, operator: str) -> None:
        """Take a bracket or a line break of `NAME=(...)`; what stands between are its words."""
        self._advance(len(operator))
        if operator == ")":
            self._arrays[self._open_array] = self._words
            self._words, self._open_array = self._words_before_array, ""

    def _end_command(self, *, is_piped: bool = False) -> None:
        words = self._words
        self._words = []
        while words and words[0].text in KEYWORDS:
            words = words[1:]
        if self._output_file and len(words) > 1 and words[0].text == "echo":
            self._write_echo(words)
        if not is_piped and not self._pending_heredocs:
            self._output_file = ""
        if not words:
            return
        if words[0].text == "tee":
            self._output_file = self._output_file or next((w.text for w in words[1:] if not w.text.startswith("-")), "")
        assignments = [ASSIGNMENT.fullmatch(word.text) for word in words if word.text not in DECLARATIONS]
        if all(assignments):
            self._assign_variables(assignments, words)
        elif words[0].text in ("for", "read") and len(words) > 1:
            self._variables.pop(words[1].text, None)
        else:
            self.commands.append(ShellCommand(tuple(words), words[0].line))

    def _write_echo(self, words: list[ShellWord]) -> None:
        text = " ".join(word.text for word in words[1:] if word.text != "-e")
        before, line = (
            self.files.get(self._output_file, ("", words[0].line)) if self._is_appended else ("", words[0].line)
        )
        self.files[self._output_file] = (f"{before}{text}\n", line)

    def _assign_variables(self, assignments: list[re.Match[str] | None], words: list[ShellWord]) -> None:
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
            if value is not None and len(value) <= MAX_VALUE_LENGTH:
                self._variables[assignment[1]] = value

    def _read_redirection(self) -> None:
        match = REDIRECTION.match(self._text, self._offset)
        operator = match[0].lstrip("0123456789") if match else ""
        self._advance(len(match[0]) if match else 1)
        while self._text[self._offset : self._offset + 1] in (" ", "\t"):
            self._advance(1)
        if self._text[self._offset : self._offset + 1] in ("", "\r", *"\n;|&()<>"):
            return
        is_literal = self._text[self._offset] in "'\"\\"
        word = self._read_unsplit_word()
        if operator in ("<<", "<<-"):
            self._pending_heredocs.append(_HereDocument(word.text, operator == "<<-", is_literal))
        elif operator in (">", ">>", ">|"):
            self._output_file, self._is_appended = word.text, operator == ">>"

    def _read_heredocs(self) -> None:
        """Pass over the texts that begin after this line, and keep what goes into a file."""
        for here in self._pending_heredocs:
            begin, lines = self._line, []
            while self._offset < len(self._text):
                line = self._text_until("\n")
                self._advance(len(line) + 1)
                line = line.rstrip("\r").lstrip("\t" if here.strips_tabs else "")
                if line == here.delimiter:
                    break
                lines.append(line if here.is_literal else self._expand_parameters(line))
            if self._output_file:
                self.files[self._output_file] = ("\n".join(lines) + "\n", begin)
        self._pending_heredocs, self._output_file = [], ""

    def _expand_parameters(self, text: str) -> str:
        return PARAMETER.sub(lambda match: match[0] if (value := self._parameter_value(match)) is None else value, text)

    def _parameter_value(self, match: re.Match[str]) -> str | None:
        """Return what a `$NAME` or `${NAME:-default}` stands for, where the text tells."""
        value = self._variables.get(match[1] or match[2], match[3])
        self._expanded_length += len(value or "")
        return value if self._expanded_length <= MAX_TEXT else None

    def _at_process_substitution(self) -> bool:
        return self._text.startswith(("<(", ">("), self._offset)

    def _read_unsplit_word(self) -> ShellWord:
        """Return the next word, whole whatever its variables hold: the target of a redirection."""
        fields = self._read_words()
        return ShellWord(" ".join(word.text for word in fields), self._line, all(word.is_known for word in fields))

    def _read_words(self) -> list[ShellWord]:
        """Return the words that the next one becomes: the value of a variable outside of quotes is split."""
        line, texts, is_known, is_gone = self._line, [""], True, True
        while self._offset < len(self._text):
            char = self._text[self._offset]
            if char in " \t\r\n;|&()<>" and not self._at_process_substitution():
                break
            part, part_known = self._read_word_part(char)
            is_known = is_known and part_known
            if char != "$" or not part_known or ASSIGNMENT.fullmatch(texts[0]):
                texts[-1] += part
                is_gone = False
                continue
            first, *more = re.split(r"\s+", part)
            texts[-1] += first
            texts += more
        nonempty = [text for text in texts if text] if len(texts) > 1 or is_gone else texts
        return [ShellWord(text, line, is_known) for text in nonempty]

    def _read_word_part(self, char: str) -> tuple[str, bool]:
        """Return the next piece of a word without its quotes, and whether its value is known."""
        if char == "'":
            return self._read_quoted("'"), True
        if char == '"':
            return self._expand_quoted(self._read_quoted('"'))
        if char == "\\":
            self._advance(1)
            taken_text = self._text[self._offset : self._offset + 1]
            self._advance(len(taken_text))
            return ("" if taken_text == "\n" else taken_text), True
        if char in "$`" or self._at_process_substitution():
            return self._read_substitution()
        plain = re.compile(r"[^\s;|&()<>'\"\\$`]+").match(self._text, self._offset)
        taken_text = plain[0] if plain else char
        self._advance(len(taken_text))
        return taken_text, True

    def _read_quoted(self, quote: str) -> str:
        """Return what stands between quotes; a quote that is never closed reaches to the end."""
        self._advance(1)
        pattern = r"[^']*" if quote == "'" else r'(?:[^"\\]|\\.)*'
        match = re.compile(pattern, re.DOTALL).match(self._text, self._offset)
        inside = match[0] if match else ""
        if self._offset + len(inside) >= len(self._text):
            self.unclosed_quote = self.unclosed_quote or quote
        self._advance(len(inside) + 1)
        return inside

    def _expand_quoted(self, text: str) -> tuple[str, bool]:
        """Return double-quoted text with its variables; what stays unknown keeps its spelling."""
        plain = re.sub(r"\\\n", "", text)
        filled = self._expand_parameters(plain)
        filled = re.sub(r"\\([\"\\`])", r"\1", filled)
        return filled.replace("\\$", "$"), not re.search(r"(?<!\\)[$`]", self._expand_parameters(plain))

    def _read_substitution(self) -> tuple[str, bool]:
        match = PARAMETER.match(self._text, self._offset)
        if match:
            self._advance(len(match[0]))
            value = self._parameter_value(match)
            return (match[0], False) if value is None else (value, True)
        begin = self._offset
        if self._text[begin] == "`":
            self._advance(1)
            self._advance(len(self._text_until("`")) + 1)
        elif self._text[begin + 1 : begin + 2] in ("(", "{"):
            self._advance(self._bracket_length(begin + 1) + 1)
        else:
            self._advance(1)
        return self._text[begin : self._offset], False

    def _bracket_length(self, begin: int) -> int:
        depth = 0
        for offset in range(begin, min(len(self._text), begin + 10_000)):
            depth += (self._text[offset] in "({") - (self._text[offset] in ")}")
            if depth == 0:
                return offset + 1 - begin
        return min(len(self._text), begin + 10_000) - begin
