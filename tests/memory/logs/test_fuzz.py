"""Logs as they really come: cut off, binary, in UTF-16, with endless lines, with ranks writing over each other."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from trtdx.host import RecordedHost
from trtdx.memory.logs.ledger import ledger_from_log, ledgers_from_log
from trtdx.memory.logs.oom import explain_memory_failure
from trtdx.memory.logs.read import read_memory_log
from trtdx.memory.logs.report import report_log_memory
from trtdx.memory.nouns import GIB

if TYPE_CHECKING:
    from trtdx.rule import RuleBook

LINES = (
    "[TensorRT-LLM][INFO] Loaded engine size: 7200 MiB",
    "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1250.50 MiB for execution context memory.",
    "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 47.50 GiB, available: 36.00 GiB",
    "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 32.40 GiB for max tokens in paged KV cache (265408).",
    "[TRT-LLM] [RANK 1] [I] Use 14.96 GB for model weights.",
    "[TRT-LLM] [RANK 1] [I] Peak memory during memory usage profiling (torch + non-torch): 19.00 GiB, available KV cache memory when calculating max tokens: 55.35 GiB, fraction is set 0.9, kv size per token is 131072. device total memory 79.50 GiB, temporary kv cache memory during profiling 1.00 GiB",
    "The following component could not be created: KV cache",
    "Free GPU memory before component creation attempt (GiB): 3.25",
    "model: 78.90 / 12.50",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 2 has a total capacity of 79.10 GiB of which 210.50 MiB is free. Process 4012 has 61.25 GiB memory in use.",
    "kv_cache_config=KvCacheConfig(max_tokens=1802946, free_gpu_memory_fraction=0.8, dtype='fp8')",
    "| N/A   43C    P0              81W / 350W |  34743MiB / 81559MiB |      0%      Default |",
)
WHOLE = ("\n".join(LINES) + "\n").encode()


def read(data: bytes):
    return read_memory_log(RecordedHost({"a.log": data}), "a.log")


def survives(data: bytes) -> None:
    log = read(data)
    result = explain_memory_failure(log)
    for rank in result.ranks:
        assert rank.total_bytes.value == sum(each.bytes.value for each in rank.components)
        assert all(0 <= each.bytes.low <= each.bytes.value <= each.bytes.high for each in rank.components)


@pytest.mark.parametrize("end", range(1, len(WHOLE), 41))
def test_a_log_that_is_cut_off_anywhere_gives_what_is_there(end):
    survives(WHOLE[:end])


@pytest.mark.heavy
def test_damaged_bytes_do_no_harm():
    rng = random.Random(5)
    for _ in range(120):
        data = bytearray(WHOLE)
        for _ in range(rng.randrange(1, 60)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        survives(bytes(data))


@pytest.mark.heavy
def test_shuffled_and_repeated_lines_do_no_harm():
    rng = random.Random(6)
    for _ in range(120):
        lines = [rng.choice(LINES) for _ in range(rng.randrange(1, 40))]
        survives("\n".join(lines).encode())


def test_random_bytes_hold_no_memory_lines():
    assert read(random.Random(7).randbytes(200_000)).statements == ()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_other_encodings_are_read(encoding):
    assert ledger_from_log(read(WHOLE.decode().encode(encoding)), 1).kv_bytes_per_token.value == 131072


def test_an_endless_line_is_read_in_bounded_memory_and_what_is_in_it_found():
    line = b"x" * (24 << 20)
    log = read(line + b" " + LINES[3].encode() + b" " + line + b"\n" + LINES[0].encode() + b"\n")
    assert [each.key for each in log.statements] == ["kv.pool", "engine.size"]
    assert all(len(each.text) <= 900 for each in log.statements)


def test_ten_thousand_restarts_are_not_all_kept():
    text = "\n".join(f"{LINES[3]} {number}" for number in range(10_000))
    log = read(text.encode())
    assert 0 < len(log.statements) <= 2000


def test_absurd_numbers_do_no_harm():
    huge = "9" * 300
    survives(LINES[3].replace("32.40", huge).replace("265408", huge).encode())
    survives(LINES[5].replace("131072", "0").replace("0.9", "0").encode())
    survives(LINES[3].replace("265408", "0").encode())


def test_ranks_that_write_into_one_file_at_once_keep_their_numbers():
    lines = []
    for rank in range(4):
        lines += [f"[1,{rank}]<stdout>:[TRT-LLM] [RANK {rank}] [I] Use {10 + rank}.00 GB for model weights."]
    rng = random.Random(8)
    for _ in range(20):
        rng.shuffle(lines)
        log = read("\n".join(lines).encode())
        weights = {each.rank: each.component_bytes("weights") / GIB for each in ledgers_from_log(log)}
        assert weights == {0: 10, 1: 11, 2: 12, 3: 13}


def test_the_report_of_a_damaged_archive_says_so():
    import gzip

    packed = gzip.compress(WHOLE * 2000)
    host = RecordedHost({"a.log.gz": packed[: len(packed) // 2]})
    found = report_log_memory(host, ["a.log.gz"], book=_book())
    assert found.report.summary.partial
    assert found.log.statements


def _book() -> RuleBook:
    from trtdx.host import RealHost
    from trtdx.knowledge.load import load_book

    return load_book(RealHost())
