"""What scripts/build_wheel.py of TensorRT-LLM leaves beside its tree: bindings, libraries, wheels, engines."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path

import pytest

from trtdx.build.doctor.run import examine_tree
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book

BOOK = load_book(RealHost())
TAG = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 33\n"


class OwnPythonHost(RealHost):
    """This machine, whose python3 is the one that runs the tests."""

    def environment(self):
        return {**super().environment(), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}


def examine(root):
    return examine_tree(OwnPythonHost(), str(root), BOOK).findings


def elf(size=4096):
    """Return a library that is whole as far as its header tells."""
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    head[18] = 62
    head[40:48] = (64).to_bytes(8, "little")
    return bytes(head) + b"\1" * (size - 64)


@pytest.fixture
def project(tmp_path):
    package = tmp_path / "tensorrt_llm"
    package.mkdir()
    (package / "__init__.py").write_text("from .version import __version__\n")
    (package / "version.py").write_text('__version__ = "1.2.1"\n')
    (package / f"bindings.{TAG}-x86_64-linux-gnu.so").write_bytes(elf())
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/build_wheel.py").write_text("")
    (tmp_path / "build").mkdir()
    write_wheel(tmp_path)
    return tmp_path


def write_wheel(root, version="1.2.1"):
    with zipfile.ZipFile(root / f"build/tensorrt_llm-{version}-cp312-cp312-linux_x86_64.whl", "w") as archive:
        for path in sorted((root / "tensorrt_llm").iterdir()):
            archive.write(path, path.relative_to(root))


def later(path, seconds=5):
    """Give a file a time after everything else, without waiting."""
    moment = path.stat().st_mtime + seconds
    os.utime(path, (moment, moment))


def change_module(root):
    (root / "tensorrt_llm/__init__.py").write_text("x = 1\n")
    later(root / "tensorrt_llm/__init__.py")


def other_version(root):
    (root / "tensorrt_llm/version.py").write_text('__version__ = "1.3.0"\n')


def cut_wheel(root):
    path = next(root.glob("build/*.whl"))
    path.write_bytes(path.read_bytes()[:200])


def other_python(root):
    (root / "tensorrt_llm/bindings.cpython-38-x86_64-linux-gnu.so").write_bytes(elf())


def stage_leftover(root):
    (root / "build/lib/tensorrt_llm").mkdir(parents=True)
    (root / "build/lib/tensorrt_llm/gone.py").write_text("")


def leave_pointer(root):
    (root / "cpp/kernels").mkdir(parents=True)
    (root / "cpp/kernels/fmha_cubin.cpp").write_text(POINTER)


def lose_interpreter(root):
    (root / ".venv-3.10/bin").mkdir(parents=True)
    (root / ".venv-3.10/pyvenv.cfg").write_text("home = /opt/python3.10/bin\n")
    (root / ".venv-3.10/bin/python").symlink_to("/opt/python3.10/bin/python3.10")


def empty_submodule(root):
    (root / ".gitmodules").write_text('[submodule "cutlass"]\n\tpath = 3rdparty/cutlass\n')
    (root / "3rdparty/cutlass").mkdir(parents=True)


def outdate_engine(root):
    model = {"architecture": "LlamaForCausalLM", "num_hidden_layers": 2, "hidden_size": 64, "dtype": "float16"}
    for name, config in (
        ("engine", {"pretrained_config": model, "build_config": {}}),
        ("ckpt", {**model, "dtype": "bfloat16"}),
    ):
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
    (root / "engine/rank0.engine").write_bytes(b"x" * 100)
    (root / "ckpt/rank0.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")


TROUBLES = [
    (change_module, "DX1197", "__init__.py", "rm -f build/tensorrt_llm-1.2.1"),
    (other_version, "DX1197", "1.3.0", "rm -f build/tensorrt_llm-1.2.1"),
    (cut_wheel, "DX1188", ".whl", "rm -f build/tensorrt_llm-1.2.1"),
    (other_python, "DX1196", "cpython-38", "rm -f tensorrt_llm/bindings.cpython-38"),
    (stage_leftover, "DX1198", "gone.py", "rm -f build/lib/tensorrt_llm/gone.py"),
    (leave_pointer, "DX050", "fmha_cubin.cpp", "git lfs pull --include=cpp/kernels/fmha_cubin.cpp"),
    (lose_interpreter, "DX1184", ".venv-3.10", "rm -rf .venv-3.10"),
    (empty_submodule, "DX051", "3rdparty/cutlass", "git submodule update --init --recursive -- 3rdparty/cutlass"),
    (outdate_engine, "DX1199", "dtype: float16 → bfloat16", "rm -f engine/rank0.engine"),
]


@pytest.mark.parametrize(
    ("spoil", "code", "culprit", "command"), TROUBLES, ids=lambda part: getattr(part, "__name__", None)
)
def test_what_is_outdated_beside_the_tree_is_named(project, spoil, code, culprit, command):
    assert examine(project) == ()
    spoil(project)
    findings = examine(project)
    assert [finding.code for finding in findings] == [code]
    assert culprit in findings[0].message
    assert command in findings[0].fixes[0].command


def test_pictures_that_stayed_pointers_harm_nobody(project):
    (project / "logo.png").write_text(POINTER)
    assert examine(project) == ()
