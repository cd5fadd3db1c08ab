"""A plan to a consistent set of packages, proven by a real resolver against the index the user has."""

from __future__ import annotations

import shlex
import shutil
import sys
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from packaging.requirements import Requirement

from trtdx.check.judges.requirements import Conflict, list_conflicts, meets, table_requirements
from trtdx.check.nouns import canonical_name
from trtdx.model import Fix, Section, Stage
from trtdx.optional import is_installed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtdx.check.view import EnvironmentView
    from trtdx.host import CommandResult, Host
    from trtdx.model import Report

MOST_WISHES = 40
QUICK_S, PATIENT_S = 20.0, 900.0  # for advice, and for what was asked for by name
# A dead index must not keep anybody waiting.
PIP_LIMITS = ("--retries", "0", "--timeout", "5", "--disable-pip-version-check", "--no-input")
FRAME = "\u00d7\u2570\u2500> "  # what newer versions of pip draw around an error
CONFLICT_CODES = ("DX1100", "DX039", "DX040", "DX041", "DX042", "DX043", "DX044")


class MendingPlan(NamedTuple):
    """Which versions to install, and whether a resolver agrees.

    Attributes:
        wishes: the requirements handed to the resolver.
        changes: (package, version now, version then), as the resolver chose.
        resolver: what proved it; empty where nothing did.
        problem: why it is not proven.
    """

    wishes: tuple[str, ...]
    changes: tuple[tuple[str, str, str], ...] = ()
    resolver: str = ""
    problem: str = ""

    @property
    def is_proven(self) -> bool:
        return bool(self.resolver) and not self.problem


class Objection(NamedTuple):
    """An installed package that does not accept a version of the plan."""

    requirer: str
    name: str
    specifier: str
    version: str

    @property
    def text(self) -> str:
        return f"{self.requirer} requires {self.name}{self.specifier}, the plan has {self.version}"


class _Resolved(msgspec.Struct):
    name: str
    version: str


class _ResolvedItem(msgspec.Struct):
    metadata: _Resolved


class PipReport(msgspec.Struct):
    """What `pip install --dry-run --report` prints, as far as it is needed."""

    install: tuple[_ResolvedItem, ...] = ()


def make_plan(host: Host, view: EnvironmentView, *, is_patient: bool = False) -> MendingPlan | None:
    """Return a plan for the versions that do not fit; None where all do."""
    conflicts = [conflict for conflict in list_conflicts(view) if conflict.key in view.relevant or conflict.declared]
    if not conflicts or view.record.root:
        return None
    timeout_s = PATIENT_S if is_patient else QUICK_S
    plan = _try_wishes(host, view, list_wishes(view, conflicts), timeout_s)
    others = list_wishes_of_others(view, conflicts)
    if plan.is_proven or not plan.resolver or not others:
        return plan
    other_plan = _try_wishes(host, view, others, timeout_s)
    return other_plan if other_plan.is_proven else plan


def _try_wishes(host: Host, view: EnvironmentView, wishes: tuple[str, ...], timeout_s: float) -> MendingPlan:
    """Return what the resolver makes of the wishes; what others object to becomes a wish, while it can."""
    resolver, done = _resolve(host, view, wishes, timeout_s)
    if not resolver:
        return MendingPlan(wishes, problem="neither uv nor pip is there to resolve it")
    if done.status != 0:
        return MendingPlan(wishes, resolver=resolver, problem=_why_not(done))
    changes = _changes(view, done) if "uv" not in resolver else _changes_of_uv(view, done)
    objection = find_objection(view, {canonical_name(name): version for name, _, version in changes})
    if objection is None:
        return MendingPlan(wishes, changes, resolver)
    wished = {canonical_name(Requirement(wish).name) for wish in wishes}
    if canonical_name(objection.name) in wished or len(wishes) >= MOST_WISHES:
        return MendingPlan(wishes, changes, resolver, objection.text)
    return _try_wishes(host, view, (*wishes, f"{objection.name}{objection.specifier}"), timeout_s)


def list_wishes(view: EnvironmentView, conflicts: Sequence[Conflict]) -> tuple[str, ...]:
    """Return what the resolver is to fulfil: those who require as they are, and what they require."""
    table = table_requirements(view)
    requirers = {distribution.key: distribution for conflict in conflicts for distribution, _ in conflict.declared}
    if view.release and any(conflict.table for conflict in conflicts):
        requirers["tensorrt-llm"] = view.in_force["tensorrt-llm"]
    changing = {conflict.key for conflict in conflicts}
    kept = [f"{copy.name}=={copy.version}" for key, copy in requirers.items() if key not in changing]
    wanted_versions = []
    for conflict in conflicts:
        specifiers = [specifier for _, specifier in conflict.declared if specifier]
        if table.get(conflict.key):
            specifiers.append(table[conflict.key])
        wanted_versions.append(_wish(conflict.key, specifiers))
    return (*kept, *wanted_versions)


