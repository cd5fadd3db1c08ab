"""Tiny models with one mistake planted in them, and the suspect that a comparison would hand over."""

from __future__ import annotations

import copy
import sys
from contextlib import ExitStack, contextmanager

import numpy as np

from trtdx.testing.tiny_models import SIZES, tiny_decoder

VOCABULARY = SIZES["vocab_size"]
ROWS = [np.random.default_rng(5).integers(1, VOCABULARY, 14).tolist()]
PADDED = [np.random.default_rng(6).integers(1, VOCABULARY, length).tolist() for length in (14, 9)]
decoder = tiny_decoder


_references: dict = {}


@contextmanager
def as_it_is(model):
    yield


def seen_at(model, path, rows, step):
    """Return what enters and leaves a module at a step, the cache before it among what enters, and all that was seen."""
    return parts_of(path, step, *seen_in(model, rows, step))


def seen_in(model, rows, step):
    """Return all that passes at a step, and the states after each step."""
    from trtdx.engines.generate import generate_tokens
    from trtdx.engines.torch.engine import TorchEngine
    from trtdx.engines.torch.values import array_from_tensor

    kept = {}

    def keep(each):
        if each.step == step:
            kept[each.place.name] = array_from_tensor(each.tensor).copy()

    states = []
    forced = np.array([[7, 11, 13, 17][: step + 1]] * len(rows))
    with TorchEngine(model, "**:*", sink=keep) as engine:
        states += [each.state for each in generate_tokens(engine, rows, step + 1, forced=forced)]
    return kept, states


def parts_of(path, step, kept, states):
    inputs = {name: each for name, each in kept.items() if name.startswith(f"{path}:in")}
    outputs = {name: each for name, each in kept.items() if name.startswith(f"{path}:out")}
    if step:
        inputs |= {
            name.replace("present", "past"): each
            for name, each in states[step - 1].past.items()
            if name.split(".")[1] == path.split(".")[2]
        }
    return inputs, outputs, kept


def suspect_of(model, path, plant=as_it_is, *, rows=ROWS, step=0, dtype="float32", inner=(), own=(), twice=False):
    """Return what a comparison knows of a module of a candidate that has a mistake planted in it.

    Args:
        model: the reference.
        path: of the module.
        plant: a context in which the candidate is computed, given the candidate.
        inner: tensors inside the module that are known of the candidate too.
        own: inputs that are not known of the candidate.
        twice: whether the candidate can be computed again.
    """
    import torch

    from trtdx.compare.attribute.run import Suspect
    from trtdx.engines.torch.engine import TorchEngine

    key = (id(model), str(rows), step)
    if key not in _references:
        _references[key] = (
            model,
            seen_in(model, rows, step),
        )  # the model too: its number is not given to another
    inputs, _, _ = parts_of(path, step, *_references[key][1])
    candidate = copy.deepcopy(model).to(getattr(torch, dtype))

    def computed():
        with plant(candidate):
            return seen_at(candidate, path, rows, step)

    theirs, outputs, kept = computed()
    counts = None
    if len({len(row) for row in rows}) > 1 and not step:
        width = max(map(len, rows))
        counts = np.array([[False] * (width - len(row)) + [True] * len(row) for row in rows])
    return Suspect(
        path,
        engine=TorchEngine(model),
        step=step,
        reference_inputs=inputs,
        candidate_inputs={
            name: each for name, each in theirs.items() if not any(name.endswith(f":{each}") for each in own)
        },
        candidate_outputs=outputs | {name: kept[name] for name in inner},
        counted_tokens=counts,
        dtype=dtype,
        rerun_candidate=(lambda: computed()[1]) if twice else None,
    )


@contextmanager
def patched(owner, **values):
    """Give an object other attributes inside the block."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def at(path, change):
    """Return a plant that changes one module: change(module) gives the attributes to set, or changes it in place."""

    @contextmanager
    def plant(model):
        module = model.get_submodule(path)
        with ExitStack() as undo:
            values = change(module)
            if values:
                undo.enter_context(patched(module, **values))
            yield

    return plant


def weight(path, change, name="weight"):
    """Return a plant that changes a weight in place, once."""
    done = []

    @contextmanager
    def plant(model):
        import torch

        if model not in done:
            done.append(model)
            with torch.no_grad():
                held = getattr(model.get_submodule(path), name)
                held.data = change(held.data, model).contiguous()
        yield

    return plant


def output(path, change):
    """Return a plant that changes what leaves a module: change(inputs, output)."""

    @contextmanager
    def plant(model):
        def after(module, args, kwargs, result):
            first = args[0] if args else kwargs["hidden_states"]
            if isinstance(result, tuple):
                return (change(first, result[0]), *result[1:])
            return change(first, result)

        hook = model.get_submodule(path).register_forward_hook(after, with_kwargs=True, prepend=True)
        try:
            yield
        finally:
            hook.remove()

    return plant


def function(name, change):
    """Return a plant that replaces a function in the model's file: change(own) gives the new one."""

    @contextmanager
    def plant(model):
        file = sys.modules[type(model).__module__]
        with patched(file, **{name: change(getattr(file, name))}):
            yield

    return plant


def eager(change):
    """Return a plant in eager attention: change(module, query, key, value, mask, scaling) -> the same five, changed."""

    def wrapped(own):
        def attention(module, query, key, value, mask, scaling=None, **more):
            query, key, value, mask, scaling = change(module, query, key, value, mask, scaling)
            return own(module, query, key, value, mask, scaling=scaling, **more)

        return attention

    return function("eager_attention_forward", wrapped)
