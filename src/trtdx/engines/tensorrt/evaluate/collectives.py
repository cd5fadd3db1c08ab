"""Collectives over ranks that are simulated in one process, in step with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.engines.errors import EvaluationError, LayerError
from trtdx.engines.tensorrt.evaluate.walk import Exchange, Run
from trtdx.engines.tensorrt.network.values import Array, from_torch, to_torch
from trtdx.engines.torch.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from trtdx.engines.tensorrt.evaluate.network import Plugins, Prepared, Taps
    from trtdx.engines.tensorrt.network.graph import Layer


class Collective(msgspec.Struct, frozen=True):
    """What a collective layer does, which TensorRT's bindings do not tell of a layer that exists."""

    operation: str  # TensorRT's name: "ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", ...
    reduce: str = "SUM"
    root: int = -1
    ranks: tuple[int, ...] = ()  # who takes part, in the group's order; nobody named: everybody


REDUCTIONS: dict[str, Any] = {
    "SUM": lambda parts: parts.sum(0),
    "PROD": lambda parts: parts.prod(0),
    "MAX": lambda parts: parts.amax(0),
    "MIN": lambda parts: parts.amin(0),
    "AVG": lambda parts: parts.sum(0) / parts.shape[0],
}


def alone(exchange: Exchange, collectives: Mapping[str, Collective]) -> Any:
    """Return what a rank that is the only one gets from a collective."""
    if exchange.layer.trt.num_ranks > 1:
        raise LayerError(
            f"layer {exchange.layer.name!r} exchanges with {exchange.layer.trt.num_ranks} ranks, and only one is computed",
            layer=exchange.layer.name,
            fix="compute all of them with trtdx.engines.tensorrt.evaluate_ranks",
        )
    return exchanged([exchange], told(exchange.layer, exchange.value, collectives))[0]


def told(layer: Layer, value: Any, collectives: Mapping[str, Collective]) -> Collective:
    """Return what a collective does: as the caller says, or as the shape of its output leaves no doubt."""
    if layer.name in collectives:
        return collectives[layer.name]
    if layer.trt.num_ranks == 1 and "*" not in collectives:
        return Collective("BROADCAST", root=0)  # whatever it is, one rank gets back what it gave
    if "*" in collectives:
        return collectives["*"]
    size = layer.trt.get_output(0).shape[0] if value.ndim else -1
    if size == value.shape[0] * layer.trt.num_ranks:
        return Collective("ALL_GATHER")
    raise LayerError(
        f"TensorRT does not say what the collective layer {layer.name!r} does",
        layer=layer.name,
        fix=f"pass collectives={{{layer.name!r}: Collective('ALL_REDUCE', 'SUM')}}, or '*' for all layers",
    )


def exchanged(brought: Sequence[Exchange | None], how: Collective) -> list[Any]:
    """Return what each rank gets; None for one that does not take part."""
    ranks = how.ranks or tuple(range(len(brought)))
    there = [exchange for rank in ranks if (exchange := brought[rank]) is not None]
    dtype = there[0].layer.outputs[0].dtype
    values = [to_torch(dtype)(exchange.value) for exchange in there]
    root = ranks.index(how.root) if how.root in ranks else 0
    results: list[Any] = [None] * len(brought)
    for rank, value in zip(ranks, _exchanged(values, how, root), strict=True):
        results[rank] = from_torch(dtype)(value)
    return results


def _exchanged(values: list[Any], how: Collective, root: int) -> list[Any]:
    count, operation = len(values), how.operation
    if operation in ("ALL_REDUCE", "REDUCE", "REDUCE_SCATTER"):
        total = _reduced(values, how.reduce)
        if operation == "REDUCE_SCATTER":
            return list(total.chunk(count, 0))
        return [
            total if operation == "ALL_REDUCE" or rank == root else value for rank, value in enumerate(values)
        ]
    if operation in ("ALL_GATHER", "GATHER"):
        gathered = torch.cat(values, 0)
        return [
            gathered if operation == "ALL_GATHER" or rank == root else torch.zeros_like(gathered)
            for rank in range(count)
        ]
    if operation == "BROADCAST":
        return [values[root]] * count
    if operation == "SCATTER":
        return list(values[root].chunk(count, 0))
    if operation == "ALL_TO_ALL":
        parts = [value.chunk(count, 0) for value in values]
        return [torch.cat([chunks[rank] for chunks in parts], 0) for rank in range(count)]
    raise LayerError(f"{operation} is not a collective of TensorRT")


