"""Readers of the folders that TensorRT-LLM's debugging facilities leave behind.

Three kinds: the Python GenerationSession's (`runtime/generation.py`, up to 1.2.1), the C++ executor's `DebugConfig`
(`batch_manager/utils/debugUtils.cpp`, up to 1.2.1) and the PyTorch backend's (`_torch/debug/debug_hook.py`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from trtdx.capture.dumps.tensor_files import DumpedTensor
from trtdx.errors import InputError
from trtdx.formats.npy import RawTensor, read_npy
from trtdx.optional import import_optional
from trtdx.tensors.dtypes import find_dtype
from trtdx.tensors.statistics import view_memory
from trtdx.tensors.taps import Place, place_from_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trtdx.capture.dumps.tensor_files import DumpNotes
    from trtdx.host import Host

_SESSION = re.compile(r"(?:.*/)?PP_(\d{1,4})/TP_(\d{1,4})/(?:CP_(\d{1,4})/)?([^/]+)-step(\d{1,12})\.npy")
_CPP = re.compile(r"(?:.*/)?PP_(\d{1,4})/TP_(\d{1,4})/iteration_(\d{1,12})/(.+)\.npy")
_RANK = re.compile(r"(?:.*/)?rank(\d{1,5})")
_CALL = re.compile(r"(\d{1,12})\.(.+)")
_PORTS = {"input": "in", "output": "out"}
SAFE_TORCH = (2, 6)  # weights_only loading could be led astray before (CVE-2025-32434)
MAX_EXPANDED_BYTES = 1 << 30  # a tensor may be larger than its file by repeating, but not without bound


class _NpyFile(NamedTuple):
    rank: int
    step: int
    name: str
    path: str


def detect_folder_format(files: Iterable[str]) -> str:
    """Return which kind of dump a folder's files are."""
    for path in files:
        if _CPP.fullmatch(path):
            return "trtllm-executor"
        if _SESSION.fullmatch(path):
            return "trtllm-session"
        if _parse_hook_path(path):
            return "trtllm-hook"
    return ""


