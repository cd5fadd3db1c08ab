"""The lines of a verbose build log that tell something, and what each tells."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.formats.tensorrt.kernels import parse_kernel_line, parse_kernel_nodes
from trtdx.formats.tensorrt.nouns import Kernel, OptimizationProfile, ShapeRange, TensorSpec
from trtdx.redact import redact_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_KERNELS = 50_000
MAX_NAMES = 10_000  # tensors, foreign nodes, memory lines
MIB = 1 << 20
DTYPE_NAMES = {
    "float": "float32", "half": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16", "int8": "int8", "int32": "int32",
    "int64": "int64", "uint8": "uint8", "bool": "bool", "fp8": "fp8", "int4": "int4", "fp4": "fp4",
}  # fmt: skip
MAX_ERRORS, LONGEST_ERROR = 20, 300
# "[TRT] [E] ...", "[E] ...", "[TensorRT] ERROR: ...", "[TensorRT-LLM][ERROR] ..." and "TypeError: ...", with or
# without a time and a rank before them.
LINE_PREFIX = r"(?:\[[\d/:. -]+\] ?|\[?rank ?\d+\]?:? ?|\d{1,4}: )*"
ERROR = re.compile(
    rf"{LINE_PREFIX}(?:(?:\[TRT(?:-LLM)?\] )?(?:\[RANK \d+\] )?\[[EF]\]|\[TensorRT\] (?:INTERNAL_)?ERROR:"
    r"|\[TensorRT-LLM\]\[ERROR\]|(?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception): )"
)
SHAPE = r"[\[(]([^\])]*)[\])]"  # as Python prints lists and tuples
Dims = tuple[int, ...]


class BuildLogParser:
    """What a log has told so far."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.facts: dict[str, Any] = {}
        self.kernels: list[Kernel] = []
        self.omitted_kernels = 0
        self.model = ""
        self._tensors: dict[str, TensorSpec] = {}
        self._dimension_names: dict[str, tuple[str, ...]] = {}  # of dimensions, by tensor
        self._ranges: dict[int, dict[str, ShapeRange]] = {}
        self._profile = 0  # that the lines are about
        self._foreign_nodes: dict[str, tuple[str, ...]] = {}  # the nodes of each foreign node
        self._errors: list[str] = []
        self._built = self._failed = False

    def parse_line(self, line: str) -> None:
        """Learn from one line."""
        for needle, learn in LINE_PARSERS:
            if needle in line:
                learn(self, line)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Return the tensors listed, or else the inputs that profiles name, with the names of their dimensions."""
        tensors = self._tensors or self._tensors_from_profiles()
        return tuple(
            TensorSpec(tensor.name, tensor.mode, tensor.dtype, self._shape_with_names(tensor))
            for tensor in tensors.values()
        )

    def _tensors_from_profiles(self) -> dict[str, TensorSpec]:
        ranges = [shape_range for table in self._ranges.values() for shape_range in table.values()]
        shapes: dict[str, set[Dims]] = {}
        for span in ranges:
            shapes.setdefault(span.tensor, set()).update((span.min, span.opt, span.max))
        return {name: TensorSpec(name, "in", "?", _dynamic_shape(sizes)) for name, sizes in shapes.items()}

    def _shape_with_names(self, tensor: TensorSpec) -> tuple[int | str, ...]:
        names = self._dimension_names.get(tensor.name, ())
        if len(names) != len(tensor.shape):
            return tensor.shape
        pairs = zip(tensor.shape, names, strict=True)
        return tuple(name if dim == "?" and name else dim for dim, name in pairs)

    def profiles(self) -> tuple[OptimizationProfile, ...]:
        source = f"read from {self._path}"
        return tuple(
            OptimizationProfile(index, tuple(ranges.values()), source) for index, ranges in sorted(self._ranges.items())
        )

    def _add_range(self, profile: int, tensor: str, *shapes: Dims) -> None:
        table = self._ranges.setdefault(profile, {})
        if len(shapes) == 3 and (tensor in table or len(table) < MAX_NAMES):
            table[tensor] = ShapeRange(tensor, *shapes)

    def parse_error(self, line: str) -> None:
        """Learn an error of TensorRT's or TensorRT-LLM's, or the last line of a traceback."""
        if ERROR.match(line.strip()) and len(self._errors) < MAX_ERRORS:
            self._errors.append(redact_secrets(" ".join(line.split())[:LONGEST_ERROR]))

    def note_success(self, _: str) -> None:
        self._built = True

    def note_failure(self, _: str) -> None:
        self._failed = True

    def errors(self) -> list[str]:
        """Return the errors of a build that made no engine; an engine may be made in spite of some."""
        return self._errors if self._failed or not self._built else []

    def parse_kernel(self, line: str) -> None:
        kernel = parse_kernel_line(line)
        if kernel is None:
            return
        if len(self.kernels) >= MAX_KERNELS:
            self.omitted_kernels += 1
            return
        nodes = kernel.nodes or self._foreign_nodes.get(kernel.name, ())
        self.kernels.append(msgspec.structs.replace(kernel, nodes=nodes))

    def parse_foreign_node(self, line: str) -> None:
        """Learn the nodes of "ForeignNode {...} metadata: [ONNX Layer: a]": a short listing does not repeat them."""
        name, _, metadata = line.partition("ForeignNode ")[2].partition(" metadata: ")
        if name and len(self._foreign_nodes) < MAX_NAMES:
            self._foreign_nodes[re.sub(r" \[profile \d+\]$", "", name)] = parse_kernel_nodes(metadata)

    def parse_binding(self, line: str) -> None:
        """Learn an engine tensor and its profiles from "Name: x, IOMode: Input, DataType: Int64, ..."."""
        name, _, rest = line.partition("Name: ")[2].partition(", IOMode: ")
        match = re.match(r"(\w{1,20}), DataType: (\w{1,20}), Dimensions: \[([-\d,]*)\]", rest)
        if not match or len(self._tensors) >= MAX_NAMES:
            return
        mode = "in" if match[1] == "Input" else "out"
        self._tensors[name] = TensorSpec(name, mode, _dtype_from_log(match[2]), _parse_shape(match[3]))
        shapes = re.findall(r"MinShape: \[([-\d,]*)\], OptShape: \[([-\d,]*)\], MaxShape: \[([-\d,]*)\]", rest)
        for index, profile_shapes in enumerate(shapes):
            self._add_range(index, name, *map(_parse_dims, profile_shapes))

    def parse_network_input(self, line: str) -> None:
        """Learn an input from the parser, which comes before the listing and has no outputs."""
        name, _, rest = line.partition("network input: ")[2].partition(" with dtype: ")
        match = re.match(r"(\w{1,20}), dimensions: \(([-\d, ]*)\)", rest)
        if match and len(self._tensors) < MAX_NAMES:
            self._tensors[name] = TensorSpec(name, "in", _dtype_from_log(match[1]), _parse_shape(match[2]))

    def parse_network_output(self, line: str) -> None:
        name = line.rpartition(" as output: ")[2].strip()
        if name and "Marking " in line and len(self._tensors) < MAX_NAMES:
            self._tensors[name] = TensorSpec(name, "out", "?", ("...",))

    def parse_tensorrt_llm_profile(self, line: str) -> None:
        """Learn from TensorRT-LLM's builder (0.8 to 1.2): "x, min: [1], opt: [2], max: [3], dimension names: ['a']"."""
        before, _, rest = line.partition(", min: ")
        match = re.match(rf"{SHAPE}, opt: {SHAPE}, max: {SHAPE}, dimension names: (.*)", rest)
        name = before.rpartition(" ")[2]
        if match and name:
            self._add_range(self._profile, name, *map(_parse_dims, match.group(1, 2, 3)))
            self._dimension_names[name] = tuple(re.findall(r"'([^']*)'|None", match[4])[:16])

    def parse_next_profile(self, line: str) -> None:
        match = re.search(r"Adding optimization profile (\d{1,4})/\d+", line)
        if match:
            self._profile = int(match[1]) - 1

    def parse_trtexec_profile(self, line: str) -> None:
        """Learn from trtexec: "Input build shape (profile 0): x=1x2+2x2+4x2"."""
        match = re.match(r"(?: \(profile (\d{1,4})\))?: (.*)", line.partition("Input build shape")[2])
        name, _, shapes = match[2].rpartition("=") if match else ("", "", "")
        if match and name and re.fullmatch(r"[\dx]*\+[\dx]*\+[\dx]*", shapes.strip()):
            self._add_range(int(match[1] or 0), name, *map(_parse_dims, shapes.split("+")))

    def parse_polygraphy_profile(self, line: str) -> None:
        """Learn from Polygraphy: "{x [min=[1, 2], opt=[2, 2], max=[4, 2]],"; a brace opens the next profile."""
        parts = line.split(" [min=")
        for before, after in itertools.pairwise(parts):
            name = before.rpartition(" ")[2]
            match = re.match(rf"{SHAPE}, opt={SHAPE}, max={SHAPE}", after)
            self._profile = len(self._ranges) if name.startswith("{") else self._profile
            if match:
                self._add_range(self._profile, name.removeprefix("{"), *map(_parse_dims, match.group(1, 2, 3)))

    def parse_memory(self, line: str) -> None:
        """Learn from "Total Activation Memory: 8339968 bytes" and its like; before TensorRT 10 without the unit."""
        match = re.search(r"(Total Activation|Total Weights|(?:Total|Max) Scratch) Memory: (\d{1,18})", line)
        if not match:
            return
        size = int(match[2])
        if match[1] == "Total Weights":
            self.facts["log.weights_bytes"] = self.facts.get("log.weights_bytes", 0) + size
        else:
            self._append_fact("log.scratch_bytes" if "Scratch" in match[1] else "log.activation_bytes", size)

    def _append_fact(self, name: str, value: Any) -> None:
        values = self.facts.setdefault(name, [])
        if len(values) < MAX_NAMES:
            values.append(value)

    def parse_memory_usage(self, line: str) -> None:
        """Learn from [MemUsageChange] and [MemUsageStats] lines; their unit is MiB."""
        change = re.match(
            r"(.*?): CPU ([+-]\d+), GPU ([+-]\d+), now: CPU (\d+), GPU (\d+)",
            line.partition("[MemUsageChange] ")[2],
        )
        if change:
            names = ("cpu_change_mib", "gpu_change_mib", "cpu_mib", "gpu_mib")
            numbers = dict(zip(names, map(_bounded_int, change.group(2, 3, 4, 5)), strict=True))
            self._append_fact("log.memory_changes", {"what": change[1], **numbers})
        for name, pattern in PEAK_PATTERNS:
            if match := re.search(pattern, line):
                self._raise_peak(name, _bounded_int(match[1]) * MIB)

    def _raise_peak(self, name: str, size: int) -> None:
        if size:  # 0: built without a GPU
            self.facts[name] = max(size, self.facts.get(name, 0))

    def parse_build_peak(self, line: str) -> None:
        if match := re.search(r"Build phase peak memory: (\d{1,12})(?:\.\d+)? MB", line):
            self._raise_peak("log.peak_bytes", int(match[1]) * MIB)

    def parse_plan_size(self, line: str) -> None:
        if match := re.search(r"ngine (?:with )?size: (\d{1,12}(?:\.\d+)?) MiB", line):
            self.facts["log.plan_bytes"] = round(float(match[1]) * MIB)

    def parse_generation_time(self, line: str) -> None:
        if match := re.search(r"Engine generation completed in (\d{1,9}(?:\.\d+)?) seconds", line):
            self.facts["log.build_seconds"] = self.facts.get("log.build_seconds", 0.0) + float(match[1])

    def parse_total_time(self, line: str) -> None:
        """Learn the whole time, which TensorRT-LLM tells last: "Total time of building x: 00:01:40"."""
        if match := re.fullmatch(r"(\d{2,4}):(\d\d):(\d\d)", line.strip().rpartition(" ")[2]):
            hours, minutes, seconds = map(int, match.group(1, 2, 3))
            self.facts["log.build_seconds"] = float(3600 * hours + 60 * minutes + seconds)

    def parse_versions(self, line: str) -> None:
        if match := re.search(r"TensorRT-LLM version: ([\w.+-]{1,40})", line):
            self.facts["version"] = match[1]
        elif match := re.search(r"TensorRT version: ([\w.+-]{1,40})", line):
            self.facts["tensorrt"] = match[1]

    def parse_model_file(self, line: str) -> None:
        if match := re.search(r"Input filename: +(\S.*)", line):
            self.model = match[1].strip()


