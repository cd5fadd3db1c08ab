"""After a failure: which allocation, how much was missing, what to change, and when it was not the memory at all."""

from __future__ import annotations

import re

import pytest

from support.make_setups import make_setup
from trtdx.diagnose.run import diagnose_sources, source_from_text
from trtdx.host import RealHost, RecordedHost
from trtdx.knowledge.load import load_book
from trtdx.memory.logs.diagnose_hook import with_memory_figures
from trtdx.memory.logs.oom import explain_memory_failure
from trtdx.memory.logs.read import read_memory_log
from trtdx.memory.logs.report import report_log_memory
from trtdx.memory.nouns import GIB, MIB, ZERO_FIGURE, MemoryLedger, RankLedger
from trtdx.model import Stage

BOOK = load_book(RealHost())

PROFILE = """\
[TRT-LLM] [I] args: TorchLlmArgs(max_batch_size=128, max_num_tokens=8192, max_seq_len=16384)
[TRT-LLM] [I] Use 26.40 GB for model weights.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.00 GiB for max tokens in paged KV cache (8192).
[TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 26.50 GiB
[TRT-LLM] [I] Memory dynamically allocated during inference (inside torch) in memory usage profiling: 4.50 GiB
[TRT-LLM] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: 2.50 GiB
[TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 33.50 GiB, available KV cache memory when calculating max tokens: 42.30 GiB, fraction is set 0.9, kv size per token is 131072 bytes/token. device total memory 79.50 GiB, temporary kv cache memory during profiling 1.00 GiB
[TRT-LLM] [I] Estimated max memory in KV cache : 42.30 GiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 42.30 GiB for max tokens in paged KV cache (346528).
"""
STEP_FAILED = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {want}. GPU 0 has a total capacity of 79.50 GiB of which {free} is free. {rest}"
ENGINE = """\
[TensorRT-LLM][INFO] TRTGptModel maxBatchSize: 64
[TensorRT-LLM][INFO] TRTGptModel maxNumTokens: 16384
[TensorRT-LLM][INFO] Loaded engine size: 15000 MiB
"""


def read(text: str):
    return read_memory_log(RecordedHost({"serve.log": text.encode()}), "serve.log")


def cause_of(text: str):
    return explain_memory_failure(read(text)).verdicts[0]


def report_on(text: str):
    return report_log_memory(RecordedHost({"serve.log": text.encode()}), ["serve.log"], book=BOOK).report


def own(gib: float) -> str:
    return f"Including non-PyTorch memory, this process has {gib:.2f} GiB memory in use. Of the allocated memory {gib - 3:.2f} GiB is allocated by PyTorch, and 64.00 MiB is reserved by PyTorch but unallocated."


def test_a_step_that_fails_after_the_cache_was_made_gets_the_fraction_that_leaves_enough():
    verdict = cause_of(PROFILE + STEP_FAILED.format(want="7.80 GiB", free="3.10 GiB", rest=own(76)))
    assert verdict.code == "DX914"
    assert verdict.failure.missing == pytest.approx(4.7 * GIB, abs=0.02 * GIB)
    fix = verdict.fixes[0]
    assert fix.stage is Stage.SERVE
    new = float(re.search(r"fraction (0\.\d+)", fix.command)[1])
    base = 42.30 * GIB / 0.9
    assert (0.9 - new) * base > 4.7 * GIB  # it fits
    assert (0.9 - new) * base < 6 * GIB  # and is not much more than needed


def test_a_piece_much_smaller_than_the_cache_is_not_the_cache():
    before = "".join(line for line in PROFILE.splitlines(True) if "Allocated" not in line)
    failed = STEP_FAILED.format(want="7.80 GiB", free="3.10 GiB", rest=own(76))
    assert cause_of(before + failed).failure.component == ""
    whole = STEP_FAILED.format(want="42.30 GiB", free="40.10 GiB", rest=own(39))
    assert cause_of(before + whole).failure.component == "kv_pool"


def test_the_temporary_cache_is_not_taken_for_the_one_that_was_made():
    text = "\n".join(PROFILE.splitlines()[:3]) + "\n"
    text += STEP_FAILED.format(want="9.00 GiB", free="5.00 GiB", rest=own(74))
    verdict = cause_of(text)
    assert verdict.failure.component == "activation"
    assert not verdict.failure.after_pool


