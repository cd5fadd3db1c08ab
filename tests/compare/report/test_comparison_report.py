"""What a tired engineer reads: short, down to the first difference, in any terminal."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import trtdx
from support.small_models import layers
from trtdx.compare.report.comparison_report import MOST_LAYERS, about_section
from trtdx.model import Section
from trtdx.render import render_text
from trtdx.render.table import table_lines


def lines(found, **how):
    return render_text(found.report, **how).splitlines()


def section(found, key):
    return next((each for each in found.report.sections if each.key == key), None)


def test_sixty_four_layers_fit_on_a_screen_and_the_first_wrong_one_is_among_those_shown():
    found = trtdx.compare(layers(64), layers(64, wrong=37))
    drift = section(found, "drift")
    assert len(drift.rows) <= MOST_LAYERS
    assert {row[0] for row in drift.rows} >= {0, 36, 37, 38, 63}
    assert drift.note == f"{len(drift.rows)} of 64 layers"
    assert len(section(found, "way").rows) <= 9
    assert len(lines(found)) < 50


def test_where_nothing_differs_there_is_one_line():
    assert lines(trtdx.compare(layers(), layers())) == [
        "no difference beyond what the precision explains: 3 tensors compared, 3 of them bitwise the same"
    ]


def test_noise_shows_what_came_nearest_to_its_limit_first():
    found = trtdx.compare(layers(9), layers(9, wrong=2, by=1e-7))
    assert found.healthy
    way = section(found, "way")
    assert way.title == "nearest to their limits"
    assert len(way.rows) <= 5
    assert all(row[-1] == "noise" for row in way.rows)


def test_where_everything_differs_the_first_tensor_is_the_first():
    found = trtdx.compare(layers(), layers(wrong=0))
    assert section(found, "way").rows[0][1] == "model.layers.0:out"
    assert lines(found)[-1].startswith("model.layers.0:out at step 0 is the first of 3 tensors that is really wrong")


def test_a_cause_that_is_not_known_is_not_told_twice():
    assert lines(trtdx.compare(layers(), layers(wrong=0)))[-1].endswith("; why is not known")


@pytest.mark.parametrize("width", [72, 80, 100])
def test_tables_fit_the_terminal_and_names_keep_their_ends(width):
    long = "model.language_model.decoder.layers.{}.feed_forward.experts.gate_and_up_projection:out"
    arrays = {long.format(number): array for number, array in enumerate(layers().values())}
    other = {name: array + np.float32(0.1) for name, array in arrays.items()}
    shown = lines(trtdx.compare(arrays, other), width=width)
    table = shown[shown.index("down to the first difference") + 1 :][:4]
    assert max(map(len, table)) <= width
    assert all(line.split()[1].endswith(":out") for line in table[1:])


def test_a_narrow_table_shortens_what_repeats_and_keeps_every_name_apart():
    modules = (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp",
    )
    names = [f"model.layers.{number}.{module}:out" for number in range(12) for module in modules]
    rows = tuple((name, "words " * 6, "more " * 6, "a verdict") for name in names)
    shown = list(table_lines(Section("x", "x", ("tensor", "a", "b", "c"), rows), width=90))
    firsts = [line.split()[0] for line in shown[1:]]
    assert len(set(firsts)) == len(names)
    assert firsts[0] == "...0...q_proj:out"


@pytest.mark.heavy
def test_what_is_piped_is_not_cut(tmp_path):
    arrays = {f"{'very_long_name.' * 12}{number}:out": np.ones(4, np.float32) for number in range(2)}
    for file in ("a.npz", "b.npz"):
        np.savez(tmp_path / file, **arrays)
    argv = [
        sys.executable,
        "-m",
        "trtdx",
        "compare",
        tmp_path / "a.npz",
        tmp_path / "b.npz",
        "--new-tokens",
        "1",
    ]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert "..." not in shown


def test_prose_in_the_last_column_goes_on_below():
    rows = (("a" * 30, "words " * 20),)
    shown = list(table_lines(Section("x", "x", ("name", "why"), rows), width=60))
    assert len(shown) > 2
    assert max(map(len, shown)) <= 62


def test_many_notes_of_one_kind_are_one():
    notes = [f"layers.{number}:out at step 0: rank 1 holds other values than rank 0" for number in range(40)]
    told = about_section([*notes, "something else"])
    assert [row[0] for row in told.rows] == [f"{notes[0]}; so in 39 more", "something else"]
