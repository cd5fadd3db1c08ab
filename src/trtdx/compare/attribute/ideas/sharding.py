"""A matrix product whose parts were cut, ordered, lost or summed by ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.compare.attribute.experiment import Idea
from trtdx.compare.attribute.ideas.mlp import APART, FUSED, INTERLEAVED
from trtdx.compare.attribute.ideas.product import Product, head_widths, is_vocabulary, target_of
from trtdx.engines.torch.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.experiment import Bench, Outputs, Tensor

RANKS = (2, 4, 8)
MOST_MATCHED = 16_384  # outputs that are matched each with each
MOST_FITTED = 400_000  # numbers that a fit of shards looks at


def ideas(bench: Bench, product: Product) -> Iterator[Idea]:
    """Yield what could be wrong with the parts of a product."""
    yield from _matched(bench, product)
    yield from _rows(bench, product)
    yield from _columns(bench, product)
    yield from _sums(bench, product)


def _matched(bench: Bench, product: Product) -> Iterator[Idea]:
    """Yield the outputs in the order in which the candidate seems to have them, with the biases or without."""
    candidate, reference = target_of(bench)
    width = reference.shape[1]
    if width > MOST_MATCHED or reference.shape[0] < 3:
        return
    for bias in (None,) if product.bias is None else (None, product.bias):
        fixed = 0 if bias is None else bias
        order = _nearest(candidate - fixed, reference - fixed)
        if bool((order == torch.arange(width)).all()):
            continue
        got = bench.with_main((bench.truth[bench.main] - fixed)[..., order] + fixed)
        if bench.share(got) > 0.5:
            yield from _named_order(bench, order, got)


def _nearest(theirs: Tensor, own: Tensor) -> Tensor:
    """Return for each column of one the column of the other that is nearest."""
    lengths = (own * own).sum(0)[:, None]
    return torch.cat([(lengths - 2 * own.T @ block).argmin(0) for block in theirs.split(1024, dim=1)])


def _named_order(bench: Bench, order: Tensor, got: Outputs) -> Iterator[Idea]:
    """Yield what an order of outputs means."""
    width = order.shape[0]
    shifts = (order - torch.arange(width)) % width
    shift = int(shifts.mode().values)
    shift -= width if shift > width // 2 else 0
    if shift and float((shifts == shift % width).double().mean()) > 0.9 and abs(shift) < width // 4:
        code = "DX993" if is_vocabulary(bench) else "DX983"
        values = {"offset": f"{shift:+d}", "order": f"shifted by {shift:+d}"}
        yield Idea(code, got, values, f"outputs shifted by {shift:+d}")
        return
    blocks = _blocks(order)
    yield from _heads_in_order(bench, order, got, blocks)
    description = _halves(order) if bench.path.rpartition(".")[2] in FUSED else ""
    if description:
        yield Idea("DX981", got, {"how": description}, f"the halves {description}", freedom=0.1, rank=-1)
    if blocks:
        moved = " ".join(str(int(shard)) for shard in order[:: width // blocks] // (width // blocks))
        how = f"{blocks} shards in the order {moved}"
        rank = int(blocks > 2 and width // blocks in head_widths(bench))  # halves are rather of two ranks
        yield Idea("DX983", got, {"ranks": str(blocks), "order": moved}, how, freedom=0.1, rank=rank)
    else:
        yield Idea("DX983", got, {"order": "another order"}, "outputs in another order", freedom=3, rank=2)


def _halves(order: Tensor) -> str:
    """Return in words what was done to the halves of a weight that holds gate and up; "" where it was something else."""
    width = order.shape[0]
    if width % 2:
        return ""
    woven = torch.arange(width).reshape(2, -1).T.reshape(-1)
    known_orders = {
        "exchanged": torch.arange(width).roll(width // 2),
        INTERLEAVED: woven,
        APART: torch.argsort(woven),
    }
    return next(
        (description for description, known_order in known_orders.items() if torch.equal(order, known_order)),
        "",
    )


def _blocks(order: Tensor) -> int:
    """Return of how few ranks whole shards were moved; 0 if it were not whole shards."""
    width = order.shape[0]
    for ranks in RANKS:
        if width % ranks == 0:
            rows = order.reshape(ranks, -1)
            if bool((rows - rows[:, :1] == torch.arange(width // ranks)).all()):
                return ranks
    return 0


def _heads_in_order(bench: Bench, order: Tensor, got: Outputs, ranks: int) -> Iterator[Idea]:
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
                yield Idea("DX961", got, values, how, freedom=0.5)
        if bool((inner == torch.arange(head)).all()):
            moved = " ".join(str(int(head_index)) for head_index in blocks[:16, 0] // head)
            values = {"which": "heads of the weight", "order": moved}
            simpler = 0 < ranks < width // head  # whole shards of several heads
            how = f"heads of {head} numbers in the order {moved}"
            yield Idea("DX973", got, values, how, freedom=0.1, rank=2 * int(simpler or ranks == 2))


def _rows(bench: Bench, product: Product) -> Iterator[Idea]:
    """Yield blocks of outputs that are missing or stand elsewhere: shards that are concatenated."""
    candidate, reference = target_of(bench)
    for ranks in RANKS:
        if reference.shape[1] % ranks:
            continue
        ones, others = candidate.chunk(ranks, 1), reference.chunk(ranks, 1)
        size = [float((shard**2).sum()) for shard in others]
        gap = torch.tensor([[float(((one - other) ** 2).sum()) for other in others] for one in ones])
        zero = [float((one**2).sum()) < 0.02 * size[at] for at, one in enumerate(ones)]
        chosen = gap.argmin(1).tolist()
        truth_shards = bench.truth[bench.main].chunk(ranks, -1)
        missing = [str(at) for at, is_zero in enumerate(zero) if is_zero]
        shards = [
            torch.zeros_like(truth_shards[at]) if zero[at] else truth_shards[source]
            for at, source in enumerate(chosen)
        ]
        got = bench.with_main(torch.cat(shards, -1))
        if missing:
            values = {"missing": " ".join(missing), "ranks": str(ranks)}
            how = f"outputs of shard {' '.join(missing)} of {ranks} are zero"
            yield Idea("DX984", got, values, how, freedom=0.2 * ranks)
        elif chosen != list(range(ranks)):
            moved = " ".join(map(str, chosen))
            yield Idea(
                "DX983",
                got,
                {"ranks": str(ranks), "order": moved},
                f"{ranks} shards in the order {moved}",
                freedom=0.1,
                rank=int(ranks > 2 and reference.shape[1] // ranks in head_widths(bench)),
            )


def _columns(bench: Bench, product: Product) -> Iterator[Idea]:
    """Yield blocks of inputs that meet the wrong weights or are left out: shards that are summed."""
    candidate, _ = target_of(bench)
    counted = bench._index(bench.main)
    rows = product.x.reshape(*product.shape[:-1], -1)[counted].reshape(candidate.shape[0], -1)
    step = max(1, candidate.numel() // MOST_FITTED)
    candidate, rows = candidate[::step], rows[::step]
    rest = candidate if product.bias is None else candidate - product.bias
    for ranks in RANKS:
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
        summed = sum(
            float(coefficients[a, b]) * (xs[a] @ weights[b].T) for a, b in coefficients.nonzero().tolist()
        )
        yield from _named_sum(bench, coefficients, ranks, bench.with_main(product.add_bias(summed)))


def is_partial(bench: Bench, ranks: int) -> bool:
    """Whether one rank's share alone is rather a sum that was not taken than the others' shares that are lost.

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
        if record.name == bench.main
    }
    return len(hashes) > 1


