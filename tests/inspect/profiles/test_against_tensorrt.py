"""What trtdx says of profiles is what TensorRT says: random networks and profiles, judged by both.

TensorRT (TensorRT-RTX 1.7, a real build on the CPU) refuses a profile in `set_shape`, by `bool(profile)`, by the index
of `add_optimization_profile`, or by ending the build. trtdx refuses it by a finding of severity error. The two must
agree, but for two classes, where trtdx is stricter because the profile cannot be run as it is:

* opt shapes that do not fit inside the graph, where just one size of a dimension fits at all: TensorRT takes that size
  as fixed and no longer looks at the optimum (`one_size_fits`); of dimensions of one name trtdx judges as TensorRT;
* a profile that TensorRT refuses when it stands alone, and accepts beside another one that fixes the dimension.

What TensorRT accepts without a word is a warning of trtdx at most, so it is no disagreement:

* shapes for an input that the model does not have (DX936), unless it is left out under its right name;
* one dimension with different bounds but one optimum, or with one common size (DX937);
* a mask that is not past + sequence where the graph does not join the two (DX938);
* the same profile twice (DX939), and a range of nothing but zeros (DX940).
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from support import make_onnx as make
from trtdx.host import RealHost
from trtdx.inspect.agreements import agreements_in
from trtdx.inspect.agreements.agreement import judge_findings
from trtdx.inspect.agreements.model import onnx as onnx_agreements
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.profiles.onnx_shapes import check_deployment_shapes
from trtdx.inspect.readers.onnx import onnx_file as onnx
from trtdx.inspect.readers.onnx import profile_file
from trtdx.knowledge.load import load_book
from trtdx.model import Severity

pytestmark = pytest.mark.heavy

HOST = RealHost()
BOOK = load_book(HOST)
CASES = 500
SEED = 20261116

JUDGE = """
import base64, json, sys
import tensorrt_rtx as trt
class Log(trt.ILogger):
    def __init__(self):
        trt.ILogger.__init__(self)
        self.last = ""
    def log(self, severity, message):
        if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR) and "cudaError 35" not in message:
            self.last = self.last or message
logger = Log()
builder = trt.Builder(logger)
def judged(model, profiles):
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(model):
        return "not parsed"
    config = builder.create_builder_config()
    for shapes in profiles:
        profile = builder.create_optimization_profile()
        try:
            for name, each in shapes.items():
                profile.set_shape(name, each["min"], each["opt"], each["max"])
        except Exception:
            return "refused by set_shape"
        if not profile or config.add_optimization_profile(profile) < 0:
            return "refused by the profile's own check"
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    if builder.build_serialized_network(network, config):
        return "accepted"
    # A fault of the compiler itself: "Unexpected exception _Map_base::at" for an unnamed mask and an empty input.
    return "internal error" if "Unexpected exception" in logger.last else "refused by the build"
for line in sys.stdin:
    number, model, profiles = json.loads(line)
    logger.last = ""
    verdict = judged(base64.b64decode(model), profiles)
    print(json.dumps([number, verdict, logger.last[:300]]), flush=True)
