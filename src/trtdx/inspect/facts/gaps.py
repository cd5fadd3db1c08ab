"""Why a check had nothing to say: a side nobody gave, a pairing nobody states, a fact that could not be read.

A check that finds nothing has judged only if it had what it compares. What it lacked is noted here while it runs.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from trtdx.words import join_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_noted_gaps: ContextVar[dict[str, None] | None] = ContextVar("noted", default=None)

# What an artifact of each kind states when all of it could be read.
ESSENTIAL_FACTS = {
    "hf": ("vocab_size", "hidden_size", "num_layers", "num_heads", "dtype"),
    "checkpoint": ("vocab_size", "hidden_size", "num_layers", "num_heads", "dtype"),
    "engine": ("vocab_size", "num_layers", "num_heads", "dtype", "max_batch_size"),
    "tokenizer": ("tokenizer.size",),
}
FLAG_BY_FACT = {"gpu.sm": "--gpu", "gpu.runtime": "--runtime", "gpu.count": "--gpus"}
SERVER_KINDS = ("llm-args", "command", "triton")
MODEL_PAIR = ("2:hf|checkpoint|engine",)  # two of these, to be compared with each other
# What a deployment may do without: a check of it is about nothing there.
OPTIONAL_KINDS = {"lora", "onnx", "profiles", "build-log", "triton"}
# One of each row that has a kind among a check's sides must be at hand.
ROLE_KINDS = (
    ("hf", "checkpoint", "engine", "plan", "tokenizer"),
    SERVER_KINDS,
    ("onnx",),
    ("profiles", "build-log"),
    ("lora",),
    ("machine",),
    ("request",),
)
KIND_WORDS = {
    "hf": "a Hugging Face model",
    "checkpoint": "a checkpoint",
    "engine": "an engine",
    "plan": "a plan",
    "tokenizer": "a tokenizer",
    "onnx": "an ONNX model",
    "profiles": "optimization profiles",
    "build-log": "a verbose build log",
    "lora": "a LoRA adapter",
    "triton": "a Triton repository",
    "machine": "--gpu or --runtime",
    "request": "--request",
}


@contextmanager
def collect_gaps() -> Iterator[dict[str, None]]:
    """Give what the checks lack that run meanwhile."""
    reasons: dict[str, None] = {}
    token = _noted_gaps.set(reasons)
    try:
        yield reasons
    finally:
        _noted_gaps.reset(token)


def note_gap(reason: str) -> None:
    """Note why something could not be judged."""
    reasons = _noted_gaps.get()
    if reasons is not None:
        reasons[reason] = None


def note_absent_fact(kind: str, path: str, name: str, meaning: str) -> None:
    """Note a fact that a check asked for and that such an artifact states when all of it could be read."""
    if _noted_gaps.get() is None:
        return
    if name in ESSENTIAL_FACTS.get(kind, ()):
        note_gap(f"{path} does not state {meaning} ({name})")
    elif kind == "machine" and name in FLAG_BY_FACT:
        note_gap(f"{FLAG_BY_FACT[name]} is not given")


def missing_side(sides: Iterable[str], needs: Iterable[str], at_hand: set[str]) -> str | None:
    """Return in words which side of a check is not at hand; "" where all are, None where it is about nothing here."""
    side_kinds = set(sides)
    groups = [need.rpartition(":")[2].split("|") for need in needs] or [
        [kind for kind in role if kind in side_kinds] for role in ROLE_KINDS
    ]
    least = [int(need.partition(":")[0]) if ":" in need else 1 for need in needs] or [1] * len(groups)
    for group, count in zip(groups, least, strict=True):
        if group and len(at_hand & set(group)) < count:
            lacked = [kind for kind in group if kind not in at_hand]
            return None if _is_optional_here(lacked, at_hand) else _kinds_in_words(lacked)
    return ""


def _is_optional_here(kinds: list[str], at_hand: set[str]) -> bool:
    """Return whether a deployment does without these: it has no adapter, or no engine because a model is served."""
    by_pytorch = {"hf", "command"} <= at_hand or {"hf", "llm-args"} <= at_hand
    built_kinds = at_hand & {"checkpoint", "engine", "plan"}
    optional = OPTIONAL_KINDS | ({"tokenizer"} if "hf" in at_hand else set())  # a model has its own
    return optional.issuperset(kinds) or (
        by_pytorch and not built_kinds and {"checkpoint", "engine", "plan"}.issuperset(kinds)
    )


def _kinds_in_words(kinds: list[str]) -> str:
    words = [KIND_WORDS[kind] for kind in kinds if kind in KIND_WORDS and not (kind == "triton" and len(kinds) > 1)]
    words += ["a server's command or options"] if {"llm-args", "command"} & set(kinds) else []
    return join_words(words, conjunction="or")
