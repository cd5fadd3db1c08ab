"""numpy, ml_dtypes and torch, each imported when something of it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.optional import import_optional


class LazyModule:
    """A package whose attributes are looked up once, on first use."""

    def __init__(self, package: str, *, extra: str, to: str) -> None:
        self._requirement = (package, extra, to)

    def __getattr__(self, name: str) -> Any:
        package, extra, to = self._requirement
        value = getattr(import_optional(package, extra=extra, purpose=to), name)
        setattr(self, name, value)
        return value


torch: Any = LazyModule("torch", extra="torch", to="compute a network on the CPU")
if TYPE_CHECKING:
    import numpy as numpy
else:
    numpy = LazyModule("numpy", extra="torch", to="hold arrays")
ml_dtypes: Any = LazyModule("ml_dtypes", extra="torch", to="hold values of 16, 8 and 4 bit types")
