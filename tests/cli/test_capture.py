"""`trtdx capture` as a user types it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.paths import TINY

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from trtdx.capture.store.reader import Capture  # noqa: E402

pytestmark = pytest.mark.heavy


@pytest.fixture
def trtdx(trtdx_here):
    return trtdx_here


@pytest.fixture
def small(tmp_path):
    """Return an ONNX model of two layers whose second overflows in float16 when fed large numbers."""
    weight = np.full((8, 8), 100, np.float16)
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["up"], "layers.0/up"),
        helper.make_node("MatMul", ["up", "weight"], ["down"], "layers.1/down"),
        helper.make_node("Softmax", ["down"], ["y"], "head/softmax"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["batch", 8])],
        [numpy_helper.from_array(weight, "weight")],
    )
    path = tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    np.savez(tmp_path / "ones.npz", x=np.ones((1, 8), np.float16) / 100)
    np.savez(tmp_path / "large.npz", x=np.ones((1, 8), np.float16))
    return path


def sections(done):
    return {section["key"]: section for section in json.loads(done.stdout)["sections"]}


def test_list_shows_what_a_selector_hits_before_anything_runs(trtdx, small, tmp_path):
    done = trtdx("capture", small, "--list", "layers.*:out")
    assert done.returncode == 0
    assert "2 places" in done.stdout
    assert "layers.0:out" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large.npz", "ones.npz", "small.onnx"]


def test_a_selector_that_hits_nothing_names_the_nearest(trtdx, small):
    done = trtdx("capture", small, "--list", "layer.*:out")
    assert done.returncode == 2
    assert "nothing is selected by 'layer.*:out'" in done.stderr
    assert "layers.0" in done.stderr


def test_a_run_leaves_a_capture_and_shows_its_tensors(trtdx, small, tmp_path):
    done = trtdx("capture", small, "--inputs", "ones.npz", "--values", "**", "--json")
    assert done.returncode == 0, done.stderr
    names = [row[0] for row in sections(done)["tensors"]["rows"]]
    assert names == ["x", "layers.0:out", "layers.1:out", "head:out", ":out.y"]
    with Capture(tmp_path / "capture-small-onnxruntime") as capture:
        assert capture.header.selector == "** & is:module"
        assert capture.values(capture.record("layers.0:out")).max() == 8


def test_a_second_run_gets_a_folder_of_its_own(trtdx, small, tmp_path):
    for _ in range(2):
        assert trtdx("capture", small, "--inputs", "ones.npz").returncode == 0
    assert (tmp_path / "capture-small-onnxruntime-2").is_dir()


def test_a_folder_that_is_there_is_not_overwritten(trtdx, small):
    assert trtdx("capture", small, "--inputs", "ones.npz", "--out", "cap").returncode == 0
    again = trtdx("capture", small, "--inputs", "ones.npz", "--out", "cap")
    assert again.returncode == 2
    assert "error:" in again.stderr
    assert "Traceback" not in again.stderr


def test_watch_stops_at_the_first_overflow_and_says_so(trtdx, small, tmp_path):
    done = trtdx("capture", small, "--inputs", "large.npz", "--watch", "nan", "--out", "cap", "--json")
    assert done.returncode == 1
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["code"] == "DX960"
    assert finding["message"].startswith(
        "down is the first of the captured tensors that is not finite: 8 +Inf of 8 elements"
    )
    assert any("float16 ends at 65504" in fix["text"] for fix in finding["fixes"])
    with Capture(tmp_path / "cap") as capture:
        assert capture.values(capture.record("up")).max() == 800  # what led to it
        assert "y" not in {record.name for record in capture.records()}


def test_an_overflow_is_told_of_without_watching_too(trtdx, small):
    done = trtdx("capture", small, "--inputs", "large.npz", "--out", "cap")
    assert done.returncode == 1
    assert "error[DX960]: layers.1:out is the first of the captured tensors that is not finite" in done.stdout
    assert trtdx("capture", "show", "cap").returncode == 1


def test_an_overflow_to_minus_infinity_is_told_of_too(trtdx, small, tmp_path):
    np.savez(tmp_path / "minus.npz", x=-np.ones((1, 8), np.float16))
    done = trtdx("capture", small, "--inputs", "minus.npz", "--tap", "**", "--out", "cap", "--json")
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["message"].startswith("down is the first of the captured tensors that is not finite: 8 -Inf")


def test_to_verify_the_same_run_is_watched(trtdx, small, tmp_path):
    (tmp_path / "with space.npz").write_bytes((tmp_path / "large.npz").read_bytes())
    done = trtdx("capture", small, "--inputs", "with space.npz", "--out", "cap", "--watch", "nan", "--json")
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["verify"] == f"trtdx capture {small} --inputs 'with space.npz' --json --watch nan"


def test_a_made_up_input_is_called_so(trtdx, small):
    done = trtdx("capture", small, "--fail-on", "never")
    assert done.returncode == 0, done.stderr
    assert "the input was made up, as none was given" in done.stdout


def test_statistics_are_asked_in_sql(trtdx, small):
    trtdx("capture", small, "--inputs", "ones.npz", "--out", "cap")
    done = trtdx("capture", "query", "cap", "select name, max from tensors where op = 'MatMul' or port = 'in'")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == ["1 row", "  name        max", "  x     0.0100021"]
    wrong = trtdx("capture", "query", "cap", "drop table tensors")
    assert wrong.returncode == 2


def test_values_go_out_and_come_back(trtdx, small):
    trtdx("capture", small, "--inputs", "ones.npz", "--values", "**", "--out", "cap")
    done = trtdx("capture", "export", "cap", "some.npz", "--tap", "layers.*:out")
    assert done.stdout == "some.npz: 2 tensors\n"
    done = trtdx("capture", "import", "some.npz", "again")
    assert done.stdout == "again: 2 tensors from some.npz (npz)\n"


def test_a_generation_streams_its_tokens_and_goes_on_later(trtdx):
    whole = trtdx("capture", TINY / "model.onnx", "--tokens", "5,17,42", "--new-tokens", "4", "--out", "whole")
    assert whole.returncode == 0, whole.stderr
    first = trtdx(
        "capture",
        TINY / "model.onnx",
        "--tokens",
        "5,17,42",
        "--new-tokens",
        "2",
        "--tap",
        "layers.*:out",
        "--out",
        "cap",
    )
    rest = trtdx("capture", TINY / "model.onnx", "--resume", "cap", "--new-tokens", "4")
    assert rest.returncode == 0, rest.stderr
    assert first.stderr + rest.stderr == whole.stderr
    assert [line.split(":")[0] for line in whole.stderr.splitlines()] == [
        "step 0",
        "step 1",
        "step 2",
        "step 3",
    ]
    shown = trtdx("capture", "show", "cap", "--json")
    steps = sections(shown)["tokens"]["rows"]
    assert [row[0] for row in steps] == [0, 1, 2, 3]


def test_a_run_that_was_cut_goes_on_to_where_it_was_meant_to_end(trtdx):
    run = ("capture", TINY / "model.onnx", "--tokens", "5,17,42", "--tap", "norm")
    trtdx(*run, "--new-tokens", "5", "--out", "whole")
    trtdx("capture", TINY / "model.onnx", "--resume", "whole", "--after-step", "1", "--out", "rest")
    shown = trtdx("capture", "show", "rest", "--json")
    assert [row[0] for row in sections(shown)["tokens"]["rows"]] == [2, 3, 4]
    refused = trtdx("capture", TINY / "model.onnx", "--resume", "whole", "--new-tokens", "5")
    assert refused.returncode == 2
    assert "whole has 5 tokens already" in refused.stderr


def test_tokens_are_shown_as_text_where_a_tokenizer_is_beside_the_model(trtdx, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"word{number}": number for number in range(128)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="word0"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "model.onnx").write_bytes((TINY / "model.onnx").read_bytes())
    done = trtdx("capture", "model.onnx", "--tokens", "5,17", "--new-tokens", "2", "--tap", "norm", "--json")
    assert all(row[2] == f"'word{row[1]}'" for row in sections(done)["tokens"]["rows"])


def test_a_folder_with_several_graphs_says_which_can_be_named(trtdx, tmp_path):
    (tmp_path / "exported").mkdir()
    for file in ("config.json", "decoder.onnx", "encoder.onnx"):
        (tmp_path / "exported" / file).write_text("{}")
    done = trtdx("capture", "exported")
    assert done.returncode == 2
    assert "exported holds 2 ONNX files" in done.stderr
    assert "exported/decoder.onnx, exported/encoder.onnx" in done.stderr


def test_a_model_with_an_export_beside_its_weights_is_still_that_model(trtdx, tmp_path):
    from trtdx.engines.open_engine import find_model

    for file in ("config.json", "model.safetensors", "model.onnx"):
        (tmp_path / file).touch()
    assert find_model(str(tmp_path)).engines == ("torch",)


def test_going_on_from_the_middle_needs_a_new_folder(trtdx):
    trtdx(
        "capture",
        TINY / "model.onnx",
        "--tokens",
        "5,17,42",
        "--new-tokens",
        "3",
        "--tap",
        "norm",
        "--out",
        "cap",
    )
    refused = trtdx("capture", TINY / "model.onnx", "--resume", "cap", "--after-step", "0")
    assert refused.returncode == 2
    assert "--out" in refused.stderr
    done = trtdx(
        "capture",
        TINY / "model.onnx",
        "--resume",
        "cap",
        "--after-step",
        "0",
        "--new-tokens",
        "3",
        "--out",
        "new",
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["step 1", "step 2"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing.onnx"], "there is no nothing.onnx"),
        (["."], "holds 2 ONNX files"),
        (["notes.txt"], "is not a model that can be computed here"),
        (["small.onnx", "--engine", "torch"], "torch cannot compute small.onnx"),
        (["small.onnx", "--tap", "layers[x]"], "does not select layers by index"),
        (["small.onnx", "--steps", "x"], "not a choice of steps"),
        (["small.onnx", "--budget", "much"], "'much' is not a size"),
        (["small.onnx", "--tokens", "a,b"], "not a list of token ids"),
        (["small.onnx", "--prompt", "hello"], "no tokenizer.json"),
        (["small.onnx", "--inputs", "missing.npz"], "missing.npz is not there"),
        (["small.onnx", "--resume", "nothing"], "nothing is not a capture"),
        (["small.onnx", "--optimisation", "none", "--values", "layers.9:out", "--out", "v"], ""),
        (["show", "small.onnx"], "small.onnx is not a capture"),
        (["query", "nothing", "select 1"], "nothing is not a capture"),
    ],
)
def test_what_cannot_be_done_is_told_in_words(trtdx, small, tmp_path, words, told):
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "second.onnx").write_bytes(small.read_bytes())
    done = trtdx("capture", *words)
    assert "Traceback" not in done.stderr
    if told:
        assert done.returncode == 2
        assert told in done.stderr


@pytest.mark.parametrize("cut", [0, 1, 100, -10])
def test_a_model_that_is_cut_off(trtdx, small, tmp_path, cut):
    (tmp_path / "cut.onnx").write_bytes(small.read_bytes()[:cut])
    done = trtdx("capture", "cut.onnx")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_help_starts_without_heavy_packages():
    code = (
        "import sys; from trtdx.cli import main;"
        "print([name for name in ('torch', 'onnxruntime', 'tensorrt_rtx', 'numpy', 'duckdb') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("engine", ["torch", "onnxruntime", "tensorrt"])
def test_every_engine_gives_the_same_tokens_and_places(trtdx, engine):
    pytest.importorskip("torch")
    pytest.importorskip("tensorrt_rtx" if engine == "tensorrt" else "transformers")
    model = TINY / ("model" if engine == "torch" else "model.onnx")
    done = trtdx(
        "capture", model, "--engine", engine, "--tokens", "5,17,42", "--tokens", "9,3", "--new-tokens", "3",
        "--tap", "layers.*.mlp:out, **.q_proj:in", "--out", engine, "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == "step 0: 45 94\nstep 1: 60 94\nstep 2: 34 94\n"
    rows = [row for row in sections(done)["tensors"]["rows"] if "layers" in row[0]]
    assert [row[0].removeprefix("model.") for row in rows] == [
        f"layers.{layer}.{place}" for layer in range(2) for place in ("self_attn.q_proj:in", "mlp:out")
    ]


def test_a_module_is_replayed_beside_what_was_captured(trtdx):
    trtdx(
        "capture", TINY / "model.onnx", "--tokens", "5,17,42", "--new-tokens", "2", "--tap", "layers.1:*", "--values", "**:*",
        "--out", "cap",
    )  # fmt: skip
    done = trtdx("capture", "replay", "cap", "layers.1", "--step", "1", "--out", "inside", "--json")
    assert done.returncode == 0, done.stderr
    assert sections(done)["replay"]["rows"][0][2] == "bitwise the same"


def test_build_compiles_and_says_what_marking_changed(trtdx, small):
    pytest.importorskip("tensorrt_rtx")
    shapes = "x:1x8,4x8,16x8"
    done = trtdx("capture", "build", small, "--tap", "layers.*:out", "--variant", "outputs", "--profile", shapes,
                 "--out", "debug.plan", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "what marking changed" in done.stdout
    assert Path("debug.plan").stat().st_size > 1000
    refused = trtdx("capture", "build", small, "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["findings"][0]["code"] == "DX142"


@pytest.fixture
def bare(tmp_path):
    """Return an ONNX model of three nodes that says nothing of modules, whose softmax has all its inputs masked."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Add", ["a", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "bare",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(np.full((2, 4), -np.inf, np.float32), "mask")],
    )
    path = tmp_path / "bare.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_of_a_graph_without_modules_everything_is_captured(trtdx, bare):
    done = trtdx("capture", bare, "--json", "--fail-on", "never")
    assert [row[0] for row in sections(done)["tensors"]["rows"]] == ["x", "a", "masked", "y", ":out.y"]


