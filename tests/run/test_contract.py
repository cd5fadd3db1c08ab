"""A supervised command behaves as the command does."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

TRTDX = [sys.executable, "-m", "trtdx"]


@pytest.fixture
def supervise(tmp_path):
    """Run a command under `trtdx run` and return how it ended."""

    def run(*command, options=(), **settings):
        argv = [*TRTDX, "run", "--case", str(tmp_path / "case"), "--report", str(tmp_path / "report.json"), *options]
        return subprocess.run([*argv, "--", *command], capture_output=True, check=False, timeout=120, **settings)

    return run


def report_of(tmp_path):
    return json.loads((tmp_path / "report.json").read_text())


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start(tmp_path, *command, options=(), **settings):
    argv = [*TRTDX, "run", "--case", str(tmp_path / "case"), "--report", str(tmp_path / "report.json"), *options]
    return subprocess.Popen([*argv, "--", *command], **settings)


def test_standard_output_passes_byte_for_byte(supervise):
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 5000); sys.stderr.write('told')"
    plain = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    done = supervise(sys.executable, "-c", script)
    assert done.stdout == plain.stdout
    assert b"told" in done.stderr


def test_standard_input_reaches_the_command(supervise):
    assert supervise("cat", input=b"words\0and bytes\xff").stdout == b"words\0and bytes\xff"


def test_order_is_kept_where_both_streams_go_to_one_file(tmp_path):
    script = "import os\nfor i in range(200): os.write(1 + i % 2, b'%d\\n' % i)"
    with (tmp_path / "both").open("wb") as file:
        argv = [*TRTDX, "run", "--case", str(tmp_path / "case"), "--", sys.executable, "-c", script]
        subprocess.run(argv, stdout=file, stderr=subprocess.STDOUT, check=True, timeout=120)
    lines = (tmp_path / "both").read_text().splitlines()
    assert [line for line in lines if line.isdigit()] == [str(number) for number in range(200)]


def test_a_python_child_is_not_overtaken_by_its_shell(supervise):
    script = f"for i in 1 2 3; do echo $i; RANK=0 {sys.executable} -c 'print(\"python\")'; done"
    assert supervise("bash", "-c", script).stdout == b"1\npython\n2\npython\n3\npython\n"


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
def test_the_status_is_the_commands_own(supervise, script, status):
    assert supervise("bash", "-c", script).returncode == status


@pytest.mark.parametrize(
    ("text", "mode", "status", "words"),
    [
        (None, 0, 127, "No such file or directory"),
        ("no program", 0o644, 126, "Permission denied"),
        ("#!/no/such/python3\n", 0o755, 127, "asks for #!/no/such/python3"),
    ],
)
def test_a_command_that_cannot_be_started_is_told_as_a_shell_tells_it(text, mode, status, words, supervise, tmp_path):
    program = tmp_path / "serve"
    if text is not None:
        program.write_text(text)
        program.chmod(mode)
    assert supervise(str(program)).returncode == status
    assert report_of(tmp_path)["findings"][0]["code"] == "DX1266"
    assert words in report_of(tmp_path)["findings"][0]["message"]


def test_closed_streams_stay_closed(tmp_path):
    script = (
        "import os; there = [os.path.exists('/proc/self/fd/%d' % n) for n in (0, 1, 2)]\n"
        "open(os.environ['OUT'], 'w').write(str(there))"
    )
    for close, seen in (("<&-", "[False, True, True]"), ("<&- >&- 2>&-", "[False, False, False]")):
        out = tmp_path / "out"
        shell = f'exec "$@" {close}'
        case = str(tmp_path / f"case{len(close)}")
        argv = ["bash", "-c", shell, "bash", *TRTDX, "run", "--case", case, "--", sys.executable, "-c", script]
        environment = {**os.environ, "OUT": str(out)}
        assert subprocess.run(argv, capture_output=True, check=False, timeout=120, env=environment).returncode == 0
        assert out.read_text() == seen


def test_output_that_cannot_be_written_is_told(tmp_path):
    argv = [*TRTDX, "run", "--case", str(tmp_path / "case"), "--", "echo", "words"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, check=False, timeout=120)
    assert done.returncode == 1
    assert b"what it printed could not be written (stdout: No space left on device)" in done.stderr


def test_the_report_is_written_on_success_and_says_nothing_is_wrong(supervise, tmp_path):
    supervise("true")
    assert report_of(tmp_path)["findings"] == []


def test_the_report_is_written_when_the_launcher_is_killed(supervise, tmp_path):
    supervise("bash", "-c", "kill -9 $$")
    assert report_of(tmp_path)["findings"][0]["code"] == "DX1260"


def test_a_signal_to_the_supervisor_reaches_the_command_once(tmp_path):
    script = "trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.05; done"
    process = start(tmp_path, "bash", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGUSR1)
    assert process.communicate(timeout=60)[0] == b"caught\n"
    assert process.returncode == 5


def test_a_signal_to_the_group_reaches_the_command_once(tmp_path):
    script = "n=0; trap 'n=$((n+1)); echo $n' TERM; echo ready; for i in $(seq 30); do sleep 0.05; done"
    process = start(
        tmp_path, "bash", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert process.stdout.readline() == b"ready\n"
    os.killpg(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == b"1\n"


def test_the_job_goes_on_when_the_supervisor_is_killed(tmp_path):
    script = f"import time,os\nfor i in range(40): os.write(1, b'x' * 5000); time.sleep(0.05)\nopen({str(tmp_path / 'done')!r}, 'w')"
    process = start(tmp_path, sys.executable, "-c", script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdout.read(5000)
    process.kill()
    process.wait()
    with process.stdout:
        assert len(process.stdout.read()) == 39 * 5000
    wait_for((tmp_path / "done").exists)


def test_a_daemon_stays_and_does_not_delay_the_return(tmp_path):
    script = f"sleep 20 & echo $! > {tmp_path}/pid; echo started"
    begun = time.monotonic()
    process = start(tmp_path, "bash", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout.readline() == b"started\n"
    process.wait(60)
    pid = int((tmp_path / "pid").read_text())
    assert Path(f"/proc/{pid}").exists()
    assert time.monotonic() - begun < 19  # of a sleep of 20
    assert report_of(tmp_path)["findings"] == []
    os.kill(pid, signal.SIGKILL)
    process.stdout.close()


def test_what_ignores_sigterm_is_ended_and_nothing_is_left(tmp_path, supervise):
    script = (
        "import os,signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"if not os.fork(): os.setsid()\nopen('{tmp_path}/' + str(os.getpid()) + '.pid', 'w')\ntime.sleep(600)"
    )
    supervise(sys.executable, "-c", script, options=("--quiet-for", "1", "--on-hang", "kill"))
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_hang_is_reported_and_the_job_left_alone(tmp_path):
    process = start(
        tmp_path, "sleep", "600", options=("--quiet-for", "1"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for((tmp_path / "report.json").exists)
    assert process.poll() is None
    process.terminate()
    assert process.wait(60) == 143


def test_bytes_read_and_heartbeats_are_progress(supervise, tmp_path):
    reading = "import time,os\nfor i in range(30): open('/proc/self/status').read(50); time.sleep(0.1)"
    beating = "import time,trtdx_agent\nfor i in range(30): trtdx_agent.step(); time.sleep(0.1)"
    for number, script in enumerate((reading, beating)):
        argv = [*TRTDX, "run", "--case", str(tmp_path / f"c{number}"), "--report", str(tmp_path / "r.json")]
        argv += ["--quiet-for", "1.5", "--on-hang", "kill", "--", sys.executable, "-c", script]
        assert subprocess.run(argv, capture_output=True, check=False, timeout=60).returncode == 0
        assert json.loads((tmp_path / "r.json").read_text())["findings"] == []


def test_a_silent_import_is_no_hang(supervise, tmp_path):
    (tmp_path / "slow_module.py").write_text("import time; time.sleep(5)")
    done = supervise(
        sys.executable, "-c", "import slow_module", options=("--quiet-for", "2", "--on-hang", "kill"), cwd=tmp_path
    )
    assert done.returncode == 0


def test_on_a_terminal_the_command_sees_a_terminal(tmp_path):
    script = "import os; print(os.isatty(0), os.isatty(1), os.isatty(2), os.get_terminal_size().columns)"
    supervisor, terminal = pty.openpty()
    argv = [*TRTDX, "run", "--case", str(tmp_path / "case"), "--", sys.executable, "-c", script]
    subprocess.run(argv, stdin=terminal, stdout=terminal, stderr=terminal, check=True, timeout=60)
    assert os.read(supervisor, 1000).startswith(b"True True True")
    os.close(supervisor)
    os.close(terminal)


def test_each_ranks_output_is_kept_apart(supervise, tmp_path):
    script = (
        "import os,subprocess,sys; r=os.environ['RANK']\n"
        "for i in range(50): print('line', i, 'of', r)\n"
        "sys.stdout.flush(); os.write(2, b'raw of ' + r.encode() + b'\\n'); subprocess.run(['echo', 'child of ' + r])"
    )
    shell = f'for r in 0 1 2; do RANK=$r {sys.executable} -c "$0" & done; wait'
    supervise("bash", "-c", shell, script)
    files = tmp_path / "case" / "files"
    for rank in "012":
        lines = (files / f"rank-{rank}.stdout.log").read_text().splitlines()
        assert lines == [f"line {number} of {rank}" for number in range(50)] + [f"child of {rank}"]
        assert (files / f"rank-{rank}.stderr.log").read_text() == f"raw of {rank}\n"
    merged = subprocess.run(
        [*TRTDX, "run", "logs", str(tmp_path / "case"), "--merge"], capture_output=True, text=True, check=True
    )
    assert merged.stdout.count("child of") == 3


def test_a_full_disk_or_a_closed_case_does_not_stop_the_command(supervise, tmp_path):
    script = f"import shutil,sys; shutil.rmtree('{tmp_path}/case/live'); print('still here'); sys.exit(4)"
    done = supervise(sys.executable, "-c", script)
    assert done.stdout == b"still here\n"
    assert done.returncode == 4


def test_what_was_supervised_in_this_process_leaves_its_signals_alone(trtdx_here):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ()), threading.active_count()
    for command in (["true"], ["no-such-program"], ["true"]):
        trtdx_here("run", "--no-save", "--", *command)
    assert (signal.pthread_sigmask(signal.SIG_BLOCK, ()), threading.active_count()) == before
