"""Two runs side by side: what is which, what is noise, where it first goes wrong, and why.

`trtdx.compare` is this package and, called, the function of notebook.py: whichever module of it was imported first,
`trtdx.compare(...)` works, and nothing heavy is imported before it is called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, reference: Any, candidate: Any, **options: Any) -> Any:
        from trtdx.compare.sides.needed_packages import need_packages

        need_packages(reference, candidate)
        from trtdx.compare.notebook import compare

        return compare(reference, candidate, **options)


sys.modules[__name__].__class__ = _CallablePackage
