"""YAML read within bounds: like `yaml.safe_load`, with the line of each key and no way to blow up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from trtdx.formats.documents import GIT_LFS_MAGIC, MAX_YAML_BYTES, Document, UnreadableError, read_file_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host

MAX_YAML_DEPTH = 50
MAX_YAML_VALUES = 200_000  # aliases counted as often as they are used
MAX_PATH_LENGTH = 512  # of a key whose line is kept
MAX_NUMBER_DIGITS = 300  # digits; a longer scalar is a text, and a float can hold this many
# libyaml is about ten times faster; both give the same events.
YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlDocument(Document):
    """A parsed YAML file that knows the line of each key, and the keys that were written twice."""

    def __init__(self, path: str, data: dict[str, Any], lines: dict[str, int], duplicates: tuple[str, ...]) -> None:
        super().__init__(path, data)
        self.lines = lines  # "kv_cache_config.dtype" and "profiles[0].input_ids", counted from 1
        self.duplicates = duplicates  # "extra.yaml:9: kv_cache_config.dtype (first on line 7)"

    def place_of(self, dotted: str) -> str:
        """Return "extra.yaml:7: kv_cache_config.dtype"; a key that came by an alias has its parent's line."""
        line = self.line_of(dotted)
        return f"{self.path}:{line}: {dotted}" if line else f"{self.path}: {dotted}"

    def line_of(self, dotted: str) -> int | None:
        ancestor = dotted
        while ancestor and ancestor not in self.lines:
            ancestor = ancestor[: max(ancestor.rfind("."), ancestor.rfind("["), 0)]
        return self.lines.get(ancestor)


def read_yaml(host: Host, path: str) -> YamlDocument:
    """Return a YAML mapping, or raise `UnreadableError` with the line at which it ends being one."""
    return parse_yaml(read_file_bytes(host, path, MAX_YAML_BYTES), path)


def parse_yaml(data: bytes, path: str) -> YamlDocument:
    """Return the mapping that a YAML text holds; keys are texts as they are spelled."""
    builder = _YamlBuilder(path)
    _build_documents(builder, data)
    return builder.document()


def parse_yaml_stream(data: bytes, path: str) -> tuple[list[YamlDocument], str]:
    """Return the mappings of a text with several documents, up to where it ends being YAML, and why it does."""
    builder = _YamlBuilder(path, many=True)
    try:
        _build_documents(builder, data)
    except UnreadableError as err:
        return builder.documents, str(err)
    return builder.documents, ""


def _build_documents(builder: _YamlBuilder, data: bytes) -> None:
    if data.startswith(GIT_LFS_MAGIC):
        raise UnreadableError("is a Git-LFS pointer, not the file itself")
    try:
        for event in _yaml_events(data):
            builder.take_event(event)
    except yaml.MarkedYAMLError as err:
        raise UnreadableError(f"is not YAML: {_render_yaml_error(err)}") from err
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        raise UnreadableError(f"is not YAML: {str(err).splitlines()[0]}") from err


def _yaml_events(data: bytes) -> Iterator[Any]:
    events: Iterator[Any] = yaml.parse(data, Loader=YAML_LOADER)
    return events


def _render_yaml_error(err: yaml.MarkedYAMLError) -> str:
    mark = err.problem_mark or err.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return place + " ".join(str(err.problem or err.context or "cannot be parsed").split())


class _OpenNode:
    """A mapping or list whose end has not come yet."""

    def __init__(self, value: dict[str, Any] | list[Any], path: str, anchor: str | None) -> None:
        self.value, self.path, self.anchor = value, path, anchor
        self.key: str | None = None  # a mapping's key that waits for its value
        self.is_merging = False  # that key is <<, unquoted
        self.lines: dict[str, int] = {}
        self.merged_mappings: list[dict[str, Any]] = []
        self.size = 1

    def next_path(self) -> str:
        if isinstance(self.value, list):
            return f"{self.path}[{len(self.value)}]"
        return f"{self.path}.{self.key}" if self.path else str(self.key)