def test_an_activation_that_does_not_fit_gets_the_number_of_tokens_that_does():
    text = "\n".join(PROFILE.splitlines()[:2]) + "\n"
    text += STEP_FAILED.format(want="9.00 GiB", free="5.00 GiB", rest=own(34))
    verdict = cause_of(text)
    new = int(re.search(r"--max_num_tokens (\d+)", verdict.fixes[0].command)[1])
    # 9 GiB wanted beside (31 - 26.4) GiB taken: 13.6 GiB for 8192 tokens, of which 4 GiB and a margin must go.
    assert 5000 < new < 8192 * 9.6 / 13.6
    assert new % 256 == 0
    assert verdict.fixes[0].stage is Stage.SERVE


def test_an_engine_that_does_not_fit_is_told_from_one_of_another_version():
    wanted = 15000 * MIB
    text = ENGINE + (
        f"[TensorRT-LLM][ERROR] Requested amount of GPU memory ({wanted} bytes) could not be allocated. There may not be enough free memory for allocation to succeed.\n"
        "[TensorRT-LLM][ERROR] Assertion failed: Failed to deserialize cuda engine.\n"
    )
    verdict = cause_of(text)
    assert (verdict.code, verdict.failure.component) == ("DX346", "weights")
    assert verdict.failure.requested.value == wanted
    assert any("2 GPUs" in fix.text for fix in verdict.fixes)
    other = cause_of(ENGINE + "[TensorRT-LLM][ERROR] Assertion failed: Failed to deserialize cuda engine.\n")
    assert (other.code, other.is_false_oom) == ("DX917", True)


def test_a_context_that_does_not_fit_is_mended_at_build():
    text = ENGINE + (
        "[TensorRT-LLM][INFO] [MemUsageChange] TensorRT-managed allocation in engine deserialization: CPU +0, GPU +14990, now: CPU 0, GPU 14990 (MiB)\n"
        "[TensorRT-LLM][ERROR] IExecutionContext::IExecutionContext: Error Code 2: OutOfMemory (Requested size was 12884901888 bytes.)\n"
    )
    verdict = cause_of(text)
    assert verdict.failure.component == "activation"
    assert verdict.fixes[0].stage is Stage.BUILD
    assert "--max_num_tokens 4096" in verdict.fixes[0].command


def test_what_the_runtime_was_about_to_allocate_is_told_by_the_last_line_before():
    failed = "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, mCudaStream->get()): out of memory (/src/tllmBuffers.h:112)\n"
    lines = {
        "activation": "",
        "runtime_buffers": "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1250.50 MiB for execution context memory.\n",
        "decoder_buffers": "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.25 GB GPU memory for runtime buffers.\n",
        "kv_pool": "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 512.00 MB GPU memory for decoder.\n",
    }
    text = ENGINE
    for component, line in lines.items():
        text += line
        assert cause_of(text + failed).failure.component == component


def test_advice_of_a_builder_that_goes_on_is_no_failure():
    text = "[TRT] [W] Requested amount of GPU memory (8589934592 bytes) could not be allocated. There may not be enough free memory for allocation to succeed.\n"
    text += (
        "[TRT] [W] Tactic Device request: 41472MB Available: 40338MB. Device memory is insufficient to use tactic.\n"
    )
    assert explain_memory_failure(read(text)).verdicts == ()


def test_fragmented_memory_is_not_missing_memory():
    rest = "Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 15.25 GiB is reserved by PyTorch but unallocated."
    verdict = cause_of(STEP_FAILED.format(want="768.00 MiB", free="400.00 MiB", rest=rest))
    assert (verdict.code, verdict.is_false_oom) == ("DX343", True)
    assert "15.2 GiB" in verdict.message
    assert "768.0 MiB" in verdict.message


def test_another_process_is_named_with_what_it_holds():
    rest = "Process 4012 has 40.00 GiB memory in use. " + own(36)
    verdict = cause_of(PROFILE + STEP_FAILED.format(want="4.00 GiB", free="3.00 GiB", rest=rest))
    assert (verdict.code, verdict.is_false_oom) == ("DX341", True)
    assert "process 4012 holds 40.0 GiB" in verdict.message


