"""The lines of a verbose build log that tell something, and what each tells."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.formats.tensorrt.kernels import kernel_from, nodes_from
from trtdx.formats.tensorrt.nouns import Kernel, Profile, Range, TensorSpec
from trtdx.redact import redacted

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_KERNELS = 50_000
MOST_NAMES = 10_000  # tensors, foreign nodes, memory lines
MIB = 1 << 20
TYPES = {
    "float": "float32", "half": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16", "int8": "int8", "int32": "int32",
    "int64": "int64", "uint8": "uint8", "bool": "bool", "fp8": "fp8", "int4": "int4", "fp4": "fp4",
}  # fmt: skip
MOST_ERRORS, LONGEST_ERROR = 20, 300
# "[TRT] [E] ...", "[E] ...", "[TensorRT] ERROR: ...", "[TensorRT-LLM][ERROR] ..." and "TypeError: ...", with or
# without a time and a rank before them.
BEFORE = r"(?:\[[\d/:. -]+\] ?|\[?rank ?\d+\]?:? ?|\d{1,4}: )*"
ERROR = re.compile(
    rf"{BEFORE}(?:(?:\[TRT(?:-LLM)?\] )?(?:\[RANK \d+\] )?\[[EF]\]|\[TensorRT\] (?:INTERNAL_)?ERROR:"
    r"|\[TensorRT-LLM\]\[ERROR\]|(?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception): )"
)
SHAPE = r"[\[(]([^\])]*)[\])]"  # as Python prints lists and tuples
Dims = tuple[int, ...]


class Told:
    """What a log has told so far."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.facts: dict[str, Any] = {}
        self.kernels: list[Kernel] = []
        self.left_out = 0
        self.model = ""
        self._tensors: dict[str, TensorSpec] = {}
        self._names: dict[str, tuple[str, ...]] = {}  # of dimensions, by tensor
        self._ranges: dict[int, dict[str, Range]] = {}
        self._profile = 0  # that the lines are about
        self._foreign: dict[str, tuple[str, ...]] = {}  # the nodes of each foreign node
        self._errors: list[str] = []
        self._built = self._failed = False

    def take(self, line: str) -> None:
        """Learn from one line."""
        for needle, learn in LINES:
            if needle in line:
                learn(self, line)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Return the tensors listed, or else the inputs that profiles name, with the names of their dimensions."""
        tensors = self._tensors or self._inputs_of_profiles()
        return tuple(
            TensorSpec(tensor.name, tensor.mode, tensor.dtype, self._named(tensor))
            for tensor in tensors.values()
        )

    def _inputs_of_profiles(self) -> dict[str, TensorSpec]:
        ranges = [shape_range for table in self._ranges.values() for shape_range in table.values()]
        shapes: dict[str, set[Dims]] = {}
        for span in ranges:
            shapes.setdefault(span.tensor, set()).update((span.min, span.opt, span.max))
        return {name: TensorSpec(name, "in", "?", _varying(sizes)) for name, sizes in shapes.items()}

    def _named(self, tensor: TensorSpec) -> tuple[int | str, ...]:
        names = self._names.get(tensor.name, ())
        if len(names) != len(tensor.shape):
            return tensor.shape
        pairs = zip(tensor.shape, names, strict=True)
        return tuple(name if dim == "?" and name else dim for dim, name in pairs)

    def profiles(self) -> tuple[Profile, ...]:
        source = f"read from {self._path}"
        return tuple(
            Profile(index, tuple(ranges.values()), source) for index, ranges in sorted(self._ranges.items())
        )

    def _range(self, profile: int, tensor: str, *shapes: Dims) -> None:
        table = self._ranges.setdefault(profile, {})
        if len(shapes) == 3 and (tensor in table or len(table) < MOST_NAMES):
            table[tensor] = Range(tensor, *shapes)

    def error(self, line: str) -> None:
        """Learn an error of TensorRT's or TensorRT-LLM's, or the last line of a traceback."""
        if ERROR.match(line.strip()) and len(self._errors) < MOST_ERRORS:
            self._errors.append(redacted(" ".join(line.split())[:LONGEST_ERROR]))

    def succeeded(self, _: str) -> None:
        self._built = True

    def failed(self, _: str) -> None:
        self._failed = True

    def errors(self) -> list[str]:
        """Return the errors of a build that made no engine; an engine may be made in spite of some."""
        return self._errors if self._failed or not self._built else []

    def kernel(self, line: str) -> None:
        kernel = kernel_from(line)
        if kernel is None:
            return
        if len(self.kernels) >= MOST_KERNELS:
            self.left_out += 1
            return
        nodes = kernel.nodes or self._foreign.get(kernel.name, ())
        self.kernels.append(msgspec.structs.replace(kernel, nodes=nodes))

    def foreign(self, line: str) -> None:
        """Learn the nodes of "ForeignNode {...} metadata: [ONNX Layer: a]": a short listing does not repeat them."""
        name, _, metadata = line.partition("ForeignNode ")[2].partition(" metadata: ")
        if name and len(self._foreign) < MOST_NAMES:
            self._foreign[re.sub(r" \[profile \d+\]$", "", name)] = nodes_from(metadata)

    def binding(self, line: str) -> None:
        """Learn an engine tensor and its profiles from "Name: x, IOMode: Input, DataType: Int64, ..."."""
        name, _, rest = line.partition("Name: ")[2].partition(", IOMode: ")
        match = re.match(r"(\w{1,20}), DataType: (\w{1,20}), Dimensions: \[([-\d,]*)\]", rest)
        if not match or len(self._tensors) >= MOST_NAMES:
            return
        mode = "in" if match[1] == "Input" else "out"
        self._tensors[name] = TensorSpec(name, mode, _dtype(match[2]), _shape(match[3]))
        shapes = re.findall(
            r"MinShape: \[([-\d,]*)\], OptShape: \[([-\d,]*)\], MaxShape: \[([-\d,]*)\]", rest
        )
        for index, profile_shapes in enumerate(shapes):
            self._range(index, name, *map(_dims, profile_shapes))

    def network_input(self, line: str) -> None:
        """Learn an input from the parser, which comes before the listing and has no outputs."""
        name, _, rest = line.partition("network input: ")[2].partition(" with dtype: ")
        match = re.match(r"(\w{1,20}), dimensions: \(([-\d, ]*)\)", rest)
        if match and len(self._tensors) < MOST_NAMES:
            self._tensors[name] = TensorSpec(name, "in", _dtype(match[1]), _shape(match[2]))

    def network_output(self, line: str) -> None:
        name = line.rpartition(" as output: ")[2].strip()
        if name and "Marking " in line and len(self._tensors) < MOST_NAMES:
            self._tensors[name] = TensorSpec(name, "out", "?", ("...",))

    def tensorrt_llm_profile(self, line: str) -> None:
        """Learn from TensorRT-LLM's builder (0.8 to 1.2): "x, min: [1], opt: [2], max: [3], dimension names: ['a']"."""
        before, _, rest = line.partition(", min: ")
        match = re.match(rf"{SHAPE}, opt: {SHAPE}, max: {SHAPE}, dimension names: (.*)", rest)
        name = before.rpartition(" ")[2]
        if match and name:
            self._range(self._profile, name, *map(_dims, match.group(1, 2, 3)))
            self._names[name] = tuple(re.findall(r"'([^']*)'|None", match[4])[:16])

    def next_profile(self, line: str) -> None:
        match = re.search(r"Adding optimization profile (\d{1,4})/\d+", line)
        if match:
            self._profile = int(match[1]) - 1

    def trtexec_profile(self, line: str) -> None:
        """Learn from trtexec: "Input build shape (profile 0): x=1x2+2x2+4x2"."""
        match = re.match(r"(?: \(profile (\d{1,4})\))?: (.*)", line.partition("Input build shape")[2])
        name, _, shapes = match[2].rpartition("=") if match else ("", "", "")
        if match and name and re.fullmatch(r"[\dx]*\+[\dx]*\+[\dx]*", shapes.strip()):
            self._range(int(match[1] or 0), name, *map(_dims, shapes.split("+")))

    def polygraphy_profile(self, line: str) -> None:
        """Learn from Polygraphy: "{x [min=[1, 2], opt=[2, 2], max=[4, 2]],"; a brace opens the next profile."""
        parts = line.split(" [min=")
        for before, after in itertools.pairwise(parts):
            name = before.rpartition(" ")[2]
            match = re.match(rf"{SHAPE}, opt={SHAPE}, max={SHAPE}", after)
            self._profile = len(self._ranges) if name.startswith("{") else self._profile
            if match:
                self._range(self._profile, name.removeprefix("{"), *map(_dims, match.group(1, 2, 3)))

    def memory(self, line: str) -> None:
        """Learn from "Total Activation Memory: 8339968 bytes" and its like; before TensorRT 10 without the unit."""
        match = re.search(r"(Total Activation|Total Weights|(?:Total|Max) Scratch) Memory: (\d{1,18})", line)
        if not match:
            return
        size = int(match[2])
        if match[1] == "Total Weights":
            self.facts["log.weights_bytes"] = self.facts.get("log.weights_bytes", 0) + size
        else:
            self._append("log.scratch_bytes" if "Scratch" in match[1] else "log.activation_bytes", size)

    def _append(self, name: str, value: Any) -> None:
        values = self.facts.setdefault(name, [])
        if len(values) < MOST_NAMES:
            values.append(value)

    def usage(self, line: str) -> None:
        """Learn from [MemUsageChange] and [MemUsageStats] lines; their unit is MiB."""
        change = re.match(
            r"(.*?): CPU ([+-]\d+), GPU ([+-]\d+), now: CPU (\d+), GPU (\d+)",
            line.partition("[MemUsageChange] ")[2],
        )
        if change:
            names = ("cpu_change_mib", "gpu_change_mib", "cpu_mib", "gpu_mib")
            numbers = dict(zip(names, map(_int, change.group(2, 3, 4, 5)), strict=True))
            self._append("log.memory_changes", {"what": change[1], **numbers})
        for name, pattern in PEAKS:
            if match := re.search(pattern, line):
                self._peak(name, _int(match[1]) * MIB)

    def _peak(self, name: str, size: int) -> None:
        if size:  # 0: built without a GPU
            self.facts[name] = max(size, self.facts.get(name, 0))

    def build_peak(self, line: str) -> None:
        if match := re.search(r"Build phase peak memory: (\d{1,12})(?:\.\d+)? MB", line):
            self._peak("log.peak_bytes", int(match[1]) * MIB)

    def plan_size(self, line: str) -> None:
        if match := re.search(r"ngine (?:with )?size: (\d{1,12}(?:\.\d+)?) MiB", line):
            self.facts["log.plan_bytes"] = round(float(match[1]) * MIB)

    def generated(self, line: str) -> None:
        if match := re.search(r"Engine generation completed in (\d{1,9}(?:\.\d+)?) seconds", line):
            self.facts["log.build_seconds"] = self.facts.get("log.build_seconds", 0.0) + float(match[1])

    def built(self, line: str) -> None:
        """Learn the whole time, which TensorRT-LLM tells last: "Total time of building x: 00:01:40"."""
        if match := re.fullmatch(r"(\d{2,4}):(\d\d):(\d\d)", line.strip().rpartition(" ")[2]):
            hours, minutes, seconds = map(int, match.group(1, 2, 3))
            self.facts["log.build_seconds"] = float(3600 * hours + 60 * minutes + seconds)

    def versions(self, line: str) -> None:
        if match := re.search(r"TensorRT-LLM version: ([\w.+-]{1,40})", line):
            self.facts["version"] = match[1]
        elif match := re.search(r"TensorRT version: ([\w.+-]{1,40})", line):
            self.facts["tensorrt"] = match[1]

    def source(self, line: str) -> None:
        if match := re.search(r"Input filename: +(\S.*)", line):
            self.model = match[1].strip()


