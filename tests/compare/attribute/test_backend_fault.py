"""A real fault of a backend: ONNX Runtime's product of bytes on processors without VNNI.

Valgrind tells programs that there is none, and computes what such a processor computes. So the fault can be had anywhere:
the whole comparison runs inside it, which takes some minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from support.paths import TINY

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")

MOST_S = 1800
PROBE = """
from trtdx.compare.attribute.mistakes.quantization import backend_saturates
print(backend_saturates())
"""


def quantised(path):
    """Write the example's decoder by ONNX Runtime's quantiser, a scale a channel; its products do not tell their modules."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    quantization.quantize_dynamic(TINY / "model.onnx", path, weight_type=quantization.QuantType.QInt8, per_channel=True)
    return path


def without_vnni(*words):
    return subprocess.run(
        ["valgrind", "--tool=none", "-q", sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=MOST_S,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.heavy
@pytest.mark.valgrind
@pytest.mark.skipif(not shutil.which("valgrind"), reason="needs valgrind")
def test_sums_that_saturate_are_the_backends_fault_and_not_the_quantisers(tmp_path):
    if without_vnni("-c", PROBE).stdout.strip() != "True":
        pytest.skip("this valgrind does not take VNNI away")
    model = quantised(tmp_path / "int8.onnx")
    sides = f"hf:{TINY / 'model'}?threads=1", f"onnx:{model}?threads=1"
    done = without_vnni("-m", "trtdx", "compare", *sides, "--tokens", "1 15 27 3 40 22", "--json")
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["code"] == "DX951"
    assert finding["where"]["tensor"].endswith("_proj:out")
    assert finding["where"]["layer"] == 0
    exact = f"onnx:{model}?threads=1&session.x64quantprecision=1"
    done = without_vnni("-m", "trtdx", "compare", sides[0], exact, "--tokens", "1 15 27 3 40 22", "--json")
    assert not json.loads(done.stdout)["findings"], "computed exactly, the same file is healthy"