def _reduced(values: list[Any], reduction: str) -> Any:
    """Return a reduction in float32, rounded once."""
    parts = torch.stack(values)
    wide = parts.to(torch.float32) if parts.is_floating_point() else parts
    return REDUCTIONS[reduction](wide).to(parts.dtype)


def evaluate_ranks(
    networks: Sequence[Any],
    inputs: Sequence[Mapping[str, Any]],
    taps: Taps = None,
    *,
    plugins: Plugins | None = None,
    collectives: Mapping[str, Collective] | None = None,
) -> list[dict[str, Array]]:
    """Return the outputs and tapped tensors of every rank, computed in step with each other.

    Args:
        networks: each rank's network definition, or what `prepare_network` made of it.
        inputs: each rank's inputs.
        taps: as for `evaluate`.
        plugins: as for `evaluate`.
        collectives: what collective layers do, by layer name; "*" stands for all that are not named.
    """
    from trtdx.engines.tensorrt.evaluate.network import prepare, quietly

    prepared = [prepare(network, plugins=plugins) for network in networks]
    tapped = [network.tapped(taps) for network in prepared]
    runs = [
        network.start(feeds, slots) for network, feeds, slots in zip(prepared, inputs, tapped, strict=True)
    ]
    with quietly():
        _together(prepared, runs, collectives or {})
    return [network.finish(run) for network, (run, _) in zip(prepared, runs, strict=True)]


def _together(
    ready: Sequence[Prepared],
    started: Sequence[tuple[Run, Generator[Layer | Exchange, Any, None]]],
    collectives: Mapping[str, Collective],
) -> None:
    """Run all ranks from collective to collective."""
    received: list[Any] = [None] * len(started)
    waiting: list[Exchange | None] = [None] * len(started)
    running = set(range(len(started)))
    while running:
        for rank in sorted(running):
            if waiting[rank] is None:
                waiting[rank] = _until_collective(ready[rank], *started[rank], received[rank], rank)
                received[rank] = None
            if waiting[rank] is None:
                running.discard(rank)
        if running:
            _meet(waiting, received, collectives)


def _until_collective(
    ready: Prepared, run: Run, events: Generator[Layer | Exchange, Any, None], answer: Any, rank: int
) -> Exchange | None:
    try:
        event = events.send(answer)
        while not isinstance(event, Exchange):
            event = next(events)
    except StopIteration:
        return None
    except EvaluationError as err:
        err.partial = ready.partial(run)
        err.message = f"rank {rank}: {err.message}"
        raise
    return event


def _meet(waiting: list[Exchange | None], answers: list[Any], collectives: Mapping[str, Collective]) -> None:
    """Do one collective whose ranks have all arrived, or say who is missing."""
    missing: dict[str, list[int]] = {}
    for exchange in waiting:
        if exchange is None:
            continue
        collective = told(exchange.layer, exchange.value, collectives)
        ranks = collective.ranks or tuple(range(len(waiting)))
        absent = [
            rank for rank in ranks if (at := waiting[rank]) is None or at.layer.name != exchange.layer.name
        ]
        if absent:
            missing[exchange.layer.name] = absent
            continue
        for rank, value in zip(range(len(waiting)), exchanged(waiting, collective), strict=True):
            if rank in ranks:
                answers[rank], waiting[rank] = value, None
        return
    layer, ranks_absent = next(iter(missing.items()))
    raise LayerError(
        f"the collective {layer!r} waits for rank {ranks_absent[0]}, which is not there or at another collective",
        layer=layer,
    )
