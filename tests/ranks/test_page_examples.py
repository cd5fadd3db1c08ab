"""Examples of pages may judge recorded ranks, and start nothing: a page may be a stranger's."""

from __future__ import annotations

import pytest

from trtdx.errors import RulePageError
from trtdx.testing.page_examples import codes_from_commands


@pytest.mark.parametrize(
    "command",
    [
        "trtdx ranks check --launcher 'touch pwned'",
        "trtdx ranks check --python ./evil --from ranks.json",
        "trtdx ranks check --from ranks.json --save /etc/passwd",
        "trtdx ranks smoke -n 2",
        "trtdx ranks launch --run -- touch pwned",
    ],
)
def test_an_example_that_would_start_or_write_something_is_refused(command):
    with pytest.raises(RulePageError):
        codes_from_commands(command, ask=lambda words: pytest.fail(f"ran {words}"))


def test_an_example_that_judges_a_recording_is_run():
    example = "cat > ranks.json <<'EOF'\n{}\nEOF\ntrtdx ranks check --from ranks.json"
    assert codes_from_commands(example, ask=lambda words: [words[2]]) == ["--from"]
