"""Flags of programs that are not Python: trtexec, tritonserver, gptManagerBenchmark and mpirun."""

from __future__ import annotations

import re
from typing import Any

Flags = dict[str, dict[str, Any]]

TRTEXEC_CALL = re.compile(r'\b(get\w+)\(\s*arguments\s*,\s*(?:\w+\s*,\s*)?"(--?\w+)"\s*(?:,\s*([\w.]+))?')
TRTEXEC_MEMBER = re.compile(r"^\s*(bool|u?int\d+_t|size_t|float|double)\s+(\w+)\s*\{", re.MULTILINE)


def read_trtexec_flags(source: str, header: str) -> Flags:
    """Return trtexec's flags; the header's declaration of the variable tells whether and what value it takes."""
    kinds = {name: kind for kind, name in TRTEXEC_MEMBER.findall(header)}
    flags: Flags = {}
    for function, name, variable in TRTEXEC_CALL.findall(source):
        kind = kinds.get(variable.rpartition(".")[2], "")
        is_switch = function == "getAndDelNegOption" or kind == "bool"
        flags.setdefault(name, {"type": "flag" if is_switch else _cpp_type(kind)})
    return flags


TRITON_OPTION = re.compile(r'\{\s*OPTION_\w+,\s*"([\w-]+)",\s*(?:Option::Arg(\w+)|"([^"]*)")?')
TRITON_TYPES = {"None": "flag", "Bool": "bool", "Float": "float", "Int": "int", "Str": "str"}


def read_triton_flags(source: str) -> Flags:
    return {f"--{name}": {"type": TRITON_TYPES.get(kind, "str")} for name, kind, _ in TRITON_OPTION.findall(source)}


CXXOPT = re.compile(
    r'\(\s*"(?:(\w),\s*)?([\w-]+)",\s*(?:"(?:[^"\\]|\\.)*"\s*)+(?:,\s*cxxopts::value<([^;]*?)>\(\)(?:\s*->\s*|\s*\.\s*)?(?:default_value\("([^"]*)"\))?)?',
)


def read_cxxopts_flags(source: str) -> Flags:
    """Return the flags of a C++ program that uses cxxopts."""
    flags: Flags = {}
    for _, name, kind, default in CXXOPT.findall(source):
        facts: dict[str, Any] = {"type": "flag" if kind in ("", "bool") else _cpp_type(kind)}
        if default:
            facts["default"] = default
        flags[f"--{name}"] = facts
    return flags


def _cpp_type(kind: str) -> str:
    if "int" in kind or "size" in kind.lower():
        return "int"
    return "float" if kind in ("float", "double") else "str"


ORTE_OPTION = re.compile(r"""\{\s*(?:NULL|"[^"]*"),\s*'(\\0|.)',\s*(?:NULL|"([^"]*)"),\s*(?:NULL|"([^"]*)"),\s*(\d+)""")


def read_orte_flags(source: str) -> Flags:
    """Return the options of Open MPI 4's mpirun, from the tables its command line is made of."""
    flags: Flags = {}
    for short, single, long, values in ORTE_OPTION.findall(source):
        facts = {"type": "flag" if values == "0" else "str"}
        if short != "\\0":
            flags[f"-{short}"] = facts
        for name in {single, long} - {""}:
            flags[f"--{name}"] = facts
            flags[f"-{name}"] = facts
    return flags


RST_OPTION = re.compile(r"^\s*\* (``-.*)$", re.MULTILINE)
RST_NAME = re.compile(r"``(--?[A-Za-z][\w-]*)((?:[ =|]*<[^`]*)?)[^`]*``")


def read_manual_flags(source: str) -> Flags:
    """Return the options that a manual page in reStructuredText lists (Open MPI 5, whose parser is PRRTE's)."""
    flags: Flags = {}
    for line in RST_OPTION.findall(source):
        takes_value = "<" in line
        for name, _ in RST_NAME.findall(line.partition(":")[0] or line):
            flags[name] = {"type": "str" if takes_value else "flag"}
    return flags
