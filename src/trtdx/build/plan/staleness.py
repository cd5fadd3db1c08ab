"""Which steps are stale, and what changed: a step is when something that can change its result did."""

from __future__ import annotations

import glob
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.build.plan.fingerprint import files_below, read_flat_document
from trtdx.build.plan.nouns import StepFingerprint, StepState
from trtdx.build.plan.read_plan import KNOWN_TOOLS, put_paths
from trtdx.errors import InputError
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from trtdx.build.plan.fingerprint import FileHasher
    from trtdx.build.plan.nouns import PlannedStep, StepRecord
    from trtdx.build.plan.read_plan import BuildPlan
    from trtdx.build.plan.state import PlanState
    from trtdx.host import Host

# Variables that compilers and interpreters obey, whether a plan names them or not.
OBEYED_VARIABLES = (
    "CC",
    "CXX",
    "CFLAGS",
    "CXXFLAGS",
    "LDFLAGS",
    "CUDACXX",
    "CUDAARCHS",
    "CUDA_HOME",
    "PYTHONPATH",
    "LD_PRELOAD",
)
TOOL_TIMEOUT_S = 60.0
MAX_DOCUMENTS = 64
MAX_CHANGES = 4


class Surveyor:
    """Looks at inputs, tools and environment of one plan, each tool asked once."""

    def __init__(self, host: Host, plan: BuildPlan, hasher: FileHasher) -> None:
        self._host, self._plan, self._hasher = host, plan, hasher
        self._versions: dict[str, str] = {}

    def ask_tools(self, steps: Sequence[PlannedStep]) -> None:
        """Ask all tools that these steps use for their version, side by side."""
        names = sorted({name for step in steps for name in step.declaration.tools})
        names += ["gpu"] if any(step.declaration.gpu for step in steps) else []
        with ThreadPoolExecutor(max_workers=8) as pool:
            self._versions = dict(zip(names, pool.map(self._ask_tool, names), strict=True))

    def _ask_tool(self, name: str) -> str:
        gpu = "nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader | sort -u"
        command = gpu if name == "gpu" else self._plan.file.tools.get(name) or KNOWN_TOOLS[name]
        done = self._host.run(["bash", "-c", f"cd {_quote(self._plan.folder)} && {command}"], timeout_s=TOOL_TIMEOUT_S)
        text = " ".join(done.stdout.decode("utf-8", "replace").split())
        return text if done.status == 0 and text else "not there"

    def fingerprint(self, step: PlannedStep) -> StepFingerprint:
        """Return all that can change what a step makes.

        Raises:
            InputError: an input is not there or cannot be read.
        """
        inputs = {name: self._hasher.digest(path) for name, path in self.input_files(step)}
        environment = self._host.environment()
        names = (*OBEYED_VARIABLES, *step.declaration.uses_variables)
        return StepFingerprint(
            command=self._declared_command(step),
            outputs=step.outputs,
            inputs=inputs,
            environment={
                **{name: environment[name] for name in names if name in environment},
                **step.declaration.environment,
            },
            tools={name: self._versions[name] for name in step.declaration.tools},
            gpu=self._versions["gpu"] if step.declaration.gpu else "",
        )

    def input_files(self, step: PlannedStep) -> Iterator[tuple[str, Path]]:
        """Yield every file a step reads, with the name it goes by in records."""
        for text, path in self.input_paths(step):
            for file in files_below(path):
                name = text if file == path else f"{text.rstrip('/')}/{file.relative_to(path)}"
                yield name, file

    def input_paths(self, step: PlannedStep) -> Iterator[tuple[str, Path]]:
        """Yield the files and folders that the inputs of a step name."""
        for text in step.inputs:
            paths = self._step_outputs(text) if text.startswith("@") else self._matching(text)
            if not paths:
                raise InputError(f"the input {text} of {step.key} is not there")
            yield from paths

    def _matching(self, pattern: str) -> list[tuple[str, Path]]:
        base = self._plan.folder
        if not glob.has_magic(pattern):
            path = base / pattern
            return [(pattern, path)] if path.exists() else []
        matches = sorted(glob.glob(pattern, root_dir=base, recursive=True))  # noqa: PTH207 (patterns may be absolute)
        return [(name, base / name) for name in matches if (base / name).is_file()]

    def _step_outputs(self, text: str) -> list[tuple[str, Path]]:
        key, _, rest = text[1:].partition("/")
        needed = self._plan.step(key)
        if not rest:
            paths = [(f"@{key}/{output}", self._plan.output / output) for output in needed.outputs]
        else:
            prefix = f"{key.partition('@')[2]}/" if "@" in key else ""
            below = [output for output in needed.outputs if (prefix + rest + "/").startswith(output + "/")]
            name = prefix + rest if below else f"{needed.outputs[0]}/{rest}"
            paths = [(text, self._plan.output / name)]
        return [(name, path) for name, path in paths if path.exists()]

    def _declared_command(self, step: PlannedStep) -> str:
        """Return the command without the paths of this machine, or what is compiled and how."""
        settings = step.declaration.compile
        if settings is not None:
            return "compile " + msgspec.json.encode(settings).decode()
        return put_paths(step.command, [name for name, _ in self.input_paths(step)], list(step.outputs))

    def documents(self, step: PlannedStep) -> dict[str, dict[str, Any]]:
        """Return the small JSON and YAML files among the inputs, flat."""
        documents: dict[str, dict[str, Any]] = {}
        for name, path in self.input_files(step):
            if len(documents) < MAX_DOCUMENTS and (flat := read_flat_document(path)) is not None:
                documents[name] = flat
        return documents


