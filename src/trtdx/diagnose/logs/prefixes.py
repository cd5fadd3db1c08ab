"""The layers that wrap a log line, and a line without them.

Launchers, containers and loggers each put something before the message. `peel` takes the layers off from the
outside in, keeping what they tell: rank, time, level and who spoke.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class PeeledLine(NamedTuple):
    """A line's message and what its layers told."""

    message: str
    level: str = "unknown"
    rank: int | None = None
    time: str = ""
    source: str = ""
    unit: str = ""  # the service or pod that wrote it, where several write into one log


LEVEL_NAMES = {
    "trace": "trace", "v": "debug", "verbose": "debug", "debug": "debug", "d": "debug",
    "info": "info", "i": "info", "notice": "info", "note": "info", "remark": "info",
    "warn": "warning", "warning": "warning", "w": "warning",
    "error": "error", "err": "error", "e": "error", "severe": "error",
    "fatal": "fatal", "critical": "fatal", "f": "fatal", "c": "fatal", "emerg": "fatal", "internal_error": "fatal",
}  # fmt: skip

_TIME = r"\d{4}[-/]\d\d[-/]\d\d[T _:-]?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_US_TIME = r"\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d"
_LEVEL = r"(?P<level>TRACE|VERBOSE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|ERR|SEVERE|FATAL|CRITICAL|INTERNAL_ERROR)"

