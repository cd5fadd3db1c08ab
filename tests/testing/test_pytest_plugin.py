"""Real runs of pytest with the plugin: in this process where that is quick, else in a new one."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from support.paths import ROOT

np = pytest.importorskip("numpy")
pytest.importorskip("xxhash")

from trtdx.capture.goldens.store import GoldenFile  # noqa: E402
from trtdx.capture.store.reader import Capture  # noqa: E402
from trtdx.case import open_case  # noqa: E402
from trtdx.host import RealHost  # noqa: E402

pytest_plugins = ["pytester"]
HEAVY = ("numpy", "torch", "onnxruntime", "tensorrt", "tensorrt_rtx", "duckdb", "onnx")

ARRAYS = """
    import numpy as np
    import pytest

    def test_two(dx):
        dx.register("first", np.arange(6, dtype=np.float32).reshape(2, 3))
        dx.register("second", np.arange(6, dtype=np.float32) * 2)
"""

NETWORK = """
    import numpy as np
    import pytest

    def mlp(dx, scale=1.0):
        net, trt = dx.network(), dx.trt
        x = net.add_input("x", trt.float32, (2, 4))
        w = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3) * np.float32(scale)
        none = trt.MatrixOperation.NONE
        fc = net.add_matrix_multiply(x, none, net.add_constant(w.shape, w).get_output(0), none).get_output(0)
        relu = net.add_activation(fc, trt.ActivationType.RELU).get_output(0)
        dx.register("mlp.relu", relu)
        dx.register("mlp.fc", fc)
        relu.name = "y"
        net.mark_output(relu)
        return w

    FED = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
"""


@pytest.fixture
def imported():
    """Import what runs in this process will need: pytester forgets modules that are first imported inside."""
    for package in ("torch", "tensorrt_rtx", "onnxruntime", "onnx"):
        pytest.importorskip(package)
    import trtdx.engines.onnxruntime.engine
    import trtdx.engines.tensorrt.evaluate.engine
    import trtdx.engines.torch.hooks
    import trtdx.engines.torch.values  # noqa: F401


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest in this process with the plugin."""
    for name in ("CI", "BUILD_NUMBER"):  # with these pytest repeats whole messages in its summary
        monkeypatch.delenv(name, raising=False)
    import trtdx.pytest_plugin
    import trtdx.testing.dx
    import trtdx.testing.failure_report
    import trtdx.testing.golden_ledger
    import trtdx.testing.networks

    def run(*args, **sources):
        if sources:
            pytester.makepyfile(**sources)
        args = ("-p", "no:xdist", "-p", "no:cacheprovider", *args)
        return pytester.runpytest_inprocess(*args, plugins=[trtdx.pytest_plugin])

    return run


def text_of(result):
    return "\n".join(result.outlines)


def goldens(pytester, module="test_a.py"):
    return GoldenFile(RealHost(), pytester.path / module).goldens


