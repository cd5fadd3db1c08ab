"""Attacks that a test runs a few of and `scripts/attack` runs by the hour; each yields what it broke, in words."""

from __future__ import annotations

import random
import shutil
import traceback
from pathlib import Path

from support.hostile_lines import hostile_lines
from support.make_engine import make_engine
from support.make_hf import make_hf_model
from support.make_triton import make_llm_args, make_triton
from support.mutations import mutate_file, mutate_folder
from support.secrets import bare_secrets, forms_of_bare, forms_of_named, named_secrets
from trtdx import api
from trtdx.diagnose.run import diagnose_sources, source_from_text
from trtdx.errors import TrtdxError
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book
from trtdx.redact import redact_report, redact_secrets
from trtdx.render import render_json, render_text

ROOT = Path(__file__).parent.parent.parent
SMALL = {  # files are copied for every round
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
COMMAND = "#!/bin/sh\nexport HF_HOME=/m\nmpirun -n 2 trtllm-serve /m/model --tp_size 2 --max_batch_size 8 --port 8000\n"


def make_seeds(folder: Path) -> None:
    """Write one artifact of each kind that `inspect`, `memory` and `diagnose` read."""
    make_hf_model(folder / "model", shards=1, **SMALL)
    make_engine(folder / "engine", **SMALL)
    make_triton(folder / "triton", str(folder / "engine"), str(folder / "model"))
    make_llm_args(folder / "args.yaml")
    shutil.copy(ROOT / "examples/tiny/rotary-mistake.onnx", folder / "model.onnx")
    (folder / "serve.sh").write_text(COMMAND)
    logs = sorted(path for path in (ROOT / "examples/logs").rglob("*") if path.is_file())
    shutil.copy(logs[0], folder / "server.log")


def attack_artifacts(folder: Path, seed: int, rounds: int):
    """Mutate artifacts and read them; yield every error that is not for the user."""
    rng = random.Random(seed)
    pristine = folder / "pristine"
    pristine.mkdir(parents=True, exist_ok=True)
    make_seeds(pristine)
    names = sorted(path.name for path in pristine.iterdir())
    for number in range(rounds):
        name, work = rng.choice(names), folder / f"round{number}"
        target = work / name
        work.mkdir()
        if (pristine / name).is_dir():
            shutil.copytree(pristine / name, target)
            mutated = mutate_folder(target, rng)
        else:
            shutil.copy(pristine / name, target)
            mutate_file(target, rng)
            mutated = name
        asks = [lambda target=target: api.diagnose(str(target))] if name.endswith(".log") else [
            lambda target=target: api.inspect(str(target), show=["all"]),
            lambda target=target: api.memory(str(target), gpu="H100"),
        ]  # fmt: skip
        problems = [problem for ask in asks if (problem := problem_of(ask))]
        if not problems:
            shutil.rmtree(work)
        yield from (f"seed {seed} round {number}: {name} with {mutated}: {problem}" for problem in problems)


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
