"""How fast `trtdx diagnose` reads, beside grep on the same file in the same run.

    python benchmarks/diagnose_speed.py [--mib 1024] [--big-gib 2] [--flood-mib 20] [--floods-only] [--json]

Three ratios are measured: against `grep -E -f` with the same patterns, against `grep -F -c` for one string, and
of ten times the rules against the rules as they are. Then the resident memory on a large log. Floods are logs in which every line, or one enormous line, is an error: each is a
ratio of processor time to that of a clean log of the same size. Each time is the
best of several runs of a whole process, start-up included, on a file in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.host import RealHost
from trtdx.knowledge.literals import required_texts
from trtdx.knowledge.load import load_book

if TYPE_CHECKING:
    from collections.abc import Callable

TRTDX = [sys.executable, "-m", "trtdx"]
NEEDLE = "illegal memory access"
GREP_E_MIB = 32  # what `grep -E -f` is given: it reads about ten mebibytes a second


def lines(rng: random.Random) -> str:
    """Return one line as a healthy server writes it."""
    n = rng.randrange
    kind = n(12)
    stamp = f"11/{n(1, 29):02d}/2026-{n(24):02d}:{n(60):02d}:{n(60):02d}"
    if kind < 5:
        return (
            f"[{stamp}] [TRT-LLM] [RANK {n(8)}] [I] iter = {n(10**6)}, global_rank = {n(8)}, rank = {n(8)}, "
            f"currank_total_requests = {n(64)}/{n(64)}, host_step_time = {n(10**5) / 1000}ms, prev_device_step_time = "
            f"{n(10**5) / 1000}ms, timestamp = 2026-11-{n(1, 29):02d} 10:{n(60):02d}:{n(60):02d}, num_scheduled_requests: {n(64)}, "
            f"states = {{'num_ctx_requests': {n(4)}, 'num_ctx_tokens': {n(8192)}, 'num_generation_tokens': {n(256)}}}"
        )
    if kind < 8:
        return f'INFO:     127.0.0.1:{n(1024, 65535)} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
    if kind < 10:
        return f"node{n(16)}:{n(30000)}:{n(30000)} [{n(8)}] NCCL INFO Channel {n(32):02d}/0 : {n(8)}[{n(8)}] -> {n(8)}[{n(8)}] via P2P/CUMEM"
    if kind < 11:
        return f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated {n(10**4) / 100:.2f} GiB for max tokens in paged KV cache ({n(10**6)})."
    return f"I1115 10:{n(60):02d}:{n(60):02d}.{n(10**6):06d} 1 grpc_server.cc:{n(3000)}] request {n(10**9)} completed in {n(5000)} ms"


def write_log(path: Path, mib: int) -> None:
    """Write a log of the given size: a block of distinct lines, repeated, with one failure near the end."""
    rng = random.Random(7)
    block = "".join(lines(rng) + "\n" for _ in range(40_000)).encode()
    with path.open("wb") as file:
        for _ in range(max(1, (mib << 20) // len(block))):
            file.write(block)
        file.write(b"[TensorRT-LLM][ERROR] Assertion failed: Failed to deserialize cuda engine.\n")
        file.write(block[: 100 << 10])


def flood_lines(rng: random.Random) -> dict[str, Callable[[], str]]:
    """Return what makes the next piece of each kind of flood."""
    n = rng.randrange
    oom = "RuntimeError: CUDA out of memory. Tried to allocate "
    pages = [line for rule in load_book(RealHost()) for text in rule.fires_on for line in text.splitlines() if line]
    texts = sorted({text for pattern in patterns() for text in required_texts(pattern)})

    def word() -> str:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(7))

    return {
        "one_error": lambda: f"[11/15/2026-10:{n(60):02d}:{n(60):02d}] [TRT-LLM] [E] {oom}{n(9000)}.00 MiB\n",
        "one_error_other_words": lambda: f"{oom}{word()}\n",
        "many_errors": lambda: f"{rng.choice(pages)}\n",
        "many_errors_other_words": lambda: f"{word()} {rng.choice(pages)} {word()}\n",
        "every_second_line": lambda: f"{lines(rng)}\n{oom}{word()}\n",
        "unknown_errors": lambda: f"[TensorRT-LLM][ERROR] {word()} {word()}\n",
        "tracebacks": lambda: f"Traceback (most recent call last):\n  {word()}()\nRuntimeError: {word()}\n",
        "prefixes_to_peel": lambda: "0: " * 40 + "[TensorRT-LLM][ERROR] " * 20 + f"{oom}{word()}\n",
        "secrets": lambda: f"{oom}token={word()} https://u:{word()}@h.com/ Authorization: Bearer {word()}{word()}\n",
        "long_lines": lambda: "x" * 5000 + f" {oom}{word()}" + " y" * 1500 + "\n",
        "redrawn": lambda: f"{oom}{word()}\r",
        "giant_line": lambda: oom,
        "giant_line_of_prefixes": lambda: "[TensorRT-LLM][ERROR] ",
        "giant_line_of_many_texts": lambda: f"{rng.choice(texts)} ",
        "giant_line_of_secrets": lambda: f"{oom}token={word()} https://u:{word()}@h.com/ ",
    }


def write_flood(path: Path, mib: int, piece: Callable[[], str]) -> None:
    parts, size = [], 0
    while size < mib << 20:
        parts.append(piece())
        size += len(parts[-1])
    path.write_text("".join(parts))


def processor_s(command: list[str], runs: int = 2) -> float:
    """Return the least processor time of the command: floods are bound by it, and a loaded machine does not change it."""
    times = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def floods(folder: Path, mib: int) -> dict[str, float]:
    """Return the processor time of each flood over that of a clean log of the same size."""
    log, rng = folder / "flood.txt", random.Random(3)
    write_flood(log, mib, lambda: f"{lines(rng)}\n")
    clean = processor_s([*TRTDX, "diagnose", str(log)])
    result = {"flood_mib": float(mib), "flood_clean_s": clean}
    for name, piece in flood_lines(rng).items():
        write_flood(log, mib, piece)
        result[f"flood_{name}_over_clean"] = processor_s([*TRTDX, "diagnose", str(log)]) / clean
    return result


def best(command: list[str], runs: int = 5, timeout_s: float = 600, env: dict[str, str] | None = None) -> float:
    """Return the shortest wall time of the command in seconds."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
            env=env,
        )
        times.append(time.perf_counter() - start)
    return min(times)


