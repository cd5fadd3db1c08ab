"""What a server's options must agree with: the release that reads them, the model, the engine, and each other."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from packaging.version import Version

from trtdx.inspect.agreements import serving
from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.mended_commands import single_start_commands
from trtdx.inspect.agreements.serving import (
    CONFIG_OPTIONS,
    SERVER_KINDS,
    is_read_with_command,
    items_and_evidence,
    may_serve_engine,
    pasteable_paths,
    served_engine,
    served_model,
    served_models,
    server_place,
    server_release,
    server_words,
    serving_artifacts,
    stated_evidence,
    verify_command,
)
from trtdx.inspect.readers.server.precedence import DROPPED_WORDS
from trtdx.inspect.requests.requests import requests_of_artifacts
from trtdx.knowledge.versions import at_least, has_engine_flow, parse_release
from trtdx.knowledge.violation import Violation
from trtdx.model import Evidence, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

# The spellings of data types that LLM(dtype=...) takes.
DTYPE_SPELLINGS = {
    "half": "float16", "fp16": "float16", "float16": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16",
    "float": "float32", "fp32": "float32", "float32": "float32",
}  # fmt: skip
STRETCHING_SCALINGS = (
    "linear",
    "dynamic",
    "yarn",
)  # rotary scalings whose factor lengthens the model's positions


@make_agreement("DX262", "command")
def option_set_once(deployment: Deployment) -> Iterator[Violation]:
    """An option is set in one place only, or to the same value in both."""
    for command in deployment.of_kinds("command"):
        words, evidence = items_and_evidence(command, "runtime.conflicts")
        if words:
            places = "; ".join(map(_render_places, command.items("runtime.conflict_places")[:6])) or server_place(
                command
            )
            values = {"what": words, "places": places, "verify": verify_command(command)}
            conflicts = map(str, command.items("runtime.conflicts"))
            only_memory = all(
                DROPPED_WORDS in conflict and conflict.startswith("kv_cache_config.free_gpu") for conflict in conflicts
            )
            yield Violation(evidence, values, Severity.WARNING if only_memory else Severity.ERROR)


def _render_places(places: str) -> str:
    """Return "--tp_size on the command line, or tensor_parallel_size in extra.yaml:3" from the two places."""
    parts = [place.rpartition(": ") for place in str(places).split("; ")]
    return ", or ".join(
        f"{name} on the command line" if path == "--command" else f"{name} in {path}" for path, _, name in parts
    )


@make_agreement("DX249", "llm-args", "command", "triton")
def options_readable(deployment: Deployment) -> Iterator[Violation]:
    """A file of options can be parsed."""
    for server in serving_artifacts(deployment):
        words, evidence = items_and_evidence(server, "unparsed")
        if words:
            file = re.sub(r":\d+$", "", words.partition(": ")[0])
            command = f'python3 -c "import sys, yaml; print(yaml.safe_load(open(sys.argv[1])))" {shlex.quote(file)}'
            values = {"what": words, "remedy": REMEDIES["unparsed"], "verify": verify_command(server)}
            values["command"] = "" if file.endswith(".json") else command
            yield Violation(evidence, values)


REMEDIES = {
    "unparsed": "correct the YAML at the line named: spaces instead of tabs, 'key: value' with a space, sections indented",
    "runtime.invalid_values": "write a value the option takes",
    "malformed": "write a value of that type",
}


@make_agreement("DX249", "llm-args", "command", "triton")
def values_fit(deployment: Deployment) -> Iterator[Violation]:
    """Options have values of the type and among the choices they take."""
    for server in serving_artifacts(deployment):
        for name in ("runtime.invalid_values", "malformed"):
            words, evidence = items_and_evidence(server, name)
            if words:
                values = {
                    "what": words,
                    "remedy": REMEDIES[name],
                    "command": "",
                    "verify": verify_command(server),
                }
                harmless = all("in silence" in str(item) for item in server.items(name))
                yield Violation(evidence, values, Severity.WARNING if harmless else None, 0.9)


@make_agreement("DX249", "llm-args", "command", "triton")
def graph_batches(deployment: Deployment) -> Iterator[Violation]:
    """The batch sizes that CUDA graphs are captured for end at their largest one."""
    names = ("option.cuda_graph_config.batch_sizes", "option.cuda_graph_config.max_batch_size")
    for server in serving_artifacts(deployment):
        sizes = [size for size in server.items(names[0]) if isinstance(size, int)]
        largest = server.integer(names[1])
        if sizes and largest and max(sizes) != largest:
            yield Violation(
                server.evidence(*names),
                {
                    "what": f"cuda_graph_config.max_batch_size is {largest}, but batch_sizes end at {max(sizes)}",
                    "remedy": "give only one of cuda_graph_config.batch_sizes and cuda_graph_config.max_batch_size",
                    "command": "",
                    "verify": verify_command(server),
                },
                confidence=0.85,
            )


@make_agreement("DX876", "llm-args", "command")
def keys_once(deployment: Deployment) -> Iterator[Violation]:
    """A file of options states each option once."""
    for server in serving_artifacts(deployment, "llm-args", "command"):
        words, evidence = items_and_evidence(server, "runtime.duplicate_keys")
        if words:
            file = server.facts["runtime.duplicate_keys"].where.partition(": ")[0]
            path = re.sub(r":\d+$", "", file)
            yield Violation(evidence, {"what": words, "path": path})


@make_agreement("DX247", "llm-args", "command", "triton", "machine")
def backend_there(deployment: Deployment) -> Iterator[Violation]:
    """The engine backend is asked of a release that has it."""
    for server in deployment.of_kinds("llm-args", "command", "triton"):
        release = server_release(deployment, server)
        asks = (
            server.text("runtime.backend") in ("tensorrt", "trt")
            or server.text("triton.backend") == "tensorrtllm"
            or server.text("runtime.command") in ("trtllm-build", "trtllm-bench build")
        )
        read_elsewhere = is_read_with_command(deployment, server) or deployment.first_of("engine") is not None
        if asks and has_engine_flow(release) is False and not read_elsewhere:
            evidence = stated_evidence(server, "runtime.command", "runtime.backend", "triton.backend")
            yield Violation(evidence, {"runtime": release, "version": "1.2.1"})
            return


@make_agreement("DX248", "engine", "checkpoint", "llm-args", "command")
def model_for_pytorch(deployment: Deployment) -> Iterator[Violation]:
    """The PyTorch backend is given a Hugging Face model, not an engine or a checkpoint."""
    for server in serving_artifacts(deployment, "llm-args", "command"):
        backend = server.text("runtime.backend")
        release = parse_release(server_release(deployment, server))
        is_default = backend == "" and release is not None and release >= Version("1.0.0")
        for artifact in deployment.of_kinds("engine", "checkpoint"):
            if serving.names_artifact(server, "runtime.model", artifact) and (backend == "pytorch" or is_default):
                yield Violation(
                    server.evidence("runtime.model") + stated_evidence(server, "runtime.backend"),
                    {"kind": artifact.title, "model": artifact.path, **pasteable_paths(deployment, server)}
                    | {"source": _source_model_path(deployment, server)},
                )


def _source_model_path(deployment: Deployment, server: Artifact) -> str:
    model = served_model(deployment, server)
    return shlex.quote(model.path) if model else "HF_MODEL"


@make_agreement("DX355", *SERVER_KINDS)
def cache_share(deployment: Deployment) -> Iterator[Violation]:
    """The share of free memory for the cache is more than none and not more than all."""
    for server in serving_artifacts(deployment):
        share = server.get("runtime.free_gpu_memory_fraction")
        # The C++ executor refuses 1.0 as well; the PyTorch backend takes it.
        is_cpp = server.kind == "triton" and server.text("triton.flow") != "llmapi"
        if isinstance(share, float) and not (0 < share <= 1 and not (is_cpp and share == 1)):
            yield Violation(
                server.evidence("runtime.free_gpu_memory_fraction"),
                {"value": share, "path": server_place(server), **pasteable_paths(deployment, server)},
            )


@make_agreement("DX356", "engine", "request", *SERVER_KINDS, needs=("llm-args|command|triton",))
def cache_holds_sequence(deployment: Deployment) -> Iterator[Violation]:
    """The cache holds one sequence of the greatest length: newer runtimes lower max_seq_len to it, older ones stop."""
    for server in serving_artifacts(deployment):
        tokens = server.integer("runtime.max_tokens_in_cache")
        if tokens is None or server.has("runtime.attention_window"):
            continue
        engine = served_engine(deployment, server)
        stated_by = [artifact for artifact in (server, engine) if artifact is not None and artifact.has("max_seq_len")]
        needs = [(artifact.integer("max_seq_len") or 0, artifact.evidence("max_seq_len")) for artifact in stated_by[:1]]
        for request in requests_of_artifacts(deployment.of_kinds("request")):
            words = Evidence(request.where or "request", request.words)
            needs.append((request.input_len + request.output_len, (words,)))
        length, evidence = max(needs, key=lambda need: need[0], default=(0, ()))
        if length > tokens:
            values = {"tokens": tokens, "length": length, **server_words(server)}
            yield Violation(server.evidence("runtime.max_tokens_in_cache") + evidence, values, confidence=0.9)


@make_agreement("DX873", "engine", *SERVER_KINDS, needs=("engine|llm-args|command|triton",))
def block_size(deployment: Deployment) -> Iterator[Violation]:
    """A cache block holds a power of two of tokens."""
    for artifact in (*deployment.of_kinds("engine"), *serving_artifacts(deployment)):
        tokens = artifact.integer("tokens_per_block")
        if tokens is not None and (tokens < 1 or tokens & (tokens - 1)):
            values = {
                "tokens": tokens,
                "works": 1 << max(tokens.bit_length() - 1, 3),
                "path": server_place(artifact),
                **pasteable_paths(deployment, artifact),
            }
            yield Violation(artifact.evidence("tokens_per_block"), values)


@make_agreement("DX449", "command")
def single_launcher(deployment: Deployment) -> Iterator[Violation]:
    """A program that starts its own workers is started once."""
    for command in serving_artifacts(deployment, "command"):
        ranks, launcher = command.integer("runtime.world_size"), command.text("runtime.launcher")
        is_server = command.text("runtime.command") in ("trtllm-serve", "trtllm-serve serve")
        if is_server and ranks and ranks > 1 and launcher and "trtllm-llmapi-launch" not in launcher:
            once, led = single_start_commands(command.command_text, ranks)
            yield Violation(
                command.evidence("runtime.world_size", "runtime.launcher"),
                {
                    "ranks": ranks,
                    "launcher": launcher,
                    "once": once,
                    "led": led,
                    "verify": verify_command(command),
                },
                confidence=0.85,
            )


@make_agreement("DX084", "hf", "llm-args", "command")
def remote_code_trusted(deployment: Deployment) -> Iterator[Violation]:
    """A model that brings its own Python is served with leave to run it."""
    for server, model in served_models(deployment):
        if model.get("remote_code") is not True:
            continue
        if server.get("runtime.trust_remote_code") is not True and server.has("runtime.model"):
            yield Violation(
                model.evidence("remote_code") + server.evidence("runtime.trust_remote_code"),
                {"model": model.path, "server": server_place(server), **pasteable_paths(deployment, server)},
                Severity.WARNING,
                0.7,  # transformers or TensorRT-LLM may have the model built in
            )


@make_agreement("DX871", "hf", "llm-args", "command")
def length_in_reach(deployment: Deployment) -> Iterator[Violation]:
    """Sequences are no longer than the model was made for."""
    for server, model in served_models(deployment):
        positions = _scaled_positions(model)
        if positions is None:
            continue
        requested_len, release = server.integer("max_seq_len"), server_release(deployment, server)
        if requested_len is not None and requested_len > positions and served_engine(deployment, server) is None:
            serves_it = bool(release) and not at_least(release, "0.21.0")  # model_engine.py lowers it since
            yield Violation(
                server.evidence("max_seq_len") + stated_evidence(model, "max_positions", "rope_scaling"),
                {"asked": requested_len, "positions": positions, **pasteable_paths(deployment, server)},
                Severity.ERROR if serves_it else None,
            )


def _scaled_positions(model: Artifact) -> int | None:
    """Return how long a text may be for a model, its rotary scaling counted in."""
    positions, scaling = model.integer("max_positions"), model.table("rope_scaling")
    factor = scaling.get("factor")
    if positions is None or not isinstance(factor, (int, float)) or scaling.get("type") not in STRETCHING_SCALINGS:
        return positions
    return int(positions * factor)


@make_agreement("DX877", "hf", "llm-args", "command")
def model_dtype(deployment: Deployment) -> Iterator[Violation]:
    """A data type that is asked for is the one the model was saved in."""
    from trtdx.inspect.agreements.model.conversion import PRONE_TO_OVERFLOW

    for server, model in served_models(deployment):
        if not model.has("dtype"):
            continue
        requested, saved = DTYPE_SPELLINGS.get(server.text("runtime.dtype")), model.text("dtype")
        overflows = requested == "float16" and model.text("model_type").startswith(PRONE_TO_OVERFLOW)
        if requested and requested != saved and not overflows and not model.has("quant.algo"):
            yield Violation(
                server.evidence("runtime.dtype") + model.evidence("dtype"),
                {"asked": requested, "saved": saved},
            )


@make_agreement("DX878", "llm-args", "command")
def batch_in_budget(deployment: Deployment) -> Iterator[Violation]:
    """A step has room for a token of each request of a full batch."""
    for server in serving_artifacts(deployment, "llm-args", "command"):
        batch, tokens = server.integer("max_batch_size"), server.integer("max_num_tokens")
        if batch is not None and tokens is not None and batch > tokens:
            yield Violation(
                server.evidence("max_batch_size", "max_num_tokens"),
                {"batch": batch, "tokens": tokens, **pasteable_paths(deployment, server)},
            )


@make_agreement("DX879", "llm-args", "command")
def prompt_in_budget(deployment: Deployment) -> Iterator[Violation]:
    """The longest prompt fits into one step, or is cut into chunks."""
    if deployment.first_of("request"):
        return  # the prompts that are to come are known, and judged themselves
    for server in serving_artifacts(deployment, "llm-args", "command"):
        tokens, longest = server.integer("max_num_tokens"), server.integer("max_input_len")
        is_bench = server.text("runtime.command").startswith("trtllm-bench")  # chunks by default
        if tokens is None or longest is None or is_bench or server.get("runtime.chunked_context") is True:
            continue
        if longest > tokens and not serves_only_engine(server):
            yield Violation(
                server.evidence("max_num_tokens", "max_input_len", "runtime.chunked_context"),
                {"tokens": tokens, "longest": longest, **pasteable_paths(deployment, server)}
                | {"file": _options_file(server)},
                confidence=0.8,
            )


def _options_file(server: Artifact) -> str:
    """Return the file that options can be written to: its own, or the one its command names."""
    named = next((server.text(option) for option in CONFIG_OPTIONS if server.has(option)), "")
    options_path = server.path if server.kind == "llm-args" else ""
    return shlex.quote(options_path or named or "extra.yaml")


def serves_only_engine(server: Artifact) -> bool:
    return may_serve_engine(server) and server.text("runtime.backend") in ("tensorrt", "trt")
