"""What logs state about memory, and the ledger that is rebuilt from it."""

from __future__ import annotations

import gzip

import pytest

from trtdx.errors import InputError
from trtdx.host import RecordedHost
from trtdx.memory.logs.ledger import ledger_from_log, ledgers_from_log, pool_from_log
from trtdx.memory.logs.read import read_memory_log
from trtdx.memory.nouns import GIB, MIB

ENGINE = """\
[TensorRT-LLM] TensorRT-LLM version: 0.17.0
[TensorRT-LLM][INFO] TRTGptModel maxBatchSize: 48
[TensorRT-LLM][INFO] TRTGptModel maxSequenceLen: 6144
[TensorRT-LLM][INFO] TRTGptModel maxNumTokens: 10240
[TensorRT-LLM][INFO] Loaded engine size: 7200 MiB
[TensorRT-LLM][INFO] [MemUsageChange] TensorRT-managed allocation in engine deserialization: CPU +0, GPU +7190, now: CPU 0, GPU 7190 (MiB)
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1250.50 MiB for execution context memory.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.25 GB GPU memory for runtime buffers.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 512.00 MB GPU memory for decoder.
[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 47.50 GiB, available: 36.00 GiB
[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 4147
[TensorRT-LLM][INFO] Number of tokens per block: 64.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 32.40 GiB for max tokens in paged KV cache (265408).
"""

TORCH = """\
[TRT-LLM] [I] Use 14.96 GB for model weights.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.00 GiB for max tokens in paged KV cache (8192).
[TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 15.10 GiB
[TRT-LLM] [I] Memory used after loading model weights (outside torch) in memory usage profiling: 2.00 GiB
[TRT-LLM] [I] Memory dynamically allocated during inference (inside torch) in memory usage profiling: 1.50 GiB
[TRT-LLM] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: 2.40 GiB
[TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 19.00 GiB, available KV cache memory when calculating max tokens: 55.35 GiB, fraction is set 0.9, kv size per token is 131072{unit}. device total memory 79.50 GiB, temporary kv cache memory during profiling 1.00 GiB
[TRT-LLM] [I] Estimated max memory in KV cache : 55.35 GiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 55.35 GiB for max tokens in paged KV cache (453408).
"""

FAILED = """\
[TRT-LLM] [RANK 3] [E] Failed to initialize executor on rank 3: Executor creation failed due to insufficient GPU memory.

The following component could not be created: {component}
Total GPU memory (GiB): 79.50
Free GPU memory before component creation attempt (GiB): 3.25

Previously created components and free GPU memory before/after creation (GiB):
{model}: 78.90 / 12.50
{sampler}: 12.50 / 12.25
{temporary}: 12.25 / 11.25
{extra}: 11.25 / 3.25

Please refer to the TensorRT LLM documentation
"""


def read(text: str | bytes, name: str = "serve.log"):
    return read_memory_log(RecordedHost({name: text.encode() if isinstance(text, str) else text}), name)


def test_an_engines_start_gives_every_component_with_its_line():
    rank = ledger_from_log(read(ENGINE), 0)
    assert {each.name: each.bytes.source for each in rank.components} == {
        "weights": "measured: serve.log line 6",
        "activation": "measured: serve.log line 7",
        "runtime_buffers": "measured: serve.log line 8",
        "decoder_buffers": "measured: serve.log line 9",
        "cuda_context": "measured: serve.log line 10",
        "kv_pool": "measured: serve.log line 13",
    }
    assert rank.component_bytes("weights") == 7190 * MIB
    assert rank.component_bytes("activation") == 1250.5 * MIB
    assert rank.component_bytes("runtime_buffers") == 1.25 * GIB  # TensorRT-LLM says GB and divides by 1024
    assert rank.capacity == 47.5 * GIB
    assert rank.kv_tokens.value == 265408


def test_what_nobody_names_before_the_cache_is_the_context_and_the_parts_sum_up():
    rank = ledger_from_log(read(ENGINE), 0)
    before = sum(each.bytes.value for each in rank.components if each.name != "kv_pool")
    assert before == pytest.approx((47.5 - 36) * GIB, abs=MIB)
    assert rank.total_bytes.value == sum(each.bytes.value for each in rank.components)


