"""YAML as TensorRT-LLM reads it, with line numbers and within bounds."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trtdx.formats import yaml_documents
from trtdx.formats.documents import MAX_YAML_BYTES, UnreadableError
from trtdx.formats.yaml_documents import parse_yaml, read_yaml
from trtdx.host import RealHost

if TYPE_CHECKING:
    from pathlib import Path

EXTRA = """\
# options for trtllm-serve
cuda_graph_config:
  enable_padding: true
  batch_sizes: [1, 2, 4]
kv_cache_config:
  free_gpu_memory_fraction: 0.8

  dtype: fp8
"""


def parsed(text: str) -> yaml_documents.YamlDocument:
    return parse_yaml(text.encode(), "extra.yaml")


def refusal(data: bytes) -> str:
    with pytest.raises(UnreadableError) as refused:
        parse_yaml(data, "extra.yaml")
    return str(refused.value)


@pytest.fixture(params=["libyaml", "python"], autouse=True)
def _either_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(yaml_documents, "YAML_LOADER", yaml.SafeLoader)


def test_a_value_knows_its_file_line_and_key() -> None:
    document = parsed(EXTRA)
    assert document.value_at("kv_cache_config.dtype") == "fp8"
    assert document.place_of("kv_cache_config.dtype") == "extra.yaml:8: kv_cache_config.dtype"
    assert document.place_of("nobody.wrote.this") == "extra.yaml: nobody.wrote.this"


def test_a_key_in_a_list_of_mappings_has_a_line() -> None:
    document = parsed("profiles:\n  - input_ids: 1\n  - input_ids: 2\n")
    assert document.place_of("profiles[1].input_ids") == "extra.yaml:3: profiles[1].input_ids"
    assert document.line_of("profiles[1]") == 3


def test_a_file_is_read_through_the_host(tmp_path: Path) -> None:
    path = tmp_path / "extra.yaml"
    path.write_text(EXTRA)
    assert read_yaml(RealHost(), str(path)).data == yaml.safe_load(EXTRA)


def test_a_file_that_is_too_large_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(UnreadableError, match=f"{MAX_YAML_BYTES:,}"):
        read_yaml(RealHost(), str(path))


def test_a_missing_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="No such file"):
        read_yaml(RealHost(), str(tmp_path / "nowhere.yaml"))


def test_a_key_written_twice_is_reported_and_the_last_one_counts() -> None:
    document = parsed("max_batch_size: 8\ndtype: auto\nmax_batch_size: 16\n")
    assert document.data["max_batch_size"] == 16
    assert document.duplicates == ("extra.yaml:3: max_batch_size (first on line 1)",)


def test_the_same_key_in_two_mappings_is_no_duplicate() -> None:
    assert parsed("a: {dtype: 1}\nb: {dtype: 2}\n").duplicates == ()


def test_aliases_and_merge_keys_mean_what_they_mean_to_pyyaml() -> None:
    text = "base: &b {x: 1, y: [2]}\nuse: *b\nmore:\n  <<: *b\n  x: 5\nboth:\n  <<: [*b, {z: 3}]\n'<<': 7\n"
    assert parsed(text).data == yaml.safe_load(text)
    assert parsed(text).place_of("more.y") == "extra.yaml:3: more.y"


def test_keys_keep_their_spelling() -> None:
    assert parsed("1: a\non: b\n").data == {"1": "a", "on": "b"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("- 1\n", "holds a list, not a mapping"),
        ("a: 1\n\tb: 2\n", "line 2, column 1"),
        ("a: b: c\n", "line 1, column 5"),
        ("a: [1, 2\n", "is not YAML"),
        ("a: *nobody\n", r"\*nobody names nothing"),
        ("a: &a [*a]\n", r"\*a names nothing that is complete"),
        ("? [a]\n: b\n", "list or mapping as a key on line 1"),
        ("k: {{ value }}\n", "list or mapping as a key on line 1"),
        ("&k a: 1\n*k : 2\n", "alias as a key on line 2"),
        ("<<: 3\n", "that is not a mapping"),
        ("a: 1\n---\nb: 2\n", "second document from line 2"),
        ("a: 2024-13-45\n", "month must be"),
        ("version https://git-lfs.github.com/spec/v1\n", "Git-LFS pointer"),
    ],
)
def test_what_is_no_mapping_is_refused_in_words(text: str, reason: str) -> None:
    with pytest.raises(UnreadableError, match=reason):
        parsed(text)


def test_a_foreign_tag_never_makes_an_object() -> None:
    assert parsed("a: !!python/object/apply:os.system [ls]\n").data == {"a": ["ls"]}
    assert "python/object" in refusal(b"a: !!python/object:os.system x\n")


def test_a_billion_laughs_is_refused_at_once() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "expands to more than" in refusal("\n".join(lines).encode())


@pytest.mark.parametrize("piece", [b"[", b"- ", b"a:\n"])
def test_deep_nesting_is_refused(piece: bytes) -> None:
    deep = b"a: " + piece * 5000 if piece == b"[" else piece * 5000
    if piece == b"a:\n":
        deep = b"".join(b" " * i + b"a:\n" for i in range(500))
    assert "nested too deeply" in refusal(deep)


def test_endless_numbers_stay_text() -> None:
    digits = "9" * 100_000
    assert parsed(f"a: {digits}\n").data == {"a": digits}


def test_long_keys_cost_no_memory() -> None:
    long = "? " + "k" * 1_000_000 + "\n:\n" + "".join(f"  c{i}: 1\n" for i in range(1000))
    document = parsed(long)
    assert sum(map(len, document.lines)) < 1_000_000


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.heavy
@settings(max_examples=150, deadline=None)
@given(data=st.dictionaries(st.text(min_size=1, max_size=8), plain, min_size=1, max_size=5), flow=st.booleans())
def test_what_pyyaml_writes_is_read_as_pyyaml_reads_it(data: dict[str, Any], flow: bool) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow)
    assert parsed(text).data == yaml.safe_load(text) == data


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200) | st.text("abc:-{}[]&*<>!|?#'\" \n\t1", max_size=60).map(str.encode))
def test_no_bytes_raise_anything_but_a_refusal(data: bytes) -> None:
    with contextlib.suppress(UnreadableError):
        assert isinstance(parse_yaml(data, "extra.yaml").data, dict)
