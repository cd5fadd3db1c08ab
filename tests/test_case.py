"""A case survives whatever happens to its writer, and opening one trusts nothing."""

from __future__ import annotations

import contextlib
import zipfile

import pytest

from trtdx.case import RECORDS_FILE, CaseWriter, open_case
from trtdx.errors import CaseError, InputError
from trtdx.host import RealHost, RecordedHost
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
    with pytest.raises(CaseError, match="already exists"):
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


@pytest.mark.heavy
@pytest.mark.parametrize("at", range(0, 40, 3))
def test_a_secret_at_the_border_of_a_line_without_end_stays_out(tmp_path, at):
    secret = b"hf_" + b"aB3d" * 8
    data = b"x " * (1 << 19) + b"y" * at + b" " + secret + b" z" * (1 << 19)
    writer = CaseWriter(RealHost(), str(tmp_path / "case"))
    blocks = [data[start : start + 65521] for start in range(0, len(data), 65521)]
    list(writer.copy_log("a.log", blocks))
    kept = b"".join(path.read_bytes() for path in (tmp_path / "case" / "files").iterdir())
    assert secret not in kept
    assert not any(secret[start : start + 12] in kept for start in range(len(secret) - 11))


def test_a_private_key_across_blocks_stays_out(tmp_path):
    body = b"".join(b"[1,2]<err>: %s\n" % (b"MIIEpAIB" * 8) for _ in range(30)) + b"[1,2]<err>: abQ=\n"
    data = b"[1,2]<err>: -----BEGIN PRIVATE KEY-----\n" + body + b"[1,2]<err>: -----END PRIVATE KEY-----\nafter\n"
    writer = CaseWriter(RealHost(), str(tmp_path / "case"))
    list(writer.copy_log("a.log", [data[start : start + 97] for start in range(0, len(data), 97)]))
    kept = b"".join(path.read_bytes() for path in (tmp_path / "case" / "files").iterdir())
    assert b"MIIE" not in kept
    assert b"abQ=" not in kept
    assert kept.endswith(b"after\n")


def test_secrets_in_file_names_stay_out(tmp_path):
    writer = CaseWriter(RealHost(), str(tmp_path / "case"))
    secret = "hf_" + "aB3d" * 8
    list(writer.copy_log(f"/tmp/{secret}/a.log", [b"x\n"]))
    assert not any(secret in str(path) for path in (tmp_path / "case").rglob("*"))
    assert secret not in (tmp_path / "case" / RECORDS_FILE).read_text()


def test_a_case_that_cannot_be_written_says_so_and_the_log_goes_on():
    class FullHost(RecordedHost):
        def append(self, path, data):
            raise InputError("cannot write: No space left on device")

    writer = CaseWriter(FullHost(), "case")
    assert list(writer.copy_log("a.log", [b"one\n", b"two\n"])) == [b"one\n", b"two\n"]
    assert "No space left" in writer.problem


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_case_with_flipped_bytes_is_refused_whatever_it_was_packed_with(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "good.trtdx", "w", method) as archive:
        archive.writestr(RECORDS_FILE, "x y z " * 200)
    good = (tmp_path / "good.trtdx").read_bytes()
    for at in range(0, len(good), 3):
        bad = bytearray(good)
        bad[at] ^= 0x5A
        (tmp_path / "bad.trtdx").write_bytes(bad)
        with contextlib.suppress(CaseError):
            open_case(RealHost(), str(tmp_path / "bad.trtdx"))
