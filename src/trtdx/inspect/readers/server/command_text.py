"""One command as words that flags can be put into and taken out of; what the user wrote besides stays as it is."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

from trtdx.inspect.readers.server.commands import flag_groups, quoted_word

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.inspect.readers.server.commands import CommandLine

COMMAND_WIDTH = 92


class _CommandPart(NamedTuple):
    name: str  # of a flag; "" is an argument
    text: str  # as the shell takes it


class CommandEditor:
    """A command that is being written."""

    def __init__(self, program: str, *arguments: str) -> None:
        self.program = program
        self._head = [program]
        self._parts = [_CommandPart("", shlex.quote(argument)) for argument in arguments]

    @classmethod
    def from_line(cls, line: CommandLine) -> CommandEditor:
        """Return a command as it was written; a word that only the shell knows keeps its spelling."""
        editor = cls(line.program)
        shells = [at for at, word in enumerate(line.before) if re.fullmatch(r"-\w*c", word.text)]
        before = line.before[shells[-1] + 1 :] if shells else line.before  # what is inside of bash -c "..."
        started = [*map(quoted_word, before), line.program]
        editor._head = started
        editor._parts = [
            _CommandPart(name, " ".join(map(quoted_word, words)))
            for name, words in flag_groups(line.program, line.after)
        ]
        return editor

    def flag_value(self, *names: str) -> str:
        """Return the value of the first of these flags."""
        text = next((part.text for part in self._parts if part.name in names), None)
        if text is None:
            return ""
        words = shlex.split(text.replace("=", " ", 1) if "=" in text.split()[0] else text)
        return words[1] if len(words) > 1 else ""

    def set_flag(
        self, name: str, value: object = None, is_same_flag: Callable[[str], bool] = lambda name: False
    ) -> None:
        """Set a flag, where it or another flag that means the same stands, or at the end."""
        text = name if value is None else f"{name} {shlex.quote(str(value))}"
        meant = [
            at for at, part in enumerate(self._parts) if part.name == name or (part.name and is_same_flag(part.name))
        ]
        at = meant[0] if meant else len(self._parts)
        self._parts = [part for index, part in enumerate(self._parts) if index not in meant]
        self._parts.insert(at, _CommandPart(name, text))

    def drop_flags(self, is_dropped: Callable[[str], bool]) -> None:
        self._parts = [part for part in self._parts if not (part.name and is_dropped(part.name))]

    def adopt_flags(self, other: CommandEditor, is_adopted: Callable[[str], bool]) -> None:
        """Add the flags of another command that this one does not have."""
        own_names = {part.name for part in self._parts}
        self._parts += [
            part for part in other._parts if part.name and part.name not in own_names and is_adopted(part.name)
        ]

    def set_argument(self, text: str, argument_index: int = 0) -> None:
        """Put another word in place of an argument, or add it."""
        places = [index for index, part in enumerate(self._parts) if not part.name]
        part = _CommandPart("", shlex.quote(text))
        if argument_index < len(places):
            self._parts[places[argument_index]] = part
        else:
            self._parts.insert(places[-1] + 1 if places else 0, part)

    def __str__(self) -> str:
        return " ".join([*self._head, *(part.text for part in self._parts)])


def fold_command(text: str, width: int = COMMAND_WIDTH) -> list[str]:
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
