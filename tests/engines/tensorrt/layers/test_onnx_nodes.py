"""Evaluate against the ONNX project's own node tests, as far as TensorRT's parser takes them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from importlib.metadata import version

import pytest

from support.onnx_node_deviations import DEVIATIONS, deviation_of
from support.paths import SUPPORT

pytest.importorskip("tensorrt_rtx", reason="networks are parsed with TensorRT's own parser")
pytest.importorskip("torch", reason="heavy layers are computed with torch")
pytest.importorskip("onnx", reason="the tests are ONNX's own")

pytestmark = pytest.mark.heavy

WORKERS = 2
KNOWN = {"onnx": "1.23.2", "tensorrt_rtx": "1.7.1.116"}  # the versions the numbers below hold for


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def go_on(path, first):
    """Run a worker to its end; one that dies is started again behind the test that killed it."""
    crashed = []
    while True:
        worker = [
            sys.executable,
            "-m",
            "support.onnx_node_worker",
            str(path),
            str(first),
            str(WORKERS),
        ]
        done = subprocess.Popen(worker, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=SUPPORT.parent)
        yield done
        last = lines_of(path)[-1]
        if "done" in last:
            yield crashed
            return
        crashed.append({"name": last["name"], "status": "crashed"})
        first = last["number"] + WORKERS


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Return what came of each test by name, from workers side by side."""
    folder = tmp_path_factory.mktemp("nodes")
    paths = [folder / f"{number}.jsonl" for number in range(WORKERS)]
    for path in paths:
        path.touch()
    running = {number: go_on(path, number) for number, path in enumerate(paths)}
    processes = {number: next(worker) for number, worker in running.items()}
    found = []
    while processes:
        for number, process in list(processes.items()):
            process.wait(timeout=600)
            following = next(running[number])
            if isinstance(following, list):
                found += following
                del processes[number]
            else:
                processes[number] = following
    for path in paths:
        found += [line for line in lines_of(path) if "status" in line]
    return {each["name"]: each for each in found}


def names_with(outcomes, *statuses):
    return {name for name, each in outcomes.items() if each["status"] in statuses}


def is_known():
    return all(version(package) == number for package, number in KNOWN.items())


def accepted(outcomes):
    return len(outcomes) - len(names_with(outcomes, "rejected", "crashed"))


def test_the_parser_takes_more_than_half(outcomes):
    assert accepted(outcomes) > len(outcomes) / 2
    if is_known():
        assert (len(outcomes), accepted(outcomes)) == (1884, 1013)


def test_all_that_is_parsed_can_be_computed(outcomes):
    failed = names_with(outcomes, "failed")
    assert {name: outcomes[name]["why"] for name in failed} == {}


def test_99_in_100_agree_with_onnx_on_what_the_network_says(outcomes):
    agree = names_with(outcomes, "agrees", "understood otherwise")
    assert len(agree) / accepted(outcomes) >= 0.99, Counter(each["status"] for each in outcomes.values())


def test_96_in_100_agree_with_the_test_itself(outcomes):
    assert len(names_with(outcomes, "agrees")) / accepted(outcomes) >= 0.96


def test_every_disagreement_has_its_reason(outcomes):
    other = names_with(outcomes, "differs", "understood otherwise")
    assert {name for name in other if deviation_of(name) is None} == set()
    if is_known():
        assert other == {name for deviation in DEVIATIONS for name in deviation.tests}


def test_every_layer_has_the_type_and_shape_tensorrt_finds_for_it(outcomes):
    """The workers compare them one by one; here only that they did."""
    assert sum(each.get("layers", 0) for each in outcomes.values()) > 18_000
