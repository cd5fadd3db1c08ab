"""What to look at: one selector language for module paths, ONNX nodes and TensorRT layers.

    layers.*.mlp:out          the outputs of every layer's mlp
    **.q_proj:in              the inputs of every q_proj
    layers[0,-1].**           everything in the first and the last layer
    op:MatMul & layers.3.**   the matrix products of layer 3
    tensor:logits             a tensor by its own name
    dtype:bf16, !**.rotary*   a union, without what follows an exclamation mark
    is:module                 what enters and leaves modules; is:tensor is every tensor of a graph by its own name

A path is matched from its end, so that `layers.3.mlp` is the same place in `model.layers.3.mlp` (Hugging Face),
`m.model.layers.3.mlp` (the scopes in an exported ONNX file) and `transformer.layers.3.mlp` (TensorRT-LLM).
A path that begins with a dot is matched from its beginning.
"""

from __future__ import annotations

import difflib
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from trtdx.errors import InputError
from trtdx.words import join_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

DTYPE_ALIASES = {
    "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "half": "float16",
    "float": "float32", "double": "float64", "fp8": "float8*", "i8": "int8", "i32": "int32", "i64": "int64",
    "u8": "uint8", "f64": "float64", "f32": "float32", "f16": "float16",
}  # fmt: skip


class Place(NamedTuple):
    """One value a run passes by: an input or an output of a module, node or layer."""

    path: str  # the module's or layer's dotted path; for ONNX the module scope, where the file tells it
    port: str = "out"  # "in" or "out"
    number: int = 0  # which of several inputs or outputs
    argument: str = ""  # the name of a keyword argument
    op: str = ""  # operator, layer type or module class
    tensor: str = ""  # the tensor's own name in ONNX or TensorRT
    dtype: str = ""

    @property
    def name(self) -> str:
        """The name it is shown and kept under."""
        if self.tensor:
            return self.tensor
        which = f".{self.argument}" if self.argument else f"[{self.number}]" if self.number else ""
        return f"{self.path}:{self.port}{which}"


class Port(NamedTuple):
    """Which side of a place: inputs, outputs, one of several, or a keyword argument."""

    side: str = "out"
    number: int | None = None
    argument: str = ""

    def matches(self, place: Place) -> bool:
        if self.side not in ("*", place.port):
            return False
        if self.argument:
            return fnmatchcase(place.argument, self.argument)
        return self.number is None or (self.number == place.number and not place.argument)


class SelectorAtom(NamedTuple):
    """One condition: on the path, or on a property such as the operator."""

    kind: str  # "path", "op", "tensor", "dtype", "is"
    pattern: str
    port: Port | None = None
    text: str = ""  # as it was written


class SelectorTerm(NamedTuple):
    """Conditions that all hold, adding places or, with an exclamation mark, taking them away."""

    atoms: tuple[SelectorAtom, ...]
    excludes: bool = False


