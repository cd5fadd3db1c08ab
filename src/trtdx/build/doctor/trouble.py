"""How a check says what it saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.build.nouns import TreeTrouble
from trtdx.knowledge.violation import Violation
from trtdx.model import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.build.doctor.project import BuildProject, CMakeTree
    from trtdx.model import Severity

# What is only a consequence of a tree that was moved, or of a cache that cannot be read.
OF_THE_CACHE = ("DX1181", "DX1182", "DX1183", "DX1184", "DX1185", "DX1186", "DX1187", "DX1194", "DX1189", "DX1190")


def report_trouble(
    code: str,
    project: BuildProject,
    tree: CMakeTree | None,
    evidence: Iterable[tuple[str, str]],
    *,
    command: str,
    severity: Severity | None = None,
    confidence: float = 0.95,
    explains: tuple[str, ...] = (),
    **values: object,
) -> TreeTrouble:
    """Return a trouble; `command` is the whole clean-up."""
    from trtdx.build.doctor.cleanup import CleanupCommands

    words = {
        "build": project.show(tree.path) if tree else "",
        "rebuild": CleanupCommands(project).build(tree),
        "command": command,
    }
    proofs = tuple(Evidence(where, text) for where, text in evidence)
    violation = Violation(proofs, {**words, **values}, severity, confidence)
    return TreeTrouble(code, violation, str(tree.path) if tree else "", explains)


def is_same_folder(first: str, second: str) -> bool:
    """Whether two paths lead to the same place, links and mounts included."""
    import os

    if os.path.realpath(first) == os.path.realpath(second):
        return True
    try:
        return os.path.samefile(first, second)  # noqa: PTH121 (paths of a file that may be absent)
    except OSError:
        return False
