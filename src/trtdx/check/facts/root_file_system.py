"""A container's root file system, read and never run: which interpreter it has, and what is installed for it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from trtdx.check import probe
from trtdx.check.facts.elf_reader import read_shared_object
from trtdx.check.facts.loader import RootedFiles
from trtdx.check.nouns import FolderFacts, ModuleOrigin, PythonEnvironment, PythonFacts
from trtdx.errors import InputError

PREFIXES = ("/opt/venv", "/venv", "/app/venv", "/app/.venv", "/workspace/.venv", "/opt/conda", "/usr/local", "/usr")
SECONDS = 5.0


def read_python_of_root(root: str, python: str = "") -> PythonEnvironment:
    """Return the Python environment of a root file system, as far as files tell.

    Raises:
        InputError: there is no such folder.
    """
    if not Path(root).is_dir():
        raise InputError(
            f"{root} is not a folder",
            fix="unpack the image first: docker export $(docker create IMAGE) | tar -x -C ROOTFS",
        )
    files = RootedFiles(root)
    prefix = _prefix_of(files, python)
    return read_prefix(files, prefix) if prefix else PythonEnvironment()


def _prefix_of(files: RootedFiles, python: str) -> str:
    """Return the prefix to judge: the one named, else the one with TensorRT-LLM, else the one with most packages."""
    if python:
        return os.path.dirname(os.path.dirname(python)) or "/usr"
    counts = {prefix: _count_packages(files, prefix) for prefix in (*PREFIXES, *_other_environments(files))}
    best = max(counts, key=lambda prefix: counts[prefix], default="")
    return best if best and counts[best] > (0, -1) else ""


def _other_environments(files: RootedFiles) -> list[str]:
    """Return virtual environments one or two levels below the root."""
    base = Path(files.root)
    return [
        files.inner(str(path.parent)) for depth in ("*", "*/*", "*/*/*") for path in base.glob(f"{depth}/pyvenv.cfg")
    ]


def _count_packages(files: RootedFiles, prefix: str) -> tuple[int, int]:
    folders = site_folders(files, prefix)
    names = [name for folder in folders for name in probe.list_names(folder)]
    return int("tensorrt_llm" in names), sum(name.endswith(("-info", ".pth")) for name in names) or -1


def site_folders(files: RootedFiles, prefix: str) -> list[str]:
    """Return the package folders of a prefix, in the order of `sys.path`."""
    folders = []
    lib = files.real(f"{prefix}/lib")
    for name in sorted(probe.list_names(lib), reverse=True):
        if re.fullmatch(r"python3(\.\d+)?", name):
            folders += [files.real(f"{prefix}/lib/{name}/{kind}") for kind in ("site-packages", "dist-packages")]
    if prefix == "/usr":
        folders = [*site_folders(files, "/usr/local"), *folders]
    return [folder for folder in dict.fromkeys(folders) if Path(folder).is_dir()]


def read_prefix(files: RootedFiles, prefix: str) -> PythonEnvironment:
    """Return what is installed below a prefix."""
    folders = site_folders(files, prefix)
    pyvenv = probe.read_text(files.real(f"{prefix}/pyvenv.cfg"), 8192) or ""
    version = _python_version(files, prefix, folders, pyvenv)
    if re.search(r"^include-system-site-packages\s*=\s*true", pyvenv, re.MULTILINE):
        folders += site_folders(files, "/usr")
    folders = [folder for folder in folders if not _is_of_other_version(folder, version)]
    recorder = probe.RecordReader(SECONDS)
    scans = [probe.scan_folder(folder, recorder) for folder in folders]
    facts = tuple(msgspec.convert(scan, FolderFacts) for scan in scans)
    executable = files.real(f"{prefix}/bin/python3")
    return PythonEnvironment(
        interpreter=_interpreter(files, prefix, version, executable, folders),
        folders=facts,
        origins=tuple(_origin(name, facts) for name in probe.MODULES),
        pyvenv=pyvenv,
        is_conda=Path(files.real(f"{prefix}/conda-meta")).is_dir(),
        site_folders=tuple(folders),
    )


def _interpreter(files: RootedFiles, prefix: str, version: str, executable: str, folders: list[str]) -> PythonFacts:
    machine = read_shared_object(executable).machine or _machine_of_libraries(files)
    minor = version.replace(".", "")
    return PythonFacts(
        executable=files.inner(executable),
        version=version,
        prefix=prefix,
        base_prefix=prefix,
        machine=machine,
        platform=f"linux-{machine}",
        libc=_libc_version(files),
        suffixes=(f".cpython-{minor}-{machine}-linux-gnu.so", ".abi3.so", ".so"),
        path=tuple(folders),
        markers={
            "implementation_name": "cpython",
            "os_name": "posix",
            "platform_machine": machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{version}.0" if version.count(".") == 1 else version,
            "python_version": version,
            "sys_platform": "linux",
        },
    )


def _python_version(files: RootedFiles, prefix: str, folders: list[str], pyvenv: str) -> str:
    stated = re.search(r"^version(?:_info)?\s*=\s*(3\.\d+)", pyvenv, re.MULTILINE)
    link = re.search(r"python(3\.\d+)$", files.real(f"{prefix}/bin/python3"))
    numbered = [match[1] for folder in folders if (match := re.search(r"/python(3\.\d+)/", folder))]
    return stated[1] if stated else link[1] if link else numbered[0] if numbered else ""


def _is_of_other_version(folder: str, version: str) -> bool:
    match = re.search(r"/python(3\.\d+)/", folder)
    return bool(match and version and match[1] != version)


def _machine_of_libraries(files: RootedFiles) -> str:
    for path in ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"):
        if Path(files.real(path)).exists():
            return "x86_64" if "x86" in path else "aarch64"
    return "x86_64"


def _libc_version(files: RootedFiles) -> str:
    for folder in ("/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"):
        names = probe.list_names(files.real(folder))
        old = next((match[1] for name in names if (match := re.fullmatch(r"libc-(2\.\d+)\.so", name))), "")
        if old:
            return f"glibc {old}"
        if "libc.so.6" in names:
            data = Path(files.real(f"{folder}/libc.so.6")).read_bytes()[: 8 << 20]
            stated = re.search(rb"GNU C Library [^\n]*version (2\.\d+)", data)
            return f"glibc {stated[1].decode()}" if stated else ""
    return ""


def _origin(name: str, folders: tuple[FolderFacts, ...]) -> ModuleOrigin:
    for facts in folders:
        for entry, kind in facts.importable:
            if entry.split(".")[0] == name and kind != "folder":
                place = f"{facts.folder}/{entry}"
                return ModuleOrigin(
                    name=name,
                    origin=f"{place}/__init__.py" if kind == "package" else place,
                    places=(place,) if kind == "package" else (),
                )
    loose = [f"{facts.folder}/{name}" for facts in folders if (name, "folder") in facts.importable]
    return ModuleOrigin(name=name, places=tuple(loose))
