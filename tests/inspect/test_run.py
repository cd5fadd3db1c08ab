"""A whole deployment on disk: correct, it yields nothing at all; with one mistake, exactly that mistake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.make_engine import make_checkpoint, make_engine
from support.make_hf import make_hf_model, make_lora, make_tokenizer
from support.make_triton import make_triton
from trtdx.errors import InputError
from trtdx.host import RealHost
from trtdx.inspect.facts.machine import machine_from_flags
from trtdx.inspect.run import InspectQuestion, inspect_artifacts
from trtdx.knowledge.load import load_book

BOOK = load_book(RealHost())
LORA = {
    "lora_plugin": "bfloat16",
    "lora_config": {"lora_target_modules": ["attn_q", "attn_k", "attn_v", "attn_dense"], "max_lora_rank": 64},
}
MACHINE = {"runtime": "1.2.1", "gpu": "L40S", "gpus": 2}


class Deployment:
    """Hugging Face model -> checkpoint -> engine for two ranks -> Triton, each part made with its changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes = {"hf": {}, "checkpoint": {}, "engine": {}, "triton": {}, "machine": dict(MACHINE)}
        self.more: list[str] = []
        self.commands: list[str] = []

    def report(self):
        hf, checkpoint, engine, triton = (str(self.folder / name) for name in ("hf", "ckpt", "engine", "triton"))
        if not (self.folder / "hf").exists():
            make_hf_model(hf, **self.changes["hf"])
        make_checkpoint(checkpoint, **({"tp_size": 2} | self.changes["checkpoint"]))
        make_engine(engine, **({"tp_size": 2} | self.changes["engine"]))
        make_triton(Path(triton), engine, hf, **self.changes["triton"])
        question = InspectQuestion(
            paths=(hf, checkpoint, triton, *self.more),
            commands=tuple(self.commands),
            machine=machine_from_flags(**self.changes["machine"]),
        )
        return inspect_artifacts(RealHost(), question, BOOK)


@pytest.fixture
def deployment(tmp_path):
    return Deployment(tmp_path)


def test_a_correct_deployment_yields_nothing_at_all(deployment):
    deployment.more = [str(make_lora(deployment.folder / "lora"))]
    deployment.changes["engine"] |= {
        "lora_plugin": "bfloat16",
        "lora_config": {
            "lora_target_modules": ["attn_q", "attn_k", "attn_v", "attn_dense"],
            "max_lora_rank": 64,
        },
    }
    report = deployment.report()
    assert [finding.message for finding in report.findings] == []
    assert report.summary.partial == ()
    assert report.summary.inputs == 5  # the engine is found through the Triton repository


@pytest.mark.parametrize("tp", [1, 4, 8])
def test_a_correct_server_of_the_pytorch_backend_yields_nothing(tmp_path, tp):
    model = make_hf_model(tmp_path / "hf")
    options = tmp_path / "extra.yaml"
    options.write_text("kv_cache_config:\n  free_gpu_memory_fraction: 0.8\n  enable_block_reuse: true\n")
    command = f"mpirun -n 1 trtllm-serve {model} --tp_size {tp} --max_batch_size 64 --extra_llm_api_options {options}"
    report = inspect_artifacts(
        RealHost(),
        InspectQuestion((str(model),), (command,), machine_from_flags(runtime="1.2.1", gpu="H100", gpus=tp)),
        BOOK,
    )
    assert [finding.message for finding in report.findings] == []