def extended(pattern: str) -> str | None:
    """Return the pattern as grep understands it, or None where it cannot."""
    if re.search(r"\(\?[=!<]|\\n|\\A|\\Z|\(\?s|\?\?|\*\?|\+\?|\}\?|\\[1-9]", re.sub(r"\(\?P<\w+>", "(", pattern)):
        return None
    text = re.sub(r"^\(\?i\)", "", re.sub(r"\(\?P<\w+>|\(\?:", "(", pattern))
    text = text.replace(r"\d", "[0-9]").replace(r"\S", "[^ ]").replace(r"\s", "[ ]").replace(r"\w", "[A-Za-z0-9_]")
    if "(?" in text or "[[" in text:
        return None
    return text


def accepted(pattern: str) -> bool:
    """Say whether grep takes the pattern."""
    return (
        subprocess.run(
            ["grep", "-E", "-e", pattern], stdin=subprocess.DEVNULL, capture_output=True, check=False
        ).returncode
        < 2
    )


def patterns() -> list[str]:
    return [log.pattern for rule in load_book(RealHost()) for log in rule.front.log]


def ten_times(folder: Path) -> None:
    """Write nine more rules for each packaged one, of the same shape and with other words."""
    from trtdx.knowledge.load import packaged_folder

    def changed(text: str, number: int) -> str:
        def other(found: re.Match[str]) -> str:  # another word of the same length, the same in every copy
            rng = random.Random(f"{found[0].lower()}{number}")
            return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in found[0])

        def in_pattern(found: re.Match[str]) -> str:
            return found[1] + re.sub(r"(?<![\\<?=a-zA-Z])[A-Za-z]{5,}(?![>\w])", other, found[2]) + found[3]

        return re.sub(r"(pattern = ''')(.*?)(''')", in_pattern, text, flags=re.DOTALL)

    for page in packaged_folder().rglob("*.md"):
        for number in range(1, 10):
            text = changed(page.read_text(), number)
            text = re.sub(r'^code = "DX(\d+)"', rf'code = "DX{number}\1"', text, flags=re.MULTILINE)
            text = re.sub(r'^slug = "(.*)"', rf'slug = "\1-{number}"', text, flags=re.MULTILINE)
            (folder / f"{number}-{page.name}").write_text(text)


