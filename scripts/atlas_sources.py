"""The messages a source file can print: their constant parts, function, level and line. Used by `make_atlas.py`.

C++ and CUDA are read without a parser: string literals of one expression belong to one message, and the last word
before them that is known to report something (a check, a throw, a logger) tells the level. Python is read by `ast`.
Open MPI's `help-*.txt` are lists of messages already.
"""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LEAST_WORDS = 3  # of a text that nothing known reports
PLACEHOLDER = "\0"  # between constant parts
CHECK_PREFIX = "Assertion failed: "  # what TensorRT-LLM prints before a condition
CONVERSION = re.compile(
    r"%[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+))?(?:hh|h|ll|l|z|j|t|L)?[diouxXeEfFgGaAcsprn](?![A-Za-z])|%\(\w+\)[a-z]|\{[^{}\n]*\}"
)


class SourceMessage(NamedTuple):
    """One message as it stands in a source file."""

    parts: str  # constant parts with placeholders between them
    function: str
    level: str
    line: int


def extract_messages(text: str, ending: str) -> list[SourceMessage]:
    """Return the messages of a file, by the ending of its name."""
    if ending == "py":
        return _extract_python(text)
    return _extract_help(text) if ending == "txt" else _extract_cpp(text)


# ---- C, C++, CUDA

_LEXEME = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s"]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)
_REPORTERS = (
    ("", r"static_assert|extern|include|PYBIND11_\w+|m_?\.def|\.def\w*|\.add_option|add_options|getenv|getEnv\w*|dlsym|NVTX\w*|nvtx\w*|TLLM_NVTX\w*"),
    ("error", r"TLLM_CHECK\w*|TLLM_THROW|TLLM_LOG_(?:ERROR|EXCEPTION)|throw|TORCH_CHECK\w*|C10_THROW\w*|LOG_ERROR|LOG_STATUS_ERROR|LOG_FATAL|"
              r"TRITONSERVER_(?:ErrorNew|LOG_ERROR)|Status|RETURN_ERROR_IF\w*|gLogError|gLogFatal|logError|reportAssertion|reportValidation\w*|PLUGIN_\w+|"
              r"opal_output|opal_show_help|\w*show_help|cerr|stderr|perror|\w*Exception|\w*_error|runtime_error|WARN|ERROR|FATAL|assert|ASSERT\w*|CHECK\w*|THROW\w*|FAIL\w*|"
              r"makeCudaError|fmtstr|TLLM_WRAP"),
    ("warning", r"TLLM_LOG_WARNING|LOG_WARNING|TRITONSERVER_LOG_WARN|gLogWarning|logWarning|TORCH_WARN\w*|WARNING"),
    ("info", r"TLLM_LOG_INFO|LOG_INFO|TRITONSERVER_LOG_INFO|gLogInfo|INFO|cout|printf|std::cout"),
    ("debug", r"TLLM_LOG_(?:DEBUG|TRACE)|LOG_VERBOSE|TRITONSERVER_LOG_VERBOSE|gLogVerbose|TRACE|opal_output_verbose|\w*OUTPUT_VERBOSE|DEBUG|VERBOSE"),
)  # fmt: skip
_REPORTER = re.compile(
    "|".join(rf"(?P<level_{level or 'none'}>(?<![\w])(?:{names})(?![\w]))" for level, names in _REPORTERS)
)
_CONCATENATING = re.compile(r"(?:TORCH_CHECK\w*|TORCH_WARN\w*|C10_THROW\w*)$")  # commas join what they print
_CONDITION = re.compile(r"(?<!\w)TLLM_CHECK(?:_DEBUG)?\s*\(")
_BOUNDARY = re.compile(r"[;{}]")
_ESCAPE = re.compile(r"\\(?:n|r|t|\"|'|\\|[0-7]{1,3}|x[0-9a-fA-F]{1,2}|\n)")
_ESCAPED = {r"\n": "\n", r"\r": "\n", r"\"": '"', r"\'": "'", r"\\": "\\", "\\\n": ""}


def _extract_cpp(text: str) -> list[SourceMessage]:
    lexemes = [(match.start(), match.end()) for match in _LEXEME.finditer(text)]
    strings = [span for span in lexemes if text[span[0]] in '"R']
    if not strings and "TLLM_CHECK" not in text:
        return []
    skeleton = _blank_spans(text, lexemes)
    lines, boundaries = _line_starts(text), [match.start() for match in _BOUNDARY.finditer(skeleton)]
    functions = _FunctionSpans(_DIRECTIVE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), skeleton))
    messages = []
    for chain in _join_strings(skeleton, strings, boundaries):
        start = chain[0][0]
        statement = skeleton[_statement_start(boundaries, start) : start]
        reporter = _last_reporter(statement)
        level = reporter[0] if reporter else "text"
        parts = _cpp_parts(text, chain)
        if level != "none" and not _is_include(skeleton, start) and (reporter or count_words(parts) >= LEAST_WORDS):
            line = bisect_right(lines, start - len(statement) + reporter[1] if reporter else start)
            messages.append(SourceMessage(parts, functions.name_at(start), level, line))
    for match in _CONDITION.finditer(skeleton):
        condition = " ".join(text[match.end() : _closing_parenthesis(skeleton, match.end())].split())
        line = bisect_right(lines, match.start())
        messages.append(SourceMessage(f"{CHECK_PREFIX}{condition}", functions.name_at(match.start()), "error", line))
    return sorted(messages, key=lambda message: message.line)


