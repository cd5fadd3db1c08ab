"""Goldens: what a test's tensors looked like when they were right, small enough to lie beside the tests in git.

For a module `test_mlp.py` there is `__trtdx__/test_mlp.jsonl`: a line for each test that says what computed it, then a
line for each tensor in the order of the data's flow, with its statistics and content hash. Tests are sorted, and one
whose tensors are the same stays as it was when others are recorded, so that a diff shows what changed.

Values lie beside it in `test_mlp.safetensors`, flat, by content hash and type, so that they cannot be taken for
another tensor's: whole where a test's budget has room, the smallest first, else a sample of `SAMPLE` elements.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.capture.dumps.export import write_safetensors
from trtdx.capture.dumps.tensor_files import iter_safetensors
from trtdx.errors import TrtdxError
from trtdx.tensors.dtypes import DTYPES, as_little_endian
from trtdx.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    import numpy as np

    from trtdx.host import Host
    from trtdx.tensors.statistics import Statistics

    Array = np.ndarray[Any, Any]

GOLDENS_VERSION = 1
GOLDENS_FOLDER = "__trtdx__"
SAMPLE_ELEMENTS = 64
VALUES_BYTES = 16 << 10  # kept whole of one test
RECORDED_NUMBERS = ("min", "max", "mean", "std", "l2", "p05", "p50", "p95")
RECORDED_COUNTS = ("zeros", "nan", "pos_inf", "neg_inf", "subnormals")


class GoldenError(TrtdxError):
    """A golden cannot be read or written."""


class GoldenTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tensor of one run of a test; numbers are those of its finite values, and None where there are none."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    hash: str
    step: int = 0
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    l2: float | None = None
    p05: float | None = None
    p50: float | None = None
    p95: float | None = None
    zeros: int = 0
    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0
    subnormals: int = 0

    @property
    def key(self) -> tuple[int, str]:
        return self.step, self.name

    @property
    def content(self) -> str:
        """What values are kept under."""
        return content_key(self.dtype, self.hash)

    @property
    def layout(self) -> str:
        return f"{self.dtype} {list(self.shape)}"

    @property
    def title(self) -> str:
        return f"{self.name} (run {self.step})" if self.step else self.name


class Golden(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was recorded of one test, and by what."""

    test: str  # its id in its module
    engine: str
    versions: dict[str, str]
    platform: str
    kernel: str  # what computed the statistics
    recorded: str  # the date, UTC
    made_by: str
    taps: str = ""
    tensors: tuple[GoldenTensor, ...] = ()

    def same_as(self, other: Golden) -> bool:
        """Whether both hold the same tensors, bit by bit."""
        mine = [(tensor.key, tensor.layout, tensor.hash) for tensor in self.tensors]
        return mine == [(tensor.key, tensor.layout, tensor.hash) for tensor in other.tensors]


class StoredValues(msgspec.Struct, frozen=True):
    """Values: of a whole tensor, or of a sample of it; flat."""

    dtype: str
    data: bytes

    @property
    def elements(self) -> int:
        return len(self.data) // DTYPES[self.dtype].bytes

    def array(self) -> Array:
        import numpy as np

        from trtdx.tensors.dtypes import numpy_dtype

        return np.frombuffer(self.data, numpy_dtype(self.dtype))


Values = dict[str, StoredValues]  # by content; a sample's key ends with "~"


def content_key(dtype: str, digest: str) -> str:
    """Return what stands for values: equal bytes of another type are other values."""
    return f"{digest}.{dtype}"


class GoldenFileHeader(msgspec.Struct, frozen=True):
    """The first line of a file."""

    goldens: int
    of: str
    note: str = "written by pytest --trtdx-record, compared by pytest --trtdx"


def golden_from_statistics(
    name: str, step: int, dtype: str, shape: tuple[int, ...], statistics: Statistics
) -> GoldenTensor:
    """Return what is recorded of a tensor."""
    numbers: dict[str, Any] = {field: _finite_or_none(getattr(statistics, field)) for field in RECORDED_NUMBERS}
    counts: dict[str, Any] = {field: getattr(statistics, field) for field in RECORDED_COUNTS}
    return GoldenTensor(name, dtype, shape, statistics.hash, step, **numbers, **counts)


def _finite_or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None


