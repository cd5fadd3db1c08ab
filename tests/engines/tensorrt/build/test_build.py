"""Compiles with the real TensorRT, in a process that may die of it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from support.paths import SUPPORT

trt = pytest.importorskip("tensorrt_rtx", reason="compiles with the real TensorRT")

from trtdx.engines.tensorrt.bindings import create_builder  # noqa: E402
from trtdx.engines.tensorrt.build.build import build_plan  # noqa: E402
from trtdx.engines.tensorrt.build.errors import BuildCancelledError, BuildCrashedError, BuildError  # noqa: E402
from trtdx.engines.tensorrt.build.nouns import BuildOptions  # noqa: E402
from trtdx.errors import InputError, UnknownNameError  # noqa: E402

HERE = SUPPORT
NETWORKS = f"{HERE / 'network_definitions.py'}:"
PROFILE = "x:1x64,2x64,4x64"
PATIENCE_S = 30


def compiled(name, **more):
    return build_plan(NETWORKS + name, profiles=[PROFILE], **more)


def marked(built):
    return {each.name: each.tensor for each in built.marked}


def is_gone(pid):
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(scope="module")
def built():
    return build_plan(NETWORKS + "mlp", profiles=[PROFILE, {"x": ((1, 64), (8, 64), (64, 64))}])


class TestBuilt:
    def test_the_plan_is_one(self, built):
        assert built.plan().startswith(b"vtrt")
        assert len(built.plan()) == built.plan_size

    def test_memory_is_told_by_profile(self, built):
        assert len(built.activation_bytes) == 2
        assert built.weights_bytes >= 3 * 64 * 64 * 4

    def test_kernels_name_the_layers_they_compute(self, built):
        assert ("layers.0.fc", "layers.0.act") in [kernel.nodes for kernel in built.kernels]
        assert {kernel.profile for kernel in built.kernels} == {0, 1}

    def test_outputs_are_measured_at_the_largest_shape(self, built):
        assert [(each.name, each.most_bytes, each.marked) for each in built.outputs] == [("y", 64 * 64 * 4, False)]

    def test_messages_have_times_and_severities(self, built):
        assert {message.severity for message in built.messages} >= {"INFO", "VERBOSE"}
        times = [message.seconds for message in built.messages]
        assert times == sorted(times)
        assert any("Total Weights Memory" in message.text for message in built.messages)

    def test_it_says_which_tensorrt(self, built):
        assert built.tensorrt == f"tensorrt_rtx {trt.__version__}"


class TestVariants:
    def test_outputs_are_marked_at_build(self):
        built = compiled("mlp", variant="outputs", selector="layers[0,-1].fc")
        assert [each.name for each in built.outputs if each.marked] == [
            "layers.0.fc_output",
            "layers.2.fc_output",
        ]

    def test_debug_tensors_leave_the_outputs_alone(self):
        built = compiled("mlp", variant="debug-tensors", selector="layers.*.fc")
        assert [each.name for each in built.outputs] == ["y"]
        assert len(built.marked) == 3

    def test_register_as_a_parameter(self):
        built = compiled("registered", variant="outputs")
        assert marked(built) == {"hidden0": "layers.0.fc_output", "hidden1": "layers.1.fc_output"}

    def test_register_from_anywhere_in_the_model(self):
        assert marked(compiled("registered_deep_inside", variant="outputs")) == {"deep": "layers.1.fc_output"}

    def test_all_that_tensorrt_llm_named(self):
        assert list(marked(compiled("like_tensorrt_llm", variant="debug-tensors"))) == [
            f"model.layers.{number}.fc" for number in range(3)
        ]

    def test_production_has_nothing_of_it(self):
        built = compiled("registered")
        assert (built.marked, len(built.outputs)) == ((), 1)

    def test_nothing_to_mark_is_an_error(self):
        with pytest.raises(BuildError, match="has nothing to mark") as caught:
            compiled("mlp", variant="outputs")
        assert "layers.*.mlp:out" in caught.value.fix

    def test_a_selector_that_hits_nothing_tells_the_nearest(self):
        with pytest.raises(BuildError, match="nothing is selected") as caught:
            compiled("mlp", variant="outputs", selector="layers.*.fcc")
        assert "layers.0.fc" in caught.value.fix

    def test_inputs_are_left_out_and_told(self):
        built = compiled("mlp", variant="outputs", selector="tensor:x, layers.0.fc")
        assert [each.name for each in built.left_out] == ["x"]
        assert "input" in built.left_out[0].reason

    def test_what_is_inside_a_loop_can_be_no_output(self):
        built = build_plan(NETWORKS + "looped", variant="outputs", selector="body.*.tanh, after")
        assert list(marked(built)) == ["after_output"]
        assert len(built.left_out) == 30
        assert "not allowed to be in a loop" in built.left_out[0].reason

    def test_the_variant_is_one_of_three(self):
        with pytest.raises(UnknownNameError, match="'output'"):
            compiled("mlp", variant="output")


def test_a_builder_is_made_while_another_is_garbage():
    """In a new process: where the second logger is told of while the first builder is collected, TensorRT hangs."""
    script = """