def test_the_only_process_named_is_ones_own():
    rest = "Process 4012 has 76.40 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 1.00 MiB is reserved by PyTorch but unallocated."
    assert cause_of(STEP_FAILED.format(want="4.00 GiB", free="3.00 GiB", rest=rest)).code == "DX340"


def test_a_gpu_that_was_not_empty_at_the_start_shows_in_the_executors_table():
    text = """\
RuntimeError: Executor creation failed due to insufficient GPU memory.

The following component could not be created: KV cache
Total GPU memory (GiB): 79.50
Free GPU memory before component creation attempt (GiB): 3.25

Previously created components and free GPU memory before/after creation (GiB):
model: 40.00 / 5.50
sampler: 5.50 / 3.25
"""
    verdict = cause_of(text)
    assert verdict.code == "DX341"
    assert "38.0 GiB" in verdict.message


def test_all_ranks_on_one_gpu_are_found_by_where_they_say_they_are():
    text = "".join(f"[TensorRT-LLM][INFO] Rank {rank} is using GPU 0\n" for rank in range(4))
    text += STEP_FAILED.format(want="64.00 MiB", free="11.00 MiB", rest=own(20))
    verdict = cause_of(text)
    assert (verdict.code, verdict.is_false_oom) == ("DX342", True)
    spread = "".join(f"[TensorRT-LLM][INFO] Rank {rank} is using GPU {rank}\n" for rank in range(4))
    assert cause_of(spread + text.splitlines()[-1]).code == "DX340"


def test_eight_processes_on_one_gpu_are_ranks_in_the_wrong_place():
    rest = "".join(f"Process {pid} has 9.50 GiB memory in use. " for pid in range(451, 458)) + own(9.5)
    assert cause_of(STEP_FAILED.format(want="40.00 MiB", free="20.00 MiB", rest=rest)).code == "DX342"


@pytest.mark.parametrize("free", [108.86, 40.00])
def test_a_cache_that_fails_with_much_memory_free_was_not_refused_memory(free):
    text = f"""\
[TRT-LLM] [RANK 1] [E] Failed to initialize executor on rank 1: Executor creation failed due to insufficient GPU memory.

The following component could not be created: KV cache
Total GPU memory (GiB): 140.00
Free GPU memory before component creation attempt (GiB): {free:.2f}

Previously created components and free GPU memory before/after creation (GiB):
Model: 139.50 / {free + 1:.2f}
Sampler: {free + 1:.2f} / {free:.2f}
"""
    verdict = cause_of(text)
    assert (verdict.code, verdict.is_false_oom) == ("DX915", True)
    assert f"{free:.1f} GiB of 140.0 GiB" in verdict.message
    assert "other ranks" in verdict.fixes[0].text


def test_weights_that_leave_nothing_for_the_cache_are_to_be_split():
    text = """\
RuntimeError: Executor creation failed due to insufficient GPU memory.

The following component could not be created: KV cache
Total GPU memory (GiB): 47.40
Free GPU memory before component creation attempt (GiB): 2.15

Previously created components and free GPU memory before/after creation (GiB):
model: 46.80 / 3.10
sampler: 3.10 / 2.15
"""
    verdict = cause_of(text)
    assert verdict.code == "DX344"
    assert "--tp_size 2" in verdict.fixes[0].command
    assert "43.7 GiB" in verdict.fixes[0].text


def test_one_buffer_larger_than_the_gpu_follows_from_a_limit():
    text = PROFILE.splitlines()[0] + "\n"
    text += STEP_FAILED.format(want="135.00 GiB", free="60.00 GiB", rest=own(19))
    verdict = cause_of(text)
    assert verdict.code == "DX884"
    assert "max_num_tokens 8192" in verdict.why


def test_a_shortened_window_says_which_fraction_would_hold_the_sequence():
    text = PROFILE.replace("fraction is set 0.9", "fraction is set 0.02").replace("42.30", "0.94")
    text += (
        "[TRT-LLM] [W] Attention window size 16384 exceeds upper bound 7680 for available blocks. Reducing to 7680.\n"
    )
    verdict = cause_of(text)
    assert verdict.code == "DX356"
    assert "7 680 tokens, 16 384 were asked for" in verdict.message
    assert verdict.fixes[0].command.endswith("--kv_cache_free_gpu_memory_fraction 0.05")  # 2 GiB of 47


