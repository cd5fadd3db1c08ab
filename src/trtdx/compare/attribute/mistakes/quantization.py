"""Quantised matrix products: scales and their granularity, zero points, and backends that saturate."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

from trtdx.compare.attribute.mistakes.product import MatrixProduct, counted_targets, identify_product
from trtdx.compare.attribute.module_bench import Mistake
from trtdx.compare.judge.quantised_modules import fake_quantise, quantise_to_int
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.compare.attribute.module_bench import ModuleBench, Tensor

PER_TENSOR_INT8 = "int8 weights, one scale for all"
GROUP_SIZES = (32, 64, 128)
MOST_PAIRS = 200_000_000
COMMON_FACTORS = (2, 3, 4, 8, 16)
WIDEST_ZERO_POINT = 4.0  # times the largest number: further off no zero point is
MOST_STEPS = 256


def quantization_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield what quantisation could have done to a matrix product."""
    product = identify_product(bench)
    if product is None:
        return
    yield from _scale_factor_mistakes(bench, product)
    yield from _fake_quantisation_mistakes(bench, product)
    yield from _channel_scale_mistakes(bench, product)
    yield from _zero_point_mistakes(bench, product)
    yield from _saturating_backend_mistakes(bench, product)


def _scale_factor_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    """Yield the product with one factor: a scale that is wrong."""
    candidate, _ = counted_targets(bench)
    plain = product.compute(product.weight)
    counted_product = plain[bench.row_index(bench.main_target)].reshape(candidate.shape)
    bias = 0 if product.bias is None else product.bias
    factor = float(((candidate - bias) * counted_product).sum() / (counted_product * counted_product).sum())
    near = min(COMMON_FACTORS, key=lambda integer: abs(factor / integer - 1))
    free = 1.0 if abs(factor / near - 1) > 0.01 else 1.5  # a whole number is rather a sum taken twice
    if abs(factor) > 1e-6:
        how = f"the product multiplied by {factor:.5g}"
        values = {"factor": f"{factor:.5g}"}
        yield Mistake("DX948", bench.with_main(plain * factor + bias), values, how, freedom=free, rank=1)
    if product.bias is not None:
        counted_result = (counted_product + bias).reshape(candidate.shape)
        both = float((candidate * counted_result).sum() / (counted_result * counted_result).sum())
        got = bench.with_main((plain + bias) * both)
        how = f"product and bias multiplied by {both:.5g}"
        yield Mistake("DX948", got, {"factor": f"{both:.5g}"}, how, freedom=free + 0.2, rank=1)


