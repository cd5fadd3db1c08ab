"""numpy, ml_dtypes and torch, each imported when something of it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.optional import need


class _Lazy:
    """A package whose attributes are looked up once, on first use."""

    def __init__(self, package: str, *, extra: str, to: str) -> None:
        self._wanted = (package, extra, to)

    def __getattr__(self, name: str) -> Any:
        package, extra, to = self._wanted
        value = getattr(need(package, extra=extra, to=to), name)
        setattr(self, name, value)
        return value


torch: Any = _Lazy("torch", extra="torch", to="compute a network on the CPU")
if TYPE_CHECKING:
    import numpy as numpy
else:
    numpy = _Lazy("numpy", extra="torch", to="hold arrays")
ml_dtypes: Any = _Lazy("ml_dtypes", extra="torch", to="hold values of 16, 8 and 4 bit types")
