"""Compiles networks with the real TensorRT, always in a process of its own: some inputs abort the interpreter.

built = build_plan("model.onnx", profiles=["input_ids:1x1,2x32,4x128"], plan="model.plan")
debug = build_plan("model.onnx", selector="layers.*.mlp:out", variant="outputs", profiles=[...])
built = build_plan("networks.py:decoder")       # a function that takes the network and adds layers
built = build_plan(network)                     # an INetworkDefinition of this process: it is forked
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from trtdx.engines.tensorrt.build.build_process import BuildProcess
from trtdx.engines.tensorrt.build.frames import BuildDone, BuildJob
from trtdx.engines.tensorrt.build.nouns import BuildMessage, BuildOptions, BuildProgress, BuiltPlan, Variant
from trtdx.engines.tensorrt.build.output_bounds import with_most_bytes
from trtdx.engines.tensorrt.network.profiles import profile_from_argument
from trtdx.engines.tensorrt.network.registration import TensorRegistry
from trtdx.errors import InputError, UnknownNameError
from trtdx.formats.tensorrt.build_log import BuildLogParser
from trtdx.formats.tensorrt.kernels import assign_kernel_profiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


DEFAULT_OPTIONS = BuildOptions()
FUNCTION_SOURCE = re.compile(r"(?P<path>.+\.py|[A-Za-z_][\w.]*):(?P<function>[A-Za-z_][\w.]*)")


def build_plan(
    source: Any,
    *,
    selector: str = "",
    variant: Variant = "none",
    profiles: Sequence[str | Mapping[str, Any]] = (),
    registered: Any = None,
    options: BuildOptions = DEFAULT_OPTIONS,
    plan: str | Path | None = None,
    progress: Callable[[BuildProgress], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> BuiltPlan:
    """Compile a network and return the plan with all that is known of it.

    Args:
        source: an ONNX file, "package.module:function" or "file.py:function" (called with the network, and with
            `register` where it has such a parameter), or an INetworkDefinition of this process.
        selector: the tensors to mark, beside those that are registered.
        variant: "none" for production, "outputs" or "debug-tensors" to mark the tensors so.
        profiles: optimization profiles, each {input: (min, opt, max)} or "input:1x1,2x32,4x128 other:...".
        registered: for a live network: what `collect_registered()` collected, names with tensors, or an object with
            TensorRT-LLM's `named_network_outputs()`.
        options: how to compile.
        plan: the file to write; without one the plan stays in memory.
        progress: called with each step.
        cancel: asked several times a second; the compile ends when it says yes.

    Raises:
        BuildError: there is no plan; it carries what TensorRT said. `findings.findings_from` tells the cause.
        InputError: what was asked for cannot be.
    """
    if variant not in get_args(Variant):
        raise UnknownNameError("variant", str(variant), get_args(Variant))
    job = msgspec.structs.replace(
        _job_from_source(source),
        selector=selector,
        variant=variant,
        profiles=tuple(profile_from_argument(profile) for profile in profiles),
        options=options,
    )
    network = getattr(source, "trt_network", source) if job.kind == "network" else None
    with _temporary_plan_file(plan) as part:
        compiler = BuildProcess(msgspec.structs.replace(job, part=str(part)), progress=progress, cancel=cancel)
        done = compiler.run(network, _registry_from_registered(registered))
        seconds = compiler.seconds
        content = b""
        if plan is None:
            content = part.read_bytes()
        else:
            part.replace(plan)
    return _build_result(compiler, done, seconds, str(plan or ""), content)


def _job_from_source(source: Any) -> BuildJob:
    if hasattr(getattr(source, "trt_network", source), "add_input"):
        return BuildJob(kind="network", name=str(getattr(source, "name", "")) or "the network")
    if callable(source):
        raise InputError(
            "a function of this process cannot be compiled by another one",
            fix="name it, as 'package.module:function' or 'file.py:function', or pass the network it makes",
        )
    text = os.fspath(source)
    match = FUNCTION_SOURCE.fullmatch(text)
    if match and not Path(text).exists():
        if match["path"].endswith(".py") and not Path(match["path"]).is_file():
            raise InputError(f"there is no file {match['path']}")
        return BuildJob(kind="function", name=text, path=match["path"], function=match["function"])
    if not Path(text).is_file():
        raise InputError(
            f"there is no file {text}",
            fix="give an ONNX file, 'package.module:function' or 'file.py:function'",
        )
    return BuildJob(kind="onnx", name=text, path=text)


def _registry_from_registered(registered: Any) -> TensorRegistry:
    if isinstance(registered, TensorRegistry):
        return registered
    registry = TensorRegistry()
    if registered is None or registry.register_all(registered) or hasattr(registered, "named_network_outputs"):
        return registry
    for name, tensor in dict(registered).items():
        registry.register(name, tensor)
    return registry


@contextlib.contextmanager
def _temporary_plan_file(plan: str | Path | None) -> Iterator[Path]:
    """Make the file that the plan is written to before it has its name: an unwritable folder is told at once."""
    target = Path(plan) if plan is not None else None
    if target is not None and target.is_dir():
        raise InputError(f"{target} is a folder", fix=f"name a file in it, such as {target / 'model.plan'}")
    try:
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(
            prefix=f".{target.name}." if target else "trtdx-",
            suffix=".part",
            dir=target.parent if target else None,
        )
        os.fchmod(fd, 0o666 & ~_current_umask())
        os.close(fd)
    except OSError as err:
        raise InputError(f"the plan cannot be written to {plan or 'the temporary folder'}: {err.strerror}") from err
    try:
        yield Path(name).absolute()  # what is compiled may go to another folder
    finally:
        Path(name).unlink(missing_ok=True)


def _current_umask() -> int:
    """Return the bits that new files do not get; mkstemp gives them to nobody else, a plan is no secret."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _build_result(compiler: BuildProcess, done: BuildDone, seconds: float, plan_path: str, content: bytes) -> BuiltPlan:
    job = compiler.job
    build_log = build_log_from_messages(compiler.messages)
    return BuiltPlan(
        source=job.name,
        variant=job.variant,
        tensorrt=done.tensorrt,
        plan_path=plan_path,
        plan_size=done.plan_size,
        seconds=seconds,
        layers=compiler.layers,
        profiles=job.profiles,
        inputs=compiler.inputs,
        outputs=with_most_bytes(done, compiler.inputs, job.profiles, compiler.messages),
        marked=done.marked,
        left_out=done.left_out,
        kernels=tuple(assign_kernel_profiles(build_log.kernels)),
        activation_bytes=tuple(build_log.facts.get("log.activation_bytes", ())),
        weights_bytes=build_log.facts.get("log.weights_bytes"),
        messages=tuple(compiler.messages),
        content=content,
    )


def build_log_from_messages(messages: Sequence[BuildMessage]) -> BuildLogParser:
    """Return what the log tells of kernels and memory; of several attempts the last."""
    began = [number for number, message in enumerate(messages) if message.text == "SYMBOLIC CHECKS"]
    build_log = BuildLogParser("the compile")
    for message in messages[began[-1] if began else 0 :]:
        # Not splitlines: TensorRT puts control characters between names.
        for line in message.text.split("\n"):
            build_log.parse_line(line)
    return build_log
