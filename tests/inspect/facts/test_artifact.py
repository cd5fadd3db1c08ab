"""Facts go by one vocabulary; a value of the wrong type is told, never raised."""

from __future__ import annotations

import pytest

from trtdx.errors import RulePageError, UnknownNameError
from trtdx.inspect.facts.artifact import Artifact, FactCollector, shorten_value
from trtdx.inspect.facts.page_examples import deployment_from_example
from trtdx.inspect.facts.vocabulary import TERMS, require_term


def test_a_misspelt_fact_is_an_error_with_the_nearest_name():
    with pytest.raises(UnknownNameError) as caught:
        Artifact("engine", "e").get("max_batchsize")
    assert "max_batch_size" in caught.value.fix


def test_open_families_take_any_name_and_closed_ones_do_not():
    assert require_term("plugin.some_new_plugin").type == "any"
    with pytest.raises(UnknownNameError):
        require_term("tokenizer.sise")


def test_a_value_of_the_wrong_type_is_told_with_its_place():
    facts = FactCollector()
    facts.put("vocab_size", "many", "config.json: vocab_size")
    facts.put("hidden_size", 64.0, "config.json: hidden_size")
    facts.put("num_layers", True, "config.json: num_hidden_layers")
    artifact = Artifact("hf", "m", facts.to_dict())
    assert not artifact.has("vocab_size")
    assert artifact.integer("hidden_size") == 64
    assert artifact.items("malformed") == [
        'config.json: vocab_size = "many": expected a whole number',
        "config.json: num_hidden_layers = true: expected a whole number",
    ]


def test_what_nobody_stated_is_not_a_fact():
    facts = FactCollector()
    facts.put("vocab_size", None, "config.json")
    assert facts.to_dict() == {}
    assert Artifact("hf", "m").evidence("vocab_size")[0].text == "does not state the vocabulary size"


def test_every_term_says_what_it_means():
    for entry in TERMS.values():
        assert entry.meaning
        assert not entry.meaning.endswith(".")


def test_a_huge_value_is_shortened_without_spelling_it_out():
    assert shorten_value(list(range(10**6))) == "list of 1000000 entries"
    assert len(shorten_value("x" * 10**6)) == 120


def test_an_example_of_a_page_becomes_artifacts():
    deployment = deployment_from_example(
        '[hf]\nvocab_size = 3\nrope_scaling = { type = "yarn" }\nquant.per_layer = { a = "FP8" }\n[hf.other]\nvocab_size = 4\n'
    )
    assert [(artifact.kind, artifact.get("vocab_size")) for artifact in deployment.artifacts] == [
        ("hf", 3),
        ("hf", 4),
    ]
    assert deployment.artifacts[0].table("rope_scaling") == {"type": "yarn"}
    assert deployment.artifacts[0].table("quant.per_layer") == {"a": "FP8"}


@pytest.mark.parametrize("text", ["[hf\n", "[hf]\nvocab_size =", "[engin]\na = 1"])
def test_an_example_that_is_none_is_an_error(text):
    with pytest.raises((RulePageError, UnknownNameError)):
        deployment_from_example(text)
