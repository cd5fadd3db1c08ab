"""The rule book in force: the packaged pages and the folders a team adds."""

from __future__ import annotations

import contextlib
import hashlib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trtdx.errors import InputError, RulePageError
from trtdx.knowledge.literals import (
    Memo,
    all_required,
    export_literal_cache,
    import_literal_cache,
    rarest_window,
    required_texts,
)
from trtdx.knowledge.page_check import check_page
from trtdx.rule import PageProblem, Rule, RuleBook, iterate_log_patterns, parse_rule
from trtdx.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.host import Host


KEPT_CACHES = 4


class _Prepared(msgspec.Struct):
    """The packaged rules as they are cached."""

    rules: list[Rule]
    memo: Memo


def packaged_folder() -> Path:
    return Path(str(resources.files("trtdx").joinpath("rules")))


def load_book(host: Host, folders: Sequence[str] = ()) -> RuleBook:
    """Return the packaged rules and those of the folders; a page that cannot be read is an error that names it."""
    rules = list(_load_packaged_rules(host))
    for folder in folders:
        added, problems = check_pages(host, folder)
        if problems:
            raise RulePageError(str(problems[0]), fix=f"trtdx rules check {folder}")
        rules += added
    return RuleBook(rules)


def read_pages(host: Host, folder: str) -> list[tuple[str, str]]:
    """Return (path, text) of every page in a folder, or of the one page named."""
    kind = host.kind(folder)
    if kind == "absent":
        raise InputError(f"there is no folder of rules {folder}")
    names = host.files(folder) if kind == "directory" else [folder]
    return [(name, _read_page(host, name)) for name in names if name.endswith(".md") and not name.endswith("README.md")]


def check_pages(host: Host, folder: str) -> tuple[list[Rule], list[PageProblem]]:
    """Return the readable rules of a folder and every problem of form."""
    rules: list[Rule] = []
    problems: list[PageProblem] = []
    for path, text in read_pages(host, folder):
        rule, page_problems = check_page(text, path)
        problems += page_problems
        if rule is not None:
            rules.append(rule)
    return rules, problems


def _read_page(host: Host, path: str) -> str:
    with host.open(path) as stream:
        data = stream.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as err:
        raise RulePageError(f"{path} is not UTF-8: {err}") from err


def _load_packaged_rules(host: Host) -> list[Rule]:
    """Return the packaged rules, from a cache of the parsed pages where one is at hand and fresh."""
    folder = packaged_folder()
    files = sorted(folder.glob("*/*.md"))
    marks = "".join(f"{file.name}:{(stat := file.stat()).st_size}:{stat.st_mtime_ns};" for file in files)
    mark = hashlib.sha256(f"{__version__};{folder};{marks}".encode()).hexdigest()[:16]
    folder_of_caches = _cache_folder(host)
    cache = folder_of_caches / f"rules-{mark}.msgpack" if folder_of_caches else None
    if cache and (prepared := _read_cache(cache)):
        import_literal_cache(prepared.memo)
        return prepared.rules
    rules = [parse_rule(file.read_text("utf-8"), str(file)) for file in files]
    for pattern in iterate_log_patterns(rules):
        all_required(pattern)
        for text in required_texts(pattern):
            rarest_window(text)
    if cache:
        content = msgspec.msgpack.encode(_Prepared(rules, export_literal_cache()))
        with contextlib.suppress(InputError):  # a read-only home costs some milliseconds at each start, nothing else
            host.write(str(cache), hashlib.sha256(content).digest() + content)
            _drop_old_caches(cache.parent)
    return rules


def _read_cache(cache: Path) -> _Prepared | None:
    """Return what a cache holds; nothing where it is absent, damaged or of another make: the pages are the truth."""
    try:
        data = cache.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        return None
    try:
        return msgspec.msgpack.decode(data[32:], type=_Prepared)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _drop_old_caches(folder: Path) -> None:
    """Keep the caches of the few installations used last, half-written ones of a killed process not among them."""
    with contextlib.suppress(OSError):  # another process clears up too
        caches = sorted(folder.glob("rules-*"), key=lambda file: file.stat().st_mtime, reverse=True)
        for file in caches[KEPT_CACHES:]:
            file.unlink(missing_ok=True)


def _cache_folder(host: Host) -> Path | None:
    """Return the user's own folder for caches; none where it has no name, because others can write to shared ones."""
    environment = host.environment()
    if environment.get("XDG_CACHE_HOME"):
        return Path(environment["XDG_CACHE_HOME"]) / "trtdx"
    return Path(environment["HOME"]) / ".cache" / "trtdx" if environment.get("HOME") else None
