"""Numbers that leave the range of their type, vanish, are cut off, or are summed too coarsely."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.mistakes.norms import identify_norm
from trtdx.compare.attribute.mistakes.product import MatrixProduct, identify_product
from trtdx.compare.attribute.module_bench import Mistake
from trtdx.compare.attribute.scalar_fit import fit_scalar
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.module_bench import ModuleBench, Outputs, Tensor

LARGEST_FLOAT16 = 65504.0
NARROW_ERROR = 0.01  # relative: one operation does not lose as much where its type is wide enough
LEAST_SMALL_SHARE = 0.02  # of all numbers that are too small for their type
SMALLEST_NUMBERS = {
    "float16": 2.0**-24,
    "normal float16": 2.0**-14,
    "float8_e4m3": 2.0**-9,
    "normal float8_e4m3": 2.0**-6,
    "float8_e5m2": 2.0**-16,
}
NEARLY_ALL_SHARE = 0.97  # of every other token
COMMON_CLIP_LIMITS = (448.0, 240.0, 57344.0, 127.0, 65504.0)
SUM_CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128)


def precision_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield what the range and the precision of types could have done."""
    product = identify_product(bench)
    yield from _overflow_mistakes(bench)
    yield from _saturation_mistakes(bench, product)
    yield from _underflow_mistakes(bench, product)
    yield from _narrow_compute_mistakes(bench)
    if product is not None:
        yield from _coarse_product_mistakes(bench, product)


def narrow_dtype_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield the effect of the type alone, if the reference computed in it is as wrong as the candidate."""
    lossy = [name for name, truth in bench.truth.items() if bench.relative_error(name, truth) > NARROW_ERROR]
    if not lossy or bench.dtype not in ("float16", "bfloat16"):
        return
    low = getattr(torch, bench.dtype)
    least = float(torch.finfo(low).tiny)
    for name in lossy:
        truth = bench.truth[name]
        small = float(((truth.abs() < least) & (truth != 0)).double().mean())
        if small > LEAST_SMALL_SHARE:
            rounded = bench.relative_error(name, truth.to(low).double()) / bench.relative_error(name, truth)
            values = {"smallest": f"{least:.3g}", "dtype": bench.dtype, "where": name.rpartition(":")[2]}
            how = f"{100 * small:.2g} % of {name} are below the smallest normal {bench.dtype}"
            yield Mistake("DX998", bench.truth, values, how, share=min(1.0, max(0.5 + small, 1 - rounded**2)))
    how = f"all of it computed in {bench.dtype}, as the candidate does"
    yield Mistake("DX999", bench.truth, {"dtype": bench.dtype}, how, share=0.9, freedom=2, rank=1)


def _overflow_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield overflow of float16 at 65504: infinities, or values clamped there."""
    candidate = bench.targets[bench.main_target]
    not_finite = not bool(torch.isfinite(candidate).all())
    peak = max(float(tensor.abs().max()) for tensor in bench.truth.values() if tensor.numel())
    inside = f"numbers beyond {LARGEST_FLOAT16:g} inside it, though it gives no more than {peak:.4g}"
    values = {"largest": f"{peak:.4g}" if peak > LARGEST_FLOAT16 else inside}
    if not_finite or bench.dtype == "float16":
        try:
            got = bench.run_in_precision(torch.float16)
        except RuntimeError:
            got = {}
        if got and any(not bool(torch.isfinite(tensor).all()) for tensor in got.values()):
            yield Mistake("DX997", got, values, "computed in float16, where it is infinite too")
    if peak > LARGEST_FLOAT16:
        clamped = {name: tensor.clamp(-LARGEST_FLOAT16, LARGEST_FLOAT16) for name, tensor in bench.truth.items()}
        yield Mistake("DX997", clamped, values, "held at the largest float16")
        over = {name: tensor.to(torch.float16).double() for name, tensor in bench.truth.items()}
        yield Mistake("DX997", over, values, "infinite beyond the largest float16")
    norm_and_input = identify_norm(bench)
    if norm_and_input is not None:
        norm, x = norm_and_input
        for low in (torch.float16, torch.bfloat16):
            small, largest = x.to(low), float((x * x).max())
            square = (small * small).mean(-1, keepdim=True).double()
            is_half = low == torch.float16
            if is_half and bool(torch.isfinite(square).all()) and largest < LARGEST_FLOAT16:
                continue
            normed = x * torch.rsqrt(square + norm.eps)
            normed = normed if norm.weight is None else normed * (norm.weight + norm.plus)
            code, name = ("DX997", "float16") if is_half else ("DX999", "bfloat16")
            values = {"largest": f"{largest:.4g}", "dtype": name}
            yield Mistake(code, bench.with_main(normed), values, f"the norm's squares in {name}")


