"""What belongs together: TensorRT-LLM releases, TensorRT, CUDA, containers, and which GPUs have which SM.

The numbers live in one data file, `data/versions.toml`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

import msgspec
from packaging.version import InvalidVersion, Version


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


class Kernels(msgspec.Struct, frozen=True, kw_only=True):
    """The compute capabilities that wheels have kernels for from one release on."""

    since: str
    sm: tuple[int, ...]
    families: tuple[int, ...] = ()

    def serve(self, sm: int) -> bool:
        """Return whether some kernel runs on a compute capability: the same, or one its family covers."""
        return sm in self.sm or any(
            sm // 10 == capability // 10 and sm >= capability
            for capability in self.sm
            if capability < 90 or capability in self.families  # from 90 on kernels are made for one capability only
        )


class VersionTable(msgspec.Struct, frozen=True, kw_only=True):
    """The whole data file."""

    release: tuple[Release, ...]
    sm: dict[str, tuple[str, ...]]
    gpu: dict[str, int]
    tensorrt: dict[str, str]  # of tags without a row of their own
    kernels: tuple[Kernels, ...]
    triton: dict[str, str]  # the release in Triton's images, by tag


@cache
def version_table() -> VersionTable:
    data = resources.files("trtdx").joinpath("data/versions.toml").read_bytes()
    return msgspec.toml.decode(data, type=VersionTable)


def releases_with_tensorrt(version: str) -> tuple[Release, ...]:
    """Return the releases made with this TensorRT, by the numbers both sides state (at least major.minor)."""
    numbers = re.findall(r"\d+", version)[:4]
    if len(numbers) < 2:
        return ()
    return tuple(
        release
        for release in version_table().release
        if (has := release.tensorrt.split("."))[: len(numbers)] == numbers or has[: min(len(numbers), 3)] == numbers[:3]
    )


def trtllm_with_tensorrt(version: str) -> str:
    """Return words for the releases made with this TensorRT."""
    names = [release.version for release in releases_with_tensorrt(version)]
    return f"TensorRT-LLM {', '.join(names)}" if names else f"a TensorRT-LLM release made with TensorRT {version}"


def gpus_with_sm(version: str) -> str:
    """Return words for the GPUs of a compute capability such as 8.9 or 89."""
    number = version.replace(".", "")
    names = version_table().sm.get(number)
    return ", ".join(names) if names else f"GPUs of compute capability {version}"


def find_release(version: str) -> Release | None:
    """Return the table's row for a release, where there is one."""
    return next((row for row in version_table().release if row.version == version), None)


LAST_ENGINE_RELEASE = "1.3.0rc20"  # rc21 lost the builder, rc22 the C++ runtime (#15918, #16369)


def parse_release(version: str) -> Version | None:
    """Return a release as something to compare; None where it is no version number."""
    try:
        return Version(version.strip().removeprefix("v").partition("+")[0])
    except InvalidVersion:
        return None


CONTAINER_TAG = re.compile(r"(2\d\.(?:0[1-9]|1[0-2]))(?:-.*)?")  # 24.08, 25.01-trtllm-python-py3


def stated_release(text: str) -> str:
    """Return the release that "v0.16.0", "release:0.16.0" or "0.16" names in full; nothing where it names none."""
    bare = re.split(r"[:=@\s]", text.strip())[-1].removeprefix("v")
    one = parse_release(bare) if re.match(r"\d+\.\d+", bare) and not CONTAINER_TAG.fullmatch(bare) else None
    if one is None or one.epoch or one.major >= 20:
        return ""
    numbers = ".".join(map(str, (*one.release, 0, 0)[: max(3, len(one.release))]))
    return numbers + one.public[len(one.base_version) :]


def container_tag(text: str) -> str:
    """Return the tag of a container, such as 24.08, that was named where a release was asked for."""
    match = CONTAINER_TAG.fullmatch(re.split(r"[:=@\s]", text.strip())[-1])
    return match[1] if match else ""


def release_of_image(image: str) -> str:
    """Return the release in one of NVIDIA's own images; nothing for other images, whose tags say what they like."""
    name, _, tag = image.partition("@")[0].rpartition(":")
    if "/" in tag or not name:
        return ""
    if name.endswith("/tritonserver"):
        month = re.fullmatch(r"(\d\d\.\d\d)-trtllm-python-py3.*", tag)
        return version_table().triton.get(month[1], "") if month else ""
    if "/tensorrt-llm/" in name or name.endswith("/tensorrt-llm"):
        match = re.match(r"v?\d+\.\d+\.\d+(?:\.?(?:rc|post)\d+)?", tag)
        return stated_release(match[0]) if match else ""
    return ""


def releases_on(tag: str) -> tuple[str, ...]:
    """Return the releases whose own containers were made on the base image of a tag."""
    return tuple(row.version for row in version_table().release if row.ngc == tag)


def at_least(version: str, bound: str) -> bool:
    """Return whether a release is the bound or later; a pre-release counts as the release it leads to."""
    one = parse_release(version)
    return one is not None and one.release >= Version(bound).release


def has_engine_flow(version: str) -> bool | None:
    """Return whether a release can run engines; None where the version says nothing."""
    one = parse_release(version)
    return None if one is None else one <= Version(LAST_ENGINE_RELEASE)


def tensorrt_of(version: str) -> str:
    """Return the TensorRT a release was made with, or nothing where that is not known for certain."""
    one = parse_release(version)
    if one is None:
        return ""
    row = find_release(one.public)
    return row.tensorrt if row else version_table().tensorrt.get(one.public, "")


def nearest_release(version: str) -> Release | None:
    """Return the row of a release, else of the one its pre-release leads to, else of the last one before it."""
    target = parse_release(version)
    if target is None:
        return None
    exact, final = find_release(target.public), find_release(target.base_version)
    before = [row for row in version_table().release if Version(row.version) <= target]
    return exact or final or (before[-1] if before else None)


# Every compute capability there is, those without a name in the table too.
CAPABILITIES = (
    50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121,
)  # fmt: skip


def sm_from(text: str) -> int | None:
    """Return the compute capability that "8.9", "89" or "sm_89" spells; None where it spells none there is."""
    number = re.fullmatch(r"(?:sm_?|compute_?)?(\d{1,2})\.?(\d)[af]?", text.strip(), re.IGNORECASE)
    sm = int(number[1] + number[2]) if number else 0
    return sm if sm in CAPABILITIES else None


def sm_of_gpu(name: str) -> int | None:
    """Return the compute capability of a GPU by its name ("NVIDIA L40S"), or of "8.9", "89" or "sm_89"."""
    number = sm_from(name)
    if number is not None:
        return number
    sm_by_gpu = {gpu: int(sm) for sm, names in version_table().sm.items() for gpu in names} | version_table().gpu
    fits = [gpu for gpu in sm_by_gpu if re.search(_gpu_spelling(gpu), name, re.IGNORECASE)]
    return sm_by_gpu[max(fits, key=len)] if fits else None


def _gpu_spelling(name: str) -> str:
    """Return a pattern for a GPU's name, alone or among other words, with or without its spaces."""
    return rf"(?<!\w){re.escape(name)}(?![A-Za-z0-9])".replace(r"\ ", "[ -]?")


def gpu_names() -> tuple[str, ...]:
    """Return every GPU that can be named."""
    return tuple(
        dict.fromkeys([*(name for names in version_table().sm.values() for name in names), *version_table().gpu])
    )


def kernels_of(version: str) -> Kernels | None:
    """Return the compute capabilities a release's wheel has kernels for."""
    rows = [row for row in version_table().kernels if at_least(version, row.since)]
    return rows[-1] if rows else None
