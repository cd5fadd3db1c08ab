"""Figures of earlier compiles on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtdx.host import RealHost
from trtdx.memory.compile import cache as compile_cache
from trtdx.memory.compile.cache import CompileCache, compile_cache_key


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompileCache:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return CompileCache(RealHost())


def test_what_is_kept_is_found_by_its_content(cache: CompileCache) -> None:
    assert cache.find(compile_cache_key("a", "b")) is None
    cache.store(compile_cache_key("a", "b"), 123)
    assert CompileCache(RealHost()).find(compile_cache_key("a", "b")) == 123
    assert cache.find(compile_cache_key("ab", "")) is None


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\0", b'{"version":99,"entries":{}}', b"[]", b'{"version":1,"entries":{"k":{"bytes":"x"}}}'])  # fmt: skip
def test_a_damaged_file_holds_nothing_and_is_replaced(cache: CompileCache, content: bytes) -> None:
    Path(cache.path).parent.mkdir(parents=True)
    Path(cache.path).write_bytes(content)
    assert cache.find("k") is None
    cache.store("k", 5)
    assert cache.find("k") == 5


def test_a_changed_number_is_not_believed(cache: CompileCache) -> None:
    cache.store("k", 111_111)
    path = Path(cache.path)
    path.write_bytes(path.read_bytes().replace(b"111111", b"911111"))
    assert cache.find("k") is None


def test_the_oldest_give_way(cache: CompileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cache, "MOST_ENTRIES", 3)
    for number in range(1, 6):
        cache.store(str(number), number)
    assert [cache.find(str(number)) for number in range(1, 6)] == [None, None, 3, 4, 5]


def test_a_file_that_is_far_too_long_is_not_read(cache: CompileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store("k", 5)
    monkeypatch.setattr(compile_cache, "MOST_BYTES", 10)
    assert cache.find("k") is None


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trtdx").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = CompileCache(RealHost())
    cache.store("k", 5)
    assert cache.find("k") is None
