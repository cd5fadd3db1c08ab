"""Faults that make answers wrong without an error fail the default gate; what is only suspicious does not."""

from __future__ import annotations

import json

import pytest
from make_engine import make_checkpoint, make_engine
from make_hf import make_hf_model, make_tokenizer

from trtdx.host import RealHost
from trtdx.inspect import Question, inspect
from trtdx.knowledge import load_book
from trtdx.model import Severity

BOOK = load_book(RealHost())


def worst(*paths, command=""):
    question = Question(paths=tuple(map(str, paths)), commands=(command,) if command else ())
    findings = inspect(RealHost(), question, BOOK).findings
    return (findings[0].code, findings[0].severity) if findings else None


def edited(path, file="config.json", **changes):
    document = json.loads((path / file).read_text())
    (path / file).write_text(json.dumps({k: v for k, v in (document | changes).items() if v is not None}))
    return path


@pytest.mark.parametrize("size", [700, 1700])
def test_the_tokenizer_of_another_family_beside_an_engine(tmp_path, size):
    engine, tokenizer = make_engine(tmp_path / "engine"), make_tokenizer(tmp_path / "tok", vocab_size=size)
    assert worst(engine, tokenizer) == ("DX509", Severity.ERROR)


def test_a_padded_vocabulary_beside_its_tokenizer_is_fine(tmp_path):
    engine, tokenizer = make_engine(tmp_path / "engine"), make_tokenizer(tmp_path / "tok", vocab_size=2010)
    assert worst(engine, tokenizer) is None


def test_a_template_that_ends_turns_at_a_token_where_nothing_stops(tmp_path):
    model = make_hf_model(tmp_path / "hf")
    edited(model, "generation_config.json", eos_token_id=[1793])
    edited(model, "tokenizer_config.json", eos_token="<|end_of_text|>")
    assert worst(model) == ("DX502", Severity.ERROR)


def test_a_scaling_that_was_deleted(tmp_path):
    model = make_hf_model(tmp_path / "hf", vocab_size=128256)
    assert worst(model) is None
    assert worst(edited(model, rope_scaling=None)) == ("DX816", Severity.ERROR)


@pytest.mark.parametrize("make", [make_hf_model, make_checkpoint])
@pytest.mark.parametrize("size", [1500, 4096])
def test_a_vocabulary_that_is_not_that_of_the_tensors(tmp_path, make, size):
    made = make(tmp_path / "made")
    assert worst(made) is None
    assert worst(edited(tmp_path / "made", vocab_size=size)) == ("DX094", Severity.ERROR)


def test_an_engine_that_is_longer_than_the_positions(tmp_path):
    assert worst(make_engine(tmp_path / "engine", max_seq_len=262144)) == ("DX809", Severity.ERROR)


def test_a_command_line_against_its_file(tmp_path):
    options = tmp_path / "extra.yaml"
    options.write_text("tensor_parallel_size: 4\n")
    command = f"trtllm-serve org/name --tp_size {{}} --extra_llm_api_options {options}"
    assert worst(command=command.format(2)) == ("DX262", Severity.ERROR)
    assert worst(command=command.format(4)) is None
