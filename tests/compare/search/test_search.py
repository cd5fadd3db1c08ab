"""Bisecting options, searching precisions and reducing a failing model, on real runtimes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from support.paths import TINY as EXAMPLES

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

import onnx
from onnx import TensorProto, helper, numpy_helper

from trtdx.compare.attribute.mistakes.quantization import backend_saturates
from trtdx.compare.judge.tolerance import Tolerances
from trtdx.compare.run import ComparisonPlan, compare
from trtdx.compare.search.bisect import BisectOption, RunLog, RunOutcome, bisect_options, minimal_subset
from trtdx.compare.search.bisect_candidate import (
    OPTIMISERS,
    bisect_candidate,
    fill_command,
    model_options,
    optimiser_options,
    parse_option,
    spec_with_options,
)
from trtdx.compare.search.precision import precision_report as precision_report
from trtdx.compare.search.precision import precision_search
from trtdx.compare.search.reduce import reduce_candidate
from trtdx.compare.search.reduce_graph import Reducer, tensor_names
from trtdx.compare.sides.side import ComparisonQuestion, SideSpec
from trtdx.engines.onnxruntime.engine import OrtEngine
from trtdx.errors import InputError, UnknownNameError
from trtdx.formats.onnx.edit import save_model
from trtdx.formats.onnx.lower_precision import convert_precision, list_lowerable_operations
from trtdx.formats.onnx.model import open_model
from trtdx.host import RealHost

FLOAT, INT8, UINT8, INT32 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32
HOST = RealHost()


def onnx_file(path, nodes, inputs, outputs, weights):
    """Write a graph; inputs and outputs are {name: (type, dims)}, weights arrays by name."""
    infos = [[helper.make_tensor_value_info(name, *each) for name, each in some.items()] for some in (inputs, outputs)]
    made = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", *infos, made)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path.write_bytes(onnx.shape_inference.infer_shapes(proto).SerializeToString())
    return path


def node(op, reads, makes, **more):
    return helper.make_node(op, reads.split(), makes.split(), name=f"node_{makes.split()[0]}", **more)


# --- bisect


class Machine:
    """Something that is wrong with some settings, and counts how often it is run."""

    def __init__(self, right):
        self.right, self.runs = right, []

    def __call__(self, options):
        self.runs.append(options)
        return RunOutcome(not self.right(options), "said so")


def switches(count):
    return [BisectOption(f"o{at}", ("on", "off")) for at in range(count)]


@pytest.mark.parametrize("guilty", [[0], [31], [3, 20], [1, 2, 30]])
def test_finds_the_fewest_options_that_mend_it(guilty):
    machine = Machine(lambda options: all(options[f"o{at}"] == "off" for at in guilty))
    found = bisect_options(switches(32), RunLog(machine))
    assert found.flips == {f"o{at}": "off" for at in guilty}
    assert found.sure
    assert found.runs == len(machine.runs) <= 8 + 14 * len(guilty)


def test_of_several_values_names_the_one_nearest_to_what_was_given():
    options = [
        BisectOption("level", ("all", "extended", "basic", "none")),
        BisectOption("threads", ("0", "1")),
    ]
    found = bisect_options(options, RunLog(Machine(lambda options: options["level"] in ("basic", "none"))))
    assert found.flips == {"level": "basic"}


def test_one_option_that_mends_is_found_though_another_breaks_everything():
    def run(options):
        return RunOutcome(None, "does not start") if options["b"] == "1" else RunOutcome(options["c"] != "1")

    options = [BisectOption(name, ("0", "1")) for name in "abc"]
    assert bisect_options(options, RunLog(run)).flips == {"c": "1"}


def test_says_so_when_no_option_matters_and_when_nothing_is_wrong():
    assert "none of the options" in bisect_options(switches(4), RunLog(Machine(lambda options: False))).problem
    assert "not wrong" in bisect_options(switches(4), RunLog(Machine(lambda options: True))).problem


def test_runs_are_bounded_and_the_best_known_is_told_as_such():
    machine = Machine(lambda options: options["o5"] == "off")
    found = bisect_options(switches(32), RunLog(machine, most=3))
    assert len(machine.runs) == 3
    assert not found.sure
    assert found.flips["o5"] == "off"


def test_a_stopped_search_goes_on_where_it_was(tmp_path):
    file = str(tmp_path / "runs.json")
    right = lambda options: options["o5"] == "off"  # noqa: E731
    bisect_options(switches(32), RunLog(Machine(right), host=HOST, file=file, most=4))
    later = Machine(right)
    found = bisect_options(switches(32), RunLog(later, host=HOST, file=file))
    assert found.flips == {"o5": "off"}
    whole = Machine(right)
    bisect_options(switches(32), RunLog(whole))
    assert len(later.runs) == len(whole.runs) - 4
    with pytest.raises(InputError, match="another question"):
        RunLog(later, host=HOST, file=file, about="another model")


def test_smallest_leaves_nothing_out_that_is_needed():
    assert minimal_subset(range(20), lambda some: {4, 5, 17} <= set(some)) == [4, 5, 17]


def gelu(path):
    rng = np.random.default_rng(0)
    nodes = [
        node("MatMul", "x w", "a"), node("Div", "a root", "b"), node("Erf", "b", "c"), node("Add", "c one", "d"),
        node("Mul", "a d", "e"), node("Mul", "e half", "y"),
    ]  # fmt: skip
    weights = {
        "w": rng.standard_normal((32, 32), np.float32),
        "root": np.float32(2**0.5),
        "one": np.float32(1),
    }
    shape = {"x": (FLOAT, ["rows", 32])}, {"y": (FLOAT, ["rows", 32])}
    return onnx_file(path, nodes, *shape, weights | {"half": np.float32(0.5)})


def test_onnxruntimes_optimisers_are_told_apart_by_name(tmp_path):
    """Of 50 optimisers two fuse GELU, one after the other: only without both are the bits those of the graph."""
    spec = SideSpec("onnx", str(gelu(tmp_path / "gelu.onnx")), {"threads": "1"})
    feeds = {"x": np.random.default_rng(1).standard_normal((64, 32), np.float32)}
    plain = spec_with_options(spec, {"level": "none"}).open().run(feeds)["y"]

    def run(options):
        return RunOutcome(not np.array_equal(spec_with_options(spec, options).open().run(feeds)["y"], plain))

    if not run({}).wrong:
        pytest.skip("this ONNX Runtime fuses GELU without changing a bit")
    found = bisect_options(optimiser_options(spec), RunLog(run, most=100))
    assert found.flips
    assert all("Gelu" in name for name in found.flips), found.flips
    assert set(found.flips) < set(OPTIMISERS)


def test_a_models_options_are_bisected_unwatched_down_to_the_optimiser(tmp_path, book):
    model = gelu(tmp_path / "gelu.onnx")
    np.savez(tmp_path / "in.npz", x=np.random.default_rng(1).standard_normal((64, 32), np.float32))
    plan = ComparisonPlan(
        reference=f"onnx:{model}?level=none", candidate=f"onnx:{model}?threads=1",
        question=ComparisonQuestion(inputs=str(tmp_path / "in.npz")),
    )  # fmt: skip
    report = bisect_candidate(HOST, plan, book, tolerance=Tolerances(atol=0.0), most=120)
    if "not wrong" in report.summary.text:
        pytest.skip("this ONNX Runtime fuses GELU without changing a bit")
    assert re.match(r"with \w*Gelu\w*=off( and \w*Gelu\w*=off)* instead of", report.summary.text)
    assert report.sections[0].rows[0][:2] == ("as given", "wrong")


def test_options_of_a_model_are_those_its_engine_has():
    assert [each.name for each in model_options(SideSpec("hf", "m"))] == ["attention", "compiled", "threads"]
    level = model_options(SideSpec("onnx", "m", {"level": "none"}))[0]
    assert level.values == ("none", "basic", "extended", "all")
    assert parse_option("level=all,none") == BisectOption("level", ("all", "none"))
    with pytest.raises(InputError, match="not an option"):
        parse_option("level")
    assert fill_command("run --{mode} {flag} -o {out}", {"mode": "fast", "flag": ""}, "/o") == [
        "run",
        "--fast",
        "-o",
        "/o",
    ]
    with pytest.raises(InputError, match="cannot be filled in"):
        fill_command("run {unknown}", {}, "/o")


DENORMAL = """
import sys
import numpy as np, onnxruntime as ort
flush, threads, out = sys.argv[1:]
settings = ort.SessionOptions()
settings.intra_op_num_threads = int(threads)
settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
settings.add_session_config_entry("session.set_denormal_as_zero", flush)
session = ort.InferenceSession(MODEL, settings, providers=["CPUExecutionProvider"])
np.savez(out, y=session.run(None, {"x": np.linspace(1, 2, 32, dtype=np.float32)})[0])
"""


@pytest.mark.heavy
def test_a_command_is_bisected_over_its_placeholders(tmp_path, book):
    """ONNX Runtime flushes denormal numbers where it is told to: a real option that makes a real difference."""
    nodes = [node("Mul", "x small", "a"), node("Mul", "a large", "y")]
    weights = {"small": np.float32(1e-39), "large": np.float32(1e38)}
    model = onnx_file(tmp_path / "m.onnx", nodes, {"x": (FLOAT, [32])}, {"y": (FLOAT, [32])}, weights)
    script = tmp_path / "run.py"
    script.write_text(DENORMAL.replace("MODEL", repr(str(model))))
    right = np.linspace(1, 2, 32, dtype=np.float32) * np.float32(0.1)
    np.savez(tmp_path / "right.npz", y=right)
    plan = ComparisonPlan(
        reference=str(tmp_path / "right.npz"),
        candidate=f"command:{sys.executable} {script} {{flush}} {{threads}} {{out}}",
    )
    report = bisect_candidate(
        HOST, plan, book, options=[BisectOption("threads", ("1", "2")), BisectOption("flush", ("1", "0"))],
        file=str(tmp_path / "runs.json"), tolerance=Tolerances(rtol=1e-3),
    )  # fmt: skip
    assert report.summary.text.startswith("with flush=0 instead of flush=1 the candidate is right")
    assert len(json.loads((tmp_path / "runs.json").read_text())["tried"]) == len(report.sections[0].rows) <= 4


def int8_model(path):
    weights = {"w": np.full((64, 8), 127, np.int8)}
    return onnx_file(
        path,
        [node("MatMulInteger", "a w", "y")],
        {"a": (UINT8, ["n", 64])},
        {"y": (INT32, ["n", 8])},
        weights,
    )


def judged_int8(products):
    """Return a run that judges sums of products of bytes."""
    exact = 255 * 127 * 64

    def run(options):
        return RunOutcome(bool((products(options) != exact).any()))

    return run


INT8_OPTIONS = [
    BisectOption("level", ("all", "none")),
    BisectOption("session.x64quantprecision", ("0", "1")),
    BisectOption("threads", ("0", "1")),
]


@pytest.mark.skipif(not backend_saturates(), reason="this processor multiplies bytes exactly (VNNI)")
def test_int8_saturation_is_blamed_on_the_backend(tmp_path):
    spec = SideSpec("onnx", str(int8_model(tmp_path / "m.onnx")))
    feeds = {"a": np.full((4, 64), 255, np.uint8)}
    run = judged_int8(lambda options: spec_with_options(spec, options).open().run(feeds)["y"])
    assert bisect_options(INT8_OPTIONS, RunLog(run)).flips == {"session.x64quantprecision": "1"}


def test_int8_saturation_is_blamed_on_the_backend_where_it_can_only_be_imitated(tmp_path):
    """A stand-in for processors without VNNI: pairs are summed in 16 bits unless the option says otherwise."""
    spec = SideSpec("onnx", str(int8_model(tmp_path / "m.onnx")))
    left, right = np.full((4, 64), 255), np.full((64, 8), 127)

    def products(options):
        exact = (
            spec_with_options(spec, options).open().run({"a": left.astype(np.uint8)})["y"]
        )  # the option is a real one
        pairs = (left[:, :, None] * right).reshape(4, 32, 2, 8).sum(2)
        return exact if options["session.x64quantprecision"] == "1" else pairs.clip(-32768, 32767).sum(1)

    assert bisect_options(INT8_OPTIONS, RunLog(judged_int8(products))).flips == {"session.x64quantprecision": "1"}


# --- precision


def normed(path, scale=1.0, blocks=4, width=32):
    """Write blocks of RMSNorm and a product with a residual; the numbers in block 2 are larger by a scale."""
    rng = np.random.default_rng(0)
    nodes, weights, now = [], {"two": np.float32(2), "eps": np.float32(1e-5), "axes": np.array([-1])}, "x"
    for at in range(blocks):
        factor = scale if at == 2 else 1.0
        weights |= {
            f"up{at}": np.float32(factor),
            f"w{at}": rng.standard_normal((width, width), np.float32) / np.float32(width**0.5),
        }
        nodes += [
            node("Mul", f"{now} up{at}", f"s{at}"),
            node("Pow", f"s{at} two", f"pow{at}"),
            node("ReduceMean", f"pow{at} axes", f"mean{at}", keepdims=1),
            node("Add", f"mean{at} eps", f"add{at}"),
            node("Sqrt", f"add{at}", f"root{at}"),
            node("Div", f"s{at} root{at}", f"norm{at}"),
            node("MatMul", f"norm{at} w{at}", f"mm{at}"),
            node("Tanh", f"mm{at}", f"act{at}"),
            node("Add", f"{now} act{at}", f"x{at}"),
        ]
        now = f"x{at}"
    nodes.append(node("Identity", now, "y"))
    return onnx_file(path, nodes, {"x": (FLOAT, ["n", width])}, {"y": (FLOAT, ["n", width])}, weights)


def fed(path, *shapes, width=32):
    rng = np.random.default_rng(5)
    arrays = {f"step{at}/x": rng.standard_normal((rows, width), np.float32) for at, rows in enumerate(shapes)}
    np.savez(path, **arrays)
    return ComparisonQuestion(inputs=str(path))


def test_a_converted_model_is_strongly_typed_and_valid(tmp_path):
    model = open_model(normed(tmp_path / "m.onnx"))
    made = convert_precision(model, "float16", keep={"pow2", "node_mean2"})
    save_model(made, tmp_path / "h.onnx")
    onnx.checker.check_model(str(tmp_path / "h.onnx"), full_check=True)
    types = {value.name: value.dtype.name for each in made.graph for value in each.outputs}
    assert types["pow2"] == types["mean2"] == "FLOAT"
    assert types["pow1"] == types["add2"] == "FLOAT16"
    assert types["y"] == "FLOAT"
    casts = [each for each in made.graph if each.op_type == "Cast"]
    assert len(casts) == 4  # what is fed, into Pow, out of ReduceMean, what comes back
    assert {value.dtype.name for value in model.graph.initializers.values()} == {
        "FLOAT",
        "INT64",
    }  # untouched
    assert "mm1" in list_lowerable_operations(model, "bfloat16")
    for wrong in ("int7",):
        with pytest.raises(UnknownNameError, match=wrong):
            convert_precision(model, wrong)
    with pytest.raises(UnknownNameError, match="pow9"):
        convert_precision(model, "float16", keep={"pow9"})


def test_a_decoder_is_converted_with_its_masks_and_epsilons_alive():
    pytest.importorskip("tensorrt_rtx")
    model = open_model(EXAMPLES / "model.onnx")
    for dtype in ("float16", "bfloat16"):
        made = convert_precision(model, dtype)
        for value in made.graph.initializers.values():
            array = value.const_value.numpy().astype(np.float64)
            assert np.isfinite(array).all(), value.name
            assert array.size > 1 or "eps" not in str(value.name) or array


def test_the_precision_search_finds_just_the_operations_that_overflow(tmp_path):
    pytest.importorskip("tensorrt_rtx")
    model = normed(tmp_path / "m.onnx", scale=1000.0)
    question = fed(tmp_path / "in.npz", 3, 5)
    out = tmp_path / "mixed.onnx"
    found = precision_search(HOST, str(model), "float16", question, out=str(out))
    assert found.keep == ("pow2", "mean2", "add2", "root2")  # from the square until its root is back in range
    assert found.operations == 37
    assert found.runs <= 8  # log2(37) and few
    assert found.before.ratio > 100 > 3 >= found.health.ratio
    assert "4 operations of 37 to keep in float32: pow2" in precision_report(found).summary.text
    onnx.checker.check_model(str(out), full_check=True)
    kept = {value.name for value in onnx.load(out).graph.value_info if value.type.tensor_type.elem_type == FLOAT}
    assert {"pow2", "mean2", "add2"} <= kept
    assert not {"pow1", "mm2", "norm2"} & kept


def test_tensorrts_parser_takes_what_the_search_writes(tmp_path):
    trt = pytest.importorskip("tensorrt_rtx")
    out = tmp_path / "mixed.onnx"
    save_model(convert_precision(open_model(normed(tmp_path / "m.onnx")), "float16", keep=("pow2", "mean2")), out)
    probe = (
        f"import sys, {trt.__name__} as trt\nlog = trt.Logger(trt.Logger.ERROR)\nbuilder = trt.Builder(log)\n"
        "network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))\n"
        f"parser = trt.OnnxParser(network, log)\nassert parser.parse_from_file({str(out)!r})\n"
        "types = {network.get_layer(i).get_output(0).name: network.get_layer(i).get_output(0).dtype\n"
        "         for i in range(network.num_layers)}\n"
        "assert types['pow2'] == trt.float32 and types['mm2'] == trt.float16, types\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, timeout=120, check=False)
    assert not done.returncode, done.stderr.decode()


def test_what_is_healthy_already_is_left_as_it_is(tmp_path):
    pytest.importorskip("tensorrt_rtx")
    model = normed(tmp_path / "m.onnx", scale=1000.0)
    found = precision_search(HOST, str(model), "bfloat16", fed(tmp_path / "in.npz", 4), out=str(tmp_path / "b.onnx"))
    assert found.keep == ()  # bfloat16 has float32's range
    assert found.runs == 1
    assert "all 37 operations may be bfloat16" in precision_report(found).summary.text


def test_one_sample_that_overflows_is_enough(tmp_path):
    pytest.importorskip("tensorrt_rtx")
    model = normed(tmp_path / "m.onnx")
    rng = np.random.default_rng(5)
    small = rng.standard_normal((3, 32), np.float32)
    np.savez(tmp_path / "in.npz", **{"step0/x": small, "step1/x": 400 * small})
    found = precision_search(
        HOST,
        str(model),
        "float16",
        ComparisonQuestion(inputs=str(tmp_path / "in.npz")),
        out=str(tmp_path / "o.onnx"),
    )
    assert {"pow0", "pow2"} <= set(found.keep)
    assert not {name for name in found.keep if name.startswith(("mm", "act", "x"))}
    assert found.health.is_healthy


def with_outlier(path, blocks=8, width=64, at_block=5):
    """Write products one after the other; before one of them a channel is larger than the rest 3000 times."""
    rng = np.random.default_rng(0)
    nodes, weights, now = [], {}, "x"
    for at in range(blocks):
        matrix = rng.standard_normal((width, width), np.float32) / np.float32(width**0.5)
        gain = np.ones(width, np.float32)
        if at == at_block:
            gain[7], matrix[7] = 3000, matrix[7] / 3000
        weights |= {f"g{at}": gain, f"w{at}": matrix}
        nodes += [
            node("Mul", f"{now} g{at}", f"m{at}"), node("MatMul", f"m{at} w{at}", f"mm{at}"), node("Tanh", f"mm{at}", f"x{at}"),
        ]  # fmt: skip
        now = f"x{at}"
    nodes.append(node("Identity", now, "y"))
    return onnx_file(path, nodes, {"x": (FLOAT, ["n", width])}, {"y": (FLOAT, ["n", width])}, weights)


def test_in_int8_the_product_with_an_outlier_is_kept(tmp_path):
    pytest.importorskip("tensorrt_rtx")
    model, out = with_outlier(tmp_path / "m.onnx"), tmp_path / "int8.onnx"
    question = fed(tmp_path / "in.npz", 32, width=64)
    found = precision_search(HOST, str(model), "int8", question, out=str(out))
    assert found.keep == ("mm5",)
    assert found.operations == 8
    assert found.runs <= 5
    assert found.before.ratio > 3 >= found.health.ratio
    onnx.checker.check_model(str(out), full_check=True)
    quantised = [each for each in onnx.load(out).graph.node if each.op_type == "QuantizeLinear"]
    assert len(quantised) == 7
    feeds = {"x": np.load(tmp_path / "in.npz")["step0/x"]}
    here, there = OrtEngine(out, threads=1).run(feeds)["y"], OrtEngine(model, threads=1).run(feeds)["y"]
    assert np.linalg.norm(here - there) < 0.1 * np.linalg.norm(there)  # on another engine too


# --- reduce


def planted(path, old="Sigmoid", new="Tanh", which=1):
    """Write the example's decoder with one operator exchanged for another."""
    model = onnx.load(EXAMPLES / "model.onnx")
    wrong = [each for each in model.graph.node if each.op_type == old][which]
    wrong.op_type = new
    for each in model.graph.node:
        each.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="File /home/someone/secret/model.py, line 3")
    onnx.save(model, path)
    return wrong.output[0]


