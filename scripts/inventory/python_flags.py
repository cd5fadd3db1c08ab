"""Command-line flags of Python programs: argparse's `add_argument` and click's options."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, NamedTuple

from inventory.python_source import COMPUTED, SourceModule, Sources, base_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SIMPLE_TYPES = {"int", "float", "str", "bool"}
CLICK_TYPES = {
    "IntRange": "int",
    "FloatRange": "float",
    "Path": "str",
    "File": "str",
    "INT": "int",
    "STRING": "str",
}


class FlagKey(NamedTuple):
    """What a flag is known by."""

    tool: str
    subcommand: str
    flag: str


def collect_script_flags(sources: Sources, path: str, tool: str) -> dict[FlagKey, dict[str, Any]]:
    """Return the flags of one Python program, argparse and click alike."""
    module = sources.open_module(path)
    flags: dict[FlagKey, dict[str, Any]] = {}
    for owner, call, subcommand in _argparse_calls(sources, module):
        flags |= {FlagKey(tool, subcommand, name): facts for name, facts in _read_argument(sources, owner, call)}
    return flags | collect_click_flags(sources, [path], tool)


def _argparse_calls(sources: Sources, module: SourceModule) -> Iterator[tuple[SourceModule, ast.Call, str]]:
    """Yield `add_argument` calls of a file and of the functions it hands its parser to."""
    subparsers = _subparser_names(sources, module)
    for node in module.walk():
        if not isinstance(node, ast.Call):
            continue
        if base_name(node.func) == "add_argument" and isinstance(node.func, ast.Attribute):
            yield module, node, subparsers.get(base_name(node.func.value), "")
        elif isinstance(node.func, ast.Name) and any(base_name(item) == "parser" for item in node.args):
            yield from _calls_of_helper(sources, module, node.func.id)


def _subparser_names(sources: Sources, module: SourceModule) -> dict[str, str]:
    """Return the variables that hold subparsers, with the subcommands they parse."""
    names = {}
    for node in module.walk():
        match node:
            case ast.Assign(targets=[target], value=ast.Call(func=ast.Attribute(attr="add_parser"), args=[name, *_])):
                subcommand = sources.evaluate(module, name)
                if isinstance(subcommand, str):
                    names[base_name(target)] = subcommand
    return names


def _calls_of_helper(sources: Sources, module: SourceModule, name: str) -> Iterator[tuple[SourceModule, ast.Call, str]]:
    hit = sources.find_name(module, name)
    if hit is None or hit[0] is module or not isinstance(hit[1], ast.FunctionDef):
        return  # a function of the same file is walked anyway
    for node in ast.walk(hit[1]):
        if isinstance(node, ast.Call) and base_name(node.func) == "add_argument":
            yield hit[0], node, ""


def _read_argument(sources: Sources, module: SourceModule, call: ast.Call) -> Iterator[tuple[str, dict[str, Any]]]:
    values = [sources.evaluate(module, item) for item in call.args]
    names = [name for name in values if isinstance(name, str) and name.startswith("-")]
    keywords = {item.arg: item.value for item in call.keywords if item.arg}
    facts = _argument_facts(sources, module, keywords)
    for name in names:
        yield name, facts
    if base_name(keywords.get("action", ast.Pass())) == "BooleanOptionalAction":
        yield from ((f"--no-{name[2:]}", facts) for name in names if name.startswith("--"))


def _argument_facts(sources: Sources, module: SourceModule, keywords: dict[str, ast.expr]) -> dict[str, Any]:
    action = sources.evaluate(module, keywords.get("action"))
    switch = isinstance(action, str) and action in (
        "store_true",
        "store_false",
        "store_const",
        "help",
        "version",
        "count",
    )
    optional_switch = base_name(keywords.get("action", ast.Pass())) == "BooleanOptionalAction"
    facts: dict[str, Any] = {"type": "flag" if switch or optional_switch else _argument_type(keywords.get("type"))}
    _add_default(facts, sources, module, keywords.get("default"))
    if action == "store_false":
        facts["means"] = False
    _add_values(facts, sources.evaluate(module, keywords.get("choices")))
    if ("nargs" in keywords and sources.evaluate(module, keywords["nargs"]) in ("*", "+", COMPUTED)) or action in (
        "append",
        "extend",
    ):
        facts["many"] = True
    if sources.evaluate(module, keywords.get("required")) is True:
        facts["required"] = True
    return _mark_deprecated(facts, keywords)


def _argument_type(node: ast.expr | None) -> str:
    if node is None:
        return "str"
    name = base_name(node)
    return name if name in SIMPLE_TYPES else "str"


def _add_default(facts: dict[str, Any], sources: Sources, module: SourceModule, node: ast.expr | None) -> None:
    if node is None:
        return
    value = sources.evaluate(module, node)
    if value is COMPUTED or not is_plain(value):
        facts["computed"] = True
    elif value is not None and not (value is False and facts.get("type") == "flag"):
        facts["default"] = value


def is_plain(value: Any) -> bool:
    """Whether a value can stand in JSON: a constant, or lists and tables of such."""
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str))


def _add_values(facts: dict[str, Any], values: Any) -> None:
    if isinstance(values, (list, dict)) and is_plain(list(values)):
        facts["values"] = [value for value in values if value is not None]


def _mark_deprecated(facts: dict[str, Any], keywords: dict[str, ast.expr]) -> dict[str, Any]:
    words = " ".join(
        node.value
        for name in ("help", "status")
        for node in ast.walk(keywords.get(name, ast.Pass()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ).lower()
    if "deprecated" in words[:120]:
        facts["deprecated"] = True
    return facts


# click


def collect_click_flags(sources: Sources, paths: Iterable[str], tool: str) -> dict[FlagKey, dict[str, Any]]:
    """Return the options of all click commands in some files; a group's options have no subcommand."""
    flags: dict[FlagKey, dict[str, Any]] = {}
    for path in paths:
        module = sources.open_module(path)
        for node in module.walk():
            if isinstance(node, ast.FunctionDef):
                flags |= _command_flags(sources, module, node, tool)
    return flags


