"""A traceback that no page knows says by its frames whose interface changed, or what was being done."""

from __future__ import annotations

import pytest

from trtdx.diagnose.rule_examples import RuleExamples
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book
from trtdx.model import Severity

PACKAGES = "/usr/lib/python3.12/site-packages"


@pytest.fixture(scope="module")
def examples():
    return RuleExamples(load_book(RealHost()))


def traceback(exception, *paths, code="value = call()"):
    frames = [f'  File "{path}", line 7, in run\n    {code}' for path in paths]
    return "\n".join(["Traceback (most recent call last):", *frames, exception])


@pytest.mark.heavy
def test_a_name_that_a_package_does_not_have_names_the_package(examples):
    log = traceback("AttributeError: module 'numpy' has no attribute 'bool8'", f"{PACKAGES}/foo/arrays.py")
    first = examples.diagnose_text(log).findings[0]
    assert first.code == "DX712"
    assert "foo" in first.message
    assert "installed numpy" in first.message


def test_an_argument_that_is_not_taken_names_the_package_that_was_called(examples):
    log = traceback(
        "TypeError: frobnicate() got an unexpected keyword argument 'kv_groups'",
        f"{PACKAGES}/gadget/api.py",
        f"{PACKAGES}/foo/model.py",
    )
    first = examples.diagnose_text(log).findings[0]
    assert first.code == "DX712"
    assert "gadget" in first.message


def test_plain_values_are_no_interface_of_a_package(examples):
    log = traceback("AttributeError: 'NoneType' object has no attribute 'frobnicate'", f"{PACKAGES}/foo/model.py")
    assert "DX712" not in [finding.code for finding in examples.diagnose_text(log).findings]


def test_the_file_in_which_it_ends_tells_what_was_being_done(examples):
    log = traceback("AssertionError", f"{PACKAGES}/tensorrt_llm/lora_manager.py", code="assert scales.ndim == 1")
    first = examples.diagnose_text(log).findings[0]
    assert first.code == "DX115"
    assert "assert scales.ndim == 1" in first.message


def test_a_warning_does_not_hide_the_exception_that_ended_the_program(examples):
    warning = "ucp_context.c:1774 UCX  WARN  UCP version is incompatible, required: 1.17, actual: 1.12 (release 1)"
    log = f"{warning}\n{traceback('FrobnicationError: 7', '/work/script.py')}"
    first, *rest = examples.diagnose_text(log).findings
    assert first.severity is Severity.ERROR
    assert "DX422" in [finding.code for finding in rest]
