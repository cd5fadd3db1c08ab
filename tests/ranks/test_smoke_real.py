"""`trtdx ranks smoke` over real MPI and torch: it passes where ranks work, and names the rank that does not."""

from __future__ import annotations

import sys

import pytest

from support.mpi import mpi_environment, mpich_environment, needs_mpich, needs_open_mpi

SMALL = ("--size", "64KiB", "--size", "1MiB")
# Does something to a rank of its own choice right after it said that it is up.
FAULT = """
import os, signal
write = os.write
def spoil(fd, data):
    done = write(fd, data)
    if b"@trtdx-smoke" in data and os.environ.get("OMPI_COMM_WORLD_RANK") == "{rank}":
        {what}
    return done
os.write = spoil
"""


def spoilt_environment(folder, rank, what):
    (folder / "sitecustomize.py").write_text(FAULT.format(rank=rank, what=what))
    return mpi_environment(PYTHONPATH=str(folder))


@pytest.mark.heavy
@needs_open_mpi
def test_ranks_that_work_pass_with_the_speed_of_every_pair(trtdx):
    answer = trtdx("smoke", "-n", "3", *SMALL)
    assert (answer.status, answer.codes) == (0, [])
    pairs, steps = answer.report["sections"]
    assert [row[0] for row in pairs["rows"]] == ["0 - 1", "0 - 2", "1 - 2"]
    assert {row[0] for row in steps["rows"]} == {"all_reduce", "broadcast", "all_gather"}


@pytest.mark.heavy
@needs_mpich
def test_mpich_passes_and_mixed_mpis_are_worlds_of_one(trtdx, tmp_path):
    own = trtdx("smoke", "--launcher", "mpirun.mpich -n 2", *SMALL, env=mpich_environment(tmp_path))
    assert own.codes == []
    mixed = trtdx("smoke", "--launcher", "mpirun.mpich -n 2", *SMALL)
    assert mixed.codes == ["DX435"]
    assert "2 processes were started, and each is rank 0 of a world of one" in mixed.findings[0]["message"]


@pytest.mark.heavy
@needs_open_mpi
@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "DX445"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "DX416"),
        ("raise OSError('injected')", "DX1314"),
    ],
)
def test_the_rank_that_dies_stops_or_fails_is_named(what, code, trtdx, tmp_path):
    env = spoilt_environment(tmp_path, 2, what)
    answer = trtdx("smoke", "--launcher", "mpirun --oversubscribe -n 4", *SMALL, "--step-limit", "6", env=env)
    assert answer.status == 1
    assert answer.findings[0]["code"] == code
    assert answer.findings[0]["ranks"] == [2]


@pytest.mark.heavy
@needs_open_mpi
def test_a_spawn_that_open_mpi_has_no_slots_for_is_told_and_the_remedy_passes(trtdx):
    few = mpi_environment(OMPI_MCA_rmaps_base_oversubscribe="0")
    words = ("smoke", "--spawn", "-n", "24", "--size", "1KiB", "--start-limit", "15")
    assert "DX431" in trtdx(*words, env=few).codes
    mended = ("smoke", "--spawn", "-n", "2", *SMALL, "--launcher", "mpirun -n 1 --oversubscribe")
    assert trtdx(*mended).codes == []


@pytest.mark.heavy
@needs_open_mpi
def test_a_python_without_mpi4py_is_told_with_two_ways_out(trtdx, tmp_path):
    (tmp_path / "mpi4py.py").write_text("raise ModuleNotFoundError(\"No module named 'mpi4py'\")\n")
    answer = trtdx("smoke", "-n", "2", env=mpi_environment(PYTHONPATH=str(tmp_path)))
    assert answer.status == 1
    assert "mpi4py" in answer.findings[0]["message"]
    commands = [fix["command"] for fix in answer.findings[0]["fixes"]]
    assert any("--backend gloo" in command for command in commands if command)


@needs_open_mpi
@pytest.mark.heavy
def test_gloo_passes_under_torchrun_and_under_mpirun(trtdx):
    pytest.importorskip("torch")
    env = mpi_environment(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    torchrun = f"{sys.executable} -m torch.distributed.run --nnodes 1 --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29733"
    for launcher in (torchrun, "mpirun --oversubscribe -n 2"):
        answer = trtdx("smoke", "--backend", "gloo", "--launcher", launcher, *SMALL, env=env, timeout=400)
        assert answer.codes == []
        assert "gloo" in answer.summary


@pytest.mark.heavy
@needs_open_mpi
def test_what_ranks_said_is_judged_again_from_a_file(trtdx, tmp_path):
    file = tmp_path / "smoke.json"
    assert trtdx("smoke", "-n", "2", *SMALL, "--save", str(file)).codes == []
    assert trtdx("smoke", "--from", str(file)).summary.startswith("2 ranks of Open MPI v4.1")
    file.write_text("[]")
    assert trtdx("smoke", "--from", str(file)).status == 2


@pytest.mark.heavy
def test_sizes_and_backends_that_cannot_be_are_refused(trtdx):
    assert trtdx("smoke", "--backend", "smoke-signals").status == 2
    assert trtdx("smoke", "--size", "much").status == 2
    assert trtdx("smoke", "--size", "9TiB").status == 2
