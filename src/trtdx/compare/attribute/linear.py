"""Matrix products: weights transposed, cut, ordered, summed or taken from elsewhere, and biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.attention import orders
from trtdx.compare.attribute.bench import Idea, put
from trtdx.engines.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.bench import Bench, Outputs, Tensor

RANKS = (2, 4, 8)
MOST_MATCHED = 16_384  # outputs that are matched each with each
MOST_INNER = 16  # products inside a larger module that are tried
PARTNERS = ({"gate_proj", "up_proj"}, {"w1", "w3"}, {"gate", "up"}, {"linear", "linear_v"})


class Product(NamedTuple):
    """What a module computes: x W^T + b, a row for each token."""

    x: Tensor  # [tokens, in]
    weight: Tensor  # [out, in]
    bias: Tensor | None
    turned: bool  # whether the module keeps its weight as [in, out]
    shape: tuple[int, ...]

    def of(self, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        found = self.x @ weight.T
        return (found if bias is None else found + bias).reshape(self.shape)


def product_of(bench: Bench) -> Product | None:
    """Return what the bench's module computes, if that is one matrix product."""
    weight = getattr(bench.module, "weight", None)
    if weight is None or weight.ndim != 2 or bench.main != f"{bench.path}:out" or not bench.inputs:
        return None
    x, truth = next(iter(bench.inputs.values())), bench.truth[bench.main]
    if not x.is_floating_point():
        return None
    bias = getattr(bench.module, "bias", None)
    rows = x.reshape(-1, x.shape[-1])
    for turned in (False, True):
        held = weight.T if turned else weight
        if held.shape[1] != rows.shape[1] or held.shape[0] != truth.shape[-1]:
            continue
        product = Product(
            rows, held.detach(), None if bias is None else bias.detach(), turned, tuple(truth.shape)
        )
        gap = product.of(product.weight, product.bias) - truth
        if float((gap**2).sum()) <= 1e-9 * float((truth**2).sum()):
            return product
    return None


def ideas(bench: Bench) -> Iterator[Idea]:
    """Yield what could be wrong with a matrix product, or with one inside the module."""
    product = product_of(bench)
    if product is None:
        yield from _inside(bench)
        return
    yield from _turned(bench, product)
    yield from _biases(bench, product)
    yield from _elsewhere(bench, product)
    yield from _matched(bench, product)
    yield from _rows(bench, product)
    yield from _columns(bench, product)
    yield from _sums(bench, product)


def _outputs(bench: Bench, tensor: Tensor) -> Outputs:
    return bench.changed({bench.main: tensor})


def _target(bench: Bench) -> tuple[Tensor, Tensor]:
    """Return what the candidate and the reference gave, the rows that count."""
    kept = bench._index(bench.main)
    theirs, own = bench.targets[bench.main][kept], bench.truth[bench.main][kept]
    width = own.shape[-1]
    return torch.nan_to_num(theirs.reshape(-1, width)), own.reshape(-1, width).double()


def _turned(bench: Bench, product: Product) -> Iterator[Idea]:
    weight = product.weight
    if weight.shape[0] == weight.shape[1]:
        yield Idea("DX982", _outputs(bench, product.of(weight.T, product.bias)), {}, "the weight transposed")
        return
    rows, columns = weight.shape
    read = weight.T.contiguous().reshape(rows, columns)
    how = "the weight's memory read in the other order"
    yield Idea("DX982", _outputs(bench, product.of(read, product.bias)), {}, how)
    read = weight.contiguous().reshape(columns, rows).T
    yield Idea("DX982", _outputs(bench, product.of(read, product.bias)), {}, how)


def _biases(bench: Bench, product: Product) -> Iterator[Idea]:
    plain = product.of(product.weight)
    if product.bias is not None:
        yield Idea("DX987", _outputs(bench, plain), {}, "the product without its bias")
        for ranks in RANKS:
            many = _outputs(bench, plain + ranks * product.bias)
            yield Idea("DX988", many, {"ranks": str(ranks)}, f"the bias added {ranks} times")
    for path, other in (*bench.siblings(), *bench.twins()):
        bias = getattr(other, "bias", None)
        if isinstance(bias, torch.Tensor) and bias.shape == product.weight.shape[:1]:
            got = _outputs(bench, plain + bias.double())
            yield Idea("DX989", got, {"other": path}, f"with the bias of {path}")


