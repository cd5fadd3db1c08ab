"""A case survives whatever happens to its writer, and opening one trusts nothing."""

from __future__ import annotations

import zipfile

import pytest

from trtdx.case import RECORDS_FILE, CaseWriter, open_case
from trtdx.errors import CaseError
from trtdx.host import RealHost
from trtdx.model import Report, Summary


def test_records_and_files_come_back(tmp_path):
    writer = CaseWriter(RealHost(), str(tmp_path / "case"))
    writer.record("note", {"HF_TOKEN": "hf_" + "a" * 30, "CUDA_VISIBLE_DEVICES": "0"})
    assert b"".join(writer.copy_log("dir/a.log", [b"one\ntw", b"o\n"])) == b"one\ntwo\n"
    writer.add_report(Report(Summary("no problem found")))
    case = open_case(RealHost(), str(tmp_path / "case"))
    assert [record.kind for record in case.records()] == ["created", "note", "file", "report"]
    assert case.records()[1].data == {"HF_TOKEN": "[redacted]", "CUDA_VISIBLE_DEVICES": "0"}
    with case.host.open(case.text_paths()[0]) as stream:
        assert stream.read() == b"one\ntwo\n"


def test_secrets_never_enter_even_when_cut_by_block_borders(tmp_path):
    writer = CaseWriter(RealHost(), str(tmp_path / "case"))
    secret = b"hf_" + b"Q" * 30
    list(writer.copy_log("a.log", [b"token " + secret[:10], secret[10:] + b" used\n"]))
    writer.record("note", {"text": "password=" + "hunter22"})
    everything = b"".join(path.read_bytes() for path in (tmp_path / "case").rglob("*") if path.is_file())
    assert secret not in everything
    assert b"hunter22" not in everything


def test_a_half_written_last_record_is_left_out(tmp_path):
    writer = CaseWriter(RealHost(), str(tmp_path / "case"))
    writer.record("note", {"n": 1})
    with (tmp_path / "case" / RECORDS_FILE).open("ab") as file:
        file.write(b'{"kind":"note","time":1.0,"da')
    assert [record.kind for record in open_case(RealHost(), str(tmp_path / "case")).records()] == [
        "created",
        "note",
    ]


def test_a_file_gone_half_way_keeps_what_came_before(tmp_path):
    writer = CaseWriter(RealHost(), str(tmp_path / "case"))
    stream = writer.copy_log("a.log", iter([b"first\n", b"second\n"]))
    next(stream)
    next(stream)
    stream.close()
    assert (tmp_path / "case" / "files" / "a.log").read_bytes() == b"first\nsecond\n"


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(CaseError, match="is not a case"):
        CaseWriter(RealHost(), str(tmp_path / "mine"))
    writer = CaseWriter(RealHost(), str(tmp_path / "case"))
    (tmp_path / "one.trtdx").write_text("x")
    with pytest.raises(CaseError, match="there already"):
        writer.pack(str(tmp_path / "one.trtdx"))


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "files/../../evil"])
def test_a_case_that_points_outside_itself_is_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "bad.trtdx", "w") as archive:
        archive.writestr(RECORDS_FILE, "")
        archive.writestr(name, "x")
    with pytest.raises(CaseError, match="outside"):
        open_case(RealHost(), str(tmp_path / "bad.trtdx"))


def test_a_case_that_claims_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("trtdx.case.MAX_CASE_BYTES", 10)
    with zipfile.ZipFile(tmp_path / "big.trtdx", "w") as archive:
        archive.writestr(RECORDS_FILE, "x" * 100)
    with pytest.raises(CaseError, match="more than a case may hold"):
        open_case(RealHost(), str(tmp_path / "big.trtdx"))
