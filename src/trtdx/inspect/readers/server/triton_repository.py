"""Triton model repositories: the engine flow of inflight_batcher_llm, and the LLM API's model.yaml."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, NamedTuple

from trtdx.errors import InputError
from trtdx.formats.documents import UnreadableError
from trtdx.formats.yaml_documents import read_yaml
from trtdx.inspect.facts.artifact import Artifact, FactCollector
from trtdx.inspect.readers import ArtifactReader, PathProbe
from trtdx.inspect.readers.server.llm_args import put_options_document
from trtdx.inspect.readers.server.named_paths import path_kind
from trtdx.inspect.readers.server.triton_ensemble import (
    ensemble_models,
    smallest_step_batch,
    type_mismatches,
    unknown_step_names,
)
from trtdx.inspect.readers.server.triton_model import (
    CONFIG_FILE,
    TritonModel,
    instance_count,
    missing_model_file,
    read_triton_model,
    unfilled_placeholders,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.host import Host

MAX_MODELS = 100
MAX_LISTED_FAULTS = 100  # items of a list of faults
LLM_MODEL_NAME = "tensorrt_llm"


def is_triton_repository(host: Host, probe: PathProbe) -> bool:
    """Return whether a directory is a model of Triton, or holds some."""
    return probe.is_directory and bool(_model_folders(host, probe.path, sorted(probe.names)[:1000]))


def _model_folders(host: Host, path: str, names: list[str]) -> dict[str, str]:
    """Return the models' folders by name: the directory itself, or those below it."""
    if CONFIG_FILE in names:
        return {posixpath.basename(posixpath.normpath(path)): path}
    base = path.rstrip("/")
    below = {name: f"{base}/{name}" for name in names if not name.startswith(".")}
    return {name: folder for name, folder in below.items() if host.kind(f"{folder}/{CONFIG_FILE}") == "file"}


def read_triton_repository(host: Host, path: str, version: str = "") -> Artifact:
    """Return what a model repository says, model by model."""
    try:
        folders = _model_folders(host, path, host.entries(path)[:1000])
    except InputError as err:
        return Artifact("triton", path, unread=(err.message,))
    models = {name: read_triton_model(host, folder, name) for name, folder in list(folders.items())[:MAX_MODELS]}
    reading = _RepositoryReading(host, path, models, path not in folders.values(), version)
    if len(folders) > MAX_MODELS:
        reading.unread.append(f"{path}: {len(folders)} models; the first {MAX_MODELS} were looked at")
    return reading.build_artifact()


class TritonParameter(NamedTuple):
    """A parameter of the tensorrt_llm model: the shared name it goes by, and how the backend reads it."""

    fact: str
    read: Callable[[str], object]


def _parse_integer(text: str) -> int:
    """Return the number a text begins with, as C++'s stoi reads it."""
    number = re.match(r"\s*([+-]?\d{1,18})", text)
    if number is None:
        raise ValueError("takes a whole number")
    return int(number[1])


def _parse_float(text: str) -> float:
    number = re.match(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", text[:60])
    if number is None:
        raise ValueError("takes a number")
    return float(number[0])


def _parse_bool(text: str) -> bool:
    if text not in ("True", "true", "TRUE", "1", "False", "false", "FALSE", "0"):
        raise ValueError("takes true or false")
    return text.lower() in ("true", "1")


def _parse_integers(text: str) -> list[int]:
    return [_parse_integer(part) for part in text.split(",") if part.strip()]


def _parse_integer_groups(text: str) -> list[list[int]]:
    return [_parse_integers(group) for group in text.split(";") if group.strip()]


def _choice_parser(*words: str) -> Callable[[str], str]:
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
    "max_beam_width": TritonParameter("max_beam_width", _parse_integer),
    "max_tokens_in_paged_kv_cache": TritonParameter("runtime.max_tokens_in_cache", _parse_integer),
    "max_attention_window_size": TritonParameter("runtime.attention_window", _parse_integers),
    "kv_cache_free_gpu_mem_fraction": TritonParameter("runtime.free_gpu_memory_fraction", _parse_float),
    "cross_kv_cache_fraction": TritonParameter("runtime.cross_kv_cache_fraction", _parse_float),
    "enable_kv_cache_reuse": TritonParameter("runtime.block_reuse", _parse_bool),
    "enable_chunked_context": TritonParameter("runtime.chunked_context", _parse_bool),
    "gpu_device_ids": TritonParameter("triton.gpu_device_ids", _parse_integer_groups),
    "guided_decoding_backend": TritonParameter("runtime.guided_decoding", _choice_parser("xgrammar")),
    "gpt_model_type": TritonParameter(
        "triton.batching", _choice_parser("inflight_fused_batching", "inflight_batching", "V1", "v1")
    ),
    "decoding_mode": TritonParameter(
        "runtime.decoding_mode",
        _choice_parser("top_k", "top_p", "top_k_top_p", "beam_search", "medusa", "redrafter", "lookahead", "eagle"),
    ),
    "batch_scheduler_policy": TritonParameter("", _choice_parser("max_utilization", "guaranteed_no_evict")),
    **dict.fromkeys(TRUTH_PARAMETERS, TritonParameter("", _parse_bool)),
    **dict.fromkeys(WHOLE_PARAMETERS, TritonParameter("", _parse_integer)),
    **dict.fromkeys(("lora_cache_gpu_memory_fraction", "gpu_weights_percent"), TritonParameter("", _parse_float)),
}
PATH_PARAMETERS = ("gpt_model_path", "encoder_model_path", "tokenizer_dir", "multimodal_model_path")


