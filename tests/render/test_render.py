"""Golden texts of one report in each form; `pytest --update-golden` writes them anew."""

from __future__ import annotations

import pytest

from trtdx.model import Evidence, Finding, Fix, Harmless, Report, Section, Severity, Stage, Summary, Symptom
from trtdx.render import render_json, render_markdown, render_text
from trtdx.render.markdown import is_command
from trtdx.render.table import table_lines

REPORT = Report(
    Summary(
        "1 error; first: DX210 the engine was built for 4 ranks, but 2 were started", inputs=2, bytes_read=123456, lines_read=1,
        ranks=(0, 1), harmless=(Harmless("DX515", "an optional setting is not given", "rank0.log:1", 3),), partial=("rank1.log.gz: cut off",),
    ),
    (
        Finding(
            "DX210", "world-size-mismatch", Severity.ERROR, "the engine was built for 4 ranks, but 2 were started",
            "shards are cut at build time; two of four have no process to load them. " * 3,
            (Fix(Stage.LAUNCH, "start 4 ranks", "mpirun -n 4 python3 run.py"), Fix(Stage.BUILD, "or rebuild for 2 ranks")),
            "mpirun -n 4 hostname", 0.95, "rank0.log:3",
            (Evidence("rank0.log:3", "MPI size: 2, `rank`: 0 <b>\x1b[31m"), Evidence("rank1.log:3", "x" * 300), Evidence("rank1.log:4", "third")),
            tuple(Symptom(f"DX54{number}", "aborted", f"rank{number}.log:9") for number in range(5)), (1, 3),
        ),
        Finding("DX000", "not-enough-evidence", Severity.NOTE, "a *guess*", "", (), "", 0.15, "stdin:1"),
    ),
    (
        Section("overview", "engine: ./e", ("", ""), (("model", "Llama | x"), ("ranks", "tp 4"))),
        Section("profiles", "profile 0", ("tensor", "max", "dynamic"), (("input_ids", 8192, True), ("y" * 99, 16, None)), "derived"),
    ),
)  # fmt: skip


def test_text(golden):
    golden("report.txt", render_text(REPORT))


def test_text_with_details_and_colour(golden):
    golden("report-details.txt", render_text(REPORT, color=True, details=True))


def test_markdown(golden):
    golden("report.md", render_markdown(REPORT))


def test_json(golden):
    golden("report.json", render_json(REPORT))


def test_no_problem(golden):
    golden(
        "healthy.txt",
        render_text(
            Report(
                Summary(
                    "no problem found",
                    inputs=1,
                    bytes_read=10,
                    lines_read=2,
                    harmless=REPORT.summary.harmless,
                )
            )
        ),
    )


@pytest.mark.parametrize(
    ("verify", "command"),
    [
        ("df -h /dev/shm", True),
        ("NCCL_DEBUG=INFO mpirun -n 2 hostname", True),
        ("trtdx inspect ./engine   # nothing is reported", True),
        ('finish_reason is "stop"', False),
        ("the same request without the field is answered", False),
        ("head -c 4 FILE | xxd shows 'ftrt'", False),
    ],
)
def test_markdown_puts_commands_in_code_and_sentences_not(verify, command):
    assert is_command(verify) is command


def test_a_narrow_table_leaves_out_columns_without_a_value_before_it_cuts_names():
    rows = tuple((f"model.layers.{at}.self_attn.q_proj:out", "float32 1x3..1x4096", None) for at in range(3))
    section = Section("x", "x", ("tensor", "type and shape", "not finite"), rows)
    assert next(table_lines(section, width=60)).split() == ["tensor", "type", "and", "shape"]
    assert all(row[0] in line for row, line in zip(rows, list(table_lines(section, width=60))[1:], strict=True))
    narrow = list(table_lines(section, width=42))[1:]
    assert [line.split()[0] for line in narrow] == [f"...{at}...q_proj:out" for at in range(3)]
    assert all("float32 1x3..1x4096" in line for line in narrow)
    assert next(table_lines(section, width=None)).endswith("not finite")
