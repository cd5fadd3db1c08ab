"""Requests an engine is to take: one given in words, or a trace of real traffic as JSON lines."""

from __future__ import annotations

from operator import le
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import InputError, UnknownNameError
from trtdx.formats.streams import read_line_blocks
from trtdx.inspect.facts.artifact import Artifact, FactCollector
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trtdx.host import Host

MAX_LENGTH = 2**31 - 1  # TensorRT's dimensions and TensorRT-LLM's lengths are 32-bit
MAX_SHAPES = 1 << 15
MAX_LEADING_BITS = 9  # of a length, the leading ones that are kept when there are too many distinct requests
MAX_LINE_BYTES = 16 << 20
MAX_BAD_LINES = 5

# The names a field goes by. Of several names for the answer's length the asked one comes first: an engine
# must have room for what is asked, however short the answer turned out.
FIELD_NAMES: dict[str, tuple[str, ...]] = {
    "batch": ("batch", "batch_size"),
    "input_len": (
        "input_len", "input_length", "prompt_tokens", "isl", "prompt_len", "prompt_length", "input_tokens",
        "num_prompt_tokens", "num_input_tokens", "ContextTokens",
    ),
    "output_len": (
        "max_tokens", "max_new_tokens", "max_completion_tokens", "request_output_len", "output_len",
        "output_length", "output_tokens", "completion_tokens", "osl", "num_output_tokens", "GeneratedTokens",
    ),
    "beam": ("beam", "beam_width", "num_beams"),
    "draft_len": ("draft_len", "num_draft_tokens"),
    "prompt_table": ("prompt_table", "prompt_vocab_size", "prompt_table_size"),
    "lora_rank": ("lora_rank",),
    "encoder_input_len": ("encoder_input_len", "encoder_input_length"),
}  # fmt: skip
POSITIVE_FIELDS = ("batch", "input_len", "beam")
TOKEN_LIST_KEYS = ("input_ids", "prompt_token_ids", "logits")
PROMPT_KEYS = ("prompt", "messages", "text_input", "inputs", "input")
_FIELD_BY_NAME = {name: key for key, names in FIELD_NAMES.items() for name in names}
_NAME_ORDER = {name: order for names in FIELD_NAMES.values() for order, name in enumerate(names)}
RequestNumbers = tuple[int, ...]  # of a request, in the order of NAMES


class Request(msgspec.Struct, frozen=True):
    """One request, or as many as `count` that are alike, first seen at `where`."""

    batch: int = 1
    input_len: int = 1
    output_len: int = 1
    beam: int = 1
    draft_len: int = 0
    prompt_table: int = 0
    lora_rank: int = 0
    encoder_input_len: int = 0
    count: int = 1
    where: str = ""

    @property
    def words(self) -> str:
        """Return it as it would be given on the command line."""
        fields = [(key, getattr(self, key), usual) for key, usual in zip(FIELD_NAMES, _DEFAULTS, strict=True)]
        lengths = ("input_len", "output_len")
        return ",".join(f"{key}={value}" for key, value, usual in fields if value != usual or key in lengths)


_DEFAULTS = tuple(getattr(Request(), key) for key in FIELD_NAMES)


def requests_from_flags(host: Host, texts: Sequence[str], path: str = "") -> tuple[Artifact, ...]:
    """Return what `--request` and `--requests` say as artifacts."""
    artifacts = [parse_request(text) for text in texts]
    if path:
        trace = read_request_trace(host, path)
        if not any(requests_of_artifacts([trace])):
            reason = f": {trace.unread[0]}" if trace.unread else ""
            raise InputError(f"there is no request in {path}{reason}")
        artifacts.append(trace)
    return tuple(artifacts)


def requests_of_artifacts(artifacts: Iterable[Artifact]) -> Iterator[Request]:
    """Yield the requests that artifacts of kind "request" stand for."""
    for artifact in artifacts:
        if artifact.has("request.shapes"):
            for *numbers, count, line in artifact.items("request.shapes"):
                yield _request_from_numbers(numbers, count=count, where=f"{artifact.path}:{line}")
            continue
        stated = [artifact.integer(f"request.{key}") for key in FIELD_NAMES]
        numbers = [usual if value is None else value for value, usual in zip(stated, _DEFAULTS, strict=True)]
        yield _request_from_numbers(numbers, count=artifact.integer("request.count") or 1, where=artifact.path)


def _request_from_numbers(numbers: Sequence[int], *, count: int = 1, where: str = "") -> Request:
    """Return the request of these numbers, in the order of NAMES."""
    return Request(**dict(zip(FIELD_NAMES, numbers, strict=True)), count=count, where=where)


