"""What an attack tried once and must never work again: pipes in folders, bombs, control characters, full disks."""

from __future__ import annotations

import bz2
import json
import os
import shutil
import subprocess
import sys

import pytest

ERROR = "[TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (2 != 4)\n"


def run_trtdx(*arguments, cwd, timeout=60, **options):
    return subprocess.run(
        [sys.executable, "-m", "trtdx", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **options,
    )


@pytest.mark.heavy
def test_a_pipe_in_a_folder_of_logs_is_not_waited_for(tmp_path):
    (tmp_path / "server.log").write_text(ERROR)
    os.mkfifo(tmp_path / "pipe.log")
    done = run_trtdx("diagnose", ".", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "server.log" in done.stdout


@pytest.mark.heavy
def test_a_small_file_that_expands_to_gigabytes_is_cut_off(tmp_path):
    packer = bz2.BZ2Compressor()
    zeros = bytes(1 << 24)
    data = b"".join(packer.compress(zeros) for _ in range(20)) + packer.flush()
    (tmp_path / "bomb.log.bz2").write_bytes(data)
    done = run_trtdx("diagnose", "--json", "bomb.log.bz2", cwd=tmp_path)
    assert "times its size" in done.stdout + done.stderr


@pytest.mark.heavy
def test_no_character_that_drives_a_terminal_leaves_in_json(tmp_path):
    (tmp_path / "server.log").write_text(ERROR.rstrip() + " \x7f\x9b31m\u202eevil\n")
    done = run_trtdx("diagnose", "--json", "server.log", cwd=tmp_path)
    assert json.loads(done.stdout)["findings"]
    assert not any(character in done.stdout for character in "\x7f\x9b\u202e")


def test_errors_about_arguments_keep_secrets_and_escapes_to_themselves(tmp_path):
    secret = "hf_" + "aB3d" * 8
    done = run_trtdx("diagnose", f"./{secret}/\x1b[31mx", cwd=tmp_path)
    assert done.returncode == 2
    assert secret not in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.heavy
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root for a small mount of its own")
@pytest.mark.parametrize("case", ["full/case", "full/case.trtdx"])
def test_a_full_disk_while_saving_leaves_answer_and_status_as_they_are(tmp_path, case):
    (tmp_path / "full").mkdir()
    log = ERROR + "".join(
        f"[TensorRT-LLM][INFO] line {number} {'x' * 90} {os.urandom(30).hex()}\n" for number in range(4000)
    )
    (tmp_path / "server.log").write_text(log)
    script = (
        f"mount -t tmpfs -o size=64k tmpfs full && exec {sys.executable} -m trtdx diagnose --save {case} server.log"
    )
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if "mount" in done.stderr and "denied" in done.stderr:
        pytest.skip("no mounts here")
    assert done.returncode == 1, done.stderr
    assert "DX210" in done.stdout
    assert "is not whole" in done.stderr
