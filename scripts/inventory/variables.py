"""Environment variables that programs read, with the values their code compares them with."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from inventory.mirrors import parse_source
from inventory.python_source import base_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from inventory.mirrors import Tree

NAME = re.compile(r"[A-Z][A-Z0-9_]{2,}")
OWN_NAME = re.compile(r"(?:TLLM|TRTLLM|TRT_LLM)_[A-Z0-9_]+")
Reading = tuple[str, dict[str, Any]]  # the name, and what this place tells of it


def collect_variables(tree: Tree, patterns: Iterable[str], skip: re.Pattern[str]) -> dict[str, dict[str, Any]]:
    """Return the variables that a release's files read: type, values, default and the files ("places")."""
    variables: dict[str, dict[str, Any]] = {}
    for path in tree.find_paths(*patterns):
        if skip.search(path):
            continue
        extract = read_python_variables if path.endswith(".py") else read_cpp_variables
        kind = "python variables" if path.endswith(".py") else "C++ variables"
        for name, facts in tree.mirror.extract_once(tree.blobs[path], kind, extract):
            known = variables.setdefault(name, {"places": []})
            known["places"].append(path)
            merge_reading(known, facts)
    return variables


def merge_reading(known: dict[str, Any], facts: dict[str, Any]) -> None:
    for value in facts.get("values", ()):
        if value not in known.setdefault("values", []):
            known["values"].append(value)
    for key in ("type", "default"):
        if key in facts:
            known.setdefault(f"{key}s", []).append(facts[key])


def settle_readings(known: dict[str, Any]) -> dict[str, Any]:
    """Return one statement from all places that read a variable; what they do not agree on is left out."""
    facts: dict[str, Any] = {}
    for key in ("type", "default"):
        stated = known.get(f"{key}s", [])
        if stated and all(value == stated[0] for value in stated):
            facts[key] = stated[0]
    if known.get("values"):
        facts["values"] = sorted(known["values"])
    return facts


# Python


def read_python_variables(text: str) -> list[Reading]:
    if "env" not in text.lower() and "LLM_" not in text:
        return []
    module = parse_source(text)
    if module is None:
        return []
    constants = dict(_text_constants(module))
    readings = dict.fromkeys(_listed_names(module))
    merged: dict[str, dict[str, Any]] = {name: {} for name in readings}
    parents = {child: parent for parent in ast.walk(module) for child in ast.iter_child_nodes(parent)}
    for node in ast.walk(module):
        name = _variable_read(node, constants)
        if name and NAME.fullmatch(name):
            facts = _reading_facts(node, parents)
            known = merged.setdefault(name, {})
            known |= {key: value for key, value in facts.items() if key != "values"}
            if "values" in facts:
                known["values"] = sorted({*known.get("values", ()), *facts["values"]})
    return list(merged.items())


