"""Tests about the project itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")) if path.name != "rules.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_in_the_docs_resolves(page):
    for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


PYTHON = [
    pytest.param(how, code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, (how, code) in enumerate(
        re.findall(r"^```python ?(.*?)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.heavy
@pytest.mark.parametrize(("how", "code"), PYTHON)
def test_every_python_example_of_the_docs_runs(how, code, tmp_path):
    compile(code, "example", "exec")
    if how.startswith("no-run"):
        return
    for package in ("torch", "transformers", "tensorrt_rtx", "onnxruntime"):
        pytest.importorskip(package)
    for part in ("model", "model.onnx"):
        (tmp_path / part).symlink_to(ROOT / "examples" / "tiny" / part)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_every_command_is_in_the_docs():
    text = (ROOT / "docs" / "cli.md").read_text()
    groups = {
        "rules": ("list", "show", "check", "new"),
        "capture": ("show", "query", "verify", "import", "export", "replay", "build"),
        "compare": ("bisect", "reduce", "baseline", "precision"),
        "memory": ("frontier", "log", "calibrate"),
        "build": ("status", "doctor", "clean", "verify", "reproduce", "init"),
        "ranks": ("check", "smoke", "launch"),
        "run": ("stacks", "logs"),
        "cases": ("list", "show", "search", "note", "resolve", "link", "export", "import", "stats"),
    }
    below = [f"{group} {name}" for group, names in groups.items() for name in names]
    for command in ("check", "diagnose", "inspect", "explain", "mcp", "trace", *groups, *below):
        assert f"## `trtdx {command}`" in text


@pytest.mark.heavy
def test_the_readme_shows_what_the_tool_really_prints():
    readme = (ROOT / "README.md").read_text()
    shown = re.search(r"\$ (trtdx diagnose examples/\S+)\n(.*?)```", readme, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-m", *shown[1].split()], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert shown[2].strip() == done.stdout.strip()


def test_no_package_registry_is_named_in_any_file():
    if (ROOT / ".git").exists():
        tracked = subprocess.run(
            ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True
        ).stdout.split()
    else:  # a source distribution
        folders = ("src", "tests", "docs", "scripts", "benchmarks", "examples")
        tracked = [str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.*")]
    hosts = re.compile(r"pypi\.(?:org|python)|pythonhosted\.org|registry\.npmjs|deb\.debian\.org")
    named = [
        name
        for name in tracked
        if name != "tests/test_project.py"
        and name != "tests/rules/test_pages.py"
        and (ROOT / name).is_file()
        and hosts.search((ROOT / name).read_text("utf-8", "replace"))
    ]
    assert [name for name in named if "redact" not in name and "literals" not in name] == []


def test_modules_are_not_longer_than_a_reader_bears():
    alone = ROOT / "src" / "trtdx" / "check" / "probe.py"  # one file, because another interpreter runs it by itself
    long = {
        path.name: count
        for path in (ROOT / "src").rglob("*.py")
        if (count := path.read_text().count("\n")) > (450 if path == alone else 420)
    }
    assert long == {}


# Words that say nothing as names: a search for them finds everything, a traceback with them tells nothing.
VAGUE_NAMES = {
    "told",
    "asked",
    "given",
    "found",
    "made",
    "of",
    "each",
    "seen",
    "held",
    "theirs",
    "ours",
    "wanted",
}
# Keys of rule pages and reports, which are names in files and not only in code; and what torch calls its arguments.
VAGUE_BUT_PUBLISHED = {
    ("model.py", "given"),
    ("rule.py", "found"),
    ("rule.py", "told"),
    ("capture/goldens/store.py", "of"),
}


def names_bound_in(path):
    """Yield every name that a module gives to a function, a parameter or a variable."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name.strip("_")
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@pytest.mark.heavy
def test_no_name_says_nothing():
    package = ROOT / "src" / "trtdx"
    bound = {(str(path.relative_to(package)), name) for path in package.rglob("*.py") for name in names_bound_in(path)}
    assert {(path, name) for path, name in bound if name in VAGUE_NAMES} - VAGUE_BUT_PUBLISHED == set()


@pytest.mark.heavy
def test_no_class_name_is_used_twice():
    counts = Counter(
        node.name
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in counts.items() if count > 1} == set()


@pytest.mark.heavy
def test_no_function_is_longer_than_a_screen():
    long = {
        f"{path.name}: {node.name}"
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno > 60
    }
    assert long == set()


MOST_FILES = 24
# Lower rooms first; rooms of one line do not know each other. What lies at the root are the nouns and doors.
LAYERS = (
    ("render",),
    ("knowledge",),
    ("tensors",),
    ("formats",),
    ("engines", "inspect"),
    ("diagnose",),
    ("capture",),
    ("memory", "compare", "check"),
    ("build",),
    ("run", "ranks", "trace"),
    ("cases",),
    ("testing", "ui", "mcp"),
    ("cli",),
)
NOUN_ROOMS = {"agent", "redact"}  # as low as the nouns: the agent is loaded into other programs and knows none of us
# The package, its Python API and pytest's entry point hand out what lies in rooms, imported when it is asked for.
ENTRIES = {"__init__.py", "__main__.py", "api.py", "pytest_plugin.py"}


