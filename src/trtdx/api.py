"""The Python API: one function a question, and what it answers. See docs/api.md.

    import trtdx

    report = trtdx.diagnose("server.log")
    print(report.findings[0].message)

Nothing heavy is imported before a function is called. Six of the names are packages too; `CallablePackage` lets
`trtdx.compare(...)` work whichever module of the package was imported first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from os import PathLike

    from trtdx.compare.notebook import Comparison
    from trtdx.memory.report.plan import MemoryReport
    from trtdx.model import Report

    AnyPath = str | PathLike[str]


class CallablePackage(ModuleType):
    """A package that is also the function of this module with its name."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        function = globals()[self.__name__.rpartition(".")[2]]
        return function(*args, **options)


def make_callable(package: str) -> None:
    """Let a package be called."""
    sys.modules[package].__class__ = CallablePackage


def check(
    python: AnyPath = "", *, container: AnyPath = "", import_timeout_s: float = 20.0, rules: Sequence[AnyPath] = ()
) -> Report:
    """Return what is wrong with a machine and a Python environment, what must be mended first in front.

    Args:
        python: the interpreter, or its environment's folder; by default that of the active environment.
        container: an unpacked root file system instead; it is read, nothing in it is run.
        import_timeout_s: how long one import may take.
        rules: folders of rule pages beside those of trtdx.

    Raises:
        TrtdxError: there is nothing to look at; its `fix` says what to do.
    """
    from trtdx.check.collect import CheckQuestion
    from trtdx.check.run import check_environment
    from trtdx.host import RealHost
    from trtdx.knowledge.load import load_book

    host = RealHost()
    question = CheckQuestion(python=str(python), container=str(container), import_timeout_s=import_timeout_s)
    return check_environment(host, question, load_book(host, list(map(str, rules))))[0]


def diagnose(
    *logs: AnyPath, text: str | bytes = "", rules: Sequence[AnyPath] = (), redact_hosts: bool = False
) -> Report:
    """Return the root cause first, with its evidence, the fix, and how to verify it.

    Args:
        logs: log files (.gz, .xz, .zst too), directories or cases.
        text: log text, instead of or beside files.
        rules: folders of rule pages beside those of trtdx.
        redact_hosts: hide host names and addresses too; secrets are always hidden.

    Raises:
        TrtdxError: nothing can be read; its `fix` says what to do.
    """
    from trtdx.diagnose.logs.sources import open_sources
    from trtdx.diagnose.run import diagnose_sources as diagnose_sources
    from trtdx.diagnose.run import source_from_text
    from trtdx.errors import InputError
    from trtdx.host import RealHost
    from trtdx.knowledge.load import load_book
    from trtdx.memory.logs.diagnose_hook import with_memory_figures

    if not logs and not text:
        raise InputError("there is nothing to diagnose", fix="name a log, or give text=")
    host = RealHost()
    streams, skipped = open_sources(host, list(map(str, logs))) if logs else ([], [])
    notes = [entry.reason if entry.is_unreadable else f"{entry.name}: {entry.reason}" for entry in skipped]
    return diagnose_sources(
        [*streams, *([source_from_text(text, "text")] if text else [])],
        load_book(host, list(map(str, rules))),
        redact_hosts=redact_hosts,
        notes=notes,
        refine=with_memory_figures,
    )


def inspect(
    *paths: AnyPath,
    commands: Sequence[str] = (),
    runtime: str = "",
    gpu: str = "",
    gpus: int = 0,
    requests: Sequence[str] = (),
    show: Sequence[str] = (),
    against: AnyPath = "",
    rules: Sequence[AnyPath] = (),
) -> Report:
    """Return what is in artifacts, whether they take requests, and what disagrees with what.

    Args:
        paths: models, checkpoints, engines, ONNX files, option files, scripts and manifests; checked together.
        commands: trtllm-serve, trtllm-bench or trtllm-build command lines.
        runtime: the TensorRT-LLM release that is to run them.
        gpu: the GPU, such as "L40S".
        gpus: how many of it there are.
        requests: what an engine is to take: "batch=8,input_len=900,output_len=100".
        show: more sections: "tensors", "profiles", "settings" ... or "all".
        against: return what differs from this one instead.
        rules: folders of rule pages beside those of trtdx.

    Raises:
        TrtdxError: something cannot be read; its `fix` says what to do.
    """
    from trtdx.host import RealHost
    from trtdx.inspect.facts.machine import machine_from_flags
    from trtdx.inspect.requests.requests import requests_from_flags
    from trtdx.inspect.run import InspectQuestion
    from trtdx.inspect.run import inspect_artifacts as inspect_artifacts
    from trtdx.knowledge.load import load_book
    from trtdx.redact import redact_report

    host = RealHost()
    question = InspectQuestion(
        paths=tuple(dict.fromkeys(map(str, paths))),
        commands=tuple(commands),
        machine=machine_from_flags(runtime=runtime, gpu=gpu, gpus=gpus),
        shown_sections=tuple(show),
        compare_with=str(against),
        requests=requests_from_flags(host, list(requests), ""),
    )
    return redact_report(inspect_artifacts(host, question, load_book(host, list(map(str, rules)))))


