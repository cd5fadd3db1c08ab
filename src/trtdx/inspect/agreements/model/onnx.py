"""ONNX models: what is wrong in the file, and whether optimization profiles fit its inputs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.profiles import onnx_profiles, onnx_silent_faults
from trtdx.inspect.profiles.onnx_case import is_one_size, named_spans, profile_cases
from trtdx.inspect.profiles.onnx_check import NOT_CHECKED
from trtdx.inspect.profiles.onnx_operators import foreign_operators
from trtdx.inspect.readers.onnx.onnx_file import NEWEST_IR, NEWEST_OPSET
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment
    from trtdx.inspect.profiles.onnx_case import ProfileCase

PROTOBUF_LIMIT = 2**31 - 1
MAX_NAMED = 3


@make_agreement("DX142", "onnx", "profiles")
def every_dynamic_input_has_shapes(deployment: Deployment) -> Iterator[Violation]:
    """Each optimization profile gives shapes for every dynamic input of the model."""
    for case in profile_cases(deployment, "profiles"):
        yield from onnx_profiles.missing_inputs(case)


@make_agreement("DX143", "onnx", "profiles")
def ranges_fit_the_inputs(deployment: Deployment) -> Iterator[Violation]:
    """Each range of a profile is in order, has the input's rank and fixed sizes, and its optima fit together."""
    for case in profile_cases(deployment, "profiles"):
        yield from onnx_profiles.invalid_ranges(case)
        yield from _unmet_shapes(case, "opt", Severity.ERROR)


@make_agreement("DX936", "onnx", "profiles")
def profiles_name_inputs(deployment: Deployment) -> Iterator[Violation]:
    """Each name in a profile is an input of the model."""
    for case in profile_cases(deployment, "profiles"):
        yield from onnx_profiles.unknown_inputs(case)


@make_agreement("DX937", "onnx", "profiles", "build-log")
def one_dimension_has_one_range(deployment: Deployment) -> Iterator[Violation]:
    """A dimension that several inputs share has the same bounds in all of them."""
    for case in _accepted_cases(deployment):
        yield from onnx_silent_faults.differing_ranges(case)
        if not any(onnx_silent_faults.differing_ranges(case)) and not any(
            onnx_silent_faults.unmet_dimension_sums(case)
        ):
            yield from _unmet_shapes(case, "max", Severity.WARNING)


@make_agreement("DX938", "onnx", "profiles", "build-log")
def mask_is_past_and_sequence(deployment: Deployment) -> Iterator[Violation]:
    """The attention mask is as long as the cached and the new tokens together, in every bound."""
    for case in _accepted_cases(deployment):
        yield from onnx_silent_faults.unmet_dimension_sums(case)


@make_agreement("DX939", "onnx", "profiles", "build-log")
def profiles_differ(deployment: Deployment) -> Iterator[Violation]:
    """No profile is covered by another one with the same optimum."""
    for case in _accepted_cases(deployment):
        yield from onnx_silent_faults.redundant_profiles(case)


@make_agreement("DX940", "onnx", "profiles", "build-log")
def inputs_hold_something(deployment: Deployment) -> Iterator[Violation]:
    """No input but a cache is empty in all shapes of a profile."""
    for case in _accepted_cases(deployment):
        yield from onnx_silent_faults.empty_dimensions(case)


def _accepted_cases(deployment: Deployment) -> Iterator[ProfileCase]:
    """Yield the profiles given, and those of a build log that is of this model."""
    for case in profile_cases(deployment, "profiles", "build-log"):
        named = {shape_range.tensor for profile in case.profiles for shape_range in profile.ranges}
        if case.profile_source.kind == "profiles" or named == set(case.inputs):
            yield case


