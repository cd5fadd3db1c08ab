"""How many error lines the atlas locates, how many rightly, and how narrow the release is that it infers.

    python benchmarks/atlas_accuracy.py LINES.jsonl [--half held] [--show wrong]

A row of LINES: `source` (the issue or log it is from), `line`, and where known `release` (of TensorRT-LLM), `half`
("tune" or "held") and `path`: the file that raises the line as somebody judged it against the sources; empty where no
indexed program can print it. A line is located rightly where the judged file is among the two places that are shown,
and nothing is located where there is none. `--cases` takes rows with whole logs (`log`) and looks at their error lines.
Lines are other people's words and stay out of this repository.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from trtdx.diagnose.logs.prefixes import peel_line
from trtdx.diagnose.raised_in import places_to_show
from trtdx.knowledge.atlas import LocatedLine, message_atlas
from trtdx.knowledge.release_estimate import estimate_release, stated_in_line
from trtdx.knowledge.versions import parse_release

QUIET = ("info", "debug", "trace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--half", choices=("tune", "held"))
    parser.add_argument("--cases", action="store_true")
    parser.add_argument("--show", choices=("wrong", "missed", "all"))
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.lines.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if not options.half or row.get("half") == options.half]
    if options.cases:
        rows = [{"source": row["id"], "line": line} for row in rows for line in row["log"].splitlines()]
        rows = [row for row in rows if peel_line(row["line"]).level in ("error", "fatal", "warning")]
    measure_places(rows, options.show)
    measure_releases(rows, options.show)


def measure_places(rows: list[dict[str, str]], show: str | None) -> None:
    rows = [row for row in rows if peel_line(row["line"]).level not in QUIET]
    start = time.process_time()
    located = [message_atlas().locate(row["line"]) for row in rows]
    spent = (time.process_time() - start) / max(1, len(rows))
    print(
        f"{len(rows)} lines at warning or above: {_share(sum(map(bool, located)), len(rows))} located, {spent * 1e3:.2f} ms each"
    )
    judged = [(row, line) for row, line in zip(rows, located, strict=True) if "path" in row]
    printable = [(row, line) for row, line in judged if row["path"]]
    right = sum(_is_right(row, line) for row, line in judged)
    print(f"judged: {len(judged)}; right {_share(right, len(judged))}")
    found = sum(_is_right(row, line) for row, line in printable)
    print(f"of those that an indexed program prints: {_share(found, len(printable))} located rightly")
    claimed = [(row, line) for row, line in judged if line]
    sure = sum(_is_right(row, line) for row, line in claimed)
    print(f"of those that are located: {_share(sure, len(claimed))} rightly")
    for row, line in zip(rows, located, strict=True):
        is_shown = (
            show == "all"
            or (show == "missed" and not line)
            or (show == "wrong" and "path" in row and not _is_right(row, line))
        )
        if is_shown:
            places = "; ".join(f"{place} {place.share}" for place in places_to_show(line)) if line else "-"
            print(f"  {row['line'][:160]}\n    {places}")


def measure_releases(rows: list[dict[str, str]], show: str | None) -> None:
    """Compare the release inferred from all lines of a source with the one its author named."""
    by_source = defaultdict(list)
    for row in rows:
        if row.get("release"):
            by_source[row["source"]].append(row)
    widths, near, inside, silent = [], 0, 0, 0
    for source, group in sorted(by_source.items()):
        lines = [(source, row["line"]) for row in group if not stated_in_line(row["line"])[0]]
        located = [place for _, line in lines if (place := message_atlas().locate(line))]
        estimate = estimate_release(lines, located, message_atlas())
        truth = _minor_number(group[0]["release"])
        if estimate is None:
            silent += 1
            continue
        first, last = _minor_number(estimate.first), _minor_number(estimate.last)
        widths.append(last - first)
        inside += first <= truth <= last
        near += first - 1 <= truth <= last + 1
        if (show and not first - 1 <= truth <= last + 1) or show == "all":
            print(f"  {source}: {group[0]['release']}, inferred {estimate.first} to {estimate.last}")
    known = len(by_source) - silent
    print(f"release known of {len(by_source)} sources: inferred for {known}; it lies inside for {_share(inside, known)}, "
          f"within one minor of the interval for {_share(near, known)}; median width {median(widths) if widths else 0} minors, "
          f"{_share(sum(width <= 2 for width in widths), known)} at most 2")  # fmt: skip


def _minor_number(version: str) -> int:
    """Return a release's place among minors: 0.5 is 5, 0.21 is 21, 1.0 is 22."""
    parsed = parse_release(version)
    assert parsed is not None
    return parsed.minor if parsed.major == 0 else 22 + parsed.minor


def _is_right(row: dict[str, str], line: LocatedLine | None) -> bool:
    if not row["path"]:
        return line is None
    return bool(line) and any(place.path == row["path"] for place in places_to_show(line))


def _share(count: int, total: int) -> str:
    return f"{count} of {total} ({count / max(1, total):.0%})"


if __name__ == "__main__":
    main()
