"""Other tools' dumps come in, captures go out, and nothing in a stranger's file is run or believed."""

import base64
import contextlib
import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtdx.capture.dumps.export import export_capture
from trtdx.capture.dumps.import_dump import detect_dump_format, import_capture
from trtdx.capture.store.format import CaptureError, CaptureHeader
from trtdx.capture.store.reader import Capture
from trtdx.capture.store.writer import CaptureWriter
from trtdx.errors import InputError
from trtdx.formats.json_stream import iter_json_strings
from trtdx.formats.npy import encode_npy_header, read_npy
from trtdx.host import RealHost
from trtdx.tensors.dtypes import DTYPES, numpy_dtype
from trtdx.tensors.statistics import source_from_array
from trtdx.tensors.taps import Place, parse_selector

HOST = RealHost()
DATA = Path(__file__).parent / "data"  # made with Polygraphy 0.53.6: RunResults.save and save_json


def imported(path, folder):
    done = import_capture(HOST, str(path), str(folder))
    capture = Capture(folder)
    assert capture.partial == ()
    return done, capture


def values(capture, name, **where):
    return capture.values(capture.record(name, **where))


# TensorRT-LLM's trees


def test_the_python_sessions_tree(tmp_path):
    for pp, tp, cp in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 1, 1)):
        at = tmp_path / "tllm_debug" / f"PP_{pp}" / f"TP_{tp}" / f"CP_{cp}"
        at.mkdir(parents=True)
        for step in (0, 1, 10):
            for layer in (2, 10):
                array = np.full((1, 4), pp * 100 + tp * 10 + cp + step / 100, np.float32)
                np.save(at / f"transformer.layers.{layer}.mlp_output-step{step}.npy", array)
                (at / f"transformer.layers.{layer}.mlp_output-step{step}.txt").write_text("1.0")
    done, capture = imported(tmp_path, tmp_path / "c")
    assert (done.records, done.format) == (36, "trtllm-session")
    assert "float32" in done.notes[0]
    assert capture.ranks == (0, 1, 2, 3, 4, 7)  # pipeline outermost, context innermost
    assert values(capture, "transformer.layers.2.mlp_output", step=10, rank=7)[0, 0] == np.float32(111.1)
    assert capture.header.engine == "tensorrt_llm"
    steps = [record.step for record in capture.records(rank=0)]
    assert steps == [0, 0, 1, 1, 10, 10]
    assert capture.names()[0] == "transformer.layers.2.mlp_output"  # layer 2 before layer 10
    places = [record.place for record in capture.records(step=0, rank=0)]
    assert len(parse_selector("layers.10.mlp_output").select(places)) == 1


