"""TensorRT-LLM without a GPU, shown on a package of our own that makes the same calls (llm_stand_in)."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import subprocess
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from support.paths import SUPPORT
from trtdx.engines.errors import LayerError, MissingPluginError
from trtdx.engines.tensorrt_llm import CudaOnlyError, Plugin, on_cpu
from trtdx.errors import InputError

trt = pytest.importorskip("tensorrt_rtx", reason="networks are defined with TensorRT's own builder")
torch = pytest.importorskip("torch", reason="heavy layers are computed with torch")

TREE = SUPPORT / "llm_stand_in"
X = np.array([[1.0, -2.0, 3.0]], np.float32)
FIRST = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
SECOND = np.arange(8, dtype=np.float32).reshape(4, 2)
INTER = np.maximum(X @ FIRST, 0)


@pytest.fixture
def llm():
    with on_cpu(TREE) as made:
        yield made


@pytest.fixture
def helpers(llm, monkeypatch):
    """The helpers of TensorRT-LLM's own tests, imported as a test would."""
    monkeypatch.syspath_prepend(str(TREE / "helpers"))
    monkeypatch.delitem(sys.modules, "util", raising=False)
    yield importlib.import_module("util")
    sys.modules.pop("util", None)


def mlp(shape=(1, 3), marked=True):
    """Define a network as a TensorRT-LLM test does."""
    import tensorrt_llm
    from tensorrt_llm.layers import MLP

    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    with tensorrt_llm.net_guard(network):
        x = tensorrt_llm.Tensor(name="x", dtype=trt.float32, shape=shape)
        model = MLP(FIRST.copy(), SECOND.copy())
        model(x).mark_output("output", trt.float32)
        if marked:
            for name, value in model.named_network_outputs():
                network._mark_output(value, name, trt.float32)
    return builder, network, model


# ---- importing


def test_the_tree_is_imported_without_its_init(llm):
    import tensorrt_llm

    assert tensorrt_llm is llm.package
    assert tensorrt_llm.__version__ == llm.version == "0.99.0"
    assert tensorrt_llm._common.LIBRARY_LEFT_OUT
    assert tensorrt_llm._common.ALONE
    assert tensorrt_llm._common.RANK == 0
    assert {"Builder", "Tensor", "ALIASES"} <= set(dir(tensorrt_llm))


def test_a_name_of_the_init_hides_the_submodule_of_that_name(llm):
    import tensorrt_llm

    importlib.import_module("tensorrt_llm.logger")
    tensorrt_llm.logger.set_level("error")
    assert tensorrt_llm.ALIASES["network"] is tensorrt_llm.Network  # computed from its own names


def test_compiled_constants_can_be_compared_and_not_called(llm):
    from tensorrt_llm import _common
    from tensorrt_llm.bindings import KVCacheType

    assert _common.is_paged(KVCacheType.PAGED)
    assert not _common.is_paged(KVCacheType.CONTINUOUS)
    assert isinstance(KVCacheType.PAGED, KVCacheType)
    assert _common.NAMES[_common.DataType.HALF] == "float16"
    with pytest.raises(CudaOnlyError, match=r"tensorrt_llm\.bindings\.KVCacheType was called, but it is a compiled"):
        KVCacheType("paged")
    for use in (bool, len, int, list):
        with pytest.raises(CudaOnlyError, match=r"bindings\.KVCacheType\.PAGED was"):
            use(KVCacheType.PAGED)


def test_what_needs_cuda_to_be_imported_says_so(llm):
    with pytest.raises(CudaOnlyError, match=r"bindings\.internal\.runtime\.batches was called"):
        importlib.import_module("tensorrt_llm").runtime.GenerationSession  # noqa: B018


