"""ONNX files are read without their weights, exactly where they are sound and within bounds where they are not."""

from __future__ import annotations

import os
import tracemalloc

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from support import make_onnx as make
from trtdx.host import RealHost, RecordedHost
from trtdx.inspect.readers import probe_path, read_artifact
from trtdx.inspect.readers.onnx.external_data import leaves_folder
from trtdx.inspect.readers.onnx.onnx_file import NEWEST_IR, NEWEST_OPSET, READER, read_onnx_file

pytestmark = pytest.mark.heavy

HOST = RealHost()


def facts(artifact):
    return {name: fact.value for name, fact in artifact.facts.items()}


@pytest.fixture
def reading(tmp_path):
    """Write a model and read it."""
    return lambda made, name="model.onnx": read_onnx_file(HOST, make.saved(tmp_path / name, made))


@pytest.fixture(scope="module")
def llama():
    return read_onnx_file(HOST, str(make.exported_llama()))


def test_the_exported_llama_is_read_as_onnx_reads_it(llama):
    loaded = onnx.load(make.exported_llama(), load_external_data=False)
    assert llama.get("onnx.nodes") == len(loaded.graph.node)
    assert llama.get("onnx.opset") == {"": 20}
    assert llama.get("onnx.producer").startswith("pytorch 2.")
    assert [(tensor.name, tensor.mode, tensor.dtype, tensor.shape) for tensor in llama.tensors[:4]] == [
        ("input_ids", "in", "int64", ("batch", "seq")),
        ("attention_mask", "in", "int64", ("batch", "total")),
        ("position_ids", "in", "int64", ("batch", "seq")),
        ("past_key_values.0.key", "in", "float32", ("batch", 2, "past", 8)),
    ]
    assert ("present.0.key", "out", ("batch", 2, "past + seq", 8)) in [
        (tensor.name, tensor.mode, tensor.shape) for tensor in llama.tensors
    ]


def test_a_sound_model_has_no_faults(llama):
    faults = (
        "missing",
        "short",
        "outside",
        "wrong",
        "truncated",
        "corrupt",
        "empty",
        "duplicate",
        "dangling",
        "gather",
    )
    assert not [name for name in llama.facts if any(fault in name for fault in faults)]
    assert llama.unread == ()


def test_nodes_are_traced_to_modules():
    scopes = read_onnx_file(HOST, str(make.exported_llama())).table("onnx.modules")
    assert scopes["node_embedding"] == "llama.model.embed_tokens"
    assert "llama.model.layers.0.mlp.down_proj" in scopes.values()
    assert not any("_empty_nn_module_stack" in module for module in scopes.values())


def test_nodes_of_the_older_exporter_are_traced_by_their_names(reading):
    node = make.node("Relu", ["x"], ["y"], "/model/layers.0/mlp/act_fn/Mul")
    artifact = reading(make.model([node], [("x", ["b"])], [("y", ["b"])]))
    assert artifact.get("onnx.modules") == {"/model/layers.0/mlp/act_fn/Mul": "model.layers.0.mlp.act_fn"}


def test_where_says_the_field(llama):
    assert llama.facts["onnx.opset"].where == f"{make.exported_llama()}: opset_import"


def test_initializers_are_no_inputs(reading):
    model = make.model(
        [make.node("Add", ["x", "w"], ["z"])],
        [("x", ["b", 4]), ("w", [4])],
        [("z", ["b", 4])],
        [make.weight("w", np.ones(4, np.float32))],
    )
    artifact = reading(model)
    assert [tensor.name for tensor in artifact.tensors if tensor.mode == "in"] == ["x"]
    assert artifact.get("onnx.weights_bytes") == 16


def test_dimensions_without_name_or_rank(reading):
    model = make.model(
        [make.node("Add", ["x", "y"], ["z"])], [("x", [None, 4]), ("y", None)], [("z", ["past + seq", 0])]
    )
    assert [tensor.shape for tensor in reading(model).tensors] == [("?", 4), ("...",), ("past + seq", 0)]