def list_wishes_of_others(view: EnvironmentView, conflicts: Sequence[Conflict]) -> tuple[str, ...]:
    """Return what to ask for when those who are not content must change: another version of them, and what all others require.

    Empty where it is TensorRT-LLM that is not content: the release is what the user came for.
    """
    table = table_requirements(view)
    movable = {copy.key: copy for conflict in conflicts for copy, _ in conflict.declared}
    if "tensorrt-llm" in movable or not movable:
        return ()
    moved = [_wish(copy.name, [f"!={copy.version}", table.get(key, "")]) for key, copy in movable.items()]
    contested = [conflict.key for conflict in conflicts if conflict.key not in movable]
    return (
        *moved,
        *(_wish(key, [*_specifiers_of_others(view, key, movable), table.get(key, "")]) for key in contested),
    )


def _specifiers_of_others(view: EnvironmentView, key: str, movable: Mapping[str, object]) -> list[str]:
    return [
        str(requirement.specifier)
        for distribution in view.in_force.values()
        for requirement in view.requirements(distribution)
        if distribution.key not in movable and canonical_name(requirement.name) == key
    ]


def _wish(name: str, specifiers: Sequence[str]) -> str:
    """Return one requirement that is all of these."""
    parts = dict.fromkeys(part.strip() for specifier in specifiers if specifier for part in specifier.split(","))
    return f"{name}{','.join(sorted(parts))}"


def _resolve(host: Host, view: EnvironmentView, wishes: tuple[str, ...], timeout_s: float) -> tuple[str, CommandResult]:
    python = view.record.python_path
    uv = shutil.which("uv", path=host.environment().get("PATH"))
    if uv:
        argv = [uv, "pip", "install", "--dry-run", "--python", python, *wishes]
        return "uv pip install --dry-run", host.run(argv, timeout_s=timeout_s)
    pip = [python, "-m", "pip"] if "pip" in view.in_force else [sys.executable, "-m", "pip", "--python", python]
    if "pip" not in view.in_force and not is_installed("pip"):
        return "", host.run(["true"], timeout_s=1)
    argv = [*pip, "install", "--dry-run", "--quiet", "--report", "-", *PIP_LIMITS, *wishes]
    return "pip install --dry-run", host.run(argv, timeout_s=timeout_s)


def _why_not(done: CommandResult) -> str:
    lines = [line.strip() for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ").lstrip(FRAME) for line in lines if line.startswith(("ERROR: ", *FRAME[:2]))]
    return "; ".join((errors or lines)[-2:])[:300] or done.problem or f"it ended with status {done.status}"


def _changes(view: EnvironmentView, done: CommandResult) -> tuple[tuple[str, str, str], ...]:
    try:
        report = msgspec.json.decode(done.stdout, type=PipReport)
    except msgspec.DecodeError:
        return ()
    return tuple(_change(view, item.metadata.name, item.metadata.version) for item in report.install)


def _changes_of_uv(view: EnvironmentView, done: CommandResult) -> tuple[tuple[str, str, str], ...]:
    """Return the lines that uv marks with a plus: ` + torch==2.9.1`."""
    lines = [line.split() for line in done.stderr.decode("utf-8", "replace").splitlines()]
    pairs = [line[1].partition("==") for line in lines if len(line) == 2 and line[0] == "+" and "==" in line[1]]
    return tuple(_change(view, name, version) for name, _, version in pairs)


def _change(view: EnvironmentView, name: str, version: str) -> tuple[str, str, str]:
    installed = view.in_force.get(canonical_name(name))
    return name, installed.version if installed else "", version


def find_objection(view: EnvironmentView, changes: dict[str, str]) -> Objection | None:
    """Return which installed package would not accept the new versions; a resolver only looks at what it is asked."""
    for distribution in view.in_force.values():
        if distribution.key in changes:
            continue
        for requirement in view.requirements(distribution):
            version = changes.get(canonical_name(requirement.name))
            if version and not meets(version, str(requirement.specifier)):
                return Objection(distribution.title, requirement.name, str(requirement.specifier), version)
    return None


def with_plan(report: Report, view: EnvironmentView, plan: MendingPlan | None) -> Report:
    """Return the report with the plan in its fixes and as a table."""
    if plan is None:
        return report
    command = f"{view.pip} " + shlex.join([f"{name}=={version}" for name, _, version in plan.changes] or plan.wishes)
    if plan.is_proven:
        text = f"install the versions that fit together (proven with {plan.resolver} against your index)"
    else:
        text = f"install the versions that fit together (not proven, because {plan.problem})"
    fix = Fix(Stage.INSTALL, text, command)
    findings = tuple(
        msgspec.structs.replace(finding, fixes=(fix, *finding.fixes[1:])) if finding.code in CONFLICT_CODES else finding
        for finding in report.findings
    )
    rows = plan.changes or tuple((wish, "", "") for wish in plan.wishes)
    note = f"proven with {plan.resolver}" if plan.is_proven else f"not proven: {plan.problem}"
    section = Section("plan", "Plan", ("package", "now", "then"), rows, note=note)
    return msgspec.structs.replace(report, findings=findings, sections=(section, *report.sections))