PEAK_PATTERNS = (
    ("log.peak_bytes", r"Peak memory usage during Engine building and serialization: CPU: (\d+) MiB"),
    ("log.peak_gpu_bytes", r"Peak memory usage of TRT CPU/GPU memory allocators: CPU \d+ MiB, GPU (\d+) MiB"),
)


def _bounded_int(text: str) -> int:
    return int(text[:15])


def _parse_dims(text: str) -> Dims:
    return tuple(_bounded_int(part) for part in re.findall(r"-?\d+", text)[:16])


def _parse_shape(text: str) -> tuple[int | str, ...]:
    return tuple("?" if dim < 0 else dim for dim in _parse_dims(text))


def _dynamic_shape(shapes: set[Dims]) -> tuple[int | str, ...]:
    """Return a shape in which every dimension that is not the same in all of them is dynamic."""
    if len({len(shape) for shape in shapes}) > 1:
        return ("...",)
    return tuple(sizes[0] if len(set(sizes)) == 1 else "?" for sizes in zip(*shapes, strict=True))


def _dtype_from_log(name: str) -> str:
    return DTYPE_NAMES.get(name.lower(), name.lower())


LINE_PARSERS: tuple[tuple[str, Callable[[BuildLogParser, str], None]], ...] = (
    (", LayerType: ", BuildLogParser.parse_kernel),
    ("Layer(", BuildLogParser.parse_kernel),
    ("ForeignNode ", BuildLogParser.parse_foreign_node),
    (", IOMode: ", BuildLogParser.parse_binding),
    ("network input: ", BuildLogParser.parse_network_input),
    (" as output: ", BuildLogParser.parse_network_output),
    (", dimension names: ", BuildLogParser.parse_tensorrt_llm_profile),
    ("Adding optimization profile ", BuildLogParser.parse_next_profile),
    ("Input build shape", BuildLogParser.parse_trtexec_profile),
    (" [min=", BuildLogParser.parse_polygraphy_profile),
    (" Memory: ", BuildLogParser.parse_memory),
    ("[MemUsage", BuildLogParser.parse_memory_usage),
    ("Build phase peak memory", BuildLogParser.parse_build_peak),
    ("ngine size: ", BuildLogParser.parse_plan_size),
    ("ngine with size: ", BuildLogParser.parse_plan_size),
    ("Engine generation completed", BuildLogParser.parse_generation_time),
    ("Total time of building ", BuildLogParser.parse_total_time),
    (" version: ", BuildLogParser.parse_versions),
    ("Input filename: ", BuildLogParser.parse_model_file),
    ("[E] ", BuildLogParser.parse_error),
    ("[F] ", BuildLogParser.parse_error),
    ("ERROR", BuildLogParser.parse_error),
    ("Error: ", BuildLogParser.parse_error),
    ("Exception: ", BuildLogParser.parse_error),
    ("Engine generation completed", BuildLogParser.note_success),
    ("Total time of building all engines", BuildLogParser.note_success),
    ("ngine built in ", BuildLogParser.note_success),
    ("Created engine with size", BuildLogParser.note_success),
    ("&&&& PASSED", BuildLogParser.note_success),
    ("&&&& FAILED", BuildLogParser.note_failure),
    ("Engine could not be created from network", BuildLogParser.note_failure),
    ("Engine building failed", BuildLogParser.note_failure),
)
LINE_MARKS = tuple(dict.fromkeys(needle.encode() for needle, _ in LINE_PARSERS))