@pytest.mark.parametrize(
    "dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT4, TensorProto.FLOAT8E4M3FN]
)
def test_types_have_the_names_of_the_vocabulary(reading, dtype):
    artifact = reading(make.model([make.node("Relu", ["x"], ["y"])], [("x", [1], dtype)], [("y", [1], dtype)]))
    assert artifact.tensors[0].dtype in ("float16", "bfloat16", "int4", "float8_e4m3fn")


def test_custom_operators_and_functions(reading):
    inner = helper.make_function("local", "Twice", ["a"], ["b"], [make.node("Add", ["a", "a"], ["b"])], [])
    nodes = [
        make.node("Twice", ["x"], ["y"], "call", domain="local"),
        make.node("RopePlugin", ["y"], ["z"], "rope", domain="trt.plugins"),
    ]
    artifact = reading(make.model(nodes, [("x", ["b"])], [("z", ["b"])], functions=[inner]))
    assert artifact.get("onnx.domains") == ["local", "trt.plugins"]
    assert artifact.get("onnx.operators")["trt.plugins::RopePlugin"] == 1
    assert artifact.get("onnx.nodes") == 2
    assert not artifact.has("onnx.dangling")


def test_a_function_sees_only_its_own_inputs(reading):
    inner = helper.make_function("local", "F", ["a"], ["b"], [make.node("Add", ["a", "x"], ["b"], "inner")], [])
    model = make.model(
        [make.node("F", ["x"], ["y"], domain="local")], [("x", ["b"])], [("y", ["b"])], functions=[inner]
    )
    assert reading(model).get("onnx.dangling") == ["x (used by inner)"]


def test_bodies_use_what_is_around_them(reading):
    assert not reading(make.nested(3)).has("onnx.dangling")
    assert reading(make.nested(3)).get("onnx.nodes") == 1 + 2 + 4 + 8


def test_inputs_that_nothing_makes(reading):
    model = make.model(
        [make.node("Add", ["x", "nope"], ["z"], "adder")], [("x", ["b"])], [("z", ["b"]), ("gone", ["b"])]
    )
    assert reading(model).get("onnx.dangling") == [
        "nope (used by adder)",
        "gone (used by the model as an output)",
    ]


def test_names_that_are_used_twice(reading):
    model = make.model(
        [make.node("Relu", ["x"], ["y"], "n"), make.node("Abs", ["x"], ["y"], "n")],
        [("x", ["b"])],
        [("y", ["b"])],
    )
    assert reading(model).get("onnx.duplicate_names") == ["y"]
    assert reading(model).get("onnx.duplicate_nodes") == ["n"]


def gathered(index, *, data="table", axis=0, as_constant=False, raw=True):
    values = np.array([index], np.int64)
    tensor = make.weight("i", values) if raw else helper.make_tensor("i", TensorProto.INT64, [1], [index])
    nodes = [make.node("Gather", [data, "i"], ["z"], "pick", axis=axis)]
    weights = [make.weight("table", np.ones((3, 4), np.float32))]
    if as_constant:
        nodes.insert(0, make.node("Constant", [], ["i"], value=tensor))
    else:
        weights.append(tensor)
    return make.model(nodes, [("x", [3, "n"])], [("z", None)], weights)


@pytest.mark.parametrize("index", [3, 7, -4])
@pytest.mark.parametrize("how", [{}, {"as_constant": True}, {"raw": False}, {"data": "x"}])
def test_a_constant_index_that_is_not_there(reading, index, how):
    (told,) = reading(gathered(index, **how)).get("onnx.gather_out_of_range")
    assert told == f"pick: index {index} into {how.get('data', 'table')}, which has 3 along axis 0"


@pytest.mark.parametrize("made", [gathered(2), gathered(-3), gathered(3, axis=1), gathered(9, data="x", axis=1)])
def test_an_index_that_is_there_or_cannot_be_judged(reading, made):
    assert not reading(made).has("onnx.gather_out_of_range")


