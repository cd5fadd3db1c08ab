"""Options and flags that the release that is to read them does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.serving import SERVER_KINDS, server_release, server_words, serving_artifacts
from trtdx.inspect.facts.option_table import option_table
from trtdx.knowledge.versions import parse_release
from trtdx.knowledge.violation import Violation
from trtdx.model import Evidence, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

KEY_LISTS = ("runtime.unknown_keys", "runtime.renamed_keys", "runtime.removed_keys")


@make_agreement("DX246", *SERVER_KINDS)
def known_options(deployment: Deployment) -> Iterator[Violation]:
    """Options are those the release that reads them has."""
    for server in serving_artifacts(deployment):
        words = [str(item) for name in KEY_LISTS for item in server.items(name)]
        release = server_release(deployment, server)
        flags = [word for word in words if word.startswith("-")]
        keys = [word for word in words if not word.startswith("-")]
        if keys:
            severity, confidence = _key_severity(server, release)
            values = {"consequence": _render_consequence(release), "why": KEYS_WHY, "command": KEYS_COMMAND}
            yield _unknown_violation(server, keys, release, values)._replace(severity=severity, confidence=confidence)
        if flags:
            severity, confidence = _flag_severity(release, flags)
            program = server.text("runtime.command") or "trtllm-serve"
            values = {"consequence": "the program refuses to start", "why": FLAGS_WHY}
            values["command"] = f"{HELP_COMMANDS.get(program, program)} --help"
            yield _unknown_violation(server, flags, release, values)._replace(severity=severity, confidence=confidence)


KEYS_WHY = (
    "The options of LLM(...) and of the --config (--extra_llm_api_options) file are checked strictly: a key that is "
    "misspelt, on the wrong level, or was renamed or removed between releases is not known."
)
KEYS_COMMAND = "python3 -c 'from tensorrt_llm.llmapi import TorchLlmArgs as A; print(sorted(A.model_fields))'"
FLAGS_WHY = (
    "The program takes its own flags only, with underscores, and ends with 'No such option' at any other one; flags of "
    "other servers have other names here, and options without a flag stand in the --config file."
)
HELP_COMMANDS = {"trtllm-serve": "trtllm-serve serve"}


def _unknown_violation(server: Artifact, words: list[str], release: str, values: dict[str, str]) -> Violation:
    more = f"; and {len(words) - 5} more" if len(words) > 5 else ""
    return Violation(
        tuple(_option_evidence(server, word) for word in words[:8]),
        {
            "what": "; ".join(words[:5]) + more,
            "release": f"TensorRT-LLM {release}" if release else "TensorRT-LLM of today",
            **server_words(server),
            **values,
        },
    )


def _flag_severity(release: str, flags: list[str]) -> tuple[Severity, float]:
    """Return how sure it is that the program refuses its flags; a later release may have them."""
    version = parse_release(release)
    if version is None:
        meant = all("did you mean" in flag for flag in flags)
        return (Severity.ERROR, 0.9) if meant else (Severity.WARNING, 0.75)
    return (Severity.WARNING, 0.6) if version > Version(option_table().releases[-1]) else (Severity.ERROR, 0.95)


def _key_severity(server: Artifact, release: str) -> tuple[Severity, float]:
    """Return how sure it is that this stops the start: an old name works in an old release."""
    version, newest = parse_release(release), Version(option_table().releases[-1])
    if version is None:
        is_new = all("did you mean" in item for item in server.items("runtime.unknown_keys"))
        certain = server.has("runtime.unknown_keys") and is_new
        return (Severity.ERROR, 0.9) if certain else (Severity.WARNING, 0.75)
    if version > newest:
        return Severity.WARNING, 0.6
    if version <= Version(option_table().top_level_ignored_until):
        return Severity.WARNING, 0.9
    return Severity.ERROR, 0.95


def _render_consequence(release: str) -> str:
    version = parse_release(release)
    if version is not None and version <= Version(option_table().top_level_ignored_until):
        return f"{release} drops them without a word"
    return "the start is refused"


def _option_evidence(server: Artifact, words: str) -> Evidence:
    """Return the place of an option by the words said about it, which begin with its name."""
    key = words.partition(": ")[0]
    for name, fact in server.facts.items():
        if name == f"option.{key}" or name.startswith(f"option.{key}."):
            return Evidence(fact.where, words.partition(": ")[2])
    return Evidence(server.path, words)


@make_agreement("DX154", "command")
def known_build_flags(deployment: Deployment) -> Iterator[Violation]:
    """The flags of trtllm-build are those its release has."""
    for command in deployment.of_kinds("command"):
        lists = ("runtime.unknown_keys", "runtime.invalid_values")
        words = [str(item) for name in lists for item in command.items(name)]
        if words and command.text("runtime.command").startswith("trtllm-build"):
            yield Violation(
                tuple(_option_evidence(command, word) for word in words[:8]),
                {"what": "; ".join(words[:5])},
                confidence=0.9,
            )
