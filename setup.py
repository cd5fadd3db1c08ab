"""Builds the optional C kernels; everything else is in pyproject.toml."""

from setuptools import Extension, setup


def kernel(name: str, *headers: str) -> Extension:
    """A kernel on the stable ABI; without a compiler trtdx installs without it and is slower."""
    return Extension(
        f"trtdx.{name}",
        [f"src/trtdx/{name}.c"],
        depends=[f"src/trtdx/{header}" for header in headers],
        define_macros=[("Py_LIMITED_API", "0x030A0000")],
        extra_compile_args=["-O3"],
        py_limited_api=True,
        optional=True,
    )


setup(
    ext_modules=[kernel("_kernel"), kernel("_stats", "_stats_core.h", "_stats_lanes.h")],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