def test_imports_point_one_way():
    level = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
    package = ROOT / "src" / "trtdx"
    assert set(level) | NOUN_ROOMS == {path.name for path in package.iterdir() if (path / "__init__.py").exists()}
    wrong = [
        f"{path.relative_to(package)} imports {room}"
        for path in package.rglob("*.py")
        if path.name not in ENTRIES or path.parent != package
        for own in [path.relative_to(package).parts[0]]
        for room in re.findall(r"^\s*(?:from|import) trtdx\.(\w+)", path.read_text(), re.MULTILINE)
        if room in level and room != own and level[room] >= level.get(own, -1)
    ]
    assert wrong == []


# Environment variables, processes, the clock and waiting are the host's in the whole house.
OF_THE_HOST = re.compile(
    r"os\.(?:environ|getenv|putenv|fork|system|popen|kill|killpg|waitpid|(?:exec|spawn)\w+)|subprocess\.\w+|multiprocessing\.\w+|"
    r"time\.(?:time|time_ns|sleep|gmtime|localtime)|datetime\.(?:now|utcnow|today)"
)
# So are files where a recorded case must give the same answer as the machine it was recorded on.
REPLAYABLE = (
    "diagnose/",
    "inspect/",
    "memory/",
    "knowledge/",
    "case.py",
    "redact/",
    "rule.py",
    "formats/[a-z_]+.py$",
)
FILE_CALLS = re.compile(
    r"open|io\.open|os\.(?:open|listdir|walk|scandir|stat|remove|replace|makedirs|path\.(?:exists|isfile|isdir|getsize))|"
    r"(?!resources\.|folder\.|self\.read_|source\.read_text|ArtifactFolder).*\.(?:read_text|read_bytes|write_text|write_bytes|iterdir|glob|rglob|unlink|mkdir|exists|touch|stat)|"
    r"Path\(.*\)\.(?:open|is_file|is_dir)"
)
PAST_THE_HOST = {
    "host.py": "is the host",
    "testing/page_examples.py": "keeps what a page's example would calibrate out of the user's folder",
    "check/probe.py": "runs in the interpreter that is looked at, where nothing of trtdx is",
    "cli/output.py": "colour is a matter of the terminal it runs in, whatever is replayed",
    "engines/tensorrt_llm/cpu.py": "sets variables for a library that is loaded into this process",
    "capture/store/writer.py": "stamps a capture of tensors, which no case records",
    "testing/golden_judgement.py": "stamps a golden file, which no case records",
    "knowledge/load.py": "the rule pages are trtdx's own, and so is the cache of them",
    "memory/compile/activation.py": "hands TensorRT's builder, another process, a script in a temporary folder",
    "ranks/remote/collectives.py": "is run by the job's own Python on other machines",
    "ranks/remote/probe.py": "is run by the job's own Python on other machines",
    "run/job/processes.py": "is the host of supervised jobs: starts, watches and signals processes that live on",
    "run/job/supervise.py": "watches a job that no case can replay",
    "run/job/stacks.py": "waits for a live process to answer",
    "run/logs.py": "writes times in the time zone of the reader",
    "cli/run.py": "names a case by the time, and colours what goes to standard error",
}


def _reaches_past_the_host(path):
    name = str(path.relative_to(ROOT / "src" / "trtdx"))
    replayable = any(re.match(room, name) for room in REPLAYABLE)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and OF_THE_HOST.fullmatch(ast.unparse(node)):
            return True
        if replayable and isinstance(node, ast.Call) and FILE_CALLS.fullmatch(ast.unparse(node.func)):
            return True
    return False


@pytest.mark.heavy
def test_the_outside_world_is_reached_through_the_host():
    package = ROOT / "src" / "trtdx"
    # The agent runs in the processes of a job, where trtdx and its host are not.
    rooms = (path for path in package.rglob("*.py") if "agent" not in path.parts)
    past = {str(path.relative_to(package)) for path in rooms if _reaches_past_the_host(path)}
    assert past == set(PAST_THE_HOST)


def test_no_folder_holds_more_than_a_newcomer_can_take_in():
    folders = Counter(path.parent for path in (ROOT / "src").rglob("*.py") if path.name != "__init__.py")
    assert {str(folder): count for folder, count in folders.items() if count > MOST_FILES} == {}


@pytest.mark.heavy
def test_the_source_distribution_holds_what_its_tests_need(tmp_path):
    pytest.importorskip("setuptools")
    if not (ROOT / ".git").exists():
        pytest.skip("this is a source distribution, or no checkout")
    argv = [
        sys.executable,
        "setup.py",
        "-q",
        "egg_info",
        "--egg-base",
        tmp_path,
        "sdist",
        "--dist-dir",
        tmp_path,
    ]
    subprocess.run(argv, cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert set(tracked.stdout.split()) - packed == set()
