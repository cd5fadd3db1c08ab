"""The only way to an optional package: tells one that is absent from one that is broken."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

from trtdx.errors import BrokenExtraError, MissingExtraError

if TYPE_CHECKING:
    from types import ModuleType


def need(package: str, *, extra: str, to: str) -> ModuleType:
    """Return the imported package, or raise the error that says what to install or mend."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(f"{package} is needed to {to}", fix=f"pip install 'trtdx[{extra}]'")
    try:
        return importlib.import_module(package)
    except (ImportError, OSError) as err:  # OSError: a shared library that will not load
        raise BrokenExtraError(
            f"{package} is installed but does not load: {err}",
            fix=f"pip install --force-reinstall '{package}'",
        ) from err
