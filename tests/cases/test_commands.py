"""`trtdx cases` as a user types it."""

from __future__ import annotations

import json
import sys

import pytest

from trtdx.cases.draft_page import pattern_from_line
from trtdx.cli.saving import TO_STORE

SHM = """[TensorRT-LLM] TensorRT-LLM version: 1.2.1
| 0  NVIDIA H100 80GB HBM3   On |
+ trtllm-serve {folder}/Llama-3.1-8B-Instruct
{host}:2203:2312 [{rank}] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-{name} to {size} bytes
"""
UNKNOWN = "[TensorRT-LLM][ERROR] Frobnicator at /models/x refused 42 tokens at 0x7ffe12 (limit: 12)\n"


@pytest.fixture
def logs(tmp_path):
    first = SHM.format(folder="/models", host="gpu7", rank=2, name="k2Xv8a", size=9637892)
    again = SHM.format(folder="/data/nfs", host="dgx-03", rank=5, name="Zz81aa", size=33554432)
    (tmp_path / "first.log").write_text(first)
    (tmp_path / "again.log").write_text(again)
    (tmp_path / "unknown.log").write_text("[TensorRT-LLM][INFO] TensorRT-LLM version: 1.2.1\n" + UNKNOWN)
    return tmp_path


def kept_id(done):
    return done.stderr.partition("kept as case ")[2].split()[0]


@pytest.mark.heavy
def test_from_a_log_to_a_resolution_that_the_next_one_finds(trtdx_here, sqlite_url, logs):
    saved = trtdx_here("diagnose", "first.log", "--save")
    assert saved.returncode == 1  # keeping changes neither the answer nor its status
    case_id = kept_id(saved)
    assert trtdx_here("cases", "resolve", case_id).returncode == 2  # nobody is there to be asked
    told = ("--cause", "docker gave 64 MB", "--fix", "docker run --ipc=host", "--verified-by", "df -h /dev/shm")
    assert trtdx_here("cases", "resolve", case_id, *told).returncode == 0
    hits = json.loads(trtdx_here("cases", "search", "again.log", "--json").stdout)
    assert hits[0]["id"] == case_id
    assert hits[0]["codes"][0] == "DX400"
    assert hits[0]["resolution"]["fix"] == "docker run --ipc=host"
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    assert {hit["kind"] for hit in hits} == {"case", "rule"}
    text = trtdx_here("cases", "search", "docker", "64", "MB").stdout
    assert case_id in text
    assert "docker run --ipc=host" in text
    second = kept_id(trtdx_here("diagnose", "--save", "again.log"))
    assert trtdx_here("cases", "search", second[:7]).stdout.count(case_id) == 1


@pytest.mark.heavy
def test_lists_notes_links_and_numbers(trtdx_here, sqlite_url, logs):
    one, other = (kept_id(trtdx_here("diagnose", name, "--save")) for name in ("first.log", "again.log"))
    trtdx_here("cases", "note", one, "only", "after the update")
    trtdx_here("cases", "link", one, other)
    trtdx_here("cases", "link", one, "https://tracker.example/7")
    listed = json.loads(trtdx_here("cases", "list", "--json").stdout)
    assert [case["id"] for case in listed] == [other, one]
    assert listed[0]["release"] == "1.2.1"
    assert listed[0]["models"] == ["llama-3.1-8b", "llama"]
    shown = trtdx_here("cases", "show", one).stdout
    for words in ("only after the update", other, "https://tracker.example/7", "error[DX400]", "2 times"):
        assert words in shown
    assert one in trtdx_here("cases", "show", other).stdout
    stats = json.loads(trtdx_here("cases", "stats", "--format", "json").stdout)
    assert (stats["cases"], stats["recurring"][0]["recurrence"]["count"]) == (2, 2)
    assert "| id |" in trtdx_here("cases", "list", "--markdown").stdout
    assert trtdx_here("cases", "link", one, one).returncode == 2
    assert trtdx_here("cases", "show", "nosuch").returncode == 2


@pytest.mark.heavy
def test_one_file_goes_to_a_colleague(trtdx_here, sqlite_url, logs, monkeypatch):
    case_id = kept_id(trtdx_here("diagnose", "first.log", "--save"))
    trtdx_here("cases", "resolve", case_id, "--cause", "shm")
    trtdx_here("cases", "note", case_id, "a note")
    listed = trtdx_here("cases", "export", case_id, "--dry-run").stdout
    assert "files/first.log" in listed
    assert not (logs / f"{case_id}.trtdx").exists()
    assert trtdx_here("cases", "export", case_id, "--redact-hosts", "-o", "out.trtdx").returncode == 0
    assert trtdx_here("cases", "export", case_id, "-o", "out.trtdx").returncode == 2  # nothing is overwritten
    assert "DX400" in trtdx_here("diagnose", "out.trtdx").stdout
    monkeypatch.setenv("TRTDX_STORE", str(logs / "colleague.sqlite"))
    (logs / "bad.trtdx").write_bytes(b"no zip")
    mixed = trtdx_here("cases", "import", "bad.trtdx", "out.trtdx", "--json")
    assert mixed.returncode == 2
    assert [(case["id"], case["is_new"]) for case in json.loads(mixed.stdout)] == [(case_id, True)]
    assert "was here" in trtdx_here("cases", "import", "out.trtdx").stdout
    shown = json.loads(trtdx_here("cases", "show", case_id, "--json").stdout)
    assert (shown["resolution"]["cause"], shown["remarks"][0]["text"]) == ("shm", "a note")
    assert shown["report"]["findings"][0]["code"] == "DX400"


