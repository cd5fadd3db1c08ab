"""Ways of capturing a run of a torch model: the peers', the obvious ones and ours. See capture.py.

Nothing is imported before it is used: a process loads its own way alone.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HIDDEN, INNER, LAYERS, HEADS, VOCABULARY = 512, 1376, 8, 8, 8000
PROMPT, NEW = 64, 32


def llama() -> Any:
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, vocab_size=VOCABULARY, max_position_embeddings=2048,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def prompt() -> Any:
    import torch

    return torch.randint(1, VOCABULARY, (1, PROMPT), generator=torch.Generator().manual_seed(1))


class Reference:
    """The model, and the runs that are captured."""

    def __init__(self) -> None:
        import torch

        self.model, self.ids = llama(), prompt()
        self.options = {
            "attention_mask": torch.ones_like(self.ids), "max_new_tokens": NEW, "min_new_tokens": NEW,
            "do_sample": False, "pad_token_id": 0,
        }  # fmt: skip
        self.scenario = ""
        torch.set_grad_enabled(False)

    def run(self) -> object:
        if self.scenario == "generate":
            return self.model.generate(self.ids, **self.options)
        return self.model(self.ids)

    def plain(self) -> object:
        return self.run()


class Way:
    """How a run is captured: `capture` computes it and returns how many tensors and bytes it kept."""

    package = ""  # whose version is told
    inside: list[float] | None = None  # the time of the last run alone, where it can be told from the rest
    scenarios: tuple[str, ...] = ("generate", "prefill")

    def __init__(self, folder: Path) -> None:
        self.folder, self.reference = folder, Reference()

    def capture(self) -> dict[str, int]:
        self.reference.run()
        return {}


class Plain(Way):
    """Nothing is captured: what the others' ratios would be if they cost nothing."""


class Hooked(Way):
    """A forward hook on every module that is called."""

    def capture(self) -> dict[str, int]:
        import torch

        counts: Counter[str] = Counter()

        def hook(_: Any, __: Any, output: Any) -> None:
            for each in output if isinstance(output, tuple) else (output,):
                if isinstance(each, torch.Tensor):
                    counts["tensors"] += 1
                    self.take(each)
                elif hasattr(each, "logits"):
                    counts["tensors"] += 1
                    self.take(each.logits)

        hooks = [module.register_forward_hook(hook) for module in self.reference.model.modules()]
        self.begin()
        self.reference.run()
        for each in hooks:
            each.remove()
        return dict(counts) | self.end()

    def begin(self) -> None: ...

    def take(self, tensor: Any) -> None: ...

    def end(self) -> dict[str, int]:
        return {}


class Keeping(Hooked):
    """Hooks that keep a reference, which a module that works in place changes afterwards."""

    def begin(self) -> None:
        self.kept: list[Any] = []

    def take(self, tensor: Any) -> None:
        self.kept.append(tensor)

    def end(self) -> dict[str, int]:
        return {"bytes": sum(each.nbytes for each in self.kept)}


class Statistics(Hooked):
    """Hooks with what most people write: minimum, maximum, mean and a count of NaN, as Python numbers."""

    def begin(self) -> None:
        self.kept: list[tuple[float, ...]] = []

    def take(self, tensor: Any) -> None:
        self.kept.append((tensor.min().item(), tensor.max().item(), tensor.mean().item(), tensor.isnan().sum().item()))


class Appending(Hooked):
    """Hooks that append raw bytes to one file and a line to an index; no statistics."""

    def begin(self) -> None:
        self.folder.mkdir()
        self.values, self.index = (self.folder / "values").open("wb"), []

    def take(self, tensor: Any) -> None:
        self.index.append((self.values.tell(), tuple(tensor.shape), str(tensor.dtype)))
        self.values.write(tensor.contiguous().numpy().data)

    def end(self) -> dict[str, int]:
        size = self.values.tell()
        self.values.close()
        (self.folder / "index.json").write_text(json.dumps(self.index))
        return {"bytes": size}


class Saving(Hooked):
    """Hooks with one `torch.save` a tensor."""

    def begin(self) -> None:
        self.folder.mkdir()
        self.number = 0

    def take(self, tensor: Any) -> None:
        import torch

        torch.save(tensor, self.folder / f"{self.number}.pt")
        self.number += 1

    def end(self) -> dict[str, int]:
        return {"bytes": sum(each.stat().st_size for each in self.folder.iterdir())}


class Nnsight(Way):
    """nnsight's cache of all modules' outputs, in memory."""

    package = "nnsight"

    def __init__(self, folder: Path) -> None:
        from nnsight import NNsight

        super().__init__(folder)
        self.wrapped = NNsight(self.reference.model)

    def capture(self) -> dict[str, int]:
        reference = self.reference
        if reference.scenario == "generate":
            with self.wrapped.trace(reference.ids, fn=reference.model.generate, **reference.options) as tracer:
                kept = tracer.cache().save()
        else:
            with self.wrapped.trace(reference.ids) as tracer:
                kept = tracer.cache().save()
        return {"tensors": sum(len(visits) for visits in kept._rows_cache.entries.values())}


class MsProbe(Way):
    """msProbe's statistics of module inputs and outputs (level L0), as JSON."""

    package = "mindstudio-probe"

    def __init__(self, folder: Path) -> None:
        from msprobe.pytorch import PrecisionDebugger

        super().__init__(folder)
        told = {
            "task": "statistics", "dump_path": str(folder), "rank": [], "step": [], "level": "L0",
            "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
        }  # fmt: skip
        config = folder.with_suffix(".json")
        config.write_text(json.dumps(told))
        self.debugger = PrecisionDebugger(config_path=str(config))

    def capture(self) -> dict[str, int]:
        self.debugger.start(model=self.reference.model)
        self.reference.run()
        self.debugger.stop()
        self.debugger.step()
        written = [each for each in self.folder.rglob("*") if each.is_file()]
        return {"files": len(written), "bytes": sum(each.stat().st_size for each in written)}


class TorchLens(Way):
    """torchlens' trace of every operation and module, in memory."""

    package, scenarios = "torchlens", ("prefill",)

    def capture(self) -> dict[str, int]:
        import torchlens

        found = torchlens.trace(self.reference.model, self.reference.ids)
        return {"tensors": len(found)}


class Ours(Way):
    """trtdx: statistics and content hash of every module's outputs to disk."""

    values = ""

    def capture(self) -> dict[str, int]:
        from trtdx.capture.session.live import capturing

        with capturing(self.reference.model, self.folder, values=self.values) as writer:
            self.inside, _ = timed(self.reference.run)
        written = sum(each.stat().st_size for each in self.folder.iterdir())
        return {"tensors": writer.records, "bytes": written}


class OursWithValues(Ours):
    """trtdx: statistics, content hash and values of every module's outputs to disk."""

    values = "**"


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def timed(call: Callable[[], Any]) -> tuple[list[float], Any]:
    start = clocks()
    answer = call()
    return [end - begin for begin, end in zip(start, clocks(), strict=True)], answer