def test_a_package_that_is_not_installed_stands_in_until_it_is_used(llm):
    import tensorrt_llm

    assert importlib.util.find_spec("triton_of_somebody_else") is None
    with pytest.raises(CudaOnlyError, match=r"modelopt\.torch\.quantize was called, but modelopt is not installed"):
        tensorrt_llm.Builder().quantize()
    assert llm.report().stand_ins["modelopt"] == "modelopt is not installed"


def test_the_helpers_of_tests_are_told_an_architecture_and_no_gpu(helpers):
    assert helpers.sm_version() == 80
    assert helpers.gpus() == 0
    assert not torch.cuda.is_available()


# ---- running


def test_a_session_gives_what_the_definition_says(helpers, llm):
    builder, network, _ = mlp()
    session = helpers.create_session(builder, network)
    x = torch.tensor(X, device="cuda")
    found = helpers.run_session(session, {"x": x})
    np.testing.assert_allclose(found["output"].cpu().numpy(), INTER @ SECOND)
    np.testing.assert_allclose(found["inter"].numpy(), INTER)  # what register_network_output named
    assert llm.report().runs == 1


def test_polygraphy_gives_the_same_in_the_callers_kind_of_array(llm):
    from polygraphy.backend.trt import CreateConfig, EngineFromNetwork, TrtRunner

    builder, network, _ = mlp()
    build = EngineFromNetwork((builder.trt_builder, network.trt_network), CreateConfig(fp16=True))
    with TrtRunner(build) as runner:
        found = runner.infer(feed_dict={"x": X})
        as_torch = runner.infer(feed_dict={"x": torch.tensor(X)})
    np.testing.assert_allclose(found["output"], INTER @ SECOND)
    assert torch.equal(as_torch["inter"], torch.tensor(INTER))


@pytest.mark.heavy
def test_weights_live_as_long_as_the_plan(helpers):
    def plan():
        builder, network, _ = mlp()  # TensorRT holds pointers into arrays of `network`
        return builder.build_engine(network, builder.create_builder_config("float32"))

    made = plan()
    gc.collect()
    taken = [np.full((3, 4), np.nan, np.float32) for _ in range(1000)]  # somebody else may get the memory
    found = helpers.run_session(helpers.Session.from_serialized_engine(made), {"x": torch.tensor(X)})
    np.testing.assert_allclose(found["output"].numpy(), INTER @ SECOND)
    assert len(taken) == 1000


def test_a_plan_may_go_through_a_file(helpers, tmp_path):
    builder, network, _ = mlp()
    plan = builder.build_engine(network, builder.create_builder_config("float32"))
    (tmp_path / "rank0.engine").write_bytes(plan)
    session = helpers.Session.from_serialized_engine((tmp_path / "rank0.engine").read_bytes())
    np.testing.assert_allclose(helpers.run_session(session, {"x": torch.tensor(X)})["output"], INTER @ SECOND)


@pytest.mark.heavy
def test_networks_are_let_go(helpers):
    gone = []
    for _ in range(40):
        builder, network, _ = mlp()
        helpers.create_session(builder, network)
        gone.append(weakref.ref(network))
    assert sum(each() is not None for each in gone) <= 20


def test_shapes_are_held_to_the_profile(helpers):
    builder, network, _ = mlp(shape=(-1, 3))
    profile = builder.trt_builder.create_optimization_profile()
    profile.set_shape("x", (1, 3), (2, 3), (4, 3))
    session = helpers.create_session(builder, network, optimization_profiles=[profile])
    for rows in (1, 4):
        x = np.tile(X, (rows, 1))
        found = helpers.run_session(session, {"x": torch.tensor(x)})
        np.testing.assert_allclose(found["output"].numpy(), np.tile(INTER @ SECOND, (rows, 1)))
    with pytest.raises(RuntimeError, match="could not set shape"):
        helpers.run_session(session, {"x": torch.zeros(5, 3)})


