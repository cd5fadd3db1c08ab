"""The ways of asking: a plan, the ledger of a log, a calibration; with what each needs from the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.errors import InputError
from trtdx.memory.ledger.calibration import load_constants
from trtdx.memory.run import Wanted, memory_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.engines.tensorrt.build.nouns import BuildProgress
    from trtdx.host import Host
    from trtdx.memory.question.setup import MemoryRequest
    from trtdx.model import Report
    from trtdx.rule import RuleBook


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted beside the plan."""

    frontier: bool = False
    plot: str = ""
    target: str = ""
    lengths: tuple[int, ...] = ()
    logs: tuple[str, ...] = ()
    calibrate: tuple[str, ...] = ()
    compile: bool = False
    again: str = ""


def answer(
    host: Host,
    asked: MemoryRequest,
    book: RuleBook,
    options: Options,
    progress: Callable[[BuildProgress], None] | None = None,
) -> Report:
    """Return the report of whichever way was asked."""
    if options.calibrate:
        from trtdx.memory.logs.reports import calibration_report

        return calibration_report(host, asked, options.calibrate, book)
    if options.logs:
        from trtdx.memory.logs.reports import log_report

        return log_report(host, asked, book, options.logs)
    wanted = Wanted(
        frontier=options.frontier,
        target=options.target,
        lengths=options.lengths,
        again=options.again,
        constants=load_constants(host),
    )
    if options.compile:
        from trtdx.memory.compile.growth_curve import with_compiled_activation

        wanted = with_compiled_activation(host, asked, wanted, progress)
    report = memory_report(host, asked, book, wanted)
    if options.plot:
        from trtdx.memory.report.frontier_chart import write_frontier

        if not report.frontier:
            raise InputError(f"there is no frontier to draw: {report.summary.text}")
        setup = (report.memory or {})["setup"]
        world = setup["layout"]["tp"] * setup["layout"]["pp"] * setup["layout"]["cp"]
        count = f"{world} x " if world > 1 else ""
        title = f"{setup['model']} on {count}{setup['device']['name']}"
        write_frontier(report.frontier, options.plot, title, report.summary.text)
    return report
