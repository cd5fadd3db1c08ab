"""`trtdx memory` and its subcommands: the arguments, and nothing of the work."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from trtdx.cli.deprecated import MovedMemoryFlags
from trtdx.cli.groups import MAIN, expand_groups, make_command_group
from trtdx.cli.memory.options import (
    LoadOptions,
    LogsArgument,
    ModelArgument,
    ModelOption,
    ServingFlags,
    SetupOptions,
    make_flag,
)
from trtdx.cli.options import FindingOptions, ReportOptions, emit_report
from trtdx.cli.saving import SaveFlag, read_attachments, store_report
from trtdx.host import RealHost
from trtdx.optional import require_packages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtdx.memory.question.setup import MemoryRequest


def _normalize_flag(name: str) -> str:
    dashes = len(name) - len(name.lstrip("-"))
    return name[:dashes] + name[dashes:].replace("-", "_")


# Flags are TensorRT-LLM's own, with - or _; those that are not named are taken too (--gemm_plugin, --moe_backend ...).
SETTINGS: dict[Any, Any] = {"ignore_unknown_options": True, "token_normalize_func": _normalize_flag}


def run_memory(
    context: typer.Context,
    setup: SetupOptions,
    serving: ServingFlags,
    load: LoadOptions,
    moved: MovedMemoryFlags,
    findings: FindingOptions,
    output: ReportOptions,
    words: ModelArgument = None,
    save: SaveFlag = False,
) -> None:
    """Say what uses a GPU's memory, whether it fits, and what to change.

    Other build and serve flags are taken as TensorRT-LLM spells them, with - or _: --max_input_len, --gemm_plugin,
    --context_fmha, --remove_input_padding, --use_parallel_embedding, --tokens_per_block, --moe_backend,
    --enable_attention_dp, --enable_chunked_prefill, --cuda_graph off ...
    """
    mode = moved.choose_mode(context)
    if mode in ("log", "calibrate"):
        from trtdx.memory.question.flags import split_flags

        host = RealHost()
        alone, flags = split_flags(words or ())
        logs = [word for word in alone if _is_log(host, word)]  # --log rank0.log rank1.log
        model = _only_model([word for word in alone if word not in logs]) or moved.model
        setup.check_logs_model(model, serving, dict(flags))
        question = setup.build_question(host, model, serving, dict(flags))
        named = [*(moved.log or moved.calibrate or ()), *logs]
        _report_logs(host, named, question, findings, output, learns=mode == "calibrate", save=save)
    _plan_model(setup, serving, load, findings, output, words, frontier=bool(mode), plot=moved.plot, save=save)


def plan_frontier(
    setup: SetupOptions,
    serving: ServingFlags,
    load: LoadOptions,
    findings: FindingOptions,
    output: ReportOptions,
    words: ModelArgument = None,
    plot: Annotated[str, make_flag("--plot", metavar="FILE", text="Draw the frontier: .png, .svg or .html.")] = "",
    save: SaveFlag = False,
) -> NoReturn:
    """Find the largest batch for each length and step, and what stands in the way."""
    _plan_model(setup, serving, load, findings, output, words, frontier=True, plot=plot, save=save)


def explain_log(
    words: LogsArgument,
    setup: SetupOptions,
    serving: ServingFlags,
    findings: FindingOptions,
    output: ReportOptions,
    model: ModelOption = "",
    save: SaveFlag = False,
) -> NoReturn:
    """Rebuild the ledger of a run from its logs, and say which allocation failed.

    With --model and the flags of the run, what the logs do not say is planned.
    """
    _read_logs(words, setup, serving, findings, output, model, learns=False, save=save)


def calibrate_machine(
    words: LogsArgument,
    setup: SetupOptions,
    serving: ServingFlags,
    findings: FindingOptions,
    output: ReportOptions,
    model: ModelOption = "",
) -> NoReturn:
    """Learn this machine's constants from logs of one set-up, and keep them for later plans."""
    _read_logs(words, setup, serving, findings, output, model, learns=True)