import gc
import tensorrt_rtx as trt
from trtdx.engines.tensorrt.bindings import create_builder

class Collecting(trt.ILogger):
    heard = 0
    def __init__(self):
        trt.ILogger.__init__(self)
    def log(self, severity, message):
        Collecting.heard += 1
        if gc.isenabled():
            gc.collect()

loggers = [Collecting(), Collecting()]
for logger in loggers:
    garbage = [create_builder(trt, logger)]
    garbage.append(garbage)
    del garbage
print(Collecting.heard, gc.isenabled())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["1", "True"], done.stderr


class TestLiveNetworks:
    """An INetworkDefinition of this process is compiled in a fork of it."""

    def network(self):
        from support.network_definitions import mlp
        from support.networks import LOG

        builder = create_builder(trt, LOG)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        return network, mlp(network)

    def test_it_compiles_as_the_function_does(self):
        network, _ = self.network()
        forked, started = build_plan(network, profiles=[PROFILE]), compiled("mlp")
        assert [kernel.nodes for kernel in forked.kernels] == [kernel.nodes for kernel in started.kernels]
        assert forked.plan_size == started.plan_size

    def test_it_is_unchanged_here(self):
        network, hidden = self.network()
        built = build_plan(network, profiles=[PROFILE], variant="outputs", registered={"hidden": hidden[0]})
        assert marked(built) == {"hidden": "layers.0.fc_output"}
        assert (network.num_outputs, hidden[0].is_network_output) == (1, False)

    def test_its_own_logger_hears_nothing_and_we_hear_all(self, log):
        network, _ = self.network()
        built = build_plan(network, profiles=[PROFILE])
        assert not log
        assert any("Engine generation completed" in message.text for message in built.messages)

    def test_tensorrts_own_logger_prints_and_is_read(self):
        """In a new process: TensorRT takes one logger in each."""
        script = f"""
import sys
sys.path.insert(0, {str(SUPPORT.parent)!r})
import tensorrt_rtx as trt
from support.network_definitions import mlp
from trtdx.engines.tensorrt.build.build import build_plan
network = trt.Builder(trt.Logger(trt.Logger.ERROR)).create_network(1)
mlp(network)
built = build_plan(network, profiles=[{PROFILE!r}])
print([kernel.nodes for kernel in built.kernels if kernel.nodes], built.weights_bytes)
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith("[('layers.0.fc', 'layers.0.act')"), done.stderr
        assert "TRT" not in done.stdout

    def test_a_function_object_cannot_be_sent(self):
        with pytest.raises(InputError, match="cannot be compiled by another") as caught:
            build_plan(lambda network: None)
        assert "file.py:function" in caught.value.fix


class TestPlanFile:
    def test_it_is_there_whole_and_nothing_else(self, tmp_path):
        built = compiled("mlp", plan=tmp_path / "deep" / "model.plan")
        assert [each.name for each in (tmp_path / "deep").iterdir()] == ["model.plan"]
        assert (tmp_path / "deep" / "model.plan").stat().st_size == built.plan_size == len(built.plan())

    def test_a_failure_leaves_the_old_one(self, tmp_path):
        plan = tmp_path / "model.plan"
        plan.write_bytes(b"old")
        with pytest.raises(BuildError):
            compiled("killed", plan=plan)
        assert [each.name for each in tmp_path.iterdir()] == ["model.plan"]
        assert plan.read_bytes() == b"old"

    def test_a_full_disk_is_told_and_leaves_nothing(self, tmp_path):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, hard))  # what a disk with so much room would do
        try:
            with pytest.raises(BuildError, match=r"the plan of \d+ bytes cannot be written") as caught:
                compiled("mlp", plan=tmp_path / "model.plan")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert caught.value.stage == "plan"
        assert not list(tmp_path.iterdir())

    def test_an_unwritable_folder_is_told_before_anything_is_compiled(self):
        with pytest.raises(InputError, match=r"cannot be written to /proc/model\.plan"):
            build_plan(NETWORKS + "told_its_id", plan="/proc/model.plan")

    def test_a_folder_is_no_file(self, tmp_path):
        with pytest.raises(InputError, match="is a folder"):
            compiled("mlp", plan=tmp_path)


class TestEnding:
    def test_progress_goes_from_nothing_to_all(self):
        seen = []
        compiled("mlp", progress=seen.append)
        fractions = [each.fraction for each in seen]
        assert fractions == sorted(fractions)
        assert (fractions[0], fractions[-1]) == (0.0, 1.0)
        assert {"Building engine", "Optimizing graph"} <= {each.phase for each in seen}

    def test_the_compiler_stops_when_it_is_asked_to(self):
        with pytest.raises(BuildCancelledError, match="cancelled") as caught:
            compiled("mlp", cancel=lambda: True, options=BuildOptions(cancel_s=PATIENCE_S))
        assert any("canceled by user" in message.text for message in caught.value.messages)

    def test_one_that_does_not_stop_is_ended(self, tmp_path, monkeypatch):
        file = tmp_path / "pid"
        monkeypatch.setenv("TRTDX_TEST_PID", str(file))
        with pytest.raises(BuildCancelledError):
            build_plan(NETWORKS + "told_its_id", cancel=file.exists, options=BuildOptions(cancel_s=0.1))
        assert is_gone(int(file.read_text()))

    def test_one_that_takes_too_long_is_ended(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TRTDX_TEST_PID", str(tmp_path / "pid"))
        with pytest.raises(BuildCancelledError, match=r"longer than 0.2 s"):
            build_plan(NETWORKS + "told_its_id", options=BuildOptions(timeout_s=0.2, cancel_s=0.1))

    def test_control_c_ends_the_child(self, tmp_path, monkeypatch):
        file = tmp_path / "pid"
        monkeypatch.setenv("TRTDX_TEST_PID", str(file))

        def interrupted():
            if file.exists() and file.read_text():
                raise KeyboardInterrupt
            return False

        with pytest.raises(KeyboardInterrupt):
            build_plan(NETWORKS + "told_its_id", cancel=interrupted)
        assert is_gone(int(file.read_text()))

    def test_the_child_ends_with_a_killed_parent(self, tmp_path):
        file = tmp_path / "pid"
        script = f"from trtdx.engines.tensorrt.build.build import build_plan; build_plan({NETWORKS + 'told_its_id'!r})"
        parent = subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "TRTDX_TEST_PID": str(file), "TMPDIR": str(tmp_path)},
        )
        until = time.monotonic() + PATIENCE_S
        while not (file.exists() and file.read_text()) and time.monotonic() < until:
            time.sleep(0.02)
        parent.kill()
        parent.wait(PATIENCE_S)
        assert is_gone(int(file.read_text()))


class TestDying:
    def test_a_killed_child_is_told_as_such(self):
        with pytest.raises(BuildCrashedError, match="was ended by SIGKILL while the network was defined") as caught:
            compiled("killed")
        assert "memory" in caught.value.fix

    def test_a_network_that_kills_tensorrt(self):
        with pytest.raises(BuildCrashedError, match="crashed with SIGSEGV inside TensorRT's compiler") as caught:
            build_plan(f"{HERE / 'faulty_networks.py'}:fp4_left_open")
        assert caught.value.signal == signal.SIGSEGV.name
        assert "the last it said: " in caught.value.message

    def test_one_that_leaves_without_a_word(self):
        with pytest.raises(BuildCrashedError, match=r"ended without a result \(status 0\)"):
            compiled("leaves")

    def test_what_the_user_printed_is_kept(self):
        assert "the user's own words" in [
            message.text for message in compiled("prints").messages if message.severity == "OUTPUT"
        ]

    def test_what_the_user_raised_is_told_with_its_place(self):
        with pytest.raises(BuildError, match=r"AttributeError: .*add_nothing") as caught:
            build_plan(f"{HERE / 'faulty_networks.py'}:raises")
        assert any("faulty_networks.py" in message.text for message in caught.value.messages)


class TestSources:
    def test_a_module_by_name(self, monkeypatch):
        monkeypatch.syspath_prepend(str(HERE))
        assert (
            build_plan("support.network_definitions:mlp", profiles=[PROFILE]).source
            == "support.network_definitions:mlp"
        )

    def test_the_current_folder_is_not_trusted(self, tmp_path, monkeypatch):
        (tmp_path / "msgspec.py").write_text("raise SystemExit('taken over')")
        monkeypatch.chdir(tmp_path)
        assert compiled("mlp").plan_size

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ("nothere.onnx", "there is no file nothere.onnx"),
            ("nothere.py:function", "there is no file nothere.py"),
            (NETWORKS + "mpl", "no function in .* is called 'mpl'"),
            ("no_such_module_of_ours:function", "No module named"),
        ],
    )
    def test_what_is_not_there(self, source, words):
        with pytest.raises((InputError, BuildError), match=words):
            build_plan(source)

    def test_a_job_larger_than_a_pipe_holds(self):
        many = {f"past_key_values.{number}.key": ((1,), (2,), (3,)) for number in range(5000)}
        with pytest.raises(BuildError, match=r"gives shapes for past_key_values\.0\.key"):
            build_plan(NETWORKS + "mlp", profiles=[many])

    def test_a_flag_nobody_knows(self):
        with pytest.raises(BuildError, match="no builder flag is called 'REFITT'") as caught:
            compiled("mlp", options=BuildOptions(flags=("REFITT",)))
        assert "REFIT" in caught.value.fix

    def test_for_other_gpus(self):
        assert compiled("mlp", options=BuildOptions(compute_capabilities=("8.9", "12.0"))).plan_size
