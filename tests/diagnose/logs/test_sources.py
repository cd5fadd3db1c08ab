"""Files, folders, compressed files and cases as streams; bad ones are said to be bad."""

from __future__ import annotations

import gzip
import lzma

import pytest
import zstandard

from trtdx.case import CaseWriter
from trtdx.diagnose.logs.sources import open_sources
from trtdx.diagnose.run import diagnose_sources
from trtdx.errors import CaseError, InputError
from trtdx.formats.streams import read_blocks
from trtdx.host import RealHost, RecordedHost
from trtdx.knowledge.load import load_book

LOG = b"[TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (2 != 4)\n"


def read(host, path):
    return b"".join(read_blocks(host, path))


@pytest.mark.parametrize(
    "pack",
    [
        lambda d: d,
        gzip.compress,
        lzma.compress,
        zstandard.compress,
        lambda d: gzip.compress(d[:20]) + gzip.compress(d[20:]),
    ],
)
def test_compressed_files_read_like_plain_ones(pack):
    data = LOG * 50_000
    assert read(RecordedHost({"x": pack(data)}), "x") == data


@pytest.mark.heavy
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstandard.compress])
def test_a_cut_off_archive_gives_a_partial_answer_that_says_so(pack):
    data = b"".join(b"%d " % (n * 7919 % 100_003) + LOG for n in range(20_000))
    packed = pack(data)
    host = RecordedHost({"a.log.gz": packed[: len(packed) // 2]})
    report = diagnose_sources(open_sources(host, ["a.log.gz"])[0], load_book(RealHost()))
    assert report.summary.partial
    assert report.findings[0].code == "DX210"


def test_an_artifact_is_not_read_as_a_log():
    host = RecordedHost({"m/rank0.engine": b"ftrt" + bytes(100), "m/run.log": LOG, "x.bin": b"ftrt1234"})
    found, skipped = open_sources(host, ["m"])
    assert [source.name for source in found] == ["m/run.log"]
    assert [each.name for each in skipped] == ["m/rank0.engine"]
    with pytest.raises(InputError, match="not text"):
        read(host, "x.bin")


def test_a_missing_path_is_an_error_that_says_what_would_do():
    with pytest.raises(InputError, match=r"no file or directory nowhere\.log") as err:
        open_sources(RealHost(), ["nowhere.log"])
    assert "standard input" in err.value.fix


def test_an_unreadable_file_among_others_is_reported_and_the_rest_is_read(tmp_path):
    class Denying(RealHost):
        def open(self, path):
            if path.endswith("locked.log"):
                raise InputError(f"cannot read {path}: Permission denied")
            return super().open(path)

    (tmp_path / "locked.log").write_bytes(LOG)
    (tmp_path / "open.log").write_bytes(LOG)
    report = diagnose_sources(open_sources(Denying(), [str(tmp_path)])[0], load_book(RealHost()))
    assert "Permission denied" in report.summary.partial[0]
    assert report.findings


def test_a_case_is_diagnosed_like_the_log_it_holds(tmp_path):
    host = RealHost()
    writer = CaseWriter(host, str(tmp_path / "case"))
    list(writer.copy_log("server.log", [LOG]))
    writer.pack(str(tmp_path / "one.trtdx"))
    for path in ("case", "one.trtdx"):
        report = diagnose_sources(open_sources(host, [str(tmp_path / path)])[0], load_book(host))
        assert report.findings[0].code == "DX210"


def test_a_broken_case_file_is_refused(tmp_path):
    (tmp_path / "bad.trtdx").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(CaseError, match="not a readable case"):
        open_sources(RealHost(), [str(tmp_path / "bad.trtdx")])


def test_one_missing_input_does_not_keep_the_others_from_being_read(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("hello\n")
    found, skipped = open_sources(RealHost(), [str(log), str(tmp_path / "nowhere.log"), str(tmp_path / "b.trtdx")])
    assert [each.name for each in found] == [str(log)]
    assert [each.is_unreadable for each in skipped] == [True, True]