def test_an_index_into_a_shape_beyond_its_rank(reading):
    nodes = [make.node("Shape", ["x"], ["s"]), make.node("Gather", ["s", "i"], ["z"], "pick")]
    model = make.model(nodes, [("x", ["b", 4])], [("z", [1])], [make.weight("i", np.array([5]))])
    assert reading(model).get("onnx.gather_out_of_range") == ["pick: index 5 into s, which has 2 along axis 0"]


def test_the_newest_versions_are_those_of_the_installed_package():
    if tuple(map(int, onnx.__version__.split(".")[:2])) > (1, 23):
        pytest.skip("a newer onnx may know newer ones")
    assert onnx.defs.onnx_opset_version() <= NEWEST_OPSET
    assert onnx.IR_VERSION <= NEWEST_IR


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (make.with_external("ok.bin"), {}),
        (make.with_external("ok.bin", offset=0, length=16), {}),
        (make.with_external("sub/../ok.bin"), {}),
        (make.with_external("none.bin"), {"onnx.external_missing": ["none.bin"]}),
        (make.with_external(""), {"onnx.external_missing": [""]}),
        (make.with_external("folder"), {"onnx.external_missing": ["folder"]}),
        (
            make.with_external("short.bin"),
            {"onnx.external_short": ["short.bin: has 8 bytes, but w ends at byte 16"]},
        ),
        (
            make.with_external("ok.bin", offset=4, length=16),
            {"onnx.external_short": ["ok.bin: has 16 bytes, but w ends at byte 20"]},
        ),
        (
            make.with_external("ok.bin", length=12),
            {"onnx.external_wrong": ["w: its shape needs 16 bytes, its entry says 12"]},
        ),
        (make.with_external("ok.bin", offset="x"), {"onnx.external_wrong": ["w: offset 'x', length ''"]}),
        (make.with_external("ok.bin", offset=-1), {"onnx.external_wrong": ["w: offset '-1', length ''"]}),
        (make.with_external("../secret.bin"), {"onnx.external_outside": ["../secret.bin"]}),
        (make.with_external("/etc/passwd"), {"onnx.external_outside": ["/etc/passwd"]}),
        (make.with_external("a\0b"), {"onnx.external_missing": ["a\0b"]}),
        (make.with_external("x" * 5000), {"onnx.external_missing": ["x" * 5000]}),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value.graph.initializer[0].external_data[0].value[:20],
)  # fmt: skip
def test_external_data(tmp_path, reading, made, told):
    (tmp_path / "ok.bin").write_bytes(bytes(16))
    (tmp_path / "short.bin").write_bytes(bytes(8))
    (tmp_path / "folder").mkdir()
    (tmp_path.parent / "secret.bin").write_bytes(bytes(16))
    assert {name: value for name, value in facts(reading(made)).items() if name in EXTERNAL_FAULTS} == told


EXTERNAL_FAULTS = [f"onnx.external_{each}" for each in ("missing", "short", "wrong", "outside")]


def test_external_data_behind_a_link(tmp_path):
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "w.bin").write_bytes(bytes(16))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "link.bin").symlink_to(outside / "w.bin")
    path = make.saved(tmp_path / "model" / "model.onnx", make.with_external("link.bin"))
    assert read_onnx_file(HOST, path).get("onnx.external_outside") == ["link.bin (by a link)"]


def test_links_of_the_hugging_face_cache_are_no_fault(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "111").write_bytes(make.with_external("model.onnx_data").SerializeToString())
    (blobs / "222").write_bytes(bytes(16))
    (snapshot / "model.onnx").symlink_to("../../blobs/111")
    (snapshot / "model.onnx_data").symlink_to("../../blobs/222")
    artifact = read_onnx_file(HOST, str(snapshot / "model.onnx"))
    assert not [name for name in EXTERNAL_FAULTS if artifact.has(name)]


