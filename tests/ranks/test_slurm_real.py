"""Ranks under a real Slurm: its PMI interferes with programs that spawn, and the proposed launch mends it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support.mpi import mpi_environment, needs_open_mpi
from support.slurm import cluster_command, missing_for_slurm

pytestmark = [
    pytest.mark.heavy,
    needs_open_mpi,
    pytest.mark.skipif(bool(missing_for_slurm()), reason=missing_for_slurm()),
]
TRTDX = f"{sys.executable} -m trtdx ranks"
# What TensorRT-LLM's MpiPoolSession does.
SPAWNER = """
from mpi4py.futures import MPIPoolExecutor
if __name__ == "__main__":
    with MPIPoolExecutor(max_workers=2) as pool:
        print("answer", sum(pool.map(abs, [1, 2, -3])))
"""


@pytest.fixture
def cluster(tmp_path):
    """Return a function that runs lines of shell in one cluster and gives the output of each."""

    def run(*lines, timeout_s=150):
        script = tmp_path / "job.sh"
        script.write_text("".join(f"echo @@{at}\n{line}\n" for at, line in enumerate(lines)))
        argv = cluster_command(tmp_path, "bash", str(script), timeout_s=timeout_s)
        done = subprocess.run(argv, capture_output=True, text=True, env=mpi_environment(), check=False, timeout=400)
        parts = done.stdout.split("@@")[1:]
        assert len(parts) == len(lines), done.stderr
        return [part.partition("\n")[2] for part in parts]

    return run


def codes(text):
    return [finding["code"] for finding in json.loads(text)["findings"]]


def test_ranks_of_srun_are_judged_by_what_slurm_tells_them(cluster):
    pmix, none, pmi2 = cluster(
        f"{TRTDX} check --json --launcher 'srun --mpi=pmix -N2 -n3' --python {sys.executable}",
        f"{TRTDX} check --json --launcher 'srun --mpi=none -n2' --python {sys.executable}",
        f"{TRTDX} check --json --launcher 'srun --mpi=pmi2 -n2' --python {sys.executable}",
    )
    assert codes(pmix) == []
    assert {row[1] for row in json.loads(pmix)["sections"][0]["rows"]} == {"n1", "n2"}
    assert codes(none) == ["DX442"]
    assert codes(pmi2) == ["DX442"]
    assert json.loads(none)["findings"][0]["fixes"][0]["command"].startswith("srun --mpi=pmix")


def test_the_smoke_test_passes_over_pmix_and_says_why_it_cannot_without(cluster):
    pmix, none = cluster(
        f"{TRTDX} smoke --json --launcher 'srun --mpi=pmix -N2 -n2' --size 64KiB --python {sys.executable}",
        f"{TRTDX} smoke --json --launcher 'srun --mpi=none -n2' --size 64KiB --python {sys.executable}",
    )
    assert codes(pmix) == []
    assert codes(none)[0] == "DX442"


@pytest.mark.parametrize("plugin", ["none", "pmi2", "pmix"])
def test_a_program_that_spawns_fails_in_a_step_and_the_proposed_launch_mends_it(plugin, cluster, tmp_path):
    program = tmp_path / "spawner.py"
    program.write_text(SPAWNER)
    step = f"srun --mpi={plugin} -n1"
    told, naive, proposed, mended = cluster(
        f"{step} {TRTDX} check --json -n 2 --python {sys.executable}",
        f"{step} timeout -k 1 8 {sys.executable} {program} 2>&1",
        f"{step} {TRTDX} launch --tp 2 --python {sys.executable} -- {sys.executable} {program}",
        f"{step} timeout -k 1 60 {TRTDX} launch --tp 2 --run --python {sys.executable} -- {sys.executable} {program}",
    )
    assert codes(told) == ["DX1307"]
    assert "answer" not in naive
    assert "\nmpirun -n 1 --oversubscribe" in proposed
    assert "answer 6" in mended


def test_in_a_batch_job_ranks_of_mpirun_have_slurms_own_number_and_it_is_told_where_it_matters(cluster):
    check = f"{TRTDX} check --json --launcher 'mpirun --oversubscribe -n 2' --python {sys.executable}"
    # A batch script has SLURM_PROCID=0, and so have all ranks of its mpirun.
    plain, wrapped = cluster(
        f"salloc -n2 -Q env SLURM_PROCID=0 SLURM_NTASKS=1 {check}",
        f"salloc -n2 -Q env SLURM_PROCID=0 SLURM_NTASKS=1 {check} -- trtllm-llmapi-launch trtllm-serve model",
    )
    assert codes(plain) == []
    assert codes(wrapped) == ["DX1308"]


def test_a_batch_script_that_was_written_runs(cluster, tmp_path):
    program = tmp_path / "ranks.py"
    program.write_text("from mpi4py import MPI\nprint('rank', MPI.COMM_WORLD.rank, 'of', MPI.COMM_WORLD.size)\n")
    script = tmp_path / "job.sbatch"
    write, ran = cluster(
        f"{TRTDX} launch --tp 2 --for slurm --gpus-per-node 2 --python {sys.executable} --write {script} "
        f"-- {sys.executable} {program} --engine_dir none 2>&1",
        f"sed -i 's/--exclusive/--comment=shared/; s/%j/out/' {script}; cd {tmp_path}; sbatch -W {script}; cat trtllm-out.out",
    )
    assert write == f"wrote {script}\n"
    assert {"rank 0 of 2", "rank 1 of 2"} <= set(ran.splitlines())