# Outermost first. Each is tried at the start of what is left; the order among them does not matter much,
# since peeling goes on until none fits.
PREFIX_LAYERS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (source, re.compile(pattern))
    for source, pattern in (
        # TensorRT-LLM's Python logger: 0.5-0.18, 0.19-1.3.0rc12 (rank before level), 1.3.0rc13+ (level, module, rank)
        ("tensorrt-llm", rf"\[(?P<time>{_US_TIME})\] (?=\[TRT)"),
        ("tensorrt-llm", r"\[TRT-LLM(?: AUTO-DEPLOY)?\] ?(?:\[(?:MPI_Rank|RANK) (?P<rank>\d+)\] )?\[(?P<level>[FEWIVD])\] ?(?:\[[\w. -]{0,24}\] ?\[RANK (?P<rank2>\d+)\] ?|\[(?:_torch|llmapi|executor|serve|runtime|commands|_util\w*|quantize|models|inputs|batchmgr|common|kernels|thop|nanobind|others)\s*\] ?)?"),
        # its C++ logger until 1.3.0rc12
        ("tensorrt-llm", rf"\[TensorRT-LLM\]\[{_LEVEL}\](?:\[(?P<rank>\d+)\])? ?"),
        ("tensorrt-llm", r"\[TensorRT-LLM\] (?=TensorRT)"),
        # TensorRT: Python logger, polygraphy and samples, the 7.x console logger, DeepStream
        ("tensorrt", r"\[TRT\] ?(?:\[MPI_Rank (?P<rank>\d+)\] )?\[(?P<level>[FEWIVD])\] ?"),
        ("tensorrt", rf"(?:\[(?P<time>{_US_TIME})\] )?\[(?P<level>[FEWIV])\] (?:\[TRT\] )?"),
        ("tensorrt", rf"\[(?:TensorRT|TRT)\] {_LEVEL}: ?"),
        ("tensorrt", r"\[TRT\]: ?"),
        # Triton: glog
        ("triton", r"(?P<level>[IWEF])(?P<time>\d{4} \d\d:\d\d:\d\d\.\d{3,9}) +(?P<pid>\d+) (?P<file>[\w./-]+:\d+)\] ?"),
        # NCCL: host:pid:tid [device] NCCL LEVEL; the words NCCL WARN stay, rules and readers look for them
        ("nccl", r"(?:\[?(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\]? )?[\w.-]+:\d+:\d+ \[(?P<device>-?\d+)\] (?=(?:[\w/.-]+:\d+ )?(?:NCCL )?(?:WARN|INFO|TRACE)|transport|misc|init|bootstrap|graph|enqueue|proxy|[\w/.-]+\.cc)"),
        # launchers: mpirun --tag-output (Open MPI 4 and 5), srun -l, torchrun, docker compose, Kubernetes
        ("mpirun", r"\[\d+,(?P<rank>\d+)\]<(?:stdout|stderr|stddiag)>: ?"),
        ("mpirun", r"\[[\w.@,-]*?,(?P<rank>\d+)\](?:<\w+>)?: ?(?=\S)"),
        ("mpirun", r"\[[\w.-]+:\d{2,}\] (?=\S)"),
        ("srun", r" {0,3}(?P<rank>\d{1,4}): (?=\S)(?!\[\w+\.c)"),
        ("torchrun", r"\[(?:rank|default|local_rank|Rank )(?P<rank>\d+)\][:]? ?"),
        ("torchrun", r"\[rank(?P<rank>\d+)\]:\[?"),
        ("rank", r"\(?(?:RANK|[Rr]ank)[ =:]?(?P<rank>\d{1,4})\)?[:\]|] "),
        ("pid", r"\((?:\w[\w.-]{0,40} )?pid=\d+(?:, ip=[\d.]+)?\) "),
        ("compose", r"(?P<unit>[a-z0-9][\w.-]{1,60}) +\| "),
        ("kubernetes", r"\[(?P<unit>pod/[\w.-]{1,120})(?:/[\w.-]{1,120})?\] "),  # kubectl logs --prefix
        ("kubernetes", rf"(?P<time>{_TIME}) (?:stdout|stderr) [FP] "),
        ("journald", r"(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) [\w.-]+ [\w./@-]+(?:\[\d+\])?: "),
        ("kernel", r"\[ {0,6}\d+\.\d{6}\](?: \[[^\]]{1,20}\])? (?=\S)"),
        ("kernel", r"kernel: "),
        # torch c10d: [E1115 01:02:03.456 file.cpp:1] or [E file.cpp:1]
        ("torch", r"\[(?P<level>[IWEF])(?:\d{3,4} (?P<time>\d\d:\d\d:\d\d\.\d+))? ?[\w./-]+\.(?:cpp|py|h):\d+\] "),
        ("torch", r"[IWEF](?:\d{4}) \d\d:\d\d:\d\d\.\d+ \d+ (?:[\w./-]+:\d+)\] "),
        # Python's warnings and GStreamer (DeepStream)
        ("python", r"(?:\S+/)?[\w.<>-]+\.py:\d+: (?=\w*Warning: )"),
        ("gstreamer", r"\d+:\d\d:\d\d\.\d+ +\d+ +0x[0-9a-f]+ (?P<level>ERROR|WARN|INFO|DEBUG) +\w+ [\w.-]+:\d+:\w*:(?:<[^>]*>)? "),
        # a command that looks through texts, as `set -x` and prompts show it: its words are no program's
        ("shell", r"(?P<quoted>(?:\++|[\w@.~:/-]{0,80}[$#]) (?:sudo )?(?:z?[ef]?grep|rg|ag|sed|awk|echo|printf)\b)"),
        # exception groups and generic loggers
        ("python", r"\s*[+|](?:-[+-]*)? ?(?=\S)(?=[^|]*$)"),
        ("generic", rf"\[?(?P<time>{_TIME})\]?[ :,|-]*"),
        ("generic", r"\[?(?P<time>\d\d:\d\d:\d\d(?:[.,]\d+)?)\]? "),
        ("generic", rf"{_LEVEL} +[\w.]+: (?=\S)"),
        ("generic", rf"\[?{_LEVEL}\]? ?[:|-] *(?=\S)"),  # uvicorn aligns its messages
        ("generic", rf"{_LEVEL} +(?=\S)"),
        ("generic", rf"\[{_LEVEL}\] ?"),
        ("generic", r"(?P<level>Warning|Error|WARNING|ERROR|error|warning|fatal|FATAL)(?: \(\w+\))?: (?=\S)"),
        ("generic", rf"[\w.]+ - {_LEVEL} - "),
        # a tool's name before the level: "perl: warning: ", "nvcc warning : ", "CMake Warning at"; logfmt
        ("compiler", r"[\w./+-]{1,200}(?:\(\d+\)|:\d+(?::\d+)?): (?P<level>warning|note|remark)(?: #[\w-]+)?: "),
        ("generic", r"(?:[\w./+-]{1,60}: |(?:nvcc|ptxas|nvlink|CMake)(?: Deprecation)? )(?P<level>[Ww]arning|WARNING)(?: ?: | at )(?=\S)"),
        ("generic", r"(?:(?:time|ts|caller|component)=(?:\"[^\"]*\"|\S+) )*level=(?P<level>trace|debug|info|warn|warning|error|fatal) (?=\S)"),
        # what a model was asked or answered: the words of a prompt are no program's
        ("answer", r"(?:\[\d+\] ?)?(?P<quoted>Prompt: ['\"]|Generated text: |(?:Input|Output) \[Text \d|\[(?:user|assistant|system)\]: )"),
    )
)  # fmt: skip