def _named_sum(bench: Bench, found: Tensor, ranks: int, got: Outputs) -> Iterator[Idea]:
    """Yield what a matrix of shards against shards means."""
    diagonal = found.diagonal()
    apart = bool((found == torch.diag(diagonal)).all())
    if apart and bool((diagonal == diagonal[0]).all()):
        return  # a factor: told elsewhere
    if apart and set(diagonal.tolist()) == {0.0, 1.0}:
        present = int(diagonal.sum())
        shards = {
            state: " ".join(
                str(rank) for rank, share in enumerate(diagonal.tolist()) if bool(share) == is_there
            )
            for state, is_there in (("present", True), ("missing", False))
        }
        values = {"ranks": str(ranks), **shards}
        how = f"only the sums of shard {values['present']} of {ranks}"
        sums = is_partial(bench, ranks) if present == 1 else False
        yield Idea("DX985", got, values, how, freedom=0.1 * ranks + 0.05 * (present - 1), rank=int(not sums))
        yield Idea("DX984", got, values, how, freedom=0.1 * ranks, rank=int(sums))
    elif bool((found.sum(0) == 1).all()) and bool((found.sum(1) == 1).all()):
        order = " ".join(str(int(source)) for source in found.argmax(0))
        values = {"ranks": str(ranks), "order": order}
        how = f"{ranks} shards of the inputs meet the weights in the order {order}"
        yield Idea("DX983", got, values, how, freedom=0.1 * ranks)
        values = {"which": "heads that enter", "order": order}
        how = "blocks of the inputs in another order"
        yield Idea("DX973", got, values, how, freedom=0.3 * ranks, rank=2)


def _sums(bench: Bench, product: Product) -> Iterator[Idea]:
    """Yield the sum taken several times, with or without the bias."""
    plain = product.of(product.weight)
    bias = 0 if product.bias is None else product.bias
    for ranks in RANKS:
        values = {"ranks": str(ranks)}
        yield Idea("DX986", bench.with_main(ranks * plain + bias), values, f"the sum taken {ranks} times")
        if product.bias is not None:
            how = f"the sum and the bias taken {ranks} times"
            yield Idea("DX986", bench.with_main(ranks * (plain + bias)), values, how)
