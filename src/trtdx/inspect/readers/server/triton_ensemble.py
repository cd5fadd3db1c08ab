"""Ensembles: whether each step names a model and tensors that are there, with the types they have there.

The rules are those of Triton's `ensemble_utils.cc`: a mapping to a tensor that does not exist, an input that is
neither mapped nor optional, a tensor with two types, or a step that allows a smaller batch, is refused at load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtdx.formats.pbtxt import PbtxtMessage
    from trtdx.inspect.readers.server.triton_model import TritonModel

TENSOR_MAPS = (("input_map", "input"), ("output_map", "output"))


def ensemble_models(models: Mapping[str, TritonModel]) -> Iterator[TritonModel]:
    for model in models.values():
        if model.config is not None and model.config.fields_named("ensemble_scheduling"):
            yield model


def ensemble_steps(ensemble: TritonModel) -> Iterator[PbtxtMessage]:
    for scheduling in ensemble.config.messages_named("ensemble_scheduling") if ensemble.config else []:
        yield from scheduling.messages_named("step")


def unknown_step_names(ensemble: TritonModel, models: Mapping[str, TritonModel]) -> Iterator[str]:
    """Yield what the steps of an ensemble name that is not there, and inputs they leave open."""
    for step in ensemble_steps(ensemble):
        name = step.text_at("model_name")
        if not name or "${" in name:
            continue
        model = models.get(name)
        if model is None:
            yield f"{ensemble.name}: a step names the model {name}, which is not in the repository"
        elif model.config is not None:
            yield from _unknown_tensors(ensemble, step, model)


def _unknown_tensors(ensemble: TritonModel, step: PbtxtMessage, model: TritonModel) -> Iterator[str]:
    for map_name, side in TENSOR_MAPS:
        tensors = model.tensors(side)
        if not tensors:
            continue  # a model may complete its configuration when it is loaded
        keys = [entry.text_at("key") for entry in step.messages_named(map_name)]
        for key in keys:
            if key and key not in tensors:
                yield f"{ensemble.name}: {model.name} has no {side} {key}"
        for tensor, spec in tensors.items():
            if side == "input" and tensor not in keys and not spec.bool_at("optional"):
                yield f"{ensemble.name}: the input {tensor} of {model.name} is not connected"


def type_mismatches(ensemble: TritonModel, models: Mapping[str, TritonModel]) -> Iterator[str]:
    """Yield the ensemble's tensors for which two models declare different data types."""
    declared: dict[str, tuple[str, str]] = {}
    for tensor, model, data_type in _declared_types(ensemble, models):
        first = declared.setdefault(tensor, (model, data_type))
        if first[1] != data_type:
            yield f"{tensor}: {first[1]} in {first[0]}, {data_type} in {model}"


def _declared_types(ensemble: TritonModel, models: Mapping[str, TritonModel]) -> Iterator[tuple[str, str, str]]:
    """Yield (tensor of the ensemble, model, data type) wherever a type is stated."""
    for side in ("input", "output"):
        for tensor, spec in ensemble.tensors(side).items():
            yield from _typed_tensor(tensor, ensemble.name, spec)
    for step in ensemble_steps(ensemble):
        model = models.get(step.text_at("model_name"))
        if model is not None:
            yield from _types_declared_by_step(step, model)


def _types_declared_by_step(step: PbtxtMessage, model: TritonModel) -> Iterator[tuple[str, str, str]]:
    for map_name, side in TENSOR_MAPS:
        specs = model.tensors(side)
        for entry in step.messages_named(map_name):
            if entry.text_at("key") in specs:
                yield from _typed_tensor(entry.text_at("value"), model.name, specs[entry.text_at("key")])


def _typed_tensor(tensor: str, model: str, spec: PbtxtMessage) -> Iterator[tuple[str, str, str]]:
    data_type = spec.text_at("data_type")
    if data_type and "${" not in data_type:
        yield tensor, model, data_type


def smallest_step_batch(ensemble: TritonModel, models: Mapping[str, TritonModel]) -> int | None:
    """Return the smallest max_batch_size among the steps that batch at all."""
    sizes = [
        size
        for step in ensemble_steps(ensemble)
        if (model := models.get(step.text_at("model_name"))) is not None
        and model.config is not None
        and (size := model.config.integer_at("max_batch_size"))
    ]
    return min(sizes, default=None)
