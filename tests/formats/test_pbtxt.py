"""Text protobufs: what protobuf itself writes and reads is read the same way, without its schema."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from trtdx.formats.documents import UnreadableError
from trtdx.formats.pbtxt import PbtxtError, PbtxtMessage, PbtxtWord, parse_pbtxt, read_pbtxt
from trtdx.host import RealHost

if TYPE_CHECKING:
    from pathlib import Path

    from google.protobuf.message import Message as ProtoMessage

CONFIG = """\
# a comment
name: "tensorrt_llm"
backend: 'tensorrt'  "llm"   # two texts that follow each other are one
max_batch_size: 8;
input [
  { name: "input_ids", data_type: TYPE_INT32 dims: [ -1, 2 ] },
  < name: "beam_width" dims: [ 1 ] optional: true >
]
parameters: {
  key: "gpt_model_path"
  value: { string_value: "/engines\\n\\x41\\303\\251" }
}
"""
Types = descriptor_pb2.FieldDescriptorProto


def _message_class() -> type[ProtoMessage]:
    """Return a message with a field of every kind that config.pbtxt has, itself among them."""
    file = descriptor_pb2.FileDescriptorProto(name="node.proto", package="t", syntax="proto3")
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(("TYPE_INVALID", "TYPE_FP16", "TYPE_FP32")):
        kind.value.add(name=name, number=number)
    node = file.message_type.add(name="Node")
    wanted = {
        "name": (Types.TYPE_STRING, False),
        "raw": (Types.TYPE_BYTES, False),
        "count": (Types.TYPE_INT64, False),
        "share": (Types.TYPE_DOUBLE, False),
        "is_on": (Types.TYPE_BOOL, False),
        "dims": (Types.TYPE_INT32, True),
        "words": (Types.TYPE_STRING, True),
        "kind": (Types.TYPE_ENUM, False),
        "child": (Types.TYPE_MESSAGE, False),
        "children": (Types.TYPE_MESSAGE, True),
    }
    for number, (name, (type_, repeated)) in enumerate(wanted.items(), 1):
        field = node.field.add(name=name, number=number, type=type_)
        field.label = Types.LABEL_REPEATED if repeated else Types.LABEL_OPTIONAL
        if type_ == Types.TYPE_ENUM:
            field.type_name = ".t.Kind"
        if type_ == Types.TYPE_MESSAGE:
            field.type_name = ".t.Node"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Node"))


Node = _message_class()


def plain(message: PbtxtMessage) -> dict[str, list[Any]]:
    """Return a parsed message as protobuf's own fields would be listed."""
    out: dict[str, list[Any]] = {}
    for field in message.fields:
        value = field.value
        out.setdefault(field.name, []).append(plain(value) if isinstance(value, PbtxtMessage) else str(value))
    return out


def expected(message: ProtoMessage) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {}
    for field, value in message.ListFields():
        values = value if isinstance(value, (list, tuple)) or hasattr(value, "append") else [value]
        out[field.name] = [_spelled(field, each) for each in values]
    return out


def _spelled(field: Any, value: Any) -> Any:
    if field.type == field.TYPE_MESSAGE:
        return expected(value)
    if field.type == field.TYPE_ENUM:
        return field.enum_type.values_by_number[value].name
    if field.type == field.TYPE_BYTES:
        return value.decode("utf-8", "replace")
    if field.type == field.TYPE_BOOL:
        return str(value).lower()
    return str(value)


def test_a_configuration_is_read_in_all_its_spellings() -> None:
    message = parse_pbtxt(CONFIG)
    assert message.text_at("name") == "tensorrt_llm"
    assert message.text_at("backend") == "tensorrtllm"
    assert message.integer_at("max_batch_size") == 8
    first, second = message.messages_named("input")
    assert [field.value for field in first.fields_named("dims")] == [-1, 2]
    assert first.text_at("data_type") == "TYPE_INT32"
    assert second.bool_at("optional") is True
    assert message.text_at("parameters", "value", "string_value") == "/engines\nAé"


def test_each_value_knows_its_line() -> None:
    message = parse_pbtxt(CONFIG)
    field = message.last_field("parameters", "value", "string_value")
    assert field is not None
    assert field.line == 11
    assert message.fields_named("input")[1].line == 7


def test_a_word_without_quotes_is_told_from_a_text() -> None:
    message = parse_pbtxt('a: true b: "true" c: ${decoupled_mode} d: "${engine_dir}"')
    kinds = {name: isinstance(field.value, PbtxtWord) for name, field in message.walk_fields()}
    assert kinds == {"a": True, "b": False, "c": True, "d": False}
    assert message.bool_at("a") is True
    assert message.bool_at("b") is None


