"""What all tests of a session told: goldens to write, and a few lines for the end of the terminal's output."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.capture.goldens.store import GOLDENS_FOLDER, GoldenFile, golden_path
from trtdx.errors import TrtdxError
from trtdx.host import RealHost
from trtdx.testing.golden_judgement import CHANGED, COMPARED, NO_GOLDEN, NO_TENSORS, RECORDED, GoldenMessage
from trtdx.words import abbreviate_list, format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_SHOWN_TESTS = 10


class GoldenLedger:
    """Collects what tests tell, and writes what is to be recorded."""

    def __init__(self, root: Path) -> None:
        """Start with nothing; paths are shown from `root` on."""
        self._root = root
        self.messages: dict[str, GoldenMessage] = {}  # by node id
        self.stale: dict[str, list[str]] = {}  # by the path of the goldens: tests that are no more
        self.not_recorded: list[str] = []  # tests that failed while recording
        self.problems: list[str] = []
        self._written: list[str] = []

    def write(self, *, drop_stale: bool) -> None:
        """Write the goldens of the tests that passed, module by module, each whole or not at all."""
        modules: dict[str, list[GoldenMessage]] = {}
        for message in self.messages.values():
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

    def _write_module(self, path: str, module: str, messages: list[GoldenMessage], drop: Iterable[str]) -> None:
        drop = list(drop)
        values = {key: stored for one in messages for key, stored in one.values.items()}
        try:
            file = GoldenFile(RealHost(), Path(module))
            changed = file.update([one.golden for one in messages if one.golden is not None], values, drop)
        except (TrtdxError, OSError) as err:
            self.problems.append(f"{self._relative_path(path)} was not written: {err}")
            return
        gone = f", {format_count(len(drop), 'stale golden')} dropped" if drop else ""
        same = f", {len(messages) - len(changed)} unchanged" if len(messages) > len(changed) else ""
        written = f"{format_count(len(changed), 'golden')} written{same}{gone}"
        self._written.append(f"{self._relative_path(path)}: {written} ({format_bytes(file.size_bytes)} with values)")

    def _relative_path(self, path: str) -> str:
        return os.path.relpath(path, self._root)

    def lines(self) -> Iterator[str]:
        """Yield what is worth knowing at the end of a session."""
        yield from (f"error: {problem}" for problem in self.problems)
        yield from self._written
        yield from self._change_lines()
        yield from self._compared_lines()
        if self.not_recorded:
            yield f"not recorded, because they failed: {abbreviate_list(self.not_recorded, MAX_SHOWN_TESTS)}"
        for path, tests in sorted(self.stale.items()):
            yield f"stale in {self._relative_path(path)}: {abbreviate_list(tests, MAX_SHOWN_TESTS)}; drop with --trtdx-drop-stale"
        yield from self._not_finite_lines()

    def _compared_lines(self) -> Iterator[str]:
        by = {outcome: self._with_outcome(outcome) for outcome in (COMPARED, CHANGED, NO_GOLDEN)}
        judged = {**by[COMPARED], **by[CHANGED]}
        if judged:
            tensors = sum(message.compared for message in judged.values())
            close = sum(message.close for message in judged.values())
            some = f", {close} differ within the tolerance" if close else ""
            changed = f"{len(by[CHANGED])} changed" if by[CHANGED] else "none changed"
            yield f"{format_count(len(judged), 'test')} compared with goldens ({format_count(tensors, 'tensor')}{some}): {changed}"
        if by[NO_GOLDEN]:
            yield f"no golden yet: {abbreviate_list(by[NO_GOLDEN], MAX_SHOWN_TESTS)}; record with --trtdx-record"
        for node, message in judged.items():
            if message.new:
                yield f"not in the golden of {node}: {abbreviate_list(message.new)}"

    def _change_lines(self) -> Iterator[str]:
        for node, message in self._with_outcome(RECORDED).items():
            if message.change:
                yield f"recorded anew: {node}: {message.change}"
        empty = self._with_outcome(NO_TENSORS)
        if empty:
            yield f"no tensors to record or compare: {abbreviate_list(empty, MAX_SHOWN_TESTS)}"

    def _not_finite_lines(self) -> Iterator[str]:
        not_finite = {
            node: message
            for node, message in self.messages.items()
            if message.not_finite and message.outcome != CHANGED
        }
        if not not_finite:
            return
        yield f"NaN or infinities in {format_count(len(not_finite), 'passed test')}:"
        for node, message in list(not_finite.items())[:MAX_SHOWN_TESTS]:
            tensors = (f"{tensor.name} {tensor.what} of {tensor.elements}" for tensor in message.not_finite)
            yield f"  {node}: {abbreviate_list(tensors, 4)}"

    def _with_outcome(self, outcome: str) -> dict[str, GoldenMessage]:
        return {node: message for node, message in self.messages.items() if message.outcome == outcome}


def find_stale_tests(collected: Mapping[Path, set[str]]) -> dict[str, list[str]]:
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
        for path in sorted((folder / GOLDENS_FOLDER).glob("*.jsonl")):
            if not (folder / f"{path.stem}.py").exists():
                stale[str(path)] = _recorded_tests(path)
    return stale


def _recorded_tests(path: Path) -> list[str]:
    try:
        return list(GoldenFile(RealHost(), path.parent.parent / f"{path.stem}.py").goldens)
    except TrtdxError:
        return []
