"""How fast and how well `trtdx cases search` finds a past case among many.

    python benchmarks/cases_search.py [--cases 20000] [--queries 300] [--store postgresql://...] [--keep FOLDER]

Cases are made from the firing examples of the rule pages, each on several set-ups (release, GPU, model) and in several
runs with other paths, times, ranks, hosts, addresses and values. For every question the store holds one right case and
neighbours that are easily confused with it: the same error on other set-ups. A question is a new run of the right
case's error on its set-up. Prints the share of questions whose right case is among the first three (and the first),
the time of a search inside the process (the store alone; with the log's diagnosis), and of the whole command.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from trtdx.case import pack_members
from trtdx.cases.facts import facts_from_report
from trtdx.cases.nouns import NewCase, Resolution
from trtdx.cases.search import query_from_facts, rank_together, rules_from_report, search_cases
from trtdx.cases.store import opened_store
from trtdx.diagnose.rule_examples import RuleExamples
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book
from trtdx.rule import RuleKind

RELEASES = ("0.16.0", "0.20.0", "1.0.0", "1.1.0", "1.2.0", "1.2.1")
GPUS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S", "NVIDIA B200", "NVIDIA H200")
MODELS = (
    "Llama-3.1-8B-Instruct", "Llama-3.1-70B-Instruct", "Qwen2.5-72B-Instruct", "Mixtral-8x7B-v0.1", "DeepSeek-V3",
    "gemma-2-9b-it",
)  # fmt: skip
FOLDERS = ("/models", "/data/llm", "/mnt/nfs/checkpoints", "/workspace", "/home/ops/weights", "/raid/team-a")
HOSTS = ("gpu7", "dgx-03", "node12", "worker-a-41", "hgx2")
NUMBER = re.compile(r"(?<![\w.<>=-])\d{2,9}(?![\w.])")


class Setup(NamedTuple):
    release: str
    gpu: str
    model: str


def vary_text(text: str, dice: random.Random) -> str:
    """Return a log text as another run would print it: other paths, times, numbers, addresses, hosts."""
    text = re.sub(
        r"(?<![\w.])/(?!dev/|proc/|sys/|usr/)[\w.-]+(?:/[\w.-]+)*/(?=[\w.-]+)",
        f"{dice.choice(FOLDERS)}/r{dice.randrange(999)}/",
        text,
    )
    text = re.sub(r"0x[0-9a-f]{4,}", lambda _: f"0x{dice.getrandbits(44):x}", text)
    text = re.sub(
        r"\d\d:\d\d:\d\d", lambda _: f"{dice.randrange(24):02}:{dice.randrange(60):02}:{dice.randrange(60):02}", text
    )
    text = re.sub(
        r"\b\d{1,3}(?:\.\d{1,3}){3}\b",
        lambda _: f"10.{dice.randrange(250)}.{dice.randrange(250)}.{dice.randrange(250)}",
        text,
    )
    text = re.sub(r"(?i)\brank[ =:]?\d+", lambda match: re.sub(r"\d+", str(dice.randrange(8)), match[0]), text)
    return re.sub(r"\b[\w-]+(?=:\d+:\d+ \[)", dice.choice(HOSTS), text)


def vary_values(text: str, dice: random.Random) -> str:
    """Return the text with other numbers in it."""
    return NUMBER.sub(lambda match: str(dice.randrange(10 ** (len(match[0]) - 1), 10 ** len(match[0]))), text)


def make_log(example: str, setup: Setup, dice: random.Random) -> str:
    """Return the log of one run: what a server prints at its start, then the error."""
    day = f"{dice.randrange(1, 13):02}/{dice.randrange(1, 29):02}/2026-{dice.randrange(24):02}:{dice.randrange(60):02}:{dice.randrange(60):02}"
    folder = f"{dice.choice(FOLDERS)}/{setup.model}"
    start = [
        f"[TensorRT-LLM] TensorRT-LLM version: {setup.release}",
        f"[{day}] [TRT-LLM] [I] Set PluginConfig.dtype to float16.",
        f"| {dice.randrange(8)}  {setup.gpu}   On | 00000000:{dice.randrange(16, 99)}:00.0 Off |",
        f"+ trtllm-serve {folder} --host 0.0.0.0 --port {dice.randrange(8000, 9000)}",
        f"[{day}] [TRT-LLM] [I] Loaded engine from {folder} in {dice.random() * 60:.2f} s",
    ]
    return "\n".join([*start, vary_text(example, dice)]) + "\n"


def choose_examples(book, examples: RuleExamples, count: int, dice: random.Random) -> list[str]:
    """Return firing examples that stay what they are when their values change, most of them of different pages."""
    pages = [rule for rule in book if rule.kind is RuleKind.CAUSE and rule.fires_on and rule.front.log]
    dice.shuffle(pages)
    chosen = []
    for rule in pages:
        example = rule.fires_on[0]
        if len(example) > 3000:
            continue
        other = examples.diagnose_text(vary_values(example, dice))
        if other.findings and other.findings[0].code == rule.code:
            chosen.append(example)
        if len(chosen) == count:
            break
    return chosen


class Occurrence(NamedTuple):
    example: str
    setup: Setup


def plan_occurrences(examples: list[str], count: int, dice: random.Random) -> list[Occurrence]:
    """Return the cases of the store: every problem on many set-ups, no two cases of one problem on the same."""
    setups = [Setup(release, gpu, model) for release in RELEASES for gpu in GPUS for model in MODELS]
    occurrences: dict[Occurrence, None] = {}
    while len(occurrences) < count:
        occurrences[Occurrence(dice.choice(examples), dice.choice(setups))] = None
    return list(occurrences)


def fill_store(
    store, occurrences: list[Occurrence], examples: RuleExamples, dice: random.Random
) -> dict[Occurrence, str]:
    ids = {}
    for number, occurrence in enumerate(occurrences):
        log = vary_values(make_log(occurrence.example, occurrence.setup, dice), dice)
        report = examples.diagnose_text(log)
        facts = facts_from_report(report, [log])
        title = report.findings[0].message if report.findings else "no problem found"
        resolved = Resolution(f"cause {number}", f"fix {number % 500}", "curl localhost", 1e9 + number + 3600.0)
        case = NewCase(
            tool="diagnose", title=title, severity="error", created=1e9 + number, facts=facts,
            body=pack_members([("case.jsonl", b"")]), resolution=resolved if number % 2 else None,
        )  # fmt: skip
        ids[occurrence] = store.add(case)
        if number % 1000 == 999:
            print(f"  {number + 1} cases stored", file=sys.stderr)
    return ids


def ask_questions(store, ids, examples: RuleExamples, count: int, dice: random.Random):
    """Return the rank of the right case (0: not among ten) and the two times of each question."""
    ranks, store_s, whole_s, busy_s = [], [], [], []
    for occurrence in dice.sample(list(ids), count):
        log = vary_values(make_log(occurrence.example, occurrence.setup, dice), dice)
        started = time.perf_counter()
        report = examples.diagnose_text(log)
        query = query_from_facts(facts_from_report(report, [log]))
        middle, busy = time.perf_counter(), time.process_time()
        hits = rank_together(search_cases(store, query, limit=10), rules_from_report(report), limit=10)
        ended = time.perf_counter()
        busy_s.append(time.process_time() - busy)
        store_s.append(ended - middle)
        whole_s.append(ended - started)
        names = [hit.id for hit in hits]
        ranks.append(names.index(ids[occurrence]) + 1 if ids[occurrence] in names else 0)
        if ranks[-1] not in (1, 2, 3) and os.environ.get("SHOW_MISSES"):
            print(
                "MISS",
                ranks[-1],
                occurrence,
                [(hit.id, hit.score, hit.codes[:1], hit.kind) for hit in hits[:4]],
                query.facts,
                file=sys.stderr,
            )
    return ranks, store_s, whole_s, busy_s


def time_command(folder: Path, log: str, environment: dict[str, str], rounds: int = 5) -> float:
    file = folder / "question.log"
    file.write_text(log)
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "trtdx", "cases", "search", str(file), "--json"],
            capture_output=True, env=environment, check=True,
        )  # fmt: skip
        times.append(time.perf_counter() - started)
        assert json.loads(done.stdout)[0].keys() >= {"id", "score", "codes", "resolution"}
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--examples", type=int, default=400)
    parser.add_argument("--store", default="", help="postgresql://...; by default SQLite in a new folder")
    parser.add_argument("--keep", default="", help="a folder in which the store stays, for a second run")
    parser.add_argument("--seed", type=int, default=16)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    host = RealHost()
    book = load_book(host)
    examples = RuleExamples(book)
    with tempfile.TemporaryDirectory(prefix="trtdx-cases-") as made:
        folder = options.keep or made
        os.environ["TRTDX_STORE"] = options.store or f"{folder}/cases.sqlite"
        chosen = choose_examples(book, examples, options.examples, dice)
        occurrences = plan_occurrences(chosen, options.cases, dice)
        kept_ids = Path(folder, "ids.json")
        if kept_ids.exists():
            ids = dict(zip(occurrences, json.loads(kept_ids.read_text()), strict=True))
        else:
            with opened_store(host, writes=True) as store:
                if not options.store:
                    store.database.execute(
                        "PRAGMA synchronous = OFF"
                    )  # twenty thousand commits are not what is measured
                started = time.perf_counter()
                ids = fill_store(store, occurrences, examples, dice)
                print(f"{len(ids)} cases of {len(chosen)} problems stored in {time.perf_counter() - started:.0f} s")
            kept_ids.write_text(json.dumps(list(ids.values())))
        with opened_store(host, writes=False) as store:
            ranks, store_s, whole_s, busy_s = ask_questions(store, ids, examples, options.queries, dice)
        log = make_log(chosen[0], Setup(RELEASES[0], GPUS[0], MODELS[0]), dice)
        command_s = 0 if os.environ.get("NO_COMMAND") else time_command(Path(folder), log, dict(os.environ))
    first, third = sum(rank == 1 for rank in ranks), sum(1 <= rank <= 3 for rank in ranks)
    print(
        f"right case among the first three: {third / len(ranks):.1%}, first: {first / len(ranks):.1%} of {len(ranks)}"
    )
    for name, times in (
        ("search of the store", store_s),
        ("  of that on the processor", busy_s),
        ("log read, diagnosed and searched for", whole_s),
    ):
        ordered = sorted(times)
        print(
            f"{name}: median {statistics.median(times) * 1e3:.1f} ms, 95% {ordered[int(len(ordered) * 0.95)] * 1e3:.1f} ms, most {ordered[-1] * 1e3:.1f} ms"
        )
    print(f"the whole command `trtdx cases search FILE --json`, best of five: {command_s * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