def parse_request(text: str) -> Artifact:
    """Return the request that "batch=8,input_len=9000,output_len=512" asks for."""
    facts = FactCollector()
    path = f"--request {text}"
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"{part!r} in the request {text!r} is not a key=number", fix=_EXAMPLE)
        key = _field_of_name(name.strip(), text)
        if facts.has(f"request.{key}"):
            raise InputError(f"{key} is given twice in the request {text!r}", fix=_EXAMPLE)
        facts.put(f"request.{key}", _parse_field(key, value.strip(), text), f"{path}: {name.strip()}")
    if not facts.to_dict():
        raise InputError("the request is empty", fix=_EXAMPLE)
    return Artifact("request", path, facts.to_dict())


_EXAMPLE = "write it as batch=8,input_len=900,output_len=100,beam=1"


def _field_of_name(name: str, text: str) -> str:
    field = _FIELD_BY_NAME.get(name) or _FIELD_BY_NAME.get(name.lower().replace("-", "_"))
    if field is None:
        near = UnknownNameError("part of a request", name, FIELD_NAMES)
        raise InputError(
            f"no part of a request is called {name!r} (in {text!r})",
            fix=near.fix or f"the parts are {', '.join(FIELD_NAMES)}",
        )
    return field


def _parse_field(key: str, value: str, text: str) -> int:
    try:
        number = int(value)
    except ValueError:
        raise InputError(f"{key}={value} in the request {text!r} is not a whole number", fix=_EXAMPLE) from None
    problem = _number_problem(key, number)
    if problem:
        raise InputError(f"{problem} in the request {text!r}", fix=_EXAMPLE)
    return number


def _number_problem(key: str, number: int) -> str:
    least = 1 if key in POSITIVE_FIELDS else 0
    if number < least:
        return f"{key} is {number}, and at least {least} is needed"
    return f"{key} is {number}, more than any engine takes" if number > MAX_LENGTH else ""


def read_request_trace(host: Host, path: str) -> Artifact:
    """Return a trace as one artifact: its distinct requests with their counts, and what was no request."""
    trace = RequestTrace()
    problems: list[str] = []
    for block in read_line_blocks(host, path, MAX_LINE_BYTES, problems):
        for number, line in enumerate(block.lines, block.first_number):
            trace.add_line(line, number)
    return trace.build_artifact(path, problems)


class InvalidRequestError(Exception):
    """Why a line is no request."""


class RequestTrace:
    """Counts distinct requests in bounded memory.

    Beyond the bound lengths are rounded down, so that no request seems larger than it is; the extreme ones,
    which decide whether any request is over a limit, are kept as they are.
    """

    def __init__(self) -> None:
        self._shapes: dict[RequestNumbers, list[int]] = {}  # -> count, first line
        self._bits = 0  # 0: lengths are exact
        self._most: tuple[int, ...] = (0,) * 11
        self._extremes: dict[int, tuple[RequestNumbers, int]] = {}  # by measure
        self._uncounted = self._bad = 0
        self._bad_lines: list[str] = []
        self._decode = msgspec.json.Decoder().decode

    def add_line(self, line: bytes, number: int) -> None:
        """Take one line of the trace; a blank one is passed over."""
        if not line.strip():
            return
        try:
            numbers = self._numbers_of_line(line)
        except InvalidRequestError as err:
            self._bad += 1
            if len(self._bad_lines) < MAX_BAD_LINES:
                self._bad_lines.append(f"line {number}: {err}")
            return
        if numbers is None:
            self._uncounted += 1
        else:
            self._count_request(numbers, number)

    def _count_request(self, numbers: RequestNumbers, line: int) -> None:
        key = numbers
        if self._bits:
            self._keep_extremes(numbers, line)
            key = _round_lengths(numbers, self._bits)
        counted_shape = self._shapes.get(key)
        if counted_shape:
            counted_shape[0] += 1
            return
        self._shapes[key] = [1, line]
        if len(self._shapes) > MAX_SHAPES:
            self._coarsen()

    def _coarsen(self) -> None:
        """Round more until half of the room is free again."""
        if not self._bits:
            self._bits = MAX_LEADING_BITS
            for numbers, (_, line) in self._shapes.items():
                self._keep_extremes(numbers, line)
        while len(self._shapes) > MAX_SHAPES // 2 and self._bits > 1:
            self._bits -= 1
            shapes, self._shapes = self._shapes, {}
            for numbers, (count, line) in shapes.items():
                counted_shape = self._shapes.setdefault(_round_lengths(numbers, self._bits), [0, line])
                counted_shape[0] += count

    def _keep_extremes(self, numbers: RequestNumbers, line: int) -> None:
        measures = _limit_measures(numbers)
        if all(map(le, measures, self._most)):
            return
        for index, (value, most) in enumerate(zip(measures, self._most, strict=True)):
            if value > most:
                self._extremes[index] = (numbers, line)
        self._most = tuple(map(max, measures, self._most))

    def _numbers_of_line(self, line: bytes) -> RequestNumbers | None:
        if len(line) >= MAX_LINE_BYTES:
            raise InvalidRequestError(f"is longer than {MAX_LINE_BYTES >> 20} MiB")
        try:
            record = self._decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            raise InvalidRequestError(f"is not JSON: {err}") from err
        if not isinstance(record, dict):
            raise InvalidRequestError(f"holds a {type(record).__name__}, not an object")
        return numbers_from_record(record)

    def build_artifact(self, path: str, problems: list[str]) -> Artifact:
        """Return the trace; an extreme request stands by itself and no longer for those it was counted with."""
        shapes = {numbers: list(counted_shape) for numbers, counted_shape in self._shapes.items()}
        for numbers, line in set(self._extremes.values()):
            rounded = _round_lengths(numbers, self._bits)
            if rounded != numbers:
                shapes[rounded][0] -= 1
                shapes.setdefault(numbers, [0, line])[0] += 1
        rows = [[*numbers, count, line] for numbers, (count, line) in shapes.items() if count > 0]
        facts = FactCollector()
        facts.put("request.shapes", rows, path)
        facts.put("request.count", sum(shape[-2] for shape in rows), path)
        facts.put("request.uncounted", self._uncounted or None, path)
        facts.put("request.bad_lines", self._bad_lines or None, path)
        return Artifact("request", path, facts.to_dict(), unread=(*problems, *self._notes()))

    def _notes(self) -> Iterator[str]:
        if self._bad:
            more = f" and {self._bad - len(self._bad_lines)} more" * (self._bad > len(self._bad_lines))
            yield f"{format_count(self._bad, 'line')} of the file cannot be read as a request: {'; '.join(self._bad_lines)}{more}"
        if self._uncounted:
            yield f"{format_count(self._uncounted, 'request')} with a prompt as text only; without its tokens it cannot be counted"
        if self._bits:
            percent = 100 / 2 ** (self._bits - 1)
            yield (
                f"there are more than {MAX_SHAPES} distinct requests: the longest are exact, the lengths of the "
                f"others are rounded down by up to {percent:.1f} % and counted together"
            )