def test_the_fullest_rank_decides_for_all():
    line = "[TensorRT-LLM][INFO][{rank}] Memory usage when calculating max tokens in paged kv cache: total: 79.10 GiB, available: {free} GiB\n"
    text = "".join(line.format(rank=rank, free=free) for rank, free in enumerate(("60.00", "60.10", "41.00", "60.05")))
    verdict = cause_of(text)
    assert verdict.code == "DX916"
    assert "rank 2 has 41.0 GiB" in verdict.message
    assert explain_memory_failure(read(text.replace("41.00", "59.50"))).verdicts == ()


def test_a_full_gpu_in_nvidia_smi_is_the_cache_and_no_leak():
    text = PROFILE + "| N/A   43C    P0   81W / 350W |  77824MiB / 81559MiB |      0%      Default |\n"
    verdict = cause_of(text)
    assert (verdict.code, verdict.is_false_oom) == ("DX354", True)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (
            "[ 99.000001] Out of memory: Killed process 4711 (trtllm-serve) total-vm:1kB, anon-rss:9kB",
            "DX350",
        ),
        ("Fatal Python error: Bus error", "DX400"),
    ],
)
def test_host_memory_is_told_from_the_gpus(line, code):
    text = "[TRT-LLM] [I] Prefetching 130.50GB checkpoint files.\n" + line + "\n"
    verdict = cause_of(text)
    assert (verdict.code, verdict.is_false_oom) == (code, True)
    assert "130.5 GiB of checkpoint files" in verdict.message


def test_a_log_that_tells_too_little_says_what_to_collect():
    text = "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, mCudaStream->get()): out of memory (/src/tllmBuffers.h:112)\n"
    verdict = cause_of(text)
    assert verdict.fixes == ()
    assert verdict.next_step is not None
    assert "log" in verdict.next_step.text
    assert verdict.confidence < 0.7


def test_a_log_without_memory_is_said_to_be_one():
    assert [each.code for each in report_on("all is well\n").findings] == ["DX917"]


def test_a_healthy_log_gives_a_ledger_and_no_finding():
    report = report_on(PROFILE)
    assert report.findings == ()
    assert "346 528 tokens" in report.summary.text
    assert [each.key for each in report.sections] == ["memory-log", "memory-settings"]


def test_one_cause_is_one_finding_and_what_the_words_said_is_its_symptom():
    report = report_on(PROFILE + STEP_FAILED.format(want="7.80 GiB", free="3.10 GiB", rest=own(76)))
    assert [each.code for each in report.findings] == ["DX914"]
    assert "DX340" in [each.code for each in report.findings[0].symptoms]


def test_what_a_failure_of_one_rank_says_again_is_counted_once():
    text = PROFILE + STEP_FAILED.format(want="7.80 GiB", free="3.10 GiB", rest=own(76)) + "\n"
    result = explain_memory_failure(
        read(text + "During handling of the above exception\n" + text.splitlines()[-1] + "\n")
    )
    assert len(result.failures) == 1
    assert result.ranks[0].fits is False
    assert result.ranks[0].short_bytes == pytest.approx(4.7 * GIB, abs=0.02 * GIB)


@pytest.mark.heavy
def test_diagnose_puts_numbers_to_its_own_finding_and_keeps_its_code():
    text = PROFILE + STEP_FAILED.format(want="7.80 GiB", free="3.10 GiB", rest=own(76)) + "\n"
    finding = diagnose_sources([source_from_text(text)], BOOK, refine=with_memory_figures).findings[0]
    page = BOOK.get("DX914")
    assert finding.code == page.code
    assert finding.message.startswith(f"{page.front.message}; ")
    assert "the KV cache had taken 42.3 GiB" in finding.message
    assert "4.7 GiB were missing" in finding.message
    assert set(page.front.fix) < set(finding.fixes)
    assert "--kv_cache_free_gpu_memory_fraction 0.79" in finding.fixes[0].command
    assert any("Peak memory during" in each.text for each in finding.evidence)


def test_diagnose_is_unchanged_where_memory_did_not_run_out():
    text = PROFILE + "[TensorRT-LLM][ERROR] Assertion failed: Failed to deserialize cuda engine.\n"
    codes = [
        each.code for each in diagnose_sources([source_from_text(text)], BOOK, refine=with_memory_figures).findings
    ]
    assert codes
    assert not set(codes) & {"DX914", "DX915", "DX917"}


