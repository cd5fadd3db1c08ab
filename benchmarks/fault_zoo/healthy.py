"""Pairs with nothing wrong: the same model in another type, engine, kernel, batch, layout, or cut into parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import layouts, quantised, ranks
from .models import ARCHITECTURES
from .nouns import EXACT, Healthy, Question, Sides
from .workshop import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Orchard:
    """One variant of the healthy pairs while it is filled."""

    def __init__(self, variant: int) -> None:
        self.variant = variant
        self.pairs: list[Healthy] = []
        self.question = Question((16,), 2, 1) if variant == 1 else Question((19,), 3, 2)
        self.padded = Question((16, 11), 2, variant) if variant == 1 else Question((9, 14, 12), 2, variant)

    def add(self, kind: str, architecture: str, dtype: str, engine: str, make: Callable[[Any, str], Sides], *,
            question: Question | None = None, told: str = "", needs: str = "") -> None:  # fmt: skip
        name = f"{self.variant}-{kind}-{architecture}-{dtype}-{engine}{'-' + told if told else ''}"
        self.pairs.append(
            Healthy(
                name,
                kind,
                architecture,
                dtype,
                engine,
                question or self.question,
                lambda shop: make(shop, name),
                needs,
            )
        )

    def folder(
        self, kind: str, architecture: str, dtype: str, attention: str, *, question: Question | None = None
    ) -> None:
        def make(shop: Any, name: str) -> Sides:
            source = f"hf:{shop.healthy(architecture)}"
            return Sides(source, f"{source}?dtype={DTYPES[dtype]}&attention={attention}")

        self.add(kind, architecture, dtype, "torch", make, question=question, told=attention)

    def graph(
        self,
        kind: str,
        architecture: str,
        dtype: str,
        engine: str,
        *,
        reference: str = "",
        options: str = "",
        question: Question | None = None,
    ) -> None:
        """An export on an engine against the folder, or against the same export on another engine."""

        def make(shop: Any, name: str) -> Sides:
            path = shop.onnx(architecture, dtype)
            first = f"{reference}:{path}" if reference else f"hf:{shop.healthy(architecture)}"
            return Sides(first, f"{engine}:{path}{options}")

        full = {"onnx": "onnxruntime", "trt": "tensorrt"}[engine]
        self.add(
            kind,
            architecture,
            dtype,
            full,
            make,
            question=question,
            told=reference + options.partition("=")[2],
        )

    def captured(self, kind: str, architecture: str, dtype: str, *, told: str = "", question: Question | None = None,
                 ran: Question | None = None, change: Any = None, **how: Any) -> None:  # fmt: skip
        """A capture of another run (`ran`), or of the same run in another layout (`change`)."""
        asked = question or self.question

        def make(shop: Any, name: str) -> Sides:
            source, run = shop.healthy(architecture), ran or asked
            made = shop.captured(
                f"{name}-plain" if change else name,
                lambda: shop.loaded(source, dtype),
                run,
                shop.tokens(source, run),
                **how,
            )
            if change:
                made = shop.once(f"captures/{name}", lambda path: layouts.rewritten(made, path, change))
            return Sides(f"hf:{source}", str(made))

        self.add(kind, architecture, dtype, "torch", make, question=question, told=told)

    def chunked(self, architecture: str, dtype: str, first: int) -> None:
        """The prompt's end comes token by token."""
        asked = self.question

        def make(shop: Any, name: str) -> Sides:
            from .workshop import record

            source, row = shop.healthy(architecture), asked.rows()[0]
            forced = [[token] for token in row[first:]] + shop.tokens(source, asked)

            def write(path: Path) -> None:
                record(path, shop.loaded(source, dtype), [row[:first]], forced, name)

            return Sides(f"hf:{source}", str(shop.once(f"captures/{name}", write)))

        self.add("chunked", architecture, dtype, "torch", make)

    def stages(self, architecture: str, dtype: str, *, local: bool) -> None:
        """Two stages of a pipeline, whose layers may be counted from 0 in each."""
        asked = self.question

        def make(shop: Any, name: str) -> Sides:
            source = shop.healthy(architecture)
            whole = shop.captured(
                f"{name}-plain", lambda: shop.loaded(source, dtype), asked, shop.tokens(source, asked)
            )
            made = shop.once(f"captures/{name}", lambda path: layouts.in_stages(whole, path, local=local))
            return Sides(f"hf:{source}", str(made))

        self.add("stages", architecture, dtype, "torch", make, told="local" if local else "")

    def sharded(self, architecture: str, dtype: str) -> None:
        def make(shop: Any, name: str) -> Sides:
            capture = ranks.captured_ranks(shop, name, architecture, dtype, self.question)
            return Sides(f"hf:{shop.healthy(architecture)}", str(capture))

        self.add("sharded", architecture, dtype, "torch", make)

    def in_int8(self, architecture: str, engine: str) -> None:
        def make(shop: Any, name: str) -> Sides:
            path = shop.operated(f"{architecture}-int8", shop.onnx(architecture), quantised.weights_in_int8)
            return Sides(f"hf:{shop.healthy(architecture)}", f"{engine}:{path}")

        self.add("quantised", architecture, "int8", {"onnx": "onnxruntime", "trt": "tensorrt"}[engine], make)

    def both_in_int8(self, architecture: str, reference: str, candidate: str, options: str = "") -> None:
        """The same quantised file on two engines, of which one may quantise what enters a product too."""

        def make(shop: Any, name: str) -> Sides:
            path = shop.operated(f"{architecture}-int8", shop.onnx(architecture), quantised.weights_in_int8)
            return Sides(f"{reference}:{path}", f"{candidate}:{path}{options}")

        engine = {"onnx": "onnxruntime", "trt": "tensorrt"}[candidate]
        self.add("quantised", architecture, "int8", engine, make, told=f"{reference}{options.partition('=')[2]}")

    def one_layer_in_integers(self, architecture: str, path: str) -> None:
        """A linear layer computed in 8 bits by ONNX Runtime: right where the processor does it exactly."""

        def make(shop: Any, name: str) -> Sides:
            made = shop.operated(name, shop.onnx(architecture), lambda model: quantised.computed_in_int8(model, path))
            return Sides(f"hf:{shop.healthy(architecture)}", f"onnx:{made}")

        self.add("quantised", architecture, "int8", "onnxruntime", make, told="integers", needs=EXACT)