def _unmet_shapes(case: ProfileCase, selector: str, severity: Severity) -> Iterator[Violation]:
    """Yield the node of each profile at which shapes do not fit, unless names have told it already."""
    reported_profiles = {
        profile.index
        for profile in case.profiles
        for spans in named_spans(case, profile).values()
        if len({span.values[1] for span in spans}) > 1 and not is_one_size(spans)
    } | onnx_silent_faults.profiles_with_wrong_sum(case, selector)
    profiles = {profile.index: profile for profile in case.profiles}
    for unmet in case.profile_source.items("profiles.unmet"):
        profile = profiles.get(unmet["profile"])
        if unmet["shapes"] != selector or unmet["profile"] in reported_profiles or profile is None:
            continue
        node = f"the {unmet['operator']} node {unmet['node']}".rstrip()
        values = {
            "profile": profile.index,
            "problem": f"at the {selector} shapes the inputs of {node} do not fit together ({unmet['why']})",
            "remedy": f"choose {selector} shapes that the model could be run with",
        }
        tensors = [range_.tensor for range_ in profile.ranges][:MAX_NAMED]
        yield Violation(case.evidence(profile, *tensors), values, severity)


@make_agreement("DX944", "profiles")
def profiles_can_be_read(deployment: Deployment) -> Iterator[Violation]:
    """A file of profiles gives min, opt and max shapes for each of its inputs."""
    for profiles in deployment.of_kinds("profiles"):
        for name in ("unparsed", "malformed"):
            yield from _listed_violations(profiles, name)


@make_agreement("DX164", "onnx")
def external_data_is_there(deployment: Deployment) -> Iterator[Violation]:
    """The files an ONNX model keeps its weights in are there and long enough."""
    for onnx in deployment.of_kinds("onnx"):
        for name, words in (
            ("onnx.external_missing", "is missing: {}"),
            ("onnx.external_short", "is incomplete: {}"),
            ("onnx.external_wrong", "does not belong to this model: {}"),
        ):
            if onnx.items(name):
                yield from _listed_violations(onnx, name, words=words)
                break  # one cause: the data is of another export, or was not copied


@make_agreement("DX941", "onnx")
def external_data_is_beside_the_model(deployment: Deployment) -> Iterator[Violation]:
    """The weights of an ONNX model lie in its own folder."""
    for onnx in deployment.of_kinds("onnx"):
        linked = all(file.endswith("(by a link)") for file in onnx.items("onnx.external_outside"))
        severity = Severity.WARNING if linked else Severity.ERROR
        yield from _listed_violations(onnx, "onnx.external_outside", "files", severity=severity)


@make_agreement("DX165", "onnx")
def file_is_below_the_protobuf_limit(deployment: Deployment) -> Iterator[Violation]:
    """An ONNX file is smaller than 2 GiB."""
    for onnx in deployment.of_kinds("onnx"):
        size = onnx.integer("onnx.bytes") or 0
        if size > PROTOBUF_LIMIT and not _is_damaged(onnx):
            yield Violation(onnx.evidence("onnx.bytes"), {"path": onnx.path, "bytes": size})


def _is_damaged(onnx: Artifact) -> bool:
    return any(onnx.has(name) for name in ("onnx.truncated", "onnx.corrupt", "onnx.empty"))


@make_agreement("DX166", "onnx")
def file_is_a_whole_model(deployment: Deployment) -> Iterator[Violation]:
    """An ONNX file is complete and holds a graph."""
    for onnx in deployment.of_kinds("onnx"):
        if onnx.has("onnx.truncated"):
            problem = f"ends too early, {onnx.text('onnx.truncated')}"
            yield Violation(onnx.evidence("onnx.truncated"), {"path": onnx.path, "problem": problem})
        elif onnx.get("onnx.empty"):
            problem = "holds no graph (TensorRT's parser accepts it without a word as an empty network)"
            yield Violation(onnx.evidence("onnx.empty"), {"path": onnx.path, "problem": problem})
        elif onnx.has("onnx.corrupt"):
            problem = f"is damaged {onnx.text('onnx.corrupt')}"
            yield Violation(onnx.evidence("onnx.corrupt"), {"path": onnx.path, "problem": problem})


@make_agreement("DX169", "onnx")
def versions_exist(deployment: Deployment) -> Iterator[Violation]:
    """The operator set and format an ONNX model names have been released."""
    for onnx in deployment.of_kinds("onnx"):
        opsets = onnx.table("onnx.opset")
        opset = opsets.get("", opsets.get("ai.onnx", 0))
        ir_version = onnx.integer("onnx.ir_version") or 0
        values = {"path": onnx.path, "what": "opset", "have": opset, "newest": NEWEST_OPSET}
        if opset > NEWEST_OPSET:
            yield Violation(onnx.evidence("onnx.opset"), values, Severity.WARNING, 0.85)
        elif ir_version > NEWEST_IR:
            values |= {"what": "IR version", "have": ir_version, "newest": NEWEST_IR}
            yield Violation(onnx.evidence("onnx.ir_version"), values, Severity.WARNING, 0.85)