def test_a_builder_that_is_refused_memory_is_not_loading_weights():
    text = "ERROR: [TRT]: 2: [virtualMemoryBuffer.cpp::resizePhysical::160] Error Code 2: OutOfMemory (no further information)\n"
    report = report_on(text + "Try decreasing the workspace size with IBuilderConfig::setMemoryPoolLimit().\n")
    assert [each.code for each in report.findings] == ["DX146"]
    assert "weights" not in report.findings[0].message


def test_an_executor_that_fails_after_its_cache_blames_the_cache():
    text = """\
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 95.00 GiB of which 16.95 GiB is free.
RuntimeError: Executor creation failed due to insufficient GPU memory.

The following component could not be created: Additional executor resources
Total GPU memory (GiB): 95.00
Free GPU memory before component creation attempt (GiB): 16.95

Previously created components and free GPU memory before/after creation (GiB):
model: 94.30 / 47.83
sampler: 47.83 / 47.80
_no_capture_init_kv_cache: 47.80 / 46.80
kv_cache: 46.95 / 16.95
"""
    verdict = cause_of(text)
    assert verdict.code == "DX914"
    assert "30.0 GiB" in verdict.message
    assert verdict.failure.missing == pytest.approx(3.05 * GIB, abs=0.02 * GIB)
    new = float(re.search(r"fraction (0\.\d+)", verdict.fixes[0].command)[1])
    assert (0.9 - new) * 30 / 0.9 > 3.05


def test_the_plan_finds_the_change_that_fits_and_says_so_when_it_cannot_explain_the_failure():
    setup = make_setup(limits={"max_num_tokens": 8192})
    failed = (
        ENGINE
        + "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, s): out of memory (/src/a.h:1)\n"
    )

    def fits_below(tokens: int):
        def plan(asked):
            fits = asked.limits.max_num_tokens <= tokens
            rank = RankLedger(
                rank=0,
                components=(),
                kv_bytes_per_token=ZERO_FIGURE,
                kv_tokens=ZERO_FIGURE,
                total_bytes=ZERO_FIGURE,
                capacity=GIB,
                fits=fits,
            )
            return MemoryLedger(setup=asked, ranks=(rank,))

        return plan

    verdict = explain_memory_failure(read(failed), setup, fits_below(3000)).verdicts[0]
    assert "--max_num_tokens 2048" in verdict.fixes[0].command
    assert "by the plan it fits" in verdict.fixes[0].text
    verdict = explain_memory_failure(read(failed), setup, fits_below(10**6)).verdicts[0]
    assert "it would have fitted" in verdict.why
    assert not any("by the plan" in fix.text for fix in verdict.fixes)


def test_a_cache_without_room_for_a_sequence_gets_the_fraction_that_holds_one():
    text = ENGINE.replace("maxBatchSize: 64", "maxSequenceLen: 8192") + (
        "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 47.50 GiB, available: 20.00 GiB\n"
        "[TensorRT-LLM][ERROR] Assertion failed: Impossible to fit in any sequence in kvCache (/src/kvCacheManager.cpp:2103)\n"
    )
    verdict = cause_of(text)
    assert verdict.code == "DX356"
    assert verdict.failure.component == "kv_pool"


WHOLE_LIFE = """\
[TensorRT-LLM] TensorRT LLM version: 1.2.0rc5
[TRT-LLM] [I] Use 40.00 GB for model weights.
[TRT-LLM] [W] Both free_gpu_memory_fraction and max_tokens are set (to 0.8999999761581421 and 8224, respectively). The smaller value will be used.
[TRT-LLM] [W] Attention window size 32768 exceeds upper bound 8224 for available blocks. Reducing to 8224.
[TRT-LLM] [W] Adjusted max_attention_window_vec to [8224]
[TensorRT-LLM][INFO] Number of tokens per block: 32.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.00 GiB for max tokens in paged KV cache (8224).
[TRT-LLM] [I] max_seq_len=8224, max_num_requests=128, max_num_tokens=8192, max_batch_size=64
[TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 40.20 GiB
[TRT-LLM] [I] Memory used after loading model weights (outside torch) in memory usage profiling: 2.20 GiB
[TRT-LLM] [I] Memory dynamically allocated during inference (inside torch) in memory usage profiling: 1.00 GiB
[TRT-LLM] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: 2.30 GiB
[TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 43.50 GiB, available KV cache memory when calculating max tokens: {pool} GiB, fraction is set 0.8999999761581421, kv size is 131072. device total memory 79.50 GiB, , tmp kv_mem 1.00 GiB
[TRT-LLM] [I] Estimated max memory in KV cache : {pool} GiB
{warning}[TensorRT-LLM][INFO] [MemUsageChange] Allocated {pool} GiB for max tokens in paged KV cache ({tokens}).
[TRT-LLM] [I] max_seq_len={seq}, max_num_requests=128, max_num_tokens=8192, max_batch_size=64
[TRT-LLM] [I] Setting PyTorch memory fraction to 0.56 (44.52 GiB)
"""


