"""Modes that look into torch modules without a change of code: taps, the first NaN, the table of shapes."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from .exceptions import describe_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from .process import SupervisedProcess

MOST_SHAPES = 2000


def start_modes(process: SupervisedProcess) -> None:
    modes = set(filter(None, os.environ.get("TRTDX_MODES", "").split(",")))
    selector = os.environ.get("TRTDX_TAP", "")
    if selector or modes & {"nan", "shapes"}:
        name = "torch.nn.modules.module"
        process.imports.when_imported(name, lambda module: TorchModuleWatch(process, modes, selector).start(module))


class TorchModuleWatch:
    """Stands in torch's hooks for all modules; knows the path of each below the one that was called first."""

    def __init__(self, process: SupervisedProcess, modes: set[str], selector: str) -> None:
        self._process, self._modes, self._selector = process, modes, selector
        self._names: dict[int, str] = {}
        self._depth = 0
        self._step = -1
        self._shapes: set[str] = set()
        self._has_seen_nan = False
        self._capture = contextlib.ExitStack()

    def start(self, module: ModuleType) -> None:
        module.register_module_forward_pre_hook(self.before)
        module.register_module_forward_hook(self.after, always_call=True)
        atexit.register(self._capture.close)

    def before(self, module: Any, args: Any) -> None:
        try:
            self._depth += 1
            if self._depth == 1:
                self._step += 1
                self._names.update((id(part), name or "model") for name, part in module.named_modules())
                if self._selector:
                    self._begin_capture(module, args)
        except Exception as err:
            self._process.note_failure("modules", err)

    def after(self, module: Any, args: Any, output: Any) -> None:
        try:
            self._depth = max(0, self._depth - 1)
            name = self._names.get(id(module), type(module).__name__)
            if "shapes" in self._modes:
                self._note_shapes(name, args, output)
            if "nan" in self._modes and not self._has_seen_nan:
                self._note_nan(name, args, output)
        except Exception as err:
            self._process.note_failure("modules", err)

    def _begin_capture(self, module: Any, args: Any) -> None:
        selector, self._selector = self._selector, ""
        try:
            # By name: trtdx may be installed in the job's Python, and is nothing that the agent is built on.
            capturing = importlib.import_module("trtdx.capture.session.live").capturing
        except ImportError as err:
            self._modes.add("shapes")
            self._process.journal.add_event(
                "tap",
                problem=f"no tensors were captured: {err}; pip install 'trtdx[capture]' with {sys.executable}",
            )
            return
        folder = os.path.join(os.path.dirname(os.environ["TRTDX_LIVE"]), "capture")
        try:
            before = set(module._forward_pre_hooks)
            self._capture.enter_context(capturing(module, folder, selector, values=selector))
            # This call has begun: what stands in its way in from now on must be told of it.
            for number, hook in list(module._forward_pre_hooks.items()):
                if number not in before:
                    hook(module, args, {}) if number in module._forward_pre_hooks_with_kwargs else hook(module, args)
            self._process.journal.add_event("tap", folder=folder, model=type(module).__name__)
        except Exception as err:  # nothing in this model has such a name: the next one may
            self._selector = selector
            self._process.journal.add_event("tap", problem=f"{type(module).__name__}: {err}")

    def _note_shapes(self, name: str, args: Any, output: Any) -> None:
        line = "{}: {} -> {}".format(
            name,
            ", ".join(map(describe_tensor, _tensors(args))),
            ", ".join(map(describe_tensor, _tensors(output))),
        )
        if line not in self._shapes and len(self._shapes) < MOST_SHAPES:
            self._shapes.add(line)
            self._process.journal.add_event("shape", line=line, step=self._step)

    def _note_nan(self, name: str, args: Any, output: Any) -> None:
        bad = [tensor for tensor in _tensors(output) if not _is_finite(tensor)]
        if bad:
            self._has_seen_nan = True
            self._process.journal.add_event(
                "not-finite", module=name, step=self._step, what=describe_tensor(bad[0]),
                inputs_finite=all(map(_is_finite, _tensors(args))),
            )  # fmt: skip


def _tensors(value: Any, depth: int = 0) -> Iterator[Any]:
    if describe_tensor(value):
        yield value
    elif isinstance(value, dict) and depth < 4:
        yield from (tensor for part in value.values() for tensor in _tensors(part, depth + 1))
    elif isinstance(value, (list, tuple)) and depth < 4:
        yield from (tensor for part in value for tensor in _tensors(part, depth + 1))


def _is_finite(tensor: Any) -> bool:
    return not getattr(tensor, "is_floating_point", bool)() or bool(sys.modules["torch"].isfinite(tensor).all())
