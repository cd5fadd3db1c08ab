"""What one log line states about memory: every format of every release, as one table.

A named group is a quantity: `NAME__GiB`, `NAME__MiB`, `NAME__bytes` and `NAME__number` say its unit, the text of
`NAME__size` carries its own ("43.29 MB"), and `NAME__text` is a word. TensorRT-LLM writes MB and GB and divides
by 1024 all the same.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

_N = r"-?\d+(?:\.\d+)?"
_SIZE = r"-?\d+(?:\.\d+)? ?(?:[KMGT]i?B|[Bb]ytes|B)\b"
_UNITS = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

FORMATS: tuple[tuple[str, str], ...] = (
    # TensorRT's builder
    ("build.activation", rf"Total Activation Memory: (?P<size__bytes>{_N})"),
    ("build.weights", rf"Total Weights Memory: (?P<size__bytes>{_N})"),
    ("build.scratch", rf"Total Scratch Memory: (?P<size__bytes>{_N})"),
    ("build.persistent", rf"Total Device Persistent Memory: (?P<size__bytes>{_N})"),
    ("build.peak", rf"Peak memory usage of TRT CPU/GPU memory allocators: CPU (?P<host__MiB>{_N}) MiB, GPU (?P<size__MiB>{_N}) MiB"),
    ("build.workspace", r"requires (?P<wanted__bytes>\d+) bytes of scratch space,? but only (?P<free__bytes>\d+) (?:is|are) available"),
    ("build.tactic", rf"Tactic Device request: (?P<wanted__MiB>{_N}) ?MB Available: (?P<free__MiB>{_N}) ?MB"),
    ("build.estimate.activation", rf"(?<!Total )Activation memory size: (?P<size__MiB>{_N}) MiB"),
    ("build.estimate.weights", rf"Weights memory size: (?P<size__MiB>{_N}) MiB"),
    ("build.estimate.kv", rf"Max KV Cache memory size: (?P<size__MiB>{_N}) MiB"),
    ("build.estimate.total", rf"Estimated max memory usage on runtime: (?P<size__MiB>{_N}) MiB"),
    ("build.estimate.short", rf"GPU Memory \((?P<total__MiB>{_N}) MB\) may not be enough when running inference"),
    # TensorRT's runtime
    ("engine.size", rf"Loaded engine size: (?P<size__MiB>{_N}) MiB"),
    ("trt.change", r"\[MemUsageChange\] (?P<what__text>[^:]{3,80}): CPU [+-]\d+, GPU (?P<change__MiB>[+-]?\d+), now: CPU \d+, GPU (?P<now__MiB>\d+) \(MiB\)"),
    ("trt.refused", r"Requested amount of (?:GPU )?memory \((?P<wanted__bytes>\d+) bytes\) could not be allocated"),
    ("trt.refused", r"OutOfMemory \(Requested size was (?P<wanted__bytes>\d+) bytes"),
    ("trt.oom", r"OutOfMemory \(no further information|Cuda Runtime \(out of memory\)"),
    ("engine.not_deserialised", r"Failed to deserialize cuda engine"),
    # the C++ runtime
    ("context", rf"Allocated (?P<size__size>{_SIZE}) for execution context memory"),
    ("runtime", rf"Allocated (?P<size__size>{_SIZE}) GPU memory for runtime buf"),
    ("decoder", rf"Allocated (?P<size__size>{_SIZE}) GPU memory for decoder"),
    ("kv.available", rf"when calculating max tokens in paged kv cache: total: (?P<total__GiB>{_N}) GiB, available: (?P<free__GiB>{_N}) GiB"),
    ("kv.blocks", r"Number of blocks in KV cache primary pool(?: for windowSize (?P<window__number>\d+))?: (?P<count__number>\d+)"),
    ("kv.blocks", r"\[windowSize=(?P<window__number>\d+)\] \{\.primaryBlocks=(?P<count__number>\d+)"),
    ("kv.per_block", r"Number of tokens per block: (?P<count__number>\d+)"),
    ("kv.sequence", r"Max KV cache (?:blocks|pages) per sequence: (?P<count__number>\d+)(?: \[window size=(?P<window__number>\d+)\])?(?:, tokens per block=(?P<per_block__number>\d+), primary blocks=(?P<blocks__number>\d+))?"),
    ("kv.pool", rf"Allocated (?P<size__GiB>{_N}) GiB for max tokens in paged KV cache \((?P<tokens__number>\d+)\)"),
    ("kv.pool", r"Allocate (?P<size__bytes>\d+) bytes for k/v cache"),
    ("kv.pool", r"Max tokens in paged KV cache: (?P<tokens__number>\d+)\. Allocating (?P<size__bytes>\d+) bytes"),
    ("kv.tokens", r"Using (?P<tokens__number>\d+) (?:total )?tokens in paged KV cache"),
    ("kv.both", rf"are set \(to (?P<fraction__number>{_N}) and (?P<tokens__number>\d+), respectively\)"),
    ("kv.shortened", r"Attention window size (?P<old__number>\d+) exceeds upper bound (?P<new__number>\d+)"),
    ("kv.shortened", r"too large to fit at least one sequence in kvCache\. Old: \[?\{?(?P<old__number>\d+).{0,200}?New: \[?\{?(?P<new__number>\d+)"),
    ("kv.shortened", r"maxSequenceLen is reduced to maxAttentionWindow: (?P<new__number>\d+)"),
    ("kv.shortened", r"too large for at least one sequence to fit in kvCache\. [Tt]hey are reduced to (?P<new__number>\d+)"),
    ("kv.none", r"Impossible to fit in any sequence in kvCache"),
    ("lora", r"Using (?P<size__bytes>\d+) bytes for LoRA device cache"),
    ("runtime.oom", r"CUDA runtime error in .{0,120}: out of memory(?: \((?P<file__text>[^)\s]{3,200})\))?"),
    ("rank.gpu", r"[Rr]ank (?P<rank__number>\d+) is using GPU (?P<gpu__number>\d+)"),
    # the PyTorch backend
    ("torch.weights", rf"(?:\bUse|[Rr]ank (?P<rank__number>\d+) uses) (?P<size__GiB>{_N}) GB for model weights"),
    ("torch.inside", rf"Memory used (?:after loading|for) model weights \(inside torch\).{{0,40}}: (?P<size__GiB>{_N}) GiB"),
    ("torch.inside", rf"Model weights \(torch\): (?P<size__GiB>{_N}) GiB"),
    ("torch.outside", rf"Memory used (?:after loading|for) model weights \(outside torch\).{{0,40}}: (?P<size__GiB>{_N}) GiB"),
    ("torch.outside", rf"Model weights \(non-torch\): (?P<size__GiB>{_N}) GiB"),
    ("torch.dynamic", rf"dynamically allocated during inference \(inside torch\).{{0,40}}: (?P<size__GiB>{_N}) GiB"),
    ("torch.outside_peak", rf"Memory used outside torch \(e\.g\., NCCL and CUDA graphs\).{{0,40}}: (?P<size__GiB>{_N}) GiB"),
    ("torch.peak", rf"Peak memory during memory usage profiling \(torch \+ non-torch\): (?P<size__GiB>{_N}) GiB, available KV cache memory when calculating max (?:tokens|num tokens): (?P<budget__GiB>{_N}) GiB(?:, fraction is set (?P<fraction__number>[\d.]+))?(?:, kv size (?:per|is) ?(?:token is )?(?P<per_token__number>{_N})(?: bytes/token)?(?: \+ (?P<fixed__number>{_N}) bytes fixed cost)?)?(?:\. device total memory (?P<total__GiB>{_N}) GiB)?(?:,(?: ,)? (?:temporary kv cache memory during profiling|tmp kv_mem) (?P<temporary__GiB>{_N}) GiB)?"),
    ("torch.peak", rf"Peak memory: (?P<size__GiB>{_N}) GiB, KV cache: (?P<budget__GiB>{_N}) GiB \(fraction=(?P<fraction__number>[\d.]+)\)"),
    ("torch.limit", rf"max_tokens=(?P<tokens__number>\d+) is provided\. It limits max memory to (?P<size__GiB>{_N}) GiB"),
    ("torch.estimated", rf"Estimated (?:max memory in )?KV cache ?: (?P<size__GiB>{_N}) GiB"),
    ("torch.fraction", rf"PyTorch memory fraction(?: to|:) (?P<fraction__number>{_N}) \((?P<size__GiB>{_N}) GiB\)"),
    ("torch.stage", rf"Memory used at (?P<stage__text>[\w ./-]{{1,60}}) \((?P<side__text>inside|outside) torch\).{{0,40}}: (?P<size__GiB>{_N}) GiB"),
    ("torch.profile", rf"\[mem-profile/(?P<tag__text>[^\]]{{1,80}})\] torch_alloc=(?P<allocated__GiB>{_N})GiB torch_reserved=(?P<reserved__GiB>{_N})GiB(?: torch_alloc_peak=(?P<peak__GiB>{_N})GiB torch_reserved_peak=(?P<reserved_peak__GiB>{_N})GiB)? free=(?P<free__GiB>{_N})GiB total=(?P<total__GiB>{_N})GiB"),
    ("torch.oom", rf"CUDA out of memory\. Tried to allocate (?P<wanted__size>{_SIZE})"),
    ("executor.failed", r"(?i)component could not be created: (?P<component__text>[^\n]{2,90}?)\s*$"),
    ("executor.total", rf"Total GPU memory \(GiB\): (?P<total__GiB>{_N})"),
    ("executor.free", rf"Free GPU memory before component creation attempt \(GiB\): (?P<free__GiB>{_N})"),
    ("executor.stage", rf"^\s*(?P<stage__text>_?[A-Za-z][\w ()]{{2,80}}): (?P<before__GiB>{_N}) / (?P<after__GiB>{_N})\s*$"),
    ("hybrid", rf"Reserving (?P<size__GiB>{_N}) GiB of GPU memory"),
    ("kv.quota", rf"device quota set to (?P<size__GiB>{_N}) ?GiB"),
    ("kv.primary_bytes", r"Primary pool memory bytes: (?P<size__bytes>\d+)"),
    ("workspace", r"Attention workspace size is not enough, increase the size from \d+ bytes to (?P<size__bytes>\d+) bytes"),
    ("host.prefetch", rf"Prefetching (?P<size__GiB>{_N}) ?GB checkpoint files"),
    # nvidia-smi, pasted in
    ("smi.gpu", r"\| +(?P<used__MiB>\d+)MiB / +(?P<total__MiB>\d+)MiB \|"),
    ("smi.process", r"\|\s+(?P<gpu__number>\d+)\s+(?:\S+\s+\S+\s+)?(?P<pid__number>\d+)\s+(?:[CGM+]{1,4})\s+(?P<name__text>\S.{0,80}?)\s+(?P<used__MiB>\d+)MiB \|"),
    # the machine
    ("host.killed", r"(?:Out of memory|oom-kill|Memory cgroup out of memory).{0,60}[Kk]illed process (?P<pid__number>\d+)(?: \((?P<name__text>[^)]{1,60})\))?(?:.{0,80}anon-rss:(?P<rss__number>\d+)kB)?"),
    ("host.killed", r"(?i)\bOOMKilled\b(?![\"']?\s*[:=]\s*false)|exit(?:ed with)? (?:code|status):? ?137\b|exited on signal 9\b|signal: 9\b"),
    ("host.shm", r"Bus error|failed to extend /dev/shm|/dev/shm.{0,80}No space left|No space left.{0,80}/dev/shm"),
    ("bench.peak", rf"gpu_peak_mem\(gb\) (?P<size__GiB>{_N})"),
)  # fmt: skip

_TORCH_ALLOCATOR = (
    r"GPU (?P<gpu__number>\d+) has a total capac(?:i)?ty of (?P<total__size>{s}) of which (?P<free__size>{s}) is free",
    r"\(GPU (?P<gpu__number>\d+); (?P<total__size>{s}) total capacity; (?P<allocated__size>{s}) already allocated; (?P<free__size>{s}) free",
    r"this process has (?P<own__size>{s}) memory in use",
    r"Of the allocated memory (?P<allocated__size>{s}) is allocated by PyTorch",
    r"(?P<unused__size>{s}) is reserved by PyTorch but unallocated",
    r"(?P<reserved__size>{s}) reserved in total by PyTorch",
)
_PROCESS = r"Process (\d+) has ({s}) memory in use"
ABSURD = 2**50  # some drivers print the largest number there is for a process


class Quantity(msgspec.Struct, frozen=True):
    """A number as printed, and half of its last digit."""

    value: float
    off: float = 0.0


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """One statement of a log line."""

    key: str
    values: dict[str, Quantity]
    words: dict[str, str] = {}
    source: str = ""
    line: int = 0
    text: str = ""
    rank: int | None = None
    level: str = "unknown"

    def get(self, name: str) -> float | None:
        value = self.values.get(name)
        return None if value is None else value.value

    def bytes(self, name: str = "size") -> int:
        return round(self.values[name].value)

    @property
    def where(self) -> str:
        return f"{self.source}:{self.line}"


def statements(text: str, message: str, rank: int | None) -> Iterator[Said]:
    """Yield what a line states; `message` is the line without its layers."""
    for key, pattern in _compiled():
        for match in pattern.finditer(message):
            values, words = _values(match)
            if any(abs(amount.value) >= ABSURD for amount in values.values()):
                continue
            values.update(_allocator(message) if key == "torch.oom" else {})
            words.update(_processes(message) if key == "torch.oom" else {})
            stated = values.pop("rank", None)
            stated_rank = int(stated.value) if stated is not None else rank
            yield Said(key=key, values=values, words=words, text=text[:900], rank=stated_rank)


@cache
def _compiled() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((key, re.compile(pattern)) for key, pattern in FORMATS)


def _values(found: re.Match[str]) -> tuple[dict[str, Quantity], dict[str, str]]:
    values: dict[str, Quantity] = {}
    words: dict[str, str] = {}
    for group, text in found.groupdict().items():
        name, _, unit = group.rpartition("__")
        if text is None:
            continue
        if unit == "text":
            words[name] = text.strip()
        else:
            values[name] = quantity(text, unit)
    return values, words


def quantity(text: str, unit: str) -> Quantity:
    """Return a printed number in bytes (or as it is), with half of its last digit."""
    if unit == "size":
        text, unit = re.match(r"(\S*?\d) ?([A-Za-z]+)$", text).groups()  # type: ignore[union-attr]
    scale = 1 if unit in ("number", "bytes") else _UNITS[unit[0].lower()]
    text = text.lstrip("+").rstrip(".")
    decimals = len(text.partition(".")[2])
    exact = scale == 1 and not decimals
    return Quantity(float(text) * scale, 0.0 if exact else 0.5 * 10.0**-decimals * scale)


def _allocator(message: str) -> dict[str, Quantity]:
    """Return the figures of PyTorch's allocator text, in both of its forms."""
    values: dict[str, Quantity] = {}
    for pattern in _allocator_patterns():
        match = pattern.search(message)
        if match:
            values.update(
                {name: amount for name, amount in _values(match)[0].items() if amount.value < ABSURD}
            )
    if "reserved" in values and "allocated" in values and "unused" not in values:
        values["unused"] = Quantity(max(0.0, values["reserved"].value - values["allocated"].value))
    return values


def _processes(message: str) -> dict[str, str]:
    """Return what the allocator text says of each process it names: {"process 157": bytes}."""
    processes = re.findall(_PROCESS.replace("{s}", _SIZE), message)
    sizes = {f"process {pid}": quantity(size, "size").value for pid, size in processes}
    return {name: str(round(size)) for name, size in sizes.items() if size < ABSURD}


@cache
def _allocator_patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern.replace("{s}", _SIZE)) for pattern in _TORCH_ALLOCATOR)
