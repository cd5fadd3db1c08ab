"""Triton model repositories: the engine flow of inflight_batcher_llm, and the LLM API's model.yaml."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, NamedTuple

from trtdx.errors import InputError
from trtdx.formats.documents import UnreadableError
from trtdx.formats.yaml_documents import read_yaml
from trtdx.inspect.facts.artifact import Artifact, Facts
from trtdx.inspect.readers import Found, Reader
from trtdx.inspect.readers.server.llm_args import put_document
from trtdx.inspect.readers.server.named_paths import kind_of
from trtdx.inspect.readers.server.triton_ensemble import (
    ensembles,
    smallest_step,
    type_mismatches,
    unknown_names,
)
from trtdx.inspect.readers.server.triton_model import (
    CONFIG,
    Model,
    instances,
    missing_file,
    read_model,
    unfilled,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.host import Host

MOST_MODELS = 100
MOST_NAMED = 100  # items of a list of faults
LLM = "tensorrt_llm"


def is_repository(host: Host, found: Found) -> bool:
    """Return whether a directory is a model of Triton, or holds some."""
    return found.is_directory and bool(_folders(host, found.path, sorted(found.names)[:1000]))


def _folders(host: Host, path: str, names: list[str]) -> dict[str, str]:
    """Return the models' folders by name: the directory itself, or those below it."""
    if CONFIG in names:
        return {posixpath.basename(posixpath.normpath(path)): path}
    base = path.rstrip("/")
    below = {name: f"{base}/{name}" for name in names if not name.startswith(".")}
    return {name: folder for name, folder in below.items() if host.kind(f"{folder}/{CONFIG}") == "file"}


def read_triton(host: Host, path: str, version: str = "") -> Artifact:
    """Return what a model repository says, model by model."""
    try:
        folders = _folders(host, path, host.entries(path)[:1000])
    except InputError as err:
        return Artifact("triton", path, unread=(err.message,))
    models = {name: read_model(host, folder, name) for name, folder in list(folders.items())[:MOST_MODELS]}
    reading = _Reading(host, path, models, path not in folders.values(), version)
    if len(folders) > MOST_MODELS:
        reading.unread.append(f"{path}: {len(folders)} models; the first {MOST_MODELS} were looked at")
    return reading.artifact()


class Parameter(NamedTuple):
    """A parameter of the tensorrt_llm model: the shared name it goes by, and how the backend reads it."""

    fact: str
    read: Callable[[str], object]


def _whole(text: str) -> int:
    """Return the number a text begins with, as C++'s stoi reads it."""
    number = re.match(r"\s*([+-]?\d{1,18})", text)
    if number is None:
        raise ValueError("takes a whole number")
    return int(number[1])


def _number(text: str) -> float:
    number = re.match(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", text[:60])
    if number is None:
        raise ValueError("takes a number")
    return float(number[0])


def _truth(text: str) -> bool:
    if text not in ("True", "true", "TRUE", "1", "False", "false", "FALSE", "0"):
        raise ValueError("takes true or false")
    return text.lower() in ("true", "1")


def _wholes(text: str) -> list[int]:
    return [_whole(part) for part in text.split(",") if part.strip()]


def _groups(text: str) -> list[list[int]]:
    return [_wholes(group) for group in text.split(";") if group.strip()]


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"takes {'one of ' if len(words) > 1 else 'only '}{', '.join(words)}")
        return text

    return read


