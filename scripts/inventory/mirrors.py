"""Bare git repositories, read release by release. Nothing of them is ever imported or executed."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
from collections import OrderedDict
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


KEPT = (
    100_000,
    1_500,
)  # small facts, and syntax trees, which are large; neighbouring releases share most blobs


class Mirror:
    """One bare repository; blobs are read through one `git cat-file --batch`, and parsed once each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parsed: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True).stdout.decode("utf-8", "replace")

    def tags(self) -> list[str]:
        return self.git("tag", "--list").split()

    def has_commit(self, commit: str) -> bool:
        command = ["git", "-C", str(self.folder), "cat-file", "-e", f"{commit}^{{commit}}"]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    @cached_property
    def _reader(self) -> subprocess.Popen[bytes]:
        command = ["git", "-C", str(self.folder), "cat-file", "--batch"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read_blob(self, oid: str) -> str:
        """Return a blob as text; "" where the snapshot left it out."""
        stdin, stdout = self._reader.stdin, self._reader.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(oid.encode() + b"\n")
        stdin.flush()
        header = stdout.readline().split()
        if len(header) < 3:  # "OID missing"
            return ""
        data = stdout.read(int(header[2]) + 1)[:-1]
        return data.decode("utf-8", "replace")

    def extract_once(self, oid: str, kind: str, extract: Callable[[str], Any]) -> Any:
        """Return what `extract` makes of a blob's text; blobs that many releases share are read once."""
        key = (oid, kind)
        if key in self._parsed:
            self._parsed.move_to_end(key)
        else:
            self._parsed[key] = extract(self.read_blob(oid))
            if len(self._parsed) > KEPT[kind == "ast"]:
                self._parsed.popitem(last=False)
        return self._parsed[key]

    def close(self) -> None:
        if "_reader" in self.__dict__:
            self._reader.communicate(timeout=30)


class Tree:
    """The files of one release."""

    def __init__(self, mirror: Mirror, ref: str, release: str) -> None:
        self.mirror, self.ref, self.release = mirror, ref, release

    @cached_property
    def blobs(self) -> dict[str, str]:
        """Each path with the object id of its content."""
        rows = self.mirror.git("ls-tree", "-r", "-z", self.ref).split("\0")
        entries = (row.split("\t", 1) for row in rows if row)
        return {path: mode.split()[2] for mode, path in entries if mode.split()[1] == "blob"}

    def find_paths(self, *patterns: str) -> Iterator[str]:
        """Return the paths that match any of some shell patterns, in order."""
        matches = compile_patterns(patterns).match
        return (path for path in sorted(self.blobs) if matches(path))

    def read_text(self, path: str) -> str:
        return self.mirror.read_blob(self.blobs[path]) if path in self.blobs else ""

    def parse_python(self, path: str) -> ast.Module | None:
        """Return a Python file's syntax tree, or None where it is absent or does not parse."""
        if path not in self.blobs:
            return None
        module: ast.Module | None = self.mirror.extract_once(self.blobs[path], "ast", parse_source)
        return module


@cache
def compile_patterns(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, patterns)))


def parse_source(text: str) -> ast.Module | None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old files
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError):
            return None


@cache
def version_from_tag(tag: str, prefix: str) -> Version | None:
    """Return the version that a tag names ("v1.2.0rc3", "v2.27.3-1"), or None for other tags."""
    if not tag.startswith(prefix):
        return None
    try:
        version = Version(tag.removeprefix(prefix))
    except InvalidVersion:
        return None
    return None if version.local else version


def list_releases(mirror: Mirror, prefix: str, first: str, *, pre: bool) -> list[Tree]:
    """Return the tagged releases from `first` on, oldest first; `pre`: release candidates too."""
    versions = {tag: version_from_tag(tag, prefix) for tag in mirror.tags()}
    kept = [
        (version, tag)
        for tag, version in versions.items()
        if version is not None and version >= Version(first) and (pre or not version.is_prerelease)
    ]
    return [Tree(mirror, tag, tag.removeprefix(prefix).partition("-")[0]) for _, tag in sorted(kept)]
