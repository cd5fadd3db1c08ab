"""Commands in shell text, without a shell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtdx.formats.shell import MAX_TEXT, parse_shell


def words(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in parse_shell(text).commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b  c", [["a", "b", "c"]]),
        ("a 'b c' \"d e\"f", [["a", "b c", "d ef"]]),
        ("a \\\n  b", [["a", "b"]]),
        ("a \\\r\n  b", [["a", "b"]]),
        ("a; b && c || d | e & f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a # b\nc", [["a"], ["c"]]),
        ("a b#c", [["a", "b#c"]]),
        ("a > out.txt 2>&1 b", [["a", "b"]]),
        (r"a b\ c \"d", [["a", "b c", '"d']]),
        ("X=1 a", [["X=1", "a"]]),
        ("X=1\na $X ${X} \"$X\" '$X'", [["a", "1", "1", "1", "$X"]]),
        ("a ${N:-8} ${M-9}", [["a", "8", "9"]]),
        ("(a b)", [["a", "b"]]),
        (
            'X="--p 1"\nX+=" --q 2"\na $X "$X" x$X',
            [["a", "--p", "1", "--q", "2", "--p 1 --q 2", "x--p", "1", "--q", "2"]],
        ),
        ('X=""\na $X "$X" b', [["a", "", "b"]]),
        ('X="1 2"\nY=$X\na "$Y"', [["a", "1 2"]]),
        ('X=(--p 1\n  --q "2 3")\nX+=(--r)\na "${X[@]}" b', [["a", "--p", "1", "--q", "2 3", "--r", "b"]]),
        ("if [ -d x ]; then a; else b; fi", [["[", "-d", "x", "]"], ["a"], ["b"], ["fi"]]),
        ("P=1\nfor P in 2 3; do \\\na $P & \\\ndone", [["a", "$P"], ["done"]]),
    ],
)
def test_words_are_split_as_a_shell_splits_them(text: str, expected: list[list[str]]) -> None:
    assert words(text) == expected


def test_what_only_the_shell_knows_keeps_its_spelling_and_says_so() -> None:
    [command] = parse_shell('a $UNSET $(nproc) `hostname` "x$Y" <(echo z) b').commands
    assert [(word.text, word.is_known) for word in command.words] == [
        ("a", True),
        ("$UNSET", False),
        ("$(nproc)", False),
        ("`hostname`", False),
        ("x$Y", False),
        ("<(echo z)", False),
        ("b", True),
    ]


def test_a_variable_that_becomes_unknown_is_forgotten() -> None:
    [command] = parse_shell("N=4\nN=$(nproc)\na $N").commands
    assert command.words[1] == ("$N", 3, False)


def test_words_know_their_line() -> None:
    [command] = parse_shell("# one\na \\\n  b \\\n  c").commands
    assert [word.line for word in command.words] == [2, 3, 4]


def test_a_here_document_is_no_command_and_its_file_is_kept() -> None:
    text = "N=4\ncat > extra.yaml <<EOF\nmax_batch_size: $N\nEOF\ncat <<-'E' | tee -a other.yaml\n\tb: $N\n\tE\nrun\n"
    script = parse_shell(text)
    assert words(text) == [["cat"], ["cat"], ["tee", "-a", "other.yaml"], ["run"]]
    assert script.files == {"extra.yaml": ("max_batch_size: 4\n", 3), "other.yaml": ("b: $N\n", 6)}


@pytest.mark.parametrize(
    "text",
    [
        "'" * 100000,
        '"' * 100000,
        "$(" * 50000,
        "`" * 99999,
        "\\" * 100000,
        "<<" * 50000,
        "(" * 100000,
        "<<A\n" * 20000,
        "> " * 50000,
        "${" * 50000,
        "x=aaaaaaaaaaaaaaaa\n" + "x=$x$x\n" * 60,
        "x=" + "a" * 4000 + "\n" + "$x " * 100000,
    ],
)
def test_bombs_come_to_an_end(text: str) -> None:
    assert len(parse_shell(text).commands) <= len(text)


def test_a_text_that_is_too_long_is_said_not_to_be_whole() -> None:
    assert not parse_shell("a " * MAX_TEXT).is_complete
    assert parse_shell("a b").is_complete


@given(text=st.text(max_size=100) | st.text("ab $(){}<>'\"\\`|&;#=\n", max_size=60))
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert all(command.words for command in parse_shell(text).commands)