def test_a_printed_number_may_be_off_by_half_of_its_last_digit():
    pool = pool_from_log(read(ENGINE), 0).bytes
    assert pool is not None
    assert (pool.low, pool.high) == (round(32.395 * GIB), round(32.405 * GIB))
    per_token = ledger_from_log(read(ENGINE), 0).kv_bytes_per_token
    assert per_token.low <= 131072 <= per_token.high


def test_settings_are_read_under_the_names_of_the_command_line():
    log = read(ENGINE)
    assert log.backend == "tensorrt"
    assert {name: each.value for name, each in log.settings.items()} == {
        "version": "0.17.0",
        "max_batch_size": "48",
        "max_seq_len": "6144",
        "max_num_tokens": "10240",
    }
    assert log.settings["max_num_tokens"].where == "serve.log:4"


@pytest.mark.parametrize("unit", ["", " bytes/token", " bytes/token + 4096 bytes fixed cost"])
def test_the_first_pool_of_the_pytorch_backend_is_temporary_in_every_release(unit):
    log = read(TORCH.format(unit=unit))
    pool = pool_from_log(log, 0)
    assert pool.bytes is not None
    assert pool.bytes.value == round(55.35 * GIB)
    assert pool.temporary is not None
    assert pool.temporary.value == 1 * GIB
    assert ledger_from_log(log, 0).kv_bytes_per_token.value == 131072


def test_the_temporary_pool_is_not_counted_as_memory_outside_torch():
    rank = ledger_from_log(read(TORCH.format(unit="")), 0)
    assert rank.component_bytes("cuda_context") == pytest.approx(1.4 * GIB, abs=MIB)
    assert rank.component_bytes("activation") == 1.5 * GIB
    assert rank.component_bytes("weights") == pytest.approx(14.96 * GIB, abs=1)


def test_a_temporary_pool_that_is_not_told_follows_from_the_budget():
    text = "Model weights (torch): 15.10 GiB\nModel weights (non-torch): 2.00 GiB\n"
    text += "Peak memory: 18.60 GiB, KV cache: 55.71 GiB (fraction=0.9)\nPyTorch memory fraction: 0.5 (39.75 GiB)\n"
    rank = ledger_from_log(read(text), 0)  # 55.71 / 0.9 - (79.5 - 18.6) = 1.0
    assert rank.component_bytes("cuda_context") == pytest.approx(1.0 * GIB, abs=0.02 * GIB)


def test_two_pools_without_a_profile_are_a_temporary_and_a_real_one():
    text = "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.50 GiB for max tokens in paged KV cache (4096).\n"
    text += "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 6.00 GiB for max tokens in paged KV cache (49152).\n"
    log = read(text)
    assert log.backend == "pytorch"
    assert ledger_from_log(log, 0).kv_tokens.value == 49152


def test_autodeploy_prints_nothing_for_a_real_pool():
    text = TORCH.format(unit="").replace("Allocated 55.35 GiB for", "Allocated 0.00 GiB for")
    assert ledger_from_log(read(text), 0).component_bytes("kv_pool") == 453408 * 131072


def test_the_oldest_lines_are_exact():
    text = "[TensorRT-LLM][INFO] Loaded engine size: 12000 MiB\n"
    text += "[TensorRT-LLM][INFO] Allocate 4294967296 bytes for k/v cache. \n"
    text += "[TensorRT-LLM][INFO] Using 32768 total tokens in paged KV cache, and 16 blocks per sequence\n"
    rank = ledger_from_log(read(text), 0)
    assert (rank.kv_bytes_per_token.low, rank.kv_bytes_per_token.high) == (131072, 131072)
    assert rank.component_bytes("weights") == 12000 * MIB