def test_what_a_mask_left_is_not_called_finite(trtdx, bare):
    done = trtdx("capture", bare, "--watch", "nan", "--json")
    seen = [each["text"] for each in json.loads(done.stdout)["findings"][0]["evidence"]]
    assert seen == ["8 NaN of 8 elements", "-Inf in all 8 elements"]


def test_an_empty_selector_lists_and_does_not_run(trtdx, small, tmp_path):
    before = set(tmp_path.iterdir())
    done = trtdx("capture", small, "--list", "")
    assert "places" in done.stdout
    assert set(tmp_path.iterdir()) == before


def test_list_does_not_claim_what_only_a_run_can_tell(trtdx):
    pytest.importorskip("transformers")
    done = trtdx("capture", TINY / "model", "--list", "layers[0].mlp & dtype:bf16")
    assert "possible place" in done.stdout
    assert "only shows when they run" in " ".join(done.stdout.split())


def test_an_input_that_does_not_fit_leaves_no_folder_behind(trtdx, small, tmp_path):
    np.savez(tmp_path / "other.npz", z=np.ones(3))
    done = trtdx("capture", small, "--inputs", "other.npz", "--out", "cap")
    assert done.returncode == 2
    assert "no input is called 'z'\n  = fix: the model takes x" in done.stderr
    assert trtdx("capture", small, "--inputs", "ones.npz", "--out", "cap").returncode == 0


