"""The first wrong place of a comparison, with all that hypotheses about it are tested on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.capture.session.steps import PROMPT_MASK, state_after, step_notes
from trtdx.compare.attribute.suspect import Suspect
from trtdx.compare.judge.exact_types import is_mask
from trtdx.compare.judge.honest_runs import candidate_in_reference_layout, infer_candidate_dtype
from trtdx.tensors.cache_names import cache_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtdx.compare.nouns import Array, TensorPair
    from trtdx.compare.sides.side import Side
    from trtdx.model import Where


def collect_suspect(
    where: Where,
    pairs: Sequence[TensorPair],
    reference: Side,
    candidate: Side,
    *,
    rerun: Callable[[], dict[str, Array]] | None = None,
) -> Suspect:
    """Return the module at a place, with what entered and left it on both sides.

    The callable computes the candidate once more and returns what left the module.
    """
    path, step = where.module, where.step
    inside = [
        pair
        for pair in pairs
        # What is compared in another form than modules take it (masks) says nothing to a module.
        if pair.step == step and _is_in_module(pair.name, path) and not pair.reference.joined_changes
        if not _is_in_inner_layer(pair.name, path)
    ]
    entering = [pair for pair in inside if pair.name.startswith(f"{path}:in")]
    values = {pair.name: candidate_in_reference_layout(pair, reference, candidate) for pair in inside}
    arrays = {name: array for name, array in values.items() if array is not None}
    return Suspect(
        path=path,
        reference=reference,
        candidate=candidate,
        step=step,
        reference_inputs=_module_inputs(reference, path, step) | _cache_before(reference, step),
        candidate_inputs={pair.name: arrays[pair.name] for pair in entering if pair.name in arrays}
        | _cache_before(candidate, step),
        candidate_outputs={name: array for name, array in arrays.items() if not name.startswith(f"{path}:in")},
        counted_tokens=_prompt_mask(reference, step),
        dtype=infer_candidate_dtype(pairs),
        rerun_candidate=rerun,
        masks=_captured_masks(path, step, pairs, reference, candidate),
    )


def _captured_masks(
    path: str, step: int, pairs: Sequence[TensorPair], reference: Side, candidate: Side
) -> dict[str, tuple[Array, Array]]:
    """Return the captured attention masks of both sides, if they have the same rows."""
    masks = {}
    for pair in pairs:
        one, other = pair.reference.first, pair.candidate.first
        same = pair.has_values and len(pair.candidate.records) == 1 and one.layout.shape == other.layout.shape
        if pair.step == step and same and _is_in_module(pair.name, path) and is_mask(pair):
            masks[pair.name] = reference.capture.values(one), candidate.capture.values(other)
    return masks


def _is_in_module(name: str, path: str) -> bool:
    return name.startswith((f"{path}:", f"{path}.")) if path else True


def _is_in_inner_layer(name: str, path: str) -> bool:
    """Whether a tensor is inside one of the numbered layers of a container module; those are too many to take along."""
    inner = name.partition(":")[0][len(path) + 1 if path else 0 :]
    return any(part.isdigit() for part in inner.split(".")[:-1])


def _module_inputs(side: Side, path: str, step: int) -> dict[str, Array]:
    records = side.kept_records(path, "in", step)
    # What the run itself was given is there twice.
    module_records = [record for record in records if not record.place.tensor]
    return {record.name: side.capture.values(record) for record in module_records or records}


def _cache_before(side: Side, step: int) -> dict[str, Array]:
    """Return what was in the cache before a step, under the names a replay takes."""
    names = side.capture.header.details.get("caches")
    if not step or not isinstance(names, dict) or step - 1 not in step_notes(side.capture):
        return {}
    past = state_after(side.capture, step - 1, caches=names).past
    return {f"past.{cache_key(name)}": array for name, array in past.items()}


def _prompt_mask(side: Side, step: int) -> Array | None:
    """Return which tokens of the prompt are not padding, [batch, sequence]; at later steps all count."""
    if step:
        return None
    masks = [record for record in side.capture.records(step=0, name=PROMPT_MASK) if record.kept]
    return side.capture.values(masks[0]).copy() if masks else None  # torch warns of what is read-only
