"""What belongs together: TensorRT-LLM releases, TensorRT, CUDA, containers, and which GPUs have which SM.

The numbers live in one data file, `data/versions.toml`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

import msgspec


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """One TensorRT-LLM release and what it was made with."""

    version: str
    date: str
    ngc: str
    cuda: str
    tensorrt: str
    torch: str
    transformers: str
    nccl: str = ""
    python: tuple[str, ...] = ()
    driver: str = ""
    modelopt: str = ""


class VersionTable(msgspec.Struct, frozen=True, kw_only=True):
    """The whole data file."""

    release: tuple[Release, ...]
    sm: dict[str, tuple[str, ...]]


@cache
def table() -> VersionTable:
    data = resources.files("trtdx").joinpath("data/versions.toml").read_bytes()
    return msgspec.toml.decode(data, type=VersionTable)


def releases_with_tensorrt(version: str) -> tuple[Release, ...]:
    """Return the releases made with this TensorRT, by the numbers both sides state (at least major.minor)."""
    wanted = re.findall(r"\d+", version)[:4]
    if len(wanted) < 2:
        return ()
    return tuple(
        release
        for release in table().release
        if (has := release.tensorrt.split("."))[: len(wanted)] == wanted
        or has[: min(len(wanted), 3)] == wanted[:3]
    )


def trtllm_with_tensorrt(version: str) -> str:
    """Return words for the releases made with this TensorRT."""
    names = [release.version for release in releases_with_tensorrt(version)]
    return (
        f"TensorRT-LLM {', '.join(names)}"
        if names
        else f"a TensorRT-LLM release made with TensorRT {version}"
    )


def gpus_with_sm(version: str) -> str:
    """Return words for the GPUs of a compute capability such as 8.9 or 89."""
    number = version.replace(".", "")
    names = table().sm.get(number)
    return ", ".join(names) if names else f"GPUs of compute capability {version}"


def release(version: str) -> Release | None:
    """Return the table's row for a release, where there is one."""
    return next((row for row in table().release if row.version == version), None)
