"""SQL over captures: right, read-only, and with nothing else within reach."""

import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from trtdx.capture.store.format import CaptureHeader
from trtdx.capture.store.reader import Capture
from trtdx.capture.store.writer import CaptureWriter
from trtdx.errors import InputError
from trtdx.tensors.statistics import Statistics, source_from_array
from trtdx.tensors.taps import Place

duckdb = pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("query")
    rng = np.random.default_rng(0)
    with CaptureWriter(folder, CaptureHeader(run="test")) as writer:
        for step in range(5):
            for layer in range(3):
                array = rng.normal(0, 1 + layer, (1, 4, 8)).astype(np.float16)
                if (step, layer) == (3, 1):
                    array[0, 0, 0] = np.nan
                writer.add(step, Place(f"layers.{layer}", op="Layer"), source_from_array(array), values=layer == 0)
        writer.add(5, Place("it's", tensor="x'; drop table tensors; --"), source_from_array(np.full(3, np.nan)))
    return folder


def test_every_column_is_what_was_captured(folder):
    with Capture(folder) as capture:
        records = list(capture.records())
        fields = [name for name in Statistics._fields if name != "hash"]
        table = capture.query(f"select step, name, shape, dtype, kept, hash, {', '.join(fields)} from tensors")
    assert len(table.rows) == len(records) == 16
    for line, record in zip(table.rows, records, strict=True):
        assert line[:4] == (record.step, record.name, list(record.layout.shape), record.layout.dtype)
        assert line[4:6] == (record.kept, record.statistics.hash)
        for found, expected in zip(line[6:], record.statistics, strict=False):
            assert found == expected or (found is None and math.isnan(expected))


def test_questions_a_user_has(folder):
    with Capture(folder) as capture:
        assert capture.query("select step, name from tensors where nan > 0 order by record limit 1").rows == [
            (3, "layers.1:out")
        ]
        assert capture.query("from tensors select count(distinct hash)").rows == [(16,)]
        assert capture.query("select name from tensors where max > 1e9").rows == []  # what has no maximum has none
        assert capture.query("describe tensors").rows[0][0] == "record"


def test_the_parquet_file_is_the_same_table(folder):
    with Capture(folder) as capture:
        here = capture.query("select * from tensors").rows
    there = duckdb.sql(f"select * from '{folder}/rank0.parquet'").fetchall()
    assert here == there
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from read_parquet('{folder}/rank0.parquet')",
        "select * from glob('/*')",
        "select * from read_text('/etc/hostname')",
        "select * from read_csv('http://127.0.0.1:9/x.csv')",
        "select * from folder",
        "select * from capture",
        "copy tensors to '{folder}/stolen.csv'",
        "attach '{folder}/other.db'",
        "set enable_external_access=true",
        "set lock_configuration=false",
        "install httpfs",
        "load httpfs",
        "drop table tensors",
        "insert into tensors select * from tensors",
        "create table x as select 1",
        "select 1; drop table tensors",
        "export database '{folder}/all'",
        "pragma database_list",
        "selct 1",
        "",
    ],
)
def test_nothing_else_is_within_reach(folder, sql):
    before = sorted(each.name for each in folder.iterdir())
    with Capture(folder) as capture, pytest.raises(InputError) as caught:
        capture.query(sql.format(folder=folder))
    assert caught.value.message
    assert sorted(each.name for each in folder.iterdir()) == before


def test_a_query_has_bounds(folder):
    from trtdx.capture.store.query import query_tensors

    with Capture(folder) as capture:
        ranks = list(capture._ranks.values())
        assert query_tensors(ranks, "select * from tensors", most_rows=4).is_cut
        assert not query_tensors(ranks, "select * from tensors", most_rows=16).is_cut
        with pytest.raises(InputError, match="did not end within"):
            query_tensors(ranks, "select count(*) from range(10000000000) a, range(1000000) b where a.range * b.range % 7 = 3",
                  timeout_s=0.2)  # fmt: skip


def test_empty_and_partial_captures_can_be_asked(tmp_path, folder):
    CaptureWriter(tmp_path / "empty", CaptureHeader()).close()
    with Capture(tmp_path / "empty") as capture:
        assert capture.query("select count(*) from tensors").rows == [(0,)]
    cut = tmp_path / "cut"
    cut.mkdir()
    index = (folder / "rank0.index").read_bytes()
    (cut / "rank0.index").write_bytes(index[: len(index) // 2])
    with Capture(cut) as capture:
        assert 0 < capture.query("select count(*) from tensors").rows[0][0] < 16


def test_without_duckdb_a_capture_is_still_whole(tmp_path):
    script = """
        import sys; sys.modules["duckdb"] = None
        import numpy as np
        from trtdx.capture.store.writer import *
        from trtdx.tensors.statistics import source_from_array
        from trtdx.capture.store.reader import Capture
        from trtdx.tensors.taps import Place
        from trtdx.errors import TrtdxError
        with CaptureWriter(sys.argv[1], CaptureHeader()) as writer:
            writer.add(0, Place("x"), source_from_array(np.ones(3)))
        try:
            Capture(sys.argv[1]).query("select 1")
        except TrtdxError as err:
            print(err.fix)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip().endswith("[capture]'"), done.stderr) == (True, "")
    with Capture(tmp_path) as capture:
        assert (len(capture), capture.partial) == (1, ())
