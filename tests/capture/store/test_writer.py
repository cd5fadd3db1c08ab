"""Captures on disk: whole, killed at any moment, cut at any byte, on a full disk, from a stranger."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtdx.capture.store import format as disk
from trtdx.capture.store.format import CaptureError, CaptureHeader, TensorLayout
from trtdx.capture.store.reader import Capture
from trtdx.capture.store.writer import LARGE_BYTES, MAX_REMEMBERED, CaptureWriter
from trtdx.errors import UnknownNameError
from trtdx.tensors.dtypes import DTYPES, numpy_dtype
from trtdx.tensors.statistics import array_statistics, source_from_array, source_from_torch
from trtdx.tensors.taps import Place

PLACE = Place("model.layers.0.mlp", op="MLP")


def small_capture(folder, *, steps=3, header=None, **options):
    """A capture with kept values, statistics only, a repeated content and notes."""
    rng = np.random.default_rng(0)
    same = np.arange(5, dtype=np.int32)
    with CaptureWriter(folder, header or CaptureHeader(run="test", created=1.0), parquet=False, **options) as writer:
        for step in range(steps):
            tensors = [
                (PLACE, source_from_array(rng.normal(0, 1, (2, 3)).astype(np.float32)), True),
                (Place("weight", tensor="weight"), source_from_array(same), True),
                (Place("mask", "in", argument="mask"), source_from_array(np.array([1.0, np.nan])), False),
            ]
            writer.add_all(step, tensors)
            writer.note(step, {"tokens": [step, 7]})
    return folder


def run_child(script, *args, timeout=120):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_what_goes_in_comes_out(tmp_path):
    with Capture(small_capture(tmp_path / "c")) as capture:
        assert (len(capture), capture.partial, capture.ranks) == (9, (), (0,))
        assert capture.names() == ["model.layers.0.mlp:out", "weight", "mask:in.mask"]
        record = capture.record("model.layers.0.mlp:out", step=2)
        values = capture.values(record)
        assert record.statistics == array_statistics(values)
        assert (values.shape, values.dtype, values.flags.writeable) == ((2, 3), np.float32, False)
        assert values.ctypes.data % 64 == 0
        assert record.layout == TensorLayout("float32", (2, 3), "cpu")
        assert [note.data["tokens"] for note in capture.notes()] == [[0, 7], [1, 7], [2, 7]]
        mask = capture.record("mask:in.mask", step=1)
        assert (mask.kept, mask.left_out, mask.statistics.nan) == (False, False, 1)
        with pytest.raises(CaptureError, match="only statistics were asked for"):
            capture.values(mask)
        with pytest.raises(UnknownNameError, match="no tensor of step 0") as caught:
            capture.record("wieght")
        assert "weight" in caught.value.fix


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_tensors_survive_the_round_trip(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("capture")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    expected = []
    with CaptureWriter(folder, CaptureHeader(), parquet=False) as writer:
        for step in range(data.draw(st.integers(0, 4))):
            for number in range(data.draw(st.integers(0, 4))):
                dtype = data.draw(st.sampled_from(list(DTYPES)))
                shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3)))
                raw = rng.integers(0, 256, int(np.prod(shape)) * DTYPES[dtype].bytes, dtype=np.uint8)
                array = raw.view(numpy_dtype(dtype)).reshape(shape)
                writer.add(step, Place(f"p{number}"), source_from_array(array), values=True)
                expected.append((step, f"p{number}:out", array))
    with Capture(folder) as capture:
        found = [(each.step, each.name, capture.values(each)) for each in capture.records()]
    assert [each[:2] for each in found] == [each[:2] for each in expected]
    for (*_, a), (*_, b) in zip(found, expected, strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def test_equal_contents_are_stored_once(tmp_path):
    folder = small_capture(tmp_path / "c", steps=50)
    one = small_capture(tmp_path / "d", steps=1)
    grown = (folder / "rank0.values").stat().st_size - (one / "rank0.values").stat().st_size
    assert grown == 49 * 64  # the first tensor differs from step to step, the second never does
    with Capture(folder) as capture:
        assert len({record.offset for record in capture.records(name="weight")}) == 1


def test_values_stop_at_the_budget_and_statistics_go_on(tmp_path):
    with CaptureWriter(tmp_path, CaptureHeader(), value_budget_bytes=100, parquet=False) as writer:
        for step in range(4):
            writer.add(step, PLACE, source_from_array(np.full(10, step, np.float32)), values=True)
        assert writer.left_out == 2
    with Capture(tmp_path) as capture:
        assert [record.kept for record in capture.records()] == [True, True, False, False]
        assert capture.left_out == 2
        with pytest.raises(CaptureError, match="budget was spent"):
            capture.values(capture.record("model.layers.0.mlp:out", step=3))


def test_large_tensors_are_written_from_where_they_lie(tmp_path):
    large = np.random.default_rng(0).normal(0, 1, LARGE_BYTES // 8 + 3)
    with CaptureWriter(tmp_path, CaptureHeader(), queue_bytes=1, parquet=False) as writer:
        for step in range(3):
            writer.add_all(
                step,
                [
                    (Place("a"), source_from_array(large + step), True),
                    (PLACE, source_from_array(large[:7]), True),
                ],
            )
    with Capture(tmp_path) as capture:
        for record in capture.records():
            capture.values(record)
        assert np.array_equal(capture.values(capture.record("a:out", step=2)), large + 2)


def test_torch_tensors_of_types_numpy_does_not_have(tmp_path):
    torch = pytest.importorskip("torch")
    tensors = [torch.randn(4, 3).to(each) for each in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)]
    with CaptureWriter(tmp_path, CaptureHeader(engine="torch"), parquet=False) as writer:
        writer.add_all(0, [(Place(str(each.dtype)), source_from_torch(each), True) for each in tensors])
    with Capture(tmp_path) as capture:
        for record, tensor in zip(capture.records(), tensors, strict=True):
            found = capture.values(record).astype(np.float32)
            assert np.array_equal(found, tensor.float().numpy())


def test_more_layouts_than_are_remembered(tmp_path):
    numbers = np.zeros(MAX_REMEMBERED + 10, np.int8)
    with CaptureWriter(tmp_path, CaptureHeader(), parquet=False) as writer:
        for start in range(0, numbers.size, 1000):
            some = range(start, min(start + 1000, numbers.size))
            writer.add_all(0, [(PLACE, source_from_array(numbers[:each]), False) for each in some])
        writer.add(1, PLACE, source_from_array(numbers[:3]))
    with Capture(tmp_path) as capture:
        assert [record.layout.shape[0] for record in capture.records()] == [*range(numbers.size), 3]


def test_nothing_is_overwritten_and_what_stopped_the_run_is_what_is_raised(tmp_path):
    small_capture(tmp_path / "c")
    with pytest.raises(CaptureError, match="already exists") as caught:
        CaptureWriter(tmp_path / "c", CaptureHeader())
    assert "resume" in caught.value.fix

    def interrupted():
        with CaptureWriter(tmp_path / "d", CaptureHeader(), parquet=False) as writer:
            writer.add(0, PLACE, source_from_array(np.ones(3)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    with Capture(tmp_path / "d") as capture:
        assert (len(capture), capture.partial) == (1, ())


def test_two_writers_of_one_rank_are_one_too_many(tmp_path):
    with CaptureWriter(tmp_path, CaptureHeader(), parquet=False) as writer:
        writer.add(0, PLACE, source_from_array(np.ones(3)))
        with pytest.raises(CaptureError, match="another process"):
            CaptureWriter(tmp_path, CaptureHeader(), resume=True)
    with Capture(tmp_path) as capture:
        assert (len(capture), capture.partial) == (1, ())
    with pytest.raises(CaptureError, match="cannot write"):
        CaptureWriter(tmp_path / "absent", CaptureHeader(), resume=True)


def test_secrets_do_not_get_into_the_header(tmp_path):
    small_capture(tmp_path, header=CaptureHeader(run="serve --hf-token hf_abcdefghijklmnopqrstuvwxyz012345"))
    for file in tmp_path.iterdir():
        assert b"hf_abcdef" not in file.read_bytes()
    header = json.loads((tmp_path / "capture.json").read_text())
    assert header["schema_version"] == disk.CAPTURE_VERSION
    assert header["kernel"] in ("avx512", "avx2", "plain", "numpy")


# Several ranks


@pytest.mark.heavy
def test_ranks_write_side_by_side(tmp_path):
    script = """
        import sys, numpy as np
        from trtdx.capture.store.writer import *
        from trtdx.tensors.statistics import source_from_array
        from trtdx.tensors.taps import Place
        rank = int(sys.argv[2])
        with CaptureWriter(sys.argv[1], CaptureHeader(run="mpirun", rank=rank)) as writer:
            for step in range(20):
                writer.add(step, Place("x"), source_from_array(np.full(9, rank * 100 + step)), values=True)
    """
    children = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), tmp_path, str(rank)]) for rank in range(3)
    ]
    assert [child.wait(timeout=120) for child in children] == [0, 0, 0]
    with Capture(tmp_path) as capture:
        assert (capture.ranks, len(capture), capture.partial) == ((0, 1, 2), 60, ())
        assert capture.values(capture.record("x:out", step=7, rank=2))[0] == 207
        assert capture.query("select rank, count(*) from tensors group by 1 order by 1").rows == [
            (0, 20),
            (1, 20),
            (2, 20),
        ]
    assert not list(tmp_path.glob("*.part"))


# Killed, cut off, damaged

WRITER = """
    import sys, numpy as np
    from trtdx.capture.store.writer import *
    from trtdx.tensors.statistics import source_from_array
    from trtdx.tensors.taps import Place
    writer = CaptureWriter(sys.argv[1], CaptureHeader(run="killed"), parquet=False, resume=sys.argv[2] == "resume")
    step = int(sys.argv[3])
    while True:
        tensors = [(Place(f"t{k}"), source_from_array(np.full(1 + 700 * k, step * 10 + k, np.float32)), k % 2 == 0)
                   for k in range(10)]
        writer.add_all(step, tensors)
        writer.flush()
        step += 1
        print(step, flush=True)
