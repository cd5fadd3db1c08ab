"""The agent in a process: it records, survives, and never breaks the program."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trtdx.run.job.live import read_agents

AGENT = Path(__file__).parents[2] / "src" / "trtdx" / "agent"


@pytest.fixture
def run_python(tmp_path):
    """Run a script with the agent in it and return how it ended and what the agent wrote."""
    live = tmp_path / "live"
    live.mkdir()

    def run(script, *flags, **variables):
        environment = {**os.environ, "PYTHONPATH": str(AGENT / "site"), "TRTDX_LIVE": str(live), **variables}
        done = subprocess.run(
            [sys.executable, *flags, "-c", script],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
            timeout=60,
        )
        return done, read_agents(live)

    return run


@pytest.mark.parametrize("path", sorted(AGENT.rglob("*.py")), ids=lambda path: path.name)
def test_it_is_written_for_python_3_8_and_imports_nothing_else(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    names = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    roots = {name.partition(".")[0] for name in names if name}
    assert roots - set(sys.stdlib_module_names) <= {"sitecustomize"}


def test_an_exception_is_kept_with_the_tensors_in_its_frames(run_python):
    script = "import numpy\ndef f():\n    weights = numpy.zeros((3, 4))\n    raise ValueError('bad')\nf()"
    done, (agent,) = run_python(script, RANK="3")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: bad")
    assert agent.ring_rank == 3
    assert agent.exceptions[0].in_words() == "ValueError: bad"
    assert "weights = (3, 4) float64" in agent.exceptions[0].tensors[0]


def test_an_exception_in_a_thread_is_kept(run_python):
    script = "import threading\ndef fail():\n    raise KeyError('x')\nt = threading.Thread(target=fail, name='loader'); t.start(); t.join()"
    done, (agent,) = run_python(script)
    assert done.returncode == 0
    assert (agent.exceptions[0].thrown_in, agent.exceptions[0].thread) == ("thread", "loader")


def test_a_rank_that_a_program_gives_itself_is_its_rank(run_python):
    _, (agent,) = run_python("import os; os.environ['RANK'] = '5'")
    assert (agent.ring_rank, agent.variables["RANK"]) == (5, "5")


def test_sys_exit_with_an_error_is_written_down_and_ends_the_program_as_ever(run_python):
    done, (agent,) = run_python("import sys; sys.exit('no shard')")
    assert (done.returncode, done.stderr) == (1, "no shard\n")
    assert (agent.exit_asked["status"], agent.exit_asked["words"]) == (1, "no shard")


def test_a_barrier_of_multiprocessing_is_a_collective_of_its_workers(run_python):
    script = (
        "import multiprocessing\nfork = multiprocessing.get_context('fork')\nbarrier = fork.Barrier(2)\n"
        "worker = fork.Process(target=barrier.wait); worker.start(); barrier.wait(); worker.join()"
    )
    done, agents = run_python(script)
    assert done.returncode == 0, done.stderr
    calls = [call for agent in agents for call in agent.calls]
    assert [(call.name, call.number, call.ended is not None) for call in calls] == [("Barrier.wait", 1, True)] * 2
    assert len({call.group for call in calls}) == 1


def test_the_ring_survives_a_kill(run_python):
    script = "import os, trtdx_agent\nfor i in range(7): trtdx_agent.step()\nos.kill(os.getpid(), 9)"
    done, (agent,) = run_python(script)
    assert done.returncode == -signal.SIGKILL
    assert agent.steps == 7


def test_a_crash_leaves_the_python_stack(run_python):
    done, (agent,) = run_python("import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()")
    assert done.returncode == -signal.SIGSEGV
    assert "in crash" in agent.crash


def test_the_users_own_sitecustomize_still_runs(run_python, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("print('mine')")
    done, agents = run_python(
        "import sys; print(any('agent/site' in p for p in sys.path))",
        PYTHONPATH=f"{AGENT / 'site'}:{tmp_path / 'site'}",
    )
    assert done.stdout == "mine\nFalse\n"
    assert len(agents) == 1


def test_where_nothing_can_be_written_the_program_runs(run_python, tmp_path):
    (tmp_path / "file").write_text("")
    for place in ("/nowhere", str(tmp_path / "file")):
        done, agents = run_python("print('runs')", TRTDX_LIVE=place)
        assert (done.stdout, done.returncode, agents) == ("runs\n", 0, [])


def test_isolated_python_runs_without_it(run_python):
    done, agents = run_python("print('runs')", "-I")
    assert (done.stdout, agents) == ("runs\n", [])


def test_a_part_that_fails_is_noted_and_the_program_goes_on(run_python, tmp_path):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("")
    (tmp_path / "mpi4py" / "MPI.py").write_text("value = 4")  # nothing like the real one
    done, (agent,) = run_python(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom mpi4py import MPI; print(MPI.value)"
    )
    assert done.stdout == "4\n"
    assert "mpi4py.MPI" in agent.problems[0]
