"""Where a plan keeps what it knows, all of it below its output folder: records, staging, locks, what was set aside."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from trtdx.build.plan.nouns import RECORD_VERSION, StepRecord
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.build.plan.read_plan import BuildPlan
    from trtdx.host import Host

LOCK_WAIT_S = 600.0
Kept = TypeVar("Kept")


class PendingMove(msgspec.Struct, frozen=True):
    """A finished step whose outputs are being moved into place."""

    record: StepRecord
    staging: str
    moves: tuple[tuple[str, str], ...]  # from below staging, to below the output folder


class PlanState:
    """The state folder of a plan."""

    def __init__(self, host: Host, plan: BuildPlan) -> None:
        self._host, self.plan, self.folder = host, plan, plan.state

    def prepare(self) -> None:
        """Make the folders, refusing an output folder that is a link or no folder."""
        try:
            for name in ("records", "staging", "locks", "logs"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            for part in self.folder.rglob("*.part"):  # of a write that was killed
                part.unlink(missing_ok=True)
        except OSError as err:
            raise InputError(f"cannot make {self.folder}: {err.strerror or err}") from err

    def hashes(self) -> Path:
        return self.folder / "hashes.msgpack"

    def log(self, key: str) -> Path:
        return self.folder / "logs" / f"{_file_name(key)}.log"

    def staging(self, key: str) -> Path:
        return self.folder / "staging" / f"{_file_name(key)}.{os.getpid()}"

    def read_record(self, key: str) -> StepRecord | None:
        record = self._read(self._record_path(key), StepRecord)
        return record if record and record.record_version == RECORD_VERSION else None

    def write_record(self, record: StepRecord) -> None:
        self._write(self._record_path(record.key), record)

    def drop_record(self, key: str) -> None:
        self._record_path(key).unlink(missing_ok=True)

    def records(self) -> list[StepRecord]:
        paths = sorted((self.folder / "records").glob("*.json"))
        return [record for path in paths if (record := self._read(path, StepRecord))]

    def read_pending(self, key: str) -> PendingMove | None:
        return self._read(self._pending_path(key), PendingMove)

    def write_pending(self, pending: PendingMove) -> None:
        self._write(self._pending_path(pending.record.key), pending)

    def drop_pending(self, key: str) -> None:
        self._pending_path(key).unlink(missing_ok=True)

    def _record_path(self, key: str) -> Path:
        return self.folder / "records" / f"{_file_name(key)}.json"

    def _pending_path(self, key: str) -> Path:
        return self.folder / "records" / f"{_file_name(key)}.pending"

    def _read(self, path: Path, kind: type[Kept]) -> Kept | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None  # absent, or of another make: the step is then built again

    def _write(self, path: Path, value: object) -> None:
        self._host.write(str(path), msgspec.json.format(msgspec.json.encode(value), indent=1))

    @contextlib.contextmanager
    def lock(self, key: str, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
        """Hold the lock of one step's outputs, which ends with the process whatever happens to it."""
        path = self.folder / "locks" / f"{_file_name(key)}.lock"
        with path.open("a+") as file:
            until = time.monotonic() + wait_s
            while not _try_lock(file.fileno()):
                if time.monotonic() > until:
                    raise InputError(
                        f"another build has held the outputs of {key} for {wait_s:g} s",
                        fix=f"wait for it; its log: {self.log(key)}",
                    )
                self._host.sleep(0.1)
            yield

    def asides(self) -> list[Path]:
        folder = self.folder / "aside"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def forget_asides(self) -> None:
        """Remove for good what was set aside before; called after a success."""
        shutil.rmtree(self.folder / "aside", ignore_errors=True)

    def clear_staging(self) -> None:
        """End and remove what killed builds left; what running ones stage is theirs."""
        from trtdx.host import end_orphan

        pending = [self._read(path, PendingMove) for path in (self.folder / "records").glob("*.pending")]
        needed = {Path(move.staging) for move in pending if move}
        for folder in sorted((self.folder / "staging").glob("*")):
            if folder in needed:
                continue
            owner = folder.name.rpartition(".")[2]
            if owner.isdigit() and Path(f"/proc/{owner}").exists() and int(owner) != os.getpid():
                continue
            with contextlib.suppress(OSError, ValueError):
                end_orphan(int((folder / "pid").read_text()), f"TRTDX_BUILD_STAGING={folder}")
            shutil.rmtree(folder, ignore_errors=True)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _file_name(key: str) -> str:
    return re.sub(r"[^\w.@-]", "_", key)


def inside(path: Path, root: Path) -> bool:
    """Whether a path lies in a folder once links on the way to it are followed; the last part is not followed."""
    real = Path(os.path.realpath(path.parent)) / path.name
    return Path(os.path.realpath(root)) in real.parents