@pytest.fixture(scope="module")
def reduced(tmp_path_factory, book):
    folder = tmp_path_factory.mktemp("reduced")
    made = planted(folder / "wrong.onnx")
    plan = ComparisonPlan(
        reference=f"onnx:{EXAMPLES / 'model.onnx'}", candidate=f"onnx:{folder / 'wrong.onnx'}?threads=1",
        question=ComparisonQuestion(prompts=((5, 17, 42, 9), (3, 4, 5, 6)), new_tokens=2), attribute=False,
    )  # fmt: skip
    where = compare(HOST, plan, book).findings[0].where
    return (
        made,
        plan,
        where,
        reduce_candidate(HOST, plan, where, str(folder / "report"), book),
        folder / "report",
    )


@pytest.mark.heavy
def test_a_wrong_operator_is_all_that_is_left_with_one_token(reduced):
    made, _, where, done, folder = reduced
    assert where.module == "model.layers.1.mlp.act_fn"
    assert done.operators == ("Tanh",)
    assert list(done.inputs.values()) == [(1, 1, 48)]  # of 2 rows of 4 tokens
    assert done.confirmed
    assert done.observed > 0.1 > 1e-6 > done.allowed
    assert [each.output[0] for each in onnx.load(folder / "model.onnx").graph.node] == [made]


