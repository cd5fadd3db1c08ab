"""Jobs of gloo ranks with one slowness each, and what a person would answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

RANK_FAULTS = {
    "a rank computes longer": (("DX1540",), 2),
    "a rank comes late": (("DX1541",), 3),
    "a rank has the popular experts": (("DX1542",), 4),
    "much to transfer": (("DX1543",), 2),
    "many small transfers": (("DX1544",), 2),
    "two ranks compute longer": (("DX1540",), 4),
    "the middle rank sleeps": (("DX1541",), 3),
    "late before a broadcast": (("DX1541",), 2),
    "a rank collects garbage": (("DX1501", "DX1541"), 2),
    "much to gather": (("DX1543",), 2),
    "many barriers": (("DX1544",), 2),
}
HEALTHY_JOBS = {"two healthy ranks": 2, "three healthy ranks": 3}
LONGEST_S = 240


def run_ranks(fault, world, folder):
    """Run a job of gloo ranks; back come the share of time that its fault cost the rank that has it, and its peace."""
    argv = [sys.executable, "-I", str(Path(__file__).parent.parent / "trace/slow_ranks.py"), fault]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [*argv, str(rank), str(world), str(folder)], stdout=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(world)
    ]
    try:
        outputs = [rank.communicate(timeout=LONGEST_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    (folder / "meet").unlink(missing_ok=True)
    results = [json.loads(line[7:]) for text in outputs for line in text.splitlines() if line.startswith("result ")]
    assert len(results) == world
    return max(result["cost"] / result["wall"] for result in results), min(result["undisturbed"] for result in results)
