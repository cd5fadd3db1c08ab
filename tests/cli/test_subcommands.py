"""Subcommands of compare and memory, what became of the flags they replace, and what is refused together."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from packaging.version import Version

from trtdx.cli.deprecated import REMOVED_IN
from trtdx.version import __version__

ROOT = Path(__file__).parent.parent.parent
LOG = ROOT / "examples" / "logs" / "serve-out-of-memory.log"
GROUPS = {
    "capture": ("show", "query", "verify", "import", "export", "replay", "build"),
    "compare": ("bisect", "reduce", "baseline", "precision"),
    "memory": ("frontier", "log", "calibrate"),
}


@pytest.fixture
def trtdx(trtdx_here):
    return trtdx_here


@pytest.mark.parametrize("group", GROUPS)
def test_the_help_of_a_group_is_its_main_command_with_the_subcommands_listed(trtdx, group):
    shown = trtdx(group, "--help").stdout
    assert shown.startswith(f"Usage: trtdx {group} [OPTIONS]")
    assert "--format" in shown
    commands = shown.partition("\nCommands:\n")[2]
    assert [line.split()[0] for line in commands.splitlines()[: len(GROUPS[group])]] == list(GROUPS[group])


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, names in GROUPS.items() for name in names])
def test_every_subcommand_has_help_that_ends_with_an_example(trtdx, group, name):
    done = trtdx(group, name, "-h")
    assert done.returncode == 0
    assert f"Example: trtdx {group} {name}" in " ".join(done.stdout.split())


def test_a_folder_called_like_a_subcommand_is_reached_by_its_path(trtdx, tmp_path):
    shutil.copytree(ROOT / "examples" / "tiny" / "model", tmp_path / "log")
    for words in (("./log",), ("run", "log")):
        done = trtdx("memory", *words, "--gpu", "H100")
        assert done.stdout.startswith("fits on H100"), done.stderr
    assert "./log" in trtdx("memory", "log", "--gemm_plugin", "auto").stderr


MOVED = [
    (("memory", "Llama-3.1-8B", "--gpu", "L4", "--frontier"), ("memory", "frontier", "Llama-3.1-8B", "--gpu", "L4"),
     "trtdx memory frontier MODEL"),
    (("memory", "--log", LOG), ("memory", "log", LOG), "trtdx memory log LOG... --model MODEL"),
    (("memory", "--log", LOG, "--model", "Llama-3.1-8B"), ("memory", "log", LOG, "--model", "Llama-3.1-8B"),
     "trtdx memory log"),
    (("memory", "Llama-3.1-8B", "--calibrate", LOG, "--gpu", "L4"),
     ("memory", "calibrate", LOG, "--model", "Llama-3.1-8B", "--gpu", "L4"), "trtdx memory calibrate LOG..."),
    (("compare", "--baseline", "nowhere"), ("compare", "baseline", "nowhere"), "trtdx compare baseline RUN [MODEL]"),
    (("compare", "a.npz", "b.npz", "--bisect"), ("compare", "bisect", "a.npz", "b.npz"), "trtdx compare bisect REF CAND"),
    (("compare", "a.npz", "b.npz", "--reduce", "r"), ("compare", "reduce", "a.npz", "b.npz", "--out", "r"),
     "trtdx compare reduce REF CAND --out DIR"),
    (("compare", "onnx:a.onnx", "--precision-search", "o.onnx"), ("compare", "precision", "onnx:a.onnx", "--out", "o.onnx"),
     "trtdx compare precision MODEL --out OUT.onnx"),
]  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize(("old", "new", "usage"), MOVED, ids=lambda value: str(value)[-28:])
def test_an_old_flag_does_what_its_subcommand_does_and_names_it(trtdx, tmp_path, old, new, usage):
    numpy = pytest.importorskip("numpy")
    for name in ("a.npz", "b.npz"):
        numpy.savez(tmp_path / name, x=numpy.ones(3, "float32"))
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    before, after = trtdx(*old, env=env), trtdx(*new, env=env)
    note, _, rest = before.stderr.partition("\n")
    assert note.startswith("note: --")
    assert f"will be removed in trtdx {REMOVED_IN}; use {usage}" in note
    assert "note:" not in after.stderr
    assert (before.returncode, before.stdout.count("\n")) == (after.returncode, after.stdout.count("\n"))
    assert rest.splitlines()[-1:] == after.stderr.splitlines()[-1:]


def test_what_is_deprecated_is_gone_once_its_release_comes():
    assert Version(__version__) < Version(REMOVED_IN), "delete src/trtdx/cli/deprecated.py and what uses it"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("compare", "a", "b", "--bisect", "--reduce", "r"), "--reduce does not go with --bisect"),
        (("compare", "a", "b", "--bisect", "--plot", "p.png"), "--plot does not go with --bisect"),
        (("compare", "--baseline", "r", "--tokens", "1 2"), "--tokens does not go with --baseline: the baseline says"),
        (("compare", "--baseline", "r", "--new-tokens", "2"), "--new-tokens does not go with --baseline"),
        (("compare", "a", "b", "--option", "x=1,2"), "--option is an option of `trtdx compare bisect`"),
        (("memory", "--log", "l", "--calibrate", "c"), "--calibrate does not go with --log"),
        (("memory", "--log", "l", "--target", "batch=1"), "--target does not go with --log: a log is of one run"),
        (("memory", "log", "l", "--length", "5"), "--length"),
        (("inspect", "e", "--against", "o", "--show", "all"), "--show does not go with --against: only what differs"),
        (("diagnose", "l", "--follow", "--save", "c"), "--save does not go with --follow"),
        (("diagnose", "l", "--follow", "--format", "sarif"), "--format sarif does not go with --follow"),
        (("capture", ROOT / "examples/tiny/model.onnx", "--list", "**", "--new-tokens", "3"),
         "--new-tokens does not go with --list: nothing is run"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_options_that_do_not_go_together_are_refused_with_the_reason(trtdx, words, sentence):
    done = trtdx(*words)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.heavy
@pytest.mark.parametrize(
    "words",
    [
        ("diagnose", "x.log"), ("inspect", "x"), ("memory", "m"), ("memory", "frontier", "m"), ("memory", "log", "x"),
        ("memory", "calibrate", "x"), ("compare", "a", "b"), ("compare", "bisect", "a", "b"), ("compare", "baseline", "a"),
        ("compare", "reduce", "a", "b", "--out", "r"), ("compare", "precision", "a", "--out", "o"), ("capture", "m"),
        ("capture", "show", "c"), ("capture", "query", "c", "q"), ("capture", "replay", "c", "m"), ("capture", "build", "m"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_two_formats_at_once_are_refused_by_every_command(trtdx, words):
    for pair in (("--json", "--markdown"), ("--json", "--format", "sarif")):
        done = trtdx(*words, *pair)
        assert done.returncode == 2
        assert "a report is printed in one format" in " ".join(done.stderr.split())


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("old", "new", "note"),
    [
        (("--ids", "5,17"), ("--tokens", "5,17"), "--ids is deprecated"),
        (("--tokens", "3"), ("--new-tokens", "3"), "--tokens as a number of tokens is deprecated"),
    ],
)
def test_old_spellings_of_a_prompt_mean_what_they_meant(trtdx, old, new, note):
    pytest.importorskip("onnxruntime")
    model = ROOT / "examples" / "tiny" / "model.onnx"
    before = trtdx("capture", model, *old, "--tap", "norm", "--out", "before")
    after = trtdx("capture", model, *new, "--tap", "norm", "--out", "after")
    assert note in before.stderr
    assert "note:" not in after.stderr
    steps = [line for line in before.stderr.splitlines() if line.startswith("step")]
    assert steps == [line for line in after.stderr.splitlines() if line.startswith("step")]
