"""One model of a Triton repository: its config.pbtxt and what lies beside it."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, NamedTuple

from trtdx.errors import InputError
from trtdx.formats.documents import UnreadableError
from trtdx.formats.pbtxt import PbtxtMessage, PbtxtWord, read_pbtxt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.pbtxt import PbtxtField
    from trtdx.host import Host

CONFIG_FILE = "config.pbtxt"
# The fields of Triton's ModelConfig; one that is nearly one of them is misspelt.
CONFIG_FIELDS = (
    "name platform runtime backend version_policy max_batch_size input output batch_input batch_output "
    "optimization dynamic_batching sequence_batching ensemble_scheduling instance_group default_model_filename "
    "cc_model_filenames metric_tags parameters model_warmup model_operations model_transaction_policy "
    "model_repository_agents response_cache model_metrics"
)
# The file a version directory must hold, by backend; other backends find theirs elsewhere.
FILE_BY_BACKEND = {
    "python": "model.py",
    "onnxruntime": "model.onnx",
    "tensorrt": "model.plan",
    "pytorch": "model.pt",
}


class TritonModel(NamedTuple):
    """A folder of the repository and the configuration in it."""

    name: str
    path: str
    config: PbtxtMessage | None  # None: it cannot be parsed
    problem: str = ""

    @property
    def backend(self) -> str:
        return self.config.text_at("backend") or self.config.text_at("platform") if self.config else ""

    @property
    def config_path(self) -> str:
        return f"{self.path}/{CONFIG_FILE}"

    def where(self, key: str, line: int | None = None) -> str:
        return f"{self.config_path}:{line}: {key}" if line else f"{self.config_path}: {key}"

    def parameters(self) -> Iterator[tuple[str, str, str]]:
        """Yield each parameter's key, value and place."""
        for field in self.config.fields_named("parameters") if self.config else []:
            if isinstance(field.value, PbtxtMessage) and field.value.text_at("key"):
                key = field.value.text_at("key")
                yield (
                    key,
                    field.value.text_at("value", "string_value"),
                    self.where(f"parameters.{key}", field.line),
                )

    def parameter(self, key: str) -> str:
        """Return a parameter's value; one that was never filled in says nothing."""
        values = [value for name, value, _ in self.parameters() if name == key]
        return values[-1] if values and "${" not in values[-1] else ""

    def tensors(self, side: str) -> dict[str, PbtxtMessage]:
        """Return the inputs or outputs by name."""
        if self.config is None:
            return {}
        return {tensor.text_at("name"): tensor for tensor in self.config.messages_named(side) if tensor.text_at("name")}


def read_triton_model(host: Host, path: str, name: str) -> TritonModel:
    """Return a model; a configuration that is no text protobuf is told, not raised."""
    try:
        config = read_pbtxt(host, f"{path}/{CONFIG_FILE}")
    except UnreadableError as err:
        return TritonModel(name, path, None, str(err))
    return TritonModel(name, path, config, _first_config_fault(config))


def _first_config_fault(config: PbtxtMessage) -> str:
    """Return what protobuf would refuse in a configuration that is well-formed, or ""."""
    known_fields = CONFIG_FIELDS.split()
    for field in config.fields:
        near = difflib.get_close_matches(field.name, known_fields, n=1, cutoff=0.8)
        if field.name not in known_fields and near:
            return f"line {field.line}: there is no field {field.name} (did you mean {near[0]}?)"
        fault = _expected_type(field)
        if fault:
            return f"line {field.line}: {field.name} takes {fault}"
    return ""


def _expected_type(field: PbtxtField) -> str:
    is_text = isinstance(field.value, str) and not isinstance(field.value, PbtxtWord)
    if field.name == "max_batch_size" and (is_text or isinstance(field.value, float)):
        return "a whole number without quotes"
    if field.name in ("name", "backend", "platform") and not is_text and not _is_unfilled_field(field):
        return "a text in quotes"
    return ""


def _is_unfilled_field(field: PbtxtField) -> bool:
    return isinstance(field.value, str) and "${" in field.value


def unfilled_placeholders(model: TritonModel) -> Iterator[str]:
    """Yield "tensorrt_llm/config.pbtxt:29: max_batch_size = ${triton_max_batch_size}" for each that is left."""
    for _, value, where in model.parameters():
        if "${" in value:
            yield f"{model.name}/{where.removeprefix(model.path + '/')} = {_placeholder_text(value)}"
    for dotted, field in model.config.walk_fields() if model.config else ():
        if not dotted.startswith("parameters.") and _is_unfilled_field(field):
            yield f"{model.name}/{CONFIG_FILE}:{field.line}: {dotted} = {_placeholder_text(str(field.value))}"


def _placeholder_text(value: str) -> str:
    placeholder = re.search(r"\$\{[^}]{0,60}\}?", value)
    return placeholder[0] if placeholder else value[:60]


def missing_model_file(host: Host, model: TritonModel) -> str:
    """Return what a model's folder lacks, or "": a version directory, or the file its backend loads."""
    try:
        versions = [name for name in host.entries(model.path) if name.isdecimal()]
        files_by_version = {name: set(host.entries(f"{model.path}/{name}")) for name in versions}
    except InputError:
        return ""
    if not versions:
        return f"{model.name}: no version directory (such as {model.name}/1)"
    file_name = model.config.text_at("default_model_filename") if model.config else ""
    file_name = file_name or FILE_BY_BACKEND.get(model.backend, "")
    if file_name and not any(file_name in names for names in files_by_version.values()):
        return f"{model.name}: no {file_name} in {model.name}/{max(versions, key=int)}"
    return ""


def instance_count(model: TritonModel) -> int | None:
    """Return how many instances a model asks for, where it says so."""
    if model.config is None or not model.config.messages_named("instance_group"):
        return None
    counts = [group.integer_at("count") for group in model.config.messages_named("instance_group")]
    return sum(1 if count is None else count for count in counts)