def _text_constants(module: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(module):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                yield name, text


def _listed_names(module: ast.Module) -> Iterator[str]:
    """Yield the members of enumerations of variables, such as LlmLauncherEnvs."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef) and re.search(r"Envs?$|EnvVars?$", node.name):
            for line in node.body:
                match line:
                    case ast.Assign(value=ast.Constant(value=str(text))) if NAME.fullmatch(text):
                        yield text


def _variable_read(node: ast.AST, constants: dict[str, str]) -> str:
    """Return the variable that an expression reads, or ""."""
    match node:
        case ast.Subscript(value=owner, slice=key, ctx=ast.Load()) if base_name(owner) == "environ":
            return _text(key, constants)
        case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[owner]) if base_name(owner) == "environ":
            return _text(key, constants)
        case ast.Call(func=function, args=[key, *_]) if _reads_environment(function):
            return _text(key, constants)
        case ast.Call(func=ast.Name(id=helper), args=[ast.Constant(value=str(text)), *_]) if OWN_NAME.fullmatch(text):
            return (
                "" if helper.startswith(("set", "put", "unset")) else text
            )  # a helper of their own, such as is_trace_enabled("TLLM_TRACE_EXECUTOR_LOOP")
    return ""


def _reads_environment(function: ast.expr) -> bool:
    name = base_name(function)
    if name in ("get", "pop"):
        return isinstance(function, ast.Attribute) and base_name(function.value) in ("environ", "env")
    lowered = name.lower()
    return "env" in lowered and not lowered.startswith(("set", "put", "del", "unset", "environ"))


def _text(node: ast.AST, constants: dict[str, str]) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return constants.get(name, "")
    return ""


def _reading_facts(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if isinstance(node, ast.Call):
        defaults = [item.value for item in node.args[1:2] if isinstance(item, ast.Constant)]
        defaults += [
            item.value.value for item in node.keywords if item.arg == "default" and isinstance(item.value, ast.Constant)
        ]
        if defaults and isinstance(defaults[0], (str, int, float, bool)):
            facts["default"] = str(defaults[0])
    outer = parents.get(node)
    while isinstance(outer, ast.Attribute) or (
        isinstance(outer, ast.Call) and base_name(outer.func) in ("lower", "upper", "strip")
    ):
        outer = parents.get(outer)
    match outer:
        case ast.Call(func=ast.Name(id="int" | "float" as kind)):
            facts["type"] = kind
        case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn()], comparators=[other]) if (
            other is not node
        ):
            values = [
                item.value for item in ast.walk(other) if isinstance(item, ast.Constant) and isinstance(item.value, str)
            ]
            if values:
                facts["values"] = values
    return facts


# C++

CPP_READ = re.compile(
    r'\b(?P<how>\w*[eE]nv\w*)\s*(?:<[^<>()]*>)?\(\s*(?:"(?P<text>[A-Z][A-Z0-9_]{2,})"|(?P<constant>k\w+)\s*[),])'
)
CPP_CONSTANT = re.compile(r'\b(k\w+)\s*(?:\{|=)\s*"([A-Z][A-Z0-9_]{2,})"')
CPP_TYPES = {"bool": "bool", "int": "int", "uint": "int", "float": "float", "str": "str", "mem": "str"}


def read_cpp_variables(text: str) -> list[Reading]:
    if "env" not in text.lower():
        return []
    constants = dict(CPP_CONSTANT.findall(text))
    merged: dict[str, dict[str, Any]] = {}
    for match in CPP_READ.finditer(text):
        name = match["text"] or constants.get(match["constant"], "")
        how = match["how"].lower()
        if not name or how.startswith(("set", "put", "unset")):
            continue
        facts = merged.setdefault(name, {})
        kind = next((kind for word, kind in CPP_TYPES.items() if re.match(rf"(?:get)?{word}", how)), "")
        if kind:
            facts["type"] = kind
        if kind == "bool":
            facts["values"] = ["1"]
    return list(merged.items())


NCCL_PARAMETER = re.compile(r'\bNCCL_PARAM\(\s*\w+\s*,\s*"(\w+)"\s*,\s*([^;]*?)\)\s*;')


NCCL_NAMES = re.compile(r"(?:[Ee]nv\w*|Level)\(([^;()]*)")
NCCL_DEFINITION = re.compile(r"\bDEFINE_NCCL_PARAM\(\s*\w+\s*,\s*([^,]+?)\s*,\s*(NCCL_\w+)\s*,")  # since 2.30.7
NCCL_TYPES = {"bool": "bool", "const char*": "str", "int": "int", "int64_t": "int"}
QUOTED_NCCL_NAME = re.compile(r'"(NCCL_[A-Z0-9_]+)"')


def read_nccl_variables(text: str) -> list[Reading]:
    """Return NCCL's own parameters (whole numbers) and the other variables its code names."""
    readings: dict[str, dict[str, Any]] = {}
    for name, default in NCCL_PARAMETER.findall(text):
        plain = default.strip()
        readings[f"NCCL_{name}"] = {"type": "int"} | ({"default": plain} if re.fullmatch(r"-?\d+", plain) else {})
    for kind, name in NCCL_DEFINITION.findall(text):
        readings[name] = {"type": NCCL_TYPES[kind]} if kind in NCCL_TYPES else {}
    for arguments in NCCL_NAMES.findall(text):  # of ncclGetEnv, getenv and ncclGetLevel
        for name in QUOTED_NCCL_NAME.findall(arguments):
            readings.setdefault(name, {})
    return list(readings.items())
