"""Kill it anywhere, fill the disk: the next run ends in the same artifacts, and nothing else ever changes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("blake3")

PLAN = """
output: out
steps:
  first:
    inputs: [source.txt]
    outputs: [one, two.txt]
    command: |
      mkdir {{ outputs.0 }}
      for i in 1 2 3 4; do cat {{ input }} > {{ outputs.0 }}/$i.txt; sleep 0.02; done
      wc -c < {{ input }} > {{ outputs.1 }}
  second:
    inputs: ["@first"]
    outputs: [three.txt]
    command: sleep 0.03; cat {{ inputs.0 }}/*.txt {{ inputs.1 }} > {{ output }}
  aside:
    inputs: [source.txt]
    outputs: [four]
    command: mkdir {{ output }}; sleep 0.05; cp {{ input }} {{ output }}/copy.txt
"""
COMMAND = [sys.executable, "-c", "from trtdx.cli.main import main; main()", "build", "plan.yaml"]


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".trtdx" not in path.parts and path.name != "manifest.json"
    }


def make_project(folder, text="one\n"):
    folder.mkdir(exist_ok=True)
    (folder / "plan.yaml").write_text(PLAN)
    (folder / "source.txt").write_text(text)


def build(folder):
    return subprocess.run(COMMAND, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def start(folder):
    return subprocess.Popen(COMMAND, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def duration_of(folder):
    began = time.monotonic()
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return time.monotonic() - began


def is_running(pid):
    """Whether a process is there and no mere entry that nobody has collected yet."""
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def check_kills(tmp_path, count, seed):
    chance = random.Random(seed)
    folder, clean = tmp_path / "work", tmp_path / "clean"
    (tmp_path / "outside.txt").write_text("untouched")
    make_project(clean)
    make_project(folder)
    whole_s = duration_of(clean)
    for number in range(count):
        text = f"round {number}\n"
        for project in (folder, clean):
            (project / "source.txt").write_text(text)
        process = start(folder)
        time.sleep(chance.uniform(0, whole_s * 1.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        for name, content in files_of(folder / "out").items():  # whole, of this round or of an earlier one
            assert content, name
        if number % 5 == 4 or number == count - 1:
            assert build(folder).returncode == 0
            shutil.rmtree(clean / "out")
            assert build(clean).returncode == 0
            assert files_of(folder / "out") == files_of(clean / "out")
            assert list((folder / "out/.trtdx/staging").iterdir()) == []
    assert sorted(path.name for path in folder.iterdir()) == ["out", "plan.yaml", "source.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "outside.txt", "work"]
    assert (tmp_path / "outside.txt").read_text() == "untouched"


def test_a_killed_build_is_taken_up_again(tmp_path):
    check_kills(tmp_path, 10, seed=1)


@pytest.mark.heavy
def test_two_hundred_kills_change_nothing(tmp_path):
    check_kills(tmp_path, 200, seed=2)


def test_a_step_that_outlives_its_killed_build_is_ended(tmp_path):
    make_project(tmp_path)
    (tmp_path / "plan.yaml").write_text(
        "steps: {slow: {outputs: [x], inputs: [source.txt], command: 'touch began; sleep $(cat source.txt); touch {{ output }}'}}"
    )
    (tmp_path / "source.txt").write_text("600")
    process = start(tmp_path)
    for _ in range(600):
        if (tmp_path / "began").exists():
            break
        time.sleep(0.05)
    pid = int(next((tmp_path / "build-output/.trtdx/staging").glob("*/pid")).read_text())
    process.kill()
    process.wait()
    assert is_running(pid)
    (tmp_path / "source.txt").write_text("0")
    assert build(tmp_path).returncode == 0
    assert not is_running(pid)


FULL_DISK = """
set -e
mount -t tmpfs -o size=6m none {folder}
cp {source}/plan.yaml {source}/source.txt {folder}
cd {folder}
{command} >/dev/null 2>&1
cp -r out {source}/before
head -c 2000000 /dev/urandom > source.txt
{command} > {source}/answer.txt 2>&1 && echo passed > {source}/status || echo failed > {source}/status
diff -r --exclude=.trtdx --exclude=manifest.json out {source}/before > {source}/difference || true
head -c 1000 source.txt > smaller; mv smaller source.txt
{command} > {source}/again.txt 2>&1
cp -r out {source}/after
cp source.txt {source}/source.txt
"""


def test_a_full_disk_leaves_the_last_outputs(tmp_path):
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("only root can mount a small disk")
    source, folder = tmp_path / "source", tmp_path / "disk"
    folder.mkdir()
    make_project(source)
    command = f"{sys.executable} -m trtdx build plan.yaml"
    script = FULL_DISK.format(folder=folder, source=source, command=command)
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if "unshare failed" in done.stderr or "permission denied" in done.stderr.lower():
        pytest.skip("this container may not mount")
    assert done.returncode == 0, done.stderr
    assert (source / "status").read_text() == "failed\n"
    assert "No space left" in (source / "answer.txt").read_text()
    changed = [line for line in (source / "difference").read_text().splitlines() if "one" in line or "two" in line]
    assert changed == []
    clean = tmp_path / "clean"
    make_project(clean)
    shutil.copy(source / "source.txt", clean / "source.txt")
    assert build(clean).returncode == 0
    assert files_of(source / "after") == files_of(clean / "out")


def test_an_interrupted_build_does_not_wait_for_its_steps(tmp_path):
    make_project(tmp_path)
    (tmp_path / "plan.yaml").write_text(
        "steps: {slow: {outputs: [x], inputs: [source.txt], command: 'touch began; sleep 600; touch {{ output }}'}}"
    )
    process = start(tmp_path)
    for _ in range(1200):
        if (tmp_path / "began").exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 130
    assert list((tmp_path / "build-output/.trtdx/staging").iterdir()) == []
    assert not (tmp_path / "build-output/x").exists()