def test_polygraphys_profile_holds_too(llm):
    from polygraphy.backend.trt import CreateConfig, EngineFromNetwork, Profile, TrtRunner

    builder, network, _ = mlp(shape=(-1, 3))
    config = CreateConfig(profiles=[Profile().add("x", (1, 3), (1, 3), (2, 3))])
    with TrtRunner(EngineFromNetwork((builder.trt_builder, network.trt_network), config)) as runner:
        assert runner.infer({"x": np.tile(X, (2, 1))})["output"].shape == (2, 2)
        with pytest.raises(InputError, match=r"x has shape \[3, 3\], outside of"):
            runner.infer({"x": np.tile(X, (3, 1))})


def test_a_shape_that_depends_on_values_is_not_claimed_before(helpers):
    import tensorrt_llm

    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    with tensorrt_llm.net_guard(network):
        x = tensorrt_llm.Tensor(name="x", dtype=trt.float32, shape=(1, 3))
        tensorrt_llm.functional.nonzero(x).mark_output("where")
    session = helpers.create_session(builder, network)
    session.context.set_input_shape("x", (1, 3))
    assert tuple(session.context.get_tensor_shape("where")) == (2, -1)
    assert session.engine.run({"x": X})["where"].tolist() == [[0, 0, 0], [0, 1, 2]]


def test_what_only_an_engine_can_tell_is_refused(helpers):
    builder, network, _ = mlp()
    session = helpers.create_session(builder, network)
    with pytest.raises(CudaOnlyError, match=r"ICudaEngine\.device_memory_size_v2 was asked for"):
        session.engine.device_memory_size_v2  # noqa: B018
    with pytest.raises(CudaOnlyError, match="compiled by TensorRT; to run it takes a GPU"):
        helpers.Session.from_serialized_engine(b"ftrt\x00plan")


# ---- capturing


def test_everything_marked_or_selected_is_shown_to_the_sink(helpers, llm):
    seen = []
    llm.sink, llm.selector = seen.append, "op:MATRIX_MULTIPLY"
    builder, network, _ = mlp()
    session = helpers.create_session(builder, network)
    for _ in range(2):
        helpers.run_session(session, {"x": torch.tensor(X)})
    assert {each.step for each in seen} == {0, 1}
    first = [each for each in seen if each.step == 0]
    assert [each.place.path for each in first[:2]] == ["output", "inter"]
    assert [each.place.op for each in first[2:]] == ["MATRIX_MULTIPLY"]  # the other one is the output
    np.testing.assert_allclose(first[2].tensor, X @ FIRST)
    inter = next(each for each in seen if each.place.path == "inter")
    np.testing.assert_allclose(inter.tensor, INTER)


def test_what_is_registered_can_be_seen_without_being_marked(llm):
    _, network, model = mlp(marked=False)
    registered = llm.registered_tensors(model)
    found = llm.evaluate(network, {"x": X}, taps=registered.values())
    np.testing.assert_allclose(found[registered["inter"]], INTER)


# ---- plugins


def swish(value, fields):
    return value / (1 + np.exp(-fields["beta"] * value))


def with_plugin():
    import tensorrt_llm

    network = tensorrt_llm.Builder().create_network()
    with tensorrt_llm.net_guard(network):
        x = tensorrt_llm.Tensor(name="x", dtype=trt.float32, shape=(1, 3))
        after = tensorrt_llm.functional.relu(tensorrt_llm.functional.swish_plugin(x, 2.0))
        after.mark_output("output")
    return network


def test_a_reference_computes_a_plugin_with_its_fields():
    with on_cpu(TREE, plugins={"Swish": swish}) as llm:
        found = llm.evaluate(with_plugin(), {"x": X})
    np.testing.assert_allclose(found["output"], np.maximum(X / (1 + np.exp(-2 * X)), 0), rtol=1e-6)


def test_a_plugin_without_reference_is_named(llm):
    with pytest.raises(MissingPluginError, match="the plugin Swish version 1") as caught:
        with_plugin()
    assert "plugins={'Swish': function}" in caught.value.fix