def quantise_to_uint8(tensor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a tensor as ONNX's DynamicQuantizeLinear has it: bytes, their scale and their zero point."""
    low, high = tensor.min().clamp(max=0), tensor.max().clamp(min=0)
    scale = ((high - low) / 255).clamp(min=1e-30)
    zero = torch.round(-low / scale).clamp(0, 255)
    return (torch.round(tensor / scale) + zero).clamp(0, 255), scale, zero


def round_to_fp8(tensor: Tensor, *, scaled: bool = True, name: str = "float8_e4m3fn") -> Tensor:
    dtype = getattr(torch, name)
    most = torch.finfo(dtype).max
    scale = tensor.abs().max().clamp(min=1e-30) / most if scaled else torch.ones((), dtype=tensor.dtype)
    return (tensor / scale).clamp(-most, most).float().to(dtype).to(tensor.dtype) * scale


def _fake_quantisation_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    weight, x = product.weight, product.x
    weights: dict[str, Callable[[], Tensor]] = {
        PER_TENSOR_INT8: lambda: fake_quantise(weight),
        "int8 weights, a scale for each channel": lambda: fake_quantise(weight, axis=1),
        "fp8 weights": lambda: round_to_fp8(weight),
    }
    for group in GROUP_SIZES:
        if weight.shape[1] % group == 0:
            weights[f"int4 weights in groups of {group}"] = partial(fake_quantise, weight, bits=4, group=group)
    bytes_, scale, zero = quantise_to_uint8(x)
    inputs = {
        "": x,
        " and int8 inputs, one scale for all": fake_quantise(x),
        " and int8 inputs, a scale for each token": fake_quantise(x, axis=1),
        " and uint8 inputs": (bytes_ - zero) * scale,
    }
    if bench.dtype not in ("float16", "bfloat16"):
        inputs[" and fp8 inputs"] = round_to_fp8(x)
    for weight_scheme, make in weights.items():
        quantised_weight = make()
        for input_scheme, quantised_input in inputs.items():
            code = "DX949" if weight_scheme == PER_TENSOR_INT8 else "DX999"
            values = {"found": weight_scheme + input_scheme, "dtype": weight_scheme + input_scheme}
            got = bench.with_main(product.with_own_bias(quantised_weight, quantised_input))
            yield Mistake(code, got, values, weight_scheme + input_scheme, freedom=0.3 if input_scheme else 0.0)


def _channel_scale_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    """Yield scales of the wrong granularity: per tensor instead of per channel, or the reverse."""
    candidate, _ = counted_targets(bench)
    peaks = product.weight.abs().amax(1).clamp(min=1e-30)
    plain = product.compute(product.weight)
    counted_product = plain[bench.row_index(bench.main_target)].reshape(candidate.shape)
    bias = 0 if product.bias is None else product.bias
    for shape, description in (
        (1 / peaks, "one scale for channels that were quantised each with its own"),
        (peaks, "a scale for each channel of weights that were quantised with one"),
    ):
        rescaled = counted_product * shape
        factor = float(((candidate - bias) * rescaled).sum() / (rescaled * rescaled).sum())
        values = {"found": description}
        yield Mistake("DX949", bench.with_main(plain * shape * factor + bias), values, description, freedom=1)
    if candidate.shape[0] < 4:
        return
    channel_factors = (
        ((candidate - bias) * counted_product).sum(0) / (counted_product * counted_product).sum(0).clamp(min=1e-300)
    ).to(plain.dtype)
    spread = f"{float(channel_factors.min()):.3g} to {float(channel_factors.max()):.3g}"
    how = f"each channel multiplied by its own factor, {spread}"
    values = {"factor": spread}
    yield Mistake("DX948", bench.with_main(plain * channel_factors + bias), values, how, freedom=4, rank=3)


def _zero_point_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    """Yield zero points left out, of the inputs (which are then off by one constant) or of the weights."""
    candidate, reference = counted_targets(bench)
    gap = candidate - reference
    sums = product.weight.sum(1)
    over = float((gap.mean(0) * sums).sum() / (sums * sums).sum().clamp(min=1e-300))
    truth = bench.truth[bench.main_target]
    # A zero point lies within what is quantised, or near it.
    if abs(over) <= WIDEST_ZERO_POINT * float(product.x.abs().max()):
        values = {"which": "inputs", "offset": f"{over:.4g}"}
        how = f"all inputs too large by {over:.4g}"
        yield Mistake("DX950", bench.with_main(truth + over * sums), values, how, freedom=1)
    yield from _weight_offset_mistakes(bench, product, gap)
    weight = product.weight
    low, high = weight.amin(1, keepdim=True).clamp(max=0), weight.amax(1, keepdim=True).clamp(min=0)
    per_row, per_all = (low, high), (weight.min().clamp(max=0), weight.max().clamp(min=0))
    for which, (least, most) in (("weights of each channel", per_row), ("weights", per_all)):
        scale = (most - least) / 255
        for shift, dtype_name in ((-least, "uint8"), (-least - 128 * scale, "int8")):
            got = bench.with_main(product.with_own_bias(weight + shift))
            values = {"which": f"{dtype_name} {which}", "offset": f"{float(shift.mean()):.4g}"}
            yield Mistake("DX950", got, values, f"{dtype_name} {which} without zero point")


def _weight_offset_mistakes(bench: ModuleBench, product: MatrixProduct, gap: Tensor) -> Iterator[Mistake]:
    """Yield weights off by a whole number of quantisation steps: outputs are then off in proportion to the sum of the inputs."""
    rows = bench.row_index(bench.main_target)
    sums = product.x.double().sum(1).reshape(product.shape[:-1])
    channel_offsets = (gap * sums[rows].reshape(-1, 1)).sum(0) / (sums[rows] ** 2).sum().clamp(min=1e-300)
    weight, truth = product.weight.double(), bench.truth[bench.main_target]
    steps = {
        "each channel": weight.abs().amax(1) / 127,
        "each channel, from its least to its largest": (weight.amax(1).clamp(min=0) - weight.amin(1).clamp(max=0))
        / 255,
        "all": (weight.abs().max() / 127).expand(weight.shape[0]),
    }
    for sharing, step in steps.items():
        count = float((channel_offsets * step).sum() / (step * step).sum().clamp(min=1e-300))
        if not abs(count) <= MOST_STEPS:  # nor where numbers are not finite
            continue
        step_count = round(count) if abs(count - round(count)) < 0.1 and round(count) else count
        values = {"which": f"weights, a scale for {sharing}", "offset": f"{step_count:.4g} steps"}
        got = bench.with_main(truth + sums[..., None] * step * step_count)
        yield Mistake("DX950", got, values, f"all weights too large by {step_count:.4g} steps of {sharing}", freedom=1)
    if not bool((channel_offsets.abs() <= WIDEST_ZERO_POINT * weight.abs().amax(1)).all()):
        return
    got = bench.with_main(truth + sums[..., None] * channel_offsets)
    values = {
        "which": "weights, a number of its own for each channel",
        "offset": f"{float(channel_offsets.abs().mean()):.4g}",
    }
    yield Mistake("DX950", got, values, "all weights of a channel too large by one number", freedom=3, rank=1)


def saturating_product(left: Tensor, right: Tensor) -> Tensor:
    """Return an int8 product as processors without VNNI compute it: pairs of products are summed in 16 bits and saturate."""
    rows, inner = left.shape
    total = torch.zeros((rows, right.shape[0]), dtype=torch.float64)
    for at in range(0, inner - inner % 2, 2):
        pair = left[:, at, None] * right[None, :, at] + left[:, at + 1, None] * right[None, :, at + 1]
        total += pair.clamp(-32768, 32767)
    if inner % 2:
        total += left[:, -1, None] * right[None, :, -1]
    return total


def _saturating_backend_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    """Yield int8 products whose pairs saturate, beside the same quantisation computed exactly."""
    x, weight = product.x.double(), product.weight.double()
    if x.shape[0] * weight.shape[0] * x.shape[1] > MOST_PAIRS:
        return
    bytes_, scale, zero = quantise_to_uint8(x)
    for axis, sharing in ((1, "a scale for each channel"), (None, "one scale")):
        peak = weight.abs().max() if axis is None else weight.abs().amax(1, keepdim=True)
        step = peak.clamp(min=1e-30) / 127
        ints = quantise_to_int(weight, step)
        saturated_sums = saturating_product(bytes_, ints)
        exact = bytes_ @ ints.T
        if torch.equal(saturated_sums, exact):
            continue
        dequantised = (saturated_sums - zero * ints.sum(1)) * scale * step.reshape(-1)
        got = bench.with_main(product.add_bias(dequantised))
        saturated_share = f"{100 * float((saturated_sums != exact).double().mean()):.3g} %"
        here = "; the product of this processor's ONNX Runtime is wrong in this way" if backend_saturates() else ""
        how = f"uint8 times int8 ({sharing}) with sums of pairs held at 16 bits{here}"
        yield Mistake("DX951", got, {"held": saturated_share, "scales": sharing}, how, freedom=0.2)


@cache
def backend_saturates() -> bool | None:
    """Whether ONNX Runtime's integer product is wrong on this processor; None where it cannot be asked."""
    try:
        import numpy as np

        from trtdx.optional import import_optional

        runtime = import_optional("onnxruntime", extra="onnx", purpose="probe its integer product")
        helper = import_optional("onnx.helper", extra="onnx", purpose="probe ONNX Runtime")
        numpy_helper = import_optional("onnx.numpy_helper", extra="onnx", purpose="probe ONNX Runtime")
    except Exception:  # not installed: nothing to probe
        return None
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    weight = numpy_helper.from_array(np.full((64, 8), 127, np.int8), "b")
    input_info = helper.make_tensor_value_info("a", 2, [4, 64])
    output_info = helper.make_tensor_value_info("y", 6, [4, 8])
    graph = helper.make_graph([node], "probe", [input_info], [output_info], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (product,) = session.run(None, {"a": np.full((4, 64), 255, np.uint8)})
    return int(product[0, 0]) != 255 * 127 * 64
