"""The KV cache: its precision, and whether what is read from it is what should be there."""

from __future__ import annotations

from itertools import chain, combinations, islice, permutations, product
from typing import TYPE_CHECKING

from trtdx.compare.attribute.mistakes.attention_core import (
    AttentionCall,
    AttentionCore,
    attention_call_of,
    run_with_core,
)
from trtdx.compare.attribute.mistakes.quantization import round_to_fp8
from trtdx.compare.attribute.module_bench import LOW_PRECISION_DTYPES, Mistake
from trtdx.compare.judge.quantised_modules import fake_quantise
from trtdx.engines.torch.lazy_import import torch
from trtdx.engines.torch.values import tensor_from_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.compare.attribute.module_bench import ModuleBench, Tensor

    TensorChange = Callable[[Tensor], Tensor]

PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_PAGES, MOST_TABLES = 24, 900


def cache_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield caches with too little precision, stale entries, or another sequence's keys and values."""
    call = attention_call_of(bench)
    if call is None:
        return
    yield from _cache_dtype_mistakes(bench)
    before = call.key.shape[-2] - call.query.shape[-2]
    if before > 0:
        yield from _stale_cache_mistakes(bench, before)
        yield from _other_layer_mistakes(bench, call, before)
        yield from _other_request_mistakes(bench, call, before)


def _run_with_cache(bench: ModuleBench, change: TensorChange, which: str = "both") -> dict[str, Tensor]:
    def prepare(call: AttentionCall) -> AttentionCall:
        key = change(call.key) if which in ("both", "keys") else call.key
        return call._replace(key=key, value=change(call.value) if which in ("both", "values") else call.value)

    return run_with_core(bench, AttentionCore(prepare))


def _cache_dtype_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    kinds: dict[str, TensorChange] = {
        "fp8 e4m3 with a scale": round_to_fp8,
        "fp8 e4m3 without a scale": lambda tensor: round_to_fp8(tensor, scaled=False),
        "fp8 e5m2 without a scale": lambda tensor: round_to_fp8(tensor, scaled=False, name="float8_e5m2"),
        "int8": fake_quantise,
        "int8 with a scale for each token": lambda tensor: fake_quantise(tensor, axis=-1),
    }
    if bench.dtype == "float32":
        kinds["bfloat16"] = lambda tensor: tensor.to(torch.bfloat16).to(tensor.dtype)
        kinds["float16"] = lambda tensor: tensor.to(torch.float16).to(tensor.dtype)
    for name, change in kinds.items():
        yield Mistake("DX952", _run_with_cache(bench, change), {"found": name}, f"keys and values kept as {name}")
        if bench.dtype in LOW_PRECISION_DTYPES:
            with bench.candidate_precision():
                yield Mistake(
                    "DX952",
                    _run_with_cache(bench, change),
                    {"found": name},
                    f"keys and values kept as {name}",
                )
        for which in ("keys", "values"):
            got = _run_with_cache(bench, change, which)
            how = f"{which} kept as {name}"
            yield Mistake("DX952", got, {"found": f"{name}, {which} only"}, how, freedom=0.5, rank=1)


def _stale_cache_mistakes(bench: ModuleBench, before: int) -> Iterator[Mistake]:
    """Yield cache slots that were not written, or were read too early."""

    def filled(start: int, end: int, source: int | None) -> TensorChange:
        def change(tensor: Tensor) -> Tensor:
            changed = tensor.clone()
            changed[..., start:end, :] = 0 if source is None else tensor[..., source : source + end - start, :]
            return changed

        return change

    for description, change in (
        ("the last token in the cache is not written yet", filled(before - 1, before, None)),
        ("the new token's key and value are not written yet", filled(before, before + 1, None)),
        ("nothing that was in the cache is there", filled(0, before, None)),
    ):
        yield Mistake("DX953", _run_with_cache(bench, change), {"what": description}, description)
    if before > 1:
        again = filled(before - 1, before, before - 2)
        description = "the last token in the cache is still the one before it"
        yield Mistake("DX953", _run_with_cache(bench, again), {"what": description}, description)
    old = filled(before, before + 1, before - 1)
    description = "the new token is still the one before it"
    yield Mistake("DX953", _run_with_cache(bench, old), {"what": description}, description)

    def unseen(count: int) -> AttentionCore:
        def prepare(call: AttentionCall) -> AttentionCall:
            allowed = call.allowed.clone()
            allowed[..., before - count : before] = False
            return call._replace(allowed=allowed)

        return AttentionCore(prepare)

    description = "the last token in the cache is not seen"
    yield Mistake("DX953", run_with_core(bench, unseen(1)), {"what": description}, description)


def _other_layer_mistakes(bench: ModuleBench, call: AttentionCall, before: int) -> Iterator[Mistake]:
    """Yield what another layer has in the cache."""
    for layer, key, value in _other_layer_caches(bench):
        if key.shape != (*call.key.shape[:2], before, call.key.shape[-1]):
            continue

        def prepare(attn: AttentionCall, key: Tensor = key, value: Tensor = value) -> AttentionCall:
            return attn._replace(
                key=torch.cat((key.to(attn.key.dtype), attn.key[..., before:, :]), -2),
                value=torch.cat((value.to(attn.value.dtype), attn.value[..., before:, :]), -2),
            )

        description = f"what is in the cache is of layer {layer}"
        yield Mistake("DX954", run_with_core(bench, AttentionCore(prepare)), {"what": description}, description)


