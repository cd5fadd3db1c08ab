"""Plans run real commands: what is stale is made, what is not is left alone, and nothing is ever half there."""

from __future__ import annotations

import json
import os
import time

import pytest

pytest.importorskip("blake3")

from trtdx.build.plan.read_plan import read_plan
from trtdx.build.plan.state import PlanState
from trtdx.build.plan.templates import read_template, template_names
from trtdx.build.run import clean_plan, examine_plan, plan_cleanup, repeat_plan, run_plan, undo_clean, verify_folder
from trtdx.errors import InputError, TrtdxError
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book

BOOK = load_book(RealHost())
PLAN = """
output: out
variables: {word: hello}
tools: {shout: cat version.txt}
steps:
  convert:
    inputs: [config.json, data]
    outputs: [checkpoint]
    uses_variables: [DEMO_FLAVOUR]
    command: |
      mkdir {{ output }} && cat {{ inputs.0 }} {{ inputs.1 }}/* > {{ output }}/all.txt && echo run >> runs-convert
  compile:
    inputs: ["@convert"]
    outputs: [engine.txt]
    tools: [shout]
    command: (echo {{ word }}; wc -c < {{ input }}/all.txt) > {{ output }}; echo run >> runs-compile
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/one.txt").write_text("1111")
    (tmp_path / "config.json").write_text('{"dtype": "float16", "layers": {"count": 2}}')
    (tmp_path / "version.txt").write_text("10.3\n")
    (tmp_path / "plan.yaml").write_text(PLAN)
    return tmp_path


def build(project, plan="plan.yaml", **options):
    report = run_plan(RealHost(), str(project / plan), BOOK, **options)
    return {row[0]: row[1] for row in report.sections[0].rows}, report


def status(project, plan="plan.yaml"):
    report = examine_plan(RealHost(), str(project / plan))
    return {row[0]: row[2] for row in report.sections[0].rows}


def runs(project, step):
    path = project / f"runs-{step}"
    return len(path.read_text().splitlines()) if path.exists() else 0


def tree_of(folder):
    """Return every file outside the plan's own state, with its contents."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".trtdx" not in path.parts and path.name != "manifest.json"
    }


def test_a_plan_is_built_once(project):
    assert build(project)[0] == {"convert": "made", "compile": "made"}
    assert build(project)[0] == {"convert": "fresh", "compile": "fresh"}
    assert status(project) == {"convert": "", "compile": ""}
    assert (runs(project, "convert"), runs(project, "compile")) == (1, 1)


def touch(project):
    os.utime(project / "config.json", (1, 1))


def rewrite_same(project):
    text = (project / "config.json").read_text()
    (project / "config.json").unlink()
    (project / "config.json").write_text(text)


def add_log(project):
    (project / "logs").mkdir()
    (project / "logs/notes.txt").write_text("a comment")


def comment_plan(project):
    (project / "plan.yaml").write_text("# a comment\n" + PLAN)


def other_variable(project):
    os.environ["DEMO_UNRELATED"] = "x"


@pytest.mark.parametrize("change", [touch, rewrite_same, add_log, comment_plan, other_variable])
def test_what_cannot_change_a_result_makes_nothing_stale(project, change):
    build(project)
    change(project)
    assert status(project) == {"convert": "", "compile": ""}