def resident_mib(command: list[str]) -> float:
    """Return the peak resident memory of one run of the command."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=False);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--big-gib", type=float, default=2)
    parser.add_argument("--flood-mib", type=int, default=20)
    parser.add_argument("--floods-only", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.floods_only:
        with tempfile.TemporaryDirectory() as name:
            for key, value in floods(Path(name), asked.flood_mib).items():
                print(f"{key:<44}{value:,.2f}")
        return
    result: dict[str, float] = {
        "mib": asked.mib,
        "rules": len(load_book(RealHost())),
        "patterns": len(patterns()),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log, small = folder / "log.txt", folder / "small.txt"
        write_log(log, asked.mib)
        write_log(small, GREP_E_MIB)
        usable = sorted({text for text in map(extended, patterns()) if text and accepted(text)})
        listed = folder / "patterns"
        listed.write_text("\n".join(usable) + "\n")
        plain = os.environ | {"LC_ALL": "C"}
        best([*TRTDX, "diagnose", str(small)], runs=1)  # fills the cache of parsed pages, as a first run does
        result["grep_E_patterns"] = len(usable)
        result["small_mib"] = small.stat().st_size / 2**20
        result["trtdx_small_s"] = best([*TRTDX, "diagnose", str(small)])
        result["grep_E_small_s"] = best(
            ["grep", "-E", "-c", "-f", str(listed), str(small)], runs=1, timeout_s=1200, env=plain
        )
        result["grep_E_over_trtdx"] = result["grep_E_small_s"] / result["trtdx_small_s"]
        result["grep_F_s"] = best(["grep", "-F", "-c", NEEDLE, str(log)])
        result["trtdx_s"] = best([*TRTDX, "diagnose", str(log)])
        result["trtdx_over_grep_F"] = result["trtdx_s"] / result["grep_F_s"]
        more = folder / "more"
        more.mkdir()
        ten_times(more)
        code = (
            "import sys, time\n"
            "from pathlib import Path\n"
            "from trtdx.diagnose.matcher import Matcher\n"
            "from trtdx.diagnose.logs.sources import open_sources\n"
            "from trtdx.host import RealHost\n"
            "from trtdx.knowledge.load import load_book\n"
            "from trtdx.redact import redact_secrets\n"
            "from trtdx.rule import RuleBook, parse_rule\n"
            "more = [parse_rule(page.read_text(), str(page)) for folder in sys.argv[2:] for page in Path(folder).glob('*.md')]\n"
            "book = RuleBook([*load_book(RealHost()), *more])\n"
            "matcher, source, times = Matcher(book, redact_secrets), open_sources(RealHost(), [sys.argv[1]])[0][0], []\n"
            "for _ in range(5):\n"
            "    start = time.perf_counter()\n"
            "    matcher.collect_facts(source.name, source.blocks())\n"
            "    times.append(time.perf_counter() - start)\n"
            "print(len(book), min(times))"
        )
        for key, extra in (("once", []), ("ten_times", [str(more)])):
            out = subprocess.run(
                [sys.executable, "-c", code, str(log), *extra], capture_output=True, text=True, check=True
            ).stdout.split()
            result[f"{key}_rules"], result[f"{key}_s"] = int(out[0]), float(out[1])
        result["ten_times_over_once"] = result["ten_times_s"] / result["once_s"]
        log.unlink()
        result |= floods(folder, asked.flood_mib)
        if asked.big_gib:
            big = folder / "big.txt"
            write_log(big, int(asked.big_gib * 1024))
            result["big_gib"] = big.stat().st_size / 2**30
            result["big_resident_mib"] = resident_mib([*TRTDX, "diagnose", str(big)])
    if asked.json:
        print(json.dumps(result, indent=2))
        return
    for key, value in result.items():
        print(f"{key:<24}{value:,.3f}")
    verdicts = {
        "as fast as grep -E -f": result["grep_E_over_trtdx"] >= 1,
        "within 4x of grep -F -c": result["trtdx_over_grep_F"] <= 4,
        "ten times the rules cost less than twice": result["ten_times_over_once"] < 2,
        "no flood over six times a clean log": max(v for k, v in result.items() if k.endswith("_over_clean")) <= 6,
        "under 300 MB on the big log": result.get("big_resident_mib", 0) * 2**20 < 300e6,
    }
    for text, good in verdicts.items():
        print(f"{'yes' if good else 'NO '}  {text}")
    print(f"(this benchmark itself used {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB)")


if __name__ == "__main__":
    main()