TRUTH_PARAMETERS = (
    "kv_cache_onboard_blocks", "enable_trt_overlap", "exclude_input_in_output", "normalize_log_probs",
    "enable_context_fmha_fp32_acc", "multi_block_mode", "cuda_graph_mode",
)  # fmt: skip
WHOLE_PARAMETERS = (
    "sink_token_length", "kv_cache_host_memory_bytes", "num_nodes", "cuda_graph_cache_size",
    "lora_cache_optimal_adapter_size", "lora_cache_max_adapter_size", "lora_cache_host_memory_bytes",
)  # fmt: skip
# What model_instance_state.cc [1.2.1] reads; a value it cannot convert counts as not specified.
PARAMETERS = {
    "max_beam_width": Parameter("max_beam_width", _whole),
    "max_tokens_in_paged_kv_cache": Parameter("runtime.max_tokens_in_cache", _whole),
    "max_attention_window_size": Parameter("runtime.attention_window", _wholes),
    "kv_cache_free_gpu_mem_fraction": Parameter("runtime.free_gpu_memory_fraction", _number),
    "cross_kv_cache_fraction": Parameter("runtime.cross_kv_cache_fraction", _number),
    "enable_kv_cache_reuse": Parameter("runtime.block_reuse", _truth),
    "enable_chunked_context": Parameter("runtime.chunked_context", _truth),
    "gpu_device_ids": Parameter("triton.gpu_device_ids", _groups),
    "guided_decoding_backend": Parameter("runtime.guided_decoding", _one_of("xgrammar")),
    "gpt_model_type": Parameter(
        "triton.batching", _one_of("inflight_fused_batching", "inflight_batching", "V1", "v1")
    ),
    "decoding_mode": Parameter(
        "runtime.decoding_mode",
        _one_of("top_k", "top_p", "top_k_top_p", "beam_search", "medusa", "redrafter", "lookahead", "eagle"),
    ),
    "batch_scheduler_policy": Parameter("", _one_of("max_utilization", "guaranteed_no_evict")),
    **dict.fromkeys(TRUTH_PARAMETERS, Parameter("", _truth)),
    **dict.fromkeys(WHOLE_PARAMETERS, Parameter("", _whole)),
    **dict.fromkeys(("lora_cache_gpu_memory_fraction", "gpu_weights_percent"), Parameter("", _number)),
}
PATHS = ("gpt_model_path", "encoder_model_path", "tokenizer_dir", "multimodal_model_path")


