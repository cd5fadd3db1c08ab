"""Faults of ONNX files and of profiles for them are found in real files, and sound ones give nothing."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from support import make_onnx as make
from trtdx.errors import MissingExtraError
from trtdx.formats.onnx.strip import strip_weights
from trtdx.formats.protobuf_wire import WireStream
from trtdx.host import RealHost
from trtdx.inspect.agreements import agreements_in
from trtdx.inspect.agreements.agreement import judge_findings
from trtdx.inspect.agreements.model import onnx as onnx_agreements
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.profiles.onnx_profiles import profile_problems
from trtdx.inspect.profiles.onnx_shapes import check_deployment_shapes
from trtdx.inspect.readers.onnx import onnx_file as onnx
from trtdx.inspect.readers.onnx import profile_file
from trtdx.knowledge.load import load_book
from trtdx.model import Severity

HOST = RealHost()
BOOK = load_book(HOST)


@pytest.fixture
def findings(tmp_path):
    """Write a model and profiles, read both, and check them together."""

    def check(made, *profiles):
        path = str(made) if hasattr(made, "exists") else make.saved(tmp_path / "model.onnx", made)
        artifacts = [onnx.read_onnx_file(HOST, path)]
        if profiles:
            (tmp_path / "profiles.json").write_text(json.dumps({"profiles": [each for each in profiles if each]}))
            artifacts.append(profile_file.read_profile_file(HOST, str(tmp_path / "profiles.json")))
        deployment = check_deployment_shapes(HOST, Deployment(tuple(artifacts)))
        return judge_findings(agreements_in(onnx_agreements), deployment, BOOK)

    return check


def codes(found):
    return [finding.code for finding in found]


def ranges(**tensors):
    """Return a profile from x=((1, 4), (2, 4), (4, 4))."""
    return {name: dict(zip(("min", "opt", "max"), map(list, each), strict=True)) for name, each in tensors.items()}


def rows(low, best, high, width=4):
    return (low, width), (best, width), (high, width)


NOTHING = {}  # stands for a file with an empty list of profiles


@pytest.mark.heavy
def test_a_sound_llama_with_two_profiles_gives_nothing(findings):
    assert findings(make.exported_llama(), make.CONTEXT, make.GENERATION) == []


def test_a_sound_model_alone_gives_nothing(findings):
    assert findings(make.exported_llama()) == []
    assert findings(make.added()) == []


@pytest.mark.parametrize(
    ("made", "profile", "code", "words"),
    [
        (make.added(), NOTHING, "DX142", "has no min, opt and max shapes for the dynamic inputs x, y"),
        (make.added(), ranges(x=rows(1, 2, 4)), "DX142", "profile 0 has no min, opt and max shapes for the dynamic inputs y"),
        (make.added(), ranges(x=rows(3, 2, 4), y=rows(1, 2, 4)), "DX143", "x has min 3, opt 2, max 4 in axis 0"),
        (make.added(), ranges(x=rows(1, 2, 4, 5), y=rows(1, 2, 4)), "DX143", "which is 4 in the model"),
        (make.added(), ranges(x=((1,), (2,), (4,)), y=rows(1, 2, 4)), "DX143", "has 1 dimension, the input has 2"),
        (make.added(), ranges(x=((1,), (2, 4), (4, 4)), y=rows(1, 2, 4)), "DX143", "min, opt and max of different rank"),
        (make.added(), ranges(x=rows(-1, 2, 4), y=rows(1, 2, 4)), "DX143", "which no dimension can have"),
        (make.added(), ranges(x=rows(1, 2, 4), y=rows(1, 3, 4)), "DX143", "dimension batch is 1 / 2 / 4"),
        (make.added(("a", 4), ("b", 4)), ranges(x=rows(2, 2, 4), y=rows(2, 3, 4)), "DX143", "at the opt shapes the inputs of the Add node add"),
        (make.added(), ranges(x=rows(1, 2, 4), y=rows(1, 2, 8)), "DX937", "dimension batch is 1 / 2 / 4"),
        (make.added(("a", 4), ("b", 4)), ranges(x=rows(2, 2, 4), y=rows(2, 2, 8)), "DX937", "at the max shapes"),
        (make.added(), ranges(x=rows(1, 2, 4), y=rows(1, 2, 4), zz=rows(1, 2, 4)), "DX936", "gives shapes for zz, which is not an input"),
        (make.added(), ranges(x=rows(0, 0, 0), y=rows(0, 0, 0)), "DX940", "x, y can only be empty"),
    ],
)  # fmt: skip
def test_a_profile_that_does_not_fit(findings, made, profile, code, words):
    (finding,) = findings(made, profile)
    assert finding.code == code
    assert words in finding.message
    assert finding.evidence


def test_a_misspelt_input_is_one_finding_that_names_the_right_one(findings):
    made = make.model([make.node("Relu", ["input_ids"], ["y"])], [("input_ids", ["b", 4])], [("y", ["b", 4])])
    (finding,) = findings(made, ranges(input_id=rows(1, 2, 4)))
    assert (finding.code, finding.severity) == ("DX936", Severity.ERROR)
    assert finding.fixes[0].text == "write input_ids in place of input_id; the inputs are input_ids"


def test_the_example_of_a_missing_input_is_filled_in(findings):
    (finding,) = findings(make.added(("batch", 4), ("batch", "seq")), ranges(x=rows(1, 2, 8)))
    assert finding.fixes[0].command == (
        "trtexec --onnx=model.onnx --minShapes=y:1x<seq> --optShapes=y:2x<seq> --maxShapes=y:8x<seq>"
    )


@pytest.mark.parametrize("total", ["total", "past + seq", "seq + past", None])
def test_a_mask_that_is_not_past_and_sequence(findings, total):
    def profile(longest):
        return ranges(
            input_ids=((1, 1), (2, 1), (4, 1)),
            attention_mask=((1, 2), (2, 5), (4, longest)),
            **{"past_key_values.0.key": ((1, 1), (2, 4), (4, 8))},
        )

    assert findings(make.masked(total), profile(9)) == []
    (finding,) = findings(make.masked(total), profile(12))
    assert finding.code == "DX938"
    assert "max is 12, not 9" in finding.message


@pytest.mark.parametrize(
    ("total", "words"),
    [
        ((2, 17, 64), "max is 64, not 32"),
        ((2, 20, 32), "opt is 20, not 17"),
        ((3, 17, 32), "min is 3, not 2"),
    ],
)
def test_a_mask_of_the_exported_llama_that_tensorrt_accepts(findings, total, words):
    wrong = make.llama_profile((1, 2, 4), (1, 1, 1), (1, 16, 31), total)
    (finding,) = findings(make.exported_llama(), make.CONTEXT, wrong)
    assert (finding.code, finding.severity) == ("DX938", Severity.WARNING)
    assert f"in optimization profile 1 axis 1 of attention_mask is not past + sequence: {words}" == finding.message


def test_a_profile_twice(findings):
    (finding,) = findings(make.exported_llama(), make.CONTEXT, make.GENERATION, make.CONTEXT)
    assert (finding.code, finding.severity) == ("DX939", Severity.WARNING)
    assert finding.message.startswith("optimization profile 2 is the same as profile 0")


def test_a_profile_inside_another(findings):
    inside = ranges(x=rows(1, 4, 8), y=rows(1, 4, 8))
    around = ranges(x=rows(1, 4, 16), y=rows(1, 4, 16))
    (finding,) = findings(make.added(), around, inside)
    assert (finding.code, finding.severity) == ("DX939", Severity.NOTE)
    tuned = ranges(x=rows(1, 1, 8), y=rows(1, 1, 8))
    assert findings(make.added(), around, tuned) == []


@pytest.mark.parametrize(
    ("made", "code", "severity"),
    [
        (make.with_external("none.bin"), "DX164", Severity.ERROR),
        (make.with_external("../none.bin"), "DX941", Severity.ERROR),
        (b"hello world" * 100, "DX166", Severity.ERROR),
        (make.added().SerializeToString()[:-20], "DX166", Severity.ERROR),
        (make.added(opset=99), "DX169", Severity.WARNING),
        (make.added(ir_version=99), "DX169", Severity.WARNING),
        (make.model([make.node("Add", ["x", "no"], ["z"])], [("x", ["b"])], [("z", ["b"])]), "DX192", Severity.ERROR),
        (make.model([make.node("Relu", ["x"], ["y"], "n"), make.node("Abs", ["y"], ["z"], "n")], [("x", ["b"])], [("z", ["b"])]), "DX942", Severity.NOTE),
        (
            make.model(
                [make.node("Gather", ["x", "i"], ["z"], axis=0)], [("x", [3, 4])], [("z", [1, 4])], [make.weight("i", np.array([7]))]
            ),
            "DX943",
            Severity.ERROR,
        ),
    ],
)  # fmt: skip
def test_a_fault_of_the_file(findings, made, code, severity):
    (finding,) = findings(made)
    assert (finding.code, finding.severity) == (code, severity)


def test_a_file_beyond_the_limit_of_protobuf(findings, tmp_path):
    path = tmp_path / "big.onnx"
    path.write_bytes(make.added().SerializeToString() + make.varint(6 << 3 | 2) + make.varint(3 << 30))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + (3 << 30))
    assert codes(findings(path)) == ["DX165"]


def test_profiles_go_to_the_model_whose_inputs_they_name(tmp_path):
    encoder = make.model([make.node("Relu", ["mel"], ["h"])], [("mel", ["b", 80])], [("h", ["b", 80])])
    models = [
        onnx.read_onnx_file(HOST, make.saved(tmp_path / "a.onnx", encoder)),
        onnx.read_onnx_file(HOST, make.saved(tmp_path / "b.onnx", make.added())),
    ]
    (tmp_path / "p.json").write_text(json.dumps([ranges(x=rows(1, 2, 4), y=rows(1, 2, 4))]))
    profiles = profile_file.read_profile_file(HOST, str(tmp_path / "p.json"))
    assert (
        judge_findings(
            agreements_in(onnx_agreements),
            check_deployment_shapes(HOST, Deployment((*models, profiles))),
            BOOK,
        )
        == []
    )


def test_profile_problems_tell_refused_from_accepted(tmp_path):
    made = onnx.read_onnx_file(HOST, make.saved(tmp_path / "a.onnx", make.added()))
    for profile, severities in (
        (ranges(x=rows(1, 2, 4), y=rows(1, 2, 4)), []),
        (ranges(x=rows(1, 2, 4), y=rows(1, 2, 8)), [Severity.WARNING]),
        (ranges(x=rows(1, 2, 4), y=rows(1, 3, 8)), [Severity.ERROR]),
    ):
        (tmp_path / "p.json").write_text(json.dumps([profile]))
        given = profile_file.read_profile_file(HOST, str(tmp_path / "p.json"))
        assert [violation.severity for violation in profile_problems(made, given)] == severities


def test_a_file_of_profiles_that_cannot_be_read_is_one_finding(tmp_path):
    made = onnx.read_onnx_file(HOST, make.saved(tmp_path / "a.onnx", make.added()))
    for text, words in (
        ("profiles: [{x: {min: [1]}}]", "expected min, opt and max"),
        ("profiles: [", "is not YAML"),
    ):
        (tmp_path / "p.yaml").write_text(text)
        given = profile_file.read_profile_file(HOST, str(tmp_path / "p.yaml"))
        (finding,) = judge_findings(agreements_in(onnx_agreements), Deployment((made, given)), BOOK)
        assert finding.code == "DX944"
        assert words in finding.message


def test_a_mask_that_is_no_sum_at_opt_is_the_cause_and_not_its_consequence(findings):
    profile = ranges(
        input_ids=((1, 1), (4, 1), (8, 8)),
        attention_mask=((1, 1), (4, 16), (8, 40)),
        **{"past_key_values.0.key": ((1, 0), (4, 16), (8, 32))},
    )
    (finding,) = findings(make.masked(), profile)
    assert (finding.code, finding.severity) == ("DX938", Severity.ERROR)
    assert "opt is 16, not 17 (the model cannot be run at these opt shapes" in finding.message


def test_polygraphy_fills_in_what_is_left_out(tmp_path):
    made = onnx.read_onnx_file(HOST, make.saved(tmp_path / "a.onnx", make.added()))
    text = "polygraphy convert --trt-min-shapes x:[1,4] --trt-opt-shapes x:[2,4] --trt-max-shapes x:[4,4]"
    (tmp_path / "p.txt").write_text(text)
    given = profile_file.read_profile_file(HOST, str(tmp_path / "p.txt"))
    (finding,) = judge_findings(agreements_in(onnx_agreements), Deployment((made, given)), BOOK)
    assert (finding.code, finding.severity) == ("DX142", Severity.WARNING)


def unchecked(tmp_path, made):
    path = make.saved(tmp_path / "a.onnx", made)
    (tmp_path / "p.json").write_text(json.dumps([ranges(x=rows(1, 2, 4), y=rows(1, 3, 4))]))
    artifacts = (
        onnx.read_onnx_file(HOST, path),
        profile_file.read_profile_file(HOST, str(tmp_path / "p.json")),
    )
    deployment = check_deployment_shapes(HOST, Deployment(artifacts))
    return deployment.first_of("profiles"), tuple(note for each in deployment.artifacts for note in each.unread)


def test_without_the_onnx_package_the_answer_says_what_was_not_checked(tmp_path, monkeypatch):
    def absent(package, *, extra, purpose):
        raise MissingExtraError(f"{package} is needed to {purpose}", fix=f"pip install 'trtdx[{extra}]'")

    monkeypatch.setattr("trtdx.formats.onnx.shape_inference.import_optional", absent)
    given, notes = unchecked(tmp_path, make.added(("a", 4), ("b", 4)))
    assert not given.has("profiles.unmet")
    assert notes == (
        "the types and shapes inside the graph were not checked: "
        "onnx is needed to check types and shapes inside the graph (pip install 'trtdx[onnx]')",
    )


def test_a_graph_that_cannot_be_inferred_is_told(tmp_path):
    made = make.model(
        [make.node("Rope", ["x", "y"], ["z"], domain="unknown.domain")],
        [("x", ["a", 4]), ("y", ["b", 4])],
        [("z", [None, 4])],
    )
    assert "was not checked: [TypeInferenceError]" in unchecked(tmp_path, made)[1][0]


def test_shapes_are_checked_without_the_weights(tmp_path):
    layers = [
        make.node("MatMul", ["x", "up"], ["h"], "up_proj"),
        make.node("MatMul", ["h", "down"], ["o"], "down_proj"),
        make.node("Add", ["o", "y"], ["z"], "residual"),
    ]
    weights = [
        make.weight("up", np.zeros((4, 1024), np.float32)),
        make.weight("down", np.zeros((1024, 4), np.float32)),
    ]
    made = make.model(layers, [("x", ["a", 4]), ("y", ["b", 4])], [("z", [None, 4])], weights)
    data = make.saved(tmp_path / "b.onnx", made)
    with HOST.open(data) as stream:
        assert len(strip_weights(WireStream(stream, HOST.size(data)))) < 600 < 32_000 < HOST.size(data)
    assert unchecked(tmp_path, made)[0].get("profiles.unmet")[0] == {
        "profile": 0,
        "shapes": "opt",
        "node": "residual",
        "operator": "Add",
        "why": "Incompatible dimensions",
    }


def test_importing_the_checks_does_not_import_onnx():
    done = make.run(
        [
            sys.executable,
            "-c",
            "import sys, trtdx.inspect.agreements.model.onnx, trtdx.inspect.profiles.onnx_shapes; print('onnx' in sys.modules)",
        ]
    )
    assert done.strip() == "False"
