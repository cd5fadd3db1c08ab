"""A flood of errors costs about what a clean log costs, and hides nothing."""

from __future__ import annotations

import pytest

from trtdx.diagnose.matcher import Matcher
from trtdx.diagnose.run import report_from_facts, source_from_text
from trtdx.redact import redact_secrets
from trtdx.render import render_text

OOM = "RuntimeError: CUDA out of memory. Tried to allocate "
FLOODS = {
    "one error with other numbers": lambda n: f"[TRT-LLM] [E] {OOM}{1000 + n}.00 MiB\n",
    "one error with other words": lambda n: f"{OOM}{word(n)} MiB\n",
    "two errors in turn": lambda n: f"{OOM}{word(n)}\n" if n % 2 else f"Failed to deserialize cuda engine {word(n)}\n",
    "errors no rule knows": lambda n: f"[TensorRT-LLM][ERROR] {word(n)} went astray\n",
    "tracebacks": lambda n: f"Traceback (most recent call last):\n  f{word(n)}()\nRuntimeError: {word(n)}\n",
    "an error in one enormous line": lambda n: OOM,
    "a prefix in one enormous line": lambda n: "[TensorRT-LLM][ERROR] ",
    "a progress bar that draws over itself": lambda n: f"Failed to deserialize cuda engine {word(n)}\r",
    "errors with secrets": lambda n: f"{OOM}token={word(n)} https://u:{word(n)}@h.com password='{word(n)}'\n",
}


def word(number):
    return "".join(chr(ord("a") + int(digit)) for digit in str(1_000_000 + number))


def flood(name, megabytes):
    parts, size = [], 0
    while size < megabytes << 20:
        parts.append(FLOODS[name](len(parts)))
        size += len(parts[-1])
    return "".join(parts)


def read(book, text, sources=1):
    """Return what the text told, and how much of it was looked at closely."""
    looked = 0

    def redact(line):
        nonlocal looked
        looked += len(line)
        return redact_secrets(line)

    source = source_from_text(text)
    return Matcher(book, redact, sources=sources).collect_facts(source.name, source.blocks()), looked


@pytest.mark.heavy
@pytest.mark.parametrize("name", FLOODS)
def test_only_a_bounded_part_of_a_flood_is_looked_at_closely(book, name):
    small, large = read(book, flood(name, 2))[1], read(book, flood(name, 6))[1]
    assert large < 2 << 20
    assert large < small + (300 << 10)


@pytest.mark.heavy
def test_very_many_logs_share_what_a_few_would_cost(book):
    water = flood("one error with other words", 1)
    facts, looked = read(book, water, sources=256)
    assert looked < read(book, water)[1] / 4
    assert "DX340" in {match.rule.code for match in facts.matches}


@pytest.mark.heavy
@pytest.mark.parametrize("name", FLOODS)
@pytest.mark.parametrize("place", [0.5, 1.0])
def test_another_error_in_or_after_a_flood_is_found(book, name, place):
    water = flood(name, 3)
    cut = water.rfind("\n", 0, int(len(water) * place)) + 1 or int(len(water) * place)
    other = "\n[TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (2 != 4)\n"
    facts, _ = read(book, water[:cut] + other + water[cut:])
    assert "DX400" not in {match.rule.code for match in read(book, water)[0].matches}
    assert [match.event.text for match in facts.matches if "mpiSize" in match.event.text]


def test_counts_are_true_or_say_at_least(book):
    harmless = next(
        rule
        for rule in book
        if rule.kind.value == "harmless" and rule.fires_on and len(rule.fires_on[0].splitlines()) == 1
    )
    line = harmless.fires_on[0] + "\n"
    for lines in (7, 5000):
        facts, _ = read(book, line * lines)
        told = next(each for each in report_from_facts([facts], book).summary.harmless if each.code == harmless.code)
        assert told.count == lines if not told.at_least else told.count <= lines
        assert told.at_least or lines == 7
    assert "at least" in render_text(report_from_facts([facts], book))
