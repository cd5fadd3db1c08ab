"""Ways of capturing a run of an ONNX model on ONNX Runtime: Polygraphy's and ours. See capture.py."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from capture_ways import PROMPT, Way, llama, prompt, timed

RUNS = 10  # of the graph in one round: one alone is too short to time


def export(path: Path) -> None:
    """Write the reference model's prefill as ONNX."""
    import logging
    import warnings

    import torch

    model = llama()

    class Prefill(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids, use_cache=False).logits

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    names = {"input_names": ["input_ids"], "output_names": ["logits"]}
    with contextlib.redirect_stdout(sys.stderr):
        torch.onnx.export(Prefill().eval(), (prompt(),), str(path), dynamo=True, external_data=False, **names)


class OnnxWay(Way):
    scenarios = ("onnx",)

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder.parent / "prefill.onnx"
        self.reference = OnnxReference(self.path)


class OnnxReference:
    """The exported model and prompts that differ, so that no content comes twice."""

    def __init__(self, path: Path) -> None:
        import numpy as np

        self.session, self.scenario = session_of(path), "onnx"
        ids = np.arange(1, PROMPT + 1, dtype=np.int64)[None]
        self.feeds = [{"input_ids": ids + PROMPT * number} for number in range(RUNS)]

    def plain(self) -> None:
        for feed in self.feeds:
            self.session.run(None, feed)


def session_of(model: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    given = str(model) if isinstance(model, Path) else model
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


class OnnxPlain(OnnxWay):
    """Nothing is captured."""

    def capture(self) -> dict[str, int]:
        self.reference.plain()
        return {}


class Polygraphy(OnnxWay):
    """Polygraphy's Comparator with all tensors marked as outputs, in memory."""

    package = "polygraphy"

    def __init__(self, folder: Path) -> None:
        from polygraphy import constants
        from polygraphy.backend.onnx import BytesFromOnnx, ModifyOutputs, OnnxFromPath
        from polygraphy.logger import G_LOGGER

        G_LOGGER.module_severity = G_LOGGER.ERROR
        super().__init__(folder)
        marked = ModifyOutputs(OnnxFromPath(str(self.path)), outputs=constants.MARK_ALL)
        self.session = session_of(BytesFromOnnx(marked)())

    def capture(self) -> dict[str, int]:
        from polygraphy.backend.onnxrt import OnnxrtRunner
        from polygraphy.comparator import Comparator

        found = Comparator.run([OnnxrtRunner(self.session)], data_loader=self.reference.feeds)
        results = next(iter(found.values()))
        return {"tensors": sum(len(each) for each in results)}


class OursOnnx(OnnxWay):
    """trtdx: statistics and content hash of every tensor to disk."""

    values = ""

    def __init__(self, folder: Path) -> None:
        from trtdx.engines.onnxruntime.engine import OrtEngine

        super().__init__(folder)
        self.engine = OrtEngine(self.path, "**", threads=1)

    def capture(self) -> dict[str, int]:
        from trtdx.capture.session.recorder import Recorder
        from trtdx.capture.session.selection import CaptureSelection
        from trtdx.capture.store.writer import CaptureHeader, CaptureWriter
        from trtdx.tensors.taps import parse_selector

        engine, wanted = self.engine, CaptureSelection(parse_selector(self.values) if self.values else None)
        with CaptureWriter(self.folder, CaptureHeader(engine="onnxruntime", selector="**")) as writer:
            engine.sink = Recorder(writer, wanted, engine.places())
            self.inside, _ = timed(lambda: [engine.run(feed) for feed in self.reference.feeds])
        written = sum(each.stat().st_size for each in self.folder.iterdir())
        return {"tensors": writer.records, "bytes": written}


class OursOnnxWithValues(OursOnnx):
    """trtdx: statistics, content hash and values of every tensor to disk."""

    values = "**"
