"""An output flood through `trtdx run`: is anything lost, and does memory stay flat? `run_flood.py [--minutes 30] [--rate 6]`.

The job prints numbered lines on both streams. What arrives, and what the case keeps, must have the job's own digest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CHILD = """
import hashlib, json, os, sys, time
seconds, rate, place = float(sys.argv[1]), float(sys.argv[2]) * 1e6, sys.argv[3]
digests = {1: hashlib.blake2b(), 2: hashlib.blake2b()}
sizes = {1: 0, 2: 0}
begun, number = time.monotonic(), 0
while time.monotonic() - begun < seconds:
    for fd in (1, 1, 1, 2):
        block = b"".join(b"%012d %s\\n" % (number + place, b"a line of words " * (place % 12)) for place in range(200))
        number += 200
        digests[fd].update(block)
        sizes[fd] += len(block)
        rest = memoryview(block)
        while rest:
            rest = rest[os.write(fd, rest):]
    ahead = sum(sizes.values()) / rate - (time.monotonic() - begun)
    if ahead > 0:
        time.sleep(ahead)
with open(place, "w") as file:
    json.dump({str(fd): [sizes[fd], digests[fd].hexdigest()] for fd in digests}, file)
"""
SAMPLE_S = 5.0


class StreamReader(threading.Thread):
    """Reads one stream to its end and keeps its size and digest."""

    def __init__(self, stream) -> None:
        super().__init__()
        self._stream, self._digest, self.size = stream, hashlib.blake2b(), 0

    def run(self) -> None:
        while block := os.read(self._stream.fileno(), 1 << 16):
            self._digest.update(block)
            self.size += len(block)

    @property
    def seal(self) -> list:
        return [self.size, self._digest.hexdigest()]


def seal_of(path: Path) -> list:
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "blake2b").hexdigest()]


def resident_kib(folder: str) -> dict[str, int]:
    """Return the memory of the supervisor and of each helper that passes output on, by their kind and process."""
    memory = {}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0") if entry.name.isdigit() else []
            kind = "tee" if any(word.endswith("agent/tee.py") for word in words) else "supervisor"
            if not any(folder in word for word in words) or "run_flood" in " ".join(words) or CHILD in words[:3]:
                continue
            rows = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines() if ":" in line)
            memory[f"{kind} {entry.name}"] = int(rows["VmRSS"].split()[0])
        except (OSError, KeyError, UnicodeDecodeError):
            continue
    return memory


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rate", type=float, default=6, help="MB a second, both streams together")
    parser.add_argument("--folder", type=Path, help="where the case goes; it takes twice what is printed")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="flood-", dir=options.folder))
    seals = folder / "seals.json"
    child = [sys.executable, "-c", CHILD, str(options.minutes * 60), str(options.rate), str(seals)]
    argv = [sys.executable, "-m", "trtdx", "run", "--no-save", "--case", str(folder / "case"), "--", *child]
    begun = time.monotonic()
    job = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    readers = {1: StreamReader(job.stdout), 2: StreamReader(job.stderr)}
    for reader in readers.values():
        reader.start()
    samples: list[tuple[float, dict[str, int]]] = []
    while job.poll() is None:
        time.sleep(SAMPLE_S)
        samples.append((time.monotonic() - begun, resident_kib(str(folder))))
        if len(samples) % 12 == 1:
            passed = sum(reader.size for reader in readers.values()) / 1e9
            print(f"{samples[-1][0]:6.0f} s {passed:6.2f} GB passed; KiB: {samples[-1][1]}", flush=True)
    for reader in readers.values():
        reader.join()
    report_outcome(job.returncode, folder, json.loads(seals.read_text()), readers, samples)
    shutil.rmtree(folder)


def report_outcome(status: int, folder: Path, wanted: dict, readers: dict, samples: list) -> None:
    print(f"status {status}, {sum(size for size, _ in wanted.values()) / 1e9:.2f} GB printed")
    print(f"standard output passed on whole: {readers[1].seal == wanted['1']}")
    print(f"standard error passed on: {readers[2].size} of {wanted['2'][0]} bytes (what is more is trtdx's own)")
    for path in sorted(folder.glob("case/live/*/std*.log")):
        fd = "1" if path.stem == "stdout" else "2"
        print(f"kept whole: {seal_of(path) == wanted[fd]} {path.parent.name}/{path.name}")
    ends = len(samples) // 3
    for name in sorted({name for _, row in samples[1:-1] for name in row}):
        early, late = (
            max((row.get(name, 0) for _, row in part), default=0) for part in (samples[1:ends], samples[-ends:])
        )
        print(f"{name}: at most {early} KiB in the first third, {late} KiB in the last")


if __name__ == "__main__":
    main()
