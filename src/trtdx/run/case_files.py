"""What the case keeps when the job has ended: each rank's output, redacted, with the times of its lines."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.redact import MARK, redact_secrets
from trtdx.run.job.live import read_agents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.case import CaseWriter
    from trtdx.host import Host

MOST_REDACTED_BYTES = 64 << 20  # beyond this, reading it all again would keep the user waiting
BLOCK_BYTES = 1 << 20


def output_files(live: Path) -> dict[str, Path]:
    """Return the kept outputs by the name they have in the case: `rank-2.stderr`, `launcher.stdout`."""
    files = {}
    for path in sorted((live / "launcher").glob("*.log")):
        files[f"launcher.{path.stem}"] = path
    for agent in read_agents(live):
        for path in sorted(Path(agent.folder).glob("*.log")):
            owner = f"rank-{agent.ring_rank}" if agent.ring_rank >= 0 else f"process-{agent.pid}"
            name = f"{owner}.{path.stem}"
            files[name if name not in files else f"{owner}-{agent.pid}.{path.stem}"] = path
    return files


def keep_logs(case: CaseWriter, folder: Path) -> list[str]:
    """Copy all outputs into the case, redacted; return what was not copied, and why."""
    notes = []
    for name, path in output_files(folder / "live").items():
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            if size > MOST_REDACTED_BYTES:
                notes.append(f"{path} ({size >> 20} MiB) is kept whole and not redacted: look before you send it")
            elif size:
                for _ in case.copy_log(f"{name}.log", _blocks(path)):
                    pass
                redact_in_place(path)
    return notes


def redact_in_place(path: Path) -> None:
    """Take the secrets out of a file that the times of its lines point into: each line keeps its length."""
    with path.open("r+b") as file:
        start = 0
        while block := file.read(BLOCK_BYTES):
            block += file.readline(BLOCK_BYTES)
            clean = _redact_lines(block)
            if clean != block:
                file.seek(start)
                file.write(clean)
            start += len(block)
            file.seek(start)


def _redact_lines(block: bytes) -> bytes:
    lines = block.split(b"\n")
    clean = redact_secrets(block.decode("utf-8", "replace")).encode().split(b"\n")
    if len(clean) != len(lines):
        clean = [redact_secrets(line.decode("utf-8", "replace")).encode() for line in lines]
    return b"\n".join(
        line if MARK.encode() not in new else new[: len(line)].ljust(len(line))
        for line, new in zip(lines, clean, strict=True)
    )


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block


def state_folder(host: Host) -> Path:
    """Return where cases of supervised runs are kept: a folder of the user's that all nodes of a cluster can see."""
    environment = host.environment()
    if not (environment.get("XDG_STATE_HOME") or environment.get("HOME")):
        return Path("trtdx-runs")  # where it was started: others can write to a shared folder for temporary files
    base = environment.get("XDG_STATE_HOME") or str(Path(environment["HOME"], ".local/state"))
    return Path(base, "trtdx", "runs")
