"""The store does the same on SQLite and on PostgreSQL."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys

import msgspec
import pytest

from trtdx.case import pack_members
from trtdx.cases.case_file import open_body
from trtdx.cases.database.migrations import MIGRATIONS
from trtdx.cases.location import locate_store
from trtdx.cases.nouns import CaseFacts, NewCase, Resolution
from trtdx.cases.search import query_from_facts, query_from_words, search_cases
from trtdx.cases.statistics import collect_statistics
from trtdx.cases.store import opened_store
from trtdx.errors import CaseError
from trtdx.host import RealHost

SHM = "Error: failed to extend /dev/shm/<path> to #"
FACTS = CaseFacts(codes=("DX400",), release="1.2.1", gpus=("H100",), models=("llama-3.1-8b", "llama"), errors=(SHM,))


WRITTEN_TABLES = "cases, case_words, case_terms, case_remarks, case_bodies"  # as docs/cases.md grants


def make_case(created=1000.0, **changes):
    facts = changes.pop("facts", FACTS)
    values = {"tool": "diagnose", "title": "shared memory is too small", "severity": "error", "created": created}
    return NewCase(facts=facts, body=pack_members([("case.jsonl", b"")]), **(values | changes))


def with_place(**place):
    return msgspec.structs.replace(FACTS, **place)


@pytest.mark.heavy
def test_what_is_kept_comes_back(store):
    case_id = store.add(make_case())
    case = store.find(case_id)
    assert (case.id, case.tool, case.facts, case.status) == (case_id, "diagnose", FACTS, "open")
    assert store.find(case_id[:6]).id == case_id
    assert open_body(store.read_body(case), "x").report is None
    with pytest.raises(CaseError, match="no case has the id"):
        store.find("zzzzzzzzz")


@pytest.mark.heavy
def test_lists_are_filtered_and_newest_first(store):
    first = store.add(make_case(1.0))
    second = store.add(make_case(2.0, tool="run", facts=CaseFacts(codes=("DX1",))))
    store.resolve(store.find(first), Resolution("a cause"))
    assert [case.id for case in store.list_cases(limit=9)] == [second, first]
    assert [case.id for case in store.list_cases(limit=9, status="open")] == [second]
    assert [case.id for case in store.list_cases(limit=9, code="dx400")] == [first]
    assert [case.id for case in store.list_cases(limit=9, tool="run")] == [second]
    assert len(store.list_cases(limit=1)) == 1


def test_resolutions_and_notes_become_searchable(store):
    case_id = store.add(make_case())
    store.add(make_case(facts=CaseFacts(codes=("DX9",), errors=("other",))))
    assert search_cases(store, query_from_words("kryptonite"), limit=5) == []
    store.resolve(store.find(case_id), Resolution("kryptonite in the rack", "remove it", "df -h", 4600.0))
    store.add_remark(store.find(case_id), "note", "only on zeppelins; password=" + "hunter22")
    for words in ("kryptonite", "zeppelins", "remove kryptonite"):
        hit = search_cases(store, query_from_words(words), limit=5)[0]
        assert (hit.id, hit.resolution.fix) == (case_id, "remove it")
    assert "hunter22" not in store.remarks(store.find(case_id))[0].text


def test_structure_ranks_neighbours_of_one_error(store):
    places = {
        "right": FACTS,
        "release": with_place(release="0.20.0"),
        "gpu": with_place(gpus=("L40S",)),
        "model": with_place(models=("qwen-2.5-72b", "qwen")),
        "all": with_place(release="0.20.0", gpus=("L40S",), models=("qwen-2.5-72b", "qwen")),
    }
    ids = {name: store.add(make_case(facts=facts)) for name, facts in places.items()}
    hits = search_cases(store, query_from_facts(FACTS), limit=9)
    assert hits[0].id == ids["right"]
    assert hits[-1].id == ids["all"]
    assert len(hits) == 5


def test_recurring_cases_are_one_hit_with_what_worked(store):
    for number in range(4):
        resolution = Resolution("shm", "docker run --ipc=host", "df", number + 7200.0) if number else None
        store.add(make_case(float(number), resolution=resolution))
    (hit,) = search_cases(store, query_from_facts(FACTS), limit=9)
    assert hit.resolution.fix == "docker run --ipc=host"  # of cases that are alike, one that is resolved
    assert len(hit.same) == 3
    assert (hit.recurrence.count, hit.recurrence.resolved, hit.recurrence.mean_hours) == (4, 3, 2.0)
    assert hit.recurrence.worked == (("docker run --ipc=host", 3),)
    statistics = collect_statistics(store)
    assert (statistics.cases, statistics.resolved, statistics.mean_hours) == (4, 3, 2.0)
    assert statistics.recurring[0].recurrence.count == 4


def test_a_case_is_not_like_itself(store):
    one, other = store.add(make_case()), store.add(make_case(2.0))
    hits = search_cases(store, query_from_facts(FACTS, one), limit=9)
    assert [hit.id for hit in hits] == [other]


def test_opening_twice_migrates_once_and_newer_tables_are_refused(store, store_url):
    with opened_store(RealHost(), writes=True) as again:
        count = again.database.execute("SELECT COUNT(*) FROM migrations")[0][0]
    assert count == len(MIGRATIONS)
    store.database.execute("INSERT INTO migrations (number) VALUES (99)")
    with pytest.raises(CaseError, match="newer trtdx"), opened_store(RealHost(), writes=False):
        pass


def test_a_failed_change_leaves_nothing_behind(store):
    case_id = store.add(make_case())

    def change_half():
        with store.database.transaction():
            store.database.execute("UPDATE cases SET title = 'half'")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        change_half()
    assert store.find(case_id).title == "shared memory is too small"


WRITER = """
import sys
from trtdx.cases.keep import keep_report
from trtdx.cases.store import opened_store
from trtdx.host import RealHost
from trtdx.model import Report, Summary
host = RealHost()
with opened_store(host, writes=True) as store:
    for number in range(int(sys.argv[2])):
        name = f"{sys.argv[1]}-{number}"
        case = keep_report(host, store, "run", Report(Summary(name)), argv=["trtdx"], attachments=[("a.log", name.encode())])
        print(case, flush=True)