def test_lines_of_releases_in_between_are_read_too():
    text = "[TensorRT-LLM][INFO] Max tokens in paged KV cache: 40960. Allocating 5368709120 bytes.\n"
    assert ledger_from_log(read(text), 0).kv_bytes_per_token.value == 131072
    text = "[TensorRT-LLM][WARNING] maxAttentionWindow and maxSequenceLen are too large for at least one sequence to fit in kvCache. they are reduced to 5185\n"
    assert read(text).last("kv.shortened").value_of("new") == 5185
    text = "[TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 19.00 GiB, available KV cache memory when calculating max tokens: 55.35 GiB\n"
    assert read(text).last("torch.peak").bytes("budget") == round(55.35 * GIB)
    text = (
        TORCH.format(unit="")
        .replace("kv size per token is", "kv size is")
        .replace(", temporary kv cache memory during profiling", ", , tmp kv_mem")
    )
    assert pool_from_log(read(text), 0).temporary.value == 1 * GIB


def test_the_rank_of_autodeploys_lines_is_read():
    text = "[12/20/2025-03:36:05] [TRT-LLM AUTO-DEPLOY] [RANK 2] [I] Use 3.00 GB for model weights.\n"
    assert read(text).ranks == (2,)


def test_a_build_tells_weights_and_activation():
    text = "[TRT] [I] Total Host Persistent Memory: 64672 bytes, Total Device Persistent Memory: 0 bytes, Total Scratch Memory: 134218240 bytes\n"
    text += "[TRT] [I] Total Activation Memory: 335545344 bytes, Total Weights Memory: 16060522240 bytes\n"
    text += (
        "[TRT] [I] [MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU 1250 MiB, GPU 25301 MiB\n"
    )
    text += "[TRT-LLM] [I] Activation memory size: 320.00 MiB\n"
    log = read(text)
    assert log.backend == "build"
    assert ledger_from_log(log, 0).component_bytes("activation") == 335545344
    assert log.last("build.scratch").bytes() == 134218240
    assert log.last("build.estimate.activation").bytes() == 320 * MIB


@pytest.mark.parametrize(
    ("model", "sampler", "temporary", "extra", "component"),
    [
        ("Model", "Sampler", "Initial KV cache (temporary for KV cache size estimation)", "Model resources created during usage", "KV cache"),
        ("model", "sampler", "_no_capture_init_kv_cache", "model_extra", "KV cache"),
    ],
)  # fmt: skip
def test_the_executors_failure_is_read_by_names_and_by_stage_ids(model, sampler, temporary, extra, component):
    log = read(FAILED.format(model=model, sampler=sampler, temporary=temporary, extra=extra, component=component))
    assert log.ranks == (3,)  # the block itself names no rank, the line above it does
    rank = ledger_from_log(log, 3)
    assert rank.component_bytes("weights") == pytest.approx(66.4 * GIB, abs=MIB)
    assert rank.component_bytes("decoder_buffers") == pytest.approx(0.25 * GIB, abs=MIB)
    assert rank.component_bytes("activation") == pytest.approx(8 * GIB, abs=MIB)
    assert rank.find_component("kv_pool") is None


def test_lines_of_several_ranks_are_told_apart_whatever_wraps_them():
    def one(rank: int, free: str) -> str:
        return f"Memory usage when calculating max tokens in paged kv cache: total: 79.10 GiB, available: {free} GiB"

    wrapped = [
        f"[1,0]<stdout>:[TensorRT-LLM][INFO] {one(0, '60.00')}",
        f"1: [TensorRT-LLM][INFO] {one(1, '61.00')}",
        f"[TensorRT-LLM][INFO][2] {one(2, '62.00')}",
        f"[TRT-LLM] [I] [batchmgr][RANK 3] {one(3, '63.00')}",
    ]
    log = read("\n".join(wrapped) + "\n")
    free = {each.rank: each.bytes("free") / GIB for each in log.select("kv.available")}
    assert free == {0: 60, 1: 61, 2: 62, 3: 63}
    assert len(ledgers_from_log(log)) == 4


def test_triton_wraps_the_same_lines():
    text = "I1115 10:00:04.688135 205 libtensorrtllm.cc:55] [TensorRT-LLM][INFO] [MemUsageChange] Allocated 2.00 GiB for max tokens in paged KV cache (16384).\n"
    assert ledger_from_log(read(text), 0).kv_tokens.value == 16384


