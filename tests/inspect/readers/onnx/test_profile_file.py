"""Optimization profiles are read as users write them down."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trtdx.host import RealHost, RecordedHost
from trtdx.inspect.readers import probe_path
from trtdx.inspect.readers.onnx.profile_file import READER, read_profile_file

HOST = RealHost()
CONTEXT = {
    "input_ids": {"min": [1, 1], "opt": [2, 32], "max": [4, 128]},
    "mask": {"min": [1, 1], "opt": [2, 32], "max": [4, 128]},
}
GENERATION = {
    "input_ids": {"min": [1, 1], "opt": [2, 1], "max": [4, 1]},
    "mask": {"min": [1, 2], "opt": [2, 33], "max": [4, 129]},
}
BOTH = [CONTEXT, GENERATION]
TRTEXEC = """trtexec --onnx=model.onnx --saveEngine=model.engine \\
  --profile=0 --minShapes=input_ids:1x1,mask:1x1 --optShapes=input_ids:2x32,mask:2x32 --maxShapes=input_ids:4x128,mask:4x128 \\
  --profile=1 --minShapes=input_ids:1x1,mask:1x2 --optShapes=input_ids:2x1,mask:2x33 --maxShapes=input_ids:4x1,mask:4x129
"""
POLYGRAPHY = """polygraphy convert model.onnx -o model.engine \\
  --trt-min-shapes input_ids:[1,1] 'mask:[1,1]' --trt-opt-shapes input_ids:[2,32] mask:[2,32] --trt-max-shapes input_ids:[4,128] mask:[4,128] \\
  --trt-min-shapes input_ids:[1,1] mask:[1,2] --trt-opt-shapes input_ids:[2,1] mask:[2,33] --trt-max-shapes input_ids:[4,1] mask:[4,129] --fp16