@pytest.mark.heavy
def test_the_report_runs_with_one_command_wherever_it_lies(reduced, tmp_path, trtdx):
    *_, done, folder = reduced
    moved = shutil.move(shutil.copytree(folder, tmp_path / "copy"), tmp_path / "elsewhere")
    words = done.command.split()
    assert words[0] == "trtdx"
    answer = trtdx(*(word.strip("'") for word in words[1:]), cwd=moved)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert "really wrong" in answer.stdout


@pytest.mark.heavy
def test_the_report_tells_nothing_of_the_machine(reduced):
    *_, folder = reduced
    for file in folder.iterdir():
        data = file.read_bytes()
        assert b"stack_trace" not in data, file
        assert not re.search(rb"/(home|tmp|work|root|usr)/", data), file
    assert "Run in this folder" in (folder / "README.md").read_text()


def test_a_folder_with_something_in_it_is_not_written_to(reduced, book):
    _, plan, where, _, folder = reduced
    with pytest.raises(InputError, match="already exists"):
        reduce_candidate(HOST, plan, where, str(folder), book)


@pytest.mark.heavy
def test_a_cut_that_would_change_what_is_right_is_not_made(tmp_path, book):
    """Over the wrong axis, each key has a softmax of its own; over the right one they need one another."""
    model = onnx.load(EXAMPLES / "model.onnx")
    softmax = [each for each in model.graph.node if each.op_type == "Softmax"][1]
    del softmax.attribute[:]
    softmax.attribute.append(helper.make_attribute("axis", 2))
    onnx.save(model, tmp_path / "wrong.onnx")
    plan = ComparisonPlan(
        reference=f"onnx:{EXAMPLES / 'model.onnx'}", candidate=f"onnx:{tmp_path / 'wrong.onnx'}?threads=1",
        question=ComparisonQuestion(prompts=((5, 17, 42, 9), (3, 4, 5, 6))), attribute=False,
    )  # fmt: skip
    where = compare(HOST, plan, book).findings[0].where
    done = reduce_candidate(HOST, plan, where, str(tmp_path / "report"), book)
    assert done.operators == ("Softmax",)
    assert list(done.inputs.values()) == [(1, 4, 4, 4)]  # one row of the batch; all tokens and keys
    (right,) = np.load(tmp_path / "report" / "expected.npz").values()
    np.testing.assert_allclose(right.sum(-1), 1, rtol=1e-5)


