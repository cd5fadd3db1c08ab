"""Candidates that are not deterministic: dropout left on, or results that differ from run to run."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.mistakes.attention_core import (
    AttentionCall,
    AttentionCore,
    attention_call_of,
    run_with_core,
)
from trtdx.compare.attribute.mistakes.product import HEADLESS_PROJECTIONS
from trtdx.compare.attribute.module_bench import Mistake
from trtdx.engines.torch.lazy_import import torch
from trtdx.engines.torch.values import tensor_from_array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.module_bench import ModuleBench, Tensor

LEAST_WEIGHT = 0.02  # of a key: less is not seen well enough to say whether it was dropped
LEAST_MEASURED_WEIGHTS = 24  # weights
LEAST_SINGULAR_RATIO = 0.02  # of the values of keys: those that are alike cannot be told apart
DROPOUT_ATTRIBUTES = (
    "attention_dropout",
    "dropout",
    "hidden_dropout",
    "resid_pdrop",
    "attn_pdrop",
    "embd_pdrop",
)


def nondeterminism_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield dropout if its zeros are visible, and non-determinism if the candidate was run twice."""
    yield from _dropped_output_mistakes(bench)
    yield from _dropped_attention_mistakes(bench)
    yield from _jitter_mistakes(bench)
    if bench.suspect.rerun_candidate is None or bench.solved:  # another run of the candidate is dear
        return
    _reseed_onnxruntime()
    second = {bench.full_name(name): array for name, array in bench.suspect.rerun_candidate().items()}
    if not all(name in second for name in bench.targets):
        return
    spread = sum(_run_to_run_spread(bench, name, tensor_from_array(second[name]).double()) for name in bench.targets)
    if spread <= 4 * bench.noise:
        return
    other = bench.residual_of({name: tensor_from_array(second[name]).double() for name in bench.targets})
    share = min(1.0, spread / max(bench.residual + other, 1e-300))
    rate = largest_dropout_rate(bench.module)
    values = {"spread": f"{spread**0.5:.3g}", "rate": f"{rate:g}"}
    how = f"the candidate computed twice differs by {spread**0.5:.3g} relative"
    yield Mistake("DX958" if rate else "DX959", bench.truth, values, how, share=share)


def _reseed_onnxruntime() -> None:
    """Give ONNX Runtime another random seed: in one process every session draws the same numbers."""
    runtime = sys.modules.get("onnxruntime")
    if runtime is not None:
        runtime.set_seed(time.monotonic_ns() % 2**31)


def _run_to_run_spread(bench: ModuleBench, name: str, second: Tensor) -> float:
    rows = bench.row_index(name)
    gap = torch.nan_to_num((bench.targets[name] - second.reshape(bench.targets[name].shape))[rows])
    return float((gap * gap).sum()) / bench.target_sizes[name]


def largest_dropout_rate(module: Any) -> float:
    """Return the highest dropout rate in a module."""
    rates = [submodule.p for submodule in module.modules() if isinstance(submodule, torch.nn.Dropout)]
    for submodule in module.modules():
        attribute_rates = [getattr(submodule, name, 0.0) for name in DROPOUT_ATTRIBUTES]
        rates += [rate for rate in attribute_rates if isinstance(rate, float)]
    return float(max(rates, default=0.0))


def _dropped_output_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield outputs of which some are zero and all others are larger by the factor that makes up for them."""
    candidate, truth = bench.targets[bench.main_target], bench.truth[bench.main_target]
    real = truth.abs() > 1e-6 * truth.abs().max()
    zero = (candidate == 0) & real
    lost = float(zero.sum()) / max(1, int(real.sum()))
    left = real & ~zero
    if not 0.005 < lost < 0.95 or int(zero.sum()) < 3 or not bool(left.any()):
        return
    factor = float((candidate[left] / truth[left]).median())
    rate = 1 - 1 / factor if factor > 1 else 0.0
    if not 0 < rate < 1 or abs(rate - lost) > 0.1 + 0.5 * lost:
        return
    dropped = torch.where(candidate == 0, torch.zeros_like(truth), truth * factor)
    values = {"rate": f"{rate:.2g}", "spread": f"{lost:.2g}"}
    how = f"{100 * lost:.2g} % of the outputs are zero, the others larger by {factor:.4g}"
    yield Mistake("DX958", bench.with_main(dropped), values, how, freedom=1)


def _jitter_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield outputs multiplied by random factors: bounded, and uncorrelated over rows and channels."""
    for name in bench.wrong_targets:
        truth, candidate = (
            bench.truth[name][bench.row_index(name)].double(),
            bench.targets[name][bench.row_index(name)],
        )
        rows, width = truth.reshape(-1, truth.shape[-1]), truth.shape[-1]
        if not truth.is_floating_point() or rows.shape[0] < 8 or width < 8 or not bool((rows != 0).all()):
            continue
        over = torch.nan_to_num(candidate.reshape(rows.shape) / rows) - 1
        spread = float(over.std())
        if not 1e-4 < spread < 0.5 or float(candidate.to(torch.bfloat16).eq(candidate).double().mean()) > 0.5:
            continue
        kurtosis = float(((over - over.mean()) / spread).pow(4).mean())
        alone = max(
            float(over.mean(0).var()) * rows.shape[0] / spread**2,
            float(over.mean(1).var()) * width / spread**2,
        )
        if (1.6 < kurtosis < 2.1 or 2.6 < kurtosis < 3.4) and alone < 2:
            values = {"spread": f"{spread:.3g}", "rate": "0"}
            how = f"each number of {name} is multiplied by one of its own, 1 +- {spread:.3g}"
            yield Mistake("DX959", bench.truth, values, how, share=0.8, freedom=1)
            return


