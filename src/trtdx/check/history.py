"""The last good check of each environment, and what has changed since."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trtdx.errors import InputError
from trtdx.model import Section, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.check.view import EnvironmentView
    from trtdx.host import Host
    from trtdx.model import Report

DAY_S = 86400


class GoodCheck(msgspec.Struct, frozen=True):
    """What an environment was like when nothing was wrong with it."""

    taken_at: float
    python: str
    driver: str
    distributions: dict[str, str]
    variables: dict[str, str]


def history_path(host: Host, view: EnvironmentView) -> str:
    variables = host.environment()
    cache = variables.get("XDG_CACHE_HOME") or f"{variables.get('HOME', '/root')}/.cache"
    name = hashlib.blake2b(view.record.python_path.encode(), digest_size=8).hexdigest()
    return str(Path(cache) / "trtdx" / "checks" / f"{name}.json")


def keep_if_good(host: Host, view: EnvironmentView, report: Report) -> None:
    """Remember a check without errors and warnings; a cache that cannot be written is no reason to fail."""
    worst = report.worst_severity()
    if view.record.root or (worst is not None and worst is not Severity.NOTE):
        return
    good = GoodCheck(
        taken_at=view.record.taken_at,
        python=view.python.version,
        driver=view.record.machine.driver,
        distributions={key: copy.version for key, copy in view.in_force.items()},
        variables=_lasting_variables(view),
    )
    try:
        host.write(history_path(host, view), msgspec.json.encode(good))
    except InputError:
        return


def _lasting_variables(view: EnvironmentView) -> dict[str, str]:
    names = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "CUDA_VISIBLE_DEVICES", "PATH")
    return {name: view.record.python.variables[name] for name in names if name in view.record.python.variables}


def changes_since_good(host: Host, view: EnvironmentView) -> Section:
    """Return what has changed since the last good check, the newest change first."""
    try:
        with host.open(history_path(host, view)) as stream:
            good = msgspec.json.decode(stream.read(), type=GoodCheck)
    except (InputError, msgspec.DecodeError, UnicodeDecodeError):
        note = "no good check of this environment has been kept yet; the next one without errors and warnings is"
        return Section("since", "Changed since the last good check", ("what", "was", "is", "when"), (), note=note)
    rows = tuple(_changes(view, good))
    taken = _day(good.taken_at, view.record.taken_at)
    note = f"the last good check was {taken}" + ("" if rows else "; nothing has changed")
    return Section("since", "Changed since the last good check", ("what", "was", "is", "when"), rows, note=note)


def _changes(view: EnvironmentView, good: GoodCheck) -> Iterator[tuple[str, str, str, str]]:
    now = view.record.taken_at
    for key in sorted({*good.distributions, *view.in_force}):
        was, copy = good.distributions.get(key, ""), view.in_force.get(key)
        if was != (copy.version if copy else ""):
            yield key, was or "not there", copy.version if copy else "gone", _day(copy.changed_at, now) if copy else ""
    for what, was, new in (
        ("Python", good.python, view.python.version),
        ("driver", good.driver, view.record.machine.driver),
    ):
        if was != new:
            yield what, was, new, ""
    variables = _lasting_variables(view)
    for name in sorted({*good.variables, *variables}):
        if good.variables.get(name) != variables.get(name):
            yield name, good.variables.get(name, "not set"), variables.get(name, "not set"), ""


def _day(moment: float, now: float) -> str:
    """Return a day in words and as a date: "yesterday (2026-11-17)"."""
    if moment <= 0:
        return ""
    date = datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%d")
    days = int(now // DAY_S) - int(moment // DAY_S)
    return f"{['today', 'yesterday'][days] if days in (0, 1) else f'{days} days ago'} ({date})"