def test_what_overflows_in_half_precision_is_reduced_to_the_square(tmp_path, book):
    pytest.importorskip("tensorrt_rtx")
    whole, half = normed(tmp_path / "m.onnx", scale=1000.0), tmp_path / "half.onnx"
    save_model(convert_precision(open_model(whole), "float16"), half)
    plan = ComparisonPlan(
        reference=f"onnx:{whole}",
        candidate=f"trt:{half}",
        question=fed(tmp_path / "in.npz", 3, 5),
        attribute=False,
    )
    where = compare(HOST, plan, book).findings[0].where
    done = reduce_candidate(HOST, plan, where, str(tmp_path / "report"), book)
    assert done.operators == ("Pow",)
    assert list(done.inputs.values()) == [(1, 32)]
    assert done.confirmed


@pytest.mark.heavy
def test_against_torch_what_lies_between_tensors_that_both_have_is_written(tmp_path, book):
    pytest.importorskip("torch")
    pytest.importorskip("tensorrt_rtx")
    planted(tmp_path / "wrong.onnx")
    plan = ComparisonPlan(
        reference=f"hf:{EXAMPLES / 'model'}?threads=1", candidate=f"onnx:{tmp_path / 'wrong.onnx'}?threads=1",
        question=ComparisonQuestion(prompts=((5, 17, 42, 9),)), attribute=False,
    )  # fmt: skip
    where = compare(HOST, plan, book).findings[0].where
    done = reduce_candidate(HOST, plan, where, str(tmp_path / "report"), book)
    assert done.operators == ("Tanh", "Mul")
    assert done.against == "the reference"
    assert done.confirmed


