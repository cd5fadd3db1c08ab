"""`trtdx memory` as a user runs it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest

from support.make_hf import make_hf_model

FITS = ("Llama-3.1-8B", "--gpu", "H100")
DOES_NOT = ("Mixtral-8x7B", "--gpu", "A100-40GB")
FIGURE = {"value", "low", "high", "source"}


def test_the_first_line_is_the_answer(memory):
    done = memory(*FITS)
    assert done.returncode == 0
    assert re.match(r"fits on H100 80GB with [\d.]+ GiB of KV cache: \d+k tokens, \d+ requests of 4096\n", done.stdout)
    assert "not said, so the defaults: max_batch_size 2048, max_num_tokens 8192" in done.stdout


@pytest.mark.heavy
def test_the_answer_minds_the_batch_and_requests_that_are_too_long(memory):
    assert "of which max_batch_size lets 4 run at once" in memory(*FITS, "--max-batch-size", "4").stdout.replace(
        "\n", " "
    )
    assert "not one request of 131072" in memory("Llama-3.1-8B", "--gpu", "L4", "--length", "131072").stdout


def test_flags_may_stand_before_the_model(memory):
    done = memory("--gemm_plugin", "auto", "--backend", "tensorrt", *FITS)
    assert done.returncode == 0
    assert "tensorrt)" in done.stdout


@pytest.mark.heavy
def test_what_does_not_fit_is_a_finding_with_ways_out(memory):
    done = memory(*DOES_NOT)
    assert done.returncode == 1
    first = done.stdout.splitlines()[0]
    assert first.startswith("does not fit on A100 40GB: short by ")
    assert "weights alone are" in first
    assert "error[DX890]" in done.stdout
    assert "trtllm-serve Mixtral-8x7B --tp_size 4" in done.stdout
    assert memory(*DOES_NOT, "--fail-on", "never").returncode == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("Qwen2.5-7B-AWQ", "--gpu-memory", "7500MiB"), "DX891"),
        (("Llama-3.1-8B", "--gpu", "L4", "--max_seq_len", "131072"), "DX893"),
        (("Llama-3.1-8B", "--gpu", "A100", "--kv_cache_dtype", "fp8"), "DX894"),
        (("Llama-3.1-8B", "--gpu", "H100", "--tp", "3"), "DX096"),
        (("Llama-3.1-8B", "--gpu", "H100", "--quantization", "nvfp4"), "DX325"),
        (("Llama-3.1-8B", "--gpu", "H100", "--tokens-per-block", "33"), "DX873"),
        (("Llama-3.1-8B", "--gpu", "H100", "--kv-cache-dtype", "int8"), "DX894"),
    ],
)
def test_each_way_not_to_run_has_its_code(memory, words, code):
    done = memory(*words)
    assert done.returncode == 1
    assert f"error[{code}]" in done.stdout


def test_a_warning_does_not_stop_the_plan(memory):
    done = memory(*FITS, "--max_num_tokens", "64", "--max_batch_size", "128")
    assert done.returncode == 0
    assert done.stdout.startswith("fits on")
    assert "warning[DX878]" in done.stdout


@pytest.mark.heavy
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("no-such-model", "--gpu", "H100"),
        ("Llama-3.1-8B", "--gpu", "H1000"),
        ("Llama-3.1-8B", "--tp", "-1"),
        ("Llama-3.1-8B", "--gem_plugin", "auto"),
        ("Llama-3.1-8B", "--gpu", "H100", "--target", "64"),
        ("Llama-3.1-8B", "--json", "--markdown"),
        ("Llama-3.1-8B", "--gpu", "H100", "--plot", "frontier.bmp"),
        ("--calibrate", "some.log"),
    ],
)
def test_what_cannot_be_understood_ends_with_two_and_no_traceback(memory, words):
    done = memory(*words)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_json_has_every_figure_with_its_band_and_source(memory):
    done = memory("Llama-3.1-70B", "--gpu", "4xH100", "--pp", "2", "--json")
    report = json.loads(done.stdout)
    assert {"schema_version", "summary", "findings", "memory"} <= report.keys()
    plan = report["memory"]
    assert plan["fits"] is True
    assert plan["kv_tokens"].keys() == FIGURE
    assert [rank["rank"] for rank in plan["ranks"]] == [0, 1, 2, 3]
    for rank in plan["ranks"]:
        figures = {name: each for name, each in rank.items() if isinstance(each, dict)}
        assert {
            "weights_bytes",
            "activation_bytes",
            "kv_bytes_per_token",
            "kv_pool_bytes",
            "kv_tokens",
            "total_bytes",
        } <= figures.keys()
        for figure in figures.values():
            assert figure.keys() == FIGURE
            assert figure["low"] <= figure["value"] <= figure["high"]
        parts = [each["value"] for name, each in figures.items() if name.endswith("_bytes") and name != "total_bytes"]
        assert sum(parts) == rank["total_bytes"]["value"]
        assert rank["fits"] is True
        assert rank["short_bytes"] == 0
        assert rank["capacity_bytes"] > 0
    assert any(each.startswith("max_batch_size") for each in plan["assumed"])
    assert plan["setup"]["layout"]["tp"] == 2


@pytest.mark.heavy
def test_without_a_gpu_the_smallest_that_runs_it_is_named(memory):
    done = memory("Llama-3.1-70B")
    assert done.returncode == 0
    assert re.search(r"the smallest that runs it: \d x ", done.stdout)
    plan = json.loads(memory("Llama-3.1-70B", "--json").stdout)["memory"]
    assert plan["fits"] is None
    assert plan["smallest"]["count"] == len(plan["ranks"])


def test_a_folder_tells_its_weights_to_the_byte(memory, tmp_path):
    folder = make_hf_model(tmp_path / "model")
    [rank] = json.loads(memory(str(folder), "--gpu", "H100", "--json").stdout)["memory"]["ranks"]
    assert rank["weights_bytes"]["source"].startswith("exact")


def test_a_pasted_command_line_is_the_whole_question(memory):
    line = "trtllm-serve Llama-3.1-8B --tp_size 2 --max_batch_size 8 --max_num_tokens 2048"
    done = memory("--command", line, "--gpu", "L4", "--json")
    setup = json.loads(done.stdout)["memory"]["setup"]
    assert (setup["layout"]["tp"], setup["limits"]["max_batch_size"]) == (2, 8)


def test_the_frontier_names_what_stands_in_the_way_at_each_point(memory):
    done = memory(*FITS, "--frontier", "--json")
    points = json.loads(done.stdout)["frontier"]
    assert len(points) > 20
    assert all(point["binding"] for point in points)
    assert "the largest max_batch_size, by max_seq_len" in memory(*FITS, "--frontier").stdout


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["png", "svg", "html"])
def test_the_frontier_is_drawn(memory, tmp_path, kind):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"frontier.{kind}"
    assert memory(*FITS, "--plot", str(path)).returncode == 0
    start = path.read_bytes()[:300]
    assert {"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!doctype html>"}[kind] in start


def test_a_target_is_reached_by_the_cheapest_change(memory):
    done = memory(*FITS, "--target", "batch=64, seq=8192", "--json")
    target = json.loads(done.stdout)["target"]
    assert target["fits"]
    assert not target["fits_now"]
    assert [each["change"] for each in target["changes"]] == ["KV cache in FP8"]
    assert [each["stage"] for each in target["flags"]] == ["launch"]
    assert "--max_batch_size 64" in target["command"]
    assert "--max_seq_len 8192" in target["command"]
    assert target["others"]


@pytest.mark.heavy
def test_a_target_that_nothing_reaches_fails_with_the_nearest_that_can_be(memory):
    words = ("Llama-3.1-70B", "--gpu", "2xH100", "--target", "batch=256, seq=32k", "--json")
    done = memory(*words)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    [finding] = report["findings"]
    assert finding["code"] == "DX647"
    fewer, shorter = report["target"]["nearest"]
    assert (fewer["seq"], shorter["batch"]) == (32768, 256)
    for load in (fewer, shorter):
        again = memory(*shlex.split(load["verify"])[2:], "--length", str(load["seq"]), "--json")
        assert again.returncode == 0
        held = json.loads(again.stdout)["memory"]["kv_tokens"]["value"]
        assert held >= load["batch"] * load["seq"]


def test_requests_are_counted_at_the_lengths_that_are_asked_for(memory):
    done = memory(*FITS, "--length", "2000", "--length", "32k")
    assert re.search(r"\d+ requests of 2000\n", done.stdout)
    assert re.search(r"^ +32768 +\d+$", done.stdout, re.MULTILINE)


@pytest.mark.heavy
def test_a_log_is_read_with_or_without_its_model(memory, tmp_path):
    log = tmp_path / "serve.log"
    log.write_text(
        "[TRT-LLM] [I] Use 14.96 GB for model weights.\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.03 GiB for max tokens in paged KV cache (8448).\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 55.00 GiB for max tokens in paged KV cache (450560).\n"
    )
    for more in ((), ("--model", "Llama-3.1-8B", "--gpu", "H100")):
        done = memory("--log", str(log), "--json", *more)
        [rank] = json.loads(done.stdout)["memory"]["ranks"]
        assert rank["kv_tokens"]["value"] == 450560
        assert rank["weights_bytes"]["source"].startswith("measured")


def test_several_logs_may_follow_one_flag(memory, tmp_path):
    for rank in (0, 1):
        text = f"[TRT-LLM] [RANK {rank}] [I] Use {14 + rank}.00 GB for model weights.\n"
        (tmp_path / f"rank{rank}.log").write_text(text)
    done = memory("--log", "rank0.log", "rank1.log", "--json")
    ranks = json.loads(done.stdout)["memory"]["ranks"]
    assert [each["weights_bytes"]["value"] // 2**30 for each in ranks] == [14, 15]


@pytest.mark.heavy
def test_help_names_an_example_and_nothing_heavy_is_imported(trtdx):
    done = trtdx("memory", "--help")
    assert "Example: trtdx memory" in done.stdout
    code = (
        "import sys, trtdx.cli.main, trtdx.memory.run; "
        "print([name for name in ('torch', 'numpy', 'onnx', 'matplotlib', 'tensorrt_rtx') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.heavy
@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n{}\n"])
def test_a_file_of_options_may_set_none(memory, tmp_path, text):
    (tmp_path / "options.yaml").write_text(text)
    assert memory(*FITS, "--config", "options.yaml").stdout == memory(*FITS).stdout


def test_an_empty_folder_is_told_as_such(memory, tmp_path):
    (tmp_path / "model").mkdir()
    done = memory("model", "--gpu", "H100")
    assert done.returncode == 2
    assert "model is empty, or may not be read" in done.stderr
    assert "trtexec" not in done.stderr


@pytest.mark.parametrize(
    "flags",
    [("--gemm_plugin", "auto"), ("--context_fmha", "disable"), ("--use_parallel_embedding", "--tp", "2")],
)
def test_flags_of_trtllm_build_mean_an_engine(memory, flags):
    assert "cache bfloat16, tensorrt)" in memory(*FITS, *flags).stdout


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--backend", "pytorch", "--gemm_plugin", "auto"), "--gemm_plugin is of trtllm-build"),
        (("--backend", "tensorrt", "--enable_attention_dp"), "attention data parallelism is of the PyTorch"),
        (("--ep_size", "4"), "does nothing: the model has no experts"),
    ],
)
def test_flags_that_do_nothing_are_told(memory, flags, told):
    done = memory(*FITS, *flags)
    assert done.returncode == 0
    assert told in done.stdout


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--trtllm-version", "abc"), "--trtllm-version 'abc' is not a TensorRT-LLM release"),
        (("--plot", "fits.bmp"), ".png, .svg or .html"),
        (("--target", " , "), "--target names no load"),
    ],
)
def test_a_wrong_value_is_told_by_the_flag_that_has_it(memory, flags, told):
    done = memory(*FITS, *flags)
    assert done.returncode == 2
    assert told in done.stderr


@pytest.mark.heavy
def test_advice_counts_the_caches_of_all_ranks_as_the_answer_does(memory):
    words = ("DeepSeek-R1", "--gpu", "8xB200", "--ep", "8", "--enable_attention_dp")
    text = memory(*words).stdout
    now, then = (
        float(re.search(pattern, text)[1])
        for pattern in (r"([\d.]+)M together", r"KV cache in FP8: .*?([\d.]+)M together")
    )
    assert then == pytest.approx(2 * now, rel=0.02)


def test_a_cache_of_each_rank_is_told_as_such(memory):
    words = ("DeepSeek-R1", "--gpu", "8xB200", "--ep", "8", "--enable_attention_dp")
    text = memory(*words).stdout.replace("\n", " ")
    own, together = re.search(r"([\d.]+)k tokens on each of 8, ([\d.]+)M together", text).groups()
    assert 8 * float(own) / 1000 == pytest.approx(float(together), rel=0.01)


def test_a_default_length_that_the_cache_does_not_hold_is_told(memory):
    text = memory("Llama-3.1-8B", "--gpu", "L4").stdout.replace("\n", " ")
    assert re.search(r"none can be longer than \d+, though max_seq_len is 131072 by default", text)
    assert "none can be longer" not in memory(*FITS).stdout


def test_requests_of_several_beams_are_told_with_them(memory):
    text = memory(*FITS, "--max_beam_width", "4").stdout.replace("\n", " ")
    many, beams = memory(*FITS).stdout, re.search(r"(\d+) requests of 4096 with 4 beams", text)
    assert int(beams[1]) < int(re.search(r"(\d+) requests of 4096", many)[1]) / 4 + 1


def test_an_old_release_is_planned_with_the_defaults_it_had(memory):
    text = memory("Llama-2-7B", "--gpu", "A10", "--trtllm-version", "0.7.1").stdout
    assert "max_batch_size 8, max_num_tokens 16384, max_seq_len 2560" in text  # examples/llama/build.py@v0.7.1


@pytest.mark.parametrize("words", [("Llama-3.1-70B", "--gpu", "A100-40GB"), ("Qwen2.5-7B-AWQ", "--gpu-memory", "8GiB")])
def test_the_command_that_verifies_plans_with_the_first_fix(memory, words):
    finding = json.loads(memory(*words, "--json").stdout)["findings"][0]
    again = shlex.split(finding["verify"])[2:]
    assert json.loads(memory(*again, "--json").stdout)["memory"]["fits"]


def test_a_cache_that_is_not_paged_is_told_to_be(memory):
    words = ("Llama-3.1-8B", "--gpu", "A100", "--trtllm-version", "0.21.0", "--paged_kv_cache", "disable")
    report = json.loads(memory(*words, "--max_batch_size", "128", "--max_seq_len", "8192", "--json").stdout)
    first = report["findings"][0]["fixes"][0]
    assert first["text"].startswith("turn on the paged cache: fits")
    assert "--kv_cache_type paged" in first["command"]


def test_weights_that_nearly_fill_the_gpu_are_told_once(memory):
    done = memory("gemma-3-12b-it", "--gpu", "A10")
    text = " ".join(done.stdout.split())
    assert "weights are 21.9 GiB of its 22.1 GiB, beside" in text
    assert "DX891" in text
    assert "weights alone" not in text


def test_a_cache_that_is_not_paged_is_told_whole(memory):
    words = (
        "--backend",
        "tensorrt",
        "--kv_cache_type",
        "continuous",
        "--max_batch_size",
        "128",
        "--max_seq_len",
        "4096",
    )
    text = " ".join(memory("Llama-2-7B", "--gpu", "A40", "--trtllm-version", "1.0.0", *words).stdout.split())
    assert "left for a KV cache of 256.0 GiB, which is not paged" in text
    assert "128 sequences of 4096 tokens: 256.0 GiB of KV cache are needed" in text


def test_a_target_without_a_gpu_is_not_passed_over(memory):
    done = memory("Llama-3.1-8B", "--target", "batch=5000, seq=400000")
    assert done.returncode == 2
    assert "name one: --gpu H100" in done.stderr