class Selector(NamedTuple):
    """A parsed selector."""

    text: str
    terms: tuple[SelectorTerm, ...]

    def select(self, places: Sequence[Place]) -> list[Place]:
        """Return the places selected, in their order."""
        chooses = self.predicate_among(places)
        return [place for place in places if chooses(place)]

    def predicate_among(self, places: Iterable[Place]) -> Callable[[Place], bool]:
        """Return what decides on a place among these, also on one that only shows itself during a run."""
        last = last_indices(places)
        added = [term for term in self.terms if not term.excludes]
        excluded = [term for term in self.terms if term.excludes]

        def chooses(place: Place) -> bool:
            if added and not any(_term_holds(term, place, last) for term in added):
                return False
            return not any(_term_holds(term, place, last) for term in excluded)

        return chooses

    def candidates(self, places: Sequence[Place]) -> list[Place]:
        """Return the places that may be selected once their types and numbers are known."""
        last = last_indices(places)
        added = [_relax_term(term) for term in self.terms if not term.excludes]
        return [place for place in places if not added or any(_term_holds(term, place, last) for term in added)]

    def select_or_raise(self, places: Sequence[Place]) -> list[Place]:
        """Return the places selected, or raise with the nearest names when there is none."""
        selected = self.select(places)
        if places and not selected:
            raise self.nothing_selected_error(places)
        self.check_terms(places)
        return selected

    def check_terms(self, places: Sequence[Place]) -> None:
        """Raise if a part of a union hits nothing: it is most likely misspelt."""
        last = last_indices(places)
        for term in self.terms if places else ():
            relaxed = _relax_term(term)
            if not term.excludes and not any(_term_holds(relaxed, place, last) for place in places):
                alone = Selector(", ".join(atom.text for atom in term.atoms), (term,))
                raise alone.nothing_selected_error(places)

    def nothing_selected_error(self, places: Sequence[Place]) -> InputError:
        """Return the error of a selector that hits nothing, with the nearest names."""
        return InputError(f"nothing is selected by {self.text!r}", fix=self._nearest_names(places))

    def _nearest_names(self, places: Sequence[Place]) -> str:
        stems = [re.sub(r"\*+\.?|\[.*?\]", "", atom.pattern) for term in self.terms for atom in term.atoms]
        names = dict.fromkeys(name for place in places for name in (place.path, place.tensor, place.op) if name)
        tails = dict.fromkeys(part for name in names for part in (name, name.rpartition(".")[2]))
        near = dict.fromkeys(match for want in stems for match in difflib.get_close_matches(want, list(tails), 4, 0.5))
        some = list(near) or list(names)[:4]
        near_or_some = "the nearest are" if near else "there are, for example,"
        return f"{near_or_some} {join_words(some)}; `trtdx capture MODEL --list '**'` lists all {len(places)} places"


def parse_selector(text: str) -> Selector:
    """Return the selector a text states; a mistake is an error that shows it."""
    terms = tuple(_parse_term(part) for part in _split_outside_brackets(text, ",") if part.strip())
    if not terms:
        raise InputError("the selector is empty", fix="name a place, such as 'layers.*.mlp:out', or '**' for all")
    return Selector(text, terms)


def _split_outside_brackets(text: str, by: str) -> list[str]:
    """Split at a character that is not inside brackets: `layers[0,-1]` stays whole."""
    return re.split(rf"{re.escape(by)}(?![^\[\]]*\])", text)


def _parse_term(text: str) -> SelectorTerm:
    stripped = text.strip()
    excludes = stripped.startswith("!")
    atoms = tuple(_parse_atom(part.strip()) for part in _split_outside_brackets(stripped.removeprefix("!"), "&"))
    return SelectorTerm(atoms, excludes)


def _parse_atom(text: str) -> SelectorAtom:
    if not text:
        raise InputError("a part of the selector is empty", fix="write 'a & b', 'a, b' or '!a'")
    kind, colon, rest = text.partition(":")
    if colon and kind in ("op", "tensor", "dtype", "is"):
        if kind == "is" and rest not in ("module", "tensor"):
            raise InputError(f"{text!r} is nothing a place can be", fix="write is:module or is:tensor")
        return SelectorAtom(kind, DTYPE_ALIASES.get(rest, rest) if kind == "dtype" else rest, text=text)
    path, colon, port = text.rpartition(":")
    if not colon:
        return SelectorAtom("path", _check_path(text), text=text)
    return SelectorAtom("path", _check_path(path), _parse_port(port, text), text)


def _parse_port(port: str, text: str) -> Port:
    match = re.fullmatch(r"(in|out|\*)(?:\[(\d+)\]|\.([\w*]+))?", port)
    if match is None:
        raise InputError(
            f"{port!r} in {text!r} is not a port",
            fix="a port is :in, :out, :*, :in[0], :out[1] or :in.name; a property is op:, tensor: or dtype:",
        )
    return Port(match[1], int(match[2]) if match[2] else None, match[3] or "")


def _check_path(path: str) -> str:
    for inside in re.findall(r"\[([^\]]*)\]", path):
        if not re.fullmatch(r"\s*-?\d+\s*(,\s*-?\d+\s*)*|-?\d*:-?\d*", inside):
            raise InputError(f"[{inside}] in {path!r} does not select layers by index", fix="write [0,-1] or [2:5]")
    if re.search(r"\][^.\[]", path):
        raise InputError(
            f"indices in {path!r} are followed by something other than a dot", fix="write layers[0,-1].mlp"
        )
    if path.count("[") != path.count("]"):
        raise InputError(f"a bracket in {path!r} is not closed")
    return path


