"""The programs that run on other machines: one text for any Python since 3.8, lines that survive launchers."""

from __future__ import annotations

import ast
import base64
import json
import os
import random
import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtdx.ranks.programs import COLLECTIVES, PROBE, join_program, python_argv
from trtdx.ranks.remote.marked_lines import PROBE_MARK, parse_marked


@pytest.mark.parametrize("names", [PROBE, COLLECTIVES])
def test_a_program_is_python_3_8_and_imports_nothing_of_trtdx(names):
    source = join_program(names)
    tree = ast.parse(source, feature_version=(3, 8))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(module and module.startswith("trtdx") for module in modules)
    assert len(python_argv("python3", names, "")[2]) < 100_000  # a word of a command line has 128 KiB at most


def test_the_probe_runs_in_an_empty_environment_and_hides_secrets():
    env = {
        "PATH": os.environ["PATH"],
        "TLLM_SPAWN_PROXY_PROCESS_IPC_HMAC_KEY": "deadbeef",
        "HF_TOKEN": "hf_x",
        "NCCL_DEBUG": "INFO",
    }
    done = subprocess.run(python_argv(sys.executable, PROBE, "{}"), capture_output=True, text=True, env=env, check=True)
    (facts,) = parse_marked(PROBE_MARK, done.stdout)
    assert facts["problems"] == {}
    assert facts["environment"]["NCCL_DEBUG"] == "INFO"
    assert "deadbeef" not in json.dumps(facts)
    assert "hf_x" not in json.dumps(facts)


def marked(name, document, chunk=40):
    data = base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()
    pieces = [data[at : at + chunk] for at in range(0, len(data), chunk)]
    return [
        f"{PROBE_MARK} {name} {at + 1}/{len(pieces)} {zlib.crc32(piece.encode()):08x} {piece}"
        for at, piece in enumerate(pieces)
    ]


@given(st.dictionaries(st.text(max_size=20), st.integers(), max_size=5), st.text(max_size=30), st.randoms())
def test_documents_come_back_however_lines_are_mixed_and_prefixed(document, noise, shuffle):
    lines = marked("a.1.0", document) + marked("b.2.0", [1, 2, 3])
    random.Random(shuffle.random()).shuffle(lines)
    text = f"{noise}\n" + "\n".join(f"3: [1,0]<stdout>:{line}" for line in lines)
    assert sorted(map(str, parse_marked(PROBE_MARK, text))) == sorted(map(str, [document, [1, 2, 3]]))


@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(text):
    assert isinstance(parse_marked(PROBE_MARK, f"{PROBE_MARK} x 1/1 {text}\n{text}"), list)


def test_what_is_cut_off_or_huge_is_left_out():
    lines = marked("a.1.0", list(range(100)))
    assert parse_marked(PROBE_MARK, "\n".join(lines[:-1])) == []
    bomb = base64.b64encode(zlib.compress(b'"' + b"a" * (9 << 20) + b'"')).decode()
    assert parse_marked(PROBE_MARK, f"{PROBE_MARK} x 1/1 {zlib.crc32(bomb.encode()):08x} {bomb}") == []


def test_a_line_that_is_cut_by_another_ranks_output_is_made_good_by_its_copy():
    lines = marked("a.1.0", list(range(100)))
    spoilt = [f"{lines[0][:50]}\nother rank\n{lines[0][50:]}", *lines[1:]]
    assert parse_marked(PROBE_MARK, "\n".join(spoilt)) == []
    assert parse_marked(PROBE_MARK, "\n".join([*spoilt, *lines])) == [list(range(100))]


def test_printed_lines_divide_what_launchers_read_at_once():
    done = subprocess.run(python_argv(sys.executable, PROBE, "{}"), capture_output=True, check=True)
    assert len(done.stdout) % 1024 == 0
    assert all(done.stdout[at : at + 1] == b"\n" for at in range(0, len(done.stdout), 1024))
