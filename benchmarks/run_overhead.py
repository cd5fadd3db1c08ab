"""What supervision costs: a job that computes, a job that prints, and the calls that the agent records."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMPUTE = "import hashlib\ndata = b'x' * 65536\nfor _ in range(20000): hashlib.sha256(data).digest()"
PRINT = "import sys\nline = 'x' * 99 + '\\n'\nfor _ in range(2000000): sys.stdout.write(line)"
RECORD = (
    "import time, trtdx_agent, sys\nring = sys.modules['_trtdx_agent.start'].CURRENT.ring\n"
    "t = time.perf_counter()\nfor _ in range(200000): ring.add_record(1, 0, 'all_reduce\\x1fworld\\x1f1\\x1f1\\x1fn=4')\n"
    "print((time.perf_counter() - t) / 200000 * 1e6)"
)
TIMES = 5


def seconds(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        supervised = [sys.executable, "-m", "trtdx", "run", "--case"]
        number = 0
        for name, script in (("nothing", "pass"), ("computes", COMPUTE), ("prints 200 MB", PRINT)):
            pairs = []
            for _ in range(TIMES):
                number += 1
                command = [sys.executable, "-c", script]
                pairs.append((seconds(command), seconds([*supervised, str(Path(folder, str(number))), "--", *command])))
            plain, watched = (statistics.median(column) for column in zip(*pairs, strict=True))
            print(f"{name:16} plain {plain:6.2f} s, supervised {watched:6.2f} s, difference {watched - plain:+.2f} s")
        done = subprocess.run(
            [*supervised, str(Path(folder, "ring")), "--", sys.executable, "-c", RECORD],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        print(f"a record in the ring costs {float(done.stdout):.2f} µs")


if __name__ == "__main__":
    main()