CHANGES = [
    (
        lambda p: (p / "config.json").write_text('{"dtype": "bfloat16", "layers": {"count": 2}}'),
        "config.json: dtype float16 → bfloat16",
    ),
    (
        lambda p: (p / "config.json").write_text('{"dtype": "float16", "layers": {"count": 3}, "new": true}'),
        "config.json: layers.count 2 → 3; new (not set) → true",
    ),
    (lambda p: (p / "data/one.txt").write_text("2222"), "data/one.txt: its contents"),
    (lambda p: (p / "data/two.txt").write_text("22"), "new: data/two.txt"),
    (lambda p: (p / "data/one.txt").rename(p / "data/three.txt"), "gone: data/one.txt"),
    (lambda p: os.environ.__setitem__("DEMO_FLAVOUR", "sweet"), "variable DEMO_FLAVOUR: not set → sweet"),
    (
        lambda p: (p / "out/checkpoint/all.txt").write_text("by hand"),
        "outputs were changed by hand: checkpoint/all.txt",
    ),
    (lambda p: (p / "out/checkpoint/all.txt").unlink(), "outputs are gone: checkpoint/all.txt"),
    (lambda p: (p / "plan.yaml").write_text(PLAN.replace("mkdir {{", "mkdir -p {{")), "the command: (nothing) → -p"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=[words[:30] for _, words in CHANGES])
def test_what_changed_is_said_and_made_again(project, change, words, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    build(project)
    change(project)
    reasons = status(project)
    assert words in reasons["convert"]
    assert "reads what convert makes" in reasons["compile"]
    assert build(project)[0]["convert"] == "made"
    assert status(project) == {"convert": "", "compile": ""}


def test_another_version_of_a_tool_is_said(project):
    build(project)
    (project / "version.txt").write_text("10.4\n")
    assert status(project) == {"convert": "", "compile": "shout 10.3 → 10.4"}
    assert build(project)[0] == {"convert": "fresh", "compile": "made"}


def test_a_step_whose_inputs_come_out_the_same_is_not_run(project):
    build(project)
    (project / "plan.yaml").write_text(PLAN.replace("mkdir {{", "mkdir -p {{"))
    assert build(project)[0] == {"convert": "made", "compile": "fresh"}


def test_a_failing_step_leaves_the_last_outputs_and_is_diagnosed(project):
    build(project)
    before = tree_of(project / "out")
    (project / "fail.sh").write_text(
        "echo 'ImportError: libnvinfer.so.10: cannot open shared object file: No such file or directory'; exit 3\n"
    )
    (project / "plan.yaml").write_text(PLAN.replace("(echo {{ word }};", "bash fail.sh; (echo {{ word }};"))
    outcomes, report = build(project)
    assert outcomes["compile"] == "failed"
    assert report.findings[0].code == "DX017"
    assert report.findings[0].symptoms[-1].code == "DX1210"
    assert tree_of(project / "out") == before
    case = next((project / "out/.trtdx/cases").glob("*/files/compile.log"), None)
    assert case is not None


def test_a_step_that_makes_nothing_fails(project):
    (project / "plan.yaml").write_text(PLAN.replace("> {{ output }};", "> /dev/null;"))
    outcomes, report = build(project)
    assert outcomes["compile"] == "failed"
    assert "did not make engine.txt" in report.findings[0].message


def test_a_step_that_takes_too_long_is_ended(tmp_path):
    (tmp_path / "plan.yaml").write_text("steps: {wait: {outputs: [x], timeout_s: 0.3, command: sleep 60}}")
    started = time.monotonic()
    assert "did not end within 0.3 s" in build(tmp_path)[1].findings[0].message
    assert time.monotonic() - started < 30


def test_what_the_plan_did_not_make_is_never_overwritten(project):
    (project / "out").mkdir()
    (project / "out/engine.txt").write_text("somebody's work")
    outcomes, report = build(project)
    assert outcomes["compile"] == "failed"
    assert report.findings[0].code == "DX1211"
    assert (project / "out/engine.txt").read_text() == "somebody's work"


VARIANTS = PLAN.replace(
    "variables: {word: hello}", "variables: {word: hello}\nvariants: {production: {}, debug: {variables: {word: loud}}}"
)


def test_variants_share_every_step_they_can(project):
    (project / "plan.yaml").write_text(VARIANTS)
    assert build(project)[0] == {"convert": "made", "compile@production": "made", "compile@debug": "made"}
    assert runs(project, "convert") == 1
    assert (project / "out/debug/engine.txt").read_text().startswith("loud")
    assert (project / "out/production/engine.txt").read_text().startswith("hello")


def test_a_manifest_is_a_provenance_statement_that_verifies(project):
    build(project)
    manifest = json.loads((project / "out/manifest.json").read_text())
    assert manifest["_type"] == "https://in-toto.io/Statement/v1"
    assert [subject["name"] for subject in manifest["subject"]] == ["checkpoint/all.txt", "engine.txt"]
    names = [item["name"] for item in manifest["predicate"]["buildDefinition"]["resolvedDependencies"]]
    assert names == ["config.json", "data/one.txt"]
    assert verify_folder(RealHost(), str(project / "out"), BOOK).findings == ()
    assert verify_folder(RealHost(), str(project / "out/checkpoint"), BOOK).findings == ()
    before = (project / "out/manifest.json").read_bytes()
    build(project)
    assert (project / "out/manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda p: (p / "out/engine.txt").write_text("x"), "engine.txt was changed"),
        (lambda p: (p / "out/engine.txt").unlink(), "engine.txt is not there"),
        (lambda p: (p / "out/checkpoint/more.txt").write_text("x"), "checkpoint/more.txt was made by no step"),
    ],
)
def test_verify_names_what_is_not_as_built(project, spoil, words):
    build(project)
    spoil(project)
    report = verify_folder(RealHost(), str(project / "out"), BOOK)
    assert report.findings[0].code == "DX1212"
    assert words in report.findings[0].message


def test_clean_shows_moves_aside_and_can_be_undone(project):
    build(project)
    before = tree_of(project / "out")
    work, removals = plan_cleanup(RealHost(), str(project / "plan.yaml"), steps=["compile"], everything=False)
    assert [removal.path for removal in removals] == ["engine.txt"]
    assert tree_of(project / "out") == before  # only shown
    clean_plan(work, removals)
    assert not (project / "out/engine.txt").exists()
    assert undo_clean(RealHost(), str(project / "plan.yaml")) == ["engine.txt"]
    assert tree_of(project / "out") == before
    assert status(project) == {"convert": "", "compile": ""}
    work, removals = plan_cleanup(RealHost(), str(project / "plan.yaml"), steps=(), everything=True)
    clean_plan(work, removals)
    assert tree_of(project / "out") == {}
    build(project)
    assert tree_of(project / "out") == before
    with pytest.raises(InputError, match="nothing to bring back"):
        undo_clean(RealHost(), str(project / "plan.yaml"))


def test_clean_removes_what_is_stale_unless_told_more(project):
    build(project)
    assert plan_cleanup(RealHost(), str(project / "plan.yaml"), steps=(), everything=False)[1] == []
    (project / "version.txt").write_text("11\n")
    removals = plan_cleanup(RealHost(), str(project / "plan.yaml"), steps=(), everything=False)[1]
    assert [(removal.path, removal.why) for removal in removals] == [
        ("engine.txt", "output of compile: shout 10.3 → 11")
    ]


def test_no_link_is_followed_out_of_the_output_folder(project):
    outside = project / "outside"
    outside.mkdir()
    (outside / "engine.txt").write_text("precious")
    build(project)
    (project / "out/engine.txt").unlink()
    (project / "out/engine.txt").symlink_to(outside / "engine.txt")
    work, removals = plan_cleanup(RealHost(), str(project / "plan.yaml"), steps=(), everything=True)
    clean_plan(work, removals)
    build(project)
    assert (outside / "engine.txt").read_text() == "precious"
    assert not (project / "out/engine.txt").is_symlink()


def test_an_output_behind_a_linked_folder_is_refused(project):
    (project / "plan.yaml").write_text(PLAN.replace("outputs: [engine.txt]", "outputs: [sub/engine.txt]"))
    (project / "outside").mkdir()
    (project / "out").mkdir()
    (project / "out/sub").symlink_to(project / "outside")
    outcomes, report = build(project)
    assert outcomes["compile"] == "failed"
    assert "leads out of the output folder" in report.findings[0].message
    assert list((project / "outside").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steps: {a: {outputs: [../x], command: 'true'}}", "does not lie below"),
        ("steps: {a: {outputs: [/x], command: 'true'}}", "does not lie below"),
        ("steps: {a: {outputs: [x]}}", "needs a command or compile"),
        ("steps: {a: {outputs: [], command: 'true'}}", "names no output"),
        ("steps: {a: {outputs: [x], command: 'true', imputs: [y]}}", "imputs"),
        ("steps: {a: {outputs: [x], command: 'true', inputs: ['@b']}}", "no step"),
        (
            "steps:\n  a: {outputs: [x], command: 'true', inputs: ['@b']}\n  b: {outputs: [y], command: 'true', inputs: ['@a']}",
            "circle",
        ),
        ("steps: {a: {outputs: [x], command: 'echo {{ nothing }}'}}", "nothing"),
        ("steps: {a: {outputs: [x], command: 'true', tools: [compilr]}}", "compilr"),
        ("steps: {a: {outputs: [x], command: a}, b: {outputs: [x], command: b}}", "also an output of a"),
        ("[]", "not a mapping"),
        ("steps: {a: 1", "not YAML"),
        ("", "is empty"),
    ],
)
def test_a_plan_that_is_wrong_says_where(tmp_path, text, words):
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(TrtdxError, match=words):
        read_plan(RealHost(), str(tmp_path / "plan.yaml"))


