"""Option groups of `trtdx memory` and its subcommands."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtdx.cli.groups import OptionGroup
from trtdx.cli.project import load_project_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtdx.host import Host
    from trtdx.memory.question.setup import MemoryRequest


def make_flag(*names: str, metavar: str, text: str) -> Any:
    """Return an option without a default to show."""
    return typer.Option(*names, metavar=metavar, help=text, show_default=False)


ModelArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL",
        help="A Hugging Face folder, checkpoint, engine folder or config.json; or a known name, such as Llama-3.1-8B.",
        show_default=False,
    ),
]
LogsArgument = Annotated[
    list[str], typer.Argument(metavar="LOG", help="The logs of one run, of all its ranks.", show_default=False)
]
ModelOption = Annotated[str, make_flag("--model", metavar="MODEL", text="The model that these logs are from.")]


@dataclass(frozen=True, kw_only=True)
class ServingFlags(OptionGroup):
    """TensorRT-LLM's own flags; those that are not named here come as words of the command line."""

    tp: Annotated[
        str, make_flag("--tp", "--tp_size", "--tensor_parallel_size", metavar="N", text="Tensor parallelism.")
    ] = ""
    pp: Annotated[
        str,
        make_flag("--pp", "--pp_size", "--pipeline_parallel_size", metavar="N", text="Pipeline parallelism."),
    ] = ""
    ep: Annotated[
        str,
        make_flag("--ep", "--ep_size", "--moe_expert_parallel_size", metavar="N", text="Expert parallelism."),
    ] = ""
    dtype: Annotated[str, make_flag("--dtype", metavar="TYPE", text="Type of weights and activations.")] = ""
    quantization: Annotated[
        str,
        make_flag(
            "--quantization",
            "--quant_algo",
            "--qformat",
            metavar="FORMAT",
            text="Format of the weights: fp8, nvfp4, awq, int8 ...",
        ),
    ] = ""
    kv_cache_dtype: Annotated[
        str, make_flag("--kv_cache_dtype", metavar="TYPE", text="Type of the KV cache: fp8, nvfp4, int8.")
    ] = ""
    max_batch_size: Annotated[
        str, make_flag("--max_batch_size", metavar="N", text="The largest number of requests in a step.")
    ] = ""
    max_num_tokens: Annotated[
        str, make_flag("--max_num_tokens", metavar="N", text="The largest number of tokens in a step.")
    ] = ""
    max_seq_len: Annotated[
        str, make_flag("--max_seq_len", metavar="N", text="The longest sequence: prompt and answer together.")
    ] = ""
    max_beam_width: Annotated[str, make_flag("--max_beam_width", metavar="N", text="The largest beam width.")] = ""
    kv_cache_free_gpu_memory_fraction: Annotated[
        str,
        make_flag(
            "--kv_cache_free_gpu_memory_fraction",
            "--free_gpu_memory_fraction",
            "--kv_cache_free_gpu_mem_fraction",
            metavar="SHARE",
            text="The share of free memory that the KV cache gets.",
        ),
    ] = ""
    backend: Annotated[str, make_flag("--backend", metavar="NAME", text="pytorch or tensorrt.")] = ""

    def list_given(self) -> dict[str, str]:
        """Return the flags given, by the names TensorRT-LLM has for them."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True, kw_only=True)
class SetupOptions(OptionGroup):
    """The model, the GPU, and the files and command lines that say how it is served."""

    gpu: Annotated[
        str,
        make_flag("--gpu", metavar="NAME", text="The GPU: H100, L4, 2xH100. Without it, the smallest that fits."),
    ] = ""
    gpu_memory: Annotated[str, make_flag("--gpu-memory", metavar="SIZE", text="Its memory, such as 24GiB.")] = ""
    dims: Annotated[
        str,
        make_flag(
            "--dims",
            metavar="KEY=N,...",
            text="Sizes of a model, or corrections: num_layers=32,hidden_size=4096,...",
        ),
    ] = ""
    command_line: Annotated[
        list[str] | None,
        make_flag(
            "--command",
            metavar="TEXT",
            text="A whole trtllm-serve, trtllm-bench or trtllm-build command line.",
        ),
    ] = None
    config: Annotated[
        list[str] | None,
        make_flag(
            "--config",
            "--extra_llm_api_options",
            metavar="FILE",
            text="A YAML file of the LLM API's options.",
        ),
    ] = None
    runtime: Annotated[
        str, make_flag("--runtime", "--trtllm-version", metavar="VERSION", text="The TensorRT-LLM release.")
    ] = ""

    def check_logs_model(self, model: str, serving: ServingFlags, other_flags: Mapping[str, Any]) -> None:
        """Refuse what was said of a run of which nobody said the model: logs alone are read without it.

        Raises:
            typer.BadParameter: such an option was given.
        """
        if model or self.dims or self.command_line or self.config:
            return
        named = {"gpu": self.gpu, "gpu-memory": self.gpu_memory, "runtime": self.runtime} | serving.list_given()
        flag = next((name for name, value in {**named, **other_flags}.items() if value), "")
        if flag:
            raise typer.BadParameter(f"--{flag} has no effect without a model: name the one of these logs with --model")

    def build_question(
        self, host: Host, model: str, serving: ServingFlags, other_flags: Mapping[str, Any]
    ) -> MemoryRequest:
        """Return what is asked about, with the project's defaults where nothing was said."""
        from trtdx.memory.question.flags import artifact_from_flags
        from trtdx.memory.question.setup import MemoryRequest

        defaults = load_project_defaults(host)
        return MemoryRequest(
            model=model,
            dims=self.dims,
            options=tuple(self.config or ()),
            commands=tuple(self.command_line or ()),
            flags=artifact_from_flags(serving.list_given() | dict(other_flags)),
            version=self.runtime or defaults.runtime,
            gpu=self.gpu or ("" if self.gpu_memory else defaults.gpu),
            gpu_memory=self.gpu_memory,
        )


@dataclass(frozen=True, kw_only=True)
class LoadOptions(OptionGroup):
    """What the plan is to hold, and how closely to look."""

    length: Annotated[
        list[str] | None,
        make_flag("--length", metavar="N", text="Say how many requests of this many tokens fit. May be repeated."),
    ] = None
    target: Annotated[
        str,
        make_flag(
            "--target",
            metavar="LOAD",
            text="Find the cheapest change that reaches a load, such as 'batch=64, seq=8192'.",
        ),
    ] = ""
    compile_: Annotated[
        bool, typer.Option("--compile", help="Take activation memory from TensorRT's builder, on the CPU.")
    ] = False

    def parse_lengths(self) -> tuple[int, ...]:
        """Return the lengths to count requests of."""
        from trtdx.memory.question.flags import parse_token_count

        return tuple(parse_token_count("--length", text) for text in self.length or ())
