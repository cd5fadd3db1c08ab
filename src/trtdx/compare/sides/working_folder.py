"""The folder of a comparison for what it captures on the way."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.capture.store.format import CaptureError
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def working_folder(keep: str) -> Iterator[Path]:
    """Give a folder for what is captured on the way."""
    if keep:
        try:
            Path(keep).mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise InputError(f"cannot write to {keep}: {err.strerror or err}") from err
        yield Path(keep)
        return
    folder = Path(tempfile.gettempdir(), f"trtdx-compare-{secrets.token_hex(8)}")
    try:
        folder.mkdir(mode=0o700)  # in here, unlike TemporaryDirectory: an interrupt just after it leaves nothing behind
        yield folder
    except CaptureError as err:
        if str(folder) not in err.message:
            raise
        fix = f"free some space in {folder.parent}, or name a folder with room: --keep DIR"
        raise CaptureError(err.message, fix=fix) from err  # what is there is removed: nothing to go on with
    finally:
        shutil.rmtree(folder, ignore_errors=True)