def _dropped_attention_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield dropout on attention weights, which are solved for from what attention returned."""
    call, name = attention_call_of(bench), _projection_input_name(bench)
    if call is None or not name:
        return
    core = AttentionCore()
    run_with_core(bench, core)
    solved = _solve_attention_weights(bench, core, call, name)
    if solved is None:
        return
    ratios, measurable = solved
    lost = ratios < 0.5
    rate = float(lost[measurable].double().mean())
    kept_ratios = ratios[measurable & ~lost]
    if not 0.005 < rate < 0.95 or int(measurable.sum()) < LEAST_MEASURED_WEIGHTS:
        return
    factor = float(kept_ratios.median())
    fitting = torch.where(lost, ratios.abs() < 0.15, (ratios / factor - 1).abs() < 0.1)[measurable]
    dropout_rate = 1 - 1 / factor if factor > 1 else 0.0
    if abs(dropout_rate - rate) > 0.02 + 0.35 * rate or dropout_rate <= 0:
        return
    values = {"rate": f"{dropout_rate:.2g}", "spread": f"{rate:.2g}"}
    how = f"{100 * rate:.2g} % of the weights of attention are zero, the others larger by {factor:.4g}"
    yield Mistake("DX958", bench.truth, values, how, share=float(fitting.double().mean()), freedom=1)


def _projection_input_name(bench: ModuleBench) -> str:
    """Return the name of what attention gives before its last projection."""
    return next(
        (
            name
            for name in bench.targets
            if name.endswith(":in") and name.split(".")[-1].split(":")[0] in HEADLESS_PROJECTIONS
        ),
        "",
    )


def _solve_attention_weights(
    bench: ModuleBench, core: AttentionCore, call: AttentionCall, name: str
) -> tuple[Tensor, Tensor] | None:
    """Return the ratio of the candidate's attention weights to the reference's, and which ratios are well determined."""
    weights, values = core.weights.double(), call.value.double()
    groups = weights.shape[1] // values.shape[1]
    values = values.repeat_interleave(groups, 1)
    batch, heads, new, _ = weights.shape
    width = values.shape[-1]
    candidate = torch.nan_to_num(bench.targets[name].double())
    if candidate.numel() != batch * heads * new * width:
        return None
    candidate = candidate.reshape(batch, new, heads, width).transpose(1, 2)
    ratios, measurable = torch.zeros_like(weights), torch.zeros_like(weights, dtype=torch.bool)
    counts = bench.suspect.counted_tokens
    for query in range(new):
        for row in range(batch):
            keys = (weights[row, 0, query] > 0).nonzero()[:, 0]
            counted = counts is None or counts.shape != (batch, new) or bool(counts[row, query])
            if not counted or not 0 < len(keys) <= max(1, int(0.75 * width)):
                continue
            key_values = values[row][:, keys].transpose(1, 2)  # [heads, width, keys]
            solved_weights = torch.linalg.lstsq(key_values, candidate[row, :, query, :, None]).solution[..., 0]
            own_weights = weights[row][:, query, keys]
            ratios[row][:, query, keys] = solved_weights / own_weights.clamp(min=1e-30)
            sizes = torch.linalg.svdvals(key_values)  # a token that is there twice has the same values twice
            apart = sizes[:, -1] > LEAST_SINGULAR_RATIO * sizes[:, 0]
            measurable[row][:, query, keys] = (own_weights > LEAST_WEIGHT) & apart[:, None]
    return ratios, measurable
