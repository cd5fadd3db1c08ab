"""Nothing that is given is silently dropped: an option that would have no effect is refused, with the reason."""

from __future__ import annotations

import shlex

import pytest

from support.paths import TINY

GRAPH, LOG = TINY / "model.onnx", TINY.parent / "logs" / "serve-out-of-memory.log"
RUN_BEFORE = "has no effect: neither side is a model, both were run before"
FED = "does not go with --inputs: a model is fed the arrays of the file"
DRAWN = "does not go with temperature 0: the likeliest token is taken"
DIFFERS = "does not go with --against: only what differs"
NO_MODEL = "has no effect without a model: name the one of these logs with --model"

WITHOUT_EFFECT = [
    ("compare a.npz b.npz", "--tokens '1 2'", f"--tokens {RUN_BEFORE}"),
    ("compare a.npz b.npz", "--new-tokens 2", f"--new-tokens {RUN_BEFORE}"),
    ("compare a.npz b.npz", "--inputs a.npz", f"--inputs {RUN_BEFORE}"),
    ("compare reduce a.npz b.npz --out r", "--tokens '1 2'", f"--tokens {RUN_BEFORE}"),
    (f"compare {GRAPH} {GRAPH} --inputs a.npz", "--tokens '1 2'", f"--tokens {FED}"),
    (f"compare {GRAPH} {GRAPH} --inputs a.npz", "--new-tokens 2", f"--new-tokens {FED}"),
    ("compare small.onnx small.onnx", "--tokens '1 2'", "does not generate: it takes x"),
    ("compare bisect a.npz b.npz", "--keep k", "No such option: --keep"),
    ("compare bisect a.npz b.npz", "--effort quick", "No such option: --effort"),
    ("compare a.npz b.npz --bisect", "--effort quick", "--effort does not go with --bisect"),
    (f"capture {GRAPH}", "--top-k 5", f"--top-k {DRAWN}"),
    (f"capture {GRAPH}", "--top-p 0.5", f"--top-p {DRAWN}"),
    (f"capture {GRAPH}", "--seed 3", f"--seed {DRAWN}"),
    (f"capture {GRAPH} --tokens '5 17'", "--budget 1MiB", "--budget limits the values that are kept, and none are"),
    ("capture small.onnx --inputs ones.npz", "--new-tokens 3", "--new-tokens has no effect: small.onnx does not generate"),
    ("capture small.onnx", "--temperature 1", "sampling has no effect: small.onnx does not generate"),
    ("capture build small.onnx", "--tap '**'", "without it nothing is marked"),
    (f"inspect {GRAPH} --against {GRAPH}", "--gpu L40S", f"--gpu {DIFFERS}"),
    (f"inspect {GRAPH} --against {GRAPH}", "--gpus 2", f"--gpus {DIFFERS}"),
    (f"inspect {GRAPH} --against {GRAPH}", "--command 'trtllm-serve m'", f"--command {DIFFERS}"),
    (f"memory log {LOG}", "--tp 2", f"--tp {NO_MODEL}"),
    (f"memory log {LOG}", "--gpu H100", f"--gpu {NO_MODEL}"),
    (f"memory log {LOG}", "--moe_backend CUTLASS", f"--moe_backend {NO_MODEL}"),
    (f"memory --log {LOG}", "--tp 2", f"--tp {NO_MODEL}"),
    ("explain --env TLLM_LOG_LEVEL", "--details", "--details shows a page's examples, and this is no page"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("onnx")
    from support.small_models import make_onnx

    for name in ("a.npz", "b.npz"):
        numpy.savez(tmp_path / name, y=numpy.ones((2, 8), "float32"))
    numpy.savez(tmp_path / "ones.npz", x=numpy.ones((2, 8), "float32"))
    make_onnx(tmp_path / "small.onnx")
    return tmp_path


@pytest.mark.heavy
@pytest.mark.parametrize(("command", "option", "reason"), WITHOUT_EFFECT, ids=lambda value: value[:30])
def test_an_option_without_effect_is_refused_with_the_reason(folder, trtdx_here, command, option, reason):
    for package in ("onnxruntime", "tensorrt_rtx") if "capture" in command or "small" in command else ():
        pytest.importorskip(package)
    before = set(folder.iterdir())
    done = trtdx_here(*shlex.split(f"{command} {option}"))
    told = " ".join(done.stderr.replace("│", " ").split())
    assert (done.returncode, reason in told) == (2, True), told
    assert set(folder.iterdir()) == before


@pytest.mark.heavy
def test_the_same_commands_without_it_work(folder, trtdx_here):
    """Else the table would prove nothing."""
    for command in ("compare a.npz b.npz", f"memory log {LOG} --fail-on never", "explain --env TLLM_LOG_LEVEL"):
        assert trtdx_here(*shlex.split(command)).returncode == 0, command