def test_steps_run_side_by_side(tmp_path):
    plan = "steps:\n"
    for name, other in (("a", "b"), ("b", "a")):
        wait = f"for i in $(seq 300); do [ -e on-{other} ] && break; sleep 0.1; done"
        plan += (
            f"  {name}: {{outputs: [{name}], command: 'touch on-{name}; {wait}; ls on-{other} > {{{{ output }}}}'}}\n"
        )
    (tmp_path / "plan.yaml").write_text(plan)
    assert build(tmp_path, jobs=2)[0] == {"a": "made", "b": "made"}


def test_steps_that_need_more_memory_than_there_is_run_one_after_the_other(tmp_path):
    step = "memory: 3GiB, command: 'echo begin >> events; sleep 0.2; echo end >> events; touch {{ output }}'"
    (tmp_path / "plan.yaml").write_text(
        f"memory: 4GiB\nsteps:\n  a: {{outputs: [a], {step}}}\n  b: {{outputs: [b], {step}}}\n"
    )
    assert build(tmp_path, jobs=2)[0] == {"a": "made", "b": "made"}
    assert (tmp_path / "events").read_text().split() == ["begin", "end", "begin", "end"]


def test_two_builds_of_one_plan_do_not_mix(project):
    plan = read_plan(RealHost(), str(project / "plan.yaml"))
    state = PlanState(RealHost(), plan)
    state.prepare()
    with state.lock("convert"), pytest.raises(InputError, match="another build"), state.lock("convert", wait_s=0.2):
        pass