def cpp_npy(descr, shape, data):
    """NPY as numpyUtils.cpp of TensorRT-LLM 1.2.1 writes it: no byte order, padded to sixteen."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})}}"
    padded = text + " " * (-(10 + len(text) + 1) % 16) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode() + data


def test_the_cpp_executors_tree(tmp_path):
    at = tmp_path / "tllm_debug" / "PP_1" / "TP_2" / "iteration_3"
    at.mkdir(parents=True)
    contents = {
        "?": np.array([True, False]), "u1": np.array([1, 255], np.uint8), "i1": np.array([-1], np.int8),
        "i4": np.array([[1, -2]], np.int32), "i8": np.array([2**40], np.int64), "f2": np.array([1.5], np.float16),
        "f4": np.array([], np.float32),
    }  # fmt: skip
    for descr, array in contents.items():
        (at / f"tensor_{descr.strip('?') or 'b'}.npy").write_bytes(cpp_npy(descr, array.shape, array.tobytes()))
    (at / "fp8.npy").write_bytes(cpp_npy("x", (2,), b"ab"))
    (at / "cut.npy").write_bytes(cpp_npy("f4", (3,), b"abcd"))
    done, capture = imported(tmp_path, tmp_path / "c")
    assert (done.format, done.records, capture.ranks) == ("trtllm-executor", 7, (0,))
    for descr, array in contents.items():
        found = values(capture, f"tensor_{descr.strip('?') or 'b'}", step=3)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert np.array_equal(found, array)
    told = "\n".join(done.notes)
    assert "2 ranks wrote to the same paths" in told
    assert "fp8.npy has the type 'x'" in told
    assert "cut.npy has" in told
    assert "cut off" in told


def hook_dump(folder, forwards):
    """What debug_hook.py leaves: calls numbered from 1, the first number running on over all forward passes."""
    torch = pytest.importorskip("torch")
    (folder / "rank0").mkdir(parents=True)
    number = 0
    for forward in range(forwards):
        for name, children in (("LlamaModel", ["Embedding", "LlamaDecoderLayer", "RMSNorm"]), ("LMHead", [])):
            number += 1
            for path in (
                f"{number}.{name}",
                *(f"{number}.{name}-{k + 1}.{c}" for k, c in enumerate(children)),
            ):
                given = torch.full((2,), float(forward), dtype=torch.bfloat16)
                torch.save(given, folder / "rank0" / f"{path}-input.hidden_states.pt")
                torch.save(given, folder / "rank0" / f"{path}-output.hidden_states.pt")  # the input once more
                torch.save(given + number, folder / "rank0" / f"{path}-output.residual.pt")
    return folder


def test_the_pytorch_hooks_tree(tmp_path):
    done, capture = imported(hook_dump(tmp_path / "data_dump", 3), tmp_path / "c")
    assert (done.format, done.records) == ("trtllm-hook", 3 * 5 * 3)
    assert "steps are inferred" in done.notes[0]
    names = [record.name for record in capture.records(step=0)]
    assert names == [record.name for record in capture.records(step=2)]
    assert "1.LlamaModel.2.LlamaDecoderLayer:out" in names  # the one true output
    assert "1.LlamaModel.2.LlamaDecoderLayer:in.hidden_states" in names
    assert "1.LlamaModel.2.LlamaDecoderLayer:out.hidden_states" in names
    assert values(capture, "2.LMHead:out", step=1).astype(float).tolist() == [5.0, 5.0]
    places = [record.place for record in capture.records(step=0)]
    assert {place.path for place in parse_selector("op:RMSNorm").select(places)} == {"1.LlamaModel.3.RMSNorm"}


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("evil-was-here"),))


def test_torch_files_are_never_unpickled(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    at = hook_dump(tmp_path / "d", 1) / "rank0"
    torch.save(Evil(), at / "9.Evil-input.x.pt")
    torch.save({"a": torch.zeros(2)}, at / "9.Dict-input.x.pt")
    torch.save(torch.zeros(1).expand(1 << 40), at / "9.Huge-input.x.pt")
    torch.save(torch.zeros(2).to_sparse(), at / "9.Sparse-input.x.pt")
    (at / "9.Broken-input.x.pt").write_bytes(b"PK\x03\x04 not a zip")
    done, _ = imported(tmp_path / "d", tmp_path / "c")
    assert not (tmp_path / "evil-was-here").exists()
    told = "\n".join(done.notes)
    for name, why in {
        "Evil": "loaded safely",
        "Dict": "holds a dict",
        "Huge": "claims 4398046511104 bytes",
        "Broken": "loaded safely",
        "Sparse": "not a plain tensor",
    }.items():
        assert any(f"9.{name}-" in line and why in line for line in done.notes), (name, told)
    assert done.records == 15


# Files


def test_polygraphys_outputs(tmp_path):
    done, capture = imported(DATA / "polygraphy_outputs.json", tmp_path / "c")
    assert (done.format, done.records) == ("polygraphy", 4)
    assert values(capture, "logits", step=1).tolist() == [[1, 2, 3], [4, 5, 6]]
    found = values(capture, 'hid"den/états', step=1)
    assert (str(found.dtype), found.astype(float).tolist()) == ("bfloat16", [1.5, 1.5])
    assert done.notes == (
        "the runner trt-runner-N0 was left out: only one of a file is read, here onnxrt-runner-N0; "
        "to compare the other: FILE?runner=trt-runner-N0",
    )


def test_polygraphys_inputs(tmp_path):
    _, capture = imported(DATA / "polygraphy_inputs.json", tmp_path / "c")
    assert [values(capture, "input_ids", step=step).tolist() for step in (0, 1)] == [[[1, 2, 3]], [[4]]]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "nothing in"),
        (b"{}", "nothing in"),
        (b"[" * 100, "nested too deeply"),
        (b'{"a": [}', "do not match"),
        (b'{"array": "abc', "cut off"),
        (b'{"array": "abc"', "cut off"),
        (b'{"x": {"array": "%%%"}}', "nothing in"),
        (b'{"x": {"array": "aGVsbG8="}}', "nothing in"),
        (b'{"\\uZZZZ": 1}', "is broken"),
        (b'{"' + b"k" * 70_000 + b'": 1}', "longer than"),
    ],
)
def test_hostile_json(tmp_path, document, message):
    (tmp_path / "x.json").write_bytes(document)
    with pytest.raises(InputError) as caught:
        import_capture(HOST, str(tmp_path / "x.json"), str(tmp_path / "c"))
    assert message in caught.value.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


def texts(document, path=()):
    if isinstance(document, str):
        yield path, document
    for key, value in (
        enumerate(document) if isinstance(document, list) else document.items() if isinstance(document, dict) else ()
    ):
        yield from texts(value, (*path, key))


class Dribble(io.BytesIO):
    """A stream that gives a few bytes at a time, so that every token is cut somewhere."""

    def __init__(self, data, some):
        super().__init__(data)
        self._some = some

    def read(self, size=-1):
        return super().read(min(size, self._some) if size >= 0 else size)


@settings(max_examples=200, deadline=None)
@given(document=JSON, some=st.integers(1, 7), ascii_only=st.booleans(), indent=st.none() | st.just(2))
def test_json_is_read_as_the_standard_library_does(document, some, ascii_only, indent):
    data = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode()
    found = [
        (path, json.loads(b'"' + text + b'"'))
        for path, text in iter_json_strings(Dribble(data, some), max_string_bytes=10_000)
    ]
    assert found == list(texts(document))


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=60))
def test_json_reading_fails_in_one_way_only(data):
    with contextlib.suppress(InputError):
        list(iter_json_strings(io.BytesIO(data), max_string_bytes=100))


@pytest.mark.parametrize("dtype", [name for name, dtype in DTYPES.items() if dtype.npy])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_is_what_numpy_writes(dtype, order):
    array = np.asarray(np.random.default_rng(0).integers(0, 2, (2, 3, 4)).astype(dtype), order=order)
    for each in (
        array,
        array.astype(array.dtype.newbyteorder(">"), order=order),
        array[0, 0, 0],
        array[:, :0],
    ):
        stream = io.BytesIO()
        np.save(stream, each)
        raw = read_npy(io.BytesIO(stream.getvalue()), len(stream.getvalue()))
        assert (raw.dtype, raw.shape) == (dtype, each.shape)
        assert bytes(raw.data) == each.astype(numpy_dtype(dtype)).tobytes()
    ours = encode_npy_header(DTYPES[dtype], (2, 3)) + np.ones((2, 3), dtype).tobytes()
    assert np.array_equal(np.load(io.BytesIO(ours)), np.ones((2, 3), dtype))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x09\x00\x00\x00",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        cpp_npy("O", (2,), bytes(16)),
        cpp_npy("|O", (2,), bytes(16)),
        cpp_npy("f4", (10**18,), bytes(16)),
        cpp_npy("f4", (2**62, 2**62), bytes(16)),
        cpp_npy("f4", (1,) * 65, bytes(16)),
        cpp_npy("f4", (2, 3), bytes(16)),
        cpp_npy("f4", (int("9" * 4000), int("9" * 4000)), bytes(16)),
        cpp_npy("f4", ("9" * 5000,), bytes(16)),
        cpp_npy("f4", (-2,), bytes(16)),
        cpp_npy("f4', 'x': __import__('os'), 'y': '", (2,), bytes(16)),
        b"\x93NUMPY\x01\x00\x40\x00" + b"[" * 64,
    ],
)
def test_hostile_npy(tmp_path, content):
    with pytest.raises(InputError):
        read_npy(io.BytesIO(content), len(content))
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(InputError):
        import_capture(HOST, str(tmp_path / "x.npy"), str(tmp_path / "c"))


def test_npz_of_a_stranger(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, good=np.arange(3.0), objects=np.array([Evil()], object))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../up.npy", cpp_npy("i4", (1,), bytes(4)))
        archive.writestr("readme.txt", "hello")
    done, capture = imported(path, tmp_path / "c")
    assert done.records == 2
    assert any("objects has the type '|O'" in line for line in done.notes)
    assert values(capture, "good").tolist() == [0, 1, 2]
    (tmp_path / "y.npz").write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="not a readable npz"):
        import_capture(HOST, str(tmp_path / "y.npz"), str(tmp_path / "d"))


def test_safetensors_of_a_stranger(tmp_path):
    header = json.dumps({"x": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "f4.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"a")
    with pytest.raises(InputError, match="nothing in") as caught:
        import_capture(HOST, str(tmp_path / "f4.safetensors"), str(tmp_path / "c"))
    assert "F4" in caught.value.fix
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (tmp_path / "lie.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(InputError, match="weights where its header says"):
        import_capture(HOST, str(tmp_path / "lie.safetensors"), str(tmp_path / "d"))


def test_what_is_no_dump(tmp_path):
    with pytest.raises(InputError, match="is not there"):
        detect_dump_format(HOST, str(tmp_path / "absent"))
    (tmp_path / "x.bin").write_bytes(b"")
    for path in (tmp_path, tmp_path / "x.bin"):
        with pytest.raises(InputError, match="not a dump") as caught:
            detect_dump_format(HOST, str(path))
        assert "Polygraphy" in caught.value.fix


@pytest.mark.heavy
@settings(max_examples=200, deadline=None)
@given(name=st.from_regex(r"(\d\.[a-z]-){0,40}(in|out)put\.?\w{0,3}(\.pt)?", fullmatch=True))
def test_file_names_of_a_stranger_take_no_time(name):
    from trtdx.capture.dumps.trtllm_dumps import detect_folder_format

    assert detect_folder_format([f"rank0/{name}"]) in ("", "trtllm-hook")


# There and back


def full_capture(folder, dtypes, *, ranks=2, steps=2):
    rng = np.random.default_rng(0)
    for rank in range(ranks):
        with CaptureWriter(folder, CaptureHeader(rank=rank), parquet=False) as writer:
            for step in range(steps):
                for dtype in dtypes:
                    size = DTYPES[dtype].bytes
                    raw = rng.integers(0, 120 if dtype != "bool" else 2, 6 * size, dtype=np.uint8)
                    array = raw.view(numpy_dtype(dtype)).reshape(2, 3)
                    writer.add(step, Place("l", tensor=f"t/{dtype}"), source_from_array(array), values=True)
    return folder


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_export_and_import_give_the_same_capture(tmp_path, suffix):
    exact = [name for name, dtype in DTYPES.items() if dtype.npy or suffix == ".safetensors"]
    with Capture(full_capture(tmp_path / "a", exact)) as before:
        done = export_capture(before, str(tmp_path / f"x{suffix}"))
        assert (done.tensors, done.notes) == (4 * len(exact), ())
        _, after = imported(tmp_path / f"x{suffix}", tmp_path / "b")
        key = lambda record: (record.rank, record.step, record.name)  # noqa: E731
        pairs = list(zip(sorted(before.records(), key=key), sorted(after.records(), key=key), strict=True))
        for one, other in pairs:
            assert key(one) == key(other)
            assert (one.layout, str(one.statistics)) == (other.layout, str(other.statistics))
    assert not list(tmp_path.glob("*.part"))


def test_other_libraries_read_what_is_exported(tmp_path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    dtypes = ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "bool"]
    with Capture(full_capture(tmp_path / "a", dtypes, ranks=1, steps=1)) as capture:
        export_capture(capture, str(tmp_path / "x.safetensors"))
        done = export_capture(capture, str(tmp_path / "x.npz"))
        assert "widened" in done.notes[0]
        tensors = safetensors.load_file(tmp_path / "x.safetensors")
        arrays = np.load(tmp_path / "x.npz", allow_pickle=False)
        assert set(tensors) == set(arrays) == {f"t/{dtype}" for dtype in dtypes}
        for dtype in dtypes:
            expected = values(capture, f"t/{dtype}").astype(np.float64)
            assert np.array_equal(tensors[f"t/{dtype}"].to(torch.float64).numpy(), expected)
            assert np.array_equal(arrays[f"t/{dtype}"].astype(np.float64), expected)


def test_exports_refuse_to_guess(tmp_path):
    with CaptureWriter(tmp_path / "a", CaptureHeader(), parquet=False) as writer:
        writer.add(0, Place("x", tensor="../../x"), source_from_array(np.ones(2)))
        writer.add(0, Place("x", tensor="../../x"), source_from_array(np.ones(2)), values=True)
        writer.add(0, Place("x", tensor="../../x"), source_from_array(np.zeros(2)), values=True)
    with Capture(tmp_path / "a") as capture:
        with pytest.raises(InputError, match="neither"):
            export_capture(capture, str(tmp_path / "x.pt"))
        with pytest.raises(CaptureError, match="no values were kept"):
            export_capture(capture, str(tmp_path / "y.npz"), [next(capture.records())])
        done = export_capture(capture, str(tmp_path / "x.npz"))
        assert done.notes == ("1 tensor with statistics only",)
        with pytest.raises(InputError, match="already exists"):
            export_capture(capture, str(tmp_path / "x.npz"))
    assert zipfile.ZipFile(tmp_path / "x.npz").namelist() == ["x.npy", "x#2.npy"]


def test_a_very_large_polygraphy_array_is_left_to_the_bound(tmp_path, monkeypatch):
    from trtdx.capture.dumps import tensor_files as import_files

    monkeypatch.setattr(import_files, "MAX_TENSOR_BYTES", 3000)
    array = base64.b64encode(encode_npy_header(DTYPES["uint8"], (9000,)) + bytes(9000))
    (tmp_path / "x.json").write_bytes(b'[{"x": {"array": "' + array + b'"}}]')
    with pytest.raises(InputError, match="longer than 4000 bytes"):
        import_capture(HOST, str(tmp_path / "x.json"), str(tmp_path / "c"))