def memory(
    model: AnyPath = "",
    *,
    gpu: str = "",
    gpu_memory: str = "",
    runtime: str = "",
    dims: str = "",
    commands: Sequence[str] = (),
    configs: Sequence[AnyPath] = (),
    lengths: Sequence[int] = (),
    frontier: bool = False,
    target: str = "",
    rules: Sequence[AnyPath] = (),
    **flags: Any,
) -> MemoryReport:
    """Return what uses a GPU's memory, whether it fits, and what to change.

    Args:
        model: a folder, a config.json, or a known name such as "Llama-3.1-8B".
        gpu: "H100", "2xH100"; without it the smallest that fits is named.
        gpu_memory: its memory, such as "24GiB".
        runtime: the TensorRT-LLM release.
        dims: sizes of a model: "num_layers=32,hidden_size=4096,...".
        commands: whole trtllm-serve, trtllm-bench or trtllm-build command lines.
        configs: YAML files of the LLM API's options.
        lengths: count requests of this many tokens.
        frontier: also find the largest batch for each length and step.
        target: find the cheapest change that reaches a load: "batch=64, seq=8192".
        rules: folders of rule pages beside those of trtdx.
        flags: TensorRT-LLM's own: tp=2, max_batch_size=64, kv_cache_dtype="fp8" ...

    Raises:
        TrtdxError: the set-up cannot be understood; its `fix` says what to do.
    """
    from trtdx.host import RealHost
    from trtdx.knowledge.load import load_book
    from trtdx.memory.question.flags import artifact_from_flags
    from trtdx.memory.question.setup import MemoryRequest
    from trtdx.memory.run import PlanRequest, report_memory_plan

    host = RealHost()
    question = MemoryRequest(
        model=str(model),
        dims=dims,
        options=tuple(map(str, configs)),
        commands=tuple(commands),
        flags=artifact_from_flags({name: str(value) for name, value in flags.items()}),
        version=runtime,
        gpu=gpu,
        gpu_memory=gpu_memory,
    )
    request = PlanRequest(frontier=frontier, target=target, lengths=tuple(lengths))
    return report_memory_plan(host, question, load_book(host, list(map(str, rules))), request)


class CapturedRun(msgspec.Struct, frozen=True):
    """A run of a model: the folder with its tensors, and the report on them."""

    folder: Path
    report: Any  # a Report

    def open(self) -> Any:
        """Return the capture, to read its tensors; use it as a context manager."""
        from trtdx.capture.store.reader import Capture

        return Capture(self.folder)


def capture(
    model: AnyPath,
    *,
    engine: str = "auto",
    tap: str = "",
    values: str = "",
    tokens: Sequence[int] | Sequence[Sequence[int]] = (),
    new_tokens: int | None = None,
    inputs: Sequence[AnyPath] = (),
    out: AnyPath = "",
    watch_nan: bool = False,
) -> CapturedRun:
    """Run a model on any engine and keep what passes the taps.

    Args:
        model: a Hugging Face folder or an ONNX file.
        engine: "torch", "onnxruntime" or "tensorrt"; "auto" takes what the model is made for.
        tap: what to look at, such as "layers.*.mlp:out"; by default what leaves each module.
        values: keep the values of these too, not only their statistics.
        tokens: a prompt as token ids, or several for a batch.
        new_tokens: how many tokens to generate at most.
        inputs: files to feed any other model with.
        out: where the capture goes; by default a new folder in the current one.
        watch_nan: stop at the first NaN or infinity.

    Raises:
        TrtdxError: the model cannot be run; its `fix` says what to do.
    """
    from trtdx.capture.run import CapturePlan, capture_run
    from trtdx.engines.open_engine import choose_engine, find_model
    from trtdx.host import RealHost
    from trtdx.knowledge.load import load_book
    from trtdx.optional import ENGINE_PACKAGES, TENSOR_PACKAGES, require_packages

    kind = choose_engine(find_model(str(model)), engine)
    require_packages((*TENSOR_PACKAGES, *ENGINE_PACKAGES[kind]), purpose=f"capture on {kind}")
    rows: Sequence[Any] = [tokens] if tokens and isinstance(tokens[0], int) else tokens
    plan = CapturePlan(
        model=str(model),
        engine=engine,
        selector=tap,
        out=str(out),
        prompts=tuple(tuple(row) for row in rows),
        inputs=tuple(map(str, inputs)),
        tokens=new_tokens,
        values=values,
        watch=watch_nan,
    )
    host, folders = RealHost(), list[Path]()
    report = capture_run(host, plan, load_book(host), on_start=folders.append)
    return CapturedRun(folders[0], report)


def compare(reference: Any, candidate: Any, **options: Any) -> Comparison:
    """Return where a candidate first differs from its reference by more than precision explains, and why.

    The options are those of `trtdx.compare.notebook.compare`: tokens, new_tokens, inputs, mapping, keep, rtol,
    atol, causes, progress.

    Raises:
        TrtdxError: a side cannot be read or run; its `fix` says what to do.
    """
    from trtdx.compare.sides.needed_packages import need_packages

    need_packages(reference, candidate)
    from trtdx.compare.notebook import compare as compare_sides

    return compare_sides(reference, candidate, **options)


def evaluate(
    network: Any,
    inputs: Mapping[str, Any],
    taps: Collection[str] | str | None = None,
    *,
    plugins: Mapping[str | tuple[str, str], Callable[..., Any]] | None = None,
) -> dict[str, Any]:
    """Return the outputs of a TensorRT network definition, and the tensors tapped, computed on the CPU.

    Args:
        network: an INetworkDefinition of `tensorrt` or `tensorrt_rtx`.
        inputs: an array for each input of the network, in the network's types.
        taps: names of tensors or layers to see as well, or "all".
        plugins: for a plugin's name, or its name and version, a function from input arrays to output arrays.

    Raises:
        TrtdxError: a layer cannot be computed.
    """
    from trtdx.engines.tensorrt.evaluate.prepared_network import evaluate as evaluate_network

    return evaluate_network(network, inputs, taps, plugins=plugins)
