"""Rotary embeddings: which channels are rotated together, at which frequencies, and from which position."""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.module_bench import Mistake
from trtdx.compare.attribute.module_copies import override_attributes
from trtdx.compare.attribute.scalar_fit import fit_scalar
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.compare.attribute.module_bench import ModuleBench, Outputs, Tensor

    ApplyRotary = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    RotaryFunction = Callable[[ApplyRotary, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

ROPE_BASES = (100.0, 1e3, 5e3, 1e4, 2.5e4, 5e4, 1e5, 2.5e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1e8)
SCALING_FACTORS = (0.125, 0.25, 0.5, 2.0, 4.0, 8.0, 16.0, 32.0, 40.0)
POSITION_OFFSETS = (-2, -1, 1, 2)
ROTARY_WIDTH_ATTRIBUTES = (
    "rotary_ndims",
    "rotary_dim",
)  # where an attention itself cuts what is turned off each head
LLAMA3_SCALINGS = ((8.0, 1.0, 4.0, 8192.0), (32.0, 1.0, 4.0, 8192.0))


class RotaryAngles(NamedTuple):
    """How the reference makes its cosines and sines."""

    frequencies: Tensor  # radians a position, one for each pair
    factor: float  # of cosines and sines
    positions: Tensor  # [batch, sequence]
    layout: str  # of cosines: "halves", "paired", or "single", one for each pair
    base: float

    def cos_sin(
        self,
        *,
        positions: Tensor | None = None,
        frequencies: Tensor | None = None,
        factor: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        at = self.positions if positions is None else positions
        turned = at[..., None].double() * (self.frequencies if frequencies is None else frequencies)
        both = _expand_pairs(turned, self.layout)
        grown = self.factor if factor is None else factor
        return both.cos() * grown, both.sin() * grown


def _expand_pairs(angles: Tensor, layout: str) -> Tensor:
    if layout == "single":
        return angles
    return angles.repeat_interleave(2, -1) if layout == "paired" else torch.cat((angles, angles), -1)


def rotary_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield what could be wrong with rotary embeddings: in the module that makes them, or where they are used."""
    if _is_rotary_module(bench.module):
        yield from _rotary_module_mistakes(bench)
    elif _rotary_functions(bench.module):
        yield from _rotary_use_mistakes(bench)


def _is_rotary_module(module: Any) -> bool:
    return bool(_frequency_prefixes(module)) and not list(module.children())


def _frequency_prefixes(module: Any) -> list[str]:
    """Return the prefixes of a module's frequency buffers: one for each kind of layer, or ""."""
    names = [name for name, _ in module.named_buffers(recurse=False)] + ["inv_freq"]
    return [
        name.removesuffix("inv_freq")
        for name in dict.fromkeys(names)
        if name.endswith("inv_freq") and "original" not in name and hasattr(module, name)
    ]


def _rotary_module_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    names = [name for name in (f"{bench.path}:out", f"{bench.path}:out[1]") if name in bench.truth]
    truth = bench.truth
    positions = next((tensor for tensor in bench.inputs.values() if not tensor.is_floating_point()), None)
    if positions is None or not names:
        return
    single = len(names) == 1  # complex numbers, as pairs of real ones
    if single and truth[names[0]].shape[-1] != 2:
        return
    cosine, sine = truth[names[0]].unbind(-1) if single else (truth[names[0]], truth[names[1]])
    angles = _identify_angles(bench.module, positions, cosine, sine)
    if angles is None:
        return

    def outputs(cosine: Tensor, sine: Tensor) -> Outputs:
        if single:
            return bench.with_outputs({names[0]: torch.stack((cosine, sine), -1)})
        return bench.with_outputs({names[0]: cosine, names[1]: sine})

    yield from _angle_mistakes(bench, angles, outputs)


def _rotary_functions(module: Any) -> dict[str, Any]:
    """Return the functions that rotate queries and keys, where the module's own code looks them up."""
    space = getattr(type(module).forward, "__globals__", {})
    return {
        name: function
        for name, function in space.items()
        if name.startswith("apply_") and "rotary" in name and callable(function)
    }


@contextmanager
def replace_rotary(bench: ModuleBench, rotary: RotaryFunction) -> Iterator[None]:
    """Rotate queries and keys by `turn` inside the block; it is given the module's own function."""
    space = type(bench.module).forward.__globals__
    with ExitStack() as undo:
        for name, function in _rotary_functions(bench.module).items():
            space[name] = _wrap_rotary_function(function, rotary)
            undo.callback(space.__setitem__, name, function)
        yield


def _wrap_rotary_function(function: Any, turn: RotaryFunction) -> Any:
    """Return what a module calls in the place of its function; complex tables are given as cosines and sines."""

    def turned(q: Tensor, k: Tensor, cos: Tensor, *more: Any, **named: Any) -> Any:
        if cos.is_complex():
            return turn(
                lambda q, k, cos, sin: function(q, k, torch.complex(cos, sin), *more, **named),
                q, k, cos.real, cos.imag,
            )  # fmt: skip
        sin, *rest = more
        return turn(lambda q, k, cos, sin: function(q, k, cos, sin, *rest, **named), q, k, cos, sin)

    return turned


def _run_with_rotary(bench: ModuleBench, rotary: RotaryFunction) -> Outputs:
    with replace_rotary(bench, rotary):
        return bench.run()


def _rotary_use_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    rotary_calls: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def watching(rotate: ApplyRotary, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
        rotary_calls.append((q, k, cos, sin))
        return rotate(q, k, cos, sin)

    _run_with_rotary(bench, watching)
    if not rotary_calls:
        return
    q, _, cos, sin = rotary_calls[0]
    yield from _pair_layout_mistakes(bench, q.shape[-1], cos.shape[-1])
    yield from _partial_rotation_mistakes(bench, q.shape[-1], cos.shape[-1])
    for maker in (module for module in bench.model.modules() if _is_rotary_module(module)):
        angles = _identify_angles(maker, _position_ids(bench, cos), cos, sin)
        if angles is not None:
            yield from _angle_mistakes(
                bench,
                angles,
                lambda cos, sin: _run_with_rotary(bench, _rotary_with_expanded_tables(cos, sin)),
            )
            yield from _single_side_mistakes(bench, angles)
            yield from _wider_rotation_mistakes(bench, angles, q.shape[-1])
            return


def _wider_rotation_mistakes(bench: ModuleBench, angles: RotaryAngles, width: int) -> Iterator[Mistake]:
    """Yield a rotation of a larger part of each head than it should be."""
    turned = 2 * angles.frequencies.shape[0]
    cut = next((name for name in ROTARY_WIDTH_ATTRIBUTES if getattr(bench.module, name, 0) == turned == width), "")
    width = getattr(bench.module, "head_dim", width) if cut else width
    for size in sorted({2 * turned, 4 * turned, width}):
        if turned < size <= width and size % 2 == 0:
            steps = torch.arange(0, size, 2, dtype=torch.float64) / size
            tables = angles.cos_sin(frequencies=angles.base**-steps)
            values = {"found": f"{size} of {width}", "expected": f"{turned} of {width}"}
            how = f"{size} of {width} numbers of each head turned"
            with override_attributes(bench.module, **({cut: size} if cut else {})):
                got = _run_with_rotary(bench, _rotary_with_expanded_tables(*tables))
            yield Mistake("DX964", got, values, how)


def _rotary_with_expanded_tables(cosine: Tensor, sine: Tensor) -> RotaryFunction:
    """Return a rotation by other cosines and sines, of any width."""

    def turn(rotate: ApplyRotary, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
        shape = (*cos.shape[:-1], cosine.shape[-1])
        return rotate(q, k, cosine.to(cos.dtype).expand(shape), sine.to(sin.dtype).expand(shape))

    return turn


def _single_side_mistakes(bench: ModuleBench, angles: RotaryAngles) -> Iterator[Mistake]:
    """Yield queries or keys alone rotated for another position, or at other frequencies."""

    def one(which: str, cosine: Tensor, sine: Tensor) -> RotaryFunction:
        def turn(rotate: ApplyRotary, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
            shifted, right = (
                _rotary_with_expanded_tables(cosine, sine)(rotate, q, k, cos, sin),
                rotate(q, k, cos, sin),
            )
            return (shifted[0], right[1]) if which == "queries" else (right[0], shifted[1])

        return turn

    for which in ("queries", "keys"):
        for offset in POSITION_OFFSETS:
            got = _run_with_rotary(bench, one(which, *angles.cos_sin(positions=angles.positions + offset)))
            description = f"positions of {which} alone shifted by {offset:+d}"
            yield Mistake("DX965", got, {"offset": f"{offset:+d}", "which": which}, description, freedom=0.3)


def _pair_layout_mistakes(bench: ModuleBench, width: int, rotary_width: int) -> Iterator[Mistake]:
    """Yield rotation of adjacent channels instead of the two halves, or the reverse."""
    size = min(width, rotary_width)
    pairs = torch.cat((torch.arange(0, size, 2), torch.arange(1, size, 2)))
    for order, layout in ((pairs, "interleaved"), (torch.argsort(pairs), "in halves")):
        there = torch.cat((order, torch.arange(size, width)))
        back = torch.argsort(there)

        def turn(
            rotate: ApplyRotary,
            q: Tensor,
            k: Tensor,
            cos: Tensor,
            sin: Tensor,
            there: Tensor = there,
            back: Tensor = back,
        ) -> Any:
            q, k = rotate(q[..., there], k[..., there], cos, sin)
            return q[..., back], k[..., back]

        values = {"found": layout, "expected": "in halves" if layout == "interleaved" else "interleaved"}
        yield Mistake("DX961", _run_with_rotary(bench, turn), values, f"pairs of numbers taken {layout}")

    for which in ("queries and keys", "queries", "keys"):
        values = {"found": f"backwards ({which})", "expected": "forwards"}
        got = _run_with_rotary(bench, _rotary_backwards(which))
        yield Mistake("DX961", got, values, f"{which} turned by the negative angle")
    values = {"found": "without the minus of the one half", "expected": "with it"}
    yield Mistake(
        "DX961",
        _run_with_rotary(bench, _rotate_without_minus),
        values,
        "the half that is turned in is not negated",
    )


def _rotate_without_minus(rotate: ApplyRotary, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    """Return the rotation without the minus sign: a * cos + b * sin, b * cos + a * sin."""
    none, one = torch.zeros_like(sin), torch.ones_like(sin)
    still, right = rotate(q, k, cos, none), rotate(q, k, cos, sin)
    crossed, plain = (rotate(q.abs(), k.abs(), none, sine) for sine in (one, none))
    return tuple(
        unrotated + torch.where(cross < bare, -1.0, 1.0).to(unrotated.dtype) * (rotated - unrotated)
        for unrotated, rotated, cross, bare in zip(still, right, crossed, plain, strict=True)
    )


def _rotary_backwards(which: str) -> RotaryFunction:
    def turn(rotate: ApplyRotary, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
        right, other = (rotate(q, k, cos, sine) for sine in (sin, -sin))
        return tuple(other[at] if name in which else right[at] for at, name in enumerate(("queries", "keys")))

    return turn


def _partial_rotation_mistakes(bench: ModuleBench, width: int, rotary_width: int) -> Iterator[Mistake]:
    """Yield rotation of nothing, of queries or keys alone, or of another part of each head."""

    def one(which: str) -> RotaryFunction:
        def turn(rotate: ApplyRotary, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
            new_q, new_k = rotate(q, k, cos, sin)
            still = rotate(q, k, torch.ones_like(cos), torch.zeros_like(sin))
            return (new_q if which == "queries" else still[0]), (new_k if which == "keys" else still[1])

        return turn

    for which in ("queries", "keys", "nothing"):
        description = "nothing" if which == "nothing" else f"only {which}"
        values = {"found": description, "expected": f"{rotary_width} of {width}"}
        yield Mistake("DX964", _run_with_rotary(bench, one(which)), values, f"{description} turned")
    for size in sorted({rotary_width // 4, rotary_width // 2, 3 * rotary_width // 4} - {0}):
        if size % 2:
            continue
        values = {"found": f"{size} of {width}", "expected": f"{rotary_width} of {width}"}
        for stretched in (True, False) if rotary_width % size == 0 else (False,):
            how = f"only {size} of {width} numbers of each head turned"
            yield Mistake("DX964", _run_with_rotary(bench, _rotary_of_first(size, stretched=stretched)), values, how)


def _rotary_of_first(size: int, *, stretched: bool) -> RotaryFunction:
    """Return a rotation of the first channels of each head, at the frequencies of a head of that size or at the first ones."""

    def turn(rotate: ApplyRotary, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
        half = cos.shape[-1] // 2
        chosen = torch.arange(0, half, half * 2 // size) if stretched else torch.arange(size // 2)
        both = torch.cat((chosen, chosen))
        new_q, new_k = rotate(q[..., :size], k[..., :size], cos[..., both], sin[..., both])
        return torch.cat((new_q, q[..., size:]), -1), torch.cat((new_k, k[..., size:]), -1)

    return turn


def _position_ids(bench: ModuleBench, cos: Tensor) -> Tensor:
    position_ids = bench.inputs.get("in.position_ids")
    if position_ids is not None:
        return position_ids
    length = cos.shape[-2]
    before = max((tensor.shape[-2] for tensor in bench.past.values()), default=0)
    return torch.arange(before, before + length)[None]


def _identify_angles(maker: Any, positions: Tensor, cos: Tensor, sin: Tensor) -> RotaryAngles | None:
    """Return how a module makes its angles, if it makes these."""
    for kind, layout in product(_frequency_prefixes(maker), ("halves", "paired", "single")):
        speeds = getattr(maker, f"{kind}inv_freq").detach().double()
        factor = float(getattr(maker, f"{kind}attention_scaling", 1.0))
        angles = RotaryAngles(speeds, factor, positions, layout, _rope_base(maker, kind))
        tables = angles.cos_sin()
        if tables[0].shape[-1] == cos.shape[-1] and tables[0].shape[-2] == cos.shape[-2]:
            gap = max(float((tables[0] - cos.double()).abs().max()), float((tables[1] - sin.double()).abs().max()))
            if gap < 0.05:  # the candidate's own may be rounded
                return angles
    return None


def _angle_mistakes(
    bench: ModuleBench, angles: RotaryAngles, outputs: Callable[[Tensor, Tensor], Outputs]
) -> Iterator[Mistake]:
    pairs = angles.frequencies.shape[0]
    steps = torch.arange(pairs, dtype=torch.float64) / pairs
    own_base = angles.base

    def with_base(base: float) -> Outputs:
        return outputs(*angles.cos_sin(frequencies=base**-steps, factor=1.0))

    base, best_outputs = fit_scalar(bench, ROPE_BASES, with_base, rounds=24, exact=ROPE_BASES)
    values = {"found": f"{base:.6g}", "expected": f"{own_base:.6g}"}
    if pairs > 1 and abs(math.log(base / own_base)) > 1e-3:
        yield Mistake("DX962", best_outputs, values, "angles of another base", freedom=0.5 if base in ROPE_BASES else 1)
    yield from _rope_scaling_mistakes(bench, angles, outputs, own_base, steps)
    for offset in POSITION_OFFSETS:
        shifted = outputs(*angles.cos_sin(positions=angles.positions + offset))
        yield Mistake("DX965", shifted, {"offset": f"{offset:+d}"}, f"positions shifted by {offset:+d}")
    counted_positions = (
        torch.arange(angles.positions.shape[-1])[None].expand_as(angles.positions) + angles.positions.min()
    )
    if not torch.equal(counted_positions, angles.positions) and angles.positions.shape[-1] > 1:
        counted = outputs(*angles.cos_sin(positions=counted_positions))
        yield Mistake("DX966", counted, {}, "positions counted from the first column, padding included")


def _rope_base(maker: Any, kind: str) -> float:
    """Return the rotary base from a model's settings for a kind of layer, otherwise from its second frequency."""
    config = getattr(maker, "config", None)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if isinstance(rope, dict) and isinstance(rope.get(kind.rstrip("_")), dict):
        rope = rope[kind.rstrip("_")]
    base = (rope.get("rope_theta") if isinstance(rope, dict) else None) or getattr(config, "rope_theta", None)
    if isinstance(base, (int, float)):
        return float(base)
    speeds = getattr(maker, f"{kind}inv_freq")
    return float(speeds[1]) ** -speeds.shape[0] if speeds.shape[0] > 1 else 1e4


def _rope_scaling_mistakes(
    bench: ModuleBench,
    angles: RotaryAngles,
    outputs: Callable[[Tensor, Tensor], Outputs],
    base: float,
    steps: Tensor,
) -> Iterator[Mistake]:
    plain = base**-steps
    scaled = bool(((angles.frequencies / plain - 1).abs() > 1e-3).any()) or abs(angles.factor - 1) > 1e-6
    expected = "scaled" if scaled else "none"
    if scaled:
        values = {"expected": expected, "found": "none"}
        how = "angles without scaling"
        yield Mistake("DX963", outputs(*angles.cos_sin(frequencies=plain, factor=1.0)), values, how)
    if abs(angles.factor - 1) > 1e-6:
        values = {"expected": f"{angles.factor:.4g}", "found": "1"}
        yield Mistake("DX963", outputs(*angles.cos_sin(factor=1.0)), values, "cosines and sines without their factor")

    def linear(factor: float) -> Outputs:
        return outputs(*angles.cos_sin(frequencies=angles.frequencies / factor))

    factor, best_outputs = fit_scalar(bench, SCALING_FACTORS, linear, rounds=16, exact=range(2, 65))
    values = {"expected": expected, "found": f"linear by {factor:.4g}"}
    yield Mistake("DX963", best_outputs, values, "positions divided by a factor", freedom=1)
    for grown, low, high, original in LLAMA3_SCALINGS:
        speeds = _llama3_frequencies(plain, grown, low, high, original)
        values = {"expected": expected, "found": f"llama3 by {grown:g}"}
        yield Mistake(
            "DX963",
            outputs(*angles.cos_sin(frequencies=speeds)),
            values,
            f"angles scaled like Llama 3 by {grown:g}",
        )


def _llama3_frequencies(frequencies: Tensor, factor: float, low: float, high: float, original: float) -> Tensor:
    """Return frequencies as Llama 3.1 scales them: low ones divided, high ones kept, a blend in between."""
    turns = original * frequencies / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies / factor * (1 - blend) + frequencies * blend
