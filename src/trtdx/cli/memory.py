"""`trtdx memory`: the arguments, and nothing of the work."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtdx.cli.options import ColorOption, FailOnOption, JsonOption, MarkdownOption, RulesOption
from trtdx.cli.output import Color, FailOn, emit
from trtdx.host import RealHost
from trtdx.optional import require_packages

if TYPE_CHECKING:
    from trtdx.memory.question.setup import MemoryRequest

# Flags are TensorRT-LLM's own, with - or _; those that are not named here are taken too (--gemm_plugin, --moe_backend ...).
SETTINGS = {
    "ignore_unknown_options": True,
    "token_normalize_func": lambda name: (
        name.replace("-", "_") if not name.startswith("-") else _normal(name)
    ),
}


def _normal(name: str) -> str:
    dashes = len(name) - len(name.lstrip("-"))
    return name[:dashes] + name[dashes:].replace("-", "_")


def _flag(*names: str, metavar: str, text: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, show_default=False)


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="A Hugging Face folder, checkpoint, engine folder or config.json; or a known name, such as Llama-3.1-8B.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        str,
        _flag("--gpu", metavar="NAME", text="The GPU: H100, L4, 2xH100. Without it, the smallest that fits."),
    ] = "",
    gpu_memory: Annotated[str, _flag("--gpu-memory", metavar="SIZE", text="Its memory, such as 24GiB.")] = "",
    dims: Annotated[
        str,
        _flag(
            "--dims",
            metavar="KEY=N,...",
            text="Sizes of a model, or corrections: num_layers=32,hidden_size=4096,...",
        ),
    ] = "",
    command_line: Annotated[
        list[str] | None,
        _flag(
            "--command",
            metavar="TEXT",
            text="A whole trtllm-serve, trtllm-bench or trtllm-build command line.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        _flag(
            "--config",
            "--extra_llm_api_options",
            metavar="FILE",
            text="A YAML file of the LLM API's options.",
        ),
    ] = None,
    version: Annotated[
        str, _flag("--trtllm-version", "--runtime", metavar="VERSION", text="The TensorRT-LLM release.")
    ] = "",
    backend: Annotated[str, _flag("--backend", metavar="NAME", text="pytorch or tensorrt.")] = "",
    tp: Annotated[
        str, _flag("--tp", "--tp_size", "--tensor_parallel_size", metavar="N", text="Tensor parallelism.")
    ] = "",
    pp: Annotated[
        str, _flag("--pp", "--pp_size", "--pipeline_parallel_size", metavar="N", text="Pipeline parallelism.")
    ] = "",
    ep: Annotated[
        str, _flag("--ep", "--ep_size", "--moe_expert_parallel_size", metavar="N", text="Expert parallelism.")
    ] = "",
    dtype: Annotated[str, _flag("--dtype", metavar="TYPE", text="Of weights and activations.")] = "",
    quantization: Annotated[
        str,
        _flag(
            "--quantization",
            "--quant_algo",
            "--qformat",
            metavar="FORMAT",
            text="Of the weights: fp8, nvfp4, awq, int8 ...",
        ),
    ] = "",
    kv_cache_dtype: Annotated[
        str, _flag("--kv_cache_dtype", metavar="TYPE", text="Of the KV cache: fp8, nvfp4, int8.")
    ] = "",
    max_batch_size: Annotated[
        str, _flag("--max_batch_size", metavar="N", text="The most requests in a step.")
    ] = "",
    max_num_tokens: Annotated[
        str, _flag("--max_num_tokens", metavar="N", text="The most tokens in a step.")
    ] = "",
    max_seq_len: Annotated[str, _flag("--max_seq_len", metavar="N", text="Prompt and answer together.")] = "",
    max_beam_width: Annotated[str, _flag("--max_beam_width", metavar="N", text="The most beams.")] = "",
    fraction: Annotated[
        str,
        _flag(
            "--kv_cache_free_gpu_memory_fraction",
            "--free_gpu_memory_fraction",
            "--kv_cache_free_gpu_mem_fraction",
            metavar="SHARE",
            text="Of free memory, for the KV cache.",
        ),
    ] = "",
    length: Annotated[
        list[str] | None,
        _flag("--length", metavar="N", text="Count requests of this many tokens. May be repeated."),
    ] = None,
    frontier: Annotated[
        bool,
        typer.Option(
            "--frontier", help="The largest batch for each length and step, and what stands in the way."
        ),
    ] = False,
    plot: Annotated[
        str, _flag("--plot", metavar="FILE", text="Draw the frontier: .png, .svg or .html.")
    ] = "",
    target: Annotated[
        str,
        _flag("--target", metavar="LOAD", text="'batch=64, seq=8192': the cheapest change that reaches it."),
    ] = "",
    log: Annotated[
        list[str] | None,
        _flag("--log", metavar="LOG", text="After a crash: the ledger that a log tells, and what failed."),
    ] = None,
    of: Annotated[str, _flag("--model", metavar="DIR", text="With --log and --calibrate: the model.")] = "",
    calibrate: Annotated[
        list[str] | None,
        _flag("--calibrate", metavar="LOG", text="Learn this machine's constants from logs, and keep them."),
    ] = None,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Take activation memory from TensorRT's builder, on the CPU.")
    ] = False,
    rules: RulesOption = None,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    fail_on: FailOnOption = FailOn.ERROR,
    color: ColorOption = Color.AUTO,
    details: Annotated[bool, typer.Option("--details", "-v", help="Also show all evidence.")] = False,
) -> None:
    """Say what uses a GPU's memory, whether it fits, and what to change.

    Other build and serve flags are taken as TensorRT-LLM spells them, with - or _: --max_input_len, --gemm_plugin,
    --context_fmha, --remove_input_padding, --use_parallel_embedding, --tokens_per_block, --moe_backend,
    --enable_attention_dp, --enable_chunked_prefill, --cuda_graph off ...
    """
    from trtdx.cli.capture_build import building
    from trtdx.knowledge.load import load_book
    from trtdx.memory.modes import Options, answer
    from trtdx.memory.question.flags import artifact_from_flags, parse_token_count, split_flags
    from trtdx.memory.question.setup import MemoryRequest

    if json and markdown:
        raise typer.BadParameter("--json and --markdown exclude each other")
    given = {
        "tp": tp, "pp": pp, "ep": ep, "dtype": dtype, "quantization": quantization, "kv_cache_dtype": kv_cache_dtype,
        "max_batch_size": max_batch_size, "max_num_tokens": max_num_tokens, "max_seq_len": max_seq_len,
        "max_beam_width": max_beam_width, "kv_cache_free_gpu_memory_fraction": fraction, "backend": backend,
    }  # fmt: skip
    # Flags that are not named above come as words, with their values, among them the model.
    host = RealHost()
    models, flags = split_flags(words or ())
    more = [
        word for word in models if (log or calibrate) and _is_log(host, word)
    ]  # --log rank0.log rank1.log
    models = [word for word in models if word not in more]
    if len(models) > 1:
        raise typer.BadParameter(f"one model at a time, not {' and '.join(models)}")
    asked = MemoryRequest(
        model=models[0] if models else of,
        dims=dims,
        options=tuple(config or ()),
        commands=tuple(command_line or ()),
        flags=artifact_from_flags({name: value for name, value in given.items() if value} | dict(flags)),
        version=version,
        gpu=gpu,
        gpu_memory=gpu_memory,
    )
    _demand_something(asked, log or calibrate)
    options = Options(
        frontier=frontier or bool(plot),
        plot=plot,
        target=target,
        lengths=tuple(parse_token_count("--length", each) for each in length or ()),
        logs=(*log, *more) if log else (),
        calibrate=(*calibrate, *more) if calibrate and not log else (),
        compile=compile_,
        again=f"trtdx memory {shlex.join(_own_arguments())}",
    )
    if compile_:
        require_packages(("numpy", "ml_dtypes", "tensorrt_rtx"), purpose="compile the model's layers")
    with building() if compile_ else nullcontext() as progress:
        report = answer(host, asked, load_book(host, rules or []), options, progress)
    emit(report, json=json, markdown=markdown, color=color, details=details, fail_on=fail_on)


def _demand_something(asked: MemoryRequest, logs: list[str] | None) -> None:
    if not (asked.model or asked.dims or asked.commands or asked.options or logs):
        raise typer.BadParameter("name a model, or give --dims, --command, --config or --log")


def _is_log(host: RealHost, word: str) -> bool:
    return host.kind(word) == "file" and not word.endswith((".json", ".safetensors", ".gguf"))


def _own_arguments() -> list[str]:
    words = sys.argv[1:]
    return words[words.index("memory") + 1 :] if "memory" in words else ["MODEL", "--gpu", "GPU"]
