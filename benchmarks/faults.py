"""How often `trtdx compare` finds the right tensor and the right cause, on models with one planted mistake each.

The zoo (benchmarks/fault_zoo) plants single mistakes in six small decoders, in four types, at several depths, on torch,
ONNX Runtime and evaluated TensorRT networks, and has as many pairs with nothing wrong. `--check` measures, without
`trtdx compare`, that each fault can be seen at all and that healthy pairs are; `--variant 2` is another zoo with other
layers, modules and magnitudes: what was tuned on the first is judged on it.

    python benchmarks/faults.py --work DIR [--variant 2] [--only llama] [--json]
    python benchmarks/faults.py --work DIR --check

Files are made once and kept in DIR; the first time takes about ten minutes for the exports.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import defaultdict, deque
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

sys.path.insert(0, str(Path(__file__).parent))
MOST_S = 300
FAMILIES = ("llama", "gpt2", "qwen2", "gemma2", "mixtral", "deepseek_v3")
GOALS = {"right tensor": 97.0, "right cause": 85.0, "false alarms": 0.0}


def asked(each: Any, shop: Any, extra: list[str]) -> list[str]:
    """Make a fault or a pair, and return what a user would ask of `trtdx` about it."""
    sides, question = each.make(shop), each.question
    tokens = [part for row in question.rows() for part in ("--tokens", " ".join(map(str, row)))]
    runs = any(side.startswith(("hf:", "onnx:", "trt:")) for side in sides)  # two captures are fed nothing
    fed = [*tokens, "--new-tokens", str(question.steps)] if runs else []
    return ["compare", sides.reference, sides.candidate, *fed, "--json", *extra]


def answer(done: Any) -> dict[str, Any]:
    """Return the JSON that was answered, what was said on failing, and the seconds."""
    told: dict[str, Any] = {"seconds": round(done.seconds, 2), "exit": done.status}
    if done.status == -1:
        return told | {"failed": f"not done after {MOST_S} s"}
    try:
        return told | json.loads(done.stdout)
    except ValueError:
        return told | {"failed": (done.stderr.strip().splitlines() or ["nothing was said"])[-1][:300]}


def findings_of(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the findings that say something is wrong, the first being the answer."""
    return [each for each in told.get("findings", ()) if each.get("severity") in ("error", "warning", None)]


def place_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return where the first finding that says so sees the mistake."""
    told = next((each["where"] for each in found if each.get("where")), {})
    return told if isinstance(told, dict) else {"tensor": told}


def judge_fault(fault: Any, told: dict[str, Any], causes: Any) -> dict[str, Any]:
    """Return what is right in an answer: the place and the cause of its first finding."""
    found = findings_of(told)
    first = found[0] if found else {}
    where = place_of(found)
    said = causes.causes_of(first)
    return {
        "name": fault.name, "cause": fault.cause, "architecture": fault.architecture, "dtype": fault.dtype,
        "engine": fault.engine, "given": fault.given, "depth": fault.depth, "found": bool(first),
        "tensor": fault.truth.holds(where), "strict": fault.truth.strictly(where), "right": bool(set(said) & set(fault.causes)),
        "said": " ".join(filter(None, (first.get("code"), first.get("slug")))), "where": where, "wanted": fault.truth.right,
        "failed": told.get("failed", ""), "seconds": told["seconds"],
    }  # fmt: skip


def judge_pair(pair: Any, told: dict[str, Any]) -> dict[str, Any]:
    found = findings_of(told)
    first = found[0] if found else {}
    compared = sum(each.get("verdict") != "unknown" for each in told.get("tensors", ()))
    if not compared and not told.get("failed"):
        told = {**told, "failed": "nothing was compared"}
    return {
        "compared": compared, "name": pair.name, "kind": pair.kind, "architecture": pair.architecture, "dtype": pair.dtype, "engine": pair.engine,
        "alarm": bool(found), "said": " ".join(filter(None, (first.get("code"), first.get("slug")))), "where": place_of(found),
        "failed": told.get("failed", ""), "seconds": told["seconds"],
    }  # fmt: skip


def share(rows: list[dict[str, Any]], key: str) -> str:
    return f"{100 * sum(bool(row[key]) for row in rows) / len(rows):5.1f} %" if rows else "    - "


def table(rows: list[dict[str, Any]], axis: str, keys: Iterable[str]) -> None:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row[axis]].append(row)
    for name, group in sorted(groups.items()):
        print(f"  {axis:13}{name:28}{len(group):4}  " + "  ".join(f"{key} {share(group, key)}" for key in keys))


def report(faults: list[dict[str, Any]], pairs: list[dict[str, Any]]) -> None:
    if faults:
        print(f"{len(faults)} faults: right tensor {share(faults, 'tensor')} (its first name {share(faults, 'strict')}), "
              f"right cause {share(faults, 'right')}")  # fmt: skip
        for axis in ("architecture", "engine", "dtype", "given", "depth", "cause"):
            table(faults, axis, ("tensor", "right"))
    if pairs:
        alarms = sum(row["alarm"] for row in pairs)
        print(
            f"{len(pairs)} healthy pairs: {alarms} false alarms, {sum(bool(row['failed']) for row in pairs)} not compared"
        )
        table(pairs, "kind", ("alarm", "failed"))
    times = sorted(row["seconds"] for row in faults + pairs)
    if times:
        print(f"seconds: median {times[len(times) // 2]:.1f}, most {times[-1]:.1f}, all {sum(times):.0f}")


def show(row: dict[str, Any]) -> None:
    if "cause" in row:
        mark = "ok  " if row["tensor"] and row["right"] else "FAIL"
        told = (
            row["failed"]
            or f"{row['said'] or 'nothing'} at {row['where'].get('tensor', '-')} step {row['where'].get('step', '-')}"
        )
        wanted = "" if mark == "ok  " else f"; wanted {row['wanted'][0]}"
    else:
        mark = "FAIL" if row["alarm"] or row["failed"] else "ok  "
        told, wanted = row["failed"] or (f"{row['said']} at {row['where']}" if row["alarm"] else "silent"), ""
    print(f"{mark} {row['name']}: {told}{wanted} ({row['seconds']:.1f} s)", file=sys.stderr, flush=True)


def examine(args: argparse.Namespace, shop: Any, faults: list[Any], pairs: list[Any]) -> None:
    from fault_zoo import causes
    from warm import warm

    warm(tuple(f"transformers.models.{name}.modeling_{name}" for name in FAMILIES))
    done: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for each, told in answers(args, shop, [*faults, *pairs]):
        is_fault = hasattr(each, "causes")
        row = judge_fault(each, told, causes) if is_fault else judge_pair(each, told)
        done[0 if is_fault else 1].append(row)
        show(row)
    if args.json:
        print(json.dumps({"variant": args.variant, "faults": done[0], "pairs": done[1]}, indent=1))
    else:
        report(*done)


def answers(args: argparse.Namespace, shop: Any, items: list[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Ask about each, `jobs` at once, in order."""
    from warm import ended, started

    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        running: deque[tuple[Any, Any]] = deque()
        for number, each in enumerate(items):
            place = Path(folder) / str(number)
            running.append((each, started(place, lambda each=each: asked(each, shop, args.extra))))
            if len(running) >= args.jobs or each is items[-1]:
                while running and (len(running) >= args.jobs or each is items[-1]):
                    first, child = running.popleft()
                    yield first, answer(ended(child, MOST_S))
                    shutil.rmtree(child.folder, ignore_errors=True)


