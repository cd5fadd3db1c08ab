"""The only way to an optional package: tells one that is absent from one that is broken."""

from __future__ import annotations

import importlib
import importlib.util
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trtdx.errors import BrokenExtraError, MissingExtraError
from trtdx.words import joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

COMMON = ("numpy", "ml_dtypes")  # come with every extra that computes
# Which extra brings a package that is imported by name.
EXTRAS = {
    "duckdb": "capture", "matplotlib": "plot", "ml_dtypes": "capture", "numpy": "capture", "onnx": "onnx",
    "onnx_ir": "onnx", "onnxruntime": "onnx", "safetensors": "torch", "tensorrt_rtx": "trt",
    "tokenizers": "torch", "torch": "torch", "transformers": "torch", "xxhash": "capture",
    "zstandard": "zstd",
}  # fmt: skip

TENSORS = ("numpy", "ml_dtypes", "xxhash")  # of everything that looks into tensors
OF_ENGINES = {
    "torch": ("torch", "transformers"),
    "onnxruntime": ("onnx", "onnx_ir", "onnxruntime"),
    "tensorrt": ("onnx", "onnx_ir", "torch", "tensorrt_rtx"),
}
STAND_INS = {"tensorrt_rtx": "tensorrt"}  # either of the two does


def need(package: str, *, extra: str, to: str) -> ModuleType:
    """Return the imported package, or raise the error that says what to install or mend."""
    if not is_installed(package):
        from trtdx.installation import install_extras

        raise MissingExtraError(f"{package} is needed to {to}", fix=install_extras(extra))
    try:
        return importlib.import_module(package)
    except (ImportError, OSError) as err:  # OSError: a shared library that will not load
        from trtdx.installation import install_packages

        raise BrokenExtraError(
            f"{package} is installed but does not load: {err}",
            fix=install_packages(package, "--force-reinstall"),
        ) from err


def need_all(packages: Iterable[str], *, to: str) -> None:
    """Raise one error for all packages that are absent, so that one command brings them."""
    absent = [
        package
        for package in packages
        if not is_installed(package) and not is_installed(STAND_INS.get(package, package))
    ]
    if absent:
        raise _missing(absent, to)


@contextmanager
def needing_extras(to: str) -> Iterator[None]:
    """Turn the failed import of an optional package, wherever it happens inside, into the error that names its extra."""
    try:
        yield
    except ModuleNotFoundError as err:
        package = (err.name or "").partition(".")[0]
        if package not in EXTRAS or is_installed(package):
            raise
        raise _missing([package], to) from err


def _missing(packages: list[str], to: str) -> MissingExtraError:
    from trtdx.installation import install_extras

    verb = "is" if len(packages) == 1 else "are"
    extras = {EXTRAS[package] for package in packages if package not in COMMON} or {"capture"}
    return MissingExtraError(f"{joined(packages)} {verb} needed to {to}", fix=install_extras(*sorted(extras)))


def is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ModuleNotFoundError, ValueError):  # of `a.b` where there is no `a`; a module without a spec
        return False
