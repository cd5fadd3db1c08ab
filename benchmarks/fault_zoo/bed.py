"""Where faults are planted: helpers that turn one line of a list into a fault with its truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from . import ranks
from .models import ARCHITECTURES, Names, layer_of
from .nouns import CAUSES, Fault, Question, Sides, Truth
from .workshop import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")
DEPTHS = ("first", "middle", "last")
OPEN = {"onnxruntime": "onnx", "tensorrt": "trt"}


def names_of(architecture: str) -> Names:
    return ARCHITECTURES[architecture].names


def layer_path(architecture: str, number: int) -> str:
    return f"{names_of(architecture).layers}.{number}"


def part(architecture: str, number: int, name: str) -> str:
    """Return the path of a part of a layer by its role (a field of Names), e.g. "query" or "before_mlp"."""
    names, layer = names_of(architecture), layer_path(architecture, number)
    within = {"query": "attention", "key": "attention", "value": "attention", "output": "attention",
              "gate": "mlp", "up": "mlp", "down": "mlp"}.get(name)  # fmt: skip
    return ".".join([layer, *([getattr(names, within)] if within else []), getattr(names, name)])


# Truths.


def leaves(path: str, *also: str) -> Truth:
    return Truth(path, (f"{path}:out",), also)


def core(architecture: str, number: int, first_step: int = 0, *, cached: bool = False) -> Truth:
    """Between the projections of an attention: what enters the output projection."""
    attention, output = part(architecture, number, "attention"), part(architecture, number, "output")
    also = (
        f"{attention}:out",
        f"{attention}:out.0",
        *((f"present*.{number}.*", f"past*.{number}.*") if cached else ()),
    )
    return Truth(attention, (f"{output}:in",), also, first_step)


def of_norm(architecture: str, number: int, role: str) -> Truth:
    path, layer, names = (
        part(architecture, number, role),
        layer_path(architecture, number),
        names_of(architecture),
    )
    inside = f"{layer}.{names.attention if role == 'before_attention' else names.mlp}"
    return leaves(path, f"{inside}:in", f"{inside}:in.hidden_states", f"{inside}.*:in")


def last_norm(architecture: str) -> Truth:
    return leaves(names_of(architecture).last_norm, "lm_head:in")


def of_activation(architecture: str, number: int) -> Truth:
    mlp = part(architecture, number, "mlp")
    if architecture == "mixtral":
        right = (
            f"{mlp}.experts:out",
            f"{mlp}.experts.act_fn:out",
        )  # which is called once for each expert in use
        return Truth(f"{mlp}.experts.act_fn", right, (f"{mlp}.experts.act_fn*:out", f"{mlp}:out"))
    return leaves(f"{mlp}.{'act' if architecture == 'gpt2' else 'act_fn'}", f"{part(architecture, number, 'down')}:in")


def after_attention(architecture: str, number: int) -> Truth:
    return Truth(layer_path(architecture, number), (f"{part(architecture, number, 'before_mlp')}:in",))


def after_mlp(architecture: str, number: int) -> Truth:
    layer, names = layer_path(architecture, number), names_of(architecture)
    if number + 1 < ARCHITECTURES[architecture].count:
        following = layer_path(architecture, number + 1)
        also = (
            f"{following}:in",
            f"{following}:in.hidden_states",
            f"{following}.{names.before_attention}:in",
        )
    else:
        also = (f"{names.last_norm}:in",)
    return Truth(layer, (f"{layer}:out",), also)


def embedded(architecture: str) -> Truth:
    path, first = names_of(architecture).embedding, layer_path(architecture, 0)
    return leaves(
        path,
        f"{first}:in",
        f"{first}:in.hidden_states",
        f"{first}.{names_of(architecture).before_attention}:in",
    )


def of_head() -> Truth:
    return leaves("lm_head", "logits", ":out.logits", ":out")


def of_rotary(architecture: str, first_step: int = 0) -> Truth:
    path, first = names_of(architecture).rotary, layer_path(architecture, 0)
    also = (
        f"{first}:in.position_embeddings*",
        f"{first}.self_attn:in.position_embeddings*",
        f"{path}:out*",
        "cos*",
        "sin*",
    )
    return Truth(path, (f"{path}:out", f"{path}:out[1]"), also, first_step)


def of_mask(architecture: str, number: int) -> Truth:
    """A mask that is wrong before it enters a layer, or the attention that used it."""
    layer, attention = layer_path(architecture, number), part(architecture, number, "attention")
    right = (
        f"{layer}:in.attention_mask",
        f"{attention}:in.attention_mask",
        f"{part(architecture, number, 'output')}:in",
    )
    return Truth(attention, right, (f"{attention}:out",))


class Bed:
    """One variant of the zoo while it is filled."""

    def __init__(self, variant: int) -> None:
        self.variant = variant
        self.faults: list[Fault] = []
        self.question = self.pick(Question((16,), 2, 1), Question((19,), 2, 2))

    def pick(self, *choices: T) -> T:
        """Return the choice of this variant."""
        return choices[(self.variant - 1) % len(choices)]

    def layer(self, architecture: str, depth: str) -> int:
        """Return a layer at a depth; another variant turns the depths round and begins elsewhere."""
        count = ARCHITECTURES[architecture].count
        turned = DEPTHS[(DEPTHS.index(depth) + self.variant - 1) % len(DEPTHS)]
        return {"first": 0, "middle": count // 2 - (self.variant - 1), "last": count - 1}[turned]

    def add(self, cause: str | tuple[str, ...], architecture: str, dtype: str, engine: str, given: str, layer: int | None,
            truth: Truth, make: Callable[[Any, str], Sides], *, question: Question | None = None, told: str = "",
            needs: str = "", every: bool = False) -> None:  # fmt: skip
        causes = (cause,) if isinstance(cause, str) else cause
        assert set(causes) <= set(CAUSES), causes
        count = ARCHITECTURES[architecture].count
        depth = (
            "all"
            if every
            else "none"
            if layer is None
            else "first"
            if not layer
            else "last"
            if layer == count - 1
            else "middle"
        )
        where = "all" if every else "x" if layer is None else str(layer)
        stem = f"{causes[0]}-{architecture}-{dtype}-{ {'onnx': engine}.get(given, given) }-{where}"
        name = f"{self.variant}-{stem}"
        taken = {each.name for each in self.faults}
        while name in taken:
            name += "+"
        fault = Fault(name, causes, architecture, dtype, engine, given, depth, truth, question or self.question,
                      lambda shop: make(shop, name), told, needs)  # fmt: skip
        self.faults.append(fault)

    def folder(self, cause: str | tuple[str, ...], architecture: str, dtype: str, layer: int | None, truth: Truth,
               change: Callable[[Any], None], **more: Any) -> None:  # fmt: skip
        """A Hugging Face folder with other weights; `change` gets the model."""

        def make(shop: Any, name: str) -> Sides:
            changed = shop.changed(name, architecture, change)
            return Sides(f"hf:{shop.healthy(architecture)}", f"hf:{changed}?dtype={DTYPES[dtype]}&attention=eager")

        self.add(cause, architecture, dtype, "torch", "folder", layer, truth, make, **more)

    def config(self, cause: str, architecture: str, dtype: str, layer: int | None, truth: Truth, settings: dict[str, Any],
               **more: Any) -> None:  # fmt: skip
        """A Hugging Face folder with the same weights and another config."""

        def make(shop: Any, name: str) -> Sides:
            changed = shop.configured(name, architecture, **settings)
            return Sides(f"hf:{shop.healthy(architecture)}", f"hf:{changed}?dtype={DTYPES[dtype]}&attention=eager")

        self.add(cause, architecture, dtype, "torch", "folder", layer, truth, make, told=str(settings), **more)

    def same_folder(self, cause: str, architecture: str, dtype: str, layer: int, truth: Truth, change: Callable[[Any], None],
                    **more: Any) -> None:  # fmt: skip
        """Healthy weights on both sides that a small type cannot compute with."""

        def make(shop: Any, name: str) -> Sides:
            both = shop.changed(name, architecture, change)
            return Sides(f"hf:{both}", f"hf:{both}?dtype={DTYPES[dtype]}&attention=eager")

        self.add(cause, architecture, dtype, "torch", "folder", layer, truth, make, **more)

    def capture(self, cause: str | tuple[str, ...], architecture: str, dtype: str, layer: int | None, truth: Truth,
                patch: Callable[[Any], None], **more: Any) -> None:  # fmt: skip
        """The capture of a patched module's run; `patch` gets the layer, or the model where there is none."""
        question = more.get("question") or self.question

        def make(shop: Any, name: str) -> Sides:
            source = shop.healthy(architecture)

            def model() -> Any:
                loaded = shop.loaded(source, dtype)
                patch(loaded if layer is None else layer_of(loaded, layer))
                return loaded

            return Sides(f"hf:{source}", str(shop.captured(name, model, question, shop.tokens(source, question))))

        self.add(cause, architecture, dtype, "torch", "capture", layer, truth, make, **more)

    def onnx(self, cause: str | tuple[str, ...], architecture: str, dtype: str, engine: str, layer: int | None, truth: Truth,
             change: Callable[[Any], None], **more: Any) -> None:  # fmt: skip
        """An exported graph with something changed, on ONNX Runtime or as TensorRT's network."""
        export = "fp32" if dtype == "int8" else dtype
        base: Callable[[Any], Path] | None = more.pop("base", None)
        before: Callable[[Any], str] | None = more.pop("reference", None)

        def make(shop: Any, name: str) -> Sides:
            source = base(shop) if base else shop.onnx(architecture, export)
            changed = shop.operated(name, source, change)
            reference = before(shop) if before else f"hf:{shop.healthy(architecture)}"
            return Sides(reference, f"{OPEN[engine]}:{changed}")

        self.add(cause, architecture, dtype, engine, "onnx", layer, truth, make, **more)

    def ranks(
        self,
        cause: str,
        architecture: str,
        dtype: str,
        layer: int,
        path: str,
        *,
        mistake: Any = None,
        swap: bool = False,
    ) -> None:
        """A run of two ranks with one module that sums wrongly, or takes the other rank's share."""

        def make(shop: Any, name: str) -> Sides:
            told = {"mistakes": {path: mistake}} if mistake else {"taken": {path: 1}}
            capture = ranks.captured_ranks(shop, name, architecture, dtype, self.question, **told)  # type: ignore[arg-type]
            return Sides(f"hf:{shop.healthy(architecture)}", str(capture))

        self.add(cause, architecture, dtype, "torch", "ranks", layer, leaves(path), make)
