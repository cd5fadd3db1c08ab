"""What a server asks for, and what the engine it runs was built for."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.serving import (
    SERVER_KINDS,
    names_artifact,
    parallel_sizes,
    pasteable_paths,
    rank_count,
    served_engine,
    served_engines,
    server_place,
    serving_artifacts,
    stated_evidence,
)
from trtdx.inspect.facts.vocabulary import require_term
from trtdx.inspect.readers.server.commands import ENGINE_FLAGS
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

SPECULATIVE_MODES = {
    "medusa": "MEDUSA",
    "eagle": "EAGLE",
    "lookahead": "LOOKAHEAD_DECODING",
    "redrafter": "EXPLICIT_DRAFT_TOKENS",
}
# Architectures with cross attention, which readers need not mark as encoder-decoder.
CROSS_ATTENTION_CLASSES = (
    "EncoderModel", "DecoderModel", "WhisperEncoder", "MLLaMAForCausalLM", "MllamaForConditionalGeneration",
)  # fmt: skip


def _exceeds_engine(server: Artifact, engine: Artifact, name: str) -> bool:
    requested, built = server.integer(name), engine.integer(name)
    return requested is not None and built is not None and requested > built


@make_agreement("DX212", "engine", *SERVER_KINDS)
def server_limits(deployment: Deployment) -> Iterator[Violation]:
    """A server asks for no larger batch and no more beams than its engine was built for."""
    for server, engine in served_engines(deployment):
        # Triton's max_batch_size is Triton's own: the backend takes the batch size from the engine.
        bounds = ("max_beam_width",) if server.kind == "triton" else ("max_batch_size", "max_beam_width")
        for name in bounds:
            if _exceeds_engine(server, engine, name):
                values = {"name": name, "asked": server.integer(name), "built": engine.integer(name)}
                yield Violation(
                    server.evidence(name) + engine.evidence(name),
                    values | {"server": server_place(server), **pasteable_paths(deployment, server)},
                )


@make_agreement("DX870", "engine", "llm-args", "command")
def ignored_limits(deployment: Deployment) -> Iterator[Violation]:
    """A server asks for no more tokens than its engine was built for."""
    for server, engine in served_engines(deployment, "llm-args", "command"):
        for name in ("max_num_tokens", "max_seq_len", "max_input_len"):
            if _exceeds_engine(server, engine, name):
                values = {"name": name, "asked": server.integer(name), "built": engine.integer(name)}
                values |= {"meaning": require_term(name).meaning, **pasteable_paths(deployment, server)}
                yield Violation(server.evidence(name) + engine.evidence(name), values)


@make_agreement("DX216", "engine", *SERVER_KINDS)
def paged_context(deployment: Deployment) -> Iterator[Violation]:
    """Chunked context and cache reuse have an engine whose context phase reads the paged cache."""
    for server, engine in served_engines(deployment):
        lack = _missing_paged_context(engine)
        for name, feature, severity in PAGED_CONTEXT_FEATURES if lack else ():
            if lack and server.get(name) is True:
                values = {"feature": feature, "lack": lack[1], "server": server_place(server)}
                values |= pasteable_paths(deployment, server)
                yield Violation(server.evidence(name) + engine.evidence(lack[0]), values, severity)


# Without paged context FMHA the executor refuses chunked context, and switches reuse off with a warning.
PAGED_CONTEXT_FEATURES = (
    ("runtime.chunked_context", "chunked context", Severity.ERROR),
    ("runtime.block_reuse", "cache reuse", Severity.WARNING),
)


def _missing_paged_context(engine: Artifact) -> tuple[str, str] | None:
    """Return the setting an engine lacks for reading the cache in the context phase, with words for it."""
    if engine.get("plugin.use_paged_context_fmha") is False:
        return "plugin.use_paged_context_fmha", "without use_paged_context_fmha"
    if engine.get("plugin.context_fmha") is False:
        return "plugin.context_fmha", "without context_fmha"
    kind = engine.text("kv_cache_type").rpartition(".")[2].lower()
    if kind in ("continuous", "disabled"):
        return "kv_cache_type", f"with a {kind} key/value cache"
    return None


@make_agreement("DX245", "engine", "triton")
def decoding_mode(deployment: Deployment) -> Iterator[Violation]:
    """A speculative decoding mode is the one the engine was built for."""
    for server, engine in served_engines(deployment, "triton"):
        mode = server.text("runtime.decoding_mode")
        built = engine.text("speculative_mode").rpartition(".")[2].upper()
        if mode in SPECULATIVE_MODES and built and built != SPECULATIVE_MODES[mode]:
            yield Violation(
                server.evidence("runtime.decoding_mode") + engine.evidence("speculative_mode"),
                {
                    "mode": mode,
                    "built": built,
                    "flag": BUILD_MODES[mode],
                    **pasteable_paths(deployment, server),
                },
                Severity.WARNING,
            )


BUILD_MODES = {
    "medusa": "medusa",
    "eagle": "eagle",
    "lookahead": "lookahead_decoding",
    "redrafter": "explicit_draft_tokens",
}


@make_agreement("DX210", "engine", "command", needs=("command",))
def started_ranks(deployment: Deployment) -> Iterator[Violation]:
    """A launcher starts as many ranks as the parallel sizes need."""
    for server in serving_artifacts(deployment, "command"):
        started, needed = server.integer("runtime.world_size"), rank_count(server)
        if started is None or needed is None or "llmapi-launch" not in server.text("runtime.launcher"):
            continue
        if started != needed:
            yield Violation(
                stated_evidence(server, "runtime.world_size", "tp_size", "pp_size", "cp_size"),
                {
                    "what": f"{_started_words(started)}, but {parallel_sizes(server)} needs {needed}",
                    "remedy": f"start {needed} ranks with the launcher",
                    "restart": _restart_command(server, needed),
                },
            )


RANK_COUNT_FLAG = re.compile(r"((?:^|\s)(?:-n|-np|--np|--ntasks|--world[_-]size)[ =]?)\d+")
LAUNCHER_WORD = re.compile(r"(?:^|\s)(?:srun|mpirun|mpiexec)(?=\s)")


def _restart_command(command: Artifact, ranks: int | None) -> str:
    """Return the command as it was given, started with so many ranks."""
    if not command.command_text:
        return f"mpirun -n {ranks} COMMAND"
    changed, count = RANK_COUNT_FLAG.subn(rf"\g<1>{ranks}", command.command_text, count=1)
    if not count:
        changed, count = LAUNCHER_WORD.subn(rf"\g<0> -n {ranks}", command.command_text, count=1)
    return changed if count else f"mpirun -n {ranks} {command.command_text}"


def _started_words(ranks: int) -> str:
    return f"{format_count(ranks, 'rank')} {'is' if ranks == 1 else 'are'} started"


@make_agreement("DX210", "engine", "command")
def ranks_of_triton(deployment: Deployment) -> Iterator[Violation]:
    """Triton is started with as many ranks as the engine has, unless an orchestrator starts them."""
    for command in deployment.of_kinds("command"):
        started = command.integer("runtime.world_size")
        if started is None and not command.has("runtime.launcher"):
            started = 1
        if started is None or "triton" not in command.text("runtime.command"):
            continue
        repository = _started_repository(deployment, command)
        engine = served_engine(deployment, repository or command)
        needed = rank_count(engine) if engine else None
        if engine is None or needed in (None, started):
            continue
        if not command.has("option.--multi-model") and not command.get("runtime.orchestrated"):
            what = f"{_started_words(started)}, but the engine was built for {needed}"
            remedy = f"start {needed} ranks (launch_triton_server.py --world_size {needed})"
            restart = _restart_command(command, needed)
            # each rank has ports of its own, which the script deals out
            if not command.has("runtime.world_size"):
                folder = shlex.quote(repository.path) if repository else "MODEL_REPOSITORY"
                restart = f"python3 launch_triton_server.py --world_size {needed} --model_repo {folder}"
            values = {"what": what, "remedy": remedy, "restart": restart}
            yield Violation(command.evidence("runtime.command") + engine.evidence("world_size"), values)


def _started_repository(deployment: Deployment, command: Artifact) -> Artifact | None:
    """Return the Triton repository that a command starts."""
    options = ("option.--model_repo", "option.--model-repository")
    repositories = (
        repository
        for repository in deployment.of_kinds("triton")
        if any(names_artifact(command, option, repository) for option in options)
    )
    return next(repositories, None)


ENGINE_RUNNERS = ("run.py", "summarize.py", "mmlu.py", "gptManagerBenchmark", "gptSessionBenchmark")


@make_agreement("DX210", "engine", "command")
def ranks_of_runner(deployment: Deployment) -> Iterator[Violation]:
    """A program that opens an engine by itself is started once for each rank of the engine.

    ModelRunner and the C++ benchmarks take their rank from MPI; a script of one's own may start ranks by itself.
    """
    for command, engine in served_engines(deployment, "command"):
        program, started = command.text("runtime.command"), command.integer("runtime.world_size")
        if program.startswith("trtllm-") or not any(command.has(f"option.{flag}") for flag in ENGINE_FLAGS):
            continue
        if started is None and program in ENGINE_RUNNERS and not command.has("runtime.launcher"):
            started = 1
        needed = rank_count(engine)
        if started is None or needed is None or started == needed:
            continue
        certain = program in ENGINE_RUNNERS or started > 1
        what = f"{program} is started as {format_count(started, 'rank')}, but the engine was built for {needed}"
        remedy = f"start {program} with {format_count(needed, 'rank')}"
        values = {"what": what, "remedy": remedy, "restart": _restart_command(command, needed)}
        yield Violation(
            stated_evidence(command, "runtime.world_size", "runtime.command")
            + stated_evidence(engine, "world_size", "tp_size"),
            values,
            None if certain else Severity.WARNING,
            0.9 if certain else 0.6,
        )


@make_agreement("DX210", "engine", "llm-args", "command")
def same_mapping(deployment: Deployment) -> Iterator[Violation]:
    """A server's parallel sizes are those the engine was built for."""
    for server, engine in served_engines(deployment, "llm-args", "command"):
        sizes = [name for name in ("tp_size", "pp_size", "cp_size") if server.has(name) and engine.has(name)]
        differ = [name for name in sizes if server.get(name) != engine.get(name)]
        if differ:
            differences = ", ".join(f"{name} {server.get(name)} (engine: {engine.get(name)})" for name in differ)
            engine_sizes = ", ".join(f"{name} {engine.get(name)}" for name in differ)
            yield Violation(
                server.evidence(*differ) + engine.evidence(*differ),
                {
                    "what": f"the server is given {differences}",
                    "restart": "",
                    "remedy": f"give the sizes the engine was built for: {engine_sizes}",
                },
            )


