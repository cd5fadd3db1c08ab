"""The world as an assistant may see it: files below the roots, nothing written, nothing run unless it was allowed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import unquote, urlsplit

from trtdx.errors import InputError
from trtdx.host import CommandResult, RealHost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def root_from_uri(uri: str) -> str:
    """Return the folder that a client's root names; empty where it is no folder here."""
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme == "file" and parts.netloc in ("", "localhost") else ""


class ConfinedHost:
    """A host that knows only what lies below its roots, wherever links lead."""

    def __init__(self, roots: Sequence[str], *, runs: bool) -> None:
        self._real = RealHost()
        self.roots = tuple(os.path.realpath(root) for root in roots if root)
        self._runs = runs

    def resolve(self, path: str) -> str:
        """Return a path that a tool was given as a real one below a root; a relative one is below the first.

        Raises:
            InputError: it lies elsewhere, or there are no roots.
        """
        if not self.roots:
            raise InputError(
                "no folder may be read: the client names no roots", fix="start the server as trtdx mcp --root DIR"
            )
        real = self._real.real(str(Path(self.roots[0], path)))
        if not self._is_inside(real):
            raise InputError(f"{path} lies outside the roots", fix="name a path below one of the client's roots")
        return real

    def _is_inside(self, path: str) -> bool:
        real = self._real.real(path)
        return any(real == root or real.startswith(root.rstrip("/") + "/") for root in self.roots)

    def _checked(self, path: str) -> str:
        if path == "-" or not self._is_inside(path):
            raise InputError(f"cannot read {path}: it lies outside the roots")
        return path

    def open(self, path: str) -> BinaryIO:
        return self._real.open(self._checked(path))

    def kind(self, path: str) -> str:
        return self._real.kind(path) if path != "-" and self._is_inside(path) else "absent"

    def entries(self, path: str) -> list[str]:
        return self._real.entries(self._checked(path))

    def files(self, path: str) -> list[str]:
        return [name for name in self._real.files(path) if self._is_inside(name)] if self._is_inside(path) else []

    def real(self, path: str) -> str:
        return self._real.real(path)

    def closed_folders(self, path: str) -> list[str]:
        return self._real.closed_folders(self._checked(path))

    def size(self, path: str) -> int:
        return self._real.size(self._checked(path))

    def write(self, path: str, data: bytes) -> None:
        raise InputError(f"cannot write {path}: this server only reads")

    def append(self, path: str, data: bytes) -> None:
        raise InputError(f"cannot write {path}: this server only reads")

    def run(self, argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        if not self._runs:
            return CommandResult(tuple(argv), None, problem="not run: the server was started without --allow-run")
        return self._real.run(argv, timeout_s=timeout_s)

    def environment(self) -> Mapping[str, str]:
        return self._real.environment()

    def now(self) -> float:
        return self._real.now()

    def sleep(self, seconds: float) -> None:
        self._real.sleep(seconds)