KV_FP8 = {"quantization": {"kv_cache_quant_algo": "FP8"}}
NO_SCALES = {f"transformer.layers.{layer}.attention.kv_cache_scaling_factor": None for layer in range(32)}
SMALLER = {"num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16}
MISTAKES = {
    # wrong output, in silence
    "rope scaling dropped by the converter": ("DX471", {"checkpoint": {"rotary_scaling": None}, "engine": {"rotary_scaling": None}}),
    "another rotary base": ("DX471", {"checkpoint": {"rotary_base": 10000.0}, "engine": {"rotary_base": 10000.0}}),
    "an epsilon of another model": ("DX500", {"checkpoint": {"norm_epsilon": 1e-6}, "engine": {"norm_epsilon": 1e-6}}),
    "an engine with less vocabulary": ("DX801", {"engine": {"vocab_size": 1792}}),
    "no output layer in the checkpoint": ("DX486", {"checkpoint": {"tensors": {"lm_head.weight": None}}}),
    "an end of turn that does not end": ("DX502", {"hf": {"generation": {"eos_token_id": 1793}, "eos_token_id": 1793, "tokenizer": {"eos_token": "<|end_of_text|>"}}}),
    "a cache quantised without scales": ("DX104", {"checkpoint": KV_FP8 | {"tensors": NO_SCALES}, "engine": KV_FP8}),
    # fails to load
    "an engine of another model": ("DX806", {"engine": SMALLER}),
    "a plan too few": ("DX205", {"engine": {"ranks": 1}}),
    "an engine of another release": ("DX200", {"machine": {"runtime": "0.20.0"}}),
    "an engine of another GPU": ("DX201", {"machine": {"gpu": "H100"}}),
    "too few GPUs": ("DX467", {"machine": {"gpus": 1}}),
    "an unfilled template": ("DX219", {"triton": {"decoupled_mode": None}}),
    "more beams than the engine": ("DX212", {"triton": {"max_beam_width": "4"}}),
    "logits of another type": ("DX238", {"triton": {"logits_datatype": "TYPE_FP16", "ensemble_logits_datatype": "TYPE_FP16"}}),
}  # fmt: skip


@pytest.mark.parametrize(("code", "changes"), MISTAKES.values(), ids=MISTAKES)
def test_one_mistake_is_found_as_that_mistake_alone(deployment, code, changes):
    for part, values in changes.items():
        deployment.changes[part] |= values
    assert [finding.code for finding in deployment.report().findings] == [code]


def damage(folder, name, data=None, size=None):
    path = folder / name
    if data is not None:
        path.write_bytes(data)
    elif size is not None:
        os.truncate(path, size)
    else:
        path.unlink()


DAMAGES = {
    "a shard that was never fetched": ("DX086", "model-00002-of-00004.safetensors", {"data": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"}),
    "a shard that is missing": ("DX088", "model-00003-of-00004.safetensors", {}),
    "a shard that is cut off": ("DX087", "model-00001-of-00004.safetensors", {"size": 1 << 20}),
    "a shard that claims too much": ("DX087", "model-00004-of-00004.safetensors", {"data": (1 << 60).to_bytes(8, "little") + b"{}"}),
    "a configuration that is half written": ("DX133", "config.json", {"size": 100}),
}  # fmt: skip


@pytest.mark.parametrize(("code", "name", "how"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_model_is_told_as_damaged(tmp_path, code, name, how):
    damage(make_hf_model(tmp_path / "hf"), name, **how)
    report = inspect_artifacts(RealHost(), InspectQuestion((str(tmp_path / "hf"),)), BOOK)
    assert [finding.code for finding in report.findings] == [code]


def test_two_tokenizers_in_triton_give_other_words(deployment):
    other = make_tokenizer(deployment.folder / "other", 1500)
    deployment.changes["triton"] |= {"postprocessing_tokenizer_dir": str(other)}
    assert "DX887" in [finding.code for finding in deployment.report().findings]


def test_an_adapter_of_higher_rank_than_the_engine_takes(deployment):
    deployment.more = [str(make_lora(deployment.folder / "lora", r=128))]
    deployment.changes["engine"] |= LORA
    assert [finding.code for finding in deployment.report().findings] == ["DX115"]


def test_a_path_that_is_nothing_gets_the_list_of_what_was_looked_for(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing of the kind")
    with pytest.raises(InputError) as caught:
        inspect_artifacts(RealHost(), InspectQuestion((str(tmp_path / "notes.txt"),)), BOOK)
    assert caught.value.message.count("\n  - ") >= 10


def test_what_an_artifact_refers_to_and_is_not_there_is_no_crash(tmp_path):
    triton = make_triton(tmp_path / "triton", str(tmp_path / "engine"), str(tmp_path / "hf"))
    report = inspect_artifacts(RealHost(), InspectQuestion((str(triton),)), BOOK)
    assert report.summary.inputs == 1
