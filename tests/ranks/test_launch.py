"""Launches: what they say for each place and release, that shells and parsers take them, and that the flags exist."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys

import pytest
import yaml

from support.make_engine import make_engine
from support.mpi import needs_open_mpi
from trtdx.errors import InputError
from trtdx.knowledge.inventory import find_flag
from trtdx.ranks.launch.nouns import LaunchQuestion, LaunchSurroundings, LaunchTarget, join_shell
from trtdx.ranks.launch.plan import plan_launch
from trtdx.ranks.launch.remedies import SlurmPlace, find_remedy, slurm_place
from trtdx.ranks.launch.scripts import render_launch
from trtdx.ranks.mapping import ParallelSizes

SERVE = ("trtllm-serve", "./model")
ENGINE = ("python3", "examples/run.py", "--engine_dir", "engine", "--max_output_len", "8")
SCRIPT = ("python3", "serve my model.py")
OPEN_MPI = {"family": "Open MPI", "version": (4, 1, 4), "cpus": 64, "gpus": 8}


def make_plan(command, target="interactive", *, tp=4, pp=1, around=None, **more):
    question = LaunchQuestion(
        sizes=ParallelSizes(tp, pp),
        target=LaunchTarget(target),
        command=tuple(command),
        runtime=more.pop("runtime", "1.2.1"),
        **more,
    )
    return plan_launch(question, LaunchSurroundings(**(OPEN_MPI | (around or {}))))


def line(command, *args, **options):
    return join_shell(make_plan(command, *args, **options).words)


def test_a_program_of_the_llm_api_is_started_alone_on_one_machine():
    assert line(SERVE) == "trtllm-serve ./model --tp_size 4"
    assert line(SERVE, tp=4, pp=2) == "trtllm-serve ./model --tp_size 4 --pp_size 2"
    assert line((*SERVE, "--tp_size", "4")) == "trtllm-serve ./model --tp_size 4"


def test_an_engine_gets_one_process_for_each_rank():
    assert line(ENGINE).startswith("mpirun -n 4 python3 examples/run.py")
    assert "--allow-run-as-root" in line(ENGINE, around={"is_root": True})
    assert "--oversubscribe" in line(ENGINE, around={"cpus": 2})
    assert line(ENGINE, tp=1).startswith("python3")


def test_few_cores_need_leave_to_spawn():
    assert line(SERVE, around={"cpus": 4}).startswith("OMPI_MCA_rmaps_base_oversubscribe=1 trtllm-serve")
    assert line(SERVE, around={"cpus": 5}).startswith("trtllm-serve")


@pytest.mark.parametrize("place", [SlurmPlace.ALLOCATION, SlurmPlace.TASK, SlurmPlace.STEP])
@pytest.mark.parametrize("target", ["interactive", "slurm"])
def test_inside_slurm_one_mpirun_stands_between(place, target):
    assert line(SERVE, target, around={"place": place}).startswith("mpirun -n 1 --oversubscribe trtllm-serve")


def test_a_batch_job_has_a_task_for_each_gpu_bound_by_llmapi_launch():
    plan = make_plan(SERVE, "slurm", tp=8, pp=2)
    words = join_shell(plan.words)
    assert "srun --mpi=pmix --nodes=2 --ntasks=16 --ntasks-per-node=8" in words
    assert "trtllm-llmapi-launch trtllm-serve ./model --tp_size 8 --pp_size 2" in words
    assert "llmapi-launch" not in line(ENGINE, "slurm")


def test_a_slurm_without_pmix_gets_mpirun_that_hides_slurms_numbers():
    around = {"mpi_plugins": ("none", "pmi2")}
    assert line(SERVE, "slurm", tp=16, around=around).startswith(
        "env -u SLURM_PROCID -u SLURM_NTASKS mpirun -n 16 --oversubscribe"
    )
    assert line(SERVE, "slurm", tp=8, around=around).startswith("mpirun -n 1 --oversubscribe trtllm-serve")
    assert line(ENGINE, "slurm", tp=16, around=around).startswith("mpirun -n 16")


def test_several_hosts_get_what_mpirun_does_not_pass_on_by_itself():
    environment = {"NCCL_DEBUG": "INFO", "TRTLLM_API_KEY": "secret", "HOME": "/root"}
    words = line(SERVE, tp=8, hosts=("a", "b"), around={"environment": environment})
    assert "-H a:4,b:4" in words
    assert "-x NCCL_DEBUG" in words
    assert "API_KEY" not in words
    assert "trtllm-llmapi-launch trtllm-serve" in words


def test_docker_gets_shared_memory_limits_and_a_server_that_is_reached():
    words = line(SERVE, "docker")
    for flag in ("--gpus all", "--ipc=host", "--ulimit memlock=-1", "-p 8000:8000", "--host 0.0.0.0", "release:1.2.1"):
        assert flag in words
    assert "mpirun -n 4 --allow-run-as-root python3" in line(ENGINE, "docker")
    with pytest.raises(InputError, match="2 machines"):
        make_plan(SERVE, "docker", tp=16)


def test_a_pod_has_memory_at_dev_shm_and_several_nodes_are_an_mpijob():
    pod = yaml.safe_load(render_launch(make_plan(SERVE, "k8s"), "IMAGE"))
    container = pod["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert pod["spec"]["volumes"][0]["emptyDir"]["medium"] == "Memory"
    assert container["command"][-2:] == ["--host", "0.0.0.0"]
    job = yaml.safe_load(render_launch(make_plan(SERVE, "k8s", tp=16), "IMAGE"))
    assert (job["kind"], job["spec"]["slotsPerWorker"]) == ("MPIJob", 8)
    assert job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 2


def test_ray_is_for_releases_that_have_it():
    assert "--extra_llm_api_options ray.yaml" in line(SERVE, "ray")
    for command, runtime in ((SERVE, "1.1.0"), (ENGINE, "1.2.1")):
        with pytest.raises(InputError):
            make_plan(command, "ray", runtime=runtime)


def test_releases_differ():
    with pytest.raises(InputError, match="no trtllm-llmapi-launch"):
        make_plan(SERVE, "slurm", tp=16, runtime="0.12.0")
    assert "--tp_size 4" in line(SERVE, runtime="0.17.0")
    assert line(("trtllm-bench", "--model", "m", "throughput"), runtime="1.2.1").endswith("throughput --tp 4")


def test_a_command_that_brings_its_own_launcher_or_nothing_is_refused():
    for command in ((), ("mpirun", "-n", "4", *SERVE), ("srun", *SERVE), ("trtllm-llmapi-launch", *SERVE)):
        with pytest.raises(InputError):
            make_plan(command)
    with pytest.raises(InputError, match="evenly"):
        make_plan(SERVE, tp=9)


EVERYWHERE = [
    (command, target, sizes, around)
    for command in (SERVE, ENGINE, SCRIPT)
    for target in LaunchTarget
    for sizes in ((1, 1), (4, 2), (8, 2))
    for around in ({}, {"is_root": True, "cpus": 2}, {"place": SlurmPlace.STEP}, {"mpi_plugins": ("pmi2",)})
    if not (target is LaunchTarget.DOCKER and sizes == (8, 2))
    and not (target is LaunchTarget.RAY and command == ENGINE)
]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    paths = []
    for number, (command, target, (tp, pp), around) in enumerate(EVERYWHERE):
        plan = make_plan(command, target, tp=tp, pp=pp, around=around)
        path = folder / f"{number}.{'yaml' if target is LaunchTarget.K8S else 'sh'}"
        path.write_text(render_launch(plan, "IMAGE"))
        paths.append((path, plan))
    return paths


def test_every_script_parses_and_every_word_has_a_reason(scripts):
    for path, plan in scripts:
        assert all(part.reason for part in plan.reasons)
        if path.suffix == ".yaml":
            assert yaml.safe_load(path.read_text())["kind"] in ("Pod", "MPIJob")
        else:
            subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing(scripts):
    shells = [str(path) for path, _ in scripts if path.suffix == ".sh"]
    done = subprocess.run(["shellcheck", "--severity=warning", *shells], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[:2000]


def test_every_flag_is_one_that_the_program_has(scripts):
    unknown = set()
    for _, plan in scripts:
        for part in (*plan.directives, *plan.parts, *plan.program_parts):
            program = "sbatch" if part in plan.directives else _program_before(plan, part)
            for word in part.words:
                flag = word.partition("=")[0]
                if flag.startswith("-") and program in ("mpirun", "srun", "sbatch", "docker", "trtllm-serve"):
                    known = any(find_flag(program, spelt) for spelt in (flag, f"-{flag}", flag.lstrip("-")))
                    unknown |= set() if known else {(program, flag)}
    assert unknown - {("srun", "--container-image"), ("mpirun", "-x")} == set()


def _program_before(plan, part):
    """Return the program whose flags a part holds."""
    program = ""
    for each_part in (*plan.parts, *plan.program_parts):
        name = each_part.words[0]
        if not name.startswith("-") and "=" not in name and "/" not in name:
            program = "mpirun" if "mpirun" in each_part.words else name
        if each_part is part:
            return program if part not in plan.program_parts else plan.program[0]
    return program


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, SlurmPlace.NONE),
        ({"SLURM_JOB_ID": "1"}, SlurmPlace.ALLOCATION),
        ({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}, SlurmPlace.ALLOCATION),
        ({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}, SlurmPlace.TASK),
        ({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "PMI_FD": "11"}, SlurmPlace.STEP),
        (
            {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "PMIX_RANK": "0", "OMPI_COMM_WORLD_RANK": "0"},
            SlurmPlace.ALLOCATION,
        ),
    ],
)
def test_the_place_in_slurm_is_known_by_its_variables(environment, place):
    assert slurm_place(environment) is place


def test_ranks_that_do_not_spawn_get_the_plugin_their_mpi_speaks():
    assert find_remedy(SlurmPlace.ALLOCATION, "Open MPI", (5, 0), spawns=False).words == ("srun", "--mpi=pmix")
    assert find_remedy(SlurmPlace.ALLOCATION, "MPICH", (4, 0), spawns=False).words == ("srun", "--mpi=pmi2")
    assert not find_remedy(SlurmPlace.STEP, "MPICH", (4, 0), spawns=True).is_measured


@pytest.mark.heavy
def test_the_command_line_prints_a_script_and_writes_it(trtdx, tmp_path):
    file = tmp_path / "job.sh"
    words = ("--tp", "4", "--for", "slurm", "--runtime", "1.2.1")
    trtdx("launch", *words, "--write", str(file), "--", *SERVE)
    done = subprocess.run(
        [sys.executable, "-m", "trtdx", "ranks", "launch", *words, "--", *SERVE],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == file.read_text()
    answer = trtdx("launch", *words, "--", *SERVE)
    assert answer.report["script"] == file.read_text()
    assert answer.report["sections"][0]["rows"]


@pytest.mark.heavy
def test_a_model_that_cannot_be_cut_gets_the_reason_and_no_launch(trtdx, tmp_path):
    refused = trtdx("launch", "--tp", "3", "--", "trtllm-serve", "examples/tiny/model")
    assert (refused.status, refused.codes, refused.report["script"]) == (1, ["DX096"], "")
    engine = make_engine(tmp_path / "engine", mapping={"tp_size": 2, "world_size": 2})
    command = ("python3", "examples/run.py", "--engine_dir", str(engine))
    assert trtdx("launch", "--tp", "4", "--", *command).codes == ["DX210"]
    own_sizes = trtdx("launch", "--", *command)
    assert "mpirun -n 2" in own_sizes.report["script"]


@pytest.mark.heavy
@needs_open_mpi
def test_a_launch_runs_and_passes_the_status_on(trtdx, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from mpi4py import MPI\nimport sys\nsys.stdout.write(f'size {MPI.COMM_WORLD.size}\\n')\nsys.exit(0)\n"
    )
    answer = trtdx("launch", "--tp", "2", "--run", "--", sys.executable, str(program), "--engine_dir", "x")
    assert answer.status == 0
    assert answer.text.count("size 2") == 2
    failing = trtdx("launch", "--tp", "1", "--run", "--", "sh", "-c", "exit 7")
    assert failing.status == 7
    assert trtdx("launch", "--tp", "1", "--run", "--", shlex.quote("no-such-program")).status == 2