# One object a line, as structured loggers and Docker write: what stands before the message, and what tells of it.
_JSON = re.compile(
    r'\{\s*(?:"[^"\\]{1,40}"\s*:\s*(?:"[^"\\]*(?:\\.[^"\\]*)*"|[\w.+-]+|\{[^{}]*\}|\[[^\[\]]*\])\s*,\s*)*'
    r'"(?:msg|message|event|log|text)"\s*:\s*"(?P<message>[^"\\]*(?:\\.[^"\\]*)*)'
)
_JSON_LEVEL = re.compile(r'"(?:level|levelname|log_?level|severity|lvl)"\s*:\s*"(?P<level>[A-Za-z]+)"')
_JSON_TIME = re.compile(rf'"(?:ts|time|timestamp|@timestamp|asctime)"\s*:\s*"(?P<time>{_TIME})')
_JSON_RANK = re.compile(r'"(?:global_)?rank"\s*:\s*"?(?P<rank>\d{1,4})\b')

_EXCEPTION = re.compile(r"(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Failure|Exit|Warning)\b(?::|$)")
_NCCL_LEVEL = re.compile(r"NCCL (WARN|INFO|TRACE)|^[\w/.-]+:\d+ WARN ")
_TAG = r"\[\d+,\d+\]<std(?:out|err)>:"
_TRAILING_TAGS = re.compile(rf"(?:{_TAG})+\s*$")
_TAGS = re.compile(_TAG)
_EMBEDDED_ERROR = re.compile(r"\[TensorRT-LLM\]\[ERROR\]|\[TRT-LLM\] (?:\[RANK \d+\] )?\[E\]")
# kubectl get events: LAST SEEN, TYPE, REASON, OBJECT, MESSAGE; with -A a namespace comes first
_POD_EVENT = re.compile(r"(?:\S{1,80} +){1,2}(?:Normal|Warning) +\w{1,40} +(?P<unit>[Pp]od/[\w.-]{1,120}) ")
_MAX_LAYERS = 8


def peel_line(line: str) -> PeeledLine:
    """Return the message inside the line's layers, and what they told of level, rank, time and source."""
    level, rank, time, source, unit = "", None, "", "", ""
    rest = _after_last_tag(line)
    for depth in range(_MAX_LAYERS):
        match, name = _next_layer(rest, outermost=depth == 0)
        if match is None:
            break
        fields = match.groupdict() if name != "json" else _parse_json_fields(rest)
        level = LEVEL_NAMES.get((fields.get("level") or "").lower(), "") or level
        level = "info" if fields.get("quoted") else level
        number = fields.get("rank") or fields.get("rank2")
        rank = int(number) if number is not None and rank is None else rank
        time = time or fields.get("time") or ""
        unit = unit or fields.get("unit") or ""
        source = name if name != "generic" else source or name
        rest = rest[match.end() :] if name != "json" else match["message"].removesuffix(r"\n")
    implied = _implied_level(rest)
    event = _POD_EVENT.match(line) if not unit else None
    level = implied if implied == "error" and level == "info" else level or implied
    return PeeledLine(rest, level, rank, time, source, event["unit"] if event else unit)


def _after_last_tag(line: str) -> str:
    """Return what `mpirun --tag-output` tagged last: ranks that write half lines put several tags into one line."""
    if "]<std" not in line:
        return line
    line = _TRAILING_TAGS.sub("", line)  # a newline that was written by itself gets a tag too
    tags = list(_TAGS.finditer(line))
    return line[: tags[0].start()] + line[tags[-1].start() :] if tags else line


def _parse_json_fields(text: str) -> dict[str, str | None]:
    fields = (pattern.search(text) for pattern in (_JSON_LEVEL, _JSON_TIME, _JSON_RANK))
    return {key: value for field in fields if field for key, value in field.groupdict().items()}


def _next_layer(text: str, *, outermost: bool) -> tuple[re.Match[str] | None, str]:
    if text.startswith("{"):
        match = _JSON.match(text)
        return match, "json" if match else ""
    for source, pattern in PREFIX_LAYERS:
        # inside another layer "2: " is TensorRT's error code, not a rank
        if source == "srun" and not outermost:
            continue
        match = pattern.match(text)
        if match and match.end():
            return match, source
    return None, ""


def _implied_level(message: str) -> str:
    if _EMBEDDED_ERROR.search(message):  # two lines run into one, or one logger quotes another
        return "error"
    nccl = _NCCL_LEVEL.search(message[:200])
    if nccl:
        # NCCL WARN is NCCL's word for an error
        return {"INFO": "info", "TRACE": "trace"}.get(nccl[1] or "WARN", "error")
    exception = _EXCEPTION.match(message)
    if exception:
        return "warning" if "Warning" in exception[0] else "error"
    return "unknown"
