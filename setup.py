"""Builds the one optional C kernel; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "trtdx._kernel",
            ["src/trtdx/_kernel.c"],
            define_macros=[("Py_LIMITED_API", "0x030A0000")],
            extra_compile_args=["-O3"],
            py_limited_api=True,
            optional=True,  # without a compiler trtdx installs and uses the slower Python scanner
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