PEAKS = (
    ("log.peak_bytes", r"Peak memory usage during Engine building and serialization: CPU: (\d+) MiB"),
    ("log.peak_gpu_bytes", r"Peak memory usage of TRT CPU/GPU memory allocators: CPU \d+ MiB, GPU (\d+) MiB"),
)


def _int(text: str) -> int:
    return int(text[:15])


def _dims(text: str) -> Dims:
    return tuple(_int(part) for part in re.findall(r"-?\d+", text)[:16])


def _shape(text: str) -> tuple[int | str, ...]:
    return tuple("?" if dim < 0 else dim for dim in _dims(text))


def _varying(shapes: set[Dims]) -> tuple[int | str, ...]:
    """Return a shape in which every dimension that is not the same in all of them is dynamic."""
    if len({len(shape) for shape in shapes}) > 1:
        return ("...",)
    return tuple(sizes[0] if len(set(sizes)) == 1 else "?" for sizes in zip(*shapes, strict=True))


def _dtype(name: str) -> str:
    return TYPES.get(name.lower(), name.lower())


LINES: tuple[tuple[str, Callable[[Told, str], None]], ...] = (
    (", LayerType: ", Told.kernel),
    ("Layer(", Told.kernel),
    ("ForeignNode ", Told.foreign),
    (", IOMode: ", Told.binding),
    ("network input: ", Told.network_input),
    (" as output: ", Told.network_output),
    (", dimension names: ", Told.tensorrt_llm_profile),
    ("Adding optimization profile ", Told.next_profile),
    ("Input build shape", Told.trtexec_profile),
    (" [min=", Told.polygraphy_profile),
    (" Memory: ", Told.memory),
    ("[MemUsage", Told.usage),
    ("Build phase peak memory", Told.build_peak),
    ("ngine size: ", Told.plan_size),
    ("ngine with size: ", Told.plan_size),
    ("Engine generation completed", Told.generated),
    ("Total time of building ", Told.built),
    (" version: ", Told.versions),
    ("Input filename: ", Told.source),
    ("[E] ", Told.error),
    ("[F] ", Told.error),
    ("ERROR", Told.error),
    ("Error: ", Told.error),
    ("Exception: ", Told.error),
    ("Engine generation completed", Told.succeeded),
    ("Total time of building all engines", Told.succeeded),
    ("ngine built in ", Told.succeeded),
    ("Created engine with size", Told.succeeded),
    ("&&&& PASSED", Told.succeeded),
    ("&&&& FAILED", Told.failed),
    ("Engine could not be created from network", Told.failed),
    ("Engine building failed", Told.failed),
)
NEEDLES = tuple(dict.fromkeys(needle.encode() for needle, _ in LINES))
