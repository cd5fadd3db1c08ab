"""What marking tensors changes in the compiled program, measured on real plans."""

from __future__ import annotations

import msgspec
import pytest

from support.paths import SUPPORT

pytest.importorskip("tensorrt_rtx", reason="compiles with the real TensorRT")
pytest.importorskip("onnx")

from trtdx.capture.build.findings import findings_from_build
from trtdx.capture.build.report import render_build_report
from trtdx.engines.tensorrt.build.build import build_plan
from trtdx.engines.tensorrt.build.errors import BuildError
from trtdx.engines.tensorrt.build.nouns import BuildOptions
from trtdx.engines.tensorrt.build.observer_effect import compare_builds
from trtdx.model import Report

HERE = SUPPORT
LINEARS = "**.q_proj,**.k_proj,**.v_proj,**.o_proj,**.gate_proj,**.up_proj,**.down_proj"
MLP = f"{HERE / 'network_definitions.py'}:mlp"
PROFILE = ["x:1x64,2x64,4x64"]


def rows(section):
    return {row[0]: row[1:] for row in section.rows}


@pytest.fixture(scope="module")
def plain():
    return build_plan(MLP, profiles=PROFILE)


@pytest.fixture(scope="module")
def effect(plain):
    return compare_builds(plain, build_plan(MLP, profiles=PROFILE, variant="outputs", selector="layers.*.fc"))


class TestOfAnMlp:
    def test_lost_fusions_name_the_layers_and_where_they_are_now(self, effect):
        assert [each.layers for each in effect.splits] == [
            (f"layers.{number}.fc", f"layers.{number}.act") for number in (0, 1)
        ]
        assert all(len(each.now) == 2 for each in effect.splits)

    def test_kernels_are_counted_by_type(self, effect):
        kinds = rows(effect.sections()[1])
        assert kinds["gemm"] == (3, 2, "-1 (-33.3%)")
        assert kinds["kgen"] == (0, 2, "+2")

    def test_bindings_grow_by_what_is_marked(self, effect):
        sizes = rows(effect.sections()[0])
        one = 4 * 64 * 4  # bytes of one tensor at the largest shape
        assert sizes["bytes of output bindings at the largest shapes"][:2] == (one, 4 * one)
        assert sizes["plan bytes"][1] > sizes["plan bytes"][0]

    def test_it_is_told_in_a_sentence(self, effect):
        assert effect.text == "marking 3 tensors changed 4 kernels into 6, and split 2 fused ones"

    def test_debug_tensors_change_nothing(self, plain):
        debug = build_plan(MLP, profiles=PROFILE, variant="debug-tensors", selector="layers.*.fc")
        effect = compare_builds(plain, debug)
        assert (effect.changed, effect.splits, effect.added) == (False, (), ())
        assert effect.summary == "marking 3 tensors left all 4 kernels as they were"


def shapes(batches, lengths, pasts, mask=0):
    from support.onnx_models import CACHE, HEADS, WIDTH

    sizes = list(zip(batches, lengths, pasts, strict=True))
    cache = tuple((batch, HEADS, past, WIDTH) for batch, _, past in sizes)
    ids = tuple((batch, new) for batch, new, _ in sizes)
    return {
        "input_ids": ids,
        "position_ids": ids,
        "attention_mask": tuple((batch, new + past + mask) for batch, new, past in sizes),
        **{f"past_key_values.{layer}.{part}": cache for layer, part in CACHE},
    }


@pytest.fixture(scope="module")
def profiles():
    return [shapes((1, 2, 4), (1, 16, 32), (0, 0, 0)), shapes((1, 2, 4), (1, 1, 1), (1, 16, 63))]


@pytest.fixture(scope="module")
def production(llama_onnx, profiles):
    return build_plan(llama_onnx, profiles=profiles)


def test_a_report_has_the_effect_and_the_plan(effect, book):
    report = render_build_report(effect.debug, book, production=effect.production)
    assert [section.key for section in report.sections] == [
        "observer", "observer-kernels", "observer-fusions", "observer-added", "plan", "bindings", "marked",
    ]  # fmt: skip
    assert report.findings == ()
    assert effect.text in report.summary.text
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_a_report_of_a_failure_has_its_cause(book):
    with pytest.raises(BuildError) as caught:
        build_plan(MLP)
    report = render_build_report(caught.value, book)
    assert [finding.code for finding in report.findings] == ["DX142"]
    assert report.summary.text == "no plan was made"


class TestOfALlama:
    """Exported as a user would; the shape of the table in recipes §2.1."""

    def test_outputs_by_the_modules_of_the_file(self, llama_onnx, production, profiles):
        debug = build_plan(llama_onnx, profiles=profiles, variant="outputs", selector=LINEARS)
        effect = compare_builds(production, debug)
        assert len(debug.marked) == 3 * 7
        assert len(debug.outputs) == len(production.outputs) + 3 * 7
        assert len(debug.kernels) > len(production.kernels)
        assert effect.added
        assert debug.output_bytes > production.output_bytes

    def test_nothing_is_wrong_with_it(self, production, book):
        assert findings_from_build(production, book) == []

    def test_all_debug_tensors_but_those_that_cannot_be(self, llama_onnx, production, profiles, book):
        debug = build_plan(llama_onnx, profiles=profiles, variant="debug-tensors", selector="**")
        assert not compare_builds(production, debug).changed
        reasons = [each.reason for each in debug.left_out]
        assert any("shape tensor" in reason for reason in reasons)
        assert any("no runners that implement it" in reason for reason in reasons)
        assert compare_builds(production, debug).sections()[-1].key == "left-out"
        assert findings_from_build(debug, book) == []

    def test_a_mask_of_another_length_is_taken_and_told(self, llama_onnx, book):
        wrong = shapes((1, 2, 4), (1, 1, 1), (1, 16, 63), mask=7)
        built = build_plan(llama_onnx, profiles=[wrong], options=BuildOptions(compute_capabilities=("8.9",)))
        assert "DX938" in [each.code for each in findings_from_build(built, book)]
