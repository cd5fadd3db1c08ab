"""A TensorRT-LLM that runs, tapped in place. Both sides need a GPU, so mocks with the same attributes stand in."""

from __future__ import annotations

import pytest

from trtdx.capture.store.format import CaptureHeader
from trtdx.capture.store.reader import Capture
from trtdx.capture.store.writer import CaptureWriter
from trtdx.engines.tensorrt_llm import capture_session, module_of, show_buffers
from trtdx.engines.torch.hooks import tapped
from trtdx.errors import InputError
from trtdx.tensors.statistics import source_from_torch
from trtdx.tensors.taps import parse_selector

torch = pytest.importorskip("torch", reason="sessions and models hold torch tensors")


class MockSession:
    """A GenerationSession as far as its debug mode goes: a buffer each step, dumped by a method of its own."""

    def __init__(self, debug_mode=True):
        self.debug_mode, self.debug_buffer, self.files = debug_mode, {}, []

    def decode(self, steps):
        for step in range(steps):
            self.debug_buffer = {
                "transformer.layers.0.mlp_output": torch.full((2, 3), float(step), dtype=torch.float16),
                "transformer/layers/1/mlp_output": torch.ones(2, dtype=torch.int32),
                "logits": torch.zeros(4),
            }
            if self.debug_mode:
                self.dump_debug_buffers(step)

    def dump_debug_buffers(self, step):
        self.files.append(step)


def test_every_step_of_a_session_is_captured_in_its_own_types(tmp_path):
    session = MockSession()
    with CaptureWriter(tmp_path / "capture", CaptureHeader(run="session", engine="tensorrt_llm")) as writer:

        def sink(seen):
            writer.add(seen.step, seen.place, source_from_torch(seen.tensor), values=True)

        with capture_session(session, sink):
            session.decode(3)
    session.decode(1)
    assert session.files == [0]  # only after the block, by its own method
    with Capture(tmp_path / "capture") as capture:
        assert len(capture) == 9
        types = {each.place.path: each.layout.dtype for each in capture.records()}
    assert types["transformer.layers.0.mlp_output"] == "float16"
    assert types["transformer.layers.1.mlp_output"] == "int32"


def test_a_selector_chooses_and_files_can_be_kept():
    session, seen = MockSession(), []
    with capture_session(session, seen.append, "layers.*.mlp_output", files=True):
        session.decode(2)
    assert [(each.step, each.place.tensor) for each in seen] == [
        (0, "transformer.layers.0.mlp_output"),
        (0, "transformer/layers/1/mlp_output"),
        (1, "transformer.layers.0.mlp_output"),
        (1, "transformer/layers/1/mlp_output"),
    ]
    assert session.files == [0, 1]


def test_a_session_that_is_not_in_debug_mode_is_refused():
    with (
        pytest.raises(InputError, match="not made in debug mode") as caught,
        capture_session(MockSession(False), print),
    ):
        pass
    assert "--enable_debug_output" in caught.value.fix


def test_buffers_of_which_nothing_is_selected_name_what_there_is():
    with pytest.raises(InputError, match="nothing is selected") as caught:
        show_buffers({"logits": torch.zeros(1)}, print, 0, parse_selector("tensor:logit"))
    assert "logits" in caught.value.fix


class Mock:
    def __init__(self, **attributes):
        vars(self).update(attributes)


class GenerationExecutorProxy(Mock): ...


class GenerationExecutorWorker(Mock): ...


class Executor(Mock): ...


class LLM(Mock): ...


class Decoder(torch.nn.Module):
    """A causal model as TensorRT-LLM's are: the decoder inside is called `model` as well."""

    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.model(x)


def whole(model):
    worker = GenerationExecutorWorker(engine=Mock(model_engine=Mock(model=model)))
    return LLM(_executor=worker)


def test_the_module_is_found_from_the_llm_and_from_everything_inside_it():
    model = Decoder()
    llm = whole(model)
    worker = llm._executor
    for start in (llm, worker, worker.engine, worker.engine.model_engine, model):
        assert module_of(start) is model


def test_it_is_tapped_where_it_runs():
    llm, seen = whole(Decoder()), []
    with tapped(module_of(llm), parse_selector("model:out"), seen.append):
        llm._executor.engine.model_engine.model(torch.ones(1, 2))
    assert [each.place.path for each in seen] == ["model"]


def test_a_model_in_another_process_is_told_and_what_to_do():
    with pytest.raises(
        InputError, match="lives in another process: its executor is a GenerationExecutorProxy"
    ) as caught:
        module_of(LLM(_executor=GenerationExecutorProxy()))
    assert "TLLM_WORKER_USE_SINGLE_PROCESS=1" in caught.value.fix


def test_an_engine_has_no_module():
    with pytest.raises(InputError, match="runs a TensorRT engine"):
        module_of(LLM(_executor=GenerationExecutorWorker(engine=Executor())))


def test_an_llm_that_was_shut_down_is_told():
    with pytest.raises(InputError, match="the LLM has no _executor"):
        module_of(LLM(_executor=None))


def test_something_else_is_refused():
    with pytest.raises(InputError, match="no torch module was found in this Mock"):
        module_of(Mock())
