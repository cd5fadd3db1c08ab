"""No secret of a generated corpus leaves, in any of the ways it can stand in text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.secrets import bare_secrets, forms_of_bare, forms_of_named, named_secrets
from trtdx.redact import redact_secrets
from trtdx.redact.entropy import looks_random

ROOT = Path(__file__).parent.parent.parent
SEEDS = range(12)


def leaks_of_bare(seed):
    for name, secret in bare_secrets(seed):
        for form, (text, hidden) in forms_of_bare(secret).items():
            if hidden in redact_secrets(text):
                yield f"{name} as {form}: {text}"


def leaks_of_named(seed):
    for name, secret in named_secrets(seed):
        for form, text in forms_of_named(name, secret).items():
            clean = redact_secrets(text)
            if secret in clean or secret[5:] in clean:
                yield f"{name} as {form}: {text}"


@pytest.mark.parametrize("seed", SEEDS)
def test_no_token_leaves_in_any_form(seed):
    assert list(leaks_of_bare(seed)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_leaves_that_stands_under_a_secrets_name(seed):
    assert list(leaks_of_named(seed)) == []


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [100, 101])
def test_a_second_detector_finds_nothing_that_is_left(seed, tmp_path):
    scan = pytest.importorskip("detect_secrets.core.scan")
    settings = pytest.importorskip("detect_secrets.settings")
    texts = [text for _, secret in bare_secrets(seed) for text, _ in forms_of_bare(secret).values()]
    texts += [text for name, secret in named_secrets(seed) for text in forms_of_named(name, secret).values()]
    files = {"before": tmp_path / "before.txt", "after": tmp_path / "after.txt"}
    files["before"].write_text("\n".join(texts))
    files["after"].write_text("\n".join(map(redact_secrets, texts)))
    with settings.default_settings():
        suspects = {name: {secret.secret_value for secret in scan.scan_file(str(path))} for name, path in files.items()}
    assert len(suspects["before"]) > 100
    assert {value for value in suspects["after"] if value and "redacted" not in value} == set()


def healthy_lines():
    for path in [*(ROOT / "tests/diagnose/healthy").iterdir(), ROOT / "src/trtdx/data/healthy.txt"]:
        yield from path.read_text("utf-8", "replace").splitlines()


def test_healthy_logs_stay_as_they_are():
    changed = [line for line in healthy_lines() if redact_secrets(line) != line]
    assert changed == []


def test_words_of_the_house_do_not_look_drawn_by_chance():
    """The last net's false alarms, measured on the names in rule pages: at most one word in five thousand."""
    words = re.findall(
        r"[A-Za-z0-9+/_-]{20,128}", "\n".join(path.read_text() for path in ROOT.glob("src/trtdx/rules/*/*.md"))
    )
    assert len(words) > 5000
    assert sum(map(looks_random, words)) <= len(words) / 5000