def _plan_model(
    setup: SetupOptions,
    serving: ServingFlags,
    load: LoadOptions,
    findings: FindingOptions,
    output: ReportOptions,
    words: Sequence[str] | None,
    *,
    frontier: bool,
    plot: str,
    save: bool,
) -> NoReturn:
    """Plan a model's memory, print the report and end."""
    from trtdx.cli.capture.build import show_building
    from trtdx.memory.question.flags import split_flags
    from trtdx.memory.run import PlanRequest, report_memory_plan

    host = RealHost()
    models, flags = split_flags(words or ())
    question = setup.build_question(host, _only_model(models), serving, dict(flags))
    if not (question.model or question.dims or question.commands or question.options):
        raise typer.BadParameter("name a model, or give --dims, --command or --config; for logs: trtdx memory log LOG")
    request = PlanRequest(
        frontier=frontier,
        plot=plot,
        target=load.target,
        lengths=load.parse_lengths(),
        compiles=load.compile_,
        again=f"trtdx memory {shlex.join(_own_arguments())}",
    )
    if load.compile_:
        require_packages(("numpy", "ml_dtypes", "tensorrt_rtx"), purpose="compile the model's layers")
    with show_building() if load.compile_ else nullcontext() as progress:
        report = report_memory_plan(host, question, findings.load_rules(host), request, progress)
    if save:
        store_report(host, "memory", report)
    emit_report(report, output, findings)


def _read_logs(
    words: Sequence[str],
    setup: SetupOptions,
    serving: ServingFlags,
    findings: FindingOptions,
    output: ReportOptions,
    model: str,
    *,
    learns: bool,
    save: bool = False,
) -> NoReturn:
    """Report on the logs among the words; the rest of the words are flags of the run."""
    host = RealHost()
    logs, flags = _split_logs(words)
    setup.check_logs_model(model, serving, flags)
    question = setup.build_question(host, model, serving, flags)
    _report_logs(host, logs, question, findings, output, learns=learns, save=save)


def _report_logs(
    host: RealHost,
    logs: Sequence[str],
    question: MemoryRequest,
    findings: FindingOptions,
    output: ReportOptions,
    *,
    learns: bool,
    save: bool = False,
) -> NoReturn:
    """Read logs for what they say of memory, print the report and end."""
    from trtdx.memory.logs.reports import calibration_report, log_report

    book = findings.load_rules(host)
    report = (
        calibration_report(host, question, tuple(logs), book)
        if learns
        else log_report(host, question, book, tuple(logs))
    )
    if save:
        store_report(host, "memory", report, read_attachments(host, logs))
    emit_report(report, output, findings)


def _split_logs(words: Sequence[str]) -> tuple[list[str], Mapping[str, Any]]:
    """Return the logs named, and the flags among the words."""
    from trtdx.memory.question.flags import split_flags

    logs, flags = split_flags(words)
    if not logs:
        raise typer.BadParameter("name a log; a model folder called log is ./log")
    return list(logs), dict(flags)


def _only_model(models: Sequence[str]) -> str:
    if len(models) > 1:
        raise typer.BadParameter(f"one model at a time, not {' and '.join(models)}")
    return models[0] if models else ""


def _is_log(host: RealHost, word: str) -> bool:
    return host.kind(word) == "file" and not word.endswith((".json", ".safetensors", ".gguf"))


def _own_arguments() -> list[str]:
    words = sys.argv[1:]
    return words[words.index("memory") + 1 :] if "memory" in words else ["MODEL", "--gpu", "GPU"]


app = make_command_group("Plan GPU memory, and explain it after a crash.")
app.command(
    MAIN,
    hidden=True,
    context_settings=SETTINGS,
    epilog="Example: trtdx memory ./model --gpu 2xH100 --max_batch_size 64",
)(expand_groups(run_memory))
app.command(
    "frontier",
    context_settings=SETTINGS,
    epilog="Example: trtdx memory frontier ./model --gpu H100 --plot fits.html",
)(expand_groups(plan_frontier))
app.command("log", context_settings=SETTINGS, epilog="Example: trtdx memory log server.log --model ./model")(
    expand_groups(explain_log)
)
app.command(
    "calibrate",
    context_settings=SETTINGS,
    epilog="Example: trtdx memory calibrate server.log --model ./model --gpu H100",
)(expand_groups(calibrate_machine))