@pytest.mark.parametrize("location", ["..\\x", "C:/x", "C:\\x", "a/../../x", "//x", "/x"])
def test_locations_that_leave_the_folder(location):
    assert leaves_folder(location)


@pytest.mark.parametrize("location", ["x", "a/b", "./x", "a/../x", "..x", ""])
def test_locations_that_do_not(location):
    assert not leaves_folder(location)


def test_a_file_that_parses_to_nothing_is_empty(reading):
    assert reading(b"hello world" * 100).get("onnx.empty")
    assert reading(b"").get("onnx.empty")
    assert reading(b"\x08\x0a").get("onnx.empty")


def test_a_truncated_file_gives_what_comes_before(tmp_path):
    data = make.exported_llama().read_bytes()
    artifact = read_onnx_file(HOST, make.saved(tmp_path / "cut.onnx", data[: len(data) // 2]))
    assert "of 131," in artifact.text("onnx.truncated") or "bytes more than the file has" in artifact.text(
        "onnx.truncated"
    )
    assert 0 < artifact.get("onnx.nodes") < 200
    assert not artifact.has("onnx.empty")
    assert not artifact.has("onnx.dangling")


def test_a_lfs_pointer(reading):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123\n"
    assert set(facts(reading(pointer))) == {"onnx.bytes", "weights.lfs_pointers"}


def test_a_missing_file_is_a_note():
    artifact = read_onnx_file(HOST, "/nowhere/model.onnx")
    assert artifact.facts == {}
    assert "No such file" in artifact.unread[0]


def test_a_recording_is_read_alike(llama):
    path = str(make.exported_llama())
    recorded = read_onnx_file(RecordedHost({path: make.exported_llama().read_bytes()}), path)
    assert recorded == llama


def test_recognised_by_name_or_content(tmp_path):
    model = make.added()
    for name, data, known in (
        ("a.onnx", b"anything", True),
        ("a.bin", model.SerializeToString(), True),
        ("a.txt", b"hello", False),
        ("a.plan", b"vtrt" + bytes(60), False),
        ("saved_model.pb", b"\x08\x01" + make.span(2, b"\x0a\x05model" * 9000), False),
    ):
        assert READER.recognise(HOST, probe_path(HOST, make.saved(tmp_path / name, data))) is known
    assert read_artifact(HOST, make.saved(tmp_path / "b.onnx", model)).kind == "onnx"


def test_a_sparse_file_of_ten_gigabytes(tmp_path):
    path = tmp_path / "zeros.onnx"
    with path.open("wb") as file:
        file.truncate(10 << 30)
    assert (
        within(lambda: read_onnx_file(HOST, str(path))).text("onnx.corrupt").startswith("at byte 0 of 10,737,418,240")
    )


def test_ten_gigabytes_of_weights_are_stepped_over(tmp_path):
    path = tmp_path / "big.onnx"
    tensor = b"\x08\x04\x10\x01" + make.span(8, b"w")
    size = 10 << 30
    raw = make.varint(9 << 3 | 2) + make.varint(size)
    initializer = make.varint(5 << 3 | 2) + make.varint(len(tensor) + len(raw) + size) + tensor + raw
    output = make.span(12, make.span(1, b"w"))
    graph = make.varint(7 << 3 | 2) + make.varint(len(initializer) + size + len(output))
    with path.open("wb") as file:
        file.write(b"\x08\x0a" + graph + initializer)
        file.seek(size, os.SEEK_CUR)
        file.write(output)
    artifact = within(lambda: read_onnx_file(HOST, str(path)))
    assert artifact.get("onnx.weights_bytes") == size
    assert [tensor.name for tensor in artifact.tensors] == ["w"]
    assert not artifact.has("onnx.truncated")


def within(work, megabytes=64):
    """Return what the work returns, which must need little memory."""
    tracemalloc.start()
    try:
        result = work()
        assert tracemalloc.get_traced_memory()[1] < megabytes << 20
    finally:
        tracemalloc.stop()
    return result


def test_a_graph_of_a_large_model_is_read_with_its_modules(tmp_path):
    data = make.llm_sized()
    assert len(data) > 3_000_000
    path = make.saved(tmp_path / "model.onnx", data)
    artifact = read_onnx_file(HOST, path)
    assert artifact.get("onnx.nodes") == 1768
    assert artifact.get("onnx.modules")["node_mul_0"] == "model.layers.0.self_attn"


def bombs():
    deep = make.span(1, make.span(5, b""))
    for _ in range(300):  # attribute -> graph -> node -> attribute ...
        deep = make.span(1, make.span(4, b"If") + make.span(5, make.span(6, deep)))
    yield "deeply nested", b"\x08\x0a" + make.span(7, deep)
    yield "a length of 2^60", b"\x08\x0a" + make.span(7, b"", says=2**60)
    yield "a length of 2^64 inside", b"\x08\x0a" + make.span(7, make.span(1, b"", says=2**64 - 1))
    yield (
        "an inner field longer than the outer",
        make.span(7, make.span(1, b"", says=9)) + make.span(2, b"x" * 99),
    )
    yield "a number without end", b"\x08" + b"\xff" * 100_000
    yield "a tag without end", b"\xff" * 100_000
    yield "many empty nodes", make.span(7, make.span(1, b"") * 150_000)
    yield "many unknown fields", make.span(99, b"") * 150_000
    yield "many dimensions", make.span(7, make.span(5, make.span(1, b"\x01" * 1_000_000) + b"\x10\x01"))
    yield (
        "dimensions whose product is huge",
        make.span(7, make.span(5, make.span(1, b"\xff\xff\xff\x7f" * 64) + b"\x10\x01")),
    )
    yield "a name of a megabyte", make.span(7, make.span(11, make.span(1, b"n" * (1 << 20))))
    yield (
        "many metadata",
        make.span(7, make.span(1, make.span(9, make.span(1, b"k") + make.span(2, b"v")) * 100_000)),
    )


BOMBS = dict(bombs())


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_soon_and_small(tmp_path, name):
    data = BOMBS[name]
    path = make.saved(tmp_path / "bomb.onnx", data)
    artifact = within(lambda: read_onnx_file(HOST, path), megabytes=100)
    assert artifact.kind == "onnx"


def test_a_body_too_deep_is_told(tmp_path):
    artifact = read_onnx_file(HOST, make.saved(tmp_path / "deep.onnx", BOMBS["deeply nested"]))
    assert "to a depth of 16" in artifact.unread[0]


def test_a_graph_larger_than_any_is_read_in_part(tmp_path):
    data = make.span(7, make.span(1, make.span(1, b"x") * 3) * 700_000)
    artifact = read_onnx_file(HOST, make.saved(tmp_path / "many.onnx", data))
    assert "only in part" in artifact.unread[0]
    assert artifact.get("onnx.nodes") > 100_000


class Shrinking(RecordedHost):
    """A file that is shorter when it is read than when it was measured."""

    def size(self, path):
        return super().size(path) + 1000


def test_a_file_that_shrinks_is_read_as_far_as_it_goes():
    artifact = read_onnx_file(Shrinking({"m.onnx": make.added().SerializeToString()}), "m.onnx")
    assert artifact.get("onnx.nodes") == 1
    assert artifact.has("onnx.truncated")


@settings(max_examples=300, deadline=2000)
@given(st.binary(max_size=400))
def test_any_bytes_are_read(data):
    artifact = read_onnx_file(RecordedHost({"m.onnx": data}), "m.onnx")
    assert artifact.kind == "onnx"


SOUND = gathered(7).SerializeToString()


@settings(max_examples=300, deadline=2000)
@given(st.integers(0, len(SOUND) - 1), st.binary(min_size=1, max_size=4))
def test_a_damaged_model_is_read(at, damage):
    data = SOUND[:at] + damage + SOUND[at + len(damage) :]
    artifact = read_onnx_file(RecordedHost({"m.onnx": data}), "m.onnx")
    assert artifact.kind == "onnx"
