"""Collectives over ranks that are simulated in one process, in step with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.engines.errors import EvaluationError, LayerError
from trtdx.engines.tensorrt.evaluate.network_run import CollectiveExchange, NetworkRun
from trtdx.engines.tensorrt.network.values import Array, numpy_converter, torch_converter
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from trtdx.engines.tensorrt.evaluate.prepared_network import Plugins, PreparedNetwork, Taps
    from trtdx.engines.tensorrt.network.graph import TrtLayer


class Collective(msgspec.Struct, frozen=True):
    """What a collective layer does, which TensorRT's bindings do not tell of a layer that exists."""

    operation: str  # TensorRT's name: "ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", ...
    reduce: str = "SUM"
    root: int = -1
    ranks: tuple[int, ...] = ()  # who takes part, in the group's order; nobody named: everybody


COLLECTIVE_REDUCTIONS: dict[str, Any] = {
    "SUM": lambda parts: parts.sum(0),
    "PROD": lambda parts: parts.prod(0),
    "MAX": lambda parts: parts.amax(0),
    "MIN": lambda parts: parts.amin(0),
    "AVG": lambda parts: parts.sum(0) / parts.shape[0],
}


def exchange_on_one_rank(exchange: CollectiveExchange, collectives: Mapping[str, Collective]) -> Any:
    """Return what a rank that is the only one gets from a collective."""
    if exchange.layer.trt.num_ranks > 1:
        raise LayerError(
            f"layer {exchange.layer.name!r} exchanges with {exchange.layer.trt.num_ranks} ranks, and only one is computed",
            layer=exchange.layer.name,
            fix="compute all of them with trtdx.engines.tensorrt.evaluate_ranks",
        )
    return exchange_values([exchange], resolve_collective(exchange.layer, exchange.value, collectives))[0]


def resolve_collective(layer: TrtLayer, value: Any, collectives: Mapping[str, Collective]) -> Collective:
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


def exchange_values(exchanges: Sequence[CollectiveExchange | None], collective: Collective) -> list[Any]:
    """Return what each rank gets; None for one that does not take part."""
    ranks = collective.ranks or tuple(range(len(exchanges)))
    there = [exchange for rank in ranks if (exchange := exchanges[rank]) is not None]
    dtype = there[0].layer.outputs[0].dtype
    values = [torch_converter(dtype)(exchange.value) for exchange in there]
    root = ranks.index(collective.root) if collective.root in ranks else 0
    results: list[Any] = [None] * len(exchanges)
    for rank, value in zip(ranks, _apply_collective(values, collective, root), strict=True):
        results[rank] = numpy_converter(dtype)(value)
    return results


def _apply_collective(values: list[Any], collective: Collective, root: int) -> list[Any]:
    count, operation = len(values), collective.operation
    if operation in ("ALL_REDUCE", "REDUCE", "REDUCE_SCATTER"):
        total = _reduce_values(values, collective.reduce)
        if operation == "REDUCE_SCATTER":
            return list(total.chunk(count, 0))
        return [total if operation == "ALL_REDUCE" or rank == root else value for rank, value in enumerate(values)]
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


def _reduce_values(values: list[Any], reduction: str) -> Any:
    """Return a reduction in float32, rounded once."""
    parts = torch.stack(values)
    wide = parts.to(torch.float32) if parts.is_floating_point() else parts
    return COLLECTIVE_REDUCTIONS[reduction](wide).to(parts.dtype)


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
    from trtdx.engines.tensorrt.evaluate.prepared_network import inference_without_warnings, prepare_network

    prepared = [prepare_network(network, plugins=plugins) for network in networks]
    tapped = [network.slots_of_taps(taps) for network in prepared]
    runs = [network.start_run(feeds, slots) for network, feeds, slots in zip(prepared, inputs, tapped, strict=True)]
    with inference_without_warnings():
        _run_ranks(prepared, runs, collectives or {})
    return [network.finish_run(run) for network, (run, _) in zip(prepared, runs, strict=True)]


def _run_ranks(
    networks: Sequence[PreparedNetwork],
    runs: Sequence[tuple[NetworkRun, Generator[TrtLayer | CollectiveExchange, Any, None]]],
    collectives: Mapping[str, Collective],
) -> None:
    """Run all ranks from collective to collective."""
    received: list[Any] = [None] * len(runs)
    waiting: list[CollectiveExchange | None] = [None] * len(runs)
    running = set(range(len(runs)))
    while running:
        for rank in sorted(running):
            if waiting[rank] is None:
                waiting[rank] = _run_to_collective(networks[rank], *runs[rank], received[rank], rank)
                received[rank] = None
            if waiting[rank] is None:
                running.discard(rank)
        if running:
            _complete_collective(waiting, received, collectives)


def _run_to_collective(
    network: PreparedNetwork,
    run: NetworkRun,
    events: Generator[TrtLayer | CollectiveExchange, Any, None],
    received: Any,
    rank: int,
) -> CollectiveExchange | None:
    try:
        event = events.send(received)
        while not isinstance(event, CollectiveExchange):
            event = next(events)
    except StopIteration:
        return None
    except EvaluationError as err:
        err.partial = network.partial_values(run)
        err.message = f"rank {rank}: {err.message}"
        raise
    return event


def _complete_collective(
    waiting: list[CollectiveExchange | None], received: list[Any], collectives: Mapping[str, Collective]
) -> None:
    """Do one collective whose ranks have all arrived, or say who is missing."""
    missing: dict[str, list[int]] = {}
    for exchange in waiting:
        if exchange is None:
            continue
        collective = resolve_collective(exchange.layer, exchange.value, collectives)
        ranks = collective.ranks or tuple(range(len(waiting)))
        absent = [rank for rank in ranks if (at := waiting[rank]) is None or at.layer.name != exchange.layer.name]
        if absent:
            missing[exchange.layer.name] = absent
            continue
        for rank, value in zip(range(len(waiting)), exchange_values(waiting, collective), strict=True):
            if rank in ranks:
                received[rank], waiting[rank] = value, None
        return
    layer, ranks_absent = next(iter(missing.items()))
    raise LayerError(
        f"the collective {layer!r} waits for rank {ranks_absent[0]}, which is not there or at another collective",
        layer=layer,
    )