@make_agreement("DX210", "engine", "triton")
def device_ids(deployment: Deployment) -> Iterator[Violation]:
    """Each instance of the Triton model has a GPU for each rank of its engine."""
    for server, engine in served_engines(deployment, "triton"):
        needed = rank_count(engine)
        nodes = str(server.get("parameter.tensorrt_llm.num_nodes") or "1").strip()
        groups = [group for group in server.items("triton.gpu_device_ids") if isinstance(group, list) and group]
        wrong = next((group for group in groups if len(group) != needed), None)
        if needed is None or wrong is None or nodes != "1":
            continue
        yield Violation(
            server.evidence("triton.gpu_device_ids") + stated_evidence(engine, "world_size", "tp_size", "pp_size"),
            {
                "what": f"gpu_device_ids lists {len(wrong)} GPUs ({', '.join(map(str, wrong))}) for an instance, "
                f"but the engine has {needed} ranks",
                "restart": "",
                "remedy": f"list {needed} ids for each instance in gpu_device_ids, or leave it empty",
            },
        )


@make_agreement("DX241", "engine", "triton")
def cross_share(deployment: Deployment) -> Iterator[Violation]:
    """A share of the cache for the encoder is set for encoder-decoder models, and only for them."""
    for server, engine in served_engines(deployment, "triton"):
        has_encoder = engine.get("encoder_decoder") is True or server.has("triton.encoder_dir")
        has_fraction, architecture = (
            server.has("runtime.cross_kv_cache_fraction"),
            engine.text("architecture"),
        )
        if has_encoder and not has_fraction:
            yield _cross_share_violation(
                server, engine, "is not set, but the engine has an encoder", "set it, e.g. to 0.5"
            )
        elif has_fraction and not has_encoder and architecture and architecture not in CROSS_ATTENTION_CLASSES:
            yield _cross_share_violation(server, engine, "is set, but the engine has a decoder only", "leave it empty")


def _cross_share_violation(server: Artifact, engine: Artifact, words: str, remedy: str) -> Violation:
    name = "encoder_decoder" if engine.has("encoder_decoder") else "architecture"
    return Violation(
        server.evidence("runtime.cross_kv_cache_fraction") + engine.evidence(name),
        {
            "what": f"cross_kv_cache_fraction {words}",
            "remedy": f"cross_kv_cache_fraction: {remedy}",
            "path": server_place(server),
            "verify": f"trtdx inspect {shlex.quote(engine.path)} {shlex.quote(server.path)}",
        },
        confidence=0.9,
    )


@make_agreement("DX872", "engine", *SERVER_KINDS)
def window_in_reach(deployment: Deployment) -> Iterator[Violation]:
    """An attention window is not longer than the sequences it looks at."""
    for server, engine in served_engines(deployment):
        longest = engine.integer("max_seq_len")
        windows = [window for window in server.items("runtime.attention_window") if isinstance(window, int)]
        if longest is not None and windows and max(windows) > longest:
            yield Violation(
                server.evidence("runtime.attention_window") + engine.evidence("max_seq_len"),
                {
                    "window": max(windows),
                    "longest": longest,
                    "server": server_place(server),
                    **pasteable_paths(deployment, server),
                },
            )
