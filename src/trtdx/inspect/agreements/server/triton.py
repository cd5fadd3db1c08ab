"""What must agree inside a Triton model repository, and with the engine it serves."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.serving import (
    items_and_evidence,
    names_artifact,
    served_engines,
    stated_evidence,
)
from trtdx.knowledge.violation import Violation
from trtdx.model import Evidence, Severity
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

# Parameters the models cannot do without; the others have defaults that a `${...}` leaves in force.
REQUIRED_PARAMETERS = {
    "tensorrt_llm": ("gpt_model_path", "gpt_model_type"),
    "preprocessing": ("tokenizer_dir",),
    "postprocessing": ("tokenizer_dir",),
}
UNFILLED_ITEM = re.compile(r"(?P<model>[^/]+)/config\.pbtxt(?::\d+)?: (?P<key>.+) = (?P<variable>\$\{.*)")
LOGITS_TYPES = {"float32": "TYPE_FP32", "float16": "TYPE_FP16", "bfloat16": "TYPE_BF16"}


@make_agreement("DX219", "triton")
def variables_filled(deployment: Deployment) -> Iterator[Violation]:
    """Template variables that a model cannot do without are filled in."""
    for repository in deployment.of_kinds("triton"):
        needed = [
            item for item in map(str, repository.items("triton.unfilled")) if _is_required_variable(item, repository)
        ]
        if needed:
            yield Violation(
                tuple(
                    Evidence(f"{repository.path.rstrip('/')}/{item.partition(' = ')[0]}", item.partition(" = ")[2])
                    for item in needed[:8]
                ),
                {
                    "what": "; ".join(needed[:5]) + (f"; and {len(needed) - 5} more" if len(needed) > 5 else ""),
                    "count": format_count(len(needed), "template variable"),
                    "repository": repository.path,
                    "command": _fill_command(repository, needed),
                },
            )


def _is_required_variable(item: str, repository: Artifact) -> bool:
    match = UNFILLED_ITEM.fullmatch(item)
    if match is None:
        return True
    section, _, key = match["key"].partition(".")
    if section != "parameters":
        return True
    if key == "gpt_model_path" and repository.has("triton.encoder_dir"):
        return False
    return key in REQUIRED_PARAMETERS.get(match["model"], ())


def _fill_command(repository: Artifact, needed: list[str]) -> str:
    """Return the command that fills the first file's variables, with values to be put in."""
    file = needed[0].partition(":")[0]
    names = [name for item in needed if item.startswith(f"{file}:") for name in re.findall(r"\$\{(\w+)\}", item)]
    values = ",".join(f"{name}:VALUE" for name in dict.fromkeys(names))
    return f"python3 tools/fill_template.py -i {shlex.quote(repository.path.rstrip('/') + '/' + file)} {values}"


@make_agreement("DX223", "triton")
def configurations_parse(deployment: Deployment) -> Iterator[Violation]:
    """Each config.pbtxt is a text protobuf that Triton takes."""
    for repository in deployment.of_kinds("triton"):
        for item in map(str, repository.items("triton.unparsed")[:8]):
            file, _, reason = item.partition(": ")
            path = f"{repository.path.rstrip('/')}/{file}"
            line = re.search(r"line (\d+)", reason)
            yield Violation(
                (Evidence(path, reason),),
                {"file": file, "reason": reason, "path": path, "line": line[1] if line else "1,20"},
            )


@make_agreement("DX224", "triton")
def files_there(deployment: Deployment) -> Iterator[Violation]:
    """Each model has a version directory with the file its backend loads."""
    for repository in deployment.of_kinds("triton"):
        words, evidence = items_and_evidence(repository, "triton.missing_files")
        if words:
            models = [str(item).partition(":")[0] for item in repository.items("triton.missing_files")]
            folders = " ".join(
                shlex.quote(f"{repository.path.rstrip('/')}/{model}/1") for model in dict.fromkeys(models)
            )
            yield Violation(evidence, {"what": words, "folders": folders, "repository": repository.path})


