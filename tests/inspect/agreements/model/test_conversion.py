"""Models, checkpoints and engines: what conversion loses is found, and what it only renames is not."""

from __future__ import annotations

import json

import pytest

from support.make_families import FAMILIES
from trtdx.host import RealHost
from trtdx.inspect.agreements import agreement_table, agreements_in
from trtdx.inspect.agreements.model import conversion, positions, weights
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.facts.page_examples import deployment_from_example
from trtdx.inspect.readers import read_artifact
from trtdx.model import Severity


def found(text):
    deployment = deployment_from_example(text)
    return [
        (row.code, violation)
        for row in agreements_in(positions, weights, conversion)
        for violation in row.check(deployment)
    ]


def codes(text):
    return [code for code, _ in found(text)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_was_converted_rightly_yields_nothing(family, tmp_path):
    artifacts = []
    for name, config in zip(("model", "checkpoint"), FAMILIES[family], strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        artifacts.append(read_artifact(RealHost(), str(tmp_path / name)))
    assert [artifact.kind for artifact in artifacts] == ["hf", "checkpoint"]
    deployment = Deployment(tuple(artifacts))
    told = [
        (row.code, violation.values)
        for row in agreements_in(positions, weights, conversion)
        for violation in row.check(deployment)
    ]
    assert [each for each in told if each[0] != "DX131"] == [], "only configurations are there, no weights"


def test_what_the_checkpoint_lost_is_told_once_though_the_engine_lacks_it_too():
    text = """
    [hf]
    rotary_base = 500000.0
    rope_scaling = { type = "llama3", factor = 8.0 }
    [checkpoint]
    rotary_base = 500000.0
    [engine]
    rotary_base = 500000.0
    """
    [(code, violation)] = found(text)
    assert code == "DX471"
    assert violation.severity is Severity.ERROR
    assert [each.where for each in violation.evidence] == ["hf: rope_scaling", "checkpoint"]


def test_the_place_of_the_loss_is_named_when_it_was_the_build():
    text = """
    [hf]
    norm_epsilon = 1e-6
    [checkpoint]
    norm_epsilon = 1e-6
    [engine]
    norm_epsilon = 1e-5
    """
    [(_, violation)] = found(text)
    assert violation.values["remedy"] == "build the engine again from this checkpoint"
    assert violation.values["command"] == "trtllm-build --checkpoint_dir checkpoint --output_dir engine.new"


def test_another_model_is_one_finding_and_nothing_else_is_compared():
    text = """
    [hf]
    hidden_size = 4096
    num_layers = 32
    num_heads = 32
    vocab_size = 128256
    norm_epsilon = 1e-5
    rotary_base = 500000.0
    [engine]
    hidden_size = 2048
    num_layers = 16
    num_heads = 8
    vocab_size = 32000
    norm_epsilon = 1e-6
    rotary_base = 10000.0
    """
    assert codes(text) == ["DX806"]


def test_a_draft_model_beside_the_target_is_not_taken_for_its_engine():
    text = """
    [hf]
    hidden_size = 4096
    num_layers = 32
    num_heads = 32
    [engine]
    hidden_size = 4096
    num_layers = 32
    num_heads = 32
    [engine.other]
    hidden_size = 2048
    num_layers = 16
    num_heads = 8
    vocab_size = 32000
    """
    assert codes(text) == []


def test_two_models_that_fit_one_engine_are_not_guessed_between():
    text = """
    [hf]
    hidden_size = 4096
    vocab_size = 128256
    [hf.other]
    hidden_size = 4096
    vocab_size = 128264
    [engine]
    hidden_size = 4096
    vocab_size = 32000
    """
    assert codes(text) == []


def test_an_encoder_decoder_is_not_compared_with_one_of_its_halves():
    text = """
    [hf]
    encoder_decoder = true
    num_layers = 12
    hidden_act = "relu"
    [engine]
    encoder_decoder = true
    num_layers = 6
    hidden_act = "gelu"
    """
    assert codes(text) == []


@pytest.mark.parametrize(
    ("size", "tp_size", "expected"),
    [
        (32003, 1, []),
        (32004, 4, []),  # filled up for the ranks
        (32064, 1, []),  # by ModelOpt
        (32128, 1, []),  # by Megatron
        (32256, 2, []),
        (32129, 1, ["DX801"]),
        (32000, 1, ["DX801"]),
    ],
)
def test_a_vocabulary_may_be_filled_up_and_nothing_else(size, tp_size, expected):
    text = f"[hf]\nvocab_size = 32003\n[engine]\nvocab_size = {size}\ntp_size = {tp_size}\n"
    assert codes(text) == expected


def test_a_lost_row_and_another_vocabulary_are_graver_than_one_row_too_many():
    smaller = found("[hf]\nvocab_size = 32003\n[engine]\nvocab_size = 32000\n")
    other = found("[hf]\nvocab_size = 32000\n[engine]\nvocab_size = 64000\n")
    padded = found("[hf]\nvocab_size = 32000\n[engine]\nvocab_size = 32256\n")
    told = [violation.severity for _, violation in (*smaller, *other, *padded)]
    assert told == [None, None, Severity.WARNING]  # None: as the page says, which is an error


def test_float16_is_grave_only_for_models_that_are_known_to_overflow():
    def told(model_type):
        text = f'[hf]\nmodel_type = "{model_type}"\ndtype = "bfloat16"\n[engine]\ndtype = "float16"\n'
        [(_, violation)] = found(text)
        return violation.severity

    assert told("gemma2") is Severity.ERROR
    assert told("llama") is Severity.NOTE


def test_paths_in_commands_are_quoted():
    deployment = deployment_from_example("[hf]\nnorm_epsilon = 1e-6\n[checkpoint]\nnorm_epsilon = 1e-5\n")
    artifacts = tuple(type(each)(each.kind, f"/my models/{each.kind}/", each.facts) for each in deployment.artifacts)
    [violation] = conversion.norm_epsilon.check(Deployment(artifacts))
    assert "--model_dir '/my models/hf/' --output_dir '/my models/checkpoint.new'" in violation.values["command"]


def test_an_artifact_that_states_nothing_disagrees_with_nothing():
    kinds = ("hf", "tokenizer", "checkpoint", "engine", "llm-args", "command", "triton", "lora", "machine")
    deployment = deployment_from_example("".join(f"[{kind}]\n" for kind in kinds))
    assert [row.code for row in agreement_table() for _ in row.check(deployment)] == []
