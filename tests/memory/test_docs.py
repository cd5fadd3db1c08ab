"""The screens in docs/memory.md are what the tool prints; `pytest --update-golden` writes them anew."""

from __future__ import annotations

import re
import shlex

import pytest

from support.paths import ROOT

PAGE = ROOT / "docs" / "memory.md"
SCREEN = re.compile(r"```console\n\$ (trtdx memory [^\n]*)\n(.*?)```", re.DOTALL)


@pytest.mark.heavy
def test_the_page_shows_what_the_tool_prints(trtdx, request, tmp_path):
    def printed(screen: re.Match[str]) -> str:
        words = shlex.split(screen[1])[1:]
        done = trtdx(*words, env={"XDG_CONFIG_HOME": str(tmp_path)})
        return f"```console\n$ {screen[1]}\n{done.stdout}```"

    text = PAGE.read_text()
    now = SCREEN.sub(printed, text)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(now)
    assert now == PAGE.read_text()
    assert len(SCREEN.findall(text)) >= 4