def _saturation_mistakes(bench: ModuleBench, product: MatrixProduct | None) -> Iterator[Mistake]:
    """Yield outputs or inputs clamped at a limit."""
    candidate = torch.nan_to_num(bench.targets[bench.main_target])
    truth = bench.truth[bench.main_target]
    limit = float(candidate.abs().max())
    clipped_count = int((candidate.abs() >= limit * (1 - 1e-6)).sum())
    if limit and clipped_count >= 2 and float(truth.abs().max()) > limit * 1.001:
        got = bench.with_main(truth.clamp(-limit, limit))
        share = f"{100 * clipped_count / candidate.numel():.2g} %"
        how = f"outputs held at {limit:.5g}"
        yield Mistake("DX947", got, {"limit": f"{limit:.5g}", "where": "output", "held": share}, how)
    name = _float_input(bench)
    if name is None:
        return
    x = bench.inputs[name]
    peak = float(x.abs().max())
    if not peak:
        return

    def outputs(limit: float) -> Outputs:
        return _with_input(bench, product, name, x.clamp(-limit, limit))

    grid = [peak * share for share in (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)]
    limit, got = fit_scalar(
        bench, [*grid, *(largest for largest in COMMON_CLIP_LIMITS if largest < peak)], outputs, rounds=12
    )
    free = 0.5 if limit in COMMON_CLIP_LIMITS else 1.0
    clipped_share = f"{100 * float((x.abs() > limit).double().mean()):.2g} %"
    values = {"limit": f"{limit:.5g}", "where": "input", "held": clipped_share}
    # The right limit leaves little; one that was searched explains much of whatever makes large inputs smaller.
    if limit in COMMON_CLIP_LIMITS or product is not None or bench.cross_validated_share(got) > NEARLY_ALL_SHARE:
        yield Mistake("DX947", got, values, f"inputs held at {limit:.5g}", freedom=free)


def _float_input(bench: ModuleBench) -> str | None:
    return next((name for name, tensor in bench.inputs.items() if tensor.is_floating_point()), None)


def _with_input(bench: ModuleBench, product: MatrixProduct | None, name: str, x: Tensor) -> Outputs:
    """Return what the module gives for another input."""
    if product is None:
        return bench.run({**bench.inputs, name: x})
    return bench.with_main(product.with_own_bias(x=x.reshape(product.x.shape)))


def _underflow_mistakes(bench: ModuleBench, product: MatrixProduct | None) -> Iterator[Mistake]:
    name = _float_input(bench)
    if name is None:
        return
    x = bench.inputs[name]
    for dtype_name, least in SMALLEST_NUMBERS.items():
        values = {"smallest": f"{least:.3g}", "dtype": dtype_name}
        if bool(((x.abs() < least) & (x != 0)).any()):
            got = _with_input(bench, product, name, _flush_small(x, least))
            yield Mistake("DX998", got, {**values, "where": "input"}, f"inputs below {least:.3g} are zero")
        if product is not None and bool(((product.weight.abs() < least) & (product.weight != 0)).any()):
            got = bench.with_main(product.with_own_bias(_flush_small(product.weight, least)))
            yield Mistake("DX998", got, {**values, "where": "weight"}, f"weights below {least:.3g} are zero")
        truth = bench.truth[bench.main_target]
        if bool(((truth.abs() < least) & (truth != 0)).any()):
            got = bench.with_main(_flush_small(truth, least))
            yield Mistake("DX998", got, {**values, "where": "output"}, f"outputs below {least:.3g} are zero")


def _flush_small(tensor: Tensor, least: float) -> Tensor:
    return torch.where(tensor.abs() < least, torch.zeros_like(tensor), tensor)


def _narrow_compute_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield the module computed in a narrower type than the candidate says."""
    lower: dict[str, tuple[Any, ...]] = {
        "float64": (torch.float32, torch.float16, torch.bfloat16),
        "float32": (torch.float16, torch.bfloat16),
        "float16": (torch.bfloat16,),
    }
    for low in lower.get(bench.dtype, ()):
        name = str(low).removeprefix("torch.")
        try:
            got = bench.run_in_precision(low)
        except RuntimeError:
            continue
        yield Mistake("DX999", got, {"dtype": name}, f"all of it computed in {name}", rank=1)


def _coarse_product_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    for name in ("bfloat16", "float16", "tf32"):
        x, weight = _round_to_dtype(product.x, name), _round_to_dtype(product.weight, name)
        if bench.dtype not in ("float16", "bfloat16"):
            got = bench.with_main(product.with_own_bias(weight, x))
            yield Mistake("DX999", got, {"dtype": name}, f"inputs and weights rounded to {name}")
            got = bench.with_main(product.with_own_bias(weight))
            yield Mistake("DX999", got, {"dtype": name}, f"weights rounded to {name}")
    for name in ("float16", "bfloat16"):
        if bench.dtype == "bfloat16" and name == "float16":
            continue
        for size in SUM_CHUNKS:
            if product.x.shape[1] // size > 512 or size > product.x.shape[1]:
                continue
            for coarse, narrow in ((False, True), (True, True), (True, False)):
                got = bench.with_main(_sum_in_chunks(product, name, size, coarse=coarse, narrow=narrow))
                how = f"sums rounded to {name} after each {size} products"
                yield Mistake("DX999", got, {"dtype": name}, how, freedom=0.3)


def _round_to_dtype(tensor: Tensor, name: str) -> Tensor:
    if name == "tf32":  # ten bits of fraction
        bits = tensor.float().view(torch.int32)
        return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).to(tensor.dtype)
    return tensor.to(getattr(torch, name)).to(tensor.dtype)


def _sum_in_chunks(product: MatrixProduct, name: str, size: int, *, coarse: bool, narrow: bool) -> Tensor:
    """Return a product whose sums are kept in a narrow type; its parts and its inputs too, if it is said."""
    low = getattr(torch, name)
    x, weight = product.x, product.weight
    if narrow:
        x, weight = _round_to_dtype(x, name), _round_to_dtype(weight, name)
    total = torch.zeros((x.shape[0], weight.shape[0]), dtype=torch.float64)
    for one, other in zip(x.split(size, 1), weight.split(size, 1), strict=True):
        part = (one @ other.T).double()
        total = (total + (part.to(low).double() if coarse else part)).to(low).double()
    return product.add_bias(total)
