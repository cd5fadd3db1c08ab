"""What differs between two artifacts comes most consequential first."""

from __future__ import annotations

import pytest

from trtdx.errors import InputError
from trtdx.inspect.facts.page_examples import deployment_from_example
from trtdx.inspect.sections.difference import NOT_STATED, difference_section


def two(text):
    return deployment_from_example(text).artifacts


def test_what_changes_the_output_comes_before_what_changes_limits():
    here, there = two(
        '[checkpoint]\nmax_positions = 8192\nrotary_base = 10000.0\ndtype = "float16"\nmodel_type = "a"\nrope_scaling = { type = "yarn", factor = 4 }\n'
        '[engine]\nmax_positions = 8192\nrotary_base = 500000.0\ndtype = "bfloat16"\nmodel_type = "b"\nrope_scaling = { type = "yarn", factor = 8 }\n'
    )
    section = difference_section(here, there)
    assert [row[0] for row in section.rows] == ["rope_scaling.factor", "rotary_base", "dtype", "model_type"]
    assert section.rows[0][1:] == ("4", "8", "changes the output")


def test_of_two_of_one_kind_what_only_one_states_differs_too():
    here, there = two("[engine]\nmax_batch_size = 8\nplugin.gemm_plugin = 'auto'\n[engine.other]\nmax_batch_size = 8\n")
    assert difference_section(here, there).rows == (
        ("plugin.gemm_plugin", "auto", NOT_STATED, "changes limits, speed or memory"),
    )


def test_of_two_kinds_only_what_both_state_is_compared():
    here, there = two("[hf]\nvocab_size = 8\ntokenizer.size = 8\n[engine]\nvocab_size = 8\nmax_batch_size = 4\n")
    assert difference_section(here, there).rows == ()


def test_two_notations_of_one_number_do_not_differ():
    here, there = two("[hf]\nnorm_epsilon = 1e-05\n[engine]\nnorm_epsilon = 0.00001\n")
    assert difference_section(here, there).rows == ()


def test_artifacts_with_nothing_in_common_are_refused():
    here, there = two("[lora]\nlora.rank = 8\n[engine]\nmax_batch_size = 4\n")
    with pytest.raises(InputError, match="nothing in common"):
        difference_section(here, there)