class _Reading:
    """A repository on its way to an artifact."""

    def __init__(
        self, host: Host, path: str, models: dict[str, Model], is_repository: bool, version: str
    ) -> None:
        self._host, self._path, self._models = host, path, models
        self._is_repository, self._version = is_repository, version
        self._facts = Facts()
        self.unread: list[str] = []

    def artifact(self) -> Artifact:
        self._facts.put("triton.models", sorted(self._models), self._path)
        for model in self._models.values():
            self._put_model(model)
        self._put_dicts()
        self._put_ensembles()
        served = self._served()
        if served is not None:
            self._put_served(served)
        self._put_special_tokens()
        paths = self._put_paths()
        return Artifact("triton", self._path, self._facts.done(), refers_to=paths, unread=tuple(self.unread))

    def _add(self, name: str, item: str, where: str) -> None:
        if len(self._facts.get(name) or ()) < MOST_NAMED:
            self._facts.add(name, item, where)

    def _put_model(self, model: Model) -> None:
        if model.problem:
            self._add("triton.unparsed", f"{model.name}/{CONFIG}: {model.problem}", model.file)
        for key, value, where in model.parameters():
            if "${" not in value:
                self._facts.put(f"parameter.{model.name}.{key}", value, where)
        for item in unfilled(model):
            self._add("triton.unfilled", item, model.file)
        missing = missing_file(self._host, model)
        if missing:
            self._add("triton.missing_files", missing, model.path)
        name = model.config.text("name") if model.config else ""
        if name and "${" not in name and name != model.name:
            self._add("triton.name_mismatch", f"{model.name}: its {CONFIG} says {name}", model.where("name"))

    def _put_dicts(self) -> None:
        """Put what several models state under the name of each."""
        parsed = {name: model.config for name, model in self._models.items() if model.config is not None}
        sizes = {name: config.integer("max_batch_size") for name, config in parsed.items()}
        self._put_dict("triton.max_batch_sizes", sizes)
        self._put_dict("triton.instances", {name: instances(self._models[name]) for name in parsed})
        decoupled = {
            name: config.truth("model_transaction_policy", "decoupled") for name, config in parsed.items()
        }
        self._put_dict("triton.decoupled_by_model", decoupled)
        tokenizers = {name: self._models[name].parameter("tokenizer_dir") or None for name in parsed}
        self._put_dict("triton.tokenizer_dirs", tokenizers)

    def _put_dict(
        self, name: str, values: dict[str, int | None] | dict[str, bool | None] | dict[str, str | None]
    ) -> None:
        stated = {model: value for model, value in values.items() if value is not None}
        if stated:
            self._facts.put(name, stated, self._models[next(iter(stated))].file)

    def _put_ensembles(self) -> None:
        limits: dict[str, int] = {}
        for ensemble in ensembles(self._models):
            smallest = smallest_step(ensemble, self._models)
            if smallest is not None:
                limits[ensemble.name] = smallest
            for item in type_mismatches(ensemble, self._models):
                self._add("triton.type_mismatches", item, ensemble.file)
            for item in unknown_names(ensemble, self._models) if self._is_repository else ():
                self._add("triton.ensemble_unknown", item, ensemble.file)
        if limits:
            self._facts.put("triton.ensemble_limits", limits, self._models[next(iter(limits))].file)
        for model in self._models.values():
            name = model.parameter("tensorrt_llm_model_name")
            if self._is_repository and name and name not in self._models:
                item = f"{model.name}: tensorrt_llm_model_name is {name}, which is not in the repository"
                self._add("triton.ensemble_unknown", item, model.where("parameters.tensorrt_llm_model_name"))

    def _served(self) -> Model | None:
        """Return the model that runs the LLM."""
        if LLM in self._models:
            return self._models[LLM]
        return next((model for model in self._models.values() if model.backend == "tensorrtllm"), None)

    def _put_served(self, model: Model) -> None:
        facts = self._facts
        facts.put("triton.backend", model.backend or None, model.where("backend"))
        if self._put_llmapi(model) or model.config is None:
            return
        facts.put("triton.flow", "engine", model.file)
        facts.put("max_batch_size", model.config.integer("max_batch_size"), model.where("max_batch_size"))
        decoupled = model.config.at("model_transaction_policy", "decoupled")
        if decoupled is None or "${" not in str(decoupled.value):
            where = model.where("model_transaction_policy.decoupled", decoupled.line if decoupled else None)
            truth = model.config.truth("model_transaction_policy", "decoupled")
            facts.put("triton.decoupled", bool(truth), where)  # protobuf's default is false
        self._put_logits_type(model)
        for key, value, where in model.parameters():
            self._put_parameter(model, key, value, where)

    def _put_llmapi(self, model: Model) -> bool:
        """Put the options of model.yaml, where the model has one; return whether it has."""
        path = f"{model.path}/1/model.yaml"
        if self._host.kind(path) != "file":
            return False
        self._facts.put("triton.flow", "llmapi", path)
        try:
            self.unread += put_document(self._facts, read_yaml(self._host, path), self._version)
        except UnreadableError as err:
            self._add("unparsed", f"{path}: {err}", path)
        return True

    def _put_logits_type(self, model: Model) -> None:
        outputs = model.tensors("output")
        logits = outputs.get("generation_logits") or outputs.get("context_logits")
        data_type = logits.text("data_type") if logits else ""
        if data_type and "${" not in data_type:
            self._facts.put(
                "triton.logits_datatype", data_type, model.where("output.generation_logits.data_type")
            )

    def _put_parameter(self, model: Model, key: str, value: str, where: str) -> None:
        if not value.strip() or "${" in value:
            return
        if key == "gpt_model_path":
            self._facts.put("triton.engine_dir", value, where)
        elif key == "encoder_model_path":
            self._facts.put("triton.encoder_dir", value, where)
        parameter = PARAMETERS.get(key)
        if parameter is None:
            return
        try:
            read = parameter.read(value)
        except ValueError as err:
            self._add("triton.invalid_parameters", f"{model.name}: {key} = {value[:60]}: {err}", where)
            return
        if parameter.fact:
            self._facts.put(parameter.fact, read, where)

    def _put_special_tokens(self) -> None:
        for name, key in (("preprocessing", "add_special_tokens"), ("postprocessing", "skip_special_tokens")):
            model = self._models.get(name)
            value = model.parameter(key).strip().lower() if model else ""
            if model and value in TRUE_WORDS + FALSE_WORDS:
                self._facts.put(f"triton.{key}", value in TRUE_WORDS, model.where(f"parameters.{key}"))

    def _put_paths(self) -> tuple[str, ...]:
        """Put the paths that are not there; return those that are.

        A repository is often looked at outside its container. A path counts as missing only where its folder
        or another path of the repository is on this machine.
        """
        places = {
            value: where
            for model in self._models.values()
            for key, value, where in model.parameters()
            if key in PATHS and value.startswith(("/", "./", "../")) and "${" not in value
        }
        here = {value: kind_of(self._host, value) != "absent" for value in places}
        for value, where in places.items():
            parent = posixpath.dirname(value.rstrip("/"))
            if not here[value] and (
                any(here.values()) or (len(parent) > 1 and kind_of(self._host, parent) == "directory")
            ):
                self._add("triton.paths_missing", f"{value} ({where.rpartition(': ')[2]})", where)
        present_paths = [value for value in places if here[value]]
        model = self._facts.get("runtime.model")
        if isinstance(model, str) and kind_of(self._host, model) == "directory":
            present_paths.append(model)
        return tuple(dict.fromkeys(present_paths))


TRUE_WORDS = ("true", "1", "t", "y", "yes")
FALSE_WORDS = ("false", "0", "f", "n", "no")

READER = Reader(
    "triton",
    "a Triton model repository: folders with a config.pbtxt, or one such folder",
    is_repository,
    read_triton,
    by_version=True,
)
