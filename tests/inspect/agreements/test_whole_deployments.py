"""Faults that only show in a whole deployment, made as files and looked at as a user would."""

from __future__ import annotations

import json

import pytest

from support.make_engine import make_engine
from support.make_hf import llama_tensors, make_hf_model, model_config, write_json
from trtdx.host import RealHost
from trtdx.inspect.facts.machine import machine_from_flags
from trtdx.inspect.run import InspectQuestion, inspect_artifacts
from trtdx.knowledge.load import load_book

SMALL = {"num_hidden_layers": 4, "vocab_size": 1024}


@pytest.fixture(scope="module")
def book():
    return load_book(RealHost())


def codes(book, *paths, command="", runtime=""):
    question = InspectQuestion(
        paths=tuple(map(str, paths)),
        commands=(command,) if command else (),
        machine=machine_from_flags(runtime=runtime),
    )
    return [(each.code, each.severity.value) for each in inspect_artifacts(RealHost(), question, book).findings]


def fp8_model(folder, plain=(), excluded=("lm_head",)):
    """Write a model whose products are FP8 with scales, but for some modules in bfloat16."""
    tensors = {}
    for name, (_, shape) in llama_tensors(model_config(**SMALL)).items():
        if name.endswith("_proj.weight") and name.removesuffix(".weight") not in plain:
            tensors[name] = ("F8_E4M3", shape)
            tensors[f"{name}_scale"] = ("F32", ())
            tensors[name.replace("weight", "input_scale")] = ("F32", ())
    model = make_hf_model(folder, tensors=tensors, **SMALL)
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": list(excluded)}
    write_json(model / "hf_quant_config.json", {"producer": {"name": "modelopt"}, "quantization": quantization})
    return model


def test_a_module_in_16_bit_that_an_fp8_model_does_not_exclude_is_an_error(book, tmp_path):
    plain = ("model.layers.2.mlp.down_proj",)
    assert codes(book, fp8_model(tmp_path / "whole")) == []
    assert codes(book, fp8_model(tmp_path / "forgotten", plain)) == [("DX567", "error")]
    assert codes(book, fp8_model(tmp_path / "named", plain, ("lm_head", "model.layers.2.mlp*"))) == []
    assert codes(book, fp8_model(tmp_path / "regex", plain, ("re:.*layers[.]2[.].*",))) == []


def test_a_chat_model_without_template_is_told_whatever_its_folder_is_called(book, tmp_path):
    model = make_hf_model(tmp_path / "m1", tokenizer={"chat_template": None}, **SMALL)
    assert codes(book, command=f"trtllm-serve {model}") == [("DX126", "error")]
    assert codes(book, command=f"trtllm-serve {model} --chat_template t.jinja", runtime="1.2.1") == []


def test_a_base_model_without_template_is_no_matter(book, tmp_path):
    base = {"chat_template": None, "eos_token": "<|end_of_text|>"}
    model = make_hf_model(tmp_path / "chat" / "m2", tokenizer=base, **SMALL)
    known = json.loads((model / "tokenizer.json").read_text())["added_tokens"]
    [end] = [each["id"] for each in known if each["content"] == "<|end_of_text|>"]
    for name in ("generation_config.json", "config.json"):
        write_json(model / name, json.loads((model / name).read_text()) | {"eos_token_id": end})
    assert codes(book, command=f"trtllm-serve {model}") == []


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("mpirun -n 1 python3 run.py --engine_dir {}", [("DX210", "error")]),
        ("python3 examples/run.py --max_output_len 8 --engine_dir={}", [("DX210", "error")]),
        ("srun --mpi=pmix -n 4 ./gptManagerBenchmark --engine_dir {}", [("DX210", "error")]),
        ("torchrun --nproc_per_node=4 mine.py --engine_dir {}", [("DX210", "error")]),
        ("mpiexec -n 1 bash -c 'python3 summarize.py --engine_dir {}'", [("DX210", "error")]),
        ("mpirun -n 1 python3 serve_it_myself.py --engine_dir {}", [("DX210", "warning")]),
        ("mpirun -n 2 --allow-run-as-root python3 run.py --engine_dir {}", []),
        ("srun --mpi=pmix python3 run.py --engine_dir {}", []),
        ("python3 my_llm_api.py --engine_dir {}", []),
    ],
)
def test_any_program_that_opens_an_engine_is_started_for_each_rank(book, tmp_path, command, expected):
    engine = make_engine(tmp_path / "engine", tp_size=2)
    assert codes(book, command=command.format(engine)) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("guided_decoding_backend: outlines", [("DX249", "error")]),
        ("guided_decoding_backend: xgrammar", []),
        ("speculative_config: {decoding_type: Eagle9, max_draft_len: 3}", [("DX249", "error")]),
        ("speculative_config: {decoding_type: Eagle, max_draft_len: 3}", [("DX566", "error")]),
        ("speculative_config: {max_draft_len: 3, speculative_model_dir: org/m}", [("DX566", "error")]),
        ("speculative_config: {decoding_type: Eagle, max_draft_len: 3, speculative_model_dir: org/m}", []),
        ("speculative_config: {decoding_type: NGram, max_draft_len: 3, max_matching_ngram_size: 2}", []),
        ("attn_backend: FLASHMLA", [("DX249", "warning")]),
        ("attn_backend: FLASHINFER", []),
        ("moe_config: {backend: cutlass}", [("DX249", "error")]),
        ("kv_cache_config: {max_tokens: 4096}\nmax_seq_len: 8192", [("DX356", "error")]),
        ("kv_cache_config: {max_tokens: 65536}\nmax_seq_len: 8192", []),
    ],
)
def test_options_have_values_that_their_release_takes(book, tmp_path, options, expected):
    path = tmp_path / "options.yaml"
    path.write_text(options + "\n")
    assert codes(book, path, runtime="1.2.1") == expected


def test_names_of_speculative_decoding_differ_between_releases(book, tmp_path):
    path = tmp_path / "options.yaml"
    path.write_text("speculative_config:\n  decoding_type: DraftTarget\n  max_draft_len: 3\n  speculative_model: a/b\n")
    assert codes(book, path, runtime="1.2.1") == []
    assert codes(book, path, runtime="1.3.0rc22") == [("DX249", "error")]


def test_trtllm_build_is_told_where_the_release_has_lost_it(book):
    command = "trtllm-build --checkpoint_dir ckpt --output_dir engine --max_batch_size 8"
    assert codes(book, command=command, runtime="1.3.0rc22") == [("DX247", "error")]
    assert codes(book, command=command, runtime="1.2.1") == []
