"""`trtdx ranks check` on real ranks: real limits, a real small /dev/shm, two real MPIs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from support.make_engine import make_engine
from support.mpi import mpi_environment, mpich_environment, needs_mpich, needs_open_mpi

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts of its own need root")
LAUNCHER = ("--launcher", "mpirun -n 2 --oversubscribe")


def in_small_shm(size, *more):
    """Return what runs a command with a private /dev/shm of some size; the machine's own is never touched."""
    script = f'mount -t tmpfs -o size={size} tmpfs /dev/shm; {"; ".join(more) or ":"}; exec "$@"'
    return ["unshare", "-m", "--propagation", "private", "bash", "-c", script, "bash"]


@pytest.mark.heavy
@needs_open_mpi
def test_healthy_ranks_pass(trtdx):
    answer = trtdx("check", *LAUNCHER)
    assert (answer.status, answer.codes) == (0, [])
    assert answer.summary == "nothing is wrong with 2 ranks on 1 host"
    assert answer.report["summary"]["ranks"] == [0, 1]


@pytest.mark.heavy
@needs_open_mpi
def test_without_a_launcher_mpirun_is_used_for_several_ranks_and_none_for_one(trtdx):
    assert [row[0] for row in trtdx("check", "-n", "2").report["sections"][0]["rows"]] == [0, 1]
    assert [row[0] for row in trtdx("check").report["sections"][0]["rows"]] == [None]


@pytest.mark.heavy
@needs_open_mpi
@needs_root
def test_shared_memory_that_is_too_small_is_told_with_what_the_ranks_need(trtdx):
    answer = trtdx("check", *LAUNCHER, before=in_small_shm("64m"))
    assert (answer.status, answer.codes) == (1, ["DX400"])
    assert "holds 64.0 MiB, but 2 ranks need 81.5 MiB" in answer.findings[0]["message"]


@pytest.mark.heavy
@needs_open_mpi
@needs_root
def test_segments_of_dead_jobs_are_told_and_those_of_living_ones_are_not(trtdx):
    make = "head -c 110000000 /dev/zero >/dev/shm/nccl-aB3dE9; touch -d '1 hour ago' /dev/shm/nccl-aB3dE9"
    dead = trtdx("check", *LAUNCHER, before=in_small_shm("128m", make))
    assert dead.codes == ["DX1300"]
    assert dead.findings[0]["fixes"][0]["command"] == "cd /dev/shm && rm nccl-aB3dE9"
    held = trtdx("check", *LAUNCHER, before=in_small_shm("128m", make, "exec 9</dev/shm/nccl-aB3dE9"))
    assert held.codes == ["DX400"]


@pytest.mark.heavy
@needs_open_mpi
@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_locked_memory_counts_only_without_the_capability(trtdx):
    low = ["bash", "-c", 'ulimit -l 64; exec "$@"', "bash"]
    assert trtdx("check", *LAUNCHER, before=low).codes == []
    without = ["setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"]
    answer = trtdx("check", *LAUNCHER, before=[*low, *without])
    assert answer.codes == ["DX401"]
    assert answer.findings[0]["ranks"] == [0, 1]
    assert "64.0 KiB" in answer.findings[0]["message"]