def test_steps_that_never_come_are_told_of(trtdx, small):
    done = trtdx("capture", small, "--inputs", "ones.npz", "--steps", "5-")
    assert "no tap was captured" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--tokens", "1,2"), "does not generate: it takes x"),
        (("--tokens", "1,2", "--inputs", "ones.npz"), "exclude each other"),
        (("--after-step", "2"), "--after-step needs --resume"),
        (("--seed", "-1"), "--seed"),
        (("--dtype", "float16"), "--dtype is for torch, and this runs on onnxruntime"),
        (("--values", "layer.0"), "nothing is selected by 'layer.0'"),
        (("--values", "layers.1", "--tap", "layers.0"), "nothing that is tapped is selected by 'layers.1'"),
    ],
)
def test_what_would_be_ignored_is_refused(trtdx, small, tmp_path, words, told):
    before = set(tmp_path.iterdir())
    done = trtdx("capture", small, *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert set(tmp_path.iterdir()) == before


def test_a_run_that_is_interrupted_says_how_to_go_on(trtdx, monkeypatch):
    from trtdx.cli.capture import run as capture_run

    def stop(step):
        if step.number == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(capture_run, "_show_step", stop)
    done = trtdx("capture", TINY / "model.onnx", "--tokens", "5,17,42", "--new-tokens", "9", "--out", "cap")
    assert done.returncode == 130
    assert done.stderr == "interrupted; a generation goes on with --resume cap\n"


def test_another_model_that_goes_on_is_named(trtdx, tmp_path):
    trtdx("capture", TINY / "model.onnx", "--tokens", "5,17,42", "--new-tokens", "2", "--out", "cap")
    (tmp_path / "copy.onnx").write_bytes((TINY / "model.onnx").read_bytes())
    done = trtdx("capture", "copy.onnx", "--resume", "cap", "--new-tokens", "3")
    assert done.returncode == 0, done.stderr
    assert "the steps before are of another model" in done.stdout


def test_shapes_that_grow_are_told_in_one(trtdx):
    done = trtdx("capture", TINY / "model.onnx", "--tokens", "5,17,42", "--new-tokens", "4", "--json")
    told = {row[0]: row[1] for row in sections(done)["tensors"]["rows"]}
    assert told["model.layers.0:out"] == "float32 1x3..1x32"
    assert told[":out.present.0.key"] == "float32 1x2x3..6x8"


def test_steps_that_are_not_there_are_not_passed_over(trtdx, small):
    trtdx("capture", small, "--inputs", "ones.npz", "--out", "cap")
    done = trtdx("capture", "show", "cap", "--steps", "7")
    assert done.returncode == 2
    assert "cap has no tensors of step 7\n  = fix: it has 1 step: 0" in done.stderr


def test_a_folder_of_tensorrt_llm_is_called_so(trtdx):
    pytest.importorskip("transformers")
    engine = TINY.parent / "deployment" / "engine"
    done = trtdx("capture", engine)
    assert done.returncode == 2
    assert f"{engine} is an engine of TensorRT-LLM, which cannot be computed here" in done.stderr


def test_a_batch_is_replayed_on_another_engine(trtdx):
    pytest.importorskip("transformers")
    trtdx(
        "capture", TINY / "model.onnx", "--tokens", "5,17,42", "--tokens", "9,3,8", "--new-tokens", "1", "--tap", "layers.1:*",
        "--values", "layers.1:*", "--out", "cap",
    )  # fmt: skip
    done = trtdx("capture", "replay", "cap", "layers.1", "--model", TINY / "model", "--json")
    assert done.returncode == 0, done.stderr
    assert sections(done)["replay"]["rows"][0][3] < 1e-5


def test_compare_ends_with_1_and_names_the_mistake(trtdx):
    pytest.importorskip("transformers")
    words = ("--tokens", "5 17 42 9 8 7", "--new-tokens", "2")
    found = trtdx("compare", f"hf:{TINY}/model", f"onnx:{TINY}/rotary-mistake.onnx", *words)
    assert found.returncode == 1
    assert "error[DX961]" in found.stdout
    assert trtdx("compare", f"hf:{TINY}/model", f"onnx:{TINY}/model.onnx", *words).returncode == 0
    assert trtdx("compare", f"hf:{TINY}/model", "nothing").returncode == 2


def test_an_answer_is_printed_though_the_picture_cannot_be_written(trtdx):
    words = ("--tokens", "5 17 42", "--effort", "quick", "--plot", "/proc/drift.html")
    done = trtdx("compare", f"{TINY}/model.onnx", f"{TINY}/rotary-mistake.onnx", *words)
    assert done.returncode == 2
    assert "error[DX" in done.stdout
    assert "cannot write /proc/drift.html" in done.stderr


@pytest.mark.parametrize(
    ("tap", "first", "fix"),
    [
        ("**", "model.layers.1.mlp.up_proj:out", "model.layers.1.mlp.up_proj.weight in model.safetensors: 1"),
        ("**.down_proj:out", "model.layers.1.mlp.down_proj:in", "is computed before the tensors"),
    ],
)
def test_an_infinity_is_traced_to_the_weight_or_to_what_came_in(trtdx, tmp_path, tap, first, fix):
    torch, safetensors = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    pytest.importorskip("transformers")
    model = tmp_path / "model"
    shutil.copytree(TINY / "model", model)
    weights = safetensors.load_file(model / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][5, 3] = torch.inf
    safetensors.save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    done = trtdx("capture", model, "--tokens", "5,17", "--watch", "nan", "--tap", tap, "--json")
    finding = json.loads(done.stdout)["findings"][0]
    assert finding["message"].startswith(f"{first} is the first")
    assert fix in finding["fixes"][0]["text"]
    assert str(model) in finding["verify"]