def sample_elements(array: Array) -> Array:
    """Return evenly drawn elements of an array, always the same ones, in their order."""
    from trtdx.tensors.statistics_numpy import sample_indices

    flat = as_little_endian(array).reshape(-1)
    places = sample_indices(flat.size)
    return flat[places[:: max(1, -(-places.size // SAMPLE_ELEMENTS))]]


def choose_stored_values(arrays: Mapping[str, Array], budget_bytes: int = VALUES_BYTES) -> Values:
    """Return what is kept of arrays, by their content: the smallest whole, of the rest a sample."""
    stored: Values = {}
    left = budget_bytes
    for content, array in sorted(arrays.items(), key=lambda item: item[1].nbytes):
        if array.nbytes <= left:
            left -= array.nbytes
            stored[content] = _values_from_array(as_little_endian(array))
        else:
            stored[f"{content}~"] = _values_from_array(sample_elements(array))
    return stored


def _values_from_array(array: Array) -> StoredValues:
    return StoredValues(array.dtype.name, array.tobytes())


def golden_path(module: Path) -> Path:
    """Return where the goldens of a test module lie."""
    return module.parent / GOLDENS_FOLDER / f"{module.stem}.jsonl"


class GoldenFile:
    """The goldens of one test module, as they lie on disk."""

    def __init__(self, host: Host, module: Path) -> None:
        """Read them; there is none where there is no file.

        Raises:
            GoldenError: the file is no such file, or of a newer version.
        """
        self.path, self._module, self._host = golden_path(module), module, host
        self.goldens: dict[str, Golden] = {}
        self._values: Values | None = None
        if host.kind(str(self.path)) != "absent":
            with host.open(str(self.path)) as stream:
                self.goldens = {golden.test: golden for golden in parse_goldens(stream.read(), str(self.path))}

    @property
    def values(self) -> Values:
        """What is kept of values; read when it is first asked for."""
        if self._values is None:
            path = str(self._values_path)
            notes: list[str] = []
            self._values = {}
            if self._host.kind(path) != "absent":
                for item in iter_safetensors(self._host, path, notes):
                    self._values[item.place.name] = StoredValues(item.raw.dtype, bytes(item.raw.data))
        return self._values

    @property
    def _values_path(self) -> Path:
        return self.path.with_suffix(".safetensors")

    def update(self, recorded: Iterable[Golden], values: Values, drop: Collection[str] = ()) -> list[str]:
        """Put recorded goldens in the place of older ones, and write if that changes anything.

        Values are written first and go by hash: a process killed between the two leaves older goldens that are
        whole, at worst with fewer values.

        Returns:
            The tests whose golden is new or another now.
        """
        changed = []
        for golden in recorded:
            before = self.goldens.get(golden.test)
            if before is None or not before.same_as(golden):
                changed.append(golden.test)
                self.goldens[golden.test] = golden
        gone = [test for test in drop if self.goldens.pop(test, None)]
        if changed or gone:
            self._write(values)
        return changed

    def _write(self, values: Values) -> None:
        if not self.goldens:
            self.path.unlink(missing_ok=True)
            self._values_path.unlink(missing_ok=True)
            return
        contents = {tensor.content for golden in self.goldens.values() for tensor in golden.tensors}
        kept = {key: stored for key, stored in (self.values | values).items() if key.removesuffix("~") in contents}
        kept = {key: stored for key, stored in sorted(kept.items()) if not (key.endswith("~") and key[:-1] in kept)}
        content = io.BytesIO()
        entries = [(key, stored.dtype, (stored.elements,)) for key, stored in kept.items()]
        write_safetensors(content, entries, (stored.data for stored in kept.values()), made_by=f"trtdx {__version__}")
        self._host.write(str(self._values_path), content.getvalue())
        text = format_goldens(self._module.name, self.goldens.values())
        self._host.write(str(self.path), text)
        self._values = kept

    @property
    def size_bytes(self) -> int:
        paths = [str(path) for path in (self.path, self._values_path)]
        return sum(self._host.size(path) for path in paths if self._host.kind(path) == "file")


def format_goldens(module: str, goldens: Iterable[Golden]) -> bytes:
    """Return goldens as lines, sorted by test."""
    lines = [msgspec.json.encode(GoldenFileHeader(GOLDENS_VERSION, module))]
    for golden in sorted(goldens, key=lambda golden: golden.test):
        lines.append(msgspec.json.encode(msgspec.structs.replace(golden, tensors=())))
        lines += [msgspec.json.encode(tensor) for tensor in golden.tensors]
    return b"\n".join(lines) + b"\n"


def parse_goldens(content: bytes, path: str) -> Iterator[Golden]:
    """Yield the goldens of a file.

    Raises:
        GoldenError: a line is not what it should be; the error names it.
    """
    golden: Golden | None = None
    tensors: list[GoldenTensor] = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            parsed = _parse_line(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as err:
            raise GoldenError(
                f"{path}, line {number}, is not a line of goldens: {err}",
                fix="resolve it if it is a merge conflict; else restore the file, or delete it and record again",
            ) from err
        _check_header(parsed, number, path)
        if isinstance(parsed, Golden):
            if golden is not None:
                yield msgspec.structs.replace(golden, tensors=tuple(tensors))
            golden, tensors = parsed, []
        elif isinstance(parsed, GoldenTensor):
            tensors.append(parsed)
    if golden is not None:
        yield msgspec.structs.replace(golden, tensors=tuple(tensors))


def _parse_line(line: bytes) -> GoldenFileHeader | Golden | GoldenTensor:
    fields = msgspec.json.decode(line, type=dict[str, Any])
    kind = next((kind for key, kind in _KINDS.items() if key in fields), GoldenTensor)
    parsed: GoldenFileHeader | Golden | GoldenTensor = msgspec.convert(fields, kind)
    if isinstance(parsed, GoldenTensor) and parsed.dtype not in DTYPES:
        raise msgspec.ValidationError(f"no type is called {parsed.dtype[:80]!r}")
    return parsed


_KINDS: dict[str, Any] = {"goldens": GoldenFileHeader, "test": Golden}


def _check_header(line: Any, number: int, path: str) -> None:
    if (number == 1) != isinstance(line, GoldenFileHeader):
        raise GoldenError(f"{path} is not a file of goldens: its first line should say so", fix="pytest --trtdx-record")
    if isinstance(line, GoldenFileHeader) and line.goldens > GOLDENS_VERSION:
        raise GoldenError(f"{path} was written by a newer trtdx", fix="update trtdx")