"""


def check_prefix(capture):
    """A killed capture is a beginning of what would have been: steps in order, whole but for the last."""
    records = list(capture.records())
    assert [(each.step, each.name) for each in records] == [
        (number // 10, f"t{number % 10}:out") for number in range(len(records))
    ]
    for record in records:
        assert record.statistics.max == record.step * 10 + int(record.place.path[1:])
        if record.kept:
            assert (capture.values(record) == record.statistics.max).all()
    return len(records)


@pytest.mark.heavy
def test_killed_at_random_moments_it_can_be_read_and_resumed(tmp_path):
    chance = random.Random(4)
    done = 0
    for attempt in range(8):
        how = "resume" if attempt else "new"
        command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path), how, str(done // 10)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            for _ in range(chance.randrange(1, 60)):
                assert child.stdout.readline()
            for _ in range(chance.randrange(30_000)):  # some moment between two lines
                pass
            child.send_signal(signal.SIGKILL)
        with Capture(tmp_path) as capture:
            assert len(capture.partial) == 1
            found = check_prefix(capture)
        assert found >= done
        done = found - found % 10
        if found > done:  # a step that was cut off in the middle would be told twice
            pytest.fail("a batch was torn apart")
    assert done > 0
    CaptureWriter(tmp_path, CaptureHeader(), parquet=False, resume=True).close()
    with Capture(tmp_path) as capture:
        assert (check_prefix(capture), capture.partial) == (done, ())


@pytest.mark.parametrize(("index", "values"), [(0, 0), (3, 5), (8, 8), (0, 8)])
def test_killed_before_the_first_record_it_can_be_resumed(tmp_path, index, values):
    whole = small_capture(tmp_path / "whole", steps=1)
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "rank0.index").write_bytes((whole / "rank0.index").read_bytes()[:index])
    (cut / "rank0.values").write_bytes((whole / "rank0.values").read_bytes()[:values])
    CaptureWriter(cut, CaptureHeader(), parquet=False, resume=True).close()
    with Capture(cut) as capture:
        assert (len(list(capture.records())), capture.partial) == (0, ())


@pytest.mark.heavy
def test_cut_at_any_byte_what_stands_before_holds(tmp_path):
    whole = small_capture(tmp_path / "whole", steps=2)
    index = (whole / "rank0.index").read_bytes()
    with Capture(whole) as capture:
        expected = [str(record) for record in capture.records()]
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "rank0.values").write_bytes((whole / "rank0.values").read_bytes())
    lengths = set()
    for size in range(len(index)):
        (cut / "rank0.index").write_bytes(index[:size])
        with Capture(cut) as capture:
            found = [str(record) for record in capture.records()]
            assert capture.partial
        assert found == expected[: len(found)]
        lengths.add(len(found))
    assert lengths == {0, 3, 6}


def test_without_the_log_statistics_can_be_read(tmp_path):
    """So that an index can be sent where the values must not go."""
    folder = small_capture(tmp_path)
    size = (folder / "rank0.values").stat().st_size
    for left in (size - 41, 64, 3, 0, None):  # the last tensor has 24 bytes and 40 of padding
        (folder / "rank0.values").unlink() if left is None else os.truncate(folder / "rank0.values", left)
        with Capture(folder) as capture:
            assert len(capture) == 9
            assert "is missing or cut off" in capture.partial[0]
            with pytest.raises(CaptureError, match="missing or cut off"):
                capture.values(capture.record("model.layers.0.mlp:out", step=2))
            kept = capture.query("select count(*) from tensors where kept").rows[0][0]
            assert kept == (5 if left == size - 41 else 0)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_told_and_never_believed(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    small_capture(folder, steps=2)
    index = bytearray((folder / "rank0.index").read_bytes())
    for at in data.draw(st.lists(st.integers(8, len(index) - 1), min_size=1, max_size=3, unique=True)):
        index[at] ^= data.draw(st.integers(1, 255))
    (folder / "rank0.index").write_bytes(index)
    with Capture(folder) as capture:
        assert len(capture) < 6 or capture.partial
        for record in capture.records():
            if record.kept:
                capture.values(record)


# A full disk

FULL = """
    import sys, numpy as np, resource
    from trtdx.capture.store.writer import *
    from trtdx.capture.store.format import CaptureError
    from trtdx.tensors.statistics import source_from_array
    from trtdx.tensors.taps import Place
    if len(sys.argv) > 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
    try:
        with CaptureWriter(sys.argv[1], CaptureHeader(run="full"), parquet=False) as writer:
            for step in range(1000):
                array = np.random.default_rng(step).normal(0, 1, 5000)
                writer.add(step, Place("x"), source_from_array(array), values=True)
    except CaptureError as err:
        print(err.message, "|", err.fix)
        sys.exit(2)
