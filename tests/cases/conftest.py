from __future__ import annotations

import itertools

import pytest

from support.postgres import running_postgres, server_programs
from trtdx.cases.store import opened_store
from trtdx.host import RealHost

KINDS = ("sqlite", "postgres")
_names = itertools.count()


@pytest.fixture(scope="session")
def postgres():
    """Return the URL of a real PostgreSQL."""
    pytest.importorskip("psycopg")
    if server_programs() is None:
        pytest.skip("PostgreSQL is not installed")
    with running_postgres() as url:
        yield url


@pytest.fixture
def new_postgres(postgres):
    """Return the URL of a new database."""
    import psycopg

    name = f"store{next(_names)}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres.replace("/postgres?", f"/{name}?")


@pytest.fixture(params=KINDS)
def store_url(request, tmp_path, monkeypatch):
    """Name a new store in the environment, of either kind."""
    url = str(tmp_path / "store" / "cases.sqlite")
    if request.param == "postgres":
        url = request.getfixturevalue("new_postgres")
    monkeypatch.setenv("TRTDX_STORE", url)
    return url


@pytest.fixture
def sqlite_url(tmp_path, monkeypatch):
    """Name a new store in a file."""
    url = str(tmp_path / "store" / "cases.sqlite")
    monkeypatch.setenv("TRTDX_STORE", url)
    return url


@pytest.fixture
def store(store_url):
    with opened_store(RealHost(), writes=True) as opened:
        yield opened