@make_agreement("DX225", "triton")
def names_agree(deployment: Deployment) -> Iterator[Violation]:
    """A model's name is its folder's, and a name in an ensemble or a BLS model is a model's."""
    for repository in deployment.of_kinds("triton"):
        items = [*repository.items("triton.name_mismatch")]
        items += [item for item in repository.items("triton.ensemble_unknown") if "not in the repository" in str(item)]
        if items:
            where = _fact_place(repository, "triton.name_mismatch", "triton.ensemble_unknown")
            yield Violation(
                tuple(Evidence(where, str(item)) for item in items[:8]),
                {"what": "; ".join(map(str, items[:5])), "repository": repository.path},
            )


def _fact_place(repository: Artifact, *names: str) -> str:
    return next((repository.facts[name].where for name in names if name in repository.facts), repository.path)


@make_agreement("DX238", "triton")
def tensors_connect(deployment: Deployment) -> Iterator[Violation]:
    """The tensors an ensemble connects are there, and have one type on both sides."""
    for repository in deployment.of_kinds("triton"):
        items = [
            item for item in repository.items("triton.ensemble_unknown") if "not in the repository" not in str(item)
        ]
        items += repository.items("triton.type_mismatches")
        if items:
            where = _fact_place(repository, "triton.type_mismatches", "triton.ensemble_unknown")
            yield Violation(
                tuple(Evidence(where, str(item)) for item in items[:8]),
                {
                    "what": "; ".join(map(str, items[:5])),
                    "remedy": "make data_type and the names in input_map and output_map equal on both sides",
                    "repository": repository.path,
                },
            )


@make_agreement("DX238", "triton", "engine")
def logits_type(deployment: Deployment) -> Iterator[Violation]:
    """Triton declares logits in the type in which the engine returns them."""
    for repository, engine in served_engines(deployment, "triton"):
        engine_type, declared = (
            LOGITS_TYPES.get(engine.text("logits_dtype")),
            repository.text("triton.logits_datatype"),
        )
        if engine_type and declared and declared != engine_type:
            yield Violation(
                repository.evidence("triton.logits_datatype") + engine.evidence("logits_dtype"),
                {
                    "what": f"logits are {declared} in tensorrt_llm/config.pbtxt, but {engine.text('logits_dtype')} in the engine",
                    "remedy": f"set logits_datatype to {engine_type} in tensorrt_llm, tensorrt_llm_bls and ensemble",
                    "repository": repository.path,
                },
                Severity.WARNING,
                0.85,
            )


@make_agreement("DX217", "triton")
def streaming_throughout(deployment: Deployment) -> Iterator[Violation]:
    """The BLS model and the model it calls are both decoupled, or both not."""
    for repository in deployment.of_kinds("triton"):
        modes = repository.table("triton.decoupled_by_model")
        name = str(repository.get("parameter.tensorrt_llm_bls.tensorrt_llm_model_name") or "tensorrt_llm")
        called, caller = modes.get(name), modes.get("tensorrt_llm_bls")
        if called is None or caller is None or called == caller:
            continue
        yield Violation(
            repository.evidence("triton.decoupled_by_model"),
            {
                "what": f"tensorrt_llm_bls is {_decoupled_words(caller)}, but {name}, which it calls, is {_decoupled_words(called)}",
                "effect": "streaming requests to tensorrt_llm_bls fail"
                if caller
                else "every request to tensorrt_llm_bls fails",
                "repository": repository.path,
            },
        )


def _decoupled_words(is_decoupled: object) -> str:
    return "decoupled" if is_decoupled else "not decoupled"


@make_agreement("DX237", "triton")
def ensemble_batches(deployment: Deployment) -> Iterator[Violation]:
    """An ensemble allows no larger batch than each model in it."""
    for repository in deployment.of_kinds("triton"):
        sizes, limits = repository.table("triton.max_batch_sizes"), repository.table("triton.ensemble_limits")
        for name, limit in limits.items():
            size = sizes.get(name)
            if isinstance(size, int) and isinstance(limit, int) and size > limit:
                yield Violation(
                    repository.evidence("triton.max_batch_sizes", "triton.ensemble_limits"),
                    {"ensemble": name, "size": size, "limit": limit, "repository": repository.path},
                )


@make_agreement("DX885", "triton", "engine")
def batch_of_engine(deployment: Deployment) -> Iterator[Violation]:
    """Triton sends the engine no more requests than it takes at once."""
    for repository, engine in served_engines(deployment, "triton"):
        size, built = repository.integer("max_batch_size"), engine.integer("max_batch_size")
        if size is not None and built is not None and size > built:
            yield Violation(
                repository.evidence("max_batch_size") + engine.evidence("max_batch_size"),
                {"size": size, "built": built, "repository": repository.path},
            )