"""


def check_full(done, folder, what):
    assert (done.returncode, done.stderr) == (2, "")
    assert what in done.stdout
    assert "can be read" in done.stdout
    with Capture(folder) as capture:
        assert len(capture) > 10
        assert any(what in each or "was not closed" in each for each in capture.partial)
        for record in capture.records():
            capture.values(record)


def test_a_file_that_may_not_grow(tmp_path):
    check_full(run_child(FULL, tmp_path, 1 << 20), tmp_path, "may not grow")


def test_a_full_disk(tmp_path):
    """A real one: a small file system in a mount namespace of its own."""
    script = (
        'mount -t tmpfs -o size=1m tmpfs "$1" || exit 77; shift; "$@"; status=$?; cp -r "$OUT" "$KEEP"; exit $status'
    )
    mounted, keep = tmp_path / "small", tmp_path / "keep"
    mounted.mkdir()
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", str(mounted)]
    command += [sys.executable, "-c", textwrap.dedent(FULL), str(mounted / "c")]
    env = os.environ | {"OUT": str(mounted / "c"), "KEEP": str(keep)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("no mount namespaces here")
    check_full(done, keep, "the disk is full")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptureError, match="cannot make"):
        CaptureWriter(tmp_path / "file" / "c", CaptureHeader())


# Memory


@pytest.mark.heavy
def test_memory_stays_flat_as_steps_grow(tmp_path):
    script = """
        import sys, numpy as np, resource
        from trtdx.capture.store.writer import *
        from trtdx.tensors.statistics import source_from_array
        from trtdx.tensors.taps import Place
        places = [Place(f"p{k}") for k in range(30)]
        writer = CaptureWriter(sys.argv[1], CaptureHeader(), parquet=False, queue_bytes=4 << 20, value_budget_bytes=96 << 20)
        used = {}
        for step in range(1000):
            tensors = [source_from_array(np.full(700 + step % 50, step + k / 64, np.float32)) for k in range(30)]
            writer.add_all(step, [(place, each, True) for place, each in zip(places, tensors)])
            if step in (99, 999):
                used[step] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        writer.close()
        print(used[999] - used[99])
    """
    done = run_child(script, tmp_path)
    assert done.stderr == ""
    assert int(done.stdout) < 12 << 10  # KiB, of 80 MiB written in between; the contents remembered take 3


def test_a_tensor_that_passes_two_places_is_measured_once_and_one_written_to_in_between_twice(tmp_path):
    torch = pytest.importorskip("torch")
    from trtdx.capture.session.recorder import Recorder
    from trtdx.capture.session.selection import CaptureSelection
    from trtdx.engines.engine import TappedTensor

    tensor = torch.ones(4)
    with CaptureWriter(tmp_path, CaptureHeader()) as writer:
        record = Recorder(writer, CaptureSelection(), [])
        record(TappedTensor(Place("inner"), tensor, 0, 0))
        record(TappedTensor(Place("outer"), tensor, 0, 0))
        tensor.add_(1)
        record(TappedTensor(Place("after"), tensor, 0, 0))
        record(TappedTensor(Place("next step"), tensor, 1, 0))
    with Capture(tmp_path) as capture:
        seen = [(each.step, each.place.path, each.statistics.max) for each in capture.records()]
    assert seen == [(0, "inner", 1), (0, "outer", 1), (0, "after", 2), (1, "next step", 2)]
