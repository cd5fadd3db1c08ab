"""Ensembles: whether each step names a model and tensors that are there, with the types they have there.

The rules are those of Triton's `ensemble_utils.cc`: a mapping to a tensor that does not exist, an input that is
neither mapped nor optional, a tensor with two types, or a step that allows a smaller batch, is refused at load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtdx.formats.pbtxt import Message
    from trtdx.inspect.readers.server.triton_model import Model

SIDES = (("input_map", "input"), ("output_map", "output"))


def ensembles(models: Mapping[str, Model]) -> Iterator[Model]:
    for model in models.values():
        if model.config is not None and model.config.all("ensemble_scheduling"):
            yield model


def steps(ensemble: Model) -> Iterator[Message]:
    for scheduling in ensemble.config.messages("ensemble_scheduling") if ensemble.config else []:
        yield from scheduling.messages("step")


def unknown_names(ensemble: Model, models: Mapping[str, Model]) -> Iterator[str]:
    """Yield what the steps of an ensemble name that is not there, and inputs they leave open."""
    for step in steps(ensemble):
        name = step.text("model_name")
        if not name or "${" in name:
            continue
        model = models.get(name)
        if model is None:
            yield f"{ensemble.name}: a step names the model {name}, which is not in the repository"
        elif model.config is not None:
            yield from _unknown_tensors(ensemble, step, model)


def _unknown_tensors(ensemble: Model, step: Message, model: Model) -> Iterator[str]:
    for map_name, side in SIDES:
        tensors = model.tensors(side)
        if not tensors:
            continue  # a model may complete its configuration when it is loaded
        keys = [entry.text("key") for entry in step.messages(map_name)]
        for key in keys:
            if key and key not in tensors:
                yield f"{ensemble.name}: {model.name} has no {side} {key}"
        for tensor, spec in tensors.items():
            if side == "input" and tensor not in keys and not spec.truth("optional"):
                yield f"{ensemble.name}: the input {tensor} of {model.name} is not connected"


def type_mismatches(ensemble: Model, models: Mapping[str, Model]) -> Iterator[str]:
    """Yield the ensemble's tensors for which two models declare different data types."""
    declared: dict[str, tuple[str, str]] = {}
    for tensor, model, data_type in _declared(ensemble, models):
        first = declared.setdefault(tensor, (model, data_type))
        if first[1] != data_type:
            yield f"{tensor}: {first[1]} in {first[0]}, {data_type} in {model}"


def _declared(ensemble: Model, models: Mapping[str, Model]) -> Iterator[tuple[str, str, str]]:
    """Yield (tensor of the ensemble, model, data type) wherever a type is stated."""
    for side in ("input", "output"):
        for tensor, spec in ensemble.tensors(side).items():
            yield from _typed(tensor, ensemble.name, spec)
    for step in steps(ensemble):
        model = models.get(step.text("model_name"))
        if model is not None:
            yield from _declared_by_step(step, model)


def _declared_by_step(step: Message, model: Model) -> Iterator[tuple[str, str, str]]:
    for map_name, side in SIDES:
        specs = model.tensors(side)
        for entry in step.messages(map_name):
            if entry.text("key") in specs:
                yield from _typed(entry.text("value"), model.name, specs[entry.text("key")])


def _typed(tensor: str, model: str, spec: Message) -> Iterator[tuple[str, str, str]]:
    data_type = spec.text("data_type")
    if data_type and "${" not in data_type:
        yield tensor, model, data_type


def smallest_step(ensemble: Model, models: Mapping[str, Model]) -> int | None:
    """Return the smallest max_batch_size among the steps that batch at all."""
    sizes = [
        size
        for step in steps(ensemble)
        if (model := models.get(step.text("model_name"))) is not None
        and model.config is not None
        and (size := model.config.integer("max_batch_size"))
    ]
    return min(sizes, default=None)
