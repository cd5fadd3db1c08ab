"""One command as words that flags can be put into and taken out of; what the user wrote besides stays as it is."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

from trtdx.inspect.readers.server.commands import flag_groups, quoted_word

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.inspect.readers.server.commands import CommandLine

WIDTH = 92


class _Part(NamedTuple):
    name: str  # of a flag; "" is an argument
    text: str  # as the shell takes it


class CommandText:
    """A command that is being written."""

    def __init__(self, program: str, *arguments: str) -> None:
        self.program = program
        self._head = [program]
        self._parts = [_Part("", shlex.quote(argument)) for argument in arguments]

    @classmethod
    def of(cls, line: CommandLine) -> CommandText:
        """Return a command as it was written; a word that only the shell knows keeps its spelling."""
        editor = cls(line.program)
        shells = [at for at, word in enumerate(line.before) if re.fullmatch(r"-\w*c", word.text)]
        before = line.before[shells[-1] + 1 :] if shells else line.before  # what is inside of bash -c "..."
        started = [*map(quoted_word, before), line.program]
        editor._head = started
        editor._parts = [
            _Part(name, " ".join(map(quoted_word, words)))
            for name, words in flag_groups(line.program, line.after)
        ]
        return editor

    def value(self, *names: str) -> str:
        """Return the value of the first of these flags."""
        text = next((part.text for part in self._parts if part.name in names), None)
        if text is None:
            return ""
        words = shlex.split(text.replace("=", " ", 1) if "=" in text.split()[0] else text)
        return words[1] if len(words) > 1 else ""

    def put(
        self, name: str, value: object = None, is_meant: Callable[[str], bool] = lambda name: False
    ) -> None:
        """Set a flag, where it or another flag that means the same stands, or at the end."""
        text = name if value is None else f"{name} {shlex.quote(str(value))}"
        meant = [
            at
            for at, part in enumerate(self._parts)
            if part.name == name or (part.name and is_meant(part.name))
        ]
        at = meant[0] if meant else len(self._parts)
        self._parts = [part for index, part in enumerate(self._parts) if index not in meant]
        self._parts.insert(at, _Part(name, text))

    def drop(self, is_meant: Callable[[str], bool]) -> None:
        self._parts = [part for part in self._parts if not (part.name and is_meant(part.name))]

    def adopt(self, other: CommandText, is_wanted: Callable[[str], bool]) -> None:
        """Add the flags of another command that this one does not have."""
        own_names = {part.name for part in self._parts}
        self._parts += [
            part for part in other._parts if part.name and part.name not in own_names and is_wanted(part.name)
        ]

    def argument(self, text: str, at: int = 0) -> None:
        """Put another word in place of an argument, or add it."""
        places = [index for index, part in enumerate(self._parts) if not part.name]
        part = _Part("", shlex.quote(text))
        if at < len(places):
            self._parts[places[at]] = part
        else:
            self._parts.insert(places[-1] + 1 if places else 0, part)

    def __str__(self) -> str:
        return " ".join([*self._head, *(part.text for part in self._parts)])


def folded(text: str, width: int = WIDTH) -> list[str]:
    """Return a command on lines that a shell takes for one, broken before flags and operators, none longer than need be."""
    lines: list[str] = []
    for part in re.split(r" (?=-|&&|> )", text):
        is_open = bool(lines) and (
            lines[-1].count("'") % 2 or lines[-1].count('"') % 2
        )  # inside of quotes nothing is broken
        if lines and (is_open or len(lines[-1]) + len(part) + 3 <= width):
            lines[-1] += f" {part}"
        else:
            lines.append(f"  {part}" if lines else part)
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]
