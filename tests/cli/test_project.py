"""Defaults of a project, and findings that are ignored."""

from __future__ import annotations

import json
import os

import pytest

ERROR = b"[TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (2 != 4)\n"
CODE = "DX210"


@pytest.fixture
def project(trtdx, tmp_path):
    """Write a settings file at the root of a checkout, and run trtdx in a folder below."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "below").mkdir()

    def run(settings, *words, stdin=ERROR, file="trtdx.toml"):
        data = settings if isinstance(settings, bytes) else settings.encode()
        (tmp_path / file).write_bytes(data)
        return trtdx(*(words or ("diagnose", "-")), stdin=stdin, cwd=tmp_path / "below")

    return run


@pytest.mark.heavy
@pytest.mark.parametrize(("file", "table"), [("trtdx.toml", "[ignore]\n"), ("pyproject.toml", "[tool.trtdx.ignore]\n")])
def test_an_ignored_finding_is_counted_with_its_reason_and_fails_nothing(project, file, table):
    settings = f'{table}{CODE} = "two ranks are meant"\n'
    done = project(settings, file=file)
    assert done.returncode == 0
    assert done.stdout.startswith("no problem found that is not ignored")
    assert f"({CODE}): two ranks are meant" in done.stdout
    summary = json.loads(project(settings, "diagnose", "-", "--json", file=file).stdout)["summary"]
    [ignored] = summary["ignored"]
    assert (ignored["code"], ignored["severity"], ignored["reason"]) == (CODE, "error", "two ranks are meant")


@pytest.mark.heavy
def test_ignore_on_the_command_line_takes_a_reason_and_refuses_unknown_codes(trtdx):
    done = trtdx("diagnose", "-", "--ignore", f"{CODE}=known", stdin=ERROR)
    assert (done.returncode, "known" in done.stdout) == (0, True)
    assert trtdx("diagnose", "-", "--ignore", CODE, stdin=ERROR).returncode == 0
    assert trtdx("diagnose", "-", "--ignore", "DX013", stdin=ERROR).returncode == 1
    wrong = trtdx("diagnose", "-", "--ignore", "world-size-mismatsh", stdin=ERROR)
    assert wrong.returncode == 2
    assert "did you mean world-size-mismatch" in wrong.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("form", ["text", "markdown", "github", "sarif", "junit", "json"])
def test_no_format_drops_an_ignored_finding(trtdx, form):
    done = trtdx("diagnose", "-", "--ignore", f"{CODE}=accepted", "--format", form, stdin=ERROR)
    assert done.returncode == 0
    assert "accepted" in done.stdout


@pytest.mark.heavy
def test_the_severity_that_fails_a_run_is_a_default_that_the_command_line_overrules(project):
    assert project('fail_on = "never"\n').returncode == 0
    assert project('fail_on = "never"\n', "diagnose", "-", "--fail-on", "error").returncode == 1


@pytest.mark.heavy
def test_gpu_and_runtime_are_defaults_of_memory_and_inspect(project):
    settings = 'gpu = "2xL4"\nruntime = "1.0.0"\n'
    report = json.loads(project(settings, "memory", "Llama-3.1-8B", "--json").stdout)
    assert report["memory"]["setup"]["device"]["name"].startswith("L4")
    assert report["memory"]["setup"]["running"]["version"] == "1.0.0"
    assert project(settings, "memory", "Llama-3.1-8B", "--gpu", "H100").stdout.startswith("fits on H100")


@pytest.mark.heavy
def test_the_rules_of_a_project_lie_relative_to_its_file(project, trtdx, tmp_path):
    assert trtdx("rules", "new", "ACME001", "proxy-eats-streams", "--in", "ops", cwd=tmp_path).returncode == 0
    assert "ACME001" in project('rules = "ops"\n', "rules", "list").stdout
    assert project('rules = ["ops"]\n', "explain", "ACME001").returncode == 0


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("settings", "message", "fix"),
    [
        ('runtme = "1.2"\n', "no setting is called 'runtme'", "did you mean runtime"),
        ("gpu = 5\n", "gpu: expected `str`, got `int`", ""),
        (
            'fail_on = "errors"\n',
            "fail_on: invalid enum value 'errors'",
            "one of error, warning, note, never",
        ),
        ('ignore = ["DX210"]\n', "ignore wants a reason for each code", "ignore = {DX012"),
        ('[ignore]\nDX210 = " "\n', "ignore.DX210 has no reason", "say why"),
        ('[ignore]\nworld-size-mismatsh = "x"\n', "no rule is called", "did you mean world-size-mismatch"),
        ("gpu = \n", "is not TOML", ""),
        (b'gpu = "\xff"\n', "is not TOML", ""),
        ("x = " + "[" * 100_000 + "\n", "is not TOML", ""),
        (b"#" * (1 << 20) + b"\n" * 2, "too large", ""),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_settings_file_that_is_not_understood_is_a_clear_error(project, settings, message, fix):
    done = project(settings)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert fix in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.heavy
def test_the_search_ends_at_the_checkout_and_never_reaches_what_anyone_may_write(trtdx, tmp_path):
    (tmp_path / "trtdx.toml").write_text('fail_on = "never"\n')
    for folder in ("checkout", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "checkout" / ".git").mkdir()
    home = {"HOME": os.devnull}
    for folder in ("checkout", "elsewhere"):
        assert trtdx("diagnose", "-", stdin=ERROR, cwd=tmp_path / folder, env=home).returncode == 1
    assert trtdx("diagnose", "-", stdin=ERROR, cwd=tmp_path, env=home).returncode == 0
