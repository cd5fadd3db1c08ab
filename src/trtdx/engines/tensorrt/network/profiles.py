"""Optimization profiles as text and as tables: `input_ids:1x1,2x32,4x128`, several inputs apart by blanks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from trtdx.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trtdx.engines.tensorrt.build.nouns import Binding, Shape, ShapeProfile

PROFILE_FORM = "name:MINxMIN,OPTxOPT,MAXxMAX, such as input_ids:1x1,2x32,4x128"
_INPUT_SHAPES = re.compile(r"(?P<name>\S+):(?P<shapes>[\dx,]*)")


def parse_profile(text: str) -> ShapeProfile:
    """Return the profile that a text states; one shape stands for all three."""
    profile: ShapeProfile = {}
    for part in re.split(r"[\s;]+", text.strip()):
        match = _INPUT_SHAPES.fullmatch(part)
        shapes = [_parse_profile_shape(shape, part) for shape in match["shapes"].split(",")] if match else []
        if not match or len(shapes) not in (1, 3):
            raise InputError(f"{part!r} gives no min, opt and max shape", fix=f"write {PROFILE_FORM}")
        if match["name"] in profile:
            raise InputError(f"the profile gives shapes for {match['name']} twice")
        profile[match["name"]] = _min_opt_max(shapes)
    return profile


def _parse_profile_shape(text: str, part: str) -> Shape:
    if text and not re.fullmatch(r"\d{1,10}(x\d{1,10})*", text):
        raise InputError(f"{text!r} in {part!r} is not a shape", fix=f"write {PROFILE_FORM}")
    return tuple(int(size) for size in text.split("x") if size)


def profile_from_argument(argument: str | Mapping[str, object]) -> ShapeProfile:
    """Return a profile however it was given."""
    if isinstance(argument, str):
        return parse_profile(argument)
    profile: ShapeProfile = {}
    for name, shapes in argument.items():
        try:
            three = [tuple(int(size) for size in shape) for shape in cast("Iterable[Iterable[int]]", shapes)]
        except (TypeError, ValueError) as err:
            raise InputError(f"the shapes of {name} are {shapes!r}", fix="give (min, opt, max)") from err
        if len(three) != 3:
            raise InputError(f"{name} has {len(three)} shapes", fix="give three: (min, opt, max)")
        profile[name] = _min_opt_max(three)
    return profile


def _min_opt_max(shapes: Sequence[Shape]) -> tuple[Shape, Shape, Shape]:
    first, *rest = shapes
    return (first, *rest) if len(rest) == 2 else (first, first, first)  # type: ignore[return-value]


def check_profiles(profiles: Sequence[ShapeProfile], inputs: Sequence[Binding]) -> None:
    """Refuse what TensorRT takes without a word or tells without saying where: unknown and left-out inputs."""
    names = [binding.name for binding in inputs]
    for number, profile in enumerate(profiles):
        for name in profile:
            if name not in names:
                raise _unknown_input_error(number, name, names)
    dynamic = [binding for binding in inputs if any(isinstance(dim, str) for dim in binding.dims)]
    for number, profile in enumerate(profiles or [{}] if dynamic else []):
        lacking = [binding for binding in dynamic if binding.name not in profile]
        if lacking:
            where = f"profile {number} has no" if profiles else "there is no profile with"
            input_texts = ", ".join(f"{binding.name} ({', '.join(map(str, binding.dims))})" for binding in lacking)
            raise InputError(
                f"{where} shapes for the dynamic inputs {input_texts}",
                fix=f"add {' '.join(map(_profile_example, lacking))}",
            )


def _unknown_input_error(number: int, name: str, names: Sequence[str]) -> InputError:
    near = UnknownNameError("input", name, names).fix
    return InputError(
        f"profile {number} gives shapes for {name}, which is not an input of the network",
        fix=f"{near or 'leave it out'}; the inputs are {', '.join(names) or 'none'}",
    )


def _profile_example(binding: Binding) -> str:
    shapes = [
        "x".join(str(dim) if isinstance(dim, int) else size for dim in binding.dims) for size in ("MIN", "OPT", "MAX")
    ]
    return f"{binding.name}:{','.join(shapes)}"
