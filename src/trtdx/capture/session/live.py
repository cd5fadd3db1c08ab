"""A torch module of yours, captured while your own code runs it.

    with capturing(model, "cap", "layers.*.mlp:out", values="layers[0]:out"):
        model.generate(**inputs)

Under torchrun, mpirun or srun each rank writes its own files into the same folder.
"""

from __future__ import annotations

import shlex
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trtdx.capture.session.recorder import Recorder, rank_from_environment
from trtdx.capture.session.selection import CaptureSelection, TokenPositions, check_value_selector
from trtdx.capture.store.format import CaptureHeader
from trtdx.capture.store.writer import CaptureWriter
from trtdx.engines.torch.hooks import module_places, tapped
from trtdx.errors import InputError
from trtdx.host import RealHost
from trtdx.tensors.taps import parse_selector

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path


@contextmanager
def capturing(
    model: Any,
    folder: str | Path,
    selector: str = "**",
    *,
    values: str = "",
    steps: str = "",
    every: int = 1,
    positions: str = "",
    watch: bool = False,
    value_budget_bytes: int | None = None,
    ranks: Collection[int] = (),
    run: str = "",
) -> Iterator[CaptureWriter | None]:
    """Capture what passes the selected places of a module while the block runs.

    Args:
        model: any `torch.nn.Module`, compiled or not.
        folder: where the capture goes.
        selector: which places; every module's outputs where it is not told.
        values: whose values to keep as well; of everything else only statistics are.
        steps: which calls of the model, as "0,5-9".
        every: only each Nth of them.
        positions: which token positions, as "0,-1".
        watch: stop at the first NaN or infinity by raising NotFiniteError.
        value_budget_bytes: how many bytes of values to keep at most.
        ranks: only on these; all where there is none.
        run: what is run, in words; the command line where it is not told.
    """
    rank = rank_from_environment(RealHost().environment())
    if ranks and rank not in ranks:
        yield None
        return
    if not hasattr(model, "named_modules"):
        raise InputError(f"a {type(model).__name__} is not a torch module", fix="pass an nn.Module")
    all_places, taps = module_places(model), parse_selector(selector)
    if not taps.candidates(all_places):  # before a folder is made
        raise taps.nothing_selected_error(all_places)
    check_value_selector(values, selector, all_places, sure=False)
    selection = CaptureSelection.from_texts(values, steps, every, positions, watch)
    header = CaptureHeader(run=run or shlex.join(sys.argv), engine="torch", selector=selector, rank=rank)
    with CaptureWriter(folder, header, value_budget_bytes=value_budget_bytes) as writer:
        recorder = Recorder(writer, selection, all_places)
        counting = _count_tokens(model, recorder) if selection.positions else None
        try:
            with tapped(model, taps, recorder) as tapping:
                if tapping.note:
                    writer.note(0, {"kind": "tapped", "note": tapping.note})
                yield writer
        finally:
            if counting is not None:
                counting.remove()


def _count_tokens(model: Any, recorder: Recorder) -> Any:
    """Tell the recorder which positions each call computes: a single token follows on what came before."""

    def before(_: Any, args: Any, kwargs: Any) -> None:
        tokens = kwargs.get("input_ids", kwargs.get("inputs_embeds", args[0] if args else None))
        if tokens is None:
            recorder.tokens = None
            return
        length, last = tokens.shape[1] if tokens.ndim > 1 else tokens.shape[0], recorder.tokens
        recorder.tokens = TokenPositions(last.first + last.length if last and length == 1 else 0, length)

    return model.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