class _YamlBuilder:
    """Makes values of parser events without recursion, counting what each anchor would cost again."""

    def __init__(self, path: str, *, many: bool = False) -> None:
        self._path, self._many = path, many
        self.documents: list[YamlDocument] = []
        self._open_nodes: list[_OpenNode] = []
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

    def take_event(self, event: Any) -> None:
        start: Any = event.start_mark
        if isinstance(event, yaml.ScalarEvent):
            self._take_scalar(event)
        elif isinstance(event, yaml.AliasEvent):
            self._take_alias(event)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._begin_node(event)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._end_node()
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1 and not self._many:
                raise UnreadableError(f"holds a second document from line {start.line + 1}")

        elif isinstance(event, yaml.DocumentEndEvent) and self._many:
            if isinstance(self._root, dict):
                self.documents.append(self.document())
            self._root, self._lines, self._duplicates, self._anchors = None, {}, [], {}

    def _take_scalar(self, event: Any) -> None:
        self._count_values(1)
        if self._waits_for_key():
            self._take_key(event)
            return
        if self._many and self._open_nodes and isinstance(self._open_nodes[-1].value, list):
            self._lines[self._open_nodes[-1].next_path()] = event.start_mark.line + 1 + (event.style in ("|", ">"))
        value = self._scalar_value(event)
        if event.anchor:
            self._anchors[event.anchor] = (value, 1)
        self._place_value(value, 1)

    def _waits_for_key(self) -> bool:
        return (
            bool(self._open_nodes) and isinstance(self._open_nodes[-1].value, dict) and self._open_nodes[-1].key is None
        )

    def _take_key(self, event: Any) -> None:
        here = self._open_nodes[-1]
        here.key = key = event.value
        here.is_merging = event.value == "<<" and event.implicit[0]
        if event.anchor:
            self._anchors[event.anchor] = (key, 1)
        line = event.start_mark.line + 1
        dotted = here.next_path()
        if key in here.lines and not here.is_merging:
            self._duplicates.append(
                f"{self._path}:{line}: {dotted[:MAX_PATH_LENGTH]} (first on line {here.lines[key]})"
            )
        here.lines.setdefault(key, line)
        if len(dotted) <= MAX_PATH_LENGTH:
            self._lines[dotted] = line

    def _scalar_value(self, event: Any) -> Any:
        """Return a scalar as `yaml.safe_load` would."""
        is_text = event.tag is None and not event.implicit[0]
        if is_text or len(event.value) > MAX_NUMBER_DIGITS:
            return event.value
        tag = event.tag or self._resolve(yaml.ScalarNode, event.value, event.implicit)
        node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
        return self._construct(node)

    def _take_alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise UnreadableError(
                f"is not YAML: line {event.start_mark.line + 1}: *{event.anchor} names nothing that is complete"
            )
        if self._waits_for_key():
            raise UnreadableError(f"has an alias as a key on line {event.start_mark.line + 1}")
        value, size = self._anchors[event.anchor]
        self._count_values(size)
        self._place_value(value, size)

    def _begin_node(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if self._waits_for_key():
            raise UnreadableError(f"has a list or mapping as a key on line {line}")
        if len(self._open_nodes) >= MAX_YAML_DEPTH:
            raise UnreadableError(f"is nested too deeply on line {line}")
        self._count_values(1)
        path = self._open_nodes[-1].next_path() if self._open_nodes else ""
        if path.endswith("]") and len(path) <= MAX_PATH_LENGTH:
            self._lines[path] = line
        empty: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._open_nodes.append(_OpenNode(empty, path[: MAX_PATH_LENGTH + 1], event.anchor))

    def _end_node(self) -> None:
        done = self._open_nodes.pop()
        for other in done.merged_mappings:
            for key, value in other.items():
                done.value.setdefault(key, value)  # type: ignore[union-attr]
        if done.anchor:
            self._anchors[done.anchor] = (done.value, done.size)
        self._place_value(done.value, done.size)

    def _place_value(self, value: Any, size: int) -> None:
        """Put a finished value where it belongs."""
        if not self._open_nodes:
            self._root = value
            return
        here = self._open_nodes[-1]
        here.size += size
        if isinstance(here.value, list):
            here.value.append(value)
        elif here.is_merging:
            here.merged_mappings += _merge_mappings(value)
        else:
            here.value[str(here.key)] = value
        here.key = None

    def _count_values(self, more: int) -> None:
        self._values += more
        if self._values > MAX_YAML_VALUES:
            raise UnreadableError(f"expands to more than {MAX_YAML_VALUES:,} values, which no such file does")


def _merge_mappings(value: Any) -> list[dict[str, Any]]:
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, dict) for part in parts):
        raise UnreadableError("merges something with << that is not a mapping")
    return parts
