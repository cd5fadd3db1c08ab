"""The real command line in a subprocess."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from trtdx.model import Report

ERROR = b"[TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (2 != 4)\n"
FULL = Path("/dev/full")
HEALTHY = b"[TensorRT-LLM][INFO] MPI size: 4, MPI local size: 4, rank: 0\n"


@pytest.mark.heavy
def test_help_version_and_completion(trtdx):
    assert "trtdx diagnose server.log" in trtdx("--help").stdout
    assert trtdx("--version").stdout.startswith("trtdx 0.")
    assert (
        "_TRTDX_COMPLETE"
        in trtdx("--show-completion", "bash", env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}).stdout
    )


@pytest.mark.heavy
@pytest.mark.parametrize(
    "command",
    [
        ("diagnose",),
        ("inspect",),
        ("explain",),
        ("rules",),
        ("rules", "list"),
        ("rules", "check"),
        ("rules", "new"),
        ("rules", "show"),
    ],
)
def test_every_command_has_help_that_ends_with_an_example(trtdx, command):
    done = trtdx(*command, "-h")
    assert done.returncode == 0
    assert (
        (len(command) == 1 and command[0] == "rules")
        or "Example: trtdx" in done.stdout
        or "trtdx diagnose -" in done.stdout
    )


@pytest.mark.parametrize("args", [("--help",), ("diagnose", "--help"), ("inspect", "--help"), ("--version",)])
def test_help_imports_nothing_heavy(args):
    code = f"import sys; sys.argv = ['trtdx', *{list(args)}]\nfrom trtdx.cli.main import app\ntry: app()\nexcept SystemExit: pass\nprint('MODULES', *sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split("MODULES", 1)[1].split())
    heavy = {
        "torch",
        "numpy",
        "onnx",
        "onnxruntime",
        "tensorrt",
        "tensorrt_rtx",
        "duckdb",
        "pandas",
        "trtdx.diagnose.run",
        "trtdx.knowledge.load",
        "zstandard",
        "rich.markdown",
    }
    assert loaded & heavy == set()


@pytest.mark.heavy
def test_findings_exit_with_1_and_health_with_0(trtdx):
    assert trtdx("diagnose", "-", stdin=ERROR).returncode == 1
    assert trtdx("diagnose", "-", stdin=HEALTHY).returncode == 0
    assert trtdx("diagnose", "--fail-on", "never", "-", stdin=ERROR).returncode == 0
    assert trtdx("diagnose", stdin=HEALTHY).stdout.startswith("no problem found")


@pytest.mark.heavy
def test_an_error_of_the_user_exits_with_2_without_a_traceback(trtdx):
    done = trtdx("diagnose", "nowhere.log")
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no file or directory nowhere.log")
    assert "Traceback" not in done.stderr


@pytest.mark.heavy
def test_nothing_read_is_not_a_clean_bill_of_health(trtdx, tmp_path):
    (tmp_path / "empty.log").touch()
    (tmp_path / "rank0.bin").write_bytes(b"ftrt" + bytes(50))
    (tmp_path / "none").mkdir()
    for named, why in (
        ("empty.log", "the input is empty"),
        ("rank0.bin", "is not text"),
        ("none", "no log in none"),
    ):
        done = trtdx("diagnose", named)
        assert done.returncode == 2
        assert why in done.stderr
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "a.log").write_bytes(HEALTHY)
    (tmp_path / "half" / "b.dat").write_bytes(b"ftrt" + bytes(50))
    assert trtdx("diagnose", "half").stdout.startswith("no problem found in what could be read")


@pytest.mark.heavy
def test_json_is_the_contract(trtdx):
    done = trtdx("diagnose", "--json", "-", stdin=ERROR)
    report = msgspec.json.decode(done.stdout, type=Report)
    raw = json.loads(done.stdout)
    assert raw["schema_version"] == 1
    assert set(raw["findings"][0]) == {
        "code",
        "slug",
        "severity",
        "message",
        "why",
        "fixes",
        "verify",
        "confidence",
        "where",
        "evidence",
        "symptoms",
        "ranks",
    }
    assert report.findings[0].slug == "world-size-mismatch"


@pytest.mark.heavy
def test_markdown_pastes_into_an_issue(trtdx):
    out = trtdx("diagnose", "--markdown", "-", stdin=ERROR + b"```\n@everyone <script>\n").stdout
    assert out.startswith("### error\\[DX") or out.startswith("### error[DX")
    assert "\n```text\n" in out or "\n````text\n" in out


@pytest.mark.heavy
def test_piped_output_has_no_colour_and_forced_output_has(trtdx):
    assert "\x1b" not in trtdx("diagnose", "-", stdin=ERROR).stdout
    assert "\x1b[" in trtdx("diagnose", "--color", "always", "-", stdin=ERROR).stdout


@pytest.mark.heavy
def test_a_log_cannot_drive_the_terminal(trtdx):
    out = trtdx(
        "diagnose",
        "-v",
        "-",
        stdin=b"[TensorRT-LLM][ERROR] \x1b]0;owned\x07 quux \x1b[2J \x08\x08 flux\xc2\x9b31m\n",
    ).stdout
    assert not any(ord(char) < 32 and char != "\n" for char in out)
    assert "\x9b" not in out


@pytest.mark.heavy
def test_explain_shows_the_page_and_what_it_is_tested_with_only_when_asked(trtdx):
    assert "Fires on" not in trtdx("explain", "DX037").stdout
    assert "Fires on" in trtdx("explain", "DX037", "-v").stdout
    assert "Artifacts that" not in trtdx("explain", "DX096").stdout


def test_a_page_is_laid_out_for_a_terminal_without_colour_too(trtdx):
    from trtdx.host import RealHost
    from trtdx.knowledge.load import load_book
    from trtdx.render.page import render_page

    shown = render_page(load_book(RealHost(), []).get("DX012"), color=False, width=70)
    assert max(map(len, shown.splitlines())) <= 70
    assert "\x1b" not in shown


@pytest.mark.heavy
def test_explain_by_code_and_slug_and_the_nearest_name(trtdx):
    assert "Why it happens" in trtdx("explain", "DX210").stdout
    assert trtdx("explain", "World-Size-Mismatch").stdout == trtdx("rules", "show", "dx210").stdout
    done = trtdx("explain", "wrld-size-mismatch")
    assert done.returncode == 2
    assert "world-size-mismatch" in done.stderr
    for command in (("explain", "DX40"), ("rules", "show", "dx40")):
        assert "did you mean DX400 or DX401 or" in trtdx(*command).stderr
    assert "did you mean DX400 or DX401 or" in trtdx("explain", "DX4").stderr
    assert "gpu-memory-exhausted" in trtdx("explain", "exhausted").stderr


@pytest.mark.heavy
def test_a_damaged_log_among_several_is_no_clean_bill_of_health(trtdx, tmp_path):
    bad, damaged, good = tmp_path / "bad.log", tmp_path / "damaged.log.gz", tmp_path / "good.log"
    bad.write_bytes(ERROR)
    damaged.write_bytes(b"\x1f\x8bbroken")
    good.write_bytes(HEALTHY)
    done = trtdx("diagnose", str(damaged), str(good))
    assert done.returncode == 2
    assert "damaged" in done.stdout
    assert trtdx("diagnose", str(damaged), str(bad)).returncode == 1


@pytest.mark.heavy
def test_all_missing_logs_are_named(trtdx):
    done = trtdx("diagnose", "nowhere1.log", "nowhere2.log")
    assert done.returncode == 2
    assert "nowhere1.log" in done.stderr
    assert "nowhere2.log" in done.stderr


@pytest.mark.heavy
def test_one_missing_log_among_several_is_told_and_the_others_are_read(trtdx, tmp_path):
    bad, good, missing = tmp_path / "bad.log", tmp_path / "good.log", str(tmp_path / "missing.log")
    bad.write_bytes(ERROR)
    good.write_bytes(HEALTHY)
    done = trtdx("diagnose", str(bad), missing)
    assert done.returncode == 1
    assert "DX210" in done.stdout
    assert "missing.log" in done.stdout
    assert trtdx("diagnose", str(good), missing).returncode == 2
    assert trtdx("diagnose", missing).returncode == 2


@pytest.mark.heavy
def test_rules_list(trtdx):
    out = trtdx("rules", "list", "--area", "memory").stdout
    assert "DX340" in out
    assert "multigpu" not in out
    assert len(json.loads(trtdx("rules", "list", "--json").stdout)) > 220


@pytest.mark.heavy
def test_a_team_writes_checks_and_uses_its_own_rule(trtdx, tmp_path):
    page = trtdx("rules", "new", "ACME001", "proxy-eats-streams", "--in", "ours").stdout.strip()
    assert page == "ours/ACME001-proxy-eats-streams.md"
    assert trtdx("rules", "check", "ours").stdout == "1 page, 0 problems\n"
    done = trtdx("diagnose", "--rules", "ours", "-", stdin=b"replace this text: 42\n")
    assert "error[ACME001]: the same with the value 42 of the log" in done.stdout
    assert trtdx("rules", "new", "ACME001", "proxy-eats-streams", "--in", "ours").returncode == 2
    text = (tmp_path / page).read_text()
    (tmp_path / page).write_text(text.replace("(?P<value>", "(?P<wert>"))
    broken = trtdx("rules", "check", "ours")
    assert broken.returncode == 1
    assert f"{page}:18: {{value}} is not a named group of the pattern" in broken.stdout
    refused = trtdx("diagnose", "--rules", "ours", "-", stdin=b"x")
    assert refused.returncode == 2
    assert "trtdx rules check ours" in refused.stderr


@pytest.mark.heavy
def test_a_case_is_saved_redacted_and_read_again(trtdx, tmp_path):
    secret = b"hf_" + b"Z" * 30
    trtdx("diagnose", "--save", "case", "-", stdin=ERROR + b"token " + secret + b"\n")
    assert secret not in b"".join(path.read_bytes() for path in (tmp_path / "case").rglob("*") if path.is_file())
    assert "DX210" in trtdx("diagnose", "case").stdout
    trtdx("diagnose", "--save", "one.trtdx", "case")
    assert "DX210" in trtdx("diagnose", "one.trtdx").stdout
    assert secret not in (tmp_path / "one.trtdx").read_bytes()
    assert trtdx("diagnose", "--save", "one.trtdx", "case").returncode == 2


@pytest.mark.heavy
def test_a_reader_that_leaves_early_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m trtdx rules list | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.heavy
def test_following_standard_input_tells_a_cause_while_the_stream_is_open():
    process = subprocess.Popen(
        [sys.executable, "-m", "trtdx", "diagnose", "--follow", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdin.write(HEALTHY + ERROR)
    process.stdin.flush()
    first = process.stdout.readline()  # comes although the stream is still open
    assert b"error[DX210]" in first
    out, _ = process.communicate(HEALTHY, timeout=60)
    assert b"read 1 input, 3 lines" in out
    assert process.returncode == 1


@pytest.mark.heavy
def test_following_a_file_ends_with_a_report_when_interrupted(tmp_path):
    log = tmp_path / "grow.log"
    log.write_bytes(HEALTHY)
    process = subprocess.Popen(
        [sys.executable, "-m", "trtdx", "diagnose", "-f", str(log)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        # A shell's background jobs ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    time.sleep(0.5)  # the writer of a real log does not wait for its reader either
    with log.open("ab") as file:
        file.write(ERROR)
    assert b"error[DX210]" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert b"read 1 input" in out
    assert process.returncode == 1


@pytest.mark.heavy
def test_a_case_that_cannot_be_kept_is_told_and_the_answer_stays(trtdx):
    done = trtdx("diagnose", "--save", "/dev/full/case", "-", stdin=ERROR)
    assert done.returncode == 1
    assert "DX210" in done.stdout
    assert "is not whole: cannot write /dev/full/case" in done.stderr


@pytest.mark.heavy
def test_a_read_only_home_costs_nothing_but_time(trtdx):
    done = trtdx("diagnose", "-", stdin=ERROR, env={"XDG_CACHE_HOME": "/proc/nowhere"})
    assert done.returncode == 1
    assert "DX210" in done.stdout


@pytest.mark.heavy
def test_the_cache_keeps_a_few_installations_and_no_rest_of_killed_ones(trtdx, tmp_path):
    folder = tmp_path / "trtdx"
    folder.mkdir()
    for number in range(20):
        old = folder / f"rules-{number:016x}.msgpack{'.7.part' if number % 2 else ''}"
        old.touch()
        os.utime(old, (number, number))
    done = trtdx("explain", "DX400", env={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert len(list(folder.iterdir())) == 4


@pytest.mark.heavy
def test_a_spoilt_cache_is_made_anew(trtdx, tmp_path):
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    trtdx("rules", "list", env=env)
    cached = next((tmp_path / "trtdx").glob("rules-*.msgpack"))
    cached.write_bytes(cached.read_bytes()[:1000])
    assert "DX210" in trtdx("diagnose", "-", stdin=ERROR, env=env).stdout


@pytest.mark.heavy
def test_what_verifies_a_command_line_is_that_command_line(trtdx, tmp_path):
    done = trtdx("inspect", "--command", "trtllm-serve m --no_such_flag 3")
    assert "trtdx inspect --command 'trtllm-serve m --no_such_flag 3'" in done.stdout
    assert "AS MENDED" not in done.stdout


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
def test_an_answer_that_cannot_be_written_is_not_called_a_bug():
    with FULL.open("w") as full:
        argv = [sys.executable, "-m", "trtdx", "explain", "DX012"]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write the answer to standard output: No space left")
    assert "Traceback" not in done.stderr


@pytest.mark.heavy
def test_explain_tells_what_a_name_is_in_each_release(trtdx):
    option = trtdx("explain", "--option", "kv_cache_config.free_gpu_memory_fraction").stdout
    assert "trtllm-serve --kv_cache_free_gpu_memory_fraction" in option
    assert "DX355" in option
    assert "NCCL" in trtdx("explain", "--env", "NCCL_P2P_LEVEL").stdout
    flag = json.loads(trtdx("explain", "--flag", "trtllm-build:--gemm_plugin", "--json").stdout)
    assert flag["entries"][0]["releases"] == "0.8.0 to 1.3.0rc13"
    assert "DX154" in [page["code"] for page in flag["pages"]]


@pytest.mark.heavy
def test_explain_answers_an_unknown_name_with_the_nearest(trtdx):
    done = trtdx("explain", "--flag", "trtllm-serve:--tpsize")
    assert done.returncode == 2
    assert "did you mean --tp_size" in done.stderr
    assert "TLLM_LOG_LEVEL" in trtdx("explain", "--env", "TLLM_LOG_LEVL").stderr
    assert "--flag trtllm-build:--gemm_plugin" in trtdx("explain", "--flag", "--gemm_plugin").stderr
    assert trtdx("explain").returncode == 2
    assert trtdx("explain", "DX012", "--env", "X").returncode == 2