"""


@pytest.mark.heavy
def test_two_write_while_a_third_is_killed_and_nothing_is_lost(store_url):
    def start(name, count):
        argv = [sys.executable, "-c", WRITER, name, str(count)]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    writers = [start("a", 12), start("b", 12)]
    victim = start("victim", 100_000)
    kept = [victim.stdout.readline().strip() for _ in range(3)]
    victim.send_signal(signal.SIGKILL)
    kept += [line.strip() for line in victim.communicate(timeout=120)[0].splitlines() if len(line.strip()) == 9]
    for writer in writers:
        out, err = writer.communicate(timeout=300)
        assert writer.returncode == 0, err
        kept += out.split()
    assert len(kept) >= 24 + 3
    with opened_store(RealHost(), writes=True) as store:
        for case_id in kept:
            case = store.find(case_id)
            assert open_body(store.read_body(case), case_id).texts["a.log"] == case.title
        for case in store.list_cases(limit=100_000):  # what the victim did not live to say is whole too
            assert open_body(store.read_body(case), case.id).report.summary.text == case.title
        store.add(make_case())
    if not store_url.startswith("postgres"):
        assert sqlite3.connect(store_url).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_role_that_reads_cannot_write(new_postgres, monkeypatch):
    import psycopg

    monkeypatch.setenv("TRTDX_STORE", new_postgres)
    with opened_store(RealHost(), writes=True) as store:
        case_id = store.add(make_case())
    with psycopg.connect(new_postgres, autocommit=True) as connection:
        connection.execute("CREATE ROLE trtdx_reader LOGIN")
        connection.execute("CREATE ROLE trtdx_writer LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO trtdx_reader, trtdx_writer")
        connection.execute(f"GRANT INSERT, UPDATE ON {WRITTEN_TABLES} TO trtdx_writer")
    monkeypatch.setenv("TRTDX_STORE", new_postgres.replace("app@", "trtdx_writer@"))
    with opened_store(RealHost(), writes=True) as store:
        other = store.find(store.add(make_case(facts=CaseFacts(codes=("DX1",), errors=("x",)))))
        store.add_remark(other, "note", "a note")
        store.resolve(other, Resolution("a cause"))
    monkeypatch.setenv("TRTDX_STORE", new_postgres.replace("app@", "trtdx_reader@"))
    with opened_store(RealHost(), writes=False) as store:
        assert search_cases(store, query_from_facts(FACTS), limit=3)[0].id == case_id
        assert store.read_body(store.find(case_id))
    with opened_store(RealHost(), writes=True) as store:
        with pytest.raises(CaseError, match=r"may read the store .* and not write"):
            store.add(make_case())
        with pytest.raises(CaseError, match="may read the store"):
            store.resolve(store.find(case_id), Resolution("x"))


def test_a_server_that_is_not_there_is_told_without_the_password(monkeypatch):
    pytest.importorskip("psycopg")
    monkeypatch.setenv("TRTDX_STORE", "postgresql://team:" + "s3cr3tw0rd" + "@127.0.0.1:1/cases?connect_timeout=2")
    with pytest.raises(CaseError, match="cannot connect") as caught, opened_store(RealHost(), writes=False):
        pass
    assert "s3cr3tw0rd" not in caught.value.message + caught.value.fix


def test_a_file_that_is_read_only_is_read(sqlite_url, tmp_path):
    with opened_store(RealHost(), writes=True) as store:
        case_id = store.add(make_case())
    with opened_store(RealHost(), writes=False) as store:
        assert store.find(case_id).id == case_id
        with pytest.raises(CaseError, match="cannot be written"):
            store.add_remark(store.find(case_id), "note", "x")


def test_a_file_that_is_no_store_is_named(sqlite_url, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "cases.sqlite").write_bytes(b"years of work" * 500)
    for writes in (True, False):
        with pytest.raises(CaseError, match="is not a store of cases"), opened_store(RealHost(), writes=writes):
            pass
    assert (tmp_path / "store" / "cases.sqlite").read_bytes() == b"years of work" * 500


def test_the_place_of_the_store(tmp_path):
    home = {"HOME": "/home/me"}
    assert locate_store(home).database == "/home/me/.local/share/trtdx/cases.sqlite"
    assert locate_store(home | {"XDG_DATA_HOME": "/data"}).database == "/data/trtdx/cases.sqlite"
    assert locate_store({"TRTDX_STORE": str(tmp_path)}).database == str(tmp_path / "cases.sqlite")
    assert locate_store({"TRTDX_STORE": "postgresql://h/db"}).files == ""
    assert locate_store(home | {"TRTDX_CASE_FILES": "s3://b/c"}).files == "s3://b/c"
    with pytest.raises(CaseError, match="nobody knows: mysql"):
        locate_store({"TRTDX_STORE": "mysql://h/db"})
    for nowhere in ({}, {"HOME": ""}, {"HOME": "relative"}):
        with pytest.raises(CaseError, match="neither HOME nor XDG_DATA_HOME is set"):
            locate_store(nowhere)


def test_the_folder_is_the_owners_alone(sqlite_url, tmp_path):
    with opened_store(RealHost(), writes=True):
        pass
    assert (tmp_path / "store").stat().st_mode & 0o077 == 0