def test_torchs_allocator_text_is_read_in_both_forms():
    new = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 2 has a total capacity of 79.10 GiB of which 210.50 MiB is free. Process 4012 has 61.25 GiB memory in use. Including non-PyTorch memory, this process has 17.50 GiB memory in use. Of the allocated memory 16.00 GiB is allocated by PyTorch, and 120.00 MiB is reserved by PyTorch but unallocated."
    old = "RuntimeError: CUDA out of memory. Tried to allocate 1.25 GiB (GPU 0; 15.75 GiB total capacity; 14.00 GiB already allocated; 512.00 MiB free; 14.25 GiB reserved in total by PyTorch)"
    said = read(new).last("torch.oom")
    assert said.bytes("wanted") == 512 * MIB
    assert said.value_of("gpu") == 2
    assert said.words == {"process 4012": str(round(61.25 * GIB))}
    assert said.bytes("own") == 17.5 * GIB
    said = read(old).last("torch.oom")
    assert (said.bytes("free"), said.bytes("unused")) == (512 * MIB, 256 * MIB)


def test_a_process_of_16_exbibytes_is_the_drivers_joke():
    text = "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 15.93 GiB of which 0 bytes is free. Process 877 has 17179869184.00 GiB memory in use."
    said = read(text).last("torch.oom")
    assert said.words == {}
    assert said.bytes("free") == 0


def test_a_pasted_table_of_nvidia_smi_is_read():
    text = "| N/A   43C    P0              81W / 350W |  34743MiB / 81559MiB |      0%      Default |\n"
    text += "|    0   N/A  N/A      4711      C   /usr/bin/python3                      34000MiB |\n"
    log = read(text)
    assert log.last("smi.gpu").bytes("total") == 81559 * MIB
    assert log.last("smi.process").words["name"] == "/usr/bin/python3"


def test_a_dump_of_arguments_is_read_and_nested_limits_are_not_mistaken():
    text = (
        "[TRT-LLM] [I] args: TorchLlmArgs(max_batch_size=256, max_num_tokens=4096, tensor_parallel_size=4, "
        "cuda_graph_config=CudaGraphConfig(batch_sizes=None, max_batch_size=64, enable_padding=True), "
        "kv_cache_config=KvCacheConfig(enable_block_reuse=True, max_tokens=None, free_gpu_memory_fraction=0.85, "
        "dtype='fp8', tokens_per_block=64))\n"
    )
    log = read(text)
    assert log.number("max_batch_size") == 256
    assert log.number("cuda_graph_max_batch_size") == 64
    assert log.number("tp_size") == 4
    assert log.fraction == 0.85
    assert log.settings["kv_cache_dtype"].value == "fp8"


def test_the_runtimes_own_word_rules_over_a_command_line():
    text = "+ trtllm-serve model --max_batch_size 4096 --max_num_tokens 65536\n"
    text += "[TRT-LLM] [I] max_seq_len=2048, max_num_requests=512, max_num_tokens=8192\n"
    text += "+ trtllm-bench --max_batch_size 9\n"
    assert read(text).number("max_batch_size") == 512


def test_packed_logs_and_folders_are_read():
    assert read(gzip.compress(ENGINE.encode()), "serve.log.gz").number("max_batch_size") == 48
    host = RecordedHost({"logs/rank0.log": ENGINE.encode(), "logs/rank1.log": ENGINE.encode()})
    assert read_memory_log(host, "logs").ranks == (0, 1)


def test_nothing_to_read_is_an_error_with_a_way_out():
    with pytest.raises(InputError, match="nothing was read"):
        read(b"")
    with pytest.raises(InputError, match="no file or directory"):
        read_memory_log(RecordedHost({}), "absent.log")


def test_a_log_without_memory_gives_an_empty_ledger():
    log = read("INFO: all is well\n")
    assert log.statements == ()
    assert ledger_from_log(log, 0).components == ()