def _quote(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))


def examine_step(state: PlanState, surveyor: Surveyor, hasher: FileHasher, step: PlannedStep) -> StepState:
    """Return whether a step has to run, and every reason."""
    fingerprint = surveyor.fingerprint(step)
    record = state.read_record(step.key)
    if record is None:
        foreign = tuple(output for output in step.outputs if (state.plan.output / output).exists())
        unmade = () if step.declaration.in_place else foreign
        return StepState(
            step=step, fingerprint=fingerprint, record=None, reasons=("it was never made",), foreign=unmade
        )
    reasons = [
        *_changes(record, fingerprint, lambda: surveyor.documents(step)),
        *_output_changes(state, hasher, record, step),
    ]
    return StepState(step=step, fingerprint=fingerprint, record=record, reasons=tuple(reasons))


def _changes(record: StepRecord, now: StepFingerprint, documents: Any) -> Iterator[str]:
    then = record.fingerprint
    if then.command != now.command:
        yield f"the command: {_word_changes(then.command, now.command)}"
    if then.outputs != now.outputs:
        yield f"the outputs: {', '.join(then.outputs)} → {', '.join(now.outputs)}"
    yield from (f"{name} {change}" for name, change in _value_changes(then.tools, now.tools))
    yield from (f"variable {name}: {change}" for name, change in _value_changes(then.environment, now.environment))
    if then.gpu != now.gpu:
        yield f"GPU {then.gpu or 'none'} → {now.gpu or 'none'}"
    yield from _input_changes(record, now, documents)


def _value_changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[tuple[str, str]]:
    return [
        (name, f"{then.get(name, 'not set')} → {now.get(name, 'not set')}")
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]


def _word_changes(then: str, now: str) -> str:
    """Return the words that differ between two commands."""
    old, new = then.split(), now.split()
    gone = [word for word in old if word not in new]
    came = [word for word in new if word not in old]
    return (
        f"{' '.join(gone) or '(nothing)'} → {' '.join(came) or '(nothing)'}"[:200]
        if gone or came
        else "its words are in another order"
    )


def _input_changes(record: StepRecord, now: StepFingerprint, documents: Any) -> Iterator[str]:
    then = record.fingerprint
    changed = [name for name in now.inputs if name in then.inputs and then.inputs[name] != now.inputs[name]]
    added, gone = sorted(set(now.inputs) - set(then.inputs)), sorted(set(then.inputs) - set(now.inputs))
    known = documents() if any(name in record.documents for name in changed) else {}
    for name in changed[:MAX_CHANGES]:
        yield f"{name}: {_document_changes(record.documents.get(name), known.get(name))}"
    if len(changed) > MAX_CHANGES:
        yield f"the contents of {len(changed) - MAX_CHANGES} more inputs"
    if added:
        yield f"new: {abbreviate_list(added, 3)}"
    if gone:
        yield f"gone: {abbreviate_list(gone, 3)}"


def _document_changes(then: dict[str, Any] | None, now: dict[str, Any] | None) -> str:
    if then is None or now is None:
        return "its contents"
    names = [name for name in {**then, **now} if then.get(name, ...) != now.get(name, ...)]
    shown = [f"{name} {_shown(then, name)} → {_shown(now, name)}" for name in names]
    return abbreviate_list(shown, MAX_CHANGES, "; ") if shown else "its layout or comments"


def _shown(document: dict[str, Any], name: str) -> str:
    if name not in document:
        return "(not set)"
    text = document[name] if isinstance(document[name], str) else msgspec.json.encode(document[name]).decode()
    return text if len(text) <= 40 else text[:37] + "..."


def _output_changes(state: PlanState, hasher: FileHasher, record: StepRecord, step: PlannedStep) -> Iterator[str]:
    """Yield what is not as the step left it; of folders that stay, only what is gone."""
    missing = [name for name in record.files if not (state.plan.output / name).is_file()]
    if missing:
        yield f"outputs are gone: {abbreviate_list(missing, 3)}"
    if step.declaration.in_place:
        return
    changed = [
        name
        for name in record.files
        if name not in missing and hasher.digest(state.plan.output / name) != record.files[name]
    ]
    if changed:
        yield f"outputs were changed by hand: {abbreviate_list(changed, 3)}"
