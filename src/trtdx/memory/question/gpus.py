"""GPUs by name: how much memory a process can have on each, and their compute capability."""

from __future__ import annotations

import difflib
import re
from functools import cache
from importlib import resources

import msgspec

from trtdx.errors import UnknownNameError
from trtdx.memory.nouns import GIB, Device

# Words that tell nothing about the size of the memory.
NOISE_WORDS = frozenset({
    "nvidia", "geforce", "tesla", "quadro", "gpu", "graphics", "card", "sxm", "sxm2", "sxm3", "sxm4", "sxm5", "pcie",
    "pci", "hbm", "hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6", "gddr7", "generation", "edition", "server", "workstation",
    "laptop", "mobile", "max", "q", "developer", "kit", "module", "x1", "x2", "x4", "x8", "mig",
})  # fmt: skip
MIG_PARTITION = re.compile(r"\b\d+g\.(\d+)gb\b", re.IGNORECASE)  # 3g.40gb
MIG_SHARE = 0.975  # of the size a partition is named after
_TOKEN = re.compile(r"[a-z]*\d+[a-z]*|[a-z]+")
_SIZE = re.compile(r"(\d+)gi?b?")


class _GpuRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    gib: float
    sm: int
    source: str
    unified: bool = False
    also: tuple[str, ...] = ()


class _GpuTable(msgspec.Struct, frozen=True):
    gpu: tuple[_GpuRow, ...]


@cache
def _gpu_rows() -> tuple[_GpuRow, ...]:
    data = resources.files("trtdx").joinpath("data/devices.toml").read_bytes()
    return msgspec.toml.decode(data, type=_GpuTable).gpu


@cache
def all_devices() -> tuple[Device, ...]:
    """Return every GPU of the table."""
    return tuple(map(_device_from_row, _gpu_rows()))


def _device_from_row(row: _GpuRow) -> Device:
    return Device(name=row.name, total_bytes=round(row.gib * GIB), sm=row.sm, unified=row.unified)


@cache
def device_from_name(text: str) -> Device:
    """Return a GPU by any usual spelling of its name ("h100", "NVIDIA A100-SXM4-40GB"), or raise with the nearest."""
    partition = MIG_PARTITION.search(text)
    row = _find_gpu_row(MIG_PARTITION.sub(" ", text)) if partition else _find_gpu_row(text)
    if row is None:
        raise UnknownGpuError(text)
    if partition:
        return Device(
            name=f"{row.name}, {partition[0]}",
            total_bytes=round(int(partition[1]) * MIG_SHARE * GIB),
            sm=row.sm,
            source="table: the size its partition is named after",
        )
    return _device_from_row(row)


class UnknownGpuError(UnknownNameError):
    """A GPU that is not in the table; its memory can be given."""

    def __init__(self, name: str) -> None:
        super().__init__("GPU", name, ())
        names = {spelt.lower(): row.name for row in _gpu_rows() for spelt in (row.name, *row.also)}
        alike = difflib.get_close_matches(name.lower(), list(names), n=6, cutoff=0.6)
        near = list(dict.fromkeys(names[spelling] for spelling in alike))[:3]
        memory_hint = "give its memory with --gpu-memory 80GiB"
        self.fix = f"did you mean {' or '.join(near)}? Or {memory_hint}" if near else memory_hint


def _find_gpu_row(text: str) -> _GpuRow | None:
    """Return the row of which most words stand in the text."""
    words = _name_words(text)
    fits = [
        (len(spelt), -at, row)
        for at, row in enumerate(_gpu_rows())
        for spelt in _row_spellings(row)
        if spelt <= words and _has_same_size(words, spelt)
    ]
    return max(fits, key=lambda fit: fit[:2])[2] if fits else None


@cache
def _row_spellings(row: _GpuRow) -> tuple[frozenset[str], ...]:
    return tuple(_name_words(name) for name in (row.name, *row.also))


def _name_words(text: str) -> frozenset[str]:
    words = set()
    for token in _TOKEN.findall(_normalise_gpu_name(text.lower())):
        size = _SIZE.fullmatch(token)
        words.add(f"{size[1]}gb" if size else token)
    return frozenset(words - NOISE_WORDS)


def _normalise_gpu_name(text: str) -> str:
    """Return a text with "rtx4090", "4070ti" and "80 GB" spelt as everyone else does."""
    text = re.sub(r"\b(rtx|pro|titan|gtx)(?=\d|a\d)", r"\1 ", text)
    text = re.sub(r"(\d{4})(ti|super|d)\b", r"\1 \2 ", text)
    return re.sub(r"(\d+)\s+gi?b\b", r"\1gb", text)


def _has_same_size(words: frozenset[str], spelt: frozenset[str]) -> bool:
    """A size that was said must be one the spelling knows."""
    sizes = {word for word in words if _SIZE.fullmatch(word)}
    return not sizes or bool(sizes & spelt)