@pytest.mark.heavy
@needs_open_mpi
@pytest.mark.parametrize(
    ("limit", "words"), [("ulimit -n 200", "may open 200 files"), ("ulimit -v 20000000", "address space")]
)
def test_limits_are_those_of_the_launched_process(limit, words, trtdx, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && {limit}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    answer = trtdx("check", *LAUNCHER, python=python)
    assert answer.codes == ["DX1302"]
    assert answer.findings[0]["ranks"] == [1]
    assert words in answer.findings[0]["message"]


@pytest.mark.heavy
@needs_mpich
def test_a_launcher_of_another_mpi_is_an_error_and_mpich_alone_a_warning(trtdx, tmp_path):
    mixed = trtdx("check", "--launcher", "mpirun.mpich -n 2")
    assert (mixed.status, mixed.codes) == (1, ["DX435"])
    alone = trtdx("check", "--launcher", "mpirun.mpich -n 2", env=mpich_environment(tmp_path))
    assert (alone.status, alone.codes) == (0, ["DX023"])


@pytest.mark.heavy
@needs_open_mpi
def test_a_launcher_that_refuses_is_diagnosed(trtdx):
    refused = trtdx("check", "--launcher", "mpirun -n 64", env=mpi_environment())
    assert refused.codes[0] == "DX431"
    unknown = trtdx("check", "--launcher", "mpirun --no-such-flag -n 2")
    assert unknown.status == 1
    assert unknown.findings
    absent = trtdx("check", "--launcher", "no-such-launcher -n 2")
    assert "could not be started" in absent.findings[0]["message"]


@pytest.mark.heavy
@needs_open_mpi
@pytest.mark.skipif(os.geteuid() != 0, reason="Open MPI refuses root only")
def test_mpirun_as_root_is_diagnosed(trtdx):
    env = {name: value for name, value in mpi_environment().items() if "ALLOW_RUN" not in name}
    assert trtdx("check", "--launcher", "mpirun -n 2", env=env).codes == ["DX432"]
    assert trtdx("check", "-n", "2", env=env).codes == []


@pytest.mark.heavy
@needs_open_mpi
@pytest.mark.parametrize(
    ("variables", "code"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, "DX413"),
        ({"NCCL_SOCKET_IFNAME": "nothere0"}, "DX405"),
        ({"NCCL_SOCKET_IFNAM": "lo"}, "DX1310"),
        ({"NCCL_PROTO": "LL64"}, "DX740"),
        ({"OMPI_MCA_btl_tcp_if_exclude": "lo"}, "DX746"),
    ],
)
def test_variables_that_cannot_work_are_told(variables, code, trtdx):
    assert trtdx("check", *LAUNCHER, env=mpi_environment(**variables)).codes == [code]


@pytest.mark.heavy
@needs_open_mpi
def test_a_port_that_is_taken_is_told(trtdx):
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        answer = trtdx("check", *LAUNCHER, "--", "trtllm-serve", "model", "--port", str(port))
    assert answer.codes == ["DX424"]


@pytest.mark.heavy
@needs_open_mpi
def test_what_was_seen_is_judged_again_from_a_file(trtdx, tmp_path):
    file = tmp_path / "probes.json"
    secret = mpi_environment(TLLM_SPAWN_PROXY_PROCESS_IPC_HMAC_KEY="00ff" * 16, NCCL_PROTO="LL64")
    first = trtdx("check", *LAUNCHER, "--save", str(file), env=secret)
    again = trtdx("check", "--from", str(file))
    assert first.codes == again.codes == ["DX740"]
    assert "00ff" not in file.read_text()


@pytest.mark.heavy
@needs_open_mpi
def test_the_output_of_a_launched_probe_is_a_recording_too(trtdx, tmp_path):
    from trtdx.ranks.programs import PROBE, python_argv

    argv = ["mpirun", "--tag-output", "--oversubscribe", "-n", "2", *python_argv(sys.executable, PROBE, "{}")]
    done = subprocess.run(argv, capture_output=True, check=True, env=mpi_environment())
    (tmp_path / "log").write_bytes(b"\xff\x00noise\n" + done.stdout)
    assert trtdx("check", "--from", str(tmp_path / "log")).report["summary"]["ranks"] == [0, 1]


@pytest.mark.heavy
@pytest.mark.parametrize("content", [b"", b"{", b'{"probes": 3}', b"\x00\xff" * 99, b"@trtdx-probe a 1/1 !!!"])
def test_a_file_that_holds_no_probes_is_refused(content, trtdx, tmp_path):
    (tmp_path / "bad").write_bytes(content)
    answer = trtdx("check", "--from", str(tmp_path / "bad"))
    assert answer.status == 2
    assert "error:" in answer.text


@pytest.mark.heavy
def test_a_python_that_is_not_there_is_told(trtdx):
    answer = trtdx("check", python="/no/such/python")
    assert answer.status == 1
    assert "0 of 1 ranks started" in answer.findings[0]["message"]


@pytest.mark.heavy
@needs_open_mpi
def test_an_engine_is_held_against_the_ranks_asked_for(trtdx, tmp_path):
    engine = make_engine(tmp_path / "engine", mapping={"tp_size": 2, "pp_size": 1, "world_size": 2})
    assert trtdx("check", "-n", "2", str(engine)).codes == []
    assert "DX210" in trtdx("check", "-n", "4", str(engine)).codes
    assert trtdx("check", "--launcher", "mpirun --oversubscribe -n 3", str(engine)).codes == ["DX210"]


@pytest.mark.heavy
def test_a_model_is_held_against_the_sizes_asked_for(trtdx):
    answer = trtdx("check", "--tp", "3", "examples/tiny/model")
    assert "DX096" in answer.codes
