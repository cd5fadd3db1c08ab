"""A case from a stranger is text within bounds, or it is refused."""

from __future__ import annotations

import io
import os
import pickle
import stat
import zipfile

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtdx.case import RECORDS_FILE, pack_members
from trtdx.cases import case_file
from trtdx.cases.case_file import open_body, open_folder
from trtdx.cases.keep import import_case, keep_report
from trtdx.cases.nouns import OpenedCase
from trtdx.cases.store import opened_store
from trtdx.errors import CaseError
from trtdx.host import RealHost
from trtdx.model import Report, Summary

SECRET = "hf_" + "aB3d" * 9
RECORDS = b'{"kind":"created","time":1.0,"data":{"case_version":1}}\n'


def make_zip(*members, mode=0):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in ((RECORDS_FILE, RECORDS), *members):
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (mode if name != RECORDS_FILE else 0) << 16
            archive.writestr(info, content)
    return packed.getvalue()


class Trap:
    def __reduce__(self):
        return os.system, ("touch /tmp/trtdx-was-here",)


HOSTILE = {
    "traversal": make_zip(("../evil.log", b"x")),
    "absolute": make_zip(("/etc/cron.d/evil", b"x")),
    "backslash": make_zip(("files\\..\\evil", b"x")),
    "nested": make_zip(("files/sub/evil.log", b"x")),
    "elsewhere": make_zip(("live/raw.log", b"x")),
    "link": make_zip(("files/a.log", b"/etc/passwd"), mode=stat.S_IFLNK | 0o777),
    "device": make_zip(("files/a.log", b""), mode=stat.S_IFCHR | 0o666),
    "pipe": make_zip(("files/a.log", b""), mode=stat.S_IFIFO | 0o666),
    "pickle": make_zip(("files/a.log", pickle.dumps(Trap()))),
    "old pickle": make_zip(("files/a.log", pickle.dumps(Trap(), protocol=0))),
    "pickle by name": make_zip(("files/model.pkl", b"text")),
    "web page": make_zip(("files/a.log", b"  <!DOCTYPE html><script>alert(1)</script>")),
    "web page by name": make_zip(("files/a.html", b"text")),
    "picture with a script": make_zip(("files/a.log", b"<?xml version='1.0'?><svg onload='x()'/>")),
    "program": make_zip(("files/a.log", b"\x7fELF\x02\x01\x01\0\0\0")),
    "not a zip": b"PK\x03\x04 but no more",
    "nothing": b"",
    "no records": pack_members([("files/a.log", b"x")]),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_no_case_holds_is_refused(kind, sqlite_url, tmp_path):
    file = tmp_path / "from-a-stranger.trtdx"
    file.write_bytes(HOSTILE[kind])
    with opened_store(RealHost(), writes=True) as store:
        with pytest.raises(CaseError):
            import_case(RealHost(), store, str(file))
        assert store.count_cases() == 0


def test_bombs_are_not_unpacked(monkeypatch):
    monkeypatch.setattr(case_file, "MAX_TEXT_BYTES", 1 << 16)
    with pytest.raises(CaseError, match="more than a case may"):
        open_body(make_zip(("files/a.log", bytes(1 << 20).replace(b"\0", b"a"))), "bomb")
    with pytest.raises(CaseError, match="more than a case may"):
        open_body(make_zip(*((f"files/{number}.log", b"x") for number in range(2001))), "many")
    monkeypatch.setattr(case_file, "MAX_FILE_BYTES", 100)
    with pytest.raises(CaseError, match="larger than a case may be"):
        open_body(bytes(101), "large")


def test_a_folder_with_a_link_is_refused(tmp_path):
    (tmp_path / "case" / "files").mkdir(parents=True)
    (tmp_path / "case" / RECORDS_FILE).write_bytes(RECORDS)
    (tmp_path / "case" / "files" / "a.log").symlink_to("/etc/passwd")
    with pytest.raises(CaseError, match="is a link"):
        open_folder(RealHost(), str(tmp_path / "case"))


def test_secrets_are_looked_for_again(sqlite_url, tmp_path):
    note = msgspec.json.encode({"kind": "remark", "time": 1.0, "data": {"kind": "note", "time": 1.0, "text": SECRET}})
    file = tmp_path / "a.trtdx"
    file.write_bytes(pack_members([(RECORDS_FILE, RECORDS + note), ("files/a.log", f"token {SECRET}\n".encode())]))
    with opened_store(RealHost(), writes=True) as store:
        imported = import_case(RealHost(), store, str(file))
        assert imported.hidden == 2
        case = store.find(imported.id)
        assert SECRET.encode() not in b"".join(
            zipfile.ZipFile(io.BytesIO(store.read_body(case))).read(name) for name in (RECORDS_FILE, "files/a.log")
        )
        assert store.remarks(case)[0].text == "[redacted]"
    kept = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert SECRET.encode() not in kept


def test_a_run_is_kept_without_secrets(sqlite_url, tmp_path):
    host = RealHost()
    report = Report(Summary(f"the token is {SECRET}"))
    with opened_store(host, writes=True) as store:
        keep_report(host, store, "run", report, argv=["trtdx", SECRET], attachments=[("a.log", SECRET.encode())])
    for path in (tmp_path / "store").rglob("*.trtdx"):
        with zipfile.ZipFile(path) as archive:
            assert not any(SECRET.encode() in archive.read(name) for name in archive.namelist())
    assert SECRET.encode() not in (tmp_path / "store" / "cases.sqlite").read_bytes()


def test_what_our_own_runs_print_is_kept_whatever_it_is(sqlite_url, tmp_path):
    host = RealHost()
    outputs = [("page.html", b"<html>502 Bad Gateway</html>"), ("a.log", b"a\0b"), ("b.log", pickle.dumps(1))]
    with opened_store(host, writes=True) as store:
        case_id = keep_report(host, store, "run", Report(Summary("x")), argv=["trtdx"], attachments=outputs)
        body = store.read_body(store.find(case_id))
        assert store.find(case_id).title == "x"
    assert set(open_body(body, "from a colleague").texts) == {"page.html.log", "a.log", "b.log"}


def test_records_nested_without_end_are_left_out():
    deep = b'{"kind":"report","time":1.0,"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    assert open_body(pack_members([(RECORDS_FILE, RECORDS + deep)]), "deep").report is None


NAMES = st.sampled_from(
    [RECORDS_FILE, "files/a.log", "files/../x", "../x", "/x", "files/b.pkl", "files/\x00", "a/b", "", "files/", "C:\\x"]
) | st.text(max_size=30)
CONTENTS = (
    st.binary(max_size=300)
    | st.sampled_from([pickle.dumps(Trap()), b"<html>", RECORDS, b'{"kind":"report","time":1,"data":{"findings":[1]}}'])
    | st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace"))
)


@settings(max_examples=60)
@given(
    members=st.lists(st.tuples(NAMES, CONTENTS), max_size=4),
    mode=st.sampled_from([0, stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777, stat.S_IFDIR | 0o755, 0xFFFF]),
    damage=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 3000),
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_whatever_comes_is_a_case_or_a_clear_refusal(members, mode, damage, cut):
    data = bytearray(make_zip(*members, mode=mode))
    for place, value in damage:
        if place < len(data):
            data[place] = value
    del data[max(cut, 10) :]
    try:
        opened = open_body(bytes(data), "fuzz")
    except CaseError:
        return
    assert isinstance(opened, OpenedCase)
    for name, text in opened.texts.items():
        assert "/" not in name
        assert isinstance(text, str)
        assert not text.lower().lstrip().startswith(("<html", "<!doctype", "<script"))
