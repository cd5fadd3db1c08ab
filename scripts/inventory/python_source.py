"""Names and constants of Python files, resolved by reading: imports are followed, nothing is executed."""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from inventory.mirrors import Tree


class Computed:
    """A value that only running the program would tell."""

    def __repr__(self) -> str:
        return "COMPUTED"


COMPUTED = Computed()
DEPTH = 12  # of names that refer to names
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: operator.lshift,
}


class SourceModule:
    """The top-level names of one file of a release."""

    def __init__(self, tree: Tree, path: str) -> None:
        self.tree, self.path = tree, path
        module = tree.parse_python(path)
        self.module = module
        self.body = module.body if module else []
        self.names: dict[str, ast.AST] = {}
        self.imports: dict[str, tuple[str, str]] = {}  # local name -> (path of the module, name in it)
        for node in _top_level(self.body):
            self._register(node)

    def _register(self, node: ast.AST) -> None:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                self.names[name] = node
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.names[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self.names[name] = value
            case ast.ImportFrom():
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (self._module_file(node), alias.name)

    def _module_file(self, node: ast.ImportFrom) -> str:
        """Return the path without its ending that an import names: absolute, relative, or beside the script."""
        module = (node.module or "").replace(".", "/")
        if node.level:
            folder = self.path.rsplit("/", node.level)[0] if self.path.count("/") >= node.level else ""
            return f"{folder}/{module}".strip("/")
        folders = [self.path.rpartition("/")[0]]
        while folders[-1]:
            folders.append(folders[-1].rpartition("/")[0])
        candidates = [f"{folder}/{module}".strip("/") for folder in folders]
        existing = (path for path in candidates if _python_file(self.tree, path))
        return next(existing, module)

    def walk(self) -> Iterable[ast.AST]:
        """Return the calls, functions and assignments of the file, in order; kept with its syntax tree."""
        if self.module is None:
            return ()
        nodes: list[ast.AST] | None = getattr(self.module, "walked_nodes", None)
        if nodes is None:
            kept = (ast.Call, ast.FunctionDef, ast.Assign)
            nodes = [node for node in ast.walk(self.module) if isinstance(node, kept)]
            self.module.walked_nodes = nodes  # type: ignore[attr-defined]
        return nodes


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, with those inside its `if` and `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _top_level(node.body + node.orelse)
        elif isinstance(node, ast.Try):
            yield from _top_level(node.body + [line for handler in node.handlers for line in handler.body])


def _python_file(tree: Tree, stem: str) -> str:
    return next((path for path in (f"{stem}.py", f"{stem}/__init__.py") if path in tree.blobs), "")


class Sources:
    """The modules of one release, opened when they are asked for."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._modules: dict[str, SourceModule] = {}

    def open_module(self, path: str) -> SourceModule:
        if path not in self._modules:
            self._modules[path] = SourceModule(self.tree, path)
        return self._modules[path]

    def find_name(self, module: SourceModule, name: str, depth: int = 0) -> tuple[SourceModule, ast.AST] | None:
        """Return where a name is defined and its definition; imports are followed."""
        if name in module.names:
            return module, module.names[name]
        if name not in module.imports or depth > DEPTH:
            return None
        stem, original = module.imports[name]
        path = _python_file(self.tree, stem)
        if not path:
            return None
        return self.find_name(self.open_module(path), original, depth + 1)

    def find_class(self, module: SourceModule, name: str) -> tuple[SourceModule, ast.ClassDef] | None:
        hit = self.find_name(module, name)
        if hit and isinstance(hit[1], ast.Name) and hit[1].id != name:
            return self.find_class(hit[0], hit[1].id)
        return (hit[0], hit[1]) if hit and isinstance(hit[1], ast.ClassDef) else None

    # Constants

    def evaluate(self, module: SourceModule, node: ast.AST | None, depth: int = 0) -> Any:
        """Return the value of an expression made of constants, or COMPUTED."""
        if node is None or depth > DEPTH:
            return COMPUTED
        handler = getattr(self, f"_evaluate_{type(node).__name__.lower()}", None)
        try:
            return handler(module, node, depth + 1) if handler else COMPUTED
        except (TypeError, ValueError, ArithmeticError, KeyError):
            return COMPUTED

    def _evaluate_constant(self, module: SourceModule, node: ast.Constant, depth: int) -> Any:
        return COMPUTED if isinstance(node.value, (bytes, complex)) or node.value is ... else node.value

    def _evaluate_list(self, module: SourceModule, node: ast.List | ast.Tuple | ast.Set, depth: int) -> Any:
        values: list[Any] = []
        for item in node.elts:
            spread = isinstance(item, ast.Starred)
            value = self.evaluate(module, item.value if isinstance(item, ast.Starred) else item, depth)
            if value is COMPUTED:
                return COMPUTED
            values.extend(value if spread else [value])
        return values

    _evaluate_tuple = _evaluate_list
    _evaluate_set = _evaluate_list

    def _evaluate_dict(self, module: SourceModule, node: ast.Dict, depth: int) -> Any:
        keys = [self.evaluate(module, key, depth) for key in node.keys]
        if COMPUTED in keys:
            return COMPUTED
        return {key: self.evaluate(module, value, depth) for key, value in zip(keys, node.values, strict=True)}

    def _evaluate_unaryop(self, module: SourceModule, node: ast.UnaryOp, depth: int) -> Any:
        value = self.evaluate(module, node.operand, depth)
        if value is COMPUTED:
            return COMPUTED
        return -value if isinstance(node.op, ast.USub) else COMPUTED

    def _evaluate_binop(self, module: SourceModule, node: ast.BinOp, depth: int) -> Any:
        left, right = self.evaluate(module, node.left, depth), self.evaluate(module, node.right, depth)
        apply = OPERATORS.get(type(node.op))
        return COMPUTED if apply is None or left is COMPUTED or right is COMPUTED else apply(left, right)

    def _evaluate_name(self, module: SourceModule, node: ast.Name, depth: int) -> Any:
        hit = self.find_name(module, node.id)
        return self.evaluate(hit[0], hit[1], depth) if hit else COMPUTED

    def _evaluate_call(self, module: SourceModule, node: ast.Call, depth: int) -> Any:
        match node:
            case ast.Call(func=ast.Attribute(value=table, attr="keys" | "values" as part), args=[]):
                values = self.evaluate(module, table, depth)
                if values is COMPUTED:
                    return self._registered_names(module, table)
                return list(getattr(values, part)())
            case ast.Call(func=ast.Name(id="list" | "tuple" | "set" | "sorted"), args=[only]):
                values = self.evaluate(module, only, depth)
                return COMPUTED if values is COMPUTED else list(values)
            case ast.Call(func=ast.Attribute(attr="Path") | ast.Name(id="Path" | "str"), args=[only]):
                return self.evaluate(module, only, depth)
        return COMPUTED

    def _registered_names(self, module: SourceModule, factory: ast.AST) -> Any:
        """Return the names that decorators such as `@register_parser("a", "b")` hand to a factory class."""
        hit = self.find_class(module, base_name(factory)) if isinstance(factory, ast.Name) else None
        names: list[str] = []
        for owner in hit[0].names.values() if hit else ():
            for decorator in owner.decorator_list if isinstance(owner, ast.ClassDef) else ():
                if isinstance(decorator, ast.Call) and base_name(decorator).startswith("register_"):
                    names += [item.value for item in decorator.args if isinstance(item, ast.Constant)]
        return names or COMPUTED

    def _evaluate_listcomp(self, module: SourceModule, node: ast.ListComp, depth: int) -> Any:
        """Return `[x.name for x in Enumeration]` and `[x if x else "disable" for x in VALUES]`."""
        match node:
            case ast.ListComp(
                elt=ast.Attribute(value=ast.Name(), attr="name" | "value" as part),
                generators=[ast.comprehension(iter=ast.Name(id=name), ifs=[])],
            ):
                members = self.list_members(module, name)
                return [member if part == "name" else value for member, value in members.items()] or COMPUTED
        return COMPUTED

    def _evaluate_attribute(self, module: SourceModule, node: ast.Attribute, depth: int) -> Any:
        inner = node.value
        if node.attr in ("value", "name") and isinstance(inner, ast.Attribute):
            return self._evaluate_attribute(module, inner, depth)
        if node.attr == "default" and isinstance(inner, ast.Subscript):
            return self._model_default(module, inner, depth)
        if not isinstance(inner, ast.Name):
            return COMPUTED
        members = self.list_members(module, inner.id)
        if node.attr in members:
            return members[node.attr]
        hit = self.find_class(module, inner.id)
        return self._class_constant(*hit, node.attr, depth) if hit else COMPUTED

    def _model_default(self, module: SourceModule, node: ast.Subscript, depth: int) -> Any:
        """Return the default that `Model.model_fields["name"]` holds, also where a name stands for the table."""
        table, name = node.value, self.evaluate(module, node.slice, depth)
        if isinstance(table, ast.Name):
            hit = self.find_name(module, table.id)
            if hit is None:
                return COMPUTED
            module, table = hit  # type: ignore[assignment]
        match table:
            case ast.Attribute(value=ast.Name(id=owner), attr="model_fields"):
                hit_class = self.find_class(module, owner)
                return self._class_constant(*hit_class, name, depth) if hit_class else COMPUTED
        return COMPUTED

    def _class_constant(self, module: SourceModule, owner: ast.ClassDef, name: str, depth: int) -> Any:
        for line in owner.body:
            match line:
                case ast.AnnAssign(target=ast.Name(id=target), value=value) if target == name:
                    return self.evaluate(module, default_expression(value), depth)
                case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                    return self.evaluate(module, value, depth)
        for base in map(base_name, owner.bases):
            hit = self.find_class(module, base)
            if hit and hit[1] is not owner and depth < DEPTH:
                value = self._class_constant(*hit, name, depth + 1)
                if value is not COMPUTED:
                    return value
        return COMPUTED

    def list_members(self, module: SourceModule, name: str) -> dict[str, Any]:
        """Return the members of an enumeration with their values; {} where the name is none."""
        hit = self.find_class(module, name)
        if not hit or not any("Enum" in base_name(base) for base in hit[1].bases):
            return {}
        textual = any("Str" in base_name(base) or base_name(base) == "str" for base in hit[1].bases)
        members: dict[str, Any] = {}
        for line in hit[1].body:
            match line:
                case ast.Assign(targets=[ast.Name(id=member)], value=value) if not member.startswith("_"):
                    known = self.evaluate(hit[0], value)
                    automatic = member if textual or known is COMPUTED else known
                    members[member] = automatic if known is COMPUTED else known
        return members


FIELD_CALLS = ("Field", "PydanticField", "field", "TelemetryField")


def default_expression(value: ast.expr | None) -> ast.expr | None:
    """Return the expression of a field's default, out of `Field(default=...)` where it is written so."""
    if not isinstance(value, ast.Call) or base_name(value.func) not in FIELD_CALLS:
        return value
    keywords = {item.arg: item.value for item in value.keywords}
    return keywords.get("default", value.args[0] if value.args else None)


def base_name(node: ast.AST) -> str:
    """Return the last part of a dotted name, of a call's function or of a subscript's owner."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return base_name(inner)
    return ""