def test_the_last_of_several_values_counts() -> None:
    assert parse_pbtxt("a: 1 a: 2").integer_at("a") == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name tensorrt_llm", "line 1, column 6: expected ':' or '{' after name"),
        ("input [\n {}\n {}\n]", "line 3, column 2: expected ',' or ']'"),
        ("a {\n b: 1\n", "line 3, column 1: expected '}', found the end"),
        ("a: 1 }", "line 1, column 6: expected the name of a field"),
        ('a: "no end\nb: 1', "line 1, column 4: a text in quotes is not closed on its line"),
        ("dims [ 1 ]", "line 1, column 8: expected ':' between dims and a list of values"),
        ("dims: [ 1, ]", "column 12: expected a value after ','"),
        ("a:", "expected a value, found the end"),
        ("a: - x", "expected a number after '-'"),
        ("a: 08x", "unexpected '08x'"),
        (r'a: "\q"', "there is no escape"),
        ("a: @", "unexpected '@'"),
        ("[a.b", "expected the name of an extension"),
    ],
)
def test_what_is_no_text_protobuf_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(PbtxtError) as refused:
        parse_pbtxt(text)
    assert reason in str(refused.value)


@pytest.mark.heavy
@pytest.mark.parametrize("text", ["{" * 50, "a{" * 5000, "a<" * 5000, "a:[" * 5000, "[" * 5000, "a:1 " * 300_000])
def test_bombs_are_refused_at_once(text: str) -> None:
    with pytest.raises(PbtxtError):
        parse_pbtxt(text)


def test_a_huge_or_binary_file_is_refused(tmp_path: Path) -> None:
    huge, binary = tmp_path / "huge.pbtxt", tmp_path / "binary.pbtxt"
    with huge.open("wb") as file:
        file.truncate(10 << 30)
    binary.write_bytes(b"name\0\1\2")
    for path in (huge, binary, tmp_path / "absent.pbtxt"):
        with pytest.raises(UnreadableError):
            read_pbtxt(RealHost(), str(path))


def test_an_extension_and_an_any_are_fields() -> None:
    message = parse_pbtxt('[type.googleapis.com/t.Node] { name: "x" } [t.ext-1]: 3')
    assert [field.name for field in message.fields] == ["[type.googleapis.com/t.Node]", "[t.ext-1]"]


def test_numbers_are_read_as_protobuf_reads_them() -> None:
    message = parse_pbtxt("a: 0x1F b: 017 c: 1.5f d: 1e3 e: .5 f: -inf g: 12.")
    assert [field.value for field in message.fields] == [31, 15, 1.5, 1000.0, 0.5, -math.inf, 12.0]


leaf = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(max_size=12),
        "raw": st.text(max_size=6).map(str.encode),
        "count": st.integers(-(2**62), 2**62),
        "share": st.sampled_from([0.5, -2.25, 1e20, 1e-7, 3.0]),
        "is_on": st.booleans(),
        "dims": st.lists(st.integers(-5, 5), max_size=4),
        "words": st.lists(st.text(max_size=5), max_size=3),
        "kind": st.sampled_from([1, 2]),
    },
)
tree = st.recursive(
    leaf,
    lambda inner: st.builds(
        lambda own, one, many: {**own, "child": one, "children": many},
        leaf,
        inner,
        st.lists(inner, max_size=3),
    ),
    max_leaves=8,
)


@pytest.mark.heavy
@settings(max_examples=200, deadline=None)
@given(
    data=tree,
    one_line=st.booleans(),
    utf8=st.booleans(),
    short=st.booleans(),
)
def test_what_protobuf_writes_is_read_as_protobuf_wrote_it(
    data: dict[str, Any], one_line: bool, utf8: bool, short: bool
) -> None:
    message = Node(**data)
    text = text_format.MessageToString(message, as_one_line=one_line, as_utf8=utf8, use_short_repeated_primitives=short)
    assert plain(parse_pbtxt(text)) == expected(message)


pieces = st.sampled_from(
    [
        "{",
        "}",
        "<",
        ">",
        "[",
        "]",
        ":",
        ",",
        ";",
        " ",
        "\n",
        "#c\n",
        '"a"',
        "'b'",
        "1",
        "-1",
        "true",
        "name",
        "dims",
        "child",
        "kind",
        "TYPE_FP16",
        "children",
        "words",
    ]
)


@pytest.mark.heavy
@settings(max_examples=1500, deadline=None)
@given(parts=st.lists(pieces, max_size=12))
def test_what_protobuf_accepts_is_accepted(parts: list[str]) -> None:
    text = " ".join(parts)
    try:
        message = text_format.Parse(text, Node())
    except text_format.ParseError:
        with contextlib.suppress(PbtxtError):
            parse_pbtxt(text)
    else:
        assert set(plain(parse_pbtxt(text))) >= set(expected(message))


@settings(max_examples=400, deadline=None)
@given(text=st.text(max_size=80) | st.text("ab{}<>[]:,;\"'\\$#-.0x \n", max_size=60))
def test_no_text_raises_anything_but_a_refusal(text: str) -> None:
    with contextlib.suppress(PbtxtError):
        assert isinstance(parse_pbtxt(text), PbtxtMessage)
