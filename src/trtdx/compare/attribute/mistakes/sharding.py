"""A matrix product whose parts were cut, ordered, lost or summed by ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.compare.attribute.mistakes.mlp import FUSED_NAMES, INTERLEAVED, NOT_INTERLEAVED
from trtdx.compare.attribute.mistakes.product import (
    MatrixProduct,
    counted_targets,
    head_widths,
    is_vocabulary_head,
)
from trtdx.compare.attribute.module_bench import Mistake
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.module_bench import ModuleBench, Outputs, Tensor

RANK_COUNTS = (2, 4, 8)
MOST_MATCHED = 16_384  # outputs that are matched each with each
MOST_FITTED = 400_000  # numbers that a fit of shards looks at


def sharding_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    """Yield what could be wrong with the parts of a product."""
    yield from _output_order_mistakes(bench, product)
    yield from _output_shard_mistakes(bench, product)
    yield from _input_shard_mistakes(bench, product)
    yield from _repeated_sum_mistakes(bench, product)


def _output_order_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    """Yield the outputs in the order in which the candidate seems to have them, with the biases or without."""
    candidate, reference = counted_targets(bench)
    width = reference.shape[1]
    if width > MOST_MATCHED or reference.shape[0] < 3:
        return
    for bias in (None,) if product.bias is None else (None, product.bias):
        fixed = 0 if bias is None else bias
        order = _nearest_columns(candidate - fixed, reference - fixed)
        if bool((order == torch.arange(width)).all()):
            continue
        got = bench.with_main((bench.truth[bench.main_target] - fixed)[..., order] + fixed)
        if bench.explained_share(got) > 0.5:
            yield from _order_mistakes(bench, order, got)


def _nearest_columns(candidate: Tensor, reference: Tensor) -> Tensor:
    """Return for each column of one the column of the other that is nearest."""
    lengths = (reference * reference).sum(0)[:, None]
    return torch.cat([(lengths - 2 * reference.T @ block).argmin(0) for block in candidate.split(1024, dim=1)])


def _order_mistakes(bench: ModuleBench, order: Tensor, got: Outputs) -> Iterator[Mistake]:
    """Yield what an order of outputs means."""
    width = order.shape[0]
    shifts = (order - torch.arange(width)) % width
    shift = int(shifts.mode().values)
    shift -= width if shift > width // 2 else 0
    if shift and float((shifts == shift % width).double().mean()) > 0.9 and abs(shift) < width // 4:
        code = "DX993" if is_vocabulary_head(bench) else "DX983"
        values = {"offset": f"{shift:+d}", "order": f"shifted by {shift:+d}"}
        yield Mistake(code, got, values, f"outputs shifted by {shift:+d}")
        return
    blocks = _moved_shard_count(order)
    yield from _head_order_mistakes(bench, order, got, blocks)
    description = _describe_halves(order) if bench.path.rpartition(".")[2] in FUSED_NAMES else ""
    if description:
        yield Mistake("DX981", got, {"how": description}, f"the halves {description}", freedom=0.1, rank=-1)
    if blocks:
        moved = " ".join(str(int(shard)) for shard in order[:: width // blocks] // (width // blocks))
        how = f"{blocks} shards in the order {moved}"
        rank = int(blocks > 2 and width // blocks in head_widths(bench))  # halves are rather of two ranks
        yield Mistake("DX983", got, {"ranks": str(blocks), "order": moved}, how, freedom=0.1, rank=rank)
    else:
        yield Mistake("DX983", got, {"order": "another order"}, "outputs in another order", freedom=3, rank=2)


def _describe_halves(order: Tensor) -> str:
    """Return in words what was done to the halves of a weight that holds gate and up; "" if it was something else."""
    width = order.shape[0]
    if width % 2:
        return ""
    woven = torch.arange(width).reshape(2, -1).T.reshape(-1)
    known_orders = {
        "exchanged": torch.arange(width).roll(width // 2),
        INTERLEAVED: woven,
        NOT_INTERLEAVED: torch.argsort(woven),
    }
    return next(
        (description for description, known_order in known_orders.items() if torch.equal(order, known_order)),
        "",
    )


def _moved_shard_count(order: Tensor) -> int:
    """Return the smallest number of ranks whose whole shards were moved; 0 if no whole shards were."""
    width = order.shape[0]
    for ranks in RANK_COUNTS:
        if width % ranks == 0:
            rows = order.reshape(ranks, -1)
            if bool((rows - rows[:, :1] == torch.arange(width // ranks)).all()):
                return ranks
    return 0


def _head_order_mistakes(bench: ModuleBench, order: Tensor, got: Outputs, ranks: int) -> Iterator[Mistake]:
    """Yield heads that were moved as a whole, or whose numbers were all moved in the same way."""
    width = order.shape[0]
    for head in sorted(head_widths(bench), reverse=True):
        if width % head or head < 2:
            continue
        blocks = order.reshape(-1, head)
        inner = blocks - blocks.min(1, keepdim=True).values
        pairs = torch.cat((torch.arange(0, head, 2), torch.arange(1, head, 2)))
        for expected, layout in ((pairs, "interleaved"), (torch.argsort(pairs), "in halves")):
            if head > 2 and bool((inner == expected).all()):
                values = {
                    "found": layout,
                    "expected": "in halves" if layout == "interleaved" else "interleaved",
                }
                how = "the rows of each head ordered for the other layout of rotary embeddings"
                yield Mistake("DX961", got, values, how, freedom=0.5)
        if bool((inner == torch.arange(head)).all()):
            moved = " ".join(str(int(head_index)) for head_index in blocks[:16, 0] // head)
            values = {"which": "heads of the weight", "order": moved}
            simpler = 0 < ranks < width // head  # whole shards of several heads
            how = f"heads of {head} numbers in the order {moved}"
            yield Mistake("DX973", got, values, how, freedom=0.1, rank=2 * int(simpler or ranks == 2))


def _output_shard_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    """Yield blocks of outputs that are missing or stand elsewhere: shards that are concatenated."""
    candidate, reference = counted_targets(bench)
    for ranks in RANK_COUNTS:
        if reference.shape[1] % ranks:
            continue
        ones, others = candidate.chunk(ranks, 1), reference.chunk(ranks, 1)
        size = [float((shard**2).sum()) for shard in others]
        gap = torch.tensor([[float(((one - other) ** 2).sum()) for other in others] for one in ones])
        zero = [float((one**2).sum()) < 0.02 * size[at] for at, one in enumerate(ones)]
        chosen = gap.argmin(1).tolist()
        truth_shards = bench.truth[bench.main_target].chunk(ranks, -1)
        missing = [str(at) for at, is_zero in enumerate(zero) if is_zero]
        shards = [
            torch.zeros_like(truth_shards[at]) if zero[at] else truth_shards[source] for at, source in enumerate(chosen)
        ]
        got = bench.with_main(torch.cat(shards, -1))
        if missing:
            values = {"missing": " ".join(missing), "ranks": str(ranks)}
            how = f"outputs of shard {' '.join(missing)} of {ranks} are zero"
            yield Mistake("DX984", got, values, how, freedom=0.2 * ranks)
        elif chosen != list(range(ranks)):
            moved = " ".join(map(str, chosen))
            yield Mistake(
                "DX983",
                got,
                {"ranks": str(ranks), "order": moved},
                f"{ranks} shards in the order {moved}",
                freedom=0.1,
                rank=int(ranks > 2 and reference.shape[1] // ranks in head_widths(bench)),
            )


def _input_shard_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    """Yield blocks of inputs that meet the wrong weights or are left out: shards that are summed."""
    candidate, _ = counted_targets(bench)
    counted = bench.row_index(bench.main_target)
    rows = product.x.reshape(*product.shape[:-1], -1)[counted].reshape(candidate.shape[0], -1)
    step = max(1, candidate.numel() // MOST_FITTED)
    candidate, rows = candidate[::step], rows[::step]
    rest = candidate if product.bias is None else candidate - product.bias
    for ranks in RANK_COUNTS:
        if product.x.shape[1] % ranks or candidate.numel() < 4 * ranks * ranks:
            continue
        weights = product.weight.chunk(ranks, 1)
        basis = [(x @ weight.T).reshape(-1) for x in rows.chunk(ranks, 1) for weight in weights]
        fit = torch.linalg.lstsq(torch.stack(basis, 1).double(), rest.reshape(-1, 1).double()).solution
        coefficients = fit.reshape(ranks, ranks).round()
        if (
            bool((coefficients == torch.eye(ranks)).all())
            or float(coefficients.abs().max()) > 16
            or not bool(coefficients.any())
        ):
            continue
        xs = product.x.chunk(ranks, 1)
        summed = sum(float(coefficients[a, b]) * (xs[a] @ weights[b].T) for a, b in coefficients.nonzero().tolist())
        yield from _shard_sum_mistakes(bench, coefficients, ranks, bench.with_main(product.add_bias(summed)))


def is_partial_sum(bench: ModuleBench, ranks: int) -> bool:
    """Whether a single rank's share points to a missing all-reduce rather than to lost shards.

    Of two ranks both look alike; but where a sum is not taken, each rank has its own result.
    """
    side = bench.suspect.candidate
    if ranks > 2 or side is None:
        return ranks > 2
    capture = side.capture
    if len(capture.ranks) < 2:
        tensor_parallel = capture.header.details.get("tensor_parallel")
        # One rank of several: its own part is all it has.
        return isinstance(tensor_parallel, int) and tensor_parallel > 1
    hashes = {
        record.statistics.hash
        for rank in capture.ranks
        for record in capture.records(step=bench.suspect.step, rank=rank)
        if record.name == bench.main_target
    }
    return len(hashes) > 1


def _shard_sum_mistakes(bench: ModuleBench, coefficients: Tensor, ranks: int, got: Outputs) -> Iterator[Mistake]:
    """Yield what a matrix of shards against shards means."""
    diagonal = coefficients.diagonal()
    apart = bool((coefficients == torch.diag(diagonal)).all())
    if apart and bool((diagonal == diagonal[0]).all()):
        return  # a factor: told elsewhere
    if apart and set(diagonal.tolist()) == {0.0, 1.0}:
        present = int(diagonal.sum())
        shards = {
            state: " ".join(str(rank) for rank, share in enumerate(diagonal.tolist()) if bool(share) == is_there)
            for state, is_there in (("present", True), ("missing", False))
        }
        values = {"ranks": str(ranks), **shards}
        how = f"only the sums of shard {values['present']} of {ranks}"
        sums = is_partial_sum(bench, ranks) if present == 1 else False
        yield Mistake("DX985", got, values, how, freedom=0.1 * ranks + 0.05 * (present - 1), rank=int(not sums))
        yield Mistake("DX984", got, values, how, freedom=0.1 * ranks, rank=int(sums))
    elif bool((coefficients.sum(0) == 1).all()) and bool((coefficients.sum(1) == 1).all()):
        order = " ".join(str(int(source)) for source in coefficients.argmax(0))
        values = {"ranks": str(ranks), "order": order}
        how = f"{ranks} shards of the inputs meet the weights in the order {order}"
        yield Mistake("DX983", got, values, how, freedom=0.1 * ranks)
        values = {"which": "heads that enter", "order": order}
        how = "blocks of the inputs in another order"
        yield Mistake("DX973", got, values, how, freedom=0.3 * ranks, rank=2)


def _repeated_sum_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    """Yield the sum taken several times, with or without the bias."""
    plain = product.compute(product.weight)
    bias = 0 if product.bias is None else product.bias
    for ranks in RANK_COUNTS:
        values = {"ranks": str(ranks)}
        yield Mistake("DX986", bench.with_main(ranks * plain + bias), values, f"the sum taken {ranks} times")
        if product.bias is not None:
            how = f"the sum and the bias taken {ranks} times"
            yield Mistake("DX986", bench.with_main(ranks * (plain + bias)), values, how)
