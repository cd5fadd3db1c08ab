"""A Python traceback that no page knows: which package's interface is not what the calling code expects.

Names of interfaces are endless, but who calls whom stands in the frames: code of one package that uses a name, an
argument or an attribute that another package's installed version does not have. That is told as packages out of step.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from trtdx.model import Evidence, Finding, Fix, Severity, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.rule import Rule, RuleBook

OUT_OF_STEP_CODE = "DX712"
BELIEF = 0.5
OWN_CODE_BELIEF = 0.42  # one package only: its own bug, or half of it is of another version
SCRIPT, MODEL_CODE = "the script", "the model's own code (trust_remote_code)"

# What a program was doing when it failed, by the file that a traceback ends in: the page of what usually fails there.
ENDS_IN = (
    (r"(?:modelopt|ammo)/torch/export/", "DX107"),
    (r"(?:modelopt|ammo)/torch/", "DX106"),
    (r"transformers/models/auto/", "DX081"),
    (r"transformers_modules/", "DX139"),
    (r"transformers/(?:tokenization|convert_slow)|tokenizers/|sentencepiece/", "DX125"),
    (r"datasets/(?:load|builder|packaged|data_files)", "DX099"),
    (r"huggingface_hub/", "DX074"),
    (r"torch/_(?:inductor|dynamo)/|/triton/(?:compiler|runtime|backends)/", "DX321"),
    (r"flashinfer/jit|torch/utils/cpp_extension", "DX070"),
    (r"tensorrt_llm/(?:models/.*(?:convert|weight|loader)|_torch/.*(?:weight_?mapper|weight_loader|checkpoints/))", "DX090"),
    (r"examples/.*(?:convert_checkpoint|weight|build|hf_\w+_convert)\.py", "DX090"),
    (r"tensorrt_llm/quantization/", "DX107"),
    (r"tensorrt_llm/_torch/speculative/", "DX245"),
    (r"tensorrt_llm/(?:_torch/models/.*(?:vl|llava|vision|multimodal|pixtral)|inputs/)", "DX220"),
    (r"tensorrt_llm/lora", "DX115"),
    (r"tensorrt_llm/_torch/disagg|kv_cache_transceiver", "DX331"),
    (r"triton_python_backend_utils|/all_models/.*/model\.py|/\d+/model\.py", "DX681"),
)  # fmt: skip
PLACE_BELIEF = 0.44
MAX_FRAMES = 4  # from the innermost one outwards

_FRAME = re.compile(r'File "(?P<path>[^"\n]{1,400})", line \d+, in \S+')
_ANY_EXCEPTION = re.compile(r"^(?:.{0,40}?\s)?(?P<words>[A-Za-z_][\w.]*(?:Error|Exception)(?::.{0,400})?)$")
_INSTALLED = re.compile(r"(?:site|dist)-packages[/\\](?P<package>\w+)")
_EXCEPTION = re.compile(
    r"^(?:.{0,40}?\s)?(?P<kind>AttributeError|TypeError|ImportError|NameError): (?P<words>.{1,400})$"
)
_MISSING = (
    re.compile(r"'(?P<owner>[\w.]+)' object has no attribute '(?P<name>\w+)'"),
    re.compile(r"(?P<owner>[A-Z]\w+) has no attribute (?P<name>\w+)"),
    re.compile(r"type object '(?P<owner>[\w.]+)' has no attribute '(?P<name>\w+)'"),
    re.compile(r"module '(?P<owner>[\w.]+)' has no attribute '(?P<name>\w+)'"),
    re.compile(r"cannot import name '(?P<name>\w+)' from (?:partially initialized module )?'(?P<owner>[\w.]+)'"),
    re.compile(r"(?P<owner>[\w.]+)\(\) got an unexpected keyword argument '(?P<name>\w+)'"),
    re.compile(r"(?P<owner>[\w.]+)\(\) got multiple values for argument '(?P<name>\w+)'"),
    re.compile(r"(?P<owner>[\w.]+)\(\) missing \d+ required (?:positional|keyword-only) arguments?: '(?P<name>\w+)'"),
    re.compile(
        r"(?P<owner>[\w.]+)\(\) takes (?P<name>(?:from )?\d[\w ]*positional arguments?) but \d+ (?:was|were) given"
    ),
)
# Whose a class is, where its name tells and the frames do not.
_OWNERS = (
    (re.compile(r"^(?:I[A-Z]\w+|Builder|OnnxParser|NetworkDefinitionCreationFlag)$"), "tensorrt"),
    (re.compile(r"Tokenizer(?:Fast)?$|Cache$|ImageProcessor\w*$|^Pre[Tt]rained|GenerationMixin|ForConditionalGeneration|^Auto[A-Z]"), "transformers"),
    (re.compile(r"^(?:LLM|Tllm|Gpt|BuildConfig|QuantConfig|Mapping|SamplingParams|KvCacheConfig|ModelRunner\w*|PluginConfig)"), "tensorrt_llm"),
    (re.compile(r"^(?:FastAPI|Router|APIRouter|Starlette)$"), "starlette or fastapi"),
)  # fmt: skip
_PLAIN_TYPES = frozenset(
    [
        "NoneType",
        "str",
        "int",
        "float",
        "bool",
        "list",
        "dict",
        "tuple",
        "set",
        "bytes",
        "function",
        "method",
        "Namespace",
        "type",
    ]
)


class _Skew(NamedTuple):
    """Code of one package that expects something of another one."""

    caller: str
    peer: str
    owner: str
    name: str
    line: int
    text: str


def findings_from_traceback(text: str, source: str, explained: Sequence[int], book: RuleBook) -> list[Finding]:
    """Return packages that are out of step, read off the last traceback that no page explains.

    Args:
        text: the whole input where it is short, else empty.
        source: what the input is called.
        explained: the numbers of lines that pages know.
        book: the rules in force.
    """
    if "Error: " not in text or not book.has_rule(OUT_OF_STEP_CODE):
        return []
    skews = [skew for skew in _skews(text) if skew.line not in explained]
    return [_finding_from_skew(skews[-1], source, book)] if skews else []


def findings_from_place(text: str, source: str, explained: Sequence[int], book: RuleBook) -> list[Finding]:
    """Return what usually fails in the file that the last traceback ends in, where no page knows its exception."""
    ending = _last_ending(text, explained)
    if ending is None:
        return []
    for path in ending.paths[: -MAX_FRAMES - 1 : -1]:
        code = next((code for form, code in ENDS_IN if re.search(form, path)), "")
        if code and book.has_rule(code):
            return [_finding_from_place(book.get(code), path, ending, source)]
    return []


class _Ending(NamedTuple):
    """How a traceback ends: the files of its frames, its last line of code, and the exception."""

    paths: list[str]
    code: str
    line: int
    words: str


def _last_ending(text: str, explained: Sequence[int]) -> _Ending | None:
    paths: list[str] = []
    last: _Ending | None = None
    code = ""
    for number, line in enumerate(text.splitlines(), 1):
        if frame := _FRAME.search(line):
            paths.append(frame["path"].replace("\\", "/"))
        elif paths and (exception := _ANY_EXCEPTION.match(line)):
            last = _Ending(paths, code, number, exception["words"]) if number not in explained else last
            paths, code = [], ""
        else:
            code = line.strip(" ~^") or code
    return last


def _finding_from_place(rule: Rule, path: str, ending: _Ending, source: str) -> Finding:
    words = ending.words if ":" in ending.words else f"{ending.words} at `{ending.code[:120]}`"
    place = "/".join(path.split("/")[-3:])
    return Finding(
        code=rule.code, slug=rule.slug, severity=rule.front.severity,
        message=f"{words[:200]} in {place}; what usually fails there: {rule.front.message}", why=rule.why,
        fixes=rule.front.fix, verify=rule.front.verify, confidence=PLACE_BELIEF,
        where=f"{source}:{ending.line}", evidence=(Evidence(f"{source}:{ending.line}", ending.words[:600]),),
    )  # fmt: skip


def _skews(text: str) -> Iterator[_Skew]:
    packages: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if frame := _FRAME.search(line):
            packages.append(_package_of_path(frame["path"]))
        elif exception := _EXCEPTION.match(line):
            match = next((match for form in _MISSING if (match := form.search(exception["words"]))), None)
            if match and match["owner"] not in _PLAIN_TYPES:
                yield from _skew_from_match(match, packages, number, line.strip())
            packages = []


def _skew_from_match(match: re.Match[str], packages: Sequence[str], number: int, line: str) -> Iterator[_Skew]:
    caller = packages[-1] if packages else SCRIPT
    is_module = "module '" in line or "cannot import name" in line
    named = match["owner"].partition(".")[0] if is_module else _peer_by_name(match["owner"])
    if named or packages:
        yield _Skew(
            caller, named or _last_other(packages, caller) or caller, match["owner"], match["name"], number, line
        )


def _package_of_path(path: str) -> str:
    if installed := _INSTALLED.search(path):
        return installed["package"]
    return MODEL_CODE if "transformers_modules" in path else SCRIPT


def _peer_by_name(owner: str) -> str:
    """Return the package whose thing this is, where its name tells."""
    head, _, rest = owner.partition(".")
    if rest and head.islower() and head[0] != "_":
        return head
    return next((package for form, package in _OWNERS if form.search(head)), "")


def _last_other(packages: Sequence[str], caller: str) -> str:
    return next((package for package in reversed(packages) if package not in (caller, SCRIPT, MODEL_CODE)), "")


def _finding_from_skew(skew: _Skew, source: str, book: RuleBook) -> Finding:
    page = book.get(OUT_OF_STEP_CODE)
    return Finding(
        code=page.code, slug=page.slug, severity=Severity.ERROR, message=_message(skew), why=_why(skew),
        fixes=_fixes(skew), verify=page.front.verify, confidence=BELIEF if skew.peer != skew.caller else OWN_CODE_BELIEF,
        where=f"{source}:{skew.line}", evidence=(Evidence(f"{source}:{skew.line}", skew.text[:600]),),
    )  # fmt: skip


def _message(skew: _Skew) -> str:
    expectation = f"{skew.owner} with '{skew.name}'" if skew.owner[0].isupper() else f"'{skew.name}' of {skew.owner}"
    if "argument" in skew.text:
        expectation = f"{skew.owner}() to take other arguments than it does ({skew.name})"
    if skew.peer == skew.caller:
        return f"{skew.caller} does not fit itself or what it was given: it expects {expectation}"
    return f"{skew.caller} expects {expectation}: the installed {skew.peer} is of another version than this code was written for"


def _why(skew: _Skew) -> str:
    if skew.peer == skew.caller:
        return (
            f"The failing call is inside {skew.caller}. Either its files are of two versions (a source checkout or left-over "
            "files beside the installed package), the model or its configuration is of a kind that this version does not "
            "know, or it is a bug of the version."
        )
    return (
        f"Names and arguments change between releases. {skew.caller} was written for a version of {skew.peer} that is older "
        f"or newer than the one installed, so the API it calls is not there: a version mismatch of {skew.peer}."
    )


def _fixes(skew: _Skew) -> tuple[Fix, ...]:
    package = skew.peer if skew.peer not in (SCRIPT, MODEL_CODE) else "PACKAGE"
    pinned = f"pip show {package} tensorrt_llm; pip check"
    return (
        Fix(Stage.INSTALL, f"install the version of {package} that the calling code requires (its requirements.txt, or the "
            "release's container image): an older one if the name was removed, a newer one if it was added", pinned),
        Fix(Stage.INSTALL, f"or upgrade {skew.caller if skew.caller not in (SCRIPT, MODEL_CODE) else 'the script or model code'} "
            f"to a release that knows the installed {package}"),
    )  # fmt: skip