def _command_flags(
    sources: Sources, module: SourceModule, function: ast.FunctionDef, tool: str
) -> dict[FlagKey, dict[str, Any]]:
    subcommand = _subcommand_name(sources, module, function, tool)
    if subcommand is None:
        return {}
    flags = {}
    for owner, call in _option_calls(sources, module, function):
        for name, facts in _read_option(sources, owner, call):
            flags[FlagKey(tool, subcommand, name)] = facts
    return flags


def _subcommand_name(sources: Sources, module: SourceModule, function: ast.FunctionDef, tool: str) -> str | None:
    """Return the name of the command a function is, "" for the program itself, None for other functions."""
    for decorator in function.decorator_list:
        kind = base_name(decorator)
        if kind == "group" and function.name in ("main", "cli"):
            return ""
        if kind in ("command", "group"):
            arguments = decorator.args if isinstance(decorator, ast.Call) else []
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            names = [*arguments, *(item.value for item in keywords if item.arg == "name")]
            name = sources.evaluate(module, names[0]) if names else function.name.replace("_", "-")
            return "" if name in (tool, "main") else str(name)
    return None


def _option_calls(
    sources: Sources, module: SourceModule, function: ast.FunctionDef
) -> Iterator[tuple[SourceModule, ast.Call]]:
    """Yield a command's option decorators, and those that a decorator of its own applies."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and base_name(decorator).endswith("option"):
            yield module, decorator
            continue
        hit = sources.find_name(module, base_name(decorator))
        if hit and isinstance(hit[1], ast.FunctionDef):
            for node in ast.walk(hit[1]):
                if isinstance(node, ast.Call) and base_name(node.func) == "option":
                    yield hit[0], node


def _read_option(sources: Sources, module: SourceModule, call: ast.Call) -> Iterator[tuple[str, dict[str, Any]]]:
    keywords = {item.arg: item.value for item in call.keywords if item.arg}
    declarations = [sources.evaluate(module, item) for item in call.args]
    spellings = [text for text in declarations if isinstance(text, str) and text.startswith("-")]
    names = [name.strip() for text in spellings for name in text.split("/")]
    switch = sources.evaluate(module, keywords.get("is_flag")) is True or any("/" in text for text in spellings)
    facts: dict[str, Any] = {"type": "flag" if switch else _option_type(sources, module, keywords)}
    _add_default(facts, sources, module, keywords.get("default"))
    _add_values(facts, _option_values(sources, module, keywords.get("type")))
    if sources.evaluate(module, keywords.get("multiple")) is True:
        facts["many"] = True
    if sources.evaluate(module, keywords.get("required")) is True:
        facts["required"] = True
    _mark_deprecated(facts, keywords)
    for name in names:
        yield name, facts


def _option_type(sources: Sources, module: SourceModule, keywords: dict[str, ast.expr]) -> str:
    node = keywords.get("type")
    if node is None:
        default = sources.evaluate(module, keywords.get("default"))
        return type(default).__name__ if type(default).__name__ in SIMPLE_TYPES else "str"
    name = base_name(node)
    return name if name in SIMPLE_TYPES else CLICK_TYPES.get(name, "str")


def _option_values(sources: Sources, module: SourceModule, node: ast.expr | None) -> Any:
    if isinstance(node, ast.Call) and "Choice" in base_name(node) and node.args:
        values = sources.evaluate(module, node.args[0])
        if isinstance(values, list) and len(node.args) > 1:  # ChoiceWithAlias
            others = sources.evaluate(module, node.args[1])
            values = values + [name for name in others if name not in values] if isinstance(others, dict) else values
        return values
    return COMPUTED
