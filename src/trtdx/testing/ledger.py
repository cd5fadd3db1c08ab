"""What all tests of a session told: goldens to write, and a few lines for the end of the terminal's output."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.capture.goldens.store import FOLDER, GoldenFile, golden_path
from trtdx.errors import TrtdxError
from trtdx.host import RealHost
from trtdx.testing.judging import CHANGED, COMPARED, NO_GOLDEN, NO_TENSORS, RECORDED, Told
from trtdx.words import counted, listed, size_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SHOWN_TESTS = 10


class Ledger:
    """Collects what tests tell, and writes what is to be recorded."""

    def __init__(self, root: Path) -> None:
        """Start with nothing; paths are shown from `root` on."""
        self._root = root
        self.told: dict[str, Told] = {}  # by node id
        self.stale: dict[str, list[str]] = {}  # by the path of the goldens: tests that are no more
        self.not_recorded: list[str] = []  # tests that failed while recording
        self.problems: list[str] = []
        self._written: list[str] = []

    def write(self, *, drop_stale: bool) -> None:
        """Write the goldens of the tests that passed, module by module, each whole or not at all."""
        modules: dict[str, list[Told]] = {}
        for message in self.told.values():
            if message.golden is not None:
                modules.setdefault(message.module, []).append(message)
        dropped = self.stale if drop_stale else {}
        paths = {str(golden_path(Path(module))): module for module in modules}
        for path in dropped:  # of modules where nothing was recorded
            paths.setdefault(path, str(Path(path).parent.parent / f"{Path(path).stem}.py"))
        for path, module in sorted(paths.items()):
            self._write_module(path, module, modules.get(module, []), dropped.get(path, ()))
        if drop_stale:
            self.stale = {}

    def _write_module(self, path: str, module: str, told: list[Told], drop: Iterable[str]) -> None:
        drop = list(drop)
        values = {key: stored for one in told for key, stored in one.values.items()}
        try:
            file = GoldenFile(RealHost(), Path(module))
            changed = file.update([one.golden for one in told if one.golden is not None], values, drop)
        except (TrtdxError, OSError) as err:
            self.problems.append(f"{self._shown(path)} was not written: {err}")
            return
        gone = f", {counted(len(drop), 'stale golden')} dropped" if drop else ""
        same = f", {len(told) - len(changed)} unchanged" if len(told) > len(changed) else ""
        written = f"{counted(len(changed), 'golden')} written{same}{gone}"
        self._written.append(f"{self._shown(path)}: {written} ({size_in_words(file.size_bytes)} with values)")

    def _shown(self, path: str) -> str:
        return os.path.relpath(path, self._root)

    def lines(self) -> Iterator[str]:
        """Yield what is worth knowing at the end of a session."""
        yield from (f"error: {problem}" for problem in self.problems)
        yield from self._written
        yield from self._changes()
        yield from self._compared()
        if self.not_recorded:
            yield f"not recorded, because they failed: {listed(self.not_recorded, SHOWN_TESTS)}"
        for path, tests in sorted(self.stale.items()):
            yield f"stale in {self._shown(path)}: {listed(tests, SHOWN_TESTS)}; drop with --trtdx-drop-stale"
        yield from self._not_finite()

    def _compared(self) -> Iterator[str]:
        by = {outcome: self._of(outcome) for outcome in (COMPARED, CHANGED, NO_GOLDEN)}
        judged = {**by[COMPARED], **by[CHANGED]}
        if judged:
            tensors = sum(message.compared for message in judged.values())
            close = sum(message.close for message in judged.values())
            some = f", {close} differ within the tolerance" if close else ""
            changed = f"{len(by[CHANGED])} changed" if by[CHANGED] else "none changed"
            yield f"{counted(len(judged), 'test')} compared with goldens ({counted(tensors, 'tensor')}{some}): {changed}"
        if by[NO_GOLDEN]:
            yield f"no golden yet: {listed(by[NO_GOLDEN], SHOWN_TESTS)}; record with --trtdx-record"
        for node, message in judged.items():
            if message.new:
                yield f"not in the golden of {node}: {listed(message.new)}"

    def _changes(self) -> Iterator[str]:
        for node, message in self._of(RECORDED).items():
            if message.change:
                yield f"recorded anew: {node}: {message.change}"
        empty = self._of(NO_TENSORS)
        if empty:
            yield f"no tensors to record or compare: {listed(empty, SHOWN_TESTS)}"

    def _not_finite(self) -> Iterator[str]:
        not_finite = {
            node: message
            for node, message in self.told.items()
            if message.not_finite and message.outcome != CHANGED
        }
        if not not_finite:
            return
        yield f"NaN or infinities in {counted(len(not_finite), 'passed test')}:"
        for node, message in list(not_finite.items())[:SHOWN_TESTS]:
            tensors = (f"{tensor.name} {tensor.what} of {tensor.elements}" for tensor in message.not_finite)
            yield f"  {node}: {listed(tensors, 4)}"

    def _of(self, outcome: str) -> dict[str, Told]:
        return {node: message for node, message in self.told.items() if message.outcome == outcome}


def stale_tests(collected: Mapping[Path, set[str]]) -> dict[str, list[str]]:
    """Return the goldens of tests that are no more, by the path of their file.

    Args:
        collected: all test ids of whole modules.
    """
    host, stale = RealHost(), {}
    for module, tests in collected.items():
        try:
            gone = [test for test in GoldenFile(host, module).goldens if test not in tests]
        except TrtdxError:
            continue  # each of its tests says so
        if gone:
            stale[str(golden_path(module))] = gone
    for folder in {module.parent for module in collected}:
        for path in sorted((folder / FOLDER).glob("*.jsonl")):
            if not (folder / f"{path.stem}.py").exists():
                stale[str(path)] = _all_of(path)
    return stale


def _all_of(path: Path) -> list[str]:
    try:
        return list(GoldenFile(RealHost(), path.parent.parent / f"{path.stem}.py").goldens)
    except TrtdxError:
        return []
