"""What a reduction writes: the part with its own weights, its arrays, and the words and the command that go with them."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trtdx.compare.sides.side import SideSpec
from trtdx.engines.onnxruntime.segments import extract_subgraph
from trtdx.errors import TrtdxError
from trtdx.formats.onnx.edit import remove_metadata, save_model
from trtdx.formats.onnx.module_graph import CLASSES
from trtdx.formats.onnx.proto import SCOPES
from trtdx.model import Report, Section, Summary
from trtdx.optional import import_optional
from trtdx.tensors.cache_names import cache_key
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trtdx.compare.search.reduce_graph import PartCase
    from trtdx.engines.engine import Array
    from trtdx.host import Host
    from trtdx.model import Where
    from trtdx.rule import RuleBook


class Reproducer(NamedTuple):
    """What was written."""

    folder: str
    command: str  # what shows the mistake, from inside that folder
    operators: tuple[str, ...]  # the kinds that are left
    inputs: dict[str, tuple[int, ...]]  # the shapes of what is fed
    observed: float  # the relative error
    allowed: float  # what precision explains
    against: str  # whose values are taken for right
    runs: int  # how often a part was computed
    confirmed: bool  # the command was seen to find the mistake


class FailingPart(NamedTuple):
    """A failing case, the graph it is of, and whose values are right."""

    case: PartCase
    graph: Any
    against: str


def write_case(failing: FailingPart, target: Path) -> None:
    """Write the model with its own weights, and the arrays."""
    graphs = import_optional("onnx_ir", extra="onnx", purpose="write ONNX models")
    case = failing.case
    part = extract_subgraph(failing.graph, case.part.inputs, case.part.outputs)
    model = graphs.Model(part, ir_version=failing.graph.model.ir_version)
    remove_metadata(model, keep=(SCOPES, CLASSES))
    part.name = "reduced"
    names = {str(value.name): _identifier_name(str(value.name)) for value in (*part.inputs, *part.outputs)}
    for value in (*part.inputs, *part.outputs):
        value.name = names[str(value.name)]
    save_model(model, target / "model.onnx")
    save_arrays(target / "inputs", [{names[name]: sample[name] for name in sample} for sample in case.inputs])
    results = [{f":out.{names[name]}": sample[name] for name in sample} for sample in case.expected]
    save_arrays(target / "expected", results)


def _identifier_name(name: str) -> str:
    """Return a tensor's name as one word, and not one that stands for a decoder's tokens or cache."""
    word = re.sub(r"\W+", "_", name).strip("_") or "tensor"
    return f"fed_{word}" if word == "input_ids" or cache_key(word) else word


def save_arrays(stem: Path, samples: Sequence[Mapping[str, Array]]) -> Path:
    """Write arrays of one sample or of several; types that NumPy's own format lacks go into safetensors."""
    named: dict[str, Any] = {
        (f"step{at}/{name}" if len(samples) > 1 else name): array
        for at, sample in enumerate(samples)
        for name, array in sample.items()
    }
    if all(array.dtype.kind in "fiub" for array in named.values()):
        np.savez(stem.with_suffix(".npz"), **named)
        return stem.with_suffix(".npz")
    numpy_format = import_optional("safetensors.numpy", extra="torch", purpose="write bfloat16 arrays")
    contiguous = {name: np.ascontiguousarray(array) for name, array in named.items()}
    numpy_format.save_file(contiguous, stem.with_suffix(".safetensors"))
    return stem.with_suffix(".safetensors")


def reproduce_command(host: Host, spec: SideSpec, case: PartCase, target: Path, book: RuleBook) -> tuple[str, bool]:
    """Return the command that shows the mistake, and whether it was seen to; with a tolerance where it needs one."""
    from trtdx.compare.judge.tolerance import Tolerances
    from trtdx.compare.run import ComparisonPlan, compare
    from trtdx.compare.sides.side import ComparisonQuestion

    inputs, expected = (next(target.glob(f"{stem}.*")) for stem in ("inputs", "expected"))
    local = SideSpec(spec.kind, str(target / "model.onnx"), spec.options)
    plan = ComparisonPlan(
        reference=str(expected),
        candidate=local.text,
        question=ComparisonQuestion(inputs=str(inputs)),
        attribute=False,
    )
    local_text = SideSpec(spec.kind, "model.onnx", spec.options).text
    plain = f"trtdx compare {expected.name} {shlex.quote(local_text)} --inputs {inputs.name}"
    try:
        if compare(host, plan, book).findings:
            return plain, True
        largest = max(float(abs(array).max(initial=0.0)) for array in case.expected[0].values())
        most = case.observed * largest / 100
        findings = compare(host, plan, book, tolerance=Tolerances(atol=most)).findings
    except TrtdxError:
        return plain, False
    return f"{plain} --atol {most:.3g}", bool(findings)


def reproducer_from_case(failing: FailingPart, folder: str, command: str, confirmed: bool) -> Reproducer:
    case, graph = failing.case, failing.graph
    part = extract_subgraph(graph, case.part.inputs, case.part.outputs)
    operators = tuple(node.op_type for node in part)
    shapes = {name: tuple(array.shape) for name, array in case.inputs[0].items()}
    errors = case.observed, case.allowed
    return Reproducer(folder, command, operators, shapes, *errors, failing.against, case.runs, confirmed)


def write_readme(reproducer: Reproducer, where: Where, target: Path) -> None:
    shapes = "\n".join(
        f"- `{name}`: {'x'.join(map(str, shape)) or 'one number'}" for name, shape in reproducer.inputs.items()
    )
    text = f"""# {format_count(len(reproducer.operators), "operator")} that differ{"s" if len(reproducer.operators) == 1 else ""} from {reproducer.against}

Operators: {", ".join(reproducer.operators)}. First wrong tensor of the whole model: `{where.tensor}`, step {where.step}.
The result is off by {reproducer.observed:.3g} (relative L2); precision explains {reproducer.allowed:.3g}.

Run in this folder:

    {reproducer.command}

It is fed (`inputs`, right values):

{shapes}

`expected` holds what should come out: the values of {reproducer.against}.
"""
    (target / "README.md").write_text(text, encoding="utf-8")
    script = target / "reproduce.sh"
    script.write_text(f'#!/bin/sh\ncd "$(dirname "$0")" && exec {reproducer.command} "$@"\n', encoding="utf-8")
    script.chmod(0o755)


def reproducer_report(reproducer: Reproducer) -> Report:
    """Return what was written as a report."""
    left = re.sub(r"[\[\]']", "", str(list(reproducer.operators[:8])))
    text = (
        f"{reproducer.folder}: {format_count(len(reproducer.operators), 'operator')} ({left}) off by {reproducer.observed:.3g} "
        f"where precision explains {reproducer.allowed:.3g}, against {reproducer.against}"
    )
    rows = ((reproducer.command, "seen to fail" if reproducer.confirmed else "not confirmed", reproducer.runs),)
    columns = ("run in that folder", "tried", "parts computed")
    return Report(summary=Summary(text), sections=(Section("reduced", "a report that can be run", columns, rows),))
