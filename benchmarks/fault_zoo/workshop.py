"""Makes and keeps the files that faults and healthy pairs are given as: folders, ONNX files and captures."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers

from . import models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .nouns import Question

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
MODULES = "**:* & is:module"
EVERYTHING = "**:*"
HERE = Path(__file__).parent
# What files depend on: another content of these makes them anew.
OF_MODELS = ("models.py", "exporting.py")
KEPT_WITH_MODELS = ("models/", "onnx/", "tokens/models-", "compiled/")  # compiling takes minutes
NOT_OF_FAULTS = ("checking.py", "causes.py")


def digest(names: Iterable[str]) -> str:
    content = b"".join((HERE / name).read_bytes() for name in sorted(names))
    return hashlib.sha256(content).hexdigest()[:10]


class Workshop:
    """A folder of artifacts, each made once."""

    def __init__(self, folder: Path) -> None:
        folder = folder.resolve()
        self.of_models = folder / f"models-{digest(OF_MODELS)}"
        code = {path.name for path in HERE.glob("*.py")} - set(NOT_OF_FAULTS)
        self.of_faults = folder / f"faults-{digest(code)}"
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()

    def once(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return a file or folder, made by a function if it is not there yet; never half of one."""
        path = (self.of_models if name.startswith(KEPT_WITH_MODELS) else self.of_faults) / name
        if path.exists():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{os.getpid()}-{path.name}")
        shutil.rmtree(part, ignore_errors=True)
        part.unlink(missing_ok=True)
        make(part)
        part.rename(path)
        return path

    def healthy(self, architecture: str) -> Path:
        """Return the Hugging Face folder of a model as it should be, in float32."""
        return self.once(f"models/{architecture}", lambda path: models.save(architecture, path))

    def loaded(self, folder: Path, dtype: str = "fp32", attention: str = "eager") -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, DTYPES[dtype]), attn_implementation=attention, local_files_only=True
        ).eval()

    def changed(self, name: str, architecture: str, change: Callable[[Any], None]) -> Path:
        """Return the folder of a model whose weights or config were changed."""

        def make(path: Path) -> None:
            model = self.loaded(self.healthy(architecture))
            change(model)
            model.save_pretrained(path)

        return self.once(f"changed/{name}", make)

    def configured(self, name: str, architecture: str, **settings: Any) -> Path:
        """Return the folder of a model with the same weights and other lines in its config.json."""

        def make(path: Path) -> None:
            shutil.copytree(self.healthy(architecture), path)
            config = json.loads((path / "config.json").read_text())
            (path / "config.json").write_text(json.dumps({**config, **settings}, indent=1))

        return self.once(f"configured/{name}", make)

    def onnx(self, architecture: str, dtype: str = "fp32") -> Path:
        """Return the export of a model; takes about half a minute the first time."""

        def make(path: Path) -> None:
            subprocess.run(
                [sys.executable, "-m", "fault_zoo.exporting", self.healthy(architecture), DTYPES[dtype], path],
                check=True, cwd=Path(__file__).parent.parent,
            )  # fmt: skip

        return self.once(f"onnx/{architecture}-{DTYPES[dtype]}.onnx", make)

    def operated(self, name: str, source: Path, change: Callable[[Any], None]) -> Path:
        """Return an ONNX file with something changed in its graph."""

        def make(path: Path) -> None:
            import onnx_ir

            model = onnx_ir.load(source)
            change(model)
            onnx_ir.save(model, path)

        return self.once(f"operated/{name}.onnx", make)

    def tokens(self, folder: Path, question: Question) -> list[list[int]]:
        """Return the tokens that the reference goes on with at each step, so that both sides see the same."""
        key = f"tokens/{folder.parent.name}-{folder.name}-{question.key}.json"

        def make(path: Path) -> None:
            from trtdx.engines.generate import generate_tokens
            from trtdx.engines.torch.engine import TorchEngine

            with TorchEngine(folder, threads=1, attention="eager") as engine:
                steps = [step.tokens.tolist() for step in generate_tokens(engine, question.rows(), question.steps)]
            path.write_text(json.dumps(steps))

        return json.loads(self.once(key, make).read_text())

    def captured(
        self, name: str, model: Callable[[], Any], question: Question, forced: list[list[int]], *,
        compiled: bool | str = False, padding: int = 0,
    ) -> Path:  # fmt: skip
        """Return the capture of a module's run on the reference's tokens, every border with its values."""

        def make(path: Path) -> None:
            torch.manual_seed(0)
            record(path, model(), question.rows(), forced, name, compiled=compiled, padding=padding)

        return self.once(f"{'compiled' if compiled else 'captures'}/{name}", make)


def record(
    folder: Path, model: Any, rows: list[list[int]], forced: list[list[int]], run: str, *,
    rank: int = 0, of_ranks: int = 1, ready: Callable[[], None] | None = None, compiled: bool | str = False, padding: int = 0,
) -> None:  # fmt: skip
    """Write a capture of a generation with forced tokens; `padding` more columns are put on the left of all rows."""
    import msgspec

    from trtdx.capture.session.recorder import Recorder
    from trtdx.capture.session.selection import CaptureSelection
    from trtdx.capture.session.steps import CaptureSession
    from trtdx.capture.store.format import CaptureHeader
    from trtdx.capture.store.writer import CaptureWriter
    from trtdx.engines.generate import cache_outputs_by_input, initial_state
    from trtdx.engines.torch.engine import TorchEngine
    from trtdx.tensors.taps import parse_selector

    with TorchEngine(model, MODULES, compiled=compiled) as engine:
        parallel = {"tensor_parallel": of_ranks} if of_ranks > 1 else {}
        details = msgspec.to_builtins(
            {**engine.details, "caches": cache_outputs_by_input(engine), **parallel}, enc_hook=str
        )
        if ready:
            ready()
        header = CaptureHeader(run=run, engine="torch", selector=EVERYTHING, rank=rank, details=details)
        with CaptureWriter(folder, header, parquet=False) as writer:
            recorder = Recorder(writer, CaptureSelection(values=parse_selector(EVERYTHING)), engine.places())
            session = CaptureSession(engine, writer, recorder)
            longest = max(map(len, rows)) + padding
            tokens = np.array([[0] * (longest - len(row)) + row for row in rows])
            mask = np.array([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
            start = initial_state(engine, tokens, attention_mask=mask)
            for _ in session.generate(start, len(forced), forced=np.array(forced, np.int64).T):
                pass