@make_agreement("DX887", "triton")
def one_tokenizer(deployment: Deployment) -> Iterator[Violation]:
    """Texts are turned into ids and back by the same tokenizer."""
    for repository in deployment.of_kinds("triton"):
        folders = repository.table("triton.tokenizer_dirs")
        before, after = folders.get("preprocessing"), folders.get("postprocessing")
        if before and after and str(before).rstrip("/") != str(after).rstrip("/"):
            yield Violation(
                repository.evidence("triton.tokenizer_dirs"),
                {"before": before, "after": after, "repository": repository.path},
                confidence=0.85,
            )


@make_agreement("DX888", "triton")
def paths_there(deployment: Deployment) -> Iterator[Violation]:
    """The engine and the tokenizer that a repository names are there."""
    for repository in deployment.of_kinds("triton"):
        words, evidence = items_and_evidence(repository, "triton.paths_missing")
        if words:
            yield Violation(evidence, {"what": words, "repository": repository.path}, confidence=0.8)


@make_agreement("DX889", "triton", "engine", needs=("triton",))
def an_engine_is_served(deployment: Deployment) -> Iterator[Violation]:
    """What Triton's gpt_model_path names is an engine directory."""
    for repository in deployment.of_kinds("triton"):
        path = repository.text("triton.engine_dir").rstrip("/")
        here = (
            artifact for artifact in deployment.artifacts if names_artifact(repository, "triton.engine_dir", artifact)
        )
        named = next(here, None)
        if path and named is not None and named.kind not in ("engine", "triton"):
            values = {"path": path, "kind": named.title, "folder": shlex.quote(path)}
            yield Violation(repository.evidence("triton.engine_dir"), values)


@make_agreement("DX241", "triton")
def parameters_readable(deployment: Deployment) -> Iterator[Violation]:
    """Parameters have values that the backend can read."""
    for repository in deployment.of_kinds("triton"):
        words, evidence = items_and_evidence(repository, "triton.invalid_parameters")
        if words:
            is_fatal = "gpt_model_type" in words or "guided_decoding_backend" in words
            yield Violation(
                evidence,
                {
                    "what": words,
                    "remedy": "write a value the parameter takes",
                    "path": repository.path,
                    "verify": f"trtdx inspect {shlex.quote(repository.path)}",
                },
                Severity.ERROR if is_fatal else Severity.WARNING,
            )


@make_agreement("DX215", "triton", "engine")
def inflight_batching(deployment: Deployment) -> Iterator[Violation]:
    """In-flight batching has an engine with packed input and a paged cache."""
    for repository, engine in served_engines(deployment, "triton"):
        if not repository.text("triton.batching").startswith("inflight"):
            continue
        lack = _missing_for_inflight(engine)
        if lack:
            yield Violation(
                repository.evidence("triton.batching") + engine.evidence(lack[0]),
                {"lack": lack[1], "repository": repository.path},
            )


def _missing_for_inflight(engine: Artifact) -> tuple[str, str] | None:
    if engine.get("plugin.remove_input_padding") is False:
        return "plugin.remove_input_padding", "without packed input (remove_input_padding)"
    if engine.text("kv_cache_type").rpartition(".")[2].lower() == "continuous":
        return "kv_cache_type", "with a continuous key/value cache"
    return None


@make_agreement("DX892", "triton", "engine")
def batching_of_engine(deployment: Deployment) -> Iterator[Violation]:
    """An engine that can take requests in flight is served that way."""
    for repository, engine in served_engines(deployment, "triton"):
        can = engine.get("plugin.remove_input_padding") is True and engine.text("kv_cache_type").lower().endswith(
            "paged"
        )
        if repository.text("triton.batching").lower() == "v1" and can:
            lost = [words for name, words in LOST_FEATURES if repository.get(name) is True]
            yield Violation(
                repository.evidence("triton.batching")
                + stated_evidence(engine, "plugin.remove_input_padding", "kv_cache_type"),
                {
                    "lost": f" ({' and '.join(lost)} are asked for as well)" if lost else "",
                    "repository": repository.path,
                },
            )


LOST_FEATURES = (("runtime.chunked_context", "chunked context"), ("triton.decoupled", "streaming"))
