"""Imports tried in a process of their own: a crash or a hang there is a fact, not our end."""

from __future__ import annotations

import json
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.check.nouns import ErrorLink, ImportTrial
from trtdx.redact import redact_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtdx.host import Host

PROBE = Path(__file__).parent.parent / "probe.py"
# As `python -c` runs a user's line: the current folder is first on the path.
STARTER = 'import sys; p = sys.argv.pop(1); exec(compile(open(p, encoding="utf-8").read(), p, "exec"))'
BESIDE = 2  # imports at once
GRACE_S = 5.0
STILL_MOVING_S = 2.0
MOST_REPORT = 32 << 20
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in ', re.MULTILINE)


def run_trials(
    host: Host, interpreter: str, modules: Sequence[str], timeout_s: float, *, budget_s: float
) -> tuple[list[ImportTrial], list[str]]:
    """Return what came of importing modules, and those there was no time for.

    The first module is the one that imports the others; what works inside it is not tried again.
    """
    trials: list[ImportTrial] = []
    inner: set[str] = set()
    if modules:
        first, inner = run_trial(host, interpreter, modules[0], timeout_s)
        trials.append(first)
    touched = {name for trial in trials for name in _modules_in_trouble(trial)}
    rest = [name for name in modules[1:] if name not in inner and name not in touched]
    spent = trials[0].seconds if trials else 0.0
    affordable = max(1, int(max(0.0, budget_s - spent) // max(timeout_s, 0.1)) * BESIDE)
    with ThreadPoolExecutor(BESIDE) as pool:
        done = pool.map(lambda name: run_trial(host, interpreter, name, timeout_s)[0], rest[:affordable])
        trials += list(done)
    trials += [ImportTrial(module=name, outcome="works") for name in modules[1:] if name in inner]
    return trials, rest[affordable:]


def _modules_in_trouble(trial: ImportTrial) -> Iterable[str]:
    """Yield what is known not to work from the trial of another module that imports it."""
    if trial.outcome in ("hang", "crash"):
        yield from (name for name, _ in trial.loading)


def run_trial(
    host: Host, interpreter: str, module: str, timeout_s: float, *, prefix: Sequence[str] = ()
) -> tuple[ImportTrial, set[str]]:
    """Return what came of one import, and the modules that were imported without fault on the way.

    Args:
        host: the machine.
        interpreter: whose environment it is.
        module: what to import.
        timeout_s: how long it may take.
        prefix: a command that runs the interpreter under other conditions, such as `env -u LD_PRELOAD`.
    """
    with tempfile.TemporaryDirectory(prefix="trtdx-import-") as folder:
        report = Path(folder) / "report"
        argv = [*prefix, interpreter, "-c", STARTER, str(PROBE), "--import", module, str(report), str(timeout_s)]
        done = host.run(argv, timeout_s=timeout_s + GRACE_S)
        text = report.read_bytes()[:MOST_REPORT].decode("utf-8", "replace") if report.exists() else ""
    output = (done.stderr[-3000:] or done.stdout[-1000:]).decode("utf-8", "replace")
    return parse_trial(module, text, done.status, redact_secrets(output), timeout_s)


def parse_trial(
    module: str, text: str, status: int | None, output: str, timeout_s: float
) -> tuple[ImportTrial, set[str]]:
    """Return the trial that a report tells of, and the modules that were imported without fault."""
    events, prose = _split_report(text)
    loading = _unfinished(events)
    failures = tuple(
        (str(event.get("module", "")), str(event.get("path", "")), _link(event))
        for event in events
        if event.get("event") == "fail"
    )
    last: dict[str, Any] = next((event for event in reversed(events) if event.get("event") in ("done", "error")), {})
    trial = ImportTrial(
        module=module,
        outcome=_outcome(last, prose, status, events),
        seconds=round(float(last.get("seconds") or timeout_s), 2),
        version=str(last.get("version", "")),
        path=str(last.get("path", "")),
        versions={name: (str(pair[0]), str(pair[1])) for name, pair in last.get("versions", {}).items()},
        status=status if status is not None else 0,
        chain=tuple(_link(link) for link in last.get("chain", ())),
        failures=failures[:40],
        loading=loading,
        stack=_main_stack(prose),
        library=next((str(event["path"]) for event in reversed(events) if event.get("event") == "library"), ""),
        output=output,
    )
    failed = {str(event.get("module")) for event in events if event.get("failed") or event.get("event") == "fail"}
    ended = {str(event.get("module")) for event in events if event.get("event") == "end"}
    return trial, (ended - failed) | ({module} if trial.outcome == "works" else set())


def _outcome(last: dict[str, Any], prose: str, status: int | None, events: list[dict[str, Any]]) -> str:
    if last:
        return "error" if last["event"] == "error" else "works" if last.get("path") else "hollow"
    if "Timeout (" in prose or status is None:
        times = [float(event.get("at", 0)) for event in events] or [0.0]
        moving = len(times) > 50 and times[-1] - times[-2] < STILL_MOVING_S and "slow" in _pace(times)
        return "slow" if moving else "hang"
    return "crash" if status else "unknown"


def _pace(times: list[float]) -> str:
    """Return "slow" where modules were still being loaded all along, "stuck" where nothing had moved for long."""
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return "slow" if max(gaps, default=0) < STILL_MOVING_S * 2 else "stuck"


def _split_report(text: str) -> tuple[list[dict[str, Any]], str]:
    events, prose = [], []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                events.append(json.loads(line))
                continue
            except ValueError:
                pass
        prose.append(line)
    return [event for event in events if isinstance(event, dict)], "\n".join(prose)


def _unfinished(events: list[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
    stack: list[tuple[str, str]] = []
    for event in events:
        name = str(event.get("module", ""))
        if event.get("event") == "begin":
            stack.append((name, str(event.get("path", ""))))
        elif event.get("event") == "end" and stack and stack[-1][0] == name:
            stack.pop()
    return tuple(stack[-30:])


def _main_stack(prose: str) -> tuple[tuple[str, int], ...]:
    """Return the frames of the thread that imports: the one that crashed, else the one with the probe in it."""
    threads = re.split(r"^(?:Current thread|Thread) 0x.*$", prose, flags=re.MULTILINE)
    importing = [thread for thread in threads if "check/probe.py" in thread] or threads[-1:]
    frames = _FRAME.findall(importing[-1]) if importing else []
    return tuple((file, int(line)) for file, line in frames if "importlib" not in file and "check/probe.py" not in file)


def _link(facts: Any) -> ErrorLink:
    try:
        return msgspec.convert(facts, ErrorLink)
    except msgspec.ValidationError:
        return ErrorLink()
