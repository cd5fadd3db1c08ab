"""A plan file, read and expanded: variables put in, variants told apart, steps in an order that works."""

from __future__ import annotations

import graphlib
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trtdx.build.plan.nouns import PlanFile, PlannedStep
from trtdx.errors import InputError, UnknownNameError
from trtdx.formats.documents import UnreadableError
from trtdx.formats.yaml_documents import read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtdx.build.plan.nouns import StepDeclaration
    from trtdx.formats.yaml_documents import YamlDocument
    from trtdx.host import Host

PLACEHOLDER = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")
STEP_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
STATE_FOLDER = ".trtdx"


class BuildPlan:
    """A plan whose steps are in order, and where it and its outputs lie."""

    def __init__(self, path: Path, file: PlanFile, steps: tuple[PlannedStep, ...]) -> None:
        self.path, self.file, self.steps = path, file, steps
        self.folder = path.parent
        self.output = Path(self.folder / file.output)
        self.name = file.name or path.stem

    @property
    def state(self) -> Path:
        return self.output / STATE_FOLDER

    def step(self, key: str) -> PlannedStep:
        return next(step for step in self.steps if step.key == key)

    def select(self, names: tuple[str, ...]) -> list[PlannedStep]:
        """Return the named steps (of every variant) and all that they need; all steps where none is named."""
        if not names:
            return list(self.steps)
        known = {step.key for step in self.steps} | {step.key.partition("@")[0] for step in self.steps}
        for name in names:
            if name not in known:
                raise UnknownNameError("step", name, sorted(known))
        waiting = [step for step in self.steps if step.key in names or step.key.partition("@")[0] in names]
        keys: set[str] = set()
        while waiting:
            step = waiting.pop()
            keys.add(step.key)
            waiting += [self.step(key) for key in step.needs if key not in keys]
        return [step for step in self.steps if step.key in keys]


def read_plan(host: Host, path: str) -> BuildPlan:
    """Return the plan in a file, or say on which line it is wrong."""
    if host.kind(path) == "absent":
        raise InputError(f"there is no plan {path}", fix="trtdx build init   # writes one to begin with")
    try:
        document = read_yaml(host, path)
    except UnreadableError as err:
        raise InputError(f"the plan {path} {err}") from err
    if document.duplicates:
        raise InputError(f"the plan says something twice: {document.duplicates[0]}")
    try:
        file = msgspec.convert(document.data, PlanFile, strict=False)
    except msgspec.ValidationError as err:
        raise InputError(_place_error(document, str(err))) from err
    _check_plan(document, file)
    return BuildPlan(Path(path).absolute(), file, _expand_steps(file))


def _place_error(document: YamlDocument, message: str) -> str:
    match = re.search(r"\$\.?([\w.\[\]-]*)", message)
    dotted = re.sub(r"\[\.\.\.\]", "", match[1]) if match else ""
    return f"{document.place_of(dotted) if dotted else document.path}: {message.partition(' - at ')[0]}"


def _check_plan(document: YamlDocument, file: PlanFile) -> None:
    claimed: dict[str, str] = {}
    for name, step in file.steps.items():
        where = document.place_of(f"steps.{name}")
        if not STEP_NAME.fullmatch(name) or "@" in name:
            raise InputError(f"{where}: {name!r} is no name for a step", fix="use letters, digits, - and _")
        if bool(step.command) == bool(step.compile):
            raise InputError(f"{where}: the step needs a command or compile, and not both")
        if not step.outputs:
            raise InputError(f"{where}: the step names no output, so nothing tells whether it was done")
        for output in step.outputs:
            _check_output(where, output)
            if output in claimed:
                raise InputError(f"{where}: {output} is also an output of {claimed[output]}")
            claimed[output] = name
        for tool in step.tools:
            if tool not in file.tools and tool not in KNOWN_TOOLS:
                raise UnknownNameError("tool", tool, [*file.tools, *KNOWN_TOOLS])


def _check_output(where: str, output: str) -> None:
    path = Path(output)
    if path.is_absolute() or ".." in path.parts or not path.parts or path.parts[0] == STATE_FOLDER:
        raise InputError(
            f"{where}: the output {output!r} does not lie below the plan's output folder",
            fix="name it relative to `output`, without ..",
        )


def python_version_command(package: str) -> str:
    return f"python3 -c \"import importlib.metadata as m; print(m.version('{package}'))\""


KNOWN_TOOLS = {
    "tensorrt": python_version_command("tensorrt"),
    "tensorrt_rtx": python_version_command("tensorrt_rtx"),
    "tensorrt_llm": python_version_command("tensorrt_llm"),
    "torch": python_version_command("torch"),
    "transformers": python_version_command("transformers"),
    "modelopt": python_version_command("nvidia-modelopt"),
    "onnx": python_version_command("onnx"),
    "python": "python3 --version",
    "cmake": "cmake --version | head -n 1",
    "ninja": "ninja --version",
    "cxx": "${CXX:-c++} --version | head -n 1",
    "nvcc": "nvcc --version | tail -n 2",
}


