"""The first tensor of a capture that is not finite, as a finding: where it comes from and what to do."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from trtdx.capture.bad_weights import find_weights_not_finite
from trtdx.capture.tensor_table import is_state
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.model import Evidence

if TYPE_CHECKING:
    from trtdx.capture.session.recorder import NotFiniteError
    from trtdx.capture.store.reader import Capture, TensorRecord
    from trtdx.model import Finding
    from trtdx.rule import RuleBook


NOT_FINITE = "DX960"


# Modules and operators that apply no mask: -Inf that leaves them is an overflow.
UNMASKED_OPERATORS = re.compile(r"Linear|Embedding|MLP|Norm|MatMul|Gemm|Conv")
LARGEST_NUMBERS = {"float16": "65504", "float8_e4m3fn": "448", "float8_e5m2": "57344"}


def find_not_finite(capture: Capture, book: RuleBook, stopped: NotFiniteError | None = None) -> Finding | None:
    """Return the finding of the first tensor that has a NaN or an overflow, if there is one."""
    if stopped is None:
        record = next(filter(_is_not_finite, capture.records()), None)
    else:
        record = capture.record(stopped.place.name, step=stopped.step, rank=capture.ranks[0])
    if record is None:
        return None
    record = _not_finite_input(capture, record) or record
    values = {
        "tensor": record.name,
        "step": record.step,
        "what": record.statistics.specials,
        "elements": record.statistics.elements,
        "capture": shlex.quote(str(capture.folder)),
        "again": _repeat_command(capture, "--watch", "nan"),
        "everywhere": _repeat_command(capture, "--watch", "nan", "--tap", "**"),
        "operator": record.place.op or "module",
    }
    if record.layout.dtype in LARGEST_NUMBERS:
        values |= {"narrow": record.layout.dtype, "largest": LARGEST_NUMBERS[record.layout.dtype]}
    evidence = Evidence(
        f"{capture.folder}: step {record.step}, {record.name}",
        f"{values['what']} of {values['elements']} elements",
    )
    weights = find_weights_not_finite(capture.header.details.get("model"), record.place.path)
    if record.place.port == "in":
        values["origin"] = "is computed before the tensors that were looked at"
    elif weights:
        values["weights"] = "; ".join(weights)
    elif weights is None:
        values["unread"] = "the weights of this place"
    more = tuple(Evidence("weights", weight) for weight in weights or ())
    return finding_from(book.get(NOT_FINITE), Violation((evidence, *more, *_input_evidence(capture, record)), values))


def _not_finite_input(capture: Capture, record: TensorRecord) -> TensorRecord | None:
    """Return what a module was given that was not finite already: it came before what left the module."""
    if record.place.port != "out" or not record.place.path:
        return None
    entering = (
        other
        for other in capture.records(step=record.step, rank=record.rank)
        if other.place.port == "in" and other.place.path == record.place.path
    )
    return next(filter(_is_not_finite, entering), None)


def _is_not_finite(record: TensorRecord) -> bool:
    """Whether a record has a NaN or an overflow; -Inf alone is what masks are made of, where one may be applied."""
    statistics = record.statistics
    overflow = record.place.port == "out" and UNMASKED_OPERATORS.search(record.place.op or "") is not None
    return bool(statistics.nan or statistics.pos_inf or (overflow and statistics.neg_inf))


def _repeat_command(capture: Capture, *words: str) -> str:
    """Return the command that the capture was made with, changed by these options, to be run once more."""
    run = capture.header.run if capture.header.run.startswith("trtdx capture ") else ""
    try:
        words_before = shlex.split(run)
    except ValueError:  # cut or redacted in the middle of a quoted word
        words_before = []
    if not words_before or "--resume" in words_before:
        words_before = ["trtdx", "capture", str(capture.header.details.get("model") or "MODEL")]
    dropped = {"--out", *(word for word in words if word.startswith("--"))}
    kept_arguments = [
        word for before, word in zip(["", *words_before], words_before, strict=False) if not {before, word} & dropped
    ]
    return shlex.join([*kept_arguments, *words])


def _input_evidence(capture: Capture, record: TensorRecord) -> tuple[Evidence, ...]:
    """Return as evidence what the module was given, where that is known, else the last tensor before it."""
    inputs: list[TensorRecord] = []
    last: list[TensorRecord] = []
    passed = False
    for other in capture.records(step=record.step, rank=record.rank):
        passed = passed or other.place == record.place
        if other.place.port == "in" and other.place.path == record.place.path and other.place.path:
            inputs.append(other)
        elif not passed and not is_state(other.place):
            last = last if _is_not_finite(other) else [other]
    shown = {shown_record.name: shown_record for shown_record in inputs or last}
    return tuple(
        Evidence(
            f"{capture.folder}: step {shown_record.step}, {shown_record.name}",
            _describe_magnitude(shown_record),
        )
        for shown_record in list(shown.values())[:4]
    )


def _describe_magnitude(record: TensorRecord) -> str:
    """Return how large the numbers are that something not finite was made from."""
    statistics, largest = record.statistics, f"up to {record.statistics.absmax:.4g} ({record.layout.dtype})"
    if statistics.neg_inf == statistics.elements:
        return f"-Inf in all {statistics.elements} elements"
    not_finite = record.statistics.specials
    return f"{not_finite} of {statistics.elements}, the rest {largest}" if not_finite else f"still finite, {largest}"