@make_agreement("DX192", "onnx")
def graph_is_valid(deployment: Deployment) -> Iterator[Violation]:
    """Each tensor of an ONNX graph is made exactly once."""
    for onnx in deployment.of_kinds("onnx"):
        for name, words in (
            ("onnx.dangling", "nothing makes {}"),
            ("onnx.duplicate_names", "more than one node or initializer makes {}"),
        ):
            yield from _listed_violations(onnx, name, words=words)


@make_agreement("DX192", "onnx")
def nodes_are_of_their_opset(deployment: Deployment) -> Iterator[Violation]:
    """Each node has the attributes and inputs that its operator has in the model's opset."""
    yield from _graph_problems(deployment, "onnx.invalid_nodes")
    yield from _graph_problems(deployment, "onnx.ignored", Severity.WARNING)


@make_agreement("DX162", "onnx")
def shapes_fit_inside(deployment: Deployment) -> Iterator[Violation]:
    """The fixed sizes inside an ONNX graph fit together at every node."""
    yield from _graph_problems(deployment, "onnx.unmet")


@make_agreement("DX161", "onnx")
def types_are_the_same(deployment: Deployment) -> Iterator[Violation]:
    """The inputs of a node that takes one data type have one data type."""
    yield from _graph_problems(deployment, "onnx.mixed_types", Severity.WARNING)


def _graph_problems(deployment: Deployment, name: str, severity: Severity | None = None) -> Iterator[Violation]:
    for onnx in deployment.of_kinds("onnx"):
        yield from _listed_violations(onnx, name, severity=severity, confidence=0.9)


def _listed_violations(
    artifact: Artifact,
    fact: str,
    value: str = "problem",
    *,
    words: str = "{}",
    severity: Severity | None = None,
    confidence: float = 0.95,
) -> Iterator[Violation]:
    """Yield one violation that names the first items of a fact, where it has any."""
    if items := artifact.items(fact):
        values = {"path": artifact.path, value: words.format(abbreviate_list(items, MAX_NAMED))}
        yield Violation(artifact.evidence(fact), values, severity, confidence)


@make_agreement("DX140", "onnx")
def operators_are_known(deployment: Deployment) -> Iterator[Violation]:
    """Each operator is one that TensorRT's parser imports, a function of the model, or made for a plugin."""
    for onnx in deployment.of_kinds("onnx"):
        partly_read = any(not note.startswith(NOT_CHECKED) for note in onnx.unread)  # functions come last
        operators = [] if _is_damaged(onnx) or partly_read else foreign_operators(onnx)
        if operators:
            names = list(dict.fromkeys(operator.partition("::")[2] for operator in operators))
            values = {
                "path": onnx.path,
                "operators": abbreviate_list(operators, MAX_NAMED),
                "names": abbreviate_list(names, MAX_NAMED),
            }
            yield Violation(onnx.evidence("onnx.operators"), values, Severity.WARNING, 0.85)


@make_agreement("DX942", "onnx")
def node_names_are_unique(deployment: Deployment) -> Iterator[Violation]:
    """No two nodes of an ONNX graph have the same name."""
    for onnx in deployment.of_kinds("onnx"):
        yield from _listed_violations(onnx, "onnx.duplicate_nodes", "names")


@make_agreement("DX943", "onnx")
def constant_indices_exist(deployment: Deployment) -> Iterator[Violation]:
    """Each constant index of a Gather lies inside what it indexes."""
    for onnx in deployment.of_kinds("onnx"):
        yield from _listed_violations(onnx, "onnx.gather_out_of_range", "gathers")


@make_agreement("DX945", "build-log")
def build_succeeded(deployment: Deployment) -> Iterator[Violation]:
    """The build that a log tells of ended with an engine."""
    for log in deployment.of_kinds("build-log"):
        if errors := log.items("log.errors"):
            values = {"path": log.path, "error": errors[0], "quoted": shlex.quote(log.path)}
            yield Violation(log.evidence("log.errors"), values, confidence=0.9)