def _expand_steps(file: PlanFile) -> tuple[PlannedStep, ...]:
    order = _step_order(file)
    variants = list(file.variants) or [""]
    keys: dict[tuple[str, str], str] = {}  # (step, variant): key
    planned: dict[str, PlannedStep] = {}
    for name in order:
        texts = {variant: _resolve_step(file, name, variant, keys) for variant in variants}
        is_shared = len(set(texts.values())) == 1
        for variant in variants:
            key = name if is_shared or not variant else f"{name}@{variant}"
            keys[name, variant] = key
            planned.setdefault(key, _plan_step(file, name, "" if is_shared else variant, key, keys, variant))
    return tuple(planned.values())


def _step_order(file: PlanFile) -> list[str]:
    graph = {name: {needed for needed, _ in _step_references(step)} for name, step in file.steps.items()}
    for name, needed in graph.items():
        for other in needed - set(file.steps):
            raise UnknownNameError(f"step (an input of {name})", other, file.steps)
    try:
        return list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as err:
        raise InputError(f"steps need each other in a circle: {' needs '.join(err.args[1])}") from err


def _step_references(step: StepDeclaration) -> Iterator[tuple[str, str]]:
    """Yield the steps that inputs such as @convert/config.json name, and what of their outputs is meant."""
    for text in step.inputs:
        if text.startswith("@"):
            name, _, rest = text[1:].partition("/")
            yield name, rest


def _resolve_step(file: PlanFile, name: str, variant: str, keys: Mapping[tuple[str, str], str]) -> str:
    """Return all that a variant can change in a step, as one text."""
    step = file.steps[name]
    variables = _variables(file, variant)
    parts = [_put_variables(text, variables, name) for text in (step.command, *step.inputs, *step.environment.values())]
    parts += [_put_variables(text, variables, name) for text in _compile_texts(step)]
    parts += [keys[needed, variant] for needed, _ in _step_references(step)]
    return "\0".join(parts)


def _compile_texts(step: StepDeclaration) -> tuple[str, ...]:
    settings = step.compile
    return (settings.onnx, *settings.profiles, *settings.sm, settings.tap, settings.mark) if settings else ()


def _variables(file: PlanFile, variant: str) -> dict[str, str]:
    chosen = file.variants[variant].variables if variant else {}
    merged = {**file.variables, **chosen}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in merged.items()}


def _put_variables(text: str, variables: Mapping[str, str], step: str) -> str:
    """Return a text with the plan's variables put in; inputs and outputs wait for their paths."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name.partition(".")[0] in ("input", "inputs", "output", "outputs"):
            return match[0]
        if name not in variables:
            raise UnknownNameError(f"variable (in step {step})", name, variables)
        return variables[name]

    return PLACEHOLDER.sub(value, text)


def _plan_step(
    file: PlanFile, name: str, prefix: str, key: str, keys: Mapping[tuple[str, str], str], variant: str
) -> PlannedStep:
    step, variables = file.steps[name], _variables(file, variant)
    below = f"{prefix}/" if prefix else ""
    settings = step.compile and msgspec.structs.replace(
        step.compile,
        onnx=_put_variables(step.compile.onnx, variables, name),
        profiles=tuple(_put_variables(text, variables, name) for text in step.compile.profiles),
        sm=tuple(_put_variables(text, variables, name) for text in step.compile.sm),
        tap=_put_variables(step.compile.tap, variables, name),
        mark=_put_variables(step.compile.mark, variables, name),
    )
    environment = {name_: _put_variables(value, variables, name) for name_, value in step.environment.items()}
    inputs = [_put_variables(text, variables, name) for text in step.inputs]
    inputs += [settings.onnx] if settings and settings.onnx not in inputs else []
    return PlannedStep(
        key=key,
        declaration=msgspec.structs.replace(step, compile=settings, environment=environment),
        command=_put_variables(step.command, variables, name),
        inputs=tuple(_with_key(text, keys, variant) for text in inputs),
        needs=tuple(dict.fromkeys(keys[needed, variant] for needed, _ in _step_references(step))),
        outputs=tuple(below + output for output in step.outputs),
    )


def _with_key(text: str, keys: Mapping[tuple[str, str], str], variant: str) -> str:
    if not text.startswith("@"):
        return text
    name, slash, rest = text[1:].partition("/")
    return f"@{keys[name, variant]}{slash}{rest}"


def put_paths(text: str, inputs: list[str], outputs: list[str]) -> str:
    """Return a command with the paths of inputs and outputs put in, quoted for a shell."""

    def value(match: re.Match[str]) -> str:
        name, _, number = match[1].partition(".")
        paths = inputs if name.startswith("input") else outputs
        if name in ("inputs", "outputs") and not number:
            return shlex.join(paths)
        at = int(number) if number.isdigit() else 0
        if at >= len(paths):
            raise InputError(f"the command asks for {match[0]}, but the step has {len(paths)} of them")
        return shlex.quote(paths[at])

    return PLACEHOLDER.sub(value, text)
