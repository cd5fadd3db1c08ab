"""Options and flags that the release that is to read them does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from trtdx.inspect.agreements.agreement import agreement
from trtdx.inspect.agreements.serving import SIDES, release_of, server_words, servers
from trtdx.inspect.facts.options import table
from trtdx.knowledge.versions import parsed
from trtdx.knowledge.violation import Violation
from trtdx.model import Evidence, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

KEY_LISTS = ("runtime.unknown_keys", "runtime.renamed_keys", "runtime.removed_keys")


@agreement("DX246", *SIDES)
def known_options(deployment: Deployment) -> Iterator[Violation]:
    """Options are those the release that reads them has."""
    for server in servers(deployment):
        words = [str(item) for name in KEY_LISTS for item in server.items(name)]
        release = release_of(deployment, server)
        flags = [word for word in words if word.startswith("-")]
        keys = [word for word in words if not word.startswith("-")]
        if keys:
            severity, confidence = _gravity(server, release)
            values = {"consequence": _consequence(release), "why": KEYS_WHY, "command": KEYS_COMMAND}
            yield _unknown(server, keys, release, values)._replace(severity=severity, confidence=confidence)
        if flags:
            severity, confidence = _gravity_of_flags(release, flags)
            program = server.text("runtime.command") or "trtllm-serve"
            values = {"consequence": "the program refuses to start", "why": FLAGS_WHY}
            values["command"] = f"{HELP.get(program, program)} --help"
            yield _unknown(server, flags, release, values)._replace(severity=severity, confidence=confidence)


KEYS_WHY = (
    "The options of LLM(...) and of the --config (--extra_llm_api_options) file are checked strictly: a key that is "
    "misspelt, on the wrong level, or was renamed or removed between releases is not known."
)
KEYS_COMMAND = "python3 -c 'from tensorrt_llm.llmapi import TorchLlmArgs as A; print(sorted(A.model_fields))'"
FLAGS_WHY = (
    "The program takes its own flags only, with underscores, and ends with 'No such option' at any other one; flags of "
    "other servers have other names here, and options without a flag stand in the --config file."
)
HELP = {"trtllm-serve": "trtllm-serve serve"}


def _unknown(server: Artifact, words: list[str], release: str, values: dict[str, str]) -> Violation:
    more = f"; and {len(words) - 5} more" if len(words) > 5 else ""
    return Violation(
        tuple(_evidence_of(server, word) for word in words[:8]),
        {
            "what": "; ".join(words[:5]) + more,
            "release": f"TensorRT-LLM {release}" if release else "TensorRT-LLM of today",
            **server_words(server),
            **values,
        },
    )


def _gravity_of_flags(release: str, flags: list[str]) -> tuple[Severity, float]:
    """Return how sure it is that the program refuses its flags; a later release may have them."""
    version = parsed(release)
    if version is None:
        meant = all("did you mean" in flag for flag in flags)
        return (Severity.ERROR, 0.9) if meant else (Severity.WARNING, 0.75)
    return (Severity.WARNING, 0.6) if version > Version(table().releases[-1]) else (Severity.ERROR, 0.95)


def _gravity(server: Artifact, release: str) -> tuple[Severity, float]:
    """Return how sure it is that this stops the start: an old name works in an old release."""
    version, newest = parsed(release), Version(table().releases[-1])
    if version is None:
        is_new = all("did you mean" in item for item in server.items("runtime.unknown_keys"))
        certain = server.has("runtime.unknown_keys") and is_new
        return (Severity.ERROR, 0.9) if certain else (Severity.WARNING, 0.75)
    if version > newest:
        return Severity.WARNING, 0.6
    if version <= Version(table().top_level_ignored_until):
        return Severity.WARNING, 0.9
    return Severity.ERROR, 0.95


def _consequence(release: str) -> str:
    version = parsed(release)
    if version is not None and version <= Version(table().top_level_ignored_until):
        return f"{release} drops them without a word"
    return "the start is refused"


def _evidence_of(server: Artifact, words: str) -> Evidence:
    """Return the place of an option by the words said about it, which begin with its name."""
    key = words.partition(": ")[0]
    for name, fact in server.facts.items():
        if name == f"option.{key}" or name.startswith(f"option.{key}."):
            return Evidence(fact.where, words.partition(": ")[2])
    return Evidence(server.path, words)


@agreement("DX154", "command")
def known_build_flags(deployment: Deployment) -> Iterator[Violation]:
    """The flags of trtllm-build are those its release has."""
    for command in deployment.of("command"):
        lists = ("runtime.unknown_keys", "runtime.invalid_values")
        words = [str(item) for name in lists for item in command.items(name)]
        if words and command.text("runtime.command").startswith("trtllm-build"):
            yield Violation(
                tuple(_evidence_of(command, word) for word in words[:8]),
                {"what": "; ".join(words[:5])},
                confidence=0.9,
            )
