"""Command-line flags of typer programs: annotated parameters of functions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from inventory.python_classes import kind_from_types, read_annotation
from inventory.python_flags import FlagKey
from inventory.python_source import COMPUTED, base_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inventory.python_source import SourceModule, Sources


def collect_typer_flags(sources: Sources, path: str, tool: str) -> dict[FlagKey, dict[str, Any]]:
    """Return the options of a file's functions; the subcommand is the function's command name."""
    module = sources.open_module(path)
    flags: dict[FlagKey, dict[str, Any]] = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            command = _command_name(sources, module, node)
            for name, facts in _function_options(sources, module, node):
                flags[FlagKey(tool, command, name)] = facts
    return flags


def _command_name(sources: Sources, module: SourceModule, function: ast.FunctionDef) -> str:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and base_name(decorator) == "command" and decorator.args:
            name = sources.evaluate(module, decorator.args[0])
            if isinstance(name, str):
                return name.partition("|")[0].strip()
    return function.name.replace("_", "-")


def _function_options(
    sources: Sources, module: SourceModule, function: ast.FunctionDef
) -> Iterator[tuple[str, dict[str, Any]]]:
    parameters = function.args.args + function.args.kwonlyargs
    defaults = [
        *[None] * (len(function.args.args) - len(function.args.defaults)),
        *function.args.defaults,
        *function.args.kw_defaults,
    ]
    for parameter, default in zip(parameters, defaults, strict=True):
        hit = _find_option(sources, module, parameter.annotation)
        if hit is None:
            continue
        owner, annotation, option = hit
        declared = [sources.evaluate(owner, item) for item in option.args]
        names = [text for text in declared if isinstance(text, str) and text.startswith("-")]
        types = read_annotation(sources, owner, annotation)
        kind = kind_from_types(types.kinds)
        facts: dict[str, Any] = {"type": {"bool": "flag", "list": "str", "any": "str"}.get(kind, kind)}
        value = sources.evaluate(module, default)
        if value not in (None, False, COMPUTED) and isinstance(value, (str, int, float)):
            facts["default"] = value
        if types.values:
            facts["values"] = list(types.values)
        for name in names or [f"--{parameter.arg.replace('_', '-')}"]:
            yield from ((spelling, facts) for spelling in name.split("/"))


def _find_option(
    sources: Sources, module: SourceModule, annotation: ast.expr | None
) -> tuple[SourceModule, ast.expr, ast.Call] | None:
    """Return an `Annotated[type, typer.Option(...)]`, also behind a name."""
    match annotation:
        case ast.Subscript(value=owner, slice=ast.Tuple(elts=[kind, *rest])) if base_name(owner) == "Annotated":
            options = [item for item in rest if isinstance(item, ast.Call) and base_name(item) == "Option"]
            return (module, kind, options[0]) if options else None
        case ast.Name(id=name):
            hit = sources.find_name(module, name)
            if hit and isinstance(hit[1], ast.Subscript):
                return _find_option(sources, *hit)
    return None
