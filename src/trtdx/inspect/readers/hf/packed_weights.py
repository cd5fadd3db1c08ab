"""4-bit weights packed into words: which tool's layout it is, and how many weights share a scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtdx.inspect.readers.folder import ArtifactFolder
    from trtdx.inspect.readers.hf.weights import WeightSurvey

WORD_BITS = 32  # bits of one packed word
PACKED_BITS = (2, 3, 4, 8)


def put_packing_layout(folder: ArtifactFolder, survey: WeightSurvey) -> None:
    """Put the layout of qweight, qzeros and scales, where their shapes leave no doubt.

    AWQ packs along the outputs ([in, out * bits / 32]), GPTQ along the inputs ([in * bits / 32, out]);
    both have scales [in / group, out] and zeros [in / group, out * bits / 32].
    """
    parts = survey.layer_parts()
    for part, words in parts.items():
        stem = part.removesuffix("qweight")
        scales, zeros = parts.get(stem + "scales", ()), parts.get(stem + "qzeros", ())
        if part == stem or not len(words) == len(scales) == len(zeros) == 2 or not all(scales):
            continue
        layout = packing_layout(words, scales, zeros)
        if layout is not None:
            where = folder.path_of(survey.tensor_place(part))
            for name, value in zip(("packing", "packed_bits", "packed_group"), layout, strict=True):
                folder.facts.put(f"weights.{name}", value, where)
            return


def packing_layout(
    words: tuple[int, ...], scales: tuple[int, ...], zeros: tuple[int, ...]
) -> tuple[str, int, int] | None:
    """Return layout, bits and group size; None where the shapes fit neither layout."""
    groups, outputs = scales
    bits, rest = divmod(WORD_BITS * zeros[1], outputs)
    if rest or bits not in PACKED_BITS or zeros[0] != groups:
        return None
    if words[1] == zeros[1]:
        inputs, layout = words[0], "awq"
    elif words[1] == outputs:
        inputs, layout = words[0] * WORD_BITS // bits, "gptq"
    else:
        return None
    return None if inputs % groups else (layout, bits, inputs // groups)