"""
FORMS = {
    "json": json.dumps({"profiles": BOTH}),
    "a list in json": json.dumps(BOTH, indent=2),
    "yaml": yaml.safe_dump({"profiles": BOTH}),
    "a list in yaml": "# for the server\n" + yaml.safe_dump(BOTH),
    "trtexec": TRTEXEC,
    "polygraphy": POLYGRAPHY,
}


def reading(text):
    return read_profile_file(RecordedHost({"p": text if isinstance(text, bytes) else text.encode()}), "p")


def shapes(artifact):
    return [
        {span.tensor: {"min": [*span.min], "opt": [*span.opt], "max": [*span.max]} for span in profile.ranges}
        for profile in artifact.profiles
    ]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(tmp_path, form):
    path = tmp_path / "profiles.txt"
    path.write_text(FORMS[form])
    assert READER.recognise(HOST, probe_path(HOST, str(path)))
    artifact = read_profile_file(HOST, str(path))
    assert shapes(artifact) == artifact.get("profiles.shapes") == BOTH
    assert [profile.index for profile in artifact.profiles] == [0, 1]
    assert not artifact.has("malformed")
    assert artifact.unread == ()


def test_the_source_says_whose_options_they_are():
    assert reading(POLYGRAPHY).profiles[0].source == "Polygraphy options in p"
    assert reading(TRTEXEC).profiles[0].source == "trtexec options in p"


def test_one_profile_needs_no_list():
    assert shapes(reading(yaml.safe_dump(CONTEXT))) == [CONTEXT]


def test_shapes_may_be_written_as_trtexec_does():
    assert shapes(reading("profiles: [{x: {min: 1x1, opt: 2x32, max: 4x128}}]"))[0]["x"]["max"] == [4, 128]


def test_opt_shapes_alone_stand_for_all_three():
    assert shapes(reading("trtexec --optShapes=x:4x8")) == [{"x": {"min": [4, 8], "opt": [4, 8], "max": [4, 8]}}]


def test_names_with_colons_and_quotes():
    text = "trtexec --minShapes=\\'input:0\\':1x1 --optShapes=\\'input:0\\':2x2 --maxShapes=\\'input:0\\':3x3"
    assert list(shapes(reading(text))[0]) == ["input:0"]


def test_scalars_have_an_empty_shape():
    text = "--trt-min-shapes n:[] --trt-opt-shapes n:[] --trt-max-shapes n:[]"
    assert shapes(reading(text)) == [{"n": {"min": [], "opt": [], "max": []}}]


def test_an_empty_list_is_said_to_be_one(tmp_path):
    (tmp_path / "p.yaml").write_text("profiles: []\n")
    assert READER.recognise(HOST, probe_path(HOST, str(tmp_path / "p.yaml")))
    assert reading("profiles: []").get("profiles.shapes") == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("profiles: [{x: {min: [1], opt: [2]}}]", "expected min, opt and max"),
        ("profiles: [{x: {min: [1], opt: [a], max: [3]}}]", "expected shapes such as [1, 32]"),
        ("profiles: [{x: {min: [1], opt: [true], max: [3]}}]", "expected shapes such as [1, 32]"),
        ("profiles: [{x: {min: [1], opt: [2.5], max: [3]}}]", "expected shapes such as [1, 32]"),
        (f"profiles: [{{x: {{min: [1], opt: [{2**70}], max: [3]}}}}]", "expected shapes such as [1, 32]"),
        ("profiles: [5]", "expected a table of inputs"),
        ("trtexec --minShapes=x:1x1 --maxShapes=x:2x2", "x: has no opt shape"),
        ("trtexec --minShapes=x --optShapes=y:1", "expected name:1x2x3"),
        ("polygraphy run --trt-min-shapes x:abc --trt-opt-shapes y:[1]", "expected name:[1,2,3]"),
    ],
)
def test_what_is_no_shape_is_told(text, told):
    assert any(told in line for line in reading(text).get("malformed"))


def test_an_input_written_twice_is_told():
    text = "profiles:\n- x: {min: [1], opt: [2], max: [3]}\n  x: {min: [1], opt: [2], max: [4]}\n"
    assert reading(text).get("malformed") == ["p:3: profiles[0].x (first on line 2): is written twice"]


def test_what_is_sound_is_kept_beside_what_is_not():
    artifact = reading("profiles:\n- x: {min: [1], opt: [2], max: [3]}\n  y: {min: 7}\n")
    assert list(shapes(artifact)[0]) == ["x"]
    assert artifact.get("malformed")[0].startswith("p:3: profiles[0].y")


@pytest.mark.parametrize(
    "text", ["profiles: 5", "other: 1", "a: [", b"\xff\xfe\x00", "", "[" * 5000, '{"profiles": [1']
)
def test_what_cannot_be_parsed_is_told(text):
    artifact = reading(text)
    assert artifact.profiles == ()
    assert artifact.get("unparsed")[0].startswith("p: ")


def test_aliases_do_not_blow_up():
    laughs = "a0: &a0 {min: [1], opt: [1], max: [1]}\n" + "".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 12)
    )
    assert "more than" in reading(laughs + "profiles: [{x: *a0}]\n").get("unparsed")[0]


@pytest.mark.parametrize(
    "text",
    [
        "[05/03/2025-10:30:31] [TRT-LLM] [I] trtexec --minShapes=x:1 --optShapes=x:1\n",
        "&&&& RUNNING TensorRT.trtexec [TensorRT v101200] # trtexec --minShapes=x:1\n",
        "[I] Configuring with profiles:[\n {x [min=[1], opt=[2], max=[3]]}\n",
        "max_batch_size: 8\nkv_cache_config: {dtype: fp8}\n",
        '{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}',
        "trtllm-serve model --max_batch_size 8\n",
    ],
)
def test_other_texts_are_not_recognised(tmp_path, text):
    (tmp_path / "x").write_text(text)
    assert not READER.recognise(HOST, probe_path(HOST, str(tmp_path / "x")))


@pytest.mark.heavy
def test_many_profiles_are_cut():
    artifact = reading(json.dumps([{f"t{number}": CONTEXT["mask"] for number in range(100)}] * 100))
    assert sum(len(profile.ranges) for profile in artifact.profiles) == 4096
    assert "left out" in artifact.unread[0]


@settings(max_examples=300, deadline=2000)
@given(st.text(max_size=200) | st.lists(st.sampled_from(["--minShapes=", "a:1x2", ",", " ", "--profile=", "'", "[", "profiles:", "min:", "\n"])).map("".join))  # fmt: skip
def test_any_text_is_read(text):
    assert reading(text.encode("utf-8", "replace")).kind == "profiles"