def _elsewhere(bench: Bench, product: Product) -> Iterator[Idea]:
    """Yield the product with the weights of another module: of the same parent, of other layers, the embedding."""
    own = bench.path.rpartition(".")[2]
    for path, other in (*bench.siblings(), *bench.twins(), *_embeddings(bench)):
        weight = getattr(other, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
            continue
        held = weight.T if product.turned and not _is_embedding(other) else weight
        if held.shape != product.weight.shape or torch.equal(held.double(), product.weight.double()):
            continue
        bias = getattr(other, "bias", None)
        got = _outputs(
            bench, product.of(held.to(product.x.dtype), None if bias is None else bias.to(product.x.dtype))
        )
        code = "DX990"
        if {own, path.rpartition(".")[2]} in PARTNERS and path.rpartition(".")[0] == bench.path.rpartition(
            "."
        )[0]:
            code = "DX981"
        if _is_embedding(other):
            code = "DX992"
        yield Idea(code, got, {"other": path}, f"with the weights of {path}")


def _is_embedding(module: Any) -> bool:
    return isinstance(module, torch.nn.Embedding)


def _embeddings(bench: Bench) -> Iterator[tuple[str, Any]]:
    if _is_head(bench):
        yield from ((path, each) for path, each in bench.model.named_modules() if _is_embedding(each))


def _is_head(bench: Bench) -> bool:
    size = getattr(getattr(bench.model, "config", None), "vocab_size", None)
    return bool(bench.truth[bench.main].shape[-1] == size)


def head_widths(bench: Bench) -> set[int]:
    """Return the widths that a head may have here; none outside of attention."""
    if "att" not in bench.path.lower():
        return set()
    config = getattr(bench.model, "config", None)
    parent = bench.model.get_submodule(bench.path.rpartition(".")[0])
    names = ("head_dim", "qk_head_dim", "v_head_dim", "qk_rope_head_dim")
    told = {getattr(owner, name, None) for owner in (parent, config) for name in names}
    heads, width = getattr(config, "num_attention_heads", 0), getattr(config, "hidden_size", 0)
    if heads and width % heads == 0:
        told.add(width // heads)
    return {each for each in told if isinstance(each, int) and each > 0}


def _matched(bench: Bench, product: Product) -> Iterator[Idea]:
    """Yield the outputs in the order in which the candidate seems to have them."""
    theirs, own = _target(bench)
    width = own.shape[1]
    if width > MOST_MATCHED or own.shape[0] < 3:
        return
    order = _nearest(theirs, own)
    if bool((order == torch.arange(width)).all()):
        return
    got = _outputs(bench, bench.truth[bench.main][..., order])
    if bench.share(got) < 0.5:
        return
    yield from _named_order(bench, order, got)


def _nearest(theirs: Tensor, own: Tensor) -> Tensor:
    """Return for each column of one the column of the other that is nearest."""
    lengths = (own * own).sum(0)[:, None]
    return torch.cat([(lengths - 2 * own.T @ block).argmin(0) for block in theirs.split(1024, dim=1)])


def _named_order(bench: Bench, order: Tensor, got: Outputs) -> Iterator[Idea]:
    width = order.shape[0]
    shifts = (order - torch.arange(width)) % width
    shift = int(shifts.mode().values)
    shift -= width if shift > width // 2 else 0
    if shift and float((shifts == shift % width).double().mean()) > 0.9 and abs(shift) < width // 4:
        code = "DX993" if _is_head(bench) else "DX983"
        yield Idea(
            code,
            got,
            {"offset": f"{shift:+d}", "order": f"shifted by {shift:+d}"},
            f"outputs shifted by {shift:+d}",
        )
        return
    for head in sorted(head_widths(bench), reverse=True):
        if width % head or head < 2:
            continue
        blocks = order.reshape(-1, head)
        inner = blocks - blocks.min(1, keepdim=True).values
        pairs = torch.cat((torch.arange(0, head, 2), torch.arange(1, head, 2)))
        for expected, told in ((pairs, "interleaved"), (torch.argsort(pairs), "in halves")):
            if head > 2 and bool((inner == expected).all()):
                values = {"found": told, "expected": "in halves" if told == "interleaved" else "interleaved"}
                how = "the rows of each head ordered for the other layout of rotary embeddings"
                yield Idea("DX961", got, values, how, freedom=0.5)
        if bool((inner == torch.arange(head)).all()):
            moved = (blocks[:, 0] // head).tolist()
            values = {"which": "heads of the weight", "order": " ".join(map(str, moved[:16]))}
            how = f"heads of {head} numbers in the order {values['order']}"
            yield Idea("DX973", got, values, how, freedom=0.1)
    for ranks in RANKS:
        blocks = order.reshape(ranks, -1) if width % ranks == 0 else None
        if blocks is not None and bool((blocks - blocks[:, :1] == torch.arange(width // ranks)).all()):
            moved = [str(int(each)) for each in blocks[:, 0] // (width // ranks)]
            values = {"ranks": str(ranks), "order": " ".join(moved)}
            how = f"{ranks} shards in the order {' '.join(moved)}"
            yield Idea("DX983", got, values, how, freedom=0.1, rank=int(width // ranks in head_widths(bench)))
            return
    yield Idea("DX983", got, {"order": "another order"}, "outputs in another order", freedom=3, rank=2)


def _rows(bench: Bench, product: Product) -> Iterator[Idea]:
    """Yield blocks of outputs that are missing or stand elsewhere: shards that are concatenated."""
    theirs, own = _target(bench)
    for ranks in RANKS:
        if own.shape[1] % ranks:
            continue
        ones, others = theirs.chunk(ranks, 1), own.chunk(ranks, 1)
        size = [float((each**2).sum()) for each in others]
        gap = torch.tensor([[float(((one - other) ** 2).sum()) for other in others] for one in ones])
        zero = [float((one**2).sum()) < 0.02 * size[at] for at, one in enumerate(ones)]
        chosen = gap.argmin(1).tolist()
        whole = bench.truth[bench.main].chunk(ranks, -1)
        missing = [str(at) for at, each in enumerate(zero) if each]
        made = [torch.zeros_like(whole[at]) if zero[at] else whole[each] for at, each in enumerate(chosen)]
        got = _outputs(bench, torch.cat(made, -1))
        if missing:
            values = {"missing": " ".join(missing), "ranks": str(ranks)}
            yield Idea(
                "DX984",
                got,
                values,
                f"outputs of shard {' '.join(missing)} of {ranks} are zero",
                freedom=0.2 * ranks,
            )
        elif chosen != list(range(ranks)):
            moved = " ".join(map(str, chosen))
            yield Idea(
                "DX983",
                got,
                {"ranks": str(ranks), "order": moved},
                f"{ranks} shards in the order {moved}",
                freedom=0.1,
                rank=int(own.shape[1] // ranks in head_widths(bench)),
            )


def _columns(bench: Bench, product: Product) -> Iterator[Idea]:
    """Yield blocks of inputs that meet the wrong weights or are left out: shards that are summed."""
    theirs, _ = _target(bench)
    kept = bench._index(bench.main)
    for ranks in RANKS:
        if product.x.shape[1] % ranks or theirs.numel() < 4 * ranks * ranks:
            continue
        xs, weights = product.x.chunk(ranks, 1), product.weight.chunk(ranks, 1)
        parts = [[(x @ weight.T).reshape(product.shape) for weight in weights] for x in xs]
        basis = [part[kept].reshape(-1) for row in parts for part in row]
        rest = theirs.reshape(-1) - (
            0 if product.bias is None else product.bias.expand_as(theirs).reshape(-1)
        )
        fit = torch.linalg.lstsq(torch.stack(basis, 1).double(), rest.double()[:, None]).solution.reshape(
            ranks, ranks
        )
        rounded = fit.round()
        if bool((rounded == torch.eye(ranks)).all()) or float(rounded.abs().max()) > 16:
            continue
        made = sum(
            float(rounded[a, b]) * parts[a][b] for a in range(ranks) for b in range(ranks) if rounded[a, b]
        )
        if not isinstance(made, torch.Tensor):
            continue
        got = _outputs(bench, made if product.bias is None else made + product.bias)
        yield from _named_sum(rounded, ranks, got)


def _named_sum(found: Tensor, ranks: int, got: Outputs) -> Iterator[Idea]:
    """Yield what a matrix of shards against shards means."""
    diagonal = found.diagonal()
    apart = bool((found == torch.diag(diagonal)).all())
    if apart and bool((diagonal == diagonal[0]).all()):
        return  # a factor: told elsewhere
    if apart and set(diagonal.tolist()) == {0.0, 1.0}:
        present = int(diagonal.sum())
        values = {
            "ranks": str(ranks),
            "present": " ".join(str(at) for at, each in enumerate(diagonal.tolist()) if each),
            "missing": " ".join(str(at) for at, each in enumerate(diagonal.tolist()) if not each),
        }
        how = f"only the sums of shard {values['present']} of {ranks}"
        one = present == 1
        yield Idea("DX985" if one else "DX984", got, values, how, freedom=0.1 * ranks)
        if one and ranks == 2:
            yield Idea("DX984", got, values, how, freedom=0.1 * ranks, rank=1)
    elif bool((found.sum(0) == 1).all()) and bool((found.sum(1) == 1).all()):
        order = " ".join(str(int(each)) for each in found.argmax(0))
        values = {"ranks": str(ranks), "order": order}
        yield Idea(
            "DX983",
            got,
            values,
            f"{ranks} shards of the inputs meet the weights in the order {order}",
            freedom=0.1 * ranks,
        )
        yield Idea(
            "DX973",
            got,
            {"which": "heads that enter", "order": order},
            "blocks of the inputs in another order",
            freedom=0.3 * ranks,
            rank=2,
        )


def _sums(bench: Bench, product: Product) -> Iterator[Idea]:
    """Yield the sum taken several times, with or without the bias."""
    plain = product.of(product.weight)
    bias = 0 if product.bias is None else product.bias
    for ranks in RANKS:
        values = {"ranks": str(ranks)}
        yield Idea("DX986", _outputs(bench, ranks * plain + bias), values, f"the sum taken {ranks} times")
        if product.bias is not None:
            yield Idea(
                "DX986",
                _outputs(bench, ranks * (plain + bias)),
                values,
                f"the sum and the bias taken {ranks} times",
            )


def _inside(bench: Bench) -> Iterator[Idea]:
    """Yield matrix products inside a larger module that have a plain mistake."""
    inner = [(name, each) for name, each in bench.module.named_modules() if name and _is_product(each)]
    yield from _other_layers(bench)
    if bench.solved:
        return
    for name, module in inner[:MOST_INNER]:
        weight, told = module.weight, {"inner": name}
        if weight.shape[0] == weight.shape[1]:
            with put(module, weight=weight.T):
                yield Idea("DX982", bench.run(), told, f"the weight of {name} transposed", freedom=0.5)
        bias = getattr(module, "bias", None)
        if bias is not None:
            with put(module, bias=torch.zeros_like(bias)):
                yield Idea("DX987", bench.run(), told, f"{name} without its bias", freedom=0.5)
            with put(module, bias=2 * bias):
                yield Idea(
                    "DX988",
                    bench.run(),
                    {**told, "ranks": "2"},
                    f"the bias of {name} added twice",
                    freedom=0.5,
                )
        yield from _inner_orders(bench, name, module)


def _inner_orders(bench: Bench, name: str, module: Any) -> Iterator[Idea]:
    for ranks in (2, 4):
        for axis in (0, 1):
            if module.weight.shape[axis] % ranks:
                continue
            chunks = module.weight.chunk(ranks, axis)
            for told, order in list(orders(ranks))[:6]:
                with put(module, weight=torch.cat([chunks[each] for each in order], axis)):
                    values = {"inner": name, "ranks": str(ranks), "order": " ".join(map(str, order))}
                    yield Idea("DX983", bench.run(), values, f"shards of {name}: {told}", freedom=1.5, rank=1)
            for lost in range(ranks):
                made = [torch.zeros_like(each) if at == lost else each for at, each in enumerate(chunks)]
                with put(module, weight=torch.cat(made, axis)):
                    values = {"inner": name, "ranks": str(ranks), "missing": str(lost)}
                    yield Idea(
                        "DX984",
                        bench.run(),
                        values,
                        f"shard {lost} of {ranks} of {name} is missing",
                        freedom=1,
                    )


def _is_product(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.ndim == 2 and not _is_embedding(module)


def _other_layers(bench: Bench) -> Iterator[Idea]:
    """Yield the module with all its weights, or one part's, of the same module in another layer."""
    own = dict(bench.module.named_parameters())
    for path, other in list(bench.twins())[:12]:
        theirs = dict(other.named_parameters())
        if (
            own.keys() != theirs.keys()
            or any(own[name].shape != theirs[name].shape for name in own)
            or not own
        ):
            continue
        kept = {name: each.data for name, each in own.items()}
        try:
            for name, each in own.items():
                each.data = theirs[name].data.to(kept[name].dtype)
            yield Idea("DX990", bench.run(), {"other": path}, f"with all weights of {path}")
        finally:
            for name, each in own.items():
                each.data = kept[name]