def test_the_warning_of_the_temporary_cache_is_no_finding_in_a_healthy_log():
    text = WHOLE_LIFE.format(pool="33.30", tokens=272800, warning="", seq=32768)
    assert report_on(text).findings == ()
    assert diagnose_sources([source_from_text(text)], BOOK, refine=with_memory_figures).findings == ()
    log = read(text)
    assert (log.fraction, log.number("max_batch_size"), log.number("max_seq_len")) == (0.9, 64, 32768)
    assert log.settings["version"].value == "1.2.0rc5"


def test_a_shortening_that_stayed_is_told_with_its_own_number_not_the_temporary_one():
    warning = (
        "[TRT-LLM] [W] Attention window size 32768 exceeds upper bound 16384 for available blocks. Reducing to 16384.\n"
    )
    text = WHOLE_LIFE.format(pool="2.00", tokens=16384, warning=warning, seq=16384)
    for report in (
        report_on(text),
        diagnose_sources([source_from_text(text)], BOOK, refine=with_memory_figures),
    ):
        assert [each.code for each in report.findings] == ["DX356"]
        assert "16 384 tokens, 32 768 were asked for" in report.findings[0].message


def test_memory_outside_torch_that_no_model_needs_is_somebody_elses():
    text = WHOLE_LIFE.format(pool="33.30", tokens=272800, warning="", seq=32768).replace(
        "(outside torch) in memory usage profiling: 2.20", "(outside torch) in memory usage profiling: 45.00"
    )
    verdict = cause_of(text + STEP_FAILED.format(want="4.00 GiB", free="3.00 GiB", rest=own(70)))
    assert verdict.code == "DX341"


def test_a_profile_that_leaves_nothing_is_told_with_what_it_needs():
    lines = PROFILE.replace("42.30", "-3.20").replace("33.50 GiB, avail", "84.10 GiB, avail").splitlines()[:-2]
    verdict = cause_of("\n".join(lines))
    assert verdict.code == "DX356"
    assert "needs 84.1 GiB of 79.5 GiB" in verdict.message
    assert "--max_num_tokens 2048" in verdict.fixes[0].command


def test_an_engine_that_was_built_and_can_never_be_loaded_is_told_before_it_is_tried():
    text = """\
+ trtllm-build --checkpoint_dir ckpt --max_num_tokens 131072
[TRT] [I] Total Activation Memory: 107374182400 bytes, Total Weights Memory: 16106127360 bytes
[TRT-LLM] [I] Estimated max memory usage on runtime: 163181.00 MiB
[TRT-LLM] [W] Engine is successfully built, but GPU Memory (81920 MB) may not be enough when running inference on max shape.
"""
    verdict = cause_of(text)
    assert verdict.code == "DX368"
    new = int(re.search(r"--max_num_tokens (\d+)", verdict.fixes[0].command)[1])
    assert 100 * new / 131072 + 15 < 80  # GiB
    small = text.replace("107374182400", "1073741824")
    assert explain_memory_failure(read(small)).verdicts == ()


def test_of_several_ranks_the_one_that_tells_what_was_missing_is_explained():
    gave_up = "RuntimeError: Executor creation failed due to insufficient GPU memory.\n\nThe following component could not be created: KV cache\n"
    failed = STEP_FAILED.format(want="7.80 GiB", free="3.10 GiB", rest=own(76)) + "\n"
    host = RecordedHost({"logs/rank0.log": gave_up.encode(), "logs/rank1.log": failed.encode()})
    verdict = explain_memory_failure(read_memory_log(host, "logs")).verdicts[0]
    assert verdict.failure.rank == 1
    assert verdict.failure.missing == pytest.approx(4.7 * GIB, abs=0.02 * GIB)


