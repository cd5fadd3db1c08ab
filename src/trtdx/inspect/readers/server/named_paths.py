"""Paths that options and command lines name: which are here, and which of the others can be called missing.

Commands are often looked at outside the container they are run in. A path counts as missing only where something
else shows that this is the machine: the folder it should lie in, or another path of the same command.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, NamedTuple

from trtdx.errors import InputError
from trtdx.formats.documents import UnreadableError, read_json
from trtdx.inspect.readers.server.commands import ENGINE_FLAGS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Artifact, FactCollector

CONFIG_FLAGS = ("--config", "--extra_llm_api_options")
PATH_FLAGS = (
    "--engine_dir", "--model_path", "--checkpoint_dir", "--model_repo", "--model-repository", "--tokenizer_dir",
)  # fmt: skip
ROLE_BY_FACT = {
    "runtime.model": "model",
    "runtime.tokenizer": "tokenizer",
    "runtime.draft_model": "draft model",
}
# Folders that every machine has: that they are here says nothing about what lies in them elsewhere.
COMMON_FOLDERS = (
    "/", "/tmp", "/root", "/home", "/mnt", "/opt", "/srv", "/usr", "/var", "/media", "/data",  # noqa: S108
    "/workspace",
)  # fmt: skip
PATH_FACTS = (
    *ROLE_BY_FACT,
    "triton.engine_dir",
    "triton.encoder_dir",
    "lora.base_model",
    *(f"option.{flag}" for flag in (*CONFIG_FLAGS, *PATH_FLAGS, *ENGINE_FLAGS)),
)
PATH_PREFIXES = ("/", "./", "../")  # what cannot be the name of a model on the Hub
MAX_PATH_CHARS = 4096
ABSENT_NOTE = "{path} is not on this machine; the {role} was not looked at"


class NamedPath(NamedTuple):
    """A path, what it is for, and where it is named."""

    path: str
    role: str
    where: str


def existing_path(host: Host, name: str, where: str) -> str | None:
    """Return a path as it can be opened: as it stands, or beside the file that names it."""
    beside = posixpath.join(posixpath.dirname(where), name)
    return next((path for path in (name, beside) if path_kind(host, path) in ("file", "directory")), None)


def path_kind(host: Host, path: str) -> str:
    try:
        return host.kind(path) if len(path) <= MAX_PATH_CHARS else "absent"
    except (InputError, OSError, ValueError):
        return "absent"


def resolved_path_names(host: Host, artifact: Artifact) -> dict[str, str]:
    """Return where each path that an artifact names really lies, as far as it is on this machine."""
    names = [artifact.facts[name].value for name in PATH_FACTS if name in artifact.facts]
    names += artifact.table("triton.tokenizer_dirs").values()
    paths = {name: existing_path(host, name, artifact.path) for name in names if isinstance(name, str) and name}
    return {name: host.real(path) for name, path in paths.items() if path is not None}


def model_paths(host: Host, facts: FactCollector, where: str) -> tuple[str, ...]:
    """Return the model and tokenizer that are named, where they are on this machine."""
    names = [facts.get("runtime.model"), facts.get("runtime.tokenizer")]
    paths = (existing_path(host, name, where) for name in names if isinstance(name, str) and name)
    return tuple(dict.fromkeys(path for path in paths if path))


def paths_in_facts(facts: FactCollector) -> list[NamedPath]:
    """Return the model, tokenizer and draft model that are named by a path; a name on the Hub is none."""
    known_facts = facts.to_dict()
    return [
        NamedPath(known_facts[fact].value, role, known_facts[fact].where)
        for fact, role in ROLE_BY_FACT.items()
        if fact in known_facts and str(known_facts[fact].value).startswith(PATH_PREFIXES)
    ]


def put_absent_paths(host: Host, facts: FactCollector, named: Iterable[NamedPath], where: str) -> list[str]:
    """Put the paths that are missing; return notes on those that may be on another machine."""
    named = list(named)
    absent = [named_path for named_path in named if existing_path(host, named_path.path, where) is None]
    is_home = any(named_path not in absent and named_path.path.startswith("/") for named_path in named)
    model = facts.get("runtime.model")
    is_beside = isinstance(model, str) and not model.startswith("/") and bool(existing_path(host, model, where))
    notes = []
    for named_path in absent:
        is_whole = named_path.path.startswith("/")
        if (is_home or _folder_is_here(host, named_path.path)) if is_whole else is_beside:
            facts.add("runtime.paths_missing", f"{named_path.path} ({named_path.role})", named_path.where)
        elif named_path.role.startswith("--"):  # an options file: without it most of the command is unknown
            facts.add("runtime.paths_unseen", f"{named_path.path} ({named_path.role})", named_path.where)
        else:
            notes.append(f"{named_path.where}: {ABSENT_NOTE.format(path=named_path.path, role=named_path.role)}")
    return notes


def _folder_is_here(host: Host, path: str) -> bool:
    folder = posixpath.dirname(path.rstrip("/"))
    return folder not in COMMON_FOLDERS and path_kind(host, folder) == "directory"


def put_draft_vocab_size(host: Host, facts: FactCollector, where: str) -> None:
    """Put how many tokens the draft model knows; it is no artifact of its own beside the model that is served."""
    name = facts.get("runtime.draft_model")
    folder = existing_path(host, name, where) if isinstance(name, str) and name else None
    if folder is None:
        return
    try:
        config = read_json(host, posixpath.join(folder, "config.json"))
    except (UnreadableError, InputError):
        return
    size = config.value_at("vocab_size")
    if type(size) is int:
        facts.put("runtime.draft_vocab_size", size, config.place_of("vocab_size"))