def test_a_reference_is_held_to_the_shape_the_network_was_defined_with():
    with (
        on_cpu(TREE, plugins={"Swish": lambda value: value[:, :2]}) as llm,
        pytest.raises(LayerError, match=r"returned \[1, 2\] for output 0, but the network was defined with \[1, 3\]"),
    ):
        llm.evaluate(with_plugin(), {"x": X})


def test_the_tensors_around_a_plugin_can_be_selected():
    seen = []
    with on_cpu(TREE, plugins={"Swish": swish}, sink=seen.append, selector="**") as llm:
        from polygraphy.backend.trt import TrtRunner, engine_from_network

        with TrtRunner(engine_from_network((None, with_plugin().trt_network))) as runner:
            runner.infer({"x": X})
    assert "PLUGIN_V2" in {each.place.op for each in seen}
    assert llm.selector.text == "**"


def test_a_plugin_may_tell_its_outputs():
    half = Plugin(lambda value: value.astype(np.float16), lambda fields, inputs: [(trt.float16, (1, -1))])
    with on_cpu(TREE, plugins={"Swish": half}) as llm:
        assert llm.evaluate(with_plugin(), {"x": X})["output"].dtype == np.float16


# ---- torch


def test_a_tensor_brought_to_the_gpu_is_a_copy(llm):
    here = torch.ones(2)
    there = here.cuda()
    there.add_(1)
    assert here.tolist() == [1, 1]
    assert there.cuda() is there
    assert there.cpu() is not there
    for device in ("cuda", "cuda:0", torch.device("cuda"), 0):
        assert here.to(device).device.type == "cpu"
    assert torch.zeros(1, device="cuda", pin_memory=True).device.type == "cpu"
    assert torch.nn.Linear(2, 2, device="cuda").cuda().weight.device.type == "cpu"
    assert isinstance(torch.Generator(device="cuda"), torch.Generator)
    with pytest.raises(CudaOnlyError, match=r"torch\.cuda\.Event was called"):
        torch.cuda.Event(enable_timing=True)


# ---- undoing


def state():
    return (
        dict(sys.modules).keys() & {"tensorrt_llm", "tensorrt", "polygraphy", "cuda", "mpi4py", "nvtx", "pynvml"},
        list(sys.meta_path),
        list(sys.path),
        dict(os.environ),
        torch.cuda.current_stream,
        torch.Generator,
        torch.set_default_device,
        hasattr(trt.INetworkDefinition, "add_plugin_v2"),
        hasattr(trt.ITensor, "location"),
        vars(trt.ITensor)["dtype"],
    )


