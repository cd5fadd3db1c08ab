"""Small real environments: virtual environments without pip, wheels written as files, libraries made by the compiler."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ARCHITECTURES = {"aarch64": 183, "i686": 3}


def make_venv(folder: Path, python: str = sys.executable) -> Environment:
    """Return a virtual environment without pip."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True, capture_output=True)
    return Environment(folder)


def compile_library(
    path: Path, source: str, *, soname: str = "", links: tuple[Path, ...] = (), flags: tuple[str, ...] = ()
) -> Path:
    """Compile C into a shared library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    argv = ["gcc", "-shared", "-fPIC", "-o", str(path), "-x", "c", "-", *flags]
    if soname:
        argv.append(f"-Wl,-soname,{soname}")
    if links:
        argv += ["-x", "none", *map(str, links)]
    subprocess.run(argv, input=source, text=True, check=True, capture_output=True)
    return path


def extension_source(name: str, body: str = "") -> str:
    """Return the C of an extension module that needs no headers of Python."""
    return f"""
    {body}
    static struct {{ long base[5]; const char *name; const char *doc; long size; void *methods; void *rest[4]; }} definition =
        {{ {{1, 0, 0, 0, 0}}, "{name}", 0, -1, 0, {{0, 0, 0, 0}} }};
    extern void *PyModule_Create2(void *, int);
    void *PyInit_{name}(void) {{ return PyModule_Create2(&definition, 1013); }}
    """


def set_architecture(path: Path, machine: str) -> None:
    """Make a library claim another processor."""
    data = bytearray(path.read_bytes())
    data[18:20] = ARCHITECTURES[machine].to_bytes(2, "little")
    path.write_bytes(data)


class Environment:
    """A virtual environment that packages are written into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.site = next((folder / "lib").glob("python3*/site-packages"))

    @property
    def tag(self) -> str:
        version = self.site.parent.name.removeprefix("python").replace(".", "")
        return f"cp{version}-cp{version}-linux_x86_64"

    @property
    def suffix(self) -> str:
        version = self.site.parent.name.removeprefix("python").replace(".", "")
        return f".cpython-{version}-x86_64-linux-gnu.so"

    def copy(self, folder: Path) -> Environment:
        """Return a copy whose interpreter is its own."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Environment(folder)

    def add(
        self,
        name: str,
        version: str,
        *,
        files: dict[str, str | bytes] | None = None,
        requires: tuple[str, ...] = (),
        tag: str = "",
        summary: str = "A package.",
        headers: tuple[str, ...] = (),
        installer: str = "pip",
        record: bool = True,
        libraries: tuple[Path, ...] = (),
    ) -> Path:
        """Write a distribution as an installer would, and return its .dist-info."""
        module = name.replace("-", "_")
        contents = {f"{module}/__init__.py": f"__version__ = '{version}'\n"} if files is None else files
        for path, data in contents.items():
            target = self.site / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data.encode() if isinstance(data, str) else data)
        info = self.site / f"{module}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Summary: {summary}", *headers]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n\nDescription.\n")
        (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag or 'py3-none-any'}\n")
        (info / "INSTALLER").write_text(f"{installer}\n")
        if record:
            own = [self.site / path for path in contents] + list(libraries)
            self.write_record(info, [*own, info / "METADATA", info / "WHEEL", info / "INSTALLER"])
        return info

    def write_record(self, info: Path, paths: list[Path]) -> None:
        rows = []
        for path in paths:
            data = path.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{os.path.relpath(path, self.site)},sha256={digest},{len(data)}")
        rows.append(f"{info.name}/RECORD,,")
        (info / "RECORD").write_text("\n".join(rows) + "\n")


def write_wheels(environment: Environment, folder: Path) -> None:
    """Write every distribution of an environment as the wheel that it would have come from."""
    folder.mkdir(parents=True, exist_ok=True)
    for info in environment.site.glob("*.dist-info"):
        tag = (info / "WHEEL").read_text().rpartition("Tag: ")[2].strip()
        name = info.name.removesuffix(".dist-info")
        with zipfile.ZipFile(folder / f"{name}-{tag}.whl", "w") as wheel:
            for line in (info / "RECORD").read_text().splitlines():
                path = line.rsplit(",", 2)[0]
                if not path.endswith("INSTALLER"):
                    wheel.write(environment.site / path, path)


def add_deployment(environment: Environment, *, compiled: bool = True, **versions: str) -> None:
    """Write a TensorRT-LLM 1.2.1 with the parts it was made with, small and importable."""
    chosen = {
        "torch": "2.9.1+cu130", "transformers": "4.57.3", "numpy": "1.26.4", "tensorrt": "10.14.1.48", "mpi4py": "3.1.5",
        "tensorrt_llm": "1.2.1", "cuda-python": "13.0.3", "nvidia-modelopt": "0.37.0",
    } | {name.replace("__", "-"): version for name, version in versions.items()}  # fmt: skip
    site, suffix = environment.site, environment.suffix
    environment.add("numpy", chosen["numpy"])
    environment.add("transformers", chosen["transformers"], requires=("numpy>=1.17",))
    libraries: tuple[Path, ...] = ()
    body = f"__version__ = '{chosen['torch']}'\n"
    if compiled:
        core = compile_library(
            site / "torch/lib/libc10.so", "int _ZN3c105touchEv(void) { return 1; }", soname="libc10.so"
        )
        extension = compile_library(
            site / f"torch/_C{suffix}",
            extension_source("_C", "extern int _ZN3c105touchEv(void); int use(void) { return _ZN3c105touchEv(); }"),
            links=(core,),
            flags=("-Wl,-rpath,$ORIGIN/lib",),
        )
        libraries = (core, extension)
        body += "from torch import _C\n"
    environment.add(
        "torch", chosen["torch"], files={"torch/__init__.py": body}, libraries=libraries, tag=environment.tag
    )
    environment.add("tensorrt", chosen["tensorrt"])
    environment.add("mpi4py", chosen["mpi4py"], files={"mpi4py/__init__.py": "", "mpi4py/MPI.py": ""})
    environment.add(
        "cuda-python", chosen["cuda-python"], files={"cuda/bindings/__init__.py": "", "cuda/bindings/driver.py": ""}
    )
    environment.add("nvidia-modelopt", chosen["nvidia-modelopt"], files={"modelopt/__init__.py": ""})
    environment.add(
        "tensorrt_llm",
        chosen["tensorrt_llm"],
        files={
            "tensorrt_llm/__init__.py": f"__version__ = '{chosen['tensorrt_llm']}'\nimport numpy, torch, transformers, tensorrt\n"
            "from mpi4py import MPI\nfrom tensorrt_llm import bindings\n",
            "tensorrt_llm/bindings.py": "",
        },
        requires=(
            "torch<=2.10.0a0,>=2.9.1", "transformers==4.57.3", "tensorrt~=10.14.1", "numpy<2", "mpi4py", "cuda-python>=13",
            "nvidia-modelopt[torch]~=0.37.0",
        ),
        tag=environment.tag,
    )  # fmt: skip
