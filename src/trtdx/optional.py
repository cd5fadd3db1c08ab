"""The only way to an optional package: tells one that is absent from one that is broken."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trtdx.errors import BrokenExtraError, MissingExtraError
from trtdx.words import join_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

SHARED_PACKAGES = ("numpy", "ml_dtypes")  # come with every extra that computes
# Which extra brings a package that is imported by name.
EXTRAS = {
    "blake3": "build", "duckdb": "capture", "elftools": "check", "matplotlib": "plot", "ml_dtypes": "capture",
    "numpy": "capture", "onnx": "onnx",
    "onnx_ir": "onnx", "onnxruntime": "onnx", "safetensors": "torch", "starlette": "ui", "textual": "ui", "tensorrt_rtx": "trt",
    "tokenizers": "torch", "torch": "torch", "transformers": "torch", "uvicorn": "ui", "xxhash": "capture",
    "zstandard": "zstd", "psycopg": "postgres", "fsspec": "remote", "mcp": "mcp",
}  # fmt: skip

TENSOR_PACKAGES = ("numpy", "ml_dtypes", "xxhash")  # of everything that looks into tensors
ENGINE_PACKAGES = {
    "torch": ("torch", "transformers"),
    "onnxruntime": ("onnx", "onnx_ir", "onnxruntime"),
    "tensorrt": ("onnx", "onnx_ir", "torch", "tensorrt_rtx"),
}
SUBSTITUTE_PACKAGES = {"tensorrt_rtx": "tensorrt"}  # either of the two does


def import_optional(package: str, *, extra: str, purpose: str) -> ModuleType:
    """Return the imported package, or raise the error that says what to install or mend."""
    if not is_installed(package):
        from trtdx.installation import install_extras

        raise MissingExtraError(f"{package} is needed to {purpose}", fix=install_extras(extra))
    try:
        return importlib.import_module(package)
    except (ImportError, OSError) as err:  # OSError: a shared library that will not load
        from trtdx.installation import install_packages

        raise BrokenExtraError(
            f"{package} is installed but does not load: {err}",
            fix=install_packages(package, "--force-reinstall"),
        ) from err


def require_packages(packages: Iterable[str], *, purpose: str) -> None:
    """Raise one error for all packages that are absent, so that one command brings them."""
    absent = [
        package
        for package in packages
        if not is_installed(package) and not is_installed(SUBSTITUTE_PACKAGES.get(package, package))
    ]
    if absent:
        raise _missing_extra_error(absent, purpose)


@contextmanager
def explain_missing_extras(purpose: str) -> Iterator[None]:
    """Turn the failed import of an optional package, wherever it happens inside, into the error that names its extra."""
    try:
        yield
    except ModuleNotFoundError as err:
        package = (err.name or "").partition(".")[0]
        if package not in EXTRAS or is_installed(package):
            raise
        raise _missing_extra_error([package], purpose) from err


def _missing_extra_error(packages: list[str], purpose: str) -> MissingExtraError:
    from trtdx.installation import install_extras

    verb = "is" if len(packages) == 1 else "are"
    extras = {EXTRAS[package] for package in packages if package not in SHARED_PACKAGES} or {"capture"}
    return MissingExtraError(f"{join_words(packages)} {verb} needed to {purpose}", fix=install_extras(*sorted(extras)))


def is_installed(package: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # setuptools warns when pip is looked for after distutils was imported
            return importlib.util.find_spec(package) is not None
    except (ModuleNotFoundError, ValueError):  # of `a.b` where there is no `a`; a module without a spec
        return False
