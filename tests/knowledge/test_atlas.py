"""The atlas on small trees that are written here; the real mirrors are checked only where TRTDX_MIRRORS names them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from trtdx.knowledge.atlas import MessageAtlas, locate_message, message_atlas
from trtdx.knowledge.atlas_format import MAGIC, AtlasPlace, AtlasProject, hash_grams, write_atlas
from trtdx.knowledge.release_estimate import estimate_release, infer_release, stated_in_line

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

QUEUE_OLD = r"""
namespace acme {
// a comment with "words that are no message at all"
WidgetQueue::WidgetQueue(int size)
    : mSize{size}
    , mName("queue")
{
    TLLM_CHECK_WITH_INFO(size > 0, "Widget queue %s needs a positive size, got %d", name, size);
    TLLM_CHECK(size % mWidth == remainder);
}

void WidgetQueue::drain(int turns)
{
    if (turns == 0)
    {
        throw std::runtime_error("Cannot drain the widget queue " + mName + " without turns left over");
    }
    TLLM_LOG_WARNING(
        "Draining the widget queue slowly: "
        "%d turns for one widget", turns);
}
} // namespace acme
"""
QUEUE_NEW = QUEUE_OLD.replace("needs a positive size", "must be given room for one widget").replace(
    "\nnamespace", "\n\n\nnamespace"
)
LOADER = '''
import logging
logger = logging.getLogger(__name__)

class GadgetLoader:
    """A docstring that is never printed to anybody."""

    def load(self, name, shape):
        if shape is None:
            raise ValueError(
                f"Gadget {name} has no shape that a loader could read from {shape!r}, declare one")
        logger.warning("Gadget %s was loaded twice, the second copy wins", name)
        assert len(shape) == 2, "A gadget shape must name rows and columns"
        print("unable to open gadget index {}".format(name), file=sys.stderr)
'''
# Rarity is counted against other messages, so there must be others.
FILLER = "def fill():\n" + "".join(f"    raise ValueError('filler{n} says word{n} of thing{n}')\n" for n in range(2000))
HELP = """
# comment
[gadget:no-room]
There is not enough room on host %s to satisfy the request
of the gadget launcher.
"""


@pytest.fixture(scope="module")
def scripts():
    sys.path.insert(0, str(SCRIPTS))
    yield import_module("atlas_sources"), import_module("make_atlas")
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def mirrors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mirrors")
    repository = folder / "acme" / "repo"
    _commit(repository, "v0.1.0", {"src/queue.cpp": QUEUE_OLD, "src/loader.py": LOADER, "src/filler.py": FILLER})
    _commit(
        repository,
        "v0.2.0",
        {"src/queue.cpp": QUEUE_NEW, "src/loader.py": LOADER, "src/help-gadget.txt": HELP},
    )
    _commit(repository, "v0.10.0", {"src/queue.cpp": QUEUE_NEW, "src/tests/test_queue.cpp": QUEUE_OLD})
    return folder


def _commit(repository: Path, tag: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", tag], ["tag", tag]):
        subprocess.run(["git", *command], cwd=repository, check=True, capture_output=True)


@pytest.fixture(scope="module")
def atlas(scripts, mirrors):
    _, make_atlas = scripts
    tags = make_atlas.ReleaseTags("TensorRT-LLM", "acme", r"refs/tags/v(\d+\.\d+\.\d+)", r"src/", "0.1.0")
    data = make_atlas.make_atlas(mirrors, [tags])
    assert data == make_atlas.make_atlas(mirrors, [tags]), "the same mirrors give the same bytes"
    for word in (b"widget", b"Widget", b"gadget shape"):
        assert word not in data.replace(b"WidgetQueue", b""), "fingerprints, never text"
    return MessageAtlas(data)


def test_messages_of_cpp(scripts):
    atlas_sources, _ = scripts
    messages = {message.parts: message for message in atlas_sources.extract_messages(QUEUE_OLD, "cpp")}
    check = messages["Widget queue \0 needs a positive size, got \0"]
    assert (check.function, check.level, check.line) == ("WidgetQueue::WidgetQueue", "error", 8)
    assert "Assertion failed: size % mWidth == remainder" in messages
    thrown = messages["Cannot drain the widget queue \0 without turns left over"]
    assert (thrown.function, thrown.level) == ("WidgetQueue::drain", "error")
    warned = messages["Draining the widget queue slowly: \0 turns for one widget"]
    assert (warned.level, warned.line) == ("warning", 18)
    assert not any("no message" in parts for parts in messages)


def test_messages_of_python(scripts):
    atlas_sources, _ = scripts
    messages = {message.parts: message for message in atlas_sources.extract_messages(LOADER, "py")}
    raised = messages["Gadget \0 has no shape that a loader could read from \0, declare one"]
    assert (raised.function, raised.level) == ("GadgetLoader.load", "error")
    assert LOADER.splitlines()[raised.line - 1].strip() == "raise ValueError("
    assert messages["Gadget \0 was loaded twice, the second copy wins"].level == "warning"
    assert messages["A gadget shape must name rows and columns"].level == "error"
    assert messages["unable to open gadget index \0"].level == "error"
    assert not any("docstring" in parts for parts in messages)
    assert atlas_sources.extract_messages("def broken(:", "py") == []


def test_messages_of_help_files(scripts):
    atlas_sources, _ = scripts
    first, second = atlas_sources.extract_messages(HELP, "txt")
    assert first.parts == "There is not enough room on host \0 to satisfy the request"
    assert (second.function, second.level) == ("gadget:no-room", "error")


@pytest.mark.parametrize(
    ("line", "function", "since", "until", "gone"),
    [
        ("[TensorRT-LLM][ERROR] Assertion failed: Widget queue q7 needs a positive size, got -3 (/src/x/queue.cpp:8)",
         "WidgetQueue::WidgetQueue", "0.1.0", "0.1.0", "0.2.0"),
        ("[1,3]<stderr>:2026-01-01T00:00:00Z terminate called: Cannot drain the widget queue a b c without turns left over",
         "WidgetQueue::drain", "0.1.0", "0.10.0", ""),
        ("[TRT-LLM] [RANK 3] [W] Draining the widget queue slowly: 12 turns for one widget", "WidgetQueue::drain", "0.1.0", "0.10.0", ""),
        ("ValueError: Gadget /a/b.bin has no shape that a loader could read from None, declare one", "GadgetLoader.load", "0.1.0", "0.10.0", ""),
        ("There is not enough room on host n1 to satisfy the request", "gadget:no-room", "0.2.0", "0.10.0", ""),
        ("[TensorRT-LLM][ERROR] Executor failed: Cannot drain the widget queue q without turns left over", "WidgetQueue::drain", "0.1.0", "0.10.0", ""),
    ],
)  # fmt: skip
def test_lines_are_located(atlas, line, function, since, until, gone):
    place = atlas.locate(line).places[0]
    assert (place.function, place.since, place.until, place.gone_since) == (function, since, until, gone)
    assert place.share >= 0.7


def test_a_condition_is_located_by_the_file_it_names(atlas):
    located = atlas.locate("Assertion failed: size % mWidth == remainder (/home/jenkins/src/queue.cpp:11)")
    assert located.places[0].is_named
    assert located.places[0].path == "src/queue.cpp"
    assert located.releases["TensorRT-LLM"] == 0b110, "line 11 since 0.2.0, line 9 before"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\0\0 %s {}",
        "failed",
        "error: the queue",
        "RuntimeError: something else went wrong in another program altogether",
        "2: [engine.cpp::deserializeEngine::1148] Error Code 2: Cannot drain the widget queue q without turns left over",
        "a b " * 5000,
    ],
)
def test_what_says_too_little_is_not_guessed(atlas, line):
    assert atlas.locate(line) is None


def test_releases_are_inferred_from_all_lines_together(atlas):
    old = atlas.locate("Assertion failed: Widget queue q7 needs a positive size, got -3")
    both = atlas.locate("Draining the widget queue slowly: 12 turns for one widget")
    estimate = infer_release([old, both, both], atlas)
    assert (estimate.first, estimate.last, estimate.is_stated) == ("0.1.0", "0.1.0", False)
    assert infer_release([both], atlas) is None, "every release prints it"
    assert infer_release([], atlas) is None
    stated = estimate_release([("log:3", "[TensorRT-LLM] TensorRT-LLM version: 0.9.0")], [old], atlas)
    assert (stated.first, stated.where, str(stated)) == ("0.9.0", "log:3", "TensorRT-LLM 0.9.0")


@pytest.mark.parametrize(
    ("line", "release"),
    [
        ("[TensorRT-LLM] TensorRT-LLM version: 0.11.0.dev2024052800", "0.11.0.dev2024052800"),
        ("Successfully installed tensorrt_llm-1.2.0rc3 torch-2.9", "1.2.0rc3"),
        ("tensorrt-llm                  0.17.0.post1", "0.17.0.post1"),
        ("docker run nvcr.io/nvidia/tritonserver:24.08-trtllm-python-py3", "0.12.0"),
        ("(/home/jenkins/agent/workspace/LLM/release-0.14/L0_PostMerge/x.cpp:135)", "0.14.0"),
        ("Engine version 0.9.0 found in the config file", ""),
        ("tensorrt 10.9.0.34", ""),
    ],
)
def test_a_line_may_state_the_release(line, release):
    assert stated_in_line(line)[0] == release


def test_grams_leave_out_what_values_touch():
    assert hash_grams("size\0 of the widget") == hash_grams("count\0 of the widget")
    assert hash_grams("one two\nthree four") == [*hash_grams("one two"), *hash_grams("three four")]
    assert hash_grams("\0") == []


def test_a_file_that_is_no_atlas_is_refused():
    with pytest.raises(ValueError, match="not an atlas"):
        MessageAtlas(b"something else")
    place = AtlasPlace(0, "a.py", "f", "error", {0: 3, 1: 3, 2: 7, 5: 1})
    project = AtlasProject(name="P", releases=tuple("123456"))
    data = write_atlas([project], {hash_grams("seven words that nobody else says here")[0]: [place]})
    assert data.startswith(MAGIC)
    assert MessageAtlas(data).projects == (project,)


def test_the_atlas_that_comes_with_trtdx():
    atlas = message_atlas()
    assert len(atlas) > 30_000
    assert {"TensorRT-LLM", "NCCL", "Open MPI", "Triton core", "TensorRT"} <= {p.name for p in atlas.projects}
    place = locate_message(
        "n1:9:11 [2] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-k2 to 96 bytes"
    )[0]
    assert (place.project, place.path, place.function) == ("NCCL", "src/misc/shmutils.cc", "ncclShmOpen")
    place = locate_message("ValueError: Unknown architecture for AutoModelForCausalLM: AcmeForCausalLM")[0]
    assert place.path == "tensorrt_llm/_torch/models/modeling_auto.py"


@pytest.mark.skipif("TRTDX_MIRRORS" not in os.environ, reason="TRTDX_MIRRORS names no mirrors")
def test_the_atlas_is_what_the_mirrors_give(scripts):
    _, make_atlas = scripts
    assert (
        make_atlas.make_atlas(Path(os.environ["TRTDX_MIRRORS"]), make_atlas.PROJECTS) == make_atlas.TARGET.read_bytes()
    )
