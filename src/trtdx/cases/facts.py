"""What a report and its texts are about, and the terms by which the store finds it again."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from trtdx.cases.deployment_words import compute_capability, named_gpus, named_models, stated_release
from trtdx.cases.fingerprints import MAX_LINES, error_fingerprints, last_words, line_fingerprint, stack_frames
from trtdx.cases.nouns import CaseFacts
from trtdx.diagnose.similar_rules import stemmed_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trtdx.model import Report

WINDOW = 256 << 10  # of a long text its beginning, where the set-up stands, and its end, where it failed
MAX_TEXTS = 16
MAX_EVIDENCE = 12
MAX_WORDS = 400
ABBREVIATED = " ... "


def facts_from_report(report: Report | None, texts: Iterable[str]) -> CaseFacts:
    """Return what a case is about, from its report and the texts it was made of."""
    windows = [_window(text) for text, _ in zip(texts, range(MAX_TEXTS), strict=False)]
    lines = [line for window in windows for line in window.splitlines()]
    evidence = list(_evidence_lines(report)) if report else []
    whole = "\n".join([*windows, *evidence])
    quoted = [line for line in evidence if ABBREVIATED not in line]  # where it is cut depends on how long paths are
    errors = dict.fromkeys([*filter(None, map(line_fingerprint, quoted)), *error_fingerprints(lines)])
    return CaseFacts(
        codes=tuple(dict.fromkeys(finding.code for finding in report.findings)) if report else (),
        release=_release(report) or stated_release(whole),
        gpus=named_gpus(whole),
        models=named_models(whole),
        errors=tuple(errors)[:MAX_LINES] or tuple(last_words(lines)),
        frames=tuple(stack_frames(lines)),
    )


def _window(text: str) -> str:
    return text if len(text) <= 2 * WINDOW else text[:WINDOW] + "\n" + text[-WINDOW:]


def _evidence_lines(report: Report) -> Iterator[str]:
    """Yield the lines that findings rest on, the cause's first."""
    lines = [evidence.text for finding in report.findings for evidence in finding.evidence]
    yield from (line.splitlines()[0] for line in lines[:MAX_EVIDENCE] if line.strip())


def _release(report: Report | None) -> str:
    release = report.summary.release if report else None
    return release.first if release and release.is_stated else ""


# The kinds of terms. What a problem is, and where it happens, are weighed apart.
PROBLEM_KINDS = ("error", "frame", "stack")
PLACE_KINDS = ("release", "minor", "gpu", "sm", "model", "family")


def term_texts(facts: CaseFacts) -> dict[str, Sequence[str]]:
    """Return the terms of a case by kind."""
    texts: dict[str, Sequence[str]] = {
        "code": facts.codes,
        "error": facts.errors,
        "frame": facts.frames,
        "stack": ["|".join(facts.frames[:3])] if len(facts.frames) > 1 else (),
        "release": [facts.release] if facts.release else (),
        "minor": [".".join(facts.release.split(".")[:2])] if facts.release else (),
        "gpu": facts.gpus,
        "sm": sorted({str(sm) for gpu in facts.gpus if (sm := compute_capability(gpu))}),
        "model": facts.models[:-1],
        "family": facts.models[-1:],
    }
    return {kind: words for kind, words in texts.items() if words}


def term_number(kind: str, text: str) -> int:
    """Return the number under which the store indexes a term."""
    return number_from_text(f"{kind}:{text}")


def number_from_text(text: str) -> int:
    """Return a number that fits a column of any database and is the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def group_number(facts: CaseFacts) -> int:
    """Return a number that re-occurrences of one problem share, wherever they happen."""
    lead = facts.codes[0] if facts.codes else ""
    first = facts.errors[0] if facts.errors else "|".join(facts.frames[:3])
    return number_from_text(f"{lead}\n{first}")


def search_words(*texts: str) -> list[str]:
    """Return the words of texts as full-text search knows them, each once."""
    return list(dict.fromkeys(word for text in texts for word in stemmed_words(text)))[:MAX_WORDS]
