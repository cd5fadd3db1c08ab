"""Run the examples of rules that only a computation finds: commands of trtdx, and Python that makes two models.

    cat > serve.log <<'EOF'                      reference = tiny_decoder("llama")
    [TensorRT-LLM][INFO] ...                     candidate = tiny_decoder("llama")
    EOF                                          candidate.model.layers[1].self_attn.scaling = 1.0
    trtdx memory log serve.log

Commands can only write files into a folder of their own and ask trtdx; what the last one finds counts. Python is
code of whoever wrote the page, so it is run only where the user asks for that. It names the two sides of a comparison
and may name its `tokens` and `new_tokens`, or gives the `codes` of another command itself.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from trtdx.errors import RulePageError, TrtdxError
from trtdx.rule import CODE_EXAMPLES, COMMAND_EXAMPLES, example_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trtdx.rule import PageProblem, Rule

    Ask = Callable[[list[str]], list[str]]

QUESTIONS = ("diagnose", "inspect", "memory", "compare", "trace")
RECORDED = (("check",), ("ranks", "check"), ("ranks", "smoke"))
FILE = re.compile(r"^cat > (?P<path>\S+) <<'EOF'\n(?P<text>.*?)^EOF$\n?", re.DOTALL | re.MULTILINE)
PROMPT = [5, 17, 42, 9, 8, 7, 23, 31, 64, 2, 77, 50, 3, 12]


def broken_computed_examples(rules: Iterable[Rule], ask: Ask, *, run_code: bool = False) -> Iterator[PageProblem]:
    """Run the examples of pages and yield those that do not do what their heading says.

    Args:
        rules: the pages.
        ask: runs a command of trtdx, given its words, and returns the codes of its findings.
        run_code: whether to execute the examples that are Python.
    """
    for rule in rules:
        yield from _broken_examples(rule, COMMAND_EXAMPLES, partial(codes_from_commands, ask=ask))
        if run_code:
            yield from _broken_examples(rule, CODE_EXAMPLES, partial(codes_from_code, ask=ask))


def _broken_examples(rule: Rule, sections: tuple[str, str], run: Callable[[str], list[str]]) -> Iterator[PageProblem]:
    for section in sections:
        for example in rule.examples(section):
            try:
                codes = run(example)
            except Exception as err:  # whatever a page's author got wrong is a problem of that page alone
                reason = err.message if isinstance(err, TrtdxError) else f"{type(err).__name__}: {err}"
                yield example_problem(rule, example, f"cannot be run: {reason}")
                continue
            if section == sections[0] and codes[:1] != [rule.code]:
                gives = ", ".join(codes) or "no finding"
                yield example_problem(rule, example, f"gives {gives}; {rule.code} is to be first")
            if section == sections[1] and rule.code in codes:
                yield example_problem(rule, example, f"gives {rule.code}, which is to stay silent on it")


def codes_from_commands(example: str, ask: Ask) -> list[str]:
    """Return the codes that the last command of an example finds, the first finding first."""
    commands = FILE.sub("", example).replace("\\\n", " ").splitlines()
    words = [shlex.split(command, comments=True) for command in commands if command.strip()]
    if not words or any(not _is_question(command) for command in words):
        raise RulePageError(
            f"an example writes files with cat > NAME <<'EOF' and then asks trtdx {', '.join(QUESTIONS)}, nothing else"
        )
    with _inside_new_folder() as folder:
        for file in FILE.finditer(example):
            _write_file(folder, file["path"], file["text"])
        return [ask(command[1:]) for command in words][-1]


def _is_question(command: list[str]) -> bool:
    """Whether a command asks trtdx something and starts nothing: of jobs and machines it may only judge a record."""
    if len(command) < 2 or command[0] != "trtdx":
        return False
    judges_record = tuple(command[1:-2]) in RECORDED and command[-2] == "--from"
    return command[1] in QUESTIONS or judges_record


def _write_file(folder: Path, name: str, text: str) -> None:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise RulePageError(f"{name} is outside the folder of the example")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def codes_from_code(example: str, ask: Ask) -> list[str]:
    """Return the codes that a piece of Python gives rise to, the first finding first."""
    import trtdx
    from trtdx.testing import tiny_models

    names: dict[str, Any] = {
        "trtdx": trtdx,
        "tiny_decoder": tiny_models.tiny_decoder,
        "replace_attention": tiny_models.replace_attention,
        "run_trtdx": lambda command: ask(shlex.split(command)),
    }
    with _inside_new_folder():
        exec(compile(example, "example", "exec"), names)  # the user asked for it  # noqa: S102
        if "codes" in names:
            return list(names["codes"])
        sides = (names["reference"], names["candidate"])
        fed = {} if all(isinstance(side, dict) for side in sides) else {"tokens": PROMPT}  # arrays are fed nothing
        options = {name: names[name] for name in ("tokens", "new_tokens") if name in names}
        report = trtdx.compare(*sides, **fed | options)
    return [finding.code for finding in report.findings]


@contextmanager
def _inside_new_folder() -> Iterator[Path]:
    """Work in a folder that goes away afterwards, with what an example would calibrate."""
    before = Path.cwd()
    with (
        tempfile.TemporaryDirectory(prefix="trtdx-example-") as folder,
        patch.dict(os.environ, {"XDG_CONFIG_HOME": folder}),
    ):
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)
