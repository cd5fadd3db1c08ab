"""Requests in words, and traces of real traffic."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtdx.errors import InputError
from trtdx.host import RealHost, RecordedHost
from trtdx.inspect.requests import requests as module
from trtdx.inspect.requests.requests import (
    Request,
    parse_request,
    read_request_trace,
    requests_from_flags,
    requests_of_artifacts,
)


def only(artifact) -> Request:
    (request,) = requests_of_artifacts([artifact])
    return request


def trace(tmp_path, *records, name="trace.jsonl"):
    path = tmp_path / name
    path.write_text("".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records))
    return read_request_trace(RealHost(), str(path))


def test_a_request_in_words():
    artifact = parse_request("batch=8,input_len=9000,output_len=512,beam=2,draft_len=4,prompt_table=576,lora_rank=16")
    assert only(artifact) == Request(8, 9000, 512, 2, 4, 576, 16, where=artifact.path)
    assert artifact.facts["request.input_len"].where.endswith(": input_len")


def test_other_spellings_and_spaces_are_taken():
    request = only(parse_request(" batch_size=4, isl=100 , max-tokens=7,num_beams=3 "))
    assert (request.batch, request.input_len, request.output_len, request.beam) == (4, 100, 7, 3)


def test_what_is_not_said_is_usual():
    request = only(parse_request("input_len=100"))
    assert (request.batch, request.beam, request.output_len, request.draft_len) == (1, 1, 1, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("inptu_len=4", "did you mean input_len"),
        ("batch", "is not a key=number"),
        ("batch=many", "is not a whole number"),
        ("batch=1.5", "is not a whole number"),
        ("batch=0", "at least 1"),
        ("output_len=-1", "at least 0"),
        ("input_len=99999999999", "more than any engine takes"),
        ("batch=1,batch_size=2", "given twice"),
        (",", "empty"),
        ("zzz=1", "one of batch, input_len"),
    ],
)
def test_a_wrong_request_says_what_is_wrong(text, words):
    with pytest.raises(InputError) as caught:
        parse_request(text)
    assert words in f"{caught.value.message} {caught.value.fix}"


@pytest.mark.parametrize(
    "record",
    [
        {"input_len": 100, "output_len": 20},
        {"input_length": 100, "output_length": 20, "timestamp": 27482},
        {"isl": "100", "osl": 20.0},
        {"prompt_tokens": 100, "completion_tokens": 20},
        {"usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}},
        {"custom_id": "a", "response": {"body": {"usage": {"prompt_tokens": 100, "completion_tokens": 20}}}},
        {"task_id": 0, "input_ids": [1] * 100, "output_tokens": 20},
        {"task_id": 0, "prompt": "once upon a time", "input_ids": [1] * 100, "output_tokens": 20},
        {"TIMESTAMP": "2023-11-16 18:17:03", "ContextTokens": 100, "GeneratedTokens": 20},
        {"prompt_token_ids": [1] * 100, "max_tokens": 20},
    ],
    ids=lambda record: ",".join(record),
)
def test_common_formats_are_understood(tmp_path, record):
    request = only(trace(tmp_path, record))
    assert (request.input_len, request.output_len, request.count) == (100, 20, 1)


def test_what_was_asked_counts_before_what_was_answered(tmp_path):
    request = only(trace(tmp_path, {"prompt_tokens": 100, "completion_tokens": 3, "max_tokens": 500}))
    assert request.output_len == 500


def test_beams_of_a_beam_search(tmp_path):
    assert only(trace(tmp_path, {"input_len": 9, "use_beam_search": True, "n": 4})).beam == 4
    assert only(trace(tmp_path, {"input_len": 9, "n": 4})).beam == 1


def test_equal_requests_are_counted_and_the_first_line_is_named(tmp_path):
    same, other = {"input_len": 10, "output_len": 5}, {"input_len": 7, "output_len": 5}
    requests = list(requests_of_artifacts([trace(tmp_path, other, same, "", same, same)]))
    assert [(each.input_len, each.count) for each in requests] == [(7, 1), (10, 3)]
    assert requests[1].where.endswith("trace.jsonl:2")


def test_prompts_that_nobody_tokenized_are_counted_apart(tmp_path):
    artifact = trace(tmp_path, {"prompt": "hello", "output_tokens": 9}, {"body": {"messages": [{"role": "user"}]}})
    assert list(requests_of_artifacts([artifact])) == []
    assert artifact.get("request.uncounted") == 2
    assert "text only" in artifact.unread[0]


def test_bad_lines_are_counted_and_named(tmp_path):
    bad = [
        "{",
        "[1]",
        '{"input_len": -4}',
        '{"input_len": "many"}',
        '{"output_len": 4}',
        "null",
        '{"input_len": true}',
    ]
    artifact = trace(tmp_path, *bad, {"input_len": 3})
    assert only(artifact).input_len == 3
    assert artifact.get("request.count") == 1
    assert "7 lines of the file cannot be read as a request: line 1: is not JSON" in artifact.unread[0]
    assert "and 2 more" in artifact.unread[0]
    assert any("states no prompt length" in line for line in artifact.items("request.bad_lines"))


def test_a_compressed_trace_is_read(tmp_path):
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"input_len": 5}\n' * 3) + gzip.compress(b'{"input_len": 5}\n'))
    assert only(read_request_trace(RealHost(), str(path))).count == 4


@pytest.mark.heavy
def test_a_trace_that_is_cut_off_gives_what_could_be_read(tmp_path):
    path = tmp_path / "trace.jsonl.gz"
    lines = "".join(f'{{"input_len": {n}}}\n' for n in range(1, 50_000))
    path.write_bytes(gzip.compress(lines.encode())[:-2000])
    artifact = read_request_trace(RealHost(), str(path))
    assert artifact.get("request.count") > 1000
    assert "cut off" in artifact.unread[0]


def test_one_huge_line_is_passed_over(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b'{"input_ids": [' + b"1," * (9 << 20) + b'1]}\n{"input_len": 4}\n')
    artifact = read_request_trace(RealHost(), str(path))
    assert only(artifact).input_len == 4
    assert "line 1" in artifact.unread[0]


def test_requests_come_from_words_and_files_together(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"input_len": 2}\n')
    artifacts = requests_from_flags(RealHost(), ["batch=2", "batch=3"], str(path))
    assert [request.batch for request in requests_of_artifacts(artifacts)] == [2, 3, 1]


def test_a_trace_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(InputError):
        read_request_trace(RealHost(), str(tmp_path / "no.jsonl"))


def test_beyond_the_bound_lengths_are_rounded_down_and_the_extreme_requests_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_SHAPES", 50)
    ordinary = [{"input_len": n, "output_len": 1 + n % 7} for n in range(1, 3000)]
    extreme = [
        {"input_len": 5, "output_len": 9001},
        {"input_len": 3, "beam": 7},
        {"input_len": 997, "batch": 44},
    ]
    artifact = trace(tmp_path, *ordinary, *extreme, *ordinary[:5])
    requests = list(requests_of_artifacts([artifact]))
    assert len(requests) < 70
    assert max(request.output_len for request in requests) == 9001
    assert max(request.input_len for request in requests) == 2999
    assert max(request.beam for request in requests) == 7
    assert max(request.batch * request.input_len for request in requests) == 44 * 997
    assert sum(request.count for request in requests) == artifact.get("request.count") == 3007
    assert "rounded down" in artifact.unread[-1]


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=120),
    st.integers(1, 9000),
)
def test_rounding_never_makes_a_request_larger_nor_hides_the_largest(lengths, limit):
    known, bound = module.MAX_SHAPES, 16
    data = "".join(json.dumps({"isl": a, "osl": b}) + "\n" for a, b in lengths).encode()
    module.MAX_SHAPES = bound
    try:
        requests = list(requests_of_artifacts([read_request_trace(RecordedHost({"t": data}), "t")]))
    finally:
        module.MAX_SHAPES = known
    for measure in (lambda a, b: a, lambda a, b: a + b):
        exact = sum(measure(a, b) > limit for a, b in lengths)
        told = sum(request.count for request in requests if measure(request.input_len, request.output_len) > limit)
        assert told <= exact
        assert bool(told) == bool(exact)


@pytest.mark.heavy
def test_many_requests_are_read_in_little_memory(tmp_path):
    path = tmp_path / "trace.jsonl"
    with path.open("w") as file:
        for n in range(300_000):
            file.write(f'{{"timestamp": {n}, "input_len": {n + 1}, "output_len": {n % 977}}}\n')
    code = (
        "import resource, sys\n"
        "from trtdx.host import RealHost\n"
        "from trtdx.inspect.requests.requests import read_request_trace\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "found = read_request_trace(RealHost(), sys.argv[1])\n"
        "print(found.get('request.count'), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, timeout=100, check=True)
    count, grown_kib = map(int, done.stdout.split())
    assert count == 300_000
    assert grown_kib < 120 << 10


@given(st.binary(max_size=400))
def test_any_bytes_are_a_trace_of_some_kind(data):
    artifact = read_request_trace(RecordedHost({"t": data}), "t")
    assert all(request.input_len >= 1 for request in requests_of_artifacts([artifact]))


@pytest.mark.heavy
@given(st.lists(st.dictionaries(st.sampled_from([*module.FIELD_NAMES, "usage", "prompt", "n", "response", "body"]),
                                st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                                             lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=2),
                                             max_leaves=4), max_size=4), max_size=5))  # fmt: skip
def test_any_records_are_a_trace_of_some_kind(records):
    data = "".join(json.dumps(record, allow_nan=False, default=str) + "\n" for record in records if _finite(record))
    artifact = read_request_trace(RecordedHost({"t": data.encode("utf-8", "surrogatepass")}), "t")
    assert artifact.get("request.count") <= len(records)


def _finite(record) -> bool:
    try:
        json.dumps(record, allow_nan=False).encode()
    except (ValueError, UnicodeEncodeError):
        return False
    return True


@given(
    st.builds(
        Request,
        st.integers(1, 99),
        st.integers(1, 9999),
        st.integers(0, 9999),
        st.integers(1, 9),
        st.integers(0, 9),
    )
)
def test_a_request_told_in_words_is_the_same_request(request_):
    request = only(parse_request(request_.words))
    assert request.words == request_.words
