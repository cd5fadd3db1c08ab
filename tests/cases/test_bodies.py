"""Case files lie on disk, in the database, or behind any URL that fsspec knows."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from trtdx.cases.bodies import DATABASE_SCHEME, UrlBodies
from trtdx.cases.case_file import open_body
from trtdx.cases.keep import keep_report
from trtdx.cases.store import opened_store
from trtdx.errors import CaseError
from trtdx.host import RealHost
from trtdx.model import Report, Summary


def keep_and_read():
    host = RealHost()
    with opened_store(host, writes=True) as store:
        case_id = keep_report(
            host, store, "run", Report(Summary("fine")), argv=["trtdx"], attachments=[("a.log", b"hi\n")]
        )
    with opened_store(host, writes=False) as store:
        case = store.find(case_id)
        assert open_body(store.read_body(case), case_id).texts == {"a.log": "hi\n"}
        return case


def test_on_disk_beside_the_database(sqlite_url, tmp_path):
    case = keep_and_read()
    assert (tmp_path / "store" / "cases-files" / case.body).is_file()


def test_in_the_database_of_a_team(new_postgres, monkeypatch):
    monkeypatch.setenv("TRTDX_STORE", new_postgres)
    assert keep_and_read().body.startswith(DATABASE_SCHEME)


def test_at_urls(sqlite_url, monkeypatch, tmp_path):
    pytest.importorskip("fsspec")
    for url in ("memory://cases", f"file://{tmp_path}/elsewhere"):
        monkeypatch.setenv("TRTDX_CASE_FILES", url)
        case = keep_and_read()
    assert (tmp_path / "elsewhere" / case.body).is_file()


def test_a_url_that_cannot_be_used_is_told():
    pytest.importorskip("fsspec")
    with pytest.raises(CaseError, match="case files at nosuch://there cannot be used"):
        UrlBodies("nosuch://there/x")
    with pytest.raises(CaseError, match="cannot be used"):
        UrlBodies("memory://cases").read("nothing.trtdx")


@pytest.fixture
def s3_server(monkeypatch, tmp_path):
    """Start moto's S3 server on loopback and return its address."""
    for package in ("s3fs", "moto", "flask"):
        pytest.importorskip(package)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (tmp_path / "moto.log").open("wb") as log:
        server = subprocess.Popen(argv, stdout=log, stderr=log)
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    yield f"http://127.0.0.1:{port}"
    server.kill()
    server.wait()


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")  # of the libraries that speak S3
def test_in_a_bucket(s3_server, sqlite_url, monkeypatch):
    import s3fs

    s3fs.S3FileSystem(endpoint_url=s3_server).mkdir("team-cases")
    monkeypatch.setenv("TRTDX_CASE_FILES", "s3://team-cases/trtdx")
    case = keep_and_read()
    assert s3fs.S3FileSystem(endpoint_url=s3_server).ls("team-cases/trtdx") == [f"team-cases/trtdx/{case.body}"]
    assert os.environ["AWS_ENDPOINT_URL"] == s3_server
