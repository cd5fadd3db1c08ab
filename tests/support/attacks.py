"""Attacks that a test runs a few of and `scripts/attack` runs by the hour; each yields what it broke, in words."""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import shlex
import shutil
import time
import traceback
from pathlib import Path

from click.exceptions import ClickException

from support.hostile_lines import hostile_lines
from support.mutations import mutate_file, mutate_folder
from support.readable_artifacts import COMMANDS, make_artifacts
from support.secrets import bare_secrets, forms_of_bare, forms_of_named, named_secrets
from trtdx.cli.main import app
from trtdx.diagnose.run import diagnose_sources, source_from_text
from trtdx.errors import TrtdxError
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book
from trtdx.redact import redact_report, redact_secrets
from trtdx.render import render_json, render_text

MOST_SECONDS = 20.0  # of processor time for one command
MOST_BYTES = 300 << 20  # that one command may take beyond what the process had taken before


def attack_artifacts(folder: Path, seed: int, rounds: int):
    """Mutate artifacts of every kind and have every command read them; yield what breaks."""
    rng = random.Random(seed)
    pristine = folder / "pristine"
    pristine.mkdir(parents=True, exist_ok=True)
    make_artifacts(pristine)
    for number in range(rounds):
        name, work = rng.choice(sorted(COMMANDS)), folder / f"round{number}"
        mutated = copy_mutated(pristine, work, name, rng)
        problems = [
            problem for words in COMMANDS[name] if (problem := problem_of_command(words.replace("{}", name), work))
        ]
        if not problems:
            shutil.rmtree(work)
        yield from (f"seed {seed} round {number}: {name} with {mutated}: {problem}" for problem in problems)


def copy_mutated(pristine: Path, work: Path, name: str, rng: random.Random) -> str:
    """Put an artifact with something wrong in it into a folder of its own; return what was changed."""
    work.mkdir()
    shutil.copy(pristine / "server.log", work)
    if (pristine / name).is_dir():
        shutil.copytree(pristine / name, work / name)
        return mutate_folder(work / name, rng)
    shutil.copy(pristine / name, work)
    mutate_file(work / name, rng)
    return name


def problem_of_command(words: str, folder: Path) -> str:
    """Return what a command line broke on, or took too long or too much memory for; run in this process."""
    os.environ["TRTDX_STORE"] = str(folder / "store.sqlite")
    begin, before, home = time.thread_time(), resident_peak(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            app(shlex.split(words), prog_name="trtdx", standalone_mode=False)
        problem = ""
    except (TrtdxError, ClickException, SystemExit):
        problem = ""
    except Exception:
        problem = traceback.format_exc().strip()[-1500:]
    finally:
        os.chdir(home)
    if (seconds := time.thread_time() - begin) > MOST_SECONDS:
        problem += f" took {seconds:.1f} s"
    if (grown := resident_peak() - before) > MOST_BYTES:
        problem += f" took {grown >> 20} MiB more"
    return f"{words}: {problem}" if problem else ""


def resident_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def problem_of(ask) -> str:
    """Return what a question broke on; errors for the user, and answers that can be rendered, are none."""
    try:
        report = redact_report(ask())
        render_json(report)
        render_text(report, color=False, details=True, width=None)
    except TrtdxError:
        return ""
    except Exception:
        return traceback.format_exc().strip()[-1500:]
    return ""


def shipped_patterns():
    for rule in load_book(RealHost()):
        for log in rule.front.log:
            yield log.pattern


def attack_patterns(folder: Path, seed: int, rounds: int):
    """Diagnose lines made to be slow; a line that holds the diagnosis up is ended by whoever runs this."""
    rng = random.Random(seed)
    book, patterns = load_book(RealHost()), sorted(set(shipped_patterns()))
    quiet = "[TensorRT-LLM][INFO] step ok\n" * 1500
    for pattern in rng.sample(patterns, min(rounds, len(patterns))):
        lines = list(hostile_lines(pattern, seed, rng.choice([2000, 15_000])))
        for line in rng.sample(lines, min(2, len(lines))):
            text = rng.choice(["", quiet]) + line.replace("\n", " ")
            problem = problem_of(lambda text=text: diagnose_sources([source_from_text(text)], book))
            if problem:
                yield f"seed {seed}: {pattern}: {problem}"


def attack_secrets(folder: Path, seed: int, rounds: int):
    """Redact secrets drawn anew in every form; yield those that are left."""
    for number in range(seed, seed + rounds):
        for name, secret in bare_secrets(number):
            for form, (text, hidden) in forms_of_bare(secret).items():
                if hidden in redact_secrets(text):
                    yield f"seed {number}: {name} as {form}: {text}"
        for name, secret in named_secrets(number):
            for form, text in forms_of_named(name, secret).items():
                clean = redact_secrets(text)
                if secret in clean or secret[5:] in clean:
                    yield f"seed {number}: {name} as {form}: {text}"


ATTACKS = {"artifacts": (attack_artifacts, 25), "patterns": (attack_patterns, 40), "secrets": (attack_secrets, 2)}
