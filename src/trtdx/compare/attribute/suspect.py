"""The first wrong place of a comparison, as it is handed over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.judge.exact_types import HIDDEN_SCORE
from trtdx.engines.torch.lazy_import import torch
from trtdx.engines.torch.replay import PreparedCall, prepare_call
from trtdx.engines.torch.values import tensor_from_array

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtdx.compare.nouns import Array
    from trtdx.compare.sides.side import Side


class Suspect(NamedTuple):
    """The first wrong place of a comparison. Names of tensors are the reference's: "in", "in.attention_mask", or whole.

    Attributes:
        path: the innermost module of the reference that is wrong.
        engine: the reference's model on torch, if it is open already; nothing is changed in it.
        reference: the reference's side, to open its model from where `engine` is not given.
        candidate: the candidate's side, for what can be read in its files.
        step: of the run; later steps want `past.<layer>.key` and `.value` among the inputs.
        reference_inputs: what entered the module in the reference.
        candidate_inputs: what entered it in the candidate, as far as known, in the reference's layout; preferred.
        candidate_outputs: what left it in the candidate, or passed inside it ("…self_attn.o_proj:in"), or was then in
            the cache ("present.3.key"), in the reference's layout.
        counts: which tokens count, [batch, sequence]; all where it is not told.
        dtype: what the candidate computes in; that of its output where it is not told.
        again: computes the candidate once more and gives its outputs at this place, where it can be run.
        call: which call of a module that is called several times.
        masks: what says who sees whom in the module, of the reference and of the candidate, as they are.
    """

    path: str
    engine: Any = None
    reference: Side | None = None
    candidate: Side | None = None
    step: int = 0
    reference_inputs: Mapping[str, Array] = {}
    candidate_inputs: Mapping[str, Array] = {}
    candidate_outputs: Mapping[str, Array] = {}
    counted_tokens: Array | None = None
    dtype: str = ""
    rerun_candidate: Callable[[], Mapping[str, Array]] | None = None
    call: int = 0
    masks: Mapping[str, tuple[Array, Array]] = {}


def prepare_suspect_module(suspect: Suspect, engine: Any) -> PreparedCall:
    """Return the module ready to be called: with the candidate's inputs where they are known, else the reference's."""
    reference_inputs = {_strip_path(name, suspect.path): array for name, array in suspect.reference_inputs.items()}
    candidate_inputs = {_strip_path(name, suspect.path): array for name, array in suspect.candidate_inputs.items()}
    dtypes = {name: info.dtype for name, info in engine.replay_inputs(suspect.path, suspect.call).items()}
    tensors = {}
    for name in reference_inputs or candidate_inputs:
        array = candidate_inputs.get(name)
        if array is None or (name in reference_inputs and array.shape != reference_inputs[name].shape):
            array = reference_inputs[name]
        tensors[name] = _tensor_in_dtype(array, dtypes.get(name, ""))
    tensors |= {
        name: _tensor_in_dtype(candidate_inputs[name], dtypes.get(name, ""))
        for name in candidate_inputs
        if name.startswith("past.")
    }
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("past.") or name in dtypes}
    return prepare_call(engine, suspect.path, tensors, call=suspect.call, step=suspect.step)


def _strip_path(name: str, path: str) -> str:
    return name[len(path) + 1 :] if name.startswith(f"{path}:") else name


def _tensor_in_dtype(array: Array, dtype: str) -> Any:
    tensor = tensor_from_array(array)
    if tensor.dtype == torch.bool and "float" in dtype:  # a mask of truth values, and one to add
        mask = torch.zeros(tensor.shape, dtype=getattr(torch, dtype))
        return mask.masked_fill(~tensor, torch.finfo(mask.dtype).min)
    if dtype == "bool" and tensor.is_floating_point():
        return tensor > HIDDEN_SCORE
    if dtype and tensor.is_floating_point():
        return tensor.to(getattr(torch, dtype))
    return tensor


def candidate_compute_dtype(suspect: Suspect) -> str:
    """Return what the candidate computes in."""
    if suspect.dtype:
        return suspect.dtype
    first = next(iter(suspect.candidate_outputs.values()), None)
    return "float32" if first is None else first.dtype.name