def test_pytorchs_own_limit_refuses_what_is_free():
    text = WHOLE_LIFE.format(pool="33.30", tokens=272800, warning="", seq=32768)
    verdict = cause_of(text + STEP_FAILED.format(want="2.00 GiB", free="5.00 GiB", rest=own(70)))
    assert (verdict.code, verdict.is_false_oom) == ("DX915", True)
    assert "limits it after the KV cache is made (it was set to 44.5 GiB)" in verdict.fixes[0].text


def test_the_size_may_be_told_after_the_executors_report():
    report = """\
[TRT-LLM] [E] Executor creation failed due to insufficient GPU memory.
The following component could not be created: Model resources created during usage
Total GPU memory (GiB): 79.50
Free GPU memory before component creation attempt (GiB): 0.15
"""
    failed = STEP_FAILED.format(want="512.00 MiB", free="150.00 MiB", rest="")
    failure = explain_memory_failure(read(PROFILE + report + failed)).failures[0]
    assert failure.missing == 362 * MIB


SCRATCH = """\
[TRT-LLM] [I] TensorRT-LLM version: 0.16.0
[TRT-LLM] [I] Set context_fmha to False.
+ trtllm-build --checkpoint_dir ckpt --max_batch_size 256 --max_num_tokens 8192 --tp_size 2
[TRT] [E] IBuilder::buildSerializedNetwork: Error Code 4: Internal Error (Internal error: plugin node LLaMAForCausalLM/transformer/layers/0/attention/PLUGIN_V2_GPTAttention_0 requires 210571452800 bytes of scratch space, but only 47697362944 is available. Try increasing the workspace size with IBuilderConfig::setMemoryPoolLimit().
"""


def test_a_plugins_workspace_is_a_matter_of_memory():
    verdict = explain_memory_failure(read(SCRATCH)).verdicts[0]
    assert verdict.code == "DX178"
    assert verdict.failure.requested.value == 210571452800
    assert verdict.failure.missing == 210571452800 - 47697362944
    fused, smaller = verdict.fixes
    assert "--context_fmha enable" in fused.command
    assert "--max_batch_size 52 --max_num_tokens 1670" in smaller.command
    assert report_on(SCRATCH).findings[0].code == "DX178"


LEFT = """\
[TensorRT-LLM][INFO] TensorRT-LLM version: 0.14.0
[TensorRT-LLM][INFO] Loaded engine size: 4802 MiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 412.10 MiB for execution context memory.
[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 5.67 GiB, available: 0.03 GiB
"""


def test_a_cache_for_which_next_to_nothing_is_available_is_a_failure():
    verdict = explain_memory_failure(read(LEFT)).verdicts[0]
    assert verdict.code == "DX356"
    assert "30.7 MiB of 5.7 GiB are free" in verdict.message
    assert verdict.fixes
    made = LEFT + "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.02 GiB for max tokens in paged KV cache (128).\n"
    assert not explain_memory_failure(read(made)).verdicts


def test_what_was_free_is_not_told_as_unaccounted_for():
    log = (
        "[TRT-LLM] [I] Use 60.00 GB for model weights.\n"
        "[TRT-LLM] [E] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 210.00 GiB. GPU 0 has a total "
        "capacity of 276.00 GiB of which 200.00 GiB is free.\n"
    )
    [section] = [each for each in report_on(log).sections if each.title.startswith("Memory, as")]
    assert "200.0 GiB of 276.0 GiB were free" in section.note
    assert "16.0 GiB are not accounted for" in section.note


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("1.0.0", "--extra_llm_api_options trtdx.yaml"),
        ("1.2.1", "--config trtdx.yaml"),
        ("1.3.0rc13", "--kv_cache_dtype fp8"),
    ],
)
def test_fixes_name_flags_that_the_release_of_the_log_has(version, words):
    log = (
        f"[TRT-LLM] [I] TensorRT-LLM version: {version}\n"
        "[TRT-LLM] [I] args: TorchLlmArgs(max_batch_size=8, max_seq_len=131072, tensor_parallel_size=4)\n"
        "[TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 70.00 GiB, available KV cache memory when calculating max tokens: 8.00 GiB, fraction is set 0.9, kv size is 131072. device total memory 79.00 GiB\n"
        "[TRT-LLM] [I] Estimated max memory in KV cache : 8.00 GiB\n"
        "[TensorRT-LLM][WARNING] Attention window size 131072 exceeds upper bound 65536\n"
    )
    verdict = next(each for each in explain_memory_failure(read(log)).verdicts if each.code == "DX356")
    commands = [fix.command for fix in verdict.fixes]
    assert words in commands[0]
    assert all("--tp_size 4" in command for command in commands)