class _RepositoryReading:
    """A repository on its way to an artifact."""

    def __init__(
        self, host: Host, path: str, models: dict[str, TritonModel], is_repository: bool, version: str
    ) -> None:
        self._host, self._path, self._models = host, path, models
        self._is_repository, self._version = is_repository, version
        self._facts = FactCollector()
        self.unread: list[str] = []

    def build_artifact(self) -> Artifact:
        self._facts.put("triton.models", sorted(self._models), self._path)
        for model in self._models.values():
            self._put_model_facts(model)
        self._put_facts_by_model()
        self._put_ensemble_facts()
        served = self._served_model()
        if served is not None:
            self._put_served_model(served)
        self._put_special_tokens()
        paths = self._put_model_paths()
        return Artifact("triton", self._path, self._facts.to_dict(), refers_to=paths, unread=tuple(self.unread))

    def _add_fault(self, name: str, item: str, where: str) -> None:
        if len(self._facts.get(name) or ()) < MAX_LISTED_FAULTS:
            self._facts.add(name, item, where)

    def _put_model_facts(self, model: TritonModel) -> None:
        if model.problem:
            self._add_fault("triton.unparsed", f"{model.name}/{CONFIG_FILE}: {model.problem}", model.config_path)
        for key, value, where in model.parameters():
            if "${" not in value:
                self._facts.put(f"parameter.{model.name}.{key}", value, where)
        for item in unfilled_placeholders(model):
            self._add_fault("triton.unfilled", item, model.config_path)
        missing = missing_model_file(self._host, model)
        if missing:
            self._add_fault("triton.missing_files", missing, model.path)
        name = model.config.text_at("name") if model.config else ""
        if name and "${" not in name and name != model.name:
            self._add_fault("triton.name_mismatch", f"{model.name}: its {CONFIG_FILE} says {name}", model.where("name"))

    def _put_facts_by_model(self) -> None:
        """Put what several models state under the name of each."""
        parsed = {name: model.config for name, model in self._models.items() if model.config is not None}
        sizes = {name: config.integer_at("max_batch_size") for name, config in parsed.items()}
        self._put_stated_values("triton.max_batch_sizes", sizes)
        self._put_stated_values("triton.instances", {name: instance_count(self._models[name]) for name in parsed})
        decoupled = {name: config.bool_at("model_transaction_policy", "decoupled") for name, config in parsed.items()}
        self._put_stated_values("triton.decoupled_by_model", decoupled)
        tokenizers = {name: self._models[name].parameter("tokenizer_dir") or None for name in parsed}
        self._put_stated_values("triton.tokenizer_dirs", tokenizers)

    def _put_stated_values(
        self, name: str, values: dict[str, int | None] | dict[str, bool | None] | dict[str, str | None]
    ) -> None:
        stated = {model: value for model, value in values.items() if value is not None}
        if stated:
            self._facts.put(name, stated, self._models[next(iter(stated))].config_path)

    def _put_ensemble_facts(self) -> None:
        limits: dict[str, int] = {}
        for ensemble in ensemble_models(self._models):
            smallest = smallest_step_batch(ensemble, self._models)
            if smallest is not None:
                limits[ensemble.name] = smallest
            for item in type_mismatches(ensemble, self._models):
                self._add_fault("triton.type_mismatches", item, ensemble.config_path)
            for item in unknown_step_names(ensemble, self._models) if self._is_repository else ():
                self._add_fault("triton.ensemble_unknown", item, ensemble.config_path)
        if limits:
            self._facts.put("triton.ensemble_limits", limits, self._models[next(iter(limits))].config_path)
        for model in self._models.values():
            name = model.parameter("tensorrt_llm_model_name")
            if self._is_repository and name and name not in self._models:
                item = f"{model.name}: tensorrt_llm_model_name is {name}, which is not in the repository"
                self._add_fault("triton.ensemble_unknown", item, model.where("parameters.tensorrt_llm_model_name"))

    def _served_model(self) -> TritonModel | None:
        """Return the model that runs the LLM."""
        if LLM_MODEL_NAME in self._models:
            return self._models[LLM_MODEL_NAME]
        return next((model for model in self._models.values() if model.backend == "tensorrtllm"), None)

    def _put_served_model(self, model: TritonModel) -> None:
        facts = self._facts
        facts.put("triton.backend", model.backend or None, model.where("backend"))
        if self._put_llm_api_options(model) or model.config is None:
            return
        facts.put("triton.flow", "engine", model.config_path)
        facts.put("max_batch_size", model.config.integer_at("max_batch_size"), model.where("max_batch_size"))
        decoupled = model.config.last_field("model_transaction_policy", "decoupled")
        if decoupled is None or "${" not in str(decoupled.value):
            where = model.where("model_transaction_policy.decoupled", decoupled.line if decoupled else None)
            truth = model.config.bool_at("model_transaction_policy", "decoupled")
            facts.put("triton.decoupled", bool(truth), where)  # protobuf's default is false
        self._put_logits_type(model)
        for key, value, where in model.parameters():
            self._put_parameter(model, key, value, where)

    def _put_llm_api_options(self, model: TritonModel) -> bool:
        """Put the options of model.yaml, where the model has one; return whether it has."""
        path = f"{model.path}/1/model.yaml"
        if self._host.kind(path) != "file":
            return False
        self._facts.put("triton.flow", "llmapi", path)
        try:
            self.unread += put_options_document(self._facts, read_yaml(self._host, path), self._version)
        except UnreadableError as err:
            self._add_fault("unparsed", f"{path}: {err}", path)
        return True

    def _put_logits_type(self, model: TritonModel) -> None:
        outputs = model.tensors("output")
        logits = outputs.get("generation_logits") or outputs.get("context_logits")
        data_type = logits.text_at("data_type") if logits else ""
        if data_type and "${" not in data_type:
            self._facts.put("triton.logits_datatype", data_type, model.where("output.generation_logits.data_type"))

    def _put_parameter(self, model: TritonModel, key: str, value: str, where: str) -> None:
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
            self._add_fault("triton.invalid_parameters", f"{model.name}: {key} = {value[:60]}: {err}", where)
            return
        if parameter.fact:
            self._facts.put(parameter.fact, read, where)

    def _put_special_tokens(self) -> None:
        for name, key in (("preprocessing", "add_special_tokens"), ("postprocessing", "skip_special_tokens")):
            model = self._models.get(name)
            value = model.parameter(key).strip().lower() if model else ""
            if model and value in TRUE_WORDS + FALSE_WORDS:
                self._facts.put(f"triton.{key}", value in TRUE_WORDS, model.where(f"parameters.{key}"))

    def _put_model_paths(self) -> tuple[str, ...]:
        """Put the paths that are not there; return those that are.

        A repository is often looked at outside its container. A path counts as missing only where its folder
        or another path of the repository is on this machine.
        """
        places = {
            value: where
            for model in self._models.values()
            for key, value, where in model.parameters()
            if key in PATH_PARAMETERS and value.startswith(("/", "./", "../")) and "${" not in value
        }
        here = {value: path_kind(self._host, value) != "absent" for value in places}
        for value, where in places.items():
            parent = posixpath.dirname(value.rstrip("/"))
            if not here[value] and (
                any(here.values()) or (len(parent) > 1 and path_kind(self._host, parent) == "directory")
            ):
                self._add_fault("triton.paths_missing", f"{value} ({where.rpartition(': ')[2]})", where)
        present_paths = [value for value in places if here[value]]
        model = self._facts.get("runtime.model")
        if isinstance(model, str) and path_kind(self._host, model) == "directory":
            present_paths.append(model)
        return tuple(dict.fromkeys(present_paths))


TRUE_WORDS = ("true", "1", "t", "y", "yes")
FALSE_WORDS = ("false", "0", "f", "n", "no")

READER = ArtifactReader(
    "triton",
    "a Triton model repository: folders with a config.pbtxt, or one such folder",
    is_triton_repository,
    read_triton_repository,
    takes_version=True,
)