def test_chance_in_a_step_is_found_by_making_it_twice(tmp_path):
    (tmp_path / "plan.yaml").write_text(
        "steps:\n  sure: {outputs: [a], command: 'echo 1 > {{ output }}'}\n"
        "  chance: {outputs: [b], command: 'date +%N > {{ output }}'}\n"
    )
    build(tmp_path)
    before = tree_of(tmp_path / "build-output")
    report = repeat_plan(RealHost(), str(tmp_path / "plan.yaml"), BOOK)
    assert [row[1] for row in report.sections[0].rows] == ["yes", "no"]
    assert report.findings[0].code == "DX1213"
    assert tree_of(tmp_path / "build-output") == before


def test_a_folder_that_stays_is_built_in_place(tmp_path):
    (tmp_path / "source.txt").write_text("1")
    (tmp_path / "plan.yaml").write_text(
        "steps: {make: {inputs: [source.txt], outputs: [tree], in_place: true, "
        "command: 'mkdir -p {{ output }} && cat source.txt >> {{ output }}/log'}}"
    )
    build(tmp_path)
    (tmp_path / "source.txt").write_text("2")
    assert build(tmp_path)[0] == {"make": "made"}
    assert (tmp_path / "build-output/tree/log").read_text() == "12"
    assert build(tmp_path)[0] == {"make": "fresh"}


@pytest.mark.parametrize("name", template_names())
def test_templates_are_plans(tmp_path, name):
    (tmp_path / "plan.yaml").write_text(read_template(name))
    plan = read_plan(RealHost(), str(tmp_path / "plan.yaml"))
    assert plan.steps
    assert all(step.outputs for step in plan.steps)