def _other_layer_caches(bench: ModuleBench) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the number, keys and values of the other layers, as the candidate has them."""
    inputs = {**bench.suspect.reference_inputs, **bench.suspect.candidate_inputs}
    own_layers = {name.split(".")[1] for name in bench.past if name.startswith("past.")}
    for name in inputs:
        parts = name.split(".")
        value = f"past.{parts[1]}.value" if len(parts) == 3 else ""
        if parts[0] == "past" and parts[-1] == "key" and value in inputs and parts[1] not in own_layers:
            yield parts[1], tensor_from_array(inputs[name]), tensor_from_array(inputs[value])


def _other_request_mistakes(bench: ModuleBench, call: AttentionCall, before: int) -> Iterator[Mistake]:
    """Yield keys and values of another request, or pages in another order."""
    rows = call.key.shape[0]

    def moved(order: list[int]) -> TensorChange:
        def change(tensor: Tensor) -> Tensor:
            return torch.cat((tensor[order][..., :before, :], tensor[..., before:, :]), -2)

        return change

    for shift in range(1, min(rows, 5)):
        order = [(row + shift) % rows for row in range(rows)]
        description = f"what is in the cache is of the request {shift} further"
        yield Mistake("DX954", _run_with_cache(bench, moved(order)), {"what": description}, description)
    for first in range(rows if rows > 2 else 0):
        for source in range(min(rows, 6)):
            order = list(range(rows))
            order[first] = source
            description = f"request {first} reads the cache of request {source}"
            if first != source:
                yield Mistake(
                    "DX954",
                    _run_with_cache(bench, moved(order)),
                    {"what": description},
                    description,
                    freedom=0.5,
                )
    if not bench.solved:
        yield from _page_table_mistakes(bench, call)


def _wrong_sequences(bench: ModuleBench) -> list[int]:
    """Return the sequences in which the candidate is wrong; only their block tables can be at fault."""
    candidate, reference = bench.targets[bench.main_target], bench.truth[bench.main_target]
    gap = torch.nan_to_num(candidate - reference).reshape(reference.shape[0], -1).square().sum(1)
    return [row for row, row_error in enumerate(gap.tolist()) if row_error > 0.01 * float(gap.max())]


def _page_table_mistakes(bench: ModuleBench, call: AttentionCall) -> Iterator[Mistake]:
    """Yield block tables in which one page is wrong: of the same sequence, of another, or empty."""
    rows, total = call.key.shape[0], call.key.shape[-2]
    hit = _wrong_sequences(bench)
    sizes = [(size, min(-(-total // size), MOST_PAGES)) for size in PAGE_SIZES if size < total]
    tables = chain(
        *(_own_page_tables(count, size, rows, hit) for size, count in reversed(sizes)),
        *(_other_page_tables(count, size, rows, hit) for size, count in reversed(sizes)),
    )
    for description, change in islice(tables, MOST_TABLES):
        if bench.solved:
            return
        yield Mistake("DX954", _run_with_cache(bench, change), {"what": description}, description, freedom=1)


def _own_page_tables(count: int, size: int, rows: int, sequences: list[int]) -> Iterator[tuple[str, TensorChange]]:
    """Yield another page of the same sequence, two pages swapped, the same page of another sequence, or an empty one."""
    pages, page_size = range(count), f"of {size} tokens each"
    for shift, at in product(range(1, min(rows, 5)), pages):
        yield (
            f"page {at} is of the request {shift} further, {page_size}",
            _read_page(at, at, size, sequences, shift=shift),
        )
    for source, at in permutations(pages, 2):
        yield f"page {source} read for page {at}, {page_size}", _read_page(source, at, size, sequences)
    for source, at in combinations(pages, 2):
        yield (
            f"pages {source} and {at} exchanged, {page_size}",
            _read_page(source, at, size, sequences, back=True),
        )
    for at in pages:
        yield f"page {at} holds nothing, {page_size}", _empty_page(at, size, sequences)


def _other_page_tables(count: int, size: int, rows: int, sequences: list[int]) -> Iterator[tuple[str, TensorChange]]:
    """Yield another page of another sequence."""
    for shift, (source, at) in product(range(1, min(rows, 5)), permutations(range(count), 2)):
        description = f"page {source} of the request {shift} further read for page {at}, of {size} tokens each"
        yield description, _read_page(source, at, size, sequences, shift=shift)


def _read_page(
    source: int, target: int, size: int, sequences: list[int], *, shift: int = 0, back: bool = False
) -> TensorChange:
    """Return a change that reads one page in place of another, in the affected sequences."""

    def change(tensor: Tensor) -> Tensor:
        changed, total = tensor.clone(), tensor.shape[-2]
        length = min(size, total - target * size, total - source * size)
        target_rows, source_rows = (slice(page * size, page * size + length) for page in (target, source))
        for row in sequences:
            other = tensor[(row + shift) % len(tensor)]
            changed[row][..., target_rows, :] = other[..., source_rows, :]
            if back:
                changed[row][..., source_rows, :] = other[..., target_rows, :]
        return changed

    return change


def _empty_page(page: int, size: int, sequences: list[int]) -> TensorChange:
    def change(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed[sequences, ..., page * size : (page + 1) * size, :] = 0
        return changed

    return change
