"""Every page is held against the inventory, the atlas and its sources; what is still open stands in a list.

`open_problems.txt` has one line for each page and kind of problem that is still there. It may only shrink: a reader who
mends a page takes its line out.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from trtdx.host import RealHost
from trtdx.inspect.mentions.page_claims import VALUE, check_claims, page_fixes
from trtdx.knowledge.load import check_pages, packaged_folder, read_pages
from trtdx.knowledge.page_sources import check_sources
from trtdx.render.markdown import is_command

FOLDER = str(packaged_folder())
RULES = check_pages(RealHost(), FOLDER)[0]
TEXTS = dict(read_pages(RealHost(), FOLDER))
OPEN = {tuple(line.split()) for line in (Path(__file__).parent / "open_problems.txt").read_text().splitlines() if line}


def codes_with(problems):
    return {(problem.check, re.search(r"(DX\d+)-", problem.path)[1]): str(problem) for problem in problems}


@pytest.mark.heavy
def test_what_pages_mention_is_there_in_the_releases_they_speak_of():
    problems = codes_with(check_claims(RULES, TEXTS))
    assert {message for key, message in problems.items() if key not in OPEN} == set()


def test_pages_name_their_sources_and_show_what_programs_print():
    problems = codes_with(problem for problem in check_sources(RULES) if not problem.is_note)
    assert {message for key, message in problems.items() if key not in OPEN} == set()


def test_the_list_of_open_problems_names_pages_that_are_there():
    in_force = {rule.code for rule in RULES if not rule.front.retired}
    assert {code for _, code in OPEN} - in_force == set()


@pytest.mark.heavy
@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_no_command_has_what_shellcheck_calls_an_error(tmp_path):
    texts = {VALUE.sub("X", text): rule.code for rule in RULES for text in shell_texts(rule)}
    for number, (text, code) in enumerate(texts.items()):
        (tmp_path / f"{code}-{number}.sh").write_text(f"{text}\n")
    done = subprocess.run(
        ["shellcheck", "--shell=bash", "--severity=error", "--format=json", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    problems = json.loads(done.stdout)
    assert [(Path(one["file"]).stem, one["message"]) for one in problems] == []


def shell_texts(rule):
    yield from (fix.command for fix in page_fixes(rule) if fix.command and fix.lang == "sh")
    if is_command(rule.front.verify):
        yield rule.front.verify


def test_no_command_upgrades_past_what_a_release_asks_for():
    """TensorRT-LLM pins TensorRT: `pip install -U tensorrt` brings a major version that it cannot load."""
    upgrade = re.compile(r"pip3? install [^;&|#]*(?:-U|--upgrade)[^;&|#]*(?<![\w-])tensorrt(?![\w=~<-])")
    assert [rule.code for rule in RULES for text in shell_texts(rule) if upgrade.search(text)] == []


def test_the_banner_of_tensorrt_llm_does_not_get_into_a_command():
    # The import prints the version on standard output (0.8 to 1.3.0rc22), so a shell would paste two lines.
    pasted = re.compile(r"\$\([^)]*import tensorrt_llm[^|]*?\)'\)")
    assert {path for path, text in TEXTS.items() if pasted.search(text)} == set()


def test_scripts_that_run_engines_are_not_offered_where_engines_are_gone():
    # They are still in the tree of 1.3.0rc21 and later, but what they import or fill is not.
    scripts = re.compile(r"examples/(?:run|summarize)\.py|triton_backend/tools/fill_template\.py -i")
    late = {
        rule.code
        for rule in RULES
        for fix in page_fixes(rule)
        if scripts.search(fix.command or "") and "<1.3.0rc21" not in (fix.holds_for or rule.front.holds_for or "")
    }
    assert late == set()