@pytest.mark.heavy
def test_of_a_torch_candidate_the_module_is_written_with_a_script(tmp_path, book):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    shutil.copytree(EXAMPLES / "model", tmp_path / "wrong")
    config = json.loads((EXAMPLES / "model" / "config.json").read_text())
    (tmp_path / "wrong" / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    plan = ComparisonPlan(
        reference=f"hf:{EXAMPLES / 'model'}?threads=1", candidate=f"hf:{tmp_path / 'wrong'}?threads=1",
        question=ComparisonQuestion(prompts=((5, 17, 42, 9),)), attribute=False,
    )  # fmt: skip
    where = compare(HOST, plan, book).findings[0].where
    done = reduce_candidate(HOST, plan, where, str(tmp_path / "report"), book)
    assert done.operators == ("model.layers.0.mlp.act_fn",)
    assert done.command == "python reproduce.py"
    assert done.confirmed  # the script was run, and found the difference
    assert not [file for file in (tmp_path / "report").iterdir() if str(tmp_path).encode() in file.read_bytes()]


class Faulty(OrtEngine):
    """A stand-in for a backend that goes wrong where it fuses a product with the sum after it, for large numbers."""

    def compute_tensors(self, names, feeds):
        from trtdx.engines.onnxruntime.segments import extract_subgraph

        values = super().compute_tensors(names, feeds)
        ops = [each.op_type for each in extract_subgraph(self.graph, feeds, names)]
        together = "MatMul" in ops and "Add" in ops and len(names) == 1
        large = max(float(np.abs(array).max()) for array in feeds.values()) > 1
        return {name: array * 1.5 if together and large else array for name, array in values.items()}


def test_a_fault_of_fusion_needs_both_operators_and_the_sample_that_shows_it(tmp_path):
    rng = np.random.default_rng(0)
    nodes = [
        node("Tanh", "x", "t"), node("Mul", "t big", "m"), node("MatMul", "m w", "mm"), node("Add", "mm b", "a"),
        node("Sigmoid", "a", "s"), node("Mul", "s big", "y"),
    ]  # fmt: skip
    weights = {
        "w": rng.standard_normal((8, 8), np.float32),
        "b": np.ones(8, np.float32),
        "big": np.float32(100),
    }
    path = onnx_file(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ["n", 8])}, {"y": (FLOAT, ["n", 8])}, weights)
    engine, right = Faulty(path, threads=1), OrtEngine(path, threads=1)
    everything = list(range(len(engine.graph.nodes)))
    names = [name for name in tensor_names(engine.graph, everything) if name != "x"]
    inputs = [0.001 * np.ones((2, 8), np.float32), rng.standard_normal((4, 8), np.float32)]
    reducer = Reducer(engine, [{"x": x, **right.compute_tensors(names, {"x": x})} for x in inputs])
    case = reducer.reduce_nodes(everything)
    assert [engine.graph.nodes[at].op_type for at in case.part.nodes] == ["MatMul", "Add"]
    assert case.part.inputs == ("m",)
    assert case.inputs[0]["m"].shape == (4, 8)  # of the second sample
    assert reducer.with_fewer_rows(case).inputs[0]["m"].shape == (1, 8)
