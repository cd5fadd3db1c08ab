"""The outside world and its recording answer alike."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from trtdx.errors import BrokenExtraError, InputError, MissingExtraError
from trtdx.host import CommandResult, RealHost, RecordedHost, fork_process, start_process
from trtdx.optional import import_optional


@pytest.fixture(params=["real", "recorded"])
def host(request, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "b.log").write_bytes(b"two")
    (tmp_path / "d" / "a.log").write_bytes(b"one")
    if request.param == "real":
        return RealHost()
    return RecordedHost({str(path): path.read_bytes() for path in (tmp_path / "d").iterdir()})


def test_files(host, tmp_path):
    folder = str(tmp_path / "d")
    assert (host.kind(folder), host.kind(folder + "/a.log"), host.kind(folder + "/x")) == (
        "directory",
        "file",
        "absent",
    )
    assert host.files(folder) == [folder + "/a.log", folder + "/b.log"]
    assert host.size(folder + "/a.log") == 3
    with host.open(folder + "/a.log") as stream:
        assert stream.read() == b"one"
    with pytest.raises(InputError, match="cannot read"):
        host.open(folder + "/x")
    host.append(folder + "/a.log", b" more")
    host.write(folder + "/b.log", b"new")
    with host.open(folder + "/a.log") as a, host.open(folder + "/b.log") as b:
        assert (a.read(), b.read()) == (b"one more", b"new")


@pytest.mark.heavy
def test_commands_end_or_are_ended():
    done = RealHost().run([sys.executable, "-c", "import sys; print(7); sys.exit(3)"], timeout_s=30)
    assert (done.status, done.stdout) == (3, b"7\n")
    late = RealHost().run([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.3)
    assert late.status is None
    assert "did not end within 0.3 s" in late.problem
    absent = RealHost().run(["no-such-command-here"], timeout_s=5)
    assert "could not be started" in absent.problem


def test_a_recording_answers_what_it_holds_and_says_what_it_does_not():
    host = RecordedHost(commands=[CommandResult(("nvidia-smi",), 0, b"H100")], environment={"A": "1"}, now=5.0)
    assert host.run(["nvidia-smi"], timeout_s=1).stdout == b"H100"
    assert host.run(["nvidia-smi", "-q"], timeout_s=1).problem == "not in the recording"
    host.sleep(2)
    assert (host.now(), host.environment()) == (7.0, {"A": "1"})


def test_writing_where_one_may_not_is_told(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot write"):
        RealHost().write(str(tmp_path / "file" / "below"), b"x")


def test_an_absent_package_is_told_from_a_broken_one(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "brokenpackage.py").write_text("raise ImportError('libfoo.so.1: cannot open shared object file')")
    with pytest.raises(MissingExtraError, match="absentpackage is needed to fly") as missing:
        import_optional("absentpackage", extra="wings", purpose="fly")
    assert "[wings]" in missing.value.fix
    with pytest.raises(BrokenExtraError, match=r"does not load: libfoo\.so\.1"):
        import_optional("brokenpackage", extra="wings", purpose="fly")
    assert import_optional("json", extra="x", purpose="y").dumps(1) == "1"


def test_a_started_command_keeps_its_pipes_and_tells_its_end():
    ours, theirs = os.pipe()
    script = f"import os; os.write({theirs}, b'kept'); print('printed'); raise SystemExit(3)"
    child = start_process([sys.executable, "-c", script], output_fd=theirs, inherited_fds=(theirs,))
    os.close(theirs)
    assert child.wait(30) == 3
    with os.fdopen(ours, "rb") as pipe:
        assert pipe.read() == b"keptprinted\n"


def test_a_copy_of_this_process_never_comes_back():
    reached = []

    def work():
        reached.append(1)
        raise RuntimeError("not seen by the caller")

    child = fork_process(work)
    assert child.wait(30) == 1
    assert not reached


def test_what_runs_beside_us_can_be_ended():
    child = fork_process(signal.pause)
    assert child.status() is None
    child.kill()
    assert child.wait(30) == -signal.SIGKILL
    child.kill()  # again is no error


@pytest.mark.parametrize("verb", ["write", "append"])
def test_a_file_that_cannot_be_written_whole_is_an_error(verb, tmp_path):
    code = (
        "import resource; from trtdx.host import RealHost\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        f"RealHost().{verb}({str(tmp_path / 'file')!r}, b'x' * 20)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "InputError: cannot write" in done.stderr