def grown(variant: int) -> list[Healthy]:
    """Return the healthy pairs of a variant."""
    orchard = Orchard(variant)
    for name in ARCHITECTURES:
        orchard.folder("dtype", name, "bf16", "eager")
        orchard.folder("dtype", name, "fp16", "eager")
        if name != "gemma2":  # has eager attention only
            orchard.folder("kernel", name, "fp32", "eager")
        orchard.graph("engine", name, "fp32", "onnx")
        orchard.graph("engine", name, "fp32", "trt")
        orchard.sharded(name, "fp32" if name in ("gpt2", "mixtral") else "bf16")
    for name in ("llama", "gpt2", "deepseek") if variant == 1 else ("qwen2", "gemma2", "mixtral"):
        if name != "gemma2":
            orchard.folder("kernel", name, "bf16", "sdpa")
        orchard.folder("batch", name, "bf16", "eager", question=orchard.padded)
        orchard.graph("batch", name, "fp32", "onnx", question=orchard.padded)
        orchard.captured("batch", name, "fp32", told="more padding", padding=4)
    for name in ("llama", "qwen2", "gpt2"):
        orchard.graph("engine", name, "fp16", "onnx")
        orchard.graph("engine", name, "fp32", "trt", reference="onnx")
        orchard.graph("level", name, "fp32", "onnx", reference="onnx", options="?level=none")
        orchard.in_int8(name, "onnx")
    orchard.graph("engine", "llama", "bf16", "trt")
    orchard.graph("engine", "qwen2", "fp16", "trt")
    orchard.graph("level", "llama", "fp16", "onnx", options="?level=basic")
    orchard.in_int8("gemma2", "onnx")
    orchard.in_int8("deepseek", "trt")
    orchard.both_in_int8("gpt2", "onnx", "trt")
    orchard.both_in_int8("llama", "trt", "onnx")
    orchard.both_in_int8("qwen2", "onnx", "onnx", "?level=none")
    for name, path in (("llama", "model.layers.2.mlp.down_proj"), ("gpt2", "transformer.h.1.mlp.c_fc")):
        orchard.one_layer_in_integers(name, path)
    _layouts(orchard)
    return orchard.pairs


def _layouts(orchard: Orchard) -> None:
    wider = orchard.question._replace(lengths=(*orchard.question.lengths, 11))
    for name, dtype in (("llama", "bf16"), ("mixtral", "fp32")):
        orchard.captured("batch", name, dtype, told="one row of two", ran=wider)
    for name, dtype in (("llama", "bf16"), ("qwen2", "fp16"), ("gemma2", "fp32"), ("deepseek", "bf16")):
        orchard.captured("fused", name, dtype, change=layouts.fused)
    for name, dtype in (("llama", "bf16"), ("gpt2", "fp32"), ("qwen2", "fp16")):
        orchard.captured("packed", name, dtype, change=layouts.packed, question=orchard.padded)
    for name, dtype, first in (
        ("llama", "fp32", 10),
        ("qwen2", "bf16", 12),
        ("gpt2", "fp32", 13),
        ("gemma2", "bf16", 8),
    ):
        orchard.chunked(name, dtype, first)
    for name, dtype in (("llama", "fp16"), ("gpt2", "fp32"), ("mixtral", "bf16")):
        orchard.captured("vocabulary", name, dtype, change=layouts.wider_vocabulary)
    for name, dtype in (("llama", "bf16"), ("qwen2", "fp32"), ("gpt2", "fp16")):
        orchard.captured("beams", name, dtype, change=layouts.beams)
    for name, dtype, local in (("llama", "bf16", False), ("gemma2", "fp32", False), ("llama", "fp32", True)):
        orchard.stages(name, dtype, local=local)
    for name, dtype, length in (("llama", "fp16", 180), ("gpt2", "bf16", 150), ("gemma2", "fp16", 170)):
        orchard.folder("long", name, dtype, "eager", question=Question((length,), 1, orchard.variant))
    for name in ("llama", "deepseek"):
        orchard.folder("batch", name, "fp16", "sdpa", question=Question((3, 21, 1, 12), 3, orchard.variant))
    orchard.captured("compiled", "llama", "bf16", told="aot_eager", compiled="aot_eager")
    orchard.captured("compiled", "qwen2", "fp32", told="inductor", compiled="inductor")
