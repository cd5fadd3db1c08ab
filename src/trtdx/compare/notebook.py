"""`trtdx.compare(...)`: a comparison from a script or notebook, as a value that shows itself.

found = trtdx.compare("hf:./model", "onnx:./model.onnx", tokens=[1, 15, 27], new_tokens=4)
found.first            # the first tensor that is really wrong, or none
found.findings         # its cause, with evidence and fixes
found.to_pandas()      # every pair with its numbers
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.capture.session.inputs import parse_token_ids
from trtdx.compare.judge.tolerance import Tolerances
from trtdx.compare.report.drift_chart import comparison_html, drift_chart, write_picture
from trtdx.compare.run import ComparisonPlan
from trtdx.compare.run import compare as run_comparison
from trtdx.compare.sides.python_values import spec_from_value, write_arrays
from trtdx.compare.sides.side import ComparisonQuestion
from trtdx.errors import InputError, MissingExtraError
from trtdx.host import RealHost
from trtdx.installation import install_packages
from trtdx.knowledge.load import load_book
from trtdx.render import render_json, render_text
from trtdx.render.charts import draw_chart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtdx.capture.store.reader import Capture
    from trtdx.compare.report.comparison_report import ComparisonReport, TensorRow, UnmatchedRow
    from trtdx.model import Finding

    Given = str | PathLike[str] | Capture | Mapping[str, Any] | Any
    Prompts = str | Sequence[int] | Sequence[Sequence[int]] | Any


def compare(
    reference: Given,
    candidate: Given,
    *,
    tokens: Prompts | None = None,
    new_tokens: int = 1,
    inputs: str | PathLike[str] | Mapping[str, Any] | None = None,
    mapping: str | PathLike[str] | None = None,
    keep: str | PathLike[str] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    causes: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Return where a candidate first differs from its reference by more than precision explains, and why.

    Args:
        reference: what is right: a text as `trtdx compare` takes it ("hf:DIR?dtype=bfloat16", "onnx:FILE", "trt:FILE",
            a path), an opened `Capture`, a `torch.nn.Module`, or arrays by name.
        candidate: what is compared with it, likewise.
        tokens: a prompt as token ids, or several of them for a batch.
        new_tokens: how many tokens to generate.
        inputs: what other models are fed: a file, or arrays by input name.
        mapping: a file that says which tensor is which.
        keep: a folder for the captures made on the way.
        rtol: judge by this relative tolerance instead of by what precision explains.
        atol: judge by this absolute one.
        causes: whether to try out which mistake it is.
        progress: told in words what is being done.

    Raises:
        TrtdxError: a side cannot be read or run; its `fix` says what to do.
    """
    host = RealHost()
    with tempfile.TemporaryDirectory(prefix="trtdx-compare-") as scratch:
        folder = Path(scratch)
        fed = str(write_arrays(inputs, folder / "inputs.npz")) if isinstance(inputs, Mapping) else inputs
        sides = (
            spec_from_value(host, reference, folder / "reference"),
            spec_from_value(host, candidate, folder / "candidate", copied=False),
        )
        question = ComparisonQuestion(
            prompts=_parse_prompts(tokens), new_tokens=_check_token_count(new_tokens), inputs=str(fed or "")
        )
        plan = ComparisonPlan(
            reference=_side_text(reference, "REF"),
            candidate=_side_text(candidate, "CAND"),
            sides=sides,
            question=question,
            mapping=str(mapping or ""),
            keep=str(keep or folder / "captures"),
            attribute=causes,
        )
        tolerance = Tolerances(atol, rtol) if rtol is not None or atol is not None else None
        book = load_book(host, [])
        report = run_comparison(host, plan, book, tolerance=tolerance, progress=progress or _ignore_progress)
    return Comparison(report)


class Comparison:
    """What a comparison found. A notebook shows it as verdict, short table and drift curve."""

    def __init__(self, report: ComparisonReport) -> None:
        self.report = report

    @property
    def verdict(self) -> str:
        """The verdict in one sentence."""
        return self.report.summary.text

    @property
    def healthy(self) -> bool:
        """Whether something was compared and nothing is wrong."""
        return bool(self.report.compared) and not self.report.findings

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The cause, with its place, evidence and fixes; empty if nothing is wrong."""
        return self.report.findings

    @property
    def first(self) -> TensorRow | None:
        """The first tensor that is really wrong."""
        return self.report.first

    @property
    def table(self) -> tuple[TensorRow, ...]:
        """Every aligned pair in data-flow order: metrics, what was expected, verdict."""
        return self.report.tensors

    @property
    def unmatched(self) -> tuple[UnmatchedRow, ...]:
        """The tensors that have no counterpart, and why."""
        return self.report.unmatched

    def rows(self) -> list[dict[str, Any]]:
        """Return the table as plain dictionaries."""
        return [msgspec.structs.asdict(row) for row in self.table]

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame."""
        return _import_package("pandas").DataFrame(self.rows())

    def to_arrow(self) -> Any:
        """Return the table as a pyarrow Table."""
        return _import_package("pyarrow").Table.from_pylist(self.rows())

    def to_json(self) -> str:
        """Return what `trtdx compare --json` prints."""
        return render_json(self.report)

    def plot(self, ax: Any = None) -> Any:
        """Return a matplotlib figure of the drift over depth, drawn into `ax` if given."""
        return draw_chart(drift_chart(self.report), ax)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the drift as .png or .svg, or everything as one .html file."""
        write_picture(self.report, str(path))

    def __str__(self) -> str:
        return render_text(self.report)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self._counts().items())
        return f"<Comparison: {self.verdict}{f' ({counts})' if counts else ''}>"

    def _counts(self) -> dict[str, int]:
        names = ("same", "noise", "wrong", "poisoned", "unknown")
        counts = {name: sum(row.verdict == name for row in self.table) for name in names}
        return {name: count for name, count in counts.items() if count}

    def _repr_html_(self) -> str:
        return comparison_html(self.report)


def _side_text(side: Given, else_called: str) -> str:
    """Return a side as a command line would name it; a value that exists only in this process gets a placeholder."""
    path = getattr(side, "folder", side)  # of an opened capture
    return str(path) if isinstance(path, (str, PathLike)) else else_called


def _import_package(name: str) -> Any:
    """Return a package that trtdx does not depend on; whoever asks for its tables has it installed."""
    try:
        return importlib.import_module(name)
    except ImportError as err:
        raise MissingExtraError(f"{name} is not installed", fix=f"{install_packages(name)}   # or use rows()") from err


def _ignore_progress(text: str) -> None:
    pass


def _check_token_count(number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InputError(f"new_tokens is {number!r}, and at least one token has to be computed")
    return number


def _parse_prompts(tokens: Any) -> tuple[tuple[int, ...], ...]:
    """Return prompts from a text, ids, rows of ids or an array of either shape."""
    if tokens is None:
        return ()
    if isinstance(tokens, str):
        return parse_token_ids([tokens])
    rows = tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
    if rows and all(isinstance(row, str) for row in rows):
        return parse_token_ids(rows)
    if rows and not any(hasattr(row, "__iter__") for row in rows):
        rows = [rows]
    try:
        return parse_token_ids([" ".join(str(int(token)) for token in row) for row in rows])
    except (TypeError, ValueError) as err:
        raise InputError(
            f"{tokens!r} are not token ids", fix="give whole numbers: [1, 15, 27], or several rows of them"
        ) from err
