"""Write src/trtdx/data/atlas.bin: where the messages of TensorRT-LLM and its neighbours are raised, by release.

    TRTDX_MIRRORS=/path/to/mirrors python scripts/make_atlas.py [--jobs 2] [--check]

The mirrors are bare git repositories, `OWNER+NAME/repo`. Of every release in `PROJECTS` every source file is read
once by its hash, `scripts/atlas_sources.py` extracts its messages, and what is written are fingerprints of neighbouring
words, never words: the index cannot be read back. Paths, function names, levels and line numbers are facts and are
kept. The same mirrors give the same bytes. `knowledge/atlas_format.py` describes the format, `knowledge/atlas.py` reads it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from atlas_sources import SourceMessage, extract_messages
from packaging.version import Version

from trtdx.knowledge.atlas_format import MOST_SHARED, AtlasPlace, AtlasProject, hash_grams, write_atlas

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

TARGET = Path(__file__).resolve().parents[1] / "src" / "trtdx" / "data" / "atlas.bin"
MOST_BYTES = 6_000_000
MOST_SOURCE_BYTES = 600_000  # larger ones are generated
LEAST_WEIGHT = 6.0  # bits; a message that weighs less says too little even beside the name of its file
SOURCE_NAME = re.compile(r"\.(?:py|c|cc|cpp|h|hpp|cu|cuh)$|/help-[^/]*\.txt$")
NOT_SHIPPED = re.compile(
    r"(?:^|/)(?:tests?|unittest|3rdparty|third_party|contrib/build|jenkins|docker|\.github|qa|docs?|docstrings|cubins?|man)/|[._]cubin[._]"
    r"|(?:^|/)test_|_test\.|(?:^|/)\.claude/"
)


class ReleaseTags(NamedTuple):
    """Where a project's releases are: its mirror, the form of its references, and the folders that matter."""

    project: str
    mirror: str
    reference: str  # a pattern with one group, the release
    folders: str
    since: str
    opened: tuple[tuple[str, str], ...] = ()  # folder, and the release in which its sources were first published


PROJECTS = (
    ReleaseTags(
        "TensorRT-LLM", "deepinfra+TensorRT-LLM", r"refs/tags/v(\d+\.\d+\.\d+(?:rc\d+)?(?:\.post\d+)?)",
        r"(?:cpp/(?:tensorrt_llm|include|kernels)|tensorrt_llm|examples|triton_backend|benchmarks|scripts)/", "0.5.0",
        (("cpp/tensorrt_llm/batch_manager/", "0.19.0rc0"), ("cpp/tensorrt_llm/executor/", "0.19.0rc0")),
    ),
    ReleaseTags("tensorrtllm_backend", "triton-inference-server+tensorrtllm_backend", r"refs/tags/v(\d+\.\d+\.\d+)", r"", "0.5.0"),
    ReleaseTags("NCCL", "NVIDIA+nccl", r"refs/tags/v(2\.\d+\.\d+)-1", r"(?:src|ext-\w+)/", "2.16.2"),
    ReleaseTags(
        "TensorRT", "NVIDIA+TensorRT", r"refs/tags/v(\d+\.\d+(?:\.\d+)?)",
        r"(?:samples|plugin|tools/(?:Polygraphy|onnx-graphsurgeon|pytorch-quantization)|python|quickstart)/", "8.6.0",
    ),
    ReleaseTags("Open MPI", "open-mpi+ompi", r"refs/tags/v(\d+\.\d+\.\d+)", r"(?:ompi|opal|orte|oshmem)/", "4.0.0"),
    ReleaseTags("Triton server", "triton-inference-server+server", r"refs/heads/r(\d\d\.\d\d)", r"(?:src|python)/", "23.08"),
    ReleaseTags("Triton core", "triton-inference-server+core", r"refs/heads/r(\d\d\.\d\d)", r"(?:src|python|include)/", "23.08"),
    ReleaseTags("Triton backend", "triton-inference-server+backend", r"refs/heads/r(\d\d\.\d\d)", r"(?:src|include)/", "23.08"),
    ReleaseTags("Triton python_backend", "triton-inference-server+python_backend", r"refs/heads/r(\d\d\.\d\d)", r"src/", "23.08"),
)  # fmt: skip


class PlaceKey(NamedTuple):
    """One place in the source that prints one message; moved files and renamed functions are other places."""

    grams: tuple[int, ...]
    project: int
    path: str
    function: str
    level: str
    nth: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="compare with the file that is there, write nothing")
    options = parser.parse_args()
    data = make_atlas(Path(os.environ["TRTDX_MIRRORS"]), PROJECTS, options.jobs)
    if len(data) > MOST_BYTES:
        raise SystemExit(f"the atlas has {len(data):,} bytes, more than {MOST_BYTES:,}")
    if options.check:
        if data != TARGET.read_bytes():
            raise SystemExit(f"{TARGET} is not what these mirrors give")
        print(f"{TARGET} is what these mirrors give")
        return
    TARGET.write_bytes(data)
    print(f"{TARGET}: {len(data):,} bytes")


def make_atlas(mirrors: Path, projects: Sequence[ReleaseTags], jobs: int = 1) -> bytes:
    """Return the atlas of the projects whose mirrors are in a folder."""
    return pack_atlas(*collect_places(mirrors, projects, jobs))


