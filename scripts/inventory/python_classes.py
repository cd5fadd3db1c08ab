"""Fields of configuration classes: pydantic models, dataclasses and the parameters of `__init__`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, NamedTuple

from inventory.python_flags import is_plain
from inventory.python_source import (
    COMPUTED,
    FIELD_CALLS,
    SourceModule,
    Sources,
    base_name,
    default_expression,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN = {
    "bool": "bool", "int": "int", "float": "float", "str": "str", "Path": "str", "PathLike": "str", "object": "any",
    "List": "list", "list": "list", "Tuple": "list", "tuple": "list", "Sequence": "list", "Set": "list", "set": "list",
    "Dict": "dict", "dict": "dict", "Mapping": "dict", "Any": "any", "PositiveInt": "int", "NonNegativeInt": "int",
    "PositiveFloat": "float", "NonNegativeFloat": "float", "StrictBool": "bool", "StrictInt": "int", "None": "none",
    "Callable": "any", "Type": "any",
}  # fmt: skip
LEAST = {"PositiveInt": 1, "NonNegativeInt": 0}
TRANSPARENT = ("Optional", "Annotated", "ClassVar", "Final", "SerializeAsAny")
ON_ITS_OWN = ("BuildConfig",)  # classes whose fields are listed under the class, not under each key that takes one
DISCRIMINATORS = ("decoding_type", "algorithm")  # choose one of several models, as class constants up to 1.2
NOT_FIELDS = ("model_config", "Config")
ROOT_CLASSES = ("BaseModel", "StrictBaseModel", "BaseSettings", "object", "ABC", "PybindMirror", "Enum")


class TypeFacts(NamedTuple):
    """What an annotation says: the kind of value, the values it names, and the models it nests."""

    kinds: frozenset[str]
    values: tuple[Any, ...] = ()
    least: int | None = None
    models: tuple[tuple[SourceModule, ast.ClassDef], ...] = ()


class FieldFacts(NamedTuple):
    """One field: its names (the first is the one to write), facts, and the models below it."""

    names: tuple[str, ...]
    facts: dict[str, Any]
    models: tuple[tuple[SourceModule, ast.ClassDef], ...]


def read_annotation(sources: Sources, module: SourceModule, node: ast.AST | None, depth: int = 0) -> TypeFacts:
    """Return what a type annotation says; names are followed to aliases, enumerations and models."""
    if node is None or depth > 10:
        return TypeFacts(frozenset({"any"}))
    match node:
        case ast.Constant(value=None):
            return TypeFacts(frozenset({"none"}))
        case ast.Constant(value=str(text)):
            try:
                return read_annotation(sources, module, ast.parse(text, mode="eval").body, depth + 1)
            except SyntaxError:
                return TypeFacts(frozenset({"any"}))
        case ast.BinOp(left=left, right=right, op=ast.BitOr()):
            return _union(
                read_annotation(sources, module, left, depth + 1),
                read_annotation(sources, module, right, depth + 1),
            )
        case ast.Subscript():
            return _read_subscript(sources, module, node, depth)
        case ast.Name() | ast.Attribute():
            return _read_type_name(sources, module, base_name(node), depth)
    return TypeFacts(frozenset({"any"}))


def _read_subscript(sources: Sources, module: SourceModule, node: ast.Subscript, depth: int) -> TypeFacts:
    owner = base_name(node.value)
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if owner == "Literal":
        values = [sources.evaluate(module, part) for part in parts]
        kinds = {type(value).__name__ for value in values if value is not None and value is not COMPUTED}
        return TypeFacts(frozenset(kinds), tuple(value for value in values if value not in (None, COMPUTED)))
    if owner in TRANSPARENT:
        return read_annotation(sources, module, parts[0], depth + 1)
    if owner == "Union":
        facts = [read_annotation(sources, module, part, depth + 1) for part in parts]
        return _union(*facts)
    return TypeFacts(frozenset({PLAIN.get(owner, "any")}))


def _read_type_name(sources: Sources, module: SourceModule, name: str, depth: int) -> TypeFacts:
    if name in PLAIN:
        return TypeFacts(frozenset({PLAIN[name]}), least=LEAST.get(name))
    members = sources.list_members(module, name)
    if members:  # of an enumeration of numbers the names are written
        return TypeFacts(
            frozenset({"str"}),
            tuple(value if isinstance(value, str) else member for member, value in members.items()),
        )
    model_class = sources.find_class(module, name)
    if model_class:
        is_model = is_model_class(sources, *model_class)
        kinds = frozenset({"table" if is_model else "any"})
        return TypeFacts(kinds, models=(model_class,) if is_model else ())
    hit = sources.find_name(module, name)
    return read_annotation(sources, *hit, depth + 1) if hit else TypeFacts(frozenset({"any"}))


def _union(*facts: TypeFacts) -> TypeFacts:
    return TypeFacts(
        frozenset().union(*(fact.kinds for fact in facts)),
        tuple(dict.fromkeys(value for fact in facts for value in fact.values)),
        next((fact.least for fact in facts if fact.least is not None), None),
        tuple(model for fact in facts for model in fact.models),
    )


def kind_from_types(kinds: frozenset[str]) -> str:
    """Return one word for what may be written: bool, int, float, str, list, dict, table or any."""
    rest = kinds - {"none"}
    if len(rest) == 1:
        return next(iter(rest))
    if "table" in rest and rest <= {"table", "dict", "any", "bool"}:
        return "table"
    if rest == {"int", "float"}:
        return "float"
    return "any"


def is_model_class(sources: Sources, module: SourceModule, owner: ast.ClassDef) -> bool:
    """Whether a class has fields that are written as keys: a pydantic model or a dataclass."""
    if any(base_name(decorator) == "dataclass" for decorator in owner.decorator_list):
        return True
    for base in map(base_name, owner.bases):
        if base in ("BaseModel", "StrictBaseModel", "BaseSettings"):
            return True
        hit = sources.find_class(module, base) if base not in ROOT_CLASSES else None
        if hit and hit[1] is not owner and is_model_class(sources, *hit):
            return True
    return False


def collect_fields(sources: Sources, module: SourceModule, owner: ast.ClassDef) -> dict[str, FieldFacts]:
    """Return the fields of a class, those of its bases first."""
    fields: dict[str, FieldFacts] = {}
    for base in reversed([base_name(base) for base in owner.bases]):
        hit = sources.find_class(module, base) if base not in ROOT_CLASSES else None
        if hit and hit[1] is not owner:
            fields |= collect_fields(sources, *hit)
    for line in owner.body:
        match line:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                field = _read_field(sources, module, name, annotation, value)
                if base_name(annotation) == "ClassVar":
                    field = _read_discriminator(name, field)
                if name not in NOT_FIELDS and field is not None:
                    fields[name] = field
    return fields


def _read_field(
    sources: Sources, module: SourceModule, name: str, annotation: ast.expr, value: ast.expr | None
) -> FieldFacts | None:
    if isinstance(value, ast.Call) and base_name(value.func) == "PrivateAttr":
        return None
    types = read_annotation(sources, module, annotation)
    keywords: dict[str, ast.expr] = {}
    default = default_expression(value)
    if isinstance(value, ast.Call) and base_name(value.func) in FIELD_CALLS:
        keywords = {item.arg: item.value for item in value.keywords if item.arg}
        if default is None and "default_factory" in keywords:
            default = _factory_default(keywords["default_factory"])
    facts: dict[str, Any] = {"type": kind_from_types(types.kinds)}
    if sources.evaluate(module, keywords.get("init")) is False:
        facts["internal"] = True  # set by the class itself, never written by a user
    _add_field_default(facts, sources, module, default)
    if types.values:
        facts["values"] = list(types.values)
    least = _least_value(sources, module, keywords, types)
    if least is not None:
        facts["least"] = least
    status = sources.evaluate(module, keywords.get("status"))
    if status == "deprecated" or "deprecated" in keywords:
        facts["deprecated"] = True
    return FieldFacts(_field_names(sources, module, name, keywords), facts, types.models)


def _read_discriminator(name: str, field: FieldFacts | None) -> FieldFacts | None:
    """Return the class constant that a key chooses the class by; other constants are no fields."""
    if field is None or name not in DISCRIMINATORS or "default" not in field.facts:
        return None
    return field._replace(facts={"type": "str", "values": [field.facts["default"]]})


def _factory_default(factory: ast.expr) -> ast.expr | None:
    match factory:
        case ast.Name(id="list" | "dict" | "set" as name):
            return ast.List(elts=[]) if name != "dict" else ast.Dict(keys=[], values=[])
        case ast.Lambda(body=body):
            return body
    return None


def _add_field_default(facts: dict[str, Any], sources: Sources, module: SourceModule, node: ast.expr | None) -> None:
    value = sources.evaluate(module, node)
    if isinstance(node, ast.Call) and facts["type"] == "table":
        return  # a section made of its own defaults
    if value is COMPUTED or not is_plain(value):
        if node is not None and not (isinstance(node, ast.Constant) and node.value is ...):
            facts["computed"] = True
    elif value is not None:
        facts["default"] = value


def _least_value(
    sources: Sources, module: SourceModule, keywords: dict[str, ast.expr], types: TypeFacts
) -> int | float | None:
    at_least, above = (
        sources.evaluate(module, keywords.get("ge")),
        sources.evaluate(module, keywords.get("gt")),
    )
    if isinstance(at_least, (int, float)):
        return at_least
    if isinstance(above, int) and types.kinds - {"none"} == {"int"}:
        return above + 1
    return types.least


def _field_names(sources: Sources, module: SourceModule, name: str, keywords: dict[str, ast.expr]) -> tuple[str, ...]:
    """Return the keys that set a field; an alias replaces its name, choices of aliases stand beside each other."""
    choices = keywords.get("validation_alias")
    if isinstance(choices, ast.Call):
        names = [sources.evaluate(module, item) for item in choices.args]
        rest = [text for text in names if isinstance(text, str) and text != name]
        return (name, *rest)
    alias = sources.evaluate(module, keywords.get("alias") or choices)
    return (alias,) if isinstance(alias, str) else (name,)


def collect_parameters(sources: Sources, module: SourceModule, owner: ast.ClassDef) -> dict[str, FieldFacts]:
    """Return the parameters of `__init__` as fields."""
    fields = {}
    for line in owner.body:
        if not isinstance(line, ast.FunctionDef) or line.name != "__init__":
            continue
        plain, keyword = line.args.args[1:], line.args.kwonlyargs
        padding: list[ast.expr | None] = [None] * (len(plain) - len(line.args.defaults))
        pairs = [
            *zip(plain, padding + line.args.defaults, strict=True),
            *zip(keyword, line.args.kw_defaults, strict=True),
        ]
        for argument, default in pairs:
            types = read_annotation(sources, module, argument.annotation)
            facts: dict[str, Any] = {"type": kind_from_types(types.kinds)}
            _add_field_default(facts, sources, module, default)
            if types.values:
                facts["values"] = list(types.values)
            fields[argument.arg] = FieldFacts((argument.arg,), facts, types.models)
    return fields


def collect_options(
    sources: Sources, module: SourceModule, owner: ast.ClassDef, prefix: str = "", above: tuple[str, ...] = ()
) -> dict[str, dict[str, Any]]:
    """Return the keys of a model with those of the models below it, dotted."""
    options: dict[str, dict[str, Any]] = {}
    for field in collect_fields(sources, module, owner).values():
        if "internal" in field.facts:
            continue
        for position, name in enumerate(field.names):
            facts = dict(field.facts)
            if position:
                facts["alias_of"] = prefix + field.names[0]
            options[prefix + name] = facts
        for inner, model in field.models:
            if model.name in above or model.name in ON_ITS_OWN or len(above) > 4:
                continue
            below = collect_options(sources, inner, model, f"{prefix}{field.names[0]}.", (*above, model.name))
            options = merge_options(options, below)
    return options


def merge_options(left: dict[str, dict[str, Any]], right: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the keys of two alternatives together: values of both, a default only where both have the same."""
    merged = dict(left)
    for name, facts in right.items():
        known = merged.get(name)
        merged[name] = facts if known is None else _merge_facts(known, facts)
    return merged


def _merge_facts(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    facts = {key: value for key, value in left.items() if right.get(key) == value}
    if left["type"] != right["type"]:
        kinds = frozenset({left["type"], right["type"]})
        facts["type"] = kind_from_types(kinds)
    if "values" in left and "values" in right:
        facts["values"] = list(dict.fromkeys([*left["values"], *right["values"]]))
    return facts


def iterate_classes(module: SourceModule) -> Iterator[ast.ClassDef]:
    for node in module.names.values():
        if isinstance(node, ast.ClassDef):
            yield node