def test_the_cache_is_no_part_of_what_smaller_steps_save():
    text = """\
[TRT-LLM] [RANK 0] [I] Use 30.10 GB for model weights.
[TRT-LLM] [I] [MemUsageChange] Allocated 42.01 GiB for max tokens in paged KV cache (220000).
""" + STEP_FAILED.format(want="1.96 GiB", free="0.50 GiB", rest=own(78.5))
    saved = [each.text for each in cause_of(text).fixes if "half of it saves" in each.text]
    assert saved
    assert all(float(re.search(r"about ([\d.]+) GiB", each)[1]) < 5 for each in saved)


def test_a_workspace_shrinks_by_as_much_as_is_missing():
    text = "[TRT] [E] Error Code: 9: Skipping tactic 0x0 due to exception Tactic requires 24696061952 bytes of scratch space, but only 23620222976 are available.\n"
    [finding] = report_on(text).findings
    assert "shrink to 86% of what it is" in finding.fixes[0].text


@pytest.mark.parametrize("release", ["0.12.0", ""])
def test_fixes_are_commands_of_the_release_and_a_shell_takes_them(release):
    head = f"[TensorRT-LLM][INFO] Engine version {release} found in the config file, assume engine(s) built by new builder API.\n"
    text = """\
[TensorRT-LLM][INFO] Loaded engine size: 5021 MiB
[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 5.67 GiB, available: 0.03 GiB
"""
    fixes = [each for found in report_on(head * bool(release) + text).findings for each in found.fixes]
    served = [each.command for each in fixes if each.command and "trtllm-serve" in each.command]
    assert bool(served) == (not release)  # it came with 0.15
    assert not any("<" in each for each in served)


def test_the_cache_that_the_first_rank_prints_is_every_ranks():
    text = """\
[TRT-LLM] [RANK 0] [I] Use 32.86 GB for model weights.
[TRT-LLM] [RANK 2] [I] Use 32.86 GB for model weights.
[TRT-LLM] [RANK 0] [I] [MemUsageChange] Allocated 36.66 GiB for max tokens in paged KV cache (480512).
[TRT-LLM] [RANK 2] [E] """ + STEP_FAILED.format(want="1.75 GiB", free="1.02 GiB", rest=own(78))
    verdict = cause_of(text)
    assert verdict.code == "DX914"
    assert verdict.failure.rank == 2


def test_a_builder_that_cannot_hold_the_weights_is_not_told_to_lower_its_steps():
    text = """\
[TRT] [I] Total Activation Memory: 2147483648 bytes
[TRT] [I] Total Weights Memory: 16060522496 bytes
[TRT] [E] Error Code 2: OutOfMemory (Requested size was 16060522496 bytes.)
"""
    verdict = cause_of(text)
    assert verdict.failure.component == "weights"
    assert not any("max_num_tokens" in each.text for each in verdict.fixes)


def test_a_pages_commands_keep_the_settings_of_the_log_and_go_further():
    text = """\
+ trtllm-serve m --tp_size 4 --max_batch_size 16 --max_seq_len 4096
[TRT-LLM] [I] Use 62.81 GB for model weights.
""" + STEP_FAILED.format(want="14.00 GiB", free="9.47 GiB", rest=own(69.6))
    commands = [each.command for found in report_on(text).findings for each in found.fixes if each.command]
    served = [each for each in commands if each.startswith("trtllm-serve")]
    assert "trtllm-serve MODEL --max_batch_size 16 --max_seq_len 4096 --tp_size 8" in served
    assert all("--tp_size" in each and "--max_seq_len 4096" in each for each in served)
    assert not any("--max_batch_size 32" in each for each in served)
