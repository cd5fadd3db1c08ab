"""What surrounds the judgement: records, root file systems, plans, locks, new environments, history, the machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from support.make_environments import compile_library, make_venv, set_architecture, write_wheels
from trtdx.check.collect import CheckQuestion, collect_environment, read_record
from trtdx.check.facts.loader import parse_loader_cache
from trtdx.check.facts.trials import PROBE, STARTER, parse_trial
from trtdx.check.nouns import EnvironmentRecord
from trtdx.check.run import MendingWishes, judge_record
from trtdx.errors import InputError
from trtdx.host import RealHost
from trtdx.model import Severity

PYENV = Path.home() / ".pyenv/versions"
INTERPRETERS = sorted(str(path) for path in PYENV.glob("3.*/bin/python") if int(path.parts[-3].split(".")[1]) >= 8)


def replace_package(environment, name, version):
    shutil.rmtree(next(environment.site.glob(f"{name}-*.dist-info")))
    environment.add(name, version)


@pytest.mark.parametrize("interpreter", [*INTERPRETERS, sys.executable])
def test_probe_runs_on_every_python_and_past_files_that_hide_the_standard_library(interpreter, tmp_path):
    for name in ("json", "re", "random", "importlib", "os", "platform"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hidden')\n")
    done = subprocess.run([interpreter, "-c", STARTER, PROBE], capture_output=True, text=True, cwd=tmp_path, check=True)
    facts = json.loads(done.stdout.rpartition("\x1etrtdx ")[2])
    assert facts["interpreter"]["path"][0] == str(tmp_path)
    assert ["random.py", "module"] in facts["folders"][0]["importable"]


def test_recorded_check_is_judged_the_same_elsewhere(environment, book, tmp_path):
    replace_package(environment, "torch", "2.4.0")
    record = collect_environment(RealHost(), CheckQuestion(python=str(environment.python)))
    path = tmp_path / "facts.json"
    path.write_bytes(msgspec.json.encode(record))
    shutil.rmtree(environment.folder)
    again = judge_record(read_record(RealHost(), str(path)), book)
    assert again.findings == judge_record(record, book).findings
    assert again.findings[0].code == "DX1100"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"schema": 99}', b"\xff\xfe\x00"])
def test_file_that_is_no_recorded_check_is_refused_with_words(content, tmp_path):
    (tmp_path / "facts.json").write_bytes(content)
    with pytest.raises(InputError):
        read_record(RealHost(), str(tmp_path / "facts.json"))


def test_secrets_in_variables_are_not_recorded(environment, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz")
    record = collect_environment(RealHost(), CheckQuestion(python=str(environment.python), tries_imports=False))
    assert b"abcdefghijkl" not in msgspec.json.encode(record)


def make_root(environment, folder: Path) -> Path:
    shutil.copytree(environment.folder, folder / "opt/venv", symlinks=True)
    for path in ("/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"):
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return folder


@pytest.mark.parametrize(
    ("break_it", "code"),
    [
        (lambda site: None, None),
        (lambda site: (site / "torch/lib/libc10.so").unlink(), "DX061"),
        (lambda site: compile_library(site / "torch/lib/libc10.so", "int other;", soname="libc10.so"), "DX1117"),
        (lambda site: set_architecture(site / "torch/lib/libc10.so", "aarch64"), "DX1111"),
        (lambda site: shutil.rmtree(site / "mpi4py-3.1.5.dist-info"), "DX042"),
    ],
)
def test_root_file_system_is_read_and_never_run(break_it, code, environment, book, tmp_path):
    if os.uname().machine != "x86_64":
        pytest.skip("the root file system is made of this machine's x86-64 files")
    break_it(environment.site)
    root = make_root(environment, tmp_path / "root")
    record = collect_environment(RealHost(), CheckQuestion(container=str(root)))
    graver = [finding for finding in judge_record(record, book).findings if finding.severity is not Severity.NOTE]
    assert [finding.code for finding in graver[:1]] == ([code] if code else [])


def test_root_without_python_is_a_finding_with_a_way_on(tmp_path, book):
    record = collect_environment(RealHost(), CheckQuestion(container=str(tmp_path)))
    (finding,) = judge_record(record, book).findings
    assert (finding.code, finding.severity) == ("DX1101", Severity.ERROR)
    assert str(tmp_path) in finding.message
    assert "--container" in finding.fixes[0].command


@pytest.mark.heavy
def test_plan_is_proven_by_the_resolver_before_it_is_offered(environment, check):
    replace_package(environment, "transformers", "5.0.0")
    report = check(environment, wishes=MendingWishes(resolves=True))
    assert report.sections[0].rows == (("transformers", "5.0.0", "4.57.3"),)
    assert "proven with" in report.findings[0].fixes[0].text
    assert "transformers==4.57.3" in report.findings[0].fixes[0].command


@pytest.mark.heavy
def test_plan_that_the_index_cannot_fulfil_says_so(environment, check, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    replace_package(environment, "transformers", "5.0.0")
    report = check(environment, wishes=MendingWishes(resolves=True))
    assert "not proven, because" in report.findings[0].fixes[0].text
    with pytest.raises(InputError, match="not proven"):
        check(environment, wishes=MendingWishes(lock=str(tmp_path / "lock.txt")))


@pytest.mark.heavy
def test_plan_changes_who_requires_where_no_version_fits_all(environment, check, monkeypatch, tmp_path):
    environment.add("base", "5.0")
    environment.add("keeper", "1.0", requires=("base>=5",))
    environment.add("helper", "2.0", requires=("base>=4",))
    write_wheels(environment, tmp_path / "wheels")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    shutil.rmtree(environment.site / "helper-2.0.dist-info")
    environment.add("helper", "1.0", requires=("base<4",))
    report = check(environment, wishes=MendingWishes(resolves=True))
    assert report.sections[0].rows == (("helper", "1.0", "2.0"),)
    assert "proven with" in report.findings[0].fixes[0].text


@pytest.mark.heavy
def test_fix_makes_a_new_environment_that_is_clean_and_leaves_the_old_one(environment, check, tmp_path):
    replace_package(environment, "transformers", "5.0.0")
    lock, container = tmp_path / "lock.txt", tmp_path / "Dockerfile"
    wishes = MendingWishes(lock=str(lock), container=str(container), fixes=True, into=str(tmp_path / "mended"))
    report = check(environment, wishes=wishes)
    assert [finding.code for finding in report.findings if finding.severity is not Severity.NOTE] == []
    assert (tmp_path / "mended/bin/python").exists()
    assert list(environment.site.glob("transformers-5.0.0.dist-info"))
    assert "transformers==4.57.3" in lock.read_text().splitlines()
    assert "FROM nvcr.io/nvidia/tensorrt-llm/release:1.2.1" in container.read_text()
    with pytest.raises(InputError, match="is there already"):
        check(environment, wishes=wishes)


def test_changes_since_the_last_good_check_are_told(environment, check):
    assert "no good check" in check(environment, wishes=MendingWishes(resolves=False, since=True)).sections[0].note
    replace_package(environment, "torch", "2.4.0")
    section = check(environment, wishes=MendingWishes(resolves=False, since=True)).sections[0]
    assert section.rows[0][:3] == ("torch", "2.9.1+cu130", "2.4.0")
    assert section.rows[0][3].startswith("today")


IN_NAMESPACE = "mount -t tmpfs -o size={size} tmpfs {path} && {fill} exec {command}"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("path", "size", "fill", "code"),
    [("/dev/shm", "16m", "", "DX400"), ("FULL", "1m", "head -c 1100000 /dev/zero > {path}/x;", "DX046")],
)
def test_small_mounts_are_found(path, size, fill, code, environment, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    place = str(full) if path == "FULL" else path
    command = f"env TMPDIR={full if path == 'FULL' else '/tmp'} {sys.executable} -m trtdx check --no-imports --json --python {environment.python}"
    script = IN_NAMESPACE.format(size=size, path=place, fill=fill.format(path=place), command=command)
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    if not done.stdout:
        pytest.skip(f"no private mounts here: {done.stderr.strip()[:100]}")
    assert json.loads(done.stdout)["findings"][0]["code"] == code


def test_mpi4py_of_another_mpi_than_the_launcher_is_found(environment, book):
    """The facts as they are where MPICH's mpi4py meets Open MPI's mpirun; the extension is a real ELF file."""
    library = compile_library(
        environment.folder / "libmpi.so.12", "int MPI_Init(void) { return 0; }", soname="libmpi.so.12"
    )
    (environment.site / "mpi4py/MPI.py").unlink()
    from support.make_environments import extension_source

    use = extension_source("MPI", "extern int MPI_Init(void); int use(void) { return MPI_Init(); }")
    flags = (f"-Wl,-rpath,{environment.folder}",)
    extension = compile_library(
        environment.site / f"mpi4py/MPI{environment.suffix}", use, links=(library,), flags=flags
    )
    shutil.rmtree(environment.site / "mpi4py-3.1.5.dist-info")
    environment.add("mpi4py", "3.1.5", files={"mpi4py/__init__.py": ""}, libraries=(extension,))
    record = collect_environment(RealHost(), CheckQuestion(python=str(environment.python)))
    machine = msgspec.structs.replace(record.machine, mpirun="mpirun (Open MPI) 4.1.4", mpirun_path="/usr/bin/mpirun")
    report = judge_record(msgspec.structs.replace(record, machine=machine), book)
    assert report.findings[0].code == "DX023"


def test_gpu_faults_in_the_kernel_log_are_told_in_the_words_of_their_pages(book):
    machine = {
        "xids": ["NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."],
        "gpus": [{"name": "H100"}],
    }
    record = msgspec.convert({"machine": machine}, EnvironmentRecord)
    codes = {finding.code: finding.severity for finding in judge_record(record, book).findings}
    assert codes["DX297"] is Severity.WARNING


def test_driver_too_old_for_the_release_is_found(environment, book):
    record = collect_environment(RealHost(), CheckQuestion(python=str(environment.python), tries_imports=False))
    gpu = {"driver": "535.104.05", "gpus": [{"name": "NVIDIA H100", "capability": "9.0"}]}
    machine = msgspec.convert(msgspec.to_builtins(record.machine) | gpu, type(record.machine))
    report = judge_record(msgspec.structs.replace(record, machine=machine), book)
    assert "DX032" in [finding.code for finding in report.findings]


@pytest.mark.parametrize("text", ["", "{", '{"event": 3}\n[]\n', '{"event": "begin"}\nTimeout (0:00:20)!\n'])
def test_broken_report_of_an_import_is_read_as_far_as_it_goes(text):
    trial, works = parse_trial("torch", text, None, "", 1.0)
    assert trial.outcome == "hang"
    assert works == set()


@pytest.mark.parametrize("data", [b"", b"glibc-ld.so.cache1.1", b"glibc-ld.so.cache1.1" + b"\xff" * 60])
def test_damaged_loader_cache_gives_nothing(data):
    assert parse_loader_cache(data) == {}


@pytest.mark.heavy
def test_command_line_ends_with_the_status_of_its_findings(environment):
    argv = [sys.executable, "-m", "trtdx", "check", "--no-resolve", "--python", str(environment.folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, "nothing to mend" in done.stdout) == (0, True), done.stderr
    environment.python.unlink()
    done = subprocess.run([*argv, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["findings"][0]["code"] == "DX1101"


def test_environment_of_another_interpreter_is_looked_at_too(tmp_path, check):
    if not INTERPRETERS:
        pytest.skip("there is no other interpreter")
    other = make_venv(tmp_path / "old", INTERPRETERS[0])
    assert [finding.code for finding in check(other).findings] == ["DX035"]