def _blank_spans(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return the text with comments and the insides of strings blanked, at the same offsets."""
    pieces, offset = [], 0
    for start, end in spans:
        pieces.append(text[offset:start])
        mark = '"' if text[start] in '"R' else " "
        inside = text[start + 1 : end - 1]
        pieces.append(mark + re.sub(r"[^\n]", " ", inside) + mark)
        offset = end
    return "".join(pieces) + text[offset:]


def _join_strings(
    skeleton: str, strings: Sequence[tuple[int, int]], boundaries: Sequence[int]
) -> Iterator[list[tuple[int, int]]]:
    """Yield the strings that one expression puts together."""
    chain: list[tuple[int, int]] = []
    for span in strings:
        if chain and not _continues(skeleton, chain, span[0], boundaries):
            yield chain
            chain = []
        chain.append(span)
    if chain:
        yield chain


def _continues(skeleton: str, chain: Sequence[tuple[int, int]], start: int, boundaries: Sequence[int]) -> bool:
    previous = chain[-1][1]
    if bisect_right(boundaries, previous) != bisect_right(boundaries, start) or start - previous > 600:
        return False
    between = skeleton[previous:start]
    if not between.strip():
        return True
    if "\n#" in between or "\n #" in between:
        return False
    depth = lowest = 0
    for char in between:
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            lowest = min(lowest, depth)
        elif char == "," and depth == lowest:
            first = chain[0][0]
            reporter = _last_reporter(skeleton[_statement_start(boundaries, first) : first])
            return bool(reporter and _CONCATENATING.match(reporter[2]))
    return True


def _cpp_parts(text: str, chain: Sequence[tuple[int, int]]) -> str:
    parts, offset = "", chain[0][0]
    for start, end in chain:
        if text[offset:start].strip() and parts:
            parts += PLACEHOLDER
        literal = text[start:end]
        if literal[0] == "R":
            inside = literal[literal.index("(") + 1 : literal.rindex(")")]
        else:
            inside = _ESCAPE.sub(lambda match: _ESCAPED.get(match[0], " "), literal[1:-1])
        parts += CONVERSION.sub(PLACEHOLDER, inside)
        offset = end
    return parts


def _last_reporter(statement: str) -> tuple[str, int, str] | None:
    """Return the level, offset and name of the last word of a statement that is known to report something."""
    matches = list(_REPORTER.finditer(statement[-1500:]))
    if not matches:
        return None
    match = matches[-1]
    return (
        str(match.lastgroup).removeprefix("level_"),
        match.start() + max(0, len(statement) - 1500),
        match[0],
    )


def _statement_start(boundaries: Sequence[int], offset: int) -> int:
    index = bisect_right(boundaries, offset)
    return boundaries[index - 1] + 1 if index else 0


def _is_include(skeleton: str, offset: int) -> bool:
    begin = skeleton.rfind("\n", 0, offset) + 1
    return skeleton[begin:offset].lstrip().startswith(("#include", "#pragma"))


def _closing_parenthesis(skeleton: str, offset: int) -> int:
    depth = 1
    for match in re.compile(r"[()]").finditer(skeleton, offset, offset + 2000):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return offset


MOST_HEAD = 8000  # characters before a brace: long lists of members
_DIRECTIVE = re.compile(r"(?m)^[ \t]*#(?:[^\n]*\\\n)*[^\n]*")
_BRACE = re.compile(r"[{};]")
_INITIALISER = re.compile(r"\)[\s\w]*:(?!:).*[\w>]\s*$", re.DOTALL)  # the brace after it initialises a member
_SIGNATURE = re.compile(r"(?P<name>(?:[\w~]+(?:<[^<>();]*>)?::)*(?:operator\s*[^\s\w(]{1,3}|[~\w]+))\s*\(")
_NOT_FUNCTIONS = frozenset(
    [
        "if",
        "for",
        "while",
        "switch",
        "catch",
        "return",
        "sizeof",
        "decltype",
        "alignas",
        "noexcept",
        "defined",
        "__attribute__",
        "__launch_bounds__",
        "requires",
        "throw",
        "new",
        "delete",
        "else",
        "do",
        "namespace",
        "TLLM_CHECK",
        "assert",
        "operator",
    ]
)
_SCOPE = re.compile(r"\b(?:class|struct|union)\s+(?:alignas\s*\([^)]*\)\s*)?(?:\w+_API\s+)?(?P<name>\w+)[^();=]*$")


class _FunctionSpans:
    """The functions of a C++ file by the offsets they span, worked out when first asked for."""

    def __init__(self, skeleton: str) -> None:
        self._skeleton = skeleton
        self._starts: list[int] = []
        self._spans: list[tuple[int, int, str]] | None = None

    def name_at(self, offset: int) -> str:
        """Return the function around an offset."""
        if self._spans is None:
            self._spans = sorted(self._walk())
            self._starts = [span[0] for span in self._spans]
        index = bisect_right(self._starts, offset) - 1
        if index < 0 or self._spans[index][1] < offset:
            return ""
        return self._spans[index][2]

    def _walk(self) -> Iterator[tuple[int, int, str]]:
        skeleton, stack, since = self._skeleton, list[tuple[str, str, int]](), 0
        inside = 0  # how many entries of the stack are functions
        for match in _BRACE.finditer(skeleton):
            char, at = match[0], match.start()
            if char == "{":
                kind, name = ("block", "") if inside else _classify_head(skeleton[max(since, at - MOST_HEAD) : at])
                inside += kind == "function"
                stack.append((kind, name, since))
                if kind == "member":
                    continue
            elif char == "}" and stack:
                kind, name, begin = stack.pop()
                if kind == "member":
                    continue
                if kind == "function":
                    inside -= 1
                    classes = [entry[1] for entry in stack if entry[0] == "class"]
                    yield begin, at, "::".join([*classes, name])
            since = at + 1


def _classify_head(head: str) -> tuple[str, str]:
    """Return what the text before an opening brace opens, and its name."""
    scope = _SCOPE.search(head)
    if scope:
        return "class", scope["name"]
    if _INITIALISER.search(head):
        return "member", ""
    for match in _SIGNATURE.finditer(head):
        name = re.sub(r"<[^<>]*>|\s", "", match["name"])
        if name in _NOT_FUNCTIONS or re.search(r"=\s*(?:\[|$)", head[: match.start()]):
            continue
        return "function", name
    return "block", ""


# ---- Python

_PYTHON_LEVELS = {
    "error": "error", "exception": "error", "critical": "error", "fatal": "error", "log_error": "error", "internal_error": "error",
    "warning": "warning", "warn": "warning", "warning_once": "warning", "log_warn": "warning", "log_warning": "warning",
    "info": "info", "info_once": "info", "log_info": "info", "print": "info", "secho": "info", "echo": "info", "log": "info", "start": "info", "finish": "info", "print_rank_0": "info", "print_rank0": "info",
    "debug": "debug", "debug_once": "debug", "verbose": "debug", "extra_verbose": "debug", "super_verbose": "debug", "ultra_verbose": "debug", "log_verbose": "debug", "trace": "debug",
}  # fmt: skip
_DESCRIBING = frozenset(("help", "description", "epilog", "title", "metavar", "usage", "doc", "short_help", "examples"))


def _extract_python(text: str) -> list[SourceMessage]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            return []
    messages: list[SourceMessage] = []
    _visit_block(tree, "", "text", 0, messages)
    return sorted(messages, key=lambda message: message.line)


def _visit_block(node: ast.AST, function: str, level: str, line: int, messages: list[SourceMessage]) -> None:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        function = f"{function}.{node.name}" if function else node.name
    elif isinstance(node, (ast.Raise, ast.Assert)):
        level, line = "error", node.lineno  # where a traceback says it was raised
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    elif isinstance(node, ast.Call):
        level = _call_level(node, level)
    if isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp, ast.Call)):
        parts = _python_parts(node)
        if parts is not None:
            if level != "text" or count_words(parts) >= LEAST_WORDS:
                messages.append(SourceMessage(parts, function, level, line or node.lineno))
            return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword) and child.arg in _DESCRIBING:
            continue
        _visit_block(child, function, level, line, messages)


def _call_level(node: ast.Call, level: str) -> str:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name.endswith(("Error", "Exception")):
        return "error"
    if name == "print" and any(
        keyword.arg == "file" and ast.unparse(keyword.value).endswith("stderr") for keyword in node.keywords
    ):
        return "error"
    reported = _PYTHON_LEVELS.get(name)
    return (
        reported if reported and (isinstance(node.func, ast.Attribute) or name.startswith(("print", "warn"))) else level
    )


def _python_parts(node: ast.AST) -> str | None:
    """Return the constant parts of a text expression; None where it is no text."""
    if isinstance(node, ast.Constant):
        return CONVERSION.sub(PLACEHOLDER, node.value) if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(value.value) if isinstance(value, ast.Constant) else PLACEHOLDER for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _python_parts(node.left), _python_parts(node.right)
        if left is None and right is None:
            return None
        return (PLACEHOLDER if left is None else left) + (PLACEHOLDER if right is None else right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _python_parts(node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _python_parts(node.func.value)
    return None


# ---- Open MPI's help files


def _extract_help(text: str) -> list[SourceMessage]:
    messages, topic = [], ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.fullmatch(r"\[(.+)\]\s*", line)
        if header:
            topic = header[1]
        elif topic and not line.startswith("#") and count_words(line) >= LEAST_WORDS:
            messages.append(SourceMessage(CONVERSION.sub(PLACEHOLDER, line), topic, "error", number))
    return messages


def count_words(parts: str) -> int:
    return len(re.findall(r"(?<![\w./-])[A-Za-z]\w+(?![\w/])", parts))


def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("\n", text))]
