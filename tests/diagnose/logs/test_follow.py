"""A log that is still being written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtdx.diagnose.logs.follow import Follower, GrowingLog
from trtdx.host import RecordedHost
from trtdx.redact import redact_secrets


@given(st.lists(st.sampled_from([b"a\n", b"bc", b"\n", b"d\ne"]), max_size=30))
def test_each_line_is_given_out_with_its_number_and_none_is_lost(blocks):
    growing, seen = GrowingLog(), {}
    for block in [*blocks, None]:
        segment = growing.grow(block or b"", ended=block is None)
        if segment is None:
            continue
        number = segment.lines_before + 1
        for line in segment.data[segment.start : segment.end].split(b"\n"):
            seen[number] = line
            number += 1
        growing.trim()
    assert b"\n".join(seen[number] for number in sorted(seen)) == b"".join(blocks)


def test_a_cause_told_over_two_lines_is_found_when_the_second_arrives(rule, book):
    from trtdx.rule import RuleBook

    class Pipe:
        def __init__(self, *parts):
            self.parts = list(parts)

        def read(self, size):
            return self.parts.pop(0) if self.parts else b""

    class Host(RecordedHost):
        def open(self, path):
            return Pipe(b"quokka begins\n", b"then wombat 7\n", b"more\n")

    many = rule("TST001", r"quokka begins\n.{0,40}wombat (?P<n>\d+)", extra='message = "wombat {n}"')
    follower = Follower(Host(), ["-"], RuleBook([book.get("DX000"), many]), redact_secrets)
    assert follower.poll() == []
    assert [finding.message for finding in follower.poll()] == ["wombat 7"]
    assert follower.poll() == []
    follower.poll()
    assert follower.ended
    assert follower.report().summary.lines_read == 3