def test_everything_is_undone_at_the_end(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", mine := SimpleNamespace())
    before = state()
    llm = on_cpu(TREE)
    mlp()
    assert "nvtx" not in sys.modules  # and would be a stand-in if it were imported
    llm.close()
    assert state() == before
    assert sys.modules["nvtx"] is mine
    assert not [name for name in sys.modules if name.startswith(("tensorrt_llm", "modelopt"))]
    with pytest.raises((RuntimeError, AssertionError)):
        torch.zeros(1, device="cuda")


def test_it_is_undone_after_an_error_too():
    before = state()
    with pytest.raises(ZeroDivisionError), on_cpu(TREE):
        1 / 0  # noqa: B018
    assert state() == before


def test_one_tree_at_a_time(llm):
    with pytest.raises(InputError, match="is on the CPU already"):
        on_cpu(TREE)


def test_the_report_says_what_was_changed(helpers, llm):
    builder, network, _ = mlp()
    helpers.create_session(builder, network, precision="float16")
    report = llm.report()
    assert {"cuda.cuda", "mpi4py.MPI", "pynvml", "tensorrt_llm.bindings", "modelopt"} <= set(report.stand_ins)
    assert {"tensorrt_llm", "tensorrt_llm.layers", "tensorrt_llm.runtime"} <= set(report.lazy)
    assert "torch.cuda.current_stream" in report.replaced
    assert any(name.endswith("INetworkDefinition.add_plugin_v2") for name in report.replaced)
    assert report.ignored["BuilderFlag.FP16"] == "the network is strongly typed, so its own types decide"
    told = str(report)
    assert "TensorRT-LLM 0.99.0" in told
    assert "stand-in tensorrt_llm.bindings: it is a compiled part" in told


# ---- trees that cannot be used


def test_a_folder_without_the_package_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not a TensorRT-LLM"):
        on_cpu(tmp_path)


def test_a_tree_of_the_pytorch_era_is_refused(tmp_path):
    (tmp_path / "tensorrt_llm").mkdir()
    (tmp_path / "tensorrt_llm" / "version.py").write_text('__version__ = "1.3.0rc22"\n')
    with pytest.raises(InputError, match=r"TensorRT-LLM 1\.3\.0rc22 .* defines no TensorRT networks") as caught:
        on_cpu(tmp_path)
    assert "1.2.1 is the last" in caught.value.fix


def unpacked_wheel(folder, requires):
    package = folder / "tensorrt_llm"
    package.mkdir()
    for name in ("version.py", "functional.py", "network.py", "module.py", "builder.py", "__init__.py"):
        (package / name).write_text('__version__ = "0.1"\n' if name == "version.py" else "")
    (package / "__init__.py").write_text("from .functional import anything\nfrom .missing import part\n")
    (package / "missing.py").write_text("import a_package_nobody_has\n")
    metadata = folder / "tensorrt_llm-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: tensorrt-llm\nRequires-Python: {requires}\n")
    return folder


def test_a_wheel_for_another_python_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"needs Python <3, but this is"):
        on_cpu(unpacked_wheel(tmp_path, "<3"))


def test_a_dependency_that_is_not_there_is_named(tmp_path):
    with (
        on_cpu(unpacked_wheel(tmp_path, ">=3")) as llm,
        pytest.raises(CudaOnlyError, match=r"tensorrt_llm\.part needs the package a_package_nobody_has") as caught,
    ):
        llm.package.part  # noqa: B018
    assert "stand_ins=['a_package_nobody_has']" in caught.value.fix


def test_a_file_for_another_python_is_named(tmp_path):
    folder = unpacked_wheel(tmp_path, ">=3")
    (folder / "tensorrt_llm" / "missing.py").write_text("print 'hello'\n")
    with on_cpu(folder) as llm, pytest.raises(CudaOnlyError, match="is not written for Python"):
        llm.package.part  # noqa: B018


# ---- as it is used: from a conftest


@pytest.mark.heavy
def test_a_conftest_makes_a_test_suite_run_here(tmp_path):
    (tmp_path / "conftest.py").write_text(
        f"from trtdx.engines.tensorrt_llm import on_cpu\nllm = on_cpu({str(TREE)!r})\n"
        "def pytest_unconfigure():\n    llm.close()\n"
    )
    (tmp_path / "test_layer.py").write_text(
        "import tensorrt_llm, tensorrt as trt, numpy as np\n"
        "from polygraphy.backend.trt import EngineFromNetwork, TrtRunner\n"
        "def test_relu():\n"
        "    builder = tensorrt_llm.Builder(); network = builder.create_network()\n"
        "    with tensorrt_llm.net_guard(network):\n"
        "        x = tensorrt_llm.Tensor('x', trt.float32, (2,))\n"
        "        tensorrt_llm.functional.relu(x).mark_output('y', trt.float16)\n"
        "    with TrtRunner(EngineFromNetwork((builder.trt_builder, network.trt_network))) as runner:\n"
        "        y = runner.infer({'x': np.array([-1, 2], np.float32)})['y']\n"
        "    assert y.dtype == np.float16 and y.tolist() == [0, 2]\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
