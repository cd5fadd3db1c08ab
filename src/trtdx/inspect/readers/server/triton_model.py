"""One model of a Triton repository: its config.pbtxt and what lies beside it."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, NamedTuple

from trtdx.errors import InputError
from trtdx.formats.documents import UnreadableError
from trtdx.formats.pbtxt import Message, Name, read_pbtxt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.pbtxt import Field
    from trtdx.host import Host

CONFIG = "config.pbtxt"
# The fields of Triton's ModelConfig; one that is nearly one of them is misspelt.
FIELDS = (
    "name platform runtime backend version_policy max_batch_size input output batch_input batch_output "
    "optimization dynamic_batching sequence_batching ensemble_scheduling instance_group default_model_filename "
    "cc_model_filenames metric_tags parameters model_warmup model_operations model_transaction_policy "
    "model_repository_agents response_cache model_metrics"
)
# The file a version directory must hold, by backend; other backends find theirs elsewhere.
MODEL_FILES = {
    "python": "model.py",
    "onnxruntime": "model.onnx",
    "tensorrt": "model.plan",
    "pytorch": "model.pt",
}


class Model(NamedTuple):
    """A folder of the repository and the configuration in it."""

    name: str
    path: str
    config: Message | None  # None: it cannot be parsed
    problem: str = ""

    @property
    def backend(self) -> str:
        return self.config.text("backend") or self.config.text("platform") if self.config else ""

    @property
    def file(self) -> str:
        return f"{self.path}/{CONFIG}"

    def where(self, key: str, line: int | None = None) -> str:
        return f"{self.file}:{line}: {key}" if line else f"{self.file}: {key}"

    def parameters(self) -> Iterator[tuple[str, str, str]]:
        """Yield each parameter's key, value and place."""
        for field in self.config.all("parameters") if self.config else []:
            if isinstance(field.value, Message) and field.value.text("key"):
                key = field.value.text("key")
                yield (
                    key,
                    field.value.text("value", "string_value"),
                    self.where(f"parameters.{key}", field.line),
                )

    def parameter(self, key: str) -> str:
        """Return a parameter's value; one that was never filled in says nothing."""
        values = [value for name, value, _ in self.parameters() if name == key]
        return values[-1] if values and "${" not in values[-1] else ""

    def tensors(self, side: str) -> dict[str, Message]:
        """Return the inputs or outputs by name."""
        if self.config is None:
            return {}
        return {tensor.text("name"): tensor for tensor in self.config.messages(side) if tensor.text("name")}


def read_model(host: Host, path: str, name: str) -> Model:
    """Return a model; a configuration that is no text protobuf is told, not raised."""
    try:
        config = read_pbtxt(host, f"{path}/{CONFIG}")
    except UnreadableError as err:
        return Model(name, path, None, str(err))
    return Model(name, path, config, _first_fault(config))


def _first_fault(config: Message) -> str:
    """Return what protobuf would refuse in a configuration that is well-formed, or ""."""
    known_fields = FIELDS.split()
    for field in config.fields:
        near = difflib.get_close_matches(field.name, known_fields, n=1, cutoff=0.8)
        if field.name not in known_fields and near:
            return f"line {field.line}: there is no field {field.name} (did you mean {near[0]}?)"
        fault = _wrong_type(field)
        if fault:
            return f"line {field.line}: {field.name} takes {fault}"
    return ""


def _wrong_type(field: Field) -> str:
    is_text = isinstance(field.value, str) and not isinstance(field.value, Name)
    if field.name == "max_batch_size" and (is_text or isinstance(field.value, float)):
        return "a whole number without quotes"
    if field.name in ("name", "backend", "platform") and not is_text and not _is_unfilled(field):
        return "a text in quotes"
    return ""


def _is_unfilled(field: Field) -> bool:
    return isinstance(field.value, str) and "${" in field.value


def unfilled(model: Model) -> Iterator[str]:
    """Yield "tensorrt_llm/config.pbtxt:29: max_batch_size = ${triton_max_batch_size}" for each that is left."""
    for _, value, where in model.parameters():
        if "${" in value:
            yield f"{model.name}/{where.removeprefix(model.path + '/')} = {_variable(value)}"
    for dotted, field in model.config.walk() if model.config else ():
        if not dotted.startswith("parameters.") and _is_unfilled(field):
            yield f"{model.name}/{CONFIG}:{field.line}: {dotted} = {_variable(str(field.value))}"


def _variable(value: str) -> str:
    placeholder = re.search(r"\$\{[^}]{0,60}\}?", value)
    return placeholder[0] if placeholder else value[:60]


def missing_file(host: Host, model: Model) -> str:
    """Return what a model's folder lacks, or "": a version directory, or the file its backend loads."""
    try:
        versions = [name for name in host.entries(model.path) if name.isdecimal()]
        files_by_version = {name: set(host.entries(f"{model.path}/{name}")) for name in versions}
    except InputError:
        return ""
    if not versions:
        return f"{model.name}: no version directory (such as {model.name}/1)"
    file_name = model.config.text("default_model_filename") if model.config else ""
    file_name = file_name or MODEL_FILES.get(model.backend, "")
    if file_name and not any(file_name in names for names in files_by_version.values()):
        return f"{model.name}: no {file_name} in {model.name}/{max(versions, key=int)}"
    return ""


def instances(model: Model) -> int | None:
    """Return how many instances a model asks for, where it says so."""
    if model.config is None or not model.config.messages("instance_group"):
        return None
    counts = [group.integer("count") for group in model.config.messages("instance_group")]
    return sum(1 if count is None else count for count in counts)
