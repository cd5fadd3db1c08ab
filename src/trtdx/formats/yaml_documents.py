"""YAML read within bounds: like `yaml.safe_load`, with the line of each key and no way to blow up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from trtdx.formats.documents import LFS_MARK, MOST_YAML_BYTES, Document, UnreadableError, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host

MOST_DEPTH = 50
MOST_VALUES = 200_000  # aliases counted as often as they are used
LONGEST_PATH = 512  # of a key whose line is kept
LONGEST_NUMBER = 1000  # digits; a longer scalar is a text
# libyaml is about ten times faster; both give the same events.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlDocument(Document):
    """A parsed YAML file that knows the line of each key, and the keys that were written twice."""

    def __init__(
        self, path: str, data: dict[str, Any], lines: dict[str, int], duplicates: tuple[str, ...]
    ) -> None:
        super().__init__(path, data)
        self.lines = lines  # "kv_cache_config.dtype" and "profiles[0].input_ids", counted from 1
        self.duplicates = duplicates  # "extra.yaml:9: kv_cache_config.dtype (first on line 7)"

    def where(self, dotted: str) -> str:
        """Return "extra.yaml:7: kv_cache_config.dtype"; a key that came by an alias has its parent's line."""
        line = self.line(dotted)
        return f"{self.path}:{line}: {dotted}" if line else f"{self.path}: {dotted}"

    def line(self, dotted: str) -> int | None:
        ancestor = dotted
        while ancestor and ancestor not in self.lines:
            ancestor = ancestor[: max(ancestor.rfind("."), ancestor.rfind("["), 0)]
        return self.lines.get(ancestor)


def read_yaml(host: Host, path: str) -> YamlDocument:
    """Return a YAML mapping, or raise `UnreadableError` with the line at which it ends being one."""
    return parse_yaml(read_bytes(host, path, MOST_YAML_BYTES), path)


def parse_yaml(data: bytes, path: str) -> YamlDocument:
    """Return the mapping that a YAML text holds; keys are texts as they are spelled."""
    builder = _Builder(path)
    _build(builder, data)
    return builder.document()


def parse_yaml_stream(data: bytes, path: str) -> tuple[list[YamlDocument], str]:
    """Return the mappings of a text with several documents, up to where it ends being YAML, and why it does."""
    builder = _Builder(path, many=True)
    try:
        _build(builder, data)
    except UnreadableError as err:
        return builder.documents, str(err)
    return builder.documents, ""


def _build(builder: _Builder, data: bytes) -> None:
    if data.startswith(LFS_MARK):
        raise UnreadableError("is a Git-LFS pointer, not the file itself")
    try:
        for event in _events(data):
            builder.take(event)
    except yaml.MarkedYAMLError as err:
        raise UnreadableError(f"is not YAML: {_in_words(err)}") from err
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        raise UnreadableError(f"is not YAML: {str(err).splitlines()[0]}") from err


def _events(data: bytes) -> Iterator[Any]:
    return yaml.parse(data, Loader=LOADER)  # type: ignore[no-any-return]


def _in_words(err: yaml.MarkedYAMLError) -> str:
    mark = err.problem_mark or err.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return place + " ".join(str(err.problem or err.context or "cannot be parsed").split())


class _Open:
    """A mapping or list whose end has not come yet."""

    def __init__(self, value: dict[str, Any] | list[Any], path: str, anchor: str | None) -> None:
        self.value, self.path, self.anchor = value, path, anchor
        self.key: str | None = None  # a mapping's key that waits for its value
        self.merging = False  # that key is <<, unquoted
        self.lines: dict[str, int] = {}
        self.merged: list[dict[str, Any]] = []
        self.size = 1

    def path_of_next(self) -> str:
        if isinstance(self.value, list):
            return f"{self.path}[{len(self.value)}]"
        return f"{self.path}.{self.key}" if self.path else str(self.key)