def check(args: argparse.Namespace, shop: Any, faults: list[Any], pairs: list[Any]) -> None:
    """Measure the zoo itself."""
    from fault_zoo import checking

    opened, rows = checking.Opened(shop), []
    try:
        for each in [*faults, *pairs]:
            began = time.monotonic()
            is_fault = hasattr(each, "causes")
            try:
                row = checking.measured(opened, each) if is_fault else checking.judged(opened, each)
            except Exception as error:  # one that cannot be made must not hide the others
                row = {"problem": f"{type(error).__name__}: {error}"[:300]}
            row |= {"name": each.name, "seconds": round(time.monotonic() - began, 1)}
            rows.append(row)
            print(_told(row), file=sys.stderr, flush=True)
    finally:
        opened.close()
    if args.json:
        print(json.dumps(rows, indent=1, default=str))
    else:
        bad = [
            row
            for row in rows
            if row.get("problem") or row.get("visible") is False or row.get("healthy") is False or row.get("before")
        ]
        print(f"{len(rows)} checked, {len(bad)} not as they should be, {sum(row['seconds'] for row in rows):.0f} s")
        for row in bad:
            print(_told(row))


def _told(row: dict[str, Any]) -> str:
    if "problem" in row:
        return f"PROBLEM {row['name']}: {row['problem']}"
    if "healthy" in row:
        word = "healthy" if row["healthy"] else "SICK"
        return (
            f"{word} {row['name']}: logits median {row['median']:.2g}, worst {row['logits']:.2g} ({row['seconds']} s)"
        )
    word = "visible" if row["visible"] else "INVISIBLE"
    told = (
        f"{row['tensor']} {row['error']:.2g}, honest {row['honest'] or 0:.2g}, ratio {row['ratio']:.3g}"
        if row["tensor"]
        else "no such tensor"
    )
    before = f"; BEFORE IT {dict(list(row['before'].items())[:3])}" if row["before"] else ""
    loose = "" if row.get("strict") else " (not under its first name)"
    return f"{word} {row['name']}: {told}{loose}; logits {row['logits']:.2g}{before} ({row['seconds']} s)"


def chosen(rows: list[Any], patterns: list[str]) -> list[Any]:
    return [row for row in rows if not patterns or any(fnmatchcase(row.name, f"*{each}*") for each in patterns)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work",
        type=Path,
        default=Path.home() / ".cache" / "trtdx" / "fault_zoo",
        help="where files are made and kept",
    )
    parser.add_argument("--variant", type=int, default=1, choices=(1, 2))
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="names that have this in them")
    parser.add_argument("--what", choices=("all", "faults", "healthy"), default="all")
    parser.add_argument("--check", action="store_true", help="measure the zoo itself, without trtdx compare")
    parser.add_argument("--list", action="store_true", help="name everything and make nothing")
    parser.add_argument("--jobs", type=int, default=1, help="how many comparisons at once")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("extra", nargs="*", help="more arguments for trtdx compare")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    from fault_zoo import probes, zoo
    from fault_zoo.workshop import Workshop

    faults = chosen(zoo.faults(args.variant), args.only) if args.what != "healthy" else []
    pairs = chosen(zoo.pairs(args.variant), args.only) if args.what != "faults" else []
    if args.list:
        for fault in faults:
            print(
                f"{fault.name}: {fault.cause} at {', '.join(fault.truth.right)}{'; ' + fault.told if fault.told else ''}"
            )
        for pair in pairs:
            print(f"{pair.name}: healthy")
        return
    able = [each for each in [*faults, *pairs] if probes.has(each.needs)]
    for each in [each for each in [*faults, *pairs] if each not in able]:
        print(f"left out {each.name}: it needs {each.needs}", file=sys.stderr)
    faults, pairs = [each for each in faults if each in able], [each for each in pairs if each in able]
    (check if args.check else examine)(args, Workshop(args.work), faults, pairs)


if __name__ == "__main__":
    main()