def natural_sort_key(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts layer 2 before layer 10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def iter_session_dump(host: Host, path: str, notes: DumpNotes) -> Iterator[DumpedTensor]:
    """Yield `PP_x/TP_y/CP_z/<name>-step<n>.npy`."""
    matches = [match for match in map(_SESSION.fullmatch, host.files(path)) if match]
    tensor, context = (1 + max(int(match[group] or 0) for match in matches) for group in (2, 3))
    files = [
        _NpyFile(
            (int(match[1]) * tensor + int(match[2])) * context + int(match[3] or 0),
            int(match[5]),
            match[4],
            match[0],
        )
        for match in matches
    ]
    notes.append("GenerationSession writes every tensor as float32, so the types in this capture are not the engine's")
    yield from _iter_npy_files(host, files, notes)


def iter_cpp_dump(host: Host, path: str, notes: DumpNotes) -> Iterator[DumpedTensor]:
    """Yield `PP_n/TP_n/iteration_<i>/<name>.npy`, where n are sizes and not ranks."""
    matches = [match for match in map(_CPP.fullmatch, host.files(path)) if match]
    sizes = {(int(match[1]), int(match[2])) for match in matches}
    ranks = max(pipeline * tensor for pipeline, tensor in sizes)
    if ranks > 1:
        notes.append(
            f"{ranks} ranks wrote to the same paths (TensorRT-LLM names the folders by the number of ranks, not by "
            "rank): what is here is whichever rank wrote last"
        )
    yield from _iter_npy_files(host, [_NpyFile(0, int(match[3]), match[4], match[0]) for match in matches], notes)


def _iter_npy_files(host: Host, files: Sequence[_NpyFile], notes: DumpNotes) -> Iterator[DumpedTensor]:
    for file in sorted(files, key=lambda file: (file.rank, file.step, natural_sort_key(file.name))):
        raw = _read_or_note(host, file.path, read_npy, notes)
        if raw is not None:
            yield DumpedTensor(file.rank, file.step, place_from_name(file.name), raw)


def _read_or_note(
    host: Host, path: str, read: Callable[[BinaryIO, int], RawTensor], notes: list[str]
) -> RawTensor | None:
    """Return the tensor of a file; where it cannot be read, note why."""
    try:
        with host.open(path) as stream:
            return read(stream, host.size(path))
    except (InputError, OSError) as err:
        notes.append(f"{path} {getattr(err, 'message', err)}")
        return None


class _HookFile(NamedTuple):
    """A file of the debug hook: which call of which modules, and what of it."""

    rank: int
    calls: tuple[tuple[int, str], ...]  # the number of the call within its parent, and the module's name
    port: str
    argument: str
    path: str


def iter_hook_dump(host: Host, path: str, notes: DumpNotes) -> Iterator[DumpedTensor]:
    """Yield `rank<r>/<i>.<Module>-…-<input|output>.<argument>.pt`.

    The first number runs on over all forward passes; a new step begins where the first module is met again.
    """
    dumped_files = [dumped for dumped in map(_parse_hook_path, host.files(path)) if dumped]
    ranks: dict[int, list[_HookFile]] = defaultdict(list)
    for dumped in dumped_files:
        ranks[dumped.rank].append(dumped)
    notes.append("steps are inferred: one begins wherever the first module of the first step is called again")
    for rank in sorted(ranks):
        yield from _iter_hook_files(host, ranks[rank], notes)


def _parse_hook_path(path: str) -> _HookFile | None:
    folder, _, file = path.rpartition("/")
    *called, what = file.removesuffix(".pt").split("-")
    port, _, argument = what.partition(".")
    rank, calls = _RANK.fullmatch(folder), [match for match in map(_CALL.fullmatch, called) if match]
    if rank is None or port not in _PORTS or not argument or not calls or len(calls) < len(called):
        return None
    return _HookFile(int(rank[1]), tuple((int(match[1]), match[2]) for match in calls), _PORTS[port], argument, path)


def _iter_hook_files(host: Host, files: list[_HookFile], notes: DumpNotes) -> Iterator[DumpedTensor]:
    steps = _infer_steps({dumped.calls[0] for dumped in files})
    inputs: dict[Any, set[str]] = defaultdict(set)
    results: dict[Any, int] = defaultdict(int)  # outputs that are not inputs dumped once more
    for file in files:
        if file.port == "in":
            inputs[file.calls].add(file.argument)
    for file in files:
        results[file.calls] += file.port == "out" and file.argument not in inputs[file.calls]
    for file in sorted(files, key=lambda file: (file.calls, file.port, natural_sort_key(file.argument))):
        step, first = steps[file.calls[0][0]]
        calls = ((file.calls[0][0] - first, file.calls[0][1]), *file.calls[1:])
        alone = file.port == "out" and results[file.calls] == 1 and file.argument not in inputs[file.calls]
        place = Place(
            ".".join(f"{number}.{name}" for number, name in calls),
            file.port,
            argument="" if alone else file.argument,
            op=calls[-1][1],
        )
        raw = _read_or_note(host, file.path, raw_from_torch, notes)
        if raw is not None:
            yield DumpedTensor(file.rank, step, place, raw)


def _infer_steps(calls: set[tuple[int, str]]) -> dict[int, tuple[int, int]]:
    """Return the step of each call at the top, and the number before that step's first."""
    ordered = sorted(calls)
    steps, step, first = {}, -1, 0
    for number, name in ordered:
        if name == ordered[0][1]:
            step, first = step + 1, number - 1
        steps[number] = (step, first)
    return steps


def raw_from_torch(stream: BinaryIO, size: int) -> RawTensor:
    """Return the tensor of a file that torch.save wrote, without running anything in it.

    Raises:
        InputError: it holds something else than a tensor, or torch is too old to be trusted with it.
    """
    torch = import_optional("torch", extra="torch", purpose="read .pt files")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < SAFE_TORCH:
        raise InputError(f"is not read with torch {torch.__version__}: its weights_only loading is not safe before 2.6")
    try:
        tensor = torch.load(stream, map_location="cpu", weights_only=True)
    except Exception as err:  # pickle, zip, torch: whatever a hostile file provokes
        raise InputError(f"is not a tensor that can be loaded safely: {str(err).splitlines()[0][:200]}") from err
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_quantized:
        raise InputError(f"holds a {type(tensor).__name__}, not a plain tensor")
    if tensor.numel() * tensor.element_size() > max(4 * size, MAX_EXPANDED_BYTES):
        raise InputError(f"claims {tensor.numel() * tensor.element_size()} bytes in a file of {size}")
    contiguous = tensor.detach().contiguous()
    content = bytes(view_memory(contiguous.data_ptr(), contiguous.numel() * contiguous.element_size()))
    return RawTensor(find_dtype(contiguous.dtype).name, tuple(contiguous.shape), content)