@pytest.mark.heavy
def test_a_resolved_case_becomes_a_rule_page(trtdx_here, sqlite_url, logs):
    case_id = kept_id(trtdx_here("diagnose", "unknown.log", "--save"))
    draft = ("rules", "new", "ACME001", "frobnicator-limit", "--in", "ours", "--from-case", case_id)
    assert "is not resolved" in trtdx_here(*draft).stderr
    trtdx_here("cases", "resolve", case_id, "--cause", "The limit was too low.", "--fix", "docker run --ipc=host IMAGE")
    assert trtdx_here(*draft).stdout.strip() == "ours/ACME001-frobnicator-limit.md"
    checked = trtdx_here("rules", "check", "ours")
    assert (checked.returncode, checked.stdout) == (0, "1 page, 0 problems\n")
    (logs / "other.log").write_text(UNKNOWN.replace("42", "9000").replace("/models/x", "/y").replace("7ffe12", "12ab"))
    assert "error[ACME001]: the limit was too low" in trtdx_here("diagnose", "other.log", "--rules", "ours").stdout


def test_patterns_of_drafts_take_other_values():
    assert pattern_from_line("[TensorRT-LLM][ERROR] a+b (3 of 0xff) /tmp/x") == (
        r"a\+b \(\d[\d.,]* of 0[xX][0-9a-fA-F]+\) \S+"
    )


@pytest.mark.heavy
def test_a_check_is_kept(trtdx_here, sqlite_url):
    trtdx_here("check", "--no-imports", "--no-resolve", "--python", sys.executable, "--save", "facts.json")
    assert "kept as case" in trtdx_here("check", "--from", "facts.json", "--save").stderr
    assert json.loads(trtdx_here("cases", "list", "--json").stdout)[0]["tool"] == "check"


def test_runs_and_ledgers_are_kept(trtdx_here, sqlite_url, logs):
    trtdx_here("memory", "log", "first.log", "--save")
    done = trtdx_here("run", "--case", "case", "--", "true")
    assert (done.returncode, "kept as case" in done.stderr) == (0, True)
    assert "kept as case" not in trtdx_here("run", "--no-save", "--case", "case2", "--", "true").stderr
    tools = {case["tool"] for case in json.loads(trtdx_here("cases", "list", "--json").stdout)}
    assert tools == {"memory", "run"}


def test_a_comparison_is_kept(trtdx_here, sqlite_url, tmp_path):
    np = pytest.importorskip("numpy")
    pytest.importorskip("xxhash")
    for name, value in (("a.npz", 1.0), ("b.npz", 2.0)):
        np.savez(tmp_path / name, layer=np.full((4, 4), value, np.float32))
    assert "kept as case" in trtdx_here("compare", "a.npz", "b.npz", "--save").stderr


@pytest.mark.heavy
def test_without_a_place_for_the_store_the_answer_still_comes(trtdx_here, logs, monkeypatch):
    for name in ("TRTDX_STORE", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    done = trtdx_here("diagnose", "first.log", "--save")
    assert done.returncode == 1
    assert "error[DX400]" in done.stdout
    assert "this run was not kept: there is no place for the store" in done.stderr
    assert "TRTDX_STORE=" in done.stderr
    assert trtdx_here("cases", "list").returncode == 2


def test_a_store_that_cannot_be_written_is_told(trtdx_here, logs, monkeypatch):
    monkeypatch.setenv("TRTDX_STORE", "/proc/trtdx/cases.sqlite")
    done = trtdx_here("diagnose", "first.log", "--save")
    assert done.returncode == 1
    assert "the folder of the store cannot be made: /proc/trtdx" in done.stderr


def test_a_search_without_a_store_finds_rule_pages(trtdx_here, sqlite_url, logs):
    hits = json.loads(trtdx_here("cases", "search", "first.log", "--json").stdout)
    assert [(hit["id"], hit["kind"]) for hit in hits] == [("DX400", "rule")]
    assert trtdx_here("cases", "list").returncode == 2


@pytest.mark.heavy
def test_save_takes_a_name_only_where_it_can_be_one(trtdx_here, sqlite_url, logs):
    assert "kept as case" in trtdx_here("diagnose", "--save", "--json", "first.log").stderr
    assert "kept as case" in trtdx_here("diagnose", "--save", "first.log").stderr
    assert "kept as case" not in trtdx_here("diagnose", "--save", "folder", "first.log").stderr
    assert (logs / "folder" / "case.jsonl").is_file()
    assert not (logs / TO_STORE).exists()


@pytest.mark.heavy
def test_hostile_words_stay_words(trtdx_here, sqlite_url, logs):
    case_id = kept_id(trtdx_here("diagnose", "first.log", "--save"))
    for words in ('" OR 1=1 --', "'; DROP TABLE cases; --", "NEAR(a b)", "*", "\x1b[31m"):
        assert trtdx_here("cases", "search", words, "--json").returncode == 0
        assert trtdx_here("cases", "note", case_id, words).returncode == 0
    assert "\x1b" not in trtdx_here("cases", "show", case_id).stdout
