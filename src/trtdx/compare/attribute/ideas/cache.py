"""The KV cache: its precision, and whether what is read from it is what should be there."""

from __future__ import annotations

from itertools import chain, combinations, islice, permutations, product
from typing import TYPE_CHECKING

from trtdx.compare.attribute.experiment import LOW, Idea
from trtdx.compare.attribute.ideas.attention_core import Call, Core, attended, own_call
from trtdx.compare.attribute.ideas.quantization import fp8
from trtdx.compare.judge.quantised import fake_quantise
from trtdx.engines.torch.lazy import torch
from trtdx.engines.torch.values import tensor_from_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.compare.attribute.experiment import Bench, Tensor

    Both = Callable[[Tensor], Tensor]

PAGES = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_PAGES, MOST_TABLES = 24, 900


def ideas(bench: Bench) -> Iterator[Idea]:
    """Yield caches that keep too little, the old, or another's keys and values."""
    call = own_call(bench)
    if call is None:
        return
    yield from _precisions(bench)
    before = call.key.shape[-2] - call.query.shape[-2]
    if before > 0:
        yield from _stale(bench, before)
        yield from _of_other_layers(bench, call, before)
        yield from _places(bench, call, before)


def _both(bench: Bench, change: Both, which: str = "both") -> dict[str, Tensor]:
    def prepare(call: Call) -> Call:
        key = change(call.key) if which in ("both", "keys") else call.key
        return call._replace(key=key, value=change(call.value) if which in ("both", "values") else call.value)

    return attended(bench, Core(prepare))


def _precisions(bench: Bench) -> Iterator[Idea]:
    kinds: dict[str, Both] = {
        "fp8 e4m3 with a scale": fp8,
        "fp8 e4m3 without a scale": lambda tensor: fp8(tensor, scaled=False),
        "fp8 e5m2 without a scale": lambda tensor: fp8(tensor, scaled=False, name="float8_e5m2"),
        "int8": fake_quantise,
        "int8 with a scale for each token": lambda tensor: fake_quantise(tensor, axis=-1),
    }
    if bench.dtype == "float32":
        kinds["bfloat16"] = lambda tensor: tensor.to(torch.bfloat16).to(tensor.dtype)
        kinds["float16"] = lambda tensor: tensor.to(torch.float16).to(tensor.dtype)
    for name, change in kinds.items():
        yield Idea("DX952", _both(bench, change), {"found": name}, f"keys and values kept as {name}")
        if bench.dtype in LOW:
            with bench.as_candidate():
                yield Idea("DX952", _both(bench, change), {"found": name}, f"keys and values kept as {name}")
        for which in ("keys", "values"):
            got = _both(bench, change, which)
            how = f"{which} kept as {name}"
            yield Idea("DX952", got, {"found": f"{name}, {which} only"}, how, freedom=0.5, rank=1)


def _stale(bench: Bench, before: int) -> Iterator[Idea]:
    """Yield places of the cache that were not written, or read too early."""

    def filled(start: int, end: int, source: int | None) -> Both:
        def change(tensor: Tensor) -> Tensor:
            changed = tensor.clone()
            changed[..., start:end, :] = (
                0 if source is None else tensor[..., source : source + end - start, :]
            )
            return changed

        return change

    for description, change in (
        ("the last token in the cache is not written yet", filled(before - 1, before, None)),
        ("the new token's key and value are not written yet", filled(before, before + 1, None)),
        ("nothing that was in the cache is there", filled(0, before, None)),
    ):
        yield Idea("DX953", _both(bench, change), {"what": description}, description)
    if before > 1:
        again = filled(before - 1, before, before - 2)
        description = "the last token in the cache is still the one before it"
        yield Idea("DX953", _both(bench, again), {"what": description}, description)
    old = filled(before, before + 1, before - 1)
    description = "the new token is still the one before it"
    yield Idea("DX953", _both(bench, old), {"what": description}, description)

    def unseen(count: int) -> Core:
        def prepare(call: Call) -> Call:
            allowed = call.allowed.clone()
            allowed[..., before - count : before] = False
            return call._replace(allowed=allowed)

        return Core(prepare)

    description = "the last token in the cache is not seen"
    yield Idea("DX953", attended(bench, unseen(1)), {"what": description}, description)


def _of_other_layers(bench: Bench, call: Call, before: int) -> Iterator[Idea]:
    """Yield what another layer has in the cache."""
    for layer, key, value in _other_pasts(bench):
        if key.shape != (*call.key.shape[:2], before, call.key.shape[-1]):
            continue

        def prepare(attn: Call, key: Tensor = key, value: Tensor = value) -> Call:
            return attn._replace(
                key=torch.cat((key.to(attn.key.dtype), attn.key[..., before:, :]), -2),
                value=torch.cat((value.to(attn.value.dtype), attn.value[..., before:, :]), -2),
            )

        description = f"what is in the cache is of layer {layer}"
        yield Idea("DX954", attended(bench, Core(prepare)), {"what": description}, description)