def collect_places(
    mirrors: Path, projects: Sequence[ReleaseTags], jobs: int = 1
) -> tuple[list[AtlasProject], dict[PlaceKey, dict[int, int]]]:
    """Return the projects with their releases, and the line of every place that prints a message, by release."""
    lines: defaultdict[PlaceKey, dict[int, int]] = defaultdict(dict)
    rows = []
    for number, tags in enumerate(projects):
        releases = _collect_place_lines(mirrors / tags.mirror / "repo", tags, number, jobs, lines)
        rows.append(AtlasProject(name=tags.project, releases=tuple(releases), opened=dict(tags.opened)))
        print(f"{tags.project}: {len(releases)} releases, {len(lines):,} places so far", flush=True)
    return rows, lines


def pack_atlas(rows: Sequence[AtlasProject], lines: dict[PlaceKey, dict[int, int]]) -> bytes:
    """Return the atlas of all messages that weigh enough to be looked up."""
    shared = Counter(gram for grams in {key.grams for key in lines} for gram in grams)
    total = len({key.grams for key in lines})
    places: defaultdict[tuple[int, ...], list[AtlasPlace]] = defaultdict(list)
    for key, by_release in sorted(lines.items()):
        weight = sum(log2(total / shared[gram]) for gram in key.grams if shared[gram] <= MOST_SHARED)
        if weight >= min(LEAST_WEIGHT, log2(total)):
            places[key.grams].append(AtlasPlace(key.project, key.path, key.function, key.level, by_release))
    print(f"{len(places):,} messages, {sum(map(len, places.values())):,} places, {len(shared):,} fingerprints")
    return write_atlas(rows, places)


def _collect_place_lines(
    repository: Path, tags: ReleaseTags, number: int, jobs: int, lines: dict[PlaceKey, dict[int, int]]
) -> list[str]:
    """Add the places of all releases of one project, each with its line by release; return the releases in order."""
    releases = list_releases(repository, tags)
    trees = [_list_blobs(repository, reference, tags.folders) for reference, _ in releases]
    blobs = sorted({(blob, path.rpartition(".")[2]) for tree in trees for path, blob in tree})
    messages = _extract_blobs(repository, blobs, jobs)
    for index, tree in enumerate(trees):
        for path, blob in tree:
            nth: Counter[tuple[object, ...]] = Counter()
            for message in messages.get((blob, path.rpartition(".")[2]), ()):
                identity = (message.grams, message.function, message.level)
                key = PlaceKey(message.grams, number, path, message.function, message.level, nth[identity])
                nth[identity] += 1
                if key.nth < 4:
                    lines[key].setdefault(index, message.line)
    return [release for _, release in releases]


def list_releases(repository: Path, tags: ReleaseTags) -> list[tuple[str, str]]:
    """Return the references of a project's releases and their names, oldest first."""
    references = _run_git(repository, "for-each-ref", "--format=%(refname)").decode().split()
    matches = (re.fullmatch(tags.reference, reference) for reference in references)
    releases = [(match[0], match[1]) for match in matches if match]
    recent = [row for row in releases if Version(row[1]) >= Version(tags.since)]
    return sorted(recent, key=lambda row: Version(row[1]))


def _list_blobs(repository: Path, reference: str, folders: str) -> list[tuple[str, str]]:
    rows = _run_git(repository, "ls-tree", "-r", "-z", reference).decode("utf-8", "replace").split("\0")
    files = [(path, entry.split()[2]) for entry, _, path in (row.partition("\t") for row in rows if row)]
    return [
        (path, blob)
        for path, blob in files
        if SOURCE_NAME.search(path) and re.match(folders, path) and not NOT_SHIPPED.search(path)
    ]


class _BlobMessage(NamedTuple):
    grams: tuple[int, ...]
    function: str
    level: str
    line: int


def _extract_blobs(
    repository: Path, blobs: Sequence[tuple[str, str]], jobs: int
) -> dict[tuple[str, str], tuple[_BlobMessage, ...]]:
    """Return the messages of every blob, by its hash and the ending of its name."""
    chunks = [(repository, blobs[start : start + 250]) for start in range(0, len(blobs), 250)]
    if jobs == 1:
        results: Iterable[list[tuple[_BlobMessage, ...]]] = map(_extract_chunk, chunks)
    else:
        with ProcessPoolExecutor(jobs) as pool:
            results = list(pool.map(_extract_chunk, chunks))
    rows = (messages for chunk in results for messages in chunk)
    return dict(zip(blobs, rows, strict=True))


def _extract_chunk(chunk: tuple[Path, Sequence[tuple[str, str]]]) -> list[tuple[_BlobMessage, ...]]:
    repository, blobs = chunk
    texts = _read_blobs(repository, [blob for blob, _ in blobs])
    return [
        tuple(_fingerprint_messages(extract_messages(text, ending) if text else ()))
        for text, (_, ending) in zip(texts, blobs, strict=True)
    ]


def _fingerprint_messages(messages: Iterable[SourceMessage]) -> Iterator[_BlobMessage]:
    for message in messages:
        for grams in hash_grams(message.parts):
            yield _BlobMessage(grams, message.function, message.level, message.line)


def _read_blobs(repository: Path, blobs: Sequence[str]) -> Iterator[str]:
    """Yield the text of blobs, nothing for those too large or absent."""
    command = ["git", "-C", str(repository), "cat-file", "--batch"]
    output = subprocess.run(command, input="\n".join(blobs).encode() + b"\n", capture_output=True, check=True).stdout
    offset = 0
    for _ in blobs:
        end = output.index(b"\n", offset)
        header = output[offset:end].split()
        size = int(header[2]) if len(header) == 3 else -1
        content = output[end + 1 : end + 1 + size] if 0 <= size <= MOST_SOURCE_BYTES else b""
        offset = end + 1 + (size + 1 if size >= 0 else 0)
        yield content.decode("utf-8", "replace")


def _run_git(repository: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, check=True).stdout


if __name__ == "__main__":
    main()