def _round_lengths(numbers: RequestNumbers, bits: int) -> RequestNumbers:
    batch, prompt, answer, *rest = numbers
    return batch, _keep_leading_bits(prompt, bits), _keep_leading_bits(answer, bits), *rest


def _keep_leading_bits(length: int, bits: int) -> int:
    shift = max(0, length.bit_length() - bits)
    return length >> shift << shift


def _limit_measures(numbers: RequestNumbers) -> tuple[int, ...]:
    """Return what limits are compared with: the largest of each decides whether any request breaks one."""
    batch, prompt, answer, beam, drafts, *_ = numbers
    return *numbers, prompt + answer + drafts, batch * prompt, batch * beam


def numbers_from_record(record: Mapping[str, Any]) -> RequestNumbers | None:
    """Return a record's numbers in the order of `Request`; None where its prompt is text nobody tokenized."""
    layers = list(_record_layers(record))
    stated = _stated_numbers(layers)
    if "input_len" not in stated:
        tokens = next((v for layer in layers for k in TOKEN_LIST_KEYS if isinstance(v := layer.get(k), list)), None)
        if tokens:
            stated["input_len"] = len(tokens)
        elif any(layer.get(name) for layer in layers for name in PROMPT_KEYS):
            return None
        elif "encoder_input_len" not in stated:
            raise InvalidRequestError(f"states no prompt length ({', '.join(FIELD_NAMES['input_len'][:4])}, ...)")
    if record.get("use_beam_search") is True and "beam" not in stated:
        stated["beam"] = _require_valid("beam", _require_integer("n", record.get("best_of") or record.get("n") or 1))
    return tuple(stated.get(key, usual) for key, usual in zip(FIELD_NAMES, _DEFAULTS, strict=True))


def _record_layers(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the record and what OpenAI-style records wrap: its body, its response and the usage in either."""
    response = record.get("response")
    inner = response.get("body") if isinstance(response, dict) else None
    for place in (record, record.get("body"), response, inner):
        if isinstance(place, dict):
            yield place
            if isinstance(place.get("usage"), dict):
                yield place["usage"]


def _stated_numbers(layers: list[Mapping[str, Any]]) -> dict[str, int]:
    """Return the numbers the record states, each by the name that comes first in NAMES."""
    best: dict[str, tuple[int, str, Any]] = {}
    for layer in layers:
        for name, value in layer.items():
            key = _FIELD_BY_NAME.get(name)
            if key and value is not None and (key not in best or _NAME_ORDER[name] < best[key][0]):
                best[key] = (_NAME_ORDER[name], name, value)
    return {key: _require_valid(key, _require_integer(name, value)) for key, (_, name, value) in best.items()}


def _require_integer(name: str, value: Any) -> int:
    if isinstance(value, str) and value.strip().isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequestError(f"{name} is {str(value)[:40]!r}, not a whole number")
    return value


def _require_valid(key: str, number: int) -> int:
    problem = _number_problem(key, number)
    if problem:
        raise InvalidRequestError(problem)
    return number