def _other_pasts(bench: Bench) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the number, keys and values of the other layers, as the candidate has them."""
    inputs = {**bench.suspect.reference_inputs, **bench.suspect.candidate_inputs}
    own_layers = {name.split(".")[1] for name in bench.past if name.startswith("past.")}
    for name in inputs:
        parts = name.split(".")
        value = f"past.{parts[1]}.value" if len(parts) == 3 else ""
        if parts[0] == "past" and parts[-1] == "key" and value in inputs and parts[1] not in own_layers:
            yield parts[1], tensor_from_array(inputs[name]), tensor_from_array(inputs[value])


def _places(bench: Bench, call: Call, before: int) -> Iterator[Idea]:
    """Yield keys and values of another request, or pages in another order."""
    rows = call.key.shape[0]

    def moved(order: list[int]) -> Both:
        def change(tensor: Tensor) -> Tensor:
            return torch.cat((tensor[order][..., :before, :], tensor[..., before:, :]), -2)

        return change

    for shift in range(1, min(rows, 5)):
        order = [(row + shift) % rows for row in range(rows)]
        description = f"what is in the cache is of the request {shift} further"
        yield Idea("DX954", _both(bench, moved(order)), {"what": description}, description)
    for first in range(rows if rows > 2 else 0):
        for source in range(min(rows, 6)):
            order = list(range(rows))
            order[first] = source
            description = f"request {first} reads the cache of request {source}"
            if first != source:
                yield Idea(
                    "DX954", _both(bench, moved(order)), {"what": description}, description, freedom=0.5
                )
    if not bench.solved:
        yield from _pages(bench, call)


def _rows_hit(bench: Bench) -> list[int]:
    """Return the sequences in which the candidate is wrong; their block tables are what may be."""
    candidate, reference = bench.targets[bench.main], bench.truth[bench.main]
    gap = torch.nan_to_num(candidate - reference).reshape(reference.shape[0], -1).square().sum(1)
    return [row for row, row_error in enumerate(gap.tolist()) if row_error > 0.01 * float(gap.max())]


def _pages(bench: Bench, call: Call) -> Iterator[Idea]:
    """Yield block tables with a page that is another one, of the same sequence or another, or that holds nothing."""
    rows, total = call.key.shape[0], call.key.shape[-2]
    hit = _rows_hit(bench)
    sizes = [(size, min(-(-total // size), MOST_PAGES)) for size in PAGES if size < total]
    tables = chain(
        *(_own_tables(count, size, rows, hit) for size, count in reversed(sizes)),
        *(_far_tables(count, size, rows, hit) for size, count in reversed(sizes)),
    )
    for description, change in islice(tables, MOST_TABLES):
        if bench.solved:
            return
        yield Idea("DX954", _both(bench, change), {"what": description}, description, freedom=1)


def _own_tables(count: int, size: int, rows: int, hit: list[int]) -> Iterator[tuple[str, Both]]:
    """Yield a page from elsewhere in the same place, another page of the same sequence, two exchanged, or none."""
    pages, page_size = range(count), f"of {size} tokens each"
    for shift, at in product(range(1, min(rows, 5)), pages):
        yield (
            f"page {at} is of the request {shift} further, {page_size}",
            _read(at, at, size, hit, shift=shift),
        )
    for source, at in permutations(pages, 2):
        yield f"page {source} read for page {at}, {page_size}", _read(source, at, size, hit)
    for source, at in combinations(pages, 2):
        yield f"pages {source} and {at} exchanged, {page_size}", _read(source, at, size, hit, back=True)
    for at in pages:
        yield f"page {at} holds nothing, {page_size}", _emptied(at, size, hit)


def _far_tables(count: int, size: int, rows: int, hit: list[int]) -> Iterator[tuple[str, Both]]:
    """Yield another page of another sequence."""
    for shift, (source, at) in product(range(1, min(rows, 5)), permutations(range(count), 2)):
        description = (
            f"page {source} of the request {shift} further read for page {at}, of {size} tokens each"
        )
        yield description, _read(source, at, size, hit, shift=shift)


def _read(source: int, at: int, size: int, hit: list[int], *, shift: int = 0, back: bool = False) -> Both:
    """Return what reads one page for another, in the sequences that are hit."""

    def change(tensor: Tensor) -> Tensor:
        changed, total = tensor.clone(), tensor.shape[-2]
        length = min(size, total - at * size, total - source * size)
        target_rows, source_rows = (slice(page * size, page * size + length) for page in (at, source))
        for row in hit:
            other = tensor[(row + shift) % len(tensor)]
            changed[row][..., target_rows, :] = other[..., source_rows, :]
            if back:
                changed[row][..., source_rows, :] = other[..., target_rows, :]
        return changed

    return change


def _emptied(at: int, size: int, hit: list[int]) -> Both:
    def change(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed[hit, ..., at * size : (at + 1) * size, :] = 0
        return changed

    return change