class TestLoading:
    @pytest.mark.heavy
    def test_nothing_heavy_is_imported_before_a_test_needs_it(self, pytester):
        pytester.makepyfile(
            f"""
            import sys

            def test_light():
                assert [name for name in {HEAVY!r} if name in sys.modules] == []
            """
        )
        # Only this plugin: others in the environment import what they like.
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "trtdx.pytest_plugin", "--trtdx"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONWARNINGS": "error"},
        )
        assert done.returncode == 0, done.stdout
        assert re.search(r"trtdx: \S+, compares with goldens, statistics kernel (avx512|avx2|plain|numpy)", done.stdout)

    def test_the_header_says_what_computes_networks_and_why(self, run):
        pytest.importorskip("tensorrt_rtx")
        told = text_of(run("--trtdx-record", test_a=ARRAYS))
        assert "records goldens" in told
        assert re.search(r"tensorrt_rtx [\d.]+, networks by evaluate on the CPU: no GPU found", told)

    def test_the_entry_point_and_other_ways_of_loading_go_together(self, run, pytester):
        """An installed distribution as pip leaves it, `-p`, and `pytest_plugins` in a conftest."""
        dist = pytester.mkdir("site") / "other-1.dist-info"
        dist.mkdir()
        (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
        (dist / "entry_points.txt").write_text("[pytest11]\ntrtdx = trtdx.pytest_plugin\n")
        pytester.makepyfile(test_a="def test_there(dx): assert dx.tensors is not None")
        pytester.syspathinsert(str(pytester.path / "site"))

        def outcome(*args):
            return "\n".join(
                (result := pytester.runpytest_inprocess("-p", "no:xdist", *args)).outlines + result.errlines
            )

        assert "1 passed" in outcome("--trtdx")  # found by its entry point
        assert "1 passed" in outcome("-p", "trtdx.pytest_plugin", "--trtdx")
        assert "unrecognized arguments: --trtdx" in outcome("-p", "no:trtdx", "--trtdx")
        pytester.makeconftest("pytest_plugins = ['trtdx.pytest_plugin']")
        assert "1 passed" in outcome("--trtdx", "--strict-markers")

    def test_a_fixture_called_dx_of_the_users_wins(self, run, pytester):
        pytester.makeconftest("import pytest\n@pytest.fixture\ndef dx():\n    return 'mine'")
        source = "def test_mine(dx, trtdx_dx):\n    assert dx == 'mine' and trtdx_dx.rng.random() < 1"
        run("--trtdx", test_a=source).assert_outcomes(passed=1)

    def test_the_marker_is_registered_and_its_options_are_checked(self, run):
        source = """
            import pytest

            @pytest.mark.trtdx(rtoll=1)
            def test_wrong(dx):
                pass
        """
        result = run("--strict-markers", test_a=source)
        result.assert_outcomes(errors=1)
        assert "no option of @pytest.mark.trtdx is called 'rtoll'" in text_of(result)
        assert "did you mean rtol" in text_of(result)


class TestNetworks:
    @pytest.fixture(autouse=True)
    def needs(self, imported):
        pass

    def test_registered_tensors_inputs_and_outputs_come_back_in_the_order_of_the_datas_flow(self, run):
        source = (
            NETWORK
            + """
    def test_mlp(dx):
        w = mlp(dx)
        seen = dx.run(x=FED)
        assert list(seen) == ["x", "mlp.fc", "mlp.relu"]
        assert seen.outputs == ["mlp.relu"] and list(seen.result) == ["y"]
        dx.assert_close("mlp.fc", FED @ w)
        dx.assert_close(dx["mlp.relu"], np.maximum(FED @ w, 0))

    def test_all_is_seen_where_nothing_is_registered(dx):
        net, trt = dx.network(), dx.trt
        x = net.add_input("x", trt.float32, (2,))
        for _ in range(2):
            x = net.add_unary(x, trt.UnaryOperation.NEG).get_output(0)
        net.mark_output(x)
        assert len(dx.run({"x": np.ones(2, np.float32)})) == 3
"""
        )
        run(test_a=source).assert_outcomes(passed=2)

    def test_a_selector_chooses_layers_by_their_names(self, run):
        source = (
            NETWORK
            + """
    def test_taps(dx):
        net, trt = dx.network(), dx.trt
        x = net.add_input("x", trt.bfloat16, (2,))
        for name in ("layers.0.mlp/fc", "layers.1.mlp/fc"):
            layer = net.add_unary(x, trt.UnaryOperation.NEG)
            layer.name = name
            x = layer.get_output(0)
            x.name = f"{name}_out"
        net.mark_output(x)
        dx.tap("layers[0].mlp.fc:out")
        import torch
        seen = dx.run(x=torch.ones(2, dtype=torch.bfloat16))
        assert [name for name in seen if "0.mlp" in name] and len(seen) == 3
        dx.assert_close(next(name for name in seen if "0.mlp" in name), torch.full((2,), -1, dtype=torch.bfloat16))
"""
        )
        result = run("--trtdx", test_a=source)
        result.assert_outcomes(passed=1)

    @pytest.mark.heavy
    def test_without_the_option_nothing_is_attached_or_written(self, run, pytester):
        source = (
            NETWORK
            + """
    def test_mlp(dx):
        w = mlp(dx)
        dx.run(x=FED)
        dx.assert_close("mlp.fc", FED @ w + 1)
"""
        )
        result = run(test_a=source)
        result.assert_outcomes(failed=1)
        assert "mlp.fc is not close to its reference" in text_of(result)
        assert "trtdx: registered" not in text_of(result)
        assert not (pytester.path / "__trtdx__").exists()

    def test_a_failing_test_shows_its_tensors_and_leaves_a_case_with_their_values(self, run, pytester):
        source = (
            NETWORK
            + """
    def test_mlp(dx):
        w = mlp(dx)
        dx.run(x=FED)
        expected = FED @ w
        expected[1, 2] += 0.5
        dx.assert_close("mlp.fc", expected)
"""
        )
        result = run("--trtdx", "--trtdx-cases", "cases", test_a=source)
        told = text_of(result)
        assert "1 of 6 elements is beyond rtol 1.3e-06, atol 1e-05" in told
        assert "worst at [1, 2]:" in told
        assert re.search(r"mlp\.fc +\[2, 3\] +float32", told)
        folder = pytester.path / "cases" / "test_mlp"
        assert str(folder) in told
        case = open_case(RealHost(), str(folder))
        assert [record.kind for record in case.records()] == ["created", "test", "file", "file", "report"]
        with Capture(folder / "capture") as capture:
            assert capture.names() == ["x", "mlp.fc", "mlp.relu"]
            assert capture.values(capture.record("mlp.fc")).shape == (2, 3)

    @pytest.mark.heavy
    def test_what_tensorrt_said_and_what_was_computed_before_an_error_is_attached(self, run):
        source = (
            NETWORK
            + """
    def test_refused(dx):
        net, trt = dx.network(), dx.trt
        x = net.add_input("x", trt.float32, (2, 3))
        none = trt.MatrixOperation.NONE
        assert net.add_matrix_multiply(x, none, x, none).get_output(0).shape

    def test_stops(dx):
        net, trt = dx.network(), dx.trt
        x = net.add_input("x", trt.float32, (-1,))
        y = net.add_input("y", trt.float32, (-1,))
        before = net.add_unary(x, trt.UnaryOperation.NEG).get_output(0)
        total = net.add_elementwise(before, y, trt.ElementWiseOperation.SUM).get_output(0)
        dx.register("before", before)
        dx.register("total", total)
        dx.run(x=np.ones(2, np.float32), y=np.ones(3, np.float32))
"""
        )
        result = run("--trtdx", test_a=source)
        result.assert_outcomes(failed=2)
        told = text_of(result)
        assert "trtdx: TensorRT said" in told
        assert "last dimension of input0" in told
        assert re.search(r"before +\[2\] +float32 +-1 +-1", told)

    def test_a_module_an_onnx_model_and_a_network_are_compared_and_the_first_difference_is_named(self, run):
        source = (
            NETWORK
            + """
    import onnx
    import torch
    from onnx import TensorProto, helper, numpy_helper

    @pytest.mark.parametrize("scale", [1.0, 1.5])
    @pytest.mark.parametrize("engine", ["onnxruntime", "tensorrt"])
    def test_alike(dx, engine, scale):
        w = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
        module = torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False), torch.nn.ReLU())
        with torch.no_grad():
            module[0].weight[:] = torch.from_numpy(w.T.copy())
        dx.module(module)
        reference = dx.run(torch.from_numpy(FED))
        assert list(reference) == ["input", "0:out", "1:out", "output"]

        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["fc"]), helper.make_node("Relu", ["fc"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
            [numpy_helper.from_array(w * np.float32(scale), "w")],
        )
        dx.onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), engine=engine)
        seen = dx.run(x=FED)
        assert list(seen) == ["x", "fc", "y"]
        dx.assert_matches(reference, names={"x": "input", "fc": "0:out", "y": "output"})
"""
        )
        result = run("--trtdx", test_a=source)
        result.assert_outcomes(passed=2, failed=2)
        told = text_of(result)
        assert told.count("fc is the first of 2 tensors that differ from the reference, of 3 tensors compared") >= 2
        assert "before it, these agree: x" in told
        assert "after it, these differ too: y" in told

    def test_taps_of_the_marker_choose_and_nothing_in_common_is_a_failure(self, run):
        source = """
            import pytest
            import torch

            @pytest.mark.trtdx(taps="1:out")
            def test_taps(dx):
                dx.module(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()))
                seen = dx.run(torch.ones(2, 4))
                assert list(seen) == ["input", "1:out", "output"]

            def test_nothing_in_common(dx):
                dx.module(torch.nn.ReLU())
                first = dx.run(torch.ones(2))
                dx.module(torch.nn.ReLU())
                second = dx.run(torch.ones(2))
                first.tensors = {"other": first.tensors["input"]}
                dx.assert_matches(first)
        """
        result = run(test_a=source)
        result.assert_outcomes(passed=1, failed=1)
        assert "nothing was compared: no tensor has the same name in both" in text_of(result)

    def test_all_of_a_models_named_outputs_are_registered(self, run):
        """A stand-in with the one call of TensorRT-LLM's modules that is used."""
        source = (
            NETWORK
            + """
    class Model:
        def __init__(self, **named):
            self.named = named

        def named_network_outputs(self):
            return self.named.items()

    def test_llm(dx):
        net, trt = dx.network(), dx.trt
        x = net.add_input("x", trt.float32, (2,))
        neg = net.add_unary(x, trt.UnaryOperation.NEG).get_output(0)
        assert dx.register_all(Model(hidden=neg)) == 1
        dx.run(x=np.ones(2, np.float32))
        dx.assert_close("hidden", -1.0)
"""
        )
        run(test_a=source).assert_outcomes(passed=1)


class TestGoldens:
    def test_recorded_then_compared(self, run, pytester):
        result = run("--trtdx-record", test_a=ARRAYS)
        assert re.search(r"__trtdx__/test_a\.jsonl: 1 golden written \(\d+ bytes with values\)", text_of(result))
        (golden,) = goldens(pytester).values()
        assert [each.name for each in golden.tensors] == ["first", "second"]
        assert "1 test compared with goldens (2 tensors): none changed" in text_of(run("--trtdx"))

    def test_the_first_tensor_that_changed_is_named_and_by_how_much(self, run):
        run("--trtdx-record", test_a=ARRAYS)
        changed = ARRAYS.replace("np.float32) * 2", "np.float32) * 3")
        result = run("--trtdx", test_a=changed)
        result.assert_outcomes(failed=1)
        told = text_of(result)
        assert "second changed since it was recorded (the only change; 2 tensors compared)" in told
        assert "worst at [5]: 15 now, 10 recorded, 5 apart" in told
        assert "pytest --trtdx-record test_a.py::test_two" in told
        assert re.search(r"first .* same", told)
        run("--trtdx-record").assert_outcomes(passed=1)
        run("--trtdx").assert_outcomes(passed=1)

    def test_every_type_of_elements_is_recorded_and_compared(self, run, pytester):
        pytest.importorskip("ml_dtypes")
        source = """
            import ml_dtypes
            import numpy as np
            import pytest

            TYPES = ["float64", "float16", "int64", "uint8", "bool", "complex64", ml_dtypes.bfloat16,
                     ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4, ml_dtypes.float4_e2m1fn]

            @pytest.mark.parametrize("kind", TYPES, ids=str)
            def test_type(dx, kind):
                dx.register("a", np.array([[0, 1, 2], [1, 0, 3]]).astype(kind))
                dx.register("empty", np.zeros((0, 2), kind))
                dx.register("scalar", np.array(1, kind))
        """
        run("--trtdx-record", test_a=source).assert_outcomes(passed=11)
        run("--trtdx").assert_outcomes(passed=11)
        result = run("--trtdx", test_a=source.replace("[0, 1, 2]", "[0, 0, 2]"))
        result.assert_outcomes(failed=11)
        assert text_of(result).count("worst at [0, 1]: ") == 11

    def test_missing_tensors_fail_and_new_ones_are_mentioned(self, run):
        run("--trtdx-record", test_a=ARRAYS)
        result = run("--trtdx", test_a=ARRAYS.replace('"first"', '"other"'))
        result.assert_outcomes(failed=1)
        assert "first is missing: the golden has it" in text_of(result)
        assert "not in the golden: other" in text_of(result)
        more = ARRAYS + "        dx.register('third', np.ones(1))\n"
        result = run("--trtdx", test_a=more)
        result.assert_outcomes(passed=1)
        assert "not in the golden of test_a.py::test_two: third" in text_of(result)

    def test_the_marker_says_how_close_is_close_and_leaves_tests_out(self, run, pytester):
        source = """
            import numpy as np
            import pytest

            @pytest.mark.trtdx(rtol=0.1)
            class TestLoose:
                def test_loose(self, dx):
                    dx.register("a", np.full(3, 1.0))

                @pytest.mark.trtdx(rtol=0.0, atol=0.0)
                def test_strict(self, dx):
                    dx.register("a", np.full(3, 1.0))

            @pytest.mark.trtdx(golden=False)
            def test_none(dx):
                dx.register("a", np.full(3, 1.0))
        """
        run("--trtdx-record", test_a=source)
        assert list(goldens(pytester)) == ["TestLoose::test_loose", "TestLoose::test_strict"]
        result = run("--trtdx", test_a=source.replace("1.0))", "1.05))"))
        result.assert_outcomes(passed=2, failed=1)
        assert "FAILED test_a.py::TestLoose::test_strict" in text_of(result)
        assert "1 differ within the tolerance" in text_of(result)

    def test_a_golden_with_which_nothing_is_compared_fails(self, run, pytester):
        run("--trtdx-record", test_a=ARRAYS)
        for without in ("def test_two(dx):\n    pass", "def test_two():\n    pass"):
            result = run("--trtdx", test_a=without)
            result.assert_outcomes(failed=1)
            assert "but the test registered none, so nothing was compared" in text_of(result)
        path = pytester.path / "__trtdx__" / "test_a.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
        result = run("--trtdx", test_a=ARRAYS)
        result.assert_outcomes(failed=1)
        assert "the golden of this test has no tensor" in text_of(result)

    def test_only_tests_that_pass_are_recorded(self, run, pytester):
        source = """
            import numpy as np
            import pytest

            def test_fails(dx):
                dx.register("a", np.ones(3))
                assert 0

            @pytest.fixture
            def ends_badly():
                yield
                raise ValueError

            def test_ends_badly(dx, ends_badly):
                dx.register("a", np.ones(3))

            def test_skips(dx):
                dx.register("a", np.ones(3))
                pytest.skip("later")

            def test_fine(dx):
                dx.register("a", np.ones(3))
        """
        told = text_of(run("--trtdx-record", test_a=source))
        assert list(goldens(pytester)) == ["test_fine"]
        assert "not recorded, because they failed: test_a.py::test_fails, test_a.py::test_ends_badly" in told

    @pytest.mark.heavy
    def test_goldens_of_removed_tests_are_mentioned_and_dropped_only_when_asked(self, run, pytester):
        both = ARRAYS + "\n    def test_more(dx):\n        dx.register('a', np.ones(2))\n"
        run("--trtdx-record", test_a=both)
        assert "stale" not in text_of(run("--trtdx", "-k", "more"))
        assert "stale" not in text_of(run("--trtdx", "test_a.py::test_two"))
        assert "stale in __trtdx__/test_a.jsonl: test_more" in text_of(run("--trtdx", test_a=ARRAYS))
        run("--trtdx-record")
        assert sorted(goldens(pytester)) == ["test_more", "test_two"]
        assert "1 stale golden dropped" in text_of(run("--trtdx-drop-stale"))
        assert list(goldens(pytester)) == ["test_two"]

    def test_a_golden_file_that_cannot_be_read_is_told_with_its_line(self, run, pytester):
        run("--trtdx-record", test_a=ARRAYS)
        path = pytester.path / "__trtdx__" / "test_a.jsonl"
        path.write_text(path.read_text().replace('{"name":"second"', '<<<<<<< HEAD\n{"name":"second"'))
        result = run("--trtdx")
        result.assert_outcomes(failed=1)
        assert "line 4, is not a line of goldens" in text_of(result)
        assert "resolve it if it is a merge conflict" in text_of(result)

    def test_a_disk_that_refuses_makes_recording_fail(self, run, pytester):
        (pytester.path / "__trtdx__").write_text("in the way")
        result = run("--trtdx-record", test_a=ARRAYS)
        result.assert_outcomes(passed=1)
        assert result.ret == 1
        assert "error: __trtdx__/test_a.jsonl was not written" in text_of(result)

    def test_what_is_not_finite_in_a_passed_test_is_counted_and_is_no_failure(self, run):
        source = """
            import numpy as np

            def test_nan(dx):
                dx.register("a", np.array([1.0, np.nan, np.inf]))
        """
        result = run("--trtdx", test_a=source)
        result.assert_outcomes(passed=1)
        assert "NaN or infinities in 1 passed test:\n  test_a.py::test_nan: a 1 NaN and 1 +Inf of 3" in text_of(result)


@pytest.mark.heavy
def test_workers_of_xdist_lose_no_golden_and_any_test_id_works(pytester):
    pytest.importorskip("xdist")
    pytester.makepyfile(
        test_a="""
        import numpy as np
        import pytest

        IDS = ["a/b", "::", "[x]", "é", " ", 'say "hi"', "new\\nline", "~", *map(str, range(12))]

        @pytest.mark.parametrize("name", IDS)
        def test_odd(dx, name):
            dx.register(name, np.full(3, len(name)))
        """
    )

    def run(*args):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "trtdx.pytest_plugin", "-n", "2", *args],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # the workers start sooner
        )
        return done.stdout

    assert "20 passed" in run("--trtdx-record")
    assert len(goldens(pytester)) == 20
    path = pytester.path / "test_a.py"
    path.write_text(path.read_text().replace("len(name))", "len(name) + (name == '7'))").replace('"~", ', ""))
    told = run("--trtdx")
    assert "19 tests compared with goldens (19 tensors): 1 changed" in told
    assert "7 changed since it was recorded" in told
    assert "stale in __trtdx__/test_a.jsonl: test_odd[~]" in told


def test_the_page_shows_what_is_really_printed(run, imported, pytester):
    page = (ROOT / "docs" / "pytest.md").read_text()
    source = re.search(r"```python file=test_mlp\.py\n(.*?)```", page, re.DOTALL)[1]
    shown = re.search(r"<!-- tests/testing/test_pytest_plugin.*?```text\n(.*?)```", page, re.DOTALL)[1]
    path = pytester.path / "test_mlp.py"
    path.write_text(source)
    run("--trtdx-record").assert_outcomes(passed=1)
    path.write_text(source.replace("reshape(4, 3)", "reshape(4, 3) * np.float32(1.01)"))
    result = run("--trtdx")
    result.assert_outcomes(failed=1)

    def plain(text):
        return re.sub(r"recorded 20.*? by trtdx \S+|^/.*", "", text, flags=re.MULTILINE).strip().splitlines()

    printed = plain(text_of(result))
    begin = printed.index(plain(shown)[0])
    assert printed[begin : begin + len(plain(shown))] == plain(shown)
