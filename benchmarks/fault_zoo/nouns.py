"""What the zoo is made of: faults, healthy pairs, and the closed list of causes."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

# One word for each mistake that the issue lists; a fault's cause is one of these and nothing else.
CAUSES = (
    "rope-interleaved", "rope-base", "rope-scaling", "position-off-by-one",
    "attention-scale", "mask-missing", "mask-padding", "mask-wrong", "sliding-window", "kv-head-mapping", "heads-permuted", "softmax-precision",
    "norm-epsilon", "norm-weight-missing", "norm-bias-missing", "norm-kind", "norm-plus-one",
    "activation-function", "gate-up-swapped",
    "weight-transposed", "shard-order", "shard-missing", "partial-sum", "reduced-twice", "bias-missing", "bias-per-rank",
    "embedding-scale", "head-not-tied", "vocabulary-offset", "residual-skipped", "residual-doubled",
    "fp16-overflow", "underflow", "saturation", "low-precision-accumulation",
    "quant-scale", "quant-granularity", "quant-zero-point", "int8-backend-saturation",
    "kv-cache-dtype", "kv-stale", "kv-wrong-page", "dropout-on", "rng",
    # More than the issue lists, which trtdx has pages for.
    "rope-share", "position-counts-padding", "softcap", "expert-routing", "expert-order", "shared-expert-missing",
    "other-checkpoint", "bias-of-another", "weights-of-another", "residual-normed",
)  # fmt: skip
ENGINES = ("torch", "onnxruntime", "tensorrt")
# What a fault or a pair may need of the machine.
SATURATES, EXACT = "int8 products that saturate", "int8 products that are exact"


class Question(NamedTuple):
    """What both sides are asked: rows of tokens (shorter ones are padded on the left), and how many steps."""

    lengths: tuple[int, ...] = (16,)
    steps: int = 2
    seed: int = 1

    def rows(self) -> list[list[int]]:
        from .models import prompt

        return [prompt(length, 100 * self.seed + row) for row, length in enumerate(self.lengths)]

    @property
    def key(self) -> str:
        return f"q{self.seed}-{'x'.join(map(str, self.lengths))}-{self.steps}"


class Sides(NamedTuple):
    """What `trtdx compare` is called with."""

    reference: str
    candidate: str


class Truth(NamedTuple):
    """Where a fault is: the first wrong tensor, and other names of the same tensor or of what holds nothing else."""

    module: str
    right: tuple[str, ...]  # any of these is the answer
    also: tuple[str, ...] = ()  # patterns; the same values at another module's border
    first_step: int = 0

    def strictly(self, where: dict[str, Any]) -> bool:
        return where.get("tensor") in self.right and self._in_time(where)

    def holds(self, where: dict[str, Any]) -> bool:
        """Whether an answer points at the planted place."""
        tensor, module = str(where.get("tensor", "")), str(where.get("module", ""))
        named = tensor in self.right or any(fnmatchcase(tensor, each) for each in self.also)
        inside = module == self.module and ":" not in tensor  # a tensor of a graph by its own name
        return (named or inside) and self._in_time(where)

    def _in_time(self, where: dict[str, Any]) -> bool:
        return int(where.get("step") or 0) >= self.first_step


class Fault(NamedTuple):
    """One planted mistake."""

    name: str
    causes: tuple[str, ...]  # the first is the truth; the others are other words for it that are as right
    architecture: str
    dtype: str  # the candidate's: fp32, fp16, bf16, int8
    engine: str
    given: str  # as what the candidate is given: folder, capture, onnx, ranks
    depth: str  # first, middle, last, all, none (outside the layers)
    truth: Truth
    question: Question
    make: Callable[[Any], Sides]  # with the workshop
    told: str = ""  # how much of it, in words
    needs: str = ""  # what the machine must be like

    @property
    def cause(self) -> str:
        return self.causes[0]


class Healthy(NamedTuple):
    """Two sides that differ in how they compute, not in what."""

    name: str
    kind: str  # dtype, engine, kernel, batch, fused, sharded, level, chunked, compiled, quantised, vocabulary, beams, stages
    architecture: str
    dtype: str
    engine: str
    question: Question
    make: Callable[[Any], Sides]
    needs: str = ""
