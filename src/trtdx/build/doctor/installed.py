"""What this machine has now: the versions of compilers, CUDA and Python, asked for once each."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trtdx.build.doctor.project import BuildProject

ASK_TIMEOUT_S = 10.0
PYTHON_QUESTION = "import sys; print('%d.%d.%d' % sys.version_info[:3]); print(sys.executable)"


class PythonVersion(NamedTuple):
    """An interpreter that answered."""

    path: str
    version: str

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def sort_key(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split("."))

    @property
    def tag(self) -> str:
        return "cpython-" + self.minor.replace(".", "")


class InstalledTools:
    """Asks programs for their version, but never one that came with the project and is not on the PATH."""

    def __init__(self, project: BuildProject) -> None:
        self._project = project
        self._answers: dict[tuple[str, ...], str] = {}
        self._path = project.environment.get("PATH", "")

    def find(self, name: str) -> str:
        return shutil.which(name, path=self._path) or ""

    def compiler_version(self, path: str) -> str:
        """Return the version a compiler states; "" where it says none or was not asked."""
        text = self._ask(path, "--version")
        if "Cuda compilation tools" in text or "nvcc" in text:
            match = re.search(r"\bV(\d+\.\d+\.\d+)", text) or re.search(r"release (\d+\.\d+)", text)
            return match[1] if match else ""
        first = text.splitlines()[0] if text.strip() else ""
        clang = re.search(r"clang version (\d+\.\d+\.\d+)", text)
        versions = re.findall(r"\d+\.\d+\.\d+", re.sub(r"\([^)]*\)", "", first)) or re.findall(r"\d+\.\d+\.\d+", first)
        return clang[1] if clang else versions[0] if versions else ""

    def program_version(self, path: str) -> str:
        """Return what a program answers to --version."""
        return self._ask(path, "--version")

    def python(self, path: str) -> PythonVersion | None:
        """Return an interpreter's version and real path; None where it does not run."""
        lines = self._ask(path, "-I", "-c", PYTHON_QUESTION).splitlines()
        return PythonVersion(lines[1], lines[0]) if len(lines) == 2 else None

    def current_python(self) -> PythonVersion | None:
        """Return the interpreter that a shell starts here."""
        found_path = self.find("python3") or self.find("python")
        return self.python(found_path) if found_path else None

    def gpu_capabilities(self) -> list[tuple[int, int]]:
        """Return the compute capabilities of the GPUs here, such as (9, 0)."""
        text = self._ask(self.find("nvidia-smi"), "--query-gpu=compute_cap", "--format=csv,noheader")
        return [(int(major), int(minor)) for major, minor in re.findall(r"^(\d+)\.(\d)\s*$", text, re.MULTILINE)]

    def _ask(self, path: str, *words: str) -> str:
        key = (path, *words)
        if key not in self._answers:
            self._answers[key] = self._run(path, words) if self.may_run(path) else ""
        return self._answers[key]

    def may_run(self, path: str) -> bool:
        """Whether a program may be started: a tree from a stranger is looked at, not obeyed."""
        if not path or not os.access(path, os.X_OK):
            return False
        folders = {os.path.realpath(folder) for folder in self._path.split(os.pathsep) if folder}
        inside = Path(os.path.realpath(self._project.root)) in Path(os.path.abspath(path)).parents  # noqa: PTH100
        in_venv = any(venv in Path(path).parents for venv in self._project.venvs)
        return not inside or in_venv or os.path.realpath(Path(path).parent) in folders

    def _run(self, path: str, words: tuple[str, ...]) -> str:
        result = self._project.host.run([path, *words], timeout_s=ASK_TIMEOUT_S)
        return result.stdout.decode("utf-8", "replace") if result.status == 0 else ""