"""


def by_tensorrt(cases):
    """Return TensorRT's verdict on each case; where it takes its process down, the rest goes to a new one."""
    verdicts = {}
    left = list(range(len(cases)))
    while left:
        lines = "".join(
            json.dumps([number, base64.b64encode(cases[number][0].SerializeToString()).decode(), cases[number][1]])
            + "\n"
            for number in left
        )
        done = subprocess.run(
            [sys.executable, "-c", JUDGE],
            input=lines,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        for line in done.stdout.splitlines():
            number, *verdict = json.loads(line)
            verdicts[number] = tuple(verdict)
        left = [number for number in left if number not in verdicts]
        if left:
            assert done.returncode != 0, done.stderr
            verdicts[left.pop(0)] = ("crashed", done.stderr[-300:])
    return [verdicts[number] for number in range(len(cases))]


def by_trtdx(case, folder):
    """Return the findings of severity error, by the whole way from files to findings."""
    model, profiles = case
    path = make.saved(folder / "model.onnx", model)
    (folder / "profiles.json").write_text(json.dumps({"profiles": profiles}))
    artifacts = (
        onnx.read_onnx_file(HOST, path),
        profile_file.read_profile_file(HOST, str(folder / "profiles.json")),
    )
    deployment = check_deployment_shapes(HOST, Deployment(artifacts))
    assert not deployment.first_of("profiles").unread
    return [
        finding
        for finding in judge_findings(agreements_in(onnx_agreements), deployment, BOOK)
        if finding.severity is Severity.ERROR
    ]


def elementwise(rng):
    first, second = rng.choice(
        [(["batch", 4], ["batch", 4]), (["a", 4], ["b", 4]), ([None, 4], [None, 4]), (["a", "c"], ["b", "c"]), (["a", 4], [2, 4]), ([3, 4], [3, 4])]
    )  # fmt: skip
    op = rng.choice(["Add", "Mul", "Max"])
    return make.model([make.node(op, ["x", "y"], ["z"])], [("x", first), ("y", second)], [("z", [None, None])])


def multiplied(rng):
    inner = rng.choice([("k", "k"), ("k", "l"), (None, None), (8, 8)])
    return make.model(
        [make.node("MatMul", ["x", "y"], ["z"])],
        [("x", ["rows", inner[0]]), ("y", [inner[1], 5])],
        [("z", [None, None])],
    )


def joined(rng):
    batch = rng.choice([("batch", "batch"), ("a", "b"), (None, None)])
    return make.model(
        [make.node("Concat", ["x", "y"], ["z"], axis=1)],
        [("x", [batch[0], "past"]), ("y", [batch[1], "new"])],
        [("z", [None, None])],
    )


def masked(rng):
    return make.masked(rng.choice(["total", "past + seq", None]))


def chained(rng):
    batch = rng.choice(["batch", "b"])
    return make.model(
        [
            make.node("MatMul", ["x", "w"], ["h"]),
            make.node("Add", ["h", "y"], ["o"]),
            make.node("Relu", ["o"], ["z"]),
        ],
        [("x", ["batch", 4]), ("y", [batch, 4])],
        [("z", [None, 4])],
        [make.weight("w", [[1.0] * 4] * 4)],
    )


def drawn(rng):
    low = rng.choice([0, 1, 1, 1, 2, 3])
    best = low + rng.choice([0, 0, 1, 2])
    return [low, best, best + rng.choice([0, 1, 4])]


def profile_for(model, rng):
    """Return a profile in which dimensions that must agree do: sizes by name, sums as sums, static as they are."""
    sizes = {}
    found = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        axes = []
        for axis, dim in enumerate(dims):
            name = dim.dim_param or f"unnamed {axis}"
            if not dim.dim_param and dim.HasField("dim_value"):
                axes.append([dim.dim_value] * 3)
            else:
                axes.append(sizes.setdefault({"l": "k", "b": "a", "batch": "a"}.get(name, name), drawn(rng)))
        found[value.name] = {key: [axis[at] for axis in axes] for at, key in enumerate(("min", "opt", "max"))}
    mask = found.get("attention_mask")
    for key in mask or ():
        mask[key][1] = found["input_ids"][key][1] + found["past_key_values.0.key"][key][1]
    return found


def disturb(profile, rng):
    """Change one thing, as a user might get it wrong."""
    tensor = rng.choice(sorted(profile))
    axis = rng.randrange(len(profile[tensor]["min"]))
    rng.choice([disturb_tensors, disturb_sizes, disturb_sizes])(profile, tensor, axis, rng)


def disturb_tensors(profile, tensor, axis, rng):
    shapes = profile[tensor]
    kind = rng.choice(["drop", "misspell", "unknown", "rank"])
    if kind == "drop":
        del profile[tensor]
    elif kind == "misspell":
        profile[tensor + "s"] = profile.pop(tensor)
    elif kind == "unknown":
        profile["nobody"] = {key: [1, 1] for key in shapes}
    else:
        for key in shapes if rng.random() < 0.7 else ["opt"]:
            shapes[key] = shapes[key][:-1]


def disturb_sizes(profile, tensor, axis, rng):
    shapes = profile[tensor]
    if not all(len(shapes[key]) > axis for key in shapes):
        return
    low, best, high = (shapes[key][axis] for key in ("min", "opt", "max"))
    changed = rng.choice(
        [
            (high + 1, best, low),
            (low, high + 1, high),
            (low + 1, best + 1, high + 1),
            (low, rng.randint(min(low, high), max(low, high)), high),
            (low, best, high + rng.choice([1, 3])),
            (max(0, low - 1), best, high),
            (low + 10, best + 10, high + 10),
            (0, 0, 0),
            (-1, best, high),
        ]
    )
    for key, value in zip(("min", "opt", "max"), changed, strict=True):
        shapes[key][axis] = value


def cases():
    """Yield models and profiles; the same ones in every run."""
    rng = random.Random(SEED)
    for _ in range(CASES):
        model = rng.choice([elementwise, elementwise, multiplied, joined, masked, masked, chained])(rng)
        profiles = [profile_for(model, rng) for _ in range(rng.choice([0, 1, 1, 1, 1, 1, 2]))]
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            if profiles and profiles[-1]:
                disturb(profiles[-1], rng)
        yield model, profiles


def fits(model, shapes):
    """Return whether a model could run with these shapes: dimensions of one name equal, and every node content."""
    names = {}
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
            if dim.dim_param and names.setdefault(dim.dim_param, size) != size:
                return False
    known = dict(shapes) | {weight.name: tuple(weight.dims) for weight in model.graph.initializer}
    try:
        for node in model.graph.node:
            known[node.output[0]] = RESULTS.get(node.op_type, np.broadcast_shapes)(
                *(known[name] for name in node.input)
            )
    except ValueError:
        return False
    return True


def product(left, right):
    if left[1] != right[0]:
        raise ValueError
    return left[0], right[1]


def concatenation(left, right):
    if left[0] != right[0]:
        raise ValueError
    return left[0], left[1] + right[1]


RESULTS = {"MatMul": product, "Concat": concatenation, "Relu": lambda shape: shape}


def one_size_fits(model, profile):
    """Return whether some dimension of a profile fits with one size only, and that is not its optimum."""
    static = {tensor.name: [dim.dim_value for dim in tensor.type.tensor_type.shape.dim] for tensor in model.graph.input}
    ranges = {name: profile.get(name, dict.fromkeys(("min", "opt", "max"), dims)) for name, dims in static.items()}
    axes = [(name, axis) for name, each in ranges.items() for axis in range(len(each["min"]))]
    sizes = [range(ranges[name]["min"][axis], ranges[name]["max"][axis] + 1) for name, axis in axes]
    left = [set() for _ in axes]
    for drawn_sizes in itertools.product(*sizes):
        shapes = {
            name: tuple(size for (each, _), size in zip(axes, drawn_sizes, strict=True) if each == name)
            for name in ranges
        }
        if fits(model, shapes):
            for values, size in zip(left, drawn_sizes, strict=True):
                values.add(size)
    return any(
        values == {size} and size != ranges[name]["opt"][axis]
        for (name, axis), values in zip(axes, left, strict=True)
        for size in values
    )


def is_told_stricter(case, verdict, errors):
    """Return whether this is a class where trtdx minds what TensorRT does not."""
    model, profiles = case
    if verdict != "accepted":
        return False
    if len(profiles) > 1 and any(
        "refused" in alone for alone, _ in by_tensorrt([(model, [profile]) for profile in profiles])
    ):
        return True
    return all("at the opt shapes" in finding.message for finding in errors) and any(
        one_size_fits(model, profile) for profile in profiles
    )


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    make.needs("tensorrt_rtx")
    folder = tmp_path_factory.mktemp("cases")
    made = list(cases())
    return list(zip(made, by_tensorrt(made), [by_trtdx(case, folder) for case in made], strict=True))


def told(case, verdict, errors):
    inputs = {
        tensor.name: [dim.dim_param or dim.dim_value for dim in tensor.type.tensor_type.shape.dim]
        for tensor in case[0].graph.input
    }
    return f"{[node.op_type for node in case[0].graph.node]} {inputs} {case[1]}: TensorRT {verdict}; trtdx {[finding.message for finding in errors]}"


def test_trtdx_and_tensorrt_agree(judged):
    wrong = [
        told(case, verdict, errors)
        for case, verdict, errors in judged
        if (verdict[0] == "accepted") == bool(errors)
        and verdict[0] != "internal error"
        and not is_told_stricter(case, verdict[0], errors)
    ]
    assert wrong == []


def test_nothing_crashes_and_every_model_is_parsed(judged):
    assert not [verdict for _, verdict, _ in judged if verdict[0] in ("crashed", "not parsed")]
    assert sum(verdict[0] == "internal error" for _, verdict, _ in judged) < CASES / 50


def test_the_class_where_trtdx_is_stricter_is_small(judged):
    stricter = [case for case, verdict, errors in judged if errors and verdict[0] == "accepted"]
    assert len(stricter) < CASES / 25


def test_both_verdicts_come_often_and_for_every_reason(judged):
    verdicts = Counter(verdict[0] for _, verdict, _ in judged)
    assert verdicts["accepted"] > CASES / 5
    assert verdicts["refused by the build"] > CASES / 10
    assert verdicts["refused by the profile's own check"] > CASES / 40
    assert {finding.code for _, _, errors in judged for finding in errors} == {
        "DX142",
        "DX143",
        "DX936",
        "DX938",
    }
