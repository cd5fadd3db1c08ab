"""Weights that do not fit their config, and two different architectures, are findings: nothing else need be compared."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from support.planted_faults import decoder
from trtdx.compare.run import ComparisonPlan, compare
from trtdx.compare.sides.side import ComparisonQuestion
from trtdx.errors import InputError
from trtdx.host import RealHost
from trtdx.render import render_json


def saved(folder, kind="llama", settings=None, **more):
    decoder(kind, **more).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | (settings or {})))
    return folder


def compared(book, reference, candidate):
    question = ComparisonQuestion(prompts=((5, 17, 42, 9),))
    return compare(
        RealHost(),
        ComparisonPlan(reference=f"hf:{reference}", candidate=f"hf:{candidate}", question=question),
        book,
    )


def test_biases_that_the_candidates_config_has_no_place_for_are_missing_biases(book, tmp_path):
    reference = saved(tmp_path / "one", attention_bias=True)
    candidate = saved(tmp_path / "two", attention_bias=True, settings={"attention_bias": False})
    report = compared(book, reference, candidate)
    (finding,) = json.loads(render_json(report))["findings"]
    assert (finding["code"], finding["severity"]) == ("DX987", "error")
    assert finding["where"]["module"].startswith("model.layers.0.self_attn")
    assert any("attention_bias is false, in the reference true" in each["text"] for each in finding["evidence"])


def test_weights_that_the_candidates_config_wants_and_has_not_are_a_finding(book, tmp_path):
    reference, candidate = saved(tmp_path / "one"), saved(tmp_path / "two", settings={"attention_bias": True})
    (finding,) = compared(book, reference, candidate).findings
    assert finding.code == "DX716"
    assert "q_proj.bias" in finding.message or "k_proj.bias" in finding.message


def test_a_setting_that_leaves_weights_over_is_the_cause(book, tmp_path):
    reference = saved(tmp_path / "one", kind="stablelm")
    candidate = saved(tmp_path / "two", kind="stablelm", settings={"use_parallel_residual": True})
    (finding,) = compared(book, reference, candidate).findings
    assert finding.code == "DX927"
    assert "use_parallel_residual is true instead of false" in finding.message


def test_a_model_that_cannot_be_computed_is_no_mistake_of_the_tools(book, tmp_path):
    rotary = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.4,
    }  # three numbers of eight
    reference = saved(tmp_path / "one", kind="stablelm")
    candidate = saved(tmp_path / "two", kind="stablelm", settings={"rope_parameters": rotary})
    with pytest.raises(InputError, match="cannot be computed: The size of tensor"):
        compared(book, reference, candidate)


def test_models_of_another_depth_are_different_architectures(book, tmp_path):
    reference, candidate = saved(tmp_path / "one"), saved(tmp_path / "two", kind="qwen2", num_hidden_layers=2)
    (finding,) = compared(book, reference, candidate).findings
    assert finding.message == "these are different architectures: llama and qwen2; 3 and 2 layers"