class _Builder:
    """Makes values of parser events without recursion, counting what each anchor would cost again."""

    def __init__(self, path: str, *, many: bool = False) -> None:
        self._path, self._many = path, many
        self.documents: list[YamlDocument] = []
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        scalars: Any = yaml.SafeLoader("")
        self._resolve, self._construct = scalars.resolve, scalars.construct_object
        self._values = 0
        self._documents = 0
        self._root: Any = None
        self._lines: dict[str, int] = {}
        self._duplicates: list[str] = []

    def document(self) -> YamlDocument:
        if self._root is None:
            raise UnreadableError("is empty")
        if not isinstance(self._root, dict):
            raise UnreadableError(f"holds a {type(self._root).__name__}, not a mapping")
        return YamlDocument(self._path, self._root, self._lines, tuple(self._duplicates))

    def take(self, event: Any) -> None:
        start: Any = event.start_mark
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._begin(event)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._end()
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1 and not self._many:
                raise UnreadableError(f"holds a second document from line {start.line + 1}")

        elif isinstance(event, yaml.DocumentEndEvent) and self._many:
            if isinstance(self._root, dict):
                self.documents.append(self.document())
            self._root, self._lines, self._duplicates, self._anchors = None, {}, [], {}

    def _scalar(self, event: Any) -> None:
        self._count(1)
        if self._waits_for_key():
            self._take_key(event)
            return
        if self._many and self._open and isinstance(self._open[-1].value, list):
            self._lines[self._open[-1].path_of_next()] = (
                event.start_mark.line + 1 + (event.style in ("|", ">"))
            )
        value = self._value_of(event)
        if event.anchor:
            self._anchors[event.anchor] = (value, 1)
        self._place(value, 1)

    def _waits_for_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].value, dict) and self._open[-1].key is None

    def _take_key(self, event: Any) -> None:
        here = self._open[-1]
        here.key = key = event.value
        here.merging = event.value == "<<" and event.implicit[0]
        if event.anchor:
            self._anchors[event.anchor] = (key, 1)
        line = event.start_mark.line + 1
        dotted = here.path_of_next()
        if key in here.lines and not here.merging:
            self._duplicates.append(
                f"{self._path}:{line}: {dotted[:LONGEST_PATH]} (first on line {here.lines[key]})"
            )
        here.lines.setdefault(key, line)
        if len(dotted) <= LONGEST_PATH:
            self._lines[dotted] = line

    def _value_of(self, event: Any) -> Any:
        """Return a scalar as `yaml.safe_load` would."""
        is_text = event.tag is None and not event.implicit[0]
        if is_text or len(event.value) > LONGEST_NUMBER:
            return event.value
        tag = event.tag or self._resolve(yaml.ScalarNode, event.value, event.implicit)
        node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
        return self._construct(node)

    def _alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise UnreadableError(
                f"is not YAML: line {event.start_mark.line + 1}: *{event.anchor} names nothing that is complete"
            )
        if self._waits_for_key():
            raise UnreadableError(f"has an alias as a key on line {event.start_mark.line + 1}")
        value, size = self._anchors[event.anchor]
        self._count(size)
        self._place(value, size)

    def _begin(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if self._waits_for_key():
            raise UnreadableError(f"has a list or mapping as a key on line {line}")
        if len(self._open) >= MOST_DEPTH:
            raise UnreadableError(f"is nested too deeply on line {line}")
        self._count(1)
        path = self._open[-1].path_of_next() if self._open else ""
        if path.endswith("]") and len(path) <= LONGEST_PATH:
            self._lines[path] = line
        empty: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._open.append(_Open(empty, path[: LONGEST_PATH + 1], event.anchor))

    def _end(self) -> None:
        done = self._open.pop()
        for other in done.merged:
            for key, value in other.items():
                done.value.setdefault(key, value)  # type: ignore[union-attr]
        if done.anchor:
            self._anchors[done.anchor] = (done.value, done.size)
        self._place(done.value, done.size)

    def _place(self, value: Any, size: int) -> None:
        """Put a finished value where it belongs."""
        if not self._open:
            self._root = value
            return
        here = self._open[-1]
        here.size += size
        if isinstance(here.value, list):
            here.value.append(value)
        elif here.merging:
            here.merged += _mappings(value)
        else:
            here.value[str(here.key)] = value
        here.key = None

    def _count(self, more: int) -> None:
        self._values += more
        if self._values > MOST_VALUES:
            raise UnreadableError(f"expands to more than {MOST_VALUES:,} values, which no such file does")


def _mappings(value: Any) -> list[dict[str, Any]]:
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, dict) for part in parts):
        raise UnreadableError("merges something with << that is not a mapping")
    return parts
