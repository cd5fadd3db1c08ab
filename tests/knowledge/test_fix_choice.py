"""One page, the right commands for the release that runs."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from trtdx.diagnose.run import diagnose_sources, source_from_text
from trtdx.knowledge.fix_choice import fixes_for_release
from trtdx.model import Fix, Stage
from trtdx.render.text import render_text
from trtdx.rule import RuleBook

OLD = Fix(Stage.BUILD, "old", "python3 build.py", holds_for="<0.8")
ENGINE = Fix(Stage.BUILD, "engine", "trtllm-build", holds_for=">=0.8,<1.3.0rc21")
ANY = Fix(Stage.SERVE, "any")


@pytest.mark.parametrize(
    ("release", "texts"),
    [
        ("0.7.1", ["old", "any"]),
        ("0.12.0", ["engine", "any"]),
        ("1.3.0rc22", ["any"]),
        ("", ["old", "engine", "any"]),
    ],
)
def test_only_fixes_of_the_release_are_shown_and_all_where_it_is_unknown(release, texts):
    assert [fix.text for fix in fixes_for_release((OLD, ENGINE, ANY), release)] == texts


def test_a_fix_says_its_releases_only_where_they_are_in_doubt():
    assert [fix.statement for fix in fixes_for_release((OLD, ENGINE), "0.12.0")] == ["engine"]
    assert [fix.statement for fix in fixes_for_release((OLD, ENGINE), "0.7.1", "0.9.0")] == [
        "old (for TensorRT-LLM <0.8)",
        "engine (for TensorRT-LLM >=0.8,<1.3.0rc21)",
    ]


def test_a_reader_is_never_left_without_a_fix():
    assert fixes_for_release((OLD,), "1.2.1") == (OLD,)


@pytest.mark.parametrize(
    ("stated", "shown", "hidden"),
    [
        ("[TensorRT-LLM] TensorRT-LLM version: 0.12.0", "the old way", "the new way"),
        ("[TensorRT-LLM] TensorRT-LLM version: 1.2.1", "the new way", "the old way"),
    ],
)
def test_a_log_that_states_its_release_gets_the_commands_for_it(rule, stated, shown, hidden):
    text = _diagnose_text(rule, f"{stated}\n[TensorRT-LLM][ERROR] the widget is jammed\n")
    assert shown in text
    assert hidden not in text


def test_a_log_that_tells_no_release_gets_all_commands_with_their_releases(rule):
    text = _diagnose_text(rule, "ERROR the widget is jammed\n")
    assert "the old way (for TensorRT-LLM <0.20)" in text
    assert "the new way (for TensorRT-LLM >=0.20)" in text


def _diagnose_text(rule, log):
    page = rule("DX900", "the widget is jammed")
    fixes = tuple(
        Fix(Stage.BUILD, text, holds_for=span) for text, span in (("the old way", "<0.20"), ("the new way", ">=0.20"))
    )
    page = msgspec.structs.replace(page, front=msgspec.structs.replace(page.front, fix=fixes))
    return render_text(diagnose_sources([source_from_text(log)], RuleBook([page])), color=False)


def explain(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "trtdx", "explain", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.heavy
def test_explain_shows_the_commands_of_one_release():
    every = explain("DX210").stdout
    assert "## Commands" in every
    assert "## Commands" in explain("DX210", "--runtime", "1.2.1").stdout
    fixes = json.loads(explain("DX210", "--runtime", "v1.2.1", "--json").stdout)["front"]["fix"]
    assert all(not fix["holds_for"] for fix in fixes)
    refused = explain("DX210", "--runtime", "soon")
    assert refused.returncode == 2
    assert "'soon' is not a release" in refused.stderr