def _term_holds(term: SelectorTerm, place: Place, last: Mapping[str, int]) -> bool:
    return all(_atom_holds(atom, place, last) for atom in term.atoms)


def _relax_term(term: SelectorTerm) -> SelectorTerm:
    """Return a term without the conditions that only a run can tell: types, and which of several tensors."""
    atoms = (
        atom._replace(port=Port(atom.port.side)) if atom.port else atom
        for atom in term.atoms
        if atom.kind in ("path", "op", "is")
    )
    return SelectorTerm(tuple(atoms), term.excludes)


def _atom_holds(atom: SelectorAtom, place: Place, last: Mapping[str, int]) -> bool:
    if atom.kind == "path":
        return (atom.port or Port()).matches(place) and path_matches(atom.pattern, place.path, last)
    if atom.kind == "is":
        return (atom.pattern == "tensor") == bool(place.tensor)
    value = {"op": place.op, "tensor": place.tensor or place.name, "dtype": place.dtype}[atom.kind]
    return fnmatchcase(
        value.lower() if atom.kind == "op" else value,
        atom.pattern.lower() if atom.kind == "op" else atom.pattern,
    )


def last_indices(places: Iterable[Place]) -> dict[str, int]:
    """Return the highest index below each path, so that -1 can be told: {"model.layers": 31}."""
    last: dict[str, int] = {}
    for path in {place.path for place in places}:
        parts = path.split(".")
        for number, part in enumerate(parts):
            if part.isdigit():
                above = ".".join(parts[:number])
                last[above] = max(last.get(above, 0), int(part))
    return last


def path_matches(pattern: str, path: str, last: Mapping[str, int]) -> bool:
    """Whether a pattern's parts fit the end of a path (or, after a leading dot, the whole of it)."""
    patterns = _split_pattern(pattern[1:] if pattern.startswith(".") else f"**.{pattern}")
    return _parts_match(patterns, path.split(".") if path else [], (), last)


def _split_pattern(pattern: str) -> list[str]:
    """Return the parts of a pattern: "layers[0,-1].mlp" has "layers", "[0,-1]" and "mlp"."""
    parts = [part for part in re.split(r"\.|(?=\[)", pattern) if part]
    # `**.**` is `**`; without this a hostile selector would be tried in exponentially many ways.
    return [part for number, part in enumerate(parts) if part != "**" or parts[number - 1 : number] != ["**"]]


def _parts_match(
    patterns: Sequence[str], parts: Sequence[str], above: tuple[str, ...], last: Mapping[str, int]
) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(
            _parts_match(patterns[1:], parts[skip:], (*above, *parts[:skip]), last) for skip in range(len(parts) + 1)
        )
    if not parts or not _part_matches(patterns[0], parts[0], above, last):
        return False
    return _parts_match(patterns[1:], parts[1:], (*above, parts[0]), last)


def _part_matches(pattern: str, part: str, above: tuple[str, ...], last: Mapping[str, int]) -> bool:
    if not pattern.startswith("["):
        return fnmatchcase(part, pattern)
    if not part.isdigit():
        return False
    count = last.get(".".join(above), int(part)) + 1
    return int(part) in _parse_indices(pattern[1:-1], count)


def _parse_indices(inside: str, count: int) -> Sequence[int]:
    if ":" in inside:
        begin, end = inside.split(":")
        return range(count)[slice(int(begin) if begin else None, int(end) if end else None)]
    return [number + count if number < 0 else number for number in map(int, inside.split(","))]


_PLACE_NAME = re.compile(r"([^:\s]+):(in|out)(?:\[(\d{1,4})\]|\.([\w.]+))?")


def place_from_name(name: str) -> Place:
    """Return the place of a tensor of which only the name is known; our own names tell module and port too."""
    match = _PLACE_NAME.fullmatch(name)
    if match is None:
        return Place(name, tensor=name)
    path, port, number, argument = match.groups()
    place = Place(path, port, int(number or 0), argument or "")
    return place if place.name == name else Place(name, tensor=name)
